//! What runs: programs, databases, the ways to them, and what is counted of them.

pub(crate) mod child;
pub mod counters;
pub(crate) mod endpoint;
pub(crate) mod grpc;
pub mod host;
pub(crate) mod http;
pub mod network;
pub(crate) mod postgres;
pub(crate) mod processes;
pub mod stop;
pub mod store;
pub(crate) mod watch;
