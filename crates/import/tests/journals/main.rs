//! Journals of other systems, made by statements in a real database, and imported: every event is found again, in its
//! order, with its tags and its time, once.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    missing_docs,
    reason = "tests"
)]

mod akka_jdbc;
mod akka_others;
mod erased;
mod follow;
mod late;
mod lines;
mod marten;
mod message_db;
mod stores;
mod support;
