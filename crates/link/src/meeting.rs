//! Asks a node by a hello alone whether it has the same secret, before there is a forwarder.
//!
//! Why: a node that has another secret than those of its cluster is of no use there, and should not join.
//! Not here: links that stay (`peer`); who must give way to whom (`gesta-node`).

use tokio::net::TcpStream;
use uuid::Uuid;

use crate::config::LinkConfig;
use crate::hello::{self, HelloError};
use crate::peer::introduction;
use crate::route::Address;

/// What a node has answered to a hello.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Meeting {
    /// The node has the same secret, and would have a link.
    Welcome,
    /// The node has another secret.
    OtherSecret,
    /// Nobody has answered in time, or the answer says nothing about the secret.
    Unknown,
}

/// Dials a node, exchanges the hello, and closes the connection. This takes at most `connect_within` of the
/// configuration.
///
/// # Cancel safety
/// The node may have been dialled.
pub async fn meet(config: &LinkConfig, node: &Address) -> Meeting {
    let own = introduction(config, Uuid::new_v4(), node);
    let met = async {
        let mut socket = TcpStream::connect(node.as_str()).await?;
        hello::dial(&mut socket, &config.secret, &own).await
    };
    match tokio::time::timeout(config.times.connect_within, met).await {
        Ok(Ok(_)) => Meeting::Welcome,
        Ok(Err(HelloError::OtherSecret)) => Meeting::OtherSecret,
        Ok(Err(_)) | Err(_) => Meeting::Unknown,
    }
}
