//! `http`: appends of one small event over HTTP with `wrk`, and the proof that everything counted is stored.
//!
//! wrk counts answers; it is stopped while requests are under way, so up to one event per
//! connection may be stored beyond its count. Ids are unique: stored twice would show.

use std::collections::HashSet;
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use gesta_core::{AllFrom, EventStore, ReadAll};
use serde::{Deserialize, Serialize};
use serde_json::json;
use tokio_util::sync::CancellationToken;

use crate::child::{ProgramArgs, Server};
use crate::failure::{Context, Failure, Result, fail};
use crate::histogram::median;
use crate::host::{CpuMeter, CpuUse};
use crate::read_back;
use crate::record::{Record, Table};
use crate::report::ReportArgs;
use crate::store::{self, StoreArgs};
use crate::units::{self, grouped};

const SCRIPT: &str = include_str!("../wrk/append.lua");

/// Appends over HTTP with wrk, which must be installed, and counts what is stored.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct HttpArgs {
    /// `http://…`: that server; otherwise a server is started on this store.
    #[command(flatten)]
    pub(crate) store: StoreArgs,
    #[command(flatten)]
    pub(crate) program: ProgramArgs,
    #[command(flatten)]
    pub(crate) report: ReportArgs,
    /// Numbers of connections, one series each.
    #[arg(long, value_delimiter = ',', default_values_t = [64_u32, 256, 1_000])]
    pub(crate) connections: Vec<u32>,
    /// Runs per number of connections; the median counts.
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) rounds: u32,
    /// Length of a run.
    #[arg(long, default_value = "10s", value_parser = units::duration)]
    pub(crate) duration: Duration,
    /// Threads of wrk.
    #[arg(long, default_value_t = 1)]
    pub(crate) threads: u32,
    /// Number of streams.
    #[arg(long, default_value_t = 10_000)]
    pub(crate) streams: u32,
    /// Bytes of data per event.
    #[arg(long, default_value_t = 50)]
    pub(crate) payload: u32,
    /// Seed of the streams chosen.
    #[arg(long, default_value_t = 7)]
    pub(crate) seed: u64,
}

/// What wrk says.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
#[allow(clippy::struct_field_names, reason = "the units")]
struct Summary {
    requests: u64,
    duration_us: u64,
    connect: u64,
    read: u64,
    write: u64,
    status: u64,
    timeout: u64,
    p50_us: u64,
    p90_us: u64,
    p99_us: u64,
    p999_us: u64,
    max_us: u64,
}

impl Summary {
    /// The line that the script prints.
    fn parse(output: &str) -> Result<Self> {
        let line = output
            .lines()
            .find_map(|line| line.strip_prefix("gesta-lab "));
        match line {
            Some(line) => serde_json::from_str(line).context("the summary of wrk"),
            None => fail(format!("wrk printed no summary:\n{output}")),
        }
    }

    #[expect(clippy::cast_precision_loss, reason = "counts of minutes fit")]
    fn rate(&self) -> f64 {
        (self.requests - self.status.min(self.requests)) as f64 * 1e6
            / self.duration_us.max(1) as f64
    }

    fn accepted(&self) -> u64 {
        self.requests - self.status.min(self.requests)
    }
}

/// One run of wrk and its check.
#[derive(Debug, Clone, Serialize)]
struct HttpRun {
    connections: u32,
    wrk: Summary,
    requests_per_second: f64,
    cpu: CpuUse,
    stored: u64,
    distinct: u64,
    valid: bool,
}

/// The command. True if every run found everything again.
pub(crate) async fn run(args: &HttpArgs, stop: &CancellationToken) -> Result<bool> {
    let mut record = Record::begin("http", args.seed);
    let files = tempfile::tempdir()?;
    let script = files.path().join("append.lua");
    std::fs::write(&script, SCRIPT)?;
    let target = Target::open(args, files.path()).await?;
    let mut runs = Vec::new();
    for round in 0..args.rounds {
        for connections in &args.connections {
            if stop.is_cancelled() {
                break;
            }
            eprintln!("{connections} connections, round {}", round + 1);
            let run = target
                .measure(args, *connections, u64::from(round), &script)
                .await?;
            runs.push(run);
        }
    }
    let valid = runs.iter().all(|run| run.valid);
    record.store = Some(target.opened.facts.clone());
    record.workload = json!({
        "connections": args.connections, "rounds": args.rounds, "threads": args.threads, "streams": args.streams,
        "payload": args.payload, "duration_seconds": args.duration.as_secs_f64(),
    });
    let mut table = Table::new([
        "connections",
        "requests/s (median)",
        "p50 ms",
        "p99 ms",
        "p99.9 ms",
        "cores",
        "not 2xx",
        "stored",
        "counted",
    ]);
    for connections in &args.connections {
        let of: Vec<&HttpRun> = runs
            .iter()
            .filter(|run| run.connections == *connections)
            .collect();
        let middle = |value: &dyn Fn(&HttpRun) -> f64| {
            median(&of.iter().map(|run| value(run)).collect::<Vec<_>>())
        };
        #[expect(clippy::cast_precision_loss, reason = "microseconds of minutes fit")]
        let millis = |micros: u64| micros as f64 / 1_000.0;
        table.row([
            connections.to_string(),
            grouped(middle(&|run| run.requests_per_second)),
            format!("{:.2}", middle(&|run| millis(run.wrk.p50_us))),
            format!("{:.2}", middle(&|run| millis(run.wrk.p99_us))),
            format!("{:.2}", middle(&|run| millis(run.wrk.p999_us))),
            format!("{:.2}", middle(&|run| run.cpu.machine_cores)),
            of.iter().map(|run| run.wrk.status).sum::<u64>().to_string(),
            of.iter().map(|run| run.stored).sum::<u64>().to_string(),
            of.iter()
                .map(|run| run.wrk.accepted())
                .sum::<u64>()
                .to_string(),
        ]);
        record.result[connections.to_string()] = json!({
            "requests_per_second_median": middle(&|run| run.requests_per_second).round(),
            "p99_ms_median": middle(&|run| millis(run.wrk.p99_us)), "runs": of,
        });
    }
    record.errors = json!({ "not_2xx": runs.iter().map(|run| run.wrk.status).sum::<u64>() });
    (record.complete, record.valid) = (!stop.is_cancelled(), valid);
    record.save(&args.report)?;
    print!("{table}");
    for run in runs.iter().filter(|run| !run.valid) {
        println!(
            "NO RESULT: {} connections: {} accepted, {} stored, {} distinct",
            run.connections,
            run.wrk.accepted(),
            run.stored,
            run.distinct
        );
    }
    Ok(valid)
}

/// The server under load, and the store as seen through it.
struct Target {
    url: String,
    opened: store::Opened,
    /// Started for this run; dropped before the database that it uses.
    _child: Option<Server>,
    database: Option<gesta_pgtest::Server>,
}

impl Target {
    async fn open(args: &HttpArgs, files: &std::path::Path) -> Result<Self> {
        let (mut child, mut database) = (None, None);
        let url = if args.store.store.starts_with("http") {
            args.store.store.clone()
        } else {
            let store = store::resolve(&args.store.store, &mut database)?;
            let server =
                Server::start(&args.program.find()?, &store, &files.join("server.log")).await?;
            child.insert(server).url()
        };
        let opened = store::open_url(&url, args.store.rtt, args.store.logs).await?;
        Ok(Self {
            url,
            opened,
            _child: child,
            database,
        })
    }

    async fn measure(
        &self,
        args: &HttpArgs,
        connections: u32,
        round: u64,
        script: &std::path::Path,
    ) -> Result<HttpRun> {
        let store = &self.opened.store;
        if let Some(database) = &self.database {
            // Every run begins alike, with log segments to write to.
            database
                .execute("CHECKPOINT")
                .map_err(|error| Failure(format!("checkpoint: {error}")))?;
        }
        let from = read_back::mark(store.as_ref()).await?;
        let seconds = args.duration.as_secs().max(1);
        // A seed of its own for each run makes ids of its own.
        let seed = args.seed
            + 1_000 * round
            + 1_000_000 * u64::from(connections)
            + u64::from(std::process::id()) * 7_919;
        let meter = CpuMeter::start();
        let output = tokio::process::Command::new("wrk")
            .args([
                "-t",
                &args.threads.to_string(),
                "-c",
                &connections.to_string(),
                "-d",
                &format!("{seconds}s"),
            ])
            .args(["--timeout", "30s", "--latency", "-s"])
            .arg(script)
            .arg(&self.url)
            .args([
                "--",
                &seed.to_string(),
                &args.streams.to_string(),
                &args.payload.to_string(),
            ])
            .stdin(Stdio::null())
            .output()
            .await
            .context("running wrk (is it installed?)")?;
        let cpu = meter.used();
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        if !output.status.success() {
            return Err(Failure(format!(
                "wrk: {}\n{text}",
                String::from_utf8_lossy(&output.stderr)
            )));
        }
        let wrk = Summary::parse(&text)?;
        let (stored, distinct) = self.count(from).await?;
        let beyond = u64::from(connections) + wrk.read + wrk.timeout + wrk.status;
        let valid =
            stored >= wrk.accepted() && stored <= wrk.accepted() + beyond && distinct == stored;
        let requests_per_second = wrk.rate().round();
        Ok(HttpRun {
            connections,
            wrk,
            requests_per_second,
            cpu,
            stored,
            distinct,
            valid,
        })
    }

    /// Events behind `from`, and how many different ids they have. Requests that wrk left behind may still
    /// be under way: looks until a look finds nothing new.
    async fn count(&self, mut from: AllFrom) -> Result<(u64, u64)> {
        let (mut stored, mut ids) = (0, HashSet::new());
        let store: &Arc<dyn EventStore> = &self.opened.store;
        loop {
            let page = store
                .read_all(ReadAll::forwards().from(from).limit(10_000))
                .await
                .context("counting")?;
            stored += page.events.len() as u64;
            ids.extend(page.events.iter().map(|event| event.id));
            if page.end && page.events.is_empty() {
                return Ok((stored, ids.len() as u64));
            }
            from = AllFrom::Checkpoint(page.next);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_summary_of_the_script_is_read() {
        let output = "Running 1s test\n  23 requests in 1.00s\ngesta-lab {\"requests\":23,\"duration_us\":1000000,\"connect\":0,\
            \"read\":1,\"write\":0,\"status\":3,\"timeout\":0,\"p50_us\":10,\"p90_us\":20,\"p99_us\":30,\"p999_us\":40,\"max_us\":50}\n";
        let summary = Summary::parse(output).unwrap();
        assert_eq!(summary.accepted(), 20);
        assert!((summary.rate() - 20.0).abs() < 0.001);
        assert!(Summary::parse("nothing").is_err());
    }
}
