//! Store URLs: the host and port in them, replaced to go through a proxy.
//!
//! Not here: what the rest of a URL means, which is the store's business, and what of it is shown (`secrets`).

use std::net::{SocketAddr, ToSocketAddrs};

use crate::failure::{Failure, Result, fail};

pub use crate::secrets::{redacted, redacted_url};

/// A URL with an authority: `scheme://user:password@host:port/rest`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Endpoint {
    scheme: String,
    user: Option<String>,
    host: String,
    port: Option<u16>,
    rest: String,
}

impl Endpoint {
    /// Takes a URL apart; `None` if it has no authority, as `sqlite:` has none.
    pub fn parse(url: &str) -> Option<Self> {
        let (scheme, after) = url.split_once("://")?;
        let end = after.find(['/', '?']).unwrap_or(after.len());
        // In front of an `@` a `#` is a part of the password, as it is for the store.
        let host = after[..end].rfind('@').map_or(0, |at| at + 1);
        let end = after[host..end].find('#').map_or(end, |at| host + at);
        let (authority, rest) = after.split_at(end);
        let (user, address) = match authority.rsplit_once('@') {
            Some((user, address)) => (Some(user.to_owned()), address),
            None => (None, authority),
        };
        let (host, port) = match address.rsplit_once(':') {
            // Several hosts with their ports stay together.
            Some((host, port)) if !port.contains(']') && !address.contains(',') => {
                (host, Some(port.parse().ok()?))
            }
            _ => (address, None),
        };
        Some(Self {
            scheme: scheme.to_owned(),
            user,
            host: host.to_owned(),
            port,
            rest: rest.to_owned(),
        })
    }

    /// True for PostgreSQL.
    pub fn is_postgres(&self) -> bool {
        matches!(self.scheme.as_str(), "postgres" | "postgresql")
    }

    /// The address that the host and port stand for; the port defaults to the scheme's.
    pub fn address(&self) -> Result<SocketAddr> {
        let default = match self.scheme.as_str() {
            "postgres" | "postgresql" => 5432,
            "https" => 443,
            _ => 80,
        };
        let host = self.host.trim_start_matches('[').trim_end_matches(']');
        if host.is_empty() || host.contains(',') || host.contains('%') {
            return fail(format!("a delay needs one TCP host, found {:?}", self.host));
        }
        let mut found = (host, self.port.unwrap_or(default)).to_socket_addrs()?;
        found
            .next()
            .ok_or_else(|| Failure(format!("{host:?} has no address")))
    }

    /// The same URL by way of another address.
    pub fn through(&self, address: SocketAddr) -> String {
        let user = self.user.as_ref().map(|user| format!("{user}@"));
        let (scheme, rest) = (&self.scheme, &self.rest);
        format!("{scheme}://{}{address}{rest}", user.unwrap_or_default())
    }
}

/// The URL of another database of the same server.
pub fn with_database(url: &str, database: &str) -> String {
    let (base, query) = url
        .split_once('?')
        .map_or((url, None), |(base, query)| (base, Some(query)));
    let authority = base.find("://").map_or(0, |at| at + 3);
    let end = base[authority..]
        .find('/')
        .map_or(base.len(), |at| authority + at);
    let query = query.map(|query| format!("?{query}"));
    format!("{}/{database}{}", &base[..end], query.unwrap_or_default())
}

/// The URL with one of its parameters set.
pub fn with_parameter(url: &str, set: &str, value: &str) -> String {
    let (base, query) = url.split_once('?').unwrap_or((url, ""));
    let is_other = |pair: &&str| !pair.is_empty() && pair.split('=').next() != Some(set);
    let others = query.split('&').filter(is_other).map(str::to_owned);
    let pairs: Vec<String> = others.chain([format!("{set}={value}")]).collect();
    format!("{base}?{}", pairs.join("&"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_database_is_replaced_and_nothing_else() {
        for (url, wanted) in [
            (
                "postgres://u:p@db:5433/x?a=b/c",
                "postgres://u:p@db:5433/other?a=b/c",
            ),
            ("postgres://db", "postgres://db/other"),
            ("postgres://db?a=b", "postgres://db/other?a=b"),
        ] {
            assert_eq!(with_database(url, "other"), wanted);
        }
    }

    #[test]
    fn the_address_is_replaced_and_nothing_else() {
        let via: SocketAddr = "127.0.0.1:9".parse().unwrap();
        for (url, wanted) in [
            (
                "postgres://u:p@w@db:5433/x?a=b",
                "postgres://u:p@w@127.0.0.1:9/x?a=b",
            ),
            ("postgres://db/x", "postgres://127.0.0.1:9/x"),
            ("http://[::1]:2113", "http://127.0.0.1:9"),
            ("http://localhost?x", "http://127.0.0.1:9?x"),
        ] {
            assert_eq!(Endpoint::parse(url).unwrap().through(via), wanted);
        }
        assert_eq!(Endpoint::parse("sqlite:a.db"), None);
        // What happened: these were no URLs of PostgreSQL here, though the store takes them.
        for url in [
            "postgres://u:se#cret@h/x",
            "postgres://u:p@h1:5432,h2/x",
            "postgres://h1,h2:5432/x",
        ] {
            assert!(Endpoint::parse(url).unwrap().is_postgres(), "{url}");
        }
        let host = Endpoint::parse("postgres://u:12#cret@h#x").unwrap().host;
        assert_eq!(host, "h");
        assert_eq!(Endpoint::parse("postgres://h:port/"), None);
    }
}
