//! Random histories: processes that die or stand still, databases that fail or lose commits, clocks that are wrong and
//! states that are hidden, while timers are set and cancelled.
//!
//! What must fire is decided by what the database holds at the end, not by what callers were told.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use gesta_core::{EventId, LogId, RecordedEvent, StreamId, Timestamp};
use gesta_testkit::depth;
use gesta_testkit::faulty::{Answers, Random, RandomFaults, World};
use gesta_timers::{Config, NewTimer, RunningTimers};
use tokio::time::{sleep, timeout};

use crate::losses::{REQUESTS, STATES, events, set_metadata};
use crate::support::{Fired, MINUTE, Process, after};

/// The greatest error of a clock, in microseconds.
const ERROR: i64 = 3_000_000;
const SECOND: i64 = 1_000_000;
const LEASE: Duration = Duration::from_secs(6);
/// With so many events of both streams nothing is stored together in a history, and nothing is cut.
const NEVER_KEPT: u64 = 10_000;
/// With so much memory every request is read at once.
const ROOM: usize = 1_000_000;

/// Goal: whatever dies, stands still, fails, is lost, hidden or wrong, each timer that the store holds fires at least
/// once, never before its time by more than the error of the clocks, and none that was cancelled or replaced in time.
/// Its commands have one key. If nothing goes wrong, it fires exactly once, and at its time.
#[tokio::test(start_paused = true)]
async fn random_histories_lose_no_timer() {
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

/// What may happen in a history.
#[derive(Debug, Clone)]
struct Kind {
    /// The share of the calls of the database that go wrong.
    share: f64,
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
        Self {
            share,
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
        let faults = if self.share > 0.0 { 25 } else { 2 };
        let leases = 2 * i64::try_from(LEASE.as_micros()).unwrap();
        leases + ERROR + faults * SECOND
    }
}

/// A request that the database holds.
struct Request {
    id: EventId,
    key: String,
    /// When the timer is due; none if a timer is cancelled.
    due: Option<Timestamp>,
    because: Option<u64>,
    created: Timestamp,
}

fn requests(world: &World) -> Vec<Request> {
    let stream = StreamId::new(REQUESTS).unwrap();
    let stored = world.stored();
    let of = stored.iter().filter(|one| one.event.stream == stream);
    let request = |event: &RecordedEvent| {
        let json: serde_json::Value = event.json().unwrap();
        let due = json["due"].as_str();
        Request {
            id: event.id,
            key: json["key"].as_str().unwrap().to_owned(),
            due: due.map(|due| Timestamp::parse(due).unwrap()),
            because: json["because"]["position"].as_u64(),
            created: event.created,
        }
    };
    of.map(|one| request(&one.event)).collect()
}

struct Node {
    process: Process,
    running: Option<RunningTimers>,
}

struct History {
    kind: Kind,
    random: Random,
    world: Arc<World>,
    fired: Fired,
    nodes: Vec<Node>,
    /// The one whose commits are not answered.
    still: Option<usize>,
    /// Events because of which timers are set and cancelled. They are never lost.
    causes: Vec<RecordedEvent>,
    /// When each request was there for certain.
    seen: HashMap<EventId, Timestamp>,
    /// When requests were lost that are not there again.
    lost: HashMap<EventId, Timestamp>,
    /// The requests that were lost once: what is set again because of the same event has the same id.
    lost_once: HashSet<EventId>,
    /// When something happened that may delay timers.
    disturbed: Vec<Timestamp>,
}

impl History {
    async fn begin(kind: Kind, random: Random) -> Self {
        let world = World::new(1);
        let first = Process::new(&world, kind.config.clone());
        let causes = events(&first, 6).await;
        let mut history = Self {
            kind,
            random,
            world,
            fired: Fired::default(),
            nodes: Vec::new(),
            still: None,
            causes,
            seen: HashMap::new(),
            lost: HashMap::new(),
            lost_once: HashSet::new(),
            disturbed: Vec::new(),
        };
        for _ in 0..2 + history.random.below(2) {
            let node = history.start();
            history.nodes.push(node);
        }
        history
    }

    /// Starts a process that runs the timers.
    fn start(&mut self) -> Node {
        let process = Process::new(&self.world, self.kind.config.clone());
        process.store.random_faults_of(RandomFaults {
            slow_max: Duration::from_millis(300),
            away_max: Duration::from_secs(2),
            ..RandomFaults::new(self.random.number(), self.kind.share)
        });
        let (noted, clock) = (self.fired.clone(), self.world.clock());
        let has_trouble = self.kind.has_trouble;
        let dice = Mutex::new(self.random.fork());
        let running = process.timers.run(move |timer| {
            noted.note(timer, clock.now());
            let (fails, slow) = {
                let mut dice = dice.lock().unwrap();
                (dice.chance(0.1), dice.duration(Duration::from_millis(500)))
            };
            async move {
                if !has_trouble {
                    return Ok(());
                }
                sleep(slow).await;
                if fails {
                    Err("on purpose".into())
                } else {
                    Ok(())
                }
            }
        });
        Node {
            process,
            running: Some(running.unwrap()),
        }
    }

    fn now(&self) -> Timestamp {
        self.world.clock().now()
    }

    /// Returns a process that answers.
    fn any(&mut self) -> usize {
        let which = self.random.below(self.nodes.len());
        match self.still {
            Some(still) if still == which => (which + 1) % self.nodes.len(),
            _ => which,
        }
    }

    async fn step(&mut self) {
        let which = self.any();
        let key = format!("k{}", self.random.below(6));
        let because = self.random.chance(0.4);
        let cause = self.random.pick(&self.causes).clone();
        let timers = &self.nodes[which].process.timers;
        match self.random.below(20) {
            0..=7 => {
                let time = self.random.duration(Duration::from_secs(30));
                let due = after(&self.world, time);
                let timer = match because {
                    true => NewTimer::because_of(&cause, key, due),
                    false => NewTimer::new(key, due),
                };
                let _ = timers.set(&timer).await;
            }
            8..=9 => {
                let _ = match because {
                    true => timers.cancel_because_of(&cause, &key).await,
                    false => timers.cancel(&key).await,
                };
            }
            10 if self.kind.has_trouble => self.replace(which).await,
            11 => {
                let error = i64::try_from(self.random.below(6_000_000)).unwrap() - ERROR;
                let clock = &self.nodes[which].process.clock;
                clock.error.store(error, Ordering::Relaxed);
                // Nothing is late by more than the error of the clock.
            }
            12 if self.kind.has_trouble => self.stand_still(which),
            13 if self.kind.has_losses => self.lose().await,
            // With what was cut the operator would hide timers.
            14 if self.kind.has_trouble && self.kind.config.kept_every == NEVER_KEPT => {
                self.hide(which).await;
            }
            _ => {
                let time = self.random.duration(Duration::from_secs(10));
                sleep(time).await;
            }
        }
        self.look();
    }

    /// Notes which requests are there.
    fn look(&mut self) {
        let now = self.now();
        let there: HashSet<EventId> = requests(&self.world).iter().map(|one| one.id).collect();
        for (id, _) in self.seen.extract_if(|id, _| !there.contains(id)) {
            self.lost.insert(id, now);
            self.lost_once.insert(id);
        }
        for id in there {
            self.seen.entry(id).or_insert(now);
            self.lost.remove(&id);
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
        self.nodes[which] = self.start();
        self.disturb();
    }

    /// A process waits for the answers of its commits, or gets them.
    fn stand_still(&mut self, which: usize) {
        match self.still.take() {
            Some(still) => self.nodes[still].process.store.release(Answers::Commits),
            None => {
                self.nodes[which].process.store.hold(Answers::Commits);
                self.still = Some(which);
            }
        }
        self.disturb();
    }

    /// The database loses its newest commits, and each process learns of it somewhat later.
    async fn lose(&mut self) {
        let first = self.causes.last().unwrap().position.0;
        let end = self.world.end(LogId(0)).position.0;
        let most = usize::try_from(end - first).unwrap().min(12);
        let count = self.random.below(most + 1);
        self.world.lose_newest(LogId(0), count);
        self.look();
        let mut late: Vec<usize> = (0..self.nodes.len()).collect();
        while !late.is_empty() {
            let next = late.swap_remove(self.random.below(late.len()));
            if self.random.chance(0.5) {
                let time = self.random.duration(Duration::from_secs(2));
                sleep(time).await;
            }
            self.nodes[next].process.store.begin_history();
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
        for node in &self.nodes {
            node.process.store.heal();
            node.process.store.release(Answers::Commits);
        }
        sleep(Duration::from_secs(1)).await;
        self.look();
        let judged = self.judged();
        let must: Vec<&Judged> = judged.iter().filter(|one| one.stays).collect();
        let waited = timeout(10 * MINUTE, async {
            loop {
                let fired: HashSet<EventId> =
                    self.fired.all().iter().map(|(timer, _)| timer.id).collect();
                let pending = self.nodes[0].process.timers.pending().await;
                if must.iter().all(|one| fired.contains(&one.id))
                    && pending.is_ok_and(|pending| pending.is_empty())
                {
                    break;
                }
                sleep(Duration::from_secs(1)).await;
            }
        });
        if waited.await.is_err() {
            let fired = self.fired.all();
            let missing = must
                .iter()
                .filter(|one| !fired.iter().any(|(timer, _)| timer.id == one.id));
            let missing: Vec<&&Judged> = missing.collect();
            let pending = self.nodes[0].process.timers.pending().await;
            return Err(format!("have not fired: {missing:?}; pending: {pending:?}"));
        }
        sleep(MINUTE).await;
        for one in &judged {
            self.check(one)?;
        }
        self.check_all_fired()
    }

    /// Returns what has to be expected of each timer that the database holds.
    fn judged(&self) -> Vec<Judged> {
        let mut judged: Vec<Judged> = Vec::new();
        // By key: the place of its timer, and the causes that may be the last one.
        let mut keys: HashMap<String, (Option<usize>, BTreeSet<Option<u64>>)> = HashMap::new();
        let is_strict = self.kind.config.kept_every == NEVER_KEPT;
        for request in requests(&self.world) {
            let (pending, causes) = keys
                .entry(request.key)
                .or_insert_with(|| (None, BTreeSet::from([None])));
            let is_late = |last: &Option<u64>| matches!((request.because, last), (Some(of), Some(last)) if of < *last);
            let late = causes.iter().filter(|last| is_late(last)).count();
            // What is stored together says nothing of keys without a timer.
            let may_count = late < causes.len() || !is_strict;
            let counts = late == 0;
            causes.retain(|last| !counts && is_late(last));
            if may_count {
                causes.insert(request.because);
                if let Some(former) = pending {
                    let former: &mut Judged = &mut judged[*former];
                    former.stays = false;
                    former.until.get_or_insert(request.created);
                    if counts && former.ended.is_none() {
                        former.ended = self.seen.get(&request.id).copied();
                    }
                }
            }
            let Some(due) = request.due else {
                if counts {
                    *pending = None;
                }
                continue;
            };
            if may_count {
                *pending = Some(judged.len());
            }
            let seen = self.seen[&request.id];
            judged.push(Judged {
                id: request.id,
                due,
                from: due.max(seen),
                stays: counts,
                counts,
                may_count,
                until: None,
                ended: None,
            });
        }
        judged
    }

    fn check(&self, one: &Judged) -> Result<(), String> {
        let fired = self.fired.all();
        let of = fired.iter().filter(|(timer, _)| timer.id == one.id);
        let times: Vec<Timestamp> = of.map(|(_, at)| *at).collect();
        let wrong = |why: &str| Err(format!("{one:?} {why}; it has fired at {times:?}"));
        // With too little memory a request may not be read when the timer fires.
        if !self.kind.has_room() {
            return Ok(());
        }
        // Another timer of this id may have fired before it was lost.
        let may_fire = times.is_empty() || self.lost_once.contains(&one.id);
        if !one.may_count && !may_fire {
            return wrong("is out of date");
        }
        if one.ended.is_some_and(|ended| ended.0 < one.due.0 - ERROR) && !may_fire {
            return wrong("was replaced or cancelled");
        }
        let until = one.until.unwrap_or(Timestamp(i64::MAX));
        if one.counts && times.is_empty() && self.is_quiet(one.from, until) {
            return wrong("had enough time to fire");
        }
        if !self.kind.has_trouble {
            let is_late = |at: &Timestamp| at.0 > one.from.0 + ERROR + 2 * SECOND;
            if times.len() > 1 || times.iter().any(is_late) {
                return wrong("has fired twice, or late, and nothing went wrong");
            }
        }
        Ok(())
    }

    /// Returns whether nothing has disturbed the timers for so long between these times that what was due has fired.
    fn is_quiet(&self, from: Timestamp, until: Timestamp) -> bool {
        let between = |at: &&Timestamp| from < **at && **at < until;
        let mut begun = from;
        for at in self.disturbed.iter().filter(between).chain([&until]) {
            if at.0.saturating_sub(begun.0) > self.kind.fires_within() {
                return true;
            }
            begun = *at;
        }
        false
    }

    fn check_all_fired(&self) -> Result<(), String> {
        let mut commands = HashMap::new();
        let leases = 2 * i64::try_from(LEASE.as_micros()).unwrap();
        for (timer, at) in self.fired.all() {
            if at.0 < timer.due.0 - ERROR {
                return Err(format!("{timer:?} has fired at {at}, before its time"));
            }
            if let Some(lost) = self.lost.get(&timer.id)
                && at.0 > lost.0 + leases + 10 * SECOND
            {
                return Err(format!("{timer:?} was lost at {lost}, and fired at {at}"));
            }
            let command = commands
                .entry(timer.id)
                .or_insert_with(|| timer.command_key());
            if *command != timer.command_key() {
                return Err(format!("{timer:?} had the command {command}"));
            }
        }
        Ok(())
    }
}

/// What is expected of a timer.
#[derive(Debug)]
struct Judged {
    id: EventId,
    due: Timestamp,
    /// From when on it could fire.
    from: Timestamp,
    /// Whether it must fire, however late: nothing is there that may have replaced or cancelled it.
    stays: bool,
    /// Whether it counted when it was set: no request because of a later event can have been before.
    counts: bool,
    /// Whether it may have counted.
    may_count: bool,
    /// When a request was made that may have replaced or cancelled it.
    until: Option<Timestamp>,
    /// When a request was there for certain that has replaced or cancelled it.
    ended: Option<Timestamp>,
}
