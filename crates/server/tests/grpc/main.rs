//! Tests the gRPC calls over a store in memory, by a client that sends exactly what a test wants.
//!
//! `gesta-cli` tests the published clients. The tests here send what those never send, and check what one of them that
//! cannot be tested here relies on.

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
mod log_lines;
#[path = "../api/logged.rs"]
mod logged;
mod requests;
mod users;
