//! Configuration of links.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use uuid::Uuid;

use crate::error::LinkStartError;
use crate::route::Address;
use crate::sending::Credit;

/// Fewest bytes of a secret. A shorter one could be guessed from one recorded hello.
pub(crate) const SECRET_BYTES_MIN: usize = 16;

/// Longest address: that of a host name and a port, and more.
pub(crate) const ADDRESS_BYTES_MAX: usize = 300;

/// The secret that the nodes of a cluster share. It is never shown and never sent.
#[derive(Clone)]
pub struct Secret(Arc<[u8]>);

impl Secret {
    /// Takes at least 16 bytes.
    ///
    /// # Errors
    /// [`LinkStartError::Config`] if they are fewer.
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
    /// The store.
    pub id: Uuid,
    /// Number of its logs.
    pub logs: u16,
}

/// The versions of the protocol between nodes that a build speaks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Protocols {
    /// The lowest one.
    pub min: u16,
    /// The highest one.
    pub max: u16,
}

impl Protocols {
    /// Those of this build. Neighbouring builds share at least one: whoever raises `max` leaves `min` at what the build
    /// before had for `max`.
    pub const THIS: Protocols = Protocols { min: 1, max: 1 };
}

/// Times of links.
#[derive(Clone, Copy, Debug)]
pub struct Times {
    /// Connecting and the exchange of hellos may take so long together.
    pub connect_within: Duration,
    /// Time between two pings.
    pub ping_every: Duration,
    /// The same while calls wait for the answer of the node.
    pub ping_waiting_every: Duration,
    /// A node is silent when it has not answered a ping for so long. Calls that do not wait for a silent node come
    /// back.
    pub silent_after: Duration,
    /// A link is dead when the last pong is so old.
    pub dead_after: Duration,
    /// Calls come back as unreachable when there has been no link to the owner for so long, and as without an owner
    /// when none has been known for so long.
    pub return_after: Duration,
    /// A node that was unreachable gets calls again when the link to it has held so long.
    pub trusted_after: Duration,
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
        }
    }
}

/// Bounds of links.
#[derive(Clone, Copy, Debug)]
pub struct Bounds {
    /// Most calls of one lane that the owner holds unanswered. The owner tells the forwarder in its hello.
    pub lane_calls_max: u32,
    /// Most bytes of bodies of one lane that the owner holds unanswered; a larger body may be there alone.
    pub lane_bytes_max: u32,
    /// Most bytes of one body, of a call or a reply.
    pub body_bytes_max: u32,
    /// Most calls of one log that a forwarder holds, waiting and unanswered.
    pub waiting_calls_max: usize,
    /// Most bytes of bodies of one log that a forwarder holds; a larger body may be there alone.
    pub waiting_bytes_max: usize,
    /// Most calls of all logs together that a forwarder holds.
    pub all_waiting_calls_max: usize,
    /// Most bytes of bodies of all logs together that a forwarder holds; a larger body may be there alone.
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

/// Configuration of a node's links, the same for both sides.
#[derive(Clone, Debug)]
pub struct LinkConfig {
    /// The store and its number of logs.
    pub store: StoreIdentity,
    /// The secret of the cluster.
    pub secret: Secret,
    /// The address at which other nodes reach this one: who dials another one gets no link. A hint that names it is not
    /// followed.
    pub address: Address,
    /// The build, for messages to people; at most 64 bytes are sent.
    pub build: String,
    /// The versions of the protocol that the build speaks.
    pub protocols: Protocols,
    /// Times.
    pub times: Times,
    /// Bounds.
    pub bounds: Bounds,
}

/// Largest body that a link carries, in bytes.
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
