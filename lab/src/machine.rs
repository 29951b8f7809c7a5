//! What runs: programs, databases, and the ways to them.

pub(crate) mod child;
pub(crate) mod grpc;
pub(crate) mod http;
pub mod network;
pub(crate) mod postgres;
pub(crate) mod processes;
pub mod store;
