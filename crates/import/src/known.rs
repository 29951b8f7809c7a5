//! What the target has of a stream: read from the last event of the stream, which says where it stood in the source.

use gesta_core::{
    Direction, ErrorKind, EventStore, LogId, Position, ReadStream, Result, Revision, StreamFrom,
    StreamId,
};

use crate::convert::{Stood, stood};
use crate::event::Place;

/// What the target has of a stream.
#[derive(Clone, Debug)]
pub(crate) struct Known {
    pub(crate) stream: StreamId,
    /// The last revision, with everything that was sent; `None` if there is no stream.
    pub(crate) revision: Option<Revision>,
    /// Number and place, in the source, of the last event that was stored or sent.
    pub(crate) stored: Option<(u64, Place)>,
    /// Number and revision of the last event that was there when the stream was read.
    pub(crate) base: Option<(u64, Revision)>,
    /// The last number that was met, also of events that were left out.
    pub(crate) seen: Option<u64>,
    /// Whether the stream is closed by a tombstone.
    pub(crate) closed: bool,
    /// Where the last event was found.
    pub(crate) found: Option<(LogId, Position)>,
}

impl Known {
    /// What is known of a stream that does not exist.
    pub(crate) fn none(stream: StreamId) -> Self {
        Self {
            stream,
            revision: None,
            stored: None,
            base: None,
            seen: None,
            closed: false,
            found: None,
        }
    }
}

/// Reads what the target has of the stream of a key.
///
/// # Errors
/// `Unsupported` if the stream has another key's events, or events that no import has written; those of the store.
pub(crate) async fn read(store: &dyn EventStore, stream: &StreamId, key: &str) -> Result<Known> {
    let none = Known::none(stream.clone());
    let request = ReadStream::backwards(stream.clone()).limit(1);
    let page = match store.read_stream(request).await {
        Ok(page) => page,
        Err(error) => {
            return match error.kind() {
                ErrorKind::StreamNotFound(_) => Ok(none),
                ErrorKind::StreamTombstoned(_) => Ok(Known {
                    closed: true,
                    ..none
                }),
                _ => Err(error),
            };
        }
    };
    let refuse = |why: String| Err(ErrorKind::Unsupported(why).into());
    let Some(event) = page.events.first() else {
        return refuse(format!(
            "the metadata of stream {stream:?} hide its last event, so nothing tells what was imported of {key:?}"
        ));
    };
    match stood(&event.metadata) {
        Some(found) if found.key == key => Ok(Known {
            revision: Some(event.revision),
            stored: Some((found.sequence, found.place)),
            base: Some((found.sequence, event.revision)),
            seen: Some(found.sequence),
            found: Some((event.log, event.position)),
            ..none
        }),
        Some(found) => refuse(format!(
            "{key:?} and {:?} of the source would both be stream {stream:?}: give a rule for names (--names) that tells \
             them apart",
            found.key
        )),
        None => refuse(format!(
            "stream {stream:?} has an event (revision {}) that this import did not write, so {key:?} cannot go on there",
            event.revision
        )),
    }
}

/// Looks in a stream of the target for the event with this number of the source, newest first.
pub(crate) async fn find(
    store: &dyn EventStore,
    stream: &StreamId,
    sequence: u64,
) -> Result<Option<Stood>> {
    let mut from = StreamFrom::End;
    loop {
        let request = ReadStream {
            stream: stream.clone(),
            from,
            direction: Direction::Backwards,
            limit: 1_000,
        };
        let page = match store.read_stream(request).await {
            Ok(page) => page,
            Err(error) if matches!(error.kind(), ErrorKind::StreamNotFound(_)) => return Ok(None),
            Err(error) => return Err(error),
        };
        for found in page
            .events
            .iter()
            .filter_map(|event| stood(&event.metadata))
        {
            if found.sequence == sequence {
                return Ok(Some(found));
            }
            if found.sequence < sequence {
                return Ok(None);
            }
        }
        match page.next {
            Some(next) if !page.end => from = StreamFrom::Revision(next),
            _ => return Ok(None),
        }
    }
}
