//! Random histories with crashes, lost answers, two owners, operators, deadly events and restored stores, against a
//! clean fold. The seed of a failure is in its message; `GESTA_PROJECTION_SEED` and `GESTA_PROJECTION_HISTORIES` run
//! others.

use std::collections::HashSet;
use std::sync::Arc;

use gesta_core::{Checkpoint, EventData, EventId, EventStore, RecordedEvent, StreamId};
use gesta_memory::{Config as MemoryConfig, MemoryStore};
use gesta_projection::testing::{Faulty, Kit, Random, Subject, Through};
use gesta_projection::{OnPoison, ProjectionId, Projections};

use super::databases::Databases;
use super::fixtures::{Balances, balances_without, journal_of, random_event, seen};
use crate::flavour::{HISTORIES, Journal, Target};

/// The view, or the projection with SQL of its own.
#[derive(Debug)]
struct Tested {
    databases: Databases,
    name: &'static str,
    on_poison: OnPoison,
}

impl Tested {
    /// Several logs: a checkpoint is a place in each, and the rows of a stream are of one log. The journal shows the
    /// order of one.
    fn config(&self) -> MemoryConfig {
        MemoryConfig {
            logs: if self.name == "balances" { 3 } else { 1 },
            ..MemoryConfig::default()
        }
    }
}

impl Subject for Tested {
    type Target = Target;

    async fn target(&self) -> Target {
        self.databases.make().await
    }

    fn store(&self) -> Arc<dyn EventStore> {
        Arc::new(MemoryStore::with_config(self.config()))
    }

    fn restored(&self, events: Vec<RecordedEvent>) -> Arc<dyn EventStore> {
        Arc::new(MemoryStore::restored(self.config(), events).expect("whole"))
    }

    fn add(&self, to: Projections<Faulty<Target>>) -> Projections<Faulty<Target>> {
        match self.name {
            "balances" => to.view(Balances),
            _ => to.projection(Through(Journal)),
        }
    }

    fn id(&self) -> ProjectionId {
        ProjectionId {
            name: self.name.to_owned(),
            version: 1,
        }
    }

    fn event(&self, random: &mut Random) -> (StreamId, EventData) {
        random_event(random, self.on_poison != OnPoison::Stop)
    }

    async fn read(&self, _: &Target) -> (Checkpoint, String) {
        seen(&self.databases.last(), self.name).await
    }

    fn fold(&self, events: &[RecordedEvent], deadly: &HashSet<EventId>) -> String {
        match self.name {
            "balances" => balances_without(events, self.on_poison, deadly),
            _ => journal_of(events, deadly),
        }
    }

    async fn back_up(&self, _: &Target) {
        self.databases.last().back_up().await;
    }

    async fn put_back(&self, _: &Target) {
        self.databases.last().put_back().await;
    }

    fn on_poison(&self) -> OnPoison {
        self.on_poison
    }
}

fn from_environment(name: &str, otherwise: u64) -> u64 {
    let set = std::env::var(name).ok();
    set.and_then(|number| number.parse().ok())
        .unwrap_or(otherwise)
}

async fn run(name: &'static str, on_poison: OnPoison) {
    let first = from_environment("GESTA_PROJECTION_SEED", 1);
    for seed in first..first + from_environment("GESTA_PROJECTION_HISTORIES", HISTORIES) {
        let subject = Tested {
            databases: Databases::default(),
            name,
            on_poison,
        };
        let kit = Kit::default().histories(1).seed(seed);
        if let Err(wrong) = kit.run(Arc::new(subject)).await {
            panic!("{wrong}");
        }
    }
}

/// Schedules 1 to 5, 8, 14 and 24: a process dies before, between and after each statement, loses an answer, is asked
/// for a reset, and there are two of them.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_view_is_what_a_clean_fold_gives() {
    run("balances", OnPoison::Stop).await;
}

/// The same with events that cannot be applied (schedule 17): they are parked with the later ones of their key.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_view_that_parks_is_what_a_clean_fold_gives() {
    run("balances", OnPoison::Park).await;
}

/// The same with events that are skipped.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_view_that_skips_is_what_a_clean_fold_gives() {
    run("balances", OnPoison::Skip).await;
}

/// The same for SQL of one's own, whose rows are not keyed: an event applied twice, or out of order, is seen.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_projection_is_what_a_clean_fold_gives() {
    run("journal", OnPoison::Skip).await;
}
