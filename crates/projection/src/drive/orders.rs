//! What an owner is asked for: reset, replay and drop. They are done between two batches, in the owner's session.
//!
//! Invariants: a replay never moves the checkpoint. A key is free when its last parked event is gone; until then its
//! new events are parked behind the others, for the owner does one thing at a time.

use futures::future::BoxFuture;
use gesta_core::{Checkpoint, Position, RecordedEvent};

use crate::batch::Batch;
use crate::begin_at::floor_now;
use crate::config::OnRestore;
use crate::drive::Context;
use crate::drive::poison_search::PoisonSearch;
use crate::drive::run::{End, Run};
use crate::drive::write::Write;
use crate::error::{Error, TargetError, cut};
use crate::fault::{Fault, at};
use crate::one_log::next_in_log;
use crate::target::{Command, Order, Parked, REFUSED, Target};
use crate::work::{Fold, Work};

/// Parked events that are handled in one transaction.
const AT_ONCE: usize = 500;

/// Why a version is reset.
enum Reset {
    /// A command of this number asks for it.
    Order(i64),
    /// Its checkpoint is not of the store as it is now, for this reason.
    Restored(String),
}

/// What became of the parked events of one key.
enum Replayed {
    All(usize),
    StoppedAt(usize, String),
}

impl<T: Target> Run<'_, T> {
    /// Does what was asked for, in order. `Err` ends the session.
    pub(super) async fn obey<W: Work<T>>(
        &mut self,
        make: &(impl Fn() -> W + Sync),
        search: &mut PoisonSearch,
    ) -> Result<(), End> {
        // Those that the look has shown may be answered already.
        let commands = self.context.target.commands().await;
        let commands = self.or_end(commands).await?;
        for command in commands {
            if command.id != self.context.id {
                continue;
            }
            match &command.order {
                Order::Reset => {
                    let order = Reset::Order(command.number);
                    self.reset(&make().writer(), search, order).await?;
                }
                Order::Drop { key } => {
                    self.drop_parked::<W>(make, &command, key.as_deref())
                        .await?
                }
                Order::Replay { key } => {
                    self.replay(make, &command, key.as_deref(), search).await?;
                    search.replayed();
                }
            }
        }
        Ok(())
    }

    /// Does the resets that were asked for before anything else: a version that has stopped at an event must not meet
    /// it again, and to one whose checkpoint is `stale` nothing else can be done. Then it is reset also if nobody has
    /// asked for it, or it stops, as it is told.
    pub(super) async fn reset_first<W: Work<T>>(
        &mut self,
        make: &(impl Fn() -> W + Sync),
        search: &mut PoisonSearch,
        stale: Option<String>,
    ) -> Result<(), End> {
        let commands = self.context.target.commands().await;
        let commands = self.or_end(commands).await?;
        let before = self.stored.clone();
        for command in commands {
            if command.id == self.context.id && command.order == Order::Reset {
                let order = Reset::Order(command.number);
                self.reset(&make().writer(), search, order).await?;
            }
        }
        match (stale, self.context.config.on_restore) {
            (Some(why), on_restore) if self.stored == before => match on_restore {
                OnRestore::Stop => Err(self.halt(why).await),
                OnRestore::Reset => {
                    let restored = Reset::Restored(why);
                    self.reset(&make().writer(), search, restored).await
                }
            },
            _ => Ok(()),
        }
    }

    async fn or_end<R>(&mut self, result: Result<R, TargetError>) -> Result<R, End> {
        match result {
            Ok(result) => Ok(result),
            Err(error) => Err(self.of_fault(Fault::Target(error)).await),
        }
    }

    async fn done(&mut self, result: Result<(), Fault>) -> Result<(), End> {
        match result {
            Ok(()) => Ok(()),
            Err(fault) => Err(self.of_fault(fault).await),
        }
    }

    /// Deletes all rows and begins again at the floor, in one transaction. What was known of events that failed is
    /// forgotten: they are tried again, and in another life of the store other events are in their places.
    async fn reset<W: crate::work::Writer<T>>(
        &mut self,
        writer: &W,
        search: &mut PoisonSearch,
        cause: Reset,
    ) -> Result<(), End> {
        let floor = self.row.floor.clone();
        let floor = match floor_of(self.context, &floor).await {
            Ok(floor) => floor,
            Err(Error::Store(error)) => return Err(self.of_store(&error).await),
            Err(why) => match cause {
                Reset::Order(number) => {
                    let mut write = Write::at(self.stored.clone());
                    write.reply = Some((number, cut(format!("{REFUSED}{why}"))));
                    let done = self.transact(writer.clone(), write).await;
                    return self.done(done).await;
                }
                Reset::Restored(stale) => {
                    return Err(self.halt(format!("{stale}; {why}")).await);
                }
            },
        };
        let mut write = Write::at(floor.clone());
        write.clear = true;
        match cause {
            Reset::Order(number) => write.reply = Some((number, "it was reset".to_owned())),
            Reset::Restored(why) => {
                let projection = &self.context.id;
                tracing::error!(%projection, %why, %floor, "a projection is reset, and begins again");
            }
        }
        let done = self.transact(writer.clone(), write).await;
        self.done(done).await?;
        search.forget();
        self.is_empty = true;
        self.context.begins(&floor);
        self.row.floor = floor.clone();
        self.reached = floor.clone();
        self.context.progress.send_modify(|progress| {
            progress.resets += 1;
            progress.checkpoint = Some(floor);
        });
        Ok(())
    }

    async fn drop_parked<W: Work<T>>(
        &mut self,
        make: &(impl Fn() -> W + Sync),
        command: &Command,
        key: Option<&str>,
    ) -> Result<(), End> {
        let mut dropped = 0;
        loop {
            let found = self.context.target.parked(&self.context.id, key, AT_ONCE);
            let found = found.await;
            let found = self.or_end(found).await?;
            dropped += found.len();
            let mut write = Write::at(self.stored.clone());
            write.unpark = found.iter().map(|p| (p.log, p.position)).collect();
            let is_last = found.len() < AT_ONCE;
            if is_last {
                write.reply = Some((command.number, format!("{dropped} events were dropped")));
            }
            let done = self.transact(make().writer(), write).await;
            self.done(done).await?;
            if is_last {
                return Ok(());
            }
        }
    }

    async fn replay<W: Work<T>>(
        &mut self,
        make: &(impl Fn() -> W + Sync),
        command: &Command,
        key: Option<&str>,
        search: &mut PoisonSearch,
    ) -> Result<(), End> {
        let keys = match key {
            Some(key) => vec![key.to_owned()],
            None => {
                let keys = self.context.target.parked_keys(&self.context.id).await;
                self.or_end(keys).await?
            }
        };
        let (mut applied, mut stopped) = (0, Vec::new());
        for key in keys {
            match self.replay_key(make, &key, search).await? {
                Replayed::All(events) => applied += events,
                Replayed::StoppedAt(events, why) => {
                    applied += events;
                    stopped.push(format!("{key}: {why}"));
                }
            }
        }
        let mut answer = format!("{applied} events were applied");
        if !stopped.is_empty() {
            answer.push_str(&format!(
                "; {} keys stay parked: {}",
                stopped.len(),
                stopped.join("; ")
            ));
        }
        let mut write = Write::at(self.stored.clone());
        write.reply = Some((command.number, cut(answer)));
        let done = self.transact(make().writer(), write).await;
        self.done(done).await
    }

    /// Applies the parked events of a key, in their order, and takes each away in the transaction that applies it.
    fn replay_key<'b, W: Work<T>>(
        &'b mut self,
        make: &'b (impl Fn() -> W + Sync),
        key: &'b str,
        search: &'b mut PoisonSearch,
    ) -> BoxFuture<'b, Result<Replayed, End>> {
        Box::pin(async move {
            let mut applied = 0;
            let mut at_once = search.replay_limit(AT_ONCE);
            loop {
                let found = self
                    .context
                    .target
                    .parked(&self.context.id, Some(key), at_once);
                let found = found.await;
                let found = self.or_end(found).await?;
                if found.is_empty() {
                    return Ok(Replayed::All(applied));
                }
                let mut events = Vec::with_capacity(found.len());
                for parked in &found {
                    match self.event(parked).await? {
                        Some(event) => events.push(event),
                        None => break,
                    }
                }
                if events.is_empty() {
                    let why = "the event is stored no longer; drop it".to_owned();
                    return Ok(Replayed::StoppedAt(applied, why));
                }
                let (count, first) = (events.len(), at(&events[0]));
                let refused = match search.fatal_in_replay(first) {
                    Some(why) => (Some(first), why),
                    None => {
                        self.announce(search.attempt(count, first, true)).await?;
                        match self.apply_parked(make, events).await {
                            Ok(()) => {
                                applied += count;
                                continue;
                            }
                            Err(Fault::Author(event, why)) => (event, why),
                            Err(fault @ Fault::Unwritten(_)) => {
                                search.unwritten_in_replay(count);
                                return Err(self.of_fault(fault).await);
                            }
                            Err(fault) => return Err(self.of_fault(fault).await),
                        }
                    }
                };
                let (event, why) = refused;
                let before = event.and_then(|event| {
                    found
                        .iter()
                        .position(|parked| (parked.log, parked.position) == event)
                });
                match before {
                    // Those before it are applied first, then it is met alone.
                    Some(n) if n > 0 => at_once = n,
                    None if count > 1 => at_once = count / 2,
                    _ => {
                        let mut again = found[0].clone();
                        again.attempts += 1;
                        again.error.clone_from(&why);
                        let mut write = Write::at(self.stored.clone());
                        write.park = vec![again];
                        let done = self.transact(make().writer(), write).await;
                        self.done(done).await?;
                        return Ok(Replayed::StoppedAt(applied, why));
                    }
                }
            }
        })
    }

    fn apply_parked<'b, W: Work<T>>(
        &'b mut self,
        make: &'b (impl Fn() -> W + Sync),
        events: Vec<RecordedEvent>,
    ) -> BoxFuture<'b, Result<(), Fault>> {
        Box::pin(async move {
            let unpark = events.iter().map(at).collect();
            let batch = Batch::new(events, self.stored.clone(), self.stored.clone());
            let mut work = make();
            let folded = super::ahead::on_thread(T::BLOCKING, async move {
                work.begin(std::collections::HashSet::new(), false);
                work.fold(batch, Fold::Replay).await
            });
            let folded = folded.await.map_err(|panic| Fault::Author(None, panic))?;
            // Rows are read for a batch as well: too many, perhaps.
            let folded = folded.map_err(Fault::within_the_fence)?;
            let mut write = Write::batch(folded);
            write.unpark = unpark;
            self.transact(make().writer(), write).await?;
            self.is_empty = false;
            Ok(())
        })
    }

    /// Reads a parked event; `None` if it is stored no longer.
    fn event<'b>(
        &'b mut self,
        parked: &'b Parked,
    ) -> BoxFuture<'b, Result<Option<RecordedEvent>, End>> {
        Box::pin(async move {
            let before = Position(parked.position.0.saturating_sub(1));
            match next_in_log(&*self.context.store, parked.log, before).await {
                Ok(found) => Ok(found
                    .filter(|event| event.position == parked.position && event.id == parked.event)),
                Err(error) => Err(self.of_store(&error).await),
            }
        })
    }
}

/// Returns where a version begins in the store as it is now that began at this floor.
async fn floor_of<T>(context: &Context<T>, floor: &Checkpoint) -> Result<Checkpoint, Error> {
    let info = context.store.info().await?;
    let told = context.begin_at.as_ref();
    floor_now(floor, told, &*context.store, &info).await
}
