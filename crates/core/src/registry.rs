//! The registry of a database: which nodes are alive, and which of them appends to which log.
//!
//! Why: several nodes share one database, and each log is fastest with one writer. The registry tells every node who
//! that is. A lease is *advice about routing, never evidence*: the chained insert ([`LogWriter`](crate::backend::LogWriter))
//! decides what is stored, so a wrong lease costs a batch that misses, and a lease may be taken early.
//!
//! Invariants: a statement is conditional only on the row that it changes, so that a database which waits for a row lock
//! checks the condition again; the epoch of a log only grows; no timestamp takes part in a decision.
//! Not here: who decides what to do (`gesta_cluster::membership`), the tables (backends).

use std::fmt;
use std::sync::Arc;

use async_trait::async_trait;
use uuid::Uuid;

use crate::clock::Timestamp;
use crate::error::Result;
use crate::ids::{Incarnation, LogId};

/// Most nodes that a beat names as out of reach.
pub const UNREACHABLE_MAX: usize = 1_000;

/// Most moves of leases that a registry remembers for people.
pub const MOVES_MAX: usize = 1_000;

/// The bits of a lease epoch that its database counts, if the store has several databases.
const EPOCH_BITS: u32 = 40;

/// Number of a node within one database. A node that joins again with the same address keeps it; it is never reused for
/// another address, but for a fail-over that loses the row.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct NodeId(pub u32);

impl fmt::Display for NodeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// One life of a node: a random number, drawn for each joining and never reused. Whoever changes the generation of a
/// node voids all of its leases at once.
///
/// Why random: a fail-over may lose the row of a joining, and a number that counts would be given out again.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Generation(pub i64);

impl Generation {
    /// The generation of nodes that have left or were declared dead. No process has it.
    pub const NONE: Generation = Generation(0);
}

/// Number of a tenure of a log: it grows whenever the log gets an owner, or loses it by [`Registry::release`]. 0: the
/// log never had an owner.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct LeaseEpoch(pub u64);

impl LeaseEpoch {
    /// The epoch after this one.
    #[must_use]
    pub fn next(self) -> Self {
        Self(self.0.saturating_add(1))
    }

    /// The epoch as all nodes of a store of several databases compare it: the version of the map of the logs comes
    /// first. So the lease of a log in the database to which it was moved is newer than any in its old database, where
    /// epochs were counted separately.
    #[must_use]
    pub fn by_map(self, version: u64) -> Self {
        let highest = (i64::MAX.unsigned_abs()) >> EPOCH_BITS;
        Self((version.min(highest) << EPOCH_BITS) | self.in_database().0)
    }

    /// The epoch as the database of the log counts it, without the version of a map.
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

/// What a node does.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum NodeState {
    /// It takes part.
    Up,
    /// It keeps its leases until it has handed them over, and receives none.
    Draining,
    /// It has left, or was declared dead. None of its leases is valid.
    Left,
}

impl NodeState {
    /// Its name, as people and databases see it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Up => "up",
            Self::Draining => "draining",
            Self::Left => "left",
        }
    }
}

/// A version of the protocol between nodes: of what they send each other, and of what they write for each other. The
/// *version of the cluster* is the newest whose forms may be used; a node takes part only if it can read it.
///
/// Why kept in the registry: while builds differ, one that is new must not use what an old one cannot read, and must
/// stay so until nobody wants to go back to the old one. So people raise it (`gesta cluster finalize`).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct ClusterVersion(pub u16);

impl ClusterVersion {
    /// That of a new cluster.
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
    /// Host and port at which the other nodes reach it; the key of the node within the database. 1 to 255 bytes.
    pub address: Arc<str>,
    /// Its share of the logs, relative to the others: 1 to 1,000, usually 100.
    pub weight: u16,
    /// Version of its program. While live nodes differ in it, no log moves but for deaths and drains.
    pub build: Arc<str>,
    /// The lowest version of the protocol between nodes that it speaks.
    pub protocol_min: u16,
    /// The highest one.
    pub protocol_max: u16,
}

impl NodeInfo {
    /// True if the node can take part in a cluster of this version.
    #[must_use]
    pub fn reads(&self, version: ClusterVersion) -> bool {
        (self.protocol_min..=self.protocol_max).contains(&version.0)
    }
}

/// A node, as a look finds it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct NodeRow {
    /// Its number.
    pub id: NodeId,
    /// What it told when it joined.
    pub info: NodeInfo,
    /// Which life of it this is.
    pub generation: Generation,
    /// The random number of its last beat. Only *that* it changes tells something.
    pub beat: i64,
    /// What it does.
    pub state: NodeState,
    /// True: it joins as [`NodeState::Draining`].
    pub held: bool,
    /// The nodes that it cannot call, as of its last beat.
    pub unreachable: Vec<NodeId>,
    /// When it joined, by the database's clock. For the order of takers and for people.
    pub started: Timestamp,
    /// When it last beat, by the database's clock. Only for people.
    pub beat_at: Timestamp,
}

/// The lease of a log, as a look finds it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LeaseRow {
    /// The log.
    pub log: LogId,
    /// Who got it last; `None` if nobody has it since it was made (epoch 0) or was released as stuck.
    pub owner: Option<NodeId>,
    /// The generation of the owner when it got the log. The lease is valid only while the owner has it.
    pub generation: Generation,
    /// Which tenure this is.
    pub epoch: LeaseEpoch,
    /// To whom the owner is asked, or intends, to hand the log over.
    pub next_owner: Option<NodeId>,
    /// The node that shall have the log whenever it is up.
    pub pinned: Option<NodeId>,
    /// True: only deaths, drains and requests of people move it.
    pub frozen: bool,
    /// When this tenure began, by the database's clock. Only for people.
    pub since: Timestamp,
}

/// All that one statement sees.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Look {
    /// True if the node that beat is registered with this generation. If not, it was declared dead or replaced, its
    /// leases are void, and it must join again.
    pub is_registered: bool,
    /// The life of the store that all of this belongs to.
    pub incarnation: Incarnation,
    /// The version of the cluster.
    pub version: ClusterVersion,
    /// All nodes that have not left, in any order.
    pub nodes: Vec<NodeRow>,
    /// The leases of all logs that lie in this database, in order.
    pub leases: Vec<LeaseRow>,
}

impl Look {
    /// The lease of a log; `None` if the log does not lie in this database.
    #[must_use]
    pub fn lease(&self, log: LogId) -> Option<&LeaseRow> {
        let place = self.leases.binary_search_by_key(&log, |lease| lease.log);
        place.ok().map(|place| &self.leases[place])
    }

    /// The node of this id, unless it has left.
    #[must_use]
    pub fn node(&self, id: NodeId) -> Option<&NodeRow> {
        self.nodes.iter().find(|node| node.id == id)
    }

    /// Who holds a lease that is valid.
    #[must_use]
    pub fn holder(&self, lease: &LeaseRow) -> Option<&NodeRow> {
        self.node(lease.owner?)
            .filter(|node| node.generation == lease.generation && node.state != NodeState::Left)
    }
}

/// A joining: the first, or that of a node that was declared dead.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Join {
    /// The node.
    pub info: NodeInfo,
    /// A new random number. The same joining may be sent again with the same number.
    pub generation: Generation,
    /// Its first beat, another one each time that it is sent.
    pub beat: i64,
}

/// A beat: it renews all leases of the node.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Beat {
    /// Who beats.
    pub node: NodeId,
    /// In which life.
    pub generation: Generation,
    /// A new random number with each beat. Not a count: after a fail-over that lost beats, a count would reach the
    /// number that others have seen before, and they would take it for silence.
    pub beat: i64,
    /// The nodes that it cannot call; at most [`UNREACHABLE_MAX`].
    pub unreachable: Vec<NodeId>,
}

/// A node that is believed dead.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Suspect {
    /// The node.
    pub node: NodeId,
    /// The generation in which it was seen last.
    pub generation: Generation,
    /// The beat that has not changed.
    pub beat: i64,
}

/// A tenure that ends or begins, for the conditions of statements.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Tenure {
    /// The log.
    pub log: LogId,
    /// Its owner.
    pub owner: NodeId,
    /// The owner's generation.
    pub generation: Generation,
    /// Which tenure.
    pub epoch: LeaseEpoch,
}

/// A log that is claimed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Claim {
    /// The epoch that the lease must still have.
    pub seen: LeaseEpoch,
    /// The tenure that begins. Its epoch is greater than `seen`, and than any that the claimer knows of this log.
    pub tenure: Tenure,
}

/// Why a lease moved.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum MoveReason {
    /// It had no valid owner.
    Claim,
    /// Its owner is draining, or leaves.
    Drain,
    /// Its owner had more than its share.
    Balance,
    /// Somebody asked for it.
    Request,
    /// It is pinned to the node that got it.
    Pin,
    /// Most of the other nodes cannot call its owner.
    Unreachable,
    /// Its pipeline made no progress; the lease has no owner now.
    Stuck,
}

impl MoveReason {
    /// All reasons.
    pub const ALL: [MoveReason; 7] = [
        Self::Claim,
        Self::Drain,
        Self::Balance,
        Self::Request,
        Self::Pin,
        Self::Unreachable,
        Self::Stuck,
    ];

    /// Its name, as people, metrics and databases see it.
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
    /// Who gets the log.
    pub to: NodeId,
    /// The generation of the one who gets it. If it is outdated, the lease is void and will be claimed.
    pub to_generation: Generation,
    /// Why.
    pub reason: MoveReason,
}

/// A move of a lease, for people.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Move {
    /// The log.
    pub log: LogId,
    /// Who had it; `None` if nobody had, or if the move before is not kept any more.
    pub from: Option<NodeId>,
    /// Who got it.
    pub to: Option<NodeId>,
    /// The epoch that began.
    pub epoch: LeaseEpoch,
    /// Why.
    pub reason: MoveReason,
    /// When, by the database's clock.
    pub at: Timestamp,
}

/// The registry of one database.
///
/// Each method is one statement. `Ok(false)` (or a log that is missing in the answer of [`claim`](Self::claim)) means
/// that the row is no longer as the caller believed, and nothing was changed.
///
/// # Errors
/// `Unavailable`: there is no answer, *and the statement may or may not take effect, now or later*. Nobody repeats it:
/// the next look tells what holds. `Unsupported` if the rights do not suffice; `Corrupt` if the rows cannot be read;
/// `InvalidArgument` if a beat names more nodes than [`UNREACHABLE_MAX`].
///
/// # Durability
/// What changes a lease, and a joining, waits until the database keeps it, as an append does; but if the database breaks
/// off its own wait for a standby and commits, that counts as done. Nothing rests on it: what a fail-over loses is seen by
/// the next look. Beats, deaths and states of nodes wait for nothing: they change one row, so whoever waits would hold up
/// the beats of that node.
///
/// # Cancel safety
/// A dropped call may or may not take effect, now or later, as after `Unavailable`.
#[async_trait]
pub trait Registry: Send + Sync + 'static {
    /// Registers a node with this generation as [`NodeState::Up`], or registers it again: leases of another generation
    /// of this address are void at once. One that is [held](Self::hold) is registered as [`NodeState::Draining`].
    async fn join(&self, join: &Join) -> Result<NodeId>;

    /// Renews all leases of the node, and looks. Beats do not wait for the statements of the other methods, nor for
    /// standbys: a beat that was lost in a crash of the database is none.
    async fn beat(&self, beat: &Beat) -> Result<Look>;

    /// Looks, for people; `is_registered` is false.
    async fn look(&self) -> Result<Look>;

    /// Voids all leases of a node, if it has not beaten since.
    async fn declare_dead(&self, suspect: Suspect) -> Result<bool>;

    /// Changes the state of a node: begins or ends a drain, or leaves. [`NodeState::Left`] voids all of its leases.
    async fn set_state(
        &self,
        node: NodeId,
        generation: Generation,
        state: NodeState,
    ) -> Result<bool>;

    /// Claims logs, all in one statement: those whose epoch is still the one seen. Gives the logs that were got.
    async fn claim(&self, claims: &[Claim]) -> Result<Vec<LogId>>;

    /// Asks the owner of a log to hand it over to `to`, or withdraws that, if the lease still has this epoch.
    async fn set_next_owner(
        &self,
        log: LogId,
        epoch: LeaseEpoch,
        to: Option<NodeId>,
    ) -> Result<bool>;

    /// Hands a log over.
    async fn hand_over(&self, hand_over: HandOver) -> Result<bool>;

    /// Gives up a log whose pipeline makes no progress; the lease has no owner and the next epoch.
    async fn release(&self, tenure: Tenure) -> Result<bool>;

    /// Pins a log to a node, or to none.
    async fn pin(&self, log: LogId, to: Option<NodeId>) -> Result<()>;

    /// Freezes all logs, so that only deaths, drains and requests move them, or ends that.
    async fn freeze(&self, frozen: bool) -> Result<()>;

    /// Lets the node of this address join as [`NodeState::Draining`] from now on, or ends that. Its present state
    /// stays. It may have left; false if it is not known.
    async fn hold(&self, address: &str, held: bool) -> Result<bool>;

    /// Raises the version of the cluster, if it is still `from` and every node that has not left can read `to`. A node
    /// that joins at the same moment may be overlooked; it sees the version in its first look.
    async fn finalize(&self, from: ClusterVersion, to: ClusterVersion) -> Result<bool>;

    /// The id of the store that all its nodes share, drawn when the registry was made. It outlasts incarnations.
    async fn store_id(&self) -> Result<Uuid>;

    /// The last moves, newest first, at most [`MOVES_MAX`].
    async fn moves(&self) -> Result<Vec<Move>>;
}
