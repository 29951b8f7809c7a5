//! Making, refusing and migrating stores; rights; messages between processes.

use futures::StreamExt;
use futures::stream::BoxStream;
use gesta_core::backend::{Backend, EventLookup, IndexPage, IndexWrite, Purpose, Signal};
use gesta_core::registry::{Claim, Generation, Join, LeaseEpoch, NodeInfo, Tenure};
use gesta_core::{ErrorKind, LogId, Position, Visibility};
use gesta_postgres::{PostgresBackend, schema};
use gesta_rig::{fresh_schema, shared};
use uuid::Uuid;

use crate::common::{
    Author, LOG, PATIENCE, config, confirm_of, direct, draft, fresh_logs, is_committed, open,
    schema_of, signals_of, store_url, until_heard, until_told,
};

#[tokio::test]
async fn a_store_is_made_once_even_by_many_at_once() {
    let Some(server) = shared() else { return };
    let url = store_url(server);
    let opened = futures::future::join_all((0..6).map(|_| open(&url))).await;
    let incarnation = opened[0].history().incarnation;
    assert!(
        opened
            .iter()
            .all(|backend| backend.history().incarnation == incarnation)
    );
    let error = schema::create(&config(&url), 1)
        .await
        .expect_err("there is one");
    assert!(matches!(error.kind(), ErrorKind::Schema(_)), "{error}");
    assert_eq!(
        schema::migrate(&config(&url)).await.expect("nothing to do"),
        (7, 7)
    );
}

#[tokio::test]
async fn logs_incarnation_and_version_are_kept() {
    let Some(server) = shared() else { return };
    let url = store_url(server);
    assert!(schema::migrate(&config(&url)).await.is_err(), "no store");
    assert!(schema::create(&config(&url), 0).await.is_err());
    assert!(schema::create(&config(&url), 1_025).await.is_err());
    let first = schema::create(&config(&url), 4).await.expect("made");
    let backend = open(&url).await;
    assert_eq!(
        (backend.info().logs, backend.history().incarnation),
        (4, first)
    );
    let second = schema::new_incarnation(&config(&url)).await.expect("begun");
    assert_ne!(first, second);
    assert_eq!(open(&url).await.history().incarnation, second);
    let client = direct(&url).await;
    client
        .batch_execute("UPDATE store SET schema_version = 99")
        .await
        .expect("planted");
    let error = PostgresBackend::open(config(&url))
        .await
        .expect_err("newer");
    assert!(error.to_string().contains("version 99"), "{error}");
    assert!(schema::migrate(&config(&url)).await.is_err());
}

#[tokio::test]
async fn logs_are_apart() {
    let Some(server) = shared() else { return };
    let url = store_url(server);
    schema::create(&config(&url), 2).await.expect("made");
    let backend = open(&url).await;
    for log in [LogId(0), LogId(1)] {
        let mut writer = backend.open_writer(log).await.expect("opens");
        let mut author = Author::default();
        let name = format!("stream-{log}");
        let mut batch = (*author.batch(&*writer, &[draft(&name, "T")])).clone();
        batch.log = log;
        assert!(is_committed(
            &writer.submit(std::sync::Arc::new(batch)).await
        ));
        assert_eq!(
            backend
                .log_end(log, Purpose::Read)
                .await
                .expect("answers")
                .position,
            Position(1)
        );
    }
}

async fn may_append_and_scavenge(backend: &PostgresBackend) {
    let mut writer = backend.open_writer(LOG).await.expect("opens");
    let mut author = Author::default();
    let mut tagged = draft("a", "T");
    tagged.tags = &["x"];
    assert!(is_committed(
        &author
            .append(&mut *writer, &[tagged, draft("a", "T"), draft("b", "T")])
            .await
    ));
    let hidden = gesta_core::Visibility {
        from: gesta_core::Revision(1),
        created_from: None,
    };
    let mode = gesta_core::backend::RunMode::Real;
    let removed = backend
        .remove_hidden(LOG, author.stream_row("a"), hidden, mode)
        .await;
    assert_eq!(removed.expect("may scavenge").events, 1);
    let index = backend.virtual_index().expect("kept");
    let off = index.switch(true).await.expect("may switch");
    let after = EventLookup::After {
        position: off.position,
        limit: 10,
    };
    let events = backend.lookup(LOG, after, Purpose::Read).await;
    let page = IndexPage::of(off.position, &events.expect("reads")).expect("events");
    let written = index.write(page).await.expect("may write");
    assert_eq!(written, IndexWrite::Written);
}

async fn may_own_logs(backend: &PostgresBackend) {
    let registry = backend.registry().expect("shared");
    let info = NodeInfo {
        address: "a:1".into(),
        weight: 100,
        build: "1".into(),
        protocol_min: 1,
        protocol_max: 1,
    };
    let generation = Generation(5);
    let join = Join {
        info,
        generation,
        beat: 1,
    };
    let owner = registry.join(&join).await.expect("may join");
    let tenure = Tenure {
        log: LOG,
        owner,
        generation,
        epoch: LeaseEpoch(1),
    };
    let seen = LeaseEpoch(0);
    let got = registry.claim(&[Claim { seen, tenure }]).await;
    assert_eq!(got.expect("may claim"), [LOG]);
    assert!(registry.release(tenure).await.expect("may release"));
}

/// The printed statements make a store that a user without rights for DDL can serve.
#[tokio::test]
async fn a_printed_schema_serves_a_user_without_ddl_rights() {
    let Some(server) = shared() else { return };
    let url = store_url(server);
    let config_of = config(&url);
    let name = schema_of(&url);
    server
        .execute(&format!("CREATE ROLE {name}_app LOGIN"))
        .expect("made");
    let app_url = url.replace("postgres@", &format!("{name}_app@"));
    let error = PostgresBackend::open(config(&app_url))
        .await
        .expect_err("may not make it");
    assert!(
        matches!(error.kind(), ErrorKind::Unsupported(_)),
        "{error:?}"
    );
    assert!(error.to_string().contains("gesta schema print"), "{error}");
    let ddl = schema::ddl(&config_of, 1).expect("valid");
    server.execute(&ddl).expect("runs as printed");
    let grants: Vec<String> = ddl
        .lines()
        .filter_map(|line| line.strip_prefix("-- GRANT "))
        .map(|grant| {
            format!(
                "GRANT {}",
                grant
                    .replace("gesta_server", &format!("{name}_app"))
                    .replace("gesta_keeper", &format!("{name}_app"))
            )
        })
        .collect();
    assert!(grants.len() >= 5);
    let (to_begin_anew, others): (Vec<String>, Vec<String>) = grants
        .into_iter()
        .partition(|grant| grant.contains("UPDATE (incarnation"));
    for grant in others {
        server.execute(&grant).expect("granted");
    }
    let backend = open(&app_url).await;
    may_append_and_scavenge(&backend).await;
    may_own_logs(&backend).await;
    let error = schema::new_incarnation(&config(&app_url))
        .await
        .expect_err("may not");
    assert!(
        matches!(error.kind(), ErrorKind::Unsupported(_)),
        "{error:?}"
    );
    for grant in to_begin_anew {
        server.execute(&grant).expect("granted");
    }
    schema::new_incarnation(&config(&app_url))
        .await
        .expect("may do so now");
}

#[tokio::test]
async fn a_database_of_another_encoding_is_refused() {
    let Some(server) = shared() else { return };
    let latin = fresh_schema();
    server
        .execute(&format!(
            "CREATE DATABASE {latin} ENCODING 'LATIN1' LOCALE 'C' TEMPLATE template0"
        ))
        .expect("made");
    let error = PostgresBackend::open(config(&server.url_for(&latin)))
        .await
        .expect_err("refused");
    let cure = "CREATE DATABASE … ENCODING 'UTF8' TEMPLATE template0";
    assert!(error.to_string().contains(cure), "{error}");
    let error = PostgresBackend::open(config(&server.url_for(&fresh_schema())))
        .await
        .expect_err("refused");
    assert!(matches!(error.kind(), ErrorKind::Unsupported(_)), "{error}");
}

fn appended(position: u64) -> Signal {
    Signal::Appended {
        log: LOG,
        position: Position(position),
    }
}

/// Waits until a listener is told that messages may have been lost.
async fn is_interrupted(listener: &mut BoxStream<'static, Signal>) {
    let told = async { while listener.next().await != Some(Signal::Interrupted) {} };
    tokio::time::timeout(PATIENCE, told).await.expect("told");
}

#[tokio::test]
async fn messages_reach_the_others_and_interruptions_are_told() {
    let Some(server) = shared() else { return };
    let url = store_url(server);
    // Sessions with a name of their own: the sessions of other tests are not ended with them.
    let name = format!("messages_{}", schema_of(&url));
    let named = format!("{url}&application_name={name}");
    let (one, other) = (open(&named).await, open(&named).await);
    let (mut at_one, mut at_other) = (signals_of(&one), signals_of(&other));
    until_heard(&one, &mut at_other).await;
    let many: Vec<Signal> = (1..=100).map(appended).collect();
    let arrived = until_told(&one, &many, &mut at_other).await;
    let about_appends = |signal: &&Signal| matches!(signal, Signal::Appended { .. });
    let count = arrived.iter().filter(about_appends).count();
    assert!(count < 20, "merged, not {count} messages");
    let go_on = Signal::GiveWay {
        log: LOG,
        by: Uuid::from_u128(9),
        needed: std::time::Duration::ZERO,
        waited: std::time::Duration::ZERO,
    };
    let arrived = until_told(&other, &[go_on], &mut at_one).await;
    assert!(
        arrived.iter().all(|signal| *signal == Signal::Interrupted),
        "our own came back: {arrived:?}"
    );
    let client = direct(&url).await;
    let end = format!(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = '{name}'"
    );
    client.batch_execute(&end).await.expect("ended");
    is_interrupted(&mut at_one).await;
    is_interrupted(&mut at_other).await;
    until_told(&one, &[appended(200)], &mut at_other).await;
}

/// What `pg_dump` says of a schema in the database at this URL.
fn dump(database: &str, schema: &str) -> Vec<u8> {
    let programs = gesta_rig::find_binaries().expect("found before");
    let dump = std::process::Command::new(programs.join("pg_dump"))
        .args(["--schema", schema, "--dbname", database])
        .output()
        .expect("runs");
    assert!(
        dump.status.success(),
        "{}",
        String::from_utf8_lossy(&dump.stderr)
    );
    dump.stdout
}

/// Carries out a dump with `psql`.
fn restore(url: &str, dump: &[u8]) {
    let programs = gesta_rig::find_binaries().expect("found before");
    let mut restore = std::process::Command::new(programs.join("psql"))
        .args(["--quiet", "--set", "ON_ERROR_STOP=1", "--dbname", url])
        .stdin(std::process::Stdio::piped())
        .stdout(std::process::Stdio::null())
        .spawn()
        .expect("runs");
    let mut input = restore.stdin.take().expect("piped");
    std::io::Write::write_all(&mut input, dump).expect("written");
    drop(input);
    assert!(restore.wait().expect("ends").success());
}

/// Goal: the documented way of backup and restore. A dump taken while the store is in use is a whole store; the
/// restored one begins a new life.
#[tokio::test(flavor = "multi_thread")]
async fn a_dump_is_restored_into_a_new_life() {
    let Some(server) = shared() else { return };
    // Databases of its own: `pg_dump` reads the catalog of the whole database, which other tests change meanwhile.
    let made = || server.create_database(&fresh_schema()).expect("made");
    let (database, restored_database) = (made(), made());
    let schema_name = fresh_schema();
    let url = format!("{database}?schema={schema_name}");
    let backend = open(&url).await;
    let mut writer = backend.open_writer(LOG).await.expect("opens");
    let mut author = Author::default();
    let mut tagged = draft("a", "T");
    tagged.tags = &["x", "y"];
    assert!(is_committed(
        &author
            .append(&mut *writer, &[tagged, draft("b", "T")])
            .await
    ));
    let dump = dump(&database, &schema_name);
    // Appended after the backup: lost by the restore.
    assert!(is_committed(
        &author.append(&mut *writer, &[draft("a", "T")]).await
    ));
    restore(&restored_database, &dump);
    let restored_url = format!("{restored_database}?schema={schema_name}");
    let old = backend.history().incarnation;
    let new = schema::new_incarnation(&config(&restored_url))
        .await
        .expect("begun");
    let restored = open(&restored_url).await;
    assert_eq!(restored.history().incarnation, new);
    assert_ne!(new, old);
    let mut source = restored.audit_source().await.expect("snapshot");
    let report = gesta_sql::verify::audit(&mut source, &mut |_| {})
        .await
        .expect("audited");
    assert!(
        report.is_healthy() && report.logs[0].events == 2,
        "{report:?}"
    );
    let mut writer = restored.open_writer(LOG).await.expect("opens");
    let mut author = Author::default();
    author.end = restored.log_end(LOG, Purpose::Read).await.expect("answers");
    assert!(is_committed(
        &author.append(&mut *writer, &[draft("c", "U")]).await
    ));
}

/// What happened: a database was dropped and made anew with fewer logs under a running process, which took it for a new
/// incarnation of its store, was ready, and acknowledged appends into logs that the new store does not have. What holds
/// now: each connection is compared, another store is refused, and everything goes on when the right one is back.
#[tokio::test(flavor = "multi_thread")]
async fn another_store_in_place_of_ours_is_refused() {
    let Some(server) = shared() else { return };
    for logs in [2, 4] {
        let (backend, url) = fresh_logs(server, 4).await;
        let name = schema_of(&url);
        let last = LogId(3);
        let mut writer = backend.open_writer(last).await.expect("opens");
        let mut author = Author::of(last);
        let first = author.append(&mut *writer, &[draft("a", "T")]).await;
        assert!(is_committed(&first));
        let history = backend.history();
        let client = direct(&url).await;
        let away = format!("ALTER SCHEMA {name} RENAME TO {name}_away");
        client.batch_execute(&away).await.expect("renamed");
        schema::create(&config(&url), logs).await.expect("another");

        // Each kind of connection is refused: appends, reads, administration, the registry.
        let registry = backend.registry().expect("has one");
        let opened = backend
            .open_writer(last)
            .await
            .err()
            .expect("another store");
        let removed = backend.remove_hidden(
            last,
            author.stream_row("a"),
            Visibility {
                from: gesta_core::Revision(0),
                created_from: None,
            },
            gesta_core::backend::RunMode::Dry,
        );
        let errors = [
            opened,
            backend.log_ends(Purpose::Read).await.expect_err("another"),
            removed.await.expect_err("another"),
            backend.audit_source().await.expect_err("another"),
            registry.look().await.expect_err("another"),
        ];
        for error in errors {
            let text = error.to_string();
            assert!(error.is_for_administrator(), "{error:?}");
            assert!(matches!(error.kind(), ErrorKind::Unavailable(_)), "{text}");
            assert!(
                text.contains("another store") && text.contains("start it again"),
                "{text}"
            );
        }
        // What was open before leads to the other store as well, and is used no more.
        let late = author
            .clone()
            .append(&mut *writer, &[draft("a", "T")])
            .await;
        assert!(!is_committed(&late), "{late:?}");
        let stored = direct(&url)
            .await
            .query_one("SELECT count(*) FROM events", &[])
            .await;
        assert_eq!(stored.expect("counts").get::<_, i64>(0), 0);
        assert_eq!(backend.history(), history, "nothing was learnt from it");

        let back = format!("DROP SCHEMA {name} CASCADE; ALTER SCHEMA {name}_away RENAME TO {name}");
        client.batch_execute(&back).await.expect("back");
        let mut writer = backend.open_writer(last).await.expect("opens again");
        let confirmed = writer.submit(confirm_of(last, author.end)).await;
        assert!(is_committed(&confirmed), "{confirmed:?}");
        assert_eq!(backend.history(), history);
    }
}

/// Goal: the database itself stores nothing in a log that the store does not have, also in a store that was made by an
/// earlier version; who could begin a new incarnation there may note the timeline as well.
#[tokio::test]
async fn no_event_is_stored_in_a_log_that_the_store_does_not_have() {
    let Some(server) = shared() else { return };
    let (made, migrated) = (store_url(server), store_url(server));
    schema::create(&config(&made), 2).await.expect("made");
    let name = schema_of(&migrated);
    server
        .execute(&format!(
            "CREATE SCHEMA {name}; CREATE ROLE {name}_app LOGIN"
        ))
        .expect("made");
    let client = direct(&migrated).await;
    let steps = [
        include_str!("../../sql/migrate_0001.sql"),
        "INSERT INTO store (schema_version, logs, incarnation) VALUES (5, 2, gen_random_uuid())",
        include_str!("../../sql/migrate_0002.sql"),
        include_str!("../../sql/migrate_0003.sql"),
        include_str!("../../sql/migrate_0004.sql"),
        include_str!("../../sql/migrate_0005.sql"),
    ];
    for step in steps {
        client.batch_execute(step).await.expect("version 5");
    }
    let grant = format!("GRANT UPDATE (incarnation) ON store TO {name}_app");
    client.batch_execute(&grant).await.expect("granted");
    let versions = schema::migrate(&config(&migrated)).await.expect("migrated");
    assert_eq!(versions, (5, 7));
    let may = format!("SELECT has_column_privilege('{name}_app', 'store', 'timeline', 'UPDATE')");
    let may = client.query_one(&may, &[]).await.expect("answers");
    assert!(may.get::<_, bool>(0));
    for url in [made, migrated] {
        let client = direct(&url).await;
        for (log, is_stored) in [(1, true), (2, false), (-1, false)] {
            let insert = format!(
                "INSERT INTO events (position, stream, revision, type, created, writer, checksum, event_id, log, \
                 content_type, data, metadata) VALUES (1, 1, 0, 1, now(), 0, 0, gen_random_uuid(), {log}, 1, '', '')"
            );
            let stored = client.batch_execute(&insert).await;
            let refused = stored.as_ref().err().and_then(|error| error.as_db_error());
            let constraint = refused.and_then(|error| error.constraint());
            assert_eq!(stored.is_ok(), is_stored, "log {log}: {stored:?}");
            assert_eq!(
                constraint.is_none(),
                is_stored || constraint != Some("events_log_check")
            );
        }
    }
}

/// What happened: a reserved word as the name of the schema was *unavailable: syntax error*.
#[tokio::test]
async fn a_schema_may_have_a_reserved_word_as_its_name() {
    let Some(server) = shared() else { return };
    let database = server.create_database(&fresh_schema()).expect("made");
    for name in ["user", "select", "all"] {
        let url = format!("{database}?schema={name}");
        let backend = open(&url).await;
        may_append_and_scavenge(&backend).await;
        drop(backend);
        let printed = schema::ddl(&config(&url), 1).expect("valid");
        assert!(printed.contains(&format!("\"{name}\"")), "{printed}");
    }
}
