//! Cinemas that give back what is not paid in time, users who pay some of their seats, and a judge who reads every
//! event of the store as it is stored.
//!
//! At the end of each stretch, with everything healed, each reservation whose time is over must be paid or given back,
//! and its timer over. Those that a fast clock has made due later are looked at in a later one, and at the end of the
//! run, which waits for all of them.
//! Read `forms` first (what is stored), then `users` (what is asked).
//! Not here: what is promised, and whether the answers can be true (`gesta_kit::judge::{payments, replies}`).

mod forms;
#[cfg(test)]
mod tests;
mod users;

use std::net::SocketAddr;
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use gesta_core::{AllFrom, Clock as _, EventStore, ReadAll, SystemClock};
use gesta_kit::history::payments::{SeatBook, SeatReply, SeatRound, StoredWithin};
use gesta_kit::judge::payments::{self as judge, Clocks, Counts, Terms};
use gesta_kit::judge::replies;
use gesta_kit::verdict::{Kind, Verdict};
use gesta_load::machine::store::{self, Opened};
use gesta_report::failure::{Context as _, Failure, Result, fail};
use tokio::task::{JoinHandle, JoinSet};
use tokio_util::sync::{CancellationToken, DropGuard};

use self::users::{Common, User};
use super::seats::DOUBLED;
use super::{FaultEffects, Load, StretchReport};
use crate::history_file::HistoryFile;
use crate::world::clocks::ClockReadings;
use crate::world::{Member, World};

/// The lease of the timers of a cinema.
pub(crate) const LEASE: Duration = Duration::from_secs(10);
/// The name of the timers of a cinema.
const TIMERS: &str = "unpaid_reservations";
/// Commands of each user that must be done before the load counts as going on.
const COMMANDS_MIN: u64 = 4;
/// How often the log is read, and waits look.
const LOOK: Duration = Duration::from_millis(20);
/// How often it is looked whether all is done.
const LOOK_AGAIN: Duration = Duration::from_millis(200);

/// How long things may take once all is healed.
#[derive(Debug, Clone, Copy)]
struct Patience {
    /// Until what is due is done: it may take two leases and the pauses of who waits for a database.
    done: Duration,
    /// Until the load goes on.
    progress: Duration,
    /// Until a command is answered, or a show read.
    answer: Duration,
    /// Until the end of the log is reached.
    read: Duration,
}

impl Patience {
    const USUAL: Self = Self {
        done: Duration::from_secs(60),
        progress: Duration::from_secs(120),
        answer: Duration::from_secs(60),
        read: Duration::from_secs(60),
    };
    const ANY_TIME: Self = Self {
        done: Duration::from_secs(240),
        progress: Duration::from_secs(300),
        answer: Duration::from_secs(240),
        read: Duration::from_secs(240),
    };

    /// With `--any-time` or without.
    fn new(any_time: bool) -> Self {
        match any_time {
            true => Self::ANY_TIME,
            false => Self::USUAL,
        }
    }
}

/// What a round has come to.
struct RoundResult {
    acknowledged: u64,
    unknown: u64,
    /// Of the whole run.
    events: u64,
    verdict: Verdict,
    /// Of the whole run.
    counts: Counts,
    /// How long after the last reservation of the round was due nothing was open any more.
    done_after: Duration,
}

/// How far the log was read.
#[derive(Debug)]
struct ReadSoFar {
    /// What was stored before this time was read.
    until: AtomicI64,
    /// Why nothing is read at present.
    trouble: Mutex<Option<Failure>>,
}

/// The load.
pub(crate) struct Payments {
    users: u16,
    seed: u64,
    pay_within: Duration,
    any_time: bool,
    history: HistoryFile,
    /// Since the first stretch.
    ledger: Option<Ledger>,
    working: Option<Users>,
    /// Events that were stored when the last stretch was over.
    events: u64,
}

impl Payments {
    /// So many users, shared equally among the members, who have so long to pay.
    pub(crate) fn new(
        users: u16,
        seed: u64,
        pay_within: Duration,
        any_time: bool,
        history: HistoryFile,
    ) -> Self {
        Self {
            users,
            seed,
            pay_within,
            any_time,
            history,
            ledger: None,
            working: None,
            events: 0,
        }
    }
}

#[async_trait(?Send)]
impl Load for Payments {
    async fn begin(&mut self, world: &World, stretch: u32) -> Result<()> {
        if self.ledger.is_none() {
            let started = Ledger::start(&world.url(), self.pay_within, self.any_time).await?;
            self.ledger = Some(started);
        }
        let Some(ledger) = &self.ledger else {
            return fail("nobody reads the payments");
        };
        let targets = world.members.iter().map(Member::target).collect();
        let seed = self.seed ^ (u64::from(stretch) << 32);
        self.working = Some(Users::start(targets, self.users, seed, ledger).await?);
        Ok(())
    }

    /// Waits as long as everything may take, whatever is given: an answer may need two leases.
    async fn goes_on(&mut self, _: Duration) -> Result<Duration> {
        match &self.working {
            Some(users) => users.goes_on().await,
            None => fail("nobody asks for seats"),
        }
    }

    async fn end(&mut self, world: &World, _: &FaultEffects) -> Result<StretchReport> {
        let (Some(ledger), Some(users)) = (&self.ledger, self.working.take()) else {
            return fail("nobody asks for seats");
        };
        let clocks = world.clock_readings();
        let judged = ledger.judge(users, clocks, &self.history).await?;
        let before = std::mem::replace(&mut self.events, judged.events);
        let count = |kind: &Kind| judged.verdict.count(*kind);
        Ok(StretchReport {
            acknowledged: judged.acknowledged,
            lost: count(&Kind::NotStored),
            doubled: DOUBLED.iter().map(count).sum(),
            stale: count(&Kind::Stale),
            unknown: judged.unknown,
            events: judged.events - before,
            problems: judged.verdict.findings(),
            told: format!(
                "{} commands were acknowledged, {} outcomes stayed unknown; {}, all done {:.1?} after the last was due",
                judged.acknowledged, judged.unknown, judged.counts, judged.done_after
            ),
            ..StretchReport::default()
        })
    }

    async fn finish(&mut self, world: &World, is_stopped: bool) -> Result<StretchReport> {
        let Some(ledger) = self.ledger.as_ref().filter(|_| !is_stopped) else {
            return Ok(StretchReport::default());
        };
        let (verdict, counts) = ledger.end(world.clock_readings()).await?;
        Ok(StretchReport {
            problems: verdict.findings(),
            told: format!("{counts}."),
            ..StretchReport::default()
        })
    }
}

/// Everything that was stored in the run.
struct Ledger {
    url: String,
    pay_within: Duration,
    patience: Patience,
    opened: Opened,
    book: Arc<Mutex<SeatBook>>,
    read: Arc<ReadSoFar>,
    reading: JoinHandle<()>,
    /// What was asked and answered in each round that is over.
    rounds: Mutex<Vec<SeatRound>>,
    _over: DropGuard,
}

impl Ledger {
    /// Begins to read a store without payments.
    async fn start(url: &str, pay_within: Duration, any_time: bool) -> Result<Self> {
        let opened = store::open_url(url, Duration::ZERO, 1).await?;
        let book = Arc::default();
        let read = Arc::new(ReadSoFar::new());
        let over = CancellationToken::new();
        let reader = Reader {
            store: Arc::clone(&opened.store),
            book: Arc::clone(&book),
            read: Arc::clone(&read),
        };
        let own_over = over.clone();
        let reading = tokio::spawn(async move {
            let _ = own_over.run_until_cancelled(reader.run()).await;
        });
        Ok(Self {
            url: url.to_owned(),
            pay_within,
            patience: Patience::new(any_time),
            opened,
            book,
            read,
            reading,
            rounds: Mutex::default(),
            _over: over.drop_guard(),
        })
    }

    fn terms<'a>(&self, clocks: &'a ClockReadings) -> Terms<'a> {
        Terms {
            pay_within: micros(self.pay_within),
            clocks,
        }
    }

    /// Waits until everything was read that was stored before a time.
    async fn read_until(&self, until: i64) -> Result<()> {
        let begun = Instant::now();
        while self.read.until.load(Ordering::Acquire) < until {
            let has_ended = self.reading.is_finished();
            if has_ended || begun.elapsed() > self.patience.read {
                return fail(self.read.complaint(begun.elapsed()));
            }
            tokio::time::sleep(LOOK).await;
        }
        Ok(())
    }

    /// Waits until nothing is open that is due at a time, which may be to come; gives what is open all the same, and
    /// how long it took from then on.
    async fn settle(&self, clocks: &ClockReadings, until: i64) -> Result<(Verdict, Duration)> {
        let terms = self.terms(clocks);
        let wait = u64::try_from(until - now()).unwrap_or_default();
        tokio::time::sleep(Duration::from_micros(wait)).await;
        let begun = Instant::now();
        loop {
            self.read_until(now()).await?;
            let mut open = Verdict::default();
            judge::open(&self.book.lock().unwrap(), terms, until, &mut open);
            if open.is_clean() || begun.elapsed() > self.patience.done {
                return Ok((open, begun.elapsed()));
            }
            tokio::time::sleep(LOOK_AGAIN).await;
        }
    }

    /// Ends the users of a round, waits until what is due is done, and judges everything.
    async fn judge(
        &self,
        users: Users,
        clocks: ClockReadings,
        history: &HistoryFile,
    ) -> Result<RoundResult> {
        let round = users.end().await?;
        let until = now() + micros(self.pay_within);
        let (mut verdict, done_after) = self.settle(&clocks, until).await?;
        let book = self.book.lock().unwrap();
        let counts = judge::judge(&book, self.terms(&clocks), &mut verdict);
        let mut rounds = self.rounds.lock().unwrap();
        // What comes late of an earlier round is judged in the end.
        let earlier: Vec<&str> = rounds.iter().map(|round| round.prefix.as_str()).collect();
        replies::judge(&book, &[&round], &earlier, &mut verdict);
        history.add(|| round.operations(&book))?;
        let count = |reply: SeatReply| {
            let asked = round.asked.iter().filter(|asked| asked.reply == reply);
            asked.count() as u64
        };
        let (acknowledged, unknown) = (count(SeatReply::Done), count(SeatReply::Open));
        rounds.push(round);
        Ok(RoundResult {
            acknowledged,
            unknown,
            events: book.events,
            verdict,
            counts,
            done_after,
        })
    }

    /// Reads everything once more, with a store that has seen nothing of it.
    async fn read_again(&self) -> Result<SeatBook> {
        let opened = store::open_url(&self.url, Duration::ZERO, 1).await?;
        let book = read_whole(opened.store.as_ref(), self.patience.read).await?;
        opened.store.shutdown().await?;
        Ok(book)
    }

    /// Waits until every reservation of the run is due, and judges all of them; nobody asks for anything any more.
    async fn end(&self, clocks: ClockReadings) -> Result<(Verdict, Counts)> {
        let terms = self.terms(&clocks);
        self.read_until(now()).await?;
        let last = judge::last_due(&self.book.lock().unwrap(), terms);
        let until = last.unwrap_or_default().max(now());
        let wait = u64::try_from(until - now()).unwrap_or_default();
        if wait > 0 {
            eprintln!(
                "the last reservation is due in {:.0?}",
                Duration::from_micros(wait)
            );
        }
        let (mut verdict, _) = self.settle(&clocks, until).await?;
        // The product must say the same.
        let timers = gesta::timers::Timers::on(&self.opened.store, TIMERS)?;
        for timer in timers.pending().await? {
            let told = || format!("timer {} of {}, due {}", timer.id, timer.key, timer.due);
            verdict.add(Kind::TimerPending, 1, told);
        }
        // What was read as it was stored is what is stored.
        let before = self.book.lock().unwrap().clone();
        let again = self.read_again().await?;
        self.read_until(now()).await?;
        let (book, rounds) = (self.book.lock().unwrap(), self.rounds.lock().unwrap());
        let missing = [before.missing_in(&again), again.missing_in(&book)];
        for what in missing.into_iter().flatten() {
            verdict.add(Kind::ReadOtherwise, 1, || what);
        }
        let counts = judge::judge(&book, terms, &mut verdict);
        let rounds: Vec<&SeatRound> = rounds.iter().collect();
        replies::judge(&book, &rounds, &[], &mut verdict);
        Ok((verdict, counts))
    }
}

impl Clocks for ClockReadings {
    fn were_right(&self, from: i64, to: i64) -> bool {
        self.were_right(from, to)
    }

    fn latest(&self, from: i64, to: i64) -> i64 {
        self.latest(from, to)
    }
}

/// Reads a store from its beginning to its end.
async fn read_whole(store: &dyn EventStore, within: Duration) -> Result<SeatBook> {
    let (mut book, mut from, begun) = (SeatBook::default(), AllFrom::Start, Instant::now());
    loop {
        let page = ReadAll::forwards().from(from.clone());
        match store.read_all(page).await {
            Ok(page) => {
                let seen = StoredWithin {
                    after: 0,
                    by: now(),
                };
                page.events
                    .iter()
                    .for_each(|event| forms::take(&mut book, event, seen));
                if page.end {
                    return Ok(book);
                }
                from = AllFrom::Checkpoint(page.next);
            }
            Err(error) if error.is_retryable() && begun.elapsed() < within => {
                tokio::time::sleep(LOOK).await;
            }
            Err(error) => return Err(error).context("reading all again"),
        }
    }
}

/// The users of one round.
struct Users {
    common: Arc<Common>,
    running: JoinSet<()>,
    patience: Patience,
}

impl Users {
    /// Starts users, shared equally among the cinemas at these addresses.
    async fn start(nodes: Vec<SocketAddr>, count: u16, seed: u64, ledger: &Ledger) -> Result<Self> {
        let (count, patience) = (usize::from(count), ledger.patience);
        let within = ledger.pay_within;
        let common = Common::prepare(nodes, count, within, patience.answer, seed).await?;
        let mut running = JoinSet::new();
        for number in 0..count {
            running.spawn(User::new(&common, number, seed).run());
        }
        Ok(Self {
            common,
            running,
            patience,
        })
    }

    /// Waits until every user has got some more commands done that were begun from now on; gives the time that it took.
    async fn goes_on(&self) -> Result<Duration> {
        let begun = Instant::now();
        self.common.count_anew();
        loop {
            let behind = self.common.behind(COMMANDS_MIN);
            if behind.is_empty() {
                return Ok(begun.elapsed());
            }
            if begun.elapsed() > self.patience.progress {
                let (count, within) = (behind.len(), self.patience.progress);
                return fail(format!(
                    "{count} users did not get {COMMANDS_MIN} commands done within {within:?}"
                ));
            }
            tokio::time::sleep(LOOK).await;
        }
    }

    /// Ends them, and reads every show through every node.
    async fn end(mut self) -> Result<SeatRound> {
        self.common.over.cancel();
        while let Some(ended) = self.running.join_next().await {
            ended?;
        }
        self.common.finish().await
    }
}

impl ReadSoFar {
    fn new() -> Self {
        Self {
            until: AtomicI64::new(now()),
            trouble: Mutex::default(),
        }
    }

    /// Says that the end of the log was not reached after so long, and why.
    fn complaint(&self, after: Duration) -> String {
        let trouble = self.trouble.lock().unwrap();
        let cause = match &*trouble {
            Some(trouble) => trouble.to_string(),
            None => "more comes all the time, or the reader has broken off".into(),
        };
        format!("the end of the log is not reached after {after:.0?}: {cause}")
    }
}

/// Reads the log as it grows.
struct Reader {
    store: Arc<dyn EventStore>,
    book: Arc<Mutex<SeatBook>>,
    read: Arc<ReadSoFar>,
}

impl Reader {
    /// Reads until that is refused for good.
    async fn run(self) {
        let mut from = AllFrom::Start;
        loop {
            let begun = now();
            let page = ReadAll::forwards().from(from.clone());
            match self.store.read_all(page).await {
                Ok(page) => {
                    let seen = StoredWithin {
                        after: self.read.until.load(Ordering::Acquire),
                        by: now(),
                    };
                    let mut book = self.book.lock().unwrap();
                    page.events
                        .iter()
                        .for_each(|event| forms::take(&mut book, event, seen));
                    drop(book);
                    *self.read.trouble.lock().unwrap() = None;
                    from = AllFrom::Checkpoint(page.next);
                    if !page.end {
                        continue;
                    }
                    self.read.until.store(begun, Ordering::Release);
                }
                Err(error) => {
                    let is_over = !error.is_retryable();
                    *self.read.trouble.lock().unwrap() = Some(error.into());
                    if is_over {
                        return;
                    }
                }
            }
            tokio::time::sleep(LOOK).await;
        }
    }
}

fn now() -> i64 {
    SystemClock.now().0
}

fn micros(time: Duration) -> i64 {
    i64::try_from(time.as_micros()).unwrap_or(i64::MAX)
}
