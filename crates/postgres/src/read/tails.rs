//! Decides which reads of the tails of logs share a statement, and when it leaves.
//!
//! Why: a process that follows logs to which others append is woken for each commit, of each log by itself. With a
//! statement for each log, three nodes on sixteen logs read once for every second commit. So a read that comes within
//! [`PAUSE`] after the last round began waits for the end of that time, and all that wait then are the next round: one
//! statement for each [`LOGS_MAX`] of them. Under load this bounds the statements, whatever the number of commits;
//! while little happens nothing waits.
//! Invariants: a read is answered from a statement that was sent after the read was asked for, so whoever has heard of
//! a commit before will find it; what is wrong with one log fails the reads of that log alone. So each log is read by
//! itself if the database refuses a statement of several: a row may be damaged, or all of them may take too long. A log
//! whose read by itself fails too is read by itself until that succeeds, and rounds wait for no such read. If none of
//! them fails by itself, fewer share a statement for a while ([`StatementSize`]).
//! Not here: the statement (`tail_pages`), the connections (`pool`).

use std::collections::HashSet;
use std::panic::AssertUnwindSafe;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt;
use futures::stream::{FuturesUnordered, StreamExt};
use gesta_core::backend::{LogTail, Purpose, Rows};
use gesta_core::shares::{self, Holder};
use gesta_core::{BackOff, Error, LogId, Result};
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinHandle;
use tokio::time::Instant;

use crate::connect::history::Ledger;
use crate::connect::pool::Pool;
use crate::read::tail_pages::{ReadTails, Together};

/// The shortest time between the beginnings of two rounds. The messages that lead to reads are held back by their
/// senders as well: for up to 10 ms for each log (the tail hub), and for up to 50 ms for all logs (`signals`).
const PAUSE: Duration = Duration::from_millis(20);
/// The most logs of one statement. Those beyond leave with the next one of the same round.
const LOGS_MAX: usize = 64;
/// For how long at least fewer logs share a statement after some were refused that can be read one by one. Each time it
/// happens again the time is twice as long, up to an hour.
const DIVIDED_MIN: Duration = Duration::from_secs(60);
const DIVIDED: BackOff = BackOff::new(DIVIDED_MIN, Duration::from_secs(3_600));
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

    /// Starts the task that answers. `read` reads many tails by one statement.
    fn start_with<F>(read: impl Fn(Vec<LogTail>) -> F + Send + Sync + 'static) -> Self
    where
        F: Future<Output = Result<Together>> + Send + 'static,
    {
        // A panic ends the read in which it happens: with the task the tails of all logs would stop for good.
        let read = move |tails: Vec<LogTail>| {
            let read = AssertUnwindSafe(read(tails)).catch_unwind();
            read.map(|outcome| outcome.unwrap_or_else(|_| Ok(Together::Refused(panicked()))))
        };
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

fn panicked() -> Error {
    Error::unavailable("the program has panicked while it read the tails of logs")
}

/// Answers what is asked for, until nobody can ask any more.
async fn answer<F>(mut asked: mpsc::Receiver<WaitingRead>, read: impl Fn(Vec<LogTail>) -> F)
where
    F: Future<Output = Result<Together>> + Send,
{
    let mut not_before = Instant::now();
    let mut alone = ReadsAlone {
        under_way: FuturesUnordered::new(),
        failed: HashSet::new(),
        groups: Vec::new(),
        size: StatementSize::default(),
    };
    while let Some(first) = alone.beside(asked.recv()).await {
        alone.beside(tokio::time::sleep_until(not_before)).await;
        let mut round = vec![first];
        while round.len() < ASKED_MAX
            && let Ok(next) = asked.try_recv()
        {
            round.push(next);
        }
        // What is asked for while this round is answered belongs to the next one.
        let begun = Instant::now();
        round.retain(|asked| !asked.answer.is_closed());
        let has_failed = |asked: &WaitingRead| alone.failed.contains(&asked.tail.log);
        let (by_itself, round): (Vec<_>, Vec<_>) = round.into_iter().partition(has_failed);
        if !by_itself.is_empty() {
            not_before = begun + PAUSE;
            alone.begin(by_itself, None, &read);
        }
        let mut round = round.into_iter();
        loop {
            let waiting = round.by_ref().filter(|asked| !asked.answer.is_closed());
            let most = alone.size.logs_max(Instant::now());
            let together: Vec<WaitingRead> = waiting.take(most).collect();
            if together.is_empty() {
                break;
            }
            not_before = begun + PAUSE;
            let tails = together.iter().map(|asked| asked.tail).collect();
            let outcome = alone.beside(read(tails)).await;
            if let [only] = &together[..]
                && !matches!(outcome, Ok(Together::Read(_)))
            {
                alone.failed.insert(only.tail.log);
            }
            if let Some(refused) = answer_together(together, outcome) {
                alone.begin_refused(refused, &read);
            }
        }
        while alone.under_way.len() >= ASKED_MAX {
            alone.end_one().await;
        }
    }
}

/// Answers these reads from the outcome of their statement. Returns them if the database refused it and may answer each
/// of them by itself.
fn answer_together(
    together: Vec<WaitingRead>,
    outcome: Result<Together>,
) -> Option<Vec<WaitingRead>> {
    match outcome {
        Ok(Together::Read(answers)) => {
            for (asked, rows) in together.into_iter().zip(answers) {
                // Whoever does not wait any more needs no answer.
                let _ = asked.answer.send(rows);
            }
        }
        Ok(Together::Refused(_)) if together.len() > 1 => return Some(together),
        Ok(Together::Refused(error)) | Err(error) => {
            for asked in together {
                let _ = asked.answer.send(Err(error.clone()));
            }
        }
    }
    None
}

/// How many logs share a statement.
///
/// Why not always as many as possible: many may take too long together although none does by itself, for example while
/// a long snapshot keeps the index entries of rows that were scavenged, or if an administrator has set a short
/// `statement_timeout`. Each round would wait for the end of that time again, and nobody would learn by it.
struct StatementSize {
    logs_max: usize,
    /// When more may be tried again; `None` if all is as it should be.
    grows_at: Option<Instant>,
    divided: BackOff,
}

impl Default for StatementSize {
    fn default() -> Self {
        Self {
            logs_max: LOGS_MAX,
            grows_at: None,
            divided: DIVIDED,
        }
    }
}

impl StatementSize {
    /// Returns how many logs may share a statement now.
    fn logs_max(&mut self, now: Instant) -> usize {
        if self.grows_at.is_some_and(|at| at <= now) {
            if self.logs_max < LOGS_MAX {
                self.logs_max = (self.logs_max * 2).min(LOGS_MAX);
                self.grows_at = Some(now + DIVIDED_MIN);
            } else {
                *self = Self::default();
            }
        }
        self.logs_max
    }

    /// Notes that a statement of so many logs was refused, each of which could then be read by itself.
    fn is_too_large(&mut self, logs: usize, now: Instant) {
        self.logs_max = self.logs_max.min((logs / 2).max(1));
        self.grows_at = Some(now + self.divided.pause());
    }
}

/// Logs whose statement was refused, and which are being read one by one.
struct Group {
    number: u64,
    logs: usize,
    /// How many of them were not read yet.
    left: usize,
    has_failed: bool,
}

/// The reads of single logs, which go on while rounds are answered, so that no log waits for one that takes long.
struct ReadsAlone<'a> {
    under_way: FuturesUnordered<ReadAlone<'a>>,
    /// Logs whose last read by itself has failed, in a round of one or beside the rounds. A statement of several logs
    /// would be refused because of each of them.
    failed: HashSet<LogId>,
    groups: Vec<Group>,
    size: StatementSize,
}

/// The end of a read of a log by itself.
struct EndedRead {
    log: LogId,
    is_read: bool,
    /// The number of the group to which it belongs.
    group: Option<u64>,
}

type ReadAlone<'a> = Pin<Box<dyn Future<Output = EndedRead> + Send + 'a>>;

impl<'a> ReadsAlone<'a> {
    /// Begins a read for each of these, of which the statement was refused.
    fn begin_refused<F>(&mut self, refused: Vec<WaitingRead>, read: &impl Fn(Vec<LogTail>) -> F)
    where
        F: Future<Output = Result<Together>> + Send + 'a,
    {
        let number = self.groups.last().map_or(0, |last| last.number + 1);
        self.groups.push(Group {
            number,
            logs: refused.len(),
            left: refused.len(),
            has_failed: false,
        });
        self.begin(refused, Some(number), read);
    }

    /// Begins a read for each of these.
    fn begin<F>(
        &mut self,
        asked: Vec<WaitingRead>,
        group: Option<u64>,
        read: &impl Fn(Vec<LogTail>) -> F,
    ) where
        F: Future<Output = Result<Together>> + Send + 'a,
    {
        for WaitingRead { tail, answer } in asked {
            let reading = read(vec![tail]);
            self.under_way.push(Box::pin(async move {
                let (rows, is_read) = match reading.await {
                    Ok(Together::Read(mut answers)) => (answers.remove(0), true),
                    Ok(Together::Refused(error)) | Err(error) => (Err(error), false),
                };
                let _ = answer.send(rows);
                EndedRead {
                    log: tail.log,
                    is_read,
                    group,
                }
            }));
        }
    }

    /// Waits for something else while these reads go on.
    async fn beside<T>(&mut self, other: impl Future<Output = T>) -> T {
        let mut other = pin!(other);
        loop {
            tokio::select! {
                biased;
                () = self.end_one(), if !self.under_way.is_empty() => {}
                outcome = &mut other => return outcome,
            }
        }
    }

    /// Waits until one of these reads has ended.
    async fn end_one(&mut self) {
        let Some(ended) = self.under_way.next().await else {
            return;
        };
        if ended.is_read {
            self.failed.remove(&ended.log);
        } else {
            self.failed.insert(ended.log);
        }
        let group = |group: &Group| Some(group.number) == ended.group;
        let Some(place) = self.groups.iter().position(group) else {
            return;
        };
        let group = &mut self.groups[place];
        group.left -= 1;
        group.has_failed |= !ended.is_read;
        if group.left == 0 {
            let group = self.groups.remove(place);
            if !group.has_failed {
                self.size.is_too_large(group.logs, Instant::now());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use gesta_core::Position;

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
                Ok(Together::Read(
                    tails.iter().map(|_| Ok(nothing())).collect(),
                ))
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

    /// What happened: a full statement was followed by no pause, and the first logs asked again while the others were
    /// read, so that from 65 logs on one statement followed the other. Goal: each round has what its logs need.
    #[tokio::test(start_paused = true)]
    async fn statements_for_many_logs_are_bounded_by_time() {
        let (tails, sent) = tails(Duration::from_millis(1));
        let (logs, begun) = (128, Instant::now());
        let asking = (0..logs).map(|log| {
            let tails = Arc::clone(&tails);
            tokio::spawn(async move {
                while begun.elapsed() < Duration::from_secs(1) {
                    tails.read(tail(log)).await.expect("read");
                }
            })
        });
        for asking in asking.collect::<Vec<_>>() {
            asking.await.expect("ran");
        }
        let sent = statements(&sent);
        assert!(sent.len() <= 2 * (50 + 2), "{}", sent.len());
        assert!(sent.len() >= 2 * 45, "{}", sent.len());
        let of_each =
            (0..logs).map(|log| sent.iter().filter(|(_, logs)| logs.contains(&log)).count());
        assert!(of_each.clone().min() >= Some(45), "{:?}", of_each.min());
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

    /// What happened: the database could not read a row of one log, so it refused each statement in which that log was,
    /// and the followers of all logs stood still; after a panic they did so for good. Goal: a log that cannot be read
    /// fails its own reads alone.
    #[tokio::test(start_paused = true)]
    async fn a_log_that_cannot_be_read_fails_alone() {
        let count = Arc::new(Mutex::new(0));
        let sent = Arc::clone(&count);
        let tails = Tails::start_with(move |tails: Vec<LogTail>| {
            *sent.lock().expect("whole") += 1;
            async move {
                let is_among = |log| tails.iter().any(|tail| tail.log == LogId(log));
                assert!(!is_among(3), "a mistake in what reads log 3");
                Ok(match is_among(1) {
                    true => Together::Refused(Error::corrupt("a page of the table")),
                    false => Together::Read(tails.iter().map(|_| Ok(nothing())).collect()),
                })
            }
        });
        let tails = Arc::new(tails);
        for damaged in [1, 3] {
            let logs = [7, 0, damaged, 2];
            let asked = logs.into_iter().zip([100, 101, 102, 103]);
            let reads: Vec<_> = asked.map(|(log, at)| ask(&tails, log, at)).collect();
            for (log, read) in logs.into_iter().zip(reads) {
                let outcome = read.await.expect("ran");
                assert_eq!(outcome.is_ok(), log != damaged, "log {log}: {outcome:?}");
            }
        }
        assert_eq!(*count.lock().expect("whole"), 2 * (2 + 3));
    }

    /// What happened: logs that took too long together, though none did by itself, waited for the time limit of their
    /// statement in every round. Goal: they are divided until they fit, for a while.
    #[tokio::test(start_paused = true)]
    async fn logs_that_take_too_long_together_are_divided() {
        let refused = Arc::new(Mutex::new(0));
        let count = Arc::clone(&refused);
        let tails = Tails::start_with(move |tails: Vec<LogTail>| {
            let count = Arc::clone(&count);
            async move {
                if tails.len() > 20 {
                    *count.lock().expect("whole") += 1;
                    tokio::time::sleep(Duration::from_secs(30)).await;
                    return Ok(Together::Refused(Error::unavailable("too slow")));
                }
                Ok(Together::Read(
                    tails.iter().map(|_| Ok(nothing())).collect(),
                ))
            }
        });
        let tails = Arc::new(tails);
        let rounds = async || {
            let before = *refused.lock().expect("whole");
            for _ in 0..20 {
                // Those that come after the first one gather.
                let asked = (0..=64).map(|log| ask(&tails, log, u64::from(log > 0)));
                all(asked.collect()).await;
            }
            *refused.lock().expect("whole") - before
        };
        // 64 are too many and both halves of them; quarters are not.
        let at_first = rounds().await;
        assert!((1..=3).contains(&at_first), "{at_first} refused");
        assert_eq!(rounds().await, 0, "they are divided");
        tokio::time::sleep(Duration::from_secs(3_600)).await;
        let later = rounds().await;
        assert!((1..=3).contains(&later), "{later} refused");
    }

    #[test]
    fn a_size_that_was_too_large_grows_again_ever_more_slowly() {
        let (mut size, start) = (StatementSize::default(), Instant::now());
        let after = |seconds| start + Duration::from_secs(seconds);
        assert_eq!(size.logs_max(start), LOGS_MAX);
        size.is_too_large(LOGS_MAX, start);
        assert_eq!(size.logs_max(after(59)), LOGS_MAX / 2);
        assert_eq!(size.logs_max(after(60)), LOGS_MAX);
        size.is_too_large(LOGS_MAX, after(60));
        // What was sent before is refused as well, and says the same.
        size.is_too_large(LOGS_MAX, after(60));
        assert_eq!(size.logs_max(after(60 + 239)), LOGS_MAX / 2);
        assert_eq!(size.logs_max(after(60 + 240)), LOGS_MAX);
        assert_eq!(size.logs_max(after(60 + 300)), LOGS_MAX);
        assert_eq!(size.grows_at, None, "it begins anew");
        size.is_too_large(1, after(400));
        assert_eq!(size.logs_max(after(400)), 1);
    }

    /// What happened: all logs waited until the read of one by itself had met its time limit, and again with each of
    /// its attempts. Goal: they wait for the first statement only.
    #[tokio::test(start_paused = true)]
    async fn a_log_that_takes_long_holds_up_no_other() {
        for is_alone_at_first in [false, true] {
            held_up_once(is_alone_at_first).await;
        }
    }

    async fn held_up_once(is_alone_at_first: bool) {
        let sent = Arc::new(Mutex::new(0));
        let held_up = Arc::clone(&sent);
        let tails = Tails::start_with(move |tails: Vec<LogTail>| {
            let held_up = Arc::clone(&held_up);
            async move {
                if tails.iter().all(|tail| tail.log != LogId(1)) {
                    return Ok(Together::Read(
                        tails.iter().map(|_| Ok(nothing())).collect(),
                    ));
                }
                *held_up.lock().expect("whole") += usize::from(tails.len() > 1);
                tokio::time::sleep(Duration::from_secs(30)).await;
                Ok(Together::Refused(Error::unavailable("too slow")))
            }
        });
        let tails = Arc::new(tails);
        if is_alone_at_first {
            let slow = ask(&tails, 1, 0).await;
            slow.expect("ran").expect_err("too slow");
        } else {
            all(vec![ask(&tails, 7, 0)]).await;
        }
        for attempt in 0..3 {
            let begun = Instant::now();
            let slow = ask(&tails, 1, 0);
            for _ in 0..10 {
                all([0, 2].map(|log| ask(&tails, log, 0)).into()).await;
            }
            let is_held_up = attempt == 0 && !is_alone_at_first;
            let first = Duration::from_secs(if is_held_up { 30 } else { 0 });
            assert!(begun.elapsed() <= first + Duration::from_secs(1));
            slow.await.expect("ran").expect_err("too slow");
        }
        let together = usize::from(!is_alone_at_first);
        assert_eq!(*sent.lock().expect("whole"), together);
    }
}
