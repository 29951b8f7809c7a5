//! Random histories: processes that die, databases that fail, and clocks that are wrong, while timers are set.

use std::collections::HashMap;
use std::sync::Mutex;
use std::sync::atomic::Ordering;
use std::time::Duration;

use gesta_core::{ErrorKind, Timestamp};
use gesta_testkit::depth;
use gesta_testkit::faulty::{Random, RandomFaults, World};
use gesta_timers::{Config, NewTimer, Timer};
use tokio::time::{sleep, timeout};

use crate::support::{Fired, MINUTE, Process, after};

/// What the caller of a random history knows of a key.
#[derive(Default)]
struct Known {
    /// The number of the timer that was set last.
    last: Option<u64>,
    /// Whether the outcome of a request is unknown: it may yet be stored, and replace or cancel the last one.
    is_doubtful: bool,
}

/// Goal: whatever dies, fails and is wrong, each timer that is set fires at least once, never before its time by more
/// than the error of the clocks, and none that was cancelled or replaced in time. Its commands have one key.
#[tokio::test(start_paused = true)]
async fn random_histories_lose_no_timer() {
    let seed = depth::seed();
    println!("GESTA_SEED={seed}");
    let mut random = Random::new(seed);
    for round in 0..depth::count(8, 200) {
        let share = *random.pick(&[0.0, 0.05, 0.2]);
        play(random.fork(), share).await.unwrap_or_else(|why| {
            panic!("GESTA_SEED={seed}, round {round}: {why}");
        });
    }
}

async fn play(mut random: Random, share: f64) -> Result<(), String> {
    const ERROR: i64 = 3_000_000;
    let (world, fired) = (World::new(1), Fired::default());
    let config = Config {
        lease: Duration::from_secs(6),
        firing_max: 1 + random.below(4),
        kept_every: *random.pick(&[1, 10, 10_000]),
        pending_max: *random.pick(&[3, 1_000_000]),
        back_off: (Duration::from_millis(100), Duration::from_secs(1)),
    };
    let start = |random: &mut Random| {
        let process = Process::new(&world, config.clone());
        process.store.random_faults_of(RandomFaults {
            slow_max: Duration::from_millis(300),
            away_max: Duration::from_secs(2),
            ..RandomFaults::new(random.number(), share)
        });
        let (noted, clock) = (fired.clone(), world.clock());
        let dice = Mutex::new(random.fork());
        let running = process.timers.run(move |timer| {
            noted.note(timer, clock.now());
            let (fails, slow) = {
                let mut dice = dice.lock().unwrap();
                (dice.chance(0.1), dice.duration(Duration::from_millis(500)))
            };
            async move {
                sleep(slow).await;
                if fails {
                    Err("on purpose".into())
                } else {
                    Ok(())
                }
            }
        });
        (process, Some(running.unwrap()))
    };
    let mut nodes: Vec<_> = (0..2 + random.below(2))
        .map(|_| start(&mut random))
        .collect();
    let mut known: HashMap<String, Known> = HashMap::new();
    // By number: the key, and the right time from which on it must not fire any more.
    let mut ended: HashMap<u64, Timestamp> = HashMap::new();
    let mut numbers = 0;
    for _ in 0..40 {
        let which = random.below(nodes.len());
        let key = format!("k{}", random.below(6));
        match random.below(10) {
            0..=4 => {
                numbers += 1;
                let due = after(&world, random.duration(Duration::from_secs(30)));
                let timer = NewTimer::new(key.clone(), due).with_data(&numbers).unwrap();
                let set = nodes[which].0.timers.set(&timer).await;
                let of = known.entry(key).or_default();
                match set.map_err(|error| error.kind().clone()) {
                    Ok(()) => {
                        let now = world.clock().now();
                        let former = of.last.replace(numbers);
                        ended.extend(former.map(|number| (number, now)));
                    }
                    Err(ErrorKind::OutcomeUnknown(_)) => of.is_doubtful = true,
                    Err(_) => {}
                }
            }
            5..=6 => {
                let cancelled = nodes[which].0.timers.cancel(&key).await;
                let of = known.entry(key).or_default();
                match cancelled.map_err(|error| error.kind().clone()) {
                    Ok(()) => {
                        let now = world.clock().now();
                        ended.extend(of.last.take().map(|number| (number, now)));
                    }
                    Err(ErrorKind::OutcomeUnknown(_)) => of.is_doubtful = true,
                    Err(_) => {}
                }
            }
            7 => {
                // A process dies, or ends in good order, and another one takes its place.
                let (_, running) = &mut nodes[which];
                if let Some(running) = running.take()
                    && random.chance(0.3)
                {
                    let _ = timeout(MINUTE, running.shutdown()).await;
                }
                nodes[which] = start(&mut random);
            }
            8 => {
                let error = i64::try_from(random.below(6_000_000)).unwrap() - ERROR;
                nodes[which].0.clock.error.store(error, Ordering::Relaxed);
            }
            _ => sleep(random.duration(Duration::from_secs(10))).await,
        }
    }
    for (process, _) in &nodes {
        process.store.heal();
    }
    let must: Vec<u64> = known
        .values()
        .filter(|of| !of.is_doubtful)
        .filter_map(|of| of.last)
        .collect();
    let number_of = |timer: &Timer| timer.data.as_u64().unwrap();
    let waited = timeout(10 * MINUTE, async {
        loop {
            let numbers: Vec<u64> = fired
                .all()
                .iter()
                .map(|(timer, _)| number_of(timer))
                .collect();
            if must.iter().all(|number| numbers.contains(number)) {
                break;
            }
            sleep(Duration::from_secs(1)).await;
        }
    });
    if waited.await.is_err() {
        return Err(format!("of {must:?} have fired {:?}", fired.keys()));
    }
    let mut commands: HashMap<u64, String> = HashMap::new();
    for (timer, at) in fired.all() {
        let number = number_of(&timer);
        if at.0 < timer.due.0 - ERROR {
            return Err(format!("{timer:?} has fired at {at}"));
        }
        // With too little memory a request may not be read when the timer fires.
        if let Some(ended) = ended.get(&number)
            && ended.0 < timer.due.0 - ERROR
            && config.pending_max > 3
        {
            return Err(format!(
                "{timer:?} has fired at {at}, but was no more at {ended}"
            ));
        }
        let command = commands
            .entry(number)
            .or_insert_with(|| timer.command_key());
        if *command != timer.command_key() {
            return Err(format!("{timer:?} had the command {command}"));
        }
    }
    for (_, running) in nodes {
        drop(running);
    }
    Ok(())
}
