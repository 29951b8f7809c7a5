//! Reading the ids of the window of retries after a start, in the background and newest first.
//!
//! It begins once a few appends had to be looked up: a process that is started, or left behind by others, again and again
//! without appending much would read far more than it saves.
//! Until it is done, an append with expected revision `any` to an old stream is looked up in what was not read yet. One
//! range of positions after the other: each is as many ids as the memory keeps together, read in parts of which two
//! are under way. Invariant: only ranges that join what is known are added; those of an earlier start are dropped.

use std::sync::Arc;
use std::time::Duration;

use futures::{StreamExt, TryStreamExt, stream};
use gesta_core::backend::{Backend, EventLookup, Purpose};
use gesta_core::{IdempotencyWindow, LogId, Position, Result, Timestamp};

use crate::recent::{OlderIds, RecentIds};
use crate::sequencer::Sequencer;
use crate::waiting::ReadAnswer;

/// Appends that are looked up before it begins.
const LOOKED_UP_BEFORE: u32 = 16;
/// Positions read at once.
const PART: u64 = 20_000;
/// Parts under way at once; one if there are other logs, which share the connections.
const PARTS_AT_ONCE: usize = 2;
/// Time before a range that could not be read is tried again.
const PAUSE: Duration = Duration::from_secs(1);

/// What was read.
pub(crate) struct WarmedUp {
    /// Which start it belongs to.
    number: u64,
    /// The window begins behind this position.
    start: Position,
    ids: Option<OlderIds>,
}

impl Sequencer {
    /// Forgets all ids.
    pub(crate) fn forget_ids(&mut self) {
        self.warm_ups += 1;
        self.looked_up = 0;
        self.recent = RecentIds::new(self.config.idempotency, self.committed.position);
        if let Some(reading) = self.warm_up.take() {
            reading.abort();
        }
    }

    /// An append has to be looked up, for its ids are not known. After some of them those of the window are read.
    pub(crate) fn lacks_ids(&mut self) {
        self.looked_up = self.looked_up.saturating_add(1);
        if self.looked_up == LOOKED_UP_BEFORE {
            self.start_warm_up();
        }
    }

    fn start_warm_up(&mut self) {
        let end = self.recent.covered_from();
        let (backend, log, number) = (Arc::clone(&self.backend), self.log, self.warm_ups);
        let (window, now) = (self.config.idempotency, self.clock.now());
        let reading = self.reads.spawn(async move {
            let find = || find_start(&*backend, log, window, now, end);
            let start = persistently(log, find).await;
            let ids = None;
            ReadAnswer::Warm(WarmedUp { number, start, ids })
        });
        self.warm_up = Some(reading);
    }

    /// Takes a range, and begins to read the one before it.
    pub(crate) fn on_warm(&mut self, warmed_up: WarmedUp) {
        let WarmedUp { number, start, ids } = warmed_up;
        if number != self.warm_ups || ids.is_some_and(|ids| !self.recent.prepend(ids)) {
            return;
        }
        if self.recent.covers_window() {
            tracing::debug!(log = self.log.0, "the ids of the window are known");
            return;
        }
        let (backend, log) = (Arc::clone(&self.backend), self.log);
        let empty = self.recent.older(start);
        let parts_at_once = if self.backend.info().logs > 1 {
            1
        } else {
            PARTS_AT_ONCE
        };
        let reading = self.reads.spawn(async move {
            let read = || read_range(&*backend, log, empty.clone(), parts_at_once);
            let ids = Some(persistently(log, read).await);
            ReadAnswer::Warm(WarmedUp { number, start, ids })
        });
        self.warm_up = Some(reading);
    }
}

/// Tries until it succeeds.
async fn persistently<T, F: Future<Output = Result<T>>>(log: LogId, read: impl Fn() -> F) -> T {
    let mut is_told = false;
    loop {
        let error = match read().await {
            Ok(answer) => return answer,
            Err(error) => error,
        };
        if !is_told {
            tracing::warn!(log = log.0, %error, "cannot read recent event ids, retries are looked up until it works");
        }
        is_told = true;
        tokio::time::sleep(PAUSE).await;
    }
}

async fn read_range(
    backend: &dyn Backend,
    log: LogId,
    mut ids: OlderIds,
    parts_at_once: usize,
) -> Result<OlderIds> {
    let (from, to) = (ids.from().0, ids.to().0);
    let starts = (from..to).step_by(usize::try_from(PART).unwrap_or(usize::MAX));
    let mut parts = stream::iter(starts)
        .map(|after| {
            let end = after.saturating_add(PART).min(to);
            backend.read_ids(log, Position(after), Position(end))
        })
        .buffer_unordered(parts_at_once);
    while let Some(part) = parts.try_next().await? {
        part.into_iter().for_each(|id| ids.insert(id));
    }
    Ok(ids)
}

/// The position before the first event of the window, which is as long in time and in positions as was asked for.
async fn find_start(
    backend: &dyn Backend,
    log: LogId,
    window: IdempotencyWindow,
    now: Timestamp,
    end: Position,
) -> Result<Position> {
    let age = i64::try_from(window.time.as_micros()).unwrap_or(i64::MAX);
    let by_time = position_before(backend, log, Timestamp(now.0.saturating_sub(age)), end).await?;
    Ok(by_time.min(Position(end.0.saturating_sub(window.positions))))
}

/// A position such that every event behind it, and none at or below it, may be as young as `created`.
/// Binary search: `created` never decreases along positions.
async fn position_before(
    backend: &dyn Backend,
    log: LogId,
    created: Timestamp,
    end: Position,
) -> Result<Position> {
    let (mut low, mut high) = (Position::START, end);
    while low < high {
        let middle = Position(low.0 + (high.0 - low.0) / 2);
        let next = backend
            .lookup(
                log,
                EventLookup::After {
                    position: middle,
                    limit: 1,
                },
                Purpose::Read,
            )
            .await?;
        match next.first() {
            Some(event) if event.created < created && event.position <= high => {
                low = event.position
            }
            _ => high = middle,
        }
    }
    Ok(low)
}
