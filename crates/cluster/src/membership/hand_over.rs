//! Handing logs over: only the owner of a log decides about it.
//!
//! A hand-over begins with `next_owner` in the lease, which this node has written, or somebody who asks for the move.
//! So all nodes see the intention, and a node that wants to balance waits. This node serves the log until the statement
//! is sent that ends its tenure. From then on it does not serve the log, until a look tells what became of the
//! statement.

use gesta_core::registry::{
    HandOver, LeaseEpoch, LeaseRow, Look, MoveReason, NodeId, NodeRow, NodeState, Tenure,
};
use gesta_core::{LogId, Moment};
use std::time::Duration;

use super::random::affinity;
use super::shares::{self, Shares};
use super::times::HAND_OVERS_MAX;
use super::{Change, Core, Note, Output, Preparation, Readiness};

/// The time between two moves of logs for the sake of balance.
const BETWEEN_MOVES: Duration = Duration::from_secs(1);

/// A hand-over that goes on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Passing {
    pub(crate) to: NodeId,
    pub(crate) epoch: LeaseEpoch,
    pub(crate) stage: Stage,
    pub(crate) reason: MoveReason,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Stage {
    /// The taker prepares.
    Preparing,
    /// The taker is ready.
    Ready,
    /// The statement has been sent: this node no longer serves the log.
    Sent,
}

impl Core {
    /// Begins the hand-overs that the leases ask for, a few at a time.
    pub(super) fn prepare_hand_overs(&mut self, now: Moment) {
        if self.look.as_ref().is_none_or(|look| !look.is_registered) {
            return;
        }
        let Some(look) = self.look.take() else {
            return;
        };
        let me = self.placement_me();
        let going_on = self.logs.iter().filter(|log| log.passing.is_some()).count();
        let room = HAND_OVERS_MAX.saturating_sub(going_on);
        let due = look.leases.iter().filter(|lease| {
            let is_ours = look
                .holder(lease)
                .is_some_and(|holder| Some(holder.id) == me);
            is_ours && self.log(lease.log).passing.is_none()
        });
        let due = due.filter_map(|lease| {
            let to = look.node(lease.next_owner?)?;
            let takes = to.state == NodeState::Up && !self.refuses(lease.log, to.id, now);
            (Some(to.id) != me && takes).then_some((lease, to))
        });
        for (lease, to) in due.take(room).collect::<Vec<_>>() {
            self.prepare(lease, to);
        }
        self.look = Some(look);
    }

    fn prepare(&mut self, lease: &LeaseRow, to: &NodeRow) {
        let log = self.log_mut(lease.log);
        let intended = log.intended.filter(|(node, _)| *node == to.id);
        let reason = intended.map_or(MoveReason::Request, |(_, reason)| reason);
        log.passing = Some(Passing {
            to: to.id,
            epoch: lease.epoch,
            stage: Stage::Preparing,
            reason,
        });
        self.outputs.push(Output::Prepare(Preparation {
            log: lease.log,
            epoch: lease.epoch,
            to: to.id,
            address: to.info.address.clone(),
            reason,
        }));
    }

    pub(super) fn on_prepared(
        &mut self,
        log: LogId,
        epoch: LeaseEpoch,
        readiness: Readiness,
        now: Moment,
    ) {
        let log = self.log_mut(log);
        let Some(passing) = log.passing.as_mut() else {
            return;
        };
        if passing.epoch != epoch || passing.stage != Stage::Preparing {
            return;
        }
        match readiness {
            Readiness::Ready => passing.stage = Stage::Ready,
            Readiness::Refused => {
                log.refused = Some((passing.to, now));
                log.passing = None;
            }
        }
    }

    /// Returns the statement of a hand-over whose taker is ready.
    pub(super) fn ready_hand_over(&mut self, look: &Look, me: &NodeRow) -> Option<Change> {
        for lease in &look.leases {
            let log = self.log_mut(lease.log);
            let Some(passing) = log
                .passing
                .as_mut()
                .filter(|passing| passing.stage == Stage::Ready)
            else {
                continue;
            };
            let to = look
                .node(passing.to)
                .filter(|node| node.state == NodeState::Up);
            let Some(to) = to.filter(|_| passing.epoch == lease.epoch) else {
                log.passing = None;
                continue;
            };
            passing.stage = Stage::Sent;
            return Some(Change::HandOver(HandOver {
                from: tenure(lease, me),
                to: to.id,
                to_generation: to.generation,
                reason: passing.reason,
            }));
        }
        None
    }

    pub(super) fn on_handed_over(&mut self, hand_over: &HandOver) {
        let HandOver {
            from, to, reason, ..
        } = *hand_over;
        self.on_moved(Note::Moved {
            log: from.log,
            from: Some(from.owner),
            to: Some(to),
            epoch: from.epoch.next(),
            reason,
            without_owner: None,
        });
    }

    /// Returns whether the node `node` has refused the log not long ago.
    fn refuses(&self, log: LogId, node: NodeId, now: Moment) -> bool {
        let refused = self.log(log).refused.filter(|(by, _)| *by == node);
        refused.is_some_and(|(_, at)| now.since(at) < self.beat() * 4)
    }

    /// Returns whether this node has a log that another node may take.
    pub(super) fn can_give(&self, look: &Look, me: &NodeRow, now: Moment) -> bool {
        let is_ours = |lease: &&LeaseRow| look.holder(lease).is_some_and(|node| node.id == me.id);
        let is_up = |node: &&NodeRow| node.state == NodeState::Up && node.id != me.id;
        let takes = |lease: &LeaseRow| {
            let mut others = look.nodes.iter().filter(is_up);
            others.any(|node| !self.refuses(lease.log, node.id, now))
        };
        look.leases.iter().filter(is_ours).any(takes)
    }

    /// Returns the change for the next log that this node gives away, or keeps after all.
    pub(super) fn give(&mut self, look: &Look, me: &NodeRow, now: Moment) -> Option<Change> {
        let ours = |lease: &&LeaseRow| look.holder(lease).is_some_and(|node| node.id == me.id);
        let ours: Vec<&LeaseRow> = look.leases.iter().filter(ours).collect();
        if let Some(change) = self.withdraw(look, me, &ours, now) {
            return Some(change);
        }
        let shares = Shares::of(look);
        let evacuated = self.evacuate(look, me, &ours, &shares, now);
        let (lease, to, reason) = evacuated.or_else(|| {
            let may_move = self.may_move_voluntarily(look, now);
            may_move
                .then(|| self.improve(me, &ours, &shares, now))
                .flatten()
        })?;
        self.log_mut(lease.log).intended = Some((to, reason));
        Some(Change::SetNextOwner(lease.log, lease.epoch, Some(to)))
    }

    /// Withdraws the intention to give a log to a node that cannot or will not take it.
    fn withdraw(
        &self,
        look: &Look,
        me: &NodeRow,
        ours: &[&LeaseRow],
        now: Moment,
    ) -> Option<Change> {
        let vain = ours.iter().find(|lease| {
            let log = self.log(lease.log);
            let is_sent = log
                .passing
                .is_some_and(|passing| passing.stage == Stage::Sent);
            lease.next_owner.is_some_and(|next| {
                let takes = look
                    .node(next)
                    .is_some_and(|node| node.state == NodeState::Up);
                !is_sent && (!takes || next == me.id || self.refuses(lease.log, next, now))
            })
        })?;
        Some(Change::SetNextOwner(vain.log, vain.epoch, None))
    }

    /// Chooses the next log that a node gives up which drains, or which most others cannot call. Such a node gives up
    /// all its logs, a few at a time.
    fn evacuate<'a>(
        &self,
        look: &Look,
        me: &NodeRow,
        ours: &[&'a LeaseRow],
        shares: &Shares<'_>,
        now: Moment,
    ) -> Option<(&'a LeaseRow, NodeId, MoveReason)> {
        let (takers, reason): (Vec<NodeId>, _) = if me.state == NodeState::Draining {
            (shares.receivers().collect(), MoveReason::Drain)
        } else if shares::is_cut_off(look, me) {
            let reached = shares::reached_by_all(look).map(|node| node.id);
            (reached.collect(), MoveReason::Unreachable)
        } else {
            return None;
        };
        let going_on = ours
            .iter()
            .filter(|lease| lease.next_owner.is_some())
            .count();
        if going_on >= HAND_OVERS_MAX {
            return None;
        }
        let staying = ours.iter().filter(|lease| lease.next_owner.is_none());
        let mut given = staying.filter_map(|lease| {
            let takers = takers
                .iter()
                .filter(|node| **node != me.id && !self.refuses(lease.log, **node, now));
            let pinned = |node: NodeId| lease.pinned != Some(node);
            let to = takers.min_by_key(|node| (pinned(**node), shares.order(lease, **node)))?;
            Some((*lease, *to, reason))
        });
        given.next()
    }

    /// Returns whether logs may move for the sake of order. Logs move so only when nothing else is going on, and right
    /// after a look. Otherwise several nodes would move logs at once, each upon an older look.
    fn may_move_voluntarily(&mut self, look: &Look, now: Moment) -> bool {
        if !std::mem::take(&mut self.may_improve) {
            return false;
        }
        let mut builds = look.nodes.iter().map(|node| &node.info.build);
        let first = builds.next();
        let is_one_build = builds.all(|build| Some(build) == first);
        let moves = look.leases.iter().any(|lease| lease.next_owner.is_some());
        let rested = now.since(self.moved) >= BETWEEN_MOVES;
        self.settle.is_over(&self.setting.config, now) && is_one_build && !moves && rested
    }

    /// Returns the one move that brings the logs nearer to where they should be, if this node must make it.
    fn improve<'a>(
        &self,
        me: &NodeRow,
        ours: &[&'a LeaseRow],
        shares: &Shares<'_>,
        now: Moment,
    ) -> Option<(&'a LeaseRow, NodeId, MoveReason)> {
        let accepts =
            |lease: &LeaseRow, node: NodeId| node != me.id && !self.refuses(lease.log, node, now);
        // A log that was stuck elsewhere stays: who does not know that would give it up again.
        let rests = |lease: &LeaseRow| {
            self.log(lease.log)
                .keep_until
                .is_some_and(|until| now < until)
        };
        improvement(shares, me.id, ours, accepts, rests)
    }
}

/// Returns the next move of one of its logs that a node makes for the sake of pins and balance.
pub(super) fn improvement<'a>(
    shares: &Shares<'_>,
    me: NodeId,
    ours: &[&'a LeaseRow],
    accepts: impl Fn(&LeaseRow, NodeId) -> bool,
    rests: impl Fn(&LeaseRow) -> bool,
) -> Option<(&'a LeaseRow, NodeId, MoveReason)> {
    let mut free = ours.iter().filter(|lease| !lease.frozen);
    let pinned = free.find_map(|lease| {
        let to = lease
            .pinned
            .filter(|to| shares.receives(*to) && accepts(lease, *to))?;
        Some((*lease, to, MoveReason::Pin))
    });
    if pinned.is_some() || shares.giver() != Some(me) {
        return pinned;
    }
    let takers = shares
        .receivers()
        .filter(|node| shares.is_below_ceiling(*node));
    let to = takers.min_by_key(|node| (shares.excess(*node), *node))?;
    let movable = ours
        .iter()
        .filter(|lease| shares::is_movable(lease) && accepts(lease, to) && !rests(lease));
    let lease = movable.max_by_key(|lease| affinity(lease.log.0, to.0))?;
    Some((*lease, to, MoveReason::Balance))
}

fn tenure(lease: &LeaseRow, owner: &NodeRow) -> Tenure {
    Tenure {
        log: lease.log,
        owner: owner.id,
        generation: owner.generation,
        epoch: lease.epoch,
    }
}
