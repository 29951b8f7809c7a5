//! What identifies the last event that was read from a journal whose numbers can be given out again.
//!
//! Why: a database that was restored, or has failed over and lost commits, gives the lost numbers to other events. An
//! import that went on after its place would pass them over. So a checkpoint holds which event stood at its place, and
//! that is looked for when the source is opened again. Not here: how it is looked for.

use std::sync::Arc;

use gesta_core::{Error, ErrorKind};
use xxhash_rust::xxh3::xxh3_64;

use super::postgres::Pg;
use crate::event::{Place, SourceEvent};

/// The event at a place.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Mark {
    pub(super) place: Place,
    sequence: u64,
    /// The timeline of the server that had it; `None` if that is not known.
    timeline: Option<String>,
    /// What tells the event from others of its stream and number; `None` if nothing does, or in marks of earlier
    /// versions.
    own: Option<String>,
    key: Arc<str>,
}

impl Mark {
    /// Makes the mark of an event.
    pub(super) fn of(event: &SourceEvent, pg: &Pg) -> Self {
        Self {
            place: event.place,
            sequence: event.sequence,
            timeline: pg.timeline().map(str::to_owned),
            own: own(event),
            key: Arc::clone(&event.key),
        }
    }

    /// Reads a mark; `None` for what is none.
    pub(super) fn parse(text: &str) -> Option<Self> {
        let mut parts = text.splitn(4, ' ');
        let (place, sequence) = (parts.next()?.parse().ok()?, parts.next()?.parse().ok()?);
        let of_server = parts.next()?;
        let (timeline, own) = match of_server.split_once('/') {
            Some((timeline, own)) => (timeline, Some(own.to_owned())),
            None => (of_server, None),
        };
        Some(Self {
            place,
            sequence,
            timeline: (timeline != "-").then(|| timeline.to_owned()),
            own,
            key: parts.next()?.into(),
        })
    }

    /// Writes the mark down.
    pub(super) fn text(&self) -> String {
        let timeline = self.timeline.as_deref().unwrap_or("-");
        let own = self.own.as_ref().map(|own| format!("/{own}"));
        let own = own.unwrap_or_default();
        format!(
            "{} {} {timeline}{own} {}",
            self.place, self.sequence, self.key
        )
    }

    /// Refuses a source that has another event at the place, or nothing although it has lost what it had: its numbers
    /// went back (`is_beyond`), or it was restored or has failed over since. An event that was deleted tells nothing.
    ///
    /// # Errors
    /// `Unsupported` if numbers may have been given out again.
    pub(super) fn compare(
        &self,
        found: Option<&SourceEvent>,
        pg: &Pg,
        is_beyond: bool,
    ) -> gesta_core::Result<()> {
        let timelines = self.timeline.as_deref().zip(pg.timeline());
        let is_later = timelines.is_some_and(|(then, now)| then != now);
        let is_same = |event: &SourceEvent| {
            let owns = self.own.clone().zip(own(event));
            owns.is_none_or(|(then, now)| then == now)
        };
        let (why, cure) = match found {
            Some(event) if event.key == self.key && event.sequence == self.sequence => {
                if is_same(event) {
                    return Ok(());
                }
                ("has another event of this stream and number", NEW_TARGET)
            }
            Some(_) => ("has another event", NEW_NAME),
            None if is_beyond => ("has given out no number so great any more", NEW_NAME),
            None if is_later => (
                "has failed over or was restored since, and has no event",
                NEW_NAME,
            ),
            None => return Ok(()),
        };
        let (key, sequence, place) = (&self.key, self.sequence, self.place);
        Err(Error::new(ErrorKind::Unsupported(format!(
            "the source {why} at place {place}, up to which was imported ({key:?} number {sequence}): it has lost events, and \
             gives their numbers to others; {cure}"
        ))))
    }
}

const NEW_NAME: &str = "give this import a name of its own (--name), which reads everything again and stores what is missing";
/// An import of another name takes an event of the same stream, number and place for the one that is there.
const NEW_TARGET: &str = "the target has events that the source has lost, in the places of the new ones: import into a new store, or \
                          into other streams (--names, with a --name of its own)";

/// Returns what tells an event from another one of its stream and number: its id, or else who wrote it, and when. The
/// payload may be rewritten in place, so it tells nothing.
fn own(event: &SourceEvent) -> Option<String> {
    if let Some(id) = event.id {
        return Some(id.simple().to_string());
    }
    if event.writer.is_none() && event.time.is_none() {
        return None;
    }
    let time = event.time.map(|time| time.0);
    let both = format!("{:?} {time:?}", event.writer);
    Some(format!("{:016x}", xxh3_64(both.as_bytes())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marks_are_read_as_they_were_written() {
        for text in [
            "17 3 00000001 a b",
            "17.4 0 - x",
            "1 2 -/ab a b",
            "1 2 0A/c a/b",
        ] {
            let mark = Mark::parse(text).unwrap();
            assert_eq!(mark.text(), text);
        }
        for text in ["", "17", "17 3", "17 3 1", "x 3 - a"] {
            assert_eq!(Mark::parse(text), None, "{text}");
        }
    }
}
