//! Random histories of a projection, with crashes, lost answers, two owners, operators and a restore of the store,
//! against a clean fold.
//!
//! Each step appends events and runs one to three processes, each with a fate at some call. Meanwhile somebody pauses,
//! resumes and resets the projection, replays what was put aside, and waits for what was written; and once in half of
//! the histories the store is restored to an earlier moment. A reader looks again and again: what it sees must be what
//! a clean fold of the events up to the checkpoint gives, of the life of the store that the checkpoint is of. At the
//! end a process without faults has to come to the fold of all events, after a reset if the store was restored, and to
//! that of all but those that somebody has dropped.
//!
//! Not here: versions and switches, of which a subject has one.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use gesta_core::{
    Append, Checkpoint, EventData, EventId, EventStore, EventStoreExt, ExpectedRevision,
    RecordedEvent, StreamId,
};

use crate::batch::positions;
use crate::config::{Config, OnPoison};
use crate::control::Control;
use crate::definition::ProjectionId;
use crate::projections::Projections;
use crate::running::Running;
use crate::state::State;
use crate::target::{Order, Target};
use crate::testing::faulty::{Fate, Faulty};

/// Time in which a process without faults has to come to the end.
const END_WITHIN: Duration = Duration::from_secs(60);

/// Numbers by chance, the same for the same seed: `splitmix64` (Steele, Lea, Flood; public domain).
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    /// Begins with a seed.
    #[must_use]
    pub fn seed(seed: u64) -> Self {
        Self(seed)
    }

    /// Returns a number below `end`, which must not be 0.
    pub fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)) % end
    }

    /// Returns true in one of `of` cases.
    pub fn one_in(&mut self, of: u64) -> bool {
        self.below(of) == 0
    }
}

/// What a kit tests.
pub trait Subject: Send + Sync + 'static {
    /// The target.
    type Target: Target;

    /// Makes a target without tables.
    fn target(&self) -> impl Future<Output = Self::Target> + Send;

    /// Makes a store without events.
    fn store(&self) -> Arc<dyn EventStore>;

    /// Makes a store that was restored with these events of the other one, in another life.
    fn restored(&self, events: Vec<RecordedEvent>) -> Arc<dyn EventStore>;

    /// Adds the projection.
    fn add(&self, to: Projections<Faulty<Self::Target>>) -> Projections<Faulty<Self::Target>>;

    /// Returns the name and version of the projection.
    fn id(&self) -> ProjectionId;

    /// Makes an event and names its stream.
    fn event(&self, random: &mut Random) -> (StreamId, EventData);

    /// Reads checkpoint and rows in one transaction, as a reader would: the rows as a text.
    fn read(&self, target: &Self::Target) -> impl Future<Output = (Checkpoint, String)> + Send;

    /// Returns the same text of a clean fold of these events.
    fn fold(&self, events: &[RecordedEvent]) -> String;

    /// Returns what becomes of events that cannot be applied.
    fn on_poison(&self) -> OnPoison {
        OnPoison::Stop
    }
}

/// Runs random histories.
#[derive(Clone, Copy, Debug)]
pub struct Kit {
    histories: u64,
    seed: u64,
    steps: u64,
}

impl Default for Kit {
    fn default() -> Self {
        Self {
            histories: 20,
            seed: 1,
            steps: 6,
        }
    }
}

impl Kit {
    /// Sets the number of histories.
    #[must_use]
    pub fn histories(mut self, histories: u64) -> Self {
        self.histories = histories;
        self
    }

    /// Sets the seed of the first history; each other has the next number.
    #[must_use]
    pub fn seed(mut self, seed: u64) -> Self {
        self.seed = seed;
        self
    }

    /// Sets the number of steps of a history.
    #[must_use]
    pub fn steps(mut self, steps: u64) -> Self {
        self.steps = steps;
        self
    }

    /// Runs the histories, and tries a failing one again with fewer steps.
    ///
    /// # Errors
    /// What was wrong, with the seed and the smallest number of steps at which it was.
    pub async fn run<S: Subject>(self, subject: Arc<S>) -> Result<(), String> {
        for seed in self.seed..self.seed + self.histories {
            if let Err(wrong) = history(&subject, seed, self.steps).await {
                for steps in 1..self.steps {
                    if let Err(wrong) = history(&subject, seed, steps).await {
                        return Err(format!("seed {seed}, {steps} steps: {wrong}"));
                    }
                }
                return Err(format!("seed {seed}, {} steps: {wrong}", self.steps));
            }
        }
        Ok(())
    }
}

fn fate(random: &mut Random) -> Fate {
    match random.below(10) {
        0 | 1 => Fate::DieBefore,
        2 | 3 => Fate::DieAfter,
        4 => Fate::AnswerLost,
        5 => Fate::CallLost,
        6..9 => Fate::Stall(Duration::from_millis(60 + random.below(100))),
        _ => Fate::None,
    }
}

type Lives<S> = Vec<(
    Faulty<<S as Subject>::Target>,
    Running<Faulty<<S as Subject>::Target>>,
)>;

async fn history<S: Subject>(subject: &Arc<S>, seed: u64, steps: u64) -> Result<(), String> {
    let mut random = Random::seed(seed);
    let target = subject.target().await;
    let mut reader = Reader {
        subject: Arc::clone(subject),
        stores: vec![subject.store()],
        control: Control::of(target.clone()),
        target,
        is_registered: AtomicBool::new(false),
        dropped: HashSet::new(),
    };
    let mut lives: Lives<S> = Vec::new();
    let restores_at = random.below(2 * steps);
    for step in 0..steps {
        if step == restores_at {
            for (faulty, _) in lives.drain(..) {
                faulty.kill();
            }
            reader.restore(&mut random).await?;
        }
        let store = Arc::clone(reader.store());
        append(&**subject, &store, &mut random).await?;
        let processes = 1 + random.below(3);
        for _ in 0..processes {
            let faulty = Faulty::new(reader.target.clone(), random.below(30), fate(&mut random));
            let projections =
                Projections::on(&store, faulty.clone()).config(config(&**subject, &mut random));
            // One that dies while it starts is gone, as a process would be.
            if let Ok(running) = subject.add(projections).start().await {
                lives.push((faulty, running));
            }
        }
        append(&**subject, &store, &mut random).await?;
        for _ in 0..random.below(30) {
            reader.look().await?;
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        if let Some((_, running)) = lives.last() {
            reader.operate(running, &mut random).await?;
        }
        reader.look().await?;
        while lives.len() > 1 || (!lives.is_empty() && random.one_in(2)) {
            let (faulty, running) = lives.remove(0);
            if random.one_in(2) {
                faulty.kill();
            } else {
                running.shutdown().await;
            }
        }
    }
    for (faulty, _) in &lives {
        faulty.kill();
    }
    drop(lives);
    let config = config(&**subject, &mut random);
    reader.comes_to_the_end(config, &mut random).await
}

fn config<S: Subject>(subject: &S, random: &mut Random) -> Config {
    let events = |random: &mut Random| usize::try_from(1 + random.below(40)).unwrap_or(1);
    Config {
        batch_events_max: events(random),
        live_events_max: events(random),
        // Small, so that rows are forgotten and read again.
        row_cache_bytes_max: usize::try_from(random.below(4_000)).unwrap_or(0),
        lease: Duration::from_millis(50),
        look_every: Duration::from_millis(10),
        store_position_every: Duration::from_millis(20),
        back_off: (Duration::from_millis(1), Duration::from_millis(20)),
        // Processes are killed here so often that chance would condemn an event.
        deaths_max: u32::MAX,
        on_poison: subject.on_poison(),
        ..Config::default()
    }
}

async fn append<S: Subject>(
    subject: &S,
    store: &Arc<dyn EventStore>,
    random: &mut Random,
) -> Result<(), String> {
    for _ in 0..random.below(25) {
        let (stream, event) = subject.event(random);
        let append = Append::to(stream, ExpectedRevision::Any, vec![event]);
        store
            .append(append)
            .await
            .map_err(|error| error.to_string())?;
    }
    Ok(())
}

struct Reader<S: Subject> {
    subject: Arc<S>,
    /// The lives of the store, the present one last.
    stores: Vec<Arc<dyn EventStore>>,
    target: S::Target,
    control: Control<S::Target>,
    is_registered: AtomicBool,
    /// Events that somebody has dropped.
    dropped: HashSet<EventId>,
}

fn text(error: impl std::fmt::Display) -> String {
    error.to_string()
}

impl<S: Subject> Reader<S> {
    #[expect(clippy::expect_used, reason = "it begins with one store")]
    fn store(&self) -> &Arc<dyn EventStore> {
        self.stores.last().expect("a store")
    }

    /// Restores the store to an earlier moment of each log.
    async fn restore(&mut self, random: &mut Random) -> Result<(), String> {
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

    /// Does what somebody asks for, as chance will have it. Nobody may be there to do it: then it is done later.
    async fn operate(
        &self,
        running: &Running<Faulty<S::Target>>,
        random: &mut Random,
    ) -> Result<(), String> {
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
                let timeout = Duration::from_millis(30);
                self.waits(running, timeout).await?;
            }
        }
        Ok(())
    }

    /// Waits for everything that is written. If that is answered, it is shown, unless the projection was reset since.
    /// Returns why it is not shown yet.
    async fn waits(
        &self,
        running: &Running<Faulty<S::Target>>,
        timeout: Duration,
    ) -> Result<Option<String>, String> {
        let id = self.subject.id();
        let before = match self.control.version(&id).await {
            Ok(before) => before,
            Err(error) => return Ok(Some(text(error))),
        };
        let info = self.store().info().await.map_err(text)?;
        let head = Checkpoint::logs(info.incarnation, info.heads);
        if let Err(error) = running.wait_for(&id.name, &head, timeout).await {
            return Ok(Some(text(error)));
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
        let before = events.into_iter().filter(|event| {
            let place = places.get(usize::from(event.log.0)).copied();
            event.position <= place.unwrap_or_default() && !self.dropped.contains(&event.id)
        });
        let before: Vec<RecordedEvent> = before.collect();
        Ok(self.subject.fold(&before))
    }

    /// Looks once, and returns the checkpoint.
    async fn look(&self) -> Result<Option<Checkpoint>, String> {
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

    /// Runs a process without faults until the projection shows everything; then drops what was put aside, perhaps, and
    /// goes on.
    async fn comes_to_the_end(mut self, config: Config, random: &mut Random) -> Result<(), String> {
        let faulty = Faulty::new(self.target.clone(), 0, Fate::None);
        let projections = Projections::on(self.store(), faulty).config(config);
        let running = self.subject.add(projections).start().await;
        let running = running.map_err(text)?;
        let id = self.subject.id();
        if self.control.version(&id).await.map_err(text)?.state == State::Paused {
            self.control.resume(&id).await.map_err(text)?;
        }
        if self.stores.len() > 1 {
            let reset = self.control.order(&id, &Order::Reset, END_WITHIN).await;
            reset.map_err(|error| format!("the reset after the restore: {error}"))?;
        }
        self.shows_all(&running).await?;
        if random.one_in(2) {
            let parked = self.control.parked(&id, None, usize::from(u16::MAX)).await;
            let parked = parked.map_err(text)?;
            self.dropped = parked.into_iter().map(|parked| parked.event).collect();
            let drop = Order::Drop { key: None };
            let dropped = self.control.order(&id, &drop, END_WITHIN).await;
            dropped.map_err(|error| format!("the drop: {error}"))?;
            self.look().await?;
            append(&*self.subject, self.store(), random).await?;
            // Of events that do not match at the end of the store a live reader hears late.
            if let Some(why) = self.waits(&running, END_WITHIN).await? {
                return Err(format!("it did not go on after the drop: {why}"));
            }
        }
        running.shutdown().await;
        Ok(())
    }

    async fn shows_all(&self, running: &Running<Faulty<S::Target>>) -> Result<(), String> {
        let heads = self.store().info().await.map_err(text)?.heads;
        let until = tokio::time::Instant::now() + END_WITHIN;
        loop {
            if let Some(checkpoint) = self.look().await?
                && positions(&checkpoint) == heads.as_slice()
            {
                return Ok(());
            }
            if tokio::time::Instant::now() >= until {
                let ids = running.ids();
                let progress = ids.first().and_then(|id| running.progress(id).ok());
                let seen = progress.map(|progress| format!("{:?}", *progress.borrow()));
                return Err(format!("it did not come to the end: {seen:?}"));
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }
}
