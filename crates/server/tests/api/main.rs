//! Tests the HTTP API over a store in memory: calls, subscriptions, bounds, and stopping.

#![allow(
    clippy::expect_used,
    clippy::unwrap_used,
    reason = "test code: a panic is how a test fails"
)]

mod access;
mod backups;
mod bounds;
mod calls;
mod client;
mod delivered;
mod frame;
mod gated;
mod groups;
mod logged;
mod maintenance;
mod openapi;
mod placement;
mod raw;
mod readiness;
mod shares;
mod subscriptions;
mod tls;
mod virtual_streams;
