//! `soak`: hours of mixed load with faults; does anything grow as the table does, and is the store's word kept?
//!
//! Appends come on a schedule, with exact claims and without any, and so do reads of random streams; subscribers
//! follow live and by catching up, and check order and completeness. Every slice is a line of its own in the results
//! (`soak-slice`), so a run that is killed leaves all slices before; the whole is the line `soak`.
//! Memory: nothing per append while it runs, one bit per event in the read-back (`plan`, `check`).
//! Not here: nasty faults in rapid succession (`torture`), one figure for one load (`append`).

mod args;
mod board;
mod check;
mod door;
mod faults;
mod followers;
mod plan;
mod readers;
mod run;
mod slices;
mod writers;

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::time::Duration;

use gesta_core::Checkpoint;
use serde_json::json;
use tokio_util::sync::CancellationToken;

pub(crate) use self::args::SoakArgs;

use self::door::Door;
use self::faults::{Kind, World};
use self::run::{Disk, Outcome, soak};
use self::slices::{Slice, growth, quarter, quiet, typical, verdict};
use crate::endpoint::{self, Endpoint};
use crate::failure::{Result, fail};
use crate::histogram::{Percentiles, median};
use crate::record::{Record, Table};
use crate::store::{self, Opened};
use crate::units::grouped;

/// The command. True if nothing was found wrong.
pub(crate) async fn run(args: &SoakArgs, stop: &CancellationToken) -> Result<bool> {
    let mut record = Record::begin("soak", args.workload.seed);
    let (opened, mut world, disk) = open(args).await?;
    let kinds = kinds(args, &world)?;
    let start = start_of(&opened).await?;
    record.store = Some(opened.facts.clone());
    record.workload =
        json!({ "args": args, "faults": kinds.iter().map(|kind| kind.name()).collect::<Vec<_>>() });
    let mut save = |slice: &Slice, number: usize, findings: u64| {
        let mut line = record.clone();
        line.kind = "soak-slice";
        line.result = json!({ "number": number, "findings": findings, "slice": slice });
        line.errors = json!(slice.errors);
        line.valid = findings == 0;
        if let Err(failure) = line.save(&args.report) {
            eprintln!("  the slice was not saved: {failure}");
        }
    };
    let outcome = soak(args, kinds, &mut world, start, &disk, &mut save, stop).await?;
    record.workload["appends_per_second"] = json!(outcome.rate.round());
    record.result = figures(&outcome);
    record.errors = json!(outcome.errors());
    record.problems = outcome.problems();
    (record.complete, record.valid) = (outcome.complete, outcome.is_clean());
    record.save(&args.report)?;
    print!("{}", describe(&outcome));
    world.door.store().shutdown().await?;
    Ok(outcome.is_clean())
}

/// Opens the store, by way of a proxy if it is reached over TCP.
async fn open(args: &SoakArgs) -> Result<(Opened, World, Disk)> {
    let mut server = None;
    let url = store::resolve(&args.store.store, &mut server)?;
    let (path, proxy) = match Endpoint::parse(&url) {
        None => (url.clone(), None),
        Some(endpoint) => {
            let proxy = store::proxy(&endpoint, args.store.rtt)?;
            (endpoint.through(proxy.addr()), Some(proxy))
        }
    };
    let mut opened = store::open_url(&path, Duration::ZERO, args.store.logs).await?;
    opened.facts.url = endpoint::redacted(&url);
    opened.facts.round_trip_ms = args.store.rtt.as_secs_f64() * 1_000.0;
    let embedded = opened.owner().is_ok() && !url.starts_with("sqlite::memory:");
    let world = World {
        door: Door::new(opened.store.clone(), embedded.then_some(path)),
        proxy,
        round_trip: args.store.rtt,
        server,
    };
    Ok((opened, world, Disk::of(&url)))
}

/// Where the log ends before the run.
async fn start_of(opened: &Opened) -> Result<Checkpoint> {
    if opened.facts.logs != 1 {
        return fail(
            "soak needs a store with one log: its subscribers tell by the order what is missing",
        );
    }
    store::end_of(opened.store.as_ref()).await
}

/// The faults that are wanted and fit.
fn kinds(args: &SoakArgs, world: &World) -> Result<Vec<Kind>> {
    if args.fault_every.is_zero() {
        return Ok(Vec::new());
    }
    if let Some(kind) = args.faults.iter().find(|kind| !world.fits(**kind)) {
        return fail(format!("{} does not fit this store", kind.name()));
    }
    let wanted = match args.faults.as_slice() {
        [] => Kind::ALL,
        some => some,
    };
    Ok(wanted
        .iter()
        .copied()
        .filter(|kind| world.fits(*kind))
        .collect())
}

fn figures(outcome: &Outcome) -> serde_json::Value {
    json!({
        "slices": outcome.slices, "faults": outcome.faults, "read_back": outcome.read_back,
        "growth": growth(&outcome.slices), "verdict": verdict(growth(&outcome.slices)),
        "peak_appends_per_second": outcome.peak.map(f64::round), "appends_per_second": outcome.rate.round(),
        "findings": outcome.findings, "finding_count": outcome.finding_count,
        "bytes_kept_per_append": 0, "bits_per_event_in_check": 1,
    })
}

fn describe(outcome: &Outcome) -> String {
    let mut table = Table::new([
        "quarter",
        "events",
        "events/s",
        "append p50 ms",
        "p99",
        "p99.9",
        "read p99 ms",
        "deliver p99 ms",
        "bytes/event",
        "own MiB",
        "cores",
    ]);
    let millis = |value: Option<f64>| value.map_or("-".into(), |ms| format!("{ms:.2}"));
    for (number, name) in (0..4).zip(["first", "second", "third", "last"]) {
        let slices = quarter(&outcome.slices, number);
        let Some(end) = slices.last() else { continue };
        let quiet = quiet(slices);
        let disk = typical(&quiet, |slice| slice.disk_bytes_per_event);
        // A slice in which nothing was answered has no latency.
        let latency = |figure: fn(&Slice) -> (Percentiles, f64)| {
            millis(typical(&quiet, |slice| {
                let (all, figure) = figure(slice);
                (all.count > 0).then_some(figure)
            }))
        };
        let rate = typical(&quiet, |slice| Some(slice.events_per_second));
        table.row([
            name.into(),
            count(end.events_total),
            grouped(rate.unwrap_or(0.0)),
            latency(|s| (s.append_ms, s.append_ms.p50)),
            latency(|s| (s.append_ms, s.append_ms.p99)),
            latency(|s| (s.append_ms, s.append_ms.p999)),
            latency(|s| (s.read_ms, s.read_ms.p99)),
            latency(|s| (s.deliver_ms, s.deliver_ms.p99)),
            disk.map_or("-".into(), |bytes| format!("{bytes:.0}")),
            (end.memory_bytes >> 20).to_string(),
            millis(typical(&quiet, |slice| Some(slice.cpu.machine_cores))),
        ]);
    }
    let mut text = format!(
        "medians over the slices without a fault\n{table}{}",
        fault_table(outcome)
    );
    if !outcome.complete {
        text.push_str("interrupted: these are the figures of what there was\n");
    }
    for problem in outcome.problems() {
        text.push_str(&format!("  {problem}\n"));
    }
    if let Some(read_back) = &outcome.read_back {
        let word = if outcome.is_clean() {
            "in order"
        } else {
            "NO RESULT"
        };
        text.push_str(&format!(
            "{} events acknowledged, {} found in {:.0} s: {word}\n",
            count(read_back.acknowledged),
            count(read_back.found),
            read_back.seconds
        ));
    }
    text.push_str(&format!("{}\n", verdict(growth(&outcome.slices))));
    text
}

fn fault_table(outcome: &Outcome) -> String {
    let mut kinds: BTreeMap<&str, Vec<f64>> = BTreeMap::new();
    for fault in &outcome.faults {
        let healed = fault.healed_after_seconds.unwrap_or(f64::INFINITY);
        kinds.entry(&fault.kind).or_default().push(healed);
    }
    if kinds.is_empty() {
        return String::new();
    }
    let mut table = Table::new(["fault", "times", "load back after s (median)", "max"]);
    for (kind, healed) in kinds {
        let max = healed.iter().copied().fold(0.0, f64::max);
        table.row([
            kind.into(),
            healed.len().to_string(),
            format!("{:.2}", median(&healed)),
            format!("{max:.2}"),
        ]);
    }
    table.to_string()
}

#[expect(clippy::cast_precision_loss, reason = "for people")]
fn count(count: u64) -> String {
    grouped(count as f64)
}
