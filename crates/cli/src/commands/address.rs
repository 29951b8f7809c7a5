//! Resolves addresses to listen at.

use std::net::SocketAddr;

use crate::exit::{Failure, Outcome};

/// Resolves a name or an address; an IPv4 address has precedence. `option` and `port` are for the error if nothing is
/// found.
pub(super) async fn resolve(option: &str, port: u16, listen: &str) -> Outcome<SocketAddr> {
    let wrong = |why: &str| {
        Failure::usage(format!(
            "{option} must be ADDRESS:PORT or NAME:PORT such as 127.0.0.1:{port} or localhost:{port}, found {listen:?}{why}"
        ))
    };
    let found = tokio::net::lookup_host(listen).await;
    let found = found.map_err(|error| wrong(&format!(" ({error})")))?;
    let mut found: Vec<_> = found.collect();
    found.sort_by_key(SocketAddr::is_ipv6);
    found.first().copied().ok_or_else(|| wrong(""))
}
