//! The commands that hurt what they load, and judge what is left.

pub(crate) mod failover;
pub(crate) mod soak;
pub(crate) mod torture;
