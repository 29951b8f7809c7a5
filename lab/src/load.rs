//! Appends under load: waiters that each have one append under way, measured over a window.
//!
//! Without a rate the loop is closed: an append is intended the moment its waiter is free. With a
//! rate each waiter keeps a schedule, and a late start counts as latency.
//! What was acknowledged is remembered, for the read-back check.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use gesta_core::{
    Append, Appended, ErrorKind, EventStore, ExpectedRevision, Position, Revision, StreamId,
};
use serde::Serialize;
use tokio_util::sync::CancellationToken;

use crate::failure::{Result, fail};
use crate::histogram::Latencies;
use crate::host::{CpuMeter, CpuUse};
use crate::units;
use crate::workload::Workload;

/// Pause before an append that the store could not take is tried again.
const RETRY_PAUSE: Duration = Duration::from_millis(10);
/// How long after the end of a run its last appends may take.
const PATIENCE: Duration = Duration::from_secs(60);

/// What writers claim.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Claim {
    /// Nothing; every waiter appends to every stream.
    Any,
    /// The exact revision; each waiter has streams of its own (the first append to each claims nothing).
    Exact,
}

/// The parameters of the load.
#[derive(Debug, Clone, clap::Args, Serialize)]
pub(crate) struct LoadArgs {
    /// Appends under way at once.
    #[arg(long, default_value_t = 40, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub(crate) waiters: u32,
    /// Events per append.
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub(crate) events: u32,
    /// What writers expect of a stream.
    #[arg(long, value_enum, default_value_t = Claim::Any)]
    pub(crate) expected: Claim,
    /// Appends per second, on a schedule, instead of as many as there can be.
    #[arg(long)]
    pub(crate) rate: Option<f64>,
    /// Time before the clock starts.
    #[arg(long, default_value = "2s", value_parser = units::duration)]
    #[serde(skip)]
    pub(crate) warm_up: Duration,
    /// Time on the clock.
    #[arg(long, default_value = "15s", value_parser = units::duration)]
    #[serde(skip)]
    pub(crate) duration: Duration,
}

/// One acknowledged append.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Acknowledged {
    /// Its number in the run; its events are numbered from here times the events per append.
    pub(crate) append: u64,
    /// Index of its stream.
    pub(crate) stream: u32,
    /// Revision of its first event.
    pub(crate) first: Revision,
    /// Position of its last event.
    pub(crate) position: Position,
}

/// What a load did.
#[derive(Debug, Default)]
pub(crate) struct Outcome {
    /// From the intended start to the acknowledgement, inside the window.
    pub(crate) latencies: Latencies,
    /// Appends acknowledged inside the window.
    pub(crate) appends: u64,
    /// Length of the window.
    pub(crate) seconds: f64,
    /// Processor time in the window.
    pub(crate) cpu: CpuUse,
    /// Answers that were errors, by kind; retried if that may help.
    pub(crate) errors: BTreeMap<&'static str, u64>,
    /// Errors that no append of this load deserves, with their text.
    pub(crate) wrongs: Vec<String>,
    /// Everything acknowledged, also outside the window.
    pub(crate) acknowledged: Vec<Acknowledged>,
    /// Appends given up without an answer: they may be stored or not.
    pub(crate) unresolved: Vec<u64>,
    /// False if the run was interrupted.
    pub(crate) complete: bool,
}

/// One name per kind of error.
pub(crate) fn error_name(kind: &ErrorKind) -> &'static str {
    match kind {
        ErrorKind::InvalidArgument { .. } => "invalid_argument",
        ErrorKind::WrongExpectedRevision { .. } => "wrong_expected_revision",
        ErrorKind::StreamNotFound(_) => "stream_not_found",
        ErrorKind::StreamTombstoned(_) => "stream_tombstoned",
        ErrorKind::InvalidCheckpoint(_) => "invalid_checkpoint",
        ErrorKind::Overloaded(_) => "overloaded",
        ErrorKind::Unavailable(_) => "unavailable",
        ErrorKind::OutcomeUnknown(_) => "outcome_unknown",
        ErrorKind::Refused(_) => "refused",
        ErrorKind::Corrupt(_) => "corrupt",
        _ => "other",
    }
}

/// Runs the load on each of `stores`, waiters shared equally; returns one outcome per store.
pub(crate) async fn run(
    stores: &[Arc<dyn EventStore>],
    workload: &Arc<Workload>,
    args: &LoadArgs,
    stop: &CancellationToken,
) -> Result<Vec<Outcome>> {
    let waiters = args.waiters as usize;
    if args.expected == Claim::Exact && workload.streams().len() < waiters {
        return fail("with --expected exact there must be at least one stream per waiter");
    }
    let numbers = Arc::new(AtomicU64::new(0));
    let begin = Instant::now();
    let window = Window {
        from: begin + args.warm_up,
        to: begin + args.warm_up + args.duration,
    };
    // Ends waiters that sleep or retry; an append under way gets `PATIENCE`.
    let over = stop.child_token();
    let tasks: Vec<_> = (0..waiters)
        .map(|number| {
            let waiter = Waiter {
                number,
                waiters,
                store: Arc::clone(&stores[number % stores.len()]),
                workload: Arc::clone(workload),
                args: args.clone(),
                numbers: Arc::clone(&numbers),
                begin,
                window,
                over: over.clone(),
                outcome: Outcome::default(),
            };
            (number % stores.len(), tokio::spawn(waiter.run()))
        })
        .collect();

    sleep_until(window.from, &over).await;
    let meter = CpuMeter::start();
    sleep_until(window.to, &over).await;
    let cpu = meter.used();
    let complete = !over.is_cancelled();
    let end = Instant::now().min(window.to);
    over.cancel();

    let mut outcomes: Vec<Outcome> = stores.iter().map(|_| Outcome::default()).collect();
    for (store, task) in tasks {
        let part = task.await?;
        outcomes[store].add(part);
    }
    for outcome in &mut outcomes {
        outcome.cpu = cpu;
        outcome.complete = complete;
        outcome.seconds = end.saturating_duration_since(window.from).as_secs_f64();
        outcome.acknowledged.sort_unstable_by_key(|a| a.append);
    }
    Ok(outcomes)
}

impl Outcome {
    fn add(&mut self, other: Outcome) {
        self.latencies.merge(&other.latencies);
        self.appends += other.appends;
        for (kind, count) in other.errors {
            *self.errors.entry(kind).or_default() += count;
        }
        self.wrongs.extend(other.wrongs);
        self.acknowledged.extend(other.acknowledged);
        self.unresolved.extend(other.unresolved);
    }

    /// Everything that was acknowledged, refused or left open by any of them.
    pub(crate) fn merged(outcomes: Vec<Outcome>) -> Outcome {
        let mut all = Outcome::default();
        for outcome in outcomes {
            (all.cpu, all.complete, all.seconds) = (outcome.cpu, outcome.complete, outcome.seconds);
            all.add(outcome);
        }
        all.acknowledged.sort_unstable_by_key(|a| a.append);
        all
    }

    /// Appends per second in the window; 0 if there was none.
    #[expect(clippy::cast_precision_loss, reason = "counts of minutes fit")]
    pub(crate) fn appends_per_second(&self) -> f64 {
        if self.seconds <= 0.0 {
            return 0.0;
        }
        self.appends as f64 / self.seconds
    }
}

async fn sleep_until(moment: Instant, over: &CancellationToken) {
    tokio::select! {
        () = tokio::time::sleep_until(moment.into()) => {}
        () = over.cancelled() => {}
    }
}

#[derive(Clone, Copy)]
struct Window {
    from: Instant,
    to: Instant,
}

struct Waiter {
    number: usize,
    waiters: usize,
    store: Arc<dyn EventStore>,
    workload: Arc<Workload>,
    args: LoadArgs,
    numbers: Arc<AtomicU64>,
    begin: Instant,
    window: Window,
    over: CancellationToken,
    outcome: Outcome,
}

impl Waiter {
    async fn run(mut self) -> Outcome {
        let mut choices = self.workload.choices(self.number);
        let streams = self.workload.streams().len();
        // With exact claims: streams number, number + waiters, … are this waiter's alone.
        let own = (streams - self.number.min(streams)).div_ceil(self.waiters);
        let mut heads: Vec<Option<Revision>> = match self.args.expected {
            Claim::Any => Vec::new(),
            Claim::Exact => vec![None; own],
        };
        let mut turn = 0_u32;
        loop {
            let Some(intended) = self.next_start(turn).await else {
                return self.outcome;
            };
            turn = turn.wrapping_add(1);
            let (stream, expected, own_index) = match self.args.expected {
                Claim::Any => (choices.below(streams), ExpectedRevision::Any, None),
                Claim::Exact => {
                    let i = choices.below(own);
                    let expected = heads[i].map_or(ExpectedRevision::Any, ExpectedRevision::Exact);
                    (self.number + i * self.waiters, expected, Some(i))
                }
            };
            let last = self.append(stream, expected, intended).await;
            if let Some(i) = own_index {
                // After a wrong answer the next append to this stream claims nothing.
                heads[i] = last;
            }
        }
    }

    /// Waits for the next intended start; `None` when the run is over.
    async fn next_start(&self, turn: u32) -> Option<Instant> {
        let now = Instant::now();
        let Some(rate) = self.args.rate.filter(|rate| *rate > 0.0) else {
            return (now < self.window.to && !self.over.is_cancelled()).then_some(now);
        };
        #[expect(clippy::cast_precision_loss, reason = "small counts")]
        let interval = self.waiters as f64 / rate;
        #[expect(clippy::cast_precision_loss, reason = "small counts")]
        let phase = self.number as f64 / self.waiters as f64;
        let start = self.begin + Duration::from_secs_f64((f64::from(turn) + phase) * interval);
        if start >= self.window.to {
            return None;
        }
        sleep_until(start, &self.over).await;
        (!self.over.is_cancelled()).then_some(start)
    }

    /// Appends until there is an answer; returns the stream's last revision if it was stored.
    async fn append(
        &mut self,
        stream: usize,
        expected: ExpectedRevision,
        intended: Instant,
    ) -> Option<Revision> {
        let append = self.numbers.fetch_add(1, Ordering::Relaxed);
        let request = self.request(append, self.workload.streams()[stream].clone(), expected);
        loop {
            let answer = tokio::select! {
                biased;
                answer = self.store.append(request.clone()) => answer,
                () = self.given_up() => {
                    self.outcome.unresolved.push(append);
                    return None;
                }
            };
            match answer {
                Ok(appended) => return Some(self.acknowledge(append, stream, intended, &appended)),
                Err(error) => {
                    let name = error_name(error.kind());
                    *self.outcome.errors.entry(name).or_default() += 1;
                    if !error.is_retryable() {
                        self.outcome.wrongs.push(error.to_string());
                        return None;
                    }
                    if self.over.is_cancelled() {
                        self.outcome.unresolved.push(append);
                        return None;
                    }
                    sleep_until(Instant::now() + RETRY_PAUSE, &self.over).await;
                }
            }
        }
    }

    fn request(&self, append: u64, stream: StreamId, expected: ExpectedRevision) -> Append {
        let events = u64::from(self.args.events);
        let events = (append * events..(append + 1) * events)
            .map(|number| self.workload.event(number))
            .collect();
        Append::to(stream, expected, events)
    }

    async fn given_up(&self) {
        self.over.cancelled().await;
        tokio::time::sleep(PATIENCE).await;
    }

    fn acknowledge(
        &mut self,
        append: u64,
        stream: usize,
        intended: Instant,
        appended: &Appended,
    ) -> Revision {
        let now = Instant::now();
        if now >= self.window.from && now < self.window.to && !self.over.is_cancelled() {
            self.outcome.latencies.record(now - intended);
            self.outcome.appends += 1;
        }
        let place = &appended.streams[0];
        self.outcome.acknowledged.push(Acknowledged {
            append,
            stream: u32::try_from(stream).expect("streams are counted in 32 bits"),
            first: place.first_revision,
            position: appended.position,
        });
        place.last_revision
    }
}
