//! The run itself: the peak, the load with its slices, the end, and the read-back.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use gesta_core::{AllFrom, Checkpoint};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::args::SoakArgs;
use super::board::{Board, Live};
use super::check;
use super::followers::{Follower, Reached};
use super::plan::Plan;
use super::readers::Reader;
use super::schedule::{self, Schedule};
use super::slices::{self, FaultLine, Slice, faults_between, growth, verdict};
use super::writers::{Claim, Pace, Writer};
use crate::endpoint::Endpoint;
use crate::failure::{Result, fail};
use crate::faults::tails::{Manner, Tail};
use crate::faults::{CurrentStore, Fault, World};
use crate::host::{CpuMeter, CpuUse, resident_bytes};
use crate::postgres;
use crate::random::Random;
use crate::report::{Report, Unit};
use crate::store;
use crate::target::{Embedded, ReadBack};
use crate::units::grouped;
use crate::workload::{Run, Workload};

/// How often this process looks how late it is.
const LAG_LOOK: Duration = Duration::from_millis(5);
/// Followers must have everything this soon after the last append.
const ARRIVAL_WITHIN: Duration = Duration::from_secs(60);
const ARRIVAL_LOOK: Duration = Duration::from_millis(5);
/// How long the database may take to tell its size, and no longer than half a slice; it may be away.
const DISK_WITHIN: Duration = Duration::from_secs(2);

/// What happened.
#[derive(Debug)]
pub(super) struct Outcome {
    /// Appends per second of the closed loop, if there was one.
    pub(super) peak: Option<f64>,
    /// Appends per second of the schedule.
    pub(super) rate: f64,
    pub(super) slices: Vec<Slice>,
    pub(super) faults: Vec<FaultLine>,
    pub(super) findings: Vec<String>,
    pub(super) finding_count: u64,
    /// None if the store could not be read.
    pub(super) read_back: Option<ReadBack>,
    /// False if it was interrupted.
    pub(super) complete: bool,
}

impl Outcome {
    /// True if nothing was found wrong.
    #[cfg(test)]
    pub(super) fn is_clean(&self) -> bool {
        self.finding_count == 0 && self.read_back.as_ref().is_some_and(ReadBack::is_clean)
    }

    /// Errors of the whole run.
    pub(super) fn errors(&self) -> BTreeMap<&str, u64> {
        let mut sum = BTreeMap::new();
        for (kind, count) in self.slices.iter().flat_map(|slice| &slice.errors) {
            *sum.entry(kind.as_str()).or_default() += count;
        }
        sum
    }

    /// What is wrong, in words.
    pub(super) fn problems(&self) -> Vec<String> {
        let mut problems = self.findings.clone();
        if self.finding_count > self.findings.len() as u64 {
            problems.push(format!("{} findings in all", self.finding_count));
        }
        if self.read_back.is_none() {
            problems.push("the store could not be read back".into());
        }
        problems
    }

    /// What keeps the figures from being what they seem, in words.
    fn cautions(&self) -> Vec<String> {
        let mut cautions = Vec::new();
        let limits: Vec<&str> = self
            .slices
            .iter()
            .filter_map(|slice| slice.generator_limit.as_deref())
            .collect();
        if let Some(first) = limits.first() {
            cautions.push(format!(
                "In {} of {} slices the load generator was the limit: {first}.",
                limits.len(),
                self.slices.len()
            ));
        }
        if let Some(last) = self.slices.last()
            && exact(last.behind) > self.rate.max(1.0)
        {
            cautions.push(format!(
                "The rate could not be kept: {} appends were due at the end and not begun.",
                grouped(exact(last.behind))
            ));
        }
        cautions
    }

    /// Tells everything.
    pub(super) fn tell(&self, report: &mut Report) {
        report.finding = verdict(growth(&self.slices));
        report.fact("peak", Unit::Count, self.peak, "appends/s of a closed loop");
        report.fact("offered", Unit::Count, self.rate, "appends/s");
        report.table(slices::quarters(&self.slices));
        report.table(slices::fault_table(&self.faults));
        for chart in slices::charts(&self.faults) {
            report.chart(chart);
        }
        report.table(slices::table(&self.slices));
        for (kind, count) in self.errors() {
            let note = "answers and ends of subscriptions that were errors, then tried again";
            report.fact(kind, Unit::Count, count, note);
        }
        report.problems.extend(self.problems());
        report.cautions.extend(self.cautions());
        if let Some(read_back) = &self.read_back {
            report.check("everything acknowledged", read_back);
        }
    }
}

/// Where the size of a store can be asked for.
#[derive(Debug)]
pub(super) enum Disk {
    /// A database, past the proxy, and the schema.
    Postgres(String, String),
    /// A file.
    File(String),
    /// Nobody can tell.
    Unknown,
}

impl Disk {
    /// The one of a store.
    pub(super) fn of(url: &str) -> Self {
        if Endpoint::parse(url).is_some_and(|endpoint| endpoint.is_postgres()) {
            let query = url.split_once('?').map_or("", |(_, query)| query);
            let named = query
                .split('&')
                .find_map(|pair| pair.strip_prefix("schema="));
            return Self::Postgres(url.to_owned(), named.unwrap_or("gesta").to_owned());
        }
        match store::file_bytes(url) {
            Some(_) => Self::File(url.to_owned()),
            None => Self::Unknown,
        }
    }

    /// Its size now; none if it cannot be told now.
    async fn bytes(&self, within: Duration) -> Option<u64> {
        match self {
            Self::Postgres(url, schema) => {
                let asked = tokio::time::timeout(within, postgres::schema_bytes(url, schema));
                asked.await.ok()?.ok()
            }
            Self::File(url) => store::file_bytes(url),
            Self::Unknown => None,
        }
    }
}

/// What is told of each slice: itself, its number, and how much was found wrong so far.
pub(super) type Save<'a> = &'a mut (dyn FnMut(&Slice, usize, u64) + Send);

/// Runs everything. Whatever is begun is over when this returns.
pub(super) async fn soak(
    args: &SoakArgs,
    kinds: Vec<Fault>,
    world: &mut World,
    start: Checkpoint,
    disk: &Disk,
    save: Save<'_>,
    stop: &CancellationToken,
) -> Result<Outcome> {
    if args.slice.is_zero() || args.duration.is_zero() {
        return fail("--slice and --duration must not be 0");
    }
    let store = Arc::clone(&world.entries[0].store);
    let heads = store.get().info().await?.heads;
    let stored = heads.iter().map(|head| head.0).sum();
    let plan = Plan {
        workload: Arc::new(Workload::new(&args.workload, Run::random())),
        per_append: u64::from(args.events),
    };
    let writers = args.writers as usize;
    let lab = Lab {
        args,
        board: Arc::new(Board::new(plan, writers, args.until_events)),
        stored,
        disk,
        slices: watch::Sender::new(0),
    };
    let (followers_over, followed, mut followers) = lab.follow(&store, &start);
    let mut writers: Vec<Writer> = (0..writers).map(Writer::new).collect();
    let mut peak = None;
    if args.rate.is_none() {
        (writers, peak) = lab.peak(&store, writers, stop).await?;
    }
    let rate = args
        .rate
        .or(peak.map(|peak| peak * args.share))
        .unwrap_or(1.0);
    eprintln!("{} appends/s of {} events", grouped(rate), args.events);
    let (writers, slices) = lab
        .load(kinds, world, writers, rate.max(0.1), save, stop)
        .await?;
    let claims: Vec<Claim> = writers.iter().map(|w| w.claim(&lab.board)).collect();
    lab.wait_for_followers(&store, &followed, &claims).await;
    followers_over.cancel();
    while followers.join_next().await.is_some() {}
    eprintln!("reading everything back");
    let from = AllFrom::Checkpoint(start);
    let read_back = match check::check(&store, &lab.board, from, &claims).await {
        Ok(read_back) => Some(read_back),
        Err(failure) => {
            lab.board.finding(failure.to_string());
            None
        }
    };
    let (findings, finding_count) = lab.board.findings();
    Ok(Outcome {
        peak,
        rate,
        slices,
        faults: lab.board.faults(),
        findings,
        finding_count,
        read_back,
        complete: !stop.is_cancelled(),
    })
}

struct Lab<'a> {
    args: &'a SoakArgs,
    board: Arc<Board>,
    /// Events in the store before.
    stored: u64,
    disk: &'a Disk,
    slices: watch::Sender<u64>,
}

/// How far followers are, with their names.
type Followed = Vec<(String, Arc<Mutex<Reached>>)>;

impl Lab<'_> {
    fn follow(
        &self,
        store: &Arc<CurrentStore>,
        start: &Checkpoint,
    ) -> (CancellationToken, Followed, JoinSet<()>) {
        let (over, mut all, mut tasks) = (CancellationToken::new(), Vec::new(), JoinSet::new());
        for number in 0..=self.args.subscribers {
            let (name, manner) = match number {
                0 => (
                    "the catching-up subscriber".into(),
                    Manner::SubscribeRestless,
                ),
                n => (format!("live subscriber {n}"), Manner::Subscribe),
            };
            let sink = Follower::new(&name, number > 0, &self.board, start);
            all.push((name.clone(), sink.reached()));
            let tail = Tail {
                name,
                manner,
                store: Arc::clone(store),
                let_go: self.slices.subscribe(),
                over: over.clone(),
                sink,
            };
            tasks.spawn(tail.run(Some(start.clone())));
        }
        (over, all, tasks)
    }

    fn write(
        &self,
        store: &Arc<CurrentStore>,
        writers: Vec<Writer>,
        pace: Pace,
        over: &CancellationToken,
    ) -> JoinSet<Writer> {
        let mut tasks = JoinSet::new();
        for writer in writers {
            let (store, board) = (Arc::clone(store), Arc::clone(&self.board));
            tasks.spawn(writer.run(pace, store, board, over.clone()));
        }
        tasks
    }

    /// The closed loop: appends per second.
    async fn peak(
        &self,
        store: &Arc<CurrentStore>,
        writers: Vec<Writer>,
        stop: &CancellationToken,
    ) -> Result<(Vec<Writer>, Option<f64>)> {
        eprintln!("looking for the peak of a closed loop");
        let (over, before, begin) = (stop.child_token(), self.board.events(), Instant::now());
        let tasks = self.write(store, writers, Pace::Closed, &over);
        tokio::select! {
            () = tokio::time::sleep(self.args.peak) => {}
            () = over.cancelled() => {}
        }
        let appends = (self.board.events() - before) / self.board.plan.per_append;
        let seconds = begin.elapsed().as_secs_f64();
        over.cancel();
        let writers = ended(tasks).await;
        Ok((writers, Some(exact(appends) / seconds.max(0.001))))
    }

    async fn load(
        &self,
        kinds: Vec<Fault>,
        world: &mut World,
        writers: Vec<Writer>,
        rate: f64,
        save: Save<'_>,
        stop: &CancellationToken,
    ) -> Result<(Vec<Writer>, Vec<Slice>)> {
        let over = stop.child_token();
        self.board.start();
        let from = self.board.begin();
        let interval = |callers: u32, rate: f64| Duration::from_secs_f64(f64::from(callers) / rate);
        let pace = Pace::Open {
            from,
            interval: interval(self.args.writers, rate),
        };
        let store = Arc::clone(&world.entries[0].store);
        let writing = self.write(&store, writers, pace, &over);
        let mut others = JoinSet::new();
        others.spawn(lag(Arc::clone(&self.board), over.clone()));
        let reads = self.args.reads.unwrap_or(rate / 10.0).max(0.1);
        for number in 0..self.args.readers {
            let reader = Reader {
                random: Random::fork(self.args.workload.seed, 5_000 + u64::from(number)),
                from,
                interval: interval(self.args.readers, reads),
                store: Arc::clone(&store),
                board: Arc::clone(&self.board),
                over: over.clone(),
            };
            others.spawn(reader.run());
        }
        let end = self
            .args
            .until_events
            .is_none()
            .then_some(self.args.duration);
        let (every, seed) = (self.args.fault_every, self.args.workload.seed);
        let mut schedule = Schedule::new(every, end, self.args.strength(), kinds, seed);
        let (slices, (), writers) = tokio::join!(
            async {
                let slices = self.slices(rate, save, &over).await;
                over.cancel();
                slices
            },
            schedule::run(&mut schedule, world, &self.board, &over),
            async {
                // If every writer was refused, there is nothing to wait for.
                let writers = ended(writing).await;
                over.cancel();
                writers
            },
        );
        others.join_all().await;
        Ok((writers, slices))
    }

    /// Measures slice by slice until the end.
    async fn slices(&self, rate: f64, save: Save<'_>, over: &CancellationToken) -> Vec<Slice> {
        let (mut slices, mut from, mut due) = (Vec::new(), Duration::ZERO, Duration::ZERO);
        let end = match self.args.until_events {
            None => self.args.duration,
            Some(_) => Duration::MAX,
        };
        let mut meter = CpuMeter::start();
        loop {
            due = (due + self.args.slice).min(end);
            let last = tokio::select! {
                () = tokio::time::sleep_until((self.board.begin() + due).into()) => due >= end,
                () = over.cancelled() => true,
                () = self.board.enough.notified() => true,
            };
            if last {
                self.board.close();
            }
            // All of this belongs to one moment; the rest may take its time.
            let (live, to, cpu) = (
                self.board.take(),
                self.board.begin().elapsed(),
                meter.used(),
            );
            meter = CpuMeter::start();
            let slice = self.slice(live, from, to, cpu, rate).await;
            let number = slices.len();
            if number % 20 == 0 {
                eprintln!("{HEADS}");
            }
            eprintln!("{}", row(&slice));
            save(&slice, number, self.board.findings().1);
            slices.push(slice);
            if last {
                return slices;
            }
            self.slices.send_modify(|number| *number += 1);
            from = to;
        }
    }

    /// The slice between two moments.
    async fn slice(
        &self,
        live: Live,
        from: Duration,
        to: Duration,
        cpu: CpuUse,
        rate: f64,
    ) -> Slice {
        let mut appends = live.appends;
        appends.seconds = to.saturating_sub(from).as_secs_f64();
        appends.cpu = cpu;
        let phase = appends.figures(self.args.writers, Embedded::Yes);
        let (from, to) = (from.as_secs_f64(), to.as_secs_f64());
        let behind = behind(rate, to, self.board.appends_begun());
        let faults = faults_between(&self.board.faults(), from, to);
        let events_total = self.stored + self.board.events();
        let within = DISK_WITHIN.min(self.args.slice / 2);
        let disk_bytes = self.disk.bytes(within).await;
        Slice {
            from_seconds: from,
            seconds: appends.seconds,
            events_total,
            events_per_second: phase.events_per_second,
            append_ms: phase.latency_ms,
            read_ms: live.reads.percentiles(),
            deliver_ms: live.deliveries.percentiles(),
            lag_ms: phase.lag_ms,
            behind,
            disk_bytes_per_event: disk_bytes
                .filter(|_| events_total > 0)
                .map(|bytes| (exact(bytes) / exact(events_total)).round()),
            memory_bytes: resident_bytes(),
            cpu,
            errors: live.errors,
            faults,
            generator_limit: phase.generator_limit,
        }
    }

    /// Waits until every follower is at the end of the log; then it must have had everything.
    async fn wait_for_followers(
        &self,
        store: &CurrentStore,
        followed: &Followed,
        claims: &[Claim],
    ) {
        let end = match store.get().info().await {
            Ok(info) => info.heads.first().copied().unwrap_or_default(),
            Err(error) => {
                let text = format!("the end of the log is not known: {error}");
                return self.board.finding(text);
            }
        };
        let deadline = Instant::now() + ARRIVAL_WITHIN;
        let per_append = self.board.plan.per_append;
        for (name, reached) in followed {
            let reached = || reached.lock().expect("no panic under the lock");
            while reached().position < end && Instant::now() < deadline {
                tokio::time::sleep(ARRIVAL_LOOK).await;
            }
            let due = claims.iter().map(|claim| claim.acknowledged * per_append);
            let pairs = due.zip(reached().next.clone());
            let missing: u64 = pairs.map(|(due, next)| due.saturating_sub(next)).sum();
            let at = reached().position;
            if missing > 0 || at < end {
                self.board.finding(format!(
                    "{name} is at position {at} of {end} and lacks {missing} events at its end"
                ));
            }
        }
    }
}

/// The writers in the order of their numbers, whichever ended first.
async fn ended(tasks: JoinSet<Writer>) -> Vec<Writer> {
    let mut writers = tasks.join_all().await;
    writers.sort_unstable_by_key(Writer::number);
    writers
}

/// Appends that were due by a moment and not begun.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a count"
)]
pub(super) fn behind(rate: f64, seconds: f64, begun: u64) -> u64 {
    ((rate * seconds) as u64).saturating_sub(begun)
}

async fn lag(board: Arc<Board>, over: CancellationToken) {
    while !over.is_cancelled() {
        let due = Instant::now() + LAG_LOOK;
        tokio::time::sleep_until(due.into()).await;
        board.count(|live| live.appends.lag.record(due.elapsed()));
    }
}

const HEADS: &str = "   at s       events  events/s  append p50     p99   p99.9  read p99  deliver p99  bytes/event  MiB  faults";

fn row(slice: &Slice) -> String {
    let disk = slice
        .disk_bytes_per_event
        .map_or("-".into(), |bytes| format!("{bytes:.0}"));
    let errors: u64 = slice.errors.values().sum();
    let mut row = format!(
        "{:>7.0} {:>12} {:>9} {:>11.2} {:>7.1} {:>7.1} {:>9.1} {:>12.1} {:>12} {:>4}  {}",
        slice.from_seconds + slice.seconds,
        grouped(exact(slice.events_total)),
        grouped(slice.events_per_second),
        slice.append_ms.p50,
        slice.append_ms.p99,
        slice.append_ms.p999,
        slice.read_ms.p99,
        slice.deliver_ms.p99,
        disk,
        slice.memory_bytes >> 20,
        slice.faults.join(", "),
    );
    if errors > 0 {
        row.push_str(&format!(" ({errors} errors)"));
    }
    row
}

#[expect(clippy::cast_precision_loss, reason = "counts of days fit")]
fn exact(count: u64) -> f64 {
    count as f64
}
