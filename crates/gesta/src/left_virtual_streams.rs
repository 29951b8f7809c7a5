//! What becomes of virtual streams that were kept before their store was spread over several databases.

/// What is to be done with virtual streams that a store in several databases keeps no longer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LeftVirtualStreams {
    /// Look whether they are switched on.
    Look,
    /// Switch them off.
    SwitchOff,
}
