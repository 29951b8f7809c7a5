//! The real binary and clients who behave badly: they read nothing, or take every connection, or the system has too few
//! files.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    missing_docs,
    reason = "tests"
)]

mod running;
mod support;

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use running::Running;
use support::wait_until;

/// Longest time in which a reader of a test has what it wants, or is cut off.
const DEADLINE: Duration = Duration::from_secs(200);

/// A hundred subscribers of an event of some megabytes who read nothing took the server several copies of it each,
/// outside every limit: 1.6 GB for an event of 15 MB. Now they share one copy, which counts once against the bytes in
/// flight, and an honest subscriber beside them gets the event.
#[test]
fn subscribers_that_read_nothing_share_what_waits_for_them() {
    const EVENT_BYTES: usize = 6 * 1024 * 1024;
    const SUBSCRIBERS: usize = 100;
    let directory = tempfile::tempdir().unwrap();
    // However long the test takes, nobody is cut off for reading nothing.
    let server = Running::start(
        directory.path(),
        &[
            ("GESTA_SERVER_SLOW_READER_WINDOW", "1h"),
            ("GESTA_SERVER_WRITE_STALL_MAX", "1h"),
        ],
    );
    let body = format!(
        r#"{{"events":[{{"type":"large","data":"{}"}}]}}"#,
        "x".repeat(EVENT_BYTES)
    );
    assert!(server.post("/streams/x", &body).starts_with("HTTP/1.1 201"));
    let before = server.resident_bytes();

    let stalled: Vec<TcpStream> = (0..SUBSCRIBERS)
        .map(|_| {
            let mut socket = server.connect();
            // What the test's own kernel holds is no memory of the server, but let it be little.
            nix::sys::socket::setsockopt(&socket, nix::sys::socket::sockopt::RcvBuf, &8_192)
                .unwrap();
            server.say(&mut socket, "GET /streams/x/subscribe HTTP/1.1\r\n");
            socket
        })
        .collect();
    // Every one of them has read the event, and waits for its client.
    wait_until("subscribers wait", || {
        server.metric("gesta_subscription_events_total") == SUBSCRIBERS
    });
    assert_eq!(server.metric("gesta_subscriptions"), SUBSCRIBERS);
    // The last reads may still hold their pages.
    wait_until("what waits is counted, and counted once", || {
        let counted = server.metric("gesta_http_in_flight_bytes");
        (EVENT_BYTES..6 * EVENT_BYTES).contains(&counted)
    });
    // Up to 32 reads that run at the same time hold a page each, and the allocator keeps what they gave back; it was
    // ten times as much.
    wait_until("the subscribers take little memory", || {
        server.resident_bytes().saturating_sub(before) < 40 * EVENT_BYTES
    });

    let mut honest = server.connect();
    server.say(&mut honest, "GET /streams/x/subscribe HTTP/1.1\r\n");
    let mut received = 0;
    let mut buffer = vec![0; 64 * 1024];
    while received < EVENT_BYTES {
        let bytes = honest.read(&mut buffer).unwrap();
        assert!(bytes > 0, "the subscription ended");
        received += bytes;
    }
    drop(stalled);
    wait_until("subscribers go", || {
        server.metric("gesta_subscriptions") == 1
    });
}

/// Readers of 800 bytes a second were served for ever. Now they are cut off, and a slow network is not.
#[test]
fn slow_readers_are_cut_off_and_slow_networks_are_not() {
    let directory = tempfile::tempdir().unwrap();
    // The window is short, so that the test is short, and yet longer than a machine may stand still. The least rate is
    // so high that the slow reader is cut off after one window.
    let server = Running::start(
        directory.path(),
        &[
            ("GESTA_SERVER_SLOW_READER_WINDOW", "15s"),
            ("GESTA_SERVER_SLOW_READER_BYTES_PER_SECOND", "25000"),
        ],
    );
    let data = "x".repeat(6 * 1024 * 1024);
    let body = format!(r#"{{"events":[{{"type":"T","data":"{data}"}}]}}"#);
    assert!(server.post("/streams/x", &body).starts_with("HTTP/1.1 201"));
    let reader = |bytes_per_step: usize, wanted: usize| {
        let mut socket = server.connect();
        nix::sys::socket::setsockopt(&socket, nix::sys::socket::sockopt::RcvBuf, &65_536).unwrap();
        server.say(&mut socket, "GET /streams/x/subscribe HTTP/1.1\r\n");
        std::thread::spawn(move || {
            let (mut received, mut buffer) = (0, vec![0; bytes_per_step]);
            let begun = Instant::now();
            while received < wanted {
                assert!(begun.elapsed() < DEADLINE, "neither served nor cut off");
                match socket.read(&mut buffer) {
                    Ok(0) | Err(_) => break,
                    Ok(bytes) => received += bytes,
                }
                std::thread::sleep(Duration::from_millis(20));
            }
            received
        })
    };
    // At most 10 kB a second, and 200 kB a second for longer than a window.
    let (slow, honest) = (reader(200, usize::MAX), reader(4_000, 5_500_000));
    let mut idle = server.connect();
    server.say(&mut idle, "GET /streams/none/subscribe HTTP/1.1\r\n");
    assert!(honest.join().unwrap() >= 5_500_000, "a slow network");
    assert!(slow.join().unwrap() < data.len(), "a slow reader");
    wait_until("the silent one is left, and it alone", || {
        server.metric("gesta_subscriptions") == 1
    });
}

/// A stop ended each subscription with an error of its own in the log, though nothing was wrong.
#[test]
fn a_graceful_stop_logs_no_error() {
    let directory = tempfile::tempdir().unwrap();
    // A machine that stands still meanwhile is no error.
    let grace = ("GESTA_SERVER_SHUTDOWN_GRACE", "100s");
    let mut server = Running::start(directory.path(), &[grace]);
    let mut socket = server.connect();
    server.say(&mut socket, "GET /all/subscribe HTTP/1.1\r\n");
    server.read_until(&mut socket, "caught_up");
    server.signal(Signal::SIGTERM);
    let mut rest = String::new();
    socket.read_to_string(&mut rest).unwrap();
    assert!(rest.contains("the server is stopping"), "{rest}");
    assert!(server.wait().success());
    let log = server.log();
    assert!(log.contains("stopped"), "{log}");
    assert!(!log.contains("ERROR") && !log.contains("WARN"), "{log}");
}

/// A server that anybody may reach said nothing about it.
#[test]
fn an_insecure_server_warns() {
    let directory = tempfile::tempdir().unwrap();
    let server = Running::start(directory.path(), &[("GESTA_INSECURE", "true")]);
    wait_until("the warning", || {
        let log = server.log();
        let mut warnings = log.lines().filter(|line| line.contains("WARN"));
        warnings.any(|line| line.contains("no authentication"))
    });
}

/// While all connections were taken, nobody could ask how the server is; and a server whose system allowed fewer open
/// files than its connections failed to accept, and said so each time. Now the limit is raised as far as allowed, the
/// connections are lowered to what fits, and a few more are answered about health and refused everything else.
#[test]
fn health_is_answered_while_all_connections_are_taken_and_files_are_few() {
    let directory = tempfile::tempdir().unwrap();
    let server = Running::with_open_files(directory.path(), 64, 256);
    assert_eq!(server.open_files_max(), (256, 256), "raised");
    let log = server.log();
    let lowered = "connections_max=192";
    assert!(log.contains("WARN") && log.contains(lowered), "{log}");
    let held: Vec<TcpStream> = (0..192)
        .map(|_| {
            let mut socket = server.connect();
            socket
                .write_all(b"GET /health/live HTTP/1.1\r\nHost: localhost\r\n\r\n")
                .unwrap();
            let mut buffer = [0; 1_024];
            assert!(socket.read(&mut buffer).unwrap() > 0);
            socket
        })
        .collect();
    for path in ["/health/live", "/health/ready", "/metrics"] {
        for _ in 0..20 {
            let answer = server.get(path);
            assert!(answer.starts_with("HTTP/1.1 200"), "{path}: {answer}");
            let head = answer.to_ascii_lowercase();
            assert!(head.contains("connection: close"), "{path}: {answer}");
        }
    }
    for _ in 0..20 {
        let refused = server.get("/info");
        assert!(refused.starts_with("HTTP/1.1 503"), "{refused}");
        let head = refused.to_ascii_lowercase();
        assert!(
            head.contains("retry-after: 1") && head.contains("overloaded"),
            "{refused}"
        );
    }
    drop(held);
    wait_until("connections are free", || {
        server.get("/info").starts_with("HTTP/1.1 200")
    });
}

/// Each failed accept was a line in the log, twenty a second. Now a state is told once.
#[test]
fn failing_to_accept_is_told_once() {
    let directory = tempfile::tempdir().unwrap();
    let server = Running::start(directory.path(), &[]);
    assert!(server.get("/health/live").starts_with("HTTP/1.1 200"));
    // No file more than the server has open now.
    server.allow_open_files(3);
    let waiting: Vec<TcpStream> = (0..3).map(|_| server.connect()).collect();
    wait_until("the warning", || server.log().contains("cannot accept"));
    let seen = Instant::now();
    wait_until("more attempts", || seen.elapsed() > Duration::from_secs(2));
    let count = server.log().matches("cannot accept").count();
    assert_eq!(count, 1, "{}", server.log());
    server.allow_open_files(1_024);
    drop(waiting);
    assert!(server.get("/health/live").starts_with("HTTP/1.1 200"));
}

/// Once 860 MB stayed resident after a load, with nothing in flight. What may stay are the page caches of SQLite and
/// the newest events, both of them bounded, and what the allocator keeps.
#[test]
fn memory_is_given_back_after_a_load() {
    const CALLERS: usize = 64;
    const EVENTS: usize = 20;
    const RESIDENT_BYTES_MAX: usize = 150 * 1024 * 1024;
    let directory = tempfile::tempdir().unwrap();
    let server = Running::start(directory.path(), &[]);
    let event = format!(
        r#"{{"events":[{{"type":"large","data":"{}"}}]}}"#,
        "x".repeat(20_000)
    );
    std::thread::scope(|scope| {
        for caller in 0..CALLERS {
            let (server, event) = (&server, &event);
            scope.spawn(move || {
                let stream = format!("/streams/s-{caller}");
                for _ in 0..EVENTS {
                    assert!(server.post(&stream, event).starts_with("HTTP/1.1 201"));
                    assert!(server.get(&stream).starts_with("HTTP/1.1 200"));
                }
            });
        }
    });
    wait_until("memory is given back", || {
        server.resident_bytes() <= RESIDENT_BYTES_MAX
    });
}
