//! The backend against real servers. One program, so that most tests share one server, each in a schema of its own.

#![expect(
    clippy::expect_used,
    clippy::panic,
    reason = "tests stop at the first surprise"
)]

mod append;
mod common;
mod compression;
mod departure;
mod failover;
mod faults;
mod hosts;
mod keeping;
mod lookups;
mod messages;
mod reads;
mod registry;
mod schema;
mod sharing;
mod standbys;
mod tails;
mod tls;
