//! Transactions that commit late: their numbers were drawn before those of events that can be seen already.

use std::sync::Arc;
use std::time::Duration;

use gesta_core::EventStore;
use gesta_import::{Import, Kind, Options, Patience, Step};

use crate::akka_jdbc::{TABLES, insert};
use crate::support::{Journal, import, imported, places, target, try_import};

/// Goal: what was drawn before and is committed later stands before, and nothing is passed over. Who holds the
/// transaction open is told.
#[tokio::test]
async fn a_number_is_passed_only_when_nobody_can_commit_it_any_more() {
    let Some(journal) = Journal::with(TABLES).await else {
        return;
    };
    journal.run(&insert("a|1", 1, "x")).await;
    let late = journal.session().await;
    late.batch_execute(&format!("BEGIN; {}", insert("b|1", 1, "late")))
        .await
        .unwrap();
    let rolled_back = journal.session().await;
    rolled_back
        .batch_execute(&format!("BEGIN; {}", insert("c|1", 1, "never")))
        .await
        .unwrap();
    journal.run(&insert("a|1", 2, "y")).await;
    let options = journal.options(Kind::AkkaJdbc);
    let store = target();
    // Without patience the import says whom it waits for, and has what nothing can come before.
    let impatient = Options {
        patience: Patience {
            settle: Duration::ZERO,
            ..options.patience
        },
        ..options.clone()
    };
    let error = try_import(&impatient, &store)
        .await
        .expect_err("two transactions")
        .to_string();
    assert!(
        error.contains("transactions of the source that may still write before its end: process "),
        "{error}"
    );
    assert_eq!(places(&imported(&store).await), ["1"]);
    let mut follower = Import::open(options, Arc::clone(&store) as Arc<dyn EventStore>)
        .await
        .unwrap();
    assert!(matches!(follower.step().await.unwrap(), Step::Waiting(_)));
    // A transaction that begins later is not waited for.
    let later = journal.session().await;
    later
        .batch_execute(&format!("BEGIN; {}", insert("d|1", 1, "later")))
        .await
        .unwrap();
    late.batch_execute("COMMIT").await.unwrap();
    assert!(matches!(
        follower.step().await.unwrap(),
        Step::Went | Step::Waiting(_)
    ));
    rolled_back.batch_execute("ROLLBACK").await.unwrap();
    while places(&imported(&store).await).len() < 3 {
        follower.step().await.unwrap();
    }
    assert_eq!(places(&imported(&store).await), ["1", "2", "4"]);
    later.batch_execute("COMMIT").await.unwrap();
    while follower.step().await.unwrap() != Step::End {}
    assert_eq!(places(&imported(&store).await), ["1", "2", "4", "5"]);
    assert_eq!(
        (follower.report().late, follower.report().displaced),
        (0, 0)
    );
}

/// Goal: where numbers are drawn by a statement before, in a transaction or not, a number that was given up is found
/// all the same once it is there: while the import runs, and when it goes on.
#[tokio::test]
async fn numbers_that_were_drawn_early_are_found_late() {
    let tables = TABLES.replace("ordering bigserial", "ordering bigint NOT NULL")
        + "CREATE SEQUENCE journal_ordering_seq;";
    let drawn = |number: u64, id: &str| {
        insert(id, 1, "x")
            .replace("(persistence_id", "(ordering, persistence_id")
            .replace("VALUES (", &format!("VALUES ({number}, "))
    };
    let Some(journal) = Journal::with(&tables).await else {
        return;
    };
    journal
        .run("SELECT nextval('journal_ordering_seq') FROM generate_series(1, 6)")
        .await;
    journal
        .run(&[drawn(1, "a|1"), drawn(4, "b|1")].concat())
        .await;
    let options = journal.options(Kind::AkkaJdbc);
    let short = Patience {
        gap_max: Duration::from_millis(30),
        ..options.patience
    };
    let options = Options {
        patience: short,
        ..options
    };
    let store = target();
    let mut follower = Import::open(options.clone(), Arc::clone(&store) as Arc<dyn EventStore>)
        .await
        .unwrap();
    follower.run(|_| ()).await.unwrap();
    assert_eq!(places(&imported(&store).await), ["1", "4"]);
    journal.run(&drawn(2, "c|1")).await;
    follower.run(|_| ()).await.unwrap();
    assert_eq!(follower.report().late, 1);
    drop(follower);
    journal.run(&drawn(3, "d|1")).await;
    let report = import(&options, &store).await;
    assert_eq!((report.stored, report.late), (1, 1), "{report:?}");
    assert_eq!(places(&imported(&store).await), ["1", "4", "2", "3"]);
}

/// Goal: a number that its entity uses again for another event is told, and is not taken for what is there.
#[tokio::test]
async fn a_number_that_is_used_again_is_told() {
    let Some(journal) = Journal::with(TABLES).await else {
        return;
    };
    journal
        .run(&[insert("a|1", 1, "x"), insert("a|1", 2, "y")].concat())
        .await;
    let options = journal.options(Kind::AkkaJdbc);
    let store = target();
    import(&options, &store).await;
    journal.run("DELETE FROM event_journal").await;
    journal.run(&insert("a|1", 1, "another")).await;
    let error = try_import(&options, &store)
        .await
        .expect_err("used again")
        .to_string();
    assert!(
        error.contains("\"a|1\" number 1 (place 3)") && error.contains("has used the number again"),
        "{error}"
    );
    assert_eq!(imported(&store).await.len(), 2);
}

/// Goal: what another writer appends to an imported stream is neither overwritten nor mixed with the import.
#[tokio::test]
async fn a_stream_with_events_of_others_is_left_alone() {
    use gesta_core::{EventData, EventStoreExt, EventType, ExpectedRevision};
    let Some(journal) = Journal::with(TABLES).await else {
        return;
    };
    journal.run(&insert("a|1", 1, "x")).await;
    let options = journal.options(Kind::AkkaJdbc);
    let store = target();
    import(&options, &store).await;
    let own = EventData::json(EventType::new("own").unwrap(), "{}");
    store
        .append_to("a-1", ExpectedRevision::Any, vec![own])
        .await
        .unwrap();
    journal.run(&insert("a|1", 2, "y")).await;
    let error = try_import(&options, &store)
        .await
        .expect_err("a foreign event")
        .to_string();
    assert!(
        error.contains("stream \"a-1\" has an event (revision 1) that this import did not write"),
        "{error}"
    );
    assert_eq!(imported(&store).await.len(), 2);
}

/// What happened: a database that had failed over and lost the newest rows, or was restored in its place, gave their
/// numbers to other events, which stood before the place of the import and were passed over. Goal: this is told, and an
/// import by another name finds them.
#[tokio::test]
async fn numbers_that_are_given_out_again_are_told() {
    let Some(journal) = Journal::with(TABLES).await else {
        return;
    };
    let ten = (1..=10).map(|n| insert(&format!("a|{n}"), 1, "x"));
    journal.run(&ten.collect::<String>()).await;
    let options = journal.options(Kind::AkkaJdbc);
    let store = target();
    assert_eq!(import(&options, &store).await.stored, 10);
    let lose = "DELETE FROM event_journal WHERE ordering > 5; SELECT setval('event_journal_ordering_seq', 5);";
    // Fewer than before, and more: in the first case nothing stands at the place.
    for (news, why) in [(1..=2, "no number so great"), (3..=7, "another event")] {
        if *news.start() == 1 {
            journal.run(lose).await;
        }
        let more = news.map(|n| insert(&format!("new|{n}"), 1, "x"));
        journal.run(&more.collect::<String>()).await;
        let error = try_import(&options, &store)
            .await
            .expect_err("given out again")
            .to_string();
        assert!(
            error.contains(why) && error.contains("at place 10") && error.contains("--name"),
            "{error}"
        );
    }
    let again = Options {
        name: "again".into(),
        ..options.clone()
    };
    assert_eq!(import(&again, &store).await.stored, 7);
    // What was deleted, as a clean-up does it, is no reason to stop.
    journal
        .run("DELETE FROM event_journal WHERE ordering = 12")
        .await;
    journal.run(&insert("new|9", 1, "x")).await;
    assert_eq!(import(&again, &store).await.stored, 1);
}

/// What happened: a source that was restored in its place, and wrote the same stream on from the same number, passed
/// for the one before. Goal: the event is told by its id, or by who wrote it when.
#[tokio::test]
async fn another_event_of_the_same_stream_and_number_is_told() {
    let message = |position: u64| {
        format!(
            "INSERT INTO message_store.messages (position, stream_name, type, data) VALUES ({position}, 'a-1', 't', '{{}}');"
        )
    };
    for (tables, kind, event, lose, other) in [
        (
            TABLES,
            Kind::AkkaJdbc,
            insert("a|1", 2, "x"),
            "DELETE FROM event_journal WHERE ordering = 2; SELECT setval('event_journal_ordering_seq', 1);",
            insert("a|1", 2, "x").replace("1700000000000", "1800000000000"),
        ),
        (
            crate::message_db::TABLES,
            Kind::MessageDb,
            message(1),
            "DELETE FROM message_store.messages WHERE global_position = 2;
             SELECT setval('message_store.messages_global_position_seq', 1);",
            message(1),
        ),
    ] {
        let Some(journal) = Journal::with(tables).await else {
            return;
        };
        let first = match kind {
            Kind::AkkaJdbc => insert("a|1", 1, "x"),
            _ => message(0),
        };
        journal.run(&[first, event].concat()).await;
        let options = journal.options(kind);
        let store = target();
        assert_eq!(import(&options, &store).await.stored, 2);
        assert_eq!(import(&options, &store).await.read, 0);
        journal.run(lose).await;
        journal.run(&other).await;
        let error = try_import(&options, &store)
            .await
            .expect_err("another event")
            .to_string();
        assert!(
            error.contains("another event of this stream and number at place 2")
                && error.contains("new store"),
            "{error}"
        );
    }
}

/// What happened: a logical replica gets its rows in the order of their commits, and shows no lock of those that come
/// late; they were passed over. Goal: it is refused like a standby.
#[tokio::test]
async fn a_logical_replica_is_refused() {
    let Some(journal) = Journal::with(TABLES).await else {
        return;
    };
    journal.run(&insert("a|1", 1, "x")).await;
    // As after CREATE SUBSCRIPTION with a publisher that has the table.
    journal
        .run(
            "CREATE SUBSCRIPTION replica CONNECTION 'host=publisher.invalid' PUBLICATION all_tables \
             WITH (connect = false, slot_name = NONE)",
        )
        .await;
    journal
        .run(
            "SET allow_system_table_mods = on; INSERT INTO pg_subscription_rel (srsubid, srrelid, srsubstate) \
             SELECT oid, 'event_journal'::regclass, 'r' FROM pg_subscription WHERE subname = 'replica'",
        )
        .await;
    let options = journal.options(Kind::AkkaJdbc);
    let error = try_import(&options, &target())
        .await
        .expect_err("a replica")
        .to_string();
    assert!(error.contains("is a logical replica"), "{error}");
    let dry = gesta_import::Import::dry_run(&options, |_| ()).await;
    assert!(dry.is_err());
    journal.run("DROP SUBSCRIPTION replica").await;
    assert_eq!(import(&options, &target()).await.stored, 1);
}

/// What happened: the first host of a URL that let the import in was taken, also if it was a standby, which was refused
/// although the primary was the next host. Goal: the primary is looked for among all of them.
#[tokio::test]
async fn the_primary_is_found_behind_a_standby() {
    use gesta_rig::{Cluster, Replication};
    let Some(cluster) = Cluster::start(1, Replication::Asynchronous).unwrap() else {
        return;
    };
    cluster.server(0).execute(TABLES).unwrap();
    cluster.server(0).execute(&insert("a|1", 1, "x")).unwrap();
    cluster.wait_for_standby(1).unwrap();
    let url = |members: &[usize]| {
        let hosts: Vec<_> = members.iter().map(|n| cluster.server(*n).addr()).collect();
        cluster.url_through(&hosts)
    };
    let options = |url: String| Options::new(Kind::AkkaJdbc, url).unwrap();
    let both = options(url(&[1, 0]));
    assert_eq!(import(&both, &target()).await.stored, 1);
    let error = try_import(&options(url(&[1])), &target())
        .await
        .expect_err("a standby");
    assert!(error.to_string().contains("must be the primary"), "{error}");
}

/// What happened: one event with a time that is not finite stopped the whole import, and the dry run, without its name.
/// Goal: it has no time.
#[tokio::test]
async fn a_time_that_is_none_is_left_out() {
    let Some(journal) = Journal::with(crate::message_db::TABLES).await else {
        return;
    };
    journal
        .run(
            "INSERT INTO message_store.messages (position, stream_name, type, time) VALUES (0, 'a-1', 't', 'infinity')",
        )
        .await;
    let store = target();
    import(&journal.options(Kind::MessageDb), &store).await;
    let Some(journal) = Journal::with(TABLES).await else {
        return;
    };
    let sql = insert("b|1", 1, "x").replace("1700000000000 + 1", "9223372036854775807");
    journal.run(&sql).await;
    import(&journal.options(Kind::AkkaJdbc), &store).await;
    let events = imported(&store).await;
    assert_eq!(events.len(), 2);
    for event in events {
        assert!(crate::support::source(&event)["time"].is_null());
    }
}
