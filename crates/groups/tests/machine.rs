//! Single rules of the machine of a group. Random schedules of consumers, and of a process that is killed, run in the
//! world `groups` of `proof/sim`.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    missing_docs,
    reason = "tests"
)]

use std::collections::{HashSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use gesta_core::{
    ContentType, EventId, EventType, LogId, Moment, Position, RecordedEvent, Revision, SharedEvent,
    StreamId, Tags, Timestamp,
};
use gesta_groups::core::{Limits, Machine, Sent};
use gesta_groups::{ConsumerId, Settings, Token, Which};
use uuid::Uuid;

const STREAMS: u64 = 5;

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
