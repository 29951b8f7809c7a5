//! Which name a request calls the server by.
//!
//! Why: without authentication the server trusts whoever reaches its loopback address. A page of
//! another site in a user's browser reaches it too, once the site's own name leads to 127.0.0.1
//! (DNS rebinding); but such a request still carries the site's name.

use std::net::{Ipv4Addr, Ipv6Addr};

use hyper::header::HOST;
use hyper::http::request::Parts;

/// True if the request calls the server `localhost`, an address, or nothing at all.
pub(crate) fn is_local(request: &Parts) -> bool {
    let in_header = || {
        request
            .headers
            .get(HOST)
            .map(|value| value.to_str().unwrap_or("?"))
    };
    let authority = request.uri.authority().map(|authority| authority.as_str());
    // Both, if both are there: the target of the request and the header may differ.
    authority.is_none_or(is_local_name) && in_header().is_none_or(is_local_name)
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
