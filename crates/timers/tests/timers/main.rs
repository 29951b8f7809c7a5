//! Timers on stores whose processes die, whose database fails, and whose clocks are wrong; time is virtual.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    missing_docs,
    reason = "tests"
)]

mod handlers;
mod histories;
mod losses;
mod owners;
mod set_and_fire;
mod support;
