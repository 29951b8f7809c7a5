//! Readers are switched from one version to another.

use std::time::Duration;

use crate::state::Life;
use crate::target::{Fence, Seen, Session, SwitchFrom, Switched, Target};
use crate::testing::conformance::{Factory, assert_lost, batch, begin, registered, stored};
use crate::testing::sample::{
    NODE, OTHER, id, keys, place, place_in, registration, registration_in, rows, table,
};

async fn switch<T: Target>(target: &T, version: u32) -> Switched {
    let switched = target.switch(&id(version), SwitchFrom::Any, None).await;
    switched.expect("an answer")
}

/// Switches as somebody does who has seen version 2 at the end of a life of the store, and version 1 at a place of
/// another one.
async fn switch_in<T: Target>(target: &T, end: (u128, u64), lost: (u128, u64)) -> Switched {
    let seen = Seen::Lost {
        end: place_in(end.0, end.1),
        lost: place_in(lost.0, lost.1),
    };
    let id = id(2);
    let switched = target.switch(&id, SwitchFrom::Any, Some(&seen));
    switched.await.expect("an answer")
}

/// Moves the checkpoint, as a batch or a reset does.
async fn moves<S: Session>(session: &mut S, from: (u128, u64), to: (u128, u64)) {
    let (from, to) = (place_in(from.0, from.1), place_in(to.0, to.1));
    let fence = Fence {
        from: &from,
        to: &to,
        events_before: 0,
        events: 0,
    };
    session.open(fence).await.expect("open");
    session.commit().await.expect("committed");
}

/// Goal: readers are switched only to a version that has come as far as theirs, and back; a version that is active is
/// not retired; one that is retired has no rows.
pub async fn versions_are_switched_and_retired<F: Factory>(factory: &F) {
    let target = registered(factory).await;
    target.register(&registration(2)).await.expect("registered");
    let (mut old, _) = begin(&target, 1, NODE).await;
    batch(&mut old, 0, (0, 5), 0..3).await.expect("written");
    assert_eq!(switch(&target, 2).await, Switched::Behind);
    assert_eq!(switch(&target, 7).await, Switched::NotFound);
    let (mut new, _) = begin(&target, 2, NODE).await;
    let (from, to) = (place(0), place(6));
    let fence = Fence {
        from: &from,
        to: &to,
        events_before: 0,
        events: 1,
    };
    new.open(fence).await.expect("open");
    new.write(&table(2), &rows(0..5), &keys([]))
        .await
        .expect("written");
    new.commit().await.expect("committed");
    assert_eq!(factory.count(&target, "kinds").await, Some(3));
    assert!(
        !target.retire(&id(1)).await.expect("an answer"),
        "it is active"
    );
    assert_eq!(switch(&target, 2).await, Switched::Done);
    assert_eq!(factory.count(&target, "kinds").await, Some(5));
    assert_eq!(stored(&target, 1).await.life, Life::Previous);
    assert_eq!(switch(&target, 1).await, Switched::Behind);
    batch(&mut old, 3, (5, 6), 3..4)
        .await
        .expect("it is still fed");
    assert_eq!(switch(&target, 1).await, Switched::Done);
    assert_eq!(factory.count(&target, "kinds").await, Some(4));
    assert_eq!(switch(&target, 2).await, Switched::Done);
    assert!(target.retire(&id(1)).await.expect("an answer"));
    assert_lost(batch(&mut old, 6, (6, 7), 4..5).await);
    assert_eq!(factory.count(&target, "kinds_v1").await, None);
    assert_eq!(factory.count(&target, "kinds").await, Some(5));
    assert_eq!(switch(&target, 1).await, Switched::NotFound);
}

/// Goal: a version takes the readers by itself from an earlier one only. What happened: a process with old code was
/// started again, its version was built anew beside the later one, and took the readers when it had come as far.
pub async fn an_earlier_version_does_not_take_over<F: Factory>(factory: &F) {
    let target = factory.target().await;
    target.register(&registration(2)).await.expect("registered");
    let late = target.register(&registration(1)).await.expect("registered");
    assert_eq!(late.life, Life::Building);
    let by_itself = async |version| {
        let (_, before) = begin(&target, version, NODE).await;
        let from = SwitchFrom::Earlier {
            owner: NODE,
            epoch: before.epoch + 1,
        };
        let switched = target.switch(&id(version), from, None).await;
        switched.expect("an answer")
    };
    assert_eq!(by_itself(1).await, Switched::Later);
    assert_eq!(stored(&target, 2).await.life, Life::Active);
    assert_eq!(switch(&target, 1).await, Switched::Done);
    assert_eq!(by_itself(2).await, Switched::Done);
    assert_eq!(by_itself(2).await, Switched::Done);
}

/// Goal: a version takes the readers by itself only in the session that owns it. What happened: an owner that had stood
/// still switched by what it knew, though another one had reset the version: readers saw an empty table.
pub async fn a_version_is_switched_by_its_owner<F: Factory>(factory: &F) {
    let target = registered(factory).await;
    target.register(&registration(2)).await.expect("registered");
    let (_, before) = begin(&target, 2, NODE).await;
    let epoch = before.epoch + 1;
    let by_itself = async |owner, epoch| {
        let from = SwitchFrom::Earlier { owner, epoch };
        let switched = target.switch(&id(2), from, None).await;
        switched.expect("an answer")
    };
    assert_eq!(by_itself(OTHER, epoch).await, Switched::NotOwner);
    assert_eq!(by_itself(NODE, epoch - 1).await, Switched::NotOwner);
    let (session, _) = begin(&target, 2, OTHER).await;
    assert_eq!(by_itself(NODE, epoch).await, Switched::NotOwner);
    assert_eq!(stored(&target, 1).await.life, Life::Active);
    session.end(None).await.expect("ended");
    assert_eq!(by_itself(OTHER, epoch + 1).await, Switched::NotOwner);
    let (_, _) = begin(&target, 2, NODE).await;
    assert_eq!(by_itself(NODE, epoch + 2).await, Switched::Done);
}

/// Goal: a version of the present life of the store takes the readers from one of an earlier life, of which nobody can
/// tell how far it has come, and never the other way round; and from one that is further than a store that was copied
/// back. What happened: after a restore no version could follow.
pub async fn an_earlier_life_of_the_store_is_left_behind<F: Factory>(factory: &F) {
    let target = registered(factory).await;
    let second = registration_in(2, 8);
    target.register(&second).await.expect("registered");
    assert_eq!(switch(&target, 2).await, Switched::OtherStore);
    // The end of another life than that of the version, and another active version than there is.
    for (end, lost) in [((7, 0), (7, 0)), ((9, 0), (7, 0)), ((8, 0), (9, 0))] {
        let switched = switch_in(&target, end, lost).await;
        assert_eq!(switched, Switched::OtherStore, "{end:?} {lost:?}");
    }
    assert_eq!(switch_in(&target, (8, 0), (7, 0)).await, Switched::Done);
    assert_eq!(switch(&target, 1).await, Switched::OtherStore);
    assert!(target.retire(&id(1)).await.expect("an answer"));

    let target = registered(factory).await;
    target.register(&registration(2)).await.expect("registered");
    let (mut old, _) = begin(&target, 1, NODE).await;
    batch(&mut old, 0, (0, 20), 0..3).await.expect("written");
    old.end(None).await.expect("ended");
    assert_eq!(switch(&target, 2).await, Switched::Behind);
    assert_eq!(switch_in(&target, (7, 0), (7, 21)).await, Switched::Behind);
    assert_eq!(switch_in(&target, (7, 0), (7, 20)).await, Switched::Done);
}

/// Goal: a version takes the readers from one that is further, if no event in between is any of its own, as far as the
/// active one has come; what was seen of a version that was reset since does not count. What happened: a version with a
/// narrower filter never took the readers while the one before was fed.
pub async fn what_is_none_of_its_own_holds_no_version_back<F: Factory>(factory: &F) {
    let target = registered(factory).await;
    target.register(&registration(2)).await.expect("registered");
    let (mut old, _) = begin(&target, 1, NODE).await;
    batch(&mut old, 0, (0, 20), 0..3).await.expect("written");
    let (mut new, _) = begin(&target, 2, NODE).await;
    moves(&mut new, (7, 0), (7, 10)).await;
    let switch_after = async |after: (u128, u64), up_to: (u128, u64)| {
        let seen = Seen::NoMatch {
            after: place_in(after.0, after.1),
            up_to: place_in(up_to.0, up_to.1),
        };
        let id = id(2);
        let switched = target.switch(&id, SwitchFrom::Any, Some(&seen));
        switched.await.expect("an answer")
    };
    for (after, up_to) in [
        ((7, 11), (7, 20)),
        ((7, 10), (7, 19)),
        ((8, 10), (7, 20)),
        ((7, 10), (8, 20)),
    ] {
        let switched = switch_after(after, up_to).await;
        assert_eq!(switched, Switched::Behind, "{after:?} {up_to:?}");
    }
    moves(&mut new, (7, 10), (7, 0)).await;
    assert_eq!(switch_after((7, 10), (7, 20)).await, Switched::Behind);
    moves(&mut new, (7, 0), (7, 11)).await;
    assert_eq!(switch_after((7, 10), (7, 20)).await, Switched::Done);
    assert_eq!(stored(&target, 2).await.life, Life::Active);
}

/// Goal: readers never leave a version for one that was seen at the end of the store, and was reset before they were
/// switched; nor a version that was reset into the present life since it was seen. What happened: the first was done,
/// and readers saw an empty table.
pub async fn a_version_that_was_reset_does_not_take_over<F: Factory>(factory: &F) {
    let target = registered(factory).await;
    let second = registration_in(2, 8);
    target.register(&second).await.expect("registered");
    let (mut new, _) = begin(&target, 2, NODE).await;
    moves(&mut new, (8, 0), (8, 10)).await;
    moves(&mut new, (8, 10), (8, 0)).await;
    let switched = switch_in(&target, (8, 10), (7, 0)).await;
    assert_eq!(switched, Switched::OtherStore);
    moves(&mut new, (8, 0), (8, 11)).await;
    let (mut old, _) = begin(&target, 1, NODE).await;
    moves(&mut old, (7, 0), (9, 0)).await;
    let switched = switch_in(&target, (8, 10), (7, 0)).await;
    assert_eq!(switched, Switched::OtherStore);
    moves(&mut old, (9, 0), (8, 12)).await;
    let switched = switch_in(&target, (8, 10), (7, 0)).await;
    assert_eq!(switched, Switched::Behind);
    assert_eq!(stored(&target, 1).await.life, Life::Active);
}

/// Goal: while a process runs the active version, which it would stop if it was not of the present life of the store,
/// no version of another life takes the readers. What happened: a process that had not heard of a restore took them
/// back to what was lost.
pub async fn a_running_version_is_not_left_for_another_life<F: Factory>(factory: &F) {
    let target = registered(factory).await;
    let second = registration_in(2, 8);
    target.register(&second).await.expect("registered");
    let hour = Duration::from_secs(3_600);
    target.renew(NODE, "a", hour).await.expect("renewed");
    let (session, _) = begin(&target, 1, NODE).await;
    let switched = switch_in(&target, (8, 0), (7, 0)).await;
    assert_eq!(switched, Switched::ActiveRuns);
    session.end(Some("restored")).await.expect("ended");
    assert_eq!(switch_in(&target, (8, 0), (7, 0)).await, Switched::Done);
}
