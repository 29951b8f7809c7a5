//! One server for many tests: for all test processes of a run, or else for all tests of one process.
//!
//! `scripts/run-tests` starts `gesta-rig`, which calls [`serve`], and tells all test processes by the variable
//! `GESTA_TEST_POSTGRES` where that server is. Without the variable each process starts a server of its own.

use std::hash::{BuildHasher, Hasher, RandomState};
use std::io::Read;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::{Result, Server, ServerConfig};

/// Returns the server that all tests share; `None`, with a message on standard error, if PostgreSQL is not installed.
///
/// Tests use a schema or database of their own (see [`fresh_schema`]), never stop or suspend the server, change none of
/// its settings, end no sessions but their own, and count nothing that belongs to the whole server.
///
/// # Panics
/// If the server does not start, or if PostgreSQL is not installed and the variable `CI` is set.
#[must_use]
pub fn shared() -> Option<&'static Server> {
    static SHARED: OnceLock<Option<Server>> = OnceLock::new();
    let start = || match Server::of_the_run() {
        Some(server) => Some(server),
        None => match Server::start_with(config()) {
            Ok(server) => server,
            Err(error) => panic!("PostgreSQL does not start: {error}"),
        },
    };
    SHARED.get_or_init(start).as_ref()
}

fn config() -> ServerConfig {
    ServerConfig::default().with("max_connections", "300")
}

/// Runs a server for the test processes of a run: prints the value of `GESTA_TEST_POSTGRES` for them, and stops the
/// server when standard input closes. Without PostgreSQL it prints nothing and returns at once.
///
/// # Errors
/// If the server does not start.
///
/// # Panics
/// If PostgreSQL is not installed and the variable `CI` is set.
pub fn serve() -> Result<()> {
    let Some(server) = Server::start_with(config())? else {
        return Ok(());
    };
    println!("{}", server.announcement()?);
    std::io::stdin().read_to_end(&mut Vec::new())?;
    Ok(())
}

/// Returns a name for a schema, a database or a role that no other test uses, in whichever process it runs.
#[must_use]
pub fn fresh_schema() -> String {
    static PROCESS: OnceLock<u64> = OnceLock::new();
    static NEXT: AtomicU32 = AtomicU32::new(1);
    // Process ids come back within a run; what a hasher begins with is random.
    let process = PROCESS.get_or_init(|| RandomState::new().build_hasher().finish());
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    format!("test_{process:016x}_{number}")
}
