//! `soak`: hours of mixed load with faults; does anything grow as the table does, and is the store's word kept?
//!
//! Appends come on a schedule, with exact claims, and so do reads of random streams; subscribers follow live and by
//! catching up, and check order and completeness. Every slice is a line of its own in the results (a piece), so a run
//! that is killed leaves all slices before; the last line has the whole.
//! The writers and the read-back are those of every load (`target`), so little is kept per stream and a bit per event;
//! faults and tails are those of `faults`.
//! Not here: nasty faults in rapid succession (`torture`), one figure for one load (`append`).

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

use serde_json::json;
use tokio_util::sync::CancellationToken;

pub(crate) use self::args::SoakArgs;
use gesta_report::failure::{Result, fail};
use gesta_report::endpoint::{self, Endpoint};
use gesta_report::Report;
use gesta_load::machine::CurrentStore;
use gesta_load::machine::store::{self, Opened};

use self::run::soak;
use crate::faults::{Fault, World, wanted};

/// The command. True if nothing was found wrong.
pub(crate) async fn run(args: &SoakArgs, stop: &CancellationToken) -> Result<bool> {
    let mut report = Report::begin("soak", "Hours of mixed load with faults", args.seed);
    let (opened, mut world, url) = open(args).await?;
    if opened.facts.logs != 1 {
        return fail(
            "soak needs a store with one log: its subscribers tell by the order what is missing",
        );
    }
    let faults = faults(args, &world)?;
    let names: Vec<String> = faults.iter().map(|fault| fault.name()).collect();
    report.store = Some(opened.facts.clone());
    report.workload = json!({ "args": args, "faults": names });
    let complete = soak(args, faults, &mut world, &url, &mut report, stop).await?;
    world.entries[0].store.get().shutdown().await?;
    report.finish(&args.report, complete)
}

/// Opens the store, by way of a proxy if it is reached over TCP.
async fn open(args: &SoakArgs) -> Result<(Opened, World, String)> {
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
fn faults(args: &SoakArgs, world: &World) -> Result<Vec<Fault>> {
    if args.fault_every.is_zero() {
        return Ok(Vec::new());
    }
    let fitting = Fault::SOAK
        .iter()
        .copied()
        .filter(|fault| fault.fits(world));
    wanted(&args.faults, fitting.collect())
}
