//! Faults, what they are done to, and who works through them: shared by `torture` and `soak`.
//!
//! Read `world` first (what can be hurt), then `inflict` (how, and how it heals), then `ask` and `tails` (writers and
//! consumers that go on whatever happens).
//! Not here: when which fault comes, and whether every promise was kept.

pub(crate) mod ask;
mod current;
mod inflict;
pub(crate) mod tails;
pub(crate) mod world;

use std::time::Duration;

use serde::Serialize;

pub(crate) use current::CurrentStore;
pub(crate) use inflict::{Strength, inflict};
pub(crate) use world::World;

/// One kind of fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, clap::ValueEnum)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Fault {
    /// `kill -9` of a server; it is started again.
    ServerKill,
    /// An orderly stop of a server; it is started again.
    ServerStop,
    /// A server is suspended and goes on.
    ServerPause,
    /// `kill -9` of the database's process that appends; the database throws everybody out and recovers.
    BackendKill,
    /// The database's processes for Gesta are ended by an administrator.
    BackendTerminate,
    /// The process that appends is suspended for longer than Gesta waits: its statement lands after the reconnect.
    BackendPause,
    /// `kill -9` of the whole database; it is started again.
    DatabaseKill,
    /// An orderly restart of the database.
    DatabaseRestart,
    /// Connections to the database are cut.
    DatabaseCut,
    /// Connections to the database are cut and refused for a while.
    DatabaseRefuse,
    /// Every byte to and from the database takes longer.
    DatabaseDelay,
    /// Nothing passes to or from the database for a while; nothing is lost.
    DatabaseFreeze,
    /// Connections to the database fall silent, then break.
    DatabaseHalfOpen,
    /// Connections to the database fall silent and never speak again; new ones work.
    DatabaseSilent,
    /// An append is committed, its reply is lost.
    ReplyLost,
    /// A statement is held on its way for longer than Gesta waits, then lands.
    RequestHeld,
    /// Another session keeps an old snapshot open.
    SnapshotOpen,
    /// Another session locks the table of events for a while.
    TableLocked,
    /// Connections of clients to a server are cut.
    ClientsCut,
    /// Connections of clients to a server fall silent for a while; nothing is lost.
    ClientsFrozen,
    /// A server's answers to clients are lost, then their connections break.
    AnswersLost,
    /// The store is closed and opened again, as when its process is restarted in order.
    Reopen,
    /// No space is left where the database keeps its files; then there is again.
    DiskFull,
}

impl Fault {
    /// The nasty ones, in rapid succession.
    pub(crate) const TORTURE: &[Fault] = &[
        Fault::ServerKill,
        Fault::ServerStop,
        Fault::ServerPause,
        Fault::BackendKill,
        Fault::BackendTerminate,
        Fault::BackendPause,
        Fault::DatabaseKill,
        Fault::DatabaseRestart,
        Fault::DatabaseCut,
        Fault::DatabaseRefuse,
        Fault::DatabaseDelay,
        Fault::DatabaseHalfOpen,
        Fault::DatabaseSilent,
        Fault::ReplyLost,
        Fault::RequestHeld,
        Fault::SnapshotOpen,
        Fault::TableLocked,
        Fault::ClientsCut,
        Fault::ClientsFrozen,
        Fault::AnswersLost,
        Fault::DiskFull,
    ];

    /// Those that a year in production has.
    pub(crate) const SOAK: &[Fault] = &[
        Fault::DatabaseCut,
        Fault::DatabaseFreeze,
        Fault::DatabaseDelay,
        Fault::Reopen,
        Fault::DatabaseKill,
        Fault::DatabaseRestart,
    ];

    /// True if clients may get *outcome unknown*: nobody was left to tell them, or no way to.
    pub(crate) fn excuses_unknown(self) -> bool {
        matches!(
            self,
            Fault::ServerKill | Fault::ServerStop | Fault::ClientsCut | Fault::AnswersLost
        )
    }

    /// True if this world can suffer it.
    pub(crate) fn fits(self, world: &World) -> bool {
        match self {
            Fault::ServerKill
            | Fault::ServerStop
            | Fault::ServerPause
            | Fault::ClientsCut
            | Fault::ClientsFrozen
            | Fault::AnswersLost => world.has_servers(),
            Fault::DiskFull => world.small_disk.is_some(),
            Fault::Reopen => world.entries.iter().any(|entry| entry.store.can_reopen()),
            Fault::DatabaseCut | Fault::DatabaseFreeze | Fault::DatabaseDelay => world.has_links(),
            _ => world.postgres.is_some(),
        }
    }

    /// Its name in tables.
    pub(crate) fn name(self) -> String {
        let value = serde_json::to_value(self).unwrap_or_default();
        value.as_str().unwrap_or_default().to_owned()
    }

    /// How long it lasts in a soak.
    pub(crate) fn lasts(self, strength: &Strength) -> Duration {
        match self {
            Fault::DatabaseFreeze => strength.freeze,
            Fault::DatabaseDelay => strength.delay_for,
            Fault::DatabaseKill | Fault::DatabaseRestart => strength.away,
            _ => Duration::ZERO,
        }
    }
}
