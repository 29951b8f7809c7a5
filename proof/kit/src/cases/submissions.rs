//! Submissions of an owner, which are handed over without waiting: in order, each after the one before, each answered
//! once.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use futures::future::join_all;
use gesta_core::limits::{APPEND_EVENTS_MAX, EVENT_BYTES_MAX};
use gesta_core::{
    After, Appended, DeleteKind, EventData, EventId, EventStoreExt, OwnerStore, Result, Revision,
    Submission,
};
use tokio::sync::oneshot;

use super::loads::owned;
use crate::factory::StoreFactory;
use crate::support::*;

/// The outcome of a submission, which is told later.
struct Pending(oneshot::Receiver<Result<Appended>>);

impl Pending {
    async fn outcome(self) -> Result<Appended> {
        within("an outcome", self.0).await.expect("told")
    }

    async fn committed(self) -> Appended {
        self.outcome().await.expect("stored")
    }
}

fn submit(owner: &dyn OwnerStore, name: &str, after: After, events: Vec<EventData>) -> Pending {
    let (sender, receiver) = oneshot::channel();
    owner.submit(Submission {
        stream: stream(name),
        after,
        events,
        // If the test has failed, nobody waits any more.
        on_outcome: Box::new(move |outcome| drop(sender.send(outcome))),
    });
    Pending(receiver)
}

/// Returns the claim that the last of these events is the last of the stream.
fn after(events: &[EventData]) -> After {
    After::Event(events.last().and_then(|event| event.id).expect("an id"))
}

fn ids(events: &[EventData]) -> Vec<EventId> {
    events.iter().filter_map(|event| event.id).collect()
}

async fn stored_ids(owner: &dyn OwnerStore, name: &str) -> Vec<EventId> {
    let events = within("read stream", owner.read_whole_stream(name)).await;
    let events = events.expect("readable");
    events.iter().map(|event| event.id).collect()
}

fn assert_outdated(outcome: Result<Appended>) {
    assert_kind!(outcome, ErrorKind::WrongExpectedRevision { .. });
}

/// Goal: submissions that depend on each other are handed over at once, and stored in their order.
pub async fn follow_each_other_without_waiting(factory: &dyn StoreFactory) {
    let Some((_store, owner)) = owned(factory).await else {
        return;
    };
    let names = ["s", "t", "u"];
    let mut last = [After::NOTHING; 3];
    let mut submitted = [const { Vec::new() }; 3];
    let mut pending = Vec::new();
    for round in 0..60 {
        let which = round % names.len();
        let events = events(1 + round % 4);
        submitted[which].extend(ids(&events));
        pending.push((
            which,
            submitted[which].len(),
            submit(owner.as_ref(), names[which], last[which], events.clone()),
        ));
        last[which] = after(&events);
    }
    for (which, count, pending) in pending {
        let appended = pending.committed().await;
        assert_eq!(appended.streams[0].stream, stream(names[which]));
        assert_eq!(appended.streams[0].last_revision.0 + 1, count as u64);
    }
    for (name, submitted) in names.iter().zip(submitted) {
        assert_eq!(stored_ids(owner.as_ref(), name).await, submitted);
    }
}

/// Goal: an owner can begin a stream that was never written or was deleted, and no other.
pub async fn begin_a_stream(factory: &dyn StoreFactory) {
    let Some((store, owner)) = owned(factory).await else {
        return;
    };
    let first = events(2);
    let appended = submit(owner.as_ref(), "s", After::NOTHING, first.clone());
    let appended = appended.committed().await;
    assert_eq!(appended.streams[0].first_revision, Revision(0));
    assert_outdated(
        submit(owner.as_ref(), "s", After::NOTHING, events(1))
            .outcome()
            .await,
    );
    let unknown = After::Event(EventId::random());
    assert_outdated(
        submit(owner.as_ref(), "never", unknown, events(1))
            .outcome()
            .await,
    );

    let deleted = delete(store.as_ref(), "s", exact(1), DeleteKind::Soft).await;
    deleted.expect("deleted");
    assert_outdated(
        submit(owner.as_ref(), "s", after(&first), events(1))
            .outcome()
            .await,
    );
    // The owner that knew of no stream does not know that one was begun and deleted since.
    for next in [0, 1, 3].map(Revision) {
        let unaware = submit(owner.as_ref(), "s", After::NoStream { next }, events(1));
        assert_outdated(unaware.outcome().await);
    }
    let deleted = After::NoStream { next: Revision(2) };
    let again = submit(owner.as_ref(), "s", deleted, events(1));
    assert_eq!(
        again.committed().await.streams[0].first_revision,
        Revision(2)
    );

    let deleted = delete(store.as_ref(), "s", exact(2), DeleteKind::Tombstone).await;
    deleted.expect("closed");
    for events in [events(1), Vec::new()] {
        let outcome = submit(owner.as_ref(), "s", After::NOTHING, events)
            .outcome()
            .await;
        assert_kind!(outcome, ErrorKind::StreamTombstoned(_));
    }
}

/// Goal: a submission without events stores nothing. It confirms that the owner is up to date, or tells that it is not.
pub async fn of_nothing_ask_whether_the_owner_is_up_to_date(factory: &dyn StoreFactory) {
    let Some((store, owner)) = owned(factory).await else {
        return;
    };
    let ask = |after| submit(owner.as_ref(), "s", after, Vec::new());
    ask(After::NOTHING).committed().await;
    assert_outdated(ask(After::Event(EventId::random())).outcome().await);

    let (first, second) = (events(2), events(1));
    append(store.as_ref(), "s", NoStream, first.clone()).await;
    ask(after(&first)).committed().await;
    assert_outdated(ask(After::NOTHING).outcome().await);
    assert_outdated(
        ask(After::Event(first[0].id.expect("an id")))
            .outcome()
            .await,
    );

    // These ask about events that are still on their way.
    let appended = submit(owner.as_ref(), "s", after(&first), second.clone());
    let (now, before) = (ask(after(&second)), ask(after(&first)));
    now.committed().await;
    assert_outdated(before.outcome().await);
    appended.committed().await;
    assert_eq!(everything(store.as_ref()).await.len(), 3);
}

/// Goal: a submission is refused if the one on which it was decided was refused, even when an event of another process
/// has taken the place of the events on which it was decided.
pub async fn fall_with_the_one_they_were_decided_upon(factory: &dyn StoreFactory) {
    let Some((store, owner)) = owned(factory).await else {
        return;
    };
    for round in 0..20 {
        let name = format!("s-{round}");
        let known = events(1);
        append(store.as_ref(), &name, NoStream, known.clone()).await;
        let foreign = events(1);
        append(store.as_ref(), &name, exact(0), foreign.clone()).await;
        let (one, two, three) = (events(1), events(1), events(1));
        let owner = owner.as_ref();
        let pending = [
            submit(owner, &name, after(&known), one.clone()),
            submit(owner, &name, after(&one), two.clone()),
            submit(owner, &name, after(&two), Vec::new()),
            submit(owner, &name, after(&two), three),
        ];
        // A submission that is up to date is not delayed.
        let good = submit(owner, &name, after(&foreign), events(1));
        for pending in pending {
            assert_outdated(pending.outcome().await);
        }
        assert_eq!(
            good.committed().await.streams[0].first_revision,
            Revision(2)
        );
        assert_eq!(stored_ids(owner, &name).await.len(), 3);
    }
}

/// Goal: what another process has appended makes the owner outdated at once, whatever the process of the owner
/// remembers.
pub async fn are_refused_after_a_foreign_event(factory: &dyn StoreFactory) {
    let Some((store, owner)) = owned(factory).await else {
        return;
    };
    let Some(other) = factory.second(&store).await else {
        return skip(factory, "a second store over the same data");
    };
    let mut known = events(1);
    submit(owner.as_ref(), "s", After::NOTHING, known.clone())
        .committed()
        .await;
    for _ in 0..10 {
        let foreign = events(1);
        append(other.as_ref(), "s", StreamExists, foreign.clone()).await;
        let (one, two) = (events(1), events(1));
        let pending = [
            submit(owner.as_ref(), "s", after(&known), Vec::new()),
            submit(owner.as_ref(), "s", after(&known), one.clone()),
            submit(owner.as_ref(), "s", after(&one), two.clone()),
            submit(owner.as_ref(), "s", after(&two), Vec::new()),
        ];
        for pending in pending {
            assert_outdated(pending.outcome().await);
        }
        known = events(1);
        submit(owner.as_ref(), "s", after(&foreign), known.clone())
            .committed()
            .await;
    }
    assert_eq!(stored_ids(owner.as_ref(), "s").await.len(), 21);
}

/// Goal: the id of the last event is known again after the data is opened anew.
pub async fn know_the_last_event_after_reopening(factory: &dyn StoreFactory) {
    let Some((store, _)) = owned(factory).await else {
        return;
    };
    let events_of = |count| events(count);
    let (first, second) = (events_of(3), events_of(1));
    append(store.as_ref(), "s", NoStream, first.clone()).await;
    let Some(again) = factory.reopen(&store).await else {
        return skip(factory, "opening again");
    };
    let owner = again.owner().expect("as before");
    submit(owner.as_ref(), "s", after(&first), Vec::new())
        .committed()
        .await;
    assert_outdated(
        submit(owner.as_ref(), "s", after(&second), Vec::new())
            .outcome()
            .await,
    );
    let appended = submit(owner.as_ref(), "s", after(&first), second)
        .committed()
        .await;
    assert_eq!(appended.streams[0].first_revision, Revision(3));
}

/// Goal: the limits of every append hold for submissions too, and a metadata stream has no owner.
pub async fn that_break_a_rule_are_refused(factory: &dyn StoreFactory) {
    let Some((store, owner)) = owned(factory).await else {
        return;
    };
    let mut large = event("large");
    large.data = vec![b'x'; EVENT_BYTES_MAX + 1].into();
    let (good, next) = (events(1), events(1));
    let refused = [
        submit(owner.as_ref(), "s", After::NOTHING, vec![large]),
        submit(
            owner.as_ref(),
            "s",
            After::NOTHING,
            events(APPEND_EVENTS_MAX + 1),
        ),
        submit(owner.as_ref(), "$$s", After::NOTHING, events(1)),
        submit(owner.as_ref(), "$$s", After::NOTHING, Vec::new()),
    ];
    let fine = submit(owner.as_ref(), "s", After::NOTHING, good.clone());
    for pending in refused {
        assert_kind!(pending.outcome().await, ErrorKind::InvalidArgument { .. });
    }
    fine.committed().await;
    submit(owner.as_ref(), "s", after(&good), next)
        .committed()
        .await;
    assert_eq!(everything(store.as_ref()).await.len(), 2);
}

/// Goal: however a store ends, every owner is told exactly once, and told the truth.
pub async fn are_each_told_once(factory: &dyn StoreFactory) {
    const COUNT: usize = 200;
    let Some((store, owner)) = owned(factory).await else {
        return;
    };
    let told: Arc<Vec<AtomicUsize>> = Arc::new((0..COUNT).map(|_| AtomicUsize::new(0)).collect());
    let mut last = After::NOTHING;
    let mut pending = Vec::new();
    let submit_one = |n: usize, last: &mut After| {
        let events = events(1);
        let (sender, receiver) = oneshot::channel();
        let told = Arc::clone(&told);
        owner.submit(Submission {
            stream: stream("s"),
            after: *last,
            events: events.clone(),
            on_outcome: Box::new(move |outcome| {
                told[n].fetch_add(1, Ordering::SeqCst);
                drop(sender.send(outcome));
            }),
        });
        *last = after(&events);
        (events[0].id.expect("an id"), Pending(receiver))
    };
    for n in 0..COUNT / 2 {
        pending.push(submit_one(n, &mut last));
    }
    let closing = tokio::spawn({
        let store = store.share();
        async move { store.shutdown().await }
    });
    for n in COUNT / 2..COUNT {
        pending.push(submit_one(n, &mut last));
        tokio::task::yield_now().await;
    }
    let outcomes = pending
        .into_iter()
        .map(|(id, pending)| async move { (id, pending.outcome().await) });
    let outcomes = join_all(outcomes).await;
    let closed = within("shut down", closing).await.expect("no panic");
    closed.expect("closed");
    assert!(told.iter().all(|told| told.load(Ordering::SeqCst) == 1));
    let mut committed = Vec::new();
    for (id, outcome) in outcomes {
        match outcome {
            Ok(_) => committed.push(id),
            Err(error) => assert!(
                matches!(error.kind(), ErrorKind::Unavailable(_)),
                "{error:?}"
            ),
        }
    }
    assert!(committed.len() >= COUNT / 2, "what was queued is stored");
    let Some(again) = factory.reopen(&store).await else {
        return skip(factory, "opening again");
    };
    let again = again.owner().expect("as before");
    assert_eq!(stored_ids(again.as_ref(), "s").await, committed);
}

/// Goal: a closed store accepts no submission.
pub async fn after_the_end_are_refused(factory: &dyn StoreFactory) {
    let Some((store, owner)) = owned(factory).await else {
        return;
    };
    let first = events(1);
    submit(owner.as_ref(), "s", After::NOTHING, first.clone())
        .committed()
        .await;
    within("shut down", store.shutdown()).await.expect("closed");
    for events in [Vec::new(), events(1)] {
        let outcome = submit(owner.as_ref(), "s", after(&first), events)
            .outcome()
            .await;
        assert_kind!(outcome, ErrorKind::Unavailable(_));
    }
}
