//! Readers: on a schedule each reads a random stream to which something was acknowledged before, and looks for it.

use std::sync::Arc;
use std::time::{Duration, Instant};

use gesta_core::{ReadStream, Result, StreamId};
use tokio_util::sync::CancellationToken;

use super::board::Board;
use super::plan::{Target, Which};
use crate::faults::CurrentStore;
use crate::random::Random;

/// Events that are read from the end of a shared stream, whose length has no bound.
const SHARED_LIMIT: usize = 50;

/// One reader.
pub(super) struct Reader {
    pub(super) random: Random,
    pub(super) from: Instant,
    pub(super) interval: Duration,
    pub(super) store: Arc<CurrentStore>,
    pub(super) board: Arc<Board>,
    pub(super) over: CancellationToken,
}

impl Reader {
    /// Reads until the run is over; a read under way is let go then.
    pub(super) async fn run(mut self) {
        let over = self.over.clone();
        tokio::select! {
            () = over.cancelled() => {}
            () = self.read_on() => {}
        }
    }

    async fn read_on(&mut self) {
        let mut intended = self.from + self.interval.mul_f64(self.random.fraction());
        loop {
            tokio::time::sleep_until(intended.into()).await;
            match self.read().await {
                Ok(()) => self
                    .board
                    .count(|live| live.reads.record(intended.elapsed())),
                Err(error) if error.is_retryable() => self.board.error("read", error.kind()),
                Err(error) => self.board.finding(format!("a read failed: {error}")),
            }
            intended += self.interval;
        }
    }

    async fn read(&mut self) -> Result<()> {
        let writer = self.random.below(self.board.writers());
        let acknowledged = self.board.acknowledged_of(writer);
        let Ok(end @ 1..) = usize::try_from(acknowledged) else {
            return Ok(());
        };
        let n = self.random.below(end) as u64;
        match self.board.plan.target(writer, n) {
            Target::Own(stream, first) => self.own(writer, n, stream, first).await,
            Target::Shared(i) => {
                let stream = self.board.plan.workload.streams()[i].clone();
                self.shared(stream).await
            }
        }
    }

    /// The whole stream; what was acknowledged must be in it.
    async fn own(&self, writer: usize, n: u64, stream: StreamId, first: u64) -> Result<()> {
        let plan = &self.board.plan;
        let limit = usize::try_from(plan.events_per_stream()).unwrap_or(usize::MAX);
        let request = ReadStream::forwards(stream.clone()).limit(limit.min(10_000));
        let page = self.store.get().read_stream(request).await?;
        let event = n * plan.per_append;
        let id = plan.id(Which { writer, event });
        let found = page.events.iter().find(|event| event.revision.0 == first);
        if found.is_none_or(|event| event.id != id) {
            self.board.finding(format!(
                "a read of {stream} does not show revision {first}, which was acknowledged before"
            ));
        }
        Ok(())
    }

    async fn shared(&self, stream: StreamId) -> Result<()> {
        let request = ReadStream::backwards(stream.clone()).limit(SHARED_LIMIT);
        let page = self.store.get().read_stream(request).await?;
        let ordered = page
            .events
            .windows(2)
            .all(|pair| pair[0].revision.0 == pair[1].revision.0 + 1);
        if !ordered || page.events.is_empty() {
            self.board
                .finding(format!("a read of {stream} has gaps or nothing"));
        }
        Ok(())
    }
}
