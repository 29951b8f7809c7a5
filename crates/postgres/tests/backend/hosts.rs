//! Several hosts in the URL: one that hangs, one that is replaced, one whose commits wait for a standby that is lost.
//!
//! What happened: one time-out covered the whole list, and each attempt began at the first host. A first host that hung
//! hid the others until it was resumed, and a primary whose commits waited for a lost standby was connected to again
//! and again, while another host had long become the primary. What holds now: each host has a time of its own, who
//! disappointed comes last, and a silent host is given up as soon as another one says that it is the primary on a
//! higher timeline.

use std::time::Duration;

use futures::future::join_all;
use gesta_core::ErrorKind;
use gesta_core::backend::{Backend, BatchOutcome, LogWriter, Purpose};
use gesta_kit::depth;
use gesta_postgres::PostgresBackend;
use gesta_rig::{Cluster, FaultProxy, Replication, SilentHost, free_address, fresh_schema, shared};
use tokio::task::JoinHandle;
use tokio::time::{Instant, timeout};

use crate::common::{Author, LOG, PATIENCE, config, direct, draft, is_committed, open, store_url};

/// How long after a promotion the connection to the old primary is given up, at the latest.
const NOTICED_WITHIN: Duration = Duration::from_secs(3);

fn is_unknown(outcome: &BatchOutcome) -> bool {
    matches!(outcome, BatchOutcome::Unknown(_))
}

/// A writer, and the author of the one event that it has stored.
async fn begun(backend: &PostgresBackend) -> (Box<dyn LogWriter>, Author) {
    let mut writer = backend.open_writer(LOG).await.expect("opens");
    let mut author = Author::default();
    assert!(is_committed(
        &author.append(&mut *writer, &[draft("a", "T")]).await
    ));
    (writer, author)
}

/// The append that was under way to the old primary ends after another host was promoted, before its time is over, with
/// an unknown outcome.
async fn is_noticed(promoted: Instant, answer: JoinHandle<BatchOutcome>) {
    let answer = timeout(PATIENCE, answer).await;
    let outcome = answer.expect("noticed in time").expect("ends");
    let BatchOutcome::Unknown(error) = &outcome else {
        panic!("{outcome:?}");
    };
    assert!(!error.to_string().contains("no answer within"), "{error}");
    let took = promoted.elapsed();
    depth::in_time("a promotion is noticed", took, NOTICED_WITHIN);
}

/// Goal: a first host that accepts and stays silent costs a moment, once.
#[tokio::test(flavor = "multi_thread")]
async fn a_hung_first_host_does_not_hide_the_primary() {
    let Some(server) = shared() else { return };
    let silent = SilentHost::start().await.expect("listens");
    let own = server.addr().to_string();
    let url = store_url(server).replacen(&own, &format!("{},{own}", silent.addr()), 1);
    // The silent host has more time to answer than this test waits.
    let url = format!("{url}&connect_timeout=600");
    let begun = Instant::now();
    let opened = timeout(PATIENCE, open(&url)).await;
    let backend = opened.expect("the primary is found");
    let bound = Duration::from_secs(5);
    depth::in_time("opening beside a hung host", begun.elapsed(), bound);
    let mut author = Author::default();
    let mut writer = backend.open_writer(LOG).await.expect("opens");
    assert!(is_committed(
        &author.append(&mut *writer, &[draft("a", "T")]).await
    ));
    // The silent host is not asked first again. (On a busy machine the primary may be so slow that it is asked second.)
    let unasked = async {
        loop {
            let asked = silent.connections();
            backend.open_writer(LOG).await.expect("opens");
            if silent.connections() == asked {
                return;
            }
        }
    };
    timeout(PATIENCE, unasked).await.expect("asked each time");
}

/// Goal: an error names every host with its port, and what is wrong with each.
#[tokio::test]
async fn errors_name_each_host_and_port() {
    let silent = SilentHost::start().await.expect("listens");
    let refused = free_address().expect("a port");
    let url = format!(
        "postgres://u:se-cret@{},{refused}/d?connect_timeout=1",
        silent.addr()
    );
    let begun = Instant::now();
    let error = PostgresBackend::open(config(&url))
        .await
        .expect_err("no server");
    let bound = Duration::from_secs(5);
    depth::in_time("an error about all hosts", begun.elapsed(), bound);
    assert!(matches!(error.kind(), ErrorKind::Unavailable(_)), "{error}");
    let text = error.to_string();
    assert!(
        text.contains(&format!("{}: no answer within 1 s", silent.addr())),
        "{text}"
    );
    assert!(
        text.contains(&format!("{refused}: ")) && text.contains("refused"),
        "{text}"
    );
    assert!(!format!("{text} {error:?}").contains("se-cret"));
}

/// Opens a store that waits for hosts so briefly that a busy machine may exceed it.
async fn open_hasty(url: &str) -> PostgresBackend {
    let opens = async {
        loop {
            match PostgresBackend::open(config(url)).await {
                Err(error) if error.is_retryable() => {}
                opened => return opened.expect("opens"),
            }
        }
    };
    timeout(PATIENCE, opens).await.expect("opens in time")
}

/// What happened: where all hosts were standbys, an attempt to connect ended at once, and the pauses between attempts
/// grew to a second, so appends went on up to two seconds after the promotion. What holds now: whoever wants to append
/// waits for the promotion, and learns of it within a moment.
#[tokio::test(flavor = "multi_thread")]
async fn a_connection_for_appends_waits_for_a_promotion() {
    let Some(mut cluster) = Cluster::start(1, Replication::Asynchronous).expect("starts") else {
        return;
    };
    let url = format!("{}?schema={}", cluster.url(), fresh_schema());
    let patient = open(&format!("{url}&connect_timeout=600")).await;
    let hasty = open_hasty(&format!("{url}&connect_timeout=1")).await;
    let (_, mut author) = begun(&patient).await;
    cluster.wait_for_standby(1).expect("caught up");
    cluster.server_mut(0).kill_9().expect("killed");
    let refused = async {
        loop {
            let begun = Instant::now();
            let error = hasty.open_writer(LOG).await.err().expect("no primary");
            assert!(begun.elapsed() >= Duration::from_secs(1), "{error}");
            // On a busy machine the standby may not answer in so short a time.
            if error.to_string().contains("is a standby") {
                return;
            }
        }
    };
    let refused = timeout(PATIENCE, refused).await;
    refused.expect("the standby says what it is");
    let opening = patient.open_writer(LOG);
    let promoting = tokio::task::spawn_blocking(move || {
        cluster.promote(1).expect("promoted");
        cluster
    });
    let (opened, cluster) = tokio::join!(timeout(PATIENCE * 2, opening), promoting);
    let opened = opened.expect("in time");
    let mut writer = opened.expect("opens, by the attempt that began before the promotion");
    assert!(is_committed(
        &author.append(&mut *writer, &[draft("b", "T")]).await
    ));
    drop(cluster);
}

/// An append in flight to a frozen primary ends after another host was promoted, and everything goes on there, although
/// the time for its answer is not over.
#[tokio::test(flavor = "multi_thread")]
async fn a_promotion_is_noticed_while_the_old_primary_is_frozen() {
    let Some(mut cluster) = Cluster::start(1, Replication::Asynchronous).expect("starts") else {
        return;
    };
    // A third host is silent all the time: what the others say must not wait for it.
    let silent = SilentHost::start().await.expect("listens");
    let (old, new) = (cluster.server(0).addr(), cluster.server(1).addr());
    let url = cluster.url_through(&[silent.addr(), old, new]);
    // Every host has more time to answer than this test waits.
    let times = "connect_timeout=600&answer_timeout=600";
    let url = format!("{url}?schema={}&{times}", fresh_schema());
    let opened = timeout(PATIENCE, open(&url)).await;
    let backend = opened.expect("the primary is found");
    let (mut writer, mut author) = begun(&backend).await;
    backend.log_end(LOG, Purpose::Read).await.expect("answers");
    cluster.wait_for_standby(1).expect("caught up");
    cluster.server(0).freeze().expect("frozen");
    let mut lost = author.clone();
    let answer = tokio::spawn(writer.submit(lost.batch(&*writer, &[draft("a", "T")])));
    cluster.promote(1).expect("promoted");
    let promoted = Instant::now();
    is_noticed(promoted, answer).await;
    // Nothing waits for the frozen host any more: neither a new connection nor the reads whose connections led there.
    let begun = Instant::now();
    let goes_on = async {
        let mut writer = backend.open_writer(LOG).await.expect("opens");
        let end = backend.log_end(LOG, Purpose::Append).await;
        assert_eq!(end.expect("answers").position, author.end.position);
        let appended = author.append(&mut *writer, &[draft("a", "T")]).await;
        assert!(is_committed(&appended), "{appended:?}");
    };
    let done = timeout(PATIENCE, goes_on).await;
    done.expect("nothing waits for the frozen host");
    let bound = Duration::from_secs(2);
    depth::in_time("all goes on beside a frozen host", begun.elapsed(), bound);
}

/// A primary lives, and its commits wait for a standby that is lost: no time-out of the database ends that wait. When
/// the standby is the primary, everything goes on there, although the old primary still answers and stands first in the
/// URL.
#[tokio::test(flavor = "multi_thread")]
async fn a_primary_that_was_replaced_is_given_up_although_it_answers() {
    let Some(mut cluster) = Cluster::start(1, Replication::Synchronous).expect("starts") else {
        return;
    };
    let backend = open(&format!("{}?schema={}", cluster.url(), fresh_schema())).await;
    let (mut writer, mut author) = begun(&backend).await;
    cluster.hold_replication(1).expect("held");
    let mut lost = author.clone();
    let answer = tokio::spawn(writer.submit(lost.batch(&*writer, &[draft("a", "T")])));
    cluster.promote(1).expect("promoted");
    let promoted = Instant::now();
    is_noticed(promoted, answer).await;
    let mut writer = backend.open_writer(LOG).await.expect("opens");
    assert!(is_committed(
        &author.append(&mut *writer, &[draft("a", "T")]).await
    ));
    let old = cluster
        .server(0)
        .query("SELECT pg_is_in_recovery()")
        .expect("answers");
    assert_eq!(
        old.as_deref(),
        Some("f"),
        "the old primary lives and knows nothing"
    );
}

/// Eight batches on their way, the last of them waits for a lock, then the network is silent: its time was eight times
/// `answer_timeout`, once for each batch that was on its way when it was sent.
#[tokio::test(flavor = "multi_thread")]
async fn the_time_of_an_answer_is_not_multiplied_by_the_batches_before_it() {
    let Some(server) = shared() else { return };
    let url = store_url(server);
    let proxy = FaultProxy::start(server.addr()).expect("listens");
    let backend = open(&format!("{}&answer_timeout=10", proxy.url(&url))).await;
    let mut writer = backend.open_writer(LOG).await.expect("opens");
    let mut author = Author::default();
    assert!(is_committed(
        &author.append(&mut *writer, &[draft("a", "T")]).await
    ));
    let locker = direct(&url).await;
    let lock = "BEGIN; LOCK TABLE streams IN EXCLUSIVE MODE";
    locker.batch_execute(lock).await.expect("locked");
    let mut answers: Vec<_> = (0..7)
        .map(|_| writer.submit(author.batch(&*writer, &[draft("a", "T")])))
        .collect();
    let last = writer.submit(author.batch(&*writer, &[draft("new", "T")]));
    let last = tokio::spawn(last);
    assert!(join_all(answers.drain(..)).await.iter().all(is_committed));
    proxy.set_half_open(true);
    let silent = Instant::now();
    assert!(is_unknown(&last.await.expect("ends")));
    // Multiplied it would be 80 s.
    assert!(silent.elapsed() < PATIENCE, "{:?}", silent.elapsed());
    assert!(
        silent.elapsed() > Duration::from_secs(1),
        "{:?}",
        silent.elapsed()
    );
}

/// Statements that give up waiting again and again may wait for a commit that itself waits for a lost standby: the
/// writer gives its host up. Each of the statements has a known outcome. That the other hosts then come first is for
/// the tests of `hosts`: which of two hosts answers sooner, the machine decides. That a statement gives up waiting for
/// a lock is for the tests of `faults`; here a trigger says so at once.
#[tokio::test(flavor = "multi_thread")]
async fn after_repeated_lock_time_outs_the_host_is_given_up() {
    let Some(server) = shared() else { return };
    let (plain, own) = (store_url(server), server.addr().to_string());
    let first = FaultProxy::start(server.addr()).expect("listens");
    let second = FaultProxy::start(server.addr()).expect("listens");
    let url = plain.replacen(&own, &format!("{},{}", first.addr(), second.addr()), 1);
    let backend = open(&url).await;
    let mut writer = backend.open_writer(LOG).await.expect("opens");
    let plant = "CREATE FUNCTION give_up() RETURNS trigger LANGUAGE plpgsql AS $$
                 BEGIN RAISE EXCEPTION 'canceled' USING ERRCODE = '55P03'; END $$;
                 CREATE TRIGGER give_up BEFORE INSERT ON events FOR EACH ROW WHEN (NEW.data = 'waits')
                 EXECUTE FUNCTION give_up();";
    direct(&plain)
        .await
        .batch_execute(plant)
        .await
        .expect("planted");
    let mut author = Author::default();
    for _ in 0..2 {
        let mut waits = draft("a", "T");
        waits.data = "waits".into();
        let batch = author.clone().batch(&*writer, &[waits]);
        let outcome = writer.submit(batch).await;
        assert!(matches!(outcome, BatchOutcome::Failed(_)), "{outcome:?}");
    }
    let given_up = async {
        loop {
            let batch = author.clone().batch(&*writer, &[draft("a", "T")]);
            if let BatchOutcome::Unknown(error) = writer.submit(batch).await {
                return error.to_string();
            }
        }
    };
    let reason = timeout(PATIENCE, given_up).await.expect("given up");
    assert!(
        reason.contains("statements repeatedly gave up waiting"),
        "{reason}"
    );
    let mut writer = backend.open_writer(LOG).await.expect("opens");
    author.end = backend
        .log_end(LOG, Purpose::Append)
        .await
        .expect("answers");
    assert!(is_committed(
        &author.append(&mut *writer, &[draft("b", "U")]).await
    ));
}
