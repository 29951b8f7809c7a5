//! Compares what the databases hold of each log: the home of a log must have, or have scavenged, the last row of every
//! copy in another database. Else the log is lost, and nobody serves it before it is recovered.
//!
//! A copy may be open there, if a fail-over has lost the row that closed it. Nothing is appended to it, since nobody
//! takes that database for the home of the log, and the next move of the log closes it. It is told of all the same: a
//! restore of which the processes are not told could lead one of them to it.

use futures::future::join_all;
use gesta_core::{LogId, Result};

use crate::log_map::{Held, HeldRow, LogMap};
use crate::several::check::{OpenCopy, Unshown, unshown};
use crate::several::route::Routes;

/// What the databases hold that the map does not say.
pub(crate) struct Findings {
    /// The logs whose home lacks a row that another database has.
    pub(crate) unshown: Unshown,
    /// The copies that are open.
    pub(crate) open: Vec<OpenCopy>,
}

impl Findings {
    pub(crate) fn is_empty(&self) -> bool {
        self.unshown.is_empty() && self.open.is_empty()
    }
}

impl Routes {
    /// Compares what the databases hold of the logs, by this map. A log whose home is a database that this process was
    /// not given is passed over.
    ///
    /// # Errors
    /// `Unavailable` if a database does not answer.
    pub(crate) async fn compared(&self, map: &LogMap) -> Result<Findings> {
        let parts = 0..self.backends().count();
        let held = join_all(parts.clone().map(|at| self.keeper(at).read_held())).await;
        let held = held.into_iter().enumerate();
        let held = held.map(|(at, held)| held.map_err(|error| self.named(at, error)));
        let held: Vec<Vec<Held>> = held.collect::<Result<_>>()?;
        let unshown = join_all(parts.map(|home| self.unshown_at(map, home, &held))).await;
        let unshown: Vec<Unshown> = unshown.into_iter().collect::<Result<_>>()?;
        Ok(Findings {
            unshown: unshown.into_iter().flatten().collect(),
            open: open_copies(map, &held),
        })
    }

    async fn unshown_at(&self, map: &LogMap, home: usize, held: &[Vec<Held>]) -> Result<Unshown> {
        let mut rows: Vec<(LogId, HeldRow)> = Vec::new();
        let mut copies = Vec::new();
        for log in (0..map.logs()).map(LogId) {
            if self.home_in(map, log).ok() != Some(home) {
                continue;
            }
            let others = held.iter().enumerate().filter(|(at, _)| *at != home);
            let of_log = others.filter_map(|(at, held)| {
                let last = held.get(usize::from(log.0))?.last?;
                Some((at, last))
            });
            for (at, last) in of_log {
                rows.push((log, last));
                copies.push(at);
            }
        }
        if rows.is_empty() {
            return Ok(Unshown::new());
        }
        let shown = self.keeper(home).shows(&rows).await;
        let shown = shown.map_err(|error| self.named(home, error))?;
        let all = rows.iter().zip(copies).zip(shown);
        let unknown = all.filter(|(_, shown)| !shown);
        let told = unknown.map(|(((log, row), copy), _)| {
            let text = unshown(map, *log, copy, row.mark.position);
            (*log, text)
        });
        Ok(told.collect())
    }
}

/// Returns the copies that are open. `held` is what each database holds, in the order of the map.
fn open_copies(map: &LogMap, held: &[Vec<Held>]) -> Vec<OpenCopy> {
    let mut open = Vec::new();
    for (place, held) in held.iter().enumerate() {
        for (log, held) in (0..map.logs()).map(LogId).zip(held) {
            if map.home(log) != Some(place) && !held.closed && held.last.is_some() {
                let database = map.describe(place);
                open.push(OpenCopy {
                    log,
                    place,
                    database,
                });
            }
        }
    }
    open
}
