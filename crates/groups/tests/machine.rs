//! Runs the machine of a group in a simulated world: consumers acknowledge, refuse, are silent and vanish, and the
//! process is killed between any two steps and begins again with what it had stored.
//!
//! After every step the test checks that no checkpoint has passed an event that is not finished, that no parked event
//! was cut off, and that the bounds of memory hold. At the end every event was acknowledged, skipped, or is parked.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    missing_docs,
    reason = "tests"
)]

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use gesta_core::{
    ContentType, EventId, EventType, LogId, Moment, Position, RecordedEvent, Revision, SharedEvent,
    StreamId, Tags, Timestamp,
};
use gesta_groups::core::{Limits, Machine, ParkOrder, Sent};
use gesta_groups::{Action, ConsumerId, Settings, Strategy, Token, Which};
use gesta_kit::depth;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use uuid::Uuid;

const STREAMS: u64 = 5;

/// The data that outlives the process, and what is known of every event.
struct World {
    log: Vec<SharedEvent>,
    finished: HashSet<u64>,
    checkpoint: u64,
    /// Places of the parked events, from revision 0 on.
    parked: Vec<u64>,
    parked_from: u64,
    /// Places of events that stop every consumer which comes to them, without a word.
    poison: HashSet<u64>,
}

impl World {
    fn is_settled(&self, place: u64) -> bool {
        self.finished.contains(&place) || self.parked.contains(&place)
    }

    fn is_finished_or_parked_from(&self, place: u64, from: u64) -> bool {
        let from = usize::try_from(from).expect("small");
        self.finished.contains(&place) || self.parked[from..].contains(&place)
    }
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
        data: vec![b'1'; usize::try_from(place % 7).expect("small") * 100].into(),
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

struct Process<'w> {
    world: &'w mut World,
    machine: Machine,
    settings: Settings,
    limits: Limits,
    clients: HashMap<ConsumerId, Client>,
    parking: Vec<ParkOrder>,
    checkpoint: Option<u64>,
    truncation: Option<u64>,
    /// How many times consumers have begun to work on each event and not finished it, since the process began.
    tried: HashMap<Token, u32>,
    now: Moment,
}

impl<'w> Process<'w> {
    fn start(world: &'w mut World, settings: Settings, limits: Limits, now: Moment) -> Self {
        let (from, parked_from) = (world.checkpoint, world.parked_from);
        Self {
            machine: Machine::new(settings.clone(), limits, from, parked_from, now),
            world,
            settings,
            limits,
            clients: HashMap::new(),
            parking: Vec::new(),
            checkpoint: None,
            truncation: None,
            tried: HashMap::new(),
            now,
        }
    }

    fn read(&mut self) {
        while self.machine.wants_event() {
            let place = self.machine.read_to();
            match self.world.log.get(usize::try_from(place).expect("small")) {
                None => return self.machine.caught_up(),
                // Some are not for the group.
                Some(_) if place % 11 == 3 => {
                    self.world.finished.insert(place);
                    self.machine.ignore(place);
                }
                Some(event) => self.machine.event(place, Arc::clone(event)),
            }
        }
    }

    fn read_parked(&mut self) {
        while let Some(range) = self.machine.wants_parked() {
            let place = self.world.parked[usize::try_from(range.start).expect("small")];
            self.machine.parked_event(range.start, Some(event(place)));
        }
    }

    fn deliver(&mut self) {
        for sent in self.machine.dispatch(self.now) {
            let client = self
                .clients
                .get_mut(&sent.consumer)
                .expect("a consumer that is there");
            client.queue.push_back(sent);
        }
        for (id, client) in &self.clients {
            let counts = self.machine.consumers();
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
            if queue.len() < before {
                self.machine.not_taken(token);
            } else {
                self.machine.timed_out(token);
            }
        }
        while let Some(silent) = self.machine.silent() {
            self.machine.part_with(silent);
            self.clients.remove(&silent).expect("known");
        }
    }

    fn join(&mut self, rng: &mut StdRng) {
        let id = ConsumerId(Uuid::from_u128(rng.random()));
        let buffer = rng.random_range(1..20);
        if self.machine.join(id, buffer).is_ok() {
            let client = Client {
                buffer,
                ..Client::default()
            };
            self.clients.insert(id, client);
        }
    }

    fn leave(&mut self, id: ConsumerId) {
        let client = self.clients.remove(&id).expect("known");
        let not_taken: HashSet<Token> = client.queue.iter().map(|sent| sent.token).collect();
        self.machine.leave(id, &not_taken);
    }

    fn answer(&mut self, id: ConsumerId, rng: &mut StdRng) {
        let client = self.clients.get_mut(&id).expect("known");
        if client.is_stopped {
            // What comes to it is taken, and never worked on.
            client.queue.pop_front();
            return;
        }
        if rng.random_bool(0.7)
            && let Some(sent) = client.queue.pop_front()
        {
            *self.tried.entry(sent.token).or_default() += 1;
            if self.world.poison.contains(&(sent.event.position.0 - 1)) {
                client.is_stopped = true;
                return;
            }
            client.works_on.push(sent);
        }
        if client.works_on.is_empty() {
            return;
        }
        let at = rng.random_range(0..client.works_on.len());
        let sent = client.works_on.swap_remove(at);
        let which = [Which::Delivery(sent.token)];
        let place = sent.event.position.0 - 1;
        match rng.random_range(0..20) {
            // An answer, in time or not: the consumer has done its work.
            0..14 => {
                self.machine.ack(id, &which, self.now);
                self.world.finished.insert(place);
            }
            14 => {
                let known = self.machine.nack(id, &which, Action::Skip, "", self.now);
                if known == 1 {
                    self.world.finished.insert(place);
                }
            }
            15..17 => {
                self.machine.nack(id, &which, Action::Retry, "", self.now);
            }
            17 => {
                self.machine
                    .nack(id, &which, Action::Park, "broken", self.now);
            }
            18 => {
                let unknown = [Which::Event(EventId(Uuid::from_u128(u128::MAX)))];
                assert_eq!(self.machine.ack(id, &unknown, self.now), 0);
            }
            // It is never heard of again.
            _ => {}
        }
    }

    /// Lets one thing that was to be stored be stored.
    fn store(&mut self, rng: &mut StdRng) {
        if let Some(order) = self.machine.next_park() {
            // No event is parked whose tries were used up by consumers that never worked on it.
            let tried = self.tried.get(&order.token).copied().unwrap_or(0);
            if order.reason.starts_with("Reached") {
                assert!(tried > self.settings.max_retry_count, "{tried}: {order:?}");
            }
            self.parking.push(order);
        }
        if rng.random_bool(0.5) {
            for order in self.parking.drain(..) {
                self.world.parked.push(order.event.position.0 - 1);
                self.machine.parked(order.token);
            }
        }
        let begun = self.machine.begin_checkpoint(self.now);
        self.checkpoint = self.checkpoint.or(begun);
        if let Some(place) = self.checkpoint.take_if(|_| rng.random_bool(0.5)) {
            assert!(place > self.world.checkpoint);
            for before in self.world.checkpoint..place {
                assert!(
                    self.world.is_settled(before),
                    "{before} was passed by {place}"
                );
            }
            self.world.checkpoint = place;
            self.machine.checkpoint_written();
        }
        let begun = self.machine.begin_truncation(self.now);
        self.truncation = self.truncation.or(begun);
        if let Some(from) = self.truncation.take_if(|_| rng.random_bool(0.5)) {
            for gone in self.world.parked_from..from {
                let place = self.world.parked[usize::try_from(gone).expect("small")];
                assert!(
                    self.world.is_finished_or_parked_from(place, from),
                    "{place} was cut off"
                );
            }
            self.world.parked_from = from;
            self.machine.truncation_written();
        }
    }

    fn check_bounds(&self) {
        let largest = event(6).cost_bytes();
        assert!(self.machine.held_bytes() <= self.limits.held_bytes_max + largest);
        let asked: u32 = self.clients.values().map(|client| client.buffer).sum();
        assert!(self.machine.in_flight() <= usize::try_from(asked).expect("small"));
        // What was given back by consumers may come on top of what waits, but nothing is read then.
        let most = self
            .settings
            .history_buffer_size
            .max(self.settings.live_buffer_size);
        assert!(self.machine.waiting() <= usize::try_from(most).expect("small"));
    }

    fn step(&mut self, rng: &mut StdRng) {
        let client = {
            let mut ids: Vec<ConsumerId> = self.clients.keys().copied().collect();
            ids.sort_unstable();
            (!ids.is_empty()).then(|| ids[rng.random_range(0..ids.len())])
        };
        match (rng.random_range(0..200), client) {
            (0..4, _) | (_, None) => self.join(rng),
            (4..6, Some(id)) => self.leave(id),
            (6..10, _) => self.now += Duration::from_millis(rng.random_range(0..150)),
            (10, _) => {
                let until = u64::try_from(self.world.parked.len()).expect("small");
                let running = self.machine.is_replaying();
                assert_eq!(self.machine.replay(until).is_err(), running);
            }
            (11..40, _) => self.store(rng),
            (_, Some(id)) => self.answer(id, rng),
        }
        self.expire();
        self.read_parked();
        self.read();
        self.deliver();
        self.check_bounds();
    }

    /// Lets consumers only acknowledge, until nothing is left to do.
    fn finish(&mut self, rng: &mut StdRng) {
        for id in self.clients.keys().copied().collect::<Vec<_>>() {
            self.leave(id);
        }
        self.join(rng);
        for _ in 0..20_000 {
            self.expire();
            self.read_parked();
            self.read();
            self.deliver();
            self.store(rng);
            let id = *self.clients.keys().next().expect("one");
            let client = self.clients.get_mut(&id).expect("known");
            for sent in std::mem::take(&mut client.queue) {
                let known = self
                    .machine
                    .ack(id, &[Which::Delivery(sent.token)], self.now);
                assert_eq!(known, 1);
                self.world.finished.insert(sent.event.position.0 - 1);
            }
            self.now += Duration::from_millis(10);
            let all = u64::try_from(self.world.log.len()).expect("small");
            if self.machine.low() == all && self.machine.held() == 0 {
                assert_eq!(
                    (self.machine.held_bytes(), self.machine.in_flight()),
                    (0, 0)
                );
                return;
            }
        }
        let (low, held) = (self.machine.low(), self.machine.held());
        panic!("it does not come to an end: all is finished before {low}, {held} events are held");
    }
}

fn settings(rng: &mut StdRng) -> Settings {
    let strategies = [
        Strategy::RoundRobin,
        Strategy::DispatchToSingle,
        Strategy::Pinned,
        Strategy::PinnedByCorrelation,
    ];
    let read_batch_size = rng.random_range(1..20);
    let min_checkpoint_count = rng.random_range(0..10);
    let settings = Settings {
        extra_statistics: rng.random(),
        message_timeout_ms: [0, 50, 200][rng.random_range(0..3)],
        max_retry_count: rng.random_range(0..4),
        checkpoint_after_ms: rng.random_range(0..300),
        min_checkpoint_count,
        max_checkpoint_count: [0, min_checkpoint_count + 5][rng.random_range(0..2)],
        max_subscriber_count: rng.random_range(0..8),
        live_buffer_size: rng.random_range(1..30),
        read_batch_size,
        history_buffer_size: read_batch_size + rng.random_range(1..30),
        strategy: strategies[rng.random_range(0..4)],
        ..Settings::default()
    };
    settings.validate().expect("valid");
    settings
}

/// Goal: whatever consumers do and whenever the process dies, every event is finished or parked in the end.
fn every_event_is_finished_or_parked(seed: u64) {
    let mut rng = StdRng::seed_from_u64(seed);
    let mut world = World {
        log: (0..rng.random_range(1..400)).map(event).collect(),
        finished: HashSet::new(),
        checkpoint: 0,
        parked: Vec::new(),
        parked_from: 0,
        poison: (0..rng.random_range(0..4))
            .map(|_| rng.random_range(0..400))
            .collect(),
    };
    let mut now = Moment::START;
    let limits = Limits {
        held_bytes_max: rng.random_range(1_000..30_000),
    };
    for _ in 0..rng.random_range(1..6) {
        let settings = settings(&mut rng);
        let mut process = Process::start(&mut world, settings, limits, now);
        for _ in 0..rng.random_range(1..1_500) {
            process.step(&mut rng);
        }
        // And here it is killed.
        now = process.now;
    }
    let settings = settings(&mut rng);
    let mut process = Process::start(&mut world, settings, limits, now);
    for _ in 0..rng.random_range(0..1_500) {
        process.step(&mut rng);
    }
    process.finish(&mut rng);
    for place in 0..u64::try_from(world.log.len()).expect("small") {
        let settled = world.is_finished_or_parked_from(place, world.parked_from);
        assert!(settled, "event {place} is lost");
    }
}

/// Lets the machine read an event whose id no other event has.
fn read(machine: &mut Machine, number: u64) {
    let place = number * STREAMS;
    machine.event(place, event(place));
}

/// A machine with three events and one consumer that may hold two.
fn with_one_consumer(max_retry_count: u32) -> (Machine, ConsumerId, Moment) {
    let settings = Settings {
        message_timeout_ms: 100,
        max_retry_count,
        ..Settings::default()
    };
    let (now, limits) = (
        Moment::START,
        Limits {
            held_bytes_max: 10_000,
        },
    );
    let mut machine = Machine::new(settings, limits, 0, 0, now);
    let consumer = ConsumerId(Uuid::from_u128(1));
    machine.join(consumer, 2).expect("room");
    for number in 0..3 {
        read(&mut machine, number);
    }
    (machine, consumer, now)
}

fn let_time_pass(machine: &mut Machine, now: Moment) -> Vec<Sent> {
    while let Some((_, token)) = machine.expired(now) {
        machine.timed_out(token);
    }
    machine.dispatch(now)
}

/// Goal: of all that a silent consumer held, only the event on which it was working has lost a try.
#[test]
fn a_consumer_that_is_silent_twice_has_to_leave_and_one_event_has_lost_a_try() {
    for max_retry_count in [0, 1] {
        let (mut machine, silent, mut now) = with_one_consumer(max_retry_count);
        assert_eq!(machine.dispatch(now).len(), 2);
        now += Duration::from_millis(100);
        assert_eq!(let_time_pass(&mut machine, now).len(), 2);
        assert_eq!(machine.silent(), None, "once");
        now += Duration::from_millis(100);
        while let Some((_, token)) = machine.expired(now) {
            machine.timed_out(token);
        }
        assert_eq!(machine.silent(), Some(silent));
        machine.part_with(silent);
        assert_eq!((machine.silent(), machine.knows(silent)), (None, false));
        assert_eq!(machine.counts().silent, 1);
        let parked = machine.next_park().map(|order| order.event.position);
        let other = ConsumerId(Uuid::from_u128(2));
        machine.join(other, 9).expect("room");
        let sent = machine.dispatch(now);
        let sent: Vec<_> = sent
            .iter()
            .map(|sent| (sent.event.position.0 / STREAMS, sent.retries))
            .collect();
        if max_retry_count == 0 {
            assert_eq!((parked, sent), (Some(Position(1)), vec![(1, 0), (2, 0)]));
        } else {
            // The others go before the one that may be at fault.
            assert_eq!((parked, sent), (None, vec![(1, 0), (0, 1), (2, 0)]));
        }
    }
}

/// How a consumer goes that an event has stopped.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Goes {
    Silently,
    OfItsOwn,
    /// After its events have timed out once.
    LaterOfItsOwn,
}

/// Lets a consumer with this buffer work in order until it comes to the event with this number, and go then. Returns
/// what it has acknowledged.
fn work_until(
    machine: &mut Machine,
    poison: u64,
    buffer: u32,
    goes: Goes,
    now: &mut Moment,
) -> Vec<u64> {
    let consumer = ConsumerId(Uuid::new_v4());
    machine.join(consumer, buffer).expect("room");
    let mut acked = Vec::new();
    let mut queue: VecDeque<Sent> = machine.dispatch(*now).into();
    while let Some(sent) = queue.pop_front() {
        let number = sent.event.position.0 / STREAMS;
        if number == poison {
            break;
        }
        let known = machine.ack(consumer, &[Which::Delivery(sent.token)], *now);
        assert_eq!(known, 1);
        acked.push(number);
        queue.extend(machine.dispatch(*now));
    }
    let is_gone = |machine: &mut Machine, now| {
        while let Some((_, token)) = machine.expired(now) {
            machine.timed_out(token);
        }
        let is_silent = machine.silent() == Some(consumer);
        if is_silent {
            machine.part_with(consumer);
        } else {
            machine.dispatch(now);
        }
        is_silent
    };
    match goes {
        Goes::OfItsOwn => machine.leave(consumer, &HashSet::new()),
        Goes::LaterOfItsOwn => {
            *now += Duration::from_millis(100);
            assert!(!is_gone(machine, *now));
            machine.leave(consumer, &HashSet::new());
        }
        Goes::Silently => {
            let mut rounds = 0;
            while machine.in_flight() > 0
                && !{
                    *now += Duration::from_millis(100);
                    is_gone(machine, *now)
                }
            {
                rounds += 1;
                assert!(rounds < 5, "it never has to leave");
            }
        }
    }
    acked
}

/// Goal: an event that no consumer survives is parked after exactly its number of tries, and the events that came to
/// the same consumers lose none of theirs, whether those acknowledge something first or not.
///
/// What happened: an event that made every consumer hang was delivered for ever, for silence counted for no event.
#[test]
fn an_event_that_stops_every_consumer_is_parked_and_takes_none_with_it() {
    let ways = [Goes::Silently, Goes::OfItsOwn, Goes::LaterOfItsOwn];
    for (goes, poison, buffer, max_retry_count) in ways.into_iter().flat_map(|goes| {
        (0..4).flat_map(move |poison| {
            [1, 2, 9]
                .into_iter()
                .flat_map(move |buffer| (0..3).map(move |max| (goes, poison, buffer, max)))
        })
    }) {
        let case = format!("{goes:?} {poison} {buffer} {max_retry_count}");
        let settings = Settings {
            message_timeout_ms: 100,
            max_retry_count,
            ..Settings::default()
        };
        let mut now = Moment::START;
        let limits = Limits {
            held_bytes_max: 10_000,
        };
        let mut machine = Machine::new(settings, limits, 0, 0, now);
        machine.join(ConsumerId(Uuid::nil()), 1).expect("room");
        for number in 0..4 {
            read(&mut machine, number);
        }
        machine.leave(ConsumerId(Uuid::nil()), &HashSet::new());
        let mut acked = Vec::new();
        for tries in 0..=max_retry_count {
            assert_eq!(machine.next_park(), None, "{case}: after {tries} tries");
            acked.extend(work_until(&mut machine, poison, buffer, goes, &mut now));
        }
        let parked = machine.next_park().expect(&case);
        assert_eq!(parked.event.position.0 / STREAMS, poison, "{case}");
        assert_eq!(machine.next_park(), None, "{case}");
        machine.parked(parked.token);
        acked.extend(work_until(&mut machine, poison, buffer, goes, &mut now));
        acked.sort_unstable();
        let others: Vec<u64> = (0..4).filter(|number| *number != poison).collect();
        assert_eq!((acked, machine.held()), (others, 0), "{case}");
    }
}

/// Goal: a consumer that takes events and is dead uses up no tries of events to which it never came, however often it
/// joins again.
#[test]
fn a_dead_consumer_that_joins_again_uses_up_tries_of_one_event_at_a_time() {
    let (mut machine, first, mut now) = with_one_consumer(2);
    machine.leave(first, &HashSet::new());
    for _ in 0..6 {
        // No event is acknowledged, so each of them is the first in turn.
        work_until_dead(&mut machine, &mut now);
        assert_eq!(machine.next_park(), None);
    }
    let consumer = ConsumerId(Uuid::from_u128(9));
    machine.join(consumer, 9).expect("room");
    let sent = machine.dispatch(now);
    assert!(sent.iter().all(|sent| sent.retries == 2), "{sent:?}");
}

fn work_until_dead(machine: &mut Machine, now: &mut Moment) {
    let consumer = ConsumerId(Uuid::new_v4());
    machine.join(consumer, 9).expect("room");
    machine.dispatch(*now);
    for _ in 0..2 {
        *now += Duration::from_millis(100);
        while let Some((_, token)) = machine.expired(*now) {
            machine.timed_out(token);
        }
        if machine.silent().is_none() {
            machine.dispatch(*now);
        }
    }
    assert_eq!(machine.silent(), Some(consumer));
    machine.part_with(consumer);
}

/// Goal: a slow consumer that works in order uses up no tries of events to which it has not come yet, and what it
/// passes over has failed.
#[test]
fn time_outs_of_events_to_which_a_consumer_has_not_come_yet_do_not_count() {
    let (mut machine, consumer, mut now) = with_one_consumer(0);
    let sent = machine.dispatch(now);
    now += Duration::from_millis(50);
    // It has finished the first one, and takes long for the second one; a third one waits behind that.
    assert_eq!(
        machine.ack(consumer, &[Which::Delivery(sent[0].token)], now),
        1
    );
    machine.dispatch(now);
    now += Duration::from_millis(60);
    let again = let_time_pass(&mut machine, now);
    assert_eq!(again.len(), 1);
    assert_eq!((machine.next_park(), again[0].retries), (None, 0));
    // Its answer, which comes too late for the first delivery, fits the second one.
    assert_eq!(
        machine.ack(consumer, &[Which::Delivery(sent[1].token)], now),
        1
    );
    assert_eq!(machine.next_park(), None);
    read(&mut machine, 3);
    let fourth = machine.dispatch(now);
    assert_eq!(fourth.len(), 1);
    // It answers for the fourth and never for the third.
    assert_eq!(
        machine.ack(consumer, &[Which::Delivery(fourth[0].token)], now),
        1
    );
    now += Duration::from_millis(100);
    let_time_pass(&mut machine, now);
    let parked = machine.next_park().expect("it was passed over");
    assert_eq!(parked.event.position.0 / STREAMS, 2);
}

/// Goal: a consumer is silent only if nothing comes back of all that it holds, also if its events came one by one.
#[test]
fn events_that_come_one_by_one_do_not_hide_silence() {
    let (mut machine, silent, mut now) = with_one_consumer(0);
    for number in 3..40 {
        read(&mut machine, number);
        let_time_pass(&mut machine, now);
        if machine.silent() == Some(silent) {
            // Two rounds of 100 ms each, and what came in between.
            assert!((6..=12).contains(&number), "{number}");
            assert_eq!(machine.next_park(), None);
            return;
        }
        now += Duration::from_millis(30);
    }
    panic!("nobody notices");
}

/// Goal: a consumer that answers for some events stays, and those for which it does not answer fail.
#[test]
fn a_consumer_that_is_heard_stays_and_its_time_outs_count() {
    let (mut machine, consumer, mut now) = with_one_consumer(1);
    let mut sent = machine.dispatch(now);
    for round in 0..3 {
        now += Duration::from_millis(50);
        // It answers for the newest that it got, and never for the first event.
        let last = sent.iter().rfind(|sent| sent.event.position != Position(1));
        if let Some(last) = last {
            let known = machine.ack(consumer, &[Which::Delivery(last.token)], now);
            assert_eq!(known, 1);
        }
        now += Duration::from_millis(50);
        sent = let_time_pass(&mut machine, now);
        assert_eq!(machine.silent(), None, "{round}");
    }
    let parked = machine.next_park().expect("it has failed twice");
    assert_eq!(parked.event.position, Position(1));
}

/// Goal: an answer that comes too late tells that the consumer is there: then what it did not answer for has failed.
#[test]
fn an_answer_that_comes_too_late_makes_the_time_out_count() {
    let (mut machine, consumer, mut now) = with_one_consumer(5);
    let first = machine.dispatch(now);
    for late in 1..=4 {
        now += Duration::from_millis(100);
        let again = let_time_pass(&mut machine, now);
        assert_eq!(again.len(), 2);
        let late_answer = [Which::Event(EventId(Uuid::from_u128(77)))];
        assert_eq!(machine.ack(consumer, &late_answer, now), 0);
        assert_eq!(machine.silent(), None, "{late}");
    }
    now += Duration::from_millis(100);
    let again = let_time_pass(&mut machine, now);
    let most = again.iter().map(|sent| sent.retries).max();
    assert!(most > Some(1), "{first:?} {again:?}");
}

/// What happened: an answer that named another delivery by its exact number cost the first event in doubt a try.
#[test]
fn an_answer_that_names_another_delivery_fails_none() {
    let (mut machine, consumer, mut now) = with_one_consumer(5);
    machine.dispatch(now);
    for round in 1..=4 {
        now += Duration::from_millis(100);
        let again = let_time_pass(&mut machine, now);
        assert!(again.iter().all(|sent| sent.retries == 0), "{round}");
        let of_another = [Which::Delivery(Token(77))];
        assert_eq!(machine.ack(consumer, &of_another, now), 0);
        assert_eq!(machine.silent(), None, "{round}");
    }
}

#[test]
fn groups_lose_nothing_whatever_happens() {
    let first = depth::seed();
    let runs = if depth::seed_asked_for().is_some() {
        1
    } else {
        depth::count(150, 50_000)
    };
    for run in 0..runs {
        let seed = first.wrapping_add(run);
        let outcome = std::panic::catch_unwind(|| every_event_is_finished_or_parked(seed));
        if let Err(panic) = outcome {
            println!("GESTA_SEED={seed}");
            std::panic::resume_unwind(panic);
        }
    }
}
