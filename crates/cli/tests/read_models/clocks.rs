//! Two processes with the same read model, one of which sees another time.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use gesta::projection::{Phase, ProjectionId, Projections, Target};
use gesta::projection_sqlite::SqliteTarget;
use gesta::{EventStore, EventStoreExt};
use gesta_client::HttpStore;
use gesta_core::{Clock as _, SystemClock};
use gesta_rig::{Child, FakeClock, fresh_schema, shared};

use crate::support::{Server, until, url_of};
use crate::{Chains, append_many, clean_rows, in_schema, quick, rows_of};

/// The store of the process that sees another time; it is one only if this is set.
const STORE: &str = "GESTA_CLOCKS_STORE";
const TARGET: &str = "GESTA_CLOCKS_TARGET";
const SCHEMA: &str = "GESTA_CLOCKS_SCHEMA";
/// How its reports begin.
const REPORT: &str = "the process says: ";
const HOUR: i64 = 3_600_000_000;
/// A clock shows what it is set to, more or less: both processes and this one take their time.
const NEARLY: i64 = HOUR / 4;

/// The process that sees another time: it runs the read model and tells what it does, and what time it is, until it is
/// killed or nobody listens.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_process_that_sees_another_time() {
    let Ok(store) = std::env::var(STORE) else {
        return;
    };
    let store: Arc<dyn EventStore> = Arc::new(HttpStore::connect(&store).unwrap());
    let target = std::env::var(TARGET).unwrap();
    match target.strip_prefix("sqlite:") {
        Some(path) => runs(&store, SqliteTarget::at(path)).await,
        None => {
            let schema = std::env::var(SCHEMA).unwrap();
            runs(&store, in_schema(&target, &schema)).await;
        }
    }
}

async fn runs(store: &Arc<dyn EventStore>, target: impl Target) {
    let projections = Projections::on(store, target).config(quick());
    let running = projections.view(Chains).start().await.expect("started");
    let id = ProjectionId {
        name: "chains".to_owned(),
        version: 1,
    };
    let progress = running.progress(&id).expect("it runs here");
    loop {
        let phase = progress.borrow().phase;
        // It ends here when nobody listens any more.
        println!("{REPORT}{phase:?} {}", SystemClock.now().as_micros());
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// Such a process, with what it has said last.
struct Process {
    child: Child,
    clock: FakeClock,
    said: Arc<Mutex<(String, i64)>>,
}

impl Process {
    /// Starts it, and waits until it is as a second or a first one should be. `None` without clocks.
    fn start(
        folder: &Path,
        name: &str,
        store: &str,
        (target, schema): (&str, &str),
    ) -> Option<Self> {
        let clock = FakeClock::in_folder(folder, name).unwrap()?;
        let test = "clocks::the_process_that_sees_another_time";
        let mut command = Command::new(std::env::current_exe().unwrap());
        command
            .args(["--exact", test, "--nocapture"])
            .env(STORE, store)
            .env(TARGET, target)
            .env(SCHEMA, schema)
            .envs(clock.variables())
            .stdout(Stdio::piped());
        let mut child = Child::spawn(&mut command).unwrap();
        let lines = BufReader::new(child.take_output().unwrap()).lines();
        let said = Arc::new(Mutex::new((String::new(), 0)));
        let says = Arc::clone(&said);
        std::thread::spawn(move || {
            for line in lines.map_while(Result::ok) {
                let report = line
                    .split_once(REPORT)
                    .and_then(|(_, said)| said.split_once(' '));
                if let Some((phase, time)) = report {
                    *says.lock().unwrap() = (phase.to_owned(), time.parse().expect("a time"));
                }
            }
        });
        Some(Self { child, clock, said })
    }

    fn is(&self, phase: Phase) -> bool {
        self.said.lock().unwrap().0 == format!("{phase:?}")
    }

    /// Sets its clock so many hours fast, and waits until it sees that.
    async fn set_clock(&self, hours: i64) {
        self.clock.set(hours * 3_600, 100).unwrap();
        until("the process sees the time", async || {
            let ahead = self.said.lock().unwrap().1 - SystemClock.now().as_micros();
            (ahead - hours * HOUR).abs() < NEARLY
        })
        .await;
    }
}

/// Waits until readers see a clean fold of everything.
async fn is_whole(store: &HttpStore, target: &impl Target) {
    let events = store.read_everything().await.expect("readable");
    let expected = clean_rows(&events);
    until("readers see a clean fold", async || {
        rows_of(target.clone())
            .await
            .is_ok_and(|rows| rows == expected)
    })
    .await;
}

/// The clock of the process that owns the read model, or of the one that stands by, is set an hour ahead or back; then
/// the owner is killed.
async fn whatever_time_it_is<T: Target>(make: impl AsyncFn(&Path) -> (String, String, T)) {
    for (of_owner, of_other) in [(1, 0), (-1, 0), (0, 1), (0, -1)] {
        let folder = tempfile::tempdir().unwrap();
        let server = Server::start(&url_of(&folder.path().join("events.db")));
        let store = HttpStore::connect(&server.url).unwrap();
        let (url, schema, target) = make(folder.path()).await;
        let start = |name| Process::start(folder.path(), name, &server.url, (&url, &schema));
        let Some(owner) = start("owner") else {
            return;
        };
        append_many(&store, 10).await;
        until("one owns it", async || owner.is(Phase::Live)).await;
        let other = start("other").expect("as the first one");
        until("the other one stands by", async || {
            other.is(Phase::StandingBy)
        })
        .await;
        let setting = async {
            owner.set_clock(of_owner).await;
            other.set_clock(of_other).await;
        };
        let appending = async {
            append_many(&store, 40).await;
            is_whole(&store, &target).await;
        };
        tokio::join!(setting, appending);
        append_many(&store, 20).await;
        is_whole(&store, &target).await;

        let mut both = [owner, other];
        until("one owns it, and the other one stands by", async || {
            both.sort_by_key(|process| process.is(Phase::StandingBy));
            both[0].is(Phase::Live) && both[1].is(Phase::StandingBy)
        })
        .await;
        let [mut owner, other] = both;
        owner.child.kill();
        append_many(&store, 20).await;
        is_whole(&store, &target).await;
        until("the other one owns it", async || other.is(Phase::Live)).await;
        server.stop();
    }
}

/// Schedule 9, with processes, rows in a file: its leases are judged by the time that each process sees. What happened:
/// the lease of an owner whose clock was an hour ahead kept all others away for that hour when it was dead.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn schedule_09_a_process_sees_another_time_rows_in_a_file() {
    whatever_time_it_is(async |folder: &Path| {
        let path = folder.join("read.db");
        (url_of(&path), String::new(), SqliteTarget::at(path))
    })
    .await;
}

/// The same with rows in PostgreSQL, whose clock alone counts.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn schedule_09_a_process_sees_another_time_rows_in_postgres() {
    let Some(postgres) = shared() else {
        return;
    };
    whatever_time_it_is(async |_: &Path| {
        let (url, schema) = (postgres.url(), fresh_schema());
        postgres
            .execute(&format!("CREATE SCHEMA {schema}"))
            .expect("made");
        let target = in_schema(&url, &schema);
        (url, schema, target)
    })
    .await;
}
