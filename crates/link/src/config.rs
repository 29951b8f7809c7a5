//! The configuration of links.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use uuid::Uuid;

use crate::error::LinkStartError;
use crate::route::Address;
use crate::sending::Credit;

/// The smallest number of bytes of a secret. A shorter secret could be guessed from one recorded hello.
pub(crate) const SECRET_BYTES_MIN: usize = 16;

/// The greatest length of an address, in bytes. A host name and a port are shorter.
pub(crate) const ADDRESS_BYTES_MAX: usize = 300;

/// The secret that the nodes of a cluster share. It is never shown and never sent.
#[derive(Clone)]
pub struct Secret(Arc<[u8]>);

impl Secret {
    /// Takes a secret of at least 16 bytes.
    ///
    /// # Errors
    /// [`LinkStartError::Config`] if the bytes are fewer.
    pub fn new(bytes: &[u8]) -> Result<Self, LinkStartError> {
        if bytes.len() < SECRET_BYTES_MIN {
            return Err(LinkStartError::Config(format!(
                "the secret must have at least {SECRET_BYTES_MIN} bytes, found {}",
                bytes.len()
            )));
        }
        Ok(Self(bytes.into()))
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret")
    }
}

/// What two nodes must agree on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct StoreIdentity {
    /// The id of the store.
    pub id: Uuid,
    /// The number of logs of the store.
    pub logs: u16,
}

/// The versions of the protocol between nodes that a build speaks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Protocols {
    /// The lowest version.
    pub min: u16,
    /// The highest version.
    pub max: u16,
}

impl Protocols {
    /// The versions of this build. Neighbouring builds share at least one version: a build that raises `max` must leave
    /// `min` at what the build before had for `max`.
    pub const THIS: Protocols = Protocols { min: 1, max: 1 };
}

/// The times of links.
#[derive(Clone, Copy, Debug)]
pub struct Times {
    /// How long connecting and the exchange of hellos may take together.
    pub connect_within: Duration,
    /// The time between two pings.
    pub ping_every: Duration,
    /// The time between two pings while calls wait for the answer of the node.
    pub ping_waiting_every: Duration,
    /// The time without an answer to a ping after which a node is silent. Calls that do not wait for a silent node then
    /// come back.
    pub silent_after: Duration,
    /// The age of the last pong at which a link is dead.
    pub dead_after: Duration,
    /// The time without a link to the owner after which calls come back as unreachable, and the time without a known
    /// owner after which they come back as without an owner.
    pub return_after: Duration,
    /// The time for which the link to a node that was unreachable must hold before the node gets calls again.
    pub trusted_after: Duration,
    /// How long bytes that are written may take to leave when a node stops.
    pub flush_within: Duration,
}

impl Default for Times {
    fn default() -> Self {
        Self {
            connect_within: Duration::from_secs(1),
            ping_every: Duration::from_secs(1),
            ping_waiting_every: Duration::from_millis(250),
            silent_after: Duration::from_secs(1),
            dead_after: Duration::from_secs(3),
            return_after: Duration::from_secs(1),
            trusted_after: Duration::from_secs(5),
            flush_within: Duration::from_secs(1),
        }
    }
}

/// The bounds of links.
#[derive(Clone, Copy, Debug)]
pub struct Bounds {
    /// The greatest number of calls of one lane that the owner holds unanswered. The owner tells it to the forwarder in
    /// its hello.
    pub lane_calls_max: u32,
    /// The greatest number of bytes of bodies of one lane that the owner holds unanswered. A larger body may be there
    /// alone.
    pub lane_bytes_max: u32,
    /// The greatest number of bytes of one body, of a call or a reply.
    pub body_bytes_max: u32,
    /// The greatest number of calls of one log that a forwarder holds, waiting and unanswered.
    pub waiting_calls_max: usize,
    /// The greatest number of bytes of bodies of one log that a forwarder holds. A larger body may be there alone.
    pub waiting_bytes_max: usize,
    /// The greatest number of calls of all logs together that a forwarder holds.
    pub all_waiting_calls_max: usize,
    /// The greatest number of bytes of bodies of all logs together that a forwarder holds. A larger body may be there
    /// alone.
    pub all_waiting_bytes_max: usize,
}

impl Default for Bounds {
    fn default() -> Self {
        Self {
            lane_calls_max: 4_096,
            lane_bytes_max: 16 << 20,
            body_bytes_max: 64 << 20,
            waiting_calls_max: 65_536,
            waiting_bytes_max: 128 << 20,
            all_waiting_calls_max: 262_144,
            all_waiting_bytes_max: 256 << 20,
        }
    }
}

impl Bounds {
    pub(crate) fn credit(&self) -> Credit {
        Credit {
            calls: self.lane_calls_max,
            bytes: self.lane_bytes_max,
        }
    }
}

/// The configuration of a node's links. The configuration is the same for both sides.
#[derive(Clone, Debug)]
pub struct LinkConfig {
    /// The store and its number of logs.
    pub store: StoreIdentity,
    /// The secret of the cluster.
    pub secret: Secret,
    /// The address at which other nodes reach this one. A node that dials another address gets no link. A hint that
    /// names this address is not followed.
    pub address: Address,
    /// The build, for messages to people. At most 64 bytes of it are sent.
    pub build: String,
    /// The versions of the protocol that the build speaks.
    pub protocols: Protocols,
    /// The times of the links.
    pub times: Times,
    /// The bounds of the links.
    pub bounds: Bounds,
}

/// The size of the largest body that a link carries, in bytes.
const BODY_BYTES_MAX: u32 = 1 << 30;

impl LinkConfig {
    pub(crate) fn check(&self) -> Result<(), LinkStartError> {
        let refuse = |sentence: &str| Err(LinkStartError::Config(sentence.to_owned()));
        let (bounds, times) = (&self.bounds, &self.times);
        if self.store.logs == 0 {
            return refuse("a store has at least one log");
        }
        if self.protocols.min > self.protocols.max {
            return refuse("a build speaks at least one version of the protocol");
        }
        if self.address.as_str().len() > ADDRESS_BYTES_MAX {
            return refuse("the address of a node may have at most 300 bytes");
        }
        if bounds.lane_calls_max == 0
            || bounds.waiting_calls_max == 0
            || bounds.all_waiting_calls_max == 0
        {
            return refuse("at least one call must be allowed on a lane and to wait");
        }
        if bounds.body_bytes_max > BODY_BYTES_MAX {
            return refuse("bodies may have at most 1 GiB");
        }
        if times.ping_every >= times.dead_after {
            return refuse("a link must be pinged before it counts as dead");
        }
        Ok(())
    }
}
