//! What is asked of a registry, and what is refused before anything is asked.

use super::*;
use gesta_core::Timestamp;
use gesta_core::registry::{Generation, LeaseEpoch, Move, MoveReason, NodeId};
use gesta_kit::registry;

/// Two nodes; node 1 has log 0, node 2 log 1, and nobody log 2.
fn look() -> Look {
    registry::look([2, 1], &[Some(1), Some(2), None])
}

fn refusal<T: std::fmt::Debug>(outcome: Outcome<T>) -> (Option<Code>, String) {
    let failure = outcome.expect_err("refused");
    (failure.code(), failure.to_string())
}

#[test]
fn a_node_is_its_number_or_its_address() {
    let look = look();
    assert_eq!(node_of(&look, "2").expect("there").id, NodeId(2));
    assert_eq!(node_of(&look, "host:1").expect("there").id, NodeId(1));
    for absent in ["3", "", "host", "host:3", "-1"] {
        let (code, text) = refusal(node_of(&look, absent));
        assert_eq!(code, Some(Code::Usage));
        let named = "(node 1 at host:1, node 2 at host:2), found ";
        assert!(
            text.contains(named) && text.ends_with(&format!("{absent:?}")),
            "{text}"
        );
    }
    let nobody = Look {
        nodes: Vec::new(),
        ..look
    };
    assert!(refusal(node_of(&nobody, "1")).1.contains("(there is none)"));
}

#[test]
fn a_log_is_one_of_the_store() {
    let look = look();
    assert_eq!(lease_of(&look, 2).expect("there").log, LogId(2));
    let (code, text) = refusal(lease_of(&look, 3));
    assert_eq!(code, Some(Code::Usage));
    assert_eq!(
        text,
        "LOG must be from 0 to 2: the store has 3 logs, found 3"
    );
}

#[test]
fn what_cannot_be_moved_is_refused_with_the_reason() {
    let mut look = look();
    let ask =
        |look: &Look, log: usize, to: usize| step_to(look, &look.leases[log], &look.nodes[to]);
    assert_eq!(ask(&look, 0, 0).expect("asked"), Step::Ask);
    assert_eq!(ask(&look, 1, 0).expect("there"), Step::Nothing);
    let (code, text) = refusal(ask(&look, 2, 0));
    assert_eq!(code, Some(Code::Unavailable));
    assert!(text.contains("log 2 has no owner"), "{text}");
    look.leases[1].next_owner = Some(NodeId(1));
    assert_eq!(ask(&look, 1, 0).expect("withdrawn"), Step::Withdraw);
    look.leases[0].pinned = Some(NodeId(1));
    let (_, text) = refusal(ask(&look, 0, 0));
    assert!(text.contains("pinned to node 1 at host:1"), "{text}");
    look.leases[0].pinned = Some(NodeId(2));
    look.nodes[0].state = NodeState::Draining;
    let (_, text) = refusal(ask(&look, 0, 0));
    assert!(text.contains("node 2 at host:2 is draining"), "{text}");
}

#[test]
fn a_move_ends_when_the_log_is_there_or_cannot_come() {
    let before = look();
    let (from, to) = (before.leases[0], registry::node_row(2));
    let mut look = look();
    look.leases[0].next_owner = Some(NodeId(2));
    assert_eq!(progress(&look, &from, &to).expect("asked"), Progress::Asked);
    look.leases[0].next_owner = None;
    assert!(
        refusal(progress(&look, &from, &to))
            .1
            .contains("does not take it")
    );
    (look.leases[0].owner, look.leases[0].generation) = (Some(NodeId(2)), Generation(2));
    look.leases[0].epoch = LeaseEpoch(6);
    assert_eq!(progress(&look, &from, &to).expect("moved"), Progress::Moved);
    look.nodes[0].generation = Generation(9);
    assert!(
        refusal(progress(&look, &from, &to))
            .1
            .contains("has lost its owner")
    );
}

/// What happened: the oldest kept move of each log said that nobody had had the log before.
#[test]
fn who_had_a_log_before_its_oldest_kept_move_is_not_known() {
    let done = |log: u16, from: Option<u32>, epoch: u64| Move {
        log: LogId(log),
        from: from.map(NodeId),
        to: Some(NodeId(1)),
        epoch: LeaseEpoch(epoch),
        reason: MoveReason::Claim,
        at: Timestamp(0),
    };
    let other = done(1, None, 8);
    assert!(show::is_from_kept(&done(0, None, 1), &[other]), "the first");
    assert!(!show::is_from_kept(&done(0, None, 7), &[other]));
    assert!(show::is_from_kept(&done(0, Some(2), 7), &[]));
    // The log was given up as stuck, so nobody had it.
    assert!(show::is_from_kept(
        &done(0, None, 7),
        &[other, done(0, Some(2), 6)]
    ));
}
