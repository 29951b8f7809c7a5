//! What the bare database carries: the append statement in a loop on one connection, without the pipeline.
//!
//! The table is Gesta's own: a store is made, closed, and filled by plain statements. No chain, no expected revisions, no
//! answers to callers: nothing that waits for each answer can be faster with the same rows, indexes, durability and one
//! connection.

mod postgres;
mod sqlite;

use std::time::{Duration, Instant};

use bytes::Bytes;
use tokio_util::sync::CancellationToken;

use crate::failure::{Result, fail};
use crate::histogram::{Latencies, Percentiles};
use crate::host::{CpuMeter, CpuUse};
use crate::random::Random;
use crate::run::Run;
use crate::sizes::Sizes;
use crate::target::{Events, GestaTarget, Target as _};

/// How batches are inserted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Form {
    /// Many rows per commit.
    Batch(u32),
    /// One row, one statement, one commit.
    BareInsert,
}

impl Form {
    /// Events per commit.
    pub(crate) fn events(self) -> u32 {
        match self {
            Form::Batch(events) => events,
            Form::BareInsert => 1,
        }
    }
}

/// Most bytes of payloads, and most payloads, that are made in advance.
const POOL_BYTES_MAX: usize = 64 << 20;
const POOL_PAYLOADS_MAX: usize = 4_096;

/// What the rows hold; made before the clock starts.
pub(crate) struct Contents {
    run: Run,
    streams: u32,
    seed: u64,
    payloads: Vec<Bytes>,
    pub(crate) metadata: Bytes,
}

impl Contents {
    pub(crate) fn new(sizes: &Sizes, metadata: Bytes, streams: u32, seed: u64) -> Self {
        let count = (POOL_BYTES_MAX / sizes.largest().max(1)).clamp(1, POOL_PAYLOADS_MAX);
        let events = Events::new(sizes.clone(), 1, seed);
        let made = events.stream(0, 0).events(0..count as u64);
        Self {
            run: Run::random(),
            streams,
            seed,
            payloads: made.into_iter().map(|event| event.data).collect(),
            metadata,
        }
    }
}

/// What to run.
pub(crate) struct Plan<'a> {
    /// URL of the measured store, beside which the table is made.
    pub(crate) url: &'a str,
    /// How.
    pub(crate) form: Form,
    pub(crate) contents: &'a Contents,
    /// Time before the clock starts.
    pub(crate) warm_up: Duration,
    /// Time on the clock.
    pub(crate) duration: Duration,
}

/// What the bare database did.
#[derive(Debug, Clone)]
pub(crate) struct Bare {
    /// Rate.
    pub(crate) events_per_second: f64,
    /// Events inserted on the clock.
    pub(crate) events: u64,
    /// Length of the window.
    pub(crate) seconds: f64,
    /// Time of one statement with its commit.
    pub(crate) latency_ms: Percentiles,
    /// Processor time.
    pub(crate) cpu: CpuUse,
    /// Rows found afterwards are those inserted.
    pub(crate) valid: bool,
}

/// Runs it, on whichever database the URL names.
pub(crate) async fn measure(plan: &Plan<'_>, stop: &CancellationToken) -> Result<Bare> {
    let store = GestaTarget::new(plan.url, Duration::ZERO, None).fresh()?;
    if !store.is_fresh() {
        return fail("the bare statement is for postgres:// and sqlite: stores");
    }
    store.prepare().await?;
    store.close().await?;
    store.settle().await?;
    let bare = match plan.url.starts_with("sqlite:") {
        true => sqlite::measure(plan, store.url(), stop),
        false => postgres::measure(plan, store.url(), stop).await,
    };
    store.remove().await?;
    bare
}

/// Which stream, revision and position the next event has.
struct Places<'a> {
    contents: &'a Contents,
    random: Random,
    revisions: Vec<i64>,
    /// Events so far.
    position: i64,
}

/// One event for the table.
struct Row<'a> {
    position: i64,
    stream: i64,
    revision: i64,
    /// As wide and as random as a real one.
    checksum: i64,
    id: uuid::Uuid,
    data: &'a [u8],
}

impl<'a> Places<'a> {
    fn new(contents: &'a Contents) -> Self {
        Self {
            contents,
            random: Random::fork(contents.seed, 1_000),
            revisions: vec![0; contents.streams as usize],
            position: 0,
        }
    }

    fn next(&mut self) -> Row<'a> {
        let stream = self.random.below(self.revisions.len());
        let revision = self.revisions[stream];
        self.revisions[stream] += 1;
        self.position += 1;
        let number = self.position.unsigned_abs();
        let payloads = &self.contents.payloads;
        Row {
            position: self.position,
            stream: i64::try_from(stream).expect("streams are counted in 32 bits"),
            revision,
            checksum: self.random.next().cast_signed(),
            id: self.contents.run.event_id(number).0,
            data: &payloads[self.random.below(payloads.len())],
        }
    }
}

/// Counts what happens on the clock.
struct Clocked {
    from: Instant,
    to: Instant,
    meter: Option<CpuMeter>,
    latencies: Latencies,
    events: u64,
    last: Instant,
}

impl Clocked {
    fn start(plan: &Plan<'_>) -> Self {
        let from = Instant::now() + plan.warm_up;
        Self {
            from,
            to: from + plan.duration,
            meter: None,
            latencies: Latencies::default(),
            events: 0,
            last: from,
        }
    }

    fn is_over(&self, stop: &CancellationToken) -> bool {
        Instant::now() >= self.to || stop.is_cancelled()
    }

    fn add(&mut self, begun: Instant, events: u32) {
        let now = Instant::now();
        if now < self.from || now >= self.to {
            return;
        }
        self.meter.get_or_insert_with(CpuMeter::start);
        self.latencies.record(now - begun);
        self.events += u64::from(events);
        self.last = now;
    }

    /// `stored` is what the table holds, `inserted` what was sent.
    fn finish(self, stored: i64, inserted: i64) -> Bare {
        // An interrupted run ends with its last statement.
        let end = if Instant::now() >= self.to {
            self.to
        } else {
            self.last
        };
        let seconds = end.saturating_duration_since(self.from).as_secs_f64();
        let rate = if seconds > 0.0 {
            self.events as f64 / seconds
        } else {
            0.0
        };
        Bare {
            events_per_second: rate.round(),
            events: self.events,
            seconds,
            latency_ms: self.latencies.percentiles(),
            cpu: self.meter.map(|meter| meter.used()).unwrap_or_default(),
            valid: stored == inserted,
        }
    }
}
