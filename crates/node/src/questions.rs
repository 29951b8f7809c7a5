//! The questions that a node asks another on a link, beside calls.

/// The question that makes a node look at the registry at once, because something has changed.
pub(crate) const LOOK_NOW: u8 = 1;
/// The question at which address clients reach the node.
pub(crate) const CLIENT_ADDRESS: u8 = 2;
/// The question that asks a node to prepare for the log whose number is the body, in two bytes, the high one first. The
/// answer is empty and comes when the node has prepared.
pub(crate) const PREPARE: u8 = 3;
