//! A server starts, answers, survives `kill -9`, and never outlives its owner.

#![expect(clippy::expect_used, reason = "tests stop at the first surprise")]

use std::process::{Command, Stdio};
use std::time::Duration;

use gesta_rig::{Auth, FaultProxy, LoseReply, Server, ServerConfig, fresh_schema, shared};
use tokio_postgres::NoTls;

/// No test waits longer for anything.
const PATIENCE: Duration = Duration::from_secs(60);

async fn connect(url: &str) -> tokio_postgres::Client {
    gesta_rig::connect(url).await.expect("connects")
}

#[tokio::test(flavor = "multi_thread")]
async fn committed_rows_survive_a_crash_and_a_stop() {
    let config = ServerConfig {
        auth: Auth::Password("se-cret".to_owned()),
        ..ServerConfig::default()
    };
    let Some(mut server) =
        Server::start_with(config.with("log_connections", "on")).expect("starts")
    else {
        return;
    };
    let url = server.create_database("shop").expect("created");
    let client = connect(&url).await;
    client
        .batch_execute("CREATE TABLE t(i int); INSERT INTO t VALUES (7)")
        .await
        .expect("stored");
    server.kill_9().expect("killed");
    assert!(client.simple_query("SELECT 1").await.is_err());
    assert_eq!(server.pid(), None);
    server.restart().expect("recovers");
    let client = connect(&url).await;
    let found: i32 = client
        .query_one("SELECT i FROM t", &[])
        .await
        .expect("found")
        .get(0);
    assert_eq!(found, 7);
    let backend: i32 = client
        .query_one("SELECT pg_backend_pid()", &[])
        .await
        .expect("found")
        .get(0);
    server.kill_backend(backend).expect("killed");
    assert!(client.simple_query("SELECT pg_sleep(60)").await.is_err());
    // It recovers by itself. Told to stop before it has, PostgreSQL 15 once in a while does not end.
    let recovers = async {
        while tokio_postgres::connect(&url, NoTls).await.is_err() {
            tokio::task::yield_now().await;
        }
    };
    let recovered = tokio::time::timeout(PATIENCE, recovers).await;
    recovered.expect("recovers");
    server.stop().expect("stops");
    assert!(
        server.log().contains("connection authorized"),
        "{}",
        server.log()
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lost_reply_is_lost_after_the_commit() {
    let Some(server) = shared() else { return };
    let table = fresh_schema();
    let proxy = FaultProxy::to_postgres(server.addr()).expect("listens");
    let direct = connect(&server.url()).await;
    direct
        .batch_execute(&format!("CREATE TABLE {table}(i int)"))
        .await
        .expect("created");
    let client = connect(&proxy.url(&server.url())).await;
    proxy.lose_reply(LoseReply {
        tag_prefix: "INSERT".to_owned(),
        nth: 2,
    });
    let insert = format!("INSERT INTO {table} VALUES (1)");
    client
        .execute(&insert, &[])
        .await
        .expect("the first passes");
    assert!(
        client
            .execute(&insert, &[])
            .await
            .expect_err("lost")
            .as_db_error()
            .is_none()
    );
    let lost = tokio::time::timeout(PATIENCE, proxy.replies_lost(1)).await;
    lost.expect("the proxy tells");
    let count: i64 = direct
        .query_one(&format!("SELECT count(*) FROM {table}"), &[])
        .await
        .expect("counted")
        .get(0);
    assert_eq!(count, 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn delays_cuts_and_late_statements() {
    let Some(server) = shared() else { return };
    let table = fresh_schema();
    let proxy = FaultProxy::to_postgres(server.addr()).expect("listens");
    let direct = connect(&server.url()).await;
    direct
        .batch_execute(&format!("CREATE TABLE {table}(i int)"))
        .await
        .expect("created");
    let client = connect(&proxy.url(&server.url())).await;
    proxy.set_delay(Duration::from_millis(20), Duration::from_millis(30));
    let started = std::time::Instant::now();
    client.simple_query("SELECT 1").await.expect("answers");
    assert!(started.elapsed() >= Duration::from_millis(50));
    proxy.set_delay(Duration::ZERO, Duration::ZERO);

    proxy.hold_requests(true);
    let late = format!("INSERT INTO {table} VALUES (1)");
    let answer =
        tokio::time::timeout(Duration::from_millis(100), client.batch_execute(&late)).await;
    assert!(answer.is_err(), "held back");
    drop(client);
    let count = format!("SELECT count(*) FROM {table}");
    assert_eq!(
        direct
            .query_one(&count, &[])
            .await
            .expect("counted")
            .get::<_, i64>(0),
        0
    );
    proxy.hold_requests(false);
    let arrives = async {
        while direct
            .query_one(&count, &[])
            .await
            .expect("counted")
            .get::<_, i64>(0)
            == 0
        {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    };
    let arrived = tokio::time::timeout(PATIENCE, arrives).await;
    arrived.expect("what was held arrives");

    let client = connect(&proxy.url(&server.url())).await;
    proxy.set_half_open(true);
    let answer =
        tokio::time::timeout(Duration::from_millis(100), client.simple_query("SELECT 1")).await;
    assert!(answer.is_err(), "swallowed");
    proxy.cut_all();
    proxy.set_half_open(false);
    assert!(client.simple_query("SELECT 1").await.is_err());
    proxy.refuse_connections(true);
    assert!(
        tokio_postgres::connect(&proxy.url(&server.url()), NoTls)
            .await
            .is_err()
    );
}

/// Run by the test below in a process of its own, which is then killed.
#[test]
fn owner_that_is_killed() {
    if std::env::var_os("GESTA_PGTEST_OWNER").is_none() {
        return;
    }
    let server = Server::start().expect("starts").expect("installed");
    println!("server {}", server.pid().expect("runs"));
    std::thread::sleep(Duration::from_secs(600));
}

#[test]
fn a_server_does_not_outlive_a_killed_owner() {
    use std::io::{BufRead, BufReader};
    if gesta_rig::find_binaries().is_none() {
        return;
    }
    let program = std::env::current_exe().expect("this program");
    let mut owner = Command::new(program)
        .args(["--exact", "owner_that_is_killed", "--nocapture"])
        .env("GESTA_PGTEST_OWNER", "1")
        .stdout(Stdio::piped())
        .spawn()
        .expect("started");
    let lines = BufReader::new(owner.stdout.take().expect("piped")).lines();
    let pid = lines
        .map_while(Result::ok)
        .find_map(|line| {
            line.split_once("server ")
                .map(|(_, pid)| pid.trim().to_owned())
        })
        .expect("the server's process id");
    assert!(std::path::Path::new(&format!("/proc/{pid}")).exists());
    owner.kill().expect("killed");
    owner.wait().expect("ended");
    let deadline = std::time::Instant::now() + PATIENCE;
    while std::path::Path::new(&format!("/proc/{pid}")).exists() {
        assert!(
            std::time::Instant::now() < deadline,
            "server {pid} still runs"
        );
        std::thread::sleep(Duration::from_millis(10));
    }
}
