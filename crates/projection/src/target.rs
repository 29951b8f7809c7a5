//! The interface that a database implements so that projections can live in it.
//!
//! Why: what makes a read model right is the same for every database, a fence and a checkpoint in the transaction of
//! the rows; only the statements differ. A target keeps these tables:
//!
//! * `gesta_projections`: a row for each version of a projection, as [`Stored`];
//! * `gesta_projections_parked`: the events that were put aside, as [`Parked`]; key: name, version, log, position;
//! * `gesta_projections_nodes`: the processes that run projections: `node`, `name`, `until`. The time is the
//!   database's;
//! * `gesta_projections_commands`: what was asked of whoever owns a projection, and the answer, as [`Command`].
//!
//! **The fence.** A [`Session`] is what a process holds that owns a projection. It begins with one statement that
//! raises the epoch, which waits for the transaction of the owner before, and therefore shows what really happened. The
//! *first* statement of each of its batches is `UPDATE gesta_projections SET checkpoint = new, … WHERE name, version,
//! epoch = mine, owner = me, checkpoint = old, state = 'running'`. If it does not change exactly one row, the batch is
//! rolled back and the error is [`Lost`](crate::TargetErrorKind::Lost). First, not last: a second owner waits before it
//! has done anything, all locks are taken in one order, and a pause is exact.
//!
//! A commit whose answer was lost is never sent anew: the error is [`InDoubt`](crate::TargetErrorKind::InDoubt), and a
//! new session tells what happened.

use std::time::Duration;

use gesta_core::{Checkpoint, EventId, Filter, LogId, Position, Timestamp};
use uuid::Uuid;

use crate::batch::covers;
use crate::definition::{ProjectionId, Registration, Table};
use crate::error::TargetError;
use crate::row::{Cells, Found};
use crate::state::{Life, State};
use crate::value::OwnedValue;

/// The row of a version of a projection in a target.
#[derive(Clone, PartialEq, Debug)]
pub struct Stored {
    /// Name and version.
    pub id: ProjectionId,
    /// What this version is to readers.
    pub life: Life,
    /// Whether it applies events.
    pub state: State,
    /// Counts the sessions.
    pub epoch: i64,
    /// The process that has begun the last session; `None` once a session has ended in good order.
    pub owner: Option<Uuid>,
    /// Whether the owner's lease is not over, by the clock of the target.
    pub owned: bool,
    /// The place up to which all events were applied, or parked.
    pub checkpoint: Checkpoint,
    /// The place at which it began, and begins again after a reset.
    pub floor: Checkpoint,
    /// What the rows are made with: [`Registration::made_with`].
    pub made_with: i64,
    /// Which events the rows are made of: as [`filter_to_text`](crate::filter_to_text) has it. `None` for a version
    /// that was registered by a program that did not store it, until one that does so registers it again.
    pub filter: Option<Filter>,
    /// What the rows of an index are made of: [`Registration::definition`].
    pub definition: Option<String>,
    /// How often it was reset.
    pub resets: i64,
    /// Events applied since the last reset.
    pub events: i64,
    /// The last attempt that was announced, if nothing was committed since: see [`Session::announce`].
    pub attempt: Option<Attempt>,
    /// When events were applied last, by the clock of the target.
    pub applied_at: Option<Timestamp>,
    /// Why it stopped, or its last error.
    pub error: Option<String>,
    /// The names for which SQL views are kept: [`Registration::read_as`].
    pub read_as: Vec<String>,
}

impl Stored {
    /// Returns why readers may not be taken from the active version to this one; `None` if they may. Both rows are
    /// those of the transaction in which the readers are switched.
    #[must_use]
    pub fn may_not_follow(
        &self,
        active: &Stored,
        from: SwitchFrom,
        seen: Option<&Seen>,
    ) -> Option<Switched> {
        if let SwitchFrom::Earlier { owner, epoch } = from {
            if self.owner != Some(owner) || self.epoch != epoch {
                return Some(Switched::NotOwner);
            }
            if active.id.version > self.id.version {
                return Some(Switched::Later);
            }
        }
        let refusal = match covers(&self.checkpoint, &active.checkpoint) {
            Some(true) => return None,
            Some(false) => Switched::Behind,
            None => Switched::OtherStore,
        };
        let is_at = |row: &Stored, place: &Checkpoint| covers(&row.checkpoint, place) == Some(true);
        match seen {
            Some(Seen::Lost { end, lost }) if is_at(self, end) && is_at(active, lost) => {
                // For that process the life of the active version is the present one.
                let is_run = active.owned && active.state == State::Running;
                is_run.then_some(Switched::ActiveRuns)
            }
            Some(Seen::NoMatch { after, up_to })
                if is_at(self, after) && covers(up_to, &active.checkpoint) == Some(true) =>
            {
                None
            }
            _ => Some(refusal),
        }
    }
}

/// An event that was put aside: a reference, not the payload.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Parked {
    /// Log of the event.
    pub log: LogId,
    /// Position of the event.
    pub position: Position,
    /// The key whose row the event changes, as text. While an event of a key is parked, its later ones are parked too.
    /// `None` if the event was skipped for good, and blocks nothing.
    pub key: Option<String>,
    /// Identity of the event.
    pub event: EventId,
    /// Why it was put aside; empty for one that stands behind another.
    pub error: String,
    /// How often it was tried.
    pub attempts: u32,
    /// When it was put aside, by the clock of the target. A target sets it when it stores the row.
    pub at: Timestamp,
}

/// An attempt to apply events, which is announced before it is made: a process that dies during it leaves it behind.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Attempt {
    /// 1, and one more for each process that died during the same attempt before.
    pub number: u32,
    /// How many events are applied together.
    pub events: u32,
    /// Log and position of the first of them.
    pub first: (LogId, Position),
    /// Whether these are parked events that are applied again.
    pub is_replay: bool,
}

/// A batch as the fence sees it.
#[derive(Clone, Copy, Debug)]
pub struct Fence<'a> {
    /// The checkpoint that must be stored.
    pub from: &'a Checkpoint,
    /// The checkpoint that is stored with the batch.
    pub to: &'a Checkpoint,
    /// What [`Stored::events`] must be. A replay adds to it and leaves the checkpoint where it is, so nothing else
    /// tells that the target has lost one.
    pub events_before: i64,
    /// Number of events of the batch, which is added to [`Stored::events`].
    pub events: u64,
}

/// What [`Target::begin`] found.
pub enum Begin<S> {
    /// The session of this process, and the row before it began: its `owner` is a process that ended without a word, or
    /// `None`. The epoch is already that of this session.
    Begun(S, Stored),
    /// Another process owns the projection, and has renewed its lease.
    Owned(Stored),
    /// The version is not registered.
    NotFound,
}

impl<S> std::fmt::Debug for Begin<S> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Begin::Begun(_, stored) => write!(f, "Begun({stored:?})"),
            Begin::Owned(stored) => write!(f, "Owned({stored:?})"),
            Begin::NotFound => f.write_str("NotFound"),
        }
    }
}

/// What the answer of an owner begins with that has not done what was asked for.
pub(crate) const REFUSED: &str = "refused: ";

/// What is asked of the owner of a projection.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Order {
    /// Delete the rows and begin again at the floor. If the store was restored since, the floor becomes the same place
    /// in the store as it is now.
    Reset,
    /// Apply the parked events of a key, or of all keys, in their order.
    Replay {
        /// The key; `None` for all.
        key: Option<String>,
    },
    /// Drop the parked events of a key, or of all keys and all skipped events.
    Drop {
        /// The key; `None` for all.
        key: Option<String>,
    },
}

impl Order {
    /// Returns the text that is stored: the word, then a space and the key, if there is one.
    #[must_use]
    pub fn to_text(&self) -> String {
        let (word, key) = match self {
            Order::Reset => ("reset", None),
            Order::Replay { key } => ("replay", key.as_deref()),
            Order::Drop { key } => ("drop", key.as_deref()),
        };
        key.map_or_else(|| word.to_owned(), |key| format!("{word} {key}"))
    }

    /// Reads the text that is stored; `None` if it is none of ours.
    #[must_use]
    pub fn from_text(text: &str) -> Option<Self> {
        let (word, key) = text
            .split_once(' ')
            .map_or((text, None), |(word, key)| (word, Some(key.to_owned())));
        match word {
            "reset" => Some(Order::Reset),
            "replay" => Some(Order::Replay { key }),
            "drop" => Some(Order::Drop { key }),
            _ => None,
        }
    }
}

/// A command that was stored for the owner of a projection.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Command {
    /// Number of the command; later ones have greater numbers.
    pub number: i64,
    /// The projection.
    pub id: ProjectionId,
    /// What is asked for.
    pub order: Order,
    /// The answer; `None` until there is one.
    pub answer: Option<String>,
}

/// From which versions [`Target::switch`] takes the readers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SwitchFrom {
    /// From an earlier version: so a version takes its place by itself. A process with old code never does, and neither
    /// does one whose session was followed by another: what it knows of the version is outdated.
    Earlier {
        /// The process that owns the version.
        owner: Uuid,
        /// The epoch of its session.
        epoch: i64,
    },
    /// From any version, as somebody has asked for.
    Any,
}

/// What the store has told of the places of two versions: so readers may leave the active version although nobody can
/// compare the two, or although the active one is further.
///
/// The places were read before the store was asked, and are compared again in the transaction of the switch: a version
/// that was reset since is neither left nor shown for what it was before.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Seen {
    /// The version is of the present life of the store, and the active one is not.
    Lost {
        /// The place at which the version was when it had come to the end of the store.
        end: Checkpoint,
        /// The place of the active version, which is none of the store as it is now.
        lost: Checkpoint,
    },
    /// Between two places no event passes the filter of the version: at the first one it shows as much as at the
    /// second. A version with another filter is told so late, or never, that the active one has passed events which are
    /// none of its own.
    NoMatch {
        /// A place at which the version was.
        after: Checkpoint,
        /// A place at which the active version may be.
        up_to: Checkpoint,
    },
}

/// Why [`Target::switch`] has not switched.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Switched {
    /// Readers see this version now, or did so already.
    Done,
    /// Readers see a later version.
    Later,
    /// The active version is ahead of this one: readers would lose what they have seen.
    Behind,
    /// The active version is of another life of the store, and this one not at the end of the present life, as far as
    /// that is known.
    OtherStore,
    /// The active version is not of the store as it is now, but a process runs it that takes it to be. It stops once
    /// that process hears otherwise; until then one of the two processes is wrong, and nobody can tell which.
    ActiveRuns,
    /// Another session of the version has begun since, so its owner would switch by outdated knowledge.
    NotOwner,
    /// A reader holds the SQL view; try again.
    Busy,
    /// There is no such version, or its rows are gone.
    NotFound,
}

/// A database in which projections live. A handle is cheap to clone.
///
/// # Cancel safety
/// Dropping a future of a target or a session at any point must leave nothing half done: its transaction is rolled back
/// or, if a commit was sent, done whole.
pub trait Target: Clone + Send + Sync + 'static {
    /// What [`Projection::apply`](crate::Projection::apply) gets: a connection within a transaction, of the driver's
    /// own type.
    type Transaction: Send + 'static;
    /// A session of this target.
    type Session: Session<Transaction = Self::Transaction>;
    /// Whether the calls of a session block their thread. Then batches are written on threads for blocking work.
    const BLOCKING: bool;

    /// Makes the tables of this target, or brings them to the version of this program. Several processes may do so at
    /// once.
    fn migrate(&self) -> impl Future<Output = Result<(), TargetError>> + Send;

    /// Registers a version, unless it is registered, and returns its row. The first version of a name is active at
    /// once, later ones are building. The table of a view, and the SQL views for readers of an active version, are made
    /// in the same transaction. Nothing of a version that is registered already is changed, but that its filter is
    /// stored if it was not.
    fn register(
        &self,
        registration: &Registration,
    ) -> impl Future<Output = Result<Stored, TargetError>> + Send;

    /// Returns the rows of all versions, by name and version.
    fn list(&self) -> impl Future<Output = Result<Vec<Stored>, TargetError>> + Send;

    /// Begins a session: raises the epoch and sets the owner, in a transaction of its own, unless another node owns the
    /// version whose lease is not over. It waits until a running transaction of the owner before has ended.
    fn begin(
        &self,
        id: &ProjectionId,
        node: Uuid,
    ) -> impl Future<Output = Result<Begin<Self::Session>, TargetError>> + Send;

    /// Reads the committed rows of some keys, of which each stands there once, on a connection of its own.
    fn load(
        &self,
        table: &Table,
        keys: &dyn Cells,
        found: &mut Found,
    ) -> impl Future<Output = Result<(), TargetError>> + Send;

    /// Finds the events whose rows in the table of an index have these values in these columns, in the order of log and
    /// position: at most `limit`, after a place.
    fn find(
        &self,
        table: &Table,
        values: &[(String, OwnedValue)],
        after: Option<(LogId, Position)>,
        limit: usize,
    ) -> impl Future<Output = Result<Vec<(LogId, Position)>, TargetError>> + Send;

    /// Reads rows of a table whose stored name may be that of an SQL view, in the order that the database gives to
    /// keys: at most `limit`, after a key. Returns the values of all columns of each row, those of the key first, one
    /// row after the other.
    fn page(
        &self,
        table: &Table,
        after: Option<Vec<OwnedValue>>,
        limit: usize,
    ) -> impl Future<Output = Result<Vec<OwnedValue>, TargetError>> + Send;

    /// Renews the lease of this process: one row, however many projections it runs. A `lease` of zero ends it.
    ///
    /// Leases of other processes that last more than ten times as long were granted before the clock was set back: they
    /// last as long as this one from now on.
    fn renew(
        &self,
        node: Uuid,
        name: &str,
        lease: Duration,
    ) -> impl Future<Output = Result<(), TargetError>> + Send;

    /// Sets the state and the reason. It does not wait for the owner: its next batch finds the fence closed. Returns
    /// false if there is no such version.
    fn set_state(
        &self,
        id: &ProjectionId,
        state: State,
        why: Option<&str>,
    ) -> impl Future<Output = Result<bool, TargetError>> + Send;

    /// Returns parked events in the order in which they were parked: those of one key or all, at most `limit`.
    fn parked(
        &self,
        id: &ProjectionId,
        key: Option<&str>,
        limit: usize,
    ) -> impl Future<Output = Result<Vec<Parked>, TargetError>> + Send;

    /// Counts the parked events of a version, up to `at_most`.
    fn count_parked(
        &self,
        id: &ProjectionId,
        at_most: usize,
    ) -> impl Future<Output = Result<usize, TargetError>> + Send;

    /// Returns the different keys of parked events, without skipped ones.
    fn parked_keys(
        &self,
        id: &ProjectionId,
    ) -> impl Future<Output = Result<Vec<String>, TargetError>> + Send;

    /// Stores a command for the owner and returns its number.
    fn command(
        &self,
        id: &ProjectionId,
        order: &Order,
    ) -> impl Future<Output = Result<i64, TargetError>> + Send;

    /// Returns the commands that have no answer yet, in their order.
    fn commands(&self) -> impl Future<Output = Result<Vec<Command>, TargetError>> + Send;

    /// Returns the answer to a command, once there is one; `None` before.
    fn answer(
        &self,
        number: i64,
    ) -> impl Future<Output = Result<Option<String>, TargetError>> + Send;

    /// Makes this version the active one, in one transaction: locks the rows of both versions, the old one first;
    /// demands that this one [may follow](Stored::may_not_follow) the active one; replaces the SQL views; sets `active`
    /// and `previous`. It waits for a reader at most 100 ms.
    fn switch(
        &self,
        id: &ProjectionId,
        from: SwitchFrom,
        seen: Option<&Seen>,
    ) -> impl Future<Output = Result<Switched, TargetError>> + Send;

    /// Deletes the tables and parked events of a version, sets it retired, and raises its epoch, in one transaction.
    /// Returns false, and changes nothing, if there is no such version or it is active.
    fn retire(&self, id: &ProjectionId) -> impl Future<Output = Result<bool, TargetError>> + Send;

    /// Tells what an error that an author's code has returned means: that of a driver, in its chain of causes, or
    /// `None` if it is not of this target's driver.
    fn classify(error: &(dyn std::error::Error + 'static))
    -> Option<crate::error::TargetErrorKind>;
}

/// What a process holds that owns a projection. It takes a connection while a transaction is open, and only then.
///
/// After an error of [`Lost`](crate::TargetErrorKind::Lost), `InDoubt` or `Away` it is dropped, and another one begun.
pub trait Session: Send + 'static {
    /// The transaction of the target.
    type Transaction: Send + 'static;

    /// Begins a transaction, the first statement of which is the fence.
    fn open(&mut self, fence: Fence<'_>) -> impl Future<Output = Result<(), TargetError>> + Send;

    /// Returns the open transaction, for an author's statements.
    ///
    /// # Errors
    /// If no transaction is open.
    fn transaction(&mut self) -> Result<&mut Self::Transaction, TargetError>;

    /// Writes rows, of which each key stands there once, and deletes others.
    fn write(
        &mut self,
        table: &Table,
        rows: &dyn Cells,
        deleted: &dyn Cells,
    ) -> impl Future<Output = Result<(), TargetError>> + Send;

    /// Stores parked events. One that is parked already is left as it is, but for its error and attempts.
    fn park(&mut self, parked: &[Parked]) -> impl Future<Output = Result<(), TargetError>> + Send;

    /// Deletes parked events.
    fn unpark(
        &mut self,
        events: &[(LogId, Position)],
    ) -> impl Future<Output = Result<(), TargetError>> + Send;

    /// Makes the SQL views of these names, which readers use, show the tables of this version: for an active version
    /// whose tables the author's code has just made.
    fn show(&mut self, read_as: &[String]) -> impl Future<Output = Result<(), TargetError>> + Send;

    /// Deletes all rows of the table, if there is one, and all parked events; sets the counts to zero, and adds a
    /// reset. The checkpoint is set by the fence, and is the floor from then on.
    fn clear(
        &mut self,
        table: Option<&Table>,
    ) -> impl Future<Output = Result<(), TargetError>> + Send;

    /// Sets the answer to a command.
    fn reply(
        &mut self,
        number: i64,
        answer: &str,
    ) -> impl Future<Output = Result<(), TargetError>> + Send;

    /// Commits the open transaction. `InDoubt` if the answer was lost.
    fn commit(&mut self) -> impl Future<Output = Result<(), TargetError>> + Send;

    /// Rolls the open transaction back, if there is one, and gives the connection back.
    fn roll_back(&mut self) -> impl Future<Output = ()> + Send;

    /// Says, in a transaction of its own and under the same conditions as the fence, which attempt is going to be made:
    /// it takes the place of the one before. The fence of the next batch that commits removes it.
    fn announce(
        &mut self,
        attempt: Attempt,
    ) -> impl Future<Output = Result<(), TargetError>> + Send;

    /// Ends the session in good order, in a transaction of its own: the owner becomes `None`, if it is still this one.
    /// With a reason, the state becomes `stopped`, unless it is not `running` any more.
    fn end(self, stop: Option<&str>) -> impl Future<Output = Result<(), TargetError>> + Send;
}
