//! Resolves addresses to listen at, and tells who has an address that is in use.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;

use gesta_client::{HttpStore, Look};

use crate::exit::{Failure, Outcome};

/// The time within which a server must answer that has an address which is in use.
const ANSWER_WITHIN: Duration = Duration::from_secs(1);

/// Says who has an address at which this process cannot listen because it is in use: a server of Gesta, if one answers.
pub(super) async fn who_has(address: SocketAddr) -> String {
    let host = match address.ip() {
        IpAddr::V4(any) if any.is_unspecified() => Ipv4Addr::LOCALHOST.into(),
        IpAddr::V6(any) if any.is_unspecified() => Ipv6Addr::LOCALHOST.into(),
        host => host,
    };
    let address = SocketAddr::new(host, address.port());
    let url = format!("http://{address}");
    let looked = async { HttpStore::connect(&url)?.look().await };
    match tokio::time::timeout(ANSWER_WITHIN, looked).await {
        Ok(Ok(Look::Live)) => {
            format!("a server of Gesta answers there: gesta info --store {url} shows it")
        }
        // It says so on each request without TLS.
        Ok(Err(error)) if error.to_string().contains("speaks TLS only") => {
            format!(
                "a server of Gesta answers there: gesta info --store https://{address} shows it"
            )
        }
        _ => format!("another program has port {}", address.port()),
    }
}

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
