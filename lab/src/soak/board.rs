//! What all parts of a soak share: the slice under way, how far each writer is, findings, faults.

use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::Instant;

use super::plan::Plan;
use super::slices::FaultLine;
use crate::histogram::Latencies;
use crate::target::{Observer, PhaseRun};

/// Acknowledgements whose time is remembered, per writer, for the time until delivery.
const ACKNOWLEDGEMENTS_KEPT: usize = 256;
/// Most findings that are told in words.
const FINDINGS_MAX: usize = 20;

/// What is counted in a slice.
#[derive(Debug, Default)]
pub(super) struct Live {
    pub(super) appends: PhaseRun,
    pub(super) reads: Latencies,
    pub(super) deliveries: Latencies,
    pub(super) errors: BTreeMap<String, u64>,
}

/// How far a writer is.
#[derive(Debug, Default)]
struct Progress {
    /// Appends acknowledged: those below this.
    acknowledged: AtomicU64,
    /// The last of them, with their moments.
    moments: Mutex<VecDeque<(u64, Instant)>>,
}

/// The board.
#[derive(Debug)]
pub(super) struct Board {
    pub(super) plan: Plan,
    begin: Mutex<Instant>,
    live: Mutex<Live>,
    writers: Vec<Progress>,
    begun: AtomicU64,
    events: AtomicU64,
    /// Told when so many events were acknowledged.
    events_wanted: u64,
    pub(super) enough: Notify,
    newest_begun_micros: AtomicU64,
    faults: Mutex<Vec<FaultLine>>,
    findings: Mutex<(Vec<String>, u64)>,
    quiet: AtomicBool,
}

impl Observer for Board {
    fn begun(&self, _: u32, _: u64) {
        self.begun.fetch_add(1, Ordering::Relaxed);
    }

    fn acknowledged(&self, worker: u32, n: u64, intended: Instant, begun: Instant) {
        let now = Instant::now();
        let progress = &self.writers[worker as usize];
        {
            let mut moments = lock(&progress.moments);
            if moments.len() == ACKNOWLEDGEMENTS_KEPT {
                moments.pop_front();
            }
            moments.push_back((n, now));
            progress.acknowledged.store(n + 1, Ordering::Release);
        }
        let micros = begun.saturating_duration_since(self.begin()).as_micros();
        let micros = u64::try_from(micros).unwrap_or(u64::MAX);
        self.newest_begun_micros.fetch_max(micros, Ordering::AcqRel);
        let per_append = self.plan.per_append;
        self.count(|live| {
            live.appends.latencies.record(now - intended);
            live.appends.appends += 1;
            live.appends.events += per_append;
        });
        let events = self.events.fetch_add(per_append, Ordering::AcqRel) + per_append;
        if events >= self.events_wanted {
            self.enough.notify_one();
        }
    }

    fn retried(&self, cause: &str) {
        self.error(&format!("append {cause}"));
    }

    fn refused(&self, worker: u32, cause: &str) {
        self.finding(format!("writer {worker}: refused wrongly: {cause}"));
    }
}

impl Board {
    pub(super) fn new(plan: Plan, writers: u32, events_wanted: Option<u64>) -> Arc<Self> {
        Arc::new(Self {
            plan,
            begin: Mutex::new(Instant::now()),
            live: Mutex::default(),
            writers: (0..writers).map(|_| Progress::default()).collect(),
            begun: AtomicU64::new(0),
            events: AtomicU64::new(0),
            events_wanted: events_wanted.unwrap_or(u64::MAX),
            enough: Notify::new(),
            newest_begun_micros: AtomicU64::new(0),
            faults: Mutex::default(),
            findings: Mutex::default(),
            quiet: AtomicBool::new(false),
        })
    }

    /// The load begins now, from nothing as far as slices are concerned.
    pub(super) fn start(&self) {
        *lock(&self.begin) = Instant::now();
        self.begun.store(0, Ordering::Relaxed);
        self.newest_begun_micros.store(0, Ordering::Relaxed);
        self.take();
    }

    /// When the load began.
    pub(super) fn begin(&self) -> Instant {
        *lock(&self.begin)
    }

    /// The load is over: what is acknowledged from now on belongs to no slice.
    pub(super) fn close(&self) {
        self.quiet.store(true, Ordering::Relaxed);
    }

    /// Counts something in the slice under way.
    pub(super) fn count(&self, count: impl FnOnce(&mut Live)) {
        if !self.quiet.load(Ordering::Relaxed) {
            count(&mut lock(&self.live));
        }
    }

    /// Counts an error that passes.
    pub(super) fn error(&self, what: &str) {
        self.count(|live| *live.errors.entry(what.to_owned()).or_default() += 1);
    }

    /// What the slice that ends now has.
    pub(super) fn take(&self) -> Live {
        std::mem::take(&mut *lock(&self.live))
    }

    /// Appends begun since the start.
    pub(super) fn appends_begun(&self) -> u64 {
        self.begun.load(Ordering::Relaxed)
    }

    /// Events acknowledged, those of the search for the peak too.
    pub(super) fn events(&self) -> u64 {
        self.events.load(Ordering::Acquire)
    }

    /// Appends of a writer that were acknowledged: those below this.
    pub(super) fn acknowledged_of(&self, writer: u32) -> u64 {
        self.writers[writer as usize]
            .acknowledged
            .load(Ordering::Acquire)
    }

    /// Number of writers, those of the search for the peak too.
    pub(super) fn writers(&self) -> u32 {
        u32::try_from(self.writers.len()).expect("counted in 32 bits")
    }

    /// When the newest append that was acknowledged had begun, from the beginning of the load.
    pub(super) fn newest_begun(&self) -> Duration {
        Duration::from_micros(self.newest_begun_micros.load(Ordering::Acquire))
    }

    /// Append `n` of a writer has reached a live subscriber.
    pub(super) fn delivered(&self, writer: u32, n: u64) {
        let late = {
            let moments = lock(&self.writers[writer as usize].moments);
            // Older than all that is remembered: at least as late as the oldest.
            match moments.binary_search_by_key(&n, |(n, _)| *n) {
                Ok(i) => Some(moments[i].1),
                Err(0) => moments.front().map(|(_, moment)| *moment),
                Err(_) => None,
            }
        };
        let late = late.map_or(Duration::ZERO, |moment| moment.elapsed());
        self.count(|live| live.deliveries.record(late));
    }

    /// A fault began; returns its number.
    pub(super) fn fault_began(&self, kind: &str) -> usize {
        let mut faults = lock(&self.faults);
        faults.push(FaultLine {
            at_seconds: self.begin().elapsed().as_secs_f64(),
            kind: kind.to_owned(),
            healed_after_seconds: None,
        });
        faults.len() - 1
    }

    /// An append was acknowledged that began after the fault.
    pub(super) fn fault_healed(&self, number: usize) {
        let now = self.begin().elapsed().as_secs_f64();
        let fault = &mut lock(&self.faults)[number];
        fault.healed_after_seconds = Some(now - fault.at_seconds);
    }

    /// All faults so far.
    pub(super) fn faults(&self) -> Vec<FaultLine> {
        lock(&self.faults).clone()
    }

    /// Something was wrong.
    pub(super) fn finding(&self, text: String) {
        let (told, count) = &mut *lock(&self.findings);
        *count += 1;
        if told.len() < FINDINGS_MAX {
            eprintln!("  WRONG: {text}");
            told.push(text);
        }
    }

    /// The first findings, and how many there are.
    pub(super) fn findings(&self) -> (Vec<String>, u64) {
        lock(&self.findings).clone()
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().expect("no panic under the lock")
}
