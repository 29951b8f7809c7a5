//! Giving up a log whose pipeline is stuck.
//!
//! Why: a beat proves that the beat works. A pipeline that hangs on a healthy node would keep its log for ever. But if
//! no pipeline makes progress, the cause is the database, and another node would be no better.

use std::collections::BTreeMap;
use std::time::Duration;

use gesta_core::registry::{Look, NodeRow, NodeState, Tenure};
use gesta_core::{LogId, Moment};

use super::times::STUCK_ROUNDS;
use super::{Change, Core};

/// How far the pipeline of a log has come.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Sign {
    /// A count of what the pipeline has finished: batches, or answers. Any change is progress.
    pub done: u64,
    /// Whether somebody waits for the pipeline.
    pub is_busy: bool,
}

#[derive(Debug)]
struct Lane {
    done: u64,
    /// The number of rounds in sequence in which the pipeline stood still while another one did not.
    still: u32,
}

/// The progress of all logs of this node, from beat to beat.
#[derive(Debug, Default)]
pub(crate) struct Progress {
    lanes: BTreeMap<LogId, Lane>,
    /// The moment at which the last round was taken.
    taken: Option<Moment>,
}

impl Progress {
    /// Takes the signs of all logs as one round, if the last round is at least `apart` ago. Looks on request come
    /// within milliseconds, in which a healthy pipeline need not have moved.
    pub(crate) fn take(&mut self, signs: &[(LogId, Sign)], apart: Duration, now: Moment) {
        if self.taken.is_some_and(|taken| now.since(taken) < apart) {
            return;
        }
        self.taken = Some(now);
        self.lanes
            .retain(|log, _| signs.iter().any(|(signed, _)| signed == log));
        let moved = |lanes: &BTreeMap<LogId, Lane>, (log, sign): &(LogId, Sign)| {
            lanes.get(log).is_some_and(|lane| lane.done != sign.done)
        };
        let some_moved = signs.iter().any(|sign| moved(&self.lanes, sign));
        for sign @ (log, Sign { done, is_busy }) in signs {
            let is_still = *is_busy && some_moved && !moved(&self.lanes, sign);
            let is_known = self.lanes.contains_key(log);
            let lane = self.lanes.entry(*log).or_insert(Lane { done: 0, still: 0 });
            lane.done = *done;
            lane.still = if is_still && is_known {
                lane.still + 1
            } else {
                0
            };
        }
    }

    /// Forgets all progress, because the database does not answer. A pipeline that stands still meanwhile, or goes on a
    /// moment later than others, is not stuck.
    pub(crate) fn forget(&mut self) {
        self.lanes.clear();
    }

    fn stuck(&self) -> impl Iterator<Item = LogId> {
        let lanes = self.lanes.iter();
        let stuck = lanes.filter(|(_, lane)| lane.still >= STUCK_ROUNDS);
        stuck.map(|(log, _)| *log)
    }
}

impl Core {
    pub(super) fn release_stuck(
        &mut self,
        look: &Look,
        me: &NodeRow,
        now: Moment,
    ) -> Option<Change> {
        let others = look.nodes.iter().filter(|node| node.id != me.id);
        if !others.into_iter().any(|node| node.state == NodeState::Up) {
            return None;
        }
        let mut stuck = self.progress.stuck().filter(|log| {
            let kept = self.log(*log).keep_until;
            kept.is_none_or(|until| now >= until)
        });
        let lease = stuck.find_map(|log| {
            let lease = look.lease(log)?;
            (look.holder(lease)?.id == me.id).then_some(lease)
        })?;
        Some(Change::Release(Tenure {
            log: lease.log,
            owner: me.id,
            generation: me.generation,
            epoch: lease.epoch,
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const APART: Duration = Duration::from_secs(1);

    /// The logs that are stuck when one moves and one waits, with rounds so long after each other.
    fn stuck_after(rounds: u64, pause: Duration) -> Vec<LogId> {
        let mut progress = Progress::default();
        let mut now = Moment::default();
        for done in 0..rounds {
            let sign = |log, done| {
                (
                    LogId(log),
                    Sign {
                        done,
                        is_busy: true,
                    },
                )
            };
            progress.take(&[sign(0, done), sign(1, 0)], APART, now);
            now += pause;
        }
        progress.stuck().collect()
    }

    /// Goal: looks in quick succession, as a hand-over makes them, are no evidence. What happened: in a rolling restart
    /// under load a log was given up after a few milliseconds, because its neighbours happened to move in them.
    #[test]
    fn a_log_is_not_stuck_by_looks_in_quick_succession() {
        assert_eq!(stuck_after(50, Duration::from_millis(10)), []);
        assert_eq!(stuck_after(4, APART), [LogId(1)]);
    }

    /// Goal: what stood still while the database was away is no evidence. What happened: a database was killed and came
    /// back; a log whose pipeline had not connected again yet was given up 50 ms after the registry answered.
    #[test]
    fn a_log_is_not_stuck_by_what_it_did_while_the_database_was_away() {
        let mut progress = Progress::default();
        let mut now = Moment::default();
        let mut round = |progress: &mut Progress, done| {
            let sign = |log, done| {
                (
                    LogId(log),
                    Sign {
                        done,
                        is_busy: true,
                    },
                )
            };
            progress.take(&[sign(0, done), sign(1, 0)], APART, now);
            now += APART;
        };
        (0..5).for_each(|done| round(&mut progress, done));
        progress.forget();
        (5..7).for_each(|done| round(&mut progress, done));
        assert_eq!(progress.stuck().count(), 0);
        round(&mut progress, 7);
        assert_eq!(progress.stuck().collect::<Vec<_>>(), [LogId(1)]);
    }
}
