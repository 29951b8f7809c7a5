//! The log is read as the product stores it: what the judges find in it they find in the test kit's histories
//! (`proof/kit/tests/payments.rs`).

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use gesta_core::{
    AllPage, ContentType, ErrorKind, EventId, EventStore, EventType, LogId, Position, ReadAll,
    RecordedEvent, Revision, StreamId, Tags, Timestamp,
};
use gesta_kit::history::payments::{Deed, SeatBook, ShowSeat, StoredWithin};
use gesta_kit::{Outer, Wrapper};
use gesta_memory::MemoryStore;
use prost::Message as _;
use serde_json::json;
use uuid::Uuid;

use super::forms::{ChangeForm, REQUESTS, take};
use super::{ReadSoFar, Reader};

const SHOW: Uuid = Uuid::from_u128(7);
const STATES: &str = "$timers-{unpaid_reservations}-state";

/// An event of a log, at its position.
fn event(position: u64, stream: &str, kind: &str, data: Vec<u8>, metadata: &str) -> RecordedEvent {
    RecordedEvent {
        stream: StreamId::new(stream).unwrap(),
        revision: Revision(position),
        log: LogId(0),
        position: Position(position),
        id: EventId(Uuid::from_u128(position.into())),
        event_type: EventType::new(kind).unwrap(),
        created: Timestamp(0),
        content_type: ContentType::Json,
        data: data.into(),
        metadata: metadata.to_owned().into(),
        tags: Tags::NONE,
    }
}

/// Goal: what the product stores is understood: changes of seats with their keys, timers that are set, cancelled and
/// fired; what cannot be understood is told, and what is nobody's is passed over.
#[test]
fn the_log_is_read_as_it_is_stored() {
    let change = |at: i64| {
        let form = ChangeForm {
            show_id: SHOW.to_string(),
            seat_number: 1,
            changed_at: at,
        };
        form.encode_to_vec()
    };
    let shows = format!("show-{SHOW}");
    let key = format!("{SHOW}/1");
    let set = json!({
        "key": key, "due": Timestamp(30).to_string(),
        "data": {"show_id": SHOW, "seat": 1, "reserved_at": 10},
        "because": {"log": 0, "position": 2, "created": 10},
    });
    let cancelled = json!({"key": key, "because": {"log": 0, "position": 4, "created": 0}});
    let fired =
        json!({"owner": SHOW, "does": {"fired": {"ids": [Uuid::from_u128(3)], "through": null}}});
    let keyed = |key: &str| json!({"$idempotencyKey": key, "$reply": null}).to_string();
    let mut book = SeatBook::default();
    let log = [
        event(1, &shows, "show-created.v1", vec![], ""),
        event(2, &shows, "seat-reserved.v1", change(10), &keyed("a")),
        event(3, REQUESTS, "timer-set", set.to_string().into(), ""),
        event(4, &shows, "seat-paid.v1", change(11), &keyed("b")),
        event(
            5,
            &shows,
            "seat-reservation-cancelled.v1",
            change(12),
            &keyed("c"),
        ),
        event(6, "elsewhere", "seat-paid.v1", change(13), ""),
        event(7, &shows, "seat-moved.v1", change(14), &keyed("d")),
        event(8, REQUESTS, "timer-set", b"{}".to_vec(), ""),
        event(9, STATES, "$metadata", b"{}".to_vec(), ""),
    ];
    let seen = StoredWithin { after: 1, by: 2 };
    log.iter().for_each(|event| take(&mut book, event, seen));
    let seat = ShowSeat {
        show: SHOW,
        number: 1,
    };
    let changes = book.seats[&seat].iter();
    let changes: Vec<_> = changes
        .map(|one| (one.place, one.deed, one.at, &*one.key))
        .collect();
    assert_eq!(
        changes,
        [
            ((0, 2), Deed::Reserve, 10, "a"),
            ((0, 4), Deed::Pay, 11, "b"),
            ((0, 5), Deed::Cancel, 12, "c"),
        ]
    );
    let (id, timer) = book.timers.first_key_value().unwrap();
    let times = (timer.due, timer.because, timer.reserved_at);
    assert_eq!((*id, times), (Uuid::from_u128(3), (30, (0, 2), 10)));
    assert_eq!((book.unreadable.len(), book.events), (2, 8));
    // Another change of the seat, or the timer itself, ends it.
    for end in [
        event(
            10,
            REQUESTS,
            "timer-cancelled",
            cancelled.to_string().into(),
            "",
        ),
        event(11, STATES, "timers-state", fired.to_string().into(), ""),
    ] {
        let mut book = book.clone();
        assert!(!book.is_over(*id, timer));
        take(&mut book, &end, seen);
        assert!(book.is_over(*id, timer), "{end:?}");
    }
}

/// A store that refuses to be read.
struct Unread(MemoryStore);

#[async_trait]
impl Wrapper for Unread {
    fn inner(&self) -> &dyn EventStore {
        &self.0
    }

    async fn read_all(&self, _: ReadAll) -> gesta_core::Result<AllPage> {
        Err(ErrorKind::Refused("no room".into()).into())
    }
}

/// What happened: that the log was not read to its end was told without the reason.
#[tokio::test]
async fn why_the_log_is_not_read_is_told() {
    let read = Arc::new(ReadSoFar::new());
    let reader = Reader {
        store: Arc::new(Outer(Unread(MemoryStore::new()))),
        book: Arc::default(),
        read: Arc::clone(&read),
    };
    reader.run().await;
    let told = read.complaint(Duration::ZERO);
    assert!(told.contains("no room"), "{told}");
}
