//! The test kit of users, tested: what it lets pass, what it refuses, and what it then says.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "test code: a panic is how a test fails"
)]

use std::panic::{AssertUnwindSafe, PanicHookInfo, catch_unwind, set_hook, take_hook};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use gesta_core::{ContentType, Timestamp};
use gesta_entity::scenario::{BEGINNING, StoredForm, round_trips};
use gesta_entity::{
    CodecError, Context, Decider, Encoded, EventCodec, JsonEvents, Scenario, Stored,
};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

/// A parking meter: knows time, its id, several events at once, rejections, and nothing to do.
#[derive(Debug, Default)]
struct Meter {
    paid_until: Timestamp,
    coins: u64,
}

#[derive(Debug, Clone, PartialEq)]
enum Command {
    Insert { coins: u64 },
    Empty,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Event {
    CoinInserted { meter: String, until: i64 },
    Emptied(u64),
}

#[derive(Debug, Clone, PartialEq)]
enum Rejection {
    NoCoins,
    StillPaid { until: Timestamp },
}

const MINUTE: Duration = Duration::from_secs(60);
const MINUTE_MICROS: i64 = 60_000_000;

impl Decider for Meter {
    type Command = Command;
    type Event = Event;
    type Reply = u64;
    type Rejection = Rejection;

    fn decide(&self, command: &Command, context: &Context<'_>) -> Result<Vec<Event>, Rejection> {
        let paid_until = self.paid_until.max(context.now());
        match command {
            Command::Insert { coins: 0 } => Err(Rejection::NoCoins),
            Command::Insert { coins } => Ok((1..=*coins)
                .map(|coin| Event::CoinInserted {
                    meter: context.id().to_owned(),
                    until: paid_until.0 + i64::try_from(coin).unwrap() * MINUTE_MICROS,
                })
                .collect()),
            Command::Empty if self.paid_until > context.now() => Err(Rejection::StillPaid {
                until: self.paid_until,
            }),
            Command::Empty if self.coins == 0 => Ok(vec![]),
            Command::Empty => Ok(vec![Event::Emptied(self.coins)]),
        }
    }

    fn evolve(&mut self, event: &Event) {
        match event {
            Event::CoinInserted { until, .. } => {
                self.paid_until = Timestamp(*until);
                self.coins += 1;
            }
            Event::Emptied(_) => self.coins = 0,
        }
    }

    fn reply(&self, _: &Command) -> u64 {
        self.coins
    }
}

fn inserted(minutes: i64) -> Event {
    Event::CoinInserted {
        meter: "m-1".into(),
        until: BEGINNING.0 + minutes * MINUTE_MICROS,
    }
}

fn meter() -> Scenario<Meter> {
    Scenario::of("m-1")
}

/// What the kit says when it fails.
#[track_caller]
fn failure(test: impl FnOnce()) -> String {
    let payload = catch_unwind(AssertUnwindSafe(test)).expect_err("must fail");
    payload
        .downcast_ref::<String>()
        .expect("a message")
        .to_owned()
}

#[test]
fn a_story_of_several_steps_passes() {
    meter()
        .when(Command::Empty)
        .then_nothing()
        .when(Command::Insert { coins: 2 })
        .then([inserted(1), inserted(2)])
        .then_reply(2)
        .advance(MINUTE)
        .when(Command::Empty)
        .then_rejected(Rejection::StillPaid {
            until: Timestamp(BEGINNING.0 + 2 * MINUTE_MICROS),
        })
        .then_state(|meter| assert_eq!(meter.coins, 2))
        .advance(MINUTE)
        .given([inserted(1)])
        .when(Command::Empty)
        .then([Event::Emptied(3)])
        .then_reply(0)
        .when(Command::Empty)
        .then_nothing()
        .when(Command::Insert { coins: 0 })
        .then_rejected(Rejection::NoCoins);
}

#[test]
fn time_is_what_the_scenario_says() {
    let now = Timestamp::parse("2026-11-21T09:30:00Z").expect("valid");
    meter()
        .at(now)
        .advance(MINUTE)
        .when(Command::Insert { coins: 1 })
        .then([Event::CoinInserted {
            meter: "m-1".into(),
            until: now.0 + 2 * MINUTE_MICROS,
        }])
        .at(now)
        .advance(Duration::MAX)
        .when(Command::Empty)
        .then([Event::Emptied(1)]);
}

#[test]
fn other_events_fail_with_what_was_given_and_the_difference() {
    let message = failure(|| {
        meter()
            .given([inserted(1)])
            .when(Command::Insert { coins: 3 })
            .then([inserted(2), inserted(7), inserted(4)]);
    });
    let expected = format!(
        "Meter \"m-1\"
  given {:?}
  when Insert {{ coins: 3 }}

events differ (- expected, + found):
    {:?}
  - {:?}
  + {:?}
    {:?}
",
        inserted(1),
        inserted(2),
        inserted(7),
        inserted(3),
        inserted(4)
    );
    assert_eq!(message, expected);
}

#[test]
fn missing_and_surplus_events_fail() {
    let message = failure(|| {
        meter().when(Command::Insert { coins: 1 }).then_nothing();
    });
    assert!(
        message.contains(&format!("  + {:?}", inserted(1))),
        "{message}"
    );
    let message = failure(|| {
        meter().when(Command::Empty).then([inserted(1)]);
    });
    assert!(
        message.contains(&format!("  - {:?}", inserted(1))),
        "{message}"
    );
    let message = failure(|| {
        meter()
            .when(Command::Insert { coins: 2 })
            .then([inserted(1), inserted(1), inserted(2)]);
    });
    assert!(
        message.contains(&format!("  - {:?}\n", inserted(1))),
        "{message}"
    );
    assert!(!message.contains("  +"), "{message}");
}

#[test]
fn another_reply_fails() {
    let message = failure(|| {
        meter().when(Command::Insert { coins: 2 }).then_reply(3);
    });
    assert!(message.contains("replies differ"), "{message}");
    assert!(message.contains("  - 3\n  + 2\n"), "{message}");
}

#[test]
fn rejections_are_compared() {
    let message = failure(|| {
        meter()
            .when(Command::Insert { coins: 0 })
            .then_rejected(Rejection::StillPaid { until: BEGINNING });
    });
    assert!(message.contains("rejections differ"), "{message}");
    assert!(message.contains("  + NoCoins\n"), "{message}");
    let message = failure(|| {
        meter()
            .when(Command::Insert { coins: 1 })
            .then_rejected(Rejection::NoCoins);
    });
    assert!(message.contains("accepted with"), "{message}");
    let message = failure(|| {
        meter()
            .when(Command::Empty)
            .then_rejected(Rejection::NoCoins);
    });
    assert!(message.contains("no events"), "{message}");
}

/// A command that was rejected by accident must not go unseen because a later step happens to pass.
#[test]
fn rejections_that_nobody_expects_fail_at_the_next_step() {
    let rejected = || meter().when(Command::Insert { coins: 0 });
    let steps: [fn(gesta_entity::scenario::Decided<Meter>); 8] = [
        |decided| drop(decided.when(Command::Empty)),
        |decided| drop(decided.given([])),
        |decided| drop(decided.at(BEGINNING)),
        |decided| drop(decided.advance(MINUTE)),
        |decided| drop(decided.then_state(|_| ())),
        |decided| drop(decided.then_reply(0)),
        |decided| drop(decided.then_nothing()),
        |decided| drop(decided.then([])),
    ];
    for step in steps {
        let message = failure(|| step(rejected()));
        assert!(
            message.contains("it was rejected:\n    NoCoins"),
            "{message}"
        );
    }
}

#[test]
fn failures_point_to_the_line_of_the_test() {
    let place = Arc::new(Mutex::new(None));
    let seen = Arc::clone(&place);
    // Other tests of this file fail on purpose at the same time: only this thread counts.
    let this = std::thread::current().id();
    let usual: Arc<dyn Fn(&PanicHookInfo<'_>) + Send + Sync> = Arc::from(take_hook());
    let others = Arc::clone(&usual);
    set_hook(Box::new(move |info| {
        if std::thread::current().id() == this {
            *seen.lock().unwrap() = info.location().map(|at| (at.file().to_owned(), at.line()));
        } else {
            others(info);
        }
    }));
    let expected = line!() + 1;
    failure(|| drop(meter().when(Command::Empty).then_reply(1)));
    let found = place.lock().unwrap().take();
    let expected_in_round_trips = line!() + 1;
    failure(|| round_trips(&JsonEvents::<Event>::new(), [("x", Event::Emptied(1))]));
    let found_in_round_trips = place.lock().unwrap().take();
    set_hook(Box::new(move |info| usual(info)));
    let here = |line| Some((file!().to_owned(), line));
    assert_eq!(found, here(expected));
    assert_eq!(found_in_round_trips, here(expected_in_round_trips));
}

fn upcasting() -> JsonEvents<Event> {
    JsonEvents::<Event>::new()
        .upcast("coin", "coin-inserted", |event: Value| {
            let meter = event["meter"].as_str().ok_or("has no meter")?;
            Ok(json!({ "meter": meter, "until": 0 }))
        })
        .build()
        .expect("valid")
}

#[test]
fn stored_forms_are_decoded_and_upcast() {
    meter()
        .given_stored(
            &upcasting(),
            [
                ("coin", r#"{"meter":"m-1"}"#),
                ("coin-inserted", r#"{"meter":"m-1","until":5}"#),
            ],
        )
        .when(Command::Empty)
        .then([Event::Emptied(2)]);
}

#[test]
fn stored_forms_that_cannot_be_read_fail() {
    let message = failure(|| drop(meter().given_stored(&upcasting(), [("coin", "{}")])));
    assert!(message.contains("given \"coin\" {}"), "{message}");
    assert!(message.contains("has no meter"), "{message}");
    let message = failure(|| drop(meter().given_stored(&upcasting(), [("gone", "{}")])));
    assert!(message.contains("\"gone\" is not known"), "{message}");
}

#[test]
fn texts_are_json_and_bytes_are_not() {
    let binary: [StoredForm; 5] = [
        ("a", [1_u8, 2]).into(),
        ("a", &[1_u8, 2]).into(),
        ("a", &[1_u8, 2][..]).into(),
        ("a", vec![1_u8, 2]).into(),
        ("a", bytes::Bytes::from_static(&[1, 2])).into(),
    ];
    for form in binary {
        assert_eq!(form.content_type, ContentType::Binary);
        assert_eq!(&form.data[..], [1, 2]);
        assert_eq!(format!("{form:?}"), "\"a\" 0x0102");
    }
    let long = StoredForm::from(("a", vec![7; 65]));
    let shown = format!("\"a\" 0x{}... (65 bytes)", "07".repeat(64));
    assert_eq!(format!("{long:?}"), shown);
    for form in [StoredForm::from(("a", "1")), ("a", "1".to_owned()).into()] {
        assert_eq!(form.content_type, ContentType::Json);
        assert_eq!(form.stored().data, "1");
    }
}

#[test]
fn round_trips_pass_and_name_what_is_wrong() {
    let codec = JsonEvents::<Event>::new();
    round_trips(
        &codec,
        [
            ("coin-inserted", inserted(1)),
            ("emptied", Event::Emptied(1)),
        ],
    );
    let message = failure(|| round_trips(&codec, [("was-emptied", Event::Emptied(1))]));
    assert!(
        message.contains("  - \"was-emptied\"\n  + \"emptied\""),
        "{message}"
    );
    let message = failure(|| round_trips(&Broken::Forgets, [("emptied", Event::Emptied(1))]));
    assert!(
        message.contains("  - Emptied(1)\n  + Emptied(0)"),
        "{message}"
    );
    let message = failure(|| round_trips(&Broken::CannotRead, [("emptied", Event::Emptied(1))]));
    assert!(message.contains("not known"), "{message}");
    let message = failure(|| round_trips(&Broken::CannotWrite, [("emptied", Event::Emptied(1))]));
    assert!(message.contains("cannot be written: no"), "{message}");
}

/// Codecs that a test must not let pass.
#[derive(PartialEq)]
enum Broken {
    Forgets,
    CannotRead,
    CannotWrite,
}

impl EventCodec<Event> for Broken {
    fn encode(&self, event: &Event) -> Result<Encoded, CodecError> {
        match self {
            Broken::CannotWrite => Err(CodecError::Unwritable("no".into())),
            Broken::Forgets | Broken::CannotRead => JsonEvents::new().encode(event),
        }
    }

    fn decode(&self, stored: Stored<'_>) -> Result<Event, CodecError> {
        match self {
            Broken::Forgets => Ok(Event::Emptied(0)),
            Broken::CannotRead | Broken::CannotWrite => {
                Err(CodecError::UnknownType(stored.event_type.to_owned()))
            }
        }
    }
}
