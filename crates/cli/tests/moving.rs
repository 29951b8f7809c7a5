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
mod support;
#[path = "moving/visitors.rs"]
mod visitors;

use std::collections::HashSet;
use std::io::{BufRead as _, BufReader};
use std::path::PathBuf;
use std::process::{Child, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use answers::{Answers, median};
use gesta_client::HttpStore;
use gesta_core::{
    AllFrom, Append, EventData, EventId, EventStore, EventStoreExt, EventType, ExpectedRevision,
    Position, ReadAll, RecordedEvent, StreamId,
};
use gesta_groups::{ConsumerGroups, Create, Error, GroupId, Settings, Source};
use gesta_pgtest::{Server as Postgres, ServerConfig, free_address};
use gesta_testkit::depth;
use gesta_testkit::faulty::Random;
use support::{PATIENCE, Server, code, gesta, patient, run, stderr, stdout, succeed};
use tokio::task::JoinHandle;
use visitors::Visitors;

/// Writers, each with a stream of its own and one append at a time.
const WRITERS: usize = 6;
/// Appends of every writer before a move begins, and after it.
const APPENDS: usize = 5;
/// The code of a command that says to try again.
const TRY_AGAIN: i32 = 5;
/// The pause before a server is asked again.
const PAUSE: Duration = Duration::from_millis(20);

/// Writers and a reader, which know the servers of both sides.
struct Load {
    stop: Arc<AtomicBool>,
    /// Of each writer, and of each visitor.
    answers: Vec<Answers>,
    writers: Vec<JoinHandle<Vec<EventId>>>,
    reader: JoinHandle<Vec<(Position, EventId)>>,
    consumer: JoinHandle<()>,
    consumed: Consumed,
    visitors: Option<Visitors>,
}

/// The events that the consumer of the group was given.
type Consumed = Arc<Mutex<HashSet<EventId>>>;

impl Load {
    fn start(urls: &[String], visitors: Option<Visitors>) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let (mut answers, mut writers) = (Vec::new(), Vec::new());
        for writer in 0..WRITERS {
            let count = Answers::new();
            answers.push(count.clone());
            // Each begins with another server.
            let mut urls = urls.to_vec();
            let first = writer % urls.len();
            urls.rotate_left(first);
            let stop = Arc::clone(&stop);
            writers.push(tokio::spawn(write(store_of(&urls), writer, stop, count)));
        }
        let reader = tokio::spawn(read_until_stopped(store_of(urls), Arc::clone(&stop)));
        let consumed = Consumed::default();
        let consumer = tokio::spawn(consume(store_of(urls), Arc::clone(&consumed)));
        answers.extend(
            visitors
                .iter()
                .flat_map(|visitors| visitors.answers.clone()),
        );
        Self {
            stop,
            answers,
            writers,
            reader,
            consumer,
            consumed,
            visitors,
        }
    }

    fn counts(&self) -> Vec<usize> {
        self.answers.iter().map(Answers::count).collect()
    }

    /// Waits until every writer and every visitor has got some answers more.
    async fn goes_on(&self) {
        let (before, begun) = (self.counts(), Instant::now());
        loop {
            let now = self.counts();
            if before
                .iter()
                .zip(&now)
                .all(|(before, now)| *now >= before + APPENDS)
            {
                return;
            }
            assert!(
                begun.elapsed() < PATIENCE,
                "appends do not go on: {before:?} {now:?}"
            );
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    /// From now on the longest wait of each client counts.
    fn measure(&self) {
        self.answers.iter().for_each(Answers::measure);
    }

    /// The longest waits of a writer and of a visitor since then.
    fn waited(&self) -> [Duration; 2] {
        let (writers, visitors) = self.answers.split_at(WRITERS);
        [writers, visitors].map(|of| of.iter().map(Answers::waited).max().unwrap_or_default())
    }

    /// Stops, and compares what was acknowledged and read with what `url` serves, and with what the cinema shows.
    async fn check(mut self, url: &str, cinema: Option<&str>) -> usize {
        self.stop.store(true, Ordering::SeqCst);
        let visitors = self.visitors.take().zip(cinema);
        let reservations = visitors.map_or(0, |(visitors, cinema)| visitors.check(cinema));
        let store = HttpStore::connect(url).unwrap();
        let mut events = 0;
        for (writer, written) in std::mem::take(&mut self.writers).into_iter().enumerate() {
            let ids = tokio::time::timeout(PATIENCE, written).await;
            let ids = ids.expect("the last append ends").unwrap();
            let stored = store.read_whole_stream(&stream_of(writer)).await.unwrap();
            let stored: Vec<EventId> = stored.iter().map(|event| event.id).collect();
            assert_eq!(stored, ids, "writer {writer}: stored, and acknowledged");
            events += ids.len();
            if writer == CONSUMED {
                self.consumed_all(&ids).await;
            }
        }
        let read = tokio::time::timeout(PATIENCE, self.reader).await;
        let read = read.expect("the reader ends").unwrap();
        let all = store.read_everything().await.unwrap();
        let is_reservation =
            |event: &&RecordedEvent| event.event_type.as_str() == "seat-reserved.v1";
        let stored = all.iter().filter(is_reservation).count();
        assert_eq!(stored, reservations, "reservations stored, and confirmed");
        let all: Vec<_> = all.iter().map(|event| (event.position, event.id)).collect();
        assert_eq!(read, all[..read.len()], "read by checkpoints, and stored");
        self.consumer.abort();
        events
    }

    /// Waits until the group has delivered every one of these.
    async fn consumed_all(&self, ids: &[EventId]) {
        let begun = Instant::now();
        loop {
            let consumed = self.consumed.lock().unwrap().clone();
            let missing = ids.iter().filter(|id| !consumed.contains(id)).count();
            if missing == 0 {
                return;
            }
            assert!(begun.elapsed() < PATIENCE, "{missing} were not delivered");
            assert!(!self.consumer.is_finished(), "the consumer has ended");
            tokio::time::sleep(PAUSE).await;
        }
    }
}

fn store_of(urls: &[String]) -> HttpStore {
    let urls: Vec<&str> = urls.iter().map(|url| &**url).collect();
    HttpStore::connect_to_cluster(&urls, gesta_client::Config::default()).unwrap()
}

fn stream_of(writer: usize) -> String {
    format!("writer-{writer}")
}

/// Appends one event after the other, each again with the same id until it is acknowledged.
async fn write(
    store: HttpStore,
    writer: usize,
    stop: Arc<AtomicBool>,
    acknowledged: Answers,
) -> Vec<EventId> {
    let (mut ids, stream) = (Vec::new(), StreamId::new(stream_of(writer)).unwrap());
    while !stop.load(Ordering::SeqCst) {
        let id = EventId::random();
        let event = EventData::json(EventType::new("happened").unwrap(), "{}").with_id(id);
        let append = Append::to(stream.clone(), ExpectedRevision::Any, vec![event]);
        while let Err(error) = store.append(append.clone()).await {
            assert!(error.is_retryable(), "{stream}: {error}");
            tokio::time::sleep(PAUSE).await;
        }
        ids.push(id);
        acknowledged.note();
    }
    ids
}

/// Reads all events, page by page, each from the checkpoint of the one before, whoever serves it.
async fn read_until_stopped(store: HttpStore, stop: Arc<AtomicBool>) -> Vec<(Position, EventId)> {
    let (mut read, mut from) = (Vec::new(), AllFrom::Start);
    while !stop.load(Ordering::SeqCst) {
        let mut request = ReadAll::forwards().limit(50);
        request.from = from.clone();
        match store.read_all(request).await {
            Ok(page) => {
                read.extend(page.events.iter().map(|event| (event.position, event.id)));
                from = AllFrom::Checkpoint(page.next);
                if page.events.is_empty() {
                    tokio::time::sleep(PAUSE).await;
                }
            }
            Err(error) => {
                assert!(error.is_retryable(), "{error}");
                tokio::time::sleep(PAUSE).await;
            }
        }
    }
    read
}

/// The writer whose stream has a consumer group.
const CONSUMED: usize = 0;

/// Creates the group, and takes what it delivers, from whichever server runs it, until this is aborted.
async fn consume(store: HttpStore, consumed: Consumed) {
    let source = Source::Stream(StreamId::new(stream_of(CONSUMED)).unwrap());
    let group = GroupId::new(source, "billing").unwrap();
    let settings = Settings {
        message_timeout_ms: 500,
        max_retry_count: 1_000,
        ..Settings::default()
    };
    let create = Create::new(group.clone()).settings(settings);
    loop {
        match store.groups().create(&create).await {
            Ok(_) | Err(Error::Exists(_)) => break,
            Err(error) => eprintln!("the group is created again: {error}"),
        }
        tokio::time::sleep(PAUSE).await;
    }
    loop {
        if let Ok(mut consumer) = store.groups().join(&group, 20, "worker").await {
            while let Some(Ok(delivery)) = consumer.next().await {
                consumed.lock().unwrap().insert(delivery.event.id);
                // It comes again if the answer does not arrive.
                let _ = consumer.ack(&delivery).await;
            }
        }
        tokio::time::sleep(PAUSE).await;
    }
}

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
    folder: tempfile::TempDir,
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
    fn note(&mut self, moved: &str, load: &Load) {
        let report: serde_json::Value = serde_json::from_str(moved).unwrap();
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
            cinema: support::cinema::program().filter(|_| kind == Kind::FromPostgres),
            postgres: [one()?, one()?],
            source: String::new(),
            target: String::new(),
            folder: tempfile::tempdir().unwrap(),
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

    /// A mover is killed at some moment.
    async fn mover_dies(&mut self) {
        let mut mover = self.mover();
        let lives = self.random.duration(Duration::from_millis(1_500));
        tokio::time::sleep(lives).await;
        mover.kill().unwrap();
        mover.wait().unwrap();
    }

    /// A database is killed and started again.
    fn database_dies(&mut self, at: usize) {
        self.postgres[at].kill_9().unwrap();
        self.postgres[at].restart().unwrap();
    }

    /// Every row that is left in the source is in the target too: after the move the source has accepted nothing.
    fn source_has_nothing_more(&self) {
        if self.kind == Kind::FromFile {
            return;
        }
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
    let moved = world.answered(&["move", &world.source, &world.target, "--output", "json"]);
    assert!(moved.status.success(), "{}", stderr(&moved));
    eprintln!("{}", stdout(&moved).trim());
    let (new, new_cinema) = std::thread::scope(|scope| {
        let cinema = scope.spawn(|| world.cinema(&world.target, &cinemas[1]));
        let server = listen(&world.target, &addresses[2]);
        (server, cinema.join().unwrap())
    });
    load.goes_on().await;
    world.waits.note(&stdout(&moved), &load);
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
        let error = refused
            .append_to("late-1", ExpectedRevision::Any, vec![event])
            .await
            .expect_err("moved");
        assert!(error.to_string().contains("has moved to"), "{error}");
        let error = refused
            .read_whole_stream("writer-1")
            .await
            .expect_err("moved");
        assert!(error.is_retryable(), "{error}");
        server.kill();
    }
    load.goes_on().await;
    let cinema_address = new_cinema.as_ref().map(Server::address);
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

/// One move from a file, whose server is stopped or killed before, with kills.
async fn move_from_file(world: &mut World) -> usize {
    let addresses: Vec<String> = (0..2)
        .map(|_| free_address().unwrap().to_string())
        .collect();
    let urls: Vec<String> = addresses
        .iter()
        .map(|address| format!("http://{address}"))
        .collect();
    let mut old = listen(&world.source, &addresses[0]);
    let load = Load::start(&urls, None);
    load.goes_on().await;
    // While it is served the file is not moved.
    let refused = run(&["move", &world.source, &world.target]);
    assert_eq!(code(&refused), TRY_AGAIN, "{}", stderr(&refused));
    assert!(
        stderr(&refused).contains("stop what uses it"),
        "{}",
        stderr(&refused)
    );
    loop {
        match world.random.below(2) {
            0 => old.stop(),
            _ => old.kill(),
        }
        for _ in 0..world.random.below(3) {
            world.mover_dies().await;
            if world.random.below(3) == 0 {
                world.database_dies(1);
            }
        }
        if world.random.below(3) != 0 {
            break;
        }
        let undone = world.answered(&["move", &world.source, &world.target, "--undo"]);
        if !undone.status.success() {
            let why = stderr(&undone);
            assert!(why.contains("cannot be undone"), "{why}");
            break;
        }
        world.target = world.database(1);
        old = listen(&world.source, &addresses[0]);
        load.goes_on().await;
    }
    let moved = world.answered(&["move", &world.source, &world.target, "--output", "json"]);
    assert!(moved.status.success(), "{}", stderr(&moved));
    let refused = run(&["serve", "--store", &world.source, "--listen", "127.0.0.1:0"]);
    assert!(
        stderr(&refused).contains("has moved to"),
        "{}",
        stderr(&refused)
    );
    let new = listen(&world.target, &addresses[1]);
    load.goes_on().await;
    let events = load.check(&new.url, None).await;
    new.stop();
    events
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

/// Goal: the same from a file.
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
