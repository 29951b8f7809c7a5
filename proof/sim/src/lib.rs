//! A deterministic simulation of the pure cores of Gesta.
//!
//! Why: the faults that break promises are schedules (a batch that is lost *and* a process that sleeps *and* a stream
//! that is scavenged), and nobody thinks of all of them. Here the cores run in worlds of their own, in which everything
//! that can happen does so in an order that choices give. Every answer is checked against a model of the promises. A
//! schedule that breaks one is replayed by its seed, and shrunk.
//!
//! Invariants: nothing but choices is random; time is what a world says it is; the choice 0 is the one with the fewest
//! faults. Not here: the shells of the cores, which have tests of their own (decision 0028 says what else).
//!
//! * `choices`: what a schedule is made of; `driver`: runs, searches, shrinks and replays schedules;
//! * `worlds`: what they act on.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "a panic is a broken promise: the driver finds, shrinks and replays it"
)]

pub mod choices;
pub mod driver;
pub mod worlds;
