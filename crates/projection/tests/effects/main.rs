//! Effects: at least once and in order, by one process at a time, from where the version before has come to.
#![allow(clippy::expect_used, reason = "test code: a panic is how a test fails")]

mod owners;
mod performing;
mod states;
mod support;
