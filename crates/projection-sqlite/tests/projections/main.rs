//! Projections in an SQLite file: the kit of all targets, and what is of a file alone.
#![allow(clippy::expect_used, clippy::unwrap_used, reason = "tests")]

mod files;
mod flavour;
#[path = "../../../projection/tests/kit/mod.rs"]
mod kit;
