//! Projections in an SQLite file: the conformance of the target, and the runner over it.
#![allow(clippy::expect_used, clippy::unwrap_used, reason = "tests")]

mod common;
mod crashes;
mod fixtures;
mod histories;
mod poison;
mod restored;
mod target;
mod versions;
mod world;
