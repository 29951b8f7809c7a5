//! `gesta move` with real servers under load: writers, a reader, a consumer group and the visitors of a cinema go on
//! through the move, while the mover, the servers, the cinema and the databases are killed.
//!
//! What must hold: what was acknowledged is in the target once, in its order, at the positions that readers have seen,
//! whoever died when; each event of the group's stream comes to a consumer; each seat of the cinema is that of the
//! visitor to whom it was given, or free; the source never accepts what the target does not have; after an undo the
//! source goes on.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    missing_docs,
    reason = "tests"
)]

#[path = "moving/answers.rs"]
mod answers;
#[path = "moving/file.rs"]
mod file;
#[path = "moving/load.rs"]
mod load;
mod support;
#[path = "moving/visitors.rs"]
mod visitors;

use std::io::{BufRead as _, BufReader};
use std::path::PathBuf;
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use answers::median;
use file::move_from_file;
use gesta_client::HttpStore;
use gesta_core::{EventData, EventStoreExt, EventType, ExpectedRevision};
use gesta_kit::depth;
use gesta_kit::faulty::Random;
use gesta_rig::{Server as Postgres, ServerConfig, free_address};
use load::Load;
use support::{PATIENCE, Server, code, gesta, patient, run, stderr, stdout, succeed};
use visitors::Visitors;

/// The code of a command that says to try again.
const TRY_AGAIN: i32 = 5;
/// The pause before a server is asked again.
const PAUSE: Duration = Duration::from_millis(20);

/// What happens in a round.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Kind {
    FromPostgres,
    FromFile,
}

/// Both sides of a move.
struct World {
    kind: Kind,
    /// The program of the cinema, if it is there.
    cinema: Option<PathBuf>,
    postgres: [Postgres; 2],
    source: String,
    target: String,
    /// Where stores are already, or parts of them.
    used: Vec<String>,
    folder: tempfile::TempDir,
    /// How long the command took that ended the last move.
    took: Duration,
    random: Random,
    round: usize,
    waits: Waits,
}

/// For how long clients have waited in each move.
#[derive(Default)]
struct Waits {
    /// While the source was closed, and the target not yet open.
    closed: Vec<Duration>,
    /// The longest wait of a writer, from its last answer of the source to its first of the target.
    writers: Vec<Duration>,
    /// The same of the visitors of a cinema.
    visitors: Vec<Duration>,
}

impl Waits {
    fn note(&mut self, report: &serde_json::Value, load: &Load) {
        // A move that a killed mover has ended says no such time.
        let closed = report["closed_seconds"].as_f64();
        self.closed.extend(closed.map(Duration::from_secs_f64));
        let [writers, visitors] = load.waited();
        self.writers.push(writers);
        if load.visitors.is_some() {
            self.visitors.push(visitors);
        }
    }

    fn tell(&self) {
        for (what, times) in [
            ("nothing could be appended", &self.closed),
            ("a writer waited", &self.writers),
            ("a visitor waited", &self.visitors),
        ] {
            let Some(most) = times.iter().max() else {
                continue;
            };
            let (moves, median) = (times.len(), median(times.clone()));
            eprintln!("in {moves} moves {what} for {median:?} at the median, {most:?} at most");
        }
    }
}

impl World {
    fn start(kind: Kind) -> Option<Self> {
        let one = || Postgres::start_with(ServerConfig::default()).unwrap();
        Some(Self {
            kind,
            cinema: support::cinema::program(),
            postgres: [one()?, one()?],
            source: String::new(),
            target: String::new(),
            used: Vec::new(),
            folder: tempfile::tempdir().unwrap(),
            took: Duration::from_secs(1),
            random: depth_random(),
            round: 0,
            waits: Waits::default(),
        })
    }

    /// Fresh stores at both sides.
    fn begin(&mut self) {
        self.round += 1;
        self.source = match self.kind {
            Kind::FromPostgres => self.database(0),
            Kind::FromFile => {
                let file = format!("source-{}.db", self.round);
                support::url_of(&self.folder.path().join(file))
            }
        };
        succeed(&["schema", "create", "--store", &self.source]);
        self.target = self.database(1);
    }

    /// A place for a store, as a schema of the one database of a server.
    fn database(&mut self, at: usize) -> String {
        let number = self.random.below(1_000_000_000);
        let schema = format!("moving_{}_{number}", self.round);
        let url = patient(&self.postgres[at].url());
        format!("{url}&schema={schema}")
    }

    /// Starts a cinema on one of the stores, if its program is there. If it ends instead, what it has said is returned.
    fn try_cinema(&self, store: &str, address: &str) -> Option<Result<Server, Vec<String>>> {
        let mut command = visitors::cinema(self.cinema.as_ref()?, store, address);
        Some(Server::try_spawn(&mut command))
    }

    /// Starts a cinema. On a source that is closed, or has moved, it ends.
    fn cinema(&self, store: &str, address: &str) -> Option<Server> {
        let started = self.try_cinema(store, address)?;
        let why = |log: &Vec<String>| eprintln!("no cinema: {log:?}");
        let started = started.inspect_err(why).ok();
        assert!(started.is_some() || store == self.source, "it is open");
        started
    }

    fn mover(&self) -> Child {
        gesta(&["move", &self.source, &self.target])
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap()
    }

    /// Runs a command until it does not say any more to try again, as while sessions of the dead end.
    fn answered(&self, arguments: &[&str]) -> std::process::Output {
        let begun = Instant::now();
        loop {
            let output = run(arguments);
            if code(&output) != TRY_AGAIN || begun.elapsed() > PATIENCE {
                return output;
            }
            eprintln!("{}", stderr(&output));
        }
    }

    /// A moment of a move that takes as long as the last one, or shortly after it.
    fn moment(&mut self) -> Duration {
        let took = self.took.max(Duration::from_millis(500));
        self.random.duration(took + took / 4)
    }

    /// A mover is killed at some moment, perhaps after its target was.
    async fn mover_dies(&mut self) {
        let mut mover = self.mover();
        tokio::time::sleep(self.moment()).await;
        if self.random.below(4) == 0 {
            self.database_dies(1);
            tokio::time::sleep(self.moment()).await;
        }
        mover.kill().unwrap();
        mover.wait().unwrap();
    }

    /// Moves until the command ends, and gives its report.
    fn moved(&mut self) -> serde_json::Value {
        let arguments = ["move", &self.source, &self.target, "--output", "json"];
        let moved = self.answered(&arguments);
        assert!(moved.status.success(), "{}", stderr(&moved));
        eprintln!("{}", stdout(&moved).trim());
        let report: serde_json::Value = serde_json::from_str(&stdout(&moved)).unwrap();
        if report["had_moved"] == false {
            self.took = Duration::from_secs_f64(report["seconds"].as_f64().unwrap());
        }
        report
    }

    /// A database is killed and started again.
    fn database_dies(&mut self, at: usize) {
        self.postgres[at].kill_9().unwrap();
        self.postgres[at].restart().unwrap();
    }

    /// Every row that is left in the source is in the target too: after the move the source has accepted nothing.
    fn source_has_nothing_more(&self) {
        let schema = |url: &str| url.rsplit_once("schema=").unwrap().1.to_owned();
        let rows = |at: usize, rows: &str| {
            let compared = "count(*) || ' ' || coalesce(sum(checksum::numeric), 0) || ' ' || coalesce(max(position), 0)";
            let found = self.postgres[at].query(&format!("SELECT {compared} FROM {rows}"));
            found.unwrap().unwrap().trim().to_owned()
        };
        let end = "WHERE position < 9223372036854775807";
        let source = rows(0, &format!("{}.moved_events {end}", schema(&self.source)));
        let last = source.rsplit_once(' ').unwrap().1;
        let until = format!("WHERE position <= {last}");
        let target = rows(1, &format!("{}.events {until}", schema(&self.target)));
        assert_eq!(source, target);
    }
}

fn depth_random() -> Random {
    let seed = depth::seed();
    eprintln!("GESTA_SEED={seed}");
    Random::new(seed)
}

fn listen(store: &str, address: &str) -> Server {
    Server::start_with(store, &["--listen", address])
}

/// One move from a database that two servers use, with kills.
async fn move_from_postgres(world: &mut World) -> usize {
    let addresses: Vec<String> = (0..5)
        .map(|_| free_address().unwrap().to_string())
        .collect();
    let (addresses, cinemas) = addresses.split_at(3);
    let urls: Vec<String> = addresses
        .iter()
        .map(|address| format!("http://{address}"))
        .collect();
    let (mut old, mut cinema) = std::thread::scope(|scope| {
        let cinema = scope.spawn(|| world.cinema(&world.source, &cinemas[0]));
        let servers = addresses[..2].iter();
        let servers = servers.map(|address| listen(&world.source, address));
        (servers.collect::<Vec<_>>(), cinema.join().unwrap())
    });
    let visitors = cinema.as_ref().map(|_| Visitors::start(cinemas));
    let load = Load::start(&urls, visitors);
    load.goes_on().await;
    for _ in 0..world.random.below(4) {
        match world.random.below(5) {
            0 => {
                let at = world.random.below(2);
                old.remove(at).kill();
                // It waits for nothing if the store has moved already, and ends if the store is closed while it starts.
                if run_serves(&world.source) {
                    let store = ["serve", "--store", &world.source, "--wait-for-store", "60s"];
                    let serve = [&store[..], &["--listen", &addresses[at]]].concat();
                    match Server::try_spawn(&mut gesta(&serve)) {
                        Ok(server) => old.insert(at, server),
                        Err(log) => assert!(log.join(" ").contains("moved"), "{log:?}"),
                    }
                }
            }
            1 => {
                let at = world.random.below(2);
                world.database_dies(at);
            }
            2 => {
                if let Some(running) = cinema.take() {
                    running.kill();
                    if run_serves(&world.source) {
                        cinema = world.cinema(&world.source, &cinemas[0]);
                    }
                }
            }
            _ => world.mover_dies().await,
        }
        if old.len() < 2 {
            break;
        }
    }
    if world.random.below(3) == 0 {
        let undone = world.answered(&["move", &world.source, &world.target, "--undo"]);
        if undone.status.success() {
            if cinema.is_none() {
                cinema = world.cinema(&world.source, &cinemas[0]);
            }
            if old.len() == 2 {
                load.goes_on().await;
            }
            // What was copied there is not used again.
            world.target = world.database(1);
        } else {
            let why = stderr(&undone);
            assert!(why.contains("cannot be undone"), "{why}");
        }
    }
    load.measure();
    let moved = world.moved();
    let (new, new_cinema) = std::thread::scope(|scope| {
        let cinema = scope.spawn(|| world.cinema(&world.target, &cinemas[1]));
        let server = listen(&world.target, &addresses[2]);
        (server, cinema.join().unwrap())
    });
    load.goes_on().await;
    world.waits.note(&moved, &load);
    if new_cinema.is_some() {
        let (_, place) = world.target.split_once('@').unwrap();
        let (place, _) = place.split_once('?').unwrap();
        if let Some(cinema) = cinema {
            visitors::says_where_its_store_is(cinema.address(), place);
            cinema.stop();
        }
        if depth::count(false, true) {
            let again = world.try_cinema(&world.source, &cinemas[0]).unwrap();
            let told = again.err().expect("the store has moved").join(" ");
            let says_where = told.contains("has moved to") && told.contains(place);
            assert!(says_where, "{told}");
        }
    }
    for server in old {
        // The servers of the source say where the store is, and accept nothing.
        let refused = HttpStore::connect(&server.url).unwrap();
        let event = EventData::json(EventType::new("late").unwrap(), "{}");
        // A stream that is new to a server, and one that it may know, with a type that is new to it.
        for stream in ["late-1", "writer-1"] {
            let error = refused
                .append_to(stream, ExpectedRevision::Any, vec![event.clone()])
                .await
                .expect_err("moved");
            assert!(error.to_string().contains("has moved to"), "{error}");
        }
        let error = refused
            .read_whole_stream("writer-1")
            .await
            .expect_err("moved");
        assert!(error.is_retryable(), "{error}");
        server.kill();
    }
    load.goes_on().await;
    let cinema_address = new_cinema.as_ref().map(|cinema| cinema.address());
    let events = load.check(&new.url, cinema_address).await;
    new_cinema.into_iter().for_each(Server::stop);
    new.stop();
    world.source_has_nothing_more();
    events
}

/// Whether a server can be started on a store.
fn run_serves(store: &str) -> bool {
    run(&["all", "read", "--limit", "1", "--store", store])
        .status
        .success()
}

async fn moves(kind: Kind, times: usize) {
    let Some(mut world) = World::start(kind) else {
        return;
    };
    for round in 0..times {
        world.begin();
        let events = match kind {
            Kind::FromPostgres => move_from_postgres(&mut world).await,
            Kind::FromFile => move_from_file(&mut world).await,
        };
        eprintln!("move {round} of {kind:?}: {events} events");
        let healthy = world.answered(&["verify", "--store", &world.target]);
        assert!(healthy.status.success(), "{healthy:?}");
    }
    world.waits.tell();
}

/// Goal: writers of two servers and a reader go on through moves from PostgreSQL to PostgreSQL.
#[tokio::test(flavor = "multi_thread")]
async fn stores_move_under_load_whoever_dies() {
    moves(Kind::FromPostgres, depth::count(2, 30)).await;
}

/// Goal: the same from a file, which a server and a cinema have by turns. A target that was used before is refused.
#[tokio::test(flavor = "multi_thread")]
async fn files_move_whoever_dies() {
    moves(Kind::FromFile, depth::count(1, 20)).await;
}

/// Goal: a move whose commit waits for a standby that is away says so, and goes on when the standby is no longer waited
/// for.
#[test]
fn a_move_that_waits_for_a_standby_says_so() {
    let one = || Postgres::start_with(ServerConfig::default()).unwrap();
    let (Some(source), Some(target)) = (one(), one()) else {
        return;
    };
    let urls = [patient(&source.url()), patient(&target.url())];
    succeed(&["schema", "create", "--store", &urls[0]]);
    let standby = |name: &str| {
        let set = format!("ALTER SYSTEM SET synchronous_standby_names = '{name}'");
        target.execute(&set).unwrap();
        target.execute("SELECT pg_reload_conf()").unwrap();
    };
    standby("away");
    support::until_commits_wait(&target);
    let mut moving = gesta(&["move", &urls[0], &urls[1]])
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let _limit = support::Limit::of(&moving);
    let mut said = BufReader::new(moving.stderr.take().unwrap()).lines();
    let mut said = said.by_ref().map(Result::unwrap);
    let slow = said.find(|line| line.contains("synchronous standby that does not answer"));
    assert!(slow.is_some());
    standby("");
    let rest: Vec<String> = said.collect();
    assert!(moving.wait().unwrap().success(), "{rest:?}");
}

/// Goal: the command says what it has done, and what to do.
#[test]
fn the_command_says_what_it_has_done() {
    let Some(postgres) = Postgres::start_with(ServerConfig::default()).unwrap() else {
        return;
    };
    let url = |name: &str| patient(&postgres.create_database(name).unwrap());
    let (source, target) = (url("from_here"), url("to_there"));
    let event = ["--type", "happened", "--data", "{}", "--store", &source];
    succeed(&[&["stream", "append", "cart-1"][..], &event].concat());
    let refused = run(&["move", "http://127.0.0.1:1", &target]);
    assert_eq!(code(&refused), 2);
    let nothing = succeed(&["move", &source, &target, "--undo"]);
    assert!(nothing.contains("was not moving"), "{nothing}");
    let moved = succeed(&["move", &source, &target]);
    assert!(moved.contains("/to_there: 1 event of 1 stream,"), "{moved}");
    assert!(
        moved.contains("checkpoints of consumers stay valid"),
        "{moved}"
    );
    assert!(
        !moved.contains("postgres:") && !moved.contains('@'),
        "no credentials: {moved}"
    );
    let again: serde_json::Value =
        serde_json::from_str(&succeed(&["move", &source, &target, "--output", "json"])).unwrap();
    assert_eq!(
        (&again["events"], &again["checkpoints_kept"]),
        (&1.into(), &true.into())
    );
    // What happened: a move that was repeated said that the store had moved in 0.0 s; and one back said "unavailable",
    // with the code to try again, for ever.
    assert_eq!(again["had_moved"], true);
    let again = succeed(&["move", &source, &target]);
    assert!(
        again.contains("had moved to") && again.contains("there was nothing to do"),
        "{again}"
    );
    for back in [&["move"][..], &["copy"]] {
        let back = run(&[back, &[&target, &source]].concat());
        assert_eq!(code(&back), 1, "{back:?}");
        let told = stderr(&back);
        let why = "the target holds the old data of a store that has moved away";
        assert!(
            told.contains(why) && told.contains("empty database"),
            "{told}"
        );
    }
    let refused = run(&[&["stream", "append", "cart-1"][..], &event].concat());
    assert!(
        stderr(&refused).contains("/to_there"),
        "{}",
        stderr(&refused)
    );
    let refused = run(&["move", &source, &target, "--undo"]);
    assert!(
        stderr(&refused).contains("cannot be undone"),
        "{}",
        stderr(&refused)
    );
    let read = succeed(&["stream", "read", "cart-1", "--store", &target]);
    assert!(read.contains("happened"), "{read}");
}
