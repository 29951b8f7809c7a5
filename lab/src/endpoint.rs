//! Store URLs: the host and port in them, replaced to go through a proxy, and the password, hidden.
//!
//! Not here: what the rest of a URL means; that is the store's.

use std::net::{SocketAddr, ToSocketAddrs};

use crate::failure::{Failure, Result, fail};

/// A URL with an authority: `scheme://user:password@host:port/rest`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Endpoint {
    scheme: String,
    user: Option<String>,
    host: String,
    port: Option<u16>,
    rest: String,
}

impl Endpoint {
    /// Takes a URL apart; `None` if it has no authority, as `sqlite:` has none.
    pub(crate) fn parse(url: &str) -> Option<Self> {
        let (scheme, after) = url.split_once("://")?;
        let end = after.find(['/', '?', '#']).unwrap_or(after.len());
        let (authority, rest) = after.split_at(end);
        let (user, address) = match authority.rsplit_once('@') {
            Some((user, address)) => (Some(user.to_owned()), address),
            None => (None, authority),
        };
        let (host, port) = match address.rsplit_once(':') {
            Some((host, port)) if !port.contains(']') => (host, Some(port.parse().ok()?)),
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
    pub(crate) fn is_postgres(&self) -> bool {
        matches!(self.scheme.as_str(), "postgres" | "postgresql")
    }

    /// The address that the host and port stand for; the port defaults to the scheme's.
    pub(crate) fn address(&self) -> Result<SocketAddr> {
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
    pub(crate) fn through(&self, address: SocketAddr) -> String {
        let user = self.user.as_ref().map(|user| format!("{user}@"));
        let (scheme, rest) = (&self.scheme, &self.rest);
        format!("{scheme}://{}{address}{rest}", user.unwrap_or_default())
    }
}

/// The URL with one of its parameters set.
pub(crate) fn with_parameter(url: &str, name: &str, value: &str) -> String {
    let (base, query) = url.split_once('?').unwrap_or((url, ""));
    let prefix = format!("{name}=");
    let kept = query
        .split('&')
        .filter(|pair| !pair.is_empty() && !pair.starts_with(&prefix));
    let all: Vec<String> = kept
        .map(str::to_owned)
        .chain([format!("{prefix}{value}")])
        .collect();
    format!("{base}?{}", all.join("&"))
}

/// The URL with only those parameters that the plain PostgreSQL driver knows.
pub(crate) fn for_driver(url: &str) -> String {
    const KNOWN: &[&str] = &[
        "user",
        "password",
        "dbname",
        "host",
        "port",
        "application_name",
        "connect_timeout",
    ];
    let (base, query) = url.split_once('?').unwrap_or((url, ""));
    let known = |pair: &&str| {
        pair.split_once('=')
            .is_some_and(|(name, _)| KNOWN.contains(&name))
    };
    let kept: Vec<&str> = query.split('&').filter(known).collect();
    if kept.is_empty() {
        return base.to_owned();
    }
    format!("{base}?{}", kept.join("&"))
}

/// The URL without its password.
pub(crate) fn redacted(url: &str) -> String {
    let Some(mut endpoint) = Endpoint::parse(url) else {
        return url.to_owned();
    };
    if let Some((name, _)) = endpoint.user.as_deref().and_then(|u| u.split_once(':')) {
        endpoint.user = Some(format!("{name}:***"));
    }
    // A password may also stand among the parameters.
    let rest = match endpoint.rest.split_once('?') {
        Some((path, query)) => {
            let kept: Vec<String> = query
                .split('&')
                .map(|pair| match pair.split_once('=') {
                    Some((key, _)) if key.contains("password") => format!("{key}=***"),
                    _ => pair.to_owned(),
                })
                .collect();
            format!("{path}?{}", kept.join("&"))
        }
        None => endpoint.rest.clone(),
    };
    let user = endpoint.user.map(|user| format!("{user}@"));
    let port = endpoint.port.map(|port| format!(":{port}"));
    format!(
        "{}://{}{}{}{rest}",
        endpoint.scheme,
        user.unwrap_or_default(),
        endpoint.host,
        port.unwrap_or_default()
    )
}

#[cfg(test)]
mod tests {
    use super::*;

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
        assert_eq!(Endpoint::parse("postgres://h:port/"), None);
    }

    #[test]
    fn passwords_are_hidden() {
        assert_eq!(
            redacted("postgres://u:secret@h:1/x"),
            "postgres://u:***@h:1/x"
        );
        assert_eq!(
            redacted("postgres://h/x?password=secret&a=b"),
            "postgres://h/x?password=***&a=b"
        );
        assert_eq!(redacted("sqlite:a.db"), "sqlite:a.db");
    }
}
