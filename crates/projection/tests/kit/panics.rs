//! A process that stands still right after the author's code has panicked.

use gesta_core::Filter;
use gesta_projection::testing::{Fate, Faulty, Through};
use gesta_projection::{ApplyError, Batch, Config, Phase, Projection, State, Target as AnyTarget};

use super::fixtures::of_category;
use super::world::{World, id, quick, until, until_phase};
use crate::flavour::Target;

/// What authors get of a transaction.
type Transaction = <Target as AnyTarget>::Transaction;

/// A projection that panics in some process, which stands still then.
struct Panics {
    faulty: Faulty<Target>,
    panics: bool,
}

impl Projection<Target> for Panics {
    const NAME: &'static str = "panics";
    const VERSION: u32 = 1;

    fn filter(&self) -> Filter {
        of_category("account")
    }

    async fn create(&self, _: &mut Transaction) -> Result<(), ApplyError> {
        Ok(())
    }

    async fn clear(&self, _: &mut Transaction) -> Result<(), ApplyError> {
        Ok(())
    }

    async fn apply(&self, _: &mut Transaction, _: &Batch) -> Result<(), ApplyError> {
        if self.panics {
            self.faulty.set_hung(true);
            panic!("a mistake of the author");
        }
        Ok(())
    }
}

/// What happened: a process that had met a panic stopped the projection without a session. If it stood still before it
/// did so, it stopped the version of the process that had taken over meanwhile.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_owner_that_wakes_does_not_stop_its_successor() {
    let world = World::new().await;
    let config = || Config {
        attempts_max: 1,
        ..quick()
    };
    let started = async |panics: bool| {
        let faulty = Faulty::new(world.target.clone(), 0, Fate::None);
        let projection = Panics {
            faulty: faulty.clone(),
            panics,
        };
        let process = world.faulty(config(), &faulty);
        let process = process.projection(Through(projection)).start().await;
        (faulty, process.expect("started"))
    };
    let (hangs, first) = started(true).await;
    world.append("account-1", "added", "1").await;
    until_phase(&first, &id("panics", 1), Phase::Retrying).await;
    world.end_leases().await;
    let (_, second) = started(false).await;
    world.applies_all(&second, "panics").await;
    hangs.set_hung(false);
    let panics = id("panics", 1);
    until(&first, &panics, |progress| {
        progress.phase != Phase::Retrying
    })
    .await;
    let row = world.row("panics").await;
    assert_eq!((row.state, row.events), (State::Running, 1));
    first.shutdown().await;
    second.shutdown().await;
}
