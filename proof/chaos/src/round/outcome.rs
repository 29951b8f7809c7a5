//! What has come of a world under a load, and how it is told.

use std::collections::BTreeMap;
use std::time::Duration;

use gesta_report::{Report, Table, Unit, causes};
use serde_json::Value;

use super::{COUNTS, TIMES};
use crate::fault::Fault;
use crate::per_fault::PerFault;
use crate::world::Moves;

/// What happened in a world under a load.
#[derive(Debug)]
pub(crate) struct Outcome {
    pub(crate) rounds: u32,
    /// True if it was not interrupted. What was found wrong ends it, too, and is told as a problem.
    pub(crate) is_complete: bool,
    pub(crate) acknowledged: u64,
    pub(crate) events: u64,
    pub(crate) problems: Vec<String>,
    pub(super) per_fault: PerFault<Fault>,
    pub(super) moves: BTreeMap<Fault, Moves>,
    pub(super) balanced_after: Option<Duration>,
    pub(super) fail_overs: Option<Table>,
    pub(super) told: Vec<String>,
    pub(crate) conditions: Value,
}

impl Outcome {
    pub(super) fn new(conditions: Value) -> Self {
        Self {
            rounds: 0,
            is_complete: false,
            acknowledged: 0,
            events: 0,
            problems: Vec::new(),
            per_fault: PerFault::new(&COUNTS, &TIMES),
            moves: BTreeMap::new(),
            balanced_after: None,
            fail_overs: None,
            told: Vec::new(),
            conditions,
        }
    }

    /// What was not judged is not kept: why, if there was nothing to judge.
    pub(super) fn nothing_judged(&self) -> Option<String> {
        match (self.rounds, self.acknowledged) {
            (0, _) => Some("no fault was made: the time was over before".into()),
            (_, 0) if self.problems.is_empty() => {
                Some("nothing was acknowledged, so nothing was judged".into())
            }
            _ => None,
        }
    }

    /// Tables of the faults, and every promise that was broken.
    pub(crate) fn tell(self, report: &mut Report, name: &str) {
        report.table(self.per_fault.table(format!("Faults: {name}")));
        let moves: Vec<_> = self
            .moves
            .iter()
            .filter(|(_, moves)| !moves.is_empty())
            .collect();
        let moved = Table::of(format!("Logs that moved, by the reason: {name}"), &moves)
            .column("fault", Unit::Words, |(fault, _)| fault.name())
            .column("moves", Unit::Words, |(_, moves)| causes(*moves));
        report.table(moved.table());
        if let Some(table) = self.fail_overs {
            report.table(table);
        }
        if let Some(after) = self.balanced_after {
            let seconds = after.as_secs_f64();
            report.fact("equal shares after", Unit::Seconds, seconds, "of quiet");
        }
        for told in self.told {
            report.text(format!("{name}: {told}"));
        }
        let problems = self.problems.into_iter();
        report
            .problems
            .extend(problems.map(|problem| format!("{name}: {problem}")));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: a run that has judged nothing does not say that every promise was kept.
    #[test]
    fn a_run_that_has_judged_nothing_is_no_result() {
        let outcome = |rounds, acknowledged| Outcome {
            rounds,
            acknowledged,
            ..Outcome::new(Value::Null)
        };
        for (rounds, acknowledged, is_told) in [(0, 0, true), (3, 0, true), (3, 1, false)] {
            let told = outcome(rounds, acknowledged).nothing_judged();
            assert_eq!(told.is_some(), is_told, "{rounds} {acknowledged}: {told:?}");
        }
    }
}
