//! The driver: runs schedules of any world, finds those that break a promise, and shrinks and replays them.
//!
//! A schedule is nothing but its choices. The driver draws them from a seed, or replays a list; the world acts on them.
//! A broken promise is an error of the world, or a panic.
//!
//! * `convention`: what the cores that run in worlds owe; `panics`: panics as findings; `search`: many schedules, by
//!   threads.

pub mod convention;
mod panics;
pub mod search;

use std::collections::BTreeMap;
use std::time::Duration;

use crate::choices::{Choices, shrink};

/// A world of the simulation.
#[derive(Debug)]
pub struct World {
    /// Its name.
    pub name: &'static str,
    /// What its schedules are about. The forms take turns.
    pub forms: &'static [Form],
}

/// What a schedule is about.
#[derive(Debug)]
pub struct Form {
    /// Its name, which no other form of the world has.
    pub name: &'static str,
    /// How many turns it gets in each round.
    pub turns: u64,
    /// Runs one schedule.
    pub run: fn(&mut Schedule) -> Result<(), String>,
}

impl World {
    /// Returns the form of the schedule of a seed.
    ///
    /// # Panics
    /// If the world has no form.
    #[must_use]
    pub fn form_of(&self, seed: u64) -> &'static Form {
        let round: u64 = self.forms.iter().map(|form| form.turns).sum();
        let mut turn = seed % round.max(1);
        for form in self.forms {
            match turn.checked_sub(form.turns) {
                Some(rest) => turn = rest,
                None => return form,
            }
        }
        unreachable!("the turn is less than the round")
    }

    /// Returns the form with this name.
    #[must_use]
    pub fn form(&self, name: &str) -> Option<&'static Form> {
        self.forms.iter().find(|form| form.name == name)
    }
}

/// What a schedule has of the driver.
#[derive(Debug)]
pub struct Schedule {
    /// The choices. Nothing else is random.
    pub choices: Choices,
    /// Whether it tells what happens.
    pub trace: Trace,
    /// How many times each thing has happened that tests want to be reached.
    pub reached: BTreeMap<&'static str, u32>,
}

impl Schedule {
    /// Makes a schedule of these choices.
    #[must_use]
    pub fn new(choices: Choices, trace: Trace) -> Self {
        Self {
            choices,
            trace,
            reached: BTreeMap::new(),
        }
    }

    /// Counts something that tests want to be reached.
    pub fn reach(&mut self, what: &'static str) {
        *self.reached.entry(what).or_default() += 1;
    }
}

/// Tells whether a schedule prints what happens in it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Trace {
    /// The schedule prints nothing.
    Off,
    /// The schedule prints each step to standard error.
    On,
}

impl Trace {
    /// Tells what happens at a time since the start of the schedule.
    pub fn note(self, time: Duration, what: impl FnOnce() -> String) {
        if self == Self::On {
            eprintln!("{:>10.3} {}", time.as_secs_f64(), what());
        }
    }
}

/// The end of a schedule.
#[derive(Debug)]
pub struct End {
    /// The promise that was broken, if one was.
    pub outcome: Result<(), String>,
    /// The choices that were made.
    pub made: Vec<u32>,
    /// What was reached.
    pub reached: BTreeMap<&'static str, u32>,
}

/// Runs a schedule. A panic is a broken promise like any other.
pub fn run(form: &Form, choices: Choices, trace: Trace) -> End {
    let mut schedule = Schedule::new(choices, trace);
    let outcome = panics::caught(|| (form.run)(&mut schedule));
    End {
        outcome: outcome.unwrap_or_else(Err),
        made: schedule.choices.into_made(),
        reached: schedule.reached,
    }
}

/// A schedule that breaks a promise.
#[derive(Debug)]
pub struct Finding {
    /// Promise that the schedule of the seed breaks.
    pub what: String,
    /// Name of the world.
    pub world: &'static str,
    /// Name of the form of the schedule.
    pub form: &'static str,
    /// Seed of the schedule.
    pub seed: u64,
    /// Choices of the schedule, shrunk.
    pub choices: Vec<u32>,
    /// Promise that the shrunk schedule breaks.
    pub shrunk: String,
}

impl Finding {
    /// Returns the arguments by which the program replays the schedule.
    #[must_use]
    pub fn replay(&self) -> String {
        let choices: Vec<String> = self.choices.iter().map(u32::to_string).collect();
        let (world, form) = (self.world, self.form);
        format!(
            "--world {world} --form {form} --replay {}",
            choices.join(",")
        )
    }
}

/// What is done with a schedule that breaks a promise.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Found {
    /// It is made smaller, which takes many times as long as to find it.
    Shrunk,
    /// It is told as it is.
    AsItIs,
}

/// Runs the schedule of a seed.
///
/// # Errors
/// The schedule, if it breaks a promise.
pub fn check(
    world: &World,
    form: &'static Form,
    seed: u64,
    found: Found,
) -> Result<(), Box<Finding>> {
    let first = run(form, Choices::from_seed(seed), Trace::Off);
    let Err(what) = first.outcome else {
        return Ok(());
    };
    let again = |choices: &[u32]| run(form, Choices::replay(choices.to_vec()), Trace::Off);
    let choices = match found {
        Found::Shrunk => shrink(first.made, |choices| again(choices).outcome.is_err()),
        Found::AsItIs => first.made,
    };
    let shrunk = again(&choices).outcome.err().unwrap_or_default();
    Err(Box::new(Finding {
        what,
        world: world.name,
        form: form.name,
        seed,
        choices,
        shrunk,
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Breaks its promise if the same number comes three times.
    fn thrice(schedule: &mut Schedule) -> Result<(), String> {
        let numbers: Vec<u32> = (0..40).map(|_| schedule.choices.pick(10)).collect();
        schedule.reach("ran");
        let is_often = |number: &u32| numbers.iter().filter(|other| *other == number).count() > 2;
        assert!(!numbers.contains(&7), "a seven");
        match numbers
            .iter()
            .find(|number| **number > 0 && is_often(number))
        {
            Some(number) => Err(format!("{number} came often")),
            None => Ok(()),
        }
    }

    fn never(_: &mut Schedule) -> Result<(), String> {
        Ok(())
    }

    static WORLD: World = World {
        name: "numbers",
        forms: &[
            Form {
                name: "thrice",
                turns: 2,
                run: thrice,
            },
            Form {
                name: "never",
                turns: 1,
                run: never,
            },
        ],
    };

    #[test]
    fn forms_take_turns() {
        let names = (0..6).map(|seed| WORLD.form_of(seed).name);
        let expected = ["thrice", "thrice", "never", "thrice", "thrice", "never"];
        assert_eq!(names.collect::<Vec<_>>(), expected);
        assert!(WORLD.form("never").is_some() && WORLD.form("ever").is_none());
    }

    /// Goal: errors and panics are found, shrunk, and replayed by what is told of them.
    #[test]
    fn what_breaks_a_promise_is_found_shrunk_and_replayed() {
        let form = WORLD.form("thrice").expect("it is there");
        let mut found = Vec::new();
        for seed in 0..50 {
            let Err(finding) = check(&WORLD, form, seed, Found::Shrunk) else {
                continue;
            };
            let again = run(form, Choices::replay(finding.choices.clone()), Trace::Off);
            assert_eq!(again.outcome, Err(finding.shrunk.clone()));
            assert_eq!(again.reached.get("ran"), Some(&1));
            let is_small = finding.choices.iter().filter(|choice| **choice > 0).count() <= 3;
            assert!(is_small, "{finding:?}");
            assert!(
                finding
                    .replay()
                    .starts_with("--world numbers --form thrice --replay ")
            );
            found.push(finding.shrunk);
        }
        assert!(
            found.iter().any(|what| what.contains("a seven")),
            "{found:?}"
        );
        let as_it_is = check(&WORLD, form, 1, Found::AsItIs).expect_err("forty of ten");
        assert_eq!(as_it_is.choices.len(), 40);
        assert_eq!(as_it_is.what, as_it_is.shrunk);
    }
}
