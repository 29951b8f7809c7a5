//! Judges of seats that must be paid in time, on histories with one fault each, and on some without.

#![allow(missing_docs, reason = "tests")]

use gesta_kit::history::payments::{
    Deed, SeatBook, SeatChanged, SeatCommand, SeatReply, SeatRound, SeatSight, SeatTimer, ShowRead,
    ShowSeat, StoredWithin,
};
use gesta_kit::judge::payments::{Clocks, Counts, RightClocks, Terms, judge, last_due, open};
use gesta_kit::judge::search::Search;
use gesta_kit::judge::{replies, seats};
use gesta_kit::verdict::{Kind, Verdict};
use uuid::Uuid;

const SECOND: i64 = 1_000_000;
const WITHIN: i64 = 3 * SECOND;
const SHOW: Uuid = Uuid::from_u128(7);
const SEAT: ShowSeat = ShowSeat {
    show: SHOW,
    number: 1,
};
const BEFORE: &str = "user-1-";

/// A log that is written event by event, one each second unless said otherwise.
#[derive(Default)]
struct Log {
    book: SeatBook,
    position: u64,
    now: i64,
}

impl Log {
    /// The next event: its position, and when it was stored.
    fn next(&mut self) -> (u64, StoredWithin) {
        self.position += 1;
        self.book.events += 1;
        let (after, by) = (self.now, self.now + SECOND / 100);
        self.now += SECOND;
        (self.position, StoredWithin { after, by })
    }

    /// The seat changes, at a time of the clock of its node; gives its place.
    fn change(&mut self, deed: Deed, at: i64, key: &str) -> u64 {
        let (position, seen) = self.next();
        let change = SeatChanged {
            place: (0, position),
            deed,
            at,
            key: key.into(),
            seen,
        };
        self.book.changed(SEAT, change);
        position
    }

    /// The seat is reserved now, by a clock that is so much fast, and watched; gives its time and its timer.
    fn reserve(&mut self, key: &str, fast: i64) -> (i64, Uuid) {
        let at = self.now + fast;
        let place = self.change(Deed::Reserve, at, key);
        (at, self.watch(place, at, at + WITHIN))
    }

    fn watch(&mut self, place: u64, at: i64, due: i64) -> Uuid {
        let id = Uuid::new_v4();
        self.watch_as(id, place, at, due);
        id
    }

    fn watch_as(&mut self, id: Uuid, place: u64, at: i64, due: i64) {
        let (_, seen) = self.next();
        let timer = SeatTimer {
            key: SEAT.to_string(),
            due,
            because: (0, place),
            reserved_at: at,
            seen,
        };
        self.book.timer_set(id, timer);
    }

    /// The timer of the seat is cancelled because of its last change, as the effect does.
    fn cancel(&mut self, place: u64) {
        self.next();
        self.book.renewed(&SEAT.to_string(), (0, place));
    }

    /// A timer gives the seat back, by a clock that shows this.
    fn give_back(&mut self, timer: Uuid, at: i64) {
        self.change(Deed::Cancel, at, &format!("timer-{timer}"));
    }

    fn fired(&mut self, timer: Uuid) {
        self.next();
        self.book.fired.insert(timer);
    }

    /// What is found, of all that is due by now.
    fn found(&self, clocks: &dyn Clocks) -> (Verdict, Counts) {
        let terms = Terms {
            pay_within: WITHIN,
            clocks,
        };
        let mut verdict = Verdict::default();
        open(&self.book, terms, self.now, &mut verdict);
        let counts = judge(&self.book, terms, &mut verdict);
        (verdict, counts)
    }

    /// Only this is found, once each, while all clocks were right.
    #[track_caller]
    fn finds(&self, kinds: &[Kind]) {
        finds(&self.found(&RightClocks).0, kinds);
    }
}

/// Only this is found, once each.
#[track_caller]
fn finds(verdict: &Verdict, kinds: &[Kind]) {
    let found: Vec<(Kind, u64)> = verdict.counts().into_iter().collect();
    let wanted: Vec<(Kind, u64)> = kinds.iter().map(|kind| (*kind, 1)).collect();
    assert_eq!(found, wanted, "{verdict}");
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
    let place = log.change(Deed::Cancel, log.now, "user-1-3");
    log.cancel(place);
    let (last, _) = log.reserve("user-1-4", 0);
    let terms = Terms {
        pay_within: WITHIN,
        clocks: &RightClocks,
    };
    assert_eq!(last_due(&log.book, terms), Some(last + WITHIN));
    let place = log.change(Deed::Pay, log.now, "user-1-5");
    log.cancel(place);
    assert_eq!(last_due(&log.book, terms), None);
    log.now += 60 * SECOND;
    let (verdict, counts) = log.found(&RightClocks);
    verdict.assert_clean();
    let sums = [
        counts.reserved,
        counts.paid,
        counts.cancelled,
        counts.given_back,
    ];
    assert_eq!(sums, [3, 1, 1, 1]);
    assert!(counts.to_string().contains("3 seats were reserved, 1 paid"));
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
    log.finds(&[Kind::GivenBackTwice, Kind::GivenBackWrongly]);
    let mut log = Log::default();
    let (at, timer) = log.reserve("user-1-1", 0);
    let place = log.change(Deed::Cancel, log.now, "user-1-2");
    log.cancel(place);
    log.now = at + WITHIN;
    log.give_back(timer, log.now);
    log.finds(&[Kind::GivenBackTwice]);
}

/// A clock that was fast by so many seconds all the time.
struct Fast(i64);

impl Clocks for Fast {
    fn were_right(&self, _: i64, _: i64) -> bool {
        self.0 == 0
    }

    fn latest(&self, _: i64, to: i64) -> i64 {
        to.max(to + self.0 * SECOND)
    }
}

/// Goal: a microsecond too early is found while all clocks were right, however late the event was seen; what a fast
/// clock may have shown is excused, and not more.
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
    early(0, 0).finds(&[]);
    early(0, 1).finds(&[Kind::GivenBackEarly]);
    // A clock that was fast by 5 seconds fires so much too early, and a slow one does not.
    let log = early(10 * SECOND, 4 * SECOND);
    finds(&log.found(&Fast(5)).0, &[]);
    finds(&log.found(&Fast(3)).0, &[Kind::GivenBackEarly]);
    finds(&log.found(&Fast(-60)).0, &[Kind::GivenBackEarly]);
}

/// Goal: a seat that is never given back is found once its time is over, and so is a timer that never fires.
#[test]
fn a_seat_that_is_never_given_back_is_found() {
    let mut log = Log::default();
    let (at, timer) = log.reserve("user-1-1", 0);
    log.now = at + WITHIN - 1;
    log.finds(&[]);
    log.now = at + WITHIN;
    log.finds(&[Kind::NotGivenBack, Kind::TimerPending]);
    log.fired(timer);
    log.finds(&[Kind::NotGivenBack]);
}

/// Goal: a paid seat that is given back is found.
#[test]
fn a_paid_seat_that_is_given_back_is_found() {
    let mut log = Log::default();
    let (at, timer) = log.reserve("user-1-1", 0);
    let place = log.change(Deed::Pay, log.now, "user-1-2");
    log.cancel(place);
    log.now = at + WITHIN;
    log.give_back(timer, log.now);
    log.finds(&[Kind::PaidGivenBack]);
}

/// Goal: a seat that is held twice is found, and so are a reservation without a timer, one whose timer has another
/// time, a timer that is set twice, and an event that cannot be read.
#[test]
fn other_faults_are_found() {
    let mut log = Log::default();
    log.reserve("user-1-1", 0);
    log.reserve("user-1-2", 0);
    log.now -= WITHIN;
    log.finds(&[Kind::HeldTwice]);
    let mut log = Log::default();
    log.change(Deed::Reserve, log.now, "user-1-1");
    let place = log.change(Deed::Pay, log.now, "user-1-2");
    log.finds(&[Kind::NotWatched]);
    log.cancel(place);
    log.finds(&[Kind::NotWatched]);
    let watched = |times: u64, due: i64| {
        let mut log = Log::default();
        let place = log.change(Deed::Reserve, 0, "user-1-1");
        (0..times).for_each(|_| log.watch_as(SHOW, place, 0, due));
        let place = log.change(Deed::Pay, log.now, "user-1-2");
        log.cancel(place);
        log
    };
    watched(1, WITHIN).finds(&[]);
    watched(1, WITHIN + 1).finds(&[Kind::FalseTimer]);
    watched(2, WITHIN).finds(&[Kind::FalseTimer]);
    let mut log = Log::default();
    log.book.unreadable.push("an event".into());
    log.finds(&[Kind::Unreadable]);
}

fn asked(number: u64, deed: Deed, times: [u64; 2], reply: SeatReply) -> SeatCommand {
    SeatCommand {
        key: format!("{BEFORE}{number}"),
        seat: SEAT,
        deed,
        first: times[0],
        begin: times[0],
        end: times[1],
        in_doubt: false,
        reply,
    }
}

fn round(asked: &[&SeatCommand], reads: &[([u64; 2], SeatSight)]) -> SeatRound {
    let reads = reads.iter().map(|([begin, end], saw)| ShowRead {
        show: SHOW,
        begin: *begin,
        end: *end,
        seats: vec![SeatSight::Free, *saw],
    });
    SeatRound {
        prefix: BEFORE.into(),
        asked: asked.iter().copied().cloned().collect(),
        reads: reads.collect(),
        ..SeatRound::default()
    }
}

/// Only this is found, once each, in these replies about the seat, and in these reads of it.
#[track_caller]
fn judged(log: &Log, asked: &[&SeatCommand], reads: &[([u64; 2], SeatSight)], kinds: &[Kind]) {
    let mut verdict = Verdict::default();
    replies::judge(&log.book, &[&round(asked, reads)], &[], &mut verdict);
    finds(&verdict, kinds);
}

/// Goal: replies that fit an order of the log are right, also those that overlap; what shows a state that had passed,
/// or that nobody had asked for, is stale; what was done must be stored, and what was refused must not.
#[test]
fn replies_must_fit_the_log() {
    use SeatSight::{Free, Held, Paid, Reserved};
    let mut log = Log::default();
    let (at, timer) = log.reserve(&format!("{BEFORE}1"), 0);
    log.now = at + WITHIN;
    log.give_back(timer, log.now);
    let reserved = asked(1, Deed::Reserve, [10, 20], SeatReply::Done);
    for reads in [
        [([5, 15], Free), ([5, 15], Reserved)],
        [([30, 40], Reserved), ([50, 60], Free)],
        [([30, 40], Free), ([35, 60], Reserved)],
    ] {
        judged(&log, &[&reserved], &reads, &[]);
    }
    for reads in [
        &[([5, 9], Reserved)][..],
        &[([30, 40], Free), ([50, 60], Reserved)],
        &[([30, 40], Paid)],
    ] {
        judged(&log, &[&reserved], reads, &[Kind::Stale]);
    }
    let refused = SeatReply::Refused(Held);
    let other = asked(2, Deed::Reserve, [30, 40], refused);
    judged(&log, &[&reserved, &other], &[], &[]);
    let late = [([21, 25], Reserved), ([26, 29], Free)];
    judged(&log, &[&reserved, &other], &late, &[Kind::Stale]);
    let lost = asked(3, Deed::Pay, [30, 40], SeatReply::Done);
    judged(&log, &[&reserved, &lost], &[], &[Kind::NotStored]);
    let denied = asked(1, Deed::Reserve, [10, 20], refused);
    judged(&log, &[&denied], &[], &[Kind::Uninvited]);
}

/// Goal: a retry is answered with the success of the first time. A refusal is excused only if the command was stored
/// after it: by an attempt before, which came late.
#[test]
fn a_retry_of_what_is_stored_must_not_be_refused() {
    let retried = |number| SeatCommand {
        first: 10,
        begin: 20,
        in_doubt: true,
        ..asked(
            number,
            Deed::Reserve,
            [10, 30],
            SeatReply::Refused(SeatSight::Held),
        )
    };
    let mut log = Log::default();
    log.reserve(&format!("{BEFORE}1"), 0);
    // By its own reservation.
    judged(&log, &[&retried(1)], &[], &[Kind::Uninvited]);
    let mut log = Log::default();
    log.reserve(&format!("{BEFORE}1"), 0);
    log.change(Deed::Cancel, log.now, &format!("{BEFORE}2"));
    log.reserve(&format!("{BEFORE}3"), 0);
    let reserved = asked(1, Deed::Reserve, [1, 5], SeatReply::Done);
    let cancelled = |times| asked(2, Deed::Cancel, times, SeatReply::Done);
    judged(
        &log,
        &[&reserved, &cancelled([25, 45]), &retried(3)],
        &[],
        &[],
    );
    // The seat was free before the retry was sent.
    let unfit = [&reserved, &cancelled([6, 9]), &retried(3)];
    judged(&log, &unfit, &[], &[Kind::Uninvited]);
}

/// Goal: what is stored was asked for by a user of some round, or by a timer, which only gives back. What comes late of
/// a round is judged with it in the end.
#[test]
fn what_nobody_asked_for_is_found() {
    let mut log = Log::default();
    let (_, timer) = log.reserve(&format!("{BEFORE}1"), 0);
    log.give_back(timer, log.now);
    log.reserve("user-0-1", 0);
    let reserved = asked(1, Deed::Reserve, [1, 5], SeatReply::Done);
    let this = round(&[&reserved], &[]);
    let late = |reply| SeatRound {
        prefix: "user-0-".into(),
        asked: vec![SeatCommand {
            key: "user-0-1".into(),
            ..asked(1, Deed::Reserve, [1, 5], reply)
        }],
        ..SeatRound::default()
    };
    let found = |log: &Log, rounds: &[&SeatRound], others: &[&str], kinds: &[Kind]| {
        let mut verdict = Verdict::default();
        replies::judge(&log.book, rounds, others, &mut verdict);
        finds(&verdict, kinds);
    };
    found(&log, &[&this], &["user-0-"], &[]);
    found(&log, &[&late(SeatReply::Open), &this], &[], &[]);
    let refused = late(SeatReply::Refused(SeatSight::Held));
    found(&log, &[&refused, &this], &[], &[Kind::Uninvited]);
    found(&log, &[&this], &["user-2-"], &[Kind::Uninvited]);
    for (deed, key) in [
        (Deed::Cancel, "somebody".to_owned()),
        (Deed::Cancel, "timer-7".to_owned()),
        (Deed::Cancel, format!("{BEFORE}9")),
        (Deed::Pay, format!("timer-{timer}")),
    ] {
        let mut log = Log::default();
        log.reserve(&format!("{BEFORE}1"), 0);
        log.change(deed, log.now, &key);
        found(&log, &[&this], &["user-0-"], &[Kind::Uninvited]);
    }
}

/// Goal: strange answers and those that never came are findings.
#[test]
fn what_is_no_answer_is_found() {
    let round = SeatRound {
        strange: vec!["418".into()],
        given_up: vec!["no answer".into(); 2],
        ..SeatRound::default()
    };
    let mut verdict = Verdict::default();
    replies::judge(&SeatBook::default(), &[&round], &[], &mut verdict);
    let found = [Kind::Answer, Kind::Unanswered].map(|kind| verdict.count(kind));
    assert_eq!(found, [1, 2]);
}

/// Goal: what was read as it was stored, and is other or gone when all is read again, is found; that more was stored
/// meanwhile is right.
#[test]
fn what_is_not_the_same_when_it_is_read_again_is_found() {
    let log = |count: usize, paid: &str, due: i64| {
        let mut log = Log::default();
        let place = log.change(Deed::Reserve, 0, "user-1-1");
        log.watch_as(Uuid::from_u128(1), place, 0, due);
        if count > 1 {
            let place = log.change(Deed::Pay, SECOND, paid);
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

/// Goal: the same replies, in the form that others judge, fit one order; a timer gives back at any time.
#[test]
fn a_round_can_be_judged_without_the_log() {
    let mut log = Log::default();
    let (at, timer) = log.reserve(&format!("{BEFORE}1"), 0);
    log.now = at + WITHIN;
    log.give_back(timer, log.now);
    let reserved = asked(1, Deed::Reserve, [10, 20], SeatReply::Done);
    let reads = [([30, 40], SeatSight::Reserved), ([50, 60], SeatSight::Free)];
    let fits = |reads: &[([u64; 2], SeatSight)]| {
        let operations = round(&[&reserved], reads).operations(&log.book);
        assert!(
            operations
                .iter()
                .all(|one| one.key == format!("seat-{SHOW}-1"))
        );
        seats::seat(&operations)
    };
    assert_eq!(fits(&reads), Search::Fits);
    let stale = [([30, 40], SeatSight::Free), ([50, 60], SeatSight::Reserved)];
    assert!(matches!(fits(&stale), Search::Impossible { .. }));
}
