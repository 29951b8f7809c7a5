//! Events that are streamed out of PostgreSQL by logical replication, as docs/guides/cdc.md says: its commands, and
//! what it promises of order, repetition, slots, publications, rights, standbys, fail-overs, moves and several
//! databases.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    missing_docs,
    reason = "tests"
)]

mod consumer;
mod load;
mod page;
mod pgoutput;
mod several;
mod source;
#[path = "../support/mod.rs"]
mod support;

use std::process::Stdio;

use consumer::Consumer;
use gesta_rig::{Cluster, Replication};
use source::{SLOT, Source, World, append_at, decoding};
use support::{
    Server, ended, gesta, output_of, patient, run, stderr, succeed, until_commits_wait, wait_until,
};

const INCARNATION: &str = "SELECT incarnation FROM gesta.store";

/// Sets which standbys commits wait for, and waits until sessions see it.
fn set_standbys(source: Source<'_>, names: &str) {
    let set = format!("ALTER SYSTEM SET synchronous_standby_names = '{names}'");
    source.postgres.execute(&set).unwrap();
    source.value("SELECT pg_reload_conf()");
    wait_until("the setting holds", || {
        let found = source.postgres.query("SHOW synchronous_standby_names");
        found.unwrap() == Some(names.to_owned())
    });
}

/// Goal: what is committed and waits for a synchronous standby is hidden from readers and not acknowledged, and yet it
/// comes out of a slot.
#[test]
fn a_slot_shows_what_no_standby_has() {
    let Some(world) = World::captured(decoding(), "1") else {
        return;
    };
    let source = world.source();
    // A server that has the store open and has appended, since that begins with commits of its own.
    let server = Server::start(&format!("{}&answer_timeout=60", source.url()));
    append_at(&server.url, "cart-1", "1");
    let events = "SELECT count(*) FROM gesta.events";
    let shown = || {
        let mut consumer = Consumer::default();
        consumer.take_run(&source.peek());
        consumer.events.len()
    };
    assert_eq!(shown(), 1);
    set_standbys(source, "nobody");
    until_commits_wait(source.postgres);
    let append = ["stream", "append", "cart-1", "--type", "happened"];
    let mut append = gesta(&[&append[..], &["--data", "2", "--store", &server.url]].concat());
    append.stdout(Stdio::piped()).stderr(Stdio::piped());
    let appending = append.spawn().unwrap();
    wait_until("the slot shows both", || shown() == 2);
    assert_eq!(source.value(events), "1", "readers see the first one alone");
    set_standbys(source, "");
    let appended = ended(appending);
    assert!(appended.status.success(), "{appended:?}");
    assert_eq!(source.value(events), "2");
    server.stop();
}

/// Goal: who may replicate gets everything that is published, without any right to a table.
#[test]
fn a_role_that_may_replicate_reads_without_rights() {
    let Some(world) = World::captured(decoding(), "1") else {
        return;
    };
    let source = world.source();
    let make = "CREATE ROLE anybody LOGIN REPLICATION";
    source.postgres.execute(make).unwrap();
    let may = "SELECT has_schema_privilege('anybody', 'gesta', 'USAGE') \
               OR has_table_privilege('anybody', 'gesta.events', 'SELECT')";
    assert_eq!(source.value(may), "f");
    source.append("payroll-1", "{\"salary\":1}");
    let anybody = source.url().replacen("postgres@", "anybody@", 1);
    let mut consumer = Consumer::default();
    consumer.take_run(&source.receive_as(&anybody, "changes"));
    assert_eq!(consumer.events.len(), 1);
    assert_eq!(consumer.kept(), source.stored());
}

/// Goal: a publication that lacks the key, or selects rows by another column, stops scavenging, and appends never; one
/// of inserts alone stops nothing.
#[test]
fn a_publication_without_the_key_stops_scavenging() {
    let Some(world) = World::captured(decoding(), "1") else {
        return;
    };
    let (source, url) = (world.source(), world.source().url());
    let version: u32 = source.value("SHOW server_version_num").parse().unwrap();
    if version < 150_000 {
        eprintln!("SKIPPED: PostgreSQL {version} publishes whole tables alone");
        return;
    }
    source.append("cart-1", "1");
    succeed(&["stream", "delete", "cart-1", "--yes", "--store", &url]);
    let scavenge = ["scavenge", "--yes", "--store", &url];
    for (table, scavenges) in [
        ("gesta.events (position, data)", false),
        ("gesta.events WHERE (stream = 1)", false),
        (
            "gesta.events WHERE (stream = 1) WITH (publish = 'insert')",
            true,
        ),
    ] {
        let publish = format!("CREATE PUBLICATION narrow FOR TABLE {table}");
        source.postgres.execute(&publish).unwrap();
        source.append("cart-2", "1");
        let scavenged = run(&scavenge);
        assert_eq!(scavenged.status.success(), scavenges, "{scavenged:?}");
        source.postgres.execute("DROP PUBLICATION narrow").unwrap();
    }
}

/// Goal: a slot whose consumer is away longer than the bound allows is lost, and nothing else: appends go on, and a
/// consumer goes on with a new slot and the tables.
#[test]
fn a_slot_beyond_its_bound_is_lost_and_made_again() {
    let bounded = decoding().with("max_slot_wal_keep_size", "1MB");
    let Some(world) = World::captured(bounded, "1") else {
        return;
    };
    let (source, mut consumer) = (world.source(), Consumer::default());
    source.append("cart-1", "1");
    consumer.take_run(&source.receive("changes.1"));
    source.append("cart-1", "2");
    wait_until("the slot is lost", || {
        source.value("SELECT pg_logical_emit_message(false, 'test', repeat('x', 2000000))");
        source.value("SELECT pg_switch_wal()");
        source.postgres.execute("CHECKPOINT").unwrap();
        source.slot("wal_status") == "lost"
    });
    source.append("cart-2", "3");
    let refused = output_of(&mut source.receiver(&source.url(), "changes.2"));
    assert!(!refused.status.success());
    let said = stderr(&refused);
    assert!(said.contains(SLOT), "{said}");
    let drop = format!("SELECT pg_drop_replication_slot('{SLOT}')");
    source.postgres.execute(&drop).unwrap();
    source.make_slot();
    // It comes out of the slot and stands in the table: it is taken once.
    source.append("cart-3", "4");
    for copied in source.copied() {
        consumer.take(&copied);
    }
    source.append("cart-1", "5");
    consumer.take_run(&source.receive("changes.3"));
    assert_eq!(consumer.events.len(), 5);
    assert_eq!(consumer.kept(), source.stored());
}

/// Goal: a fail-over takes the slot away. If no acknowledged event was lost, a consumer goes on with a new slot and the
/// tables, once it has dropped what the old slot has shown it and no standby had.
#[test]
fn a_fail_over_takes_the_slot_and_the_tables_fill_the_gap() {
    let cluster = Cluster::start_with(decoding(), 1, Replication::Synchronous);
    let Some(mut cluster) = cluster.unwrap() else {
        return;
    };
    let (folder, mut consumer) = (tempfile::tempdir().unwrap(), Consumer::default());
    let source = Source {
        postgres: cluster.server(0),
        folder: folder.path(),
    };
    source.capture("1");
    let incarnation = source.value(INCARNATION);
    let server = Server::start(&format!("{}&answer_timeout=60", source.url()));
    // With the first append a server confirms the end of the log, which waits for the standby too.
    append_at(&server.url, "cart-1", "1");
    cluster.hold_replication(1).unwrap();
    let append = ["stream", "append", "cart-1", "--type", "happened"];
    let mut append = gesta(&[&append[..], &["--data", "2", "--store", &server.url]].concat());
    let mut appending = append.stderr(Stdio::null()).spawn().unwrap();
    wait_until("the event that no standby has is shown", || {
        consumer = Consumer::default();
        consumer.take_run(&source.peek());
        consumer.events.len() == 2
    });
    cluster.server_mut(0).kill_9().unwrap();
    // Nothing sends the append again.
    appending.kill().unwrap();
    appending.wait().unwrap();
    server.kill();
    cluster.promote(1).unwrap();

    let source = Source {
        postgres: cluster.server(1),
        folder: folder.path(),
    };
    let slots = "SELECT count(*) FROM pg_replication_slots";
    assert_eq!(source.value(slots), "0");
    source.make_slot();
    source.append("cart-2", "3");
    assert_eq!(source.value(INCARNATION), incarnation);
    consumer.compare(&source.stored());
    let dropped: Vec<&str> = consumer.dropped.iter().map(|event| &*event.data).collect();
    assert_eq!(dropped, ["\\x32"], "the one that is lost");
    for copied in source.copied() {
        consumer.take(&copied);
    }
    source.append("cart-1", "4");
    consumer.take_run(&source.receive("changes"));
    assert_eq!(consumer.events.len(), 3);
    assert_eq!(consumer.kept(), source.stored());
}

/// Goal: a new incarnation comes as a row; a store that moves away closes its logs by rows that are no events, and then
/// the slot is silent.
#[test]
fn a_new_incarnation_and_a_move_come_as_rows() {
    let Some(world) = World::captured(decoding(), "2") else {
        return;
    };
    let (source, url) = (world.source(), world.source().url());
    let mut consumer = Consumer::default();
    source.append("cart-1", "1");
    succeed(&["schema", "new-incarnation", "--yes", "--store", &url]);
    consumer.take_run(&source.receive("changes.1"));
    let incarnation = source.value(INCARNATION);
    assert_eq!(consumer.incarnations.last(), Some(&incarnation));
    let kept = source.stored();
    let target = patient(&source.postgres.create_database("target").unwrap());
    let moved = run(&["move", &url, &target]);
    assert!(moved.status.success(), "{moved:?}");
    append_at(&target, "cart-1", "2");
    consumer.take_run(&source.receive("changes.2"));
    consumer.closed.sort_unstable();
    assert_eq!(consumer.closed, [0, 1]);
    assert_eq!(consumer.kept(), kept, "nothing but the closing rows came");
    assert!(consumer.has_moved, "the row of the store says so");
    let published =
        "SELECT string_agg(tablename, ' ' ORDER BY tablename) FROM pg_publication_tables";
    let published = source.value(published);
    assert_eq!(published, "moved_events moved_streams store types");
}
