//! One server for all tests of a process.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::{Server, ServerConfig};

/// Returns the server that all tests of this process share; `None`, with a message on standard error, if PostgreSQL is
/// not installed.
///
/// The server ends with the process. Tests use a schema or database of their own, and never stop the server.
///
/// # Panics
/// If the server does not start, or if PostgreSQL is not installed and the variable `CI` is set.
#[must_use]
pub fn shared() -> Option<&'static Server> {
    static SHARED: OnceLock<Option<Server>> = OnceLock::new();
    let start = || {
        let config = ServerConfig::default().with("max_connections", "300");
        match Server::start_with(config) {
            Ok(server) => server,
            Err(error) => panic!("PostgreSQL does not start: {error}"),
        }
    };
    SHARED.get_or_init(start).as_ref()
}

/// Returns a schema name that no other test of this process uses.
#[must_use]
pub fn fresh_schema() -> String {
    static NEXT: AtomicU32 = AtomicU32::new(1);
    format!("test_{}", NEXT.fetch_add(1, Ordering::Relaxed))
}
