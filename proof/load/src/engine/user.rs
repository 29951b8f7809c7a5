//! A virtual user: where it stands in its flow, and the values that it has.

use serde_json::Value;
use tokio::time::Instant;

use crate::feeder::{Deck, Each, Feeder, Per, Row};
use crate::figures::Outcome;
use crate::random::Random;
use crate::scenario::{Flow, Scenario};
use crate::template::{Slot, Values};

/// A virtual user.
#[derive(Debug)]
pub(super) struct User {
    number: usize,
    /// Its flow, once it has chosen one.
    pub(super) flow: Option<usize>,
    /// The request of the flow that is next.
    pub(super) step: usize,
    /// How often that was repeated already.
    pub(super) done: u32,
    /// True if it was refused: then it is asked again as it was.
    pub(super) again: bool,
    pub(super) pass: u64,
    rows: Vec<Option<Row>>,
    pub(super) captured: Vec<Value>,
    /// Of feeders that it goes through alone.
    decks: Vec<Option<Deck>>,
    /// It can ask from here on.
    pub(super) ready: Instant,
}

impl User {
    pub(super) fn new(number: usize, scenario: &Scenario, captured: &[Value], seed: u64) -> Self {
        let feeders = scenario.feeders.iter().enumerate();
        let decks = feeders.map(|(feeder, it)| {
            let seed = Random::fork(seed, feeder as u64).next();
            (it.per != Per::All).then(|| Deck::new(Random::fork(seed, number as u64 + 1)))
        });
        Self {
            number,
            flow: None,
            step: 0,
            done: 0,
            again: false,
            pass: 0,
            rows: vec![None; scenario.feeders.len()],
            captured: captured.to_vec(),
            decks: decks.collect(),
            ready: Instant::now(),
        }
    }

    /// Begins a pass through its flow, with what the setup has captured.
    pub(super) fn begin(&mut self, pass: u64, feeders: &[Feeder], captured: &[Value]) {
        for (feeder, deck) in feeders.iter().zip(&mut self.decks) {
            if let (Per::Pass, Some(deck)) = (feeder.per, deck) {
                deck.restart();
            }
        }
        self.pass = pass;
        self.rows.fill(None);
        self.captured.clone_from_slice(captured);
    }

    /// Takes the rows of a request.
    pub(super) fn draw(&mut self, feeders: &[Feeder], used: &[usize], shared: &mut [Deck]) {
        for number in used {
            let feeder = &feeders[*number];
            if self.rows[*number].is_some() && feeder.each == Each::Pass {
                continue;
            }
            let deck = self.decks[*number].as_mut().unwrap_or(&mut shared[*number]);
            self.rows[*number] = Some(deck.deal(feeder));
        }
    }

    /// Keeps what an answer gave.
    pub(super) fn keep(&mut self, captured: Vec<(usize, Value)>) {
        for (slot, value) in captured {
            self.captured[slot] = value;
        }
    }

    /// Goes on after a request; true if its pass is over.
    pub(super) fn settle(&mut self, flow: &Flow, outcome: Outcome) -> bool {
        self.again = outcome == Outcome::Refused;
        if outcome == Outcome::Refused {
            return false;
        }
        self.done += 1;
        if self.done >= flow.steps[self.step].repeat {
            (self.step, self.done) = (self.step + 1, 0);
        }
        let is_over = outcome != Outcome::Passed || self.step >= flow.steps.len();
        if is_over {
            // What comes after a request that failed could not be right.
            (self.flow, self.step, self.done) = (None, 0, 0);
        }
        is_over
    }
}

/// The values of a user for a request.
pub(super) struct Using<'a> {
    feeders: &'a [Feeder],
    run: &'a str,
    user: &'a User,
}

impl<'a> Using<'a> {
    pub(super) fn of(scenario: &'a Scenario, run: &'a str, user: &'a User) -> Self {
        let feeders = &scenario.feeders;
        Self { feeders, run, user }
    }
}

impl Values for Using<'_> {
    fn value(&self, slot: Slot) -> Value {
        match slot {
            Slot::Feeder(feeder, column) => match self.user.rows[feeder] {
                Some(row) => self.feeders[feeder].value(row, column),
                None => Value::Null,
            },
            Slot::Captured(number) => self.user.captured[number].clone(),
            Slot::Run => self.run.into(),
            Slot::User => self.user.number.into(),
            Slot::Pass => self.user.pass.into(),
        }
    }
}
