//! The test kit for entities: given events, when a command, then events or a rejection. No runtime, no store.
//!
//! A test names the line of its own that failed, and prints what was given, the command, and how the outcome differs
//! from what was expected. Everything here panics when an expectation is not met: it belongs into tests.
//!
//! Not here: tests of several processes, of commits that fail and of time-outs, which need a runtime.
//!
//! ```
//! use std::time::Duration;
//! use gesta_entity::{Context, Decider, Scenario};
//!
//! #[derive(Default)]
//! struct Account { balance: u64 }
//! #[derive(Debug)]
//! enum Command { Deposit(u64), Withdraw(u64) }
//! #[derive(Debug, PartialEq)]
//! enum Event { Deposited(u64), Withdrawn(u64) }
//! #[derive(Debug, PartialEq)]
//! enum Rejection { Insufficient }
//!
//! impl Decider for Account {
//!     type Command = Command;
//!     type Event = Event;
//!     type Reply = u64;
//!     type Rejection = Rejection;
//!
//!     fn decide(&self, command: &Command, _: &Context<'_>) -> Result<Vec<Event>, Rejection> {
//!         match command {
//!             Command::Deposit(0) => Ok(vec![]),
//!             Command::Deposit(amount) => Ok(vec![Event::Deposited(*amount)]),
//!             Command::Withdraw(amount) if *amount > self.balance => Err(Rejection::Insufficient),
//!             Command::Withdraw(amount) => Ok(vec![Event::Withdrawn(*amount)]),
//!         }
//!     }
//!     fn evolve(&mut self, event: &Event) {
//!         match event {
//!             Event::Deposited(amount) => self.balance += amount,
//!             Event::Withdrawn(amount) => self.balance -= amount,
//!         }
//!     }
//!     fn reply(&self, _: &Command) -> u64 {
//!         self.balance
//!     }
//! }
//!
//! Scenario::<Account>::new()
//!     .given([Event::Deposited(10)])
//!     .when(Command::Withdraw(3))
//!     .then([Event::Withdrawn(3)])
//!     .then_reply(7)
//!     .advance(Duration::from_secs(3_600))
//!     .when(Command::Withdraw(8))
//!     .then_rejected(Rejection::Insufficient)
//!     .then_state(|account| assert_eq!(account.balance, 7))
//!     .when(Command::Deposit(0))
//!     .then_nothing();
//! ```

use std::fmt::{self, Debug, Write};
use std::time::Duration;

use bytes::Bytes;
use gesta_core::{ContentType, Timestamp};

use crate::codec::{Encoded, EventCodec, Stored};
use crate::decider::{Context, Decider};

/// The moment at which a scenario begins unless it says another one: 2026-01-01T00:00:00Z.
pub const BEGINNING: Timestamp = Timestamp(1_767_225_600_000_000);

/// An entity in a test: its id, the time, and the state after the events so far. See the [module](self).
#[must_use = "a scenario tests nothing before `when` and `then`"]
pub struct Scenario<D: Decider> {
    id: String,
    now: Timestamp,
    state: D,
    /// What has happened so far, for messages.
    story: String,
}

impl<D: Decider> Debug for Scenario<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Scenario")
            .field("id", &self.id)
            .field("now", &self.now)
            .field("story", &self.story)
            .finish_non_exhaustive()
    }
}

impl<D: Decider> Default for Scenario<D> {
    fn default() -> Self {
        Self::new()
    }
}

impl<D: Decider> Scenario<D> {
    /// An entity to which nothing has happened, with the id `1`.
    pub fn new() -> Self {
        Self::of("1")
    }

    /// The entity with this id, to which nothing has happened.
    pub fn of(id: impl Into<String>) -> Self {
        Self {
            id: id.into(),
            now: BEGINNING,
            state: D::default(),
            story: String::new(),
        }
    }

    /// Sets the time.
    pub fn at(mut self, now: Timestamp) -> Self {
        self.now = now;
        self.tell(format_args!("at {now}"));
        self
    }

    /// Lets time pass, in steps of microseconds.
    pub fn advance(self, time: Duration) -> Self {
        let micros = i64::try_from(time.as_micros()).unwrap_or(i64::MAX);
        let now = Timestamp(self.now.0.saturating_add(micros));
        self.at(now)
    }

    /// These events have happened.
    pub fn given(mut self, events: impl IntoIterator<Item = D::Event>) -> Self
    where
        D::Event: Debug,
    {
        for event in events {
            self.tell(format_args!("given {event:?}"));
            self.state.evolve(&event);
        }
        self
    }

    /// These events have happened and were stored in this form: a test of upcasts, and of the promise that old
    /// events can be read for ever.
    ///
    /// A text is JSON, bytes are not: `("item-added", r#"{"sku":"tea"}"#)`, `("measured", [0xa0])`.
    ///
    /// # Panics
    /// If an event cannot be decoded.
    #[track_caller]
    pub fn given_stored<F: Into<StoredForm>>(
        mut self,
        codec: &impl EventCodec<D::Event>,
        events: impl IntoIterator<Item = F>,
    ) -> Self
    where
        D::Event: Debug,
    {
        for form in events {
            let form = form.into();
            match codec.decode(form.stored()) {
                Ok(event) => {
                    self.tell(format_args!("given {event:?} (stored as {form:?})"));
                    self.state.evolve(&event);
                }
                Err(error) => panic!("{}  given {form:?}\n\n{error}\n", self.story_so_far()),
            }
        }
        self
    }

    /// The entity decides about this command. Its events happen at once; say with `then` what they must be.
    pub fn when(mut self, command: D::Command) -> Decided<D>
    where
        D::Command: Debug,
        D::Event: Debug,
    {
        self.tell(format_args!("when {command:?}"));
        let story = self.story.clone();
        let outcome = self
            .state
            .decide(&command, &Context::new(&self.id, self.now));
        for event in outcome.iter().flatten() {
            self.tell(format_args!("then {event:?}"));
            self.state.evolve(event);
        }
        Decided {
            scenario: self,
            story,
            command,
            outcome,
            rejection: Rejections::NotYetExpected,
        }
    }

    /// Looks at the state.
    pub fn then_state(self, look: impl FnOnce(&D)) -> Self {
        look(&self.state);
        self
    }

    fn tell(&mut self, line: fmt::Arguments<'_>) {
        // Writing to a string cannot fail.
        let _ = writeln!(self.story, "  {line}");
    }

    fn story_so_far(&self) -> String {
        headed::<D>(&self.id, &self.story)
    }
}

fn headed<D>(id: &str, story: &str) -> String {
    let name = std::any::type_name::<D>();
    let name = name.rsplit("::").next().unwrap_or(name);
    format!("{name} {id:?}\n{story}")
}

/// Whether the test has said that it expects a rejection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Rejections {
    NotYetExpected,
    Expected,
}

/// What the entity has decided, to be compared with what was expected. The scenario goes on from here.
#[must_use = "say with `then` what must have been decided"]
pub struct Decided<D: Decider> {
    scenario: Scenario<D>,
    /// Up to the command.
    story: String,
    command: D::Command,
    outcome: Result<Vec<D::Event>, D::Rejection>,
    rejection: Rejections,
}

impl<D: Decider> Debug for Decided<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Decided")
            .field("scenario", &self.scenario)
            .finish_non_exhaustive()
    }
}
