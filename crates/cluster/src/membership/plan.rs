//! Which logs would move for the sake of pins and balance if nothing else happened, for people.
//!
//! The plan makes the decisions of all nodes, one after the other, upon one look. The plan leaves out what a node knows
//! beyond the look: which node refused a log, which log was stuck elsewhere, and whether membership has settled.

use gesta_core::LogId;
use gesta_core::registry::{LeaseRow, Look, MoveReason, NodeId};

use super::hand_over::improvement;
use super::shares::Shares;

/// A move that a node would make.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PlannedMove {
    /// The log.
    pub log: LogId,
    /// The owner of the log.
    pub from: NodeId,
    /// The node that would get the log.
    pub to: NodeId,
    /// The reason for the move.
    pub reason: MoveReason,
}

/// Returns the moves, in the order in which they would be made.
#[must_use]
pub fn planned_moves(look: &Look) -> Vec<PlannedMove> {
    let mut look = look.clone();
    let mut moves: Vec<PlannedMove> = Vec::new();
    // Each log moves at most once for its pin and once for balance.
    while moves.len() < look.leases.len() * 2
        && let Some(next) = next_move(&look)
    {
        let generation = look.node(next.to).map(|node| node.generation);
        let mut leases = look.leases.iter_mut();
        let lease = leases.find(|lease| lease.log == next.log);
        if let (Some(generation), Some(lease)) = (generation, lease) {
            (lease.owner, lease.generation) = (Some(next.to), generation);
        }
        moves.push(next);
    }
    moves
}

fn next_move(look: &Look) -> Option<PlannedMove> {
    let shares = Shares::of(look);
    look.nodes.iter().find_map(|node| {
        // A log that is moving already is counted where it goes.
        let ours = |lease: &&LeaseRow| {
            lease.next_owner.is_none()
                && look
                    .holder(lease)
                    .is_some_and(|holder| holder.id == node.id)
        };
        let ours: Vec<&LeaseRow> = look.leases.iter().filter(ours).collect();
        let (lease, to, reason) =
            improvement(&shares, node.id, &ours, |_, to| to != node.id, |_| false)?;
        Some(PlannedMove {
            log: lease.log,
            from: node.id,
            to,
            reason,
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use gesta_kit::registry;

    /// A look at so many nodes, with these owners of the logs.
    fn look(nodes: u32, owners: &[u32]) -> Look {
        let owners: Vec<Option<u32>> = owners.iter().copied().map(Some).collect();
        registry::look(1..=nodes, &owners)
    }

    #[test]
    fn no_move_where_the_logs_are_shared() {
        assert_eq!(planned_moves(&look(3, &[1, 1, 2, 2, 3, 3, 3])), []);
        assert_eq!(planned_moves(&look(0, &[1, 1])), []);
    }

    #[test]
    fn a_node_that_is_new_gets_its_share_and_no_log_moves_twice() {
        let moves = planned_moves(&look(3, &[1, 1, 1, 1, 2, 2, 2, 2]));
        assert_eq!(moves.len(), 2, "{moves:?}");
        assert!(moves.iter().all(|planned| planned.to == NodeId(3)));
        assert_ne!(moves[0].log, moves[1].log);
    }

    #[test]
    fn pins_count_and_what_is_frozen_stays() {
        let mut look = look(2, &[1, 1, 2, 2]);
        look.leases[0].pinned = Some(NodeId(2));
        let moves = planned_moves(&look);
        assert_eq!((moves[0].log, moves[0].reason), (LogId(0), MoveReason::Pin));
        assert_eq!(
            (moves[1].from, moves[1].reason),
            (NodeId(2), MoveReason::Balance)
        );
        assert_eq!(moves.len(), 2);
        for lease in &mut look.leases {
            lease.frozen = true;
        }
        assert_eq!(planned_moves(&look), []);
    }

    /// What happened: only the node that had most could give, though all that it had was pinned, so one that could have
    /// given never did.
    #[test]
    fn a_node_with_nothing_but_pins_does_not_keep_others_from_giving() {
        let owners = [[1; 9].as_slice(), &[2; 7]].concat();
        let mut look = look(3, &owners);
        for lease in &mut look.leases[..9] {
            lease.pinned = Some(NodeId(1));
        }
        let moves = planned_moves(&look);
        let moves: Vec<_> = moves.iter().map(|one| (one.from, one.to)).collect();
        assert_eq!(moves, [(NodeId(2), NodeId(3))], "the quota is 6");
    }

    #[test]
    fn a_log_that_is_moving_is_counted_where_it_goes() {
        let mut look = look(2, &[1, 1, 1, 1]);
        look.leases[0].next_owner = Some(NodeId(2));
        assert_eq!(planned_moves(&look).len(), 1);
    }
}
