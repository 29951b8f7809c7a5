//! The addresses at which clients reach each node. The nodes are asked for them over the links.
//!
//! Why the nodes are asked, instead of writing the addresses beside the beats: nobody decides anything by them. They
//! are advice for clients, who soon notice when an address is wrong.
//! Invariant: the last address of a node that does not answer is kept until the node has left.
//! Not here: who asks, and how often (`node::asking`).

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;

/// The greatest length in bytes of an address that is believed.
const ADDRESS_BYTES_MAX: usize = 255;

/// The addresses for clients, by the addresses at which the nodes reach each other, because the numbers of nodes may
/// change.
pub type ClientAddresses = BTreeMap<Arc<str>, Arc<str>>;

/// What this node tells about its own address, and what others have told it.
#[derive(Debug, Default)]
pub(crate) struct Clients {
    /// The address at which clients reach this node; empty if there is none, or if it is not known.
    own: Mutex<Arc<str>>,
    others: Mutex<ClientAddresses>,
}

fn held<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Clients {
    /// Returns the answer to [`CLIENT_ADDRESS`](crate::questions::CLIENT_ADDRESS).
    pub(crate) fn answer(&self) -> Bytes {
        Bytes::copy_from_slice(held(&self.own).as_bytes())
    }

    pub(crate) fn set_own(&self, address: &str) {
        *held(&self.own) = address.into();
    }

    /// Returns the addresses that are known. `here` is the address at which the other nodes reach this one, while it is
    /// registered.
    pub(crate) fn known(&self, here: Option<&str>) -> ClientAddresses {
        let mut all = held(&self.others).clone();
        if let Some(here) = here {
            all.insert(here.into(), Arc::clone(&held(&self.own)));
        }
        all.retain(|_, address| !address.is_empty());
        all
    }

    /// Takes what nodes have answered, and forgets nodes that are gone.
    pub(crate) fn take(&self, answers: Vec<(Arc<str>, Option<Arc<str>>)>) {
        let mut others = held(&self.others);
        others.retain(|node, _| answers.iter().any(|(asked, _)| asked == node));
        for (node, answer) in answers {
            if let Some(address) = answer {
                others.insert(node, address);
            }
        }
    }
}

/// Reads an address that another node tells; `None` if the answer is no text for an address.
pub(crate) fn believed(answer: &Bytes) -> Option<Arc<str>> {
    let text = std::str::from_utf8(answer).ok()?;
    let is_good = text.len() <= ADDRESS_BYTES_MAX && text.chars().all(|c| c.is_ascii_graphic());
    is_good.then(|| text.into())
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
