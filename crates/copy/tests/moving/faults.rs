//! Moves beside standbys that stand still, long transactions, programs that use the target, and users without rights.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use gesta::Options;
use gesta_copy::{Move, MoveStep, Target, is_unfinished_copy};
use gesta_core::EventStore;
use gesta_rig::{Cluster, Replication, Server, fresh_schema, shared};

use crate::support::{
    PATIENCE, accepts, fill, move_store, move_until, postgres, session, settings, to_the_end,
    undo_move, until,
};

/// Cuts off every wait of a move for a synchronous standby, as an administrator would who wants the primary to go on,
/// until `stop`.
fn cut_off(server: &Server, stop: &AtomicBool) {
    let cancel = "SELECT pg_cancel_backend(pid) FROM pg_stat_activity
                  WHERE wait_event = 'SyncRep' AND application_name IN ('gesta', 'gesta-copy')";
    while !stop.load(Ordering::SeqCst) {
        server.execute(cancel).expect("cancelled");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Goes on with a move whose waits for the standby of `cluster` are cut off, until as many attempts have failed.
/// Returns what was done.
async fn go_on_beside(
    cluster: &Arc<Cluster>,
    mut moved: Move,
    (source, target): (&str, &str),
) -> Vec<MoveStep> {
    let stop = Arc::new(AtomicBool::new(false));
    let (cluster, stopped) = (Arc::clone(cluster), Arc::clone(&stop));
    let cuts = tokio::task::spawn_blocking(move || cut_off(cluster.server(0), &stopped));
    let (mut failures, mut steps) = (0, Vec::new());
    let begun = tokio::time::Instant::now();
    while failures < 8 && !matches!(steps.last(), Some(MoveStep::Moved(_))) {
        assert!(begun.elapsed() < 2 * PATIENCE, "{failures} {steps:?}");
        match moved.step().await {
            Ok(step) => steps.push(step),
            Err(error) => {
                assert!(error.is_retryable(), "{error}");
                failures += 1;
                moved.close().await;
                moved = loop {
                    match Move::open(source, target, settings()).await {
                        Ok(moved) => break moved,
                        Err(error) => assert!(error.is_retryable(), "{error}"),
                    }
                };
            }
        }
    }
    moved.close().await;
    stop.store(true, Ordering::SeqCst);
    cuts.await.unwrap();
    steps
}

/// What happened: the commits that closed and shut the source were cut off while they waited for a synchronous standby,
/// which PostgreSQL reports as done, with a warning. The target was opened; a fail-over of the source then brought back
/// a store that is not closed. What holds now: the target is opened only after a commit of the source that the standby
/// has.
#[tokio::test(flavor = "multi_thread")]
async fn no_target_is_opened_while_the_standby_of_the_source_lacks_its_closing() {
    let Some(cluster) = Cluster::start(1, Replication::Synchronous).expect("starts") else {
        return;
    };
    let target = postgres().unwrap();
    let schema = fresh_schema();
    let url = |server: &Server| format!("{}?sslmode=disable&schema={schema}", server.url());
    let source = url(cluster.server(0));
    fill(&source, 30).await;
    let mut moved = Move::open(&source, &target, settings()).await.unwrap();
    // What comes next is the closing.
    until(&mut moved, |step| matches!(step, MoveStep::Waits(_))).await;
    cluster.hold_replication(1).expect("held");
    let cluster = Arc::new(cluster);
    let steps = go_on_beside(&cluster, moved, (&source, &target)).await;
    assert!(!steps.contains(&MoveStep::Opened), "{steps:?}");
    assert!(!accepts(&target).await && !accepts(&source).await);

    cluster.release_replication(1).expect("released");
    move_store(&source, &target).await.unwrap();
    let mut cluster = Arc::into_inner(cluster).expect("the only one");
    cluster.server_mut(0).kill_9().expect("killed");
    cluster.promote(1).expect("promoted");
    let error = Options::default()
        .open_database(&url(cluster.server(1)))
        .await
        .expect_err("moved");
    assert!(error.to_string().contains("has moved to"), "{error}");
    assert!(accepts(&target).await);
}

/// Goal: the same of the target: the source does not note an opening that a fail-over of the target would lose.
#[tokio::test(flavor = "multi_thread")]
async fn no_opening_is_noted_that_the_standby_of_the_target_lacks() {
    let Some(cluster) = Cluster::start(1, Replication::Synchronous).expect("starts") else {
        return;
    };
    let source = postgres().unwrap();
    let url = cluster.server(0).url();
    let target = format!("{url}?sslmode=disable&schema={}", fresh_schema());
    fill(&source, 30).await;
    let mut moved = Move::open(&source, &target, settings()).await.unwrap();
    until(&mut moved, |step| *step == MoveStep::Announced).await;
    cluster.hold_replication(1).expect("held");
    let cluster = Arc::new(cluster);
    let steps = go_on_beside(&cluster, moved, (&source, &target)).await;
    assert!(!steps.contains(&MoveStep::Noted), "{steps:?}");
    let client = session(&source, "reader").await;
    let opened = async || {
        let row = client.query_one("SELECT opened FROM moved", &[]).await;
        row.unwrap().get::<_, bool>(0)
    };
    assert!(!opened().await);
    cluster.release_replication(1).expect("released");
    move_store(&source, &target).await.unwrap();
    assert!(opened().await && accepts(&target).await);
}

/// What happened: a transaction that had read the source held its closing up, and nobody could say which. What holds
/// now: it is named, both before the closing and before the shutting.
#[tokio::test(flavor = "multi_thread")]
async fn who_holds_a_move_up_is_named() {
    let (Some(source), Some(target)) = (postgres(), postgres()) else {
        return;
    };
    fill(&source, 30).await;
    let client = session(&source, "auditor").await;
    let process = client.query_one("SELECT pg_backend_pid()", &[]).await;
    let process: i32 = process.unwrap().get(0);
    let mut moved = Move::open(&source, &target, settings()).await.unwrap();
    for ends in [MoveStep::Closed, MoveStep::Shut] {
        let reads = "BEGIN; SELECT count(*) FROM events";
        client.batch_execute(reads).await.unwrap();
        let is_named = |step: &MoveStep| match step {
            MoveStep::Waits(found) => found.iter().any(|one| {
                one.process == Some(process) && one.program == "auditor" && one.open_for.is_some()
            }),
            _ => false,
        };
        until(&mut moved, is_named).await;
        client.batch_execute("COMMIT").await.unwrap();
        until(&mut moved, |step| *step == ends).await;
    }
    to_the_end(moved).await.unwrap();
}

/// What happened: a server that was connected to the empty target, and whose sessions had another name than ours,
/// appended there, and the target was opened with what the source never had. What holds now: such a row is found before
/// the target is opened; and whoever comes after the mark is refused, whatever its sessions are called.
#[tokio::test(flavor = "multi_thread")]
async fn a_target_that_others_wrote_to_is_not_opened() {
    let Some(source) = postgres() else {
        return;
    };
    fill(&source, 20).await;
    for last in [
        MoveStep::Begun,
        MoveStep::Closed,
        MoveStep::Shut,
        MoveStep::Prepared,
        MoveStep::Announced,
    ] {
        let target = postgres().unwrap();
        let named = format!("{target}&application_name=accounting");
        let there = Options::creating().open_database(&named).await.unwrap();
        move_until(&source, &target, |step| *step == last).await;
        let error = Options::default()
            .open_database(&named)
            .await
            .expect_err("marked");
        assert!(is_unfinished_copy(&error), "{error}");
        // What a program would append that is connected already.
        let client = session(&target, "accounting").await;
        let append = "INSERT INTO events (position, stream, revision, type, created, writer, checksum, event_id, log, \
                      content_type, data, metadata) \
                      SELECT coalesce(max(position), 0) + 1, 1, 1000, 1, now(), 0, 0, gen_random_uuid(), 0, 0, '', '' \
                      FROM events";
        client.batch_execute(append).await.unwrap();
        let error = move_store(&source, &target).await.expect_err("disturbed");
        let error = error.to_string();
        assert!(error.contains("something else writes"), "{last:?}: {error}");
        there.shutdown().await.unwrap();
        assert!(!accepts(&target).await);
        undo_move(&source, &target, Target::There).await.unwrap();
        assert!(accepts(&source).await);
    }
}

/// What happened: a target that let the user of its URL not look was taken for one without a store, and an undo with
/// `--target-is-gone` opened the source beside it. What holds now: only the catalog says that there is no store.
#[tokio::test(flavor = "multi_thread")]
async fn a_target_that_refuses_is_not_taken_for_none() {
    let (Some(source), Some(target)) = (postgres(), postgres()) else {
        return;
    };
    fill(&source, 20).await;
    move_until(&source, &target, |step| *step == MoveStep::Opened).await;
    let (role, server) = (fresh_schema(), shared().unwrap());
    server
        .execute(&format!("CREATE ROLE {role} LOGIN"))
        .unwrap();
    let stranger = target.replacen("//postgres", &format!("//{role}"), 1);
    assert_ne!(stranger, target);
    for known in [Target::There, Target::Gone] {
        let error = undo_move(&source, &stranger, known).await;
        let error = error.expect_err("refused").to_string();
        assert!(error.contains("permission denied"), "{error}");
        assert!(!accepts(&source).await);
    }
    move_store(&source, &target).await.unwrap();
}
