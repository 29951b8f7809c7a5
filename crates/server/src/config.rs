//! Bounds and times of the server.

mod origin;

use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use gesta_core::limits;

use crate::tls::TlsFiles;

pub use origin::{NoOrigin, Origin};

/// Bounds and times of the server. Every queue, body and wait has a maximum (contract C8).
///
/// It has many fields, for each is one key of the configuration, and groups of them would be names to learn twice.
#[derive(Debug, Clone)]
pub struct Config {
    /// Address to listen on. Port 0 takes a free one.
    pub listen: SocketAddr,
    /// Allows addresses that are not loopback without TLS and users.
    pub insecure: bool,
    /// Callers must always prove who they are: without [`with_access`](crate::Bound::with_access) every call is
    /// refused. With TLS, addresses that are not loopback are allowed.
    pub requires_access: bool,
    /// Pages of which sites may call the server from a browser.
    pub cors_origins: Vec<Origin>,
    /// TLS, and nothing else, is spoken with these files; `None`: connections are not encrypted.
    pub tls: Option<TlsFiles>,
    /// How long a TLS handshake may take.
    pub handshake_max: Duration,
    /// Most TLS handshakes at once, and twice as many as one remote address may have (of IPv6 the first 64 bits); for
    /// further ones the oldest are closed.
    pub handshakes_max: usize,
    /// Most connections at once; further ones are answered as overloaded and closed.
    pub connections_max: usize,
    /// Most requests at once, subscriptions not counted; further ones are answered as overloaded.
    pub requests_in_flight_max: usize,
    /// Most subscriptions at once; further ones are answered as overloaded.
    pub subscriptions_max: usize,
    /// Most pages that are read and encoded at once; further reads wait for their turn.
    pub reads_in_flight_max: usize,
    /// Largest request body, in bytes.
    pub body_bytes_max: usize,
    /// Most bytes of request bodies, of answers to reads, and of events for subscribers (up to a half) in memory at
    /// once; beyond, requests are answered as overloaded and subscriptions are ended.
    pub bytes_in_flight_max: usize,
    /// How long the head of a request may take to arrive, to a quarter more.
    pub head_read_max: Duration,
    /// How long the body of a request may take to arrive.
    pub body_read_max: Duration,
    /// How long a client may leave an answer unread before its connection is closed.
    pub write_stall_max: Duration,
    /// Least bytes a second that a client must take, over [`slow_reader_window`](Config::slow_reader_window), while
    /// data waits for it all along; else its connection is closed.
    pub slow_reader_bytes_per_second: u32,
    /// Over which time the bytes that a client takes are measured.
    pub slow_reader_window: Duration,
    /// How long a connection may be idle between requests.
    pub idle_max: Duration,
    /// Time between the comments that keep a silent subscription alive.
    pub heartbeat: Duration,
    /// Bounds and times of consumer groups.
    pub groups: gesta_groups::Config,
    /// How long running requests may take to finish when the server stops.
    pub shutdown_grace: Duration,
}

/// Bytes for names, types, tags and JSON syntax beside the data of the largest append.
const BODY_SLACK_BYTES: usize = 16 * 1024 * 1024;

impl Default for Config {
    fn default() -> Self {
        Self {
            listen: SocketAddr::from((Ipv4Addr::LOCALHOST, 2113)),
            insecure: false,
            requires_access: false,
            cors_origins: Vec::new(),
            tls: None,
            handshake_max: Duration::from_secs(10),
            handshakes_max: 1_000,
            connections_max: 10_000,
            requests_in_flight_max: 10_000,
            subscriptions_max: 5_000,
            reads_in_flight_max: 32,
            // Base64 makes four bytes of three.
            body_bytes_max: limits::APPEND_BYTES_MAX / 3 * 4 + BODY_SLACK_BYTES,
            bytes_in_flight_max: 512 * 1024 * 1024,
            head_read_max: Duration::from_secs(15),
            body_read_max: Duration::from_secs(60),
            write_stall_max: Duration::from_secs(60),
            slow_reader_bytes_per_second: 1_024,
            slow_reader_window: Duration::from_secs(60),
            idle_max: Duration::from_secs(300),
            heartbeat: Duration::from_secs(15),
            groups: gesta_groups::Config::default(),
            shutdown_grace: Duration::from_secs(8),
        }
    }
}
