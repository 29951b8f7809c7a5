//! The entity of these measurements, and the book of what was answered.
//!
//! Its state is a count and a digest of all its events, so a reply names exactly the events that it rests on.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use gesta::entity::{Context, Decider};
use gesta_core::{ErrorKind, EventStore, EventStoreExt};
use serde::{Deserialize, Serialize};

use crate::failure::{Failure, Result};

/// Count and digest of the events so far.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Tally {
    pub(crate) count: u64,
    pub(crate) digest: u64,
}

#[derive(Debug, Clone, Copy)]
pub(crate) enum Command {
    /// One event.
    Count { by: u32, n: u64 },
    /// None.
    Look,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) enum Event {
    #[serde(rename = "counted")]
    Counted { by: u32, n: u64 },
}

impl Decider for Tally {
    type Command = Command;
    type Event = Event;
    type Reply = Tally;
    type Rejection = std::convert::Infallible;

    fn decide(
        &self,
        command: &Command,
        _: &Context<'_>,
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
pub(crate) struct Book {
    entities: Vec<Page>,
    wrongs: Mutex<Vec<String>>,
}

#[derive(Debug, Default)]
struct Page {
    /// The highest count in any answer so far.
    seen: AtomicU64,
    /// Answers to commands with an event, then others.
    counted: Mutex<Vec<Tally>>,
    looked: Mutex<Vec<Tally>>,
}

/// What had been answered about an entity before a command was sent.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Before(u64);

impl Book {
    pub(crate) fn new(entities: usize) -> Arc<Self> {
        Arc::new(Self {
            entities: (0..entities).map(|_| Page::default()).collect(),
            wrongs: Mutex::default(),
        })
    }

    /// Before a command is sent.
    pub(crate) fn before(&self, entity: usize) -> Before {
        Before(self.entities[entity].seen.load(Ordering::SeqCst))
    }

    /// A command was answered.
    pub(crate) fn after(&self, entity: usize, before: Before, command: Command, reply: Tally) {
        let page = &self.entities[entity];
        page.seen.fetch_max(reply.count, Ordering::SeqCst);
        let (least, answers) = match command {
            Command::Count { .. } => (before.0 + 1, &page.counted),
            Command::Look => (before.0, &page.looked),
        };
        if reply.count < least {
            self.wrong(format!(
                "entity {entity}: stale: {command:?} was answered from event {}, although {} were acknowledged before",
                reply.count, before.0
            ));
        }
        answers.lock().expect("no panic under the lock").push(reply);
    }

    fn wrong(&self, what: String) {
        self.wrongs
            .lock()
            .expect("no panic under the lock")
            .push(what);
    }

    /// Compares with the store. Gives the number of acknowledged events and what is wrong.
    pub(crate) async fn check(&self, store: &dyn EventStore) -> Result<(u64, Vec<String>)> {
        let mut acknowledged = 0;
        for (entity, page) in self.entities.iter().enumerate() {
            let stream = format!("tally-{entity}");
            let stored = match store.read_whole_stream(&stream).await {
                Ok(events) => events,
                Err(error) if matches!(error.kind(), ErrorKind::StreamNotFound(_)) => vec![],
                Err(error) => return Err(error.into()),
            };
            let mut tally = Tally::default();
            let mut digests = vec![tally.digest];
            let mut once = HashMap::new();
            for event in &stored {
                let Event::Counted { by, n } = decoded(&event.data)?;
                tally.evolve(&Event::Counted { by, n });
                digests.push(tally.digest);
                if let Some(first) = once.insert((by, n), event.revision) {
                    self.wrong(format!(
                        "{stream}: the command {by}/{n} is stored twice, at {first} and {}",
                        event.revision
                    ));
                }
            }
            let found = |reply: &Tally| {
                usize::try_from(reply.count).is_ok_and(|at| digests.get(at) == Some(&reply.digest))
            };
            let mut counted = page
                .counted
                .lock()
                .expect("no panic under the lock")
                .clone();
            let looked = page.looked.lock().expect("no panic under the lock").clone();
            acknowledged += counted.len() as u64;
            for reply in counted.iter().chain(&looked).filter(|reply| !found(reply)) {
                self.wrong(format!(
                    "{stream}: an answer rests on events that are not stored: {reply:?}"
                ));
            }
            counted.sort_by_key(|reply| reply.count);
            for pair in counted
                .windows(2)
                .filter(|pair| pair[0].count == pair[1].count)
            {
                self.wrong(format!(
                    "{stream}: two commands got the same event {}",
                    pair[0].count
                ));
            }
        }
        let wrongs = std::mem::take(&mut *self.wrongs.lock().expect("no panic under the lock"));
        Ok((acknowledged, wrongs))
    }
}

pub(crate) fn decoded(data: &[u8]) -> Result<Event> {
    serde_json::from_slice::<Plain>(data)
        .map(|plain| Event::Counted {
            by: plain.by,
            n: plain.n,
        })
        .map_err(|error| Failure(format!("an event of a tally cannot be read: {error}")))
}

/// The content of an event.
#[derive(Deserialize)]
struct Plain {
    by: u32,
    n: u64,
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
        let book = Book::new(1);
        for count in 1..=3 {
            book.after(0, book.before(0), COUNT, after(count));
            book.after(0, book.before(0), Command::Look, after(count));
        }
        let (acknowledged, wrongs) = book.check(&*stored(3).await).await.unwrap();
        assert_eq!((acknowledged, wrongs), (3, vec![]));
    }

    #[tokio::test]
    async fn lost_doubled_and_stale_answers_are_found() {
        let book = Book::new(1);
        let early = book.before(0);
        book.after(0, early, COUNT, after(4));
        let (_, wrongs) = book.check(&*stored(3).await).await.unwrap();
        assert!(wrongs[0].contains("not stored"), "{wrongs:?}");

        let book = Book::new(1);
        let early = book.before(0);
        book.after(0, early, COUNT, after(2));
        book.after(0, early, COUNT, after(2));
        book.after(0, book.before(0), Command::Look, after(1));
        let (_, wrongs) = book.check(&*stored(3).await).await.unwrap();
        assert!(
            wrongs.iter().any(|wrong| wrong.contains("same event")),
            "{wrongs:?}"
        );
        assert!(
            wrongs.iter().any(|wrong| wrong.contains("stale")),
            "{wrongs:?}"
        );
    }
}
