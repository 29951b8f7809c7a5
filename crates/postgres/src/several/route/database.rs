//! One open database, and what was read of it.
//!
//! Invariant: what the database says about a log is a proof only together with what all databases said, and only in the
//! histories in which they said it.

use std::sync::{Arc, PoisonError, RwLock};

use gesta_core::backend::Backend;
use gesta_core::{LogId, Result};

use super::DatabasePart;
use super::task::SharedTask;
use crate::log_map::{DatabaseId, KeepsMap, LogMap, MapCopy};
use crate::several::check::{Unshown, lost};

/// An open database.
pub(super) struct Database {
    pub(super) id: DatabaseId,
    pub(super) backend: Arc<dyn Backend>,
    pub(super) keeper: Arc<dyn KeepsMap>,
    seen: RwLock<SeenCopy>,
    /// Reads the copy of the map of this database alone.
    pub(super) reading: SharedTask,
}

/// The copy of the map of one database, as it was read last.
#[derive(Clone)]
struct SeenCopy {
    copy: Arc<MapCopy>,
    /// When all databases were asked; `None` if they never were, or if their maps contradicted each other.
    asked: Option<Moment>,
    /// What was found then of logs whose home lacks rows that another database has.
    unshown: Arc<Unshown>,
}

/// When all databases were asked.
#[derive(Clone, Copy)]
pub(super) struct Moment {
    /// The histories of that moment.
    pub(super) histories: Histories,
    /// The version of the map by which they were asked.
    pub(super) version: u64,
}

/// The histories of the databases at one moment, as one of them sees it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Histories {
    /// The number of the history of the database itself.
    pub(super) own: u64,
    /// The sum of the numbers of all databases. Each of them only grows, so the sum changes whenever one of them does.
    pub(super) all: u64,
}

/// What this process knows of a log in the database that a map names as its home.
pub(super) enum Standing {
    /// The database has the log, and everything that any database has of it.
    Proven,
    /// So it was when all databases were asked. The history of another database has changed since.
    ProvenBefore,
    /// The database has not noted that the log came. The map may be newer than what was read of the database.
    Unnoted,
    /// The log is lost, for this reason.
    Lost(String),
    /// All databases must be asked: this one has another history than when they were asked last.
    Unknown,
}

impl Database {
    pub(super) fn new(part: &DatabasePart) -> Self {
        Self {
            id: part.copy.here,
            backend: Arc::clone(&part.backend),
            keeper: Arc::clone(&part.keeper),
            seen: RwLock::new(SeenCopy {
                copy: Arc::clone(&part.copy),
                asked: None,
                unshown: Arc::default(),
            }),
            reading: SharedTask::default(),
        }
    }

    pub(super) fn history(&self) -> u64 {
        self.backend.history().number
    }

    /// Reads the copy of the map again. Returns it with the number of the history before.
    pub(super) async fn read(&self) -> Result<(Arc<MapCopy>, u64)> {
        let history = self.history();
        let copy = self.keeper.read_map().await?;
        let mut seen = self.seen.write().unwrap_or_else(PoisonError::into_inner);
        seen.copy = Arc::clone(&copy);
        Ok((copy, history))
    }

    /// Takes over what was found when all databases were asked.
    pub(super) fn believe(&self, copy: Arc<MapCopy>, asked: Moment, unshown: &Arc<Unshown>) {
        let mut seen = self.seen.write().unwrap_or_else(PoisonError::into_inner);
        *seen = SeenCopy {
            copy,
            asked: Some(asked),
            unshown: Arc::clone(unshown),
        };
    }

    /// Forgets what was found when all databases were asked: they have contradicted each other.
    pub(super) fn doubt(&self) {
        let mut seen = self.seen.write().unwrap_or_else(PoisonError::into_inner);
        seen.asked = None;
    }

    /// Tells what is known, in the histories `present`, of a log that `map` says to be in this database.
    pub(super) fn standing(&self, log: LogId, map: &LogMap, present: Histories) -> Standing {
        let seen = self.seen.read().unwrap_or_else(PoisonError::into_inner);
        let Some(asked) = seen.asked else {
            return Standing::Unknown;
        };
        let is_own = asked.histories.own == present.own;
        let is_present = is_own && asked.histories.all == present.all;
        match (seen.unshown.get(&log), seen.copy.has(log, map)) {
            (Some(text), _) if is_present => Standing::Lost(text.clone()),
            (None, true) if is_present => Standing::Proven,
            (None, true) if is_own => Standing::ProvenBefore,
            (None, false) if is_present && asked.version == map.version() => {
                Standing::Lost(lost(map, log))
            }
            (None, false) if is_own => Standing::Unnoted,
            _ => Standing::Unknown,
        }
    }
}
