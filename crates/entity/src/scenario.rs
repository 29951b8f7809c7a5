//! The test kit for entities: given events, when a command, then events or a rejection. The kit needs no runtime and no
//! store.
//!
//! A test names the line of its own that failed, and prints what was given, the command, and how the outcome differs
//! from what was expected. Everything in this module panics when an expectation is not met, because it is meant for
//! tests.
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

/// The moment at which a scenario begins unless it sets another one: 2026-01-01T00:00:00Z.
pub const BEGINNING: Timestamp = Timestamp(1_767_225_600_000_000);

/// An entity in a test: its id, the time, and the state after the events so far. See the [module](self).
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
    /// Begins with an entity to which nothing has happened, with the id `1`.
    #[must_use = "nothing is tested before `when` and `then`"]
    pub fn new() -> Self {
        Self::of("1")
    }

    /// Begins with the entity with this id, to which nothing has happened.
    #[must_use = "nothing is tested before `when` and `then`"]
    pub fn of(id: impl Into<String>) -> Self {
        Self {
            id: id.into(),
            now: BEGINNING,
            state: D::default(),
            story: String::new(),
        }
    }

    /// Sets the time.
    #[must_use = "nothing is tested before `when` and `then`"]
    pub fn at(mut self, now: Timestamp) -> Self {
        self.now = now;
        self.tell(format_args!("at {now}"));
        self
    }

    /// Moves the time forward, in steps of microseconds.
    #[must_use = "nothing is tested before `when` and `then`"]
    pub fn advance(self, time: Duration) -> Self {
        let micros = i64::try_from(time.as_micros()).unwrap_or(i64::MAX);
        let now = Timestamp(self.now.0.saturating_add(micros));
        self.at(now)
    }

    /// Says that these events have happened.
    #[must_use = "nothing is tested before `when` and `then`"]
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

    /// Says that these events have happened and were stored in this form. This tests upcasts, and the promise that old
    /// events can be read for ever.
    ///
    /// A text is JSON, and bytes are another form: `("item-added", r#"{"sku":"tea"}"#)`, `("measured", [0xa0])`.
    ///
    /// # Panics
    /// Panics if an event cannot be decoded.
    #[track_caller]
    #[must_use = "nothing is tested before `when` and `then`"]
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

    /// Lets the entity decide about this command. Its events happen at once; say with `then` what they must be.
    #[must_use = "say with `then` what must have been decided"]
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
            rejection: Rejections::NotExpected,
        }
    }

    /// Passes the state to `look`.
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
    NotExpected,
    Expected,
}

/// What the entity has decided, to be compared with what was expected. The scenario goes on from here.
pub struct Decided<D: Decider> {
    scenario: Scenario<D>,
    /// What has happened up to the command.
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

impl<D: Decider> Decided<D> {
    /// Checks that the command was accepted with exactly these events, in this order.
    ///
    /// # Panics
    /// Panics if this is not so.
    #[track_caller]
    pub fn then(self, expected: impl IntoIterator<Item = D::Event>) -> Self
    where
        D::Event: PartialEq + Debug,
        D::Rejection: Debug,
    {
        let expected: Vec<D::Event> = expected.into_iter().collect();
        let found = self.accepted();
        if *found != expected {
            self.fail(&format!(
                "events differ (- expected, + found):\n{}",
                difference(&expected, found)
            ));
        }
        self
    }

    /// Checks that the command was accepted and that nothing has happened.
    ///
    /// # Panics
    /// Panics if this is not so.
    #[track_caller]
    pub fn then_nothing(self) -> Self
    where
        D::Event: PartialEq + Debug,
        D::Rejection: Debug,
    {
        self.then([])
    }

    /// Checks that the command was accepted with this reply.
    ///
    /// # Panics
    /// Panics if this is not so.
    #[track_caller]
    pub fn then_reply(self, expected: D::Reply) -> Self
    where
        D::Reply: PartialEq + Debug,
        D::Rejection: Debug,
    {
        self.accepted();
        let found = self.scenario.state.reply(&self.command);
        if found != expected {
            self.fail(&format!(
                "replies differ (- expected, + found):\n{}",
                difference(&[expected], &[found])
            ));
        }
        self
    }

    /// Checks that the command was rejected, for this reason.
    ///
    /// # Panics
    /// Panics if this is not so.
    #[track_caller]
    pub fn then_rejected(mut self, expected: D::Rejection) -> Self
    where
        D::Rejection: PartialEq + Debug,
        D::Event: Debug,
    {
        match &self.outcome {
            Err(found) if *found == expected => {}
            Err(found) => self.fail(&format!(
                "rejections differ (- expected, + found):\n{}",
                difference(&[&expected], &[found])
            )),
            Ok(events) => self.fail(&format!(
                "expected the rejection\n    {expected:?}\nbut it was accepted with\n{}",
                listed(events)
            )),
        }
        self.rejection = Rejections::Expected;
        self
    }

    /// Passes the state after the command to `look`.
    ///
    /// # Panics
    /// Panics if the command was rejected and no [`then_rejected`](Self::then_rejected) says so.
    #[track_caller]
    pub fn then_state(self, look: impl FnOnce(&D)) -> Self
    where
        D::Rejection: Debug,
    {
        self.check_no_surprise();
        look(&self.scenario.state);
        self
    }

    /// Lets the entity decide about a further command, after what has happened so far.
    ///
    /// # Panics
    /// Panics if the command before was rejected and no [`then_rejected`](Self::then_rejected) says so.
    #[track_caller]
    #[must_use = "say with `then` what must have been decided"]
    pub fn when(self, command: D::Command) -> Self
    where
        D::Command: Debug,
        D::Event: Debug,
        D::Rejection: Debug,
    {
        self.go_on().when(command)
    }

    /// Says that further events have happened.
    ///
    /// # Panics
    /// The panics are those of [`when`](Self::when).
    #[track_caller]
    #[must_use = "nothing is tested before `when` and `then`"]
    pub fn given(self, events: impl IntoIterator<Item = D::Event>) -> Scenario<D>
    where
        D::Event: Debug,
        D::Rejection: Debug,
    {
        self.go_on().given(events)
    }

    /// Sets the time.
    ///
    /// # Panics
    /// The panics are those of [`when`](Self::when).
    #[track_caller]
    #[must_use = "nothing is tested before `when` and `then`"]
    pub fn at(self, now: Timestamp) -> Scenario<D>
    where
        D::Rejection: Debug,
    {
        self.go_on().at(now)
    }

    /// Moves the time forward, in steps of microseconds.
    ///
    /// # Panics
    /// The panics are those of [`when`](Self::when).
    #[track_caller]
    #[must_use = "nothing is tested before `when` and `then`"]
    pub fn advance(self, time: Duration) -> Scenario<D>
    where
        D::Rejection: Debug,
    {
        self.go_on().advance(time)
    }

    #[track_caller]
    fn go_on(self) -> Scenario<D>
    where
        D::Rejection: Debug,
    {
        self.check_no_surprise();
        self.scenario
    }

    /// Fails if the command was rejected and the test does not mention that.
    #[track_caller]
    fn check_no_surprise(&self)
    where
        D::Rejection: Debug,
    {
        if self.rejection == Rejections::NotExpected {
            self.accepted();
        }
    }

    #[track_caller]
    fn accepted(&self) -> &Vec<D::Event>
    where
        D::Rejection: Debug,
    {
        match &self.outcome {
            Ok(events) => events,
            Err(rejection) => self.fail(&format!("it was rejected:\n    {rejection:?}\n")),
        }
    }

    #[track_caller]
    fn fail(&self, what: &str) -> ! {
        panic!("{}\n{what}", headed::<D>(&self.scenario.id, &self.story))
    }
}

fn listed<T: Debug>(values: &[T]) -> String {
    if values.is_empty() {
        return "    no events\n".to_owned();
    }
    values.iter().map(|v| format!("    {v:?}\n")).collect()
}

/// Lists the values for a message: those that are equal at both ends once, those in between for each side.
fn difference<T: PartialEq + Debug>(expected: &[T], found: &[T]) -> String {
    let before = expected
        .iter()
        .zip(found)
        .take_while(|(expected, found)| expected == found)
        .count();
    let (same, expected, found) = (&expected[..before], &expected[before..], &found[before..]);
    let after = expected
        .iter()
        .rev()
        .zip(found.iter().rev())
        .take_while(|(expected, found)| expected == found)
        .count();
    let (expected, end) = expected.split_at(expected.len() - after);
    let found = &found[..found.len() - after];
    let mut lines = String::new();
    for (mark, values) in [(' ', same), ('-', expected), ('+', found), (' ', end)] {
        for value in values {
            let _ = writeln!(lines, "  {mark} {value:?}");
        }
    }
    lines
}

/// The form of an event on disk, as a test writes it down.
#[derive(Clone, PartialEq, Eq)]
pub struct StoredForm {
    /// The type of the event on disk.
    pub event_type: String,
    /// What `data` is: JSON or another form.
    pub content_type: ContentType,
    /// The payload of the event.
    pub data: Bytes,
}

impl StoredForm {
    /// Returns the form as a codec wants it.
    #[must_use]
    pub fn stored(&self) -> Stored<'_> {
        Stored {
            event_type: &self.event_type,
            content_type: self.content_type,
            data: &self.data,
        }
    }
}

/// Shows the type and the data: JSON as it is, of other data the beginning in hexadecimal.
impl Debug for StoredForm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const SHOWN_BYTES_MAX: usize = 64;
        write!(f, "{:?} ", self.event_type)?;
        if self.content_type == ContentType::Json {
            return f.write_str(&String::from_utf8_lossy(&self.data));
        }
        f.write_str("0x")?;
        for byte in self.data.iter().take(SHOWN_BYTES_MAX) {
            write!(f, "{byte:02x}")?;
        }
        if self.data.len() > SHOWN_BYTES_MAX {
            write!(f, "... ({} bytes)", self.data.len())?;
        }
        Ok(())
    }
}

impl From<Encoded> for StoredForm {
    fn from(encoded: Encoded) -> Self {
        Self {
            event_type: encoded.event_type.as_str().to_owned(),
            content_type: encoded.content_type,
            data: encoded.data,
        }
    }
}

macro_rules! stored_form_from {
    ($content_type:ident: $(($data:ty $(; $n:ident)?))*) => {
        $(impl<$(const $n: usize)?> From<(&str, $data)> for StoredForm {
            fn from((event_type, data): (&str, $data)) -> Self {
                Self {
                    event_type: event_type.to_owned(),
                    content_type: ContentType::$content_type,
                    data: Bytes::copy_from_slice(data.as_ref()),
                }
            }
        })*
    };
}

stored_form_from! { Json: (&str) (String) }
stored_form_from! { Binary: (&[u8]) (Vec<u8>) (Bytes) ([u8; N]; N) (&[u8; N]; N) }

/// Checks that every event is stored under the name beside it and comes back as it was.
///
/// List one event of every kind here, with its name as a literal. A renamed Rust variant would make the events that are
/// stored so far unreadable; it then fails this test instead of a later read.
///
/// ```
/// # use serde::{Deserialize, Serialize};
/// use gesta_entity::{JsonEvents, scenario::round_trips};
///
/// # #[derive(Debug, PartialEq, Serialize, Deserialize)]
/// # #[serde(rename_all = "kebab-case")]
/// # enum CartEvent { ItemAdded { sku: String }, CheckedOut }
/// round_trips(
///     &JsonEvents::<CartEvent>::new(),
///     [
///         ("item-added", CartEvent::ItemAdded { sku: "tea".into() }),
///         ("checked-out", CartEvent::CheckedOut),
///     ],
/// );
/// ```
///
/// # Panics
/// Panics if an event cannot be encoded or decoded, has another name, or comes back different.
#[track_caller]
pub fn round_trips<'n, E: PartialEq + Debug>(
    codec: &impl EventCodec<E>,
    events: impl IntoIterator<Item = (&'n str, E)>,
) {
    for (name, event) in events {
        let encoded = match codec.encode(&event) {
            Ok(encoded) => encoded,
            Err(error) => panic!("{event:?}\n\n{error}\n"),
        };
        let found = encoded.event_type.as_str();
        assert!(
            found == name,
            "{event:?}\n\nnames differ (- expected, + found):\n{}",
            difference(&[name], &[found])
        );
        let form = StoredForm::from(encoded);
        match codec.decode(form.stored()) {
            Ok(decoded) => assert!(
                decoded == event,
                "stored as {form:?}\n\nevents differ (- encoded, + decoded):\n{}",
                difference(&[event], &[decoded])
            ),
            Err(error) => panic!("{event:?}\nstored as {form:?}\n\n{error}\n"),
        }
    }
}
