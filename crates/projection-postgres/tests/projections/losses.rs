//! A server that loses commits which it has acknowledged, as `Synchronous::Off` lets it.

use std::sync::Arc;
use std::time::Duration;

use gesta_core::{EventStoreExt, ExpectedRevision};
use gesta_memory::MemoryStore;
use gesta_projection::{Config, OnPoison, Projections};
use gesta_projection_postgres::{Options, PostgresTarget, Synchronous};
use gesta_rig::{Server, ServerConfig};

use crate::databases::Database;
use crate::kit::fixtures::{Balances, balances_of, event, seen};
use crate::kit::world::{AT_ALL, id, until_so};

/// Goal: what a crash of the server takes with it is applied again, though nothing is appended and the process lives
/// on, and nobody is told before that it is there.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn commits_that_a_crash_takes_are_made_again() {
    let config = ServerConfig::default().with("wal_writer_delay", "10s");
    let server = Server::start_with(config).expect("it starts");
    let mut server = server.expect("PostgreSQL is installed");
    let database = Database::on(&server.url()).await;
    let target = || {
        let options = Options {
            schema: Some(database.schema.clone()),
            synchronous: Synchronous::Off,
            ..Options::default()
        };
        PostgresTarget::with(&database.url, options).expect("a plain URL")
    };
    let store: Arc<dyn gesta_core::EventStore> = Arc::new(MemoryStore::new());
    let config = Config {
        look_every: Duration::from_millis(20),
        // To renew a lease would make durable what was committed before.
        lease: Duration::from_secs(3_600),
        back_off: (Duration::from_millis(1), Duration::from_millis(50)),
        ..Config::default()
    };
    let running = Projections::on(&store, target()).config(config);
    let running = running.view(Balances).start().await.expect("started");
    let progress = running.progress(&id("balances", 1));
    let progress = progress.expect("it runs here");
    let mut losses = 0;
    for round in 0..20 {
        let events = vec![event("added", &round.to_string())];
        let appended = store.append_to("account-1", ExpectedRevision::Any, events);
        let appended = appended.await.expect("appended").checkpoint;
        let waited = running.wait_for("balances", &appended, AT_ALL).await;
        waited.expect("applied");
        // A process that has nothing to apply finds out by its looks alone.
        let failures = progress.borrow().failures;
        server.kill_9().expect("killed");
        server.restart().expect("it starts again");
        let is_back = async || running.control().active("balances").await.is_ok();
        until_so(is_back, "the server is back").await;
        let waited = async || {
            let wait = Duration::from_millis(500);
            running.wait_for("balances", &appended, wait).await.is_ok()
        };
        until_so(waited, "it is applied").await;
        let all = store.read_everything().await.expect("read");
        let expected = balances_of(&all, OnPoison::Stop);
        assert_eq!(seen(&database, "balances").await.1, expected);
        losses += u32::from(progress.borrow().failures > failures);
        if losses == 2 {
            break;
        }
    }
    assert!(losses > 0, "no crash has lost a commit");
    running.shutdown().await;
}
