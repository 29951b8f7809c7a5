//! What the judge must find: histories with one fault each, and one without. They are made of events as the product
//! stores them, so that the reading of the log is tested with it.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use gesta_core::{
    AllPage, ContentType, ErrorKind, EventId, EventStore, EventType, LogId, Position, ReadAll,
    RecordedEvent, Revision, StreamId, Tags, Timestamp,
};
use gesta_kit::{Outer, Wrapper};
use gesta_load::cinema::{Wrong, Wrongs};
use gesta_memory::MemoryStore;
use prost::Message as _;
use serde_json::json;
use uuid::Uuid;

use super::book::{Book, Did, REQUESTS, Seat, SeatChanged, Seen};
use super::judge::{Counts, Terms, judge, open};
use super::replies;
use super::users::{Command, Reading, Record, Reply, Saw};
use super::{ReadSoFar, Reader};
use crate::world::clocks::{ClockReadings, Setting, Span};

const SECOND: i64 = 1_000_000;
const WITHIN: i64 = 3 * SECOND;
const SHOW: Uuid = Uuid::from_u128(7);
const STATES: &str = "$timers-{unpaid_reservations}-state";
const BEFORE: &str = "user-1-";

/// A log that is written event by event, one each second unless said otherwise.
#[derive(Default)]
struct Log {
    book: Book,
    position: u64,
    now: i64,
}

impl Log {
    fn append(&mut self, stream: &str, kind: &str, id: Uuid, data: Vec<u8>, metadata: String) {
        self.position += 1;
        let event = RecordedEvent {
            stream: StreamId::new(stream).unwrap(),
            revision: Revision(self.position),
            log: LogId(0),
            position: Position(self.position),
            id: EventId(id),
            event_type: EventType::new(kind).unwrap(),
            created: Timestamp(0),
            content_type: ContentType::Json,
            data: data.into(),
            metadata: metadata.into(),
            tags: Tags::NONE,
        };
        let (after, by) = (self.now, self.now + SECOND / 100);
        self.book.take(&event, Seen { after, by });
        self.now += SECOND;
    }

    /// A seat changes, at a time of the clock of its node; gives its place.
    fn change(&mut self, did: Did, at: i64, key: &str) -> u64 {
        let kind = match did {
            Did::Reserved => "seat-reserved.v1",
            Did::Paid => "seat-paid.v1",
            Did::Cancelled => "seat-reservation-cancelled.v1",
        };
        let data = SeatChanged {
            show_id: SHOW.to_string(),
            seat_number: 1,
            changed_at: at,
        };
        let metadata = json!({"$idempotencyKey": key, "$reply": null}).to_string();
        let stream = format!("show-{SHOW}");
        self.append(
            &stream,
            kind,
            Uuid::new_v4(),
            data.encode_to_vec(),
            metadata,
        );
        self.position
    }

    /// A seat is reserved now, by a clock that is so much fast, and watched; gives its time and its timer.
    fn reserve(&mut self, key: &str, fast: i64) -> (i64, Uuid) {
        let at = self.now + fast;
        let place = self.change(Did::Reserved, at, key);
        (at, self.watch(place, at, at + WITHIN))
    }

    fn watch(&mut self, place: u64, at: i64, due: i64) -> Uuid {
        let id = Uuid::new_v4();
        self.watch_as(id, place, at, due);
        id
    }

    fn watch_as(&mut self, id: Uuid, place: u64, at: i64, due: i64) {
        let data = json!({
            "key": format!("{SHOW}/1"),
            "due": Timestamp(due).to_string(),
            "data": {"show_id": SHOW, "seat": 1, "reserved_at": at},
            "because": {"log": 0, "position": place, "created": at},
        });
        self.append(
            REQUESTS,
            "timer-set",
            id,
            data.to_string().into(),
            String::new(),
        );
    }

    /// The timer of a seat is cancelled because of its last change, as the effect does.
    fn cancel(&mut self, place: u64) {
        let data = json!({
            "key": format!("{SHOW}/1"),
            "because": {"log": 0, "position": place, "created": 0},
        });
        let data = data.to_string().into();
        self.append(
            REQUESTS,
            "timer-cancelled",
            Uuid::new_v4(),
            data,
            String::new(),
        );
    }

    /// A timer gives the seat back, by a clock that shows this.
    fn give_back(&mut self, timer: Uuid, at: i64) {
        self.change(Did::Cancelled, at, &format!("timer-{timer}"));
    }

    fn fired(&mut self, timer: Uuid) {
        let does = json!({"fired": {"ids": [timer], "through": null}});
        let data = json!({"owner": Uuid::new_v4(), "does": does});
        let data = data.to_string().into();
        self.append(STATES, "timers-state", Uuid::new_v4(), data, String::new());
    }

    /// What is found, of all that is due by now.
    fn found(&self, clocks: &ClockReadings) -> (Vec<String>, Counts) {
        let terms = Terms {
            pay_within: WITHIN,
            clocks: clocks.clone(),
        };
        let mut wrongs = Wrongs::default();
        for (kind, what) in open(&self.book, &terms, self.now) {
            wrongs.add(kind, 1, || what);
        }
        let counts = judge(&self.book, &terms, &mut wrongs);
        (wrongs.told(), counts)
    }

    /// Only this is found, while all clocks were right.
    fn finds(&self, kind: Wrong) {
        self.finds_all(&[kind]);
    }

    fn finds_all(&self, kinds: &[Wrong]) {
        let (told, _) = self.found(&ClockReadings::default());
        let mut wanted = Wrongs::default();
        for kind in kinds {
            wanted.add(*kind, 1, String::new);
        }
        let counts = &told[..told.len().min(kinds.len())];
        let wanted = &wanted.told()[..kinds.len()];
        assert_eq!(counts, wanted, "{told:#?}");
        assert_eq!(told.len(), 2 * kinds.len(), "{told:#?}");
    }
}

/// Goal: what is right is not complained about: given back in time, paid, cancelled and reserved again.
#[test]
fn what_is_kept_is_found_right() {
    let mut log = Log::default();
    let (at, timer) = log.reserve("user-1-1", 0);
    log.now = at + WITHIN;
    log.give_back(timer, log.now);
    log.fired(timer);
    log.reserve("user-1-2", 0);
    let place = log.change(Did::Cancelled, log.now, "user-1-3");
    log.cancel(place);
    log.reserve("user-1-4", 0);
    let place = log.change(Did::Paid, log.now, "user-1-5");
    log.cancel(place);
    log.now += 60 * SECOND;
    let (told, counts) = log.found(&ClockReadings::default());
    assert_eq!(told, Vec::<String>::new());
    let sums = [
        counts.reserved,
        counts.paid,
        counts.cancelled,
        counts.given_back,
    ];
    assert_eq!(sums, [3, 1, 1, 1]);
}

/// Goal: a second event of one timer is found, and a seat that is free and given back.
#[test]
fn a_seat_that_is_given_back_twice_is_found() {
    let mut log = Log::default();
    let (at, timer) = log.reserve("user-1-1", 0);
    log.now = at + WITHIN;
    log.give_back(timer, log.now);
    log.fired(timer);
    let (_, other) = log.reserve("user-1-2", 0);
    log.give_back(timer, log.now + WITHIN);
    log.fired(other);
    log.finds_all(&[Wrong::GivenBackTwice, Wrong::GivenBackWrongly]);
    let mut log = Log::default();
    let (at, timer) = log.reserve("user-1-1", 0);
    let place = log.change(Did::Cancelled, log.now, "user-1-2");
    log.cancel(place);
    log.now = at + WITHIN;
    log.give_back(timer, log.now);
    log.finds(Wrong::GivenBackTwice);
}

/// Goal: a microsecond too early is found while all clocks are right, however late the event was seen; what a fast
/// clock may have clocks is excused, and not more.
#[test]
fn a_seat_that_is_given_back_early_is_found() {
    let early = |fast: i64, missing: i64| {
        let mut log = Log::default();
        let (at, timer) = log.reserve("user-1-1", fast);
        log.now = (at + WITHIN - missing).max(log.now);
        log.give_back(timer, at + WITHIN - missing);
        log.fired(timer);
        log
    };
    early(0, 0).finds_all(&[]);
    early(0, 1).finds(Wrong::GivenBackEarly);
    let clocks = |seconds| {
        ClockReadings(vec![vec![Span {
            from: Timestamp(0),
            started: Timestamp(0),
            setting: Setting {
                seconds,
                speed: 100,
            },
        }]])
    };
    let is_found = |log: &Log, seconds| {
        let (told, _) = log.found(&clocks(seconds));
        assert!(told.len() <= 2, "{told:?}");
        told.iter().any(|told| told.contains("too early"))
    };
    // A clock that was fast by 5 seconds fires so much too early, and a slow one does not.
    let log = early(10 * SECOND, 4 * SECOND);
    assert!(!is_found(&log, 5));
    assert!(is_found(&log, 3));
    assert!(is_found(&log, -60));
}

/// Goal: a seat that is never given back is found once its time is over, and so is a timer that never fires.
#[test]
fn a_seat_that_is_never_given_back_is_found() {
    let mut log = Log::default();
    let (at, timer) = log.reserve("user-1-1", 0);
    log.now = at + WITHIN - 1;
    log.finds_all(&[]);
    log.now = at + WITHIN;
    log.finds_all(&[Wrong::NotGivenBack, Wrong::TimerPending]);
    log.fired(timer);
    log.finds(Wrong::NotGivenBack);
}

/// Goal: a paid seat that is given back is found.
#[test]
fn a_paid_seat_that_is_given_back_is_found() {
    let mut log = Log::default();
    let (at, timer) = log.reserve("user-1-1", 0);
    let place = log.change(Did::Paid, log.now, "user-1-2");
    log.cancel(place);
    log.now = at + WITHIN;
    log.give_back(timer, log.now);
    log.finds(Wrong::PaidGivenBack);
}

/// Goal: a seat that is held twice is found, and so are a reservation without a timer, one whose timer has another
/// time, and an event that cannot be read.
#[test]
fn other_faults_are_found() {
    let mut log = Log::default();
    log.reserve("user-1-1", 0);
    log.reserve("user-1-2", 0);
    log.now -= WITHIN;
    log.finds(Wrong::HeldTwice);
    let mut log = Log::default();
    log.change(Did::Reserved, log.now, "user-1-1");
    let place = log.change(Did::Paid, log.now, "user-1-2");
    log.finds(Wrong::NotWatched);
    log.cancel(place);
    log.finds(Wrong::NotWatched);
    let mut log = Log::default();
    let place = log.change(Did::Reserved, 0, "user-1-1");
    log.watch(place, 0, WITHIN + 1);
    let place = log.change(Did::Paid, log.now, "user-1-2");
    log.cancel(place);
    log.finds(Wrong::FalseTimer);
    let mut log = Log::default();
    log.append(REQUESTS, "timer-set", SHOW, b"{}".to_vec(), String::new());
    log.finds(Wrong::Unreadable);
}

fn asked(number: u64, did: Did, times: [u64; 2], reply: Reply) -> Command {
    Command {
        key: format!("{BEFORE}{number}"),
        seat: Seat {
            show: SHOW,
            number: 1,
        },
        did,
        first: times[0],
        begin: times[0],
        end: times[1],
        in_doubt: false,
        reply,
    }
}

/// What is found in these replies about the seat, and in these reads of it.
fn judged(log: &Log, asked: &[&Command], reads: &[([u64; 2], Saw)]) -> Vec<String> {
    let mut wrongs = Wrongs::default();
    let reads = reads.iter().map(|([begin, end], saw)| Reading {
        show: SHOW,
        begin: *begin,
        end: *end,
        seats: vec![Saw::Free, *saw],
    });
    let told = Record {
        prefix: BEFORE.into(),
        asked: asked.iter().copied().cloned().collect(),
        reads: reads.collect(),
        ..Record::default()
    };
    replies::judge(&log.book, &[&told], &[], &mut wrongs);
    wrongs.told()
}

/// What is found, without its words: the kinds, each once.
fn kinds(kinds: &[Wrong], told: &[String]) {
    let mut wanted = Wrongs::default();
    for kind in kinds {
        wanted.add(*kind, 1, String::new);
    }
    let wanted = wanted.told();
    assert_eq!(told.len(), wanted.len(), "{told:#?}");
    assert_eq!(told[..kinds.len()], wanted[..kinds.len()], "{told:#?}");
}

/// Goal: replies that fit an order of the log are right, also those that overlap; what shows a state that had passed,
/// or that nobody had asked for, is stale; what was done must be stored, and what was refused must not.
#[test]
fn replies_must_fit_the_log() {
    let mut log = Log::default();
    let (at, timer) = log.reserve(&format!("{BEFORE}1"), 0);
    log.now = at + WITHIN;
    log.give_back(timer, log.now);
    let reserved = asked(1, Did::Reserved, [10, 20], Reply::Done);
    let judged = |asked: &[&Command], reads: &[([u64; 2], Saw)]| judged(&log, asked, reads);
    let free = [
        vec![([5, 15], Saw::Free), ([5, 15], Saw::Reserved)],
        vec![([30, 40], Saw::Reserved), ([50, 60], Saw::Free)],
        vec![([30, 40], Saw::Free), ([35, 60], Saw::Reserved)],
    ];
    for reads in free {
        kinds(&[], &judged(&[&reserved], &reads));
    }
    let stale = [
        vec![([5, 9], Saw::Reserved)],
        vec![([30, 40], Saw::Free), ([50, 60], Saw::Reserved)],
        vec![([30, 40], Saw::Paid)],
    ];
    for reads in stale {
        kinds(&[Wrong::Stale], &judged(&[&reserved], &reads));
    }
    let refused = Reply::Refused(Saw::Held);
    let other = asked(2, Did::Reserved, [30, 40], refused);
    kinds(&[], &judged(&[&reserved, &other], &[]));
    let late = vec![([21, 25], Saw::Reserved), ([26, 29], Saw::Free)];
    kinds(&[Wrong::Stale], &judged(&[&reserved, &other], &late));
    let lost = asked(3, Did::Paid, [30, 40], Reply::Done);
    kinds(&[Wrong::NotStored], &judged(&[&reserved, &lost], &[]));
    let denied = asked(1, Did::Reserved, [10, 20], refused);
    kinds(&[Wrong::Uninvited], &judged(&[&denied], &[]));
}

/// Goal: a retry is answered with the success of the first time. A refusal is excused only if the command was stored
/// after it: by an attempt before, which came late.
#[test]
fn a_retry_of_what_is_stored_must_not_be_refused() {
    let retried = |number| Command {
        first: 10,
        begin: 20,
        in_doubt: true,
        ..asked(number, Did::Reserved, [10, 30], Reply::Refused(Saw::Held))
    };
    let mut log = Log::default();
    log.reserve(&format!("{BEFORE}1"), 0);
    // By its own reservation.
    kinds(&[Wrong::Uninvited], &judged(&log, &[&retried(1)], &[]));
    let mut log = Log::default();
    log.reserve(&format!("{BEFORE}1"), 0);
    log.change(Did::Cancelled, log.now, &format!("{BEFORE}2"));
    log.reserve(&format!("{BEFORE}3"), 0);
    let reserved = asked(1, Did::Reserved, [1, 5], Reply::Done);
    let cancelled = |times| asked(2, Did::Cancelled, times, Reply::Done);
    let fit = [&reserved, &cancelled([25, 45]), &retried(3)];
    kinds(&[], &judged(&log, &fit, &[]));
    // The seat was free before the retry was sent.
    let unfit = [&reserved, &cancelled([6, 9]), &retried(3)];
    kinds(&[Wrong::Uninvited], &judged(&log, &unfit, &[]));
}

/// Goal: what is stored was asked for by a user of some round, or by a timer, which only gives back. What comes late of
/// a round is judged with it in the end.
#[test]
fn what_nobody_asked_for_is_found() {
    let mut log = Log::default();
    let (_, timer) = log.reserve(&format!("{BEFORE}1"), 0);
    log.give_back(timer, log.now);
    log.reserve("user-0-1", 0);
    let reserved = asked(1, Did::Reserved, [1, 5], Reply::Done);
    let round = Record {
        prefix: BEFORE.into(),
        asked: vec![reserved],
        ..Record::default()
    };
    let late = |reply| Record {
        prefix: "user-0-".into(),
        asked: vec![Command {
            key: "user-0-1".into(),
            ..asked(1, Did::Reserved, [1, 5], reply)
        }],
        ..Record::default()
    };
    let found = |log: &Log, rounds: &[&Record], others: &[&str]| {
        let mut wrongs = Wrongs::default();
        replies::judge(&log.book, rounds, others, &mut wrongs);
        wrongs.told()
    };
    kinds(&[], &found(&log, &[&round], &["user-0-"]));
    kinds(&[], &found(&log, &[&late(Reply::Open), &round], &[]));
    let refused = late(Reply::Refused(Saw::Held));
    let told = found(&log, &[&refused, &round], &[]);
    kinds(&[Wrong::Uninvited], &told);
    kinds(&[Wrong::Uninvited], &found(&log, &[&round], &["user-2-"]));
    let unasked = [
        (Did::Cancelled, "somebody".to_owned()),
        (Did::Cancelled, "timer-7".to_owned()),
        (Did::Cancelled, format!("{BEFORE}9")),
        (Did::Paid, format!("timer-{timer}")),
    ];
    for (did, key) in unasked {
        let mut log = Log::default();
        log.reserve(&format!("{BEFORE}1"), 0);
        log.change(did, log.now, &key);
        kinds(&[Wrong::Uninvited], &found(&log, &[&round], &["user-0-"]));
    }
}

/// Goal: strange answers and those that never came are findings.
#[test]
fn what_is_no_answer_is_found() {
    let told = Record {
        strange: vec!["418".into()],
        given_up: vec!["no answer".into(); 2],
        ..Record::default()
    };
    let mut wrongs = Wrongs::default();
    replies::judge(&Book::default(), &[&told], &[], &mut wrongs);
    let found = [Wrong::Answer, Wrong::Unanswered].map(|kind| wrongs.count(kind));
    assert_eq!(found, [1, 2]);
}

/// Goal: what was read as it was stored, and is other or gone when all is read again, is found; that more was stored
/// meanwhile is right.
#[test]
fn what_is_not_the_same_when_it_is_read_again_is_found() {
    let log = |count: usize, paid: &str, due: i64| {
        let mut log = Log::default();
        let place = log.change(Did::Reserved, 0, "user-1-1");
        log.watch_as(Uuid::from_u128(1), place, 0, due);
        if count > 1 {
            let place = log.change(Did::Paid, SECOND, paid);
            log.cancel(place);
        }
        if count > 2 {
            log.fired(Uuid::from_u128(1));
        }
        log.book
    };
    let whole = || log(3, "user-1-2", WITHIN);
    for count in 1..=3 {
        let part = log(count, "user-1-2", WITHIN);
        assert_eq!(part.missing_in(&whole()), Vec::<String>::new(), "{count}");
        let missing = whole().missing_in(&part);
        assert_eq!(missing.is_empty(), count == 3, "{count}: {missing:#?}");
    }
    for other in [log(3, "user-1-3", WITHIN), log(3, "user-1-2", WITHIN + 1)] {
        assert_eq!(whole().missing_in(&other).len(), 1);
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
