//! Stores move to another database while they are used, die after every step, are taken back, and are disturbed.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    missing_docs,
    reason = "tests"
)]

mod faults;
mod losses;
mod support;

use std::sync::Arc;

use gesta::Options;
use gesta_copy::{Consumers, Copy, Move, MoveSettings, MoveStep, Settings, Target, Undone};
use gesta_core::backend::RunMode;
use gesta_core::{
    AllFrom, DeleteKind, DeleteStream, ErrorKind, EventStore, EventStoreExt, ExpectedRevision,
    ReadAll, StreamId,
};
use gesta_kit::depth;
use gesta_rig::shared;
use support::{
    accepts, all, append, fill, is_healthy, move_store, postgres, settings, sources, sqlite,
    to_the_end, undo_move,
};

/// Goal: everything comes along, positions and checkpoints too; the source says where the store is, to programs that
/// have it open, for reads too; the target is repeated as done, and goes on.
#[tokio::test(flavor = "multi_thread")]
async fn a_store_moves_with_all_that_it_has() {
    let home = tempfile::tempdir().unwrap();
    for source in sources(home.path()) {
        let is_file = source.starts_with("sqlite:");
        fill(&source, 120).await;
        let expected = all(&source).await;
        let store = Options::default().open_database(&source).await.unwrap();
        let page = store.read_all(ReadAll::forwards().limit(50)).await.unwrap();
        if is_file {
            // One process has a file.
            let target = postgres().unwrap();
            let error = move_store(&source, &target).await.expect_err("served");
            assert!(error.to_string().contains("stop what uses it"), "{error}");
            assert!(append(&store, "cart-1").await.is_ok());
            store.shutdown().await.unwrap();
        }
        let target = postgres().unwrap();
        let report = move_store(&source, &target).await.unwrap();
        assert!(report.checkpoints_kept);
        let found = all(&target).await;
        assert_eq!(found[..expected.len()], expected);
        assert_eq!(found.len(), expected.len() + usize::from(is_file));
        assert_eq!(report.events, found.len() as u64);
        is_healthy(&target).await;
        if !is_file {
            let (_, place) = target.rsplit_once('/').unwrap();
            let place = place.split('?').next().unwrap();
            let refused = [
                append(&store, "cart-1").await.err(),
                append(&store, "new-1").await.err(),
                store.read_whole_stream("cart-1").await.err(),
                store.read_whole_stream("nobody-1").await.err(),
                store.read_all(ReadAll::forwards().limit(50)).await.err(),
                store
                    .stream_metadata(StreamId::new("cart-1").unwrap())
                    .await
                    .err(),
            ];
            for error in refused {
                let error = error.expect("refused");
                assert!(
                    matches!(error.kind(), ErrorKind::Unavailable(_)),
                    "{error:?}"
                );
                let text = error.to_string();
                assert!(
                    text.contains("has moved to") && text.contains(place),
                    "{text}"
                );
            }
            store.shutdown().await.unwrap();
        }
        let error = Options::default()
            .open_database(&source)
            .await
            .expect_err("moved");
        assert!(matches!(error.kind(), ErrorKind::Schema(_)), "{error:?}");
        assert!(error.to_string().contains("has moved to"), "{error}");
        // Once more: it is done, also while the target is used.
        let store = Options::default().open_database(&target).await.unwrap();
        let again = move_store(&source, &target).await.unwrap();
        assert_eq!(again, report);
        let error = undo_move(&source, &target, Target::Gone)
            .await
            .expect_err("opened");
        assert!(error.to_string().contains("cannot be undone"), "{error}");
        let mut request = ReadAll::forwards();
        request.from = AllFrom::Checkpoint(page.next.clone());
        let rest = store.read_all(request).await.unwrap();
        assert_eq!(rest.events[0].position, found[50].position);
        append(&store, "cart-1").await.unwrap();
        append(&store, "new-1").await.unwrap();
        store.shutdown().await.unwrap();
        is_healthy(&target).await;
    }
}

/// Goal: whatever dies after whichever step, at most one of the two accepts appends; another move ends it, or an undo
/// takes it back until the target was opened; nothing is lost or doubled, and one of the two accepts in the end.
#[tokio::test(flavor = "multi_thread")]
async fn a_move_that_dies_after_any_step_goes_on_or_is_undone() {
    let home = tempfile::tempdir().unwrap();
    for (kind, first) in sources(home.path()).into_iter().enumerate() {
        drop(first);
        // Before the first step the target is an empty store like any other.
        let (mut dies_after, mut ways) = (1, 0);
        loop {
            let mut was_last = false;
            // In the quick form each step is undone for one of the two kinds, and gone on with for the other.
            let both = [kind == dies_after % 2, kind != dies_after % 2];
            for wants_undo in &both[..depth::count(1, 2)] {
                let wants_undo = *wants_undo;
                let source = match kind {
                    0 => postgres().unwrap(),
                    _ => sqlite(home.path(), &format!("{dies_after}-{wants_undo}.db")),
                };
                let target = postgres().unwrap();
                fill(&source, 30).await;
                let mut moved = Move::open(&source, &target, settings()).await.unwrap();
                let mut last = None;
                for _ in 0..dies_after {
                    let step = moved.step().await.unwrap();
                    was_last = matches!(step, MoveStep::Moved(_));
                    last = Some(step);
                }
                // The process is gone; whoever goes on waits for the end of its sessions.
                moved.close().await;
                let (mut old, new) = (accepts(&source).await, accepts(&target).await);
                assert!(!(old && new), "after {last:?}");
                ways += 1;
                if wants_undo {
                    match undo_move(&source, &target, Target::There).await {
                        Ok(_) => {
                            old = accepts(&source).await;
                            assert!(old && !accepts(&target).await, "after {last:?}");
                            let refused = move_store(&source, &target).await;
                            let error = refused.expect_err("undone").to_string();
                            assert!(error.contains("was undone"), "{error}");
                            // To another target it moves.
                            if dies_after % 3 == 1 {
                                move_store(&source, &postgres().unwrap()).await.unwrap();
                            }
                            continue;
                        }
                        Err(error) => {
                            assert!(new, "after {last:?}: {error}");
                            assert!(error.to_string().contains("cannot be undone"), "{error}");
                        }
                    }
                }
                let expected = if old { all(&source).await } else { Vec::new() };
                move_store(&source, &target).await.unwrap();
                assert!(!accepts(&source).await, "after {last:?}");
                let found = all(&target).await;
                assert!(found.starts_with(&expected), "after {last:?}");
                let mut positions: Vec<_> = found.iter().map(|event| event.position).collect();
                positions.dedup();
                assert_eq!(positions.len(), found.len());
                assert!(accepts(&target).await);
                is_healthy(&target).await;
            }
            if was_last {
                break;
            }
            dies_after += 1;
        }
        assert!(ways > depth::count(6, 12), "{ways}");
    }
}

/// Goal: appends of programs that have the source open go on while it is copied, miss none of what they wrote in the
/// target, and are answered with the new place; an undo gives the store back to the same programs.
#[tokio::test(flavor = "multi_thread")]
async fn writers_go_on_until_the_source_is_closed() {
    let (Some(source), Some(target), Some(other)) = (postgres(), postgres(), postgres()) else {
        return;
    };
    fill(&source, 200).await;
    let stores = [
        Options::default().open_database(&source).await.unwrap(),
        Options::default().open_database(&source).await.unwrap(),
    ];
    // Until it is closed, and back.
    let mut moved = Move::open(&source, &target, settings()).await.unwrap();
    while moved.step().await.unwrap() != MoveStep::Closed {
        for (n, store) in stores.iter().enumerate() {
            append(store, &format!("writer-{n}")).await.unwrap();
        }
    }
    while moved.step().await.unwrap() != MoveStep::Shut {}
    moved.close().await;
    assert_eq!(
        undo_move(&source, &target, Target::There).await.unwrap(),
        Undone::Undone
    );
    assert_eq!(
        undo_move(&source, &target, Target::There).await.unwrap(),
        Undone::Nothing
    );
    for (n, store) in stores.iter().enumerate() {
        let name = format!("writer-{n}");
        let deadline = tokio::time::Instant::now() + std::time::Duration::from_secs(60);
        while let Err(error) = append(store, &name).await {
            assert!(error.is_retryable(), "{error}");
            assert!(tokio::time::Instant::now() < deadline, "{error}");
        }
    }
    // Now for good, under load.
    let writers: Vec<_> = stores
        .iter()
        .enumerate()
        .map(|(n, store)| {
            let store = Arc::clone(store);
            tokio::spawn(async move {
                let (name, mut stored) = (format!("load-{n}"), 0);
                loop {
                    match append(&store, &name).await {
                        Ok(()) => stored += 1,
                        Err(error) => return (name, stored, error),
                    }
                }
            })
        })
        .collect();
    let report = move_store(&source, &other).await.unwrap();
    let found = Options::default().open_database(&other).await.unwrap();
    for writer in writers {
        let (name, stored, error) = writer.await.unwrap();
        assert!(stored > 0 && error.is_retryable(), "{error}");
        let events = found.read_whole_stream(&*name).await.unwrap();
        // An append whose outcome is not known may be stored.
        assert!(
            events.len() == stored || events.len() == stored + 1,
            "{name}: {error}"
        );
    }
    assert!(report.events > 200);
    found.shutdown().await.unwrap();
    is_healthy(&other).await;
    for store in stores {
        store.shutdown().await.unwrap();
    }
}

/// Goal: what cannot be moved, or not so, is refused with the reason, and stays as it was.
#[tokio::test(flavor = "multi_thread")]
async fn what_cannot_move_says_why() {
    let home = tempfile::tempdir().unwrap();
    let (Some(source), Some(used)) = (postgres(), postgres()) else {
        return;
    };
    fill(&source, 20).await;
    fill(&used, 20).await;
    let file = sqlite(home.path(), "file.db");
    let two = format!("{source} {used}");
    for (from, to, says) in [
        (&source, &used, "must be empty"),
        (&source, &source, "another store"),
        (&source, &file, "gesta copy"),
        (&two, &file, "move-log"),
        (&source, &two, "move-log"),
    ] {
        let error = move_store(from, to).await.expect_err(says).to_string();
        assert!(error.contains(says), "{error}");
    }
    assert!(accepts(&source).await && accepts(&used).await);

    // The target of a copy is not that of a move, nor the other way round.
    let copied = postgres().unwrap();
    let copy = Copy::open(&source, &copied, Settings::default())
        .await
        .unwrap();
    copy.close().await;
    let error = move_store(&source, &copied)
        .await
        .expect_err("copy")
        .to_string();
    assert!(error.contains("that of a copy"), "{error}");
    let target = postgres().unwrap();
    let mut moved = Move::open(&source, &target, settings()).await.unwrap();
    assert_eq!(moved.step().await.unwrap(), MoveStep::Begun);
    // Two movers exclude each other.
    let error = Move::open(&source, &postgres().unwrap(), settings())
        .await
        .expect_err("two");
    assert!(
        error.to_string().contains("another process moves"),
        "{error}"
    );
    moved.close().await;
    let error = Copy::open(&source, &target, Settings::default())
        .await
        .expect_err("move");
    assert!(error.to_string().contains("that of a move"), "{error}");

    // Scavenged on the way.
    let mut moved = Move::open(&source, &target, settings()).await.unwrap();
    let store = Options::default().open_database(&source).await.unwrap();
    let delete = DeleteStream {
        stream: StreamId::new("cart-1").unwrap(),
        expected: ExpectedRevision::Any,
        kind: DeleteKind::Soft,
    };
    store.delete_stream(delete).await.unwrap();
    append(&store, "last-1").await.unwrap();
    store.scavenge(RunMode::Real, |_| ()).await.unwrap();
    let error = loop {
        if let Err(error) = moved.step().await {
            break error.to_string();
        }
    };
    assert!(error.contains("was scavenged"), "{error}");
    moved.close().await;
    assert!(append(&store, "cart-1").await.is_ok());

    // Virtual streams are made again.
    store.switch_virtual_streams(true).await.unwrap();
    store.shutdown().await.unwrap();
    let target = postgres().unwrap();
    let error = move_store(&source, &target)
        .await
        .expect_err("virtual")
        .to_string();
    assert!(error.contains("--new-incarnation"), "{error}");
    let begin_again = MoveSettings {
        consumers: Consumers::BeginAgain,
        ..settings()
    };
    let moved = Move::open(&source, &target, begin_again).await.unwrap();
    let report = to_the_end(moved).await.unwrap();
    assert!(!report.checkpoints_kept && report.changes.len() == 1);
    let store = Options::default().open_database(&target).await.unwrap();
    assert!(
        !store
            .read_whole_stream("$ce-cart")
            .await
            .unwrap()
            .is_empty()
    );
    store.shutdown().await.unwrap();
}

/// What happened: a wrong source gave up the half copied target of another store's move, as it was told to; beside a
/// target that another store had moved to, it was called one that had lost that. Goal: the target of another store's
/// move is left alone, and that move ends.
#[tokio::test(flavor = "multi_thread")]
async fn the_target_of_another_store_is_left_alone() {
    let (Some(source), Some(other), Some(target)) = (postgres(), postgres(), postgres()) else {
        return;
    };
    fill(&source, 20).await;
    fill(&other, 30).await;
    let is_refused = async || {
        let refused = [
            move_store(&other, &target).await.map(drop),
            undo_move(&other, &target, Target::There).await.map(drop),
            undo_move(&other, &target, Target::Gone).await.map(drop),
        ];
        for error in refused {
            let error = error.expect_err("of another store").to_string();
            assert!(error.contains("another store"), "{error}");
        }
        assert!(accepts(&other).await);
    };
    let mut moved = Move::open(&source, &target, settings()).await.unwrap();
    while !matches!(moved.step().await.unwrap(), MoveStep::Copied(_)) {}
    moved.close().await;
    is_refused().await;
    move_store(&source, &target).await.unwrap();
    is_refused().await;
    assert!(accepts(&target).await);
}

/// What happened: an empty store that was named in two ways was marked as the target of its own move, and nobody could
/// open it any more.
#[tokio::test(flavor = "multi_thread")]
async fn a_store_does_not_move_to_itself_by_another_name() {
    let Some(source) = postgres() else { return };
    gesta::schema::create(&source, 1).await.unwrap();
    let target = match source.contains("127.0.0.1") {
        true => source.replace("127.0.0.1", "localhost"),
        false => source.replace("localhost", "127.0.0.1"),
    };
    assert_ne!(source, target);
    let error = move_store(&source, &target).await.expect_err("itself");
    assert!(error.to_string().contains("another store"), "{error}");
    let error = Copy::open(&source, &target, Settings::default()).await;
    let error = error.expect_err("itself").to_string();
    assert!(error.contains("another store"), "{error}");
    // One that was marked before is opened by an undo.
    let Some(other) = postgres() else { return };
    fill(&other, 10).await;
    let mut moved = Move::open(&other, &source, settings()).await.unwrap();
    assert_eq!(moved.step().await.unwrap(), MoveStep::Begun);
    moved.close().await;
    assert!(!accepts(&source).await);
    undo_move(&source, &target, Target::There).await.unwrap();
    assert!(accepts(&source).await);
    let error = undo_move(&source, &target, Target::There).await;
    assert!(error.is_err());
}

/// Goal: a target that has lost what was copied is not opened, and a target that is gone does not keep the source
/// closed for good.
#[tokio::test(flavor = "multi_thread")]
async fn a_target_that_is_lost_is_not_opened() {
    let (Some(source), Some(target)) = (postgres(), postgres()) else {
        return;
    };
    fill(&source, 100).await;
    let until_shut = async || {
        let mut moved = Move::open(&source, &target, settings()).await.unwrap();
        while moved.step().await.unwrap() != MoveStep::Shut {}
        moved.close().await;
    };
    until_shut().await;
    // The database is made anew at the same place.
    let name = target.rsplit_once('/').unwrap().1;
    let name = name.split('?').next().unwrap();
    let server = shared().unwrap();
    server
        .execute(&format!("DROP DATABASE {name} WITH (FORCE)"))
        .unwrap();
    server.create_database(name).unwrap();
    let error = move_store(&source, &target)
        .await
        .expect_err("lost")
        .to_string();
    assert!(error.contains("--target-is-gone"), "{error}");
    let error = undo_move(&source, &target, Target::There)
        .await
        .expect_err("lost")
        .to_string();
    assert!(error.contains("--target-is-gone"), "{error}");
    assert!(!accepts(&source).await);
    assert_eq!(
        undo_move(&source, &target, Target::Gone).await.unwrap(),
        Undone::Undone
    );
    assert!(accepts(&source).await);
    is_healthy(&source).await;
    move_store(&source, &target).await.unwrap();
    assert!(accepts(&target).await);
}
