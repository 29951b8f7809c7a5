//! The gRPC calls over a store in memory, by a client that says exactly what a test wants.
//!
//! The published clients are tried by `gesta-cli`; here stands what they never send, and what one of them that cannot
//! be tried here relies on.

#![allow(
    clippy::expect_used,
    clippy::unwrap_used,
    reason = "test code: a panic is how a test fails"
)]

mod access;
mod attacks;
mod bounds;
mod calls;
mod claims;
mod client;
mod cluster;
mod conformance;
mod connection;
mod follows;
mod groups;
mod hostile;
mod requests;
mod users;
