//! Projections in PostgreSQL over tokio-postgres: the kit of all targets, and faults of a real server.
#![allow(clippy::expect_used, clippy::unwrap_used, reason = "tests")]

mod databases;
mod faults;
mod flavour;
#[path = "../../../projection/tests/kit/mod.rs"]
mod kit;
mod losses;
mod views;
