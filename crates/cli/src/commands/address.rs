//! Addresses to listen at.

use std::net::SocketAddr;

use crate::exit::{Failure, Outcome};

/// The address that a name or an address means; IPv4 first. `option` and `port` are for the sentence if it means none.
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
