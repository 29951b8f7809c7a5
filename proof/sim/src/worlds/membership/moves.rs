//! The schedules in which an owner gives a log away: for balance, because it drains, is cut off or stuck, or on
//! request.

use gesta_cluster::Stop;
use gesta_cluster::core::Input;
use gesta_core::LogId;
use gesta_core::registry::{MoveReason, NodeState};

use super::{B, Clock, Cluster, D, LEASE_TIME, LOGS, Process, Run, SECOND, three};
use crate::driver::Schedule;

/// Schedule 13: nobody can call the owner, but it beats.
pub(super) fn a_node_that_others_cannot_call_gives_its_logs_away(schedule: &mut Schedule) {
    let mut world = three(schedule);
    let cut = world.id(0);
    world.input(1, Input::Unreachable(vec![cut]));
    world.run(10 * SECOND);
    assert!(
        !world.logs_of(0).is_empty(),
        "one of two others is no majority"
    );
    world.input(2, Input::Unreachable(vec![cut]));
    world.run_until("given away", 20 * SECOND, |world| {
        world.logs_of(0).is_empty()
    });
    assert_eq!(world.free(), 0);
    world.run(60 * SECOND);
    assert!(world.logs_of(0).is_empty(), "and receives none");
    world.assert_nobody_declared_dead();
    for node in [1, 2] {
        world.input(node, Input::Unreachable(Vec::new()));
    }
    world.run(60 * SECOND);
    assert!(!world.logs_of(0).is_empty(), "healed");
}

/// Schedule 13: the same, but what hands over is dead.
pub(super) fn a_node_that_others_cannot_call_and_that_keeps_its_logs_is_declared_dead(
    schedule: &mut Schedule,
) {
    let mut world = three(schedule);
    let cut = world.id(0);
    world.promises.links_are_cut = true;
    world.processes[0].hands_over = false;
    world.input(1, Input::Unreachable(vec![cut]));
    world.input(2, Input::Unreachable(vec![cut]));
    world.run_until("taken", 30 * SECOND, |world| {
        world.logs_of(0).is_empty() && world.free() == 0
    });
    assert_eq!(world.promises.deaths.len(), 1);
    world.run(60 * SECOND);
    assert!(
        world.logs_of(0).is_empty(),
        "it has joined again, and receives none"
    );
    assert_eq!(
        world.promises.deaths.len(),
        1,
        "it has no logs to take away"
    );
}

/// What happened: a node was cut off from its peers both ways for longer than its logs may stay with it, while none of
/// them could take the logs. When its own calls arrived again before those of the others, it was declared dead. What
/// holds: only time counts in which somebody could have taken the logs.
pub(super) fn a_node_whose_links_heal_one_after_the_other_keeps_its_logs(schedule: &mut Schedule) {
    let mut world = three(schedule);
    // What hands over needs its time after the links are back.
    world.promises.links_are_cut = true;
    world.processes[0].hands_over = false;
    let (cut, others) = (world.id(0), [world.id(1), world.id(2)]);
    world.input(0, Input::Unreachable(others.to_vec()));
    for node in [1, 2] {
        world.input(node, Input::Unreachable(vec![cut]));
    }
    world.run(20 * SECOND);
    world.input(0, Input::Unreachable(Vec::new()));
    world.run(2 * B);
    for node in [1, 2] {
        world.input(node, Input::Unreachable(Vec::new()));
    }
    world.run(20 * SECOND);
    world.assert_nobody_declared_dead();
    assert!(!world.logs_of(0).is_empty());
}

/// Restarts the three nodes, one after the other, each time as soon as all logs have an owner.
fn roll(world: &mut Cluster<'_>, order: [usize; 3], builds: Option<&str>) {
    for node in order {
        world.leave(node);
        world.run_until("left", 12 * SECOND, |world| {
            world.processes[node].run == Run::Stopped(Stop::Left)
        });
        assert_eq!(
            world.free(),
            0,
            "a graceful stop leaves no log without an owner"
        );
        world.run(SECOND);
        match builds {
            Some(build) => world.restart_build(node, build),
            None => world.restart(node),
        }
        world.run(5 * SECOND);
    }
}

/// Goal: who leaves gives its logs to a node that it has not seen yet.
pub(super) fn a_node_that_leaves_looks_once_more_for_takers(schedule: &mut Schedule) {
    let mut world = Cluster::settled(schedule, LOGS, 1);
    let second = world.start(Clock::default());
    world.run(SECOND / 50);
    world.leave(0);
    world.run_until("left", 5 * SECOND, |world| {
        world.processes[0].run == Run::Stopped(Stop::Left)
    });
    assert_eq!(
        (world.free(), world.logs_of(second).len()),
        (0, LOGS.into())
    );
}

/// What happened: the last node, and each one when all stop together, waited ten seconds for somebody to take its logs.
pub(super) fn a_node_that_nobody_can_take_logs_from_leaves_at_once(schedule: &mut Schedule) {
    for nodes in 1..=3 {
        let mut world = Cluster::settled(schedule, LOGS, nodes);
        (0..nodes).for_each(|node| world.leave(node));
        world.run_until("all have left", SECOND, |world| {
            let left = |node: &Process| node.run == Run::Stopped(Stop::Left);
            world.processes.iter().all(left)
        });
        assert!(world.database.tables.look().nodes.is_empty());
        world.assert_nobody_declared_dead();
        world.restart(0);
        world.run(SECOND);
        world.assert_owned();
    }
}

/// Schedule 23: a rolling restart of three nodes.
pub(super) fn a_rolling_restart_moves_at_most_26_logs(schedule: &mut Schedule) {
    for order in [
        [0, 1, 2],
        [2, 1, 0],
        [1, 0, 2],
        [1, 2, 0],
        [0, 2, 1],
        [2, 0, 1],
    ] {
        let mut world = three(schedule);
        let moves = world.moves();
        roll(&mut world, order, None);
        world.run(90 * SECOND);
        world.assert_settled();
        world.assert_nobody_declared_dead();
        let moved = world.moves() - moves;
        assert!(moved <= 26, "{moved} moves in the order {order:?}");
    }
}

/// Schedule 24: a fourth node joins.
pub(super) fn a_node_that_joins_gets_its_share_one_log_at_a_time_after_settling(
    schedule: &mut Schedule,
) {
    let mut world = three(schedule);
    let moves = world.moves();
    world.promises.moved.clear();
    world.start(Clock::default());
    world.run(19 * SECOND);
    assert_eq!(world.moves(), moves, "not before it has settled");
    world.run(60 * SECOND);
    world.assert_settled();
    assert_eq!(world.moves() - moves, 4);
    let times: Vec<_> = world.promises.moved.iter().map(|(at, _)| *at).collect();
    assert!(
        times.windows(2).all(|two| two[1] - two[0] >= SECOND),
        "{times:?}"
    );
}

/// Goal: a drain that is held outlasts restarts of the node, of either kind, and ends when it is taken back.
pub(super) fn a_drain_that_is_held_outlasts_restarts(schedule: &mut Schedule) {
    let mut world = three(schedule);
    let address = world.processes[0].address.clone();
    assert!(world.database.tables.hold(&address, true));
    world.drain(0, NodeState::Draining);
    let is_empty = |world: &Cluster<'_>| world.logs_of(0).is_empty();
    world.run_until("drained", 20 * SECOND, is_empty);
    world.kill(0);
    world.restart(0);
    world.run(60 * SECOND);
    assert!(is_empty(&world), "it has joined again, and receives none");
    world.assert_owned();
    world.leave(0);
    world.run_until("left", 12 * SECOND, |world| {
        world.processes[0].run == Run::Stopped(Stop::Left)
    });
    world.restart(0);
    world.run(60 * SECOND);
    assert!(is_empty(&world), "nor when it had left");
    world.assert_owned();
    assert!(world.database.tables.hold(&address, false));
    world.drain(0, NodeState::Up);
    world.run(90 * SECOND);
    world.assert_settled();
    world.kill(0);
    world.restart(0);
    world.run(90 * SECOND);
    world.assert_settled();
}

/// Schedule 25: builds differ for a while.
pub(super) fn nothing_moves_for_balance_while_builds_differ(schedule: &mut Schedule) {
    let mut world = three(schedule);
    let moves = world.moves();
    let new = world.start_build(Clock::default(), "1.1.0");
    world.run(120 * SECOND);
    assert_eq!(world.moves(), moves);
    world.kill(1);
    world.run(LEASE_TIME);
    assert_eq!(
        (world.free(), world.logs_of(1).len()),
        (0, 0),
        "deaths are served"
    );
    world.restart_build(1, "1.1.0");
    roll(&mut world, [0, 2, 1], Some("1.1.0"));
    world.run(120 * SECOND);
    world.assert_settled();
    assert!(!world.logs_of(new).is_empty());
}

/// Schedule 26: the pipeline of one log hangs.
pub(super) fn a_log_whose_pipeline_is_stuck_goes_alone(schedule: &mut Schedule) {
    let mut world = three(schedule);
    let logs = world.logs_of(0);
    world.processes[0].stuck.insert(logs[0]);
    world.run_until("released", B * 4, |world| {
        !world.logs_of(0).contains(&logs[0])
    });
    world.run_until("claimed by another", B * 2, |world| world.free() == 0);
    assert_eq!(world.logs_of(0), logs[1..], "its siblings go on");
    // Wherever it goes, it is stuck: it must not circle.
    let moves = world.moves();
    for node in 1..3 {
        world.processes[node].stuck.insert(logs[0]);
    }
    world.run(9 * D);
    assert!(world.moves() - moves <= 1, "it does not circle");
    world.assert_nobody_declared_dead();
}

/// Schedules 26 and 27: if nothing makes progress, it is the database.
pub(super) fn if_all_pipelines_are_stuck_all_logs_stay(schedule: &mut Schedule) {
    let mut world = three(schedule);
    let moves = world.moves();
    for node in 0..3 {
        world.processes[node].stuck = (0..LOGS).map(LogId).collect();
    }
    world.run(60 * SECOND);
    world.assert_settled();
    assert_eq!(world.moves(), moves);
}

/// A drain gives all logs away and takes them back when it is undone.
pub(super) fn a_node_that_drains_keeps_nothing_and_receives_nothing(schedule: &mut Schedule) {
    let mut world = three(schedule);
    let count = world.logs_of(0).len();
    world.drain(0, NodeState::Draining);
    world.run_until("drained", 10 * SECOND, |world| world.logs_of(0).is_empty());
    assert_eq!(world.free(), 0);
    let reasons: Vec<_> = world
        .database
        .tables
        .moves()
        .iter()
        .take(count)
        .map(|moved| moved.reason)
        .collect();
    assert_eq!(reasons, vec![MoveReason::Drain; count]);
    world.kill(1);
    world.run(60 * SECOND);
    assert_eq!((world.logs_of(0).len(), world.logs_of(2).len()), (0, 16));
    world.drain(0, NodeState::Up);
    world.run(90 * SECOND);
    assert_eq!(world.logs_of(0).len(), 8);
}

/// What people ask for: a move, a pin, and that nothing moves by itself.
pub(super) fn requests_pins_and_freezing_are_followed(schedule: &mut Schedule) {
    let mut world = three(schedule);
    let log = world.logs_of(0)[0];
    let (one, two) = (world.id(1), world.id(2));
    let lease = world.database.tables.look().leases[usize::from(log.0)];
    assert!(
        world
            .database
            .tables
            .set_next_owner(log, lease.epoch, Some(one))
    );
    world.run_until("moved", 2 * B, |world| world.logs_of(1).contains(&log));
    world.run(60 * SECOND);
    world.database.tables.pin(log, Some(two));
    world.run_until("pinned", 20 * B, |world| world.logs_of(2).contains(&log));
    world.kill(2);
    world.run(2 * D);
    assert_eq!(world.free(), 0);
    world.restart(2);
    world.run(90 * SECOND);
    assert!(
        world.logs_of(2).contains(&log),
        "it comes back to where it is pinned"
    );
    world.database.tables.freeze(true);
    let moves = world.moves();
    world.start(Clock::default());
    world.run(120 * SECOND);
    assert_eq!(world.moves(), moves, "frozen");
}
