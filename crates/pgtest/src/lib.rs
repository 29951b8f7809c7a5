//! Throw-away PostgreSQL servers and a fault-injecting TCP proxy, for tests and the lab.
//!
//! Why: tests of promises need a real server that can be stopped, killed and slowed down at will.
//! Invariants: a server listens on 127.0.0.1 only, never runs as root, keeps PostgreSQL's default
//! durability, and never outlives the process that started it (a supervising shell ends it when its
//! standard input closes).
//! Not here: anything of Gesta; this crate knows PostgreSQL alone.

mod binaries;
mod proxy;
mod server;
mod shared;

pub use binaries::find_binaries;
pub use proxy::{FaultProxy, LoseReply};
pub use server::{Auth, Server, ServerConfig};
pub use shared::{fresh_schema, shared};

/// Result of this crate; the errors are for people who read test output.
pub type Result<T> = std::result::Result<T, Box<dyn std::error::Error + Send + Sync>>;
