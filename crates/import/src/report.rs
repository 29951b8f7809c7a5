//! What an import tells about its work.

use std::collections::BTreeMap;

use gesta_core::Timestamp;
use serde::Serialize;

use crate::event::SourceEvent;

/// The most examples of one kind that a report holds.
const SAMPLES_MAX: usize = 10;

/// An event that could not be imported, and why.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Sample {
    /// The stream, in the source's words.
    pub key: String,
    /// The number of the event in its stream.
    pub sequence: u64,
    /// The place of the event in the source.
    pub place: String,
    /// Why it cannot be imported.
    pub why: String,
}

/// How far an import has come.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize)]
pub struct Report {
    /// Events that were read, also those that were left out.
    pub read: u64,
    /// Events that were stored (in a dry run: that would be stored).
    pub stored: u64,
    /// Events that the target had already.
    pub already_stored: u64,
    /// Events that were left out, by the reason.
    pub left_out: BTreeMap<String, u64>,
    /// Events that cannot be events of this store.
    pub unmappable: u64,
    /// The first of them.
    pub unmappable_samples: Vec<Sample>,
    /// Numbers that are missing within streams or before their first event: the source has deleted these events. Of
    /// lines nobody knows that; what comes later of these numbers is refused.
    pub missing_numbers: u64,
    /// Streams of which the source has no first event (any more).
    pub streams_without_beginning: u64,
    /// Events that the source committed after later ones had been read. They stand in their order in their streams.
    pub late: u64,
    /// Appends that came to stand before earlier ones, because those had to be sent again.
    pub displaced: u64,
    /// Streams that were met.
    pub streams: u64,
    /// Tags of the events that were stored.
    pub tags: u64,
    /// Bytes of the payloads that were stored, before they were turned.
    pub bytes: u64,
    /// Snapshots that the source has. They are never imported.
    pub snapshots: Option<u64>,
    /// Events that the source held when the import began, after the place where it began.
    pub in_source: Option<u64>,
    /// The place in the source up to which everything is imported.
    pub place: String,
    /// When the first event was written that has been stored.
    pub first_time: Option<String>,
    /// When the last one was written.
    pub last_time: Option<String>,
    #[serde(skip)]
    pub(crate) times: Option<(Timestamp, Timestamp)>,
}

impl Report {
    /// Counts an event that is left out.
    pub(crate) fn leave_out(&mut self, why: &str) {
        match self.left_out.get_mut(why) {
            Some(count) => *count += 1,
            None => drop(self.left_out.insert(why.to_owned(), 1)),
        }
    }

    /// Counts an event that cannot be imported.
    pub(crate) fn cannot(&mut self, event: &SourceEvent, why: String) {
        self.unmappable += 1;
        if self.unmappable_samples.len() < SAMPLES_MAX {
            self.unmappable_samples.push(Sample {
                key: event.key.to_string(),
                sequence: event.sequence,
                place: event.place.to_string(),
                why,
            });
        }
    }

    /// Counts what an event that is imported brings.
    pub(crate) fn take(&mut self, event: &SourceEvent) {
        self.tags += event.tags.len() as u64;
        self.bytes += event.data.len() as u64;
        if let Some(time) = event.time {
            let (first, last) = self.times.unwrap_or((time, time));
            self.times = Some((first.min(time), last.max(time)));
        }
    }

    /// Returns the report with the times as texts.
    #[must_use]
    pub fn finished(mut self) -> Self {
        if let Some((first, last)) = self.times {
            self.first_time = Some(first.to_string());
            self.last_time = Some(last.to_string());
        }
        self
    }

    /// Returns all events that were left out.
    #[must_use]
    pub fn left_out_in_all(&self) -> u64 {
        self.left_out.values().sum()
    }
}
