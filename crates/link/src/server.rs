//! The owner's side: accepts links and serves the calls of other nodes.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use tokio::net::TcpListener;

use crate::config::LinkConfig;
use crate::serve::Serve;

/// Serves the links of other nodes. A clone is another handle of the same server.
#[derive(Clone, Debug)]
pub struct LinkServer {}

impl LinkServer {
    /// Serves links that come to this listener. Must be called in a tokio runtime.
    #[must_use]
    pub fn start(listener: TcpListener, config: LinkConfig, serve: Arc<dyn Serve>) -> Self {
        let _ = (listener, config, serve);
        todo!()
    }

    /// Where it listens.
    #[must_use]
    pub fn local_address(&self) -> SocketAddr {
        todo!()
    }

    /// Takes no more links and calls, waits up to `within` until the taken calls are answered, and closes all links.
    pub async fn shutdown(&self, within: Duration) {
        let _ = within;
        todo!()
    }
}
