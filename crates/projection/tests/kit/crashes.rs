//! A process dies, or loses an answer, at each call in turn; owners pause and wake; targets go away and come back.

use std::time::Duration;

use gesta_projection::testing::{Fate, Faulty};
use gesta_projection::{Config, OnPoison, Phase, State};

use super::fixtures::Balances;
use super::world::{World, id, quick, until, until_phase};
use crate::flavour::{EVERY, SET_AHEAD, SET_BACK};

fn small() -> Config {
    Config {
        batch_events_max: 8,
        ..quick()
    }
}

/// Schedules 1 to 5: at every call of a process, one after the other, it dies before or after it, or the answer is
/// lost, landed or not; what follows gives the rows of a clean fold.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn schedules_1_to_5_every_call_may_fail() {
    for fate in [
        Fate::DieBefore,
        Fate::DieAfter,
        Fate::AnswerLost,
        Fate::CallLost,
    ] {
        for at in (0..24).step_by(EVERY) {
            let world = World::new().await;
            world.append_many(30).await;
            let faulty = Faulty::new(world.target.clone(), at, fate);
            let process = world.faulty(small(), &faulty).view(Balances).start().await;
            if let Ok(process) = &process {
                let head = world.head().await;
                let whole = process.wait_for("balances", &head, Duration::from_secs(60));
                let is_alive = async {
                    while !faulty.is_dead() {
                        tokio::time::sleep(Duration::from_millis(1)).await;
                    }
                };
                tokio::select! {
                    _ = whole => {}
                    () = is_alive => {}
                }
            }
            drop(process);
            faulty.kill();
            world.comes_right(OnPoison::Stop).await;
        }
    }
}

/// Schedules 7 and 8: the owner stands still past its lease, before each call in turn (within a batch and between two);
/// another process takes over; the owner wakes, and writes nothing.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn schedules_7_and_8_an_owner_that_wakes_writes_nothing() {
    for at in (2..10).step_by(EVERY) {
        let world = World::new().await;
        world.append_many(30).await;
        let stall = Fate::Stall(Duration::from_millis(400));
        let faulty = Faulty::new(world.target.clone(), at, stall);
        let config = Config {
            // It renews its lease no more while it stands still: its first look is its last.
            look_every: Duration::from_secs(3_600),
            lease: Duration::from_secs(7_200),
            ..small()
        };
        let sleeper = world.faulty(config, &faulty).view(Balances).start().await;
        let sleeper = sleeper.expect("started");
        // Its lease is over at once.
        world.end_leases().await;
        world.comes_right(OnPoison::Stop).await;
        world.append_many(5).await;
        let balances = id("balances", 1);
        until(&sleeper, &balances, |progress| {
            progress.phase != Phase::Starting
        })
        .await;
        faulty.kill();
        drop(sleeper);
        world.comes_right(OnPoison::Stop).await;
    }
}

/// Schedule 9: the clock by which leases are judged is set an hour back or ahead: that of the database, or where the
/// rows are in a file that of the machine. Owners that live keep their projection or lose it once; of one that is dead
/// it is taken over. What happened: after a clock was set back, nobody took over from an owner that was dead, for an
/// hour.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn schedule_09_a_clock_that_is_set_stops_nothing() {
    for (set, is_dead) in [
        (SET_BACK, false),
        (SET_AHEAD, false),
        (SET_BACK, true),
        (SET_AHEAD, true),
    ] {
        let world = World::new().await;
        let faulty = Faulty::new(world.target.clone(), 0, Fate::None);
        let first = world.faulty(quick(), &faulty).view(Balances).start().await;
        let first = first.expect("started");
        let balances = id("balances", 1);
        until_phase(&first, &balances, Phase::Live).await;
        let second = world.started(quick(), Balances).await;
        until_phase(&second, &balances, Phase::StandingBy).await;
        world.append_many(20).await;
        if is_dead {
            faulty.kill();
        }
        world.database.execute(set).await;
        world.append_many(20).await;
        world.is_whole(&second, OnPoison::Stop).await;
        if is_dead {
            until_phase(&second, &balances, Phase::Live).await;
        } else {
            first.shutdown().await;
        }
        second.shutdown().await;
    }
}

/// Schedules 10 and 11: while the target is away, or takes no writes, the projection waits, parks nothing and stops
/// for nothing; then it goes on.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn schedules_10_and_11_a_target_that_is_away_is_waited_for() {
    let world = World::new().await;
    let faulty = Faulty::new(world.target.clone(), 0, Fate::None);
    let config = Config {
        on_poison: OnPoison::Park,
        ..quick()
    };
    let process = world.faulty(config, &faulty).view(Balances).start().await;
    let process = process.expect("started");
    let balances = id("balances", 1);
    until_phase(&process, &balances, Phase::Live).await;
    faulty.set_away(true);
    world.append_many(20).await;
    let away = until_phase(&process, &balances, Phase::TargetAway).await;
    assert!(away.error.is_some());
    faulty.set_away(false);
    world.is_whole(&process, OnPoison::Park).await;
    let row = &world.control().list().await.expect("a list")[0];
    assert_eq!((row.state, row.error.as_deref()), (State::Running, None));
    assert!(world.parked(&balances).await.is_empty());
    process.shutdown().await;
}

/// What happened: a batch that took longer than the target lets it was tried again at the same size, for ever, and told
/// as if the target was away. Now smaller ones are tried; no event is to blame.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_batch_that_takes_too_long_is_made_smaller() {
    let world = World::new().await;
    world.append_many(60).await;
    let faulty = Faulty::new(world.target.clone(), 0, Fate::None);
    faulty.set_events_max(5);
    let config = Config {
        on_poison: OnPoison::Park,
        ..quick()
    };
    let process = world.faulty(config, &faulty).view(Balances).start().await;
    let process = process.expect("started");
    world.is_whole(&process, OnPoison::Park).await;
    world.append_many(20).await;
    world.is_whole(&process, OnPoison::Park).await;
    assert!(world.parked(&id("balances", 1)).await.is_empty());
    let row = world.row("balances").await;
    assert_eq!((row.state, row.events), (State::Running, 80));
    process.shutdown().await;
}

/// Several processes: one runs, the others stand by; when it ends in good order the next one begins at once, and when
/// it dies, after its lease.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn others_stand_by_and_take_over() {
    let world = World::new().await;
    world.append_many(10).await;
    let first = world.started(quick(), Balances).await;
    let balances = id("balances", 1);
    until_phase(&first, &balances, Phase::Live).await;
    let faulty = Faulty::new(world.target.clone(), 0, Fate::None);
    let second = world.faulty(quick(), &faulty).view(Balances).start().await;
    let second = second.expect("started");
    until_phase(&second, &balances, Phase::StandingBy).await;
    // Reads of one's own writes work through the process that stands by, too.
    let written = world.append("account-1", "added", "4").await;
    second
        .wait_for("balances", &written.checkpoint, Duration::from_secs(60))
        .await
        .expect("applied by the other process");
    first.shutdown().await;
    until_phase(&second, &balances, Phase::Live).await;
    let third = world.started(quick(), Balances).await;
    until_phase(&third, &balances, Phase::StandingBy).await;
    faulty.kill();
    drop(second);
    world.append_many(10).await;
    world.is_whole(&third, OnPoison::Stop).await;
    until_phase(&third, &balances, Phase::Live).await;
}

/// What happened: with one lease for each projection, a hundred idle ones cost a hundred statements a round. Here any
/// number of projections costs as many as one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn idle_projections_cost_as_many_statements_as_one() {
    use super::fixtures::numbered;
    let count = async |projections: usize| {
        let world = World::new().await;
        world.append_many(5).await;
        let faulty = Faulty::new(world.target.clone(), u64::MAX, Fate::None);
        let definition = world.faulty(quick(), &faulty);
        let process = numbered(definition, projections)
            .start()
            .await
            .expect("started");
        for id in process.ids() {
            until_phase(&process, &id, Phase::Live).await;
        }
        let looks = faulty.looks();
        let before = faulty.statements();
        while faulty.looks() < looks + 20 {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
        let (looks, statements) = (faulty.looks() - looks, faulty.statements() - before);
        process.shutdown().await;
        // A look is two statements; the lease is renewed now and then.
        assert!(
            statements <= looks * 3 + 3,
            "{statements} statements in {looks} looks"
        );
    };
    count(1).await;
    count(20).await;
}
