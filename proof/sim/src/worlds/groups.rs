//! The machine of a consumer group: consumers acknowledge, refuse, are silent and vanish, and the process is killed
//! between any two steps and begins again with what it had stored.
//!
//! After every step the world checks that no checkpoint has passed an event that is not finished, that no parked event
//! was cut off, and that the bounds of memory hold; and when an event is parked, that its tries were used up by
//! consumers that worked on it. At the end every event was acknowledged, skipped, or is parked.

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use gesta_core::{
    ContentType, EventId, EventType, LogId, Moment, Position, RecordedEvent, Revision, SharedEvent,
    StreamId, Tags, Timestamp,
};
use gesta_groups::core::{Limits, Machine, ParkOrder, Sent};
use gesta_groups::{Action, ConsumerId, Settings, Strategy, Token, Which};
use uuid::Uuid;

use crate::driver::{Form, Schedule, World};

/// The world.
pub static WORLD: World = World {
    name: "groups",
    forms: &[Form {
        name: "group",
        turns: 1,
        run,
    }],
};

const STREAMS: u64 = 5;
/// The most events of a schedule.
const EVENTS_MAX: u32 = 400;
/// The most lives of the process before the last.
const LIVES_MAX: u32 = 5;
/// The most steps of a life.
const STEPS_MAX: u32 = 1_500;
/// The most rounds in which all must be finished in peace.
const PEACE_ROUNDS_MAX: u32 = 20_000;

/// The data that outlives the process, and what is known of every event.
struct Stored {
    log: Vec<SharedEvent>,
    finished: HashSet<u64>,
    checkpoint: u64,
    /// Places of the parked events, from revision 0 on.
    parked: Vec<u64>,
    parked_from: u64,
    /// Places of events that stop every consumer which comes to them, without a word.
    poison: HashSet<u64>,
}

impl Stored {
    fn is_settled(&self, place: u64) -> bool {
        self.finished.contains(&place) || self.parked.contains(&place)
    }

    fn is_finished_or_parked_from(&self, place: u64, from: u64) -> bool {
        self.finished.contains(&place) || self.parked[index(from)..].contains(&place)
    }
}

fn index(place: u64) -> usize {
    usize::try_from(place).expect("small")
}

/// Makes the event at this place. Events of several streams have the same ids.
fn event(place: u64) -> SharedEvent {
    Arc::new(RecordedEvent {
        stream: StreamId::new(format!("s-{}", place % STREAMS)).expect("valid"),
        revision: Revision(place / STREAMS),
        log: LogId(0),
        position: Position(place + 1),
        id: EventId(Uuid::from_u128(u128::from(place / STREAMS))),
        event_type: EventType::new("T").expect("valid"),
        created: Timestamp(0),
        content_type: ContentType::Json,
        data: vec![b'1'; index(place % 7) * 100].into(),
        metadata: format!(r#"{{"$correlationId":"{}"}}"#, place % 3).into(),
        tags: Tags::NONE,
    })
}

/// A consumer: the events that wait for it, and the events on which it works.
#[derive(Default)]
struct Client {
    buffer: u32,
    queue: VecDeque<Sent>,
    works_on: Vec<Sent>,
    /// Whether an event has stopped it.
    is_stopped: bool,
}

/// One life of the process that runs the group.
struct Process<'a> {
    schedule: &'a mut Schedule,
    stored: &'a mut Stored,
    machine: Machine,
    settings: Settings,
    limits: Limits,
    clients: BTreeMap<ConsumerId, Client>,
    parking: Vec<ParkOrder>,
    checkpoint: Option<u64>,
    truncation: Option<u64>,
    /// How many times consumers have begun to work on each event and not finished it, since the process began.
    tried: HashMap<Token, u32>,
    now: Moment,
}

fn run(schedule: &mut Schedule) -> Result<(), String> {
    let events = u64::from(1 + schedule.choices.pick(EVENTS_MAX - 1));
    let poison = (0..schedule.choices.pick(4)).map(|_| schedule.choices.pick(EVENTS_MAX));
    let mut stored = Stored {
        poison: poison.map(u64::from).collect(),
        log: (0..events).map(event).collect(),
        finished: HashSet::new(),
        checkpoint: 0,
        parked: Vec::new(),
        parked_from: 0,
    };
    let limits = Limits {
        held_bytes_max: 1_000 + schedule.choices.index(29_000),
    };
    let mut now = Moment::START;
    for _ in 0..schedule.choices.pick(LIVES_MAX) {
        let mut process = Process::start(schedule, &mut stored, limits, now);
        process.live();
        // And here it is killed.
        now = process.now;
        process.count();
    }
    let mut process = Process::start(schedule, &mut stored, limits, now);
    process.live();
    process.finish()?;
    process.count();
    for place in 0..events {
        if !stored.is_finished_or_parked_from(place, stored.parked_from) {
            return Err(format!("event {place} is lost"));
        }
    }
    Ok(())
}

fn settings(schedule: &mut Schedule) -> Settings {
    let choices = &mut schedule.choices;
    let strategies = [
        Strategy::RoundRobin,
        Strategy::DispatchToSingle,
        Strategy::Pinned,
        Strategy::PinnedByCorrelation,
    ];
    let read_batch_size = 1 + choices.pick(19);
    let min_checkpoint_count = choices.pick(10);
    let settings = Settings {
        extra_statistics: choices.chance(1, 2),
        message_timeout_ms: [0, 50, 200][choices.index(3)],
        max_retry_count: choices.pick(4),
        checkpoint_after_ms: choices.pick(300),
        min_checkpoint_count,
        max_checkpoint_count: [0, min_checkpoint_count + 5][choices.index(2)],
        max_subscriber_count: choices.pick(8),
        live_buffer_size: 1 + choices.pick(29),
        read_batch_size,
        history_buffer_size: read_batch_size + 1 + choices.pick(29),
        strategy: strategies[choices.index(4)],
        ..Settings::default()
    };
    settings.validate().expect("valid");
    settings
}

impl<'a> Process<'a> {
    fn start(
        schedule: &'a mut Schedule,
        stored: &'a mut Stored,
        limits: Limits,
        now: Moment,
    ) -> Self {
        let settings = settings(schedule);
        schedule.trace.note(now.0, || format!("{settings:?}"));
        let (from, parked_from) = (stored.checkpoint, stored.parked_from);
        Self {
            schedule,
            machine: Machine::new(settings.clone(), limits, from, parked_from, now),
            stored,
            settings,
            limits,
            clients: BTreeMap::new(),
            parking: Vec::new(),
            checkpoint: None,
            truncation: None,
            tried: HashMap::new(),
            now,
        }
    }

    fn note(&self, what: impl FnOnce() -> String) {
        self.schedule.trace.note(self.now.0, what);
    }

    /// Counts what the group has done in this life.
    fn count(&mut self) {
        let counts = self.machine.counts();
        let times = [
            ("redelivered", counts.redelivered),
            ("refused", counts.refused),
            ("timed out", counts.timed_out),
            ("silent", counts.silent),
            ("left behind", counts.left_behind),
            ("parked", counts.parked),
            ("replayed", counts.replayed),
        ];
        for (what, times) in times {
            (0..times).for_each(|_| self.schedule.reach(what));
        }
    }

    fn live(&mut self) {
        for _ in 0..self.schedule.choices.pick(STEPS_MAX) {
            self.step();
        }
    }

    fn read(&mut self) {
        while self.machine.wants_event() {
            let place = self.machine.read_to();
            match self.stored.log.get(index(place)) {
                None => return self.machine.caught_up(),
                // Some are not for the group.
                Some(_) if place % 11 == 3 => {
                    self.stored.finished.insert(place);
                    self.machine.ignore(place);
                }
                Some(event) => self.machine.event(place, Arc::clone(event)),
            }
        }
    }

    fn read_parked(&mut self) {
        while let Some(range) = self.machine.wants_parked() {
            let place = self.stored.parked[index(range.start)];
            self.machine.parked_event(range.start, Some(event(place)));
        }
    }

    fn deliver(&mut self) {
        for sent in self.machine.dispatch(self.now) {
            self.note(|| format!("{:?} goes to {}", sent.token, sent.consumer));
            let client = self.clients.get_mut(&sent.consumer);
            let client = client.expect("a consumer that is there");
            client.queue.push_back(sent);
        }
        let counts = self.machine.consumers();
        for (id, client) in &self.clients {
            let counts = counts.iter().find(|counts| counts.consumer == *id);
            let held = counts.expect("known").in_flight;
            assert!(held <= usize::try_from(client.buffer).expect("small"));
            assert!(
                client.queue.len() <= held,
                "what was taken away is not in the queue"
            );
        }
    }

    fn expire(&mut self) {
        while let Some((consumer, token)) = self.machine.expired(self.now) {
            let queue = &mut self.clients.get_mut(&consumer).expect("known").queue;
            let before = queue.len();
            queue.retain(|sent| sent.token != token);
            let is_taken = queue.len() == before;
            self.note(|| format!("the time of {token:?} is over, taken: {is_taken}"));
            match is_taken {
                false => self.machine.not_taken(token),
                true => self.machine.timed_out(token),
            }
        }
        while let Some(silent) = self.machine.silent() {
            self.note(|| format!("{silent} is silent"));
            self.machine.part_with(silent);
            self.clients.remove(&silent).expect("known");
        }
    }

    fn join(&mut self) {
        let parts = [(); 4].map(|()| u128::from(self.schedule.choices.pick(u32::MAX)));
        let id = parts.into_iter().fold(0, |id, part| id << 32 | part);
        let id = ConsumerId(Uuid::from_u128(id));
        let buffer = 1 + self.schedule.choices.pick(19);
        if self.machine.join(id, buffer).is_ok() {
            self.note(|| format!("{id} joins, and may hold {buffer}"));
            let client = Client {
                buffer,
                ..Client::default()
            };
            self.clients.insert(id, client);
        }
    }

    fn leave(&mut self, id: ConsumerId) {
        self.note(|| format!("{id} leaves"));
        let client = self.clients.remove(&id).expect("known");
        let not_taken: HashSet<Token> = client.queue.iter().map(|sent| sent.token).collect();
        self.machine.leave(id, &not_taken);
    }

    fn answer(&mut self, id: ConsumerId) {
        let client = self.clients.get_mut(&id).expect("known");
        if client.is_stopped {
            // What comes to it is taken, and never worked on.
            client.queue.pop_front();
            return;
        }
        let choices = &mut self.schedule.choices;
        if choices.pick(10) < 7
            && let Some(sent) = client.queue.pop_front()
        {
            *self.tried.entry(sent.token).or_default() += 1;
            if self.stored.poison.contains(&(sent.event.position.0 - 1)) {
                client.is_stopped = true;
                return;
            }
            client.works_on.push(sent);
        }
        if client.works_on.is_empty() {
            return;
        }
        let at = choices.index(client.works_on.len());
        let sent = client.works_on.swap_remove(at);
        let kind = choices.pick(20);
        self.note(|| format!("{id} answers for {:?}: {kind}", sent.token));
        let which = [Which::Delivery(sent.token)];
        let place = sent.event.position.0 - 1;
        match kind {
            // An answer, in time or not: the consumer has done its work.
            0..14 => {
                self.machine.ack(id, &which, self.now);
                self.stored.finished.insert(place);
            }
            14 => {
                let known = self.machine.nack(id, &which, Action::Skip, "", self.now);
                if known == 1 {
                    self.stored.finished.insert(place);
                }
            }
            15..17 => {
                self.machine.nack(id, &which, Action::Retry, "", self.now);
            }
            17 => {
                let park = Action::Park;
                self.machine.nack(id, &which, park, "broken", self.now);
            }
            18 => {
                let unknown = [Which::Event(EventId(Uuid::from_u128(u128::MAX)))];
                assert_eq!(self.machine.ack(id, &unknown, self.now), 0);
            }
            // It is never heard of again.
            _ => {}
        }
    }

    fn happens(&mut self) -> bool {
        self.schedule.choices.pick(2) == 0
    }

    /// Lets one thing that was to be stored be stored.
    fn store(&mut self) {
        if let Some(order) = self.machine.next_park() {
            // No event is parked whose tries were used up by consumers that never worked on it.
            let tried = self.tried.get(&order.token).copied().unwrap_or(0);
            if order.reason.starts_with("Reached") {
                assert!(tried > self.settings.max_retry_count, "{tried}: {order:?}");
            }
            self.parking.push(order);
        }
        if self.happens() {
            for order in self.parking.drain(..) {
                self.stored.parked.push(order.event.position.0 - 1);
                self.machine.parked(order.token);
            }
        }
        let begun = self.machine.begin_checkpoint(self.now);
        self.checkpoint = self.checkpoint.or(begun);
        if self.checkpoint.is_some() && self.happens() {
            self.store_checkpoint();
        }
        let begun = self.machine.begin_truncation(self.now);
        self.truncation = self.truncation.or(begun);
        if self.truncation.is_some() && self.happens() {
            self.store_truncation();
        }
    }

    fn store_checkpoint(&mut self) {
        let Some(place) = self.checkpoint.take() else {
            return;
        };
        self.note(|| format!("checkpoint {place}"));
        let stored = &mut *self.stored;
        assert!(place > stored.checkpoint);
        for before in stored.checkpoint..place {
            assert!(stored.is_settled(before), "{before} was passed by {place}");
        }
        stored.checkpoint = place;
        self.machine.checkpoint_written();
    }

    fn store_truncation(&mut self) {
        let Some(from) = self.truncation.take() else {
            return;
        };
        self.note(|| format!("parked from {from} on"));
        let stored = &mut *self.stored;
        for gone in stored.parked_from..from {
            let place = stored.parked[index(gone)];
            assert!(
                stored.is_finished_or_parked_from(place, from),
                "{place} was cut off"
            );
        }
        stored.parked_from = from;
        self.machine.truncation_written();
    }

    fn check_bounds(&self) {
        let largest = event(6).cost_bytes();
        assert!(self.machine.held_bytes() <= self.limits.held_bytes_max + largest);
        let asked: u32 = self.clients.values().map(|client| client.buffer).sum();
        assert!(self.machine.in_flight() <= usize::try_from(asked).expect("small"));
        // What was given back by consumers may come on top of what waits, but nothing is read then.
        let settings = &self.settings;
        let most = settings.history_buffer_size.max(settings.live_buffer_size);
        assert!(self.machine.waiting() <= usize::try_from(most).expect("small"));
    }

    fn step(&mut self) {
        let client = match self.clients.len() {
            0 => None,
            count => {
                let which = self.schedule.choices.index(count);
                self.clients.keys().nth(which).copied()
            }
        };
        match (self.schedule.choices.pick(200), client) {
            (196.., _) | (_, None) => self.join(),
            (194..=195, Some(id)) => self.leave(id),
            (190..=193, _) => {
                self.now += Duration::from_millis(u64::from(self.schedule.choices.pick(150)));
            }
            (189, _) => {
                let until = u64::try_from(self.stored.parked.len()).expect("small");
                let running = self.machine.is_replaying();
                assert_eq!(self.machine.replay(until).is_err(), running);
            }
            (160..=188, _) => self.store(),
            (_, Some(id)) => self.answer(id),
        }
        self.settle();
        self.check_bounds();
    }

    /// What the task around the machine does after each input.
    fn settle(&mut self) {
        self.expire();
        self.read_parked();
        self.read();
        self.deliver();
    }

    /// Lets consumers only acknowledge, until nothing is left to do.
    fn finish(&mut self) -> Result<(), String> {
        self.note(|| "peace".to_owned());
        for id in self.clients.keys().copied().collect::<Vec<_>>() {
            self.leave(id);
        }
        self.join();
        let all = u64::try_from(self.stored.log.len()).expect("small");
        for _ in 0..PEACE_ROUNDS_MAX {
            self.settle();
            self.store();
            let id = *self.clients.keys().next().expect("one");
            let client = self.clients.get_mut(&id).expect("known");
            for sent in std::mem::take(&mut client.queue) {
                let which = [Which::Delivery(sent.token)];
                let known = self.machine.ack(id, &which, self.now);
                assert_eq!(known, 1);
                self.stored.finished.insert(sent.event.position.0 - 1);
            }
            self.now += Duration::from_millis(10);
            if self.machine.low() == all && self.machine.held() == 0 {
                let held = (self.machine.held_bytes(), self.machine.in_flight());
                assert_eq!(held, (0, 0));
                return Ok(());
            }
        }
        let (low, held) = (self.machine.low(), self.machine.held());
        Err(format!(
            "it does not come to an end: all is finished before {low}, {held} events are held"
        ))
    }
}
