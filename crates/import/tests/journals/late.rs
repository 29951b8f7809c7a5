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
