//! Fail-overs: what a promotion loses is noticed before anything of the new history is handed out.
//!
//! Once a name that was read was right for ever, and only positions were compared. After a fail-over that lost commits,
//! appends were stored in other streams, events were read under other names, and subscribers skipped events silently.
//! Now every new connection is compared with what the process knows; see `witness`.

use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use gesta_core::backend::{
    Backend, BatchOutcome, EventLookup, History, LogEnd, LogSlice, Purpose, RunMode, Signal,
};
use gesta_core::{
    Direction, EventData, EventId, EventStore, EventStoreExt, ExpectedRevision, Filter, LogId,
    Position, RecordedEvent, SystemClock, Visibility,
};
use gesta_kit::depth;
use gesta_postgres::{PostgresBackend, schema};
use gesta_rig::{Cluster, FaultProxy, Replication, fresh_schema, shared};
use gesta_store::Store;

use crate::common::{
    Author, LOG, PATIENCE, config, confirm, draft, end_of, fresh, is_committed, open, signals_of,
    until_heard, until_row,
};

/// The streams of all events, in order.
async fn names(backend: &PostgresBackend) -> Vec<String> {
    let slice = LogSlice {
        log: LOG,
        after: Position::START,
        to: Position::MAX,
        direction: Direction::Forwards,
        filter: Filter::ALL,
        limit: 100,
    };
    let rows = backend.read_log(slice).await.expect("reads");
    let names = rows.events.iter().map(|event| event.stream.to_string());
    names.collect()
}

/// Waits until the backend knows another history, without asking it for anything.
async fn changed(backend: &PostgresBackend, old: History) -> History {
    let wait = async {
        while backend.history() == old {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        backend.history()
    };
    tokio::time::timeout(PATIENCE, wait)
        .await
        .expect("noticed in time")
}

/// A cluster of two, with a store of its own. Its standby may lag.
fn cluster() -> Option<(Cluster, String)> {
    cluster_of(Replication::Asynchronous)
}

fn cluster_of(replication: Replication) -> Option<(Cluster, String)> {
    let cluster = Cluster::start(1, replication).expect("starts")?;
    let url = format!("{}?schema={}", cluster.url(), fresh_schema());
    Some((cluster, url))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_fail_over_that_loses_commits_begins_another_history_once() {
    let Some((mut cluster, url)) = cluster() else {
        return;
    };
    let (busy, idle) = (open(&url).await, open(&url).await);
    let mut writer = busy.open_writer(LOG).await.expect("opens");
    let mut author = Author::default();
    let first = [draft("kept", "T"), draft("kept", "T")];
    assert!(is_committed(&author.append(&mut *writer, &first).await));
    cluster.wait_for_standby(1).expect("catches up");
    cluster.hold_replication(1).expect("held");
    let kept = author.clone();
    let lost = [draft("lost-a", "T"), draft("lost-b", "T")];
    assert!(is_committed(&author.append(&mut *writer, &lost).await));
    // Both processes have read what will be lost.
    for backend in [&busy, &idle] {
        assert_eq!(names(backend).await, ["kept", "kept", "lost-a", "lost-b"]);
    }
    let old = busy.history();
    assert_eq!(old, idle.history());
    let mut signals = signals_of(&idle);

    cluster.server_mut(0).kill_9().expect("killed");
    cluster.promote(1).expect("promoted");
    // Others append where the lost events were, and beyond, before the two look.
    let other_url = url.replacen(&format!("{},", cluster.server(0).addr()), "", 1);
    let other = open(&other_url).await;
    // The two may notice, and tell the other while it appends.
    let appends = async {
        while end_of(&other).await != Position(5) {
            let mut other_writer = other.open_writer(LOG).await.expect("opens");
            let new = [draft("new-a", "T"), draft("new-b", "T"), draft("kept", "T")];
            kept.clone().append(&mut *other_writer, &new).await;
        }
    };
    let appended = tokio::time::timeout(PATIENCE, appends).await;
    appended.expect("stored in time");

    let after = ["kept", "kept", "new-a", "new-b", "kept"];
    assert_eq!(names(&busy).await, after);
    let now = busy.history();
    assert_eq!(now.number, old.number + 1);
    assert_ne!(now.incarnation, old.incarnation);
    let noticed = changed(&idle, old).await;
    assert_eq!(noticed.incarnation, now.incarnation, "begun once");
    assert_eq!(names(&idle).await, after);
    let told = async { while signals.next().await != Some(Signal::HistoryChanged) {} };
    tokio::time::timeout(PATIENCE, told).await.expect("told");
    let found = EventLookup::Positions(vec![Position(3)]);
    let found = busy.lookup(LOG, found, Purpose::Append).await;
    assert_eq!(found.expect("answers")[0].stream.as_str(), "new-a");
    // Who opened the store after the fail-over is told as well.
    assert_eq!(changed(&other, old).await.incarnation, now.incarnation);
    // Whoever began the incarnation has noted the new timeline with it, so it is not begun once more.
    let later = open(&url).await;
    assert_eq!(later.history().incarnation, now.incarnation);
}

/// Once a process that had only asked for the ends of all logs knew the greatest position of all of them alone: another
/// log could lose rows, and its positions be used again, without its notice.
#[tokio::test(flavor = "multi_thread")]
async fn the_ends_of_all_logs_are_compared_after_a_fail_over() {
    let Some((mut cluster, url)) = cluster() else {
        return;
    };
    let mut config = config(&url);
    config.logs_if_new = 2;
    let busy = PostgresBackend::open(config).await.expect("opens");
    let (long, short) = (LogId(0), LogId(1));
    let mut long_writer = busy.open_writer(long).await.expect("opens");
    let mut short_writer = busy.open_writer(short).await.expect("opens");
    let many = [draft("a", "T"), draft("a", "T"), draft("a", "T")];
    let mut author = Author::of(long);
    assert!(is_committed(&author.append(&mut *long_writer, &many).await));
    cluster.wait_for_standby(1).expect("catches up");
    cluster.hold_replication(1).expect("held");
    let mut author = Author::of(short);
    let kept = author.clone();
    let lost = [draft("lost", "T")];
    assert!(is_committed(
        &author.append(&mut *short_writer, &lost).await
    ));
    let idle = open(&url).await;
    let ends = idle.log_ends(Purpose::Read).await.expect("answers");
    assert_eq!(
        [ends[0].position, ends[1].position],
        [Position(3), Position(1)]
    );
    let old = idle.history();
    drop((long_writer, short_writer));
    busy.close().await;

    cluster.server_mut(0).kill_9().expect("killed");
    cluster.promote(1).expect("promoted");
    let other_url = url.replacen(&format!("{},", cluster.server(0).addr()), "", 1);
    let other = open(&other_url).await;
    let at = |position| move |ends: Vec<LogEnd>| ends[1].position == Position(position);
    // Others append where the lost event was, and beyond. The idle process may notice, and tell them, meanwhile.
    let appends = async {
        while !at(2)(other.log_ends(Purpose::Append).await.expect("answers")) {
            let mut writer = other.open_writer(short).await.expect("opens");
            let new = [draft("new", "T"), draft("new", "T")];
            kept.clone().append(&mut *writer, &new).await;
        }
    };
    let appended = tokio::time::timeout(PATIENCE, appends).await;
    appended.expect("stored in time");
    let ends = idle.log_ends(Purpose::Read).await.expect("answers");
    assert!(at(2)(ends));
    assert_ne!(idle.history().incarnation, old.incarnation);
}

/// Goal: a fail-over that provably loses nothing changes no history, and ends the writers of the old primary, which
/// still runs.
#[tokio::test(flavor = "multi_thread")]
async fn a_fail_over_that_loses_nothing_changes_no_history() {
    let Some((mut cluster, url)) = cluster_of(Replication::Synchronous) else {
        return;
    };
    let proxy = FaultProxy::start(cluster.server(0).addr());
    let proxy = proxy.expect("listens");
    let through = cluster.url_through(&[proxy.addr(), cluster.server(1).addr()]);
    let url = url.replacen(&cluster.url(), &through, 1);
    let backend = open(&url).await;
    let mut writer = backend.open_writer(LOG).await.expect("opens");
    let mut author = Author::default();
    assert!(is_committed(
        &author.append(&mut *writer, &[draft("a", "T")]).await
    ));
    let old = backend.history();
    cluster.wait_for_standby(1).expect("catches up");
    cluster.promote(1).expect("promoted");
    // A new connection leads to the new primary: from then on the old one does not count, though it answers.
    proxy.refuse_connections(true);
    let mut second = backend.open_writer(LOG).await.expect("opens");
    let outcome = author
        .clone()
        .append(&mut *writer, &[draft("old", "T")])
        .await;
    assert!(!is_committed(&outcome), "acknowledged by the old primary");
    let confirmed = writer.submit(confirm(author.end)).await;
    assert!(
        matches!(confirmed, BatchOutcome::Unknown(_)),
        "{confirmed:?}"
    );
    assert!(is_committed(
        &author.append(&mut *second, &[draft("b", "T")]).await
    ));
    assert_eq!(names(&backend).await, ["a", "b"]);
    assert_eq!(backend.history(), old);
}

/// Goal: an old primary that answers as if nothing had happened is left as soon as another host has taken over.
#[tokio::test(flavor = "multi_thread")]
async fn an_old_primary_that_goes_on_is_left() {
    let Some((mut cluster, url)) = cluster_of(Replication::Synchronous) else {
        return;
    };
    let backend = open(&url).await;
    let mut writer = backend.open_writer(LOG).await.expect("opens");
    let mut author = Author::default();
    assert!(is_committed(
        &author.append(&mut *writer, &[draft("a", "T")]).await
    ));
    cluster.wait_for_standby(1).expect("catches up");
    cluster.promote(1).expect("promoted");
    let other_url = url.replacen(&format!("{},", cluster.server(0).addr()), "", 1);
    let other = open(&other_url).await;
    let mut other_writer = other.open_writer(LOG).await.expect("opens");
    assert!(is_committed(
        &author.append(&mut *other_writer, &[draft("b", "T")]).await
    ));
    let left = async {
        while names(&backend).await != ["a", "b"] {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(PATIENCE, left).await.expect("in time");
    assert_eq!(backend.history().number, 0, "nothing was lost");
}

/// Goal: `gesta schema new-incarnation` reaches the servers that run (within a second, on a machine that is not busy),
/// and when no message arrives they notice it at the end of a log. They do not notice it by their own looks at the
/// store: these are an hour apart here.
#[tokio::test]
async fn another_incarnation_is_noticed_by_message_and_by_the_end_of_a_log() {
    let Some((other, url)) = fresh().await else {
        return;
    };
    let mut config_of = config(&url);
    config_of.settings_pause = Duration::from_secs(3_600);
    let backend = PostgresBackend::open(config_of).await.expect("opens");
    let mut signals = signals_of(&backend);
    until_heard(&other, &mut signals).await;
    let old = backend.history();
    let begun = std::time::Instant::now();
    let new = schema::new_incarnation(&config(&url)).await.expect("begun");
    assert_eq!(changed(&backend, old).await.incarnation, new);
    let bound = Duration::from_secs(1);
    depth::in_time("a new incarnation reaches servers", begun.elapsed(), bound);
    let old = backend.history();
    let client = crate::common::direct(&url).await;
    let silently = "UPDATE store SET incarnation = gen_random_uuid()";
    client.batch_execute(silently).await.expect("changed");
    assert_eq!(end_of(&backend).await, Position::START);
    assert_eq!(backend.history().number, old.number + 1);
}

/// Goal: who may not begin a new incarnation says so, and goes on once somebody else has.
#[tokio::test(flavor = "multi_thread")]
async fn without_the_right_to_begin_anew_nothing_is_read_until_somebody_does() {
    let Some((backend, url)) = fresh().await else {
        return;
    };
    let mut writer = backend.open_writer(LOG).await.expect("opens");
    let mut author = Author::default();
    assert!(is_committed(
        &author.append(&mut *writer, &[draft("a", "T")]).await
    ));
    let client = crate::common::direct(&url).await;
    // As if the last event had been lost, and the right were missing.
    let lose = "ALTER TABLE events DISABLE TRIGGER USER; DELETE FROM events;
                CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS
                'BEGIN RAISE insufficient_privilege; END';
                CREATE TRIGGER refuse BEFORE UPDATE ON store EXECUTE FUNCTION refuse()";
    client.batch_execute(lose).await.expect("lost");
    let look = || backend.log_end(LOG, Purpose::Read);
    let error = look().await.expect_err("cannot go on");
    assert!(
        error.to_string().contains("gesta schema new-incarnation"),
        "{error}"
    );
    assert_eq!(backend.history().number, 0);
    client
        .batch_execute("DROP TRIGGER refuse ON store")
        .await
        .expect("dropped");
    let new = schema::new_incarnation(&config(&url)).await.expect("begun");
    assert_eq!(look().await.expect("answers").position, Position::START);
    assert_eq!(backend.history().incarnation, new);
}

/// Goal: scavenging never removes events of a stream that was looked up before a fail-over.
#[tokio::test]
async fn scavenging_does_not_go_on_in_another_history() {
    let Some((backend, url)) = fresh().await else {
        return;
    };
    let mut writer = backend.open_writer(LOG).await.expect("opens");
    let mut author = Author::default();
    let drafts = [draft("a", "T"), draft("a", "T"), draft("b", "T")];
    assert!(is_committed(&author.append(&mut *writer, &drafts).await));
    let client = crate::common::direct(&url).await;
    let silently = "UPDATE store SET incarnation = gen_random_uuid()";
    let hidden = Visibility {
        from: gesta_core::Revision(1),
        created_from: None,
    };
    let row = author.stream_row("a");
    loop {
        let known = backend.history();
        client.batch_execute(silently).await.expect("changed");
        // An idle process looks at the incarnation now and then: scavenging must be what finds the change.
        if backend.history() == known {
            break;
        }
    }
    let error = backend
        .remove_hidden(LOG, row, hidden, RunMode::Real)
        .await
        .expect_err("begins anew");
    assert!(error.is_retryable(), "{error}");
    assert_eq!(names(&backend).await, ["a", "a", "b"]);
}

/// The links of a virtual stream, in order.
async fn links(store: &Store, name: &str) -> Vec<(u64, String)> {
    let events = async {
        // The database changes over meanwhile.
        loop {
            match store.read_whole_stream(name).await {
                Err(error) if error.is_retryable() => {
                    tokio::time::sleep(Duration::from_millis(20)).await;
                }
                read => return read.expect("readable"),
            }
        }
    };
    let events = tokio::time::timeout(PATIENCE, events).await;
    let events = events.expect("readable in time");
    let link = |event: &RecordedEvent| {
        let text = String::from_utf8(event.data.to_vec()).expect("text");
        (event.revision.0, text)
    };
    events.iter().map(link).collect()
}

fn store_of(backend: PostgresBackend) -> Arc<Store> {
    let (config, clock) = (gesta_store::Config::default(), Arc::new(SystemClock));
    Store::open(Arc::new(backend), config, clock).expect("starts")
}

async fn append(store: &Store, stream: &str, count: usize) {
    for _ in 0..count {
        let event = EventData::json("T".parse().expect("valid"), "1").with_id(EventId::random());
        let append = async {
            let events = || vec![event.clone()];
            while let Err(error) = store
                .append_to(stream, ExpectedRevision::Any, events())
                .await
            {
                assert!(error.is_retryable(), "{error}");
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        let appended = tokio::time::timeout(PATIENCE, append).await;
        appended.expect("appended in time");
    }
}

/// Goal: entries of virtual streams are lost with their events, and nobody writes what he had read of them; the places
/// of what was kept stay.
#[tokio::test(flavor = "multi_thread")]
async fn virtual_streams_are_of_the_history_that_there_is() {
    let Some((mut cluster, url)) = cluster() else {
        return;
    };
    let (busy, idle) = (store_of(open(&url).await), store_of(open(&url).await));
    busy.switch_virtual_streams(true).await.expect("switched");
    append(&busy, "cart-1", 2).await;
    let kept = links(&busy, "$ce-cart").await;
    cluster.wait_for_standby(1).expect("catches up");
    cluster.hold_replication(1).expect("held");
    append(&busy, "cart-2", 5).await;
    append(&busy, "show-1", 1).await;
    for store in [&busy, &idle] {
        assert_eq!(links(store, "$ce-cart").await.len(), 7);
        assert_eq!(links(store, "$streams").await.len(), 3);
    }
    // These have no entries yet, unless the task was quick.
    append(&busy, "cart-3", 3).await;

    cluster.server_mut(0).kill_9().expect("killed");
    cluster.promote(1).expect("promoted");
    append(&idle, "cart-4", 1).await;
    append(&busy, "show-2", 9).await;
    append(&busy, "cart-1", 1).await;
    for store in [&busy, &idle] {
        let found = links(store, "$ce-cart").await;
        assert_eq!(found[..2], kept);
        let rest: Vec<&str> = found[2..].iter().map(|(_, text)| text.as_str()).collect();
        assert_eq!(rest, ["0@cart-4", "2@cart-1"]);
        let streams = links(store, "$streams").await;
        let streams: Vec<&str> = streams.iter().map(|(_, text)| text.as_str()).collect();
        assert_eq!(streams, ["0@cart-1", "0@cart-4", "0@show-2"]);
    }
    let fresh = open(&url).await;
    let mut source = fresh.audit_source().await.expect("snapshot");
    let report = gesta_sql::verify::audit(&mut source, &mut |_| {}).await;
    assert_eq!(report.expect("audited").findings, []);
    for store in [busy, idle] {
        store.shutdown().await.expect("shuts down");
    }
}

/// What happened: what the old primary had acknowledged, only the processes knew that had seen it. When all of them
/// died with it, the first process afterwards kept the incarnation, and checkpoints of lost events were accepted once
/// the log had grown. What holds now: the timeline is noted beside the incarnation, and the first process that finds
/// another one begins a new incarnation, unless a synchronous standby was promoted.
#[tokio::test(flavor = "multi_thread")]
async fn a_loss_that_only_the_dead_knew_begins_another_history() {
    for replication in [Replication::Asynchronous, Replication::Synchronous] {
        let Some((mut cluster, url)) = cluster_of(replication) else {
            return;
        };
        let dead = open(&url).await;
        let mut writer = dead.open_writer(LOG).await.expect("opens");
        let mut author = Author::default();
        let kept = [draft("kept", "T")];
        assert!(is_committed(&author.append(&mut *writer, &kept).await));
        let old = dead.history().incarnation;
        assert_eq!(open(&url).await.history().incarnation, old);
        cluster.wait_for_standby(1).expect("catches up");
        if matches!(replication, Replication::Asynchronous) {
            cluster.hold_replication(1).expect("held");
            let lost = [draft("lost", "T")];
            assert!(is_committed(&author.append(&mut *writer, &lost).await));
        }
        drop(writer);
        dead.close().await;
        drop(dead);
        cluster.server_mut(0).kill_9().expect("killed");
        cluster.promote(1).expect("promoted");

        let first = open(&url).await.history().incarnation;
        let second = open(&url).await.history().incarnation;
        assert_eq!(first, second, "begun once");
        let is_kept = matches!(replication, Replication::Synchronous);
        assert_eq!(first == old, is_kept, "{replication:?}");
    }
}

/// Goal: a switch-over to a synchronous standby changes nothing, neither for a process that runs nor for one that is
/// started afterwards.
#[tokio::test(flavor = "multi_thread")]
async fn a_switch_over_to_a_synchronous_standby_changes_no_history() {
    let Some((mut cluster, url)) = cluster_of(Replication::Synchronous) else {
        return;
    };
    let survivor = open(&url).await;
    let mut writer = survivor.open_writer(LOG).await.expect("opens");
    let mut author = Author::default();
    let kept = [draft("kept", "T")];
    assert!(is_committed(&author.append(&mut *writer, &kept).await));
    let old = survivor.history();
    cluster.wait_for_standby(1).expect("catches up");
    cluster.server_mut(0).stop().expect("stopped");
    cluster.promote(1).expect("promoted");
    let started = open(&url).await;
    assert_eq!(started.history().incarnation, old.incarnation);
    assert_eq!(names(&survivor).await, ["kept"]);
    assert_eq!(survivor.history(), old);
}

/// What happened: a process that could not note the new timeline took it for noted, and never tried again. So a store
/// of which nothing was lost began a new incarnation when the next process opened it.
#[tokio::test(flavor = "multi_thread")]
async fn a_note_that_could_not_be_made_is_made_later() {
    let Some((mut cluster, url)) = cluster_of(Replication::Synchronous) else {
        return;
    };
    let mut config_of = config(&url);
    config_of.settings_pause = Duration::from_millis(50);
    let survivor = PostgresBackend::open(config_of).await.expect("opens");
    let mut writer = survivor.open_writer(LOG).await.expect("opens");
    let mut author = Author::default();
    let kept = [draft("kept", "T")];
    assert!(is_committed(&author.append(&mut *writer, &kept).await));
    let old = survivor.history();
    let forbid = "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS
                  'BEGIN RAISE lock_not_available; END';
                  CREATE TRIGGER refuse BEFORE UPDATE ON store EXECUTE FUNCTION refuse()";
    let client = crate::common::direct(&url).await;
    client.batch_execute(forbid).await.expect("forbidden");
    cluster.wait_for_standby(1).expect("catches up");
    cluster.server_mut(0).stop().expect("stopped");
    cluster.promote(1).expect("promoted");
    assert_eq!(names(&survivor).await, ["kept"]);

    let new_url = url.replacen(&format!("{},", cluster.server(0).addr()), "", 1);
    let client = crate::common::direct(&new_url).await;
    let noted: i64 = client
        .query_one("SELECT timeline FROM store", &[])
        .await
        .expect("reads")
        .get(0);
    assert_eq!(noted, 1);
    let allow = "DROP TRIGGER refuse ON store";
    client.batch_execute(allow).await.expect("allowed");
    until_row(&client, "SELECT 1 FROM store WHERE timeline = 2").await;
    let started = open(&url).await;
    assert_eq!(started.history().incarnation, old.incarnation);
    assert_eq!(survivor.history(), old);
}

/// What happened: a process that knew one row of any log, and found it after a promotion, vouched for it. What another
/// process had acknowledged since, in that log or in another one, was lost with it; the incarnation stayed, and
/// checkpoints of the lost events were accepted once their positions were used again. What holds now: nobody vouches
/// for what he cannot know. Without a synchronous standby a promotion begins a new incarnation, whoever lives.
#[tokio::test(flavor = "multi_thread")]
async fn a_survivor_does_not_vouch_for_rows_that_it_never_knew() {
    for lost_in in [LogId(1), LOG] {
        let Some((mut cluster, url)) = cluster() else {
            return;
        };
        let mut config_of = config(&url);
        config_of.logs_if_new = 2;
        let survivor = PostgresBackend::open(config_of).await.expect("opens");
        // This one has seen nothing at all.
        let idle = open(&url).await;
        let old = survivor.history();
        let mut writer = survivor.open_writer(LOG).await.expect("opens");
        let mut author = Author::default();
        let kept = [draft("kept", "T")];
        assert!(is_committed(&author.append(&mut *writer, &kept).await));
        drop(writer);
        cluster.wait_for_standby(1).expect("catches up");
        cluster.hold_replication(1).expect("held");
        // The other process is the only one that ever knows of these.
        let dead = open(&url).await;
        let mut author = match lost_in {
            LOG => author,
            other => Author::of(other),
        };
        let mut writer = dead.open_writer(lost_in).await.expect("opens");
        let lost = [draft("lost", "T"), draft("lost", "T")];
        assert!(is_committed(&author.append(&mut *writer, &lost).await));
        drop(writer);
        dead.close().await;
        drop(dead);
        cluster.server_mut(0).kill_9().expect("killed");
        cluster.promote(1).expect("promoted");

        assert_eq!(names(&survivor).await, ["kept"]);
        let now = survivor.history();
        assert_ne!(now.incarnation, old.incarnation, "lost in {lost_in}");
        assert_eq!(now.number, old.number + 1, "begun once");
        assert_eq!(names(&idle).await, ["kept"]);
        assert_eq!(idle.history(), now);
        // Whoever finds the promotion later takes it for judged.
        let successor = open(&url).await;
        assert_eq!(successor.history().incarnation, now.incarnation);
    }
}

/// What happened: `gesta schema new-incarnation` forgets where the store was seen, and the servers that ran did not
/// note it again. If all of them died with the primary afterwards, nobody noticed the promotion.
#[tokio::test(flavor = "multi_thread")]
async fn what_a_new_incarnation_has_forgotten_is_noted_again() {
    let Some((_backend, url)) = fresh().await else {
        return;
    };
    let client = crate::common::direct(&url).await;
    until_row(&client, "SELECT 1 FROM store WHERE timeline IS NOT NULL").await;
    let new = schema::new_incarnation(&config(&url)).await.expect("begun");
    let noted = format!(
        "SELECT 1 FROM store WHERE timeline IS NOT NULL AND incarnation = '{}'",
        new.0
    );
    until_row(&client, &noted).await;
}

/// What happened: a connection took over the clock of the server, and whether it is read-only, before it found out that
/// another store was there.
#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_taken_over_from_another_store() {
    let Some(server) = shared() else { return };
    let name = fresh_schema();
    let database = server.create_database(&name).expect("made");
    let url = format!("{database}?schema=replaced");
    let mut config_of = config(&url);
    config_of.settings_pause = Duration::from_secs(3_600);
    let backend = PostgresBackend::open(config_of).await.expect("opens");
    let mut signals = signals_of(&backend);
    {
        let other = open(&url).await;
        until_heard(&other, &mut signals).await;
        other.close().await;
    }
    let client = crate::common::direct(&url).await;
    client
        .batch_execute("DROP SCHEMA replaced CASCADE")
        .await
        .expect("dropped");
    drop(client);
    open(&url).await.close().await;
    let freeze = format!("ALTER DATABASE {name} SET default_transaction_read_only = on");
    server.execute(&freeze).expect("frozen");
    let end = format!(
        "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE datname = '{name}'"
    );
    server.query(&end).expect("ended");
    let before = backend.clock(LOG).expect("told");
    let error = backend.open_writer(LOG).await.err().expect("another store");
    assert!(error.to_string().contains("another store"), "{error}");
    assert_eq!(backend.clock(LOG), Some(before));
    assert_eq!(backend.refuses_appends(LOG), None);
}
