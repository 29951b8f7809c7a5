//! The schedules that leases must survive, each by name: who is dead, and who takes what is left. `moves.rs` has those
//! in which owners give logs away; `random.rs` looks for those that nobody has thought of.

use std::time::Duration;

use gesta_cluster::core::Input;
use gesta_cluster::{Config, Stop};
use gesta_core::LogId;

use super::{B, Clock, Cluster, D, LEASE_TIME, LOGS, Roughness, Run, SECOND, three};
use crate::driver::Schedule;

/// Schedule 1: the owner is killed.
pub(super) fn logs_of_a_killed_node_are_claimed_within_the_lease_time(schedule: &mut Schedule) {
    let mut world = three(schedule);
    let moves = world.moves();
    let lost = world.logs_of(0).len();
    world.kill(0);
    world.run_until("claimed", LEASE_TIME, |world| {
        world.logs_of(0).is_empty() && world.free() == 0
    });
    world.run_until("known", SECOND / 10, Cluster::is_owned);
    world.assert_settled();
    world.run(60 * SECOND);
    assert_eq!(
        world.moves() - moves,
        lost,
        "only its logs have moved, once each"
    );
}

/// Schedule 1: the owner is killed, and its address refuses connections.
pub(super) fn refused_connections_find_a_killed_node_sooner(schedule: &mut Schedule) {
    let mut world = three(schedule);
    world.promises.refuses = true;
    world.kill(0);
    let dead = world.id(0);
    for _ in 0..2 {
        world.run(SECOND / 2);
        world.input(1, Input::Refused(dead));
        world.input(2, Input::Refused(dead));
    }
    // A beat that came before the refusals may still be news to an observer.
    world.run(B);
    for _ in 0..2 {
        world.input(1, Input::Refused(dead));
        world.input(2, Input::Refused(dead));
    }
    let took = world.run_until("claimed", 4 * SECOND, |world| {
        world.free() == 0 && world.logs_of(0).is_empty()
    });
    assert!(took < Duration::from_millis(2_500), "{took:?}");
}

/// Refused connections alone prove nothing while the node beats.
pub(super) fn a_node_that_beats_is_not_declared_dead_for_refused_connections(
    schedule: &mut Schedule,
) {
    let mut world = three(schedule);
    let node = world.id(0);
    for _ in 0..100 {
        world.run(SECOND / 4);
        world.input(1, Input::Refused(node));
    }
    world.assert_nobody_declared_dead();
}

/// Schedule 2: a process is killed, and starts again at the same address within a second.
pub(super) fn a_node_that_restarts_claims_its_old_logs_at_once(schedule: &mut Schedule) {
    let mut world = three(schedule);
    let (moves, logs) = (world.moves(), world.logs_of(0));
    world.kill(0);
    world.run(SECOND);
    world.restart(0);
    world.run_until("claimed", SECOND / 10, |world| {
        world.logs_of(0) == logs && world.free() == 0
    });
    world.run(60 * SECOND);
    world.assert_settled();
    world.assert_nobody_declared_dead();
    assert_eq!(world.moves(), moves, "nothing has moved to another node");
}

/// Schedule 3: the owner sleeps for longer than the lease time.
pub(super) fn an_owner_that_sleeps_loses_its_logs_once_and_joins_again(schedule: &mut Schedule) {
    let mut world = three(schedule);
    let (moves, logs) = (world.moves(), world.logs_of(0).len());
    world.pause(0);
    world.run(20 * SECOND);
    assert_eq!(world.free(), 0);
    world.resume(0);
    world.run_until("it knows that it has lost them", SECOND, |world| {
        (0..LOGS).all(|log| !world.processes[0].is_mine(LogId(log)))
    });
    world.run(15 * SECOND);
    assert_eq!(world.moves() - moves, logs);
    world.run(60 * SECOND);
    world.assert_settled();
}

/// Schedule 4: the owner sleeps for three seconds.
pub(super) fn a_short_sleep_moves_nothing(schedule: &mut Schedule) {
    let mut world = three(schedule);
    let moves = world.moves();
    world.pause(0);
    world.run(3 * SECOND);
    world.resume(0);
    world.run(60 * SECOND);
    world.assert_nobody_declared_dead();
    world.assert_settled();
    assert_eq!(world.moves(), moves);
}

/// A node wakes in the moment in which it is declared dead: what arrives first at the database counts.
pub(super) fn a_beat_that_comes_just_in_time_counts(schedule: &mut Schedule) {
    let mut world = three(schedule);
    for _ in 0..10 {
        world.is_declaring = false;
        world.pause(0);
        while !world.is_declaring {
            world.run(Duration::from_micros(100));
        }
        world.resume(0);
        // The promise that a node which has just beaten is not declared dead is checked all the time.
        world.run(20 * SECOND);
        world.assert_owned();
    }
}

/// Schedule 5: an observer sleeps; when it wakes, all it knows of others is old.
pub(super) fn an_observer_that_slept_declares_nobody_dead(schedule: &mut Schedule) {
    let mut world = three(schedule);
    world.pause(0);
    world.run(60 * SECOND);
    world.promises.deaths.clear();
    world.resume(0);
    world.run(60 * SECOND);
    world.assert_nobody_declared_dead();
    world.assert_settled();
}

/// Schedule 5: the same, but for the others the observer slept just too short to be dead, again and again.
pub(super) fn an_observer_that_dozes_declares_nobody_dead(schedule: &mut Schedule) {
    let mut world = three(schedule);
    for round in 0..20 {
        world.pause(0);
        world.run(Duration::from_millis(2_000 + 150 * round));
        world.resume(0);
        world.run(Duration::from_millis(400));
    }
    world.assert_nobody_declared_dead();
}

/// Schedule 6: all nodes sleep, and wake in any order.
pub(super) fn when_all_sleep_and_wake_each_log_moves_at_most_once(schedule: &mut Schedule) {
    let mut world = three(schedule);
    world.promises.moved.clear();
    for node in 0..3 {
        world.pause(node);
    }
    world.run(60 * SECOND);
    for node in [1, 2, 0] {
        world.resume(node);
        let apart = world.choices.pick(3);
        world.run(SECOND * apart);
    }
    world.run(60 * SECOND);
    world.assert_settled();
    assert_eq!(world.promises.moved, [], "all woke within D");
}

/// Schedule 7: the database is away for two minutes.
pub(super) fn an_outage_of_the_database_moves_nothing(schedule: &mut Schedule) {
    let mut world = three(schedule);
    let moves = world.moves();
    world.database.is_down = true;
    world.run(120 * SECOND);
    world.assert_owned();
    world.database.is_down = false;
    world.run(2 * SECOND);
    world.assert_owned();
    world.run(60 * SECOND);
    world.assert_nobody_declared_dead();
    assert_eq!(world.moves(), moves);
}

/// Schedule 7: the database comes and goes, so that looks are rare.
pub(super) fn a_database_that_comes_and_goes_moves_nothing(schedule: &mut Schedule) {
    let mut world = three(schedule);
    let moves = world.moves();
    for round in 0..40 {
        world.database.is_down = true;
        world.run(Duration::from_millis(3_500 + round * 100));
        world.database.is_down = false;
        world.run(Duration::from_millis(200 + round * 20));
    }
    world.run(60 * SECOND);
    world.assert_nobody_declared_dead();
    assert_eq!(world.moves(), moves);
    world.assert_settled();
}

/// Schedule 8: a node dies while the database is away.
pub(super) fn a_node_that_dies_in_an_outage_is_found_a_lease_time_after_it(
    schedule: &mut Schedule,
) {
    let mut world = three(schedule);
    let (moves, logs) = (world.moves(), world.logs_of(2).len());
    world.database.is_down = true;
    world.run(60 * SECOND);
    world.kill(2);
    world.run(60 * SECOND);
    world.database.is_down = false;
    world.run(D - SECOND / 100);
    assert_eq!(world.promises.deaths, [], "not before D");
    world.run_until("claimed", LEASE_TIME, |world| {
        world.free() == 0 && world.logs_of(2).is_empty()
    });
    world.run(60 * SECOND);
    world.assert_settled();
    assert_eq!(world.moves() - moves, logs);
}

/// Schedule 9: the database's clock steps by an hour, and the nodes' clocks run a tenth fast or slow.
pub(super) fn clocks_have_no_effect(schedule: &mut Schedule) {
    let mut world = Cluster::new(schedule, LOGS, Config::default());
    for (offset, percent) in [(7_200, 110), (0, 90), (99_999, 100)] {
        world.start(Clock::new(Duration::from_secs(offset), percent));
    }
    world.run(120 * SECOND);
    world.assert_settled();
    let moves = world.moves();
    for hours in [1_i64, -1, 0] {
        world.database.clock_error = hours * 3_600_000_000;
        world.run(60 * SECOND);
    }
    world.assert_nobody_declared_dead();
    assert_eq!(world.moves(), moves);
}

/// Schedule 10: one node is cut off from the database.
pub(super) fn a_node_that_is_cut_off_from_the_database_loses_its_logs(schedule: &mut Schedule) {
    let mut world = three(schedule);
    let (moves, logs) = (world.moves(), world.logs_of(1).len());
    world.processes[1].is_cut = true;
    world.run_until("claimed", LEASE_TIME, |world| {
        world.logs_of(1).is_empty() && world.free() == 0
    });
    world.run(60 * SECOND);
    assert_eq!(world.moves() - moves, logs);
    world.processes[1].is_cut = false;
    world.run(60 * SECOND);
    world.assert_settled();
}

/// All others are cut off from the database for longer than D: more likely something is wrong here.
pub(super) fn a_node_that_finds_most_others_dead_waits_longer(schedule: &mut Schedule) {
    let mut world = three(schedule);
    let moves = world.moves();
    for _ in 0..4 {
        set_cut(&mut world, [1, 2], true);
        world.run_until("silent", 2 * D, |world| {
            silence(world, [1, 2]) >= 5 * B - SECOND
        });
        set_cut(&mut world, [1, 2], false);
        // A beat that is under way fails after B/2.
        for _ in 0..8 {
            world.run(SECOND / 10);
            world.input(1, Input::LookNow);
            world.input(2, Input::LookNow);
        }
        assert!(silence(&world, [1, 2]) < SECOND);
        world.run(60 * SECOND);
    }
    world.assert_nobody_declared_dead();
    assert_eq!(world.moves(), moves);
    world.kill(1);
    world.kill(2);
    world.run_until("taken over", LEASE_TIME + B, |world| {
        world.logs_of(0).len() == usize::from(LOGS)
    });
}

fn set_cut(world: &mut Cluster<'_>, processes: [usize; 2], is_cut: bool) {
    for process in processes {
        world.processes[process].is_cut = is_cut;
    }
}

/// For how long one of these has been silent, or both.
fn silence(world: &Cluster<'_>, processes: [usize; 2]) -> Duration {
    let (tables, ids) = (&world.database.tables, processes.map(|at| world.id(at)));
    let look = tables.look();
    let rows = ids.iter().filter_map(|id| look.node(*id));
    let oldest = rows.map(|row| row.beat_at.0).min();
    let oldest = oldest.unwrap_or(tables.now.0);
    Duration::from_micros(u64::try_from(tables.now.0 - oldest).unwrap_or_default())
}

/// Of up to five nodes any number dies at once, or one after the other. What happened: with all but one dead, the last
/// one declared them one after the other, each a good beat after the one before, and the logs of the last were free for
/// 16.9 s.
pub(super) fn however_many_of_five_die_their_logs_are_claimed_within_ten_seconds(
    schedule: &mut Schedule,
) {
    for (nodes, dead) in [(2, 1), (3, 2), (4, 2), (4, 3), (5, 2), (5, 3), (5, 4)] {
        let any = schedule.choices.pick(8_000);
        for apart in [0, any, 1_300, 4_100] {
            let apart = Duration::from_millis(u64::from(apart));
            kill_some(schedule, nodes, dead, apart);
        }
    }
}

/// Kills nodes so much time apart, and sees that all logs are back within ten seconds of the last death.
fn kill_some(schedule: &mut Schedule, nodes: usize, dead: usize, apart: Duration) {
    // The rest is for opening the logs.
    let within = Duration::from_millis(9_500);
    let mut world = Cluster::settled(schedule, LOGS, nodes);
    let begin = world.choices.pick(1_500);
    world.run(Duration::from_millis(u64::from(begin)));
    let mut killed: Vec<(usize, Duration)> = Vec::new();
    let last = world.now + apart * u32::try_from(dead - 1).unwrap();
    while world.now < last + within + SECOND {
        let rests = |(_, at): &(usize, Duration)| world.now < *at + apart;
        if killed.len() < dead && !killed.last().is_some_and(rests) {
            killed.push((killed.len(), world.now));
            world.kill(killed.len() - 1);
        }
        assert!(
            world.now < last + within || world.is_owned(),
            "they died from {killed:?} on\n{world:?}"
        );
        world.run(Duration::from_millis(10));
    }
    assert_eq!((killed.len(), world.promises.deaths.len()), (dead, dead));
}

/// Two of six die at once.
pub(super) fn a_node_declares_one_other_dead_in_a_beat(schedule: &mut Schedule) {
    let mut world = Cluster::settled(schedule, LOGS, 6);
    world.kill(4);
    world.kill(5);
    world.run_until("taken over", LEASE_TIME + 2 * B, |world| {
        world.free() == 0 && world.logs_of(4).is_empty() && world.logs_of(5).is_empty()
    });
    let deaths = &world.promises.deaths;
    assert_eq!(deaths.len(), 2);
    let is_by_one = deaths[0].by == deaths[1].by;
    assert!(
        !is_by_one || deaths[1].at - deaths[0].at >= B * 9 / 10,
        "{deaths:?}"
    );
}

/// Schedule 22: two claim at once, and one's statement is slow.
pub(super) fn of_two_claimers_each_log_gets_one(schedule: &mut Schedule) {
    let mut world = three(schedule);
    world.roughness = Roughness { lost: 400 };
    world.kill(0);
    world.run(30 * SECOND);
    world.roughness = Roughness::default();
    world.run(3 * D);
    world.assert_owned();
    world.run(60 * SECOND);
    world.assert_settled();
}

/// Schedule 27: commits wait for a standby that hangs, so nothing but beats is answered.
pub(super) fn beats_go_on_while_changes_hang(schedule: &mut Schedule) {
    let mut world = three(schedule);
    let moves = world.moves();
    world.database.hangs_changes = true;
    let new = world.start(Clock::default());
    world.run(60 * SECOND);
    world.assert_nobody_declared_dead();
    assert_eq!(world.moves(), moves);
    world.database.hangs_changes = false;
    world.run(90 * SECOND);
    world.assert_settled();
    assert!(!world.logs_of(new).is_empty());
}

/// Schedule 28: a fail-over loses up to two seconds, with leases among them.
pub(super) fn a_fail_over_that_loses_leases_ends_with_one_owner_of_each_log(
    schedule: &mut Schedule,
) {
    let mut world = three(schedule);
    for loss in 0..8_u32 {
        world.kill(1);
        world.run_until("claimed", LEASE_TIME, |world| {
            world.free() == 0 && world.logs_of(1).is_empty()
        });
        world.restart(1);
        world.run(Duration::from_millis(u64::from(loss) * 300));
        world.fail_over();
        world.run(LEASE_TIME + D);
        world.assert_owned();
    }
    world.run(90 * SECOND);
    world.assert_settled();
}

/// A fail-over loses the row of a node, and its number is given to another address.
pub(super) fn a_node_whose_row_was_lost_is_not_replaced_by_who_got_its_number(
    schedule: &mut Schedule,
) {
    let mut world = three(schedule);
    let lost = world.start(Clock::default());
    world.run(SECOND / 10);
    let number = world.id(lost);
    world.fail_over();
    let other = world.start(Clock::default());
    world.run(SECOND / 10);
    assert_eq!(world.id(other), number, "the number was given out again");
    world.run(20 * SECOND);
    assert_eq!(world.processes[lost].run, Run::Running);
    assert_ne!(world.id(lost), number);
    world.assert_owned();
}

/// A node sleeps, a fail-over loses its last beat, and it beats once more: a count would show the same number again.
pub(super) fn a_beat_after_a_fail_over_is_a_sign_of_life(schedule: &mut Schedule) {
    let mut world = three(schedule);
    let node = world.id(0);
    let beat = |world: &Cluster<'_>| world.database.tables.look().node(node).map(|row| row.beat);
    let (mut before, mut then) = (world.database.tables.clone(), world.now);
    let first = beat(&world);
    while beat(&world) == first {
        (before, then) = (world.database.tables.clone(), world.now);
        world.run(SECOND / 1_000);
    }
    world.pause(0);
    world.run(D * 3 / 4);
    let incarnation = before.look().incarnation;
    world.database.tables.fail_over(&before, incarnation);
    world.promises.failed_over(then);
    world.resume(0);
    world.run_until("it beats", SECOND / 10, |world| beat(world) != first);
    world.pause(0);
    world.run(D / 2);
    world.resume(0);
    world.assert_nobody_declared_dead();
    world.run(60 * SECOND);
    world.assert_settled();
}

/// Schedule 28: nobody noticed that the fail-over lost something, so the store has the same incarnation.
pub(super) fn an_epoch_that_went_back_is_raised_above_the_known_one(schedule: &mut Schedule) {
    let mut world = three(schedule);
    let (log, one) = (world.logs_of(0)[0], world.id(1));
    let (before, then) = (world.database.tables.clone(), world.now);
    let epoch = before.look().leases[usize::from(log.0)].epoch;
    assert!(world.database.tables.set_next_owner(log, epoch, Some(one)));
    world.run_until("moved", 2 * B, |world| world.logs_of(1).contains(&log));
    let incarnation = before.look().incarnation;
    world.database.tables.fail_over(&before, incarnation);
    world.promises.failed_over(then);
    world.run(3 * B);
    world.assert_owned();
    let lease = world.database.tables.look().leases[usize::from(log.0)];
    assert!(lease.epoch > epoch.next(), "{lease:?}");
    assert!(world.logs_of(0).contains(&log), "and it need not move");
}

/// Two processes with one address: the older one stops, and says why.
pub(super) fn a_process_that_is_replaced_while_it_lives_stops(schedule: &mut Schedule) {
    let mut world = three(schedule);
    let second = world.start_at_address_of(0);
    world.run(10 * SECOND);
    assert_eq!(world.processes[0].run, Run::Stopped(Stop::Replaced));
    assert_eq!(world.processes[second].run, Run::Running);
    world.assert_owned();
}

/// A single node owns all, and needs nobody.
pub(super) fn a_node_alone_owns_everything_at_once(schedule: &mut Schedule) {
    let mut world = Cluster::new(schedule, LOGS, Config::default());
    world.start(Clock::default());
    world.run(SECOND);
    world.assert_settled();
    world.kill(0);
    world.run(120 * SECOND);
    world.restart(0);
    world.run(SECOND / 10);
    world.assert_settled();
}
