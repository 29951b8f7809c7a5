//! Tests groups on every backend: what consumers do, and what is left when a process stops.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    missing_docs,
    reason = "tests"
)]

mod support;

use gesta_core::{EventStoreExt, ExpectedRevision, Filter, Revision, StreamId};
use gesta_groups::{
    Action, Consumer, Create, Error, GroupId, Groups, Settings, Source, Start, Which,
};
use gesta_kit::support::{categories, within};

use std::time::Duration;

use support::{
    Home, ack, create, eager, end, groups, join, join_patiently, next, on_every_backend, on_stream,
    patient, revisions, try_join, work_off, write,
};

on_every_backend!(
    a_group_goes_on_where_it_was,
    refused_events_are_retried_parked_and_replayed,
    what_a_consumer_holds_goes_to_others_when_it_leaves,
    a_silent_consumer_has_to_leave,
    of_two_processes_the_one_that_came_last_runs_the_group,
    a_changed_group_keeps_its_checkpoint_and_a_new_one_has_none,
    a_group_on_all_events_does_not_see_its_own_checkpoints,
    catching_up_is_no_progress,
    a_group_begins_where_it_is_told,
    a_group_delivers_every_event_of_a_long_stream,
    of_many_that_create_a_group_one_does,
    a_deleted_stream_does_not_stop_its_group,
    what_two_processes_park_is_parked_once,
);

async fn a_group_goes_on_where_it_was(home: Home) {
    let group = on_stream("cart-1");
    let first = groups(&home);
    create(&first, &group, patient()).await;
    write(&home, "cart-1", 30).await;
    let mut consumer = join(&first, &group, 10).await;
    assert_eq!(
        work_off(&mut consumer, 20).await,
        (0..20).collect::<Vec<_>>()
    );
    // Taken, but not answered.
    assert_eq!(revisions(&mut consumer, 3).await, [20, 21, 22]);
    first.shutdown().await;
    assert!(matches!(end(&mut consumer).await, Error::Stopping));
    assert!(matches!(
        try_join(&first, &group, 1).await,
        Err(Error::Stopping)
    ));

    let second = groups(&home);
    let info = second.info(&group).await.expect("known");
    assert_eq!((info.checkpoint, info.running), (Some(20), None));
    let mut consumer = join(&second, &group, 100).await;
    assert_eq!(
        work_off(&mut consumer, 10).await,
        (20..30).collect::<Vec<_>>()
    );
    write(&home, "cart-1", 1).await;
    assert_eq!(work_off(&mut consumer, 1).await, [30]);
    second.shutdown().await;
}

/// Refuses the first event until it is parked, and each of the next three in another way.
async fn refuse_four(consumer: &mut Consumer) {
    for retries in 0..=2 {
        let delivery = next(consumer).await;
        assert_eq!(
            (delivery.event.revision, delivery.retries),
            (Revision(0), retries)
        );
        let which = vec![Which::Event(delivery.event.id)];
        consumer
            .nack(which, Action::Retry, "")
            .await
            .expect("answered");
    }
    for (revision, action) in [(1, Action::Park), (2, Action::Skip), (3, Action::Stop)] {
        let delivery = next(consumer).await;
        assert_eq!(delivery.event.revision, Revision(revision));
        let which = vec![Which::Delivery(delivery.number)];
        consumer
            .nack(which, action, "no such article")
            .await
            .expect("answered");
    }
}

async fn refused_events_are_retried_parked_and_replayed(home: Home) {
    let group = on_stream("cart-1");
    let groups = groups(&home);
    let settings = Settings {
        max_retry_count: 2,
        ..eager()
    };
    create(&groups, &group, settings).await;
    write(&home, "cart-1", 4).await;
    let mut consumer = join(&groups, &group, 1).await;
    refuse_four(&mut consumer).await;
    let parked = || async {
        loop {
            let info = groups.info(&group).await.expect("known");
            if info.checkpoint == Some(4) && info.parked == 2 {
                return info.running.expect("it runs").counts;
            }
            tokio::task::yield_now().await;
        }
    };
    let counts = within("all is settled", parked()).await;
    assert_eq!((counts.delivered, counts.redelivered), (6, 2));
    assert_eq!((counts.parked, counts.skipped, counts.refused), (2, 2, 3));
    let stream = group.parked_stream();
    let links = home
        .store
        .read_whole_stream(stream.as_str())
        .await
        .expect("readable");
    let links: Vec<_> = links
        .iter()
        .map(|link| (link.event_type.as_str(), &link.data[..]))
        .collect();
    assert_eq!(links, [("$>", &b"0@cart-1"[..]), ("$>", b"1@cart-1")]);

    groups.replay_parked(&group, Some(1)).await.expect("begun");
    let delivery = next(&mut consumer).await;
    assert_eq!(
        (delivery.event.revision, delivery.retries),
        (Revision(0), 0)
    );
    let error = groups
        .replay_parked(&group, None)
        .await
        .expect_err("under way");
    assert!(matches!(error, Error::ReplayRunning(_)));
    assert_eq!(ack(&consumer, &delivery).await, 1);
    let truncated = async {
        let links = || home.store.read_whole_stream(stream.as_str());
        while links().await.expect("readable").len() > 1 {
            tokio::task::yield_now().await;
        }
        let left = links().await.expect("readable");
        assert_eq!(left.len(), 1, "one was truncated too many");
    };
    within("the parked stream is truncated", truncated).await;
    groups.replay_parked(&group, None).await.expect("begun");
    assert_eq!(work_off(&mut consumer, 1).await, [1]);
    groups.shutdown().await;
}

async fn what_a_consumer_holds_goes_to_others_when_it_leaves(home: Home) {
    let group = on_stream("cart-1");
    let groups = groups(&home);
    create(&groups, &group, patient()).await;
    write(&home, "cart-1", 3).await;
    let mut first = join(&groups, &group, 10).await;
    let delivery = next(&mut first).await;
    assert_eq!(delivery.event.revision, Revision(0));
    let mut second = join(&groups, &group, 10).await;
    drop(first);
    let mut found = Vec::new();
    for _ in 0..3 {
        let delivery = next(&mut second).await;
        found.push((delivery.event.revision.0, delivery.retries));
        assert_eq!(ack(&second, &delivery).await, 1);
    }
    // What the first had not taken has not failed, and goes before what may have been the reason to leave.
    assert_eq!(found, [(1, 0), (2, 0), (0, 1)]);
    groups.shutdown().await;
}

/// What happened: a consumer that vanished without closing kept its place, and its events ran out of tries.
async fn a_silent_consumer_has_to_leave(home: Home) {
    let group = on_stream("cart-1");
    let groups = groups(&home);
    let settings = Settings {
        message_timeout_ms: 50,
        // Whatever fails once is parked.
        max_retry_count: 0,
        ..eager()
    };
    create(&groups, &group, settings).await;
    write(&home, "cart-1", 3).await;
    let mut silent = join(&groups, &group, 2).await;
    let taken = next(&mut silent).await;
    let told = end(&mut silent).await;
    assert!(
        matches!(&told, Error::Silent { consumer, .. } if *consumer == silent.id()),
        "{told}"
    );
    let late = silent.ack(vec![Which::Delivery(taken.number)]).await;
    assert!(matches!(late, Err(Error::NoConsumer { .. })));
    // The group waits for this one however long it takes.
    let mut other = join_patiently(&groups, &group, 10, Duration::from_secs(600)).await;
    // The silent one had taken the first event, and may have been working on it; the other events had no chance.
    for revision in 1..3 {
        let delivery = next(&mut other).await;
        let found = (delivery.event.revision.0, delivery.retries);
        assert_eq!(found, (revision, 0));
        assert_eq!(ack(&other, &delivery).await, 1);
    }
    within("the first is parked", async {
        while groups.info(&group).await.expect("known").parked < 1 {
            tokio::task::yield_now().await;
        }
    })
    .await;
    let info = groups.info(&group).await.expect("known");
    let counts = info.running.expect("it runs").counts;
    assert_eq!((counts.silent, info.parked), (1, 1));
    groups.shutdown().await;
}

async fn of_two_processes_the_one_that_came_last_runs_the_group(home: Home) {
    let group = on_stream("cart-1");
    let (old, new) = (groups(&home), groups(&home));
    create(&old, &group, eager()).await;
    write(&home, "cart-1", 10).await;
    let mut of_old = join(&old, &group, 5).await;
    assert_eq!(revisions(&mut of_old, 2).await, [0, 1]);
    let mut of_new = join(&new, &group, 5).await;
    assert_eq!(work_off(&mut of_new, 3).await, [0, 1, 2]);
    // The old process learns it with its next checkpoint.
    let delivery = next(&mut of_old).await;
    let first = of_old.ack(vec![Which::Event(delivery.event.id)]).await;
    assert_eq!(first.expect("answered"), 1);
    drop(delivery);
    let info = |groups: Groups| async move {
        groups
            .info(&on_stream("cart-1"))
            .await
            .expect("known")
            .checkpoint
    };
    assert!(info(new.clone()).await <= Some(3));
    // An event before it was finished by nobody there, so nothing is written until all up to it are.
    let mut told = None;
    while told.is_none() {
        match within("the old process is told", of_old.next()).await {
            Ok(delivery) => drop(of_old.ack(vec![Which::Delivery(delivery.number)]).await),
            Err(error) => told = Some(error),
        }
        // Those that were only taken count as finished now.
        for number in 0..10 {
            drop(
                of_old
                    .ack(vec![Which::Delivery(gesta_groups::Token(number))])
                    .await,
            );
        }
    }
    assert!(matches!(told, Some(Error::TakenOver(_))), "{told:?}");
    assert_eq!(work_off(&mut of_new, 7).await, (3..10).collect::<Vec<_>>());
    old.shutdown().await;
    new.shutdown().await;
    assert_eq!(info(groups(&home)).await, Some(10));
}

async fn a_changed_group_keeps_its_checkpoint_and_a_new_one_has_none(home: Home) {
    let group = on_stream("cart-1");
    let groups = groups(&home);
    create(&groups, &group, patient()).await;
    write(&home, "cart-1", 5).await;
    let mut consumer = join(&groups, &group, 5).await;
    work_off(&mut consumer, 2).await;
    let settings = Settings {
        start: Start::At(4),
        max_retry_count: 7,
        ..eager()
    };
    groups
        .update(&group, settings.clone())
        .await
        .expect("changed");
    assert!(matches!(end(&mut consumer).await, Error::Dropped(_)));
    let info = groups.info(&group).await.expect("known");
    assert_eq!((info.settings, info.checkpoint), (settings, Some(2)));
    let mut consumer = join(&groups, &group, 5).await;
    assert_eq!(revisions(&mut consumer, 1).await, [2]);
    let which = vec![Which::Delivery(gesta_groups::Token(0))];
    consumer
        .nack(which, Action::Park, "")
        .await
        .expect("answered");
    let parked = || async {
        while groups.info(&group).await.expect("known").parked == 0 {
            tokio::task::yield_now().await;
        }
    };
    within("it is parked", parked()).await;

    groups.delete(&group).await.expect("deleted");
    assert!(matches!(end(&mut consumer).await, Error::NotFound(_)));
    assert!(matches!(
        groups.delete(&group).await,
        Err(Error::NotFound(_))
    ));
    assert!(matches!(
        groups.update(&group, eager()).await,
        Err(Error::NotFound(_))
    ));
    assert!(matches!(groups.info(&group).await, Err(Error::NotFound(_))));
    assert!(matches!(
        try_join(&groups, &group, 1).await,
        Err(Error::NotFound(_))
    ));
    assert_eq!(groups.list(None, None, 10).await.expect("listed"), []);

    create(&groups, &group, patient()).await;
    let info = groups.info(&group).await.expect("known");
    assert_eq!((info.checkpoint, info.parked), (None, 0));
    let mut consumer = join(&groups, &group, 5).await;
    assert_eq!(revisions(&mut consumer, 1).await, [0]);
    groups.shutdown().await;
}

async fn a_group_on_all_events_does_not_see_its_own_checkpoints(home: Home) {
    let all = GroupId::new(Source::All, "mail").expect("valid");
    let groups = groups(&home);
    let filter = Filter::query(categories(&["cart"]));
    create(&groups, &all, eager()).await;
    let filtered = GroupId::new(Source::All, "carts").expect("valid");
    let with_filter = Create {
        group: filtered.clone(),
        settings: eager(),
        filter: filter.clone(),
    };
    groups.create(with_filter).await.expect("created");
    write(&home, "cart-1", 3).await;
    write(&home, "other-1", 3).await;
    write(&home, "cart-2", 3).await;
    let mut of_all = join(&groups, &all, 2).await;
    let mut of_carts = join(&groups, &filtered, 2).await;
    let mut found = Vec::new();
    while found.len() < 9 {
        let delivery = next(&mut of_all).await;
        ack(&of_all, &delivery).await;
        let stream = delivery.event.stream.to_string();
        assert!(!stream.contains("-checkpoint"), "{stream}");
        if !stream.starts_with('$') {
            found.push(stream);
        }
    }
    for stream in ["cart-1", "cart-2"] {
        for _ in 0..3 {
            let delivery = next(&mut of_carts).await;
            assert_eq!(delivery.event.stream.as_str(), stream);
            ack(&of_carts, &delivery).await;
        }
    }
    let info = groups.info(&filtered).await.expect("known");
    assert_eq!(info.filter, filter);
    let mut listed = groups
        .list(Some(&Source::All), None, 10)
        .await
        .expect("listed");
    listed.sort();
    assert_eq!(listed, [filtered, all.clone()]);
    groups.shutdown().await;
    let end = groups_checkpoint(&home, &all).await;
    assert!(end.is_some_and(|end| end > 9), "{end:?}");
}

/// Goal: a group that has caught up, past events that are not for it, has made no progress that is worth a checkpoint:
/// otherwise the checkpoints of groups on all events would cause further ones.
async fn catching_up_is_no_progress(home: Home) {
    let group = GroupId::new(Source::All, "carts").expect("valid");
    let groups = groups(&home);
    let settings = Settings {
        checkpoint_after_ms: 600_000,
        min_checkpoint_count: 2,
        max_checkpoint_count: 2,
        ..patient()
    };
    let create = Create {
        group: group.clone(),
        settings,
        filter: Filter::query(categories(&["cart"])),
    };
    groups.create(create).await.expect("created");
    write(&home, "other-1", 3).await;
    let mut consumer = join(&groups, &group, 1).await;
    let caught_up = async {
        let is_live = async || {
            let info = groups.info(&group).await.expect("known");
            info.running.is_some_and(|running| running.is_live)
        };
        while !is_live().await {
            tokio::task::yield_now().await;
        }
    };
    within("the group has caught up", caught_up).await;
    let mut last = 0;
    // One after the other: what the first one is worth is known when the second one comes.
    for _ in 0..2 {
        write(&home, "cart-1", 1).await;
        let delivery = next(&mut consumer).await;
        assert_eq!(ack(&consumer, &delivery).await, 1);
        last = delivery.event.position.0;
    }
    let stored = async {
        loop {
            let info = groups.info(&group).await.expect("known");
            if let Some(stored) = info.checkpoint {
                return stored;
            }
            tokio::task::yield_now().await;
        }
    };
    let stored = within("a checkpoint is stored", stored).await;
    assert!(stored > last, "{stored} for one event, and not for two");
    groups.shutdown().await;
}

async fn groups_checkpoint(home: &Home, group: &GroupId) -> Option<u64> {
    groups(home).info(group).await.expect("known").checkpoint
}

async fn a_group_begins_where_it_is_told(home: Home) {
    let groups = groups(&home);
    write(&home, "cart-1", 3).await;
    let named = |name: &str| {
        let stream = StreamId::new("cart-1").expect("valid");
        GroupId::new(Source::Stream(stream), name).expect("valid")
    };
    let starts = [
        ("start", Start::Start, 0),
        ("end", Start::End, 3),
        ("at", Start::At(2), 2),
        ("later", Start::At(5), 5),
    ];
    for (name, start, _) in starts {
        let settings = Settings { start, ..patient() };
        create(&groups, &named(name), settings).await;
    }
    // The end is the one of the moment of creation, even if nobody joins until later.
    write(&home, "cart-1", 4).await;
    for (name, _, first) in starts {
        let mut consumer = join(&groups, &named(name), 1).await;
        assert_eq!(work_off(&mut consumer, 1).await, [first], "{name}");
    }
    let beyond = Create {
        group: GroupId::new(Source::All, "mail").expect("valid"),
        settings: Settings {
            start: Start::At(1_000_000),
            ..patient()
        },
        filter: Filter::ALL,
    };
    let error = groups
        .create(beyond)
        .await
        .expect_err("beyond the end")
        .to_string();
    assert!(error.contains("start.at must be at most"), "{error}");
    groups.shutdown().await;
}

/// What happened: of every 256 events that were ready at once, one was taken from the subscription and forgotten.
async fn a_group_delivers_every_event_of_a_long_stream(home: Home) {
    let group = on_stream("cart-1");
    let groups = groups(&home);
    let settings = Settings {
        history_buffer_size: 1_500,
        live_buffer_size: 1_500,
        ..patient()
    };
    create(&groups, &group, settings).await;
    write(&home, "cart-1", 3_000).await;
    let mut consumer = join(&groups, &group, 2_000).await;
    let found = work_off(&mut consumer, 3_000).await;
    assert_eq!(found, (0..3_000).collect::<Vec<_>>());
    groups.shutdown().await;
}

async fn of_many_that_create_a_group_one_does(home: Home) {
    let group = on_stream("cart-1");
    let creates = (0..8).map(|_| {
        let (groups, group) = (groups(&home), group.clone());
        tokio::spawn(async move {
            let create = Create {
                group,
                settings: patient(),
                filter: Filter::ALL,
            };
            groups.create(create).await
        })
    });
    let mut created = 0;
    for outcome in futures::future::join_all(creates).await {
        match outcome.expect("no panic") {
            Ok(()) => created += 1,
            Err(Error::Exists(_)) => {}
            Err(error) => panic!("{error}"),
        }
    }
    assert_eq!(created, 1);
    // Those who join at once in one process get one task.
    let groups = groups(&home);
    let joins = (0..8).map(|_| try_join(&groups, &group, 1));
    let consumers = futures::future::join_all(joins).await;
    assert!(consumers.iter().all(Result::is_ok), "{consumers:?}");
    let running = groups.info(&group).await.expect("known").running;
    assert_eq!(running.expect("it runs").consumers.len(), 8);
    groups.shutdown().await;
}

async fn a_deleted_stream_does_not_stop_its_group(home: Home) {
    let group = on_stream("cart-1");
    let groups = groups(&home);
    create(&groups, &group, eager()).await;
    write(&home, "cart-1", 2).await;
    let mut consumer = join(&groups, &group, 10).await;
    assert_eq!(work_off(&mut consumer, 2).await, [0, 1]);
    let any = ExpectedRevision::Any;
    let deleted = gesta_kit::support::delete(&*home.store, "cart-1", any, Default::default());
    deleted.await.expect("deleted");
    write(&home, "cart-1", 2).await;
    assert_eq!(work_off(&mut consumer, 2).await, [2, 3]);
    groups.shutdown().await;
    // Also if it is deleted while nobody runs it.
    let deleted = gesta_kit::support::delete(&*home.store, "cart-1", any, Default::default());
    deleted.await.expect("deleted");
    let groups = support::groups(&home);
    let mut consumer = join(&groups, &group, 10).await;
    write(&home, "cart-1", 1).await;
    assert_eq!(work_off(&mut consumer, 1).await, [4]);
    groups.shutdown().await;
}

/// What went wrong before: a process that had lost the group, and the process that had claimed it, each stored the same
/// event as parked, and a replay delivered the event twice.
async fn what_two_processes_park_is_parked_once(home: Home) {
    let group = on_stream("cart-1");
    let (first, second) = (groups(&home), groups(&home));
    // No checkpoint tells the second process what the first one has done.
    let settings = Settings {
        checkpoint_after_ms: 3_600_000,
        min_checkpoint_count: 1_000,
        max_checkpoint_count: 1_000,
        ..patient()
    };
    create(&first, &group, settings).await;
    write(&home, "cart-1", 3).await;
    let links = || async {
        let parked = group.parked_stream();
        let links = home.store.read_whole_stream(parked.as_str()).await;
        let links = links.unwrap_or_default();
        let links = links
            .iter()
            .map(|link| String::from_utf8_lossy(&link.data).into_owned());
        links.collect::<Vec<_>>()
    };
    let park = |consumer: Consumer, count: usize| async move {
        let mut consumer = consumer;
        for _ in 0..count {
            let delivery = next(&mut consumer).await;
            let which = vec![Which::Delivery(delivery.number)];
            let nacked = consumer.nack(which, Action::Park, "no such article").await;
            assert_eq!(nacked.expect("answered"), 1);
        }
        consumer
    };
    let old = park(join(&first, &group, 10).await, 2).await;
    within("two are parked", async {
        while links().await.len() < 2 {
            tokio::task::yield_now().await;
        }
    })
    .await;
    // The second one claims the group, knows nothing of that, and parks all three in another order of appends.
    let new = park(join(&second, &group, 10).await, 3).await;
    within("all are settled", async {
        while second.info(&group).await.expect("known").parked < 3 {
            tokio::task::yield_now().await;
        }
    })
    .await;
    assert_eq!(links().await, ["0@cart-1", "1@cart-1", "2@cart-1"]);
    drop((old, new));
    // What is replayed and fails again is parked again.
    second.replay_parked(&group, Some(1)).await.expect("begun");
    let again = park(join(&second, &group, 10).await, 1).await;
    within("it is parked again", async {
        while links().await != ["1@cart-1", "2@cart-1", "0@cart-1"] {
            tokio::task::yield_now().await;
        }
    })
    .await;
    drop(again);
    second.shutdown().await;
}
