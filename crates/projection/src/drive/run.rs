//! A session of a projection: the pipeline that reads, folds and writes, and what ends it.

use std::time::Duration;

use futures::future::BoxFuture;
use gesta_core::{Checkpoint, ErrorKind};
use tokio::sync::{mpsc, watch};
use tokio::time::Instant;
use tokio_util::task::AbortOnDropHandle;

use crate::batch::not_of;
use crate::config::{OnPoison, OnRestore};
use crate::drive::ahead::{fold_all, on_thread, read_all};
use crate::drive::poison_search::{Failed, PoisonSearch};
use crate::drive::write::{Write, transact};
use crate::drive::{Context, finish};
use crate::error::{TargetError, TargetErrorKind};
use crate::fault::{At, Fault};
use crate::looks::{Committed, Look};
use crate::progress::Phase;
use crate::reader::Reader;
use crate::state::{Life, State};
use crate::target::{Attempt, Begin, Session, Stored, Target};
use crate::work::{Folded, Work, Writer};

/// Batches that are read ahead.
const READ_AHEAD: usize = 2;
/// Looks after which every process knows of a version. Until then one that waits for the version before may answer by
/// what it knows of that one.
const SWITCH_AFTER_LOOKS: u32 = 3;
/// Pause before an event is tried again.
const TRY_AGAIN_AFTER: Duration = Duration::from_millis(50);

/// Why a session ends, or is interrupted.
#[derive(Debug)]
pub(super) enum End {
    /// The process stops.
    Stopping,
    /// It has to wait until a look shows something else.
    Look(Phase, Option<String>),
    /// It begins again after a pause.
    Again(Phase, String),
}

/// What interrupts a pipeline.
#[derive(Debug)]
pub(super) enum Stop {
    End(End),
    /// Somebody has stored commands.
    Orders,
    /// A batch has failed: its events are applied one batch after the other.
    Failed,
    /// A version that has caught up, but was behind the active one, tries again to take its place.
    Switch,
}

/// What became of a batch that was to be written.
#[derive(Debug)]
pub(super) enum Step {
    Done,
    Failed(Option<At>, String),
    /// The target had begun to write it: smaller batches may be written.
    Unwritten(End),
    End(End),
}

pub(super) struct Run<'a, T: Target> {
    pub(super) context: &'a Context<T>,
    pub(super) session: Option<T::Session>,
    pub(super) epoch: i64,
    /// The checkpoint that is stored, and the place up to which no further event matches.
    pub(super) stored: Checkpoint,
    pub(super) reached: Checkpoint,
    pub(super) row: Stored,
    looks: watch::Receiver<Look>,
    store_position_at: Instant,
    pub(super) is_live: bool,
    /// Before this time readers are not switched to this version: every process has to have seen that there is one.
    pub(super) switch_from: Instant,
    /// True if readers see a later version, so that this one does not take its place by itself.
    pub(super) is_outdated: bool,
    /// True if nothing was applied since the last reset: the tables are empty.
    pub(super) is_empty: bool,
}

impl<'a, T: Target> Run<'a, T> {
    pub(super) fn new(context: &'a Context<T>, session: T::Session, row: Stored) -> Self {
        let mut looks = context.looks.clone();
        looks.mark_changed();
        context.progress.send_modify(|progress| {
            progress.phase = Phase::CatchingUp;
            progress.checkpoint = Some(row.checkpoint.clone());
            progress.resets = row.resets;
        });
        let epoch = row.epoch + 1;
        context.committed.set(Some(Committed {
            at: Instant::now(),
            epoch,
            checkpoint: row.checkpoint.clone(),
            resets: row.resets,
            events: row.events,
        }));
        Self {
            context,
            session: Some(session),
            epoch,
            stored: row.checkpoint.clone(),
            reached: row.checkpoint.clone(),
            is_empty: row.events == 0,
            row,
            looks,
            store_position_at: Instant::now() + context.config.store_position_every,
            is_live: false,
            is_outdated: false,
            switch_from: Instant::now() + context.config.look_every * SWITCH_AFTER_LOOKS,
        }
    }

    /// Runs until something ends the session, and ends it in good order if that is possible. `stale` says why the
    /// checkpoint is not of the store as it is now: then a reset alone leads on, which somebody has asked for, or which
    /// is what becomes of the version if the store was restored.
    pub(super) async fn go<W: Work<T>>(
        mut self,
        make: &(impl Fn() -> W + Sync),
        search: &mut PoisonSearch,
        stale: Option<String>,
    ) -> End {
        let end = match self.applied(make, search, stale).await {
            Stop::End(end) => end,
            Stop::Orders | Stop::Failed | Stop::Switch => {
                End::Again(Phase::Starting, "it begins again".to_owned())
            }
        };
        if matches!(end, End::Stopping) && self.session.is_some() {
            // A failure here leaves the position where it was.
            let _ = self.store_position(make().writer()).await;
        }
        // Nobody is answered from memory without a session.
        self.context.committed.set(None);
        match self.session.take() {
            Some(session) => finish::<T>(session, None, end).await,
            None => end,
        }
    }

    async fn applied<W: Work<T>>(
        &mut self,
        make: &(impl Fn() -> W + Sync),
        search: &mut PoisonSearch,
        stale: Option<String>,
    ) -> Stop {
        if let Err(end) = self.create(make().writer()).await {
            return Stop::End(end);
        }
        if let Err(end) = self.reset_first(make, search, stale).await {
            return Stop::End(end);
        }
        loop {
            if self.session.is_none() {
                let why = self.context.progress.borrow().error.clone();
                return Stop::End(End::Again(Phase::Retrying, why.unwrap_or_default()));
            }
            let parked = match self.context.target.parked_keys(&self.context.id).await {
                Ok(parked) => parked.into_iter().collect(),
                Err(error) => return Stop::End(self.of_fault(Fault::Target(error)).await),
            };
            let mut work = make();
            work.begin(parked, self.is_empty);
            let stop = if search.is_on() {
                Box::pin(self.sequentially(work, search)).await
            } else {
                Box::pin(self.pipeline(work, search)).await
            };
            match stop {
                Stop::End(end) => return Stop::End(end),
                Stop::Failed | Stop::Switch => {}
                Stop::Orders => {
                    if let Err(end) = Box::pin(self.obey(make, search)).await {
                        return Stop::End(end);
                    }
                }
            }
        }
    }

    /// Makes the tables of the version, if nothing was applied yet.
    async fn create<W: Writer<T>>(&mut self, writer: W) -> Result<(), End> {
        if !W::CREATES || !self.is_empty {
            return Ok(());
        }
        let show = (self.row.life == Life::Active).then(|| self.row.read_as.clone());
        let mut write = Write::at(self.stored.clone());
        write.create = Some(show.unwrap_or_default());
        match self.transact(writer, write).await {
            Ok(()) => Ok(()),
            Err(Fault::Author(_, error)) => Err(self.halt(format!("its tables: {error}")).await),
            Err(fault) => Err(self.of_fault(fault).await),
        }
    }

    /// Reads, folds and writes, each a batch ahead of the next.
    async fn pipeline<W: Work<T>>(&mut self, work: W, search: &mut PoisonSearch) -> Stop {
        let writer = work.writer();
        self.is_live = false;
        let (batches_in, batches) = mpsc::channel(READ_AHEAD);
        let (folded_in, mut folded) = mpsc::channel(1);
        let committed = watch::Sender::new(0);
        let config = &self.context.config;
        let reader = Reader::new(
            self.context.store.clone(),
            self.context.filter.clone(),
            self.reached.clone(),
            config.live_events_max,
        )
        .live_every(config.live_every);
        let seen = committed.subscribe();
        let reading = read_all(reader, config.batch_events_max, batches_in, seen);
        let _reading = AbortOnDropHandle::new(tokio::spawn(reading));
        let folding = fold_all::<T, W>(work, batches, folded_in, committed.subscribe());
        let _folding = AbortOnDropHandle::new(tokio::spawn(folding));
        loop {
            let store_at = self.store_position_at;
            let next = tokio::select! {
                biased;
                stop = self.interrupted() => match stop {
                    Stop::Switch => {
                        if let Err(end) = self.switch(writer.clone()).await {
                            return Stop::End(end);
                        }
                        continue;
                    }
                    stop => return stop,
                },
                () = tokio::time::sleep_until(store_at) => {
                    if let Err(end) = self.store_position(writer.clone()).await {
                        return Stop::End(end);
                    }
                    continue;
                }
                next = folded.recv() => next,
            };
            let folded = match next {
                Some(Ok(folded)) => folded,
                Some(Err((Fault::Author(event, error), events))) => {
                    let failed = Failed {
                        events,
                        event,
                        error,
                    };
                    return self.narrow_down(failed, search).await;
                }
                Some(Err((fault, events))) => {
                    // Rows are read for a batch as well: too many, perhaps.
                    if matches!(fault, Fault::Target(_)) {
                        search.unwritten(events);
                    }
                    return Stop::End(self.of_fault(fault).await);
                }
                None => {
                    let why = "the task that folds has ended".to_owned();
                    return Stop::End(End::Again(Phase::Retrying, why));
                }
            };
            let (events, first, caught_up) = (folded.span, folded.first, folded.caught_up);
            match self.write(writer.clone(), folded).await {
                Step::Done => {}
                Step::End(end) => return Stop::End(end),
                Step::Unwritten(end) => {
                    search.unwritten(events);
                    return Stop::End(end);
                }
                Step::Failed(event, error) => {
                    let event = event.or_else(|| first.filter(|_| events == 1));
                    let failed = Failed {
                        events,
                        event,
                        error,
                    };
                    return self.narrow_down(failed, search).await;
                }
            }
            committed.send_modify(|committed| *committed += 1);
            if self.is_live != caught_up {
                self.is_live = caught_up;
                let phase = if caught_up {
                    Phase::Live
                } else {
                    Phase::CatchingUp
                };
                self.context.tell(phase, None);
                if let Err(end) = self.switch(writer.clone()).await {
                    return Stop::End(end);
                }
            }
        }
    }

    /// Waits until the process stops, or a look shows that this session is to stop.
    pub(super) async fn interrupted(&mut self) -> Stop {
        loop {
            let changed = tokio::select! {
                () = self.context.stopping.cancelled() => return Stop::End(End::Stopping),
                changed = self.looks.changed() => changed,
            };
            if changed.is_err() {
                return Stop::End(End::Stopping);
            }
            let look = self.looks.borrow_and_update().clone();
            if let Some(stop) = self.judge(&look) {
                return stop;
            }
        }
    }

    fn judge(&mut self, look: &Look) -> Option<Stop> {
        let row = look.row(&self.context.id);
        if let Some(why) = self.lost(look.at, row) {
            self.session = None;
            return Some(Stop::End(End::Again(Phase::TargetAway, why)));
        }
        let row = row?;
        if row.epoch < self.epoch {
            // The look is older than this session.
            return None;
        }
        let stop = |phase, why| Some(Stop::End(End::Look(phase, why)));
        if row.life == Life::Retired {
            return stop(Phase::Retired, None);
        }
        if row.epoch > self.epoch || row.owner != Some(self.context.node) {
            self.session = None;
            return stop(Phase::StandingBy, None);
        }
        self.row.life = row.life;
        match row.state {
            State::Paused => stop(Phase::Paused, None),
            State::Stopped => stop(Phase::Stopped, row.error.clone()),
            State::Running => {
                let mut commands = look.commands.iter();
                if commands.any(|command| command.id == self.context.id) {
                    return Some(Stop::Orders);
                }
                (self.is_live && self.may_switch()).then_some(Stop::Switch)
            }
        }
    }

    /// Says that the target has lost what this session has committed, if a look shows it. No transaction is under way
    /// then, so nothing but a loss explains it.
    fn lost(&self, looked: Option<Instant>, row: Option<&Stored>) -> Option<String> {
        let committed = self.context.committed.get()?;
        committed.is_lost(looked?, row).then(|| {
            let found = row.map_or_else(
                || "the version is not registered".to_owned(),
                |row| format!("its place is {}", row.checkpoint),
            );
            let to = &committed.checkpoint;
            format!(
                "the target has lost commits, or was put back: {found}, though the place {to} was committed; what is \
                 there counts"
            )
        })
    }

    /// Writes a batch; one without events only moves the place in memory.
    pub(super) async fn write<W: Writer<T>>(
        &mut self,
        writer: W,
        folded: Folded<W::Output>,
    ) -> Step {
        let (to, events, hidden) = (folded.to.clone(), folded.events, folded.hidden_fronts);
        if !folded.moves_only() {
            let write = Write::batch(folded);
            match self.transact(writer, write).await {
                Ok(()) => {}
                Err(Fault::Author(event, error)) => return Step::Failed(event, error),
                Err(fault @ Fault::Unwritten(_)) => {
                    return Step::Unwritten(self.of_fault(fault).await);
                }
                Err(fault) => return Step::End(self.of_fault(fault).await),
            }
            self.is_empty &= events == 0;
        }
        self.reached = to;
        let reached = &self.reached;
        self.context.progress.send_modify(|progress| {
            progress.checkpoint = Some(reached.clone());
            progress.events += events;
            progress.hidden_fronts += hidden;
            if events > 0 {
                progress.batches += 1;
                progress.error = None;
            }
        });
        Step::Done
    }

    /// Stores the place that is known in memory alone.
    pub(super) async fn store_position<W: Writer<T>>(&mut self, writer: W) -> Result<(), End> {
        self.store_position_at = Instant::now() + self.context.config.store_position_every;
        if self.reached == self.stored || self.session.is_none() {
            return Ok(());
        }
        let write = Write::at(self.reached.clone());
        match self.transact(writer, write).await {
            Ok(()) => Ok(()),
            Err(fault) => Err(self.of_fault(fault).await),
        }
    }

    /// Runs one transaction in the session. The session is gone after a panic. It is boxed, as other parts of a run
    /// are: futures over a database are large, and the stack of a thread is not.
    pub(super) fn transact<W: Writer<T>>(
        &mut self,
        writer: W,
        write: Write<W::Output>,
    ) -> BoxFuture<'_, Result<(), Fault>> {
        Box::pin(async move {
            let Some(mut session) = self.session.take() else {
                let gone = TargetError::new(TargetErrorKind::Away, "the session is gone");
                return Err(Fault::Target(gone));
            };
            let (from, events_before) = (self.stored.clone(), self.row.events);
            let (to, events, clears) = (write.to.clone(), write.events, write.clear);
            let job = async move {
                let stands_on = (&from, events_before);
                let done = transact::<T, W>(&mut session, &writer, stands_on, &write).await;
                (session, done)
            };
            let (session, done) = on_thread(T::BLOCKING, job)
                .await
                .map_err(|panic| Fault::Author(None, panic))?;
            self.session = Some(session);
            if done.is_ok() {
                self.committed(to, events, clears);
            }
            done
        })
    }

    /// Notes what a transaction has committed.
    fn committed(&mut self, to: Checkpoint, events: u64, clears: bool) {
        let row = &mut self.row;
        let added = i64::try_from(events).unwrap_or(i64::MAX);
        row.events = row.events.saturating_add(added);
        if clears {
            (row.resets, row.events) = (row.resets + 1, 0);
        }
        self.context.committed.set(Some(Committed {
            at: Instant::now(),
            epoch: self.epoch,
            checkpoint: to.clone(),
            resets: row.resets,
            events: row.events,
        }));
        self.stored = to;
    }

    pub(super) fn announce(&mut self, attempt: Attempt) -> BoxFuture<'_, Result<(), End>> {
        Box::pin(async move {
            let Some(mut session) = self.session.take() else {
                return Err(End::Again(
                    Phase::Retrying,
                    "the session is gone".to_owned(),
                ));
            };
            let job = async move {
                let done = session.announce(attempt).await;
                (session, done)
            };
            match on_thread(T::BLOCKING, job).await {
                Ok((session, Ok(()))) => {
                    self.session = Some(session);
                    Ok(())
                }
                Ok((_, Err(error))) => Err(self.of_fault(Fault::Target(error)).await),
                Err(panic) => Err(End::Again(Phase::Retrying, panic)),
            }
        })
    }

    /// Decides what to do about a batch that has failed.
    pub(super) async fn narrow_down(&mut self, failed: Failed, search: &mut PoisonSearch) -> Stop {
        self.context.failed(Phase::Retrying, failed.error.clone());
        let is_known = failed.event.is_some();
        let Some(((log, position), verdict)) = search.failed(failed) else {
            if is_known {
                tokio::time::sleep(TRY_AGAIN_AFTER).await;
            }
            return Stop::Failed;
        };
        let why = format!(
            "the event at position {position} of log {log} could not be applied in {} attempts: {}",
            verdict.attempts, verdict.error
        );
        match self.context.config.on_poison {
            OnPoison::Stop => Stop::End(self.halt(why).await),
            OnPoison::Park if !verdict.has_key => {
                let why = format!("{why}; it cannot be parked, for nobody can tell its key");
                Stop::End(self.halt(why).await)
            }
            OnPoison::Park | OnPoison::Skip => {
                tracing::warn!(projection = %self.context.id, %why, "an event is put aside");
                search.verdicts.insert((log, position), verdict);
                Stop::Failed
            }
        }
    }

    /// Stops the projection for this reason, until somebody resumes it.
    pub(super) async fn halt(&mut self, why: String) -> End {
        let why = crate::error::cut(why);
        tracing::error!(projection = %self.context.id, %why, "a projection has stopped");
        let end = End::Look(Phase::Stopped, Some(why.clone()));
        match self.session.take() {
            Some(session) => finish::<T>(session, Some(&why), end).await,
            // The session was lost by a panic. Another one says so: without it an owner that stood still would stop the
            // version of the one that has taken over.
            None => match self
                .context
                .target
                .begin(&self.context.id, self.context.node)
                .await
            {
                Ok(Begin::Begun(session, stored)) if stored.epoch == self.epoch => {
                    finish::<T>(session, Some(&why), end).await
                }
                Ok(Begin::Begun(session, _)) => {
                    let again = End::Again(Phase::Retrying, why);
                    finish::<T>(session, None, again).await
                }
                Ok(Begin::Owned(_) | Begin::NotFound) => End::Look(Phase::StandingBy, None),
                Err(error) => End::Again(Phase::TargetAway, error.to_string()),
            },
        }
    }

    /// Says how to go on after a fault that is not of one event.
    pub(super) fn of_fault(&mut self, fault: Fault) -> BoxFuture<'_, End> {
        Box::pin(async move {
            match fault {
                Fault::Halt(why) | Fault::Author(_, why) => self.halt(why).await,
                Fault::Store(error) => self.of_store(&error).await,
                Fault::Target(error) | Fault::Unwritten(error) => {
                    // Only a new session shows what is stored.
                    self.session = None;
                    match error.kind() {
                        TargetErrorKind::Lost => End::Look(Phase::StandingBy, None),
                        _ => End::Again(Phase::TargetAway, error.to_string()),
                    }
                }
            }
        })
    }

    /// Says how to go on after an error of the store: a checkpoint that it refuses is of another life of it.
    pub(super) async fn of_store(&mut self, error: &gesta_core::Error) -> End {
        if matches!(error.kind(), ErrorKind::InvalidCheckpoint(_))
            && let Ok(info) = self.context.store.info().await
            && let Some(why) = not_of(&info, &self.stored)
        {
            return match self.context.config.on_restore {
                OnRestore::Stop => self.halt(why).await,
                // The next session finds the same, and resets it.
                OnRestore::Reset => End::Again(Phase::Retrying, why),
            };
        }
        End::Again(Phase::StoreAway, error.to_string())
    }
}
