//! Readers at work: who is live, who has everything, and when.
//!
//! A reader holds a [`ReaderState`]: it enters what it gets, says when it follows what happens now, and goes on until
//! it is told to end, also when it has everything, as readers do. Whoever measures holds [`Readers`].
//! Not here: how a reader reads (`polled`, `gesta`).

use std::time::{Duration, Instant};

use gesta_report::failure::{Result, fail};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::plan::{Delivered, From, Plan};

/// How far the readers of a phase are.
#[derive(Debug, Default)]
struct Progress {
    /// Readers that follow what happens now.
    live: usize,
    /// Readers that have everything, or know that the rest will never come; when, if it was everything.
    done: Vec<Option<Instant>>,
}

/// How far a reader is, and what was delivered to it.
pub(super) struct ReaderState {
    /// Number of the reader.
    pub(super) reader: u64,
    pub(super) end: CancellationToken,
    /// Place in the journal of the last event of the burst, once it is written.
    pub(super) written: watch::Receiver<Option<u64>>,
    delivered: Delivered,
    is_live: bool,
    is_done: bool,
    progress: watch::Sender<Progress>,
}

impl ReaderState {
    pub(super) fn enter(&mut self, number: u64, position: u64) {
        self.delivered.enter(number, position);
        if self.delivered.has_all() {
            self.done();
        }
    }

    /// From now on the reader gets what happens.
    pub(super) fn live(&mut self) {
        if !std::mem::replace(&mut self.is_live, true) {
            self.progress.send_modify(|progress| progress.live += 1);
        }
        if self.delivered.has_all() {
            self.done();
        }
    }

    /// It has everything, or what is still missing will never come.
    pub(super) fn done(&mut self) {
        if !std::mem::replace(&mut self.is_done, true) {
            let at = self.delivered.has_all().then(Instant::now);
            self.progress.send_modify(|progress| progress.done.push(at));
        }
    }
}

/// All readers of a phase.
pub(super) struct Readers {
    tasks: JoinSet<Result<ReaderState>>,
    progress: watch::Sender<Progress>,
    end: CancellationToken,
    written: watch::Sender<Option<u64>>,
}

/// What came of it.
#[derive(Debug, Default)]
pub(super) struct Outcome {
    /// When each of those that have everything had it.
    pub(super) done: Vec<Instant>,
    /// What is wrong, by reader.
    pub(super) faults: Vec<String>,
}

impl Readers {
    /// Starts them; `run` makes the task of one. `written` is the last place in the journal, if nothing more comes.
    pub(super) fn start<R>(
        plan: &Plan,
        from: From,
        written: Option<u64>,
        mut run: impl FnMut(ReaderState) -> R,
    ) -> Self
    where
        R: Future<Output = Result<ReaderState>> + Send + 'static,
    {
        let mut readers = Self {
            tasks: JoinSet::new(),
            progress: watch::Sender::default(),
            end: CancellationToken::new(),
            written: watch::Sender::new(written),
        };
        for reader in 0..plan.readers {
            readers.tasks.spawn(run(ReaderState {
                reader,
                end: readers.end.clone(),
                written: readers.written.subscribe(),
                delivered: plan.delivered(reader, from),
                is_live: false,
                is_done: false,
                progress: readers.progress.clone(),
            }));
        }
        readers
    }

    /// Tells the readers that everything is written, once it is.
    pub(super) fn pen(&self) -> watch::Sender<Option<u64>> {
        self.written.clone()
    }

    /// Waits until all are live.
    pub(super) async fn all_live(&mut self, deadline: Duration) -> Result<()> {
        let all = self.tasks.len();
        if self.wait(deadline, |progress| progress.live == all).await? {
            return Ok(());
        }
        let live = self.progress.borrow().live;
        fail(format!(
            "{live} of {all} readers are live after {deadline:?}"
        ))
    }

    /// Waits until each has everything or gives up, at most so long, and ends them.
    pub(super) async fn finish(mut self, deadline: Duration) -> Result<Outcome> {
        let (mut outcome, all) = (Outcome::default(), self.tasks.len());
        let is_over = |progress: &Progress| progress.done.len() == all;
        if !self.wait(deadline, is_over).await? {
            let open = all - self.progress.borrow().done.len();
            let late = format!("{open} readers were not done after {deadline:?}");
            outcome.faults.push(late);
        }
        outcome.done = self
            .progress
            .borrow()
            .done
            .iter()
            .flatten()
            .copied()
            .collect();
        self.end.cancel();
        while let Some(ended) = self.tasks.join_next().await {
            let state = ended??;
            if let Some(fault) = state.delivered.faults() {
                let fault = format!("reader {} {fault}", state.reader);
                outcome.faults.push(fault);
            }
        }
        outcome.faults.sort();
        Ok(outcome)
    }

    /// Waits until the readers are so far; false if it takes too long. A reader that ends meanwhile is a failure.
    async fn wait(
        &mut self,
        deadline: Duration,
        is_reached: impl FnMut(&Progress) -> bool,
    ) -> Result<bool> {
        let mut progress = self.progress.subscribe();
        let reached = tokio::time::timeout(deadline, progress.wait_for(is_reached));
        tokio::select! {
            biased;
            Some(ended) = self.tasks.join_next() => match ended? {
                Ok(state) => fail(format!("reader {} ended early", state.reader)),
                Err(failure) => Err(failure),
            },
            reached = reached => Ok(reached.is_ok()),
        }
    }
}

impl Drop for Readers {
    fn drop(&mut self) {
        self.end.cancel();
    }
}
