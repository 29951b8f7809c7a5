//! Lists of requests that must all succeed: creating the shows before a run, reading all of them after it.

use std::collections::VecDeque;
use std::time::Duration;

use mio::Events;
use tokio_util::sync::CancellationToken;

use crate::failure::Result;
use crate::reservation::connection::Job;
use crate::reservation::generator::{Generator, nanos};
use crate::reservation::model::{Call, Fact, Op, Outcome, Verdict};

/// The user of requests that belong to a batch.
pub(crate) const BATCH: u32 = u32::MAX;
/// Requests of a batch under way at once, per server.
const UNDER_WAY_MAX: usize = 64;
/// A batch in which nothing succeeds for so long is given up.
const PATIENCE: Duration = Duration::from_secs(15);

/// Requests of a batch for one server.
#[derive(Debug, Default)]
pub(crate) struct BatchQueue {
    left: VecDeque<Op>,
    under_way: usize,
    succeeded: u64,
}

impl Generator {
    /// Runs the same requests on a server, or on each; returns those that did not succeed.
    pub(crate) fn batch(
        &mut self,
        ops: impl Iterator<Item = Op>,
        servers: std::ops::Range<usize>,
        stop: &CancellationToken,
    ) -> Result<Vec<Op>> {
        let ops: VecDeque<Op> = ops.collect();
        for server in servers {
            self.targets[server].batch = BatchQueue {
                left: ops.clone(),
                ..BatchQueue::default()
            };
        }
        self.tick(false)?;
        let mut events = Events::with_capacity(1_024);
        let (mut succeeded, mut since) = (0, self.now());
        self.turns(&mut events, stop, |generator, now| {
            generator.feed();
            let batches = || generator.targets.iter().map(|target| &target.batch);
            let sum = batches().map(|batch| batch.succeeded).sum();
            if sum != succeeded {
                (succeeded, since) = (sum, now);
            }
            let done = batches().all(|batch| batch.left.is_empty() && batch.under_way == 0);
            done || now - since > nanos(PATIENCE)
        })?;
        let left = self
            .targets
            .iter_mut()
            .flat_map(|target| std::mem::take(&mut target.batch.left));
        Ok(left.collect())
    }

    /// Gives free connections something to do.
    fn feed(&mut self) {
        for target in 0..self.targets.len() {
            while !self.targets[target].free.is_empty() {
                let Some(op) = self.next_of_batch(target) else {
                    break;
                };
                let Some(index) = self.targets[target].free.pop() else {
                    break;
                };
                self.send_batch(index, op);
            }
        }
    }

    /// The next request of the batch, if it may be sent now.
    pub(crate) fn next_of_batch(&mut self, target: usize) -> Option<Op> {
        let batch = &mut self.targets[target].batch;
        if batch.under_way >= UNDER_WAY_MAX {
            return None;
        }
        let op = batch.left.pop_front()?;
        batch.under_way += 1;
        Some(op)
    }

    /// Sends a request of the batch.
    pub(crate) fn send_batch(&mut self, index: usize, op: Op) {
        let now = self.now();
        let job = Job {
            user: BATCH,
            op,
            phase: u32::MAX,
            intended: now,
            sent: now,
            begin: 0,
        };
        self.send(index, job);
    }

    /// A request of the batch was answered: done, or once more.
    pub(crate) fn batch_answered(&mut self, op: Op, target: usize, verdict: Verdict) {
        let batch = &mut self.targets[target].batch;
        batch.under_way = batch.under_way.saturating_sub(1);
        let again = match verdict.outcome {
            Outcome::Accepted => false,
            Outcome::Refused => true,
            // What was rejected stays so: the ledger knows whether that is wrong.
            Outcome::Rejected => false,
            Outcome::Failed => op.call != Call::Read || !(200..300).contains(&verdict.status),
        };
        if again {
            batch.left.push_back(op);
        } else if verdict.outcome == Outcome::Accepted || verdict.fact == Fact::ShowExists {
            batch.succeeded += 1;
        }
    }
}
