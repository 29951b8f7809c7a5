//! Patterns that clients send: compiled once for all who use the same text, and compared, off the threads that serve
//! requests.
//!
//! Why: a text of some kilobytes may take tens of milliseconds to compile, and one of a pattern that looks around as
//! long for one event. On a thread that serves requests all others would wait for it.
//! Invariants: at most [`places`] patterns are compiled or compared at once, callers take turns, and a turn of
//! comparing ends after [`TURN_MAX`]; what compiled patterns hold counts against the bytes that subscriptions may hold,
//! as those of the caller who was first.
//! Not here: the bounds on one pattern (`gesta_pattern`), the patterns of consumer groups, which administrators make.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::{Duration, Instant};

use gesta_core::shares::{GaveWay, Holder, Load};
use gesta_core::{Error, RecordedEvent, Result};
use gesta_pattern::{Passes, Pattern, PatternText};

use crate::shared::body::{Budget, Reservation};
use crate::shared::gate::Gate;

/// How long events are compared at once. One event may take longer.
const TURN_MAX: Duration = Duration::from_millis(5);
/// How long events are compared with a quick pattern before other tasks get the processor.
const QUICK_TURN_MAX: Duration = Duration::from_millis(1);
/// Number of patterns that are known from which on those that nobody uses any more are forgotten.
const SWEEP_AFTER: usize = 64;

/// A pattern, and its share of the bytes that subscriptions may hold.
#[derive(Debug)]
pub(crate) struct Held {
    pub(crate) pattern: Pattern,
    held: Reservation,
}

impl Held {
    /// Waits until the memory is given up for a caller who holds less. Who uses the pattern is to end then.
    pub(crate) fn gave_way(&self) -> GaveWay {
        self.held.gave_way()
    }
}

/// Returns how much memory the text of a pattern holds, roughly, in bytes.
pub(crate) fn text_bytes(text: &PatternText) -> usize {
    let of_one = |text: &String| size_of::<String>() + text.len();
    match &text.passes {
        Passes::Expression(expression) => of_one(expression),
        Passes::Prefixes(prefixes) => prefixes.iter().map(of_one).sum(),
    }
}

/// The patterns that are in use.
#[derive(Debug)]
pub(crate) struct Patterns {
    turns: Gate,
    known: Mutex<HashMap<PatternText, Weak<Held>>>,
}

impl Default for Patterns {
    fn default() -> Self {
        Self {
            turns: Gate::new("patterns", places()),
            known: Mutex::default(),
        }
    }
}

/// Returns how many patterns are compiled or compared at once: half of the processors, and two, so that one caller
/// leaves another place.
fn places() -> usize {
    let processors = std::thread::available_parallelism().map_or(1, usize::from);
    (processors / 2).max(2)
}

impl Patterns {
    /// Returns the compiled pattern of a text.
    ///
    /// # Errors
    /// `InvalidArgument` if the pattern cannot be used; `Overloaded` if the caller holds too many bytes.
    pub(crate) async fn compile(
        &self,
        text: PatternText,
        budget: &Budget,
        holder: &Holder,
    ) -> Result<Arc<Held>> {
        if let Some(known) = self.known(&text) {
            return Ok(known);
        }
        let turn = self.turns.turn(holder).await;
        let job = {
            let text = text.clone();
            move || (Pattern::new(text), turn)
        };
        let (pattern, _turn) = tokio::task::spawn_blocking(job)
            .await
            .map_err(interrupted)?;
        let pattern = pattern?;
        let mut held = budget.reservation_of_subscriptions(holder);
        held.grow(pattern.memory_bytes()).map_err(|problem| {
            Error::new(gesta_core::ErrorKind::Overloaded(problem.detail.clone()))
        })?;
        let held = Arc::new(Held { pattern, held });
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if known.len() >= SWEEP_AFTER {
            known.retain(|_, held| held.strong_count() > 0);
        }
        known.insert(text, Arc::downgrade(&held));
        Ok(held)
    }

    fn known(&self, text: &PatternText) -> Option<Arc<Held>> {
        let known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        known.get(text)?.upgrade()
    }

    /// Returns the events that pass a pattern.
    ///
    /// # Errors
    /// `InvalidArgument` if the pattern takes too many steps.
    pub(crate) async fn pass<E: AsEvent>(
        &self,
        held: &Arc<Held>,
        events: Vec<E>,
        holder: &Holder,
    ) -> Result<Vec<E>> {
        let mut comparing = Comparing {
            pattern: Arc::clone(held),
            passing: Vec::with_capacity(events.len()),
            left: events.into_iter(),
        };
        loop {
            let (rest, outcome) = if held.pattern.is_quick() {
                comparing.compare(QUICK_TURN_MAX)
            } else {
                let turn = self.turns.turn(holder).await;
                let job = move || {
                    let _turn = turn;
                    comparing.compare(TURN_MAX)
                };
                tokio::task::spawn_blocking(job)
                    .await
                    .map_err(interrupted)?
            };
            outcome?;
            if rest.left.len() == 0 {
                return Ok(rest.passing);
            }
            comparing = rest;
            tokio::task::yield_now().await;
        }
    }

    pub(crate) fn load(&self) -> Load {
        self.turns.load()
    }
}

/// An event, or a handle of one.
pub(crate) trait AsEvent: Send + 'static {
    fn event(&self) -> &RecordedEvent;
}

impl AsEvent for RecordedEvent {
    fn event(&self) -> &RecordedEvent {
        self
    }
}

impl AsEvent for Arc<RecordedEvent> {
    fn event(&self) -> &RecordedEvent {
        self
    }
}

/// Events that are being compared.
struct Comparing<E> {
    pattern: Arc<Held>,
    left: std::vec::IntoIter<E>,
    passing: Vec<E>,
}

impl<E: AsEvent> Comparing<E> {
    /// Compares events for about this time.
    fn compare(mut self, time_max: Duration) -> (Self, Result<()>) {
        let begun = Instant::now();
        while let Some(event) = self.left.next() {
            match self.pattern.pattern.matches(event.event()) {
                Ok(true) => self.passing.push(event),
                Ok(false) => {}
                Err(error) => return (self, Err(error)),
            }
            if begun.elapsed() >= time_max {
                break;
            }
        }
        (self, Ok(()))
    }
}

fn interrupted(error: tokio::task::JoinError) -> Error {
    Error::unavailable("a pattern was not looked at").caused_by(error)
}

#[cfg(test)]
mod tests {
    use gesta_pattern::{Of, Passes};

    use super::*;

    fn text(expression: &str) -> PatternText {
        PatternText {
            of: Of::Type,
            passes: Passes::Expression(expression.into()),
        }
    }

    /// Goal: a thousand subscriptions with the same filter hold it once, and what is held is counted until the last
    /// ends.
    #[tokio::test]
    async fn a_text_is_compiled_and_counted_once() {
        let (patterns, budget) = (Patterns::default(), Budget::new(8 * 1024 * 1024));
        let one = Holder::User("one".into());
        let compile = async |expression: &str, holder: &Holder| {
            patterns.compile(text(expression), &budget, holder).await
        };
        let first = compile("^a", &one).await.expect("good");
        let held = budget.used();
        assert_eq!(held, first.pattern.memory_bytes());
        let again = compile("^a", &Holder::User("other".into())).await;
        assert!(Arc::ptr_eq(&first, &again.expect("good")));
        assert_eq!(budget.used(), held);
        // Subscriptions may hold half of all, and one caller half of that.
        let mut others = Vec::new();
        let refused = loop {
            let expression = format!("^(?!b{}).*c", others.len());
            match compile(&expression, &one).await {
                Ok(other) => others.push(other),
                Err(refused) => break refused,
            }
        };
        assert!(
            refused.to_string().contains("left for all others"),
            "{refused}"
        );
        assert!(budget.used() <= 2 * 1024 * 1024, "{}", budget.used());
        drop((first, others));
        assert_eq!(budget.used(), 0);
        assert!(compile("(", &one).await.is_err());
    }
}
