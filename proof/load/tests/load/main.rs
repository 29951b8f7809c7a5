//! Scenario files that are refused, and load on small services in this process, kind ones and others.

#![allow(clippy::unwrap_used, missing_docs, reason = "tests")]

mod files;
mod service;
mod trouble;
mod users;
