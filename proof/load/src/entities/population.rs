//! A population of entities: made by commands, then asked for, each once, by many callers.
//!
//! Used by `recovery`.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use gesta::entity::{Config, Entities, Error};
use gesta_report::failure::{Result, fail};
use tokio_util::sync::CancellationToken;

use super::calls::{Calls, drive};
use super::tally::{Command, Tally};
use crate::random::Random;

/// Callers that make the population.
const MAKERS: u32 = 1_000;
/// Pause before a command that was not taken is given again.
const RETRY_PAUSE: Duration = Duration::from_millis(10);

/// Entities with their events.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Population {
    /// Their ids begin with this.
    pub prefix: String,
    /// How many entities.
    pub entities: u32,
    /// Events of each.
    pub events: u64,
}

impl Population {
    /// Events of all of them.
    pub fn total(&self) -> u64 {
        u64::from(self.entities) * self.events
    }

    fn id(&self, entity: u64) -> String {
        format!("{}{entity}", self.prefix)
    }

    /// A runtime that keeps all of them in memory.
    pub fn config(&self) -> Result<Config> {
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

/// Makes the population. The events come round by round, so those of one entity lie far apart, as in life.
pub async fn make(
    entities: &Entities<Tally>,
    population: &Population,
    stop: &CancellationToken,
) -> Result<()> {
    let next = Arc::new(AtomicU64::new(0));
    let (entities, each) = (entities.clone(), u64::from(population.entities));
    let population = population.clone();
    let made = drive(0..MAKERS, Duration::MAX, stop, move |by, _| {
        let number = next.fetch_add(1, Ordering::Relaxed);
        let is_left = number < population.total();
        let (id, n, entities) = (
            population.id(number % each),
            number / each,
            entities.clone(),
        );
        async move {
            if !is_left {
                return None;
            }
            loop {
                match entities.execute(&id, Command::Count { by, n }).await {
                    Ok(_) => return Some(Ok(())),
                    Err(Error::Overloaded(_)) => tokio::time::sleep(RETRY_PAUSE).await,
                    Err(error) => return Some(Err(format!("making {id}: {error}"))),
                }
            }
        }
    });
    match made.await.wrongs.into_iter().next() {
        Some(wrong) => fail(wrong),
        None => Ok(()),
    }
}

/// Asks for every entity once, in random order.
pub async fn ask_all(
    entities: &Entities<Tally>,
    population: &Population,
    callers: u32,
    seed: u64,
    stop: &CancellationToken,
) -> Calls {
    let mut order: Vec<u32> = (0..population.entities).collect();
    Random::new(seed).shuffle(&mut order);
    let (order, next) = (Arc::new(order), Arc::new(AtomicU64::new(0)));
    let (entities, population) = (entities.clone(), population.clone());
    let callers = 0..callers.min(population.entities);
    let asked = drive(callers, Duration::MAX, stop, move |_, _| {
        let at = next.fetch_add(1, Ordering::Relaxed);
        let entity = usize::try_from(at)
            .ok()
            .and_then(|at| order.get(at).copied());
        let id = entity.map(|entity| population.id(u64::from(entity)));
        let (entities, events) = (entities.clone(), population.events);
        async move {
            let id = id?;
            Some(match entities.execute(&id, Command::Look).await {
                Ok(tally) if tally.count == events => Ok(()),
                Ok(tally) => Err(format!("entity {id} has {tally:?}")),
                Err(error) => Err(format!("entity {id}: {error}")),
            })
        }
    });
    asked.await
}
