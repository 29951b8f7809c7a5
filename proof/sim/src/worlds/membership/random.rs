//! Random schedules of everything that can happen to a cluster.

use std::time::Duration;

use gesta_cluster::Config;
use gesta_cluster::core::Input;
use gesta_core::LogId;
use gesta_core::registry::NodeState;

use super::{B, Clock, Cluster, D, Roughness, Run, SECOND};
use crate::driver::Schedule;

/// The most nodes of a schedule.
const NODES_MAX: usize = 7;

/// Goal: after each event of a random schedule the promises hold, and after three D of quiet every log has one owner
/// that knows it; then the logs are balanced.
pub(super) fn random(schedule: &mut Schedule) {
    let logs = 1 + schedule.choices.pick(19);
    let settle = Duration::from_secs(u64::from(2 + schedule.choices.pick(23)));
    let config = Config {
        settle,
        ..Config::default()
    };
    let count = u16::try_from(logs).expect("few");
    let mut world = Cluster::new(schedule, count, config);
    world.loses_messages = true;
    for _ in 0..=world.choices.pick(5) {
        let clock = clock(&mut world);
        world.start(clock);
    }
    for _ in 0..=world.choices.pick(29) {
        act(&mut world);
        let wait = [50, 500, 3_000, 12_000][world.choices.index(4)];
        let wait = Duration::from_millis(u64::from(world.choices.pick(wait)));
        world.run(wait);
    }
    heal(&mut world);
    // A clock that is a tenth slow takes longer for D.
    world.run_until("owned", 3 * D * 10 / 9, Cluster::is_owned);
    world.run(settle * 2 + 3 * SECOND * logs);
    world.run_until("owned", 2 * B, Cluster::is_owned);
    world.assert_settled();
    let counts = [
        ("death", world.promises.deaths.len()),
        ("move", world.moves()),
        ("note", world.notes.len()),
    ];
    for (what, count) in counts {
        (0..count).for_each(|_| world.reach(what));
    }
}

fn clock(world: &mut Cluster<'_>) -> Clock {
    let offset = Duration::from_millis(u64::from(world.choices.pick(100_000_000)));
    let percent = match world.choices.pick(20) {
        0 => 100,
        other => 90 + other,
    };
    Clock::new(offset, percent)
}

fn act(world: &mut Cluster<'_>) {
    let process = world.choices.index(world.processes.len());
    let run = world.processes[process].run;
    let kind = world.choices.pick(17);
    let text = || format!("node {process}, which is {run:?}: {kind}");
    world.trace.note(world.now, text);
    match kind {
        0 => {}
        1 if world.processes.len() < NODES_MAX => {
            let clock = clock(world);
            world.start(clock);
        }
        2 => world.kill(process),
        3 | 4 if !matches!(run, Run::Running | Run::Paused) => world.restart(process),
        5 if run == Run::Running => world.pause(process),
        6 => world.resume(process),
        7 => world.database.is_down = !world.database.is_down,
        8 => world.processes[process].is_cut ^= true,
        9 => {
            let ahead = i64::from(world.choices.pick(3_600)) * 1_000_000;
            let is_back = world.choices.chance(1, 2);
            world.database.clock_error = if is_back { -ahead } else { ahead };
        }
        10 => world.fail_over(),
        11 => world.leave(process),
        12 => {
            let state = [NodeState::Up, NodeState::Draining][world.choices.index(2)];
            world.drain(process, state);
        }
        13 => {
            let lost = [0, 50, 300][world.choices.index(3)];
            world.roughness = Roughness { lost };
        }
        14 => {
            let log = log(world);
            world.processes[process].stuck.insert(log);
        }
        15 => cut_links(world, process),
        16 => request(world),
        _ => {}
    }
}

fn log(world: &mut Cluster<'_>) -> LogId {
    LogId(u16::try_from(world.choices.pick(20)).expect("few"))
}

/// A node cannot call some others.
fn cut_links(world: &mut Cluster<'_>, process: usize) {
    world.promises.links_are_cut = true;
    let ids: Vec<_> = world.processes.iter().filter_map(|node| node.id).collect();
    let unreachable = ids.into_iter().filter(|_| world.choices.chance(3, 10));
    let unreachable = unreachable.collect();
    world.input(process, Input::Unreachable(unreachable));
}

/// People ask for a move, pin a log, or let a node join as draining.
fn request(world: &mut Cluster<'_>) {
    let look = world.database.tables.look();
    let lease = look.leases[world.choices.index(look.leases.len())];
    let process = world.choices.index(world.processes.len());
    let to = world.processes[process].id;
    match world.choices.pick(100) {
        0..=55 => {
            let tables = &mut world.database.tables;
            tables.set_next_owner(lease.log, lease.epoch, to);
        }
        56..=79 => world.database.tables.pin(lease.log, to),
        _ => {
            let held = world.choices.chance(1, 2);
            let address = world.processes[process].address.clone();
            world.database.tables.hold(&address, held);
        }
    }
}

/// Everything works again, and nobody wants anything.
fn heal(world: &mut Cluster<'_>) {
    world.database.is_down = false;
    world.roughness = Roughness::default();
    // The last of the late statements take effect, among them what people wanted before.
    world.run(20 * SECOND);
    for log in 0..20 {
        world.database.tables.pin(LogId(log), None);
    }
    for process in 0..world.processes.len() {
        world.processes[process].is_cut = false;
        world.processes[process].stuck.clear();
        world.resume(process);
        let address = world.processes[process].address.clone();
        world.database.tables.hold(&address, false);
        world.input(process, Input::Unreachable(Vec::new()));
        world.drain(process, NodeState::Up);
    }
    // Those that are leaving have left.
    world.run(12 * SECOND);
    if world.processes.iter().all(|node| node.run != Run::Running) {
        world.restart(0);
    }
}
