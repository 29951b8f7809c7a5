//! Throw-away PostgreSQL servers (alone, as a primary with standbys, or managed by Patroni), other programs that run
//! beside a test, and a fault-injecting TCP proxy, for tests, chaos and the lab.
//!
//! Why: tests of promises need a real server that can be stopped, killed and slowed down at will.
//! Invariants: a server listens on 127.0.0.1 only, never runs as root, keeps PostgreSQL's default
//! durability, and never outlives the process that started it (a supervising shell ends it when its
//! standard input closes). Nor does any other program.
//! Not here: anything of Gesta.

mod announcement;
mod ask;
mod binaries;
mod child;
mod cluster;
mod fake_clock;
mod listening;
mod patroni;
mod ports;
mod processes;
pub mod procfs;
mod proxy;
mod run_as;
mod server;
mod shared;
mod silent;

pub use ask::connect;
pub use binaries::{beside, find_binaries, installed};
pub use child::{Child, Output};
pub use cluster::{Cluster, Replication};
pub use fake_clock::FakeClock;
pub use listening::Listening;
pub use patroni::{Patroni, PatroniConfig};
pub use ports::free_address;
pub use proxy::{FaultProxy, LoseReply};
pub use server::{Auth, Server, ServerConfig};
pub use shared::{fresh_schema, serve, shared};
pub use silent::SilentHost;

/// The result of a function of this crate. The errors are for people who read the output of tests.
pub type Result<T> = std::result::Result<T, Box<dyn std::error::Error + Send + Sync>>;

/// How long a server may take for anything that it is told to do.
const DONE_TIMEOUT: std::time::Duration = std::time::Duration::from_secs(120);

/// Waits for a condition, blocking. `complaint` is the text of the error if the condition is not met in two minutes.
///
/// # Errors
/// If the condition is not met in time.
pub fn wait_until(complaint: &str, mut done: impl FnMut() -> bool) -> Result<()> {
    let deadline = std::time::Instant::now() + DONE_TIMEOUT;
    while !done() {
        if std::time::Instant::now() > deadline {
            return Err(complaint.into());
        }
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    Ok(())
}
