//! The entity under test: its state names exactly the events that it is made of, so every reply tells what it rests on.

use gesta_core::EventData;
use gesta_entity::{Context, Decider, EntityType, EventCodec, JsonEvents, Snapshots};
use serde::{Deserialize, Serialize};

/// A stream up to some event: how many there are, and a digest of their numbers in order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Hash, Serialize, Deserialize)]
pub(crate) struct Seen {
    pub(crate) length: u64,
    pub(crate) digest: u64,
}

impl Seen {
    /// With one more event.
    pub(crate) fn and(self, number: u64) -> Self {
        let mixed = (self.digest ^ number).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        Self {
            length: self.length + 1,
            digest: (mixed ^ (mixed >> 32)).wrapping_add(1),
        }
    }
}

/// The state.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(crate) struct Chain {
    pub(crate) seen: Seen,
}

/// Events have numbers that no two of a history share.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Command {
    /// Stores so many events, numbered from the first on.
    Store {
        first: u64,
        count: u64,
    },
    /// The same if the digest is even; rejected otherwise.
    StoreIfEven {
        first: u64,
        count: u64,
    },
    /// No events.
    Look,
    Reject,
}

impl Command {
    /// What makes attempts with one key the same command: not the numbers, which tell attempts from each other.
    pub(crate) fn kind(self) -> u8 {
        match self {
            Command::Store { .. } => 0,
            Command::StoreIfEven { .. } => 1,
            Command::Look => 2,
            Command::Reject => 3,
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Event {
    /// Decided when this was all that had been stored.
    #[serde(rename = "decided.v1")]
    Decided { number: u64, upon: Seen },
    /// By somebody who knows nothing of entities.
    #[serde(rename = "foreign.v1")]
    Foreign { number: u64 },
}

impl Event {
    pub(crate) fn number(self) -> u64 {
        match self {
            Event::Decided { number, .. } | Event::Foreign { number } => number,
        }
    }
}

impl Decider for Chain {
    type Command = Command;
    type Event = Event;
    type Reply = Seen;
    type Rejection = Seen;

    fn decide(&self, command: &Command, _: &Context<'_>) -> Result<Vec<Event>, Seen> {
        match *command {
            Command::StoreIfEven { .. } if self.seen.digest % 2 == 1 => Err(self.seen),
            Command::Store { first, count } | Command::StoreIfEven { first, count } => {
                let mut upon = self.seen;
                let numbers = first..first + count;
                let events = numbers.map(|number| {
                    let event = Event::Decided { number, upon };
                    upon = upon.and(number);
                    event
                });
                Ok(events.collect())
            }
            Command::Look => Ok(Vec::new()),
            Command::Reject => Err(self.seen),
        }
    }

    fn evolve(&mut self, event: &Event) {
        self.seen = self.seen.and(event.number());
    }

    fn reply(&self, _: &Command) -> Seen {
        self.seen
    }
}

/// How chains are kept; a snapshot every so many events, or none.
pub(crate) fn chain_type(snapshot_every: u64) -> EntityType<Chain> {
    let chains = EntityType::new("chain", JsonEvents::<Event>::new())
        .expect("valid")
        .idempotent_replies_by(|command: &Command| vec![command.kind()]);
    match snapshot_every {
        0 => chains,
        every => chains.snapshots(Snapshots::json(1).every(every)),
    }
}

/// The stream of an entity.
pub(crate) fn stream_name(entity: usize) -> String {
    format!("chain-{entity}")
}

/// An event of somebody else.
pub(crate) fn foreign_event(number: u64) -> EventData {
    let encoded = JsonEvents::<Event>::new()
        .encode(&Event::Foreign { number })
        .expect("has a form");
    EventData {
        content_type: encoded.content_type,
        ..EventData::json(encoded.event_type, encoded.data)
    }
}

/// A stored event.
pub(crate) fn decode(event: &gesta_core::RecordedEvent) -> Event {
    let stored = gesta_entity::Stored {
        event_type: event.event_type.as_str(),
        content_type: event.content_type,
        data: &event.data,
    };
    JsonEvents::<Event>::new().decode(stored).expect("readable")
}
