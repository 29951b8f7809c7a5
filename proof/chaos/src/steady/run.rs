//! The run itself: the peak, the load with its slices, the end, and the read-back.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use gesta_core::Checkpoint;
use gesta_load::machine::CurrentStore;
use gesta_load::machine::ask::until;
use gesta_load::machine::postgres;
use gesta_load::machine::store;
use gesta_load::random::Random;
use gesta_load::sizes::Sizes;
use gesta_load::target::{self, Beside, Claims, Events, GestaTarget, Target};
use gesta_report::endpoint::Endpoint;
use gesta_report::failure::{Result, fail};
use gesta_report::host::{CpuMeter, CpuUse, resident_bytes};
use gesta_report::units::grouped;
use gesta_report::{Report, Unit};
use serde_json::json;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;

use super::args::SteadyArgs;
use super::followers::{Follower, FollowerPlace};
use super::plan::Plan;
use super::readers::Reader;
use super::schedule;
use super::slices::{self, Slice, faults_between, verdict};
use super::state::{Live, SteadyState};
use crate::fault::Fault;
use crate::load::appends::Crew as Tails;
use crate::load::appends::tails::Manner;
use crate::world::World;

/// How long the closed loop is that looks for the peak.
const PEAK: Duration = Duration::from_secs(5);
/// Live subscribers; one more goes back a slice after each slice and catches up.
const SUBSCRIBERS: u32 = 3;
/// The most reads under way at once.
const READERS: u32 = 32;
/// How often this process looks how late it is.
const LAG_LOOK: Duration = Duration::from_millis(5);
/// Followers must be at the end of the log this soon after the last append.
const ARRIVAL_WITHIN: Duration = Duration::from_secs(60);
/// A look at the size of the store takes no longer, nor longer than half a slice; it may be away.
const DISK_WITHIN: Duration = Duration::from_secs(2);
/// Longer than any run.
const FOREVER: Duration = Duration::from_secs(365 * 86_400);

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

/// Runs everything on the store of this world, whose URL past all proxies is given, and tells what was found. Whatever
/// is begun is over when this returns. False if it was interrupted.
pub(super) async fn steady(
    args: &SteadyArgs,
    kinds: Vec<Fault>,
    world: &mut World,
    url: &str,
    report: &mut Report,
    stop: &CancellationToken,
) -> Result<bool> {
    if args.slice.is_zero() || args.duration.is_zero() {
        return fail("--slice and --duration must not be 0");
    }
    let store = here(world)?;
    let target: Arc<dyn Target> = Arc::new(GestaTarget::around(Arc::clone(&store)));
    let events = Arc::new(Events::new(Sizes::fixed(args.payload)?, 1, args.seed));
    let (rate, mut claims) = match args.rate {
        Some(rate) => (rate, Claims::default()),
        None => {
            eprintln!("looking for the peak of a closed loop");
            // By writers of its own: nobody follows them.
            let load = args.load(args.writers, None, PEAK);
            let (run, claims) = target::run(&target, &events, &load, stop).await?;
            let peak = (run.appends as f64) / run.seconds.max(0.001);
            report.fact("peak", Unit::Count, peak, "appends/s of a closed loop");
            (peak * args.share, claims)
        }
    };
    let rate = rate.max(0.1);
    report.fact("offered", Unit::Count, rate, "appends/s");
    report.workload["appends_per_second"] = json!(rate.round());
    eprintln!("{} appends/s of {} events", grouped(rate), args.events);

    let start = store::end_of(store.get().as_ref()).await?;
    let heads = store.get().info().await?.heads;
    let plan = Plan {
        events,
        per_append: args.events,
    };
    let run = Run {
        args,
        rate,
        state: SteadyState::new(plan, args.writers, args.until_events),
        stored: heads.iter().map(|head| head.0).sum(),
        url,
    };
    let mut tails = Tails::new(args.seed);
    let followed = run.follow(&mut tails, &store, &start);
    let (slices, written) = run
        .load(&target, kinds, world, &tails, report, stop)
        .await?;
    claims.add(written);
    run.wait_for_followers(&store, &followed).await;
    tails.end_tails().await?;
    eprintln!("reading everything back");
    match target::check(target.as_ref(), &run.state.plan.events, &claims).await {
        Ok(read_back) => report.check("everything acknowledged", &read_back),
        Err(failure) => report.problem(format!("The store could not be read back: {failure}.")),
    }
    run.tell(&slices, report);
    Ok(!stop.is_cancelled())
}

/// The store that this process has open.
fn here(world: &World) -> Result<Arc<CurrentStore>> {
    match &world.here {
        Some(here) => Ok(Arc::clone(&here.store)),
        None => fail("this process has no store open"),
    }
}

struct Run<'a> {
    args: &'a SteadyArgs,
    /// Appends per second.
    rate: f64,
    state: Arc<SteadyState>,
    /// Events in the store before.
    stored: u64,
    url: &'a str,
}

/// How far followers are, with their names.
type Followed = Vec<(String, Arc<Mutex<FollowerPlace>>)>;

impl Run<'_> {
    fn follow(&self, tails: &mut Tails, store: &Arc<CurrentStore>, start: &Checkpoint) -> Followed {
        let mut all = Vec::new();
        for number in 0..=SUBSCRIBERS {
            let (name, manner) = match number {
                0 => (
                    "the catching-up subscriber".into(),
                    Manner::SubscribeRestless,
                ),
                n => (format!("live subscriber {n}"), Manner::Subscribe),
            };
            let sink = Follower::new(&name, number > 0, &self.state, start);
            all.push((name.clone(), sink.reached()));
            tails.follow_into(name, manner, Arc::clone(store), Some(start.clone()), sink);
        }
        all
    }

    /// Everything at once until the end; the slices, and what the writers were told.
    async fn load(
        &self,
        target: &Arc<dyn Target>,
        kinds: Vec<Fault>,
        world: &mut World,
        tails: &Tails,
        report: &Report,
        stop: &CancellationToken,
    ) -> Result<(Vec<Slice>, Claims)> {
        let (over, args) = (stop.child_token(), self.args);
        let mut others = JoinSet::new();
        others.spawn(lag(Arc::clone(&self.state), over.clone()));
        let reads = args.reads.unwrap_or(self.rate / 10.0).max(0.1);
        for number in 0..READERS {
            let reader = Reader {
                random: Random::fork(args.seed, 5_000 + u64::from(number)),
                interval: Duration::from_secs_f64(f64::from(READERS) / reads),
                store: here(world)?,
                state: Arc::clone(&self.state),
            };
            others.spawn(reader.run(over.clone()));
        }
        let load = args.load(0, Some(self.rate), FOREVER);
        let (targets, events) = (std::slice::from_ref(target), &self.state.plan.events);
        let (slices, (), written) = tokio::join!(
            async {
                let slices = self.slices(tails, report, &over).await;
                over.cancel();
                slices
            },
            schedule::run(args, kinds, world, &self.state, &over),
            async {
                let beside = Beside {
                    observer: Some(Arc::clone(&self.state) as _),
                    ..Beside::default()
                };
                let written = target::run_all(targets, events, &load, beside, &over).await;
                over.cancel();
                written
            },
        );
        others.join_all().await;
        Ok((slices, written?.1))
    }

    /// Measures slice by slice until the end. Each is saved as a piece of the report.
    async fn slices(&self, tails: &Tails, report: &Report, over: &CancellationToken) -> Vec<Slice> {
        let (mut slices, mut from, mut due) = (Vec::new(), Duration::ZERO, Duration::ZERO);
        let end = match self.args.until_events {
            Some(_) => FOREVER,
            None => self.args.duration,
        };
        let mut meter = CpuMeter::start();
        loop {
            due = (due + self.args.slice).min(end);
            let last = tokio::select! {
                () = sleep_until(self.state.begin + due) => due >= end,
                () = over.cancelled() => true,
                () = self.state.enough.notified() => true,
            };
            // All of this belongs to one moment; the rest may take its time.
            let (live, to) = (self.state.take(), self.state.begin.elapsed());
            let cpu = std::mem::replace(&mut meter, CpuMeter::start()).used();
            let slice = self.slice(live, from, to, cpu).await;
            eprintln!("{}", slice.told());
            slices.push(slice);
            self.save(&slices, report);
            if last {
                return slices;
            }
            tails.let_go();
            from = to;
        }
    }

    /// The slice between two moments.
    async fn slice(&self, live: Live, from: Duration, to: Duration, cpu: CpuUse) -> Slice {
        let mut appends = live.appends;
        (appends.seconds, appends.cpu) = (to.saturating_sub(from).as_secs_f64(), cpu);
        let (from, to) = (from.as_secs_f64(), to.as_secs_f64());
        let events_total = self.stored + self.state.events();
        let due = self.rate * to - (self.state.appends_begun() as f64);
        let disk = disk_bytes(self.url, DISK_WITHIN.min(self.args.slice / 2)).await;
        let disk = disk.filter(|_| events_total > 0);
        Slice {
            to_seconds: to,
            appends: appends.figures(self.args.writers, true),
            events_total,
            read_ms: live.reads.percentiles(),
            deliver_ms: live.deliveries.percentiles(),
            #[expect(
                clippy::cast_possible_truncation,
                clippy::cast_sign_loss,
                reason = "a count"
            )]
            behind: due.max(0.0) as u64,
            disk_bytes_per_event: disk
                .map(|bytes| ((bytes as f64) / (events_total as f64)).round()),
            memory_bytes: resident_bytes(),
            errors: live.errors,
            faults: faults_between(&self.state.faults(), from, to),
        }
    }

    /// Saves the last slice, so that a run that is killed leaves it.
    fn save(&self, slices: &[Slice], report: &Report) {
        let mut piece = report.clone();
        piece.piece = true;
        piece.finding = format!("{} slices were measured.", slices.len());
        piece.table(slices::table(&slices[slices.len() - 1..]));
        let findings = self.state.findings.count();
        if findings > 0 {
            piece.problem(format!("There are {findings} findings so far."));
        }
        piece.end(false);
        if let Err(failure) = piece.save(&self.args.report.results.file) {
            eprintln!("  the slice was not saved: {failure}");
        }
    }

    /// Waits until every follower is at the end of the log; then it must have had everything.
    async fn wait_for_followers(&self, store: &CurrentStore, followed: &Followed) {
        let (state, findings) = (&self.state, &self.state.findings);
        let end = match store.get().info().await {
            Ok(info) => info.heads.first().copied().unwrap_or_default(),
            Err(error) => {
                return findings.add(format!("the end of the log is not known: {error}"));
            }
        };
        let deadline = Instant::now() + ARRIVAL_WITHIN;
        for (name, reached) in followed {
            let reached = || reached.lock().expect("no panic under the lock").clone();
            let left = deadline.saturating_duration_since(Instant::now());
            // If it does not arrive, that is told below.
            let _ = until(name, left, async || reached().position >= end).await;
            let FollowerPlace { position, next } = reached();
            let missing = (0..).zip(next).map(|(writer, next)| {
                let due = state.acknowledged_of(writer) * state.plan.per_append;
                due.saturating_sub(next)
            });
            let missing: u64 = missing.sum();
            if missing > 0 || position < end {
                findings.add(format!(
                    "{name} is at position {position} of {end} and lacks {missing} events at its end"
                ));
            }
        }
    }

    /// Tells everything.
    fn tell(&self, slices: &[Slice], report: &mut Report) {
        let faults = self.state.faults();
        report.finding = verdict(slices);
        report.table(slices::quarters(slices));
        report.table(slices::fault_table(&faults));
        for chart in slices::charts(&faults) {
            report.chart(chart);
        }
        report.table(slices::table(slices));
        let mut errors = BTreeMap::<&str, u64>::new();
        for (kind, count) in slices.iter().flat_map(|slice| &slice.errors) {
            *errors.entry(kind).or_default() += count;
        }
        for (kind, count) in errors {
            let note = "answers and ends of subscriptions that were errors, then tried again";
            report.fact(kind, Unit::Count, count, note);
        }
        let findings = self.state.findings.told();
        let findings = findings.iter().map(|finding| format!("{finding}."));
        report.problems.extend(findings);
        let limits = slices.iter();
        let limits = limits.filter_map(|slice| slice.appends.generator_limit.as_ref());
        if let Some(first) = limits.clone().next() {
            let (some, all) = (limits.count(), slices.len());
            report.caution(format!(
                "In {some} of {all} slices the load generator was the limit: {first}."
            ));
        }
        let behind = slices.last().map_or(0, |last| last.behind) as f64;
        if behind > self.rate.max(1.0) {
            report.caution(format!(
                "The rate could not be kept: {} appends were due at the end and not begun.",
                grouped(behind)
            ));
        }
    }
}

async fn lag(state: Arc<SteadyState>, over: CancellationToken) {
    while !over.is_cancelled() {
        let due = Instant::now() + LAG_LOOK;
        sleep_until(due).await;
        state.count(|live| live.appends.lag.record(due.elapsed()));
    }
}
