//! Plays one history: callers, several processes, faults, foreigners, restarts; all from one seed.

use std::convert::Infallible;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use gesta_core::backend::Batch;
use gesta_core::peers::Peers;
use gesta_core::{
    DeleteKind, DeleteStream, ErrorKind, EventStore, ExpectedRevision, OwnerStore, StreamId,
};
use gesta_entity::{Builder, Config, Done, Entities, Error, PendingReply, Request, Stats};
use gesta_kit::faulty::{FaultyStore, ForeignEvents, Random, RandomFaults, StoredEvent, World};
use tokio::time::{sleep, timeout};

use crate::chain::{Chain, Command, Seen, chain_type, foreign_event, stream_name};
use crate::history::{Answer, Attempt, Operation, Recorder};
use crate::nodes::{Doubts, Fault, Node, Nodes};

/// Longest wait for an answer; in tokio's time, which is paused.
const PATIENCE: Duration = Duration::from_secs(600);
/// Longest delay of a call, and of a late commit.
const SLOW_MAX: Duration = Duration::from_millis(50);
/// Numbers that are reserved for the events of one attempt.
const EVENTS_MAX: u64 = 8;

/// Puts a fault between runtime and store.
pub(crate) type Plant = fn(Arc<gesta_store::Store>) -> Arc<dyn OwnerStore>;

/// How the processes of a history know each other.
#[derive(Clone, Copy)]
pub(crate) enum Setting {
    /// Two processes that do not.
    Strangers,
    /// Two or three nodes that forward, with a fault between them.
    Nodes(Fault),
}

/// What was played.
pub(crate) struct Played {
    pub(crate) entities: usize,
    pub(crate) history: Vec<Attempt>,
    pub(crate) stored: Vec<StoredEvent>,
    pub(crate) doubts: Doubts,
    /// Of the runtimes that were there at the end.
    pub(crate) stats: Vec<Stats>,
}

/// A process: a store, and the runtime on it.
struct Process {
    store: FaultyStore,
    plant: Plant,
    snapshot_every: u64,
    config: Config,
    node: Option<Arc<Node>>,
    /// The runtime, and its number among all that were started.
    runtime: Mutex<(usize, Entities<Chain>)>,
}

struct Game {
    world: Arc<World>,
    processes: Vec<Process>,
    nodes: Option<Arc<Nodes>>,
    entities: usize,
    recorder: Recorder,
    /// Of events, of keys, of runtimes.
    numbers: Arc<AtomicU64>,
    keys: AtomicU64,
    runtimes: AtomicUsize,
}

/// Plays the history of a seed, on a paused clock of its own.
pub(crate) fn play(seed: u64, plant: Plant, setting: Setting) -> Played {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build()
        .expect("a runtime");
    runtime.block_on(async {
        let mut random = Random::new(seed);
        let game = Arc::new(Game::new(&mut random, plant, setting));
        let callers = 2 + random.below(3);
        let callers: Vec<_> = (0..callers)
            .map(|_| {
                let (game, random) = (Arc::clone(&game), random.fork());
                tokio::spawn(async move { game.call(random).await })
            })
            .collect();
        for caller in callers {
            caller.await.expect("no caller panics");
        }
        game.end().await
    })
}

impl Process {
    fn new(
        random: &mut Random,
        world: &Arc<World>,
        number: usize,
        plant: Plant,
        node: Option<Arc<Node>>,
    ) -> Self {
        let store = FaultyStore::on(world, store_config(random));
        store.set_round_trip(Duration::from_millis(*random.pick(&[0, 0, 1, 5])));
        if random.chance(0.2) {
            store.set_page_bytes_max(100);
        }
        let snapshot_every = match &node {
            // Reads without snapshots are not forwarded.
            Some(_) => *random.pick(&[0, 1, 2, 3, 7]),
            None => *random.pick(&[1, 2, 3, 7]),
        };
        let mut config = runtime_config(random);
        if node.is_some() {
            config.forward_within = Duration::from_millis(*random.pick(&[400, 1_000, 5_000]));
        }
        let first = start(&store, plant, snapshot_every, &config, node.as_ref());
        Self {
            store,
            plant,
            snapshot_every,
            config,
            node,
            runtime: Mutex::new((number, first)),
        }
    }

    fn runtime(&self) -> (usize, Entities<Chain>) {
        self.runtime
            .lock()
            .expect("no panic under the lock")
            .clone()
    }

    /// Starts another runtime. Gracefully: the old one stops first, and meanwhile callers are refused. Otherwise it is
    /// left alone with what it has, and both own the same entities for a while.
    async fn restart(&self, number: usize, gracefully: bool) {
        let (_, old) = self.runtime();
        if gracefully {
            old.shutdown().await;
        }
        let node = self.node.as_ref();
        let new = start(
            &self.store,
            self.plant,
            self.snapshot_every,
            &self.config,
            node,
        );
        *self.runtime.lock().expect("no panic under the lock") = (number, new);
    }
}

fn start(
    store: &FaultyStore,
    plant: Plant,
    snapshot_every: u64,
    config: &Config,
    node: Option<&Arc<Node>>,
) -> Entities<Chain> {
    let clock = store.world().clock();
    let mut chains = chain_type(snapshot_every);
    let mut builder = Builder::new().config(config.clone()).clock(clock);
    if let Some(node) = node {
        chains = chains.forwarded();
        builder = builder.peers(Arc::clone(node) as Arc<dyn Peers>);
    }
    builder.start(plant(store.share()), chains)
}

/// Small enough that every bound is met.
fn store_config(random: &mut Random) -> gesta_store::Config {
    let mut config = gesta_store::Config::default();
    config.append.batch_events_max = *random.pick(&[1, 2, 1_000]);
    config.append.queue_events_max = *random.pick(&[4, 1_000, 1_000, 1_000]);
    config.append.streams_cached_max = *random.pick(&[1, 100]);
    config.append.names_max = *random.pick(&[0, 2, 1_000]);
    config.append.names_listed_after = *random.pick(&[1, 3]);
    config.append.give_up_after = Duration::from_millis(*random.pick(&[100, 1_000, 5_000]));
    config
}

fn runtime_config(random: &mut Random) -> Config {
    Config {
        shards: 1 + random.below(2),
        commands_max: *random.pick(&[3, 8, 1_000, 1_000]),
        entity_commands_max: *random.pick(&[1, 4, 1_000, 1_000]),
        reads_max: *random.pick(&[2, 1_000, 1_000]),
        active_max: 1 + random.below(3),
        idle_after: Duration::from_millis(*random.pick(&[40, 200, 10_000])),
        loads_max: 1 + random.below(2),
        load_batch_max: 1 + random.below(3),
        conflicts_max: *random.pick(&[1, 5, 100]),
        snapshots_waiting_max: *random.pick(&[1, 100]),
        ..Config::default()
    }
}

/// Overtakes a commit: on one of its entities, so that what was decided is outdated, or elsewhere.
fn foreign(numbers: &Arc<AtomicU64>) -> ForeignEvents {
    let numbers = Arc::clone(numbers);
    ForeignEvents::new(move |random: &mut Random, batch: &Batch| {
        let streams = batch.rows.iter().map(|row| &row.stream);
        let chains: Vec<&StreamId> = streams.filter(|s| s.category() == "chain").collect();
        if chains.is_empty() || random.chance(0.3) {
            let elsewhere = StreamId::new("elsewhere-1").expect("valid");
            return (elsewhere, vec![foreign_event(0)]);
        }
        let event = foreign_event(next(&numbers));
        ((*random.pick(&chains)).clone(), vec![event])
    })
}

fn next(numbers: &AtomicU64) -> u64 {
    numbers.fetch_add(EVENTS_MAX, Ordering::Relaxed)
}

impl Game {
    fn new(random: &mut Random, plant: Plant, setting: Setting) -> Self {
        let world = World::new(1);
        let (count, nodes) = match setting {
            Setting::Strangers => (2, None),
            Setting::Nodes(fault) => {
                let count = 2 + random.below(2);
                (count, Some(Nodes::new(random, count, fault)))
            }
        };
        let numbers = Arc::new(AtomicU64::new(EVENTS_MAX));
        let share = *random.pick(&[0.0, 0.03, 0.1, 0.3]);
        let processes = (0..count).map(|number| {
            let node = nodes.as_ref().map(|nodes| nodes.node(number));
            let process = Process::new(random, &world, number, plant, node);
            process.store.random_faults_of(RandomFaults {
                slow_max: SLOW_MAX,
                away: share / 3.0,
                away_max: Duration::from_millis(400),
                foreign: foreign(&numbers),
                ..RandomFaults::new(random.number(), share)
            });
            process
        });
        Self {
            processes: processes.collect(),
            nodes,
            entities: 1 + random.below(3),
            world,
            recorder: Recorder::default(),
            numbers,
            keys: AtomicU64::new(0),
            runtimes: AtomicUsize::new(count),
        }
    }

    /// One caller's life.
    async fn call(&self, mut random: Random) {
        for _ in 0..2 + random.below(7) {
            let (entity, process) = (
                random.below(self.entities),
                random.below(self.processes.len()),
            );
            if let Some(nodes) = &self.nodes
                && random.chance(0.2)
            {
                let stream = StreamId::new(stream_name(entity)).expect("valid");
                nodes.change_owner(&mut random, &stream);
            }
            match random.below(20) {
                0..=6 => self.execute(&mut random, entity, process).await,
                7..=9 => self.burst(&mut random, entity, process).await,
                10..=11 => self.retry(&mut random, entity).await,
                12..=14 => self.read(entity, process, Operation::Read).await,
                15..=16 => self.read(entity, process, Operation::StaleRead).await,
                17 => self.drop_one(&mut random, entity, process),
                18 if random.chance(0.5) => self.append_as_foreigner(entity),
                18 => self.delete(entity, process).await,
                _ if random.chance(0.3) => self.restart(process, random.chance(0.5)).await,
                _ => sleep(random.duration(Duration::from_millis(150))).await,
            }
            if random.chance(0.3) {
                sleep(random.duration(Duration::from_millis(20))).await;
            }
        }
    }

    fn command(&self, random: &mut Random) -> Command {
        let first = next(&self.numbers);
        let count = 1 + random.below(3) as u64;
        match random.below(10) {
            0..=5 => Command::Store { first, count },
            6..=7 => Command::StoreIfEven { first, count },
            8 => Command::Look,
            _ => Command::Reject,
        }
    }

    async fn execute(&self, random: &mut Random, entity: usize, process: usize) {
        let command = self.command(random);
        let (attempt, pending) = self.submit(entity, process, command, None);
        self.finish(attempt, pending).await;
    }

    /// Hands several commands over before it waits for any; some answers are not waited for.
    async fn burst(&self, random: &mut Random, entity: usize, process: usize) {
        let mut all = Vec::new();
        for _ in 0..2 + random.below(5) {
            let command = self.command(random);
            all.push(self.submit(entity, process, command, None));
            if random.chance(0.2) {
                tokio::task::yield_now().await;
            }
        }
        let read = self.read(entity, process, Operation::Read);
        let answers = async {
            for (attempt, pending) in all {
                if random.chance(0.9) {
                    self.finish(attempt, pending).await;
                }
            }
        };
        tokio::join!(read, answers);
    }

    /// Tries one command until its outcome is known, wherever.
    async fn retry(&self, random: &mut Random, entity: usize) {
        let key = format!("key-{}", self.keys.fetch_add(1, Ordering::Relaxed));
        let even = random.chance(0.2);
        for _ in 0..5 {
            let (first, count) = (next(&self.numbers), 1 + random.below(3) as u64);
            // Some use the key for another command, before or after the first.
            let command = match even != random.chance(0.15) {
                true => Command::StoreIfEven { first, count },
                false => Command::Store { first, count },
            };
            let process = random.below(self.processes.len());
            let (attempt, pending) = self.submit(entity, process, command, Some(&key));
            // Some do not even wait, and some try again although they know.
            let known = match random.chance(0.2) {
                true => false,
                false => self.finish(attempt, pending).await,
            };
            if known && random.chance(0.7) {
                return;
            }
            sleep(random.duration(Duration::from_millis(30))).await;
        }
    }

    fn drop_one(&self, random: &mut Random, entity: usize, process: usize) {
        let command = self.command(random);
        drop(self.submit(entity, process, command, None));
    }

    fn append_as_foreigner(&self, entity: usize) {
        let event = foreign_event(next(&self.numbers));
        let appended = self.world.foreign_append(&stream_name(entity), vec![event]);
        appended.expect("nobody is asked");
    }

    /// Deletes the stream of an entity, whatever the entity is doing.
    async fn delete(&self, entity: usize, process: usize) {
        let request = DeleteStream {
            stream: StreamId::new(stream_name(entity)).expect("valid"),
            expected: ExpectedRevision::Any,
            kind: DeleteKind::Soft,
        };
        let store = self.processes[process].store.share();
        let deleted = store.delete_stream(request);
        // Whether it was done tells the log.
        let _ = timeout(PATIENCE, deleted).await;
    }

    async fn restart(&self, process: usize, gracefully: bool) {
        let number = self.runtimes.fetch_add(1, Ordering::Relaxed);
        self.processes[process].restart(number, gracefully).await;
    }

    // ---- recorded attempts ----

    fn begin(&self, entity: usize, runtime: usize, asked: Operation, key: Option<&str>) -> usize {
        self.recorder.invoke(Attempt {
            entity,
            runtime,
            asked,
            key: key.map(str::to_owned),
            invoked: self.world.moment(),
            answered: None,
            answer: Answer::Nobody,
        })
    }

    fn submit(
        &self,
        entity: usize,
        process: usize,
        command: Command,
        key: Option<&str>,
    ) -> (usize, PendingReply<Chain>) {
        let (number, runtime) = self.processes[process].runtime();
        let attempt = self.begin(entity, number, Operation::Command(command), key);
        let mut request = Request::new(command);
        request.idempotency_key = key.map(str::to_owned);
        (attempt, runtime.submit(&entity.to_string(), request))
    }

    /// Waits for the answer. True if it is certain what became of the command.
    async fn finish(&self, attempt: usize, pending: PendingReply<Chain>) -> bool {
        let answer = timeout(PATIENCE, pending).await;
        let answer = answer.map_or(Answer::Hangs, |answer| match answer {
            Ok(done) => done_answer(done),
            Err(error) => failure(error, Answer::Rejected),
        });
        let known = matches!(
            answer,
            Answer::Done { .. } | Answer::Rejected(_) | Answer::KeyReused
        );
        self.recorder.answer(attempt, self.world.moment(), answer);
        known
    }

    async fn read(&self, entity: usize, process: usize, asked: Operation) {
        let (number, runtime) = self.processes[process].runtime();
        let attempt = self.begin(entity, number, asked, None);
        let id = entity.to_string();
        let seen = |chain: &Chain| chain.seen;
        let read = async {
            match asked {
                Operation::StaleRead => runtime.read_stale(&id, seen).await,
                _ => runtime.read(&id, seen).await,
            }
        };
        let answer = timeout(PATIENCE, read).await;
        let answer = answer.map_or(Answer::Hangs, |answer| match answer {
            Ok(seen) => Answer::Read(seen),
            Err(error) => failure(error, |never: Infallible| match never {}),
        });
        self.recorder.answer(attempt, self.world.moment(), answer);
    }

    /// Without faults everything works again: reads, stopping, and what was still on its way has been committed or
    /// never will be.
    async fn end(&self) -> Played {
        for process in &self.processes {
            process.store.heal();
        }
        if let Some(nodes) = &self.nodes {
            nodes.heal();
        }
        sleep(SLOW_MAX * 2).await;
        let mut stats = Vec::new();
        for number in 0..self.processes.len() {
            for entity in 0..self.entities {
                self.read_in_peace(entity, number).await;
            }
        }
        for process in &self.processes {
            let (_, runtime) = process.runtime();
            let stopped = timeout(PATIENCE, runtime.shutdown()).await;
            stopped.expect("the runtime stops");
            let stopped = timeout(PATIENCE, process.store.shutdown()).await;
            stopped.expect("the store stops").expect("without failure");
            stats.push(runtime.stats());
        }
        Played {
            entities: self.entities,
            history: self.recorder.take(),
            stored: self.world.stored(),
            doubts: self
                .nodes
                .as_ref()
                .map(|nodes| nodes.doubts())
                .unwrap_or_default(),
            stats,
        }
    }

    /// A read that must succeed once the process has recovered: soon.
    async fn read_in_peace(&self, entity: usize, process: usize) {
        for _ in 0..20 {
            self.read(entity, process, Operation::Read).await;
            if self.recorder.last_has_succeeded() {
                return;
            }
            sleep(Duration::from_millis(200)).await;
        }
        self.recorder.last_is_broken();
    }
}

fn done_answer(done: Done<Seen>) -> Answer {
    Answer::Done {
        seen: done.reply,
        revision: done.revision.map(|revision| revision.0),
        repeated: done.repeated,
    }
}

fn failure<R>(error: Error<R>, rejected: impl FnOnce(R) -> Answer) -> Answer {
    match error {
        Error::Rejected(rejection) => rejected(rejection),
        Error::KeyReused(_) => Answer::KeyReused,
        Error::Overloaded(why) => Answer::Refused(why),
        Error::Unavailable(error) => Answer::Refused(error.to_string()),
        Error::OutcomeUnknown(error) => match error.to_string() {
            // Nothing panics here: a request was dropped.
            why if why.contains("panic") => Answer::Broken(why),
            why => Answer::Unknown(why),
        },
        Error::Failed(error) => match error.kind() {
            ErrorKind::Refused(why) => Answer::Refused(why.clone()),
            _ => Answer::Broken(error.to_string()),
        },
        error => Answer::Broken(error.is_retryable().to_string()),
    }
}
