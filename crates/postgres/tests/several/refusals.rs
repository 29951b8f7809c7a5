//! What is refused before anything is served: databases that are not all those of one store, or do not agree.

use gesta_core::backend::Backend;
use gesta_core::registry::LeaseEpoch;
use gesta_core::{ErrorKind, LogId};
use gesta_postgres::{Config, MapCopy, PostgresBackend, schema};
use gesta_rig::{Server, fresh_schema, shared};

use crate::support::{config, create, several};

fn urls(server: &Server, count: usize) -> Vec<String> {
    let url = |_| format!("{}?schema={}&readers=1", server.url(), fresh_schema());
    (0..count).map(url).collect()
}

async fn said(urls: &[String]) -> String {
    let refused = several(urls).await;
    refused.expect_err("refused").to_string()
}

async fn execute(url: &str, sql: &str) {
    let (base, schema) = url.split_once("?schema=").expect("has one");
    let schema = schema.split('&').next().expect("one");
    let client = gesta_rig::connect(base).await.expect("connects");
    let sql = format!("SET search_path = {schema}; {sql}");
    client.batch_execute(&sql).await.expect("done");
}

/// Goal: a store of several databases is never served by some of them, nor one of them as if it were the store.
#[tokio::test]
async fn every_database_of_the_store_must_be_named() {
    let Some(server) = shared() else { return };
    let all = urls(server, 3);
    create(&all, 5).await;
    let text = said(&all[..2]).await;
    assert!(
        text.contains("all 3 databases of the store, found 2: database 3 of 3"),
        "{text}"
    );
    assert!(text.contains("; log 2) is missing"), "{text}");
    let mut alone = Config::parse(&all[1]).expect("valid");
    alone.must_exist = true;
    let error = PostgresBackend::open(alone).await.expect_err("a part");
    assert!(
        matches!(error.kind(), ErrorKind::InvalidArgument { .. }),
        "{error:?}"
    );
    let text = error.to_string();
    assert!(
        text.contains("all 3 databases of the store, found one: database 1 of 3"),
        "{text}"
    );
    let doubled = [all[0].clone(), all[1].clone(), all[1].clone()];
    assert!(said(&doubled).await.contains("database 2 of 3"));
    assert!(several(&all).await.is_ok());
}

#[tokio::test]
async fn a_database_of_another_store_is_refused() {
    let Some(server) = shared() else { return };
    let (one, other) = (urls(server, 2), urls(server, 2));
    create(&one, 4).await;
    create(&other, 4).await;
    let text = said(&[one[0].clone(), other[1].clone()]).await;
    assert!(text.contains("databases of one store"), "{text}");
    let single = urls(server, 1);
    schema::create(&config(&single[0]), 4).await.expect("made");
    let text = said(&[one[0].clone(), single[0].clone()]).await;
    assert!(text.contains("databases of one store"), "{text}");
}

/// Goal: a process never serves by a map that another database contradicts, or by one that cannot be.
#[tokio::test]
async fn maps_that_differ_or_cannot_be_are_refused() {
    let Some(server) = shared() else { return };
    let all = urls(server, 2);
    create(&all, 4).await;
    execute(&all[1], "UPDATE homes SET database = 1 WHERE log = 1").await;
    let text = said(&all).await;
    assert!(text.contains("log 1 lies elsewhere"), "{text}");
    let newer = "UPDATE map SET version = 2";
    execute(&all[1], newer).await;
    let map = several(&all).await.expect("one copy is older").map();
    assert_eq!((map.version(), map.home(LogId(1))), (2, Some(0)));
    let older = "UPDATE map SET version = 1; UPDATE homes SET database = 2 WHERE log IN (1, 2)";
    execute(&all[1], older).await;
    let text = said(&all).await;
    assert!(text.contains("log 2 lies elsewhere"), "{text}");
    execute(&all[1], "DELETE FROM homes WHERE log = 2").await;
    let error = PostgresBackend::open(config(&all[1])).await;
    let error = error.expect_err("log 2 lies nowhere");
    assert!(matches!(error.kind(), ErrorKind::Corrupt(_)), "{error:?}");
    assert!(error.to_string().contains("each of the 4 logs"), "{error}");
}

/// Goal: no log has events in two databases that differ, whatever an administrator has restored.
#[tokio::test]
async fn events_of_a_log_that_lies_elsewhere_are_found() {
    let Some(server) = shared() else { return };
    let all = urls(server, 2);
    create(&all, 4).await;
    let backend = PostgresBackend::open(config(&all[0])).await.expect("opens");
    let refused = backend.open_writer(LogId(1)).await;
    let text = refused.err().expect("lies elsewhere").to_string();
    assert!(text.contains("log 1 lies in database 2 of 2"), "{text}");
    let event = "INSERT INTO events (position, stream, revision, type, created, writer, checksum, event_id, log, \
                 content_type, data, metadata) VALUES (7, 7, 0, 7, now(), 1, 0, gen_random_uuid(), 1, 0, '', '')";
    execute(&all[0], event).await;
    let text = said(&all).await;
    assert!(
        text.contains("log 1 is lost: it lies in database 2 of 2")
            && text.contains("database 1 of 2")
            && text.contains("an event of it at position 7"),
        "{text}"
    );
}

/// Goal: the printed statements of all databases make the store that `create` makes.
#[tokio::test]
async fn printed_databases_make_one_store() {
    let Some(server) = shared() else { return };
    let all = urls(server, 2);
    let model = urls(server, 2);
    let copies = create(&model, 4).await;
    for (url, copy) in all.iter().zip(&copies) {
        let text = schema::ddl_of_part(&config(url), copy);
        server.execute(&text).expect("runs as printed");
    }
    let made = several(&all).await.expect("whole");
    let copied: Vec<&MapCopy> = copies.iter().collect();
    assert_eq!(*made.map(), copied[0].map);
    let made = made.backend();
    assert_eq!(made.history().incarnation, copies[0].map.origin());
    assert_eq!(made.info().logs, 4);
}

/// Goal: what a database says about the owner of a log counts more than what the former database of the log said,
/// however many owners there were.
#[tokio::test]
async fn epochs_of_leases_grow_with_the_map() {
    let Some(server) = shared() else { return };
    let all = urls(server, 2);
    create(&all, 4).await;
    for version in [1, 2] {
        for url in &all {
            execute(url, &format!("UPDATE map SET version = {version}")).await;
        }
        let store = several(&all).await.expect("opens").backend();
        let logs_of = [[0, 2], [1, 3]];
        for (registry, logs) in store.registries().iter().zip(logs_of) {
            let look = registry.look().await.expect("looks");
            let found: Vec<u16> = look.leases.iter().map(|lease| lease.log.0).collect();
            assert_eq!(found, logs, "only what lies there");
            let expected = LeaseEpoch(0).by_map(version);
            assert!(look.leases.iter().all(|lease| lease.epoch == expected));
        }
    }
}
