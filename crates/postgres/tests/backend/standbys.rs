//! What an answer is worth with synchronous standbys (contract C4): appends and batches without rows.
//!
//! What happened: a batch without rows only looked at the end of the log. A row can be visible there although no
//! standby has it: a crash, or the end of its session, cuts the wait short. Readers and retries were told of it, and a
//! fail-over then lost it. What holds now: with synchronous standbys such a batch is a commit, and waits for them as an
//! append does.

use std::time::Duration;

use gesta_core::backend::{Backend, BatchOutcome};
use gesta_core::{Error, ErrorKind};
use gesta_postgres::{PostgresBackend, Relocation};
use gesta_rig::{Cluster, Replication, Server, fresh_schema};
use tokio::task::JoinHandle;

use crate::common::{Author, LOG, PATIENCE, config, confirm, draft, is_committed, is_missed, open};

/// Waits until a commit of Gesta waits for a standby.
async fn is_waiting(server: &Server) {
    let waits = "SELECT pid FROM pg_stat_activity WHERE wait_event = 'SyncRep' AND application_name = 'gesta'";
    let begun = tokio::time::Instant::now();
    while server.query(waits).expect("answers").is_none() {
        assert!(begun.elapsed() < PATIENCE, "nothing waits");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// Cancels the waits, as an administrator would who wants the primary to go on.
fn cancel_waits(server: &Server) {
    let cancel = "SELECT pg_cancel_backend(pid) FROM pg_stat_activity WHERE wait_event = 'SyncRep'";
    server.execute(cancel).expect("cancelled");
}

async fn ends<T>(task: JoinHandle<T>) -> T {
    let ended = tokio::time::timeout(PATIENCE * 2, task).await;
    ended.expect("ends in time").expect("does not panic")
}

#[tokio::test(flavor = "multi_thread")]
async fn appends_and_batches_without_rows_wait_for_synchronous_standbys() {
    let Some(cluster) = Cluster::start(1, Replication::Synchronous).expect("starts") else {
        return;
    };
    let primary = cluster.server(0);
    let backend = open(&format!("{}?schema={}", primary.url(), fresh_schema())).await;
    let mut writer = backend.open_writer(LOG).await.expect("opens");
    let mut author = Author::default();
    assert!(is_committed(
        &author.append(&mut *writer, &[draft("a", "T")]).await
    ));
    assert!(is_committed(&writer.submit(confirm(author.end)).await));

    cluster.hold_replication(1).expect("held");
    let batch = author.batch(&*writer, &[draft("a", "T")]);
    let appended = tokio::spawn(writer.submit(batch));
    let confirmed = tokio::spawn(writer.submit(confirm(author.end)));
    is_waiting(primary).await;
    assert!(!appended.is_finished() && !confirmed.is_finished());
    cluster.release_replication(1).expect("released");
    assert!(is_committed(&ends(appended).await));
    assert!(is_committed(&ends(confirmed).await));

    // Held alone: the batch without rows waits by itself. What misses needs no standby.
    cluster.hold_replication(1).expect("held");
    assert!(is_missed(&writer.submit(confirm(Default::default())).await));
    let confirmed = tokio::spawn(writer.submit(confirm(author.end)));
    is_waiting(primary).await;
    assert!(!confirmed.is_finished());
    // The wait is cancelled: the server reports success, with a warning.
    cancel_waits(primary);
    let outcome = ends(confirmed).await;
    assert!(matches!(outcome, BatchOutcome::Unknown(_)), "{outcome:?}");

    // The setting counts as it is now, not as it was when the connection was made.
    let mut writer = backend.open_writer(LOG).await.expect("opens");
    cluster
        .set_replication(Replication::Asynchronous)
        .expect("set");
    let confirmed = tokio::spawn(writer.submit(confirm(author.end)));
    assert!(is_committed(&ends(confirmed).await));
}

/// Goal: what the time-outs are set for. The statement has its time (3.2 s), and its commit waits on: only the answer's
/// time ends the wait, for us and not for the database.
#[tokio::test(flavor = "multi_thread")]
async fn no_time_out_of_the_database_ends_a_wait_for_a_standby() {
    let Some(cluster) = Cluster::start(1, Replication::Synchronous).expect("starts") else {
        return;
    };
    let primary = cluster.server(0);
    let url = format!("{}?schema={}", primary.url(), fresh_schema());
    // What has little time appends nothing but the batch that waits.
    let patient = open(&url).await;
    let mut writer = patient.open_writer(LOG).await.expect("opens");
    let mut author = Author::default();
    let first = author.append(&mut *writer, &[draft("a", "T")]).await;
    assert!(is_committed(&first));
    let backend = open(&format!("{url}&answer_timeout=4")).await;
    let mut writer = backend.open_writer(LOG).await.expect("opens");
    cluster.hold_replication(1).expect("held");
    let batch = author.batch(&*writer, &[draft("a", "T")]);
    let outcome = ends(tokio::spawn(writer.submit(batch))).await;
    assert!(matches!(outcome, BatchOutcome::Unknown(_)), "{outcome:?}");
    // The statement may have begun late.
    let waits = "SELECT pid FROM pg_stat_activity WHERE wait_event = 'SyncRep' AND application_name = 'gesta'
                 AND now() - query_start > interval '3.3 s'";
    let begun = tokio::time::Instant::now();
    while primary.query(waits).expect("answers").is_none() {
        assert!(begun.elapsed() < PATIENCE, "the commit waits no more");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// What happened: the commit that closes a log which moves to another database was cut off while it waited for a
/// synchronous standby, and counted as done; a fail-over then brought the log back open, beside the new home. What
/// holds now: it is an error, and whoever goes on begins with a commit that the standby has.
#[tokio::test(flavor = "multi_thread")]
async fn a_log_is_not_closed_by_a_commit_that_no_standby_has() {
    let Some(cluster) = Cluster::start(1, Replication::Synchronous).expect("starts") else {
        return;
    };
    let primary = cluster.server(0);
    let url = format!("{}?schema={}", primary.url(), fresh_schema());
    let _backend = open(&url).await;
    let relocation = || async { Relocation::open(&config(&url)).await.expect("opens") };
    let mover = relocation().await;
    mover.lock().await.expect("alone");
    let version = mover.read_map().await.expect("reads").map.version();
    cluster.hold_replication(1).expect("held");
    let closed = tokio::spawn(async move { mover.close(LOG, version).await });
    is_waiting(primary).await;
    cancel_waits(primary);
    let is_unknown = |error: &Error| matches!(error.kind(), ErrorKind::OutcomeUnknown(_));
    let error = ends(closed).await.expect_err("cut off");
    assert!(is_unknown(&error), "{error}");

    let next = relocation().await;
    let locked = tokio::spawn(async move { next.lock().await });
    is_waiting(primary).await;
    cancel_waits(primary);
    let error = ends(locked).await.expect_err("cut off");
    assert!(is_unknown(&error), "{error}");
    cluster.release_replication(1).expect("released");
    relocation().await.lock().await.expect("the standby has it");
}

/// Checks that the settings are shown which a writer reads when it is opened. Beside it the process looks at them now
/// and then: if it shows at that moment what it has read before, the next writer corrects it.
async fn writer_shows(backend: &PostgresBackend, text: &str) {
    let shown = || backend.info().durability.detail().to_owned();
    for _ in 0..3 {
        backend.open_writer(LOG).await.expect("opens");
        if shown().contains(text) {
            return;
        }
    }
    panic!("{}", shown());
}

/// What happened: `/info` showed for ever the settings of the moment when the store was opened, and told of synchronous
/// standbys that were gone after a fail-over. What holds now: every writer that is opened reads them, and so does an
/// idle process.
#[tokio::test(flavor = "multi_thread")]
async fn the_settings_shown_are_those_of_now() {
    let Some(mut cluster) = Cluster::start(1, Replication::Synchronous).expect("starts") else {
        return;
    };
    let backend = open(&format!("{}?schema={}", cluster.url(), fresh_schema())).await;
    let shown = || backend.info().durability.detail().to_owned();
    assert!(shown().contains("member_1"), "{}", shown());
    cluster
        .set_replication(Replication::Asynchronous)
        .expect("set");
    let begun = tokio::time::Instant::now();
    while !shown().contains("no synchronous standby") {
        assert!(begun.elapsed() < PATIENCE, "{}", shown());
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    cluster
        .set_replication(Replication::Synchronous)
        .expect("set");
    writer_shows(&backend, "member_1").await;
    cluster.server_mut(0).kill_9().expect("killed");
    cluster.promote(1).expect("promoted");
    writer_shows(&backend, "no synchronous standby").await;
}
