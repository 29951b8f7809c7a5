//! What reads must show.

use super::{Row, World};
use gesta_core::Position;
use gesta_core::backend::LogEnd;
use gesta_postgres::RowMark;

impl World {
    pub(in crate::worlds::moves) fn expected(&self) -> Expected {
        Expected {
            rows: self.log.clone(),
            gone: self.gone.clone(),
            losses: self.losses,
        }
    }

    /// Checks what a process has read, when `before` was expected at the beginning of the read.
    pub(in crate::worlds::moves) fn check_read(
        &self,
        process: usize,
        before: &Expected,
        found: &[RowMark],
    ) {
        if !self.knows(process) {
            return;
        }
        assert!(
            self.seems_whole(),
            "answered although the log is lost: {:#?}",
            self.databases
        );
        if before.losses != self.losses {
            return;
        }
        let is_gone = |row: &&Row| self.gone.contains(&row.mark);
        let missing = before.rows.iter().filter(|row| !is_gone(row));
        let missing = missing.filter(|row| !found.contains(&row.mark));
        let missing: Vec<&Row> = missing.filter(|row| self.is_in_log(row)).collect();
        assert!(
            missing.is_empty(),
            "not read: {missing:?} {:#?}",
            self.databases
        );
        if self.trouble {
            // A process that does not know of a move yet reads the old copy, from which nothing is scavenged any more.
            return;
        }
        for mark in found {
            assert!(!before.gone.contains(mark), "scavenged, and read: {mark:?}");
        }
    }

    /// Checks what a process was told to be the end of the log, when `before` was expected before it asked. `knew`
    /// tells whether it knew everything then and does now: what it notices after the answer comes too late.
    pub(in crate::worlds::moves) fn check_end(&self, before: &Expected, knew: bool, end: &LogEnd) {
        assert_ne!(*end, LogEnd::CLOSED, "the end of a copy");
        if !knew || before.losses != self.losses {
            return;
        }
        let last = before.rows.last();
        let last = last.map_or(Position::START, |row| row.mark.position);
        assert!(
            end.position >= last,
            "{end:?}, and the log ended at {last}: {:#?}",
            self.databases
        );
    }

    /// Whether the log has this row, which it may have scavenged before the last loss.
    fn is_in_log(&self, row: &Row) -> bool {
        let home = &self.databases[self.home()];
        home.rows.contains(row) || !home.has_had(row.mark)
    }
}

/// What a read must show.
pub(in crate::worlds::moves) struct Expected {
    rows: Vec<Row>,
    gone: Vec<RowMark>,
    losses: u64,
}

impl Expected {
    pub(in crate::worlds::moves) fn len(&self) -> usize {
        self.rows.len()
    }
}
