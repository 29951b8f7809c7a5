//! Why the application did not start, or did not stop well.

use std::net::SocketAddr;

/// See the module.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The store.
    #[error(transparent)]
    Store(#[from] gesta::Error),
    /// What gives unpaid reservations back.
    #[error("cannot watch the payments: {0}")]
    Payments(#[from] gesta::projection::Error),
    /// The rows of the read model: their database refuses, or cannot be used.
    #[error("cannot keep the read model: {0}")]
    ReadModel(gesta::projection::Error),
    /// The address can be reached from other machines.
    #[error(
        "refusing to listen on {0}: it is not a loopback address, and nothing is encrypted; say --insecure to allow it"
    )]
    NotLoopback(SocketAddr),
    /// The address cannot be listened on.
    #[error("cannot listen on {0}: {1}")]
    Listen(SocketAddr, std::io::Error),
}
