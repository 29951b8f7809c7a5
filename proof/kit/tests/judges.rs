//! Each judge finds what is planted, and calls what is right right: stored seats, replies of entities, groups, tailers,
//! losses. Those of appends are in `history`, of orders in `orders`.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "tests")]

use std::time::{Duration, Instant};

use gesta_core::{
    Append, Checkpoint, EventId, EventStore, EventStoreExt, Incarnation, Place, Position,
    RecordedEvent, Revision, StreamId, Timestamp,
};
use gesta_kit::history::{Acknowledged, Creation, Deliveries, Entry, NEVER, Outcome, Reading};
use gesta_kit::history::{RunHistory, SeatEvent, Seats, Ticks};
use gesta_kit::judge::entities::{Reply, States};
use gesta_kit::judge::groups::{self, Terms};
use gesta_kit::judge::losses::{self, Excused, Losses};
use gesta_kit::judge::seats::{SeatChange, StoredSeats};
use gesta_kit::judge::tails::{self, Extent, Given};
use gesta_kit::support::{Any, event, events, stream};
use gesta_kit::verdict::{Kind, Verdict, Violation};
use gesta_memory::MemoryStore;
use uuid::Uuid;

/// Only these promises are broken.
#[track_caller]
fn finds(verdict: &Verdict, kinds: &[Kind]) {
    let found: Vec<Kind> = verdict.counts().into_keys().collect();
    assert_eq!(found, kinds, "{verdict}");
    assert_eq!(verdict.is_clean(), kinds.is_empty());
}

/// Goal: what is acknowledged of seats must be stored once, and nothing else.
#[test]
fn stored_seats_are_compared_with_what_was_acknowledged() {
    use SeatChange::{Cancelled, Reserved};
    let mut history = Seats::new(5);
    history.create(0, Creation::Created);
    for (place, what) in [
        (0, SeatEvent::Reserved),
        (1, SeatEvent::Reserved),
        (1, SeatEvent::Cancelled),
        (2, SeatEvent::MaybeReserved),
        (2, SeatEvent::SeenFree),
    ] {
        let begin = history.tick();
        let end = match what {
            SeatEvent::MaybeReserved => NEVER,
            _ => history.tick(),
        };
        history.record(Entry {
            place,
            begin,
            end,
            what,
        });
    }
    let good = [(0, Reserved), (1, Reserved), (1, Cancelled)];
    let judged = |creations: usize, changes: &[(u32, SeatChange)]| {
        let mut stored = StoredSeats::new(&history);
        (0..creations).for_each(|_| stored.created(0));
        for (place, change) in changes {
            stored.changed(*place, *change, || "an event".into());
        }
        stored.finish(|show| show.to_string())
    };
    finds(&judged(1, &good), &[]);
    // What may have happened.
    finds(&judged(1, &[&good[..], &[(2, Reserved)]].concat()), &[]);
    finds(&judged(0, &good), &[Kind::NotStored]);
    finds(&judged(2, &good), &[Kind::Uninvited]);
    finds(&judged(1, &good[..2]), &[Kind::NotStored]);
    let twice = [&good[..], &[(0, Reserved)]].concat();
    finds(&judged(1, &twice), &[Kind::StoredTwice, Kind::Uninvited]);
    finds(
        &judged(1, &[&good[..], &[(3, Reserved)]].concat()),
        &[Kind::Uninvited],
    );
    let mut stored = StoredSeats::new(&history);
    stored.unreadable(|| "an event".into());
    assert_eq!(stored.finish(|_| String::new()).count(Kind::Unreadable), 1);
}

/// Goal: a read of a show is a look at each of its seats.
#[test]
fn a_read_of_a_show_is_held_against_each_of_its_seats() {
    for (reserved, wanted) in [
        (0b01, &[][..]),
        (0b11, &[Kind::Stale]),
        (0b00, &[Kind::Stale]),
    ] {
        let mut history = Seats::new(2);
        history.create(0, Creation::Created);
        let (begin, end, what) = (history.tick(), history.tick(), SeatEvent::Reserved);
        history.record(Entry {
            place: 0,
            begin,
            end,
            what,
        });
        let (show, begin, end) = (0, history.tick(), history.tick());
        history.read(Reading {
            show,
            begin,
            end,
            reserved,
        });
        let verdict = gesta_kit::judge::seats::judge(&history, 100, |_, seat| seat.to_string());
        finds(&verdict, wanted);
        assert_eq!(verdict.looks, 1);
    }
}

/// An answer of an entity whose states are numbers.
fn reply((began, ended): (u64, u64), state: u64, own: u64) -> Reply<u64> {
    Reply {
        began,
        ended,
        runtime: None,
        state,
        own,
    }
}

fn judged(states: &[(u64, Option<u64>)], replies: &[Reply<u64>]) -> Verdict {
    let (mut all, mut verdict) = (States::new(0), Verdict::default());
    states.iter().for_each(|(state, at)| all.push(*state, *at));
    let tell = |number: usize| format!("{:?}", replies[number]);
    all.judge("entity", replies, tell, &mut verdict);
    verdict
}

/// Goal: replies of an entity rest on what it was at some moment between call and answer, and on what is durable.
#[test]
fn replies_are_held_against_the_states_of_an_entity() {
    // It became empty again.
    let states = [(1, Some(10)), (2, Some(20)), (0, Some(30)), (3, Some(40))];
    for (replies, wanted) in [
        (&[reply((5, 15), 1, 1), reply((18, 25), 2, 0)][..], &[][..]),
        (&[reply((35, 36), 0, 0), reply((5, 9), 0, 0)], &[]),
        // What is not confirmed may be old.
        (&[reply((0, 50), 1, 0)], &[]),
        (&[reply((25, 28), 1, 0)], &[Kind::Stale]),
        (&[reply((22, 28), 0, 0)], &[Kind::Early]),
        (&[reply((5, 9), 1, 1)], &[Kind::Early]),
        (&[reply((5, 9), 7, 0)], &[Kind::Untrue]),
        (&[reply((12, 25), 2, 2)], &[Kind::Stale]),
        (
            &[reply((5, 15), 1, 1), reply((6, 16), 1, 1)],
            &[Kind::SharedChange],
        ),
    ] {
        finds(&judged(&states, replies), wanted);
    }
    // Nobody knows when changes became durable: only the replies bound each other.
    let states = [(1, None), (2, None)];
    let (one, two) = (reply((1, 2), 1, 1), reply((3, 4), 2, 1));
    finds(&judged(&states, &[one, two]), &[]);
    finds(
        &judged(&states, &[one, two, reply((5, 6), 1, 0)]),
        &[Kind::Stale],
    );
    finds(
        &judged(&states, &[one, two, reply((1, 2), 2, 0)]),
        &[Kind::Early],
    );
    // Of one runtime, which keeps the order.
    let of_runtime = |reply: Reply<u64>| Reply {
        runtime: Some(1),
        ..reply
    };
    let replies = [reply((1, 9), 2, 0), reply((2, 3), 1, 0)];
    finds(&judged(&states, &replies), &[]);
    finds(
        &judged(&states, &replies.map(of_runtime)),
        &[Kind::Overtaken],
    );
}

/// Goal: what neither a consumer has finished nor the group has parked is lost; what is parked too often, delivered out
/// of order, or not the group's is told.
#[test]
fn deliveries_are_judged() {
    let all: Vec<u64> = (0..6).collect();
    let history = Deliveries::new();
    for (event, retries) in [(0, 0), (2, 0), (1, 0), (3, 0), (3, 1), (5, 0)] {
        history.delivered(1, event, retries);
    }
    [0, 1, 2, 5]
        .into_iter()
        .for_each(|event| history.finish(event));
    assert_eq!((history.counts(), history.finished()), ((6, 1), 4));
    let judged = |parked: &[u64], terms| groups::judge(&history, &all, parked, terms);
    let verdict = judged(&[3, 4], Terms::default());
    finds(&verdict, &[]);
    assert_eq!((verdict.deliveries, verdict.redeliveries), (6, 1));
    assert_eq!(verdict.events_settled, 6);
    finds(&judged(&[3], Terms::default()), &[Kind::NeverSettled]);
    assert_eq!(groups::unsettled(&history, &all, &[3]), [4]);
    finds(
        &judged(&[3, 4, 3], Terms::default()),
        &[Kind::ParkedTooOften],
    );
    let twice = Terms {
        parked_max: 2,
        ..Terms::default()
    };
    finds(&judged(&[3, 4, 3], twice), &[]);
    // 1 came after 2, but not after 3, which is not of the odd ones' kind.
    let in_order = |by: fn(&u64) -> u64| Terms {
        in_order: Some(by),
        ..Terms::default()
    };
    finds(&judged(&[3, 4], in_order(|_| 0)), &[Kind::DeliveryOrder]);
    finds(&judged(&[3, 4], in_order(|event| event % 2)), &[]);
    history.delivered(1, 9, 0);
    finds(
        &judged(&[3, 4], Terms::default()),
        &[Kind::DeliveredUninvited],
    );
    let may_lose = Terms {
        may_lose: true,
        ..Terms::default()
    };
    finds(&judged(&[3, 4], may_lose), &[]);
    let link = groups::linked(b"12@cart-1@home").unwrap();
    assert_eq!(link, (Revision(12), stream("cart-1@home")));
    assert!(groups::linked(b"12").is_none() && groups::linked(b"x@a").is_none());
}

/// Events of a log; the ids are the numbers, and the times.
fn given(names: &[(&str, u64, u64)]) -> Vec<Given> {
    let one = |(number, (stream, revision, id)): (u64, &(&str, u64, u64))| Given {
        stream: StreamId::new(*stream).unwrap(),
        revision: Revision(*revision),
        id: EventId(Uuid::from_u128((*id).into())),
        created: Timestamp(i64::try_from(*id).unwrap()),
        position: Some(Position(number)),
    };
    (1..).zip(names).map(one).collect()
}

/// Goal: a tailer has all, a beginning, or a beginning and then what was lost; never something else.
#[test]
fn what_tailers_got_is_judged() {
    let stored = given(&[("a", 0, 1), ("b", 0, 2), ("a", 1, 3)]);
    let of = |given: &[Given], extent| tails::judge("t", given, &stored, 1, extent);
    let part = &stored[..2];
    finds(&of(&stored, Extent::All), &[]);
    finds(&of(part, Extent::All), &[Kind::TailerDiffers]);
    finds(&of(part, Extent::Beginning), &[]);
    finds(&of(part, Extent::BeginningThenLost), &[]);
    let lost = given(&[("a", 0, 1), ("a", 1, 9), ("c", 0, 8)]);
    let more = [&stored[..], &given(&[("z", 0, 9)])].concat();
    for wrong in [&lost, &more] {
        for extent in [Extent::All, Extent::Beginning] {
            assert!(
                of(wrong, extent).count(Kind::TailerDiffers) > 0,
                "{wrong:?}"
            );
        }
    }
    finds(&of(&lost, Extent::BeginningThenLost), &[]);
    // It went on without a word.
    let silent = [&lost[..2], &stored[2..]].concat();
    finds(
        &of(&silent, Extent::BeginningThenLost),
        &[Kind::WentOnSilently],
    );
    let hole = [&stored[..1], &stored[2..]].concat();
    finds(
        &of(&hole, Extent::BeginningThenLost),
        &[Kind::WentOnSilently],
    );
    // The append of the last one was repeated after the loss: it is another event.
    let earlier = Given {
        created: Timestamp(0),
        ..stored[2].clone()
    };
    let again = [stored[0].clone(), earlier];
    finds(&of(&again, Extent::BeginningThenLost), &[]);
    // Nothing comes twice, also to a consumer that sees no positions: neither what is stored nor what was lost.
    let unplaced = |given: &[Given]| -> Vec<Given> {
        let unplaced = |one: &Given| Given {
            position: None,
            ..one.clone()
        };
        given.iter().map(unplaced).collect()
    };
    for (part, repeated) in [(&stored[..2], &stored[0]), (&lost[..], &lost[1])] {
        let twice = unplaced(&[part, std::slice::from_ref(repeated)].concat());
        let stored = unplaced(&stored);
        let verdict = tails::judge("t", &twice, &stored, 1, Extent::BeginningThenLost);
        finds(&verdict, &[Kind::TailerOrder]);
    }
    let back = [stored[1].clone(), stored[0].clone()];
    assert!(of(&back, Extent::Beginning).count(Kind::TailerOrder) > 0);
    let mut verdict = Verdict::default();
    tails::check_holes("t", &stored, &mut verdict);
    finds(&verdict, &[]);
    tails::check_holes("t", &hole, &mut verdict);
    finds(&verdict, &[Kind::PositionGap]);
}

/// A store with some events, which name their streams.
async fn named(names: &[(&str, &str)]) -> Vec<RecordedEvent> {
    let store = MemoryStore::new();
    for (name, named) in names {
        let mut event = event("tested");
        event.data = format!("\"{named}\"").into();
        let append = Append::to(stream(name), Any, vec![event]);
        store.append(append).await.unwrap();
    }
    store.read_everything().await.unwrap()
}

/// Goal: after a loss what is left is whole, under its names, and what was acknowledged may be missing only if it is
/// excused.
#[tokio::test]
async fn losses_excuse_what_they_may_and_no_more() {
    let is_named = |event: &RecordedEvent| event.data == format!("\"{}\"", event.stream);
    let whole = |stored: &[RecordedEvent]| {
        let mut verdict = Verdict::default();
        losses::check_whole(stored, is_named, &mut verdict);
        verdict
    };
    let good = named(&[("a", "a"), ("b", "b")]).await;
    finds(&whole(&good), &[]);
    finds(
        &whole(&named(&[("a", "a"), ("b", "a")]).await),
        &[Kind::WrongName],
    );
    finds(&whole(&good[1..]), &[Kind::PositionGap]);
    let mut twice = good.clone();
    twice[1].id = twice[0].id;
    finds(&whole(&twice), &[Kind::StoredTwice]);

    let (old, new) = (Incarnation::random(), Incarnation::random());
    let acknowledged = |event: &RecordedEvent, incarnation| Acknowledged {
        client: 0,
        ids: vec![event.id],
        begun: Instant::now(),
        answered: Instant::now(),
        checkpoint: Checkpoint {
            incarnation,
            place: Place::Logs(vec![]),
        },
    };
    let all = [acknowledged(&good[0], old), acknowledged(&good[1], new)];
    let of_old = |_: &StreamId, append: &Acknowledged| append.checkpoint.incarnation == old;
    let lost = |at: usize| Violation::AcknowledgedLost {
        stream: good[at].stream.clone(),
        id: good[at].id,
    };
    let moved = |at: usize| Violation::WrongPlace {
        stream: good[at].stream.clone(),
        id: good[at].id,
        detail: String::new(),
    };
    let one = Losses {
        appends: 1,
        events: 1,
    };
    let none = Losses::default();
    let (absence, both) = (Excused::Absence, Excused::AbsenceAndPlace);
    for (violation, excused, losses, kinds) in [
        (lost(0), absence, one, &[][..]),
        (lost(1), absence, none, &[Kind::NotStored]),
        (moved(0), absence, none, &[Kind::WrongPlace]),
        (moved(0), both, none, &[]),
        (moved(1), both, none, &[Kind::WrongPlace]),
    ] {
        let mut verdict = Verdict {
            violations: vec![violation],
            ..Verdict::default()
        };
        let found = losses::excuse(&mut verdict, &all, excused, of_old);
        assert_eq!(found, losses);
        finds(&verdict, kinds);
    }
    let mut verdict = Verdict::default();
    losses::check_histories(&all, &[old, new], &mut verdict);
    finds(&verdict, &[]);
    losses::check_histories(&all, &[new], &mut verdict);
    finds(&verdict, &[Kind::UnknownHistory]);
}

/// Goal: a history tells who had what acknowledged, since when, and what stayed unknown, while it goes on.
#[tokio::test]
async fn a_history_tells_of_a_run_that_goes_on() {
    let ticks = Ticks::default();
    let (store, history) = (MemoryStore::new(), RunHistory::counting(&ticks));
    let before = Instant::now() - Duration::from_nanos(1);
    assert_eq!(history.newest(3), None);
    let request = Append::to(stream("a"), Any, events(2));
    let first = history.begin_of(3, &request);
    history.answered(
        first,
        &Err(gesta_core::ErrorKind::OutcomeUnknown("cut".into()).into()),
    );
    let unknown = history.unknown();
    assert_eq!((unknown.len(), unknown[0].client), (1, 3));
    assert!(unknown[0].text.contains("cut") && unknown[0].begun <= unknown[0].ended);
    let excused = |times: &[(Instant, Instant)]| {
        let mut verdict = Verdict::default();
        history.check_unknown(times, &mut verdict);
        verdict
    };
    finds(&excused(&[]), &[Kind::UnknownWithoutNeed]);
    finds(&excused(&[(unknown[0].ended, Instant::now())]), &[]);
    let later = unknown[0].ended + Duration::from_nanos(1);
    finds(&excused(&[(later, later)]), &[Kind::UnknownWithoutNeed]);
    assert_eq!(history.behind([3], before), [3]);
    let second = history.begin_of(3, &request);
    let answer = store.append(request.clone()).await;
    history.answered(second, &answer);
    assert!(history.newest(3).unwrap() >= before);
    assert_eq!(history.behind([3, 4], before), [4]);
    let all = history.acknowledged();
    assert_eq!((all.len(), all[0].client, all[0].ids.len()), (1, 3, 2));
    assert_eq!(all[0].checkpoint, answer.unwrap().checkpoint);
    // Both recorders of the run count on.
    let seats = Seats::counting(3, &ticks);
    assert_eq!((seats.now(), seats.tick()), (4, 5));
    let refused = history.begin(&request);
    history.end(refused, Outcome::Refused);
    let report = history.check(&store).await.unwrap();
    assert_eq!(report.refused_otherwise, 1);
}

/// Goal: a verdict counts all, keeps the first of each kind in words, and takes in those of other judges.
#[test]
fn verdicts_add_up() {
    let mut verdict = Verdict::default();
    for number in 0..25 {
        verdict.add(Kind::Stale, 2, || format!("answer {number}"));
    }
    let other = Verdict {
        keys: 3,
        answers: 4,
        violations: vec![Violation::StoredTwice {
            stream: stream("a"),
            id: EventId::random(),
        }],
        ..verdict.clone()
    };
    verdict.absorb(other);
    assert_eq!(verdict.count(Kind::Stale), 80);
    assert_eq!((verdict.count(Kind::StoredTwice), verdict.keys), (1, 3));
    let findings = verdict.findings();
    assert_eq!(
        findings[..2],
        ["80 answers were stale", "1 events are stored twice"]
    );
    assert_eq!((&*findings[2], findings.len()), ("answer 0", 2 + 10 + 1));
    let text = verdict.to_string();
    let begin =
        "4 answers about 3 keys, 0 open; 81 violations\n  2 times answers were stale: answer 0";
    assert!(text.starts_with(begin), "{text}");
    assert!(text.ends_with("\n  and 60 more"), "{text}");
    assert_eq!(Verdict::default().to_string(), "0 violations");
}
