//! Which nodes are dead: those that have been *seen* unchanged for long enough.
//!
//! Invariants: time counts only between successful looks of this node that are at most 2 B apart; so an outage of the
//! database, a pause of this node and a step of any clock prove nothing about others. *Any* change of generation or
//! beat is a sign of life.
//!
//! A node that sees most others silent at once doubts itself and gives all of them one beat more. After that it need
//! not pause between them: each is declared dead upon a look of its own, which a single sign of life would change.

use std::collections::BTreeMap;
use std::time::Duration;

use gesta_core::Moment;
use gesta_core::registry::{Generation, Look, NodeId, NodeRow, Suspect};

use super::shares;
use super::times::{LOOKS_MIN, SILENT, SILENT_REFUSED, SILENT_WITH_MOST};

/// The moments at which a look was sent, and at which its answer came.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct LookTimes {
    pub(crate) sent: Moment,
    pub(crate) arrived: Moment,
}

#[derive(Debug)]
struct Observation {
    seen: (Generation, i64),
    /// The moment at which the first look that saw this state was answered.
    since: Moment,
    /// The number of looks that saw this state.
    looks: u32,
    /// Whether the node became silent together with most others. Then it must be silent for longer.
    with_most: bool,
    /// The number of connections to the node that were refused since.
    refused: u32,
    /// The moment since which most others cannot call the node and somebody could take its logs, and how many logs it
    /// had then.
    cut_off: Option<(Moment, usize)>,
}

impl Observation {
    /// Returns whether looks of this node have covered so much time in which nothing of the other node has changed.
    fn is_unchanged(&self, times: LookTimes, time: Duration) -> bool {
        self.looks >= LOOKS_MIN && times.sent.since(self.since) >= time
    }

    /// Returns for how many beats the node must be silent to be dead.
    fn beats_silent(&self) -> u32 {
        match self {
            // Nobody listens there: that leaves no doubt.
            Self { refused: 2.., .. } => SILENT_REFUSED,
            Self {
                with_most: true, ..
            } => SILENT_WITH_MOST,
            _ => SILENT,
        }
    }

    /// Returns whether the node is not declared dead within a beat after another one. That is so if nothing but its
    /// silence speaks against it, and that silence has not been doubted yet.
    fn waits_its_turn(&self) -> bool {
        self.refused < 2 && !self.with_most
    }

    fn suspect(&self, node: NodeId) -> Suspect {
        let (generation, beat) = self.seen;
        Suspect {
            node,
            generation,
            beat,
        }
    }
}

/// What this node has seen of the other nodes.
#[derive(Debug, Default)]
pub(crate) struct Observations(BTreeMap<NodeId, Observation>);

impl Observations {
    /// Forgets what was seen before: nothing of it counts any more.
    pub(crate) fn forget(&mut self) {
        self.0.clear();
    }

    /// Takes what a look has seen.
    ///
    /// If two or more, and more than half, of the others are silent at once, a fault of this node is more likely. Nodes
    /// that will be overdue next count as well, because they do not all become silent in the same moment.
    pub(crate) fn see(
        &mut self,
        look: &Look,
        me: Option<NodeId>,
        times: LookTimes,
        beat: Duration,
    ) {
        self.see_each(look, me, times.arrived);
        // A node that lives is never seen unchanged for longer than 1.1 B.
        let is_silent =
            |known: &Observation| known.looks >= 2 && times.sent.since(known.since) >= beat * 5 / 4;
        let silent = self.0.values().filter(|known| is_silent(known)).count();
        if silent >= 2 && silent * 2 > look.nodes.len().saturating_sub(1) {
            for known in self.0.values_mut().filter(|known| is_silent(known)) {
                known.with_most = true;
            }
        }
    }

    fn see_each(&mut self, look: &Look, me: Option<NodeId>, now: Moment) {
        self.0
            .retain(|id, _| look.node(*id).is_some() && Some(*id) != me);
        let is_somebody_reached = shares::reached_by_all(look).next().is_some();
        for node in look.nodes.iter().filter(|node| Some(node.id) != me) {
            let seen = (node.generation, node.beat);
            let known = self.0.entry(node.id).or_insert(Observation {
                seen,
                since: now,
                looks: 0,
                with_most: false,
                refused: 0,
                cut_off: None,
            });
            if known.seen != seen {
                (known.seen, known.since) = (seen, now);
                (known.looks, known.refused, known.with_most) = (0, 0, false);
            }
            known.looks += 1;
            let logs = shares::logs_of(look, node.id);
            let should_give = is_somebody_reached && shares::is_cut_off(look, node);
            known.cut_off = should_give.then_some(match known.cut_off {
                Some((since, before)) if before == logs => (since, logs),
                _ => (now, logs),
            });
        }
    }

    /// Notes that the node refused a connection: nobody listens there.
    pub(crate) fn refused(&mut self, node: NodeId) {
        if let Some(known) = self.0.get_mut(&node) {
            known.refused += 1;
        }
    }

    /// Returns the moment at which to look next, so that a dead node is found in time.
    pub(crate) fn look_at(&self, beat: Duration, now: Moment) -> Option<Moment> {
        let due = |known: &Observation| {
            let times = [SILENT_REFUSED, SILENT, SILENT_WITH_MOST].into_iter();
            let times = times.skip(usize::from(known.refused < 2));
            times
                .map(|beats| known.since + beat * beats)
                .find(|due| *due > now)
        };
        self.0.values().filter_map(due).min()
    }

    /// Returns the one node to declare dead after this look, if any. `rests` says that another one was declared dead
    /// within a beat.
    pub(crate) fn dead(&self, times: LookTimes, beat: Duration, rests: bool) -> Option<Suspect> {
        let is_dead = |known: &Observation| {
            let may_be_now = !(rests && known.waits_its_turn());
            may_be_now && known.is_unchanged(times, beat * known.beats_silent())
        };
        let (node, known) = self.0.iter().find(|(_, known)| is_dead(known))?;
        Some(known.suspect(*node))
    }

    /// Returns the one node to declare dead although it beats: most others cannot call it, and it does not give up its
    /// logs.
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
        suspects.next().map(|(node, known)| known.suspect(*node))
    }
}

/// Returns whether this node must declare the other one dead. The declaring node is the one with the lowest number of
/// those that cannot call the other one.
fn is_mine_to_declare(look: &Look, me: &NodeRow, node: &NodeRow) -> bool {
    let lowest = shares::callers_cut(look, node)
        .map(|caller| caller.id)
        .min();
    lowest == Some(me.id)
}
