//! The conformance kit: whatever implements [`EventStore`](gesta_core::EventStore) is tested here.
//!
//! Why: the contract (`docs/reference/contract.md`) holds for every store, so its tests are written
//! once. A backend runs all of them with one line:
//!
//! ```
//! gesta_kit::conformance_tests!(gesta_kit::MemoryFactory::new(1));
//! # fn main() {}
//! ```
//!
//! * [`cases`]: one small function per promise, by theme;
//! * [`model`]: random operations must give the same answers as the reference store;
//! * [`broken`]: stores with a planted fault, each of which must fail a case: the tests of the tests;
//! * [`database`]: what a database holds, as plain data, for everything that plays one;
//! * [`faulty`]: a store whose database fails on purpose, for tests of applications too;
//! * [`depth`]: how much tests try, with which seed, and whether they hold promises of speed;
//! * [`Wrapper`]: a store around another one, for tests that change one thing;
//! * [`check_virtual_index`]: what a backend must do for virtual streams;
//! * [`registry`]: rows of a registry of nodes, and one in memory;
//! * [`history`]: what happened in a run: appends, what tailers saw, seats, what groups delivered;
//! * [`operations`]: histories as files, which other judges read as well;
//! * [`judge`]: do the facts of a history fit each other and what is stored?
//! * [`verdict`]: what judges say;
//! * [`bench`]: how long small pieces of work take.
//!
//! Invariants: every case makes its own store, so all run in parallel; nothing waits by sleeping; every wait has a
//! deadline.
//! Not here: tests that need a particular database (fault injection, migrations): they are in the backends.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "test code: a panic is how a test fails"
)]

pub mod bench;
pub mod broken;
pub mod cases;
pub mod database;
pub mod depth;
mod factory;
pub mod faulty;
pub mod history;
mod index;
pub mod judge;
mod memory;
pub mod model;
pub mod operations;
pub mod registry;
mod suite;
pub mod support;
pub mod verdict;
mod wrapper;

pub use factory::{StoreFactory, TestStore};
pub use index::{check_scavenged_places, check_virtual_index};
pub use memory::{MemoryFactory, RevivedFactory};
pub use suite::{Case, all_cases, case, outcome_of, run};
pub use wrapper::{Outer, Wrapper};
