//! What a real server, its network and other people's transactions do to projections.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use gesta_core::{
    Append, Checkpoint, EventStore, EventStoreExt, ExpectedRevision, Position, StreamId,
};
use gesta_memory::MemoryStore;
use gesta_projection::testing::Random;
use gesta_projection::{
    Begin, Config, Fence, KeyedRows, Keys, OnPoison, Phase, ProjectionId, Projections,
    Registration, Running, Session, Table, Target as _, TargetErrorKind,
};
use gesta_rig::{FaultProxy, LoseReply, Server, shared};
use tokio::time::{Instant, sleep};
use uuid::Uuid;

use crate::databases::{Database, connect};

use crate::flavour::{Journal, Limits, Target, fail_and_forget};
use crate::kit::fixtures::{
    Balance, Balances, balances_of, event, journal_of, numbered, of_category, place_at,
    random_event, seen,
};

/// Time for something to happen at all.
const WITHIN: Duration = Duration::from_secs(60);

fn quick() -> Config {
    Config {
        batch_events_max: 20,
        live_events_max: 20,
        lease: Duration::from_millis(800),
        look_every: Duration::from_millis(20),
        back_off: (Duration::from_millis(1), Duration::from_millis(50)),
        ..Config::default()
    }
}

/// Limits for tests in which somebody waits for them to be over.
fn short() -> Limits {
    Limits {
        batch: Duration::from_secs(2),
        lock: Duration::from_millis(200),
        idle: Duration::from_millis(300),
        ..Limits::default()
    }
}

fn store() -> Arc<dyn EventStore> {
    Arc::new(MemoryStore::new())
}

async fn add(store: &Arc<dyn EventStore>, stream: &str, amount: i64) {
    let event = event("added", &amount.to_string());
    let stream = StreamId::new(stream).expect("valid");
    let append = Append::to(stream, ExpectedRevision::Any, vec![event]);
    store.append(append).await.expect("stored");
}

async fn add_some(store: &Arc<dyn EventStore>, random: &mut Random, count: u64) {
    for _ in 0..count {
        let (stream, event) = random_event(random, false);
        let append = Append::to(stream, ExpectedRevision::Any, vec![event]);
        store.append(append).await.expect("stored");
    }
}

async fn run(store: &Arc<dyn EventStore>, target: Target) -> Running<Target> {
    let begun = Instant::now();
    loop {
        let projections = Projections::on(store, target.clone()).config(quick());
        let projections = projections.view(Balances).projection(Journal);
        match projections.start().await {
            Ok(running) => return running,
            // Another process is in the middle of a batch, for longer than this one waits for its lock.
            Err(error)
                if error.to_string().contains("lock timeout") && begun.elapsed() < WITHIN => {}
            Err(error) => panic!("not started: {error}"),
        }
    }
}

fn id(name: &str) -> ProjectionId {
    let name = name.to_owned();
    ProjectionId { name, version: 1 }
}

async fn wait_for_phase(running: &Running<Target>, name: &str, wanted: Phase) {
    let mut progress = running.progress(&id(name)).expect("it runs");
    let reached = progress.wait_for(|progress| progress.phase == wanted);
    let reached = tokio::time::timeout(WITHIN, reached).await;
    assert!(
        reached.is_ok(),
        "{name} did not become {wanted:?}: {running:?}"
    );
}

/// Looks once whether readers see what a clean fold of the events up to the checkpoint gives; true at the end.
async fn look(store: &Arc<dyn EventStore>, database: &Database) -> bool {
    let mut at_the_end = true;
    let all = store.read_everything().await.expect("events");
    // Where no event matches, the stored place may lag behind.
    let filter = of_category("account");
    let last = all.iter().rev().find(|event| filter.matches(event));
    let last = last.map_or(Position(0), |event| event.position);
    for name in ["balances", "journal"] {
        let (checkpoint, rows) = seen(database, name).await;
        let upto = checkpoint
            .positions_for(checkpoint.incarnation, 1)
            .expect("of one log")[0];
        let events: Vec<_> = all
            .iter()
            .filter(|event| event.position <= upto)
            .cloned()
            .collect();
        let expected = match name {
            "balances" => balances_of(&events, OnPoison::Stop),
            _ => journal_of(&events, &HashSet::new()),
        };
        assert_eq!(rows, expected, "{name} at {upto:?}");
        at_the_end &= upto >= last;
    }
    at_the_end
}

async fn come_to_the_end(store: &Arc<dyn EventStore>, database: &Database) {
    let until = Instant::now() + WITHIN;
    while !look(store, database).await {
        if Instant::now() >= until {
            let found = database.target().list().await;
            panic!("the projections did not come to the end: {found:#?}");
        }
        sleep(Duration::from_millis(10)).await;
    }
}

fn server() -> &'static Server {
    shared().expect("PostgreSQL is installed")
}

fn from_environment(name: &str, otherwise: u64) -> u64 {
    let set = std::env::var(name).ok();
    set.and_then(|number| number.parse().ok())
        .unwrap_or(otherwise)
}

/// Goal: connections that end at any moment cost no event and apply none twice. `GESTA_PROJECTION_KILLS` says how many.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn connections_are_killed_at_any_moment() {
    let kills = from_environment("GESTA_PROJECTION_KILLS", 60);
    let database = Database::on(&server().url()).await;
    let named = format!("{}?application_name={}", database.url, database.schema);
    let (store, mut random) = (store(), Random::seed(7));
    let running = run(&store, database.target_by(&named, Limits::default())).await;
    let operator = database.connect().await;
    let kill = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = $1";
    let (mut killed, mut rounds) = (0, 0_u64);
    while killed < kills {
        add_some(&store, &mut random, 12).await;
        let pause = Duration::from_micros(random.below(12_000));
        sleep(pause).await;
        let ended = operator
            .query(kill, &[&database.schema])
            .await
            .expect("killed");
        killed += ended.len() as u64;
        rounds += 1;
        if rounds % 16 == 0 {
            look(&store, &database).await;
        }
    }
    come_to_the_end(&store, &database).await;
    running.shutdown().await;
}

/// Goal: a server that dies and comes back, or takes no rows for a while, stops nothing for good and loses nothing.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn schedules_10_and_11_the_server_dies_and_refuses_rows() {
    let server = Server::start().expect("it starts");
    let mut server = server.expect("PostgreSQL is installed");
    let database = Database::on(&server.url()).await;
    let (store, mut random) = (store(), Random::seed(11));
    let running = run(&store, database.target()).await;
    for round in 0..3 {
        add_some(&store, &mut random, 40).await;
        sleep(Duration::from_millis(round * 3)).await;
        server.kill_9().expect("killed");
        add_some(&store, &mut random, 10).await;
        wait_for_phase(&running, "balances", Phase::TargetAway).await;
        server.restart().expect("it starts again");
    }
    come_to_the_end(&store, &database).await;
    let set = "ALTER SYSTEM SET default_transaction_read_only = on";
    server.execute(set).expect("set");
    server.execute("SELECT pg_reload_conf()").expect("reloaded");
    // A session hears of it a moment later, and may have written by then whatever there was.
    let progress = running.progress(&id("balances")).expect("it runs");
    let refused = async {
        while progress.borrow().phase != Phase::TargetAway {
            add_some(&store, &mut random, 40).await;
            sleep(Duration::from_millis(20)).await;
        }
    };
    let refused = tokio::time::timeout(WITHIN, refused).await;
    assert!(refused.is_ok(), "rows were taken: {running:?}");
    server
        .execute("ALTER SYSTEM RESET default_transaction_read_only")
        .expect("reset");
    server.execute("SELECT pg_reload_conf()").expect("reloaded");
    come_to_the_end(&store, &database).await;
    running.shutdown().await;
}

/// Goal: an answer to a commit that is lost is asked for, and the batch is neither lost nor applied again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn schedule_04_the_answer_to_a_commit_is_lost() {
    let proxy = FaultProxy::to_postgres(server().addr()).expect("a proxy");
    let database = Database::on(&server().url()).await;
    let target = database.target_by(&proxy.url(&database.url), Limits::default());
    let (store, mut random) = (store(), Random::seed(13));
    let running = run(&store, target).await;
    for lost in 1..=8 {
        proxy.lose_reply(LoseReply {
            tag_prefix: "COMMIT".to_owned(),
            nth: u32::try_from(1 + random.below(3)).expect("small"),
        });
        let is_lost = async {
            loop {
                add_some(&store, &mut random, 8).await;
                let waited = proxy.replies_lost(lost);
                let pause = Duration::from_millis(20);
                if tokio::time::timeout(pause, waited).await.is_ok() {
                    return;
                }
            }
        };
        let is_lost = tokio::time::timeout(WITHIN, is_lost).await;
        assert!(is_lost.is_ok(), "no answer was lost");
        look(&store, &database).await;
    }
    come_to_the_end(&store, &database).await;
    running.shutdown().await;
}

/// Goal: an owner that stands still past its lease finds another one when it wakes, and writes nothing.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn schedules_7_and_8_an_owner_that_stands_still_is_succeeded() {
    let proxy = FaultProxy::start(server().addr()).expect("a proxy");
    let database = Database::on(&server().url()).await;
    let (store, mut random) = (store(), Random::seed(17));
    let first = run(
        &store,
        database.target_by(&proxy.url(&database.url), short()),
    )
    .await;
    add_some(&store, &mut random, 40).await;
    come_to_the_end(&store, &database).await;
    let second = run(&store, database.target_with(short())).await;
    wait_for_phase(&second, "balances", Phase::StandingBy).await;
    for round in 0..3 {
        add_some(&store, &mut random, 30).await;
        // Somewhere within a batch, or between two.
        sleep(Duration::from_millis(round * 2)).await;
        proxy.freeze(true);
        add_some(&store, &mut random, 30).await;
        come_to_the_end(&store, &database).await;
        proxy.freeze(false);
        add_some(&store, &mut random, 30).await;
        come_to_the_end(&store, &database).await;
    }
    first.shutdown().await;
    second.shutdown().await;
}

fn table() -> Table {
    Table::of::<Balances>().expect("plain")
}

async fn registered(target: &Target) {
    target.migrate().await.expect("made");
    let registration = Registration {
        id: id("balances"),
        table: Some(table()),
        read_as: vec!["balances".to_owned()],
        made_with: 1,
        filter: gesta_core::Filter::ALL,
        definition: None,
        start: place_at(0),
    };
    target.register(&registration).await.expect("registered");
}

type PostgresSession = <Target as gesta_projection::Target>::Session;

async fn begin(target: &Target, node: u128) -> (PostgresSession, Checkpoint) {
    let node = Uuid::from_u128(node);
    match target
        .begin(&id("balances"), node)
        .await
        .expect("an answer")
    {
        Begin::Begun(session, stored) => (session, stored.checkpoint),
        other => panic!("it did not begin: {other:?}"),
    }
}

fn rows(keys: &[&str]) -> KeyedRows<String, Balance> {
    let row = |key: &&str| {
        let balance = Balance {
            total: 1,
            events: 1,
            note: None,
        };
        ((*key).to_owned(), balance)
    };
    KeyedRows(keys.iter().map(row).collect())
}

async fn open_and_write(
    session: &mut PostgresSession,
    before: u64,
    keys: &[&str],
) -> Result<(), gesta_projection::TargetError> {
    let (from, to) = (place_at(before), place_at(before + 1));
    let fence = Fence {
        from: &from,
        to: &to,
        events_before: i64::try_from(before).expect("small"),
        events: 1,
    };
    session.open(fence).await?;
    let none = Keys(Vec::<String>::new());
    session.write(&table(), &rows(keys), &none).await
}

/// Schedule 6: the commit is sent and does not arrive, the owner is taken for dead, another one begins, the commit
/// arrives.
/// Goal: the server has ended the transaction before the other one began, so the commit does nothing.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn schedule_06_a_commit_that_arrives_late_does_nothing() {
    let proxy = FaultProxy::start(server().addr()).expect("a proxy");
    let database = Database::on(&server().url()).await;
    let (far, near) = (
        database.target_by(&proxy.url(&database.url), short()),
        database.target(),
    );
    registered(&near).await;
    let (mut first, _) = begin(&far, 1).await;
    open_and_write(&mut first, 0, &["account-1"])
        .await
        .expect("written");
    proxy.hold_requests(true);
    let error = first.commit().await.expect_err("no answer");
    assert_eq!(error.kind(), TargetErrorKind::InDoubt, "{error}");
    let (mut second, found) = begin(&near, 2).await;
    assert_eq!(found, place_at(0), "the commit has not landed");
    proxy.hold_requests(false);
    open_and_write(&mut second, 0, &["account-2"])
        .await
        .expect("written");
    second.commit().await.expect("committed");
    let reader = database.connect().await;
    let found = reader
        .query_one("SELECT string_agg(id, ' ') FROM balances", &[])
        .await;
    assert_eq!(found.expect("rows").get::<_, String>(0), "account-2");
}

/// Goal: a commit whose answer is lost is in doubt, and the next session shows that it was done.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn schedule_04_a_commit_without_an_answer_is_asked_for() {
    let proxy = FaultProxy::to_postgres(server().addr()).expect("a proxy");
    let database = Database::on(&server().url()).await;
    let (far, near) = (
        database.target_by(&proxy.url(&database.url), short()),
        database.target(),
    );
    registered(&near).await;
    let (mut session, _) = begin(&far, 1).await;
    open_and_write(&mut session, 0, &["account-1"])
        .await
        .expect("written");
    proxy.lose_reply(LoseReply {
        tag_prefix: "COMMIT".to_owned(),
        nth: 1,
    });
    let error = session.commit().await.expect_err("no answer");
    assert_eq!(error.kind(), TargetErrorKind::InDoubt, "{error}");
    let (_, found) = begin(&near, 1).await;
    assert_eq!(found, place_at(1));
}

/// Goal: a statement that has failed fails the commit, even if the code that sent it has not looked. To PostgreSQL the
/// commit of a failed transaction is a rollback that succeeds.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_failure_that_was_forgotten_fails_the_commit() {
    let database = Database::on(&server().url()).await;
    let target = database.target();
    registered(&target).await;
    let (mut session, _) = begin(&target, 1).await;
    open_and_write(&mut session, 0, &["account-1"])
        .await
        .expect("written");
    fail_and_forget(session.transaction().expect("open")).await;
    let error = session.commit().await.expect_err("it failed");
    assert_eq!(error.kind(), TargetErrorKind::Refused, "{error}");
    let (_, found) = begin(&target, 1).await;
    assert_eq!(found, place_at(0));
}

/// Goal: a deadlock with an application's own transaction is no fault of an event: the batch may be tried again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn schedule_12_a_deadlock_with_an_application_is_tried_again() {
    let database = Database::on(&server().url()).await;
    let named = format!("{}?application_name={}", database.url, database.schema);
    let target = database.target_by(
        &named,
        Limits {
            lock: WITHIN,
            ..Limits::default()
        },
    );
    registered(&target).await;
    let (mut session, _) = begin(&target, 1).await;
    open_and_write(&mut session, 0, &["a", "b"])
        .await
        .expect("written");
    session.commit().await.expect("committed");
    let application = database.connect().await;
    // Whoever looks for deadlocks first is the one that has to go.
    let begin = "BEGIN; SET LOCAL deadlock_timeout = '1h'; UPDATE balances_v1 SET note = 'mine' WHERE id = 'b'";
    application.batch_execute(begin).await.expect("begun");
    let writing = tokio::spawn(async move {
        let written = open_and_write(&mut session, 1, &["a", "b"]).await;
        session.roll_back().await;
        (session, written)
    });
    let observer = database.connect().await;
    let waits = "SELECT count(*) FROM pg_stat_activity WHERE application_name = $1 AND wait_event_type = 'Lock'";
    let until = Instant::now() + WITHIN;
    while observer
        .query_one(waits, &[&database.schema])
        .await
        .expect("a count")
        .get::<_, i64>(0)
        == 0
    {
        assert!(Instant::now() < until, "the batch does not wait");
        sleep(Duration::from_millis(5)).await;
    }
    let other = "UPDATE balances_v1 SET note = 'mine' WHERE id = 'a'; COMMIT";
    application.batch_execute(other).await.expect("committed");
    let (mut session, written) = writing.await.expect("no panic");
    let error = written.expect_err("a deadlock");
    assert_eq!(error.kind(), TargetErrorKind::Away, "{error}");
    open_and_write(&mut session, 1, &["a", "b"])
        .await
        .expect("written");
    session.commit().await.expect("committed");
}

/// Goal: rows that somebody else has locked stop the projection for as long, and nothing is parked for it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn schedule_13_locked_rows_are_waited_for_and_park_nothing() {
    let database = Database::on(&server().url()).await;
    let store = store();
    let projections = Projections::on(&store, database.target_with(short())).config(Config {
        on_poison: OnPoison::Park,
        ..quick()
    });
    let running = projections
        .view(Balances)
        .projection(Journal)
        .start()
        .await
        .expect("started");
    add(&store, "account-0", 1).await;
    come_to_the_end(&store, &database).await;
    let application = database.connect().await;
    let lock = "BEGIN; UPDATE balances_v1 SET note = note WHERE id = 'account-0'";
    application.batch_execute(lock).await.expect("locked");
    add(&store, "account-0", 2).await;
    wait_for_phase(&running, "balances", Phase::TargetAway).await;
    application
        .batch_execute("ROLLBACK")
        .await
        .expect("rolled back");
    come_to_the_end(&store, &database).await;
    running.shutdown().await;
}

/// Schedule 25: a hundred projections over one pool of four connections; one that hangs keeps its own connection, and
/// no other one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn schedule_25_one_of_a_hundred_that_hangs_stops_no_other() {
    let database = Database::on(&server().url()).await;
    let store = store();
    let definition = Projections::on(&store, database.target()).config(quick());
    let definition = definition.view(Balances).projection(Journal);
    let running = numbered(definition, 98).start().await.expect("started");
    add(&store, "account-0", 1).await;
    come_to_the_end(&store, &database).await;
    let application = connect(&database.url, &database.schema).await;
    let lock = "BEGIN; LOCK TABLE journal_v1 IN EXCLUSIVE MODE";
    application.batch_execute(lock).await.expect("locked");
    add(&store, "account-0", 2).await;
    let info = store.info().await.expect("info");
    let head = Checkpoint::logs(info.incarnation, info.heads);
    for id in running.ids().iter().filter(|id| id.name != "journal") {
        let waited = running.wait_for(&id.name, &head, WITHIN).await;
        waited.expect("the one that hangs holds up no other");
    }
    application
        .batch_execute("ROLLBACK")
        .await
        .expect("rolled back");
    come_to_the_end(&store, &database).await;
    running.shutdown().await;
}
