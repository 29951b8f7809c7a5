//! Connections: where the primary is, how one is opened and encrypted, and which store is behind it.

pub(crate) mod connection;
pub(crate) mod hosts;
pub(crate) mod identity;
pub(crate) mod notices;
pub(crate) mod password;
pub(crate) mod pool;
pub(crate) mod reach;
pub(crate) mod tls;
