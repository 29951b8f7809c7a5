//! Random histories: processes that die or stand still, databases that fail or lose commits, clocks that are wrong and
//! states that are hidden, while timers are set and cancelled.
//!
//! What must fire is decided by what the database holds at the end, not by what callers were told (`judge`). A timer
//! has fired if what its handler has stored is there, after the request that has set the timer.

mod judge;

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use gesta_core::{
    EventData, EventId, EventStore, EventStoreExt, EventType, ExpectedRevision, LogId, ReadStream,
    RecordedEvent, StreamId, Timestamp, log_of,
};
use gesta_kit::depth;
use gesta_kit::faulty::{Answers, Random, RandomFaults, World};
use gesta_timers::{Config, NewTimer, RunningTimers};
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};

use crate::losses::{REQUESTS, STATES, set_metadata};
use crate::support::{Fired, MINUTE, Process, after};

use self::judge::Judged;

/// The greatest error of a clock, in microseconds.
const ERROR: i64 = 3_000_000;
const SECOND: i64 = 1_000_000;
const LEASE: Duration = Duration::from_secs(6);
/// With so many events of both streams nothing is stored together in a history, and nothing is cut.
const NEVER_KEPT: u64 = 10_000;
/// With so much memory every request is read at once.
const ROOM: usize = 1_000_000;
/// Where handlers store that they were called. It lies in the log of the timers, so a loss takes it before what it is
/// about.
const DONE: &str = "done-{orders}";
/// The streams of the events because of which timers are set: one in the log of the timers, one in the other log.
const CAUSES: [&str; 2] = ["seats-{orders}", "seats-{cinema}"];
const LOGS: u16 = 2;

/// Goal: whatever dies, stands still, fails, is lost, hidden or wrong, each timer that the store holds fires at least
/// once, with what its handler has stored, never before its time by more than the error of the clocks, and none that
/// was cancelled or replaced in time. Its commands have one key. If nothing goes wrong, it fires exactly once, and at
/// its time.
#[tokio::test(start_paused = true)]
async fn random_histories_lose_no_timer() {
    let logs: HashSet<LogId> = CAUSES.iter().map(|name| log(name)).collect();
    assert!(logs.len() == 2 && log(REQUESTS) == log(DONE) && log(REQUESTS) == log(CAUSES[0]));
    let seed = depth::seed();
    println!("GESTA_SEED={seed}");
    let mut random = Random::new(seed);
    for round in 0..depth::count(12, 300) {
        let kind = Kind::of(&mut random);
        let text = format!("GESTA_SEED={seed}, round {round}, {kind:?}");
        let mut history = History::begin(kind, random.fork()).await;
        for _ in 0..60 {
            history.step().await;
        }
        history
            .end()
            .await
            .unwrap_or_else(|why| panic!("{text}: {why}"));
    }
}

fn log(stream: &str) -> LogId {
    log_of(&StreamId::new(stream).unwrap(), LOGS)
}

/// What may happen in a history.
#[derive(Debug, Clone)]
struct Kind {
    /// The share of the calls of the database that go wrong.
    share: f64,
    /// How long a call may take that goes wrong.
    slow_max: Duration,
    /// Processes may die and stand still, and handlers fail.
    has_trouble: bool,
    /// The database may lose its newest commits.
    has_losses: bool,
    config: Config,
}

impl Kind {
    fn of(random: &mut Random) -> Self {
        let share = *random.pick(&[0.0, 0.05, 0.2]);
        let has_trouble = share > 0.0 || random.chance(0.5);
        let slow = Duration::from_millis(300);
        Self {
            share,
            slow_max: *random.pick(&[slow, slow, 2 * LEASE]),
            has_trouble,
            has_losses: has_trouble && random.chance(0.6),
            config: Config {
                lease: LEASE,
                firing_max: 1 + random.below(4),
                kept_every: *random.pick(&[1, 10, NEVER_KEPT]),
                pending_max: *random.pick(&[3, ROOM, ROOM]),
                back_off: (Duration::from_millis(100), Duration::from_secs(1)),
                ..Config::default()
            },
        }
    }

    fn has_room(&self) -> bool {
        self.config.pending_max == ROOM
    }

    /// Returns how long after the last disturbance what is due must have fired.
    fn fires_within(&self) -> i64 {
        let micros = |time: Duration| i64::try_from(time.as_micros()).unwrap();
        let faults = if self.share > 0.0 {
            25 * SECOND + 10 * micros(self.slow_max)
        } else {
            2 * SECOND
        };
        2 * micros(LEASE) + ERROR + faults
    }
}

struct Node {
    process: Process,
    running: Option<RunningTimers>,
    /// Whether it is not answered, or held before it calls.
    is_still: bool,
    /// Whether the database has lost commits, and this process does not know. It reaches the database again when it
    /// does.
    is_unaware: bool,
}

struct History {
    kind: Kind,
    random: Random,
    world: Arc<World>,
    fired: Fired,
    nodes: Vec<Node>,
    /// What callers do that wait until their process learns of a loss.
    callers: Vec<JoinHandle<()>>,
    /// Events because of which timers are set and cancelled.
    causes: Vec<RecordedEvent>,
    /// Of each revision at which all timers were stored together: the keys that had a timer then.
    kept: Vec<(u64, HashSet<String>)>,
    /// When each request was there for certain.
    seen: HashMap<EventId, Timestamp>,
    /// When requests were lost that are not there again.
    lost: HashMap<EventId, Timestamp>,
    /// When requests were lost last: what is set again because of the same event has the same id.
    lost_once: HashMap<EventId, Timestamp>,
    /// When something happened that may delay timers.
    disturbed: Vec<Timestamp>,
}

impl History {
    async fn begin(kind: Kind, random: Random) -> Self {
        let mut history = Self {
            kind,
            random,
            world: World::new(LOGS),
            fired: Fired::default(),
            nodes: Vec::new(),
            callers: Vec::new(),
            causes: Vec::new(),
            kept: Vec::new(),
            seen: HashMap::new(),
            lost: HashMap::new(),
            lost_once: HashMap::new(),
            disturbed: Vec::new(),
        };
        let first = Process::new(&history.world, history.kind.config.clone());
        for number in 0..6 {
            history.cause(&first, number % 2).await;
        }
        for _ in 0..2 + history.random.below(2) {
            let node = history.start();
            history.nodes.push(node);
        }
        history
    }

    /// Stores an event because of which timers are set.
    async fn cause(&mut self, process: &Process, stream: usize) {
        let event = EventData::json(EventType::new("seat").unwrap(), "1");
        let name = CAUSES[stream];
        let store = process.store.share();
        let appended = store.append_to(name, ExpectedRevision::Any, [event]).await;
        if appended.is_err() {
            return;
        }
        let request = ReadStream::backwards(StreamId::new(name).unwrap()).limit(1);
        if let Ok(page) = store.read_stream(request).await {
            self.causes.extend(page.events);
        }
    }

    /// Starts a process that runs the timers.
    fn start(&mut self) -> Node {
        let process = Process::new(&self.world, self.kind.config.clone());
        process.store.random_faults_of(RandomFaults {
            slow_max: self.kind.slow_max,
            away_max: Duration::from_secs(2),
            ..RandomFaults::new(self.random.number(), self.kind.share)
        });
        let (noted, clock) = (self.fired.clone(), self.world.clock());
        let has_trouble = self.kind.has_trouble;
        let dice = Mutex::new(self.random.fork());
        let store: Arc<dyn EventStore> = process.gate.clone();
        let running = process.timers.run(move |timer| {
            let id = timer.id.0;
            noted.note(timer, clock.now());
            let (fails, slow) = {
                let mut dice = dice.lock().unwrap();
                (dice.chance(0.1), dice.duration(Duration::from_millis(500)))
            };
            let store = Arc::clone(&store);
            async move {
                if has_trouble {
                    sleep(slow).await;
                }
                let done = EventData::json(EventType::new("done")?, format!("\"{id}\""));
                store.append_to(DONE, ExpectedRevision::Any, [done]).await?;
                match has_trouble && fails {
                    true => Err("on purpose".into()),
                    false => Ok(()),
                }
            }
        });
        Node {
            process,
            running: Some(running.unwrap()),
            is_still: false,
            is_unaware: false,
        }
    }

    fn now(&self) -> Timestamp {
        self.world.clock().now()
    }

    /// Returns a process that answers, if there is one.
    fn any(&mut self) -> Option<usize> {
        let answers = |which: &usize| {
            let node = &self.nodes[*which];
            !node.is_still && !node.is_unaware
        };
        let which: Vec<usize> = (0..self.nodes.len()).filter(answers).collect();
        (!which.is_empty()).then(|| *self.random.pick(&which))
    }

    async fn step(&mut self) {
        if self.random.chance(0.3) {
            self.learn();
        }
        let which = match self.any() {
            Some(which) => which,
            None => {
                self.release();
                self.learn();
                return;
            }
        };
        match self.random.below(21) {
            0..=9 => self.call(which).await,
            10 if self.kind.has_trouble => self.replace(which).await,
            11 => {
                let error = i64::try_from(self.random.below(6_000_000)).unwrap() - ERROR;
                let clock = &self.nodes[which].process.clock;
                clock.set(error);
                // Nothing is late by more than the error of the clock.
            }
            12 if self.kind.has_trouble => self.stand_still(which),
            13 if self.kind.has_losses => self.lose(),
            // With what was cut the operator would hide timers.
            14 if self.kind.has_trouble && self.kind.config.kept_every == NEVER_KEPT => {
                self.hide(which).await;
            }
            15 => {
                let stream = self.random.below(2);
                let process = Process::new(&self.world, self.kind.config.clone());
                self.cause(&process, stream).await;
            }
            _ => {
                let time = self.random.duration(Duration::from_secs(10));
                sleep(time).await;
            }
        }
        self.look();
    }

    /// Sets or cancels a timer, by a process that answers, or by one that does not know yet of a loss. What that one is
    /// asked for waits until it does, and is stored then.
    async fn call(&mut self, which: usize) {
        let key = format!("k{}", self.random.below(6));
        let cause = self.random.pick(&self.causes).clone();
        let because = self.random.chance(0.4);
        let sets = self.random.chance(0.8);
        let time = self.random.duration(Duration::from_secs(30));
        let due = after(&self.world, time);
        let unaware = self.nodes.iter().position(|node| node.is_unaware);
        let late = unaware.filter(|_| self.random.chance(0.5));
        let timers = self.nodes[late.unwrap_or(which)].process.timers.clone();
        let call = async move {
            let _ = match (sets, because) {
                (true, true) => timers.set(&NewTimer::because_of(&cause, key, due)).await,
                (true, false) => timers.set(&NewTimer::new(key, due)).await,
                (false, true) => timers.cancel_because_of(&cause, &key).await,
                (false, false) => timers.cancel(&key).await,
            };
        };
        match late {
            Some(_) => self.callers.push(tokio::spawn(call)),
            None => call.await,
        }
    }

    /// Notes which requests are there, and at which of them all timers were stored together.
    fn look(&mut self) {
        let now = self.now();
        let there: HashSet<EventId> = judge::requests(&self.world)
            .iter()
            .map(|one| one.id)
            .collect();
        for (id, _) in self.seen.extract_if(|id, _| !there.contains(id)) {
            self.lost.insert(id, now);
            self.lost_once.insert(id, now);
        }
        for id in there {
            self.seen.entry(id).or_insert(now);
            self.lost.remove(&id);
        }
        for node in &self.nodes {
            node.note_kept(&mut self.kept);
        }
    }

    fn disturb(&mut self) {
        let now = self.now();
        self.disturbed.push(now);
    }

    /// A process dies, or ends in good order, and another one takes its place.
    async fn replace(&mut self, which: usize) {
        if let Some(running) = self.nodes[which].running.take()
            && self.random.chance(0.3)
        {
            let _ = timeout(MINUTE, running.shutdown()).await;
        }
        self.nodes[which].note_kept(&mut self.kept);
        self.nodes[which] = self.start();
        self.disturb();
    }

    /// A process waits for the answers of its commits, or is held before its calls; or it goes on.
    fn stand_still(&mut self, which: usize) {
        if !self.release() {
            let node = &mut self.nodes[which];
            match self.random.chance(0.5) {
                true => node.process.store.hold(Answers::Commits),
                false => node.process.gate.hold_all(),
            }
            node.is_still = true;
        }
        self.disturb();
    }

    /// Lets the process go on that stands still. Returns false if none does.
    fn release(&mut self) -> bool {
        let still = self.nodes.iter_mut().find(|node| node.is_still);
        let is_one = still.is_some();
        if let Some(node) = still {
            node.process.store.release(Answers::Commits);
            node.process.gate.release();
            node.is_still = false;
        }
        is_one
    }

    /// The database loses the newest commits of a log. Each process reaches it again when it has learnt that, one of
    /// them at once; what the others do meanwhile waits.
    fn lose(&mut self) {
        if self.nodes.iter().any(|node| node.is_unaware) {
            return;
        }
        let log = LogId(u16::try_from(self.random.below(usize::from(LOGS))).unwrap());
        // A few causes stay.
        let end = usize::try_from(self.world.end(log).position.0).unwrap();
        let most = end.saturating_sub(4).min(12);
        let count = self.random.below(most + 1);
        for node in &mut self.nodes {
            node.process.store.go_away();
            node.is_unaware = true;
        }
        self.world.lose_newest(log, count);
        self.look();
        self.learn();
        self.disturb();
    }

    /// One of the processes learns that the database has lost commits. Once all have, nobody names an event that was
    /// lost.
    fn learn(&mut self) {
        let unaware = |which: &usize| self.nodes[*which].is_unaware;
        let which: Vec<usize> = (0..self.nodes.len()).filter(unaware).collect();
        if which.is_empty() {
            return;
        }
        let next = *self.random.pick(&which);
        let node = &mut self.nodes[next];
        node.process.store.begin_history();
        node.process.store.come_back();
        node.is_unaware = false;
        if which.len() == 1 {
            let world = &self.world;
            let events = world.stored();
            let is_there = |cause: &RecordedEvent| events.iter().any(|one| one.event == *cause);
            self.causes.retain(is_there);
        }
        self.disturb();
    }

    /// An operator hides all states that are there.
    async fn hide(&mut self, which: usize) {
        let stream = StreamId::new(STATES).unwrap();
        let stored = self.world.stored();
        let states = stored.iter().filter(|one| one.event.stream == stream);
        if let Some(last) = states.last() {
            let metadata = format!(r#"{{"$tb":{}}}"#, last.event.revision.0 + 1);
            let _ = set_metadata(&self.nodes[which].process, STATES, &metadata).await;
            self.disturb();
        }
    }

    /// Ends all trouble, waits until what must fire has fired, and judges all of it.
    async fn end(mut self) -> Result<(), String> {
        while self.nodes.iter().any(|node| node.is_unaware) {
            self.learn();
        }
        self.release();
        for node in &self.nodes {
            node.process.store.heal();
        }
        for caller in std::mem::take(&mut self.callers) {
            let _ = timeout(MINUTE, caller).await;
        }
        // What was late comes.
        sleep(self.kind.slow_max + Duration::from_secs(1)).await;
        // Of states that were hidden while nothing was pending, nobody knows until something is set.
        let last = NewTimer::new("last", self.now());
        let set = self.nodes[0].process.timers.set(&last).await;
        set.map_err(|error| error.to_string())?;
        let begun = self.now();
        let judged = loop {
            self.look();
            let judged = self.judged();
            let done = judge::done(&self.world);
            let is_missing = |one: &&Judged| one.stays && !done.contains_after(one);
            let missing: Vec<&Judged> = judged.iter().filter(is_missing).collect();
            let pending = self.nodes[0].process.timers.pending().await;
            if missing.is_empty() && pending.as_ref().is_ok_and(Vec::is_empty) {
                break judged;
            }
            if self.now().0 > begun.0 + 600 * SECOND {
                let fired = self.fired.all();
                return Err(format!(
                    "have not fired: {missing:?}; pending: {pending:?}; fired: {fired:?}"
                ));
            }
            sleep(Duration::from_secs(1)).await;
        };
        sleep(MINUTE).await;
        for one in &judged {
            self.check(one)?;
        }
        self.check_all_fired()
    }
}

impl Node {
    /// Notes where this process has stored all timers together.
    fn note_kept(&self, kept: &mut Vec<(u64, HashSet<String>)>) {
        for state in std::mem::take(&mut *self.process.gate.states.lock().unwrap()) {
            let state: serde_json::Value = serde_json::from_slice(&state).unwrap();
            let together = &state["does"]["kept"];
            if let Some(revision) = together["through"]["revision"].as_u64() {
                let timers = together["timers"].as_array().unwrap().iter();
                let keys = timers.map(|timer| timer["key"].as_str().unwrap().to_owned());
                kept.push((revision, keys.collect()));
            }
        }
    }
}
