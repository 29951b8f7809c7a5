//! Faults, what they are done to, and who works through them: shared by `torture`, `soak`, `failover` and
//! `cluster chaos`.
//!
//! Read `world` first (what can be hurt), then `inflict` (how, and how it heals), then `load` (writers and tails that
//! go on whatever happens, and the judgement of what they were told).
//! Not here: when which fault comes.

#[cfg(test)]
pub(crate) mod bumpy;
mod inflict;
pub(crate) mod load;
pub(crate) mod per_fault;
pub(crate) mod record;
pub(crate) mod tails;
#[cfg(test)]
mod tests;
pub(crate) mod world;
pub(crate) mod writers;

use clap::ValueEnum as _;
use gesta_report::name_of;
use serde::Serialize;

use gesta_report::failure::{Result, fail};
use gesta_report::Report;

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
    /// The nasty ones, in rapid succession: all but those that need a store of this process, or last long.
    pub(crate) fn of_torture() -> Vec<Self> {
        let all = Self::value_variants().iter().copied();
        all.filter(|fault| !matches!(fault, Fault::DatabaseFreeze | Fault::Reopen))
            .collect()
    }

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
        let mut entries = world.entries.iter();
        match self {
            Fault::ServerKill
            | Fault::ServerStop
            | Fault::ServerPause
            | Fault::ClientsCut
            | Fault::ClientsFrozen
            | Fault::AnswersLost => entries.any(|entry| entry.server.is_some()),
            Fault::DiskFull => world.small_disk.is_some(),
            Fault::Reopen => entries.any(|entry| entry.store.can_reopen()),
            Fault::DatabaseCut | Fault::DatabaseFreeze | Fault::DatabaseDelay => {
                entries.any(|entry| entry.link.is_some())
            }
            _ => world.postgres.is_some(),
        }
    }

    /// Its name in tables.
    pub(crate) fn name(self) -> String {
        name_of(self)
    }
}

/// The faults that were named, or all that fit.
///
/// # Errors
/// One of those named does not fit.
pub(crate) fn wanted<F: Copy + PartialEq + Serialize>(
    named: &[F],
    fitting: Vec<F>,
) -> Result<Vec<F>> {
    match named.iter().find(|fault| !fitting.contains(fault)) {
        Some(fault) => fail(format!("{} does not fit here", name_of(fault))),
        None if named.is_empty() => Ok(fitting),
        None => Ok(named.to_vec()),
    }
}

/// Ends a report of promises: what was found in a few words, and whether every promise was kept.
pub(crate) fn promises(report: &mut Report, found: String) {
    let kept = match report.problems.is_empty() {
        true => "every promise was kept",
        false => "PROMISES WERE BROKEN",
    };
    report.finding = format!("{found}, seed {}: {kept}.", report.seed);
}
