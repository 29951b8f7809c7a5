//! The questions that a node asks another on a link, beside calls.

/// Look at the registry at once, something has changed.
pub(crate) const LOOK_NOW: u8 = 1;
/// Where do clients reach you?
pub(crate) const CLIENT_ADDRESS: u8 = 2;
