//! Readers: on a schedule each reads a random stream to which something was acknowledged before, and looks for it.

use std::sync::Arc;
use std::time::Duration;

use gesta_core::{ReadStream, Result};
use gesta_load::machine::CurrentStore;
use gesta_load::random::Random;
use tokio::time::sleep_until;
use tokio_util::sync::CancellationToken;

use super::plan::Plan;
use super::state::SteadyState;

/// One reader.
pub(super) struct Reader {
    pub(super) random: Random,
    pub(super) interval: Duration,
    pub(super) store: Arc<CurrentStore>,
    pub(super) state: Arc<SteadyState>,
}

impl Reader {
    /// Reads until the run is over; a read under way is let go then.
    pub(super) async fn run(mut self, over: CancellationToken) {
        over.run_until_cancelled(self.read_on()).await;
    }

    async fn read_on(&mut self) {
        let mut intended = self.state.begin + self.interval.mul_f64(self.random.fraction());
        loop {
            sleep_until(intended).await;
            match self.read().await {
                Ok(()) => self
                    .state
                    .count(|live| live.reads.record(intended.elapsed())),
                Err(error) if error.is_retryable() => self.state.error("read failed in passing"),
                Err(error) => self.state.findings.add(format!("a read failed: {error}")),
            }
            intended += self.interval;
        }
    }

    /// Reads a whole stream; what was acknowledged must be in it.
    async fn read(&mut self) -> Result<()> {
        let writer = self.random.below(self.state.writers());
        let writer = u32::try_from(writer).expect("a writer");
        let Ok(end @ 1..) = usize::try_from(self.state.acknowledged_of(writer)) else {
            return Ok(());
        };
        let plan = &self.state.plan;
        let (stream, revision, first) = plan.append(writer, self.random.below(end) as u64);
        let limit = usize::try_from(Plan::events_per_stream(plan.per_append)).unwrap_or(usize::MAX);
        let request = ReadStream::forwards(stream.clone()).limit(limit);
        let page = self.store.get().read_stream(request).await?;
        let found = page
            .events
            .iter()
            .find(|event| event.revision.0 == revision);
        if found.is_none_or(|event| event.id.0 != first.id) {
            self.state.findings.add(format!(
                "a read of {stream} does not show revision {revision}, which was acknowledged before"
            ));
        }
        Ok(())
    }
}
