//! Load on a target: so many workers, each with a connection of its own and one append under way.
//!
//! In a closed loop an append is intended the moment its worker is free; making its events comes before. Each worker
//! makes at least one append there, however late it comes to it, so that every run stores something. With a rate each
//! worker keeps a schedule, and a late start counts as latency. What was acknowledged is claimed, for the check. The
//! machine and this process are watched meanwhile: processor time, and how late this process's own timers are, so that
//! a figure of the generator is not taken for one of the target.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use futures::future::BoxFuture;
use gesta_report::failure::{Context, Failure, Result, fail};
use gesta_report::histogram::{Latencies, Percentiles};
use gesta_report::host::{CpuMeter, CpuUse};
use gesta_report::{Cell, Unit, causes};
use serde::{Deserialize, Serialize};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::{Append, AppendError, Claims, Events, Session, Target};
use crate::counters::{DatabaseFigures, Watch};

/// Pause before an append is tried again.
const RETRY_PAUSE: Duration = Duration::from_millis(1);
/// Failures in a row after which a worker gives up.
const FAILURES_MAX: u32 = 10;
/// Pause after a failure.
const FAILURE_PAUSE: Duration = Duration::from_millis(20);
/// How long after the end an append may still take.
const PATIENCE: Duration = Duration::from_secs(60);
/// Sessions that are opened at the same time.
const CONNECTING_MAX: usize = 20;
/// How often this process looks how late it is.
const LOOK: Duration = Duration::from_millis(5);

/// A cause of another try that leaves open whether the append is stored.
pub(super) const OUTCOME_UNKNOWN: &str = "outcome_unknown";

/// A share of all cores above which the generator is the limit, if the target is not in the same process.
const OWN_SHARE_MAX: f64 = 0.9;
/// A generator whose timers are later than this and than a third of the p99 is the limit.
const LAG_MS_MAX: f64 = 10.0;

/// What to run.
#[derive(Debug, Clone, Copy)]
pub struct Load {
    /// Number of the first worker; no other phase of the run may use the same numbers.
    pub first_worker: u32,
    /// Workers, each with a connection.
    pub workers: u32,
    /// Events per append.
    pub events: u64,
    /// Events per stream; then the worker goes on with a new stream. A multiple of `events`, at most 4,096.
    pub events_per_stream: u64,
    /// Streams that a worker fills by turns.
    pub streams: u32,
    /// Appends per second of all workers together, on a schedule; none: a closed loop.
    pub rate: Option<f64>,
    /// Time before the clock starts.
    pub warm_up: Duration,
    /// Time on the clock.
    pub duration: Duration,
}

/// Who looks on while a load runs.
pub trait Observer: Send + Sync {
    /// A worker began its append of this number.
    fn begun(&self, worker: u32, n: u64);

    /// It was acknowledged; this attempt of it was begun at `begun`.
    fn acknowledged(&self, worker: u32, n: u64, intended: Instant, begun: Instant);

    /// An attempt of it ended in an error that passes.
    fn retried(&self, cause: &str);

    /// It was refused for good.
    fn refused(&self, worker: u32, cause: &str);
}

/// What goes on beside a load.
#[derive(Default)]
pub struct Beside<'a> {
    /// Who looks on.
    pub observer: Option<Arc<dyn Observer>>,
    /// The database that is watched.
    pub database: Option<&'a Watch>,
    /// Awaited when all workers have connected, before the clock begins.
    pub start: Option<BoxFuture<'a, Result<()>>>,
}

/// What a phase did.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct PhaseRun {
    /// Latencies on the clock, retries included.
    pub latencies: Latencies,
    /// Appends acknowledged on the clock.
    pub appends: u64,
    /// Their events.
    pub events: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Length of the window.
    pub seconds: f64,
    /// Tries that were told to try again, by cause.
    pub retries: BTreeMap<String, u64>,
    /// Appends that failed, by cause.
    pub errors: BTreeMap<String, u64>,
    /// Processor time.
    pub cpu: CpuUse,
    /// What the database did, if it was watched.
    #[serde(default)]
    pub database: Option<DatabaseFigures>,
    /// How late timers of this process were.
    pub lag: Latencies,
    /// Workers that gave up.
    pub gave_up: u32,
    /// False if it was interrupted.
    pub complete: bool,
}

/// A phase as it is reported.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct Phase {
    /// Workers.
    pub connections: u32,
    /// Rate.
    pub events_per_second: f64,
    /// Rate.
    pub appends_per_second: f64,
    /// Length of the window.
    pub seconds: f64,
    /// Latency of an append.
    pub latency_ms: Percentiles,
    /// Tries that were told to try again, by cause.
    pub retries: BTreeMap<String, u64>,
    /// Appends that failed, by cause.
    pub errors: BTreeMap<String, u64>,
    /// Processor time.
    pub cpu: CpuUse,
    /// What the database did, if it was watched.
    #[serde(default)]
    pub database: Option<DatabaseFigures>,
    /// How late timers of the generator were.
    pub lag_ms: Percentiles,
    /// Why the generator was the limit, if it was.
    pub generator_limit: Option<String>,
    /// False if it was interrupted.
    pub complete: bool,
}

impl Phase {
    /// The columns of a table of phases.
    pub const COLUMNS: [(&'static str, Unit); 11] = [
        ("events/s", Unit::Count),
        ("p50", Unit::Millis),
        ("p99", Unit::Millis),
        ("p99.9", Unit::Millis),
        ("p99.99", Unit::Millis),
        ("longest", Unit::Millis),
        ("cores busy", Unit::Cores),
        ("generator late (p99)", Unit::Millis),
        ("tried again", Unit::Words),
        ("errors", Unit::Words),
        ("generator", Unit::Words),
    ];

    /// The cells of these columns.
    #[must_use]
    pub fn cells(&self) -> Vec<Cell> {
        let latency = Some(self.latency_ms).filter(|latency| latency.count > 0);
        gesta_report::cells![
            self.events_per_second,
            latency.map(|latency| latency.p50),
            latency.map(|latency| latency.p99),
            latency.map(|latency| latency.p999),
            latency.map(|latency| latency.p9999),
            latency.map(|latency| latency.max),
            self.cpu.machine_cores,
            self.lag_ms.p99,
            causes(&self.retries),
            causes(&self.errors),
            self.generator_limit.as_ref(),
        ]
    }

    /// Rate and latency in a few words.
    #[must_use]
    pub fn told(&self) -> String {
        let latency = &self.latency_ms;
        let rate = Unit::Count.told(self.events_per_second);
        let [p50, p99] = [latency.p50, latency.p99].map(|value| Unit::Millis.told(value));
        format!("{rate} events/s, p50 {p50}, p99 {p99}")
    }
}

impl PhaseRun {
    /// Adds what another worker did in the same phase.
    pub fn add(&mut self, other: PhaseRun) {
        self.latencies.merge(&other.latencies);
        self.appends += other.appends;
        self.events += other.events;
        self.bytes += other.bytes;
        for (all, more) in [
            (&mut self.retries, other.retries),
            (&mut self.errors, other.errors),
        ] {
            for (cause, count) in more {
                *all.entry(cause).or_default() += count;
            }
        }
        self.gave_up += other.gave_up;
    }

    /// The figures. `embedded`: the target works in the generator's process, whose processor time is then not the
    /// generator's.
    #[must_use]
    pub fn figures(&self, connections: u32, embedded: bool) -> Phase {
        let per_second = |count: u64| match self.seconds {
            seconds if seconds > 0.0 => ((count as f64) / seconds).round(),
            _ => 0.0,
        };
        let (latency_ms, lag_ms) = (self.latencies.percentiles(), self.lag.percentiles());
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let own = self.cpu.own_cores;
        let generator_limit = if !embedded && own > OWN_SHARE_MAX * cores as f64 {
            Some(format!("the generator used {own:.1} of {cores} cores"))
        } else {
            let is_late = lag_ms.p99 > LAG_MS_MAX && lag_ms.p99 * 3.0 > latency_ms.p99;
            is_late.then(|| format!("the generator was {:.0} ms late (p99)", lag_ms.p99))
        };
        Phase {
            connections,
            events_per_second: per_second(self.events),
            appends_per_second: per_second(self.appends),
            seconds: self.seconds,
            latency_ms,
            retries: self.retries.clone(),
            errors: self.errors.clone(),
            cpu: self.cpu,
            database: self.database.clone(),
            lag_ms,
            generator_limit,
            complete: self.complete,
        }
    }
}

/// Runs the load; returns what it did and what it claims to have stored.
///
/// # Errors
/// A worker cannot connect, or the load's numbers do not fit each other.
pub async fn run(
    target: &Arc<dyn Target>,
    events: &Arc<Events>,
    load: &Load,
    stop: &CancellationToken,
) -> Result<(PhaseRun, Claims)> {
    let targets = std::slice::from_ref(target);
    let (runs, claims) = run_all(targets, events, load, Beside::default(), stop).await?;
    Ok((runs.into_iter().next().unwrap_or_default(), claims))
}

/// Runs the load on several targets, which store to the same place; workers are shared equally. One run per target; the
/// first has what the database did, if that is watched.
///
/// # Errors
/// As [`run`].
pub async fn run_all(
    targets: &[Arc<dyn Target>],
    events: &Arc<Events>,
    load: &Load,
    beside: Beside<'_>,
    stop: &CancellationToken,
) -> Result<(Vec<PhaseRun>, Claims)> {
    if load.events == 0
        || !load.events_per_stream.is_multiple_of(load.events)
        || load.events_per_stream > 4_096
    {
        return fail(format!(
            "{} events per stream: must be a multiple of {} events per append and at most 4096",
            load.events_per_stream, load.events
        ));
    }
    let sessions = connect(targets, load.workers).await?;
    if let Some(start) = beside.start {
        start.await?;
    }
    let begin = Instant::now();
    let clock = Clock {
        begin,
        from: begin + load.warm_up,
        to: begin + load.warm_up + load.duration,
        over: stop.child_token(),
    };
    let mut tasks = Vec::new();
    for ((target, session), number) in sessions.into_iter().zip(load.first_worker..) {
        let worker = Loop {
            target: Arc::clone(&targets[target]),
            session,
            events: Arc::clone(events),
            load: *load,
            clock: clock.clone(),
            number,
            observer: beside.observer.clone(),
            run: PhaseRun::default(),
            claims: Claims::default(),
            failures: 0,
        };
        tasks.push((target, tokio::spawn(worker.run())));
    }
    let (cpu, lag, counted) = watch(&clock, beside.database).await;
    let complete = !clock.over.is_cancelled();
    let end = Instant::now().min(clock.to);
    clock.over.cancel();
    let (mut runs, mut claims) = (vec![PhaseRun::default(); targets.len()], Claims::default());
    for (target, task) in tasks {
        let (run, claimed) = task.await?;
        runs[target].add(run);
        claims.add(claimed);
    }
    for run in &mut runs {
        run.complete = complete;
        run.seconds = end.saturating_duration_since(clock.from).as_secs_f64();
        (run.cpu, run.lag) = (cpu, lag.clone());
    }
    runs[0].database = counted;
    Ok((runs, claims))
}

/// The number of a target, and a session with it.
type Connected = (usize, Box<dyn Session>);

/// A session for each worker, some at a time: one after the other would take minutes at a distance.
pub async fn connect(targets: &[Arc<dyn Target>], workers: u32) -> Result<Vec<Connected>> {
    let mut sessions = Vec::new();
    let numbers: Vec<usize> = (0..workers as usize).collect();
    for some in numbers.chunks(CONNECTING_MAX) {
        let mut connecting = tokio::task::JoinSet::new();
        for number in some {
            let at = number % targets.len();
            let target = Arc::clone(&targets[at]);
            connecting.spawn(async move { Ok::<_, Failure>((at, target.connect().await?)) });
        }
        while let Some(session) = connecting.join_next().await {
            sessions.push(session?.context(targets[0].name())?);
        }
    }
    Ok(sessions)
}

#[derive(Clone)]
struct Clock {
    begin: Instant,
    from: Instant,
    to: Instant,
    /// Ends pauses; an append under way gets [`PATIENCE`].
    over: CancellationToken,
}

/// Waits for the end of the window and looks at this process and the database meanwhile.
async fn watch(
    clock: &Clock,
    database: Option<&Watch>,
) -> (CpuUse, Latencies, Option<DatabaseFigures>) {
    let mut lag = Latencies::default();
    let until = |moment: Instant| async move {
        tokio::select! {
            () = tokio::time::sleep_until(moment) => true,
            () = clock.over.cancelled() => false,
        }
    };
    if !until(clock.from).await {
        return (CpuUse::default(), lag, None);
    }
    let meter = CpuMeter::start();
    // A database that does not answer now does not end the run.
    let before = match database {
        Some(database) => database.look().await.ok(),
        None => None,
    };
    while Instant::now() < clock.to {
        let next = (Instant::now() + LOOK).min(clock.to);
        if !until(next).await {
            break;
        }
        lag.record(next.elapsed());
    }
    let used = meter.used();
    let counted = match database.zip(before) {
        Some((database, before)) => database.since(&before).await.ok(),
        None => None,
    };
    (used, lag, counted)
}

struct Loop {
    target: Arc<dyn Target>,
    session: Box<dyn Session>,
    events: Arc<Events>,
    load: Load,
    clock: Clock,
    number: u32,
    observer: Option<Arc<dyn Observer>>,
    run: PhaseRun,
    claims: Claims,
    /// In a row.
    failures: u32,
}

/// A stream of a worker and the number of its events.
struct Filling {
    stream: u32,
    events: u64,
}

impl Loop {
    async fn run(mut self) -> (PhaseRun, Claims) {
        let worker = self.number;
        let (events, clock, load) = (Arc::clone(&self.events), self.clock.clone(), self.load);
        let mut next_stream = 0;
        let mut fresh = || {
            let stream = next_stream;
            next_stream += 1;
            Filling { stream, events: 0 }
        };
        let mut filling: Vec<Filling> = (0..self.load.streams.max(1)).map(|_| fresh()).collect();
        for (round, turn) in (0_u64..).zip((0..filling.len()).cycle()) {
            let Some(intended) = clock.next_start(&load, worker, round).await else {
                break;
            };
            let at = &mut filling[turn];
            let stream = events.stream(worker, at.stream);
            let batch = stream.events(at.events..at.events + self.load.events);
            let append = Append {
                stream: &stream.name,
                revision: at.events,
                events: &batch,
            };
            let intended = intended.unwrap_or_else(Instant::now);
            if let Some(observer) = &self.observer {
                observer.begun(worker, round);
            }
            let stored = self.append(stream.number, &append, intended).await;
            if let (Some(observer), Some(begun)) = (&self.observer, stored) {
                observer.acknowledged(worker, round, intended, begun);
            }
            at.events += self.load.events;
            if stored.is_none() || at.events >= self.load.events_per_stream {
                *at = fresh();
            }
            if self.failures >= FAILURES_MAX {
                self.run.gave_up = 1;
                break;
            }
        }
        (self.run, self.claims)
    }

    /// Appends until there is an answer; when the attempt began that was acknowledged.
    async fn append(
        &mut self,
        number: u64,
        append: &Append<'_>,
        intended: Instant,
    ) -> Option<Instant> {
        let events = append.events.len() as u64;
        let after = append.revision + events;
        self.claims.sent(number, after);
        let mut is_open = false;
        loop {
            let begun = Instant::now();
            let answer = tokio::select! {
                biased;
                answer = self.session.append(append) => answer,
                () = self.clock.given_up() => Err(AppendError::Unknown("no answer".into())),
            };
            match answer {
                Ok(()) => {
                    self.claims.acknowledged(number, after);
                    if let Some(place) = self.session.place() {
                        self.claims.placed(number, append.revision, events, place);
                    }
                    self.acknowledge(append, intended);
                    return Some(begun);
                }
                Err(AppendError::Retry(cause)) => {
                    is_open |= cause == OUTCOME_UNKNOWN;
                    if let Some(observer) = &self.observer {
                        observer.retried(&cause);
                    }
                    *self.run.retries.entry(cause).or_default() += 1;
                    if self.clock.over.is_cancelled() {
                        if !is_open {
                            self.claims.refused(number, append.revision);
                        }
                        return None;
                    }
                    tokio::time::sleep(RETRY_PAUSE).await;
                }
                Err(AppendError::Failed(cause)) => {
                    if let Some(observer) = &self.observer {
                        observer.refused(self.number, &cause);
                    }
                    self.claims.refused(number, append.revision);
                    self.fail(cause).await;
                    return None;
                }
                Err(AppendError::Unknown(cause)) => {
                    self.fail(cause).await;
                    if let Ok(session) = self.target.connect().await {
                        self.session = session;
                    }
                    return None;
                }
            }
        }
    }

    async fn fail(&mut self, cause: String) {
        *self.run.errors.entry(cause).or_default() += 1;
        self.failures += 1;
        tokio::select! {
            () = tokio::time::sleep(FAILURE_PAUSE) => {}
            () = self.clock.over.cancelled() => {}
        }
    }

    fn acknowledge(&mut self, append: &Append<'_>, intended: Instant) {
        self.failures = 0;
        let now = Instant::now();
        if now < self.clock.from || now >= self.clock.to || self.clock.over.is_cancelled() {
            return;
        }
        self.run.latencies.record(now - intended);
        self.run.appends += 1;
        self.run.events += append.events.len() as u64;
        let bytes = append.events.iter().map(|event| event.data.len() as u64);
        self.run.bytes += bytes.sum::<u64>();
    }
}

impl Clock {
    /// Waits until the worker may begin its next append: `Some(None)` is now. `None` when the run is over; in a closed
    /// loop that is never before its first append.
    async fn next_start(&self, load: &Load, worker: u32, round: u64) -> Option<Option<Instant>> {
        let Some(rate) = load.rate else {
            let over = Instant::now() >= self.to || self.over.is_cancelled();
            return (round == 0 || !over).then_some(None);
        };
        let workers = f64::from(load.workers);
        let phase = f64::from(worker - load.first_worker) / workers;
        let after = ((round as f64) + phase) * workers / rate;
        let start = self.begin + Duration::from_secs_f64(after);
        if start >= self.to {
            return None;
        }
        tokio::select! {
            () = tokio::time::sleep_until(start) => Some(Some(start)),
            () = self.over.cancelled() => None,
        }
    }

    async fn given_up(&self) {
        self.over.cancelled().await;
        tokio::time::sleep(PATIENCE).await;
    }
}
