//! The runtime on an embedded store: what a user meets, without faults (those are in `linearizable.rs`).

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "test code")]

mod support;

use std::sync::Arc;
use std::time::Duration;

use gesta_core::{EventStore, EventStoreExt, ExpectedRevision, OwnerStore, Revision};
use gesta_entity::{Builder, Config, Error, Request};
use gesta_kit::support::within;
use support::{Account, Command, Insufficient, account_type, config, start, store};

#[tokio::test]
async fn commands_are_stored_and_survive_the_runtime() {
    let store = store().await;
    let accounts = start(&store, config());
    assert_eq!(accounts.execute("1", Command::Deposit(5)).await.unwrap(), 5);
    assert_eq!(
        accounts
            .execute("1", Command::DepositTwice(2))
            .await
            .unwrap(),
        9
    );
    let rejected = accounts
        .execute("1", Command::Withdraw(10))
        .await
        .unwrap_err();
    assert!(matches!(
        rejected,
        Error::Rejected(Insufficient { balance: 9 })
    ));
    assert_eq!(
        accounts.execute("1", Command::Withdraw(4)).await.unwrap(),
        5
    );
    accounts.shutdown().await;

    let stored = store.read_whole_stream("account-1").await.unwrap();
    let types: Vec<_> = stored
        .iter()
        .map(|event| event.event_type.as_str())
        .collect();
    assert_eq!(types, ["deposited", "deposited", "deposited", "withdrawn"]);

    let accounts = start(&store, config());
    assert_eq!(
        accounts.read("1", |account| account.balance).await.unwrap(),
        5
    );
    assert_eq!(
        accounts.read("2", Account::clone).await.unwrap(),
        Account::default()
    );
    assert_eq!(accounts.stats().active, 2);
}

#[tokio::test]
async fn commands_handed_over_together_keep_their_order() {
    let store = store().await;
    let accounts = start(&store, config());
    let pending: Vec<_> = (0..200)
        .map(|_| accounts.submit("1", Request::new(Command::Deposit(1))))
        .collect();
    let withdrawal = accounts.submit("1", Request::new(Command::Withdraw(201)));
    for (n, pending) in (0..).zip(pending) {
        let done = pending.await.unwrap();
        assert_eq!((done.reply, done.revision), (n + 1, Some(Revision(n))));
    }
    assert!(matches!(
        withdrawal.await,
        Err(Error::Rejected(Insufficient { balance: 200 }))
    ));
}

#[tokio::test]
async fn a_key_makes_a_retry_safe_also_after_a_restart() {
    let store = store().await;
    let accounts = start(&store, config());
    let request = || Request::new(Command::Deposit(5)).key("order-1");
    let first = accounts.submit("1", request()).await.unwrap();
    assert_eq!((first.reply, first.repeated), (5, false));
    accounts.execute("1", Command::Deposit(1)).await.unwrap();
    for _ in 0..20 {
        accounts.execute("1", Command::Deposit(1)).await.unwrap();
    }
    let again = accounts.submit("1", request()).await.unwrap();
    assert_eq!((again.reply, again.repeated), (5, true));
    accounts.shutdown().await;
    // Now it comes out of a snapshot.
    let accounts = start(&store, config());
    let again = accounts.submit("1", request()).await.unwrap();
    assert_eq!((again.reply, again.repeated), (5, true));
    assert_eq!(
        accounts.read("1", |account| account.balance).await.unwrap(),
        26
    );
    assert!(
        accounts.stats().loaded_events < 22,
        "{:?}",
        accounts.stats()
    );
}

#[tokio::test]
async fn snapshots_are_written_kept_to_one_and_ignored_when_of_no_use() {
    let store = store().await;
    let accounts = start(&store, config());
    for _ in 0..35 {
        accounts.execute("1", Command::Deposit(1)).await.unwrap();
    }
    accounts.shutdown().await;
    assert_eq!(accounts.stats().snapshots_written, 3);
    let kept = store
        .read_whole_stream("$snapshot-account-1")
        .await
        .unwrap();
    assert_eq!(kept.len(), 1, "only the last one is readable");

    let accounts = start(&store, config());
    let found = accounts.read("1", Account::clone).await.unwrap();
    assert_eq!((found.balance, found.changes), (35, 35));
    assert_eq!(accounts.stats().loaded_events, 5);
    accounts.shutdown().await;

    // A newer version of the program.
    let newer = account_type().snapshots(gesta_entity::Snapshots::json(2).every(10));
    let owner = Arc::clone(&store) as Arc<dyn OwnerStore>;
    let accounts = Builder::new().config(config()).start(owner, newer);
    assert_eq!(
        accounts.read("1", |account| account.balance).await.unwrap(),
        35
    );
    let stats = accounts.stats();
    assert_eq!((stats.snapshots_ignored, stats.loaded_events), (1, 35));
}

#[tokio::test]
async fn foreign_appends_are_seen_by_commands_and_confirmed_reads() {
    let store = store().await;
    let accounts = start(&store, config());
    accounts.execute("1", Command::Deposit(5)).await.unwrap();
    let foreign = |amount: u64| {
        let event_type = gesta_core::EventType::new("deposited").unwrap();
        let event = gesta_core::EventData::json(event_type, format!("{{\"amount\":{amount}}}"));
        store.append_to("account-1", ExpectedRevision::Any, vec![event])
    };
    foreign(10).await.unwrap();
    assert_eq!(
        accounts
            .read_stale("1", |account| account.balance)
            .await
            .unwrap(),
        5
    );
    assert_eq!(
        accounts.read("1", |account| account.balance).await.unwrap(),
        15
    );
    foreign(100).await.unwrap();
    assert_eq!(
        accounts.execute("1", Command::Withdraw(115)).await.unwrap(),
        0
    );
    foreign(1).await.unwrap();
    assert_eq!(accounts.execute("1", Command::Look).await.unwrap(), 1);
    assert!(accounts.stats().reloads >= 3);
}

#[tokio::test]
async fn too_many_commands_are_refused_at_once_while_reads_go_on() {
    let store = store().await;
    let accounts = start(
        &store,
        Config {
            commands_max: 10,
            entity_commands_max: 4,
            ..config()
        },
    );
    accounts.execute("1", Command::Deposit(1)).await.unwrap();
    let pending: Vec<_> = (0..20)
        .map(|_| accounts.submit("1", Request::new(Command::Deposit(1))))
        .collect();
    let read = accounts.read("1", |account| account.balance).await.unwrap();
    let outcomes = futures::future::join_all(pending).await;
    let accepted = outcomes.iter().filter(|outcome| outcome.is_ok()).count();
    let refused = outcomes
        .iter()
        .filter(|outcome| matches!(outcome, Err(Error::Overloaded(_))));
    assert_eq!(refused.count() + accepted, 20);
    assert_eq!(accepted, 4);
    assert!(read >= 1);
    assert_eq!(accounts.execute("1", Command::Look).await.unwrap(), 5);
}

#[tokio::test]
async fn entities_leave_memory_for_others_and_when_idle() {
    let store = store().await;
    let small = Config {
        active_max: 10,
        shards: 1,
        idle_after: Duration::from_secs(600),
        ..config()
    };
    let accounts = start(&store, small.clone());
    for id in 0..50 {
        accounts
            .execute(&id.to_string(), Command::Deposit(1))
            .await
            .unwrap();
    }
    let stats = accounts.stats();
    assert!(
        stats.active <= 11 && stats.passivated_for_room >= 39,
        "{stats:?}"
    );
    accounts.shutdown().await;

    let hasty = Config {
        idle_after: Duration::from_millis(200),
        ..small
    };
    let accounts = start(&store, hasty);
    for id in 0..10 {
        let id = id.to_string();
        assert_eq!(accounts.execute(&id, Command::Deposit(1)).await.unwrap(), 2);
    }
    let all_left = async {
        while accounts.stats().active > 0 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    within("all are idle and leave memory", all_left).await;
    assert!(accounts.stats().passivated_idle > 0);
    assert_eq!(accounts.execute("7", Command::Deposit(1)).await.unwrap(), 3);
}

#[tokio::test]
async fn what_cannot_be_loaded_says_why_and_harms_nobody_else() {
    let store = store().await;
    let unknown = gesta_core::EventType::new("account-frozen").unwrap();
    let event = gesta_core::EventData::json(unknown, "{}");
    store
        .append_to("account-1", ExpectedRevision::Any, vec![event])
        .await
        .unwrap();
    let accounts = start(&store, config());
    let error = accounts
        .execute("1", Command::Deposit(1))
        .await
        .unwrap_err();
    assert!(matches!(&error, Error::Failed(_)));
    assert!(error.to_string().contains("\"account-frozen\""), "{error}");
    assert!(error.to_string().contains("account-1"), "{error}");
    assert_eq!(accounts.execute("2", Command::Deposit(1)).await.unwrap(), 1);
    for bad in ["", "a\u{7}"] {
        assert!(matches!(
            accounts.execute(bad, Command::Look).await,
            Err(Error::Failed(_))
        ));
    }
    assert!(matches!(
        accounts.execute("2", Command::Panic).await,
        Err(Error::Failed(_))
    ));
    assert_eq!(accounts.execute("2", Command::Deposit(1)).await.unwrap(), 2);
}

#[tokio::test]
async fn an_entity_whose_last_event_is_hidden_is_refused_at_once() {
    let store = store().await;
    let accounts = start(&store, config());
    accounts.execute("1", Command::Deposit(1)).await.unwrap();
    accounts.shutdown().await;
    let hide = gesta_core::SetStreamMetadata {
        stream: gesta_core::StreamId::new("account-1").unwrap(),
        expected: ExpectedRevision::Any,
        metadata: gesta_core::StreamMetadata::parse(r#"{"$tb":1}"#).unwrap(),
    };
    store.set_stream_metadata(hide).await.unwrap();
    let accounts = start(&store, config());
    let error = accounts
        .execute("1", Command::Deposit(1))
        .await
        .unwrap_err();
    assert!(matches!(&error, Error::Failed(_)), "{error:?}");
    assert!(error.to_string().contains("account-1"), "{error}");
    assert_eq!(accounts.stats().loads_failed, 1);
}

#[tokio::test]
async fn shutdown_answers_what_waits_and_refuses_the_rest() {
    let store = store().await;
    let accounts = start(&store, config());
    let pending: Vec<_> = (0..100)
        .map(|n| accounts.submit(&(n % 7).to_string(), Request::new(Command::Deposit(1))))
        .collect();
    accounts.shutdown().await;
    for pending in pending {
        pending.await.unwrap();
    }
    assert!(matches!(
        accounts.execute("1", Command::Look).await,
        Err(Error::Unavailable(_))
    ));
    let stats = accounts.stats();
    assert_eq!(
        (stats.active, stats.commands_waiting, stats.commands),
        (0, 0, 100)
    );
    store.shutdown().await.unwrap();
}

#[tokio::test]
async fn a_store_that_is_shut_down_is_unavailable() {
    let store = store().await;
    let accounts = start(&store, config());
    accounts.execute("1", Command::Deposit(1)).await.unwrap();
    store.shutdown().await.unwrap();
    for id in ["1", "2"] {
        let error = accounts.execute(id, Command::Deposit(1)).await.unwrap_err();
        assert!(matches!(&error, Error::Unavailable(_)), "{error:?}");
    }
}
