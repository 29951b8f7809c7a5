//! Random schedules of everything that can happen to a cluster, each replayed by its seed (`GESTA_SEED`).
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    missing_docs,
    reason = "tests"
)]

mod support;

use std::time::{Duration, Instant};

use gesta_cluster::Config;
use gesta_cluster::core::Input;
use gesta_core::LogId;
use gesta_core::registry::NodeState;
use gesta_kit::depth;
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};
use support::{B, Clock, D, Roughness, Run, SECOND, World};

/// Goal: after each event of a random schedule the promises hold, and after three D of quiet every log has one owner
/// that knows it; then the logs are balanced.
#[test]
fn random_schedules_break_no_promise_and_end_owned_and_balanced() {
    let first = depth::seed();
    let end = Instant::now() + Duration::from_secs(depth::count(8, 900));
    let mut done = 0;
    loop {
        let seed = first.wrapping_add(done);
        println!("GESTA_SEED={seed}");
        schedule(seed);
        done += 1;
        if Instant::now() >= end {
            break;
        }
    }
    println!("{done} schedules");
}

/// Goal: a schedule is its seed: what comes to light can be looked at again.
#[test]
fn the_same_seed_gives_the_same_end() {
    for seed in 0..3 {
        let ends = [(); 2].map(|()| format!("{:?}", schedule(seed)));
        assert_eq!(ends[0], ends[1], "seed {seed}");
    }
}

fn schedule(seed: u64) -> World {
    let mut random = SmallRng::seed_from_u64(seed);
    let logs = random.random_range(1..20);
    let settle = Duration::from_secs(random.random_range(2..25));
    let config = Config {
        settle,
        ..Config::default()
    };
    let mut world = World::new(seed, logs, config);
    world.loses_messages = true;
    for _ in 0..random.random_range(1..6) {
        world.start(clock(&mut random));
    }
    for _ in 0..random.random_range(1..30) {
        act(&mut world, &mut random);
        let wait = [50, 500, 3_000, 12_000][random.random_range(0..4)];
        world.run(Duration::from_millis(random.random_range(0..wait)));
    }
    heal(&mut world);
    // A clock that is a tenth slow takes longer for D.
    world.run_until("owned", 3 * D * 10 / 9, World::is_owned);
    world.run(settle * 2 + 3 * SECOND * u32::from(logs));
    world.run_until("owned", 2 * B, World::is_owned);
    world.assert_settled();
    world
}

fn clock(random: &mut SmallRng) -> Clock {
    let offset = Duration::from_millis(random.random_range(0..100_000_000));
    Clock::new(offset, random.random_range(91..111))
}

fn act(world: &mut World, random: &mut SmallRng) {
    let process = random.random_range(0..world.processes.len());
    let run = world.processes[process].run;
    match random.random_range(0..16) {
        0 if world.processes.len() < 7 => {
            world.start(clock(random));
        }
        1 => world.kill(process),
        2 | 3 if !matches!(run, Run::Running | Run::Paused) => world.restart(process),
        4 if run == Run::Running => world.pause(process),
        5 => world.resume(process),
        6 => world.database.is_down = !world.database.is_down,
        7 => world.processes[process].is_cut ^= true,
        8 => world.database.clock_error = random.random_range(-3_600_000_000..3_600_000_000),
        9 => world.fail_over(),
        10 => world.leave(process),
        11 => {
            let state = [NodeState::Up, NodeState::Draining][random.random_range(0..2)];
            world.drain(process, state);
        }
        12 => {
            let lost = [0, 50, 300][random.random_range(0..3)];
            world.roughness = Roughness { lost };
        }
        13 => {
            let log = LogId(random.random_range(0..20));
            world.processes[process].stuck.insert(log);
        }
        14 => cut_links(world, random, process),
        15 => request(world, random),
        _ => {}
    }
}

/// A node cannot call some others.
fn cut_links(world: &mut World, random: &mut SmallRng, process: usize) {
    world.promises.links_are_cut = true;
    let ids = world.processes.iter().filter_map(|node| node.id);
    let unreachable = ids.filter(|_| random.random_bool(0.3)).collect();
    world.input(process, Input::Unreachable(unreachable));
}

/// People ask for a move, pin a log, or let a node join as draining.
fn request(world: &mut World, random: &mut SmallRng) {
    let look = world.database.tables.look();
    let lease = look.leases[random.random_range(0..look.leases.len())];
    let process = random.random_range(0..world.processes.len());
    let to = world.processes[process].id;
    if random.random_bool(0.2) {
        let held = random.random_bool(0.5);
        let address = world.processes[process].address.clone();
        world.database.tables.hold(&address, held);
    } else if random.random_bool(0.7) {
        world
            .database
            .tables
            .set_next_owner(lease.log, lease.epoch, to);
    } else {
        world.database.tables.pin(lease.log, to);
    }
}

/// Everything works again, and nobody wants anything.
fn heal(world: &mut World) {
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
