//! Taking logs that have no valid owner.
//!
//! The nodes do not agree upon who takes which log. All nodes compute about the same order; those that come later in it
//! wait a moment for those that come first. If two nodes claim the same log, the epoch lets one of them win.

use gesta_core::registry::{
    Claim, LeaseEpoch, LeaseRow, Look, MoveReason, NodeId, NodeRow, NodeState, Tenure,
};
use gesta_core::{LogId, Moment};

use super::shares::Shares;
use super::times::RANK_STEP;
use super::{Change, Core, Note};

impl Core {
    /// Makes one claim of all logs that this node may take now.
    pub(super) fn claim(&mut self, look: &Look, me: &NodeRow, now: Moment) -> Option<Change> {
        let mut shares = Shares::of(look);
        let mut claims = Vec::new();
        if me.state == NodeState::Up {
            claims.extend(self.raised(look, me));
        }
        for lease in look
            .leases
            .iter()
            .filter(|lease| look.holder(lease).is_none())
        {
            let order = order(&shares, lease);
            if self.is_ours_to_take(lease, &order, &shares, me.id, now) {
                shares.add(me.id);
                claims.push(self.claim_of(lease, me));
            } else if let Some(first) = order.first() {
                shares.add(*first);
            }
        }
        (!claims.is_empty()).then_some(Change::Claim(claims))
    }

    /// Returns claims of logs of this node whose epoch has gone back in a fail-over, because other nodes may know a
    /// greater one.
    fn raised(&self, look: &Look, me: &NodeRow) -> Vec<Claim> {
        let ours = |lease: &&LeaseRow| look.holder(lease).is_some_and(|node| node.id == me.id);
        let leases = look.leases.iter().filter(ours);
        let outdated = leases.filter(|lease| lease.epoch < self.log(lease.log).known);
        outdated.map(|lease| self.claim_of(lease, me)).collect()
    }

    fn claim_of(&self, lease: &LeaseRow, me: &NodeRow) -> Claim {
        let epoch = lease.epoch.max(self.log(lease.log).known).next();
        let tenure = Tenure {
            log: lease.log,
            owner: me.id,
            generation: me.generation,
            epoch,
        };
        Claim {
            seen: lease.epoch,
            tenure,
        }
    }

    fn is_ours_to_take(
        &self,
        lease: &LeaseRow,
        order: &[NodeId],
        shares: &Shares<'_>,
        me: NodeId,
        now: Moment,
    ) -> bool {
        let Some(rank) = order.iter().position(|node| *node == me) else {
            return false;
        };
        let state = self.log(lease.log);
        let is_left_to_others = state.leave_until.is_some_and(|until| now < until);
        let free_for = now.since(state.free_since.unwrap_or(now));
        let waits = RANK_STEP * u32::try_from(rank).unwrap_or(u32::MAX);
        // A log that was given up as stuck, or that nobody takes for so long, is taken by whoever can.
        let is_abandoned = was_stuck(lease) || free_for >= self.setting.config.dead(order.len());
        let may_have_it = rank == 0 || shares.is_below_ceiling(me) || is_abandoned;
        (!is_left_to_others || order.len() == 1) && free_for >= waits && may_have_it
    }

    /// Returns the moment at which this node may next take a log.
    pub(super) fn claim_at(&self, now: Moment) -> Option<Moment> {
        let look = self.look.as_ref().filter(|look| look.is_registered)?;
        let ranks = u32::try_from(look.nodes.len()).unwrap_or(u32::MAX);
        let next_step = |since: Moment| {
            let mut steps = (0..ranks).map(|rank| since + RANK_STEP * rank);
            steps.find(|step| *step > now)
        };
        let free = self.logs.iter().filter_map(|log| log.free_since);
        free.filter_map(next_step).min()
    }

    /// Takes the answer of the registry to a claim.
    pub(super) fn on_claimed(&mut self, claims: &[Claim], got: &[LogId], now: Moment) {
        let rest = self.beat() * 40;
        for Claim { tenure, .. } in claims
            .iter()
            .filter(|claim| got.contains(&claim.tenure.log))
        {
            let look = self.look.as_ref();
            let Some(lease) = look.and_then(|look| look.lease(tenure.log)) else {
                continue;
            };
            let (from, was_stuck) = (lease.owner, was_stuck(lease));
            let log = self.log_mut(tenure.log);
            log.keep_until = was_stuck.then(|| now + rest);
            let without_owner = log.free_since.map(|since| now.since(since));
            self.on_moved(Note::Moved {
                log: tenure.log,
                from,
                to: Some(tenure.owner),
                epoch: tenure.epoch,
                reason: MoveReason::Claim,
                without_owner,
            });
        }
    }
}

/// Returns whether a log was given up as stuck. Only such a log has had an owner and has none.
fn was_stuck(lease: &LeaseRow) -> bool {
    lease.owner.is_none() && lease.epoch > LeaseEpoch::default()
}

/// Returns the nodes that may take this log, in the order in which they should: the node to which it is pinned, the
/// node that was to get it, the node that had it, then the node that has least of its share.
fn order(shares: &Shares<'_>, lease: &LeaseRow) -> Vec<NodeId> {
    let mut order: Vec<NodeId> = shares.receivers().collect();
    order.sort_by_cached_key(|node| {
        let is = |other: Option<NodeId>| other == Some(*node);
        let favour = [is(lease.pinned), is(lease.next_owner), is(lease.owner)];
        (favour.map(|is| !is), shares.order(lease, *node))
    });
    order
}
