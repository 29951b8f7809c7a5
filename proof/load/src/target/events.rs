//! What is appended to a target: numbered events whose numbers tell stream and revision, with contents of drawn sizes.
//!
//! The data of each event are `{"mark":"…","text":"…"}`; the mark is its id as 32 hexadecimal digits. A target shows
//! the marks of what it stores, and each tells which event it must be; nothing needs to be remembered per event. Data
//! that are too short for a mark have none; they are for targets that show ids.
//! Numbers: 28 bits of the worker, 22 of its stream, 12 of the revision: 62 bits.

use bytes::Bytes;
use uuid::Uuid;

use gesta_core::EventId;

use super::Event;
use crate::event_ids::Run;
use crate::random::Random;
use crate::sizes::{SMALLEST_BYTES, Sizes};

/// Length of a mark.
pub const MARK_BYTES: usize = 32;
const OPENING: &str = r#"{"mark":""#;
const MIDDLE: &str = r#"","text":""#;
const CLOSING: &str = r#""}"#;
const _: () = assert!(SMALLEST_BYTES == OPENING.len() + MARK_BYTES + MIDDLE.len() + CLOSING.len());
/// Contents are pieces of a text of this length beyond the largest event.
const TEXT_BYTES: usize = 1 << 20;

const REVISION_BITS: u32 = 12;
const STREAM_BITS: u32 = 22;
const WORKER_BITS: u32 = 28;

/// What the number of an event tells.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NumberOf {
    /// Worker and stream as one number.
    pub stream: u64,
    /// Revision in the stream.
    pub revision: u64,
}

impl NumberOf {
    /// The worker, and the number of the stream among that worker's.
    pub fn worker_and_stream(self) -> (u32, u64) {
        let worker = u32::try_from(self.stream >> STREAM_BITS).expect("28 bits");
        (worker, self.stream & ((1 << STREAM_BITS) - 1))
    }
}

/// Makes the events of a run; cheap to share.
#[derive(Debug)]
pub struct Events {
    run: Run,
    seed: u64,
    sizes: Sizes,
    text: Bytes,
    categories: u32,
}

impl Events {
    /// The events of a new run, in streams of so many categories (at least 1).
    #[must_use]
    pub fn new(sizes: Sizes, categories: u32, seed: u64) -> Self {
        let text = text(TEXT_BYTES + sizes.largest(), seed);
        Self {
            run: Run::random(),
            seed,
            sizes,
            text,
            categories: categories.max(1),
        }
    }

    /// Sizes of the events.
    #[must_use]
    pub fn sizes(&self) -> &Sizes {
        &self.sizes
    }

    /// The names of all streams begin with this.
    #[must_use]
    pub fn prefix(&self) -> String {
        format!("lab{}", self.run)
    }

    /// The stream of this number of a worker, whose own number is unique in the run: `category-id`.
    ///
    /// # Panics
    /// If there are 2^28 workers or the worker has used up its 4,194,304 streams.
    #[must_use]
    pub fn stream(&self, worker: u32, stream: u32) -> Stream<'_> {
        assert!(worker < 1 << WORKER_BITS && stream < 1 << STREAM_BITS);
        let number = (u64::from(worker) << STREAM_BITS) | u64::from(stream);
        Stream {
            events: self,
            number,
            name: self.stream_name(number),
        }
    }

    /// The name of a stream.
    #[must_use]
    pub fn stream_name(&self, number: u64) -> String {
        let category = (number >> STREAM_BITS) % u64::from(self.categories);
        // The id of a stream looks random, as those of entities do.
        let id = self.run.event_id(number << REVISION_BITS).0.as_u64_pair().1;
        format!("{}c{category}-{id:016x}", self.prefix())
    }

    /// What a mark tells; none if it is not of this run.
    #[must_use]
    pub fn number_of(&self, mark: &str) -> Option<NumberOf> {
        let id = EventId(Uuid::try_parse(mark).ok()?);
        let number = self.run.number_of(id)?;
        Some(NumberOf {
            stream: number >> REVISION_BITS,
            revision: number & ((1 << REVISION_BITS) - 1),
        })
    }

    /// Length of the data of an event.
    #[must_use]
    pub fn bytes_of(&self, of: NumberOf) -> usize {
        let number = (of.stream << REVISION_BITS) | of.revision;
        self.sizes.draw(&mut self.random(number))
    }

    /// The data of an event.
    #[must_use]
    pub fn data_of(&self, of: NumberOf) -> Bytes {
        self.event((of.stream << REVISION_BITS) | of.revision).data
    }

    fn random(&self, number: u64) -> Random {
        Random::fork(self.seed, number)
    }

    fn event(&self, number: u64) -> Event {
        let id = self.run.event_id(number).0;
        let mut random = self.random(number);
        let bytes = self.sizes.draw(&mut random);
        let from = random.below(TEXT_BYTES);
        let mut mark = [0; MARK_BYTES];
        let mark = id.as_simple().encode_lower(&mut mark).as_bytes();
        let (opening, middle, closing) =
            (OPENING.as_bytes(), MIDDLE.as_bytes(), CLOSING.as_bytes());
        let data = match bytes.checked_sub(SMALLEST_BYTES) {
            None => short_json(bytes, &self.text[from..from + bytes]),
            Some(room) => {
                let text = &self.text[from..from + room];
                [opening, mark, middle, text, closing].concat()
            }
        };
        let data = data.into();
        Event { id, data }
    }

    /// The mark in the data of an event; empty if there is none.
    #[must_use]
    pub fn mark_in(data: &[u8]) -> String {
        let data = data.strip_prefix(OPENING.as_bytes()).unwrap_or(data);
        let mark = data.get(..MARK_BYTES).unwrap_or_default();
        String::from_utf8_lossy(mark).into_owned()
    }
}

/// A stream that a worker fills.
#[derive(Debug)]
pub struct Stream<'a> {
    events: &'a Events,
    /// Worker and stream as one number.
    pub number: u64,
    /// Its name.
    pub name: String,
}

impl Stream<'_> {
    /// The events of these revisions (below 4,096).
    #[must_use]
    pub fn events(&self, revisions: std::ops::Range<u64>) -> Vec<Event> {
        assert!(revisions.end <= 1 << REVISION_BITS);
        let event = |revision| self.events.event((self.number << REVISION_BITS) | revision);
        revisions.map(event).collect()
    }
}

/// JSON of exactly so many bytes with a piece of this text, or a number if there is no room for text.
fn short_json(bytes: usize, text: &[u8]) -> Vec<u8> {
    match bytes.checked_sub(br#"{"p":""}"#.len()) {
        Some(room) => [br#"{"p":""#, &text[..room], br#""}"#].concat(),
        None => vec![b'7'; bytes],
    }
}

/// Text of records as services write them (lz4 takes about a third away). No character needs an escape in JSON.
fn text(bytes: usize, seed: u64) -> Bytes {
    let mut random = Random::fork(seed, 3);
    let mut out = String::with_capacity(bytes + 64);
    while out.len() < bytes {
        let (row, seat, by) = (random.below(40), random.below(60), random.next() >> 16);
        let (price, cents) = (random.below(90) + 10, random.below(100));
        out.push_str(&format!(
            "row:{row};seat:{seat};by:{by:012x};price:{price}.{cents:02};"
        ));
    }
    Bytes::from(out).slice(..bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_tells_its_stream_and_revision_and_is_json_of_the_drawn_size() {
        let new = || Events::new(Sizes::published(), 2, 7);
        let (events, other) = (new(), new());
        let stream = events.stream(17, 5);
        for (revision, event) in (10..60).zip(stream.events(10..60)) {
            let value: serde_json::Value = serde_json::from_slice(&event.data).unwrap();
            assert_eq!(value["mark"], event.id.as_simple().to_string());
            let mark = Events::mark_in(&event.data);
            let of = events.number_of(&mark).unwrap();
            assert_eq!((of.stream, of.revision), (stream.number, revision));
            assert_eq!(of.worker_and_stream(), (17, 5));
            assert_eq!(events.stream_name(of.stream), stream.name);
            assert_eq!(events.bytes_of(of), event.data.len());
            assert_eq!(other.number_of(&mark), None);
        }
        assert_eq!(Events::mark_in(b"{}"), "");
        let category = |number| {
            let name = events.stream(number, 0).name;
            name.split_once('-').unwrap().0.to_owned()
        };
        assert_eq!(category(0), category(2));
        assert_ne!(category(0), category(1));
        for bytes in [0, 1, 7, 8, 9, 36, 50, 57] {
            let events = Events::new(Sizes::exactly(bytes).unwrap(), 1, 7);
            for event in events.stream(17, 0).events(0..20) {
                let json = serde_json::from_slice::<serde_json::Value>(&event.data);
                assert_eq!(event.data.len(), bytes, "{event:?}");
                assert!(json.is_ok() || bytes == 0, "{event:?}");
            }
        }
    }
}
