//! The entity of these measurements, and what was answered.
//!
//! Its state is a count and a digest of all its events, so a reply names exactly the events that it rests on.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use gesta::entity::Decider;
use gesta_core::{ErrorKind, EventStore, EventStoreExt, RecordedEvent};
use gesta_kit::history::Ticks;
use gesta_kit::judge::entities::{Reply, States};
use gesta_kit::verdict::{Kind, Verdict};
use serde::{Deserialize, Serialize};

use gesta_report::failure::{Context, Result};

/// Count and digest of the events so far.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Tally {
    /// Commands that were carried out.
    pub count: u64,
    /// Of all of them, in their order.
    pub digest: u64,
}

/// What is asked.
#[derive(Debug, Clone, Copy)]
pub enum Command {
    /// One event.
    Count {
        /// Which entity.
        by: u32,
        /// The number of the command.
        n: u64,
    },
    /// None.
    Look,
}

/// What is stored.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub enum Event {
    /// A command was counted.
    #[serde(rename = "counted")]
    Counted {
        /// Which entity.
        by: u32,
        /// The number of the command.
        n: u64,
    },
}

impl Decider for Tally {
    type Command = Command;
    type Event = Event;
    type Reply = Tally;
    type Rejection = std::convert::Infallible;

    fn decide(
        &self,
        command: &Command,
        _: &gesta::entity::Context<'_>,
    ) -> std::result::Result<Vec<Event>, Self::Rejection> {
        Ok(match *command {
            Command::Count { by, n } => vec![Event::Counted { by, n }],
            Command::Look => vec![],
        })
    }

    fn evolve(&mut self, event: &Event) {
        let Event::Counted { by, n } = *event;
        self.count += 1;
        let mixed = self.digest ^ (u64::from(by) << 40) ^ n;
        self.digest = mixed.wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29) ^ self.count;
    }

    fn reply(&self, _: &Command) -> Tally {
        *self
    }
}

/// What was answered, to be compared with what is stored.
#[derive(Debug)]
pub struct AnswersGiven {
    /// What the streams of the entities begin with; their numbers follow.
    prefix: String,
    ticks: Ticks,
    /// By entity.
    replies: Vec<Mutex<Vec<Reply<Tally>>>>,
}

/// When a command was sent.
#[derive(Debug, Clone, Copy)]
pub struct Before(u64);

impl AnswersGiven {
    /// Nothing was answered yet.
    pub fn new(entities: usize) -> Arc<Self> {
        Self::of("", entities)
    }

    /// Of entities whose ids begin so, and then have a number.
    pub fn of(prefix: &str, entities: usize) -> Arc<Self> {
        Arc::new(Self {
            prefix: format!("tally-{prefix}"),
            ticks: Ticks::default(),
            replies: (0..entities).map(|_| Mutex::default()).collect(),
        })
    }

    /// Before a command is sent.
    pub fn before(&self, _entity: usize) -> Before {
        Before(self.ticks.next())
    }

    /// A command was answered.
    pub fn after(&self, entity: usize, before: Before, command: Command, reply: Tally) {
        let reply = Reply {
            began: before.0,
            ended: self.ticks.next(),
            runtime: None,
            state: reply,
            own: u64::from(matches!(command, Command::Count { .. })),
        };
        self.replies[entity].lock().unwrap().push(reply);
    }

    /// Compares with the store. Gives the number of acknowledged events and what is wrong.
    pub async fn check(&self, store: &dyn EventStore) -> Result<(u64, Vec<String>)> {
        let (mut acknowledged, mut verdict) = (0, Verdict::default());
        for (entity, replies) in self.replies.iter().enumerate() {
            let stream = format!("{}{entity}", self.prefix);
            let stored = read_stream(store, &stream).await?;
            let mut tally = Tally::default();
            let mut states = States::new(tally);
            let mut once = HashMap::new();
            for event in &stored {
                let Event::Counted { by, n } = decoded(&event.data)?;
                tally.evolve(&Event::Counted { by, n });
                states.push(tally, None);
                if let Some(first) = once.insert((by, n), event.revision) {
                    let again = event.revision;
                    verdict.add(Kind::StoredTwice, 1, || {
                        format!("{stream}: the command {by}/{n}, at {first} and {again}")
                    });
                }
            }
            let replies = replies.lock().unwrap().clone();
            let counts = replies.iter().filter(|reply| reply.own > 0);
            acknowledged += counts.count() as u64;
            let tell = |number: usize| format!("{:?}", replies[number]);
            states.judge(&stream, &replies, tell, &mut verdict);
        }
        Ok((acknowledged, verdict.findings()))
    }
}

/// The events of a stream; none if it is not there.
pub async fn read_stream(store: &dyn EventStore, stream: &str) -> Result<Vec<RecordedEvent>> {
    match store.read_whole_stream(stream).await {
        Err(error) if matches!(error.kind(), ErrorKind::StreamNotFound(_)) => Ok(vec![]),
        read => Ok(read?),
    }
}

/// Reads an event as it is stored.
pub fn decoded(data: &[u8]) -> Result<Event> {
    /// The content of an event.
    #[derive(Deserialize)]
    struct Plain {
        by: u32,
        n: u64,
    }
    let Plain { by, n } =
        serde_json::from_slice(data).context("an event of a tally cannot be read")?;
    Ok(Event::Counted { by, n })
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn stored(count: u64) -> Arc<dyn EventStore> {
        let store = Arc::new(gesta_memory::MemoryStore::new());
        for n in 0..count {
            let event_type = gesta_core::EventType::new("counted").unwrap();
            let event = gesta_core::EventData::json(event_type, format!("{{\"by\":1,\"n\":{n}}}"));
            store
                .append_to("tally-0", gesta_core::ExpectedRevision::Any, vec![event])
                .await
                .unwrap();
        }
        store
    }

    fn after(count: u64) -> Tally {
        let mut tally = Tally::default();
        (0..count).for_each(|n| tally.evolve(&Event::Counted { by: 1, n }));
        tally
    }

    const COUNT: Command = Command::Count { by: 1, n: 0 };

    #[tokio::test]
    async fn right_answers_pass() {
        let given = AnswersGiven::new(1);
        for count in 1..=3 {
            given.after(0, given.before(0), COUNT, after(count));
            given.after(0, given.before(0), Command::Look, after(count));
        }
        let (acknowledged, wrongs) = given.check(&*stored(3).await).await.unwrap();
        assert_eq!((acknowledged, wrongs), (3, vec![]));
    }

    #[tokio::test]
    async fn lost_doubled_and_stale_answers_are_found() {
        let given = AnswersGiven::new(1);
        let early = given.before(0);
        given.after(0, early, COUNT, after(4));
        let (_, wrongs) = given.check(&*stored(3).await).await.unwrap();
        assert_eq!(wrongs[0], "1 answers were never true", "{wrongs:?}");

        let given = AnswersGiven::new(1);
        let early = given.before(0);
        given.after(0, early, COUNT, after(2));
        given.after(0, early, COUNT, after(2));
        given.after(0, given.before(0), Command::Look, after(1));
        let (_, wrongs) = given.check(&*stored(3).await).await.unwrap();
        for said in ["the change of another", "stale"] {
            let is_told = wrongs.iter().any(|wrong| wrong.contains(said));
            assert!(is_told, "{said}: {wrongs:?}");
        }
        // Nobody had asked for the second event when it was answered.
        let given = AnswersGiven::new(1);
        given.after(0, given.before(0), Command::Look, after(2));
        given.after(0, given.before(0), COUNT, after(2));
        let (_, wrongs) = given.check(&*stored(3).await).await.unwrap();
        assert_eq!(
            wrongs[0], "1 answers came before what they rest on",
            "{wrongs:?}"
        );
    }
}
