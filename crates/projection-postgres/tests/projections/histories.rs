//! Random histories with crashes, lost answers, two owners and resets, against a clean fold. The seed of a failure is
//! in
//! its message; `GESTA_PROJECTION_SEED` and `GESTA_PROJECTION_HISTORIES` run others.

use std::sync::Arc;

use gesta_core::{Checkpoint, EventData, EventStore, RecordedEvent, StreamId};
use gesta_memory::MemoryStore;
use gesta_projection::testing::{Faulty, Kit, Random, Subject, Through};
use gesta_projection::{OnPoison, ProjectionId, Projections};

use crate::databases::Databases;
use crate::fixtures::{Balances, balances_of, journal_of, random_event, seen};
use crate::flavour::{Journal, Target};

/// The view, or the projection with SQL of its own.
#[derive(Debug)]
struct Tested {
    databases: Databases,
    name: &'static str,
    on_poison: OnPoison,
}

impl Subject for Tested {
    type Target = Target;

    async fn target(&self) -> Target {
        self.databases.make().await
    }

    fn store(&self) -> Arc<dyn EventStore> {
        Arc::new(MemoryStore::new())
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
        seen(self.databases.open().await, self.name).await
    }

    fn fold(&self, events: &[RecordedEvent]) -> String {
        match self.name {
            "balances" => balances_of(events, self.on_poison),
            _ => journal_of(events),
        }
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
    for seed in first..first + from_environment("GESTA_PROJECTION_HISTORIES", 4) {
        let subject = Tested {
            databases: Databases::new(),
            name,
            on_poison,
        };
        let kit = Kit::default().histories(1).seed(seed);
        if let Err(wrong) = kit.run(Arc::new(subject)).await {
            panic!("{wrong}");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_view_is_what_a_clean_fold_gives() {
    run("balances", OnPoison::Stop).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_view_that_parks_is_what_a_clean_fold_gives() {
    run("balances", OnPoison::Park).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_view_that_skips_is_what_a_clean_fold_gives() {
    run("balances", OnPoison::Skip).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_projection_is_what_a_clean_fold_gives() {
    run("journal", OnPoison::Skip).await;
}
