//! Where clients reach each node: asked of the nodes themselves, over the links.
//!
//! Why asked, and not written beside the beats: nobody decides anything by it. It is advice for clients, who find out
//! soon enough when it is wrong.
//! Invariant: what is told of a node is at most [`ASK_EVERY`] and an answer older than what the node says; a node that
//! does not answer keeps its last address until it has left.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use bytes::Bytes;
use futures::future::join_all;
use gesta_link::Address;
use tokio::sync::watch;
use tokio::time::Instant;

use crate::node::Node;

/// Question on a link: where do clients reach you?
pub(crate) const CLIENT_ADDRESS: u8 = 2;
/// How often the others are asked while nothing changes.
const ASK_EVERY: Duration = Duration::from_secs(2);
/// An answer comes within this time, or is not waited for.
const ANSWER_WITHIN: Duration = Duration::from_millis(500);
/// Longest address that is believed, in bytes.
const ADDRESS_BYTES_MAX: usize = 255;

/// The addresses for clients, by the addresses at which the nodes reach each other: their numbers may change.
pub type ClientAddresses = BTreeMap<Arc<str>, Arc<str>>;

/// What this node tells, and what it was told.
#[derive(Debug, Default)]
pub(crate) struct Clients {
    /// Where clients reach this node; empty: nowhere, or it is not known.
    own: Mutex<Arc<str>>,
    others: Mutex<ClientAddresses>,
}

fn held<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Clients {
    /// The answer to [`CLIENT_ADDRESS`].
    pub(crate) fn answer(&self) -> Bytes {
        Bytes::copy_from_slice(held(&self.own).as_bytes())
    }

    pub(crate) fn set_own(&self, address: &str) {
        *held(&self.own) = address.into();
    }

    /// The addresses that are known; `here` is how the other nodes reach this one, while it is registered.
    pub(crate) fn known(&self, here: Option<&str>) -> ClientAddresses {
        let mut all = held(&self.others).clone();
        if let Some(here) = here {
            all.insert(here.into(), Arc::clone(&held(&self.own)));
        }
        all.retain(|_, address| !address.is_empty());
        all
    }

    /// Takes what nodes have answered, and forgets nodes that are gone.
    fn take(&self, answers: Vec<(Arc<str>, Option<Arc<str>>)>) {
        let mut others = held(&self.others);
        others.retain(|node, _| answers.iter().any(|(asked, _)| asked == node));
        for (node, answer) in answers {
            if let Some(address) = answer {
                others.insert(node, address);
            }
        }
    }
}

/// An address as another node tells it; none if it is no text for an address.
fn believed(answer: &Bytes) -> Option<Arc<str>> {
    let text = std::str::from_utf8(answer).ok()?;
    let is_good = text.len() <= ADDRESS_BYTES_MAX && text.chars().all(|c| c.is_ascii_graphic());
    is_good.then(|| text.into())
}

/// Asks the other nodes again and again, until the node is gone.
pub(crate) async fn follow(
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

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: what is no address is not believed; who does not answer keeps its address, who has left does not.
    #[test]
    fn addresses_are_taken_as_nodes_tell_them() {
        let clients = Clients::default();
        let [one, two]: [Arc<str>; 2] = ["one:1".into(), "two:1".into()];
        let told = |text: &'static str| believed(&Bytes::from_static(text.as_bytes()));
        assert_eq!(believed(&Bytes::from_static(b"\xff")), None);
        assert_eq!(told("a b"), None);
        assert_eq!(told("a\nb:1"), None);
        assert_eq!(believed(&Bytes::from("a".repeat(256))), None);
        clients.take(vec![
            (Arc::clone(&one), told("a:1")),
            (two, told("[::1]:2")),
        ]);
        assert_eq!(
            clients.known(Some("me:1")).len(),
            2,
            "this node has none yet"
        );
        clients.set_own("c:3");
        clients.take(vec![(Arc::clone(&one), None)]);
        let known: Vec<_> = clients.known(Some("me:1")).into_iter().collect();
        let me = ("me:1".into(), "c:3".into());
        assert_eq!(known, [me, (one, "a:1".into())]);
        assert_eq!(clients.answer(), "c:3");
    }
}
