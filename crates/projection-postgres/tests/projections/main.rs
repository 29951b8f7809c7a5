//! Projections in PostgreSQL over tokio-postgres: the conformance of the target, random histories, and faults of a real
//! server.
#![allow(clippy::expect_used, clippy::unwrap_used, reason = "tests")]

mod databases;
mod faults;
mod fixtures;
mod flavour;
mod histories;
mod target;
mod views;
