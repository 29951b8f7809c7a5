//! Handlers that take long: what was begun ends, whatever becomes of the timer and its owner meanwhile.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use gesta_core::Error;
use gesta_kit::faulty::World;
use gesta_timers::{Config, NewTimer, Phase, RunningTimers};
use tokio::time::{Instant, sleep};

use crate::support::{MINUTE, Process, after, until};

const LEASE: Duration = Duration::from_secs(6);

/// How many handlers were begun, and how many have ended.
#[derive(Clone, Default)]
struct Count {
    begun: Arc<AtomicU32>,
    ended: Arc<AtomicU32>,
}

impl Count {
    fn get(&self) -> (u32, u32) {
        let [begun, ended] = [&self.begun, &self.ended].map(|it| it.load(Ordering::Relaxed));
        (begun, ended)
    }
}

/// Runs timers whose handlers take this long.
fn run(process: &Process, takes: Duration) -> (RunningTimers, Count) {
    let count = Count::default();
    let counted = count.clone();
    let running = process.timers.run(move |_| {
        let count = counted.clone();
        async move {
            count.begun.fetch_add(1, Ordering::Relaxed);
            sleep(takes).await;
            count.ended.fetch_add(1, Ordering::Relaxed);
            Ok(())
        }
    });
    (running.unwrap(), count)
}

fn config() -> Config {
    Config {
        lease: LEASE,
        ..Config::default()
    }
}

/// Goal: a handler whose timer is cancelled ends what it does, also if nothing else is pending. It happened that its
/// owner gave the timers free after a lease, and ended it half way.
#[tokio::test(start_paused = true)]
async fn a_handler_whose_timer_is_cancelled_ends_what_it_does() {
    let world = World::new(1);
    let [process, other] = [(); 2].map(|()| Process::new(&world, config()));
    let (running, count) = run(&process, MINUTE);
    let (_standing_by, others) = run(&other, MINUTE);
    let timer = NewTimer::new("a", after(&world, Duration::from_secs(1)));
    process.timers.set(&timer).await.unwrap();
    let all = || {
        (
            count.get().0 + others.get().0,
            count.get().1 + others.get().1,
        )
    };
    until("it fires", || all().0 == 1).await;
    process.timers.cancel("a").await.unwrap();
    until("it has ended", || all().1 == 1).await;
    let status = running.status();
    until("it is idle", || status.borrow().phase == Phase::Idle).await;
    sleep(10 * MINUTE).await;
    assert_eq!(all(), (1, 1));
}

/// Goal: a handler ends what it does while its process has to claim the timers again, because a read has failed or the
/// store is away; the timer does not fire a second time, and other handlers are not held up. It happened that all
/// handlers were ended half way.
#[tokio::test(start_paused = true)]
async fn a_handler_ends_what_it_does_when_reads_fail() {
    for goes_away in [false, true] {
        let world = World::new(1);
        let process = Process::new(&world, config());
        let (running, count) = run(&process, MINUTE);
        for (key, seconds) in [("a", 1), ("b", 10)] {
            let due = after(&world, Duration::from_secs(seconds));
            process.timers.set(&NewTimer::new(key, due)).await.unwrap();
        }
        until("the first one fires", || count.get() == (1, 0)).await;
        match goes_away {
            true => process.store.go_away(),
            false => process
                .store
                .fail_reads(|_| Some(Error::unavailable("as planned"))),
        }
        let status = running.status();
        until("the store is away", || status.borrow().phase == Phase::Away).await;
        sleep(3 * LEASE).await;
        process.store.let_reads_succeed();
        process.store.come_back();
        until("both have ended", || count.get().1 == 2).await;
        until("nothing is pending", || {
            status.borrow().phase == Phase::Idle
        })
        .await;
        assert_eq!(count.get(), (2, 2), "{goes_away}");
        assert_eq!(status.borrow().fired, 2);
        assert!(process.timers.pending().await.unwrap().is_empty());
    }
}

/// Goal: a handler that fails after its process had to claim the timers again is called again once, after the pause.
#[tokio::test(start_paused = true)]
async fn a_handler_that_fails_after_that_is_called_again_once() {
    let world = World::new(1);
    let config = Config {
        firing_max: 1,
        ..config()
    };
    let process = Process::new(&world, config);
    let begun: Arc<Mutex<Vec<Instant>>> = Arc::default();
    let noted = Arc::clone(&begun);
    let running = process.timers.run(move |_| {
        let attempts = {
            let mut noted = noted.lock().unwrap();
            noted.push(Instant::now());
            noted.len()
        };
        async move {
            sleep(MINUTE).await;
            match attempts {
                1 => Err("not yet".into()),
                _ => Ok(()),
            }
        }
    });
    let status = running.as_ref().unwrap().status();
    let timer = NewTimer::new("a", after(&world, Duration::from_secs(1)));
    process.timers.set(&timer).await.unwrap();
    until("it fires", || begun.lock().unwrap().len() == 1).await;
    process.store.go_away();
    until("the store is away", || status.borrow().phase == Phase::Away).await;
    process.store.come_back();
    until("it has fired", || status.borrow().fired == 1).await;
    let begun = begun.lock().unwrap().clone();
    let pause = Duration::from_secs(1);
    assert!(begun.len() == 2 && begun[1] - begun[0] >= MINUTE + pause);
}

/// Goal: when the store has another history, a handler that was begun before is ended before its timer fires again:
/// what it has done may be lost, and no two handlers of a timer run in one process.
#[tokio::test(start_paused = true)]
async fn another_history_ends_handlers_before_their_timers_fire_again() {
    let world = World::new(1);
    let process = Process::new(&world, config());
    let (running, count) = run(&process, MINUTE);
    let timer = NewTimer::new("a", after(&world, Duration::from_secs(1)));
    process.timers.set(&timer).await.unwrap();
    until("it fires", || count.get() == (1, 0)).await;
    process.store.begin_history();
    until("it fires again", || count.get().0 == 2).await;
    until("it has ended", || running.status().borrow().fired == 1).await;
    sleep(10 * MINUTE).await;
    assert_eq!(count.get(), (2, 1));
}
