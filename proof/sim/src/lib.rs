//! A deterministic simulation of the append pipeline, and of nodes that forward to each other.
//!
//! Why: the faults that break promises are schedules (a batch that is lost *and* a process that sleeps *and* a stream
//! that is scavenged), and nobody thinks of all of them. Here the pure core of the pipeline runs in several simulated
//! processes against one simulated database. Everything that can happen, happens in an order that a random generator
//! gives: commits, misses, lost and late statements, deadlines that pass late, failing reads, fail-overs that lose
//! commits, scavenging, restarts, retries. Every answer is checked against a model of the contract. A schedule that
//! breaks a promise is replayed by its seed, and shrunk.
//!
//! A schedule has one of two forms. In one form, the processes know nothing of each other. In the other they are
//! *nodes*: callers come to any of them, and calls travel on lanes, by the cores of `gesta-link` and `gesta-node`, to
//! the node that is taken for the owner of the log. Then links break, fall silent in one direction and heal, nodes die,
//! come back and shut down in order, deadlines pass, and calls that come back are appended directly.
//!
//! The membership of `gesta-cluster`, which has a simulation of its own, does not decide who owns the log. An adversary
//! does, which tells any node anything at any time: two nodes own the log, or none; news is late, old or contradictory;
//! the log moves while calls are in flight. For safety this is stronger than the real membership, since a lease is
//! never evidence.
//!
//! Each process has clocks of its own, which drift, are set, and stand still while the process sleeps. In some
//! schedules the deduplication window is so narrow that events leave it. All processes may die together with what they
//! alone knew of the newest events. Subscribers live longer than processes: they resume elsewhere, by their
//! checkpoints.
//!
//! Not simulated: frames and bytes of links, their dialler and its pings, the pace of direct appends, entities.
//!
//! * `choices`: what a schedule is made of; `schedule`: what may happen, and what a schedule has more of than others;
//!   `process`, `clock`, `hub`, `nodes`, `database`: the parts to which it happens;
//! * `archive`: what was ever stored; `model`: what was promised.

pub mod archive;
pub mod choices;
pub mod clock;
pub mod database;
pub mod hub;
pub mod model;
pub mod nodes;
pub mod process;
pub mod schedule;

use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::choices::{Choices, shrink};
use crate::schedule::{Form, Trace};

/// A schedule that breaks a promise.
#[derive(Debug)]
pub struct Finding {
    /// Promise that the schedule of the seed breaks.
    pub what: String,
    /// Form of the schedule.
    pub form: Form,
    /// Seed of the schedule.
    pub seed: u64,
    /// Choices of the schedule, shrunk.
    pub choices: Vec<u32>,
    /// Promise that the shrunk schedule breaks.
    pub shrunk: String,
}

/// Runs the schedule of a seed.
///
/// # Errors
/// The schedule, if it breaks a promise.
pub fn check(form: Form, seed: u64) -> Result<(), Box<Finding>> {
    let (outcome, made) = run(form, Choices::from_seed(seed), Trace::Off);
    let Err(what) = outcome else {
        return Ok(());
    };
    let choices = shrink(made, |choices| {
        run(form, Choices::replay(choices.to_vec()), Trace::Off)
            .0
            .is_err()
    });
    let again = run(form, Choices::replay(choices.clone()), Trace::Off).0;
    Err(Box::new(Finding {
        what,
        form,
        seed,
        shrunk: again.err().unwrap_or_default(),
        choices,
    }))
}

/// Runs a schedule. A panic is a broken promise like any other.
///
/// Returns the promise that the schedule breaks, if any, and its choices.
pub fn run(form: Form, choices: Choices, trace: Trace) -> (Result<(), String>, Vec<u32>) {
    let ran = catch_unwind(AssertUnwindSafe(|| schedule::run(form, choices, trace)));
    ran.unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
        let text = text.or_else(|| panic.downcast_ref::<String>().cloned());
        (
            Err(format!("panic: {}", text.unwrap_or_default())),
            Vec::new(),
        )
    })
}
