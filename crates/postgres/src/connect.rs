//! Connections: where the primary is, how one is opened, and whether the store behind it still has what it had.

pub(crate) mod connection;
pub(crate) mod history;
pub(crate) mod hosts;
pub(crate) mod identity;
pub(crate) mod notices;
pub(crate) mod pool;
pub(crate) mod reach;
pub(crate) mod silence;
