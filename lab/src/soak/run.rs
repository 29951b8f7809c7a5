//! The run itself: the peak, the load with its slices, the end, and the read-back.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use gesta_core::Checkpoint;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, sleep_until};
use tokio_util::sync::CancellationToken;

use super::args::SoakArgs;
use super::board::{Board, Live};
use super::followers::{Follower, Place};
use super::plan::{LANES, Plan};
use super::readers::Reader;
use super::schedule::{self, Schedule};
use super::slices::{self, FaultLine, Slice, faults_between, verdict};
use crate::endpoint::Endpoint;
use crate::failure::{Result, fail};
use crate::faults::tails::{Manner, Tail};
use crate::faults::{CurrentStore, Fault, World};
use crate::host::{CpuMeter, CpuUse, resident_bytes};
use crate::postgres;
use crate::random::Random;
use crate::report::{Report, Unit};
use crate::sizes::Sizes;
use crate::store;
use crate::target::{self, Claims, Events, GestaTarget, Load, ReadBack, Target};
use crate::units::grouped;

/// How long the closed loop is that looks for the peak.
const PEAK: Duration = Duration::from_secs(5);
/// Live subscribers; one more goes back a slice after each slice and catches up.
const SUBSCRIBERS: u32 = 3;
/// The most reads under way at once.
const READERS: u32 = 32;
/// How often this process looks how late it is.
const LAG_LOOK: Duration = Duration::from_millis(5);
/// Followers must have everything this soon after the last append.
const ARRIVAL_WITHIN: Duration = Duration::from_secs(60);
/// How long the database may take to tell its size, and no longer than half a slice; it may be away.
const DISK_WITHIN: Duration = Duration::from_secs(2);
/// Longer than any run.
const FOREVER: Duration = Duration::from_secs(365 * 86_400);

/// What happened.
#[derive(Debug, Default)]
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
        let told = self.findings.iter();
        let mut problems: Vec<String> = told.map(|finding| format!("{finding}.")).collect();
        if self.finding_count > self.findings.len() as u64 {
            problems.push(format!("There are {} findings in all.", self.finding_count));
        }
        if self.read_back.is_none() {
            problems.push("The store could not be read back.".into());
        }
        problems
    }

    /// Tells everything.
    pub(super) fn tell(&self, report: &mut Report) {
        report.finding = verdict(&self.slices);
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
        let limits = self
            .slices
            .iter()
            .filter_map(|slice| slice.generator_limit.as_ref());
        if let Some(first) = limits.clone().next() {
            let (some, all) = (limits.count(), self.slices.len());
            report.caution(format!(
                "In {some} of {all} slices the load generator was the limit: {first}."
            ));
        }
        let behind = (self.slices.last().map_or(0, |last| last.behind)) as f64;
        if behind > self.rate.max(1.0) {
            report.caution(format!(
                "The rate could not be kept: {} appends were due at the end and not begun.",
                grouped(behind)
            ));
        }
        if let Some(read_back) = &self.read_back {
            report.check("everything acknowledged", read_back);
        }
    }
}

/// The size of a store now; none if it cannot be told now.
async fn disk_bytes(url: &str, within: Duration) -> Option<u64> {
    if !Endpoint::parse(url).is_some_and(|endpoint| endpoint.is_postgres()) {
        return store::file_bytes(url);
    }
    let query = url.split_once('?').map_or("", |(_, query)| query);
    let mut pairs = query.split('&');
    let named = pairs.find_map(|pair| pair.strip_prefix("schema="));
    let asked = postgres::schema_bytes(url, named.unwrap_or("gesta"));
    tokio::time::timeout(within, asked).await.ok()?.ok()
}

/// What is told of each slice: itself, its number, and how much was found wrong so far.
pub(super) type Save<'a> = &'a mut (dyn FnMut(&Slice, usize, u64) + Send);

/// Runs everything on the store of this world, whose URL past all proxies is given. Whatever is begun is over when this
/// returns.
pub(super) async fn soak(
    args: &SoakArgs,
    kinds: Vec<Fault>,
    world: &mut World,
    start: Checkpoint,
    url: &str,
    save: Save<'_>,
    stop: &CancellationToken,
) -> Result<Outcome> {
    if args.slice.is_zero() || args.duration.is_zero() {
        return fail("--slice and --duration must not be 0");
    }
    let store = Arc::clone(&world.entries[0].store);
    let heads = store.get().info().await?.heads;
    let events = Events::new(Sizes::fixed(args.payload)?, 1, args.seed);
    let plan = Plan {
        events: Arc::new(events),
        per_append: args.events,
    };
    let lab = Lab {
        args,
        target: Arc::new(GestaTarget::around(Arc::clone(&store))),
        // The writers of the peak, and those of the load.
        board: Board::new(plan, args.writers * 2, args.until_events),
        stored: heads.iter().map(|head| head.0).sum(),
        url,
        slices: watch::Sender::new(0),
    };
    let (followers_over, followed, mut followers) = lab.follow(&store, &start);
    let (mut outcome, mut claims) = (Outcome::default(), Claims::default());
    if args.rate.is_none() {
        eprintln!("looking for the peak of a closed loop");
        let begin = Instant::now();
        claims.add(lab.write(0, None, PEAK, stop).await?);
        let appends = (lab.board.events() / args.events) as f64;
        outcome.peak = Some(appends / begin.elapsed().as_secs_f64().max(0.001));
    }
    let share = outcome.peak.map(|peak| peak * args.share);
    outcome.rate = args.rate.or(share).unwrap_or(1.0).max(0.1);
    let rate = outcome.rate;
    eprintln!("{} appends/s of {} events", grouped(rate), args.events);
    let (written, slices) = lab.load(kinds, world, rate, save, stop).await?;
    claims.add(written);
    outcome.slices = slices;
    lab.wait_for_followers(&store, &followed).await;
    followers_over.cancel();
    while followers.join_next().await.is_some() {}
    eprintln!("reading everything back");
    match target::check(lab.target.as_ref(), &lab.board.plan.events, &claims).await {
        Ok(read_back) => outcome.read_back = Some(read_back),
        Err(failure) => lab.board.finding(failure.to_string()),
    }
    outcome.faults = lab.board.faults();
    (outcome.findings, outcome.finding_count) = lab.board.findings();
    outcome.complete = !stop.is_cancelled();
    Ok(outcome)
}

struct Lab<'a> {
    args: &'a SoakArgs,
    target: Arc<dyn Target>,
    board: Arc<Board>,
    /// Events in the store before.
    stored: u64,
    url: &'a str,
    slices: watch::Sender<u64>,
}

/// How far followers are, with their names.
type Followed = Vec<(String, Arc<Mutex<Place>>)>;

impl Lab<'_> {
    fn follow(
        &self,
        store: &Arc<CurrentStore>,
        start: &Checkpoint,
    ) -> (CancellationToken, Followed, JoinSet<()>) {
        let (over, mut all, mut tasks) = (CancellationToken::new(), Vec::new(), JoinSet::new());
        for number in 0..=SUBSCRIBERS {
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

    /// Writes until the end or until `over`; what the writers were told.
    async fn write(
        &self,
        first_worker: u32,
        rate: Option<f64>,
        duration: Duration,
        over: &CancellationToken,
    ) -> Result<Claims> {
        let plan = &self.board.plan;
        let load = Load {
            first_worker,
            workers: self.args.writers,
            events: plan.per_append,
            events_per_stream: plan.events_per_stream(),
            streams: LANES,
            rate,
            warm_up: Duration::ZERO,
            duration,
        };
        let (targets, board) = ([Arc::clone(&self.target)], Arc::clone(&self.board));
        let written = target::run_all(&targets, &plan.events, &load, Some(board), over);
        Ok(written.await?.1)
    }

    async fn load(
        &self,
        kinds: Vec<Fault>,
        world: &mut World,
        rate: f64,
        save: Save<'_>,
        stop: &CancellationToken,
    ) -> Result<(Claims, Vec<Slice>)> {
        let over = stop.child_token();
        self.board.start();
        let (from, seed) = (self.board.begin(), self.args.seed);
        let mut others = JoinSet::new();
        others.spawn(lag(Arc::clone(&self.board), over.clone()));
        let reads = self.args.reads.unwrap_or(rate / 10.0).max(0.1);
        for number in 0..READERS {
            let reader = Reader {
                random: Random::fork(seed, 5_000 + u64::from(number)),
                from,
                interval: Duration::from_secs_f64(f64::from(READERS) / reads),
                store: Arc::clone(&world.entries[0].store),
                board: Arc::clone(&self.board),
            };
            others.spawn(reader.run(over.clone()));
        }
        let until = self.args.until_events;
        let end = until.is_none().then_some(self.args.duration);
        let (every, strength) = (self.args.fault_every, self.args.strength());
        let mut schedule = Schedule::new(every, end, strength, kinds, seed);
        let (slices, (), written) = tokio::join!(
            async {
                let slices = self.slices(rate, end.unwrap_or(FOREVER), save, &over).await;
                over.cancel();
                slices
            },
            schedule::run(&mut schedule, world, &self.board, &over),
            async {
                let written = self
                    .write(self.args.writers, Some(rate), FOREVER, &over)
                    .await;
                over.cancel();
                written
            },
        );
        others.join_all().await;
        Ok((written?, slices))
    }

    /// Measures slice by slice until the end.
    async fn slices(
        &self,
        rate: f64,
        end: Duration,
        save: Save<'_>,
        over: &CancellationToken,
    ) -> Vec<Slice> {
        let (mut slices, mut from, mut due) = (Vec::new(), Duration::ZERO, Duration::ZERO);
        let mut meter = CpuMeter::start();
        loop {
            due = (due + self.args.slice).min(end);
            let last = tokio::select! {
                () = sleep_until(self.board.begin() + due) => due >= end,
                () = over.cancelled() => true,
                () = self.board.enough.notified() => true,
            };
            if last {
                self.board.close();
            }
            // All of this belongs to one moment; the rest may take its time.
            let (live, to) = (self.board.take(), self.board.begin().elapsed());
            let cpu = std::mem::replace(&mut meter, CpuMeter::start()).used();
            let slice = self.slice(live, from, to, cpu, rate).await;
            let number = slices.len();
            eprintln!("{}", slice.told());
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
        (appends.seconds, appends.cpu) = (to.saturating_sub(from).as_secs_f64(), cpu);
        let phase = appends.figures(self.args.writers, true);
        let (from, to) = (from.as_secs_f64(), to.as_secs_f64());
        let faults = faults_between(&self.board.faults(), from, to);
        let events_total = self.stored + self.board.events();
        let due = rate * to - (self.board.appends_begun() as f64);
        let disk = disk_bytes(self.url, DISK_WITHIN.min(self.args.slice / 2)).await;
        let disk = disk.filter(|_| events_total > 0);
        Slice {
            from_seconds: from,
            seconds: appends.seconds,
            events_total,
            events_per_second: phase.events_per_second,
            append_ms: phase.latency_ms,
            read_ms: live.reads.percentiles(),
            deliver_ms: live.deliveries.percentiles(),
            lag_ms: phase.lag_ms,
            #[expect(
                clippy::cast_possible_truncation,
                clippy::cast_sign_loss,
                reason = "a count"
            )]
            behind: due.max(0.0) as u64,
            disk_bytes_per_event: disk
                .map(|bytes| ((bytes as f64) / (events_total as f64)).round()),
            memory_bytes: resident_bytes(),
            cpu,
            errors: live.errors,
            faults,
            generator_limit: phase.generator_limit,
        }
    }

    /// Waits until every follower is at the end of the log; then it must have had everything.
    async fn wait_for_followers(&self, store: &CurrentStore, followed: &Followed) {
        let end = match store.get().info().await {
            Ok(info) => info.heads.first().copied().unwrap_or_default(),
            Err(error) => {
                let text = format!("the end of the log is not known: {error}");
                return self.board.finding(text);
            }
        };
        let deadline = Instant::now() + ARRIVAL_WITHIN;
        for (name, reached) in followed {
            let reached = || reached.lock().expect("no panic under the lock").clone();
            while reached().position < end && Instant::now() < deadline {
                sleep(LAG_LOOK).await;
            }
            let Place { position, next } = reached();
            let due = |writer| self.board.acknowledged_of(writer) * self.board.plan.per_append;
            let missing = (0..)
                .zip(next)
                .map(|(writer, next)| due(writer).saturating_sub(next));
            let missing: u64 = missing.sum();
            if missing > 0 || position < end {
                self.board.finding(format!(
                    "{name} is at position {position} of {end} and lacks {missing} events at its end"
                ));
            }
        }
    }
}

async fn lag(board: Arc<Board>, over: CancellationToken) {
    while !over.is_cancelled() {
        let due = Instant::now() + LAG_LOOK;
        sleep_until(due).await;
        board.count(|live| live.appends.lag.record(due.elapsed()));
    }
}
