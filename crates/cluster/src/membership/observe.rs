//! Who is dead: what has been *seen* unchanged for long enough.
//!
//! Invariants: time counts only between successful looks of our own that are at most 2 B apart; so an outage of the
//! database, our own pause and a step of any clock prove nothing about others. *Any* change of generation or beat is a
//! sign of life.

use std::collections::BTreeMap;
use std::time::Duration;

use gesta_core::registry::{Generation, Look, NodeId, NodeRow, Suspect};

use super::shares;
use super::times::{LOOKS_MIN, Moment};

/// When a look was sent, and when its answer came.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct LookTimes {
    pub(crate) sent: Moment,
    pub(crate) arrived: Moment,
}

#[derive(Debug)]
struct Observation {
    seen: (Generation, i64),
    /// When the first look that saw it was answered.
    since: Moment,
    /// Looks that saw it.
    looks: u32,
    /// Connections to it that were refused since.
    refused: u32,
    /// Since when most others cannot call it, and how many logs it had then.
    cut_off: Option<(Moment, usize)>,
}

/// What we have seen of the other nodes.
#[derive(Debug, Default)]
pub(crate) struct Observations(BTreeMap<NodeId, Observation>);

impl Observations {
    /// Nothing that was seen before counts any more.
    pub(crate) fn forget(&mut self) {
        self.0.clear();
    }

    /// Takes what a look has seen.
    pub(crate) fn see(&mut self, look: &Look, me: Option<NodeId>, now: Moment) {
        self.0
            .retain(|id, _| look.node(*id).is_some() && Some(*id) != me);
        for node in look.nodes.iter().filter(|node| Some(node.id) != me) {
            let seen = (node.generation, node.beat);
            let known = self.0.entry(node.id).or_insert(Observation {
                seen,
                since: now,
                looks: 0,
                refused: 0,
                cut_off: None,
            });
            if known.seen != seen {
                (known.seen, known.since) = (seen, now);
                (known.looks, known.refused) = (0, 0);
            }
            known.looks += 1;
            let logs = shares::logs_of(look, node.id);
            known.cut_off = shares::is_cut_off(look, node).then_some(match known.cut_off {
                Some((since, before)) if before == logs => (since, logs),
                _ => (now, logs),
            });
        }
    }

    /// The node refused a connection: nobody listens there.
    pub(crate) fn refused(&mut self, node: NodeId) {
        if let Some(known) = self.0.get_mut(&node) {
            known.refused += 1;
        }
    }

    /// When to look next, so that a node which is dead is found in time.
    pub(crate) fn look_at(&self, beat: Duration, now: Moment) -> Option<Moment> {
        let due = |known: &Observation| {
            let times = [beat * 2, beat * 4, beat * 6].into_iter();
            let times = times.skip(usize::from(known.refused < 2));
            times
                .map(|time| known.since.plus(time))
                .find(|due| *due > now)
        };
        self.0.values().filter_map(due).min()
    }

    /// The one node to declare dead after this look, if any.
    ///
    /// If two or more, and more than half, of the others seem dead at once, it is more likely that something is wrong
    /// here: then they must seem so for longer. Refused connections leave no such doubt.
    pub(crate) fn dead(&self, look: &Look, times: LookTimes, beat: Duration) -> Option<Suspect> {
        let unchanged = |known: &Observation, time: Duration| {
            known.looks >= LOOKS_MIN && times.sent.since(known.since) >= time
        };
        let suspect = |(node, known): (&NodeId, &Observation)| Suspect {
            node: *node,
            generation: known.seen.0,
            beat: known.seen.1,
        };
        let refused = |known: &Observation| known.refused >= 2 && unchanged(known, beat * 2);
        if let Some(found) = self.0.iter().find(|(_, known)| refused(known)) {
            return Some(suspect(found));
        }
        let overdue = self
            .0
            .values()
            .filter(|known| unchanged(known, beat * 4))
            .count();
        let are_most = overdue >= 2 && overdue * 2 > look.nodes.len().saturating_sub(1);
        let time = if are_most { beat * 6 } else { beat * 4 };
        self.0
            .iter()
            .find(|(_, known)| unchanged(known, time))
            .map(suspect)
    }

    /// The one node to declare dead although it beats: most others cannot call it, and it does not give up its logs.
    pub(crate) fn cut_off(
        &self,
        look: &Look,
        me: &NodeRow,
        times: LookTimes,
        beat: Duration,
    ) -> Option<Suspect> {
        let mut suspects = self.0.iter().filter(|(id, known)| {
            let for_long = known
                .cut_off
                .is_some_and(|(since, logs)| logs > 0 && times.sent.since(since) >= beat * 8);
            for_long
                && look
                    .node(**id)
                    .is_some_and(|node| is_mine_to_declare(look, me, node))
        });
        suspects.next().map(|(node, known)| Suspect {
            node: *node,
            generation: known.seen.0,
            beat: known.seen.1,
        })
    }
}

/// True if we are the lowest of those who cannot call it, and somebody whom all can call may take its logs.
fn is_mine_to_declare(look: &Look, me: &NodeRow, node: &NodeRow) -> bool {
    let lowest = shares::callers_cut(look, node)
        .map(|caller| caller.id)
        .min();
    lowest == Some(me.id) && shares::reached_by_all(look).next().is_some()
}
