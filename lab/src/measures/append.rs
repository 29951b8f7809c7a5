//! `append`: appends under load, their latencies, and the proof that everything acknowledged is stored.
//!
//! One load, and what it can be held against: the bare statement or a store with more logs, alternating, so that both
//! meet the machine at the same hours (`--against`); the same load while another session keeps an old snapshot open
//! (`--old-snapshot`); several servers of one database (`--servers`). Every run begins with an empty store, unless
//! the store is reached over HTTP.

pub(crate) mod bare;
mod figures;
mod modes;

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use gesta_report::Unit;
use gesta_report::failure::{Result, fail};
use gesta_report::host::{CpuMeter, busy_of};
use gesta_report::numbers::{list, millis};
use gesta_report::units;
use gesta_report::{Chart, Report, ReportArgs};
use serde::Serialize;
use serde_json::json;
use tokio_util::sync::CancellationToken;

use gesta_load::counters::{self, Stretch, Watch};
use gesta_load::machine::child::{ProgramArgs, Server};
use gesta_load::machine::store::{self, StoreArgs};
use gesta_load::sizes::Sizes;
use gesta_load::target::{
    self, Beside, Events, Expected, GestaTarget, Load, Protocol, Target, grpc,
};

use figures::Run;

/// Streams, which all waiters share equally.
const STREAMS: u32 = 10_000;
/// Bytes of metadata per event.
const METADATA: usize = 36;
/// Most events of a stream.
const STREAM_EVENTS_MAX: u64 = 4_000;
/// Rounds of a comparison.
const ROUNDS: u32 = 5;

/// Appends under load, then reads everything back.
#[derive(Debug, Clone, clap::Args, Serialize)]
pub(crate) struct AppendArgs {
    #[command(flatten)]
    #[serde(skip)]
    store: StoreArgs,
    /// Bytes of data per event.
    #[arg(long, default_value_t = 50)]
    payload: usize,
    /// Seed of names, contents and choices.
    #[arg(long, default_value_t = 7)]
    seed: u64,
    #[command(flatten)]
    #[serde(skip)]
    program: ProgramArgs,
    #[command(flatten)]
    #[serde(skip)]
    report: ReportArgs,
    /// Appends under way at once; several numbers are measured one after the other.
    #[arg(long, value_delimiter = ',', default_value = "40", value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    waiters: Vec<u32>,
    /// Events per append.
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u64).range(1..=1_000))]
    events: u64,
    /// Appends per second, on a schedule, instead of as many as there can be.
    #[arg(long, value_parser = units::rate)]
    rate: Option<f64>,
    /// Time before the clock starts.
    #[arg(long, default_value = "2s", value_parser = units::duration)]
    #[serde(serialize_with = "units::seconds", rename = "warm_up_seconds")]
    warm_up: Duration,
    /// Time on the clock.
    #[arg(long, default_value = "15s", value_parser = units::duration)]
    #[serde(serialize_with = "units::seconds", rename = "duration_seconds")]
    duration: Duration,
    /// How often everything is measured; medians count. Default: once, and 5 times with --against.
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: Option<u32>,
    /// Against something else, alternating.
    #[arg(long, value_parser = Against::parse, conflicts_with_all = ["old_snapshot", "servers"])]
    against: Option<Against>,
    /// Measure while another session's snapshot stays open for so long; --duration is one slice (PostgreSQL only).
    #[arg(long, value_parser = units::duration, conflicts_with = "servers")]
    #[serde(skip)]
    old_snapshot: Option<Duration>,
    /// So many stores share the database; --waiters is the total (PostgreSQL only).
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=16))]
    servers: u16,
    /// Extra round trip of the last of several servers, for example 5ms.
    #[arg(long, default_value = "0", value_parser = units::duration)]
    #[serde(serialize_with = "units::seconds", rename = "far_seconds")]
    far: Duration,
    /// Start Gesta's server on this store and append over HTTP.
    #[arg(long)]
    serve: bool,
    /// How a server is spoken to. The client library costs as much as the server; the other forms write what is needed.
    #[arg(long, value_enum, default_value_t)]
    protocol: Protocol,
    /// By gRPC: in the end read `$all` from its beginning, and tell how fast that was.
    #[arg(long)]
    read_all: bool,
    /// The share that must be reached: of what is held against, of the rate without the snapshot, or of a server's fair
    /// share of what it has alone. A miss is exit code 1.
    #[arg(long)]
    floor: Option<f64>,
}

/// What appends are held against.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
enum Against {
    /// The bare statement at the batch size that the appends had.
    Bare,
    /// A plain one-row INSERT and its commit.
    Insert,
    /// Gesta with this many logs.
    Logs(u16),
}

impl Against {
    fn parse(text: &str) -> std::result::Result<Self, String> {
        match (text, text.strip_suffix("-logs").map(str::parse)) {
            ("bare", _) => Ok(Self::Bare),
            ("insert", _) => Ok(Self::Insert),
            (_, Some(Ok(logs @ 1..))) => Ok(Self::Logs(logs)),
            _ => Err(format!(
                "{text:?} is not bare, insert, or a number of logs such as 2-logs"
            )),
        }
    }
}

/// The command. True if everything was read back and the floor was reached.
pub(crate) async fn run(args: &AppendArgs, stop: &CancellationToken) -> Result<bool> {
    let mut report = Report::begin("append", args.title(), args.seed);
    let mut server = None;
    let mut url = store::resolve(&args.store.store, &mut server)?;
    let database = counters::watch(&url).await?;
    let files = tempfile::tempdir()?;
    let mut served = None;
    if args.serve {
        let log = files.path().join("server.log");
        let server = Server::start(&args.program.find()?, &url, &log).await?;
        url = served.insert(server).url();
    }
    if (args.servers > 1 || args.old_snapshot.is_some()) && !url.starts_with("postgres") {
        return fail("--servers and --old-snapshot are about PostgreSQL");
    }
    let mut lab = Lab::new(args, url, stop)?;
    lab.database = database;
    lab.server = served.as_ref().and_then(Server::pid);
    let facts = lab.target().await?;
    report.store = Some(facts.opened().await?.facts.clone());
    facts.remove().await?;
    match (args.against, args.old_snapshot) {
        (Some(against), _) => lab.alternating(against).await?,
        (_, Some(hold)) => lab.old_snapshot(hold).await?,
        _ if args.servers > 1 => lab.servers().await?,
        _ => lab.plain().await?,
    }
    let backend = report
        .store
        .as_ref()
        .map_or("", |store| store.backend.as_str());
    report.setting = args.setting(backend);
    report.workload = json!(args);
    lab.tell(&mut report);
    if let Some(server) = served.as_ref().filter(|_| args.read_all) {
        read_all(server, &mut report).await?;
    }
    let complete = !stop.is_cancelled();
    let is_missed = complete && lab.misses_floor();
    if is_missed {
        report.caution("The floor was missed.");
    }
    let is_result = report.finish(&args.report, complete)?;
    drop(served);
    Ok(is_result && !is_missed)
}

/// Reads everything that is stored by gRPC.
async fn read_all(server: &Server, report: &mut Report) -> Result<()> {
    let meter = CpuMeter::start();
    let busy = || server.pid().map(busy_of).unwrap_or_default();
    let before = busy();
    let (events, time) = grpc::read_all(server.address()).await?;
    let (used, seconds) = (meter.used(), time.as_secs_f64());
    let of_server = (busy().saturating_sub(before)).as_secs_f64() / seconds;
    let rate = events as f64 / seconds;
    let note = format!(
        "{events} events; cores busy: {:.2}, of the server {of_server:.2}, of the generator {:.2}",
        used.machine_cores, used.own_cores
    );
    eprintln!("$all: {rate:.0} events/s, {note}");
    report.fact("$all, events per second", Unit::Count, rate, &note);
    Ok(())
}

impl AppendArgs {
    fn title(&self) -> &'static str {
        match (self.against, self.old_snapshot) {
            (Some(Against::Logs(_)), _) => "Appends to several logs",
            (Some(_), _) => "Appends against the bare database",
            (_, Some(_)) => "Appends under an old snapshot",
            _ if self.servers > 1 => "Appends of several servers",
            _ => "Appends",
        }
    }

    /// What must be the same in runs that are compared, in words.
    fn setting(&self, backend: &str) -> String {
        let waiters: Vec<String> = self.waiters.iter().map(u32::to_string).collect();
        let (waiters, bytes, events) = (list(&waiters), self.payload, self.events);
        let mut setting =
            format!("{backend}, {waiters} waiters × {events} events of {bytes} bytes");
        let more = [
            (self.store.logs > 1, format!("{} logs", self.store.logs)),
            (self.serve, format!("by a server, {}", self.protocol.name())),
            (
                !self.store.rtt.is_zero(),
                format!("{} away", millis(self.store.rtt.as_secs_f64() * 1_000.0)),
            ),
        ];
        for (_, what) in more.iter().filter(|(is_so, _)| *is_so) {
            setting.push_str(&format!(", {what}"));
        }
        if let Some(weather) = self.store.weather.told() {
            setting.push_str(&format!(", {weather}"));
        }
        setting
    }
}

/// A measurement under way.
struct Lab<'a> {
    args: &'a AppendArgs,
    url: String,
    sizes: Sizes,
    contents: bare::Contents,
    stop: &'a CancellationToken,
    /// The process of the server that was started.
    server: Option<i32>,
    /// The database behind all of it, if it is a PostgreSQL.
    database: Option<Watch>,
    runs: Vec<Run>,
    /// What was found, in a sentence.
    finding: String,
    /// What is compared with the floor.
    share: Option<f64>,
}

impl<'a> Lab<'a> {
    fn new(args: &'a AppendArgs, url: String, stop: &'a CancellationToken) -> Result<Self> {
        let sizes = Sizes::exactly(args.payload)?;
        let metadata = Bytes::from(format!(r#"{{"p":"{}"}}"#, "x".repeat(METADATA - 8)));
        Ok(Self {
            args,
            url,
            contents: bare::Contents::new(&sizes, metadata, STREAMS as usize, args.seed),
            sizes,
            stop,
            server: None,
            database: None,
            runs: Vec::new(),
            finding: String::new(),
            share: None,
        })
    }

    fn misses_floor(&self) -> bool {
        let floor = self.floor().zip(self.share);
        floor.is_some_and(|(floor, share)| share < floor)
    }

    fn tell(&self, report: &mut Report) {
        report.finding.clone_from(&self.finding);
        for run in &self.runs {
            run.tell(report);
        }
        let title = "Events per second, run by run";
        report.chart(Chart::bars(title, figures::TITLE, "run", "events/s"));
        report.table(figures::table(&self.runs));
        if let Some(database) = &self.database {
            let counted = self.runs.iter().filter_map(|run| {
                let (figures, done_per_second) = run.database.as_ref()?;
                Some(Stretch {
                    name: run.name.clone(),
                    done_per_second: *done_per_second,
                    figures,
                })
            });
            let counted: Vec<Stretch<'_>> = counted.collect();
            counters::tell(report, "event", &counted, database.method());
        }
    }

    fn new_target(&self, logs: u16) -> Result<GestaTarget> {
        let metadata = self.contents.metadata.clone();
        let target = GestaTarget::new(&self.url, self.args.store.network(), None)
            .with_logs(logs)
            .appending(Expected::Any, metadata);
        target.by(self.args.protocol).fresh()
    }

    /// A store that is made for one run; the named one if it is reached over HTTP.
    async fn target(&self) -> Result<Arc<GestaTarget>> {
        self.target_of(self.args.store.logs).await
    }

    async fn target_of(&self, logs: u16) -> Result<Arc<GestaTarget>> {
        let target = self.new_target(logs)?;
        target.prepare().await?;
        target.settle().await?;
        Ok(Arc::new(target))
    }

    /// Loads targets that share a store, and reads back. One run for each; the first has what was read back.
    async fn load(
        &self,
        name: &str,
        targets: &[Arc<GestaTarget>],
        waiters: u32,
    ) -> Result<Vec<Run>> {
        let args = self.args;
        let load = Load {
            first_worker: 0,
            workers: waiters,
            events: args.events,
            events_per_stream: STREAM_EVENTS_MAX / args.events * args.events,
            streams: (STREAMS / waiters).max(1),
            rate: args.rate,
            warm_up: args.warm_up,
            duration: args.duration,
        };
        let events = Arc::new(Events::new(self.sizes.clone(), 1, args.seed));
        let mut before = Vec::new();
        for target in targets {
            before.push(target.opened().await?.pipelines());
        }
        let all: Vec<_> = targets
            .iter()
            .map(|one| Arc::clone(one) as Arc<dyn Target>)
            .collect();
        let watched = self.server.map(|pid| tokio::spawn(cores_of(pid, load)));
        let beside = Beside {
            database: self.database.as_ref(),
            ..Beside::default()
        };
        let (loaded, claims) = target::run_all(&all, &events, &load, beside, self.stop).await?;
        let server_cores = match watched {
            Some(watched) => Some(watched.await?),
            None => None,
        };
        let mut runs = Vec::new();
        for ((target, loaded), before) in targets.iter().zip(loaded).zip(before) {
            let now = target.opened().await?.pipelines();
            let share = waiters / u32::try_from(targets.len())?;
            runs.push(Run {
                name: name.to_owned(),
                phase: loaded.figures(share, target.is_embedded()),
                pipelines: now.zip(before).map(|(now, before)| now.since(before)),
                server_cores,
                read_back: None,
                database: None,
            });
        }
        // The database is the same for all of them.
        let stored = runs.iter().map(Run::rate).sum();
        runs[0].database = runs[0].phase.database.clone().map(|did| (did, stored));
        runs[0].read_back = Some(target::check(all[0].as_ref(), &events, &claims).await?);
        for run in &runs {
            eprintln!("{}: {}", run.name, run.phase.told());
        }
        Ok(runs)
    }
}

/// Processor time that a process takes while a load is on the clock, in cores.
async fn cores_of(pid: i32, load: Load) -> f64 {
    tokio::time::sleep(load.warm_up).await;
    let before = busy_of(pid);
    tokio::time::sleep(load.duration).await;
    let busy = busy_of(pid).saturating_sub(before);
    busy.as_secs_f64() / load.duration.as_secs_f64()
}
