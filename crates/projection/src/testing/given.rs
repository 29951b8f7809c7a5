//! Views without a database: given events, then rows.

use std::collections::{BTreeMap, HashMap};

use gesta_core::{
    ContentType, EventId, EventType, LogId, Position, RecordedEvent, Revision, StreamId, Tags,
    Timestamp,
};

use crate::error::ApplyError;
use crate::view::View;

/// Events as a store would have them: revisions count for each stream, positions for all.
///
/// ```
/// use gesta_projection::testing::History;
/// let history = History::new().json("show-7", "reserved", "{}").json("show-7", "reserved", "{}");
/// assert_eq!(history.events()[1].revision.0, 1);
/// ```
#[derive(Clone, Debug, Default)]
pub struct History {
    events: Vec<RecordedEvent>,
    revisions: HashMap<StreamId, u64>,
}

impl History {
    /// Makes a history without events.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds an event with JSON data.
    ///
    /// # Panics
    /// If the name of the stream or of the type is not valid: this is for tests.
    #[must_use]
    #[expect(
        clippy::expect_used,
        reason = "for tests, in which a wrong name is a mistake of the test"
    )]
    pub fn json(mut self, stream: &str, event_type: &str, data: impl Into<String>) -> Self {
        let stream = StreamId::new(stream).expect("a valid name of a stream");
        let event_type = EventType::new(event_type).expect("a valid type");
        let next = self.revisions.entry(stream.clone()).or_insert(0);
        let position = u64::try_from(self.events.len()).unwrap_or(u64::MAX) + 1;
        self.events.push(RecordedEvent {
            stream,
            revision: Revision(*next),
            log: LogId(0),
            position: Position(position),
            id: EventId::random(),
            event_type,
            created: Timestamp(i64::try_from(position).unwrap_or(i64::MAX)),
            content_type: ContentType::Json,
            data: data.into().into(),
            metadata: Vec::new().into(),
            tags: Tags::NONE,
        });
        *next += 1;
        self
    }

    /// Returns the events.
    #[must_use]
    pub fn events(&self) -> &[RecordedEvent] {
        &self.events
    }
}

/// The event that a view refused.
#[derive(Debug)]
pub struct Refused {
    /// Number of the event, from 0.
    pub event: usize,
    /// The error.
    pub error: ApplyError,
}

/// A view and the events that it was given.
#[derive(Debug)]
pub struct Given<V: View> {
    view: V,
    events: Vec<RecordedEvent>,
}

impl<V: View> Given<V> {
    /// Gives events to a view. Those that its filter does not let pass are left out.
    #[must_use]
    pub fn events(view: V, events: &[RecordedEvent]) -> Self {
        let filter = view.filter();
        let events = events.iter().filter(|event| filter.matches(event));
        Self {
            events: events.cloned().collect(),
            view,
        }
    }

    /// Returns the rows by key.
    ///
    /// # Errors
    /// The first event that the view refuses.
    pub fn rows(&self) -> Result<BTreeMap<V::Key, V::Row>, Refused> {
        let mut rows = BTreeMap::new();
        for (n, event) in self.events.iter().enumerate() {
            let Some(key) = self.view.key(event) else {
                continue;
            };
            let mut row = rows.remove(&key);
            self.view
                .evolve(&mut row, event)
                .map_err(|error| Refused { event: n, error })?;
            if let Some(row) = row {
                rows.insert(key, row);
            }
        }
        Ok(rows)
    }
}
