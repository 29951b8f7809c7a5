//! An old application goes on writing while an import follows it, and everything is killed at any moment.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use gesta_core::{ErrorKind, EventStore, EventStoreExt};
use gesta_import::{Import, Kind, Options};
use gesta_kit::depth;
use gesta_kit::faulty::{Random, RandomFaults, World};
use tokio_postgres::Client;

use crate::akka_jdbc::{TABLES, insert};
use crate::support::Journal;

/// What the old application has committed, for each entity.
type Written = BTreeMap<String, Vec<String>>;

/// A session of the old application, with what its open transaction has written.
struct Session {
    client: Client,
    open: Option<(String, Vec<String>)>,
}

/// Writes for a while: transactions of several sessions overlap, and some are rolled back.
async fn write(sessions: &mut [Session], random: &mut Random, written: &mut Written) {
    for _ in 0..40 {
        let at = random.below(sessions.len());
        let busy: Vec<String> = sessions
            .iter()
            .filter_map(|s| s.open.as_ref().map(|(id, _)| id.clone()))
            .collect();
        let session = &mut sessions[at];
        if let Some((id, payloads)) = session.open.take() {
            match random.chance(0.8) {
                true => {
                    session.client.batch_execute("COMMIT").await.unwrap();
                    written.entry(id).or_default().extend(payloads);
                }
                false => session.client.batch_execute("ROLLBACK").await.unwrap(),
            }
            continue;
        }
        let id = format!("Account|{}", random.below(6));
        // One writer for each entity, as in the frameworks.
        if busy.contains(&id) {
            continue;
        }
        let before = written.get(&id).map_or(0, Vec::len) as u64;
        let payloads: Vec<String> = (0..=random.below(3))
            .map(|_| format!("{:x}", random.number()))
            .collect();
        let sql: String = (before + 1..)
            .zip(&payloads)
            .map(|(n, payload)| insert(&id, n, payload))
            .collect();
        session
            .client
            .batch_execute(&format!("BEGIN; {sql}"))
            .await
            .unwrap();
        session.open = Some((id, payloads));
    }
}

/// Goal: whatever is killed and whenever, each committed event is in the target once, in its order.
#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_lost_or_doubled_whoever_is_killed() {
    let given = std::env::var("GESTA_IMPORT_SEED")
        .ok()
        .and_then(|seed| seed.parse().ok());
    let seeds: Vec<u64> = match given {
        Some(seed) => vec![seed],
        None => (0..depth::count(2, 30)).map(|n: u64| 7_000 + n).collect(),
    };
    for seed in seeds {
        eprintln!("GESTA_IMPORT_SEED={seed}");
        let Some(journal) = Journal::with(TABLES).await else {
            return;
        };
        kill_and_compare(&journal, seed).await;
    }
}

async fn kill_and_compare(journal: &Journal, seed: u64) {
    let mut random = Random::new(seed);
    let (world, mut written) = (World::new(1), Written::new());
    let mut sessions = Vec::new();
    for _ in 0..3 {
        sessions.push(Session {
            client: journal.session().await,
            open: None,
        });
    }
    let mut own = vec![pid(&journal.client).await];
    for session in &sessions {
        own.push(pid(&session.client).await);
    }
    let options = journal.options(Kind::AkkaJdbc);
    for round in 0..12 {
        let process = world.store();
        process.random_faults_of(RandomFaults {
            slow_max: Duration::from_millis(20),
            away_max: Duration::from_millis(50),
            ..RandomFaults::new(seed + round, 0.1)
        });
        let store: Arc<dyn EventStore> = process.share();
        let follow = Options {
            follow: true,
            ..options.clone()
        };
        let follower =
            tokio::spawn(async move { Import::follow(&follow, &store, |_, _| (), |_| ()).await });
        write(&mut sessions, &mut random, &mut written).await;
        if random.chance(0.5) {
            let sql = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() AND NOT pid = ANY($1)";
            journal.client.query(sql, &[&own]).await.unwrap();
            write(&mut sessions, &mut random, &mut written).await;
        }
        tokio::time::sleep(random.duration(Duration::from_millis(60))).await;
        follower.abort();
        match follower.await {
            Err(error) => assert!(error.is_cancelled(), "seed {seed}: {error}"),
            // One of the faults: a database that refuses a batch of one append ends the import by right.
            Ok(Err(error)) if matches!(error.kind(), ErrorKind::Refused(_)) => {}
            Ok(ended) => panic!("seed {seed}: {ended:?}"),
        }
        // The process of the target goes with the follower, whatever it had on the way.
        drop(process);
    }
    for session in &mut sessions {
        if let Some((id, payloads)) = session.open.take() {
            session.client.batch_execute("COMMIT").await.unwrap();
            written.entry(id).or_default().extend(payloads);
        }
    }
    let store = world.store();
    let mut last = Import::open(options, store.share()).await.unwrap();
    last.run(|_| ())
        .await
        .unwrap_or_else(|error| panic!("seed {seed}: {error}"));
    for (id, payloads) in written {
        let stream = id.to_lowercase().replace('|', "-");
        let found = store.read_whole_stream(stream.as_str()).await.unwrap();
        let found: Vec<String> = found
            .iter()
            .map(|event| String::from_utf8_lossy(&event.data).into_owned())
            .collect();
        assert_eq!(found, payloads, "seed {seed}: {stream}");
    }
}

async fn pid(client: &Client) -> i32 {
    client
        .query_one("SELECT pg_backend_pid()", &[])
        .await
        .unwrap()
        .get(0)
}
