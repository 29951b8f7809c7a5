//! Lost replies, late statements, dead and silent connections, time-outs, and a server that keeps less than it says.

use std::sync::Arc;
use std::time::Duration;

use futures::future::join_all;
use gesta_core::backend::{Backend, BatchOutcome, LoadRequest, LogWriter, Purpose};
use gesta_core::{ErrorKind, EventStore, StreamId};
use gesta_kit::depth;
use gesta_kit::support::OffsetClock;
use gesta_postgres::PostgresBackend;
use gesta_rig::{FaultProxy, LoseReply, Server, ServerConfig, shared};
use gesta_store::Store;

use crate::common::{
    Author, LOG, PATIENCE, config, confirm, direct, draft, end_of, fresh, is_committed, is_missed,
    open, schema_of, store_url, until_row,
};

fn is_unknown(outcome: &BatchOutcome) -> bool {
    matches!(outcome, BatchOutcome::Unknown(error) if matches!(error.kind(), ErrorKind::OutcomeUnknown(_)))
}

/// A store reached through a proxy, beside direct access to the same store.
struct Proxied {
    proxy: FaultProxy,
    through: PostgresBackend,
    direct: PostgresBackend,
    url: String,
}

/// The sessions through the proxy have the name of the schema.
async fn proxied(options: &str) -> Option<Proxied> {
    let server = shared()?;
    let url = store_url(server);
    let proxy = FaultProxy::to_postgres(server.addr()).expect("listens");
    let name = schema_of(&url);
    let through = format!("{}&application_name={name}{options}", proxy.url(&url));
    Some(Proxied {
        through: patiently(async || PostgresBackend::open(config(&through)).await).await,
        direct: open(&url).await,
        proxy,
        url,
    })
}

/// Tries again what takes longer on a busy machine than a store with short times allows.
async fn patiently<T>(attempt: impl AsyncFn() -> gesta_core::Result<T>) -> T {
    let succeeds = async {
        loop {
            match attempt().await {
                Err(error) if error.is_retryable() => tokio::task::yield_now().await,
                outcome => return outcome.expect("succeeds"),
            }
        }
    };
    let succeeded = tokio::time::timeout(PATIENCE, succeeds).await;
    succeeded.expect("succeeds in time")
}

impl Proxied {
    /// A handle through the proxy.
    async fn writer(&self) -> Box<dyn LogWriter> {
        patiently(async || self.through.open_writer(LOG).await).await
    }

    /// The author of the first event, which is stored without the proxy.
    async fn begun(&self) -> Author {
        let mut writer = self.direct.open_writer(LOG).await.expect("opens");
        let mut author = Author::default();
        let first = author.append(&mut *writer, &[draft("a", "T")]).await;
        assert!(is_committed(&first), "{first:?}");
        author
    }
}

#[tokio::test]
async fn a_lost_reply_is_unknown_and_may_be_stored() {
    let Some(it) = proxied("").await else { return };
    let mut writer = it.through.open_writer(LOG).await.expect("opens");
    let mut author = Author::default();
    assert!(is_committed(
        &author.append(&mut *writer, &[draft("a", "T")]).await
    ));
    it.proxy.lose_reply(LoseReply {
        tag_prefix: "INSERT".to_owned(),
        nth: 2,
    });
    let answers: Vec<_> = (0..4)
        .map(|_| {
            let batch = author.batch(&*writer, &[draft("a", "T")]);
            writer.submit(batch)
        })
        .collect();
    let outcomes = join_all(answers).await;
    assert!(is_committed(&outcomes[0]), "{outcomes:?}");
    assert!(outcomes[1..].iter().all(is_unknown), "{outcomes:?}");
    assert!(end_of(&it.direct).await.0 >= 3, "the lost one was stored");
    assert!(
        is_unknown(&writer.submit(confirm(author.end)).await),
        "must be discarded"
    );
}

/// A statement that was given up may commit late (contract C7). To find out, commit something else after the row that
/// it names.
#[tokio::test]
async fn a_late_statement_misses() {
    let Some(it) = proxied("&answer_timeout=3").await else {
        return;
    };
    let mut author = it.begun().await;
    let mut writer = it.writer().await;
    let mut theirs = author.clone();
    it.proxy.hold_requests(true);
    assert!(is_unknown(
        &author.append(&mut *writer, &[draft("late", "T")]).await
    ));
    assert_eq!(
        end_of(&it.direct).await.0,
        1,
        "not there yet, which proves nothing"
    );
    let mut other = it.direct.open_writer(LOG).await.expect("opens");
    assert!(is_committed(
        &theirs.append(&mut *other, &[draft("a", "T")]).await
    ));
    drop(writer);
    let client = direct(&it.url).await;
    it.proxy.hold_requests(false);
    // The late statement is over once its session has ended.
    let over = format!(
        "SELECT WHERE NOT EXISTS (SELECT FROM pg_stat_activity
         WHERE application_name = '{}' AND query LIKE '-- Stores a batch%')",
        schema_of(&it.url)
    );
    until_row(&client, &over).await;
    assert!(is_committed(
        &theirs.append(&mut *other, &[draft("a", "T")]).await
    ));
    assert_eq!(end_of(&it.direct).await.0, 3);
}

#[tokio::test]
async fn a_half_open_connection_is_given_up_in_time() {
    let Some(it) = proxied("&answer_timeout=10").await else {
        return;
    };
    let mut author = it.begun().await;
    let mut writer = it.writer().await;
    it.proxy.set_half_open(true);
    let started = tokio::time::Instant::now();
    let answers: Vec<_> = (0..16)
        .map(|_| {
            let batch = author.batch(&*writer, &[draft("a", "T")]);
            writer.submit(batch)
        })
        .collect();
    assert!(join_all(answers).await.iter().all(is_unknown));
    // If each had a time-out of its own, one after the other, it would be 160 s.
    assert!(started.elapsed() < PATIENCE, "{:?}", started.elapsed());
    let bound = Duration::from_secs(20);
    depth::in_time("one time-out for all", started.elapsed(), bound);
    // Cut first: what the proxy has not read yet would be stored.
    it.proxy.cut_all();
    it.proxy.set_half_open(false);
    // A new connection works, for appends and for reads.
    let mut writer = it.writer().await;
    let end = it
        .through
        .log_end(LOG, Purpose::Read)
        .await
        .expect("answers");
    assert!(is_committed(&writer.submit(confirm(end)).await));
}

/// What happened: a read whose connection somebody on the way had forgotten waited for 40 s and failed, although the
/// database answered everybody else. Goal: it begins again on a new connection.
#[tokio::test]
async fn a_read_whose_session_is_lost_begins_again() {
    let Some(it) = proxied("&answer_timeout=2").await else {
        return;
    };
    it.begun().await;
    let begins_again = async {
        loop {
            // The connection of this read is that of the next one.
            end_of(&it.through).await;
            let (made, swallowed) = (it.proxy.connections(), it.proxy.swallowed_bytes());
            it.proxy.set_half_open(true);
            let lose = async {
                while it.proxy.swallowed_bytes() == swallowed {
                    tokio::time::sleep(Duration::from_millis(1)).await;
                }
                it.proxy.set_half_open(false);
            };
            let (end, ()) = tokio::join!(end_of(&it.through), lose);
            assert_eq!(end.0, 1);
            // Otherwise what was lost was of another connection.
            if it.proxy.connections() > made {
                return;
            }
        }
    };
    let begun = tokio::time::timeout(PATIENCE, begins_again).await;
    begun.expect("is answered");
}

/// Goal: a read that waits for a lock keeps its session, however often the server is asked about it.
#[tokio::test]
async fn a_slow_read_keeps_its_session() {
    let Some(it) = proxied("&answer_timeout=2").await else {
        return;
    };
    end_of(&it.through).await;
    let client = direct(&it.url).await;
    client
        .batch_execute("BEGIN; LOCK TABLE streams IN ACCESS EXCLUSIVE MODE")
        .await
        .expect("locked");
    let request = LoadRequest {
        streams: vec![StreamId::new("a").expect("valid")],
        types: Vec::new(),
    };
    // If the machine stands still, a read gives up waiting for the lock.
    let load = async || it.through.load(LOG, request.clone(), Purpose::Read).await;
    let asked = async {
        let waiting = "SELECT array_agg(pid) FROM pg_locks WHERE NOT granted AND relation = 'streams'::regclass
                       HAVING count(*) > 0";
        let before: Vec<i32> = until_row(&client, waiting).await.get(0);
        // The third connection is one to ask, also if the first answer has led to a new one for the read.
        let made = it.proxy.connections();
        while it.proxy.connections() < made + 3 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        let now: Vec<i32> = until_row(&client, waiting).await.get(0);
        client.batch_execute("ROLLBACK").await.expect("unlocked");
        (before, now)
    };
    let (loaded, (before, now)) = tokio::join!(patiently(load), asked);
    assert_eq!(loaded.streams[0].head, None);
    assert_eq!((before.len(), before), (1, now));
}

/// Goal: a read ends when the server lets nobody in; it does not wait as long as for a slow statement.
#[tokio::test]
async fn a_read_ends_when_the_server_is_silent() {
    let Some(it) = proxied("&answer_timeout=2&connect_timeout=2").await else {
        return;
    };
    let read = async || it.through.log_end(LOG, Purpose::Read).await;
    patiently(&read).await;
    it.proxy.set_half_open(true);
    let error = read().await.expect_err("nobody answers").to_string();
    // Half of the first time, and all of the second one.
    assert!(error.contains("no answer within 3 s"), "{error}");
    it.proxy.set_half_open(false);
    assert_eq!(patiently(&read).await.position.0, 0);
}

#[tokio::test]
async fn an_ended_session_is_unknown_and_reads_recover() {
    let Some(server) = shared() else { return };
    let url = store_url(server);
    // Sessions with a name of their own: the sessions of other tests are not ended with them.
    let name = format!("ended_{}", schema_of(&url));
    let backend = open(&format!("{url}&application_name={name}")).await;
    let mut writer = backend.open_writer(LOG).await.expect("opens");
    let mut author = Author::default();
    assert!(is_committed(
        &author.append(&mut *writer, &[draft("a", "T")]).await
    ));
    let client = direct(&url).await;
    // Make the append wait, end its session while it waits.
    client
        .batch_execute("BEGIN; LOCK TABLE events IN SHARE MODE")
        .await
        .expect("locked");
    let batch = author.batch(&*writer, &[draft("a", "T")]);
    let answer = tokio::spawn(writer.submit(batch));
    let waiting = "SELECT pid FROM pg_locks JOIN pg_class c ON c.oid = relation
                   WHERE NOT granted AND c.oid = 'events'::regclass";
    let pid: i32 = until_row(&client, waiting).await.get(0);
    client
        .execute("SELECT pg_terminate_backend($1)", &[&pid])
        .await
        .expect("ended");
    assert!(is_unknown(&answer.await.expect("ends")));
    client.batch_execute("ROLLBACK").await.expect("unlocked");
    // All sessions of the store: the pooled reader notices and is replaced.
    let everybody = format!(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = '{name}'"
    );
    assert_eq!(end_of(&backend).await.0, 1);
    client.batch_execute(&everybody).await.expect("ended");
    assert_eq!(end_of(&backend).await.0, 1);
}

/// Goal: however many reads are slow, appends are decided.
///
/// One connection is kept for the looks that appends wait for. Once it was the kind of statement that decided who may
/// use it, so stream reads, loads of entities, `/info` and subscriptions, which make the same looks, took it as well,
/// and hung with it. Now the caller says for whom it looks.
#[tokio::test]
async fn slow_reads_do_not_hold_up_those_that_appends_wait_for() {
    let Some(server) = shared() else { return };
    let url = store_url(server);
    let backend = Arc::new(open(&format!("{url}&readers=1")).await);
    let client = direct(&url).await;
    client
        .batch_execute("BEGIN; LOCK TABLE streams IN ACCESS EXCLUSIVE MODE")
        .await
        .expect("locked");
    let request = LoadRequest {
        streams: vec![StreamId::new("a").expect("valid")],
        types: Vec::new(),
    };
    let slow: Vec<_> = (0..3)
        .map(|_| {
            let (backend, request) = (Arc::clone(&backend), request.clone());
            tokio::spawn(async move {
                loop {
                    // If the machine stands still, a read gives up waiting for the lock.
                    match backend.load(LOG, request.clone(), Purpose::Read).await {
                        Err(error) if error.is_retryable() => tokio::task::yield_now().await,
                        loaded => return loaded,
                    }
                }
            })
        })
        .collect();
    let waits = "SELECT FROM pg_locks WHERE NOT granted AND relation = 'streams'::regclass";
    until_row(&client, waits).await;
    let end = backend.log_end(LOG, Purpose::Append);
    let end = tokio::time::timeout(PATIENCE, end).await;
    assert_eq!(end.expect("in time").expect("answers").position.0, 0);
    client.batch_execute("ROLLBACK").await.expect("unlocked");
    for read in slow {
        let read = tokio::time::timeout(PATIENCE, read).await;
        let loaded = read.expect("in time").expect("ends").expect("answers");
        assert_eq!(loaded.streams[0].head, None);
    }
}

#[tokio::test]
async fn a_long_wait_for_a_lock_has_a_known_outcome() {
    let Some(server) = shared() else { return };
    let url = store_url(server);
    // The statement gives up after 8 s. The answer is then waited for 12 s more, even if the machine stands still.
    let backend = open(&format!("{url}&answer_timeout=20")).await;
    let mut writer = backend.open_writer(LOG).await.expect("opens");
    let mut author = Author::default();
    assert!(is_committed(
        &author.append(&mut *writer, &[draft("a", "T")]).await
    ));
    let client = direct(&url).await;
    client
        .batch_execute("BEGIN; LOCK TABLE events IN SHARE MODE")
        .await
        .expect("locked");
    let outcome = author
        .clone()
        .append(&mut *writer, &[draft("a", "T")])
        .await;
    let BatchOutcome::Failed(error) = outcome else {
        panic!("{outcome:?}")
    };
    assert!(
        error.to_string().contains("55P03") && error.is_retryable(),
        "{error}"
    );
    client.batch_execute("ROLLBACK").await.expect("unlocked");
    assert!(
        is_committed(&author.append(&mut *writer, &[draft("a", "T")]).await),
        "as good as new"
    );
}

#[tokio::test]
async fn injected_serialization_failures_and_deadlocks_can_be_sent_again() {
    let Some((backend, url)) = fresh().await else {
        return;
    };
    let mut writer = backend.open_writer(LOG).await.expect("opens");
    let client = direct(&url).await;
    client
        .batch_execute(
            "CREATE FUNCTION fail() RETURNS trigger LANGUAGE plpgsql AS $$
             BEGIN RAISE EXCEPTION 'injected' USING ERRCODE = convert_from(NEW.data, 'UTF8'); END $$;
             CREATE TRIGGER fail BEFORE INSERT ON events FOR EACH ROW WHEN (octet_length(NEW.data) = 5)
             EXECUTE FUNCTION fail();",
        )
        .await
        .expect("planted");
    let mut author = Author::default();
    for code in ["40001", "40P01", "53100", "57014", "55P03"] {
        let mut bad = draft("a", "T");
        bad.data = code.into();
        let outcome = author.clone().append(&mut *writer, &[bad]).await;
        assert!(
            matches!(outcome, BatchOutcome::Failed(_)),
            "{code}: {outcome:?}"
        );
    }
    for code in ["22000", "54000", "P0001", "23514"] {
        let mut bad = draft("a", "T");
        bad.data = code.into();
        let outcome = author.clone().append(&mut *writer, &[bad]).await;
        assert!(
            matches!(outcome, BatchOutcome::Refused(_)),
            "{code}: {outcome:?}"
        );
    }
    assert!(is_committed(
        &author.append(&mut *writer, &[draft("a", "T")]).await
    ));
    let mut bad = draft("a", "T");
    bad.data = "57P01".into();
    assert!(is_unknown(&author.append(&mut *writer, &[bad]).await));
}

/// Lets commits wait for a standby that there is not, and waits until one is seen waiting: sessions show the setting
/// before another process of the server, which decides whether commits wait, has read it.
async fn wait_for_nobody(client: &tokio_postgres::Client, url: &str) {
    client
        .batch_execute("SET synchronous_commit = local")
        .await
        .expect("set");
    client
        .batch_execute("ALTER SYSTEM SET synchronous_standby_names = 'nobody'")
        .await
        .expect("set");
    client
        .batch_execute("SELECT pg_reload_conf()")
        .await
        .expect("reloaded");
    let other = direct(url).await;
    let commits = tokio::spawn(async move {
        let commit = "SELECT pg_logical_emit_message(true, 'probe', '')";
        while other.batch_execute(commit).await.is_ok() {}
    });
    let end = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity
               WHERE wait_event = 'SyncRep' AND query LIKE '%probe%'";
    until_row(client, end).await;
    commits.await.expect("ends");
}

/// A commit that waits for a synchronous standby and is cancelled reports success with a warning.
#[tokio::test(flavor = "multi_thread")]
async fn a_cancelled_wait_for_a_standby_is_unknown() {
    let Some(server) = Server::start().expect("starts") else {
        return;
    };
    let url = store_url(&server);
    let backend = open(&url).await;
    let mut writer = backend.open_writer(LOG).await.expect("opens");
    let mut author = Author::default();
    assert!(is_committed(
        &author.append(&mut *writer, &[draft("a", "T")]).await
    ));
    let client = direct(&url).await;
    wait_for_nobody(&client, &url).await;
    // The append last: its row moves the end.
    for what in ["confirm", "append"] {
        let mut writer = backend.open_writer(LOG).await.expect("opens");
        let mut author = author.clone();
        let batch = match what {
            "append" => author.batch(&*writer, &[draft("a", "T")]),
            _ => confirm(author.end),
        };
        let answer = writer.submit(batch);
        let answer = tokio::spawn(async move { is_unknown(&answer.await) });
        let cancel =
            "SELECT pg_cancel_backend(pid) FROM pg_stat_activity WHERE wait_event = 'SyncRep'";
        until_row(&client, cancel).await;
        let answer = tokio::time::timeout(PATIENCE, answer).await;
        assert!(answer.expect("is answered").expect("ends"), "{what}");
        assert!(
            is_unknown(&writer.submit(confirm(author.end)).await),
            "must be discarded"
        );
    }
    assert_eq!(
        end_of(&backend).await.0,
        2,
        "it is there, but was not acknowledged"
    );
}

/// What is acknowledged survives; what the crash cut off is unknown; everything goes on afterwards.
async fn survives_a_crash(server: &mut Server, backend: &PostgresBackend) {
    let mut writer = backend.open_writer(LOG).await.expect("opens");
    let mut author = Author::default();
    author.end = backend.log_end(LOG, Purpose::Read).await.expect("answers");
    assert!(is_committed(
        &author.append(&mut *writer, &[draft("b", "U")]).await
    ));
    server.kill_9().expect("killed");
    assert!(is_unknown(
        &author
            .clone()
            .append(&mut *writer, &[draft("b", "U")])
            .await
    ));
    let error = backend
        .log_end(LOG, Purpose::Read)
        .await
        .expect_err("is down");
    assert!(matches!(error.kind(), ErrorKind::Unavailable(_)), "{error}");
    assert!(backend.open_writer(LOG).await.is_err());
    server.restart().expect("recovers");
    assert_eq!(end_of(backend).await.0, 2);
    let mut writer = backend.open_writer(LOG).await.expect("opens");
    assert!(is_committed(
        &author.append(&mut *writer, &[draft("b", "U")]).await
    ));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_keeps_less_is_refused_unless_asked_for() {
    let weak = ServerConfig::default()
        .with("fsync", "off")
        .with("synchronous_commit", "off");
    let Some(mut server) = Server::start_with(weak).expect("starts") else {
        return;
    };
    let url = store_url(&server);
    let error = PostgresBackend::open(config(&url))
        .await
        .expect_err("refused");
    assert!(matches!(error.kind(), ErrorKind::Unsupported(_)));
    assert!(
        error.to_string().contains("fsync=off")
            && error.to_string().contains("durability=weakened"),
        "{error}"
    );
    let backend = open(&format!("{url}&durability=weakened")).await;
    assert_eq!(backend.info().durability.name(), "weakened");
    assert!(
        !backend
            .info()
            .durability
            .detail()
            .contains("synchronous_commit"),
        "that we set ourselves"
    );
    let mut writer = backend.open_writer(LOG).await.expect("opens");
    assert!(is_committed(
        &Author::default()
            .append(&mut *writer, &[draft("a", "T")])
            .await
    ));

    server.set("fsync", "on");
    server.restart().expect("starts");
    let backend = open(&url).await;
    let detail = backend.info().durability.detail().to_owned();
    assert!(
        detail.contains("fsync=on") && detail.contains("synchronous_commit=on"),
        "{detail}"
    );
    survives_a_crash(&mut server, &backend).await;
}

#[tokio::test]
async fn a_closed_store_says_so() {
    let Some((backend, _)) = fresh().await else {
        return;
    };
    backend.close().await;
    let outcomes = [
        backend.log_end(LOG, Purpose::Read).await.err(),
        backend.open_writer(LOG).await.err(),
        backend.list_streams("", None, 1).await.err(),
    ];
    for error in outcomes {
        let error = error.expect("closed");
        assert!(matches!(error.kind(), ErrorKind::Unavailable(_)), "{error}");
    }
}

#[tokio::test]
async fn a_miss_leaves_the_writer_as_good_as_new() {
    let Some((backend, _)) = fresh().await else {
        return;
    };
    let mut writer = backend.open_writer(LOG).await.expect("opens");
    let mut author = Author::default();
    author.append(&mut *writer, &[draft("a", "T")]).await;
    let mut stale = Author::default();
    let missed = stale.append(&mut *writer, &[draft("b", "T")]).await;
    assert!(is_missed(&missed));
    let next = author.append(&mut *writer, &[draft("b", "T")]).await;
    assert!(is_committed(&next));
}

fn one_event(stream: &str) -> gesta_core::Append {
    let event = gesta_core::EventType::new("T").expect("valid");
    gesta_core::Append::to(
        StreamId::new(stream).expect("valid"),
        gesta_core::ExpectedRevision::Any,
        vec![gesta_core::EventData::json(event, "{}")],
    )
}

async fn store_on(url: &str, clock: &OffsetClock, policy: gesta_append::ClockPolicy) -> Arc<Store> {
    let mut config = gesta_store::Config::default();
    config.append.clock = policy;
    let clock = Arc::new(clock.clone());
    Store::open(Arc::new(open(url).await), config, clock).expect("opens")
}

/// What happened: one append by a server whose clock was an hour ahead froze the time of all later events of all
/// servers, unnoticed. What holds now: a clock that is ahead of the database's is refused, and not ready; what was
/// stored because that was accepted is told; and the time is set back if that is asked for.
#[tokio::test(flavor = "multi_thread")]
async fn a_clock_that_is_ahead_of_the_databases_is_refused_unless_accepted() {
    use gesta_append::ClockPolicy;
    const HOUR: i64 = 3_600_000_000;
    let Some(server) = shared() else { return };
    let url = store_url(server);
    let clock = OffsetClock::default();
    let created = async |store: &Store| -> i64 {
        let last = gesta_core::ReadStream::backwards(StreamId::new("s").expect("valid"));
        let page = store.read_stream(last).await.expect("reads");
        page.events[0].created.0
    };
    let store = store_on(&url, &clock, ClockPolicy::Checked).await;
    store
        .append(one_event("s"))
        .await
        .expect("both clocks agree");
    clock.set(HOUR);
    let refused = store.append(one_event("s")).await.expect_err("ahead");
    assert!(
        matches!(refused.kind(), ErrorKind::Unavailable(_)),
        "{refused}"
    );
    let text = refused.to_string();
    assert!(
        text.contains("3600 s ahead") || text.contains("3599 s ahead"),
        "{text}"
    );
    assert!(text.contains("append.clock"), "{text}");
    store.ready().await.expect_err("appends cannot succeed");
    clock.set(-HOUR);
    store
        .append(one_event("s"))
        .await
        .expect("a slow clock harms nobody");
    clock.set(0);
    store.ready().await.expect("right again");
    store.append(one_event("s")).await.expect("right again");
    assert_eq!(
        store.info().await.expect("tells").newest_event_ahead,
        Duration::ZERO
    );
    store.shutdown().await.expect("ends");

    clock.set(HOUR);
    let store = store_on(&url, &clock, ClockPolicy::Accepted).await;
    store.append(one_event("s")).await.expect("accepted");
    store.shutdown().await.expect("ends");

    clock.set(0);
    let store = store_on(&url, &clock, ClockPolicy::Checked).await;
    store
        .append(one_event("s"))
        .await
        .expect("the clock is right");
    let ahead = store.info().await.expect("tells").newest_event_ahead;
    assert!(ahead > Duration::from_secs(3_000), "{ahead:?}");
    let frozen = created(&store).await;
    store.shutdown().await.expect("ends");

    let store = store_on(&url, &clock, ClockPolicy::SetBack).await;
    store.append(one_event("s")).await.expect("set back");
    assert!(created(&store).await < frozen - HOUR / 2);
    let event = gesta_core::EventId::random();
    let mut again = one_event("s");
    again.streams[0].events[0].id = Some(event);
    let first = store.append(again.clone()).await.expect("stored");
    let retried = store.append(again).await.expect("recognised");
    assert_eq!(first.position, retried.position, "retries are recognised");
    assert_eq!(
        store.info().await.expect("tells").newest_event_ahead,
        Duration::ZERO
    );
    store.shutdown().await.expect("ends");
    let mut source = open(&url).await.audit_source().await.expect("snapshot");
    let audited = gesta_sql::verify::audit(&mut source, &mut |_| {}).await;
    let report = audited.expect("audited");
    assert!(report.is_healthy(), "{report:?}");
}

/// What happened: an operator froze writes by `default_transaction_read_only` and ended all sessions; every other
/// program was refused, and this one switched the setting off and stored events, which the copy then missed. What holds
/// now: the setting is obeyed, appends say so at once, reads go on, and appends go on by themselves when it is lifted.
#[tokio::test(flavor = "multi_thread")]
async fn a_database_that_was_made_read_only_takes_no_appends() {
    let Ok(Some(server)) = Server::start() else {
        return;
    };
    let database = server.create_database("frozen").expect("made");
    let url = format!("{database}?schema=frozen");
    let store = store_on(&url, &Arc::default(), gesta_append::ClockPolicy::Checked).await;
    store.append(one_event("s")).await.expect("stored");
    let end_sessions =
        "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE datname = 'frozen'";
    let reload = "SELECT pg_reload_conf()";
    let every_way = [
        (
            "ALTER DATABASE frozen SET default_transaction_read_only = on",
            end_sessions,
        ),
        (
            "ALTER ROLE postgres IN DATABASE frozen SET default_transaction_read_only = on",
            end_sessions,
        ),
        (
            "ALTER SYSTEM SET default_transaction_read_only = on",
            reload,
        ),
    ];
    let mut stored = 1;
    for (freeze, then) in every_way {
        server.execute(freeze).expect("frozen");
        server.query(then).expect("told");
        let refused = async {
            loop {
                match store.append(one_event("s")).await {
                    // A session that the setting has not reached yet, or that was just ended.
                    Ok(_) => stored += 1,
                    Err(error) if error.to_string().contains("read-only") => return error,
                    Err(_) => {}
                }
            }
        };
        let refused = tokio::time::timeout(PATIENCE, refused)
            .await
            .expect("refused");
        let text = "the database is read-only (default_transaction_read_only)";
        assert!(
            matches!(refused.kind(), ErrorKind::Unavailable(why) if why.contains(text)),
            "{refused}"
        );
        let why = store.ready().await.expect_err("not ready").to_string();
        assert!(why.contains(text), "{why}");
        for _ in 0..3 {
            let again = store.append(one_event("s")).await.expect_err("still");
            assert!(again.to_string().contains(text), "{again}");
        }
        let read = gesta_core::ReadStream::forwards(StreamId::new("s").expect("valid"));
        store.read_stream(read).await.expect("reads go on");
        let another = open(&url).await;
        another.log_end(LOG, Purpose::Read).await.expect("reads");

        let lift = freeze.replace(
            "SET default_transaction_read_only = on",
            "RESET default_transaction_read_only",
        );
        server.execute(&lift).expect("lifted");
        server.query(reload).expect("told");
        let goes_on = async { while store.append(one_event("s")).await.is_err() {} };
        tokio::time::timeout(PATIENCE, goes_on)
            .await
            .expect("goes on");
        stored += 1;
    }
    let count = direct(&url)
        .await
        .query_one("SELECT count(*) FROM events", &[])
        .await;
    let count: i64 = count.expect("counts").get(0);
    assert_eq!(count, stored, "what was refused was not stored");
    store.shutdown().await.expect("ends");
}

/// Goal: a server to which nobody appends says as well that its database was made read-only, and when that is over.
#[tokio::test(flavor = "multi_thread")]
async fn an_idle_server_tells_that_its_database_is_read_only() {
    let Some(server) = shared() else { return };
    let name = gesta_rig::fresh_schema();
    let database = server.create_database(&name).expect("made");
    let mut config = config(&format!("{database}?schema=idle"));
    config.settings_pause = Duration::from_millis(50);
    let backend = PostgresBackend::open(config).await.expect("opens");
    let config = gesta_store::Config::default();
    let clock = Arc::new(gesta_core::SystemClock);
    let store = Store::open(Arc::new(backend), config, clock).expect("opens");
    let ready = async |wanted: bool| {
        let becomes = async {
            while store.ready().await.is_ok() != wanted {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        tokio::time::timeout(PATIENCE, becomes).await.expect("told");
    };
    ready(true).await;
    let set = |what: &str| server.execute(&format!("ALTER DATABASE {name} {what}"));
    set("SET default_transaction_read_only = on").expect("frozen");
    let end = format!(
        "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE datname = '{name}'"
    );
    server.query(&end).expect("ended");
    ready(false).await;
    set("RESET default_transaction_read_only").expect("lifted");
    ready(true).await;
    store.shutdown().await.expect("ends");
}
