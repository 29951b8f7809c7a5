//! Projections in PostgreSQL over sqlx: the kit of all targets, and the tests of `gesta-projection-postgres` with
//! another driver.
#![allow(clippy::expect_used, clippy::unwrap_used, reason = "tests")]

#[path = "../../../projection-postgres/tests/projections/databases.rs"]
mod databases;
#[path = "../../../projection-postgres/tests/projections/faults.rs"]
mod faults;
mod flavour;
#[path = "../../../projection/tests/kit/mod.rs"]
mod kit;
#[path = "../../../projection-postgres/tests/projections/views.rs"]
mod views;
