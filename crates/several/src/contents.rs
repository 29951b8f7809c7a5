//! Compares what the databases hold of each log: the home of a log must have, or have scavenged, the last row of every
//! copy in another database. Else the log is lost, and nobody serves it before it is recovered.
//!
//! A copy may be open there, if a fail-over has lost the row that closed it. Nothing is appended to it, since nobody
//! takes that database for the home of the log, and the next move of the log closes it.

use futures::future::join_all;
use gesta_core::{Held, HeldRow, LogId, LogMap, Result};

use crate::check::{Unshown, unshown};
use crate::route::Routes;

impl Routes {
    /// Finds the logs whose home lacks a row that another database has, by this map. A log whose home is a database
    /// that this process was not given is passed over.
    ///
    /// # Errors
    /// `Unavailable` if a database does not answer.
    pub(crate) async fn unshown(&self, map: &LogMap) -> Result<Unshown> {
        let parts = 0..self.backends().count();
        let held = join_all(parts.clone().map(|at| self.keeper(at).read_held())).await;
        let held = held.into_iter().enumerate();
        let held = held.map(|(at, held)| held.map_err(|error| self.named(at, error)));
        let held: Vec<Vec<Held>> = held.collect::<Result<_>>()?;
        let found = join_all(parts.map(|home| self.unshown_at(map, home, &held))).await;
        let found: Vec<Unshown> = found.into_iter().collect::<Result<_>>()?;
        Ok(found.into_iter().flatten().collect())
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
