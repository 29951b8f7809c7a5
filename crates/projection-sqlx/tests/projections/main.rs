//! Projections in PostgreSQL over sqlx: the tests of `gesta-projection-postgres` with another driver.
#![allow(clippy::expect_used, clippy::unwrap_used, reason = "tests")]

#[path = "../../../projection-postgres/tests/projections/databases.rs"]
mod databases;
#[path = "../../../projection-postgres/tests/projections/faults.rs"]
mod faults;
#[path = "../../../projection-postgres/tests/projections/fixtures.rs"]
mod fixtures;
mod flavour;
#[path = "../../../projection-postgres/tests/projections/histories.rs"]
mod histories;
#[path = "../../../projection-postgres/tests/projections/target.rs"]
mod target;
#[path = "../../../projection-postgres/tests/projections/views.rs"]
mod views;
