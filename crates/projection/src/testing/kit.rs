//! Random histories of a projection, with crashes, lost answers, two owners, operators and a restore of the store,
//! against a clean fold.
//!
//! Each step appends events and runs one to three processes, each with a fate at some call. Meanwhile somebody pauses,
//! resumes and resets the projection, replays what was put aside, and waits for what was written; and once in half of
//! the histories the store is restored to an earlier moment, which each of the processes notices at a moment of its
//! own, unless it was killed before. The target, too, is put back to an earlier moment in half of the histories, under
//! the processes that use it: whoever waits after their next look is not told that the rows are there which were lost.
//! In half of the histories the projection begins at a time and not before the first event. Of subjects that put events
//! aside, every fourth history has an event that ends each process that applies it, and no other deaths, so that this
//! event alone is condemned.
//!
//! A reader looks again and again: what it sees must be what a clean fold of the events up to the checkpoint gives, of
//! the life of the store that the checkpoint is of. Whoever waits is told only what did happen. At the end a process
//! without faults has to come to the fold of all events, after a reset if the store was restored, and to that of all
//! but those that somebody has dropped.
//!
//! * `reader`: what is read, waited for and ordered, and what is expected; `deaths`: histories with a deadly event.
//!
//! Not here: versions and switches, of which a subject has one.

mod deaths;
mod reader;

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use gesta_core::{
    Append, Checkpoint, EventData, EventId, EventStore, ExpectedRevision, RecordedEvent, StreamId,
};

use crate::config::{Config, OnPoison};
use crate::definition::ProjectionId;
use crate::projections::Projections;
use crate::running::Running;
use crate::target::Target;
use crate::testing::faulty::{Fate, Faulty};
use crate::testing::restorable::Restorable;

use reader::Reader;

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

    /// Returns the same text of a clean fold of these events. Those that are deadly end a process that applies them, so
    /// they cannot be applied.
    fn fold(&self, events: &[RecordedEvent], deadly: &HashSet<EventId>) -> String;

    /// Keeps what the target holds, in the place of what was kept before.
    fn back_up(&self, target: &Self::Target) -> impl Future<Output = ()> + Send;

    /// Puts back what was kept, but for the leases, while processes use the target.
    fn put_back(&self, target: &Self::Target) -> impl Future<Output = ()> + Send;

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
            if let Err(wrong) = one(&subject, seed, self.steps).await {
                for steps in 1..self.steps {
                    if let Err(wrong) = one(&subject, seed, steps).await {
                        return Err(format!("seed {seed}, {steps} steps: {wrong}"));
                    }
                }
                return Err(format!("seed {seed}, {} steps: {wrong}", self.steps));
            }
        }
        Ok(())
    }
}

/// Time for which somebody waits for what was written.
const WAITS: Duration = Duration::from_millis(30);

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

/// A process that runs the projection.
struct Life<S: Subject> {
    faulty: Faulty<S::Target>,
    running: Running<Faulty<S::Target>>,
    store: Restorable,
    /// Whether the store was restored, and this process has not noticed it.
    is_late: bool,
}

/// Runs a history of one of the two kinds.
async fn one<S: Subject>(subject: &Arc<S>, seed: u64, steps: u64) -> Result<(), String> {
    let mut random = Random::seed(seed);
    let reader = Reader::new(subject).await;
    // Boxed, as other parts are: futures over a database are large, and the stack of a thread is not.
    match subject.on_poison() != OnPoison::Stop && random.one_in(4) {
        true => Box::pin(deaths::history(reader, random, steps)).await,
        false => Box::pin(history(reader, random, steps)).await,
    }
}

async fn history<S: Subject>(
    mut reader: Reader<S>,
    mut random: Random,
    steps: u64,
) -> Result<(), String> {
    let mut lives: Vec<Life<S>> = Vec::new();
    let restores_at = random.below(2 * steps);
    let backs_up_at = random.below(steps);
    let puts_back_at = backs_up_at + random.below(steps);
    for step in 0..steps {
        if step == restores_at {
            reader.restore(&mut random).await?;
            for life in &mut lives {
                match random.below(4) {
                    0 => life.faulty.kill(),
                    1 => life.store.notices(Arc::clone(reader.store())),
                    _ => life.is_late = true,
                }
            }
            lives.retain(|life| !life.faulty.is_dead());
        }
        reader.append(&mut random).await?;
        if step == 0 {
            reader.choose_begin(&mut random).await?;
        }
        let processes = 1 + random.below(3);
        for _ in 0..processes {
            let (at, fate) = (random.below(30), fate(&mut random));
            let config = config(&*reader.subject, &mut random);
            // One that dies while it starts is gone, as a process would be.
            if let Ok(life) = reader.start(at, fate, config).await {
                lives.push(life);
            }
        }
        if step == backs_up_at {
            reader.back_up().await?;
        }
        reader.append(&mut random).await?;
        for _ in 0..random.below(30) {
            reader.look().await?;
            let mut late = lives.iter_mut().filter(|life| life.is_late);
            if random.one_in(10)
                && let Some(life) = late.next()
            {
                life.store.notices(Arc::clone(reader.store()));
                life.is_late = false;
            }
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        if step == puts_back_at && reader.put_back(&lives).await? {
            lives.retain(|life| !life.faulty.is_dead());
            for life in &lives {
                Box::pin(reader.waits(life, WAITS)).await?;
            }
        }
        if let Some(life) = lives.last() {
            Box::pin(reader.operate(life, &mut random)).await?;
        }
        reader.look().await?;
        while lives.len() > 1 || (!lives.is_empty() && random.one_in(2)) {
            let life = lives.remove(0);
            if random.one_in(2) {
                life.faulty.kill();
            } else {
                life.running.shutdown().await;
            }
        }
    }
    for life in &lives {
        life.faulty.kill();
    }
    drop(lives);
    let config = config(&*reader.subject, &mut random);
    Box::pin(reader.comes_to_the_end(config, &mut random)).await
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
        live_every: Duration::from_millis(5 * random.below(3)),
        start_waits: random.one_in(2),
        ..Config::default()
    }
}

/// Appends some events. Returns their ids.
async fn append<S: Subject>(
    subject: &S,
    store: &Arc<dyn EventStore>,
    random: &mut Random,
) -> Result<Vec<EventId>, String> {
    let mut ids = Vec::new();
    for _ in 0..random.below(25) {
        let (stream, event) = subject.event(random);
        let id = EventId::random();
        let event = event.with_id(id);
        let append = Append::to(stream, ExpectedRevision::Any, vec![event]);
        store
            .append(append)
            .await
            .map_err(|error| error.to_string())?;
        ids.push(id);
    }
    Ok(ids)
}

fn text(error: impl std::fmt::Display) -> String {
    error.to_string()
}
