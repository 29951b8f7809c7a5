//! A target that is another one until a chosen call, at which the process that holds it dies, or the call fails.
//!
//! Each handle made by [`Faulty::new`] stands for a process. The calls that register, begin, read rows, write and
//! switch are counted, those of its sessions too. Once it is dead every call fails and changes nothing, as if the
//! process was gone. It may also die [of events](Faulty::dies_of).

use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use gesta_core::{LogId, Position};
use uuid::Uuid;

use crate::batch::{Batch, positions};
use crate::definition::{ProjectionId, Registration, Table};
use crate::error::{ApplyError, TargetError, TargetErrorKind};
use crate::projection::Projection;
use crate::row::{Cells, Found};
use crate::state::State;
use crate::target::{
    Attempt, Begin, Command, Fence, Order, Parked, Seen, Session, Stored, SwitchFrom, Switched,
    Target,
};
use crate::value::OwnedValue;

/// What happens at the chosen call.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fate {
    /// Nothing.
    None,
    /// The process dies before the call is made.
    DieBefore,
    /// The call is made, and the process dies before it hears of it. A transaction that is open is rolled back.
    DieAfter,
    /// The call is made if it is a commit, and the answer is lost, whether it is a commit or not. The process lives.
    AnswerLost,
    /// The call is not made, and it looks as if its answer was lost. The process lives.
    CallLost,
    /// The process stands still for this time, and then makes the call.
    Stall(Duration),
}

struct Process {
    calls: AtomicU64,
    at: u64,
    fate: Fate,
    dead: AtomicBool,
    away: AtomicBool,
    hung: AtomicBool,
    /// Batches of more events take longer than they may.
    events_max: AtomicU64,
    /// Events that end the process when it applies them.
    deadly: Mutex<HashSet<(LogId, Position)>>,
    /// All calls, and those of them that list all projections, as each look does.
    statements: AtomicU64,
    looks: AtomicU64,
}

impl Process {
    fn dead() -> TargetError {
        TargetError::new(TargetErrorKind::Away, "the process is dead")
    }

    /// Fails if the process is dead or the target away.
    fn check(&self) -> Result<(), TargetError> {
        self.statements.fetch_add(1, Ordering::SeqCst);
        if self.dead.load(Ordering::SeqCst) {
            return Err(Self::dead());
        }
        if self.away.load(Ordering::SeqCst) {
            return Err(TargetError::new(
                TargetErrorKind::Away,
                "the target is away",
            ));
        }
        Ok(())
    }

    /// Waits while the target hangs.
    async fn answers(&self) {
        while self.hung.load(Ordering::SeqCst) {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }

    /// Returns whether one of these places is that of a deadly event.
    fn meets(&self, is_met: impl Fn((LogId, Position)) -> bool) -> bool {
        let deadly = self.deadly.lock().unwrap_or_else(PoisonError::into_inner);
        deadly.iter().copied().any(is_met)
    }

    /// Counts a call. Returns what is to happen at it.
    fn next(&self) -> Result<Fate, TargetError> {
        self.check()?;
        let call = self.calls.fetch_add(1, Ordering::SeqCst);
        Ok(if call == self.at {
            self.fate
        } else {
            Fate::None
        })
    }

    /// Makes a call that is not counted: looks come by time, and would make the number of a call mean little.
    async fn aside<R>(
        &self,
        call: impl Future<Output = Result<R, TargetError>>,
    ) -> Result<R, TargetError> {
        self.check()?;
        self.answers().await;
        call.await
    }

    async fn call<R>(
        &self,
        is_commit: bool,
        call: impl Future<Output = Result<R, TargetError>>,
    ) -> Result<R, TargetError> {
        let kind = if is_commit {
            TargetErrorKind::InDoubt
        } else {
            TargetErrorKind::Away
        };
        let lost = || TargetError::new(kind, "the answer was lost");
        self.answers().await;
        match self.next()? {
            Fate::None => {}
            Fate::Stall(time) => tokio::time::sleep(time).await,
            Fate::DieBefore => {
                self.dead.store(true, Ordering::SeqCst);
                return Err(Self::dead());
            }
            Fate::DieAfter => {
                let _ = call.await;
                self.dead.store(true, Ordering::SeqCst);
                return Err(Self::dead());
            }
            Fate::AnswerLost => {
                if is_commit {
                    let _ = call.await;
                }
                return Err(lost());
            }
            Fate::CallLost => return Err(lost()),
        }
        call.await
    }
}

/// A target of a process that dies, or whose calls fail. See the module.
#[derive(Clone)]
pub struct Faulty<T> {
    inner: T,
    process: Arc<Process>,
}

impl<T> std::fmt::Debug for Faulty<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "Faulty({:?} at call {})",
            self.process.fate, self.process.at
        )
    }
}

impl<T> Faulty<T> {
    /// Makes a process, at the call of this number of which, from 0, something happens.
    pub fn new(inner: T, at: u64, fate: Fate) -> Self {
        let process = Process {
            calls: AtomicU64::new(0),
            at,
            fate,
            dead: AtomicBool::new(false),
            away: AtomicBool::new(false),
            hung: AtomicBool::new(false),
            events_max: AtomicU64::new(u64::MAX),
            deadly: Mutex::default(),
            statements: AtomicU64::new(0),
            looks: AtomicU64::new(0),
        };
        Self {
            inner,
            process: Arc::new(process),
        }
    }

    /// Kills the process, as `kill -9` does.
    pub fn kill(&self) {
        self.process.dead.store(true, Ordering::SeqCst);
    }

    /// Lets the process die whenever it has applied the event at one of these places, in order or again, before the
    /// batch is committed. An event that is put aside is not applied.
    pub fn dies_of(&self, events: HashSet<(LogId, Position)>) {
        let deadly = self.process.deadly.lock();
        *deadly.unwrap_or_else(PoisonError::into_inner) = events;
    }

    /// Returns true once the process is dead.
    #[must_use]
    pub fn is_dead(&self) -> bool {
        self.process.dead.load(Ordering::SeqCst)
    }

    /// Sets whether the target is away: then every call fails, until it is back.
    pub fn set_away(&self, away: bool) {
        self.process.away.store(away, Ordering::SeqCst);
    }

    /// Sets whether the target gives no answers: then every call waits, until it answers again.
    pub fn set_hung(&self, hung: bool) {
        self.process.hung.store(hung, Ordering::SeqCst);
    }

    /// Lets every batch of more events fail before it is committed, as one does that takes longer than it may.
    pub fn set_events_max(&self, events_max: u64) {
        self.process.events_max.store(events_max, Ordering::SeqCst);
    }

    /// Returns the number of calls so far, counted or not.
    #[must_use]
    pub fn statements(&self) -> u64 {
        self.process.statements.load(Ordering::SeqCst)
    }

    /// Returns how often all projections were listed, as each look does.
    #[must_use]
    pub fn looks(&self) -> u64 {
        self.process.looks.load(Ordering::SeqCst)
    }
}

/// A session of a [`Faulty`] target.
pub struct FaultySession<S> {
    inner: S,
    process: Arc<Process>,
    /// Whether the open transaction applies an event of which the process dies.
    is_deadly: bool,
    /// Whether the open transaction has more events than may be.
    is_too_large: bool,
    /// Whether the last attempt that was announced applies parked events again.
    replays: bool,
}

impl<S> std::fmt::Debug for FaultySession<S> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("FaultySession")
    }
}

impl<T: Target> Target for Faulty<T> {
    type Transaction = T::Transaction;
    type Session = FaultySession<T::Session>;
    const BLOCKING: bool = T::BLOCKING;

    async fn migrate(&self) -> Result<(), TargetError> {
        self.process.aside(self.inner.migrate()).await
    }

    async fn register(&self, registration: &Registration) -> Result<Stored, TargetError> {
        self.process
            .call(false, self.inner.register(registration))
            .await
    }

    async fn list(&self) -> Result<Vec<Stored>, TargetError> {
        self.process.looks.fetch_add(1, Ordering::SeqCst);
        self.process.aside(self.inner.list()).await
    }

    async fn begin(
        &self,
        id: &ProjectionId,
        node: Uuid,
    ) -> Result<Begin<Self::Session>, TargetError> {
        let begun = self.process.call(false, self.inner.begin(id, node)).await?;
        Ok(match begun {
            Begin::Begun(inner, stored) => {
                let process = Arc::clone(&self.process);
                let session = FaultySession {
                    inner,
                    process,
                    is_deadly: false,
                    is_too_large: false,
                    replays: false,
                };
                Begin::Begun(session, stored)
            }
            Begin::Owned(stored) => Begin::Owned(stored),
            Begin::NotFound => Begin::NotFound,
        })
    }

    async fn load(
        &self,
        table: &Table,
        keys: &dyn Cells,
        found: &mut Found,
    ) -> Result<(), TargetError> {
        self.process
            .call(false, self.inner.load(table, keys, found))
            .await
    }

    async fn find(
        &self,
        table: &Table,
        values: &[(String, OwnedValue)],
        after: Option<(LogId, Position)>,
        limit: usize,
    ) -> Result<Vec<(LogId, Position)>, TargetError> {
        let found = self.inner.find(table, values, after, limit);
        self.process.aside(found).await
    }

    async fn page(
        &self,
        table: &Table,
        after: Option<Vec<OwnedValue>>,
        limit: usize,
    ) -> Result<Vec<OwnedValue>, TargetError> {
        let page = self.inner.page(table, after, limit);
        self.process.aside(page).await
    }

    async fn renew(&self, node: Uuid, name: &str, lease: Duration) -> Result<(), TargetError> {
        self.process
            .aside(self.inner.renew(node, name, lease))
            .await
    }

    async fn set_state(
        &self,
        id: &ProjectionId,
        state: State,
        why: Option<&str>,
    ) -> Result<bool, TargetError> {
        self.process
            .aside(self.inner.set_state(id, state, why))
            .await
    }

    async fn parked(
        &self,
        id: &ProjectionId,
        key: Option<&str>,
        limit: usize,
    ) -> Result<Vec<Parked>, TargetError> {
        self.process.aside(self.inner.parked(id, key, limit)).await
    }

    async fn count_parked(&self, id: &ProjectionId, at_most: usize) -> Result<usize, TargetError> {
        self.process
            .aside(self.inner.count_parked(id, at_most))
            .await
    }

    async fn parked_keys(&self, id: &ProjectionId) -> Result<Vec<String>, TargetError> {
        self.process.aside(self.inner.parked_keys(id)).await
    }

    async fn command(&self, id: &ProjectionId, order: &Order) -> Result<i64, TargetError> {
        self.process.aside(self.inner.command(id, order)).await
    }

    async fn commands(&self) -> Result<Vec<Command>, TargetError> {
        self.process.aside(self.inner.commands()).await
    }

    async fn answer(&self, number: i64) -> Result<Option<String>, TargetError> {
        self.process.aside(self.inner.answer(number)).await
    }

    async fn switch(
        &self,
        id: &ProjectionId,
        from: SwitchFrom,
        seen: Option<&Seen>,
    ) -> Result<Switched, TargetError> {
        let switched = self.inner.switch(id, from, seen);
        self.process.call(true, switched).await
    }

    async fn retire(&self, id: &ProjectionId) -> Result<bool, TargetError> {
        self.process.call(true, self.inner.retire(id)).await
    }

    fn classify(error: &(dyn std::error::Error + 'static)) -> Option<TargetErrorKind> {
        T::classify(error)
    }
}

impl<S: Session> Session for FaultySession<S> {
    type Transaction = S::Transaction;

    async fn open(&mut self, fence: Fence<'_>) -> Result<(), TargetError> {
        self.is_too_large = fence.events > self.process.events_max.load(Ordering::SeqCst);
        self.is_deadly = self.process.meets(|(log, position)| {
            let of = |place| positions(place).get(usize::from(log.0)).copied();
            of(fence.from) < Some(position) && Some(position) <= of(fence.to)
        });
        self.process.call(false, self.inner.open(fence)).await
    }

    fn transaction(&mut self) -> Result<&mut Self::Transaction, TargetError> {
        match self.process.next()? {
            Fate::None | Fate::Stall(_) => self.inner.transaction(),
            Fate::DieBefore | Fate::DieAfter => {
                self.process.dead.store(true, Ordering::SeqCst);
                Err(Process::dead())
            }
            Fate::AnswerLost | Fate::CallLost => Err(TargetError::new(
                TargetErrorKind::Away,
                "the answer was lost",
            )),
        }
    }

    async fn write(
        &mut self,
        table: &Table,
        rows: &dyn Cells,
        deleted: &dyn Cells,
    ) -> Result<(), TargetError> {
        self.process
            .call(false, self.inner.write(table, rows, deleted))
            .await
    }

    async fn park(&mut self, parked: &[Parked]) -> Result<(), TargetError> {
        let is_parked = |event| parked.iter().any(|one| (one.log, one.position) == event);
        if self.process.meets(is_parked) {
            self.is_deadly = false;
        }
        self.process.call(false, self.inner.park(parked)).await
    }

    async fn unpark(&mut self, events: &[(LogId, Position)]) -> Result<(), TargetError> {
        self.is_deadly |= self.replays && self.process.meets(|event| events.contains(&event));
        self.process.call(false, self.inner.unpark(events)).await
    }

    async fn show(&mut self, read_as: &[String]) -> Result<(), TargetError> {
        self.process.call(false, self.inner.show(read_as)).await
    }

    async fn clear(&mut self, table: Option<&Table>) -> Result<(), TargetError> {
        self.process.call(false, self.inner.clear(table)).await
    }

    async fn reply(&mut self, number: i64, answer: &str) -> Result<(), TargetError> {
        self.process
            .call(false, self.inner.reply(number, answer))
            .await
    }

    async fn commit(&mut self) -> Result<(), TargetError> {
        if self.is_deadly {
            self.process.dead.store(true, Ordering::SeqCst);
        }
        self.replays = false;
        if self.is_too_large {
            let text = "the statement was cancelled, for it took too long";
            return Err(TargetError::new(TargetErrorKind::Away, text));
        }
        self.process.call(true, self.inner.commit()).await
    }

    async fn roll_back(&mut self) {
        // What a dead process has open is rolled back by its database.
        self.inner.roll_back().await;
    }

    async fn announce(&mut self, attempt: Attempt) -> Result<(), TargetError> {
        self.replays = attempt.is_replay;
        self.process.call(true, self.inner.announce(attempt)).await
    }

    async fn end(self, stop: Option<&str>) -> Result<(), TargetError> {
        self.process.call(true, self.inner.end(stop)).await
    }
}

/// A projection of a target, as one of that target with faults.
#[derive(Debug)]
pub struct Through<P>(pub P);

impl<T: Target, P: Projection<T>> Projection<Faulty<T>> for Through<P> {
    const NAME: &'static str = P::NAME;
    const VERSION: u32 = P::VERSION;
    const TABLES: &'static [&'static str] = P::TABLES;

    fn filter(&self) -> gesta_core::Filter {
        self.0.filter()
    }

    async fn create(&self, transaction: &mut T::Transaction) -> Result<(), ApplyError> {
        self.0.create(transaction).await
    }

    async fn clear(&self, transaction: &mut T::Transaction) -> Result<(), ApplyError> {
        self.0.clear(transaction).await
    }

    async fn apply(
        &self,
        transaction: &mut T::Transaction,
        batch: &Batch,
    ) -> Result<(), ApplyError> {
        self.0.apply(transaction, batch).await
    }
}
