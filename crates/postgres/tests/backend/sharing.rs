//! Several logs of one process on one connection: what goes together, and that each log has its own fate.

mod process;
mod racing;

use std::sync::Arc;

use futures::FutureExt;
use futures::future::join_all;
use gesta_core::backend::{Backend, BatchOutcome, Purpose};
use gesta_core::{LogId, StreamId};
use gesta_rig::{Cluster, Replication, Server};

use crate::common::{confirm_of, direct, fresh_logs, is_committed, is_missed, open};
use process::{
    LOGS, Process, all_end, ends, is_healthy, is_unknown, process, process_on, stream_of,
};

#[tokio::test(flavor = "multi_thread")]
async fn what_gathers_is_one_transaction() {
    let Some((mut process, hold, url)) = process().await else {
        return;
    };
    // New streams, new types and tags go as well as what is known; and so do compressed data.
    for round in 0..2 {
        let answers = process
            .submit_to_all(&hold, ["hold", "{}", "{}", "{}"])
            .await;
        hold.release().await;
        assert!(all_end(answers).await.iter().all(is_committed));
        let transactions = "SELECT count(DISTINCT xmin::text) FROM events WHERE log > 0";
        let row = hold.client.query_one(transactions, &[]).await;
        assert_eq!(row.expect("counted").get::<_, i64>(0), round + 1);
        hold.again().await;
    }
    for log in 0..LOGS {
        let events = process.everything(log).await;
        assert_eq!(events.len(), if log == 0 { 6 } else { 2 });
        assert_eq!(events[0].stream.as_str(), stream_of(usize::from(log)));
        assert_eq!(events[0].tags.as_slice().len(), usize::from(log == 2));
    }
    is_healthy(&url).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn compressed_data_and_batches_without_events_go_together() {
    let Some((mut process, hold, url)) = process().await else {
        return;
    };
    process.settle().await;
    let text: String = (0..3_000).map(|n: u32| format!("{n} ")).collect();
    let first = process.submit(0, 4, "hold");
    hold.is_waited_for().await;
    let mut batch = (*process.batch(1, 2, &text)).clone();
    let stream = StreamId::new(stream_of(1)).expect("valid");
    let compressing = format!("{url}&compression=client");
    let packer = open(&compressing).await;
    for row in &mut batch.rows {
        row.packed = packer.pack(&stream, row.content_type, &row.data);
        assert!(row.packed.is_some());
    }
    let packed = tokio::spawn(process.writers[1].submit(Arc::new(batch)));
    let end = confirm_of(LogId(2), process.authors[2].end);
    let wrong = confirm_of(LogId(3), process.authors[2].end);
    let end = tokio::spawn(process.writers[2].submit(end));
    let wrong = tokio::spawn(process.writers[3].submit(wrong));
    hold.release().await;
    for good in [first, packed, end] {
        let outcome = ends(good).await;
        assert!(is_committed(&outcome), "{outcome:?}");
    }
    assert!(is_missed(&ends(wrong).await));
    assert_eq!(process.everything(1).await[1].data, text.as_bytes());
    is_healthy(&url).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_log_whose_end_has_moved_misses_alone() {
    let Some((mut process, hold, url)) = process().await else {
        return;
    };
    process.settle().await;
    let mut other = Process::begin(open(&url).await).await;
    other.authors = process.authors.clone();
    assert!(is_committed(&ends(other.submit(1, 1, "{}")).await));
    let answers = process
        .submit_to_all(&hold, ["hold", "{}", "{}", "{}"])
        .await;
    // Chained to one that misses, and to one that does not.
    let later = [process.submit(1, 1, "{}"), process.submit(2, 1, "{}")];
    hold.release().await;
    let outcomes = all_end(answers).await;
    assert!(is_missed(&outcomes[1]), "{outcomes:?}");
    for log in [0, 2, 3] {
        assert!(is_committed(&outcomes[log]), "{outcomes:?}");
    }
    let [misses, commits] = later;
    assert!(is_missed(&ends(misses).await));
    assert!(is_committed(&ends(commits).await));
    is_healthy(&url).await;
}

/// Goal: a key that is taken after the statement's snapshot undoes all of it, and costs only its own log the batch.
#[tokio::test(flavor = "multi_thread")]
async fn a_collision_costs_only_its_own_log_the_batch() {
    let Some((mut process, hold, url)) = process().await else {
        return;
    };
    process.settle().await;
    let answers = process
        .submit_to_all(&hold, ["hold", "{}", "{}", "{}"])
        .await;
    let rival = direct(&url).await;
    rival
        .batch_execute(
            "BEGIN;
             INSERT INTO events (position, stream, revision, type, created, writer, checksum, event_id, log,
                                 content_type, data, metadata)
             SELECT position + 1, stream, revision + 1, type, created, writer + 1, checksum, gen_random_uuid(), log,
                    content_type, data, metadata
             FROM events WHERE log = 2",
        )
        .await
        .expect("taken");
    hold.release().await;
    hold.waits_for_a_rival().await;
    rival.batch_execute("COMMIT").await.expect("stored");
    let outcomes = all_end(answers).await;
    assert!(is_missed(&outcomes[2]), "{outcomes:?}");
    for log in [0, 1, 3] {
        assert!(is_committed(&outcomes[log]), "{outcomes:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_refused_is_told_to_its_own_log_alone() {
    let Some((mut process, hold, url)) = process().await else {
        return;
    };
    process.settle().await;
    let answers = process
        .submit_to_all(&hold, ["hold", "22000", "{}", "{}"])
        .await;
    let later: Vec<_> = (1..4).map(|log| process.submit(log, 1, "{}")).collect();
    hold.release().await;
    let outcomes = all_end(answers).await;
    let BatchOutcome::Refused(error) = &outcomes[1] else {
        panic!("{outcomes:?}")
    };
    assert!(error.to_string().contains("injected"), "{error}");
    for log in [0, 2, 3] {
        assert!(is_committed(&outcomes[log]), "{outcomes:?}");
    }
    let later = all_end(later).await;
    assert!(is_missed(&later[0]), "{later:?}");
    assert!(later[1..].iter().all(is_committed), "{later:?}");
    is_healthy(&url).await;
}

/// Goal: what fails for a passing reason fails for all, since the reason tells nothing about whose fault it is; tried
/// again, it fails for the log whose fault it is alone.
#[tokio::test(flavor = "multi_thread")]
async fn what_fails_again_and_again_does_not_hold_up_the_others() {
    let Some((mut process, hold, url)) = process().await else {
        return;
    };
    process.settle().await;
    let before = process.authors.clone();
    let answers = process
        .submit_to_all(&hold, ["hold", "40001", "{}", "{}"])
        .await;
    hold.release().await;
    let outcomes = all_end(answers).await;
    assert!(is_committed(&outcomes[0]), "{outcomes:?}");
    for log in 1..4 {
        assert!(
            matches!(outcomes[log], BatchOutcome::Failed(_)),
            "{outcomes:?}"
        );
        process.authors[log] = before[log].clone();
    }
    let again = ["", "40001", "{}", "{}"];
    let answers: Vec<_> = (1..4)
        .map(|log| process.submit(log, 1, again[log]))
        .collect();
    let outcomes = all_end(answers).await;
    assert!(
        matches!(outcomes[0], BatchOutcome::Failed(_)),
        "{outcomes:?}"
    );
    assert!(outcomes[1..].iter().all(is_committed), "{outcomes:?}");
    is_healthy(&url).await;
}

/// Goal: when the connection dies, what every log has submitted is unknown, its handle is dead, and all find the same
/// new connection.
#[tokio::test(flavor = "multi_thread")]
async fn a_connection_that_dies_takes_all_logs_with_it() {
    let Some((named, hold, url)) = process().await else {
        return;
    };
    drop(named);
    let name = format!("sharing_{}", hold.key);
    let backend = open(&format!("{url}&application_name={name}")).await;
    let mut process = Process::begin(backend).await;
    process.settle().await;
    let mut answers = process
        .submit_to_all(&hold, ["hold", "{}", "{}", "{}"])
        .await;
    answers.push(process.submit(3, 1, "waits here"));
    let sessions = "SELECT pid FROM pg_locks WHERE NOT granted AND locktype = 'advisory' AND objid = $1::bigint";
    let session = hold.client.query_one(sessions, &[&hold.key]).await;
    let session: i32 = session.expect("one").get(0);
    hold.client
        .execute("SELECT pg_terminate_backend($1)", &[&session])
        .await
        .expect("ended");
    let outcomes = all_end(answers).await;
    assert!(outcomes.iter().all(is_unknown), "{outcomes:?}");
    for log in 0..4 {
        let dead = ends(process.submit(log, 1, "{}")).await;
        assert!(is_unknown(&dead), "must be discarded: {dead:?}");
    }
    hold.release().await;
    process.writers.clear();
    process.open_writers().await;
    for log in 0..LOGS {
        let end = process.backend.log_end(LogId(log), Purpose::Read).await;
        let end = end.expect("answers");
        assert_eq!(end.position.0, 1, "nothing of log {log} was stored");
        let writer = &mut process.writers[usize::from(log)];
        let outcome = writer.submit(confirm_of(LogId(log), end)).await;
        assert!(is_committed(&outcome), "{outcome:?}");
    }
    // The session that was ended may be there for a moment longer.
    let one_appends = format!(
        "SELECT FROM pg_stat_activity
         WHERE application_name = '{name}' AND query LIKE '%pg_logical_emit_message%' HAVING count(*) = 1"
    );
    hold.finds(&one_appends).await;
}

/// Goal: all logs that want a handle while the database is away are told so, by one attempt; later all get one.
#[tokio::test(flavor = "multi_thread")]
async fn handles_are_refused_together_while_the_database_is_away() {
    let Some(mut server) = Server::start().expect("starts") else {
        return;
    };
    let (backend, _) = fresh_logs(&server, LOGS).await;
    let open_all = || join_all((0..LOGS).map(|log| backend.open_writer(LogId(log))));
    server.kill_9().expect("killed");
    assert!(open_all().await.iter().all(Result::is_err));
    // An attempt that nobody waits for leaves nothing.
    drop(backend.open_writer(LogId(0)).now_or_never());
    server.restart().expect("starts");
    for (log, writer) in (0..LOGS).zip(open_all().await) {
        let end = confirm_of(LogId(log), Default::default());
        assert!(is_committed(&writer.expect("opens").submit(end).await));
    }
}

/// One handle for each log and connection: another one has its own connection, and they race as two processes do.
#[tokio::test(flavor = "multi_thread")]
async fn a_second_handle_of_a_log_has_a_connection_of_its_own() {
    let Some((mut process, hold, _)) = process().await else {
        return;
    };
    process.settle().await;
    let held = process.submit(0, 1, "hold");
    hold.is_waited_for().await;
    // Those of the first connection wait; the second one is not held up.
    let mut second = process.backend.open_writer(LogId(1)).await.expect("opens");
    assert_ne!(second.epoch(), process.writers[1].epoch());
    let end = confirm_of(LogId(1), process.authors[1].end);
    let confirmed = tokio::spawn(second.submit(end));
    assert!(is_committed(&ends(confirmed).await));
    assert!(!held.is_finished());
    hold.release().await;
    assert!(is_committed(&ends(held).await));
}

/// Goal: with synchronous standbys the confirmations of several logs are a commit, as that of one is.
#[tokio::test(flavor = "multi_thread")]
async fn confirmations_of_several_logs_wait_for_synchronous_standbys() {
    let Some(cluster) = Cluster::start(1, Replication::Asynchronous).expect("starts") else {
        return;
    };
    let (mut process, hold, _) = process_on(cluster.server(0)).await;
    process.settle().await;
    cluster
        .set_replication(Replication::Synchronous)
        .expect("set");
    let refused = process.submit(0, 2, "hold, refuse");
    hold.is_waited_for().await;
    let confirmed: Vec<_> = [1, 2]
        .into_iter()
        .map(|log: u16| {
            let index = usize::from(log);
            let end = confirm_of(LogId(log), process.authors[index].end);
            tokio::spawn(process.writers[index].submit(end))
        })
        .collect();
    cluster.hold_replication(1).expect("held");
    hold.release().await;
    assert!(matches!(ends(refused).await, BatchOutcome::Refused(_)));
    hold.finds(
        "SELECT pid FROM pg_stat_activity
         WHERE wait_event = 'SyncRep' AND query ~ '^-- (Stores batches of several|As insert_events_of_logs)'",
    )
    .await;
    assert!(confirmed.iter().all(|answer| !answer.is_finished()));
    cluster.release_replication(1).expect("released");
    assert!(all_end(confirmed).await.iter().all(is_committed));
}
