//! The registry of a database: which nodes are alive, and which of them appends to which log.
//!
//! Why: several nodes share one database, and each log is fastest with one writer. The registry tells every node who
//! that is. A lease is *advice about routing, never evidence*: the chained insert
//! ([`LogWriter`](crate::backend::LogWriter)) decides what is stored, so a wrong lease costs a batch that misses, and a
//! lease may be taken early.
//!
//! Invariants: a statement is conditional only on the row that it changes, so that a database which waits for a row
//! lock checks the condition again; the epoch of a log only grows; no timestamp takes part in a decision.
//! Not here: the code that decides what to do (`gesta-cluster`), the tables (backends).

use std::fmt;
use std::sync::Arc;

use async_trait::async_trait;
use uuid::Uuid;

use crate::clock::Timestamp;
use crate::error::Result;
use crate::ids::{Incarnation, LogId};

/// Largest number of nodes that a beat names as out of reach.
pub const UNREACHABLE_MAX: usize = 1_000;

/// Largest number of moves of leases that a registry keeps for people.
pub const MOVES_MAX: usize = 1_000;

/// Number of bits of a lease epoch that its database counts, if the store has several databases.
const EPOCH_BITS: u32 = 40;

/// Number of a node within one database. A node that joins again with the same address keeps it. It is never used for
/// another address, unless a fail-over loses the row of the node.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct NodeId(pub u32);

impl fmt::Display for NodeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Number of one life of a node: random, drawn for each joining and never used again. Changing the generation of a node
/// voids all of its leases at once.
///
/// Why random: a fail-over may lose the row of a joining, and a number that counts would be given out again.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Generation(pub i64);

impl Generation {
    /// The generation of nodes that have left or were declared dead. No process has this generation.
    pub const NONE: Generation = Generation(0);
}

/// Number of a tenure of a log. It grows whenever the log gets an owner, or loses its owner by [`Registry::release`]. 0
/// means that the log never had an owner.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct LeaseEpoch(pub u64);

impl LeaseEpoch {
    /// Returns the epoch after this one.
    #[must_use]
    pub fn next(self) -> Self {
        Self(self.0.saturating_add(1))
    }

    /// Returns the epoch as all nodes of a store of several databases compare it: the version of the map of the logs
    /// comes first. So the lease of a log in the database to which it was moved is newer than any in its old database,
    /// where epochs were counted separately.
    #[must_use]
    pub fn by_map(self, version: u64) -> Self {
        let highest = (i64::MAX.unsigned_abs()) >> EPOCH_BITS;
        Self((version.min(highest) << EPOCH_BITS) | self.in_database().0)
    }

    /// Returns the epoch as the database of the log counts it, without the version of a map.
    #[must_use]
    pub fn in_database(self) -> Self {
        Self(self.0 & ((1 << EPOCH_BITS) - 1))
    }
}

impl fmt::Display for LeaseEpoch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// State of a node in the registry.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum NodeState {
    /// The node takes part.
    Up,
    /// The node keeps its leases until it has handed them over, and receives none.
    Draining,
    /// The node has left or was declared dead. None of its leases is valid.
    Left,
}

impl NodeState {
    /// Returns the name of the state, as people and databases see it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Up => "up",
            Self::Draining => "draining",
            Self::Left => "left",
        }
    }
}

/// Version of the protocol between nodes: of what they send each other, and of what they write for each other. The
/// *version of the cluster* is the newest whose forms may be used; a node takes part only if it can read that version.
///
/// Why the registry keeps it: while builds differ, a new one must not use what an old one cannot read, until nobody
/// wants to go back to the old one. So people raise the version (`gesta cluster finalize`).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct ClusterVersion(pub u16);

impl ClusterVersion {
    /// The version of a new cluster.
    pub const FIRST: ClusterVersion = ClusterVersion(1);
}

impl fmt::Display for ClusterVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// What a node tells about itself when it joins.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct NodeInfo {
    /// Host and port at which the other nodes reach the node; its key within the database. 1 to 255 bytes.
    pub address: Arc<str>,
    /// Share of the logs that the node gets, relative to the others: 1 to 1,000, usually 100.
    pub weight: u16,
    /// Version of the node's program. While live nodes differ in it, logs move only because of deaths and drains.
    pub build: Arc<str>,
    /// Lowest version of the protocol between nodes that the node supports.
    pub protocol_min: u16,
    /// Highest version of the protocol between nodes that the node supports.
    pub protocol_max: u16,
}

impl NodeInfo {
    /// Returns true if the node can take part in a cluster of this version.
    #[must_use]
    pub fn reads(&self, version: ClusterVersion) -> bool {
        (self.protocol_min..=self.protocol_max).contains(&version.0)
    }
}

/// The row of a node, as a look finds it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct NodeRow {
    /// Number of the node.
    pub id: NodeId,
    /// What the node told when it joined.
    pub info: NodeInfo,
    /// Generation of the node: which life of it this is.
    pub generation: Generation,
    /// Random number of the node's last beat. Only the fact that it changes has a meaning.
    pub beat: i64,
    /// State of the node.
    pub state: NodeState,
    /// True if the node joins as [`NodeState::Draining`].
    pub held: bool,
    /// Nodes that this node cannot call, as of its last beat.
    pub unreachable: Vec<NodeId>,
    /// Time at which the node joined, by the database's clock. It orders the takers of logs, tells which of two nodes
    /// with different secrets gives way while neither has a log, and people see it.
    pub started: Timestamp,
    /// Time of the node's last beat, by the database's clock. Only people use it.
    pub beat_at: Timestamp,
}

/// The lease of a log, as a look finds it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LeaseRow {
    /// Log that is leased.
    pub log: LogId,
    /// Node that got the log last; `None` if no node has had it since the row was made (epoch 0), or if the log was
    /// released as stuck.
    pub owner: Option<NodeId>,
    /// Generation of the owner when it got the log. The lease is valid only while the owner has this generation.
    pub generation: Generation,
    /// Number of the tenure.
    pub epoch: LeaseEpoch,
    /// Node to which the owner is asked, or intends, to hand the log over.
    pub next_owner: Option<NodeId>,
    /// Node that shall have the log whenever it is up.
    pub pinned: Option<NodeId>,
    /// True if only deaths, drains and requests of people move the lease.
    pub frozen: bool,
    /// Time at which the tenure began, by the database's clock. Only people use it.
    pub since: Timestamp,
}

/// All nodes and leases of a database, as one statement sees them.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Look {
    /// True if the node that beat is registered with this generation. If not, the node was declared dead or replaced,
    /// its leases are void, and it must join again.
    pub is_registered: bool,
    /// Incarnation of the store to which all of this belongs.
    pub incarnation: Incarnation,
    /// Version of the cluster.
    pub version: ClusterVersion,
    /// All nodes that have not left, in any order.
    pub nodes: Vec<NodeRow>,
    /// The leases of all logs that lie in this database, in order.
    pub leases: Vec<LeaseRow>,
}

impl Look {
    /// Returns the lease of a log; `None` if the log does not lie in this database.
    #[must_use]
    pub fn lease(&self, log: LogId) -> Option<&LeaseRow> {
        let place = self.leases.binary_search_by_key(&log, |lease| lease.log);
        place.ok().map(|place| &self.leases[place])
    }

    /// Returns the node of this id, unless it has left.
    #[must_use]
    pub fn node(&self, id: NodeId) -> Option<&NodeRow> {
        self.nodes.iter().find(|node| node.id == id)
    }

    /// Returns the node that holds a lease, if the lease is valid.
    #[must_use]
    pub fn holder(&self, lease: &LeaseRow) -> Option<&NodeRow> {
        self.node(lease.owner?)
            .filter(|node| node.generation == lease.generation && node.state != NodeState::Left)
    }
}

/// A joining of a node: its first, or one after it was declared dead.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Join {
    /// What the node tells about itself.
    pub info: NodeInfo,
    /// New random number. The same joining may be sent again with the same number.
    pub generation: Generation,
    /// First beat of the node: a random number, another one each time that the joining is sent.
    pub beat: i64,
}

/// A beat of a node. It renews all leases of the node.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Beat {
    /// Node that beats.
    pub node: NodeId,
    /// Generation of the node.
    pub generation: Generation,
    /// New random number with each beat. It is not a count: after a fail-over that lost beats, a count would reach the
    /// number that others have seen before, and they would take it for silence.
    pub beat: i64,
    /// Nodes that the node cannot call; at most [`UNREACHABLE_MAX`].
    pub unreachable: Vec<NodeId>,
}

/// A node that is believed dead.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Suspect {
    /// Node that is believed dead.
    pub node: NodeId,
    /// Generation in which the node was seen last.
    pub generation: Generation,
    /// Last beat that was seen of the node. It has not changed since.
    pub beat: i64,
}

/// A tenure that ends or begins. Statements name it in their conditions.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Tenure {
    /// Log that is owned.
    pub log: LogId,
    /// Node that owns the log.
    pub owner: NodeId,
    /// Generation of the owner.
    pub generation: Generation,
    /// Number of the tenure.
    pub epoch: LeaseEpoch,
}

/// A claim of a log.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Claim {
    /// Epoch that the lease must still have.
    pub seen: LeaseEpoch,
    /// The tenure that begins. Its epoch is greater than `seen`, and greater than any that the claimer knows of this
    /// log.
    pub tenure: Tenure,
}

/// Reason why a lease moved.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum MoveReason {
    /// The log had no valid owner.
    Claim,
    /// The owner is draining, or leaves.
    Drain,
    /// The owner had more than its share.
    Balance,
    /// Somebody asked for the move.
    Request,
    /// The log is pinned to the node that got it.
    Pin,
    /// Most of the other nodes cannot call the owner.
    Unreachable,
    /// The pipeline of the log made no progress. The lease has no owner now.
    Stuck,
}

impl MoveReason {
    /// All reasons, in the order of their declaration.
    pub const ALL: [MoveReason; 7] = [
        Self::Claim,
        Self::Drain,
        Self::Balance,
        Self::Request,
        Self::Pin,
        Self::Unreachable,
        Self::Stuck,
    ];

    /// Returns the name of the reason, as people, metrics and databases see it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Claim => "claim",
            Self::Drain => "drain",
            Self::Balance => "balance",
            Self::Request => "request",
            Self::Pin => "pin",
            Self::Unreachable => "unreachable",
            Self::Stuck => "stuck",
        }
    }
}

/// A hand-over: the owner ends its tenure in favour of another node, whose tenure has the next epoch.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct HandOver {
    /// The tenure that ends.
    pub from: Tenure,
    /// Node that gets the log.
    pub to: NodeId,
    /// Generation of the node that gets the log. If it is outdated, the lease is void and will be claimed.
    pub to_generation: Generation,
    /// Reason of the hand-over.
    pub reason: MoveReason,
}

/// A move of a lease, kept for people.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Move {
    /// Log whose lease moved.
    pub log: LogId,
    /// Node that had the log; `None` if no node had it, or if the move before is not kept any more.
    pub from: Option<NodeId>,
    /// Node that got the log; `None` if no node did.
    pub to: Option<NodeId>,
    /// Epoch that began.
    pub epoch: LeaseEpoch,
    /// Reason of the move.
    pub reason: MoveReason,
    /// Time of the move, by the database's clock.
    pub at: Timestamp,
}

/// The registry of one database.
///
/// Each method is one statement. `Ok(false)` (or a log that is missing in the answer of [`claim`](Self::claim)) means
/// that the row is no longer as the caller believed, and that nothing was changed.
///
/// # Errors
/// `Unavailable`: there is no answer, *and the statement may or may not take effect, now or later*. Nobody repeats it,
/// because the next look tells what holds. `Unsupported` if the rights do not suffice; `Corrupt` if the rows cannot be
/// read; `InvalidArgument` if a beat names more nodes than [`UNREACHABLE_MAX`].
///
/// # Durability
/// A statement that changes a lease, and a joining, waits until the database keeps it, as an append does. If the
/// database breaks off its own wait for a standby and commits, that counts as done. Nothing rests on it: the next look
/// sees what a fail-over lost. Beats, deaths and states of nodes wait for nothing: they change one row, so a statement
/// that waits would hold up the beats of that node.
///
/// # Cancel safety
/// A dropped call may or may not take effect, now or later, as after `Unavailable`.
#[async_trait]
pub trait Registry: Send + Sync + 'static {
    /// Registers a node with this generation as [`NodeState::Up`], or registers it again. Leases of another generation
    /// of this address are void at once. A node that is [held](Self::hold) is registered as [`NodeState::Draining`].
    async fn join(&self, join: &Join) -> Result<NodeId>;

    /// Renews all leases of the node, and looks. Beats do not wait for the statements of the other methods, nor for
    /// standbys: a beat that was lost in a crash of the database does not count.
    async fn beat(&self, beat: &Beat) -> Result<Look>;

    /// Looks, for people. In the answer `is_registered` is false.
    async fn look(&self) -> Result<Look>;

    /// Voids all leases of a node, if it has not beaten since the suspect was seen.
    async fn declare_dead(&self, suspect: Suspect) -> Result<bool>;

    /// Changes the state of a node: a drain begins or ends, or the node leaves. [`NodeState::Left`] voids all of its
    /// leases.
    async fn set_state(
        &self,
        node: NodeId,
        generation: Generation,
        state: NodeState,
    ) -> Result<bool>;

    /// Claims, in one statement, those logs whose epoch is still the one seen. Returns the logs that were got.
    async fn claim(&self, claims: &[Claim]) -> Result<Vec<LogId>>;

    /// Asks the owner of a log to hand it over to `to`, or withdraws that with `None`, if the lease still has this
    /// epoch.
    async fn set_next_owner(
        &self,
        log: LogId,
        epoch: LeaseEpoch,
        to: Option<NodeId>,
    ) -> Result<bool>;

    /// Hands a log over to another node.
    async fn hand_over(&self, hand_over: HandOver) -> Result<bool>;

    /// Gives up a log whose pipeline makes no progress. The lease then has no owner and the next epoch.
    async fn release(&self, tenure: Tenure) -> Result<bool>;

    /// Pins a log to a node, or ends that with `None`.
    async fn pin(&self, log: LogId, to: Option<NodeId>) -> Result<()>;

    /// Freezes all logs, so that only deaths, drains and requests move them, or ends that.
    async fn freeze(&self, frozen: bool) -> Result<()>;

    /// Lets the node of this address join as [`NodeState::Draining`] from now on, or ends that. Its present state does
    /// not change. The node may have left. The answer is false if the registry does not know the address.
    async fn hold(&self, address: &str, held: bool) -> Result<bool>;

    /// Raises the version of the cluster, if it is still `from` and every node that has not left can read `to`. A node
    /// that joins at the same moment may be overlooked; it sees the version in its first look.
    async fn finalize(&self, from: ClusterVersion, to: ClusterVersion) -> Result<bool>;

    /// Reads the id of the store, which all its nodes share. It was drawn when the registry was made and outlasts
    /// incarnations.
    async fn store_id(&self) -> Result<Uuid>;

    /// Reads the last moves of leases, newest first, at most [`MOVES_MAX`].
    async fn moves(&self) -> Result<Vec<Move>>;
}
