//! Bounds and times of the server.

mod network;
mod origin;

use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use gesta_core::{HostPort, limits};

use crate::tls::TlsFiles;

pub(crate) use network::client;
pub use network::{Network, NoNetwork};
pub use origin::{NoOrigin, Origin};

/// Bounds and times of the server. Every queue, body and wait has a maximum (contract C8).
///
/// It has many fields, because each is one key of the configuration, and groups of them would be names to learn twice.
#[derive(Debug, Clone)]
pub struct Config {
    /// Address to listen on. Port 0 takes a free port.
    pub listen: SocketAddr,
    /// Host and port at which clients reach the server, if that is not the address at which they call it: told to
    /// clients that ask which nodes there are. Requests may call the server by this host. Without users, they must call
    /// it by this host, `localhost` or an address.
    pub advertise: Option<HostPort>,
    /// Allows listening on addresses that are not loopback without TLS and users. Without users and without
    /// `advertise` requests may then call the server by any name, so a page of another site reaches it from the browser
    /// of somebody who can, once the name of that site leads to the server (DNS rebinding).
    pub insecure: bool,
    /// Allows listening on addresses that are not loopback without TLS, because a proxy in front speaks TLS to clients.
    /// Callers must prove who they are all the same.
    pub behind_proxy: bool,
    /// True if callers must always prove who they are. Then every call is refused without
    /// [`with_access`](crate::Bound::with_access), and with TLS the server may listen on addresses that are not
    /// loopback.
    pub requires_access: bool,
    /// Origins whose pages may call the server from a browser.
    pub cors_origins: Vec<Origin>,
    /// Proxies that are believed when they say from which address a request came (`X-Forwarded-For`).
    pub trusted_proxies: Vec<Network>,
    /// Files with which TLS, and nothing else, is spoken; `None` if connections are not encrypted.
    pub tls: Option<TlsFiles>,
    /// How long a TLS handshake may take.
    pub handshake_max: Duration,
    /// Most TLS handshakes at once. One remote address (of IPv6 the first 64 bits) may have half as many. For further
    /// handshakes the oldest are closed.
    pub handshakes_max: usize,
    /// Most connections at once. Further ones are answered as overloaded and closed. Of this bound and the next four,
    /// callers get fair shares: see [`gesta_core::shares`].
    pub connections_max: usize,
    /// Most requests at once, without subscriptions. Further ones are answered as overloaded. Callers who have not
    /// proved who they are have an eighth of it beside it.
    pub requests_in_flight_max: usize,
    /// Most subscriptions at once. Further ones are answered as overloaded.
    pub subscriptions_max: usize,
    /// Most pages that are read at once. Further reads wait for their turn.
    pub reads_in_flight_max: usize,
    /// Largest request body, in bytes.
    pub body_bytes_max: usize,
    /// Most bytes in memory at once of request bodies, of answers to reads, and of events for subscribers (up to a
    /// half). Beyond them, requests are answered as overloaded and subscriptions are ended.
    pub bytes_in_flight_max: usize,
    /// How long the head of a request may take to arrive. It may take a quarter longer before it is noticed.
    pub head_read_max: Duration,
    /// How long the body of a request may take to arrive.
    pub body_read_max: Duration,
    /// How long a client may leave an answer unread before its connection is closed.
    pub write_stall_max: Duration,
    /// Fewest bytes a second that a client must take while data waits for it all the time, measured over
    /// [`slow_reader_window`](Config::slow_reader_window). The connection of a slower client is closed.
    pub slow_reader_bytes_per_second: u32,
    /// Time over which the bytes that a client takes are measured.
    pub slow_reader_window: Duration,
    /// How long a connection may be idle between requests before it is closed.
    pub idle_max: Duration,
    /// From which time on a request is slow, and told to the log: from its head to the head of its answer.
    pub slow_request: Duration,
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
            advertise: None,
            insecure: false,
            behind_proxy: false,
            requires_access: false,
            cors_origins: Vec::new(),
            trusted_proxies: Vec::new(),
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
            slow_request: Duration::from_secs(2),
            heartbeat: Duration::from_secs(15),
            groups: gesta_groups::Config::default(),
            shutdown_grace: Duration::from_secs(8),
        }
    }
}
