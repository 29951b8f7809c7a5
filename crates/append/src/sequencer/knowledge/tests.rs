//! Tests of what the sequencer knows of a log.

use std::sync::Arc;

use bytes::Bytes;
use gesta_core::backend::{LoadedMeta, LoadedStream, StreamHead};
use gesta_core::{ContentType, Filter, Query, Tags};

use super::*;
use crate::command::KnownOfMatch;

const MINUTE: i64 = 60_000_000;

fn end_at(position: u64, created: i64) -> LogEnd {
    LogEnd {
        position: Position(position),
        created: Timestamp(created),
        ..LogEnd::default()
    }
}

/// So many minutes after the start, by a clock that nobody sets and by the wall clock.
fn clock(uptime: u64, wall: i64) -> Now {
    Now {
        moment: Moment::START + Duration::from_secs(60 * uptime),
        wall: Timestamp(wall * MINUTE),
        database: None,
    }
}

/// Stores so many events of a stream after position `end`, all at this time; returns the id of the first.
fn store(knowledge: &mut Knowledge, end: &mut u64, events: u64, wall: i64) -> EventId {
    let ids: Vec<EventId> = (0..events).map(|_| EventId::random()).collect();
    for id in &ids {
        *end += 1;
        knowledge.remember(StoredId {
            stream: RowId(1),
            id: *id,
            position: Position(*end),
            created: Timestamp(wall * MINUTE),
        });
    }
    ids[0]
}

/// What happened: the clock of the owner was set forward by an hour, and the ids of all but the newest 100,000
/// events were dropped, as if the others had been stored an hour ago: a retry of one was stored again.
#[test]
fn a_step_of_the_clock_drops_no_id_of_the_window() {
    let config = Config::default();
    let mut knowledge = Knowledge::new(&config);
    let mut end = 0;
    knowledge.forget(&config, LogEnd::default(), clock(0, 100));
    let first = store(&mut knowledge, &mut end, 70_000, 100);
    knowledge.shrink(clock(0, 100).moment, end_at(end, 100 * MINUTE), true);
    store(&mut knowledge, &mut end, 200_000, 161);
    let find = |knowledge: &Knowledge| knowledge.window.find(RowId(1), first);
    for uptime in [1, 9] {
        let now = clock(uptime, 160).moment;
        knowledge.shrink(now, end_at(end, 161 * MINUTE), true);
        assert_eq!(find(&knowledge), InWindow::Perhaps(Position(1)), "{uptime}");
    }
    // It is ten minutes old by any clock.
    knowledge.shrink(clock(11, 170).moment, end_at(end, 171 * MINUTE), true);
    assert_eq!(find(&knowledge), InWindow::No);
}

/// What happened: a node whose clock was right took a log over from one whose clock was an hour slow, and looked
/// for retries only among the events that look younger than ten minutes: there were none.
#[test]
fn after_a_slow_clock_the_window_begins_where_its_events_are() {
    let config = Config::default();
    let mut knowledge = Knowledge::new(&config);
    let begins = |knowledge: &Knowledge, now: Now| {
        let now = knowledge.time_of_window(now.moment);
        let part = knowledge.window_part(Position(500_000), now, Position(500_000));
        part.created_from.0 / MINUTE
    };
    knowledge.forget(&config, end_at(500_000, 100 * MINUTE), clock(0, 160));
    assert_eq!(begins(&knowledge, clock(0, 160)), 90);
    // Its own first events change nothing about those of the other.
    let now = clock(1, 161);
    knowledge.shrink(now.moment, end_at(500_001, 161 * MINUTE), true);
    assert_eq!(begins(&knowledge, now), 91);
}

/// Goal: the ids of the window are read once enough appends were looked up, once, and again when all was forgotten.
#[test]
fn the_ids_of_the_window_are_read_once() {
    let config = Config::default();
    let mut knowledge = Knowledge::new(&config);
    for _ in 0..2 {
        knowledge.looked_up = LOOKED_UP_BEFORE - 1;
        assert!(!knowledge.begins_backfill());
        knowledge.looked_up += 1;
        assert!(knowledge.begins_backfill());
        assert!(!knowledge.begins_backfill(), "it was begun");
        knowledge.forget(&config, end_at(9, 0), clock(0, 0));
        assert!(!knowledge.begins_backfill(), "nothing was looked up");
    }
}

/// Goal: what the database has said of an event that a condition excludes counts only until everything is forgotten:
/// the log may have lost the event since, or have another one where there was none.
#[test]
fn answers_about_a_condition_end_with_what_was_forgotten() {
    let config = Config::default();
    let mut knowledge = Knowledge::new(&config);
    knowledge.forget(&config, end_at(9, 0), clock(0, 0));
    let seek = |knowledge: &mut Knowledge, condition: &mut NoMatch| {
        let committed = Position(9);
        knowledge.keep_newest(committed, std::iter::empty());
        knowledge.match_after(condition, Position::START, committed, &mut 100)
    };
    for (first, none_until, before) in [
        (
            Some(Position(5)),
            Position::START,
            Matching::Found(Position(5)),
        ),
        (None, Position(9), Matching::Nothing),
    ] {
        let history = knowledge.newest.history();
        let mut condition = NoMatch {
            filter: Arc::new(Filter::default()),
            after: None,
            known: Some(KnownOfMatch {
                history,
                none_until,
                first,
            }),
            compared: None,
        };
        assert_eq!(seek(&mut knowledge, &mut condition), before);
        knowledge.forget(&config, end_at(9, 0), clock(0, 0));
        let asks_again = Matching::Unknown {
            history: history + 1,
            after: Position::START,
            until: Position(9),
            confirms: None,
        };
        assert_eq!(seek(&mut knowledge, &mut condition), asks_again);
    }
}

/// A row of stream `s`.
fn row_at(position: u64) -> Row {
    Row {
        position: Position(position),
        stream: StreamId::new("s").expect("valid"),
        stream_row: RowId(2),
        revision: Revision(0),
        id: EventId::random(),
        event_type: EventType::new("e").expect("valid"),
        type_row: RowId(1),
        created: Timestamp(0),
        content_type: ContentType::Json,
        data: Bytes::new(),
        packed: None,
        metadata: Bytes::new(),
        tags: Tags::default(),
    }
}

/// What happened: a condition on events that are not in memory any more was looked for up to the first that is. Others
/// appended meanwhile, so that one had been dropped when the answer came, and the next search came too late as well:
/// such an append waited for as long as others went on. Goal: one search is enough.
#[test]
fn a_condition_on_old_events_is_answered_although_others_go_on() {
    let config = Config {
        newest_events_max: 10,
        ..Config::default()
    };
    let mut knowledge = Knowledge::new(&config);
    knowledge.forget(&config, end_at(0, 0), clock(0, 0));
    knowledge.keep_newest(Position(0), std::iter::empty());
    for position in 1..=100 {
        knowledge.see(&row_at(position), Position(position));
    }
    let mut condition = NoMatch {
        filter: Arc::new(Filter::query(Query {
            types: vec![EventType::new("other").expect("valid")],
            ..Query::default()
        })),
        after: None,
        known: None,
        compared: None,
    };
    let judge = |knowledge: &mut Knowledge, condition: &mut NoMatch, committed| {
        knowledge.match_after(condition, Position::START, committed, &mut 100)
    };
    let asked = judge(&mut knowledge, &mut condition, Position(100));
    let Matching::Unknown { history, until, .. } = asked else {
        panic!("{asked:?}");
    };
    condition.known = Some(KnownOfMatch {
        history,
        none_until: until,
        first: None,
    });
    // While the database answers, half of what is in memory is replaced.
    for position in 101..=105 {
        knowledge.see(&row_at(position), Position(position));
    }
    let answered = judge(&mut knowledge, &mut condition, Position(105));
    assert_eq!(answered, Matching::Nothing);
    // What others have appended is not committed here yet, and is looked for too.
    knowledge.newest.others_appended(Position(200));
    let asked = judge(&mut knowledge, &mut condition, Position(105));
    assert!(
        matches!(asked, Matching::Unknown { until, .. } if until == Position(200)),
        "{asked:?}"
    );
}

/// Goal: an event in memory refuses a condition at once only if nothing can have scavenged it: of a stream that has
/// metadata, or was deleted, the database is asked.
#[test]
fn an_event_that_may_be_scavenged_is_asked_for() {
    let config = Config::default();
    let stream = StreamId::new("s").expect("valid");
    let head = |position| StreamHead {
        row: RowId(position),
        last: Revision(0),
        position: Position(position),
        id: None,
    };
    let row = row_at(2);
    let metadata = LoadedMeta {
        head: head(1),
        data: Bytes::from_static(b"{}"),
        metadata: Bytes::new(),
    };
    for meta in [None, Some(metadata)] {
        let mut knowledge = Knowledge::new(&config);
        knowledge.forget(&config, end_at(1, 0), clock(0, 0));
        let loaded = Loaded {
            end: end_at(1, 0),
            streams: vec![LoadedStream {
                head: Some(head(2)),
                meta: meta.clone(),
            }],
            types: Vec::new(),
        };
        let request = LoadRequest {
            streams: vec![stream.clone()],
            types: Vec::new(),
        };
        knowledge.learn(request, &loaded);
        knowledge.keep_newest(Position(1), std::iter::empty());
        knowledge.see(&row, Position(1));
        let mut condition = NoMatch {
            filter: Arc::new(Filter::query(Query {
                types: vec![row.event_type.clone()],
                ..Query::default()
            })),
            after: None,
            known: None,
            compared: None,
        };
        let found = knowledge.match_after(&mut condition, Position(1), Position(2), &mut 100);
        match meta {
            None => assert_eq!(found, Matching::Found(Position(2))),
            Some(_) => assert!(
                matches!(
                    found,
                    Matching::Unknown {
                        after: Position(1),
                        confirms: Some(_),
                        ..
                    }
                ),
                "{found:?}"
            ),
        }
    }
}
