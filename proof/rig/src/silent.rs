//! A host that accepts connections and never answers, like a server that hangs.

use std::net::{Ipv4Addr, SocketAddr};

use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::task::JoinHandle;

/// A host that accepts every connection, keeps it open, reads nothing and answers nothing. Dropping it closes all
/// connections.
#[derive(Debug)]
pub struct SilentHost {
    addr: SocketAddr,
    accepted: watch::Receiver<u64>,
    acceptor: JoinHandle<()>,
}

impl SilentHost {
    /// Listens on a free port of 127.0.0.1.
    ///
    /// # Errors
    /// If no port can be bound.
    pub async fn start() -> std::io::Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
        let addr = listener.local_addr()?;
        let (count, accepted) = watch::channel(0);
        let acceptor = tokio::spawn(async move {
            let mut kept = Vec::new();
            loop {
                if let Ok((stream, _)) = listener.accept().await {
                    kept.push(stream);
                    count.send_modify(|count| *count += 1);
                }
            }
        });
        Ok(Self {
            addr,
            accepted,
            acceptor,
        })
    }

    /// Returns the address at which the host listens.
    #[must_use]
    pub fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// Returns how many connections were accepted so far.
    #[must_use]
    pub fn connections(&self) -> u64 {
        *self.accepted.borrow()
    }
}

impl Drop for SilentHost {
    fn drop(&mut self) {
        self.acceptor.abort();
    }
}
