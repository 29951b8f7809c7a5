//! The name by which a request calls the server.
//!
//! Why the name is checked: without authentication the server trusts whoever reaches its loopback address. A page of
//! another site in a user's browser reaches it too, once the site's own name leads to 127.0.0.1 (DNS rebinding); but
//! such a request still carries the site's name.

use std::net::{Ipv4Addr, Ipv6Addr};

use gesta_wire::shown;
use hyper::Version;
use hyper::header::HOST;
use hyper::http::request::Parts;

use crate::shared::problem::{MALFORMED_REQUEST, Problem, Result};

/// Refuses a request whose `Host` is missing where it must be given, is repeated, or is no host (RFC 9112, section
/// 3.2).
pub(crate) fn check(request: &Parts) -> Result<()> {
    let wrong = |rule: String| Problem::new(MALFORMED_REQUEST, rule).field("Host");
    let mut values = request.headers.get_all(HOST).iter();
    let Some(value) = values.next() else {
        return match request.version {
            Version::HTTP_11 => Err(wrong("Host must be given".into())),
            _ => Ok(()),
        };
    };
    if values.next().is_some() {
        return Err(wrong("Host must stand only once".into()));
    }
    match value.to_str() {
        Ok(text) if is_host(text) => Ok(()),
        _ => {
            let found = shown(&String::from_utf8_lossy(value.as_bytes()));
            Err(wrong(format!(
                "Host must be a name or an address, and a port if it has one, found {found}"
            )))
        }
    }
}

/// Returns true if the text is `uri-host [ ":" port ]` of RFC 9110, section 7.2. The host may be empty.
fn is_host(text: &str) -> bool {
    let (host, rest) = match text.strip_prefix('[') {
        Some(bracketed) => match bracketed.split_once(']') {
            Some((address, rest)) if address.parse::<Ipv6Addr>().is_ok() => ("", rest),
            _ => return false,
        },
        None => text.split_at(text.find(':').unwrap_or(text.len())),
    };
    let port = rest.strip_prefix(':');
    (rest.is_empty() || port.is_some_and(|port| port.bytes().all(|b| b.is_ascii_digit())))
        && is_name(host)
}

/// Returns true if the text is a `reg-name` of RFC 3986: letters, digits, some signs, and two hexadecimal digits after
/// each `%`.
fn is_name(host: &str) -> bool {
    let mut bytes = host.bytes();
    while let Some(byte) = bytes.next() {
        let fits = match byte {
            b'%' => (0..2).all(|_| bytes.next().is_some_and(|b| b.is_ascii_hexdigit())),
            _ => byte.is_ascii_alphanumeric() || b"-._~!$&'()*+,;=".contains(&byte),
        };
        if !fits {
            return false;
        }
    }
    true
}

/// Returns true if the request calls the server `localhost`, an address, or nothing at all, or `own`, which is a name
/// of the server.
pub(crate) fn is_local(request: &Parts, own: Option<&str>) -> bool {
    let in_header = || {
        request
            .headers
            .get(HOST)
            .map(|value| value.to_str().unwrap_or("?"))
    };
    let authority = request.uri.authority().map(|authority| authority.as_str());
    // Both, if both are there: the target of the request and the header may differ.
    let fits = |name: &str| is_local_name(name) || own.is_some_and(|own| is_called(name, own));
    authority.is_none_or(fits) && in_header().is_none_or(fits)
}

/// Returns true if an authority, which may have a port, names this host.
fn is_called(authority: &str, own: &str) -> bool {
    let host = authority
        .split_once(':')
        .map_or(authority, |(host, _)| host);
    let name = |host: &str| host.strip_suffix('.').unwrap_or(host).to_ascii_lowercase();
    name(host) == name(own)
}

fn is_local_name(authority: &str) -> bool {
    if let Some(rest) = authority.strip_prefix('[') {
        return rest
            .split_once(']')
            .is_some_and(|(address, _)| address.parse::<Ipv6Addr>().is_ok());
    }
    let host = authority
        .split_once(':')
        .map_or(authority, |(host, _)| host);
    let name = host.strip_suffix('.').unwrap_or(host);
    let label = name.rsplit('.').next().unwrap_or(name);
    host.is_empty() || host.parse::<Ipv4Addr>().is_ok() || label.eq_ignore_ascii_case("localhost")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_is_a_name_or_an_address_and_perhaps_a_port() {
        for host in [
            "",
            "localhost",
            "a-b.example:80",
            "127.0.0.1:",
            "[::1]",
            "[::1]:2113",
            "a%20b",
        ] {
            assert!(is_host(host), "{host}");
        }
        for bad in [
            "a b", "a/b", "u@h", "h:x", "h:1:2", "[::1", "[x]", "[::1]x", "a%2", "é",
        ] {
            assert!(!is_host(bad), "{bad}");
        }
    }

    #[test]
    fn a_server_is_called_by_the_name_that_it_has_told() {
        for called in ["db.example.org", "DB.example.org:2113", "db.example.org.:1"] {
            assert!(is_called(called, "db.example.org"), "{called}");
        }
        for other in [
            "example.org",
            "db.example.org.evil.org",
            "",
            "[db.example.org]",
        ] {
            assert!(!is_called(other, "db.example.org"), "{other}");
        }
    }

    #[test]
    fn names_of_other_sites_are_not_local() {
        for local in [
            "",
            "localhost",
            "LocalHost:2113",
            "a.localhost",
            "localhost.",
            "127.0.0.1:2113",
            "10.0.0.7",
            "[::1]:2113",
            ":80",
        ] {
            assert!(is_local_name(local), "{local}");
        }
        for other in [
            "example.org",
            "example.org:2113",
            "localhost.example.org",
            "127.0.0.1.example.org",
            "1",
            "[x]",
            "[::1",
            "?",
            "u@localhost.org",
        ] {
            assert!(!is_local_name(other), "{other}");
        }
    }
}
