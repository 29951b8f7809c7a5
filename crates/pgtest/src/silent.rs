//! A host that accepts connections and never says a word, as a server that hangs before it answers.

use std::net::{Ipv4Addr, SocketAddr};

use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::task::JoinHandle;

/// Accepts every connection, keeps it open, reads nothing and answers nothing. Dropping it closes them all.
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

    /// Where it listens.
    #[must_use]
    pub fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// Number of connections accepted so far.
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
