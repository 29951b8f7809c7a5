//! A steady load, for hours, with faults now and then: does anything grow as the table does, and is the store's word
//! kept?
//!
//! Appends come on a schedule, with exact claims, and so do reads of random streams; subscribers follow live and by
//! catching up, and check order and completeness. Every slice is a line of its own in the results (a piece), so a run
//! that is killed leaves all slices before; the last line has the whole.
//! The store is open in this process. Its writers and the read-back are those of every load (`gesta_load::target`), so
//! little is kept per stream and a bit per event.
//! Not here: faults in rapid succession, round by round; and one figure for one load (the lab's `append`).

mod args;
mod followers;
mod plan;
mod readers;
mod run;
mod schedule;
mod slices;
mod state;

#[cfg(test)]
mod tests;

use std::time::Duration;

use gesta_load::machine::CurrentStore;
use gesta_load::machine::store::{self, Opened};
use gesta_report::Report;
use gesta_report::endpoint::{self, Endpoint};
use gesta_report::failure::{Result, fail};
use serde_json::json;
use tokio_util::sync::CancellationToken;

use crate::fault::{Fault, Scene, WorldKind};
use crate::load::LoadKind;
use crate::world::World;

pub(crate) use self::args::SteadyArgs;
use self::run::steady;

/// The command. True if nothing was found wrong.
pub(crate) async fn run(args: &SteadyArgs, stop: &CancellationToken) -> Result<bool> {
    let mut report = Report::begin("steady", "Hours of steady load with faults", args.seed);
    let (opened, mut world, url) = open(args).await?;
    if opened.facts.logs != 1 {
        return fail(
            "a steady load needs a store with one log: its subscribers tell by the order what is missing",
        );
    }
    let faults = faults(args, &world)?;
    let names: Vec<String> = faults.iter().map(|fault| fault.name()).collect();
    report.store = Some(opened.facts.clone());
    report.workload = json!({ "args": args, "faults": names });
    let complete = steady(args, faults, &mut world, &url, &mut report, stop).await?;
    if let Some(here) = &world.here {
        here.store.get().shutdown().await?;
    }
    report.finish(&args.report, complete)
}

/// Opens the store, by way of a proxy if it is reached over TCP.
async fn open(args: &SteadyArgs) -> Result<(Opened, World, String)> {
    let mut server = None;
    let url = store::resolve(&args.store.store, &mut server)?;
    let (path, proxy) = match Endpoint::parse(&url) {
        None => (url.clone(), None),
        Some(endpoint) => {
            let proxy = store::proxy(&endpoint, args.store.network())?;
            (endpoint.through(proxy.addr()), Some(proxy))
        }
    };
    let mut opened = store::open_url(&path, Duration::ZERO, args.store.logs).await?;
    opened.facts.url = endpoint::redacted(&url);
    opened.facts.round_trip_ms = args.store.rtt.as_secs_f64() * 1_000.0;
    let can_reopen = opened.owner().is_ok() && !url.starts_with("sqlite::memory:");
    let store = CurrentStore::new(opened.store.clone(), can_reopen.then_some(path));
    let world = World::around(store, proxy, args.store.rtt, server)?;
    Ok((opened, world, url))
}

/// The faults that are wanted and fit.
fn faults(args: &SteadyArgs, world: &World) -> Result<Vec<Fault>> {
    if args.fault_every.is_zero() {
        return Ok(Vec::new());
    }
    let here = world.here.as_ref();
    let scene = Scene {
        world: match here.is_some_and(|here| here.proxy.is_some()) {
            true => WorldKind::Postgres,
            false => WorldKind::Sqlite,
        },
        load: LoadKind::Steady,
        members: 0,
        are_nodes: false,
        databases: 1,
        standbys: 0,
        is_theirs: world.databases.is_empty(),
        is_lossy: false,
        has_small_disk: false,
    };
    let can_reopen = here.is_some_and(|here| here.store.can_reopen());
    let all = Fault::wanted(&args.faults, &scene)?;
    if !can_reopen && args.faults.contains(&Fault::Reopen) {
        return fail("--faults reopen needs a database that this process opens");
    }
    Ok(all
        .into_iter()
        .filter(|fault| can_reopen || *fault != Fault::Reopen)
        .collect())
}
