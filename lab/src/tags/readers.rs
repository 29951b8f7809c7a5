//! Readers at work: who is live, who has everything, and when.
//!
//! A reader holds a [`Desk`]: it enters what it gets, says when it follows what happens now, and goes on until it is
//! told to end, also when it has everything, as readers do. Whoever measures holds [`Readers`].
//! Not here: how a reader reads (`polled`, `gesta`).

use std::time::{Duration, Instant};

use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::plan::{Book, From, Plan};
use crate::failure::{Failure, Result, fail};

/// What a reader says.
enum Word {
    Live,
    /// It has everything, or knows that the rest will never come.
    Done {
        at: Instant,
        has_all: bool,
    },
}

/// Where a reader keeps its book.
pub(super) struct Desk {
    /// Number of the reader.
    pub(super) reader: u64,
    /// Ends the reader.
    pub(super) end: CancellationToken,
    /// Place in the journal of the last event of the burst, once it is written.
    pub(super) written: watch::Receiver<Option<u64>>,
    book: Book,
    is_live: bool,
    is_done: bool,
    words: mpsc::UnboundedSender<Word>,
}

impl Desk {
    /// Enters an event.
    pub(super) fn enter(&mut self, number: u64, position: u64) {
        self.book.enter(number, position);
        if self.book.has_all() {
            self.say_done();
        }
    }

    /// From now on the reader gets what happens.
    pub(super) fn live(&mut self) {
        if !std::mem::replace(&mut self.is_live, true) {
            // Nobody listens any more: the phase is over.
            let _ = self.words.send(Word::Live);
        }
        if self.book.has_all() {
            self.say_done();
        }
    }

    /// What is still missing will never come.
    pub(super) fn give_up(&mut self) {
        self.say_done();
    }

    fn say_done(&mut self) {
        if !std::mem::replace(&mut self.is_done, true) {
            let word = Word::Done {
                at: Instant::now(),
                has_all: self.book.has_all(),
            };
            let _ = self.words.send(word);
        }
    }
}

/// All readers of a phase.
pub(super) struct Readers {
    tasks: JoinSet<Result<Desk>>,
    words: mpsc::UnboundedReceiver<Word>,
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
        mut run: impl FnMut(Desk) -> R,
    ) -> Self
    where
        R: Future<Output = Result<Desk>> + Send + 'static,
    {
        let (say, words) = mpsc::unbounded_channel();
        let end = CancellationToken::new();
        let written = watch::Sender::new(written);
        let mut tasks = JoinSet::new();
        for reader in 0..plan.readers {
            tasks.spawn(run(Desk {
                reader,
                end: end.clone(),
                written: written.subscribe(),
                book: plan.book(reader, from),
                is_live: false,
                is_done: false,
                words: say.clone(),
            }));
        }
        Self {
            tasks,
            words,
            end,
            written,
        }
    }

    /// Tells the readers that everything is written, once it is.
    pub(super) fn pen(&self) -> watch::Sender<Option<u64>> {
        self.written.clone()
    }

    /// Waits until all are live.
    pub(super) async fn all_live(&mut self, deadline: Duration) -> Result<()> {
        let mut live = 0;
        let all = self.tasks.len();
        let wait = async {
            while live < all {
                live += usize::from(matches!(self.next().await?, Word::Live));
            }
            Ok(())
        };
        match tokio::time::timeout(deadline, wait).await {
            Ok(waited) => waited,
            Err(_) => fail(format!(
                "{live} of {all} readers are live after {deadline:?}"
            )),
        }
    }

    /// Waits until each has everything or gives up, at most so long, and ends them.
    pub(super) async fn finish(mut self, deadline: Duration) -> Result<Outcome> {
        let mut outcome = Outcome::default();
        let mut open = self.tasks.len();
        let wait = async {
            while open > 0 {
                if let Word::Done { at, has_all } = self.next().await? {
                    open -= 1;
                    outcome.done.extend(has_all.then_some(at));
                }
            }
            Ok::<_, Failure>(())
        };
        let in_time = tokio::time::timeout(deadline, wait).await;
        if let Ok(waited) = in_time {
            waited?;
        } else {
            let late = format!("{open} readers were not done after {deadline:?}");
            outcome.faults.push(late);
        }
        self.end.cancel();
        while let Some(ended) = self.tasks.join_next().await {
            let desk = ended??;
            if let Some(fault) = desk.book.faults() {
                outcome
                    .faults
                    .push(format!("reader {} {fault}", desk.reader));
            }
        }
        outcome.faults.sort();
        Ok(outcome)
    }

    /// The next word; a reader that ends before it is told to is a failure.
    async fn next(&mut self) -> Result<Word> {
        tokio::select! {
            biased;
            Some(ended) = self.tasks.join_next() => match ended? {
                Ok(desk) => fail(format!("reader {} ended early", desk.reader)),
                Err(failure) => Err(failure),
            },
            Some(word) = self.words.recv() => Ok(word),
            else => fail("there are no readers"),
        }
    }
}

impl Drop for Readers {
    fn drop(&mut self) {
        self.end.cancel();
    }
}
