//! Versions with another filter than the one before: events that are of one of them alone.

use std::time::Duration;

use gesta_core::{EventType, Filter, Query, RecordedEvent};
use gesta_projection::{ApplyError, Config, OnPoison, Phase, View};

use super::fixtures::Balances;
use super::versions::{BalancesV2, Count};
use super::world::{World, id, quick, until_phase, until_so};

/// [`BalancesV2`] without accounts that are closed.
#[derive(Clone, Copy)]
struct Narrow;

impl View for Narrow {
    const NAME: &'static str = "balances";
    const VERSION: u32 = 2;
    type Key = String;
    type Row = Count;

    fn filter(&self) -> Filter {
        Query {
            types: vec![EventType::new("added").expect("valid")],
            ..Query::category("account")
        }
        .into()
    }

    fn key(&self, event: &RecordedEvent) -> Option<String> {
        BalancesV2.key(event)
    }

    fn evolve(&self, row: &mut Option<Count>, event: &RecordedEvent) -> Result<(), ApplyError> {
        BalancesV2.evolve(row, event)
    }
}

/// Looks so seldom that there is time before the third look, at which it may take the readers.
fn seldom() -> Config {
    Config {
        look_every: Duration::from_millis(200),
        lease: Duration::from_secs(10),
        ..quick()
    }
}

async fn active(world: &World) -> u32 {
    world.row("balances").await.id.version
}

/// What happened: an event of the old version alone, stored after the new one had caught up, kept the readers at the
/// old one until an event of the new one came as the very last: a subscription tells late what the filter passes over.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_version_with_a_narrower_filter_takes_the_readers() {
    let world = World::new().await;
    world.append_many(20).await;
    let old = world.started(quick(), Balances).await;
    world.is_whole(&old, OnPoison::Stop).await;
    let new = world.process(seldom()).view(Narrow).start().await;
    let new = new.expect("started");
    until_phase(&new, &id("balances", 2), Phase::Live).await;
    world.append("account-1", "closed", "").await;
    world.applies_all(&old, "balances").await;
    until_so(async || active(&world).await == 2, "it is active").await;
    old.shutdown().await;
    new.shutdown().await;
}

/// The same while such events are stored all the time, so that the old version is ever further.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_busy_version_is_followed_by_one_with_a_narrower_filter() {
    let world = World::new().await;
    world.append_many(20).await;
    let old = world.started(quick(), Balances).await;
    world.is_whole(&old, OnPoison::Stop).await;
    let closes = async {
        loop {
            world.append("account-1", "closed", "").await;
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    };
    let switches = async {
        let new = world.process(seldom()).view(Narrow).start().await;
        let new = new.expect("started");
        until_so(async || active(&world).await == 2, "it is active").await;
        new.shutdown().await;
    };
    tokio::select! {
        () = switches => {}
        () = closes => {}
    }
    old.shutdown().await;
}

/// By hand the store tells whether an event in between is of the new version; without it nobody knows. What happened:
/// somebody was told, for ever, that readers would lose what they have seen.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn somebody_switches_to_a_version_with_a_narrower_filter() {
    let world = World::new().await;
    world.append_many(20).await;
    let old = world.started(quick(), Balances).await;
    let by_hand = Config {
        switch_when_caught_up: false,
        ..quick()
    };
    let new = world.process(by_hand).view(Narrow).start().await;
    let new = new.expect("started");
    let (control, second) = (world.control(), id("balances", 2));
    until_phase(&new, &second, Phase::Live).await;
    new.shutdown().await;
    world.append("account-1", "closed", "").await;
    world.applies_all(&old, "balances").await;
    let error = control.switch(&second).await.expect_err("not known");
    assert!(error.to_string().contains("name the store"), "{error}");
    let switched = control.switch_in(&*world.store, &second).await;
    switched.expect("nothing is missing");
    control.switch(&id("balances", 1)).await.expect("further");
    // One of its own is missing now.
    world.append("account-1", "added", "1").await;
    world.append("account-1", "closed", "").await;
    world.applies_all(&old, "balances").await;
    let error = control.switch_in(&*world.store, &second).await;
    let error = error.expect_err("it is behind").to_string();
    assert!(error.contains("would lose what they have seen"), "{error}");
    assert_eq!(active(&world).await, 1);
    old.shutdown().await;
}
