//! The proxy between a client and a server that sends back what it gets.

#![allow(clippy::unwrap_used, missing_docs, reason = "tests")]

use std::io::{Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::time::{Duration, Instant};

use gesta_rig::FaultProxy;

/// No test waits longer for anything.
const PATIENCE: Duration = Duration::from_secs(60);

/// A proxy with this round trip before such a server.
fn delayed(round_trip: Duration) -> FaultProxy {
    let proxy = FaultProxy::start(echo()).unwrap();
    proxy.set_round_trip(round_trip);
    proxy
}

/// A server that sends back what it gets.
fn echo() -> SocketAddr {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for socket in listener.incoming().flatten() {
            std::thread::spawn(move || {
                let mut buffer = [0; 4096];
                let mut socket = socket;
                while let Ok(n @ 1..) = socket.read(&mut buffer) {
                    if socket.write_all(&buffer[..n]).is_err() {
                        return;
                    }
                }
            });
        }
    });
    address
}

fn connect(proxy: &FaultProxy) -> TcpStream {
    let socket = TcpStream::connect(proxy.addr()).unwrap();
    socket.set_nodelay(true).unwrap();
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    socket
}

fn wait_until_swallowed(proxy: &FaultProxy, bytes: u64) {
    let deadline = Instant::now() + PATIENCE;
    while proxy.swallowed_bytes() < bytes {
        assert!(Instant::now() < deadline);
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn a_round_trip_takes_the_delay_and_hardly_more() {
    let proxy = delayed(Duration::from_millis(20));
    let mut socket = connect(&proxy);
    let mut fastest = Duration::MAX;
    let (mut count, deadline) = (0, Instant::now() + PATIENCE);
    // On a busy machine many round trips may take longer.
    while count < 10 || fastest >= Duration::from_millis(30) {
        assert!(Instant::now() < deadline, "{fastest:?}");
        count += 1;
        let start = Instant::now();
        socket.write_all(b"x").unwrap();
        socket.read_exact(&mut [0]).unwrap();
        let took = start.elapsed();
        assert!(took >= Duration::from_millis(20), "{took:?}");
        fastest = fastest.min(took);
    }
}

/// Goal: bytes are delayed all at once, and keep their order when the delay changes. On a busy machine everything may
/// stand still for a while: the best attempt counts.
#[test]
fn delayed_bytes_overlap_and_keep_their_order() {
    let deadline = Instant::now() + PATIENCE;
    let mut fastest = Duration::MAX;
    // A hundred chunks, one after the other, would take two seconds.
    while fastest >= Duration::from_secs(1) {
        assert!(Instant::now() < deadline, "{fastest:?}");
        fastest = fastest.min(send_a_hundred_chunks());
    }
}

/// Sends a hundred chunks through a proxy that delays the first half of them, which must come back in order. Returns
/// how long it took.
fn send_a_hundred_chunks() -> Duration {
    let proxy = delayed(Duration::from_millis(20));
    let mut socket = connect(&proxy);
    let start = Instant::now();
    let mut reader = socket.try_clone().unwrap();
    let reading = std::thread::spawn(move || {
        let mut got = vec![0; 400_000];
        reader.read_exact(&mut got).unwrap();
        got
    });
    let sent: Vec<u8> = (0..100_000_u32).flat_map(u32::to_be_bytes).collect();
    for (i, part) in sent.chunks(4_000).enumerate() {
        if i == 50 {
            proxy.set_round_trip(Duration::ZERO);
        }
        socket.write_all(part).unwrap();
    }
    assert!(reading.join().unwrap() == sent, "order was lost");
    start.elapsed()
}

#[test]
fn a_cut_ends_connections_and_new_ones_work() {
    let proxy = delayed(Duration::ZERO);
    let mut socket = connect(&proxy);
    socket.write_all(b"x").unwrap();
    socket.read_exact(&mut [0]).unwrap();
    assert_eq!(proxy.cut_all(), 1);
    assert!(matches!(socket.read(&mut [0]), Ok(0) | Err(_)));
    let mut socket = connect(&proxy);
    socket.write_all(b"x").unwrap();
    socket.read_exact(&mut [0]).unwrap();
}

#[test]
fn a_frozen_connection_passes_nothing_until_it_thaws() {
    let proxy = delayed(Duration::ZERO);
    let mut socket = connect(&proxy);
    socket.write_all(b"x").unwrap();
    socket.read_exact(&mut [0]).unwrap();
    proxy.freeze(true);
    socket.write_all(b"y").unwrap();
    socket
        .set_read_timeout(Some(Duration::from_millis(50)))
        .unwrap();
    assert!(socket.read(&mut [0]).is_err());
    proxy.freeze(false);
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    let mut got = [0];
    socket.read_exact(&mut got).unwrap();
    assert_eq!(&got, b"y");
}

#[test]
fn swallowed_replies_were_asked_for_and_never_come() {
    let proxy = delayed(Duration::ZERO);
    let mut socket = connect(&proxy);
    socket.write_all(b"x").unwrap();
    socket.read_exact(&mut [0]).unwrap();
    proxy.swallow_replies(true);
    socket.write_all(b"lost").unwrap();
    wait_until_swallowed(&proxy, 4);
    proxy.swallow_replies(false);
    socket.write_all(b"z").unwrap();
    let mut got = [0];
    socket.read_exact(&mut got).unwrap();
    assert_eq!(&got, b"z");
}

#[test]
fn an_end_of_input_is_passed_on_and_frees_the_connection() {
    let proxy = delayed(Duration::from_millis(2));
    let mut socket = connect(&proxy);
    socket.write_all(b"last words").unwrap();
    socket.shutdown(Shutdown::Write).unwrap();
    let mut got = Vec::new();
    socket.read_to_end(&mut got).unwrap();
    assert_eq!(got, b"last words");
    let deadline = Instant::now() + PATIENCE;
    while proxy.open_connections() > 0 {
        assert!(Instant::now() < deadline);
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn a_refusing_proxy_closes_new_connections() {
    let proxy = delayed(Duration::ZERO);
    proxy.refuse_connections(true);
    let mut socket = connect(&proxy);
    assert!(matches!(socket.read(&mut [0]), Ok(0) | Err(_)));
}

/// Goal: what a client sent before it went away reaches the server when requests pass again.
#[test]
fn held_requests_outlive_their_client() {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let proxy = FaultProxy::start(listener.local_addr().unwrap()).unwrap();
    let mut socket = connect(&proxy);
    let (mut server, _) = listener.accept().unwrap();
    proxy.hold_requests(true);
    socket.write_all(b"late").unwrap();
    drop(socket);
    server
        .set_read_timeout(Some(Duration::from_millis(50)))
        .unwrap();
    assert!(server.read(&mut [0]).is_err());
    proxy.hold_requests(false);
    server.set_read_timeout(Some(PATIENCE)).unwrap();
    let mut got = Vec::new();
    server.read_to_end(&mut got).unwrap();
    assert_eq!(got, b"late");
}

/// Goal: a half-open connection stays, and what is sent through it is lost for ever.
#[test]
fn a_half_open_connection_loses_both_directions() {
    let proxy = delayed(Duration::ZERO);
    let mut socket = connect(&proxy);
    socket.write_all(b"x").unwrap();
    socket.read_exact(&mut [0]).unwrap();
    proxy.set_half_open(true);
    socket.write_all(b"lost").unwrap();
    wait_until_swallowed(&proxy, 4);
    proxy.set_half_open(false);
    socket.write_all(b"y").unwrap();
    let mut got = [0];
    socket.read_exact(&mut got).unwrap();
    assert_eq!(&got, b"y");
}

/// Goal: bytes take the time that the line needs for them, in either direction.
#[test]
fn a_narrow_line_makes_bytes_late() {
    let proxy = delayed(Duration::ZERO);
    // 20,000 bytes there and back, each a fifth of a second.
    proxy.set_bandwidth(100_000);
    let mut socket = connect(&proxy);
    let start = Instant::now();
    socket.write_all(&[7; 20_000]).unwrap();
    socket.read_exact(&mut [0; 20_000]).unwrap();
    let took = start.elapsed();
    assert!(took >= Duration::from_millis(380), "{took:?}");
}

/// Goal: jitter and lost packets make bytes late, and never reorder or lose them.
#[test]
fn bad_weather_makes_bytes_late_and_keeps_their_order() {
    let again = Duration::from_millis(30);
    let proxy = delayed(Duration::ZERO);
    proxy.set_jitter(Duration::from_millis(2));
    proxy.set_loss(1.0, again);
    let mut socket = connect(&proxy);
    let start = Instant::now();
    socket.write_all(b"x").unwrap();
    socket.read_exact(&mut [0]).unwrap();
    assert!(start.elapsed() >= 2 * again, "lost once in each direction");
    proxy.set_loss(0.2, Duration::from_millis(3));
    let sent: Vec<u8> = (0..20_000_u32).flat_map(u32::to_be_bytes).collect();
    let mut reader = socket.try_clone().unwrap();
    let reading = std::thread::spawn(move || {
        let mut got = vec![0; 80_000];
        reader.read_exact(&mut got).unwrap();
        got
    });
    for part in sent.chunks(500) {
        socket.write_all(part).unwrap();
    }
    assert!(reading.join().unwrap() == sent, "order was lost");
}
