//! What all parts of a steady load share: the slice under way, how far each writer is, findings, faults.

use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use gesta_load::target::{Observer, PhaseRun};
use gesta_report::histogram::Latencies;
use tokio::sync::Notify;
use tokio::time::Instant;

use super::plan::Plan;
use super::slices::FaultLine;
use crate::load::appends::record::Findings;

/// Acknowledgements whose time is remembered, per writer, for the time until delivery.
const ACKNOWLEDGEMENTS_KEPT: usize = 256;

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

/// What they share.
#[derive(Debug)]
pub(super) struct SteadyState {
    pub(super) plan: Plan,
    /// When the load began.
    pub(super) begin: Instant,
    /// What was found wrong.
    pub(super) findings: Findings,
    live: Mutex<Live>,
    writers: Vec<Progress>,
    begun: AtomicU64,
    events: AtomicU64,
    /// Notified when so many events were acknowledged.
    events_wanted: u64,
    pub(super) enough: Notify,
    newest_begun: Mutex<Instant>,
    faults: Mutex<Vec<FaultLine>>,
}

impl Observer for SteadyState {
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
        {
            let mut newest = lock(&self.newest_begun);
            *newest = begun.max(*newest);
        }
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
        let text = format!("writer {worker}: refused wrongly: {cause}");
        self.findings.add(text);
    }
}

impl SteadyState {
    /// The load begins now.
    pub(super) fn new(plan: Plan, writers: u32, events_wanted: Option<u64>) -> Arc<Self> {
        Arc::new(Self {
            plan,
            begin: Instant::now(),
            findings: Findings::default(),
            live: Mutex::default(),
            writers: (0..writers).map(|_| Progress::default()).collect(),
            begun: AtomicU64::new(0),
            events: AtomicU64::new(0),
            events_wanted: events_wanted.unwrap_or(u64::MAX),
            enough: Notify::new(),
            newest_begun: Mutex::new(Instant::now()),
            faults: Mutex::default(),
        })
    }

    /// Counts something in the slice under way; what comes after the last slice belongs to none.
    pub(super) fn count(&self, count: impl FnOnce(&mut Live)) {
        count(&mut lock(&self.live));
    }

    /// Counts an error that passes.
    pub(super) fn error(&self, what: &str) {
        self.count(|live| *live.errors.entry(what.to_owned()).or_default() += 1);
    }

    /// What the slice that ends now has.
    pub(super) fn take(&self) -> Live {
        std::mem::take(&mut *lock(&self.live))
    }

    /// Appends begun.
    pub(super) fn appends_begun(&self) -> u64 {
        self.begun.load(Ordering::Relaxed)
    }

    /// Events acknowledged.
    pub(super) fn events(&self) -> u64 {
        self.events.load(Ordering::Acquire)
    }

    /// Appends of a writer that were acknowledged: those below this.
    pub(super) fn acknowledged_of(&self, writer: u32) -> u64 {
        let progress = &self.writers[writer as usize];
        progress.acknowledged.load(Ordering::Acquire)
    }

    /// Number of writers.
    pub(super) fn writers(&self) -> usize {
        self.writers.len()
    }

    /// When the newest append that was acknowledged had begun.
    pub(super) fn newest_begun(&self) -> Instant {
        *lock(&self.newest_begun)
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
            at_seconds: self.begin.elapsed().as_secs_f64(),
            kind: kind.to_owned(),
            healed_after_seconds: None,
        });
        faults.len() - 1
    }

    /// An append was acknowledged that began after the fault.
    pub(super) fn fault_healed(&self, number: usize) {
        let now = self.begin.elapsed().as_secs_f64();
        let fault = &mut lock(&self.faults)[number];
        fault.healed_after_seconds = Some(now - fault.at_seconds);
    }

    /// All faults so far.
    pub(super) fn faults(&self) -> Vec<FaultLine> {
        lock(&self.faults).clone()
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().expect("no panic under the lock")
}
