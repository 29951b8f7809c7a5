//! A crowd of entities: made by commands, then asked for, each once, by many callers.
//!
//! Used by `recovery`.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use gesta::entity::{Config, Entities, Error};
use tokio_util::sync::CancellationToken;

use super::tally::{Command, Tally};
use crate::failure::{Context, Result};
use crate::histogram::Latencies;
use crate::random::Random;

/// Callers that make the crowd.
const MAKERS: u32 = 1_000;
/// Pause before a command that was not taken is given again.
const RETRY_PAUSE: Duration = Duration::from_millis(10);

/// Entities with their events.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Crowd {
    /// Their ids begin with this.
    pub(crate) prefix: String,
    /// How many.
    pub(crate) entities: u32,
    /// Events of each.
    pub(crate) events: u64,
}

impl Crowd {
    /// All events.
    pub(crate) fn total(&self) -> u64 {
        u64::from(self.entities) * self.events
    }

    fn id(&self, entity: u64) -> String {
        format!("{}{entity}", self.prefix)
    }

    /// A runtime that keeps all of them in memory.
    pub(crate) fn config(&self) -> Result<Config> {
        let entities = usize::try_from(self.entities)?;
        Ok(Config {
            loads_max: 2,
            load_batch_max: 256,
            active_max: entities.saturating_mul(2).max(1_000),
            snapshots_waiting_max: entities.max(1_000),
            ..Config::default()
        })
    }
}

/// Makes the crowd. The events come round by round, so those of one entity lie far apart, as in life.
pub(crate) async fn make(
    entities: &Entities<Tally>,
    crowd: &Crowd,
    stop: &CancellationToken,
) -> Result<()> {
    let next = Arc::new(AtomicU64::new(0));
    let mut tasks = tokio::task::JoinSet::<Result<()>>::new();
    for _ in 0..MAKERS {
        let (entities, crowd) = (entities.clone(), crowd.clone());
        let (next, stop) = (Arc::clone(&next), stop.clone());
        tasks.spawn(async move {
            while !stop.is_cancelled() {
                let number = next.fetch_add(1, Ordering::Relaxed);
                if number >= crowd.total() {
                    break;
                }
                let each = u64::from(crowd.entities);
                let id = crowd.id(number % each);
                let (by, n) = (u32::try_from(number % each % 1_000)?, number / each);
                loop {
                    match entities.execute(&id, Command::Count { by, n }).await {
                        Ok(_) => break,
                        Err(Error::Overloaded(_)) => tokio::time::sleep(RETRY_PAUSE).await,
                        Err(error) => return Err(error).context(format!("making {id}")),
                    }
                }
            }
            Ok(())
        });
    }
    while let Some(done) = tasks.join_next().await {
        done??;
    }
    Ok(())
}

/// Asks for every entity once, in random order. Returns the latencies, and whatever was answered wrongly.
pub(crate) async fn ask_all(
    entities: &Entities<Tally>,
    crowd: &Crowd,
    callers: u32,
    seed: u64,
    stop: &CancellationToken,
) -> (Latencies, Vec<String>) {
    let mut order: Vec<u32> = (0..crowd.entities).collect();
    let mut random = Random::new(seed);
    for i in (1..order.len()).rev() {
        order.swap(i, random.below(i + 1));
    }
    let (order, next) = (Arc::new(order), Arc::new(AtomicUsize::new(0)));
    let mut tasks = tokio::task::JoinSet::new();
    for _ in 0..callers.min(crowd.entities) {
        let (entities, crowd) = (entities.clone(), crowd.clone());
        let (order, next, stop) = (Arc::clone(&order), Arc::clone(&next), stop.clone());
        tasks.spawn(async move {
            let (mut latencies, mut wrongs) = (Latencies::default(), Vec::new());
            while let Some(entity) = order.get(next.fetch_add(1, Ordering::Relaxed)) {
                if stop.is_cancelled() {
                    break;
                }
                let id = crowd.id(u64::from(*entity));
                let asked = Instant::now();
                match entities.execute(&id, Command::Look).await {
                    Ok(tally) if tally.count == crowd.events => latencies.record(asked.elapsed()),
                    Ok(tally) => wrongs.push(format!("entity {id} has {tally:?}")),
                    Err(error) => wrongs.push(format!("entity {id}: {error}")),
                }
            }
            (latencies, wrongs)
        });
    }
    let (mut latencies, mut wrongs) = (Latencies::default(), Vec::new());
    while let Some(Ok((some, wrong))) = tasks.join_next().await {
        latencies.merge(&some);
        wrongs.extend(wrong);
    }
    (latencies, wrongs)
}
