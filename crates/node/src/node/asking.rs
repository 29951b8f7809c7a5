//! Asks the other nodes for the addresses at which clients reach them.
//!
//! Invariant: what is told about a node is at most [`ASK_EVERY`] and one answer older than what the node says.

use std::sync::{Arc, Weak};
use std::time::Duration;

use bytes::Bytes;
use futures::future::join_all;
use gesta_link::Address;
use tokio::sync::watch;
use tokio::time::Instant;

use super::Node;
use crate::clients::believed;
use crate::questions::CLIENT_ADDRESS;

/// How often the other nodes are asked while nothing changes.
const ASK_EVERY: Duration = Duration::from_secs(2);
/// The time within which an answer must come. An answer is not awaited for longer.
const ANSWER_WITHIN: Duration = Duration::from_millis(500);

/// Asks the other nodes repeatedly, until the node is gone.
pub(super) async fn follow(
    node: Weak<Node>,
    mut placement: watch::Receiver<Arc<gesta_cluster::Placement>>,
) {
    loop {
        placement.mark_unchanged();
        let Some(node) = node.upgrade() else { return };
        ask_all(&node).await;
        drop(node);
        tokio::select! {
            changed = placement.changed() => if changed.is_err() { return },
            () = tokio::time::sleep(ASK_EVERY) => {}
        }
    }
}

async fn ask_all(node: &Node) {
    let placement = node.placement();
    let others = placement.nodes.iter();
    let others = others.filter(|other| Some(other.id) != placement.me);
    let asked = others.map(async |other| {
        let address = Address::new(Arc::clone(&other.address));
        let within = Instant::now() + ANSWER_WITHIN;
        let answer = node
            .forwarder
            .ask(&address, CLIENT_ADDRESS, Bytes::new(), within);
        let answer = answer.await.ok();
        let believed = answer.and_then(|answer| believed(&answer));
        (Arc::clone(&other.address), believed)
    });
    node.clients.take(join_all(asked).await);
}
