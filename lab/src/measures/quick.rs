//! `quick`: what will this database carry? In about a minute, with a page to look at.
//!
//! A bare commit first, then appends by more and more callers, then a steady load that grows towards the peak, then
//! reading. Everything appended is read back at the end.
//! Not here: what the figures mean (`verdict`), the page (`page`).

mod climb;
mod verdict;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use gesta_load::machine::store;
use gesta_load::sizes::Sizes;
use gesta_load::target::{self, Claims, Events, GestaTarget, Load, Phase, PhaseRun, Target};
use gesta_report::endpoint;
use gesta_report::failure::{Context, Result, fail};
use gesta_report::host::{self, CpuMeter, CpuUse};
use gesta_report::page;
use gesta_report::units::{self, grouped};
use gesta_report::{Chart, Report, ReportArgs, Scale, Table, Unit};
use serde_json::json;
use tempfile::TempDir;
use tokio_util::sync::CancellationToken;

use crate::measures::append::bare;
use crate::workload::read;

use verdict::{Measured, Open};

/// Callers of the closed loop.
const CALLERS: [u32; 4] = [1, 8, 64, 256];
/// Callers that keep the schedule of the steady load.
const OPEN_CALLERS: u32 = 256;
/// Events per stream.
const STREAM_EVENTS: u64 = 20;
/// Time for which it is watched what other programs do, before anything is measured.
const WATCHED: Duration = Duration::from_secs(1);
/// The table of the closed loop.
const CLOSED: &str = "Each caller waits for its answer (closed loop)";
/// The table of the open loop.
const OPEN: &str = "Appends come by a schedule (open loop)";
/// What will this database carry? About a minute, and a page with the answer.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct QuickArgs {
    /// The store: a SQLite file in a folder that is removed afterwards, or `postgres://…` (in a schema
    /// `gesta_lab_gesta` that is removed afterwards), or `postgres:new`, a server started for this run.
    #[arg(long)]
    store: Option<String>,
    /// Extra round trip to the database, for example 5ms.
    #[arg(long, default_value = "0", value_parser = units::duration)]
    rtt: Duration,
    /// Sizes of the events: a number of bytes, `published`, or a file of classes (see lab/README.md).
    #[arg(long, default_value = "500")]
    sizes: String,
    /// Time on the clock for each figure.
    #[arg(long, default_value = "4s", value_parser = units::duration)]
    phase: Duration,
    /// Seed of sizes and contents.
    #[arg(long, default_value_t = 7)]
    seed: u64,
    #[command(flatten)]
    report: ReportArgs,
    /// The page.
    #[arg(short, long, default_value = "gesta-lab.html")]
    output: PathBuf,
}

/// The command. True if the run is a result.
pub(crate) async fn run(args: &QuickArgs, stop: &CancellationToken) -> Result<bool> {
    if args.phase.is_zero() {
        return fail("--phase 0: each figure needs time on the clock");
    }
    page::check(&args.output)?;
    let sizes = Sizes::named(&args.sizes)?;
    let mut report = Report::begin("quick", "What this database carries", args.seed);
    let folder = folder_beside(&args.report.results.file)?;
    let mut server = None;
    let url = match &args.store {
        None => format!("sqlite:{}", folder.path().join("quick.db").display()),
        Some(url) => store::resolve(url, &mut server)?,
    };
    if !url.starts_with("sqlite:") && !url.starts_with("postgres") {
        let told = endpoint::redacted_url(&url);
        return fail(format!(
            "--store {told:?}: quick needs a database, sqlite:PATH or postgres://…"
        ));
    }
    let events = Events::new(sizes.clone(), 1, args.seed);
    let gesta = Arc::new(GestaTarget::new(&url, args.rtt, None));
    let mut quick = Quick {
        args,
        url,
        target: Arc::clone(&gesta) as Arc<dyn Target>,
        events: Arc::new(events),
        claims: Claims::default(),
        workers: 0,
        wrongs: Vec::new(),
        measured: Measured {
            mean_bytes: sizes.mean(),
            round_trip_ms: args.rtt.as_secs_f64() * 1_000.0,
            cores: report.host.cores,
            has_more_cores: host::processors() > report.host.cores,
            ..Measured::default()
        },
    };
    quick.watch(stop).await;
    eprintln!("bare commits");
    // On PostgreSQL in the same schema, which is made anew for the store afterwards.
    quick.measured.bare_commits_per_second = quick.bare(stop).await?;
    gesta.prepare().await?;
    let facts = gesta.opened().await?.facts.clone();
    report.setting = format!("{}, {}", facts.backend, sizes.name);
    report.store = Some(facts);
    quick.all(&gesta, stop).await?;
    let read_back = target::check(gesta.as_ref(), &quick.events, &quick.claims).await?;
    gesta.remove().await?;
    report.workload = json!({
        "sizes": {"name": sizes.name, "mean_bytes": sizes.mean().round()},
        "phase_seconds": args.phase.as_secs_f64(),
        "events_per_append": 1, "events_per_stream": STREAM_EVENTS,
    });
    report.problems = std::mem::take(&mut quick.wrongs);
    report.check("", &read_back);
    quick.tell(&mut report, &sizes.name);
    let valid = report.finish(&args.report, !stop.is_cancelled())?;
    // The page is of this run alone, whatever else the file of results holds.
    let alone = folder.path().join("quick.jsonl");
    report.save(&alone)?;
    page::write(&[alone], &args.output)?;
    println!("the report: {}", args.output.display());
    Ok(valid)
}

/// A folder for this run. It is beside the results, so on a disk, which a folder for temporary files may not be.
fn folder_beside(results: &Path) -> Result<TempDir> {
    let beside = results.parent().filter(|dir| !dir.as_os_str().is_empty());
    tempfile::Builder::new()
        .prefix("gesta-lab-")
        .tempdir_in(beside.unwrap_or(Path::new(".")))
        .context(results.display())
}

struct Quick<'a> {
    args: &'a QuickArgs,
    url: String,
    target: Arc<dyn Target>,
    events: Arc<Events>,
    claims: Claims,
    /// Numbers of workers used so far.
    workers: u32,
    wrongs: Vec<String>,
    measured: Measured,
}

impl Quick<'_> {
    /// Everything, or as much as there is time for before Ctrl-C.
    async fn all(&mut self, gesta: &GestaTarget, stop: &CancellationToken) -> Result<()> {
        for callers in CALLERS {
            if stop.is_cancelled() {
                return Ok(());
            }
            eprint!("callers: {callers}: ");
            let before = gesta.opened().await?.pipelines().unwrap_or_default();
            let begin = Instant::now();
            let run = self.load(callers, None, stop).await?;
            let pipelines = gesta.opened().await?.pipelines().unwrap_or_default();
            let phase = run.figures(callers, true);
            eprintln!("{}", phase.told());
            self.disturbed_by(phase.cpu);
            if phase.events_per_second > self.peak() {
                let batches = (pipelines.since(before).batches) as f64;
                self.measured.batches_per_second = batches / begin.elapsed().as_secs_f64();
            }
            self.measured.closed.push(phase);
        }
        self.climb(self.peak(), stop).await?;
        self.disk().await?;
        if !stop.is_cancelled() {
            self.reading(gesta).await?;
        }
        Ok(())
    }

    /// Looks what other programs do while this one does nothing.
    async fn watch(&mut self, stop: &CancellationToken) {
        let meter = CpuMeter::start();
        let watched = tokio::time::sleep(WATCHED);
        // What was interrupted has no number anyway.
        if stop.run_until_cancelled(watched).await.is_some() {
            let used = meter.used();
            self.others(used.machine_cores - used.own_cores);
        }
    }

    /// Notes what other programs used during a load. A database of its own is another program, so that nothing is known
    /// about the rest beside one.
    fn disturbed_by(&mut self, used: CpuUse) {
        if self.url.starts_with("sqlite:") {
            self.others(used.machine_cores - used.own_cores);
        }
    }

    fn others(&mut self, cores: f64) {
        self.measured.others_cores = self.measured.others_cores.max(cores);
    }

    /// The highest rate of the closed loop so far.
    fn peak(&self) -> f64 {
        let rates = self
            .measured
            .closed
            .iter()
            .map(|phase| phase.events_per_second);
        rates.fold(0.0, f64::max)
    }

    /// Steady loads up to what is carried well.
    async fn climb(&mut self, peak: f64, stop: &CancellationToken) -> Result<()> {
        let mut tried = Vec::new();
        while let Some(rate) = climb::next(peak, &tried).filter(|_| !stop.is_cancelled()) {
            eprint!("steady {}/s: ", grouped(rate));
            let run = self.load(OPEN_CALLERS, Some(rate), stop).await?;
            let phase = run.figures(OPEN_CALLERS, true);
            eprintln!("{}", phase.told());
            self.disturbed_by(phase.cpu);
            let step = Open { rate, phase };
            tried.push((rate, step.is_good()));
            self.measured.open.push(step);
        }
        self.measured.open.sort_by(|a, b| a.rate.total_cmp(&b.rate));
        Ok(())
    }

    async fn bare(&mut self, stop: &CancellationToken) -> Result<Option<f64>> {
        let sizes = self.events.sizes();
        let contents = bare::Contents::new(sizes, Bytes::new(), 1_000, self.args.seed);
        let plan = bare::Plan {
            url: &self.url,
            events: 1,
            contents: &contents,
            warm_up: Duration::from_millis(500),
            duration: self.args.phase.min(Duration::from_secs(2)),
        };
        let (run, read_back) = bare::measure(&plan, stop).await?;
        self.wrongs.extend(read_back.complaint());
        let rate = run.figures(1, true).events_per_second;
        Ok((run.events > 0).then_some(rate))
    }

    async fn load(
        &mut self,
        callers: u32,
        rate: Option<f64>,
        stop: &CancellationToken,
    ) -> Result<PhaseRun> {
        let load = Load {
            first_worker: self.workers,
            workers: callers,
            events: 1,
            events_per_stream: STREAM_EVENTS,
            streams: 1,
            rate,
            warm_up: Duration::from_millis(700),
            duration: self.args.phase,
        };
        self.workers += callers;
        let (run, claims) = target::run(&self.target, &self.events, &load, stop).await?;
        self.claims.add(claims);
        for (cause, count) in &run.errors {
            self.wrongs.push(format!("{count} appends failed: {cause}"));
        }
        Ok(run)
    }

    async fn disk(&mut self) -> Result<()> {
        let found = self.claims.events();
        if let (Some(bytes), true) = (self.target.disk_bytes().await?, found > 0) {
            self.measured.disk_bytes_per_event = Some(((bytes as f64) / (found as f64)).round());
        }
        Ok(())
    }

    async fn reading(&mut self, gesta: &GestaTarget) -> Result<()> {
        let opened = gesta.opened().await?;
        eprint!("reading everything: ");
        let (events, rate) = read::by_pages(&opened.store).await?;
        eprintln!("{} events, {}/s", grouped(events as f64), grouped(rate));
        self.measured.read_events_per_second = Some(rate.round());
        Ok(())
    }

    fn tell(&self, report: &mut Report, sizes: &str) {
        let is = &self.measured;
        let verdict = is.verdict();
        report.finding = verdict.sentences.join(" ");
        if is.has_more_cores {
            report.caution(format!(
                "this process may use {} of the machine's {} processors, so what other programs use of them cannot be \
                 told here.",
                is.cores,
                host::processors()
            ));
        }
        let plan = verdict.plan_events_per_second;
        let (commits, read) = (is.bare_commits_per_second, is.read_events_per_second);
        let (bytes, disk) = (is.mean_bytes.round(), is.disk_bytes_per_event);
        let alone = "a second, one after the other, without Gesta";
        report.fact("plan for", Unit::Count, plan, "events/s");
        // A plain number of bytes is its own name.
        let sizes = match sizes.strip_suffix(" bytes") {
            Some(_) => "each",
            None => sizes,
        };
        report.fact("size of an event", Unit::Bytes, bytes, sizes);
        report.fact("commits of one bare INSERT", Unit::Count, commits, alone);
        report.fact("reading from the beginning", Unit::Count, read, "events/s");
        report.fact("disk per event", Unit::Bytes, disk, "with its indexes");
        self.charts(report, plan);
        self.tables(report);
    }

    fn charts(&self, report: &mut Report, plan: Option<f64>) {
        let chart = Chart::lines(
            "Events per second over callers",
            CLOSED,
            ("callers", Scale::Log),
            (&["events/s"], Scale::Linear),
        );
        report.chart(
            chart.note("Each caller waits for its answer before it appends again (closed loop)."),
        );
        let mut chart = Chart::lines(
            "Time until an append is stored, over the load",
            OPEN,
            ("events/s offered", Scale::Linear),
            (&["p99", "p50", "p99.9"], Scale::Log),
        );
        if let Some(plan) = plan {
            chart = chart.mark(plan, format!("plan for {} events/s", grouped(plan)));
        }
        let note = "Appends come by a schedule and wait for nobody (open loop); time counts from when each was due. \
                    The dotted line is the rate to plan for; a cross marks a load that was not kept up with.";
        report.chart(chart.y_name("time until stored").stop("kept up").note(note));
    }

    fn tables(&self, report: &mut Report) {
        let closed = Table::of(CLOSED, &self.measured.closed)
            .column("callers", Unit::Count, |phase| phase.connections)
            .columns(&Phase::COLUMNS, Phase::cells);
        report.table(closed.table());
        let kept_up = |step: &Open| (!step.has_kept_up()).then_some("no");
        let open = Table::of(OPEN, &self.measured.open)
            .column("events/s offered", Unit::Count, |step| step.rate)
            .column("kept up", Unit::Words, kept_up)
            .columns(&Phase::COLUMNS, |step| step.phase.cells());
        report.table(open.table());
    }
}
