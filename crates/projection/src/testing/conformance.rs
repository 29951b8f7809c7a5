//! What every target must do, as cases with one goal each.
//!
//! A crate of a target implements [`Factory`] and calls [`crate::target_conformance!`], which makes a test of each
//! case.

#![expect(
    clippy::expect_used,
    reason = "a case fails by a panic that says where"
)]
#![expect(
    clippy::missing_panics_doc,
    reason = "a case fails by a panic that says where"
)]

use std::time::Duration;

use gesta_core::{EventId, LogId, Position, Timestamp};
use uuid::Uuid;

use crate::definition::Registration;
use crate::error::{TargetError, TargetErrorKind};
use crate::row::{Found, KeyedRows};
use crate::state::{Life, State};
use crate::target::{Attempt, Begin, Fence, Order, Parked, Session, Stored, Target};
use crate::testing::sample::{
    AllKinds, Bare, NODE, OTHER, bare_table, id, key, keys, place, registration, row, rows, table,
};

mod switching;

pub use switching::{
    a_running_version_is_not_left_for_another_life, a_version_is_switched_by_its_owner,
    a_version_that_was_reset_does_not_take_over, an_earlier_life_of_the_store_is_left_behind,
    an_earlier_version_does_not_take_over, versions_are_switched_and_retired,
    what_is_none_of_its_own_holds_no_version_back,
};

/// Time for something to happen at all.
const AT_ALL: Duration = Duration::from_secs(60);

/// Makes targets for the cases.
pub trait Factory: Send + Sync {
    /// The target.
    type Target: Target;

    /// Makes a target whose tables are made, in a database that nothing else uses.
    fn target(&self) -> impl Future<Output = Self::Target> + Send;

    /// Waits until a session that begins waits for the open transaction of the one before.
    fn until_one_waits(&self, target: &Self::Target) -> impl Future<Output = ()> + Send;

    /// Returns how many rows readers see under a name; `None` if there is no such name.
    fn count(&self, target: &Self::Target, name: &str) -> impl Future<Output = Option<i64>> + Send;
}

async fn registered<F: Factory>(factory: &F) -> F::Target {
    let target = factory.target().await;
    let stored = target.register(&registration(1)).await.expect("registered");
    assert_eq!((stored.life, stored.state), (Life::Active, State::Running));
    target
}

async fn begin<T: Target>(target: &T, version: u32, node: Uuid) -> (T::Session, Stored) {
    match target.begin(&id(version), node).await.expect("an answer") {
        Begin::Begun(session, stored) => (session, stored),
        other => panic!("the session did not begin: {other:?}"),
    }
}

async fn stored<T: Target>(target: &T, version: u32) -> Stored {
    let rows = target.list().await.expect("a list");
    rows.into_iter()
        .find(|row| row.id == id(version))
        .expect("registered")
}

async fn batch<S: Session>(
    session: &mut S,
    before: i64,
    (from, to): (u64, u64),
    numbers: std::ops::Range<i64>,
) -> Result<(), TargetError> {
    let (from, to) = (place(from), place(to));
    let fence = Fence {
        from: &from,
        to: &to,
        events_before: before,
        events: 3,
    };
    session.open(fence).await?;
    session.write(&table(1), &rows(numbers), &keys([])).await?;
    session.commit().await
}

fn assert_lost(result: Result<(), TargetError>) {
    let error = result.expect_err("the fence holds no more");
    assert_eq!(error.kind(), TargetErrorKind::Lost, "{error}");
}

async fn loaded<T: Target>(
    target: &T,
    numbers: impl IntoIterator<Item = i64>,
) -> Vec<(usize, AllKinds)> {
    let mut found = Found::default();
    target
        .load(&table(1), &keys(numbers), &mut found)
        .await
        .expect("loaded");
    let mut rows = found.into_rows::<AllKinds>().expect("readable");
    rows.sort_by_key(|(key, _)| *key);
    rows
}

/// Goal: a version is registered once, with its floor; the first of a name is active, and readers have its name at
/// once; a later one is built beside it.
pub async fn registering_changes_nothing_that_is_there<F: Factory>(factory: &F) {
    let target = registered(factory).await;
    target.migrate().await.expect("again");
    let mut other = registration(1);
    other.made_with = 6;
    other.start = place(9);
    let again = target.register(&other).await.expect("an answer");
    assert_eq!((again.made_with, again.floor), (5, place(0)));
    assert_eq!(again.filter, Some(registration(1).filter));
    assert_eq!(again.definition, registration(1).definition);
    let second = target.register(&registration(2)).await.expect("registered");
    assert_eq!(second.life, Life::Building);
    assert_eq!(factory.count(&target, "kinds").await, Some(0));
    assert_eq!(target.list().await.expect("a list").len(), 2);
}

/// Goal: the values of all kinds come back as they were written, rows are replaced and deleted, and a row that is not
/// there is not found.
pub async fn rows_come_back_as_they_were_written<F: Factory>(factory: &F) {
    let target = registered(factory).await;
    let (mut session, _) = begin(&target, 1, NODE).await;
    batch(&mut session, 0, (0, 10), 0..2_000)
        .await
        .expect("written");
    assert_eq!(
        loaded(&target, [7, 99_999, 0]).await,
        [(0, row(7)), (2, row(0))]
    );
    let (from, to) = (place(10), place(11));
    let fence = Fence {
        from: &from,
        to: &to,
        events_before: 3,
        events: 1,
    };
    session.open(fence).await.expect("open");
    let mut changed = row(7);
    changed.note = Some("changed".to_owned());
    let write = KeyedRows(vec![(key(7), changed.clone())]);
    session
        .write(&table(1), &write, &keys(0..7))
        .await
        .expect("written");
    session.commit().await.expect("committed");
    assert_eq!(loaded(&target, [7, 3]).await, [(0, changed)]);
    assert_eq!(factory.count(&target, "kinds").await, Some(1_993));
    let row = stored(&target, 1).await;
    assert_eq!((row.checkpoint, row.events), (place(11), 4));
    assert!(row.applied_at.is_some());
}

/// Goal: a row may be its key alone: that it is there is what it says.
pub async fn a_row_may_be_its_key_alone<F: Factory>(factory: &F) {
    let target = factory.target().await;
    let bare = bare_table(1);
    let version = Registration {
        table: Some(bare.clone()),
        ..registration(1)
    };
    target.register(&version).await.expect("registered");
    let (mut session, _) = begin(&target, 1, NODE).await;
    for (before, from, to, written, deleted) in [
        (0, 0, 5, vec![0, 1, 2], None),
        (1, 5, 6, vec![0, 3], Some(1)),
    ] {
        let (from, to) = (place(from), place(to));
        let fence = Fence {
            from: &from,
            to: &to,
            events_before: before,
            events: 1,
        };
        session.open(fence).await.expect("open");
        let rows = written.into_iter().map(|number| (key(number), Bare));
        let (rows, deleted) = (KeyedRows(rows.collect()), keys(deleted));
        let written = session.write(&bare, &rows, &deleted).await;
        written.expect("written");
        session.commit().await.expect("committed");
    }
    let mut found = Found::default();
    let loaded = target.load(&bare, &keys(0..5), &mut found).await;
    loaded.expect("loaded");
    let rows = found.into_rows::<Bare>().expect("rows").into_iter();
    let mut rows: Vec<usize> = rows.map(|(key, _)| key).collect();
    rows.sort_unstable();
    assert_eq!(rows, [0, 2, 3]);
}

/// Goal: a batch that is rolled back, or whose session is dropped, leaves nothing behind.
pub async fn a_batch_is_whole_or_absent<F: Factory>(factory: &F) {
    let target = registered(factory).await;
    let (from, to) = (place(0), place(5));
    let fence = Fence {
        from: &from,
        to: &to,
        events_before: 0,
        events: 1,
    };
    let (mut session, _) = begin(&target, 1, NODE).await;
    session.open(fence).await.expect("open");
    session
        .write(&table(1), &rows(0..3), &keys([]))
        .await
        .expect("written");
    session.roll_back().await;
    assert_eq!(loaded(&target, 0..3).await, []);
    session.open(fence).await.expect("open");
    session
        .write(&table(1), &rows(0..3), &keys([]))
        .await
        .expect("written");
    drop(session);
    let (_, row) = begin(&target, 1, NODE).await;
    assert_eq!(row.checkpoint, place(0));
    assert_eq!(loaded(&target, 0..3).await, []);
}

/// Goal: the fence holds only for the session that began last, at the checkpoint and the number of events that are
/// stored.
pub async fn the_fence_is_exact<F: Factory>(factory: &F) {
    let target = registered(factory).await;
    let (mut first, before) = begin(&target, 1, NODE).await;
    assert_eq!((before.owner, before.checkpoint), (None, place(0)));
    batch(&mut first, 0, (0, 5), 0..1).await.expect("written");
    assert_lost(batch(&mut first, 3, (4, 6), 1..2).await);
    for before in [0, 2, 4] {
        assert_lost(batch(&mut first, before, (5, 6), 1..2).await);
    }
    let (mut second, before) = begin(&target, 1, NODE).await;
    assert_eq!((before.owner, before.checkpoint), (Some(NODE), place(5)));
    assert_lost(batch(&mut first, 3, (5, 6), 1..2).await);
    assert_lost(first.announce(attempt(1, 1, 6, false)).await);
    batch(&mut second, 3, (5, 6), 2..3).await.expect("written");
    assert_eq!(loaded(&target, 0..3).await, [(0, row(0)), (2, row(2))]);
}

/// Goal: a session begins after the transaction of the owner before has ended, and shows what became of it.
pub async fn a_session_waits_for_the_one_before<F: Factory>(factory: &F) {
    let target = registered(factory).await;
    let (mut first, _) = begin(&target, 1, NODE).await;
    let (from, to) = (place(0), place(5));
    let fence = Fence {
        from: &from,
        to: &to,
        events_before: 0,
        events: 1,
    };
    first.open(fence).await.expect("open");
    first
        .write(&table(1), &rows(0..1), &keys([]))
        .await
        .expect("written");
    let beginning = {
        let target = target.clone();
        tokio::spawn(async move { target.begin(&id(1), OTHER).await })
    };
    let waits = factory.until_one_waits(&target);
    tokio::time::timeout(AT_ALL, waits)
        .await
        .expect("a session that begins waits for an open transaction");
    first.commit().await.expect("committed");
    match beginning.await.expect("no panic").expect("an answer") {
        Begin::Begun(_, row) => assert_eq!(row.checkpoint, place(5)),
        other => panic!("the session did not begin: {other:?}"),
    }
    assert_lost(batch(&mut first, 1, (5, 6), 1..2).await);
}

/// Goal: while a lease is not over, no other process begins a session; after it has ended, any may.
pub async fn a_lease_keeps_others_away<F: Factory>(factory: &F) {
    let target = registered(factory).await;
    let hour = Duration::from_secs(3_600);
    target.renew(NODE, "a", hour).await.expect("renewed");
    let (session, _) = begin(&target, 1, NODE).await;
    match target.begin(&id(1), OTHER).await.expect("an answer") {
        Begin::Owned(row) => assert_eq!((row.owner, row.owned), (Some(NODE), true)),
        other => panic!("two own it: {other:?}"),
    }
    session.end(None).await.expect("ended");
    assert_eq!(stored(&target, 1).await.owner, None);
    let (_, _) = begin(&target, 1, OTHER).await;
    let (_, _) = begin(&target, 1, NODE).await;
    target
        .renew(NODE, "a", Duration::ZERO)
        .await
        .expect("ended");
    assert!(!stored(&target, 1).await.owned);
    let (_, row) = begin(&target, 1, OTHER).await;
    assert_eq!(row.owner, Some(NODE));
    assert!(matches!(
        target.begin(&id(9), NODE).await.expect("an answer"),
        Begin::NotFound
    ));
}

/// Goal: a lease that lasts much longer than those that others are granted now is one of before the clock was set back,
/// and ends after such a time; one that lasts some times as long does not.
pub async fn a_lease_of_before_a_clock_was_set_back_ends<F: Factory>(factory: &F) {
    let target = registered(factory).await;
    let (hour, short) = (Duration::from_secs(3_600), Duration::from_millis(50));
    target.renew(NODE, "a", hour).await.expect("renewed");
    let (_, _) = begin(&target, 1, NODE).await;
    target.renew(OTHER, "b", hour / 9).await.expect("renewed");
    assert!(stored(&target, 1).await.owned);
    let ends = async {
        target.renew(OTHER, "b", short).await.expect("renewed");
        while stored(&target, 1).await.owned {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(AT_ALL, ends).await.expect("it ends");
    let (_, row) = begin(&target, 1, OTHER).await;
    assert_eq!(row.owner, Some(NODE));
}

/// Goal: after a pause no batch is applied; a reason is kept; the end of a session may stop the projection.
pub async fn a_pause_is_exact<F: Factory>(factory: &F) {
    let target = registered(factory).await;
    let (mut session, _) = begin(&target, 1, NODE).await;
    batch(&mut session, 0, (0, 1), 0..1).await.expect("written");
    assert!(
        target
            .set_state(&id(1), State::Paused, None)
            .await
            .expect("set")
    );
    assert_lost(batch(&mut session, 3, (1, 2), 1..2).await);
    assert!(
        target
            .set_state(&id(1), State::Running, None)
            .await
            .expect("set")
    );
    batch(&mut session, 3, (1, 2), 1..2).await.expect("written");
    session.end(Some("a bad event")).await.expect("ended");
    let row = stored(&target, 1).await;
    assert_eq!((row.state, row.owner), (State::Stopped, None));
    assert_eq!(row.error.as_deref(), Some("a bad event"));
    assert!(
        !target
            .set_state(&id(9), State::Paused, None)
            .await
            .expect("an answer")
    );
}

fn attempt(number: u32, events: u32, position: u64, is_replay: bool) -> Attempt {
    Attempt {
        number,
        events,
        first: (LogId(2), Position(position)),
        is_replay,
    }
}

/// Goal: an attempt is announced before it is made, survives the process, takes the place of the one before, and is
/// forgotten by the next commit and by an end in good order.
///
/// What happened: attempts of different sizes were summed up, and so were those of a process that lived on: an event
/// was condemned for deaths that it had not caused. Now the row says which attempt it was, and who has died counts.
pub async fn attempts_are_announced_before_they_are_made<F: Factory>(factory: &F) {
    let target = registered(factory).await;
    assert_eq!(stored(&target, 1).await.attempt, None);
    let (mut session, _) = begin(&target, 1, NODE).await;
    let attempts = [attempt(1, 8, 5, false), attempt(1, 1, 7, false)];
    for attempt in attempts {
        session.announce(attempt).await.expect("announced");
        assert_eq!(stored(&target, 1).await.attempt, Some(attempt));
    }
    let (mut session, row) = begin(&target, 1, OTHER).await;
    assert_eq!(row.attempt, Some(attempts[1]));
    batch(&mut session, 0, (0, 1), 0..1).await.expect("written");
    assert_eq!(stored(&target, 1).await.attempt, None);
    let replay = attempt(4, 1, 9, true);
    session.announce(replay).await.expect("announced");
    assert_eq!(stored(&target, 1).await.attempt, Some(replay));
    session.end(None).await.expect("ended");
    assert_eq!(stored(&target, 1).await.attempt, None);
}

fn parked(position: u64, key: Option<&str>, error: &str) -> Parked {
    Parked {
        log: LogId(0),
        position: Position(position),
        key: key.map(str::to_owned),
        event: EventId(Uuid::from_u128(u128::from(position))),
        error: error.to_owned(),
        attempts: 3,
        at: Timestamp::default(),
    }
}

/// Goal: parked events are kept with their batch, once each, in order and by key.
pub async fn parked_events_are_kept_in_order<F: Factory>(factory: &F) {
    let target = registered(factory).await;
    let (mut session, _) = begin(&target, 1, NODE).await;
    let (from, to) = (place(0), place(9));
    let fence = Fence {
        from: &from,
        to: &to,
        events_before: 0,
        events: 0,
    };
    session.open(fence).await.expect("open");
    let all = [
        parked(9, Some("a"), "bad"),
        parked(3, Some("b"), "bad"),
        parked(5, Some("a"), ""),
        parked(6, None, "skipped"),
    ];
    session.park(&all).await.expect("parked");
    session.park(&all[..1]).await.expect("again");
    session.commit().await.expect("committed");
    let found = target.parked(&id(1), None, 100).await.expect("found");
    let order: Vec<u64> = found.iter().map(|parked| parked.position.0).collect();
    assert_eq!(order, [9, 3, 5, 6]);
    assert!(found.iter().all(|parked| parked.at > Timestamp::default()));
    assert_eq!(
        (found[0].error.as_str(), found[0].event),
        ("bad", all[0].event)
    );
    let of_a = target.parked(&id(1), Some("a"), 1).await.expect("found");
    assert_eq!(of_a[0].position, Position(9));
    for (at_most, count) in [(3, 3), (4, 4), (5, 4)] {
        let counted = target.count_parked(&id(1), at_most).await;
        assert_eq!(counted.expect("counted"), count, "at most {at_most}");
    }
    let mut keys = target.parked_keys(&id(1)).await.expect("keys");
    keys.sort();
    assert_eq!(keys, ["a", "b"]);
    let fence = Fence {
        from: &to,
        to: &to,
        events_before: 0,
        events: 0,
    };
    session.open(fence).await.expect("open");
    session
        .unpark(&[(LogId(0), Position(9))])
        .await
        .expect("gone");
    session.commit().await.expect("committed");
    assert_eq!(
        target
            .parked(&id(1), Some("a"), 9)
            .await
            .expect("found")
            .len(),
        1
    );
}

/// Goal: a reset takes rows, parked events and counts, and sets the checkpoint and the floor, all in one transaction.
pub async fn a_reset_clears_everything<F: Factory>(factory: &F) {
    let target = registered(factory).await;
    let (mut session, _) = begin(&target, 1, NODE).await;
    batch(&mut session, 0, (0, 5), 0..3).await.expect("written");
    let (from, to) = (place(5), place(4));
    let fence = Fence {
        from: &from,
        to: &to,
        events_before: 3,
        events: 0,
    };
    session.open(fence).await.expect("open");
    session
        .park(&[parked(3, Some("a"), "bad")])
        .await
        .expect("parked");
    session.clear(Some(&table(1))).await.expect("cleared");
    session.commit().await.expect("committed");
    let row = stored(&target, 1).await;
    assert_eq!((row.checkpoint, row.floor), (place(4), place(4)));
    assert_eq!((row.events, row.resets), (0, 1));
    assert_eq!(factory.count(&target, "kinds").await, Some(0));
    assert_eq!(
        target.parked_keys(&id(1)).await.expect("keys"),
        Vec::<String>::new()
    );
    batch(&mut session, 0, (4, 6), 0..1)
        .await
        .expect("it goes on");
}

/// Goal: a command is there until it is answered, within a batch.
pub async fn commands_are_answered_once<F: Factory>(factory: &F) {
    let target = registered(factory).await;
    let order = Order::Replay {
        key: Some("a key with spaces".to_owned()),
    };
    let number = target.command(&id(1), &order).await.expect("asked");
    let later = target.command(&id(1), &Order::Reset).await.expect("asked");
    assert!(later > number);
    let open = target.commands().await.expect("commands");
    assert_eq!(
        (open.len(), open[0].number, &open[0].order),
        (2, number, &order)
    );
    assert_eq!(target.answer(number).await.expect("an answer"), None);
    let (mut session, _) = begin(&target, 1, NODE).await;
    let at = place(0);
    let fence = Fence {
        from: &at,
        to: &at,
        events_before: 0,
        events: 0,
    };
    session.open(fence).await.expect("open");
    session.reply(number, "done").await.expect("replied");
    session.commit().await.expect("committed");
    assert_eq!(
        target.answer(number).await.expect("an answer").as_deref(),
        Some("done")
    );
    assert_eq!(target.commands().await.expect("commands").len(), 1);
}

/// Goal: a value that the database refuses is told as such, for then it is the author's, and leaves nothing behind.
pub async fn a_refused_value_is_the_authors<F: Factory>(factory: &F) {
    let target = registered(factory).await;
    let (mut session, _) = begin(&target, 1, NODE).await;
    let (from, to) = (place(0), place(5));
    let fence = Fence {
        from: &from,
        to: &to,
        events_before: 0,
        events: 1,
    };
    session.open(fence).await.expect("open");
    let mut wrong = table(1);
    // A column that is not there.
    wrong.columns[0].name = "unknown".into();
    let written = session.write(&wrong, &rows(0..1), &keys([])).await;
    let error = written.expect_err("refused");
    assert_eq!(error.kind(), TargetErrorKind::Refused, "{error}");
    session.roll_back().await;
    batch(&mut session, 0, (0, 5), 0..1)
        .await
        .expect("the session goes on");
}

/// Makes one test of each case for a [`Factory`], by its name.
#[macro_export]
macro_rules! target_conformance {
    ($factory:expr) => {
        $crate::target_conformance!(@cases $factory;
            registering_changes_nothing_that_is_there
            rows_come_back_as_they_were_written
            a_row_may_be_its_key_alone
            a_batch_is_whole_or_absent
            the_fence_is_exact
            a_session_waits_for_the_one_before
            a_lease_keeps_others_away
            a_lease_of_before_a_clock_was_set_back_ends
            a_pause_is_exact
            attempts_are_announced_before_they_are_made
            parked_events_are_kept_in_order
            a_reset_clears_everything
            commands_are_answered_once
            versions_are_switched_and_retired
            an_earlier_version_does_not_take_over
            a_version_is_switched_by_its_owner
            an_earlier_life_of_the_store_is_left_behind
            what_is_none_of_its_own_holds_no_version_back
            a_version_that_was_reset_does_not_take_over
            a_running_version_is_not_left_for_another_life
            a_refused_value_is_the_authors
        );
    };
    (@cases $factory:expr; $($case:ident)+) => {
        $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
        async fn $case() {
            $crate::testing::conformance::$case(&$factory).await;
        })+
    };
}
