//! What a reader of a history sees, waits for and orders, and what it must see.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use gesta_core::{
    Checkpoint, EventId, EventStore, EventStoreExt, LogId, Position, RecordedEvent, Timestamp,
};

use super::{Life, Random, Subject, WAITS, append, text};
use crate::batch::positions;
use crate::begin_at::BeginAt;
use crate::config::Config;
use crate::control::Control;
use crate::error::Error;
use crate::projections::Projections;
use crate::state::State;
use crate::target::{Order, Stored, Target};
use crate::testing::faulty::{Fate, Faulty};
use crate::testing::restorable::Restorable;

/// Time in which a process without faults has to come to the end.
const END_WITHIN: Duration = Duration::from_secs(60);
/// Processes that may die one after the other. A deadly event ends one in a batch with others, some in smaller batches,
/// and some alone; after a reset, or in a replay, all of this happens again.
const DEATHS_MAX: u32 = 100;

/// The stores and the target of a history.
pub(super) struct Reader<S: Subject> {
    pub(super) subject: Arc<S>,
    /// The lives of the store, the present one last.
    stores: Vec<Arc<dyn EventStore>>,
    pub(super) target: S::Target,
    control: Control<S::Target>,
    is_registered: AtomicBool,
    /// The time at which the projection begins; `None` if it begins before the first event.
    begins: Option<Timestamp>,
    /// Whether the target can be put back.
    has_backup: bool,
    /// Events that end a process which applies them.
    deadly: HashSet<EventId>,
    /// Events that somebody has dropped.
    dropped: HashSet<EventId>,
}

impl<S: Subject> Reader<S> {
    pub(super) async fn new(subject: &Arc<S>) -> Self {
        let target = subject.target().await;
        Self {
            subject: Arc::clone(subject),
            stores: vec![subject.store()],
            control: Control::of(target.clone()),
            target,
            is_registered: AtomicBool::new(false),
            begins: None,
            has_backup: false,
            deadly: HashSet::new(),
            dropped: HashSet::new(),
        }
    }

    #[expect(clippy::expect_used, reason = "it begins with one store")]
    pub(super) fn store(&self) -> &Arc<dyn EventStore> {
        self.stores.last().expect("a store")
    }

    /// Restores the store to an earlier moment of each log.
    pub(super) async fn restore(&mut self, random: &mut Random) -> Result<(), String> {
        let events = self.store().read_everything().await.map_err(text)?;
        let heads = self.store().info().await.map_err(text)?.heads;
        let kept: Vec<u64> = heads.iter().map(|head| random.below(head.0 + 1)).collect();
        let kept = events.into_iter().filter(|event| {
            let until = kept.get(usize::from(event.log.0)).copied();
            event.position.0 <= until.unwrap_or_default()
        });
        let restored = self.subject.restored(kept.collect());
        self.stores.push(restored);
        Ok(())
    }

    /// Appends some events to the present life of the store. Returns their ids.
    pub(super) async fn append(&self, random: &mut Random) -> Result<Vec<EventId>, String> {
        append(&*self.subject, self.store(), random).await
    }

    /// Lets the projection begin when one of the events was stored that are there, or before the first one.
    pub(super) async fn choose_begin(&mut self, random: &mut Random) -> Result<(), String> {
        let events = self.store().read_everything().await.map_err(text)?;
        if random.one_in(2) && !events.is_empty() {
            let at = random.below(events.len() as u64);
            let event = usize::try_from(at).ok().and_then(|at| events.get(at));
            self.begins = event.map(|event| event.created);
        }
        Ok(())
    }

    /// Makes one of these events end each process that applies it, if the projection applies one of them.
    pub(super) async fn choose_deadly(
        &mut self,
        among: &[EventId],
        random: &mut Random,
    ) -> Result<(), String> {
        let id = self.subject.id();
        // Before the first process has come so far there is no version.
        let version = self.control.version(&id).await.ok();
        let Some(filter) = version.and_then(|version| version.filter) else {
            return Ok(());
        };
        let events = self.store().read_everything().await.map_err(text)?;
        let mut events: Vec<RecordedEvent> = events
            .into_iter()
            .filter(|event| among.contains(&event.id) && filter.matches(event))
            .collect();
        if !events.is_empty() {
            let at = usize::try_from(random.below(events.len() as u64)).unwrap_or(0);
            self.deadly.insert(events.swap_remove(at).id);
        }
        Ok(())
    }

    pub(super) fn has_deadly(&self) -> bool {
        !self.deadly.is_empty()
    }

    /// Returns the places of deadly events in the present life of the store.
    async fn deadly_places(&self) -> Result<HashSet<(LogId, Position)>, String> {
        if self.deadly.is_empty() {
            return Ok(HashSet::new());
        }
        let events = self.store().read_everything().await.map_err(text)?;
        let deadly = events
            .iter()
            .filter(|event| self.deadly.contains(&event.id));
        Ok(deadly.map(|event| (event.log, event.position)).collect())
    }

    /// Starts a process that has a fate at some call.
    pub(super) async fn start(
        &self,
        at: u64,
        fate: Fate,
        config: Config,
    ) -> Result<Life<S>, String> {
        let faulty = Faulty::new(self.target.clone(), at, fate);
        faulty.dies_of(self.deadly_places().await?);
        let store = Restorable::new(Arc::clone(self.store()));
        let held: Arc<dyn EventStore> = Arc::new(store.clone());
        let projections = Projections::on(&held, faulty.clone()).config(config);
        let mut projections = self.subject.add(projections);
        if let Some(time) = self.begins {
            let name = self.subject.id().name;
            projections = projections.begin_at(&name, BeginAt::Time(time));
        }
        Ok(Life {
            running: Box::pin(projections.start()).await.map_err(text)?,
            faulty,
            store,
            is_late: false,
        })
    }

    /// Ends the lease of whoever owns the projection, as time would.
    pub(super) async fn end_lease(&self) -> Result<(), String> {
        let version = self.control.version(&self.subject.id()).await;
        if let Some(owner) = version.map_err(text)?.owner {
            let ended = self.target.renew(owner, "", Duration::ZERO);
            ended.await.map_err(text)?;
        }
        Ok(())
    }

    /// Keeps what the target holds, once there is a version.
    pub(super) async fn back_up(&mut self) -> Result<(), String> {
        self.look().await?;
        if self.is_registered.load(Ordering::SeqCst) {
            self.subject.back_up(&self.target).await;
            self.has_backup = true;
        }
        Ok(())
    }

    /// Puts back what was kept, and waits until every process has looked since. Returns false if nothing was kept.
    pub(super) async fn put_back(&self, lives: &[Life<S>]) -> Result<bool, String> {
        if !self.has_backup {
            return Ok(false);
        }
        self.subject.put_back(&self.target).await;
        self.look().await?;
        let until = tokio::time::Instant::now() + END_WITHIN;
        for life in lives {
            // The first may have been under way, the second is begun after it.
            let looks = life.faulty.looks() + 2;
            while life.faulty.looks() < looks && !life.faulty.is_dead() {
                if tokio::time::Instant::now() >= until {
                    return Err("a process looks no more".to_owned());
                }
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        }
        Ok(true)
    }

    /// Does what somebody asks for, as chance will have it. Nobody may be there to do it: then it is done later.
    pub(super) async fn operate(&self, life: &Life<S>, random: &mut Random) -> Result<(), String> {
        let (id, wait) = (self.subject.id(), Duration::from_millis(20));
        match random.below(8) {
            0 | 1 => {
                let _ = self.control.order(&id, &Order::Reset, wait).await;
            }
            2 => {
                let replay = Order::Replay { key: None };
                let _ = self.control.order(&id, &replay, wait).await;
            }
            3 => {
                // Before the first process has come so far there is none.
                if self.control.pause(&id).await.is_ok() {
                    self.look().await?;
                    tokio::time::sleep(Duration::from_millis(random.below(20))).await;
                    self.look().await?;
                    if random.one_in(2) {
                        self.control.resume(&id).await.map_err(text)?;
                    }
                }
            }
            4 => {
                let _ = self.control.resume(&id).await;
            }
            _ => {
                Box::pin(self.waits(life, WAITS)).await?;
            }
        }
        Ok(())
    }

    /// Waits for everything that is written. If that is answered, it is shown, unless the projection was reset since.
    /// Returns why it is not shown yet.
    ///
    /// # Errors
    /// What is shown, or the reason that is given, is not what has happened.
    pub(super) async fn waits(
        &self,
        life: &Life<S>,
        timeout: Duration,
    ) -> Result<Option<String>, String> {
        let id = self.subject.id();
        let before = match self.control.version(&id).await {
            Ok(before) => before,
            Err(error) => return Ok(Some(text(error))),
        };
        let info = self.store().info().await.map_err(text)?;
        let head = Checkpoint::logs(info.incarnation, info.heads);
        // A process that has heard of no reset for a moment tells of one that was done before it was asked.
        let progress = life.running.progress(&id).map_err(text)?;
        let known = progress.borrow().resets;
        let waited = life.running.wait_for(&id.name, &head, timeout).await;
        let after = self.control.version(&id).await.map_err(text)?;
        let was_reset = after.resets != before.resets;
        if let Err(error) = waited {
            let is_so = match &error {
                Error::TimedOut { .. } => true,
                Error::Reset(_) => was_reset || after.resets != known,
                Error::NotRunning { state, .. } => {
                    let was = |row: &Stored| row.state == *state;
                    *state != State::Running && (was(&before) || was(&after))
                }
                Error::Target(_) => life.faulty.is_dead(),
                // What it is asked for is of a life of the store of which it knows nothing.
                Error::Invalid(_) | Error::Store(_) => life.is_late,
                _ => false,
            };
            return match is_so {
                true => Ok(Some(text(error))),
                false => Err(format!(
                    "whoever has waited for {head} was told {error}, which is not so: before, the row was {before:?}, \
                     and after it {after:?}"
                )),
            };
        }
        let (checkpoint, found) = self.subject.read(&self.target).await;
        let after = self.control.version(&id).await.map_err(text)?;
        let expected = self.fold(self.store(), &head).await?;
        if found == expected {
            return Ok(None);
        }
        if after.resets != before.resets {
            return Ok(Some("it was reset".to_owned()));
        }
        Err(format!(
            "a reader that has waited for {head} saw, at {checkpoint},\n{found}\ninstead of\n{expected}"
        ))
    }

    /// Folds the events of a store up to a place.
    async fn fold(&self, store: &Arc<dyn EventStore>, to: &Checkpoint) -> Result<String, String> {
        let events = store.read_everything().await.map_err(text)?;
        let places = positions(to);
        let folded = events.into_iter().filter(|event| {
            let place = places.get(usize::from(event.log.0)).copied();
            event.position <= place.unwrap_or_default()
                && self.begins.is_none_or(|begins| event.created >= begins)
                && !self.dropped.contains(&event.id)
        });
        let folded: Vec<RecordedEvent> = folded.collect();
        Ok(self.subject.fold(&folded, &self.deadly))
    }

    /// Looks once, and returns the checkpoint.
    pub(super) async fn look(&self) -> Result<Option<Checkpoint>, String> {
        let was_registered = self.is_registered.load(Ordering::SeqCst);
        let rows = match self.target.list().await {
            Ok(rows) => rows,
            // Before the first process has come so far there are no tables.
            Err(_) if !was_registered => return Ok(None),
            Err(error) => return Err(format!("the versions cannot be listed: {error}")),
        };
        let is_registered = rows.iter().any(|row| row.id == self.subject.id());
        if was_registered && !is_registered {
            return Err("a version that was registered is gone".to_owned());
        }
        if !is_registered {
            return Ok(None);
        }
        self.is_registered.store(true, Ordering::SeqCst);
        let (checkpoint, found) = self.subject.read(&self.target).await;
        for store in &self.stores {
            if store.incarnation().await.map_err(text)? != checkpoint.incarnation {
                continue;
            }
            let expected = self.fold(store, &checkpoint).await?;
            if found == expected {
                return Ok(Some(checkpoint));
            }
            return Err(format!(
                "a reader at {checkpoint} saw\n{found}\nwhere a clean fold gives\n{expected}"
            ));
        }
        Err(format!("{checkpoint} is of no life of the store"))
    }

    /// Does something while processes without faults run the projection, each until it dies of a deadly event.
    pub(super) async fn while_run<R>(
        &self,
        config: &Config,
        work: impl Future<Output = Result<R, String>>,
    ) -> Result<R, String> {
        let mut work = Box::pin(work);
        for _ in 0..DEATHS_MAX {
            let life = self.start(0, Fate::None, config.clone()).await?;
            let dies = async {
                while !life.faulty.is_dead() {
                    tokio::time::sleep(Duration::from_millis(1)).await;
                }
            };
            tokio::select! {
                done = &mut work => {
                    life.running.shutdown().await;
                    return done;
                }
                () = dies => {}
            }
            drop(life);
            self.end_lease().await?;
        }
        Err("processes die for ever".to_owned())
    }

    /// Runs processes without faults until the projection shows everything; then drops what was put aside, perhaps, and
    /// goes on.
    pub(super) async fn comes_to_the_end(
        mut self,
        config: Config,
        random: &mut Random,
    ) -> Result<(), String> {
        self.while_run(&config, self.shows_all()).await?;
        if random.one_in(2) {
            let id = self.subject.id();
            let parked = self.control.parked(&id, None, usize::from(u16::MAX)).await;
            let parked = parked.map_err(text)?;
            let dropped = async {
                let drop = Order::Drop { key: None };
                let dropped = self.control.order(&id, &drop, END_WITHIN).await;
                dropped.map_err(|error| format!("the drop: {error}"))
            };
            self.while_run(&config, dropped).await?;
            self.dropped = parked.into_iter().map(|parked| parked.event).collect();
            self.look().await?;
            let life = self.start(0, Fate::None, config).await?;
            self.append(random).await?;
            // Of events that do not match at the end of the store a live reader hears late.
            if let Some(why) = Box::pin(self.waits(&life, END_WITHIN)).await? {
                return Err(format!("it did not go on after the drop: {why}"));
            }
            life.running.shutdown().await;
        }
        Ok(())
    }

    /// Lets the projection go on, if somebody has paused it or it is of another life of the store, and looks until it
    /// shows everything.
    async fn shows_all(&self) -> Result<(), String> {
        let id = self.subject.id();
        if self.control.version(&id).await.map_err(text)?.state == State::Paused {
            self.control.resume(&id).await.map_err(text)?;
        }
        if self.stores.len() > 1 {
            let reset = self.control.order(&id, &Order::Reset, END_WITHIN).await;
            reset.map_err(|error| format!("the reset after the restore: {error}"))?;
        }
        let heads = self.store().info().await.map_err(text)?.heads;
        let until = tokio::time::Instant::now() + END_WITHIN;
        loop {
            if let Some(checkpoint) = self.look().await?
                && positions(&checkpoint) == heads.as_slice()
            {
                return Ok(());
            }
            if tokio::time::Instant::now() >= until {
                let row = self.control.version(&id).await;
                return Err(format!("it did not come to the end: {row:?}"));
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }
}
