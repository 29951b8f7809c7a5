//! Who owns a log: addresses, epochs, routes and hints.

use std::fmt;
use std::sync::Arc;

use gesta_core::Incarnation;

/// The address at which a node listens for links, as `host:port`. Two addresses are the same node only if their texts
/// are equal.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Address(Arc<str>);

impl Address {
    /// Takes a text, which is read only when the node is dialled.
    #[must_use]
    pub fn new(text: impl Into<Arc<str>>) -> Self {
        Self(text.into())
    }

    /// Returns the text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", &*self.0)
    }
}

impl From<std::net::SocketAddr> for Address {
    fn from(address: std::net::SocketAddr) -> Self {
        Self(address.to_string().into())
    }
}

/// The number of an ownership of a log. The number grows with each change of the owner within one incarnation of the
/// store.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Epoch {
    /// The life of the store to which the number belongs. Incarnations have no order.
    pub incarnation: Incarnation,
    /// The number of the ownership.
    pub number: u64,
}

impl Epoch {
    /// Returns whether this epoch is known to come after the other one. Of different incarnations neither is newer.
    #[must_use]
    pub fn is_newer_than(&self, other: &Epoch) -> bool {
        self.incarnation == other.incarnation && self.number > other.number
    }
}

/// Who gets the calls of a log.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum RouteOwner {
    /// No node owns the log now.
    Nobody,
    /// This node owns the log.
    Local,
    /// The node at this address owns the log.
    Node(Address),
}

/// The owner of a log, as this node knows it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Route {
    /// The owner of the log.
    pub owner: RouteOwner,
    /// The epoch of that ownership.
    pub epoch: Epoch,
}

/// What a node that does not serve a log says about its owner. A hint names an address, so that it can be followed
/// without asking anyone else.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Hint {
    /// The address of the owner; `None` if the node knows of no owner.
    pub owner: Option<Address>,
    /// The epoch of that ownership.
    pub epoch: Epoch,
}

impl Hint {
    /// Makes a hint that tells nothing: it is older than every route, so it is never followed.
    pub(crate) fn nothing(incarnation: Incarnation) -> Self {
        Self {
            owner: None,
            epoch: Epoch {
                incarnation,
                number: 0,
            },
        }
    }
}
