//! What runs: programs, databases, and the ways to them.

pub mod ask;
pub mod child;
mod current;
pub mod grpc;
pub mod http;
pub mod network;
pub mod postgres;
pub mod processes;
pub mod store;

pub use current::CurrentStore;
