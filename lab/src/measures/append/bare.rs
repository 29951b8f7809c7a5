//! What the bare database carries: the append statement in a loop on one connection, without the pipeline.
//!
//! The table is Gesta's own: a store is made, closed, and filled by plain statements. No chain, no expected revisions,
//! no answers to callers: nothing that waits for each answer can be faster with the same rows, indexes, durability and
//! one connection.

mod postgres;
mod sqlite;

use std::time::{Duration, Instant};

use bytes::Bytes;
use gesta_report::failure::{Result, fail};
use gesta_report::host::CpuMeter;
use gesta_report::read_back::ReadBack;
use tokio_util::sync::CancellationToken;

use gesta_load::event_ids::Run;
use gesta_load::random::Random;
use gesta_load::sizes::Sizes;
use gesta_load::target::{Events, GestaTarget, PhaseRun, Target as _};

/// Most bytes of payloads, and most payloads, that are made in advance.
const POOL_BYTES_MAX: usize = 64 << 20;
const POOL_PAYLOADS_MAX: usize = 4_096;

/// What the rows hold; made before the clock starts.
pub(crate) struct Contents {
    run: Run,
    streams: usize,
    seed: u64,
    payloads: Vec<Bytes>,
    pub(crate) metadata: Bytes,
}

impl Contents {
    pub(crate) fn new(sizes: &Sizes, metadata: Bytes, streams: usize, seed: u64) -> Self {
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
    /// Events per commit; one is a plain one-row INSERT.
    pub(crate) events: u32,
    pub(crate) contents: &'a Contents,
    /// Time before the clock starts.
    pub(crate) warm_up: Duration,
    /// Time on the clock.
    pub(crate) duration: Duration,
}

/// Runs it, on whichever database the URL names; an append is a statement with its commit.
pub(crate) async fn measure(
    plan: &Plan<'_>,
    stop: &CancellationToken,
) -> Result<(PhaseRun, ReadBack)> {
    let store = GestaTarget::new(plan.url, Duration::ZERO, None).fresh()?;
    if !store.is_fresh() {
        return fail("the bare statement is for postgres:// and sqlite: stores");
    }
    store.prepare().await?;
    store.close().await?;
    store.settle().await?;
    let measured = match plan.url.starts_with("sqlite:") {
        true => sqlite::measure(plan, store.url(), stop),
        false => postgres::measure(plan, store.url(), stop).await,
    };
    store.remove().await?;
    measured
}

/// Which stream, revision and position the next event has.
struct Places<'a> {
    contents: &'a Contents,
    random: Random,
    revisions: Vec<i64>,
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
            revisions: vec![0; contents.streams],
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
    run: PhaseRun,
    last: Instant,
}

impl Clocked {
    fn start(plan: &Plan<'_>) -> Self {
        let from = Instant::now() + plan.warm_up;
        Self {
            from,
            to: from + plan.duration,
            meter: None,
            run: PhaseRun::default(),
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
        self.run.latencies.record(now - begun);
        self.run.appends += 1;
        self.run.events += u64::from(events);
        self.last = now;
    }

    /// `stored` is what the table holds, `inserted` what was sent.
    fn finish(mut self, stored: i64, inserted: i64) -> (PhaseRun, ReadBack) {
        self.run.complete = Instant::now() >= self.to;
        // An interrupted run ends with its last statement.
        let end = if self.run.complete {
            self.to
        } else {
            self.last
        };
        self.run.seconds = end.saturating_duration_since(self.from).as_secs_f64();
        self.run.cpu = self.meter.map(|meter| meter.used()).unwrap_or_default();
        let read_back = ReadBack {
            acknowledged: inserted.unsigned_abs(),
            found: stored.unsigned_abs(),
            lost: stored.abs_diff(inserted),
            findings: vec!["the table has not the rows that were inserted".into()],
            ..ReadBack::default()
        };
        (self.run, read_back)
    }
}
