//! A deterministic simulation of pure cores.
//!
//! Why: the faults that break promises are schedules (a batch that is lost *and* a process that sleeps *and* a stream
//! that is scavenged), and nobody thinks of all of them. A schedule that breaks a promise is replayed by its seed, and
//! shrunk.
//!
//! * `choices`: what a schedule is made of; `worlds`: what it acts on.

pub mod choices;
pub mod worlds;

use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::choices::{Choices, shrink};
use crate::worlds::pipeline::schedule::{self, Form, Trace};

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
