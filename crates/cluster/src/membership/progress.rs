//! Giving up a log whose pipeline is stuck.
//!
//! Why: a beat proves that the beat works. A pipeline that hangs on a healthy node would keep its log for ever. But if
//! no pipeline makes progress, it is the database, and another node would fare no better.

use std::collections::BTreeMap;

use gesta_core::LogId;
use gesta_core::registry::{Look, NodeRow, NodeState, Tenure};

use super::times::{Moment, STUCK_ROUNDS};
use super::{Change, Core};

/// How far the pipeline of a log has come.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Sign {
    /// Counts what it has finished: batches, or answers. Any change is progress.
    pub done: u64,
    /// True if somebody waits for it.
    pub is_busy: bool,
}

#[derive(Debug)]
struct Lane {
    done: u64,
    /// Rounds, one after the other, in which it stood still while another one did not.
    still: u32,
}

/// The progress of all logs of this node, from beat to beat.
#[derive(Debug, Default)]
pub(crate) struct Progress(BTreeMap<LogId, Lane>);

impl Progress {
    pub(crate) fn take(&mut self, signs: &[(LogId, Sign)]) {
        self.0
            .retain(|log, _| signs.iter().any(|(signed, _)| signed == log));
        let moved = |lanes: &BTreeMap<LogId, Lane>, (log, sign): &(LogId, Sign)| {
            lanes.get(log).is_some_and(|lane| lane.done != sign.done)
        };
        let some_moved = signs.iter().any(|sign| moved(&self.0, sign));
        for sign @ (log, Sign { done, is_busy }) in signs {
            let is_still = *is_busy && some_moved && !moved(&self.0, sign);
            let is_known = self.0.contains_key(log);
            let lane = self.0.entry(*log).or_insert(Lane { done: 0, still: 0 });
            lane.done = *done;
            lane.still = if is_still && is_known {
                lane.still + 1
            } else {
                0
            };
        }
    }

    fn stuck(&self) -> impl Iterator<Item = LogId> {
        let stuck = self.0.iter().filter(|(_, lane)| lane.still >= STUCK_ROUNDS);
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
            let lease = look.leases.get(usize::from(log.0))?;
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
