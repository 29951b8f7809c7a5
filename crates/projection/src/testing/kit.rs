//! Random histories of a projection, with crashes, lost answers, two owners and resets, against a clean fold.
//!
//! Each step appends events and runs one to three processes, each with a fate at some call. Meanwhile a reader looks
//! again and again: what it sees must be what a clean fold of the events up to the checkpoint gives. At the end a
//! process without faults has to come to the fold of all events.

use std::sync::Arc;
use std::time::Duration;

use gesta_core::{
    Append, Checkpoint, EventData, EventStore, EventStoreExt, ExpectedRevision, RecordedEvent,
    StreamId,
};

use crate::batch::positions;
use crate::config::{Config, OnPoison};
use crate::control::Control;
use crate::definition::ProjectionId;
use crate::projections::Projections;
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

async fn history<S: Subject>(subject: &Arc<S>, seed: u64, steps: u64) -> Result<(), String> {
    let mut random = Random::seed(seed);
    let (store, target) = (subject.store(), subject.target().await);
    let reader = Reader {
        subject: Arc::clone(subject),
        store: Arc::clone(&store),
        target: target.clone(),
    };
    let mut lives = Vec::new();
    for _ in 0..steps {
        append(&**subject, &store, &mut random).await?;
        let processes = 1 + random.below(3);
        for _ in 0..processes {
            let faulty = Faulty::new(target.clone(), random.below(30), fate(&mut random));
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
        if random.one_in(4) && !lives.is_empty() {
            // Nobody may be there to do it: then it is done later.
            let control = Control::of(target.clone());
            let wait = Duration::from_millis(20);
            let _ = control.order(&subject.id(), &Order::Reset, wait).await;
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
    reader
        .comes_to_the_end(config(&**subject, &mut random))
        .await
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
    store: Arc<dyn EventStore>,
    target: S::Target,
}

impl<S: Subject> Reader<S> {
    /// Looks once, and returns the checkpoint.
    async fn look(&self) -> Result<Option<Checkpoint>, String> {
        let rows = self.target.list().await;
        // Before the first process has come so far there are no tables.
        if !rows.is_ok_and(|rows| rows.iter().any(|row| row.id == self.subject.id())) {
            return Ok(None);
        }
        let (checkpoint, found) = self.subject.read(&self.target).await;
        let events = self.store.read_everything().await;
        let events = events.map_err(|error| error.to_string())?;
        let places = positions(&checkpoint);
        let before = events.into_iter().filter(|event| {
            let place = places.get(usize::from(event.log.0)).copied();
            event.position <= place.unwrap_or_default()
        });
        let before: Vec<RecordedEvent> = before.collect();
        let expected = self.subject.fold(&before);
        if found == expected {
            return Ok(Some(checkpoint));
        }
        Err(format!(
            "a reader at {places:?} saw\n{found}\nwhere a clean fold of {} events gives\n{expected}",
            before.len()
        ))
    }

    async fn comes_to_the_end(&self, config: Config) -> Result<(), String> {
        let projections =
            Projections::on(&self.store, Faulty::new(self.target.clone(), 0, Fate::None))
                .config(config);
        let running = self.subject.add(projections).start().await;
        let running = running.map_err(|error| error.to_string())?;
        let heads = self
            .store
            .info()
            .await
            .map_err(|error| error.to_string())?
            .heads;
        let until = tokio::time::Instant::now() + END_WITHIN;
        loop {
            if let Some(checkpoint) = self.look().await?
                && positions(&checkpoint) == heads.as_slice()
            {
                running.shutdown().await;
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
