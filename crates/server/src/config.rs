//! Bounds and times of the server.

mod network;
mod origin;

use std::net::{Ipv4Addr, SocketAddr};
use std::str::FromStr;
use std::time::Duration;

use gesta_core::{HostPort, limits, units};
use serde::{Deserialize, Serialize};

use crate::tls::TlsFiles;

pub(crate) use network::{Network, client};
pub(crate) use origin::Origin;

/// Bounds and times of the server. Every queue, body and wait has a maximum (contract C8). In the form of serde it has
/// the keys of the section `[server]` of a configuration file; what is skipped there comes from elsewhere.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, expecting = "struct Server")]
pub struct Config {
    /// Address to listen on. Port 0 takes a free port.
    #[serde(skip)]
    pub listen: SocketAddr,
    /// Host and port at which clients reach the server, if that is not the address at which they call it: told to
    /// clients that ask which nodes there are. Requests may call the server by this host. Without users, they must call
    /// it by this host, `localhost` or an address.
    #[serde(skip)]
    pub advertise: Option<HostPort>,
    /// Allows listening on addresses that are not loopback without TLS and users. Without users and without
    /// `advertise` requests may then call the server by any name, so a page of another site reaches it from the browser
    /// of somebody who can, once the name of that site leads to the server (DNS rebinding).
    #[serde(skip)]
    pub insecure: bool,
    /// Allows listening on addresses that are not loopback without TLS, because a proxy in front speaks TLS to clients.
    /// Callers must prove who they are all the same.
    #[serde(skip)]
    pub behind_proxy: bool,
    /// True if callers must always prove who they are. Then every call is refused without
    /// [`with_access`](crate::Bound::with_access), and with TLS the server may listen on addresses that are not
    /// loopback.
    #[serde(skip)]
    pub requires_access: bool,
    /// Files with which TLS, and nothing else, is spoken; `None` if connections are not encrypted.
    #[serde(skip)]
    pub tls: Option<TlsFiles>,
    /// Bounds and times of consumer groups.
    #[serde(skip)]
    pub groups: gesta_groups::Config,
    /// How long a TLS handshake may take.
    #[serde(with = "units::span")]
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
    /// Most calls of one user at once, without subscriptions ([`access`](Self::access)).
    pub user_calls_max: usize,
    /// Most payload that one user may append and read in a second, in bytes ([`access`](Self::access)).
    #[serde(with = "units::size")]
    pub user_bytes_per_second: u64,
    /// Origins whose pages may call the server from a browser, such as `https://app.example.org`, separated by spaces.
    pub cors_origins: String,
    /// Proxies that are believed when they say from which address a request came (`X-Forwarded-For`): addresses, or
    /// networks such as `10.0.0.0/8`, separated by spaces.
    pub trusted_proxies: String,
    /// Most pages that are read at once. Further reads wait for their turn.
    pub reads_in_flight_max: usize,
    /// Largest request body, in bytes.
    #[serde(with = "units::size")]
    pub body_bytes_max: usize,
    /// Most bytes in memory at once of request bodies, of answers to reads, and of events for subscribers (up to a
    /// half). Beyond them, requests are answered as overloaded and subscriptions are ended.
    #[serde(with = "units::size")]
    pub bytes_in_flight_max: usize,
    /// How long the head of a request may take to arrive. It may take a quarter longer before it is noticed.
    #[serde(with = "units::span")]
    pub head_read_max: Duration,
    /// How long the body of a request may take to arrive.
    #[serde(with = "units::span")]
    pub body_read_max: Duration,
    /// How long a client may leave an answer unread before its connection is closed.
    #[serde(with = "units::span")]
    pub write_stall_max: Duration,
    /// Fewest bytes a second that a client must take while data waits for it all the time, measured over
    /// [`slow_reader_window`](Config::slow_reader_window). The connection of a slower client is closed.
    pub slow_reader_bytes_per_second: u32,
    /// Time over which the bytes that a client takes are measured.
    #[serde(with = "units::span")]
    pub slow_reader_window: Duration,
    /// How long a connection may be idle between requests before it is closed.
    #[serde(with = "units::span")]
    pub idle_max: Duration,
    /// From which time on a request is slow, and told to the log: from its head to the head of its answer.
    #[serde(with = "units::span")]
    pub slow_request: Duration,
    /// Time between the comments that keep a silent subscription alive.
    #[serde(with = "units::span")]
    pub heartbeat: Duration,
    /// How long running requests may take to finish when the server stops.
    #[serde(with = "units::span")]
    pub shutdown_grace: Duration,
}

/// Bytes for names, types, tags and JSON syntax beside the data of the largest append.
const BODY_SLACK_BYTES: usize = 16 * 1024 * 1024;

impl Default for Config {
    fn default() -> Self {
        let access = gesta_access::Config::default();
        Self {
            listen: SocketAddr::from((Ipv4Addr::LOCALHOST, 2113)),
            advertise: None,
            insecure: false,
            behind_proxy: false,
            requires_access: false,
            tls: None,
            groups: gesta_groups::Config::default(),
            handshake_max: Duration::from_secs(10),
            handshakes_max: 1_000,
            connections_max: 10_000,
            requests_in_flight_max: 10_000,
            subscriptions_max: 5_000,
            user_calls_max: access.user_calls_max,
            user_bytes_per_second: access.user_bytes_per_second,
            cors_origins: String::new(),
            trusted_proxies: String::new(),
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
            shutdown_grace: Duration::from_secs(8),
        }
    }
}

impl Config {
    /// Returns the configuration of the guard in front of the store, with the bounds of each user.
    #[must_use]
    pub fn access(&self, mode: gesta_access::Mode) -> gesta_access::Config {
        gesta_access::Config {
            mode,
            user_calls_max: self.user_calls_max,
            user_bytes_per_second: self.user_bytes_per_second,
            ..gesta_access::Config::default()
        }
    }
}

/// Whom a configuration names as trusted.
#[derive(Debug)]
pub(crate) struct Trusted {
    /// Origins whose pages may call the server from a browser.
    pub(crate) origins: Vec<Origin>,
    /// Proxies that are believed when they say from which address a request came.
    pub(crate) proxies: Vec<Network>,
}

impl Trusted {
    /// Reads the lists of a configuration.
    ///
    /// # Errors
    /// Says which key has a wrong value, and the rule.
    pub(crate) fn of(config: &Config) -> Result<Self, String> {
        let origins = listed::<Origin>(&config.cors_origins);
        let proxies = listed::<Network>(&config.trusted_proxies);
        Ok(Self {
            origins: origins.map_err(|error| format!("server.cors_origins {error}"))?,
            proxies: proxies.map_err(|error| format!("server.trusted_proxies {error}"))?,
        })
    }
}

fn listed<T: FromStr>(text: &str) -> Result<Vec<T>, T::Err> {
    text.split_whitespace().map(str::parse).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wrong_name_is_refused_with_its_key_the_rule_and_the_value() {
        let mut config = Config {
            cors_origins: "https://app.example.org http://localhost:3000".into(),
            trusted_proxies: " 10.0.0.0/8\n::1 ".into(),
            ..Config::default()
        };
        let trusted = Trusted::of(&config).expect("valid");
        assert_eq!((trusted.origins.len(), trusted.proxies.len()), (2, 2));
        config.trusted_proxies = "10.0.0.0/33".into();
        assert_eq!(
            Trusted::of(&config).expect_err("no network"),
            "server.trusted_proxies must be an address, or a network as 10.0.0.0/8 or 2001:db8::/32, found \"10.0.0.0/33\""
        );
        config.cors_origins = "https://app.example.org app.example.org".into();
        assert_eq!(
            Trusted::of(&config).expect_err("no origin"),
            "server.cors_origins must be an origin such as https://app.example.org or http://localhost:3000, found \"app.example.org\""
        );
    }
}
