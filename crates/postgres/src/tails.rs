//! Decides which reads of the tails of logs share a statement, and when it leaves.
//!
//! Why: a process that follows logs to which others append is woken for each commit, of each log by itself. With a
//! statement for each log, three nodes on sixteen logs read once for every second commit. So a read that comes within
//! [`PAUSE`] after the last statement began waits for the end of that time, and all that wait then leave together.
//! Under load this bounds the statements, whatever the number of logs and commits; while little happens nothing waits.
//! Invariants: a read is answered from a statement that was sent after the read was asked for, so whoever has heard of
//! a commit before will find it; of what one statement reads, what is wrong with one log fails the read of that log
//! alone.
//! Not here: the statement (`read_tails`), the connections (`pool`).

use std::sync::Arc;
use std::time::Duration;

use gesta_core::backend::{LogTail, Purpose, Rows};
use gesta_core::shares::{self, Holder};
use gesta_core::{Error, Result};
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinHandle;
use tokio::time::Instant;

use crate::history::Ledger;
use crate::pool::Pool;
use crate::read_tails::ReadTails;

/// The shortest time between the beginnings of two statements. The messages that lead to reads are held back by their
/// senders as well, for up to half of this time (`signals`) and as much again for each log (the tail hub).
const PAUSE: Duration = Duration::from_millis(20);
/// The most logs of one statement. Those beyond leave with the next one, without a pause.
const LOGS_MAX: usize = 64;
/// The most reads that wait to be taken. A log has one reader, so there are as many as logs.
const ASKED_MAX: usize = 1_024;

/// A read that waits.
#[derive(Debug)]
struct WaitingRead {
    tail: LogTail,
    answer: oneshot::Sender<Result<Rows>>,
}

/// Reads of the tails of logs. Dropping it ends them.
#[derive(Debug)]
pub(crate) struct Tails {
    asked: mpsc::Sender<WaitingRead>,
    task: JoinHandle<()>,
}

impl Drop for Tails {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Tails {
    pub(crate) fn start(pool: &Arc<Pool>, ledger: &Arc<Ledger>, is_part: bool) -> Self {
        let (pool, ledger) = (Arc::clone(pool), Arc::clone(ledger));
        Self::start_with(move |tails: Vec<LogTail>| {
            let (pool, ledger) = (Arc::clone(&pool), Arc::clone(&ledger));
            async move {
                let read = ReadTails {
                    names: &ledger.names,
                    tails: &tails,
                    is_part,
                };
                pool.read("read the tails of logs", Purpose::Read, read)
                    .await
            }
        })
    }

    /// Starts the task that answers. `read` reads many tails by one statement, and gives an answer for each.
    fn start_with<F>(read: impl Fn(Vec<LogTail>) -> F + Send + Sync + 'static) -> Self
    where
        F: Future<Output = Result<Vec<Result<Rows>>>> + Send + 'static,
    {
        let (asked, waiting) = mpsc::channel(ASKED_MAX);
        // Whoever asks is a part of the server that serves all subscribers.
        let task = shares::act_as(Holder::Server, answer(waiting, read));
        Self {
            asked,
            task: tokio::spawn(task),
        }
    }

    /// Reads what follows a position of a log.
    ///
    /// # Errors
    /// `Unavailable`, `Corrupt`; [`Error::log_closed`].
    ///
    /// # Cancel safety
    /// If the future is dropped, nothing is read for it that is not under way already.
    pub(crate) async fn read(&self, tail: LogTail) -> Result<Rows> {
        let (answer, answered) = oneshot::channel();
        let closed = || Error::unavailable("the store is closed");
        let asked = WaitingRead { tail, answer };
        self.asked.send(asked).await.map_err(|_| closed())?;
        answered.await.map_err(|_| closed())?
    }
}

/// Answers what is asked for, until nobody can ask any more.
async fn answer<F>(mut asked: mpsc::Receiver<WaitingRead>, read: impl Fn(Vec<LogTail>) -> F)
where
    F: Future<Output = Result<Vec<Result<Rows>>>>,
{
    let mut not_before = Instant::now();
    while let Some(first) = asked.recv().await {
        tokio::time::sleep_until(not_before).await;
        let mut together = vec![first];
        while together.len() < LOGS_MAX
            && let Ok(next) = asked.try_recv()
        {
            together.push(next);
        }
        let is_full = together.len() == LOGS_MAX;
        together.retain(|asked| !asked.answer.is_closed());
        if together.is_empty() {
            continue;
        }
        not_before = match is_full {
            true => Instant::now(),
            false => Instant::now() + PAUSE,
        };
        let tails = together.iter().map(|asked| asked.tail).collect();
        match read(tails).await {
            Ok(answers) => {
                for (asked, rows) in together.into_iter().zip(answers) {
                    // Whoever does not wait any more needs no answer.
                    let _ = asked.answer.send(rows);
                }
            }
            Err(error) => {
                for asked in together {
                    let _ = asked.answer.send(Err(error.clone()));
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use gesta_core::{LogId, Position};

    use super::*;

    /// The statements that were sent: when, and of which logs.
    type Sent = Arc<Mutex<Vec<(Duration, Vec<u16>)>>>;

    /// Tails whose statements take `takes` each and find nothing.
    fn tails(takes: Duration) -> (Arc<Tails>, Sent) {
        let (sent, begun) = (Sent::default(), Instant::now());
        let seen = Arc::clone(&sent);
        let tails = Tails::start_with(move |tails: Vec<LogTail>| {
            let logs = tails.iter().map(|tail| tail.log.0).collect();
            seen.lock().expect("whole").push((begun.elapsed(), logs));
            async move {
                tokio::time::sleep(takes).await;
                Ok(tails.iter().map(|_| Ok(nothing())).collect())
            }
        });
        (Arc::new(tails), sent)
    }

    fn nothing() -> Rows {
        Rows {
            events: Vec::new(),
            complete: true,
            last_writer: None,
        }
    }

    fn tail(log: u16) -> LogTail {
        LogTail {
            log: LogId(log),
            after: Position(7),
            to: None,
            limit: 10,
        }
    }

    /// Asks for a log after some time.
    fn ask(tails: &Arc<Tails>, log: u16, after_ms: u64) -> tokio::task::JoinHandle<Result<Rows>> {
        let tails = Arc::clone(tails);
        tokio::spawn(async move {
            tokio::time::sleep(Duration::from_millis(after_ms)).await;
            tails.read(tail(log)).await
        })
    }

    async fn all(reads: Vec<tokio::task::JoinHandle<Result<Rows>>>) {
        for read in reads {
            read.await.expect("ran").expect("read");
        }
    }

    fn statements(sent: &Sent) -> Vec<(u128, Vec<u16>)> {
        let sent = sent.lock().expect("whole");
        let sent = sent.iter();
        sent.map(|(at, logs)| (at.as_millis(), logs.clone()))
            .collect()
    }

    /// Goal: while little happens nothing waits; what comes within the pause goes together, at its end.
    #[tokio::test(start_paused = true)]
    async fn what_comes_within_a_pause_leaves_together() {
        let (tails, sent) = tails(Duration::from_millis(1));
        let asked = [(0, 0), (1, 5), (2, 10), (3, 15), (4, 100), (5, 107)];
        all(asked.map(|(log, at)| ask(&tails, log, at)).into()).await;
        let expected = [
            (0, vec![0]),
            (20, vec![1, 2, 3]),
            (100, vec![4]),
            (120, vec![5]),
        ];
        assert_eq!(statements(&sent), expected);
    }

    /// Goal: what is asked for while a statement is under way is not answered from it, because it may not have seen
    /// what the caller has heard of.
    #[tokio::test(start_paused = true)]
    async fn a_read_is_answered_by_a_later_statement() {
        let (tails, sent) = tails(Duration::from_millis(50));
        let asked = [(0, 0), (1, 1), (0, 2)];
        all(asked.map(|(log, at)| ask(&tails, log, at)).into()).await;
        assert_eq!(statements(&sent), [(0, vec![0]), (50, vec![1, 0])]);
    }

    /// Goal: the number of statements is bounded by time, whatever is asked for.
    #[tokio::test(start_paused = true)]
    async fn statements_are_bounded_by_time() {
        let (tails, sent) = tails(Duration::ZERO);
        let asked = (0..1_000).map(|n| ask(&tails, n % 16, u64::from(n)));
        all(asked.collect()).await;
        assert_eq!(statements(&sent).len(), 50 + 1);
    }

    /// Goal: a statement is bounded, and what is beyond does not wait for a pause.
    #[tokio::test(start_paused = true)]
    async fn more_logs_than_a_statement_takes_follow_at_once() {
        let (tails, sent) = tails(Duration::from_millis(1));
        all((0..150).map(|log| ask(&tails, log, 0)).collect()).await;
        let sent = statements(&sent);
        let sizes: Vec<usize> = sent.iter().map(|(_, logs)| logs.len()).collect();
        assert!(sizes.iter().all(|size| *size <= LOGS_MAX), "{sizes:?}");
        assert_eq!(sizes.iter().sum::<usize>(), 150);
        assert!(sent.iter().all(|(at, _)| *at <= 25), "{sent:?}");
    }

    /// Goal: whoever has given up costs nothing, and an error of the statement reaches all that it was for.
    #[tokio::test(start_paused = true)]
    async fn an_error_is_told_to_all_and_nobody_reads_for_who_is_gone() {
        let asked = Arc::new(Mutex::new(0));
        let count = Arc::clone(&asked);
        let tails = Tails::start_with(move |tails: Vec<LogTail>| {
            *count.lock().expect("whole") += tails.len();
            async move { Err(Error::unavailable("away")) }
        });
        let tails = Arc::new(tails);
        let reads = [(0, 0), (1, 1), (2, 1), (3, 1)].map(|(log, at)| ask(&tails, log, at));
        tokio::time::sleep(Duration::from_millis(10)).await;
        reads[3].abort();
        for read in reads.into_iter().take(3) {
            let error = read.await.expect("ran").expect_err("away");
            assert!(error.to_string().contains("away"), "{error}");
        }
        assert_eq!(*asked.lock().expect("whole"), 3);
    }
}
