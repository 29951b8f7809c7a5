//! Which node has how many logs, how many it should have, and which may receive some. This is computed from a look;
//! nothing is kept.
//!
//! All nodes compute this from about the same look and agree, but nothing rests on that: a node that is wrong finds the
//! epoch of the lease changed.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use gesta_core::registry::{LeaseRow, Look, NodeId, NodeRow, NodeState};

use super::random::affinity;

/// Returns how many valid leases a node has.
pub(crate) fn logs_of(look: &Look, node: NodeId) -> usize {
    let holds = |lease: &&LeaseRow| look.holder(lease).is_some_and(|holder| holder.id == node);
    look.leases.iter().filter(holds).count()
}

/// Returns the nodes that cannot call this one.
pub(crate) fn callers_cut<'a>(
    look: &'a Look,
    node: &NodeRow,
) -> impl Iterator<Item = &'a NodeRow> + use<'a> {
    let id = node.id;
    look.nodes
        .iter()
        .filter(move |other| other.id != id && other.unreachable.contains(&id))
}

/// Returns whether more than half of the other nodes cannot call this one.
pub(crate) fn is_cut_off(look: &Look, node: &NodeRow) -> bool {
    callers_cut(look, node).count() * 2 > look.nodes.len().saturating_sub(1)
}

/// Returns the nodes that are up and that every other node can call.
pub(crate) fn reached_by_all(look: &Look) -> impl Iterator<Item = &NodeRow> {
    look.nodes
        .iter()
        .filter(|node| node.state == NodeState::Up && callers_cut(look, node).next().is_none())
}

/// Returns whether some logs have no owner that lives, and this node has less than its share of all. Then it is about
/// to claim some.
#[must_use]
pub fn is_about_to_claim(look: &Look, node: NodeId) -> bool {
    let shares = Shares::of(look);
    let is_below_floor = shares.excess(node) + shares.weights <= 0;
    let is_free = |lease: &LeaseRow| look.holder(lease).is_none();
    shares.receives(node) && is_below_floor && look.leases.iter().any(is_free)
}

/// Returns whether a log may move for the sake of balance.
pub(crate) fn is_movable(lease: &LeaseRow) -> bool {
    !lease.frozen && lease.pinned.is_none()
}

/// The distribution of the logs, as of a look.
#[derive(Debug)]
pub(crate) struct Shares<'a> {
    look: &'a Look,
    /// The nodes that may receive logs.
    receivers: Vec<&'a NodeRow>,
    /// The number of logs of each node, with those that it is about to get and without those that it is about to give.
    counts: BTreeMap<NodeId, i64>,
    /// The sum of the weights of the receivers.
    weights: i64,
}

impl<'a> Shares<'a> {
    pub(crate) fn of(look: &'a Look) -> Self {
        let up = || look.nodes.iter().filter(|node| node.state == NodeState::Up);
        let mut receivers: Vec<_> = up().filter(|node| !is_cut_off(look, node)).collect();
        if receivers.is_empty() {
            // Somebody must have the logs.
            receivers = up().collect();
        }
        let mut counts: BTreeMap<NodeId, i64> = BTreeMap::new();
        for lease in &look.leases {
            let Some(holder) = look.holder(lease) else {
                continue;
            };
            let next = lease.next_owner.filter(|next| look.node(*next).is_some());
            *counts.entry(next.unwrap_or(holder.id)).or_default() += 1;
        }
        let weights = receivers
            .iter()
            .map(|node| i64::from(node.info.weight.max(1)))
            .sum();
        Self {
            look,
            receivers,
            counts,
            weights,
        }
    }

    pub(crate) fn receives(&self, node: NodeId) -> bool {
        self.receivers.iter().any(|receiver| receiver.id == node)
    }

    pub(crate) fn receivers(&self) -> impl Iterator<Item = NodeId> {
        self.receivers.iter().map(|node| node.id)
    }

    /// Returns the number of logs that are the node's share, times `weights`.
    fn share(&self, node: NodeId) -> i64 {
        let receiver = self.receivers.iter().find(|receiver| receiver.id == node);
        let logs = i64::try_from(self.look.leases.len()).unwrap_or(i64::MAX);
        receiver.map_or(0, |node| {
            i64::from(node.info.weight.max(1)).saturating_mul(logs)
        })
    }

    /// Returns how much more than its share a node has, times `weights`. A negative number means that it has less.
    pub(crate) fn excess(&self, node: NodeId) -> i64 {
        self.count(node).saturating_mul(self.weights) - self.share(node)
    }

    fn count(&self, node: NodeId) -> i64 {
        self.counts.get(&node).copied().unwrap_or_default()
    }

    /// Returns the share of a node, rounded up.
    fn ceiling(&self, node: NodeId) -> i64 {
        let weights = self.weights.max(1);
        (self.share(node) + weights - 1) / weights
    }

    pub(crate) fn is_below_ceiling(&self, node: NodeId) -> bool {
        self.count(node) < self.ceiling(node)
    }

    pub(crate) fn is_above_ceiling(&self, node: NodeId) -> bool {
        self.count(node) > self.ceiling(node)
    }

    fn has_movable(&self, node: NodeId) -> bool {
        let holds = |lease: &LeaseRow| {
            let holder = self.look.holder(lease);
            holder.is_some_and(|holder| holder.id == node)
        };
        let mut leases = self.look.leases.iter();
        leases.any(|lease| is_movable(lease) && holds(lease))
    }

    /// Counts a log that a node is about to get.
    pub(crate) fn add(&mut self, node: NodeId) {
        *self.counts.entry(node).or_default() += 1;
    }

    /// Returns the key by which nodes are ordered to take a log: the node that has least of its share comes first.
    pub(crate) fn order(&self, lease: &LeaseRow, node: NodeId) -> (i64, Reverse<u64>, NodeId) {
        (
            self.excess(node),
            Reverse(affinity(lease.log.0, node.0)),
            node,
        )
    }

    /// Returns the one node that should give away a log for the sake of balance, if any has too many and may give one.
    pub(crate) fn giver(&self) -> Option<NodeId> {
        let above = self.receivers().filter(|node| self.is_above_ceiling(*node));
        let givers = above.filter(|node| self.has_movable(*node));
        givers.max_by_key(|node| (self.excess(*node), Reverse(*node)))
    }
}
