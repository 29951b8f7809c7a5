//! The history checker finds each planted violation, and calls a healthy history healthy.

#![allow(clippy::expect_used, reason = "tests")]

use gesta_core::{
    Append, EventData, EventId, EventStore, EventStoreExt, Filter, Position, RecordedEvent,
    Revision, Timestamp,
};
use gesta_kit::history::{Outcome, RunHistory};
use gesta_kit::support::{Any, NoStream, event, events, exact, stream, types};
use gesta_kit::verdict::{Verdict, Violation};
use gesta_memory::MemoryStore;

/// A run of three appends, one of them over two streams, all acknowledged and seen by one tailer.
struct Run {
    history: RunHistory,
    stored: Vec<RecordedEvent>,
    requests: Vec<Append>,
}

async fn healthy() -> Run {
    let store = MemoryStore::new();
    let history = RunHistory::new();
    let mut both = Append::to(stream("a"), exact(1), events(2));
    both.streams
        .extend(Append::to(stream("b"), NoStream, events(1)).streams);
    let requests = vec![
        Append::to(stream("a"), NoStream, events(2)),
        both,
        Append::to(stream("b"), exact(0), events(1)),
    ];
    for request in &requests {
        history
            .append(&store, request.clone())
            .await
            .expect("stored");
    }
    let stored = store.read_everything().await.expect("readable");
    let tailer = history.tailer("t", Vec::new(), Filter::ALL);
    stored.iter().for_each(|event| history.saw(tailer, event));
    Run {
        history,
        stored,
        requests,
    }
}

impl Run {
    fn report(&self) -> Verdict {
        self.history.check_against(&self.stored)
    }

    fn id(&self, at: usize) -> EventId {
        self.stored[at].id
    }
}

/// True if some violation is the one that is meant.
fn finds(report: &Verdict, meant: impl Fn(&Violation) -> bool) -> bool {
    assert!(!report.to_string().is_empty());
    report.violations.iter().any(meant)
}

#[tokio::test]
async fn a_healthy_run_is_clean() {
    let run = healthy().await;
    let report = run.report();
    report.assert_clean();
    assert_eq!(
        (report.requests, report.attempts, report.acknowledged),
        (3, 3, 3)
    );
    assert_eq!((report.events_stored, report.events_acknowledged), (6, 6));
    assert_eq!((report.events_tailed, report.events_foreign), (6, 0));
}

#[tokio::test]
async fn an_empty_store_and_history_are_clean() {
    let report = RunHistory::new()
        .check(&MemoryStore::new())
        .await
        .expect("readable");
    assert_eq!(report, Verdict::default());
}

#[tokio::test]
async fn an_acknowledged_event_that_is_lost() {
    let mut run = healthy().await;
    let lost = run.stored.pop().expect("an event");
    let report = run.report();
    assert!(finds(
        &report,
        |v| matches!(v, Violation::AcknowledgedLost { id, .. } if *id == lost.id)
    ));
    // The tailer saw it, so it also vanished.
    assert!(finds(&report, |v| matches!(v, Violation::Vanished { .. })));
}

#[tokio::test]
async fn an_event_that_is_stored_twice() {
    let mut run = healthy().await;
    let mut double = run.stored[5].clone();
    double.position = double.position.next();
    double.revision = double.revision.next();
    run.stored.push(double);
    let id = run.id(5);
    let report = run.report();
    assert_eq!(report.violations.len(), 1, "{report}");
    assert!(finds(
        &report,
        |v| matches!(v, Violation::StoredTwice { id: found, .. } if *found == id)
    ));
}

#[tokio::test]
async fn a_refused_append_that_is_stored() {
    for outcome in [Outcome::Refused, Outcome::NotWritten] {
        let run = healthy().await;
        let history = RunHistory::new();
        for request in &run.requests[..2] {
            let attempt = history.begin(request);
            history.end(attempt, Outcome::Unknown);
        }
        let attempt = history.begin(&run.requests[2]);
        history.end(attempt, outcome);
        let report = history.check_against(&run.stored);
        assert_eq!(report.violations.len(), 1, "{report}");
        assert!(finds(&report, |v| matches!(
            v,
            Violation::RefusedStored { .. }
        )));
        assert_eq!((report.unknown_stored, report.refused), (2, 1));
    }
}

#[tokio::test]
async fn an_unknown_append_may_be_stored_or_absent() {
    let run = healthy().await;
    let history = RunHistory::new();
    // Two were stored, one was not; one attempt never ended.
    for request in &run.requests[..2] {
        let attempt = history.begin(request);
        history.end(attempt, Outcome::Unknown);
    }
    let _never_ended = history.begin(&run.requests[2]);
    let absent = history.begin(&Append::to(stream("c"), Any, events(1)));
    history.end(absent, Outcome::Unknown);
    assert_eq!(history.in_flight(), 1);
    let report = history.check_against(&run.stored);
    report.assert_clean();
    assert_eq!((report.unknown_stored, report.unknown_absent), (3, 1));
}

#[tokio::test]
async fn the_last_word_on_several_attempts_counts() {
    let run = healthy().await;
    let request = &run.requests[2];
    let with = |outcomes: &[Outcome]| {
        let history = RunHistory::new();
        for request in &run.requests[..2] {
            let _in_flight = history.begin(request);
        }
        for outcome in outcomes {
            let attempt = history.begin(request);
            history.end(attempt, outcome.clone());
        }
        history.check_against(&run.stored)
    };
    // Unknown, then overloaded: still unknown.
    with(&[Outcome::Unknown, Outcome::NotWritten]).assert_clean();
    // Unknown, then judged: it cannot be stored.
    let report = with(&[Outcome::Unknown, Outcome::Refused]);
    assert!(
        finds(&report, |v| matches!(v, Violation::RefusedStored { .. })),
        "{report}"
    );
    // Refused, then sent again with an unknown outcome: it may be stored.
    with(&[Outcome::Refused, Outcome::Unknown]).assert_clean();
    let store = MemoryStore::new();
    for request in &run.requests[..2] {
        store.append(request.clone()).await.expect("stored");
    }
    let answer = store.append(request.clone()).await.expect("stored");
    with(&[Outcome::Unknown, Outcome::Acknowledged(answer.clone())]).assert_clean();
    let report = with(&[Outcome::Acknowledged(answer), Outcome::Refused]);
    assert!(
        finds(&report, |v| matches!(
            v,
            Violation::RefusedAfterAcknowledged { .. }
        )),
        "{report}"
    );
}

#[tokio::test]
async fn an_append_that_is_stored_in_part() {
    // The outcome does not matter: in part is never right.
    let run = healthy().await;
    let history = RunHistory::new();
    for request in &run.requests {
        let attempt = history.begin(request);
        history.end(attempt, Outcome::Unknown);
    }
    // Without the last event of `a`.
    let mut stored = run.stored.clone();
    stored.remove(3);
    let report = history.check_against(&stored);
    assert!(finds(
        &report,
        |v| matches!(v, Violation::PartlyStored { stream: s, .. } if *s == stream("a"))
    ));
    // Without the whole second stream.
    let mut stored = run.stored.clone();
    stored.truncate(4);
    let report = history.check_against(&stored);
    assert!(finds(
        &report,
        |v| matches!(v, Violation::PartlyStored { stream: s, .. } if *s == stream("b"))
    ));
    // With its events in the wrong order.
    let mut stored = run.stored.clone();
    let (first, second) = (stored[0].id, stored[1].id);
    (stored[0].id, stored[1].id) = (second, first);
    let report = history.check_against(&stored);
    assert!(
        finds(&report, |v| matches!(v, Violation::PartlyStored { .. })),
        "{report}"
    );
}

#[tokio::test]
async fn an_answer_that_names_another_place() {
    type Spoil = fn(&mut gesta_core::Appended);
    let spoils: [Spoil; 4] = [
        |answer| answer.streams[0].first_revision = Revision(7),
        |answer| answer.streams[0].last_revision = Revision(7),
        |answer| answer.streams[0].position = Position(1),
        |answer| answer.streams.clear(),
    ];
    for spoil in spoils {
        let store = MemoryStore::new();
        let history = RunHistory::new();
        let request = Append::to(stream("a"), Any, events(3));
        let attempt = history.begin(&request);
        let mut answer = store.append(request).await.expect("stored");
        spoil(&mut answer);
        history.end(attempt, Outcome::Acknowledged(answer));
        let report = history.check(&store).await.expect("readable");
        assert_eq!(report.violations.len(), 1, "{report}");
        assert!(finds(&report, |v| matches!(
            v,
            Violation::WrongPlace { .. }
        )));
    }
}

#[tokio::test]
async fn gaps_and_wrong_orders_in_the_store() {
    let mut run = healthy().await;
    run.stored[5].revision = Revision(2);
    let report = run.report();
    assert!(finds(&report, |v| matches!(
        v,
        Violation::RevisionGap {
            found: Revision(2),
            ..
        }
    )));

    let mut run = healthy().await;
    run.stored[5].position = run.stored[4].position;
    let report = run.report();
    assert!(finds(&report, |v| matches!(
        v,
        Violation::PositionOrder { .. }
    )));

    let mut run = healthy().await;
    run.stored[5].created = Timestamp(run.stored[4].created.0 - 1);
    let report = run.report();
    assert!(finds(&report, |v| matches!(
        v,
        Violation::CreatedDecreased {
            position: Position(6),
            ..
        }
    )));
}

#[tokio::test]
async fn tailers_that_miss_repeat_or_invent_events() {
    let run = healthy().await;
    let tail = |places: &[usize]| {
        let history = run.history.clone();
        let tailer = history.tailer("spoilt", Vec::new(), Filter::ALL);
        places
            .iter()
            .for_each(|at| history.saw(tailer, &run.stored[*at]));
        history.check_against(&run.stored)
    };
    // A tailer that stopped early has missed nothing.
    tail(&[0, 1, 2]).assert_clean();
    let report = tail(&[0, 1, 3]);
    assert!(finds(&report, |v| matches!(
        v,
        Violation::AppearedBelowPassed {
            position: Position(3),
            ..
        }
    )));

    let run = healthy().await;
    let tailer = run.history.tailer("late", Vec::new(), Filter::ALL);
    for at in [0, 2, 1, 3] {
        run.history.saw(tailer, &run.stored[at]);
    }
    let report = run.report();
    assert!(finds(&report, |v| matches!(
        v,
        Violation::TailerOrder {
            position: Position(2),
            ..
        }
    )));

    let run = healthy().await;
    let tailer = run.history.tailer("twice", Vec::new(), Filter::ALL);
    for at in [0, 1, 1, 2] {
        run.history.saw(tailer, &run.stored[at]);
    }
    assert!(finds(&run.report(), |v| matches!(
        v,
        Violation::TailerOrder { .. }
    )));

    let run = healthy().await;
    let tailer = run.history.tailer("other", Vec::new(), Filter::ALL);
    let other = RecordedEvent {
        id: EventId::random(),
        ..run.stored[0].clone()
    };
    run.history.saw(tailer, &other);
    assert!(finds(&run.report(), |v| matches!(
        v,
        Violation::Vanished {
            position: Position(1),
            ..
        }
    )));
}

#[tokio::test]
async fn tailers_may_begin_later_and_filter() {
    let store = MemoryStore::new();
    let history = RunHistory::new();
    for event_type in ["x", "y", "x", "y"] {
        let request = Append::to(stream("a"), Any, vec![event(event_type)]);
        history.append(&store, request).await.expect("stored");
    }
    let stored = store.read_everything().await.expect("readable");
    let from_second = history.tailer("later", vec![Position(2)], Filter::ALL);
    stored[2..]
        .iter()
        .for_each(|event| history.saw(from_second, event));
    let only_x = history.tailer("x", Vec::new(), Filter::query(types(&["x"])));
    history.saw(only_x, &stored[0]);
    history.saw(only_x, &stored[2]);
    history.check_against(&stored).assert_clean();
    // One that its filter keeps away must not come.
    history.saw(only_x, &stored[3]);
    let report = history.check_against(&stored);
    assert!(finds(&report, |v| matches!(
        v,
        Violation::Vanished {
            position: Position(4),
            ..
        }
    )));
}

#[tokio::test]
async fn events_that_nobody_asked_for_are_counted() {
    let run = healthy().await;
    let mut stored = run.stored.clone();
    let foreign = RecordedEvent {
        id: EventId::random(),
        revision: Revision(2),
        position: Position(7),
        ..run.stored[5].clone()
    };
    stored.push(foreign);
    let report = run.history.check_against(&stored);
    report.assert_clean();
    assert_eq!(report.events_foreign, 1);
}

#[test]
#[should_panic(expected = "every event has an id")]
fn events_without_ids_cannot_be_checked() {
    let without_id = EventData {
        id: None,
        ..event("x")
    };
    let _ = RunHistory::new().begin(&Append::to(stream("a"), Any, vec![without_id]));
}

/// What happened: the checker compared answers with what is stored in the end, and not with each other, so two appends
/// that were stored in another order than they were made, a refusal and a read that were stale, and an append whose
/// claim was not true, were all clean. A checker for linearizability (`proof/kit/porcupine`) calls each of them wrong.
#[tokio::test]
async fn answers_that_fit_no_order() {
    let is_stale = |v: &Violation| matches!(v, Violation::Stale { .. });
    let is_untrue = |v: &Violation| matches!(v, Violation::Untrue { .. });

    // Stored first, asked for second.
    let (one, two) = (
        Append::to(stream("a"), Any, events(1)),
        Append::to(stream("a"), Any, events(1)),
    );
    let store = MemoryStore::new();
    let answers = [
        store.append(two.clone()).await,
        store.append(one.clone()).await,
    ];
    let stored = store.read_everything().await.expect("readable");
    let history = RunHistory::new();
    for (request, answer) in [(&one, &answers[1]), (&two, &answers[0])] {
        let attempt = history.begin(request);
        history.end(attempt, Outcome::from(answer));
    }
    let report = history.check_against(&stored);
    assert!(
        finds(&report, is_stale) && report.violations.len() == 1,
        "{report}"
    );

    // At the same time any order is right.
    let history = RunHistory::new();
    let attempts = [&one, &two].map(|request| history.begin(request));
    history.end(attempts[0], Outcome::from(&answers[1]));
    history.end(attempts[1], Outcome::from(&answers[0]));
    history.check_against(&stored).assert_clean();

    // Read and refused as it was before the second append, which nobody knew to be stored; then it was acknowledged.
    for is_known in [false, true] {
        let store = MemoryStore::new();
        let history = RunHistory::new();
        let first = Append::to(stream("a"), NoStream, events(1));
        history.append(&store, first).await.expect("stored");
        let before = MemoryStore::new();
        before.append(one.clone()).await.expect("stored");
        let attempt = history.begin(&two);
        let answer = store.append(two.clone()).await;
        if is_known {
            history.end(attempt, Outcome::from(&answer));
        }
        let refused = Append::to(stream("a"), exact(7), events(1));
        let refused = history.append(&before, refused).await;
        assert!(refused.is_err());
        let stored = store.read_everything().await.expect("readable");
        let report = history.check_against(&stored);
        assert_eq!(finds(&report, is_stale), is_known, "{report}");
        // Before: the same stream with another event.
        let read = history
            .look(1, &before, &stream("a"))
            .await
            .expect("readable");
        assert_eq!(read, Some(Revision(0)));
        let report = history.check_against(&stored);
        assert!(finds(&report, is_untrue), "{report}");
        assert_eq!(report.looks, 1);
    }

    // A claim that is not true, and a refusal of one that is.
    for (expected, is_stored) in [(exact(0), true), (NoStream, false)] {
        let history = RunHistory::new();
        let claimed = Append {
            streams: vec![gesta_core::StreamAppend {
                expected,
                ..one.streams[0].clone()
            }],
            conditions: Vec::new(),
        };
        let store = MemoryStore::new();
        let attempt = history.begin(&claimed);
        if is_stored {
            let answer = store.append(one.clone()).await;
            history.end(attempt, Outcome::from(&answer));
        } else {
            history.end(attempt, Outcome::Conflict(stream("a"), None));
        }
        let report = history.check(&store).await.expect("readable");
        assert!(finds(&report, is_untrue), "{report}");
    }
}

/// Goal: a refusal that names a stream of which the append claims nothing is untrue, and one that names the stream of a
/// condition is not.
#[tokio::test]
async fn a_refusal_for_a_stream_that_was_not_named() {
    let one = Append::to(stream("a"), NoStream, events(1));
    for (asked, is_blamed) in [
        (one.clone(), true),
        (one.provided_that(stream("b"), exact(3)), false),
    ] {
        let (history, store) = (RunHistory::new(), MemoryStore::new());
        let attempt = history.begin(&asked);
        history.end(attempt, Outcome::Conflict(stream("b"), None));
        let report = history.check(&store).await.expect("readable");
        let is_untrue = |v: &Violation| matches!(v, Violation::Untrue { .. });
        assert_eq!(finds(&report, is_untrue), is_blamed, "{report}");
    }
}

/// Goal: what a reader was told before it was asked for is out of the future.
#[tokio::test]
async fn a_read_of_what_nobody_had_asked_for() {
    let store = MemoryStore::new();
    let history = RunHistory::new();
    let request = Append::to(stream("a"), NoStream, events(1));
    let answer = store.append(request.clone()).await;
    history
        .look(1, &store, &stream("a"))
        .await
        .expect("readable");
    let attempt = history.begin(&request);
    history.end(attempt, Outcome::from(&answer));
    let report = history.check(&store).await.expect("readable");
    assert!(
        finds(&report, |v| matches!(v, Violation::Stale { .. })),
        "{report}"
    );
    assert_eq!(report.violations.len(), 1, "{report}");
}

/// What happened: answers about different streams of a log were not compared, so who had read of one what stands behind
/// an event of another, and then read the other without it, had seen nothing wrong.
#[tokio::test]
async fn a_read_behind_what_was_seen_of_another_stream() {
    let is_stale = |v: &Violation| matches!(v, Violation::Stale { .. });
    let (one, two) = (
        Append::to(stream("a"), NoStream, events(1)),
        Append::to(stream("b"), NoStream, events(1)),
    );
    let both = Append {
        streams: [&two, &one].map(|append| append.streams[0].clone()).into(),
        conditions: Vec::new(),
    };
    for appends in [vec![one, two], vec![both]] {
        let (before, store) = (MemoryStore::new(), MemoryStore::new());
        for is_seen in [false, true] {
            let history = RunHistory::new();
            for append in &appends {
                let _never_answered = history.begin(append);
                store.append(append.clone()).await.expect("stored");
            }
            if is_seen {
                let seen = history.look(1, &store, &stream("b")).await;
                assert_eq!(seen.expect("readable"), Some(Revision(0)));
            }
            let seen = history.look(1, &before, &stream("a")).await;
            assert_eq!(seen.expect("readable"), None);
            let report = history.check(&store).await.expect("readable");
            assert_eq!(finds(&report, is_stale), is_seen, "{report}");
        }
    }
}

/// What happened: what an attempt had stored that was said to have written nothing was taken for the work of a later
/// one.
#[tokio::test]
async fn an_attempt_that_wrote_nothing_has_stored_nothing() {
    let request = Append::to(stream("a"), NoStream, events(1));
    let store = MemoryStore::new();
    let history = RunHistory::new();
    let attempt = history.begin(&request);
    let answer = store.append(request.clone()).await;
    history.end(attempt, Outcome::NotWritten);
    let seen = history.look(1, &store, &stream("a")).await;
    assert_eq!(seen.expect("readable"), Some(Revision(0)));
    let attempt = history.begin(&request);
    history.end(attempt, Outcome::from(&answer));
    let report = history.check(&store).await.expect("readable");
    assert!(
        finds(&report, |v| matches!(v, Violation::Stale { .. })),
        "{report}"
    );
}
