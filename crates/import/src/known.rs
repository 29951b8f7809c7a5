//! What the target has of a stream: read from the last event of the stream, which says where it stood in the source.

use gesta_core::{
    AllFrom, Direction, ErrorKind, EventStore, Filter, Lifecycle, LogId, Position, ReadAll,
    ReadStream, RecordedEvent, Result, Revision, StreamFrom, StreamId,
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
    /// The tenant of the stream in the source; the outer `None` if that is not known yet.
    pub(crate) tenant: Option<Option<String>>,
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
            tenant: None,
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
                ErrorKind::StreamNotFound(_) => deleted(store, stream, key).await,
                ErrorKind::StreamTombstoned(_) => Ok(Known {
                    closed: true,
                    ..none
                }),
                _ => Err(error),
            };
        }
    };
    let refuse = |why: String| Err(ErrorKind::Unsupported(why).into());
    let newest = match page.events.into_iter().next() {
        Some(event) => Some(event),
        None => among_all(store, stream, Some).await?,
    };
    let Some(event) = newest else {
        return refuse(format!(
            "the metadata of stream {stream:?} hide its last event, and a scavenge has removed it, so nothing tells what \
             was imported of {key:?}"
        ));
    };
    match stood(&event.metadata) {
        Some(found) if found.key == key => Ok(Known {
            revision: Some(event.revision),
            stored: Some((found.sequence, found.place)),
            base: Some((found.sequence, event.revision)),
            seen: Some(found.sequence),
            tenant: Some(found.tenant),
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

/// Reads what a deleted stream had: whether its events come again or are later ones must be known although no read of
/// the stream shows them.
async fn deleted(store: &dyn EventStore, stream: &StreamId, key: &str) -> Result<Known> {
    let none = Known::none(stream.clone());
    let request = ReadStream::backwards(stream.metadata_stream()).limit(1);
    let page = match store.read_stream(request).await {
        Ok(page) => page,
        Err(error) if matches!(error.kind(), ErrorKind::StreamNotFound(_)) => return Ok(none),
        Err(error) => return Err(error),
    };
    let Some(event) = page.events.first() else {
        return Ok(none);
    };
    let state = Lifecycle::from_event(&event.data, &event.metadata)?;
    let Some(last) = state.deleted_before.0.checked_sub(1).map(Revision) else {
        return Ok(none);
    };
    let none = Known {
        revision: Some(last),
        ..none
    };
    let Some(event) = among_all(store, stream, Some).await? else {
        return Ok(none);
    };
    Ok(
        match stood(&event.metadata).filter(|found| found.key == key) {
            Some(found) => Known {
                stored: Some((found.sequence, found.place)),
                base: Some((found.sequence, last)),
                seen: Some(found.sequence),
                tenant: Some(found.tenant),
                found: Some((event.log, event.position)),
                ..none
            },
            None => none,
        },
    )
}

/// Goes through the events of a stream, newest first, as reads of all events show them: also those that the stream
/// hides, until they are scavenged. Returns the first thing that `pick` finds.
async fn among_all<T>(
    store: &dyn EventStore,
    stream: &StreamId,
    mut pick: impl FnMut(RecordedEvent) -> Option<T>,
) -> Result<Option<T>> {
    let mut request = ReadAll {
        from: AllFrom::End,
        direction: Direction::Backwards,
        filter: Filter::stream_prefix(stream.as_str()),
        ..ReadAll::forwards()
    };
    loop {
        let page = store.read_all(request.clone()).await?;
        // Longer names begin alike.
        let mut events = page.events.into_iter().filter(|one| one.stream == *stream);
        if let Some(found) = events.find_map(&mut pick) {
            return Ok(Some(found));
        }
        if page.end {
            return Ok(None);
        }
        request.from = AllFrom::Checkpoint(page.next);
    }
}

/// Returns the first revision of the target whose event has the number `before` in the source, or a later one, so that
/// a stream that is truncated before it shows what the source shows. `None` if nothing of the stream is known.
pub(crate) async fn revision_from(
    store: &dyn EventStore,
    known: &Known,
    before: u64,
) -> Result<Option<u64>> {
    let Some(((last, _), revision)) = known.stored.zip(known.revision) else {
        return Ok(None);
    };
    if before > last {
        return Ok(Some(revision.0 + 1));
    }
    // The oldest event that was looked at, which is not before that number.
    let mut oldest = (last, revision.0);
    let mut from = StreamFrom::End;
    loop {
        let request = ReadStream {
            stream: known.stream.clone(),
            from,
            direction: Direction::Backwards,
            limit: 1_000,
        };
        let page = match store.read_stream(request).await {
            Ok(page) => page,
            Err(error) if matches!(error.kind(), ErrorKind::StreamNotFound(_)) => {
                return Ok(Some(oldest.1.saturating_sub(oldest.0 - before)));
            }
            Err(error) => return Err(error),
        };
        for event in &page.events {
            match stood(&event.metadata) {
                Some(found) if found.sequence >= before => {
                    oldest = (found.sequence, event.revision.0);
                }
                _ => return Ok(Some(oldest.1)),
            }
        }
        match page.next {
            Some(next) if !page.end => from = StreamFrom::Revision(next),
            // What is hidden before it is counted as if the source had no gap there.
            _ => return Ok(Some(oldest.1.saturating_sub(oldest.0 - before))),
        }
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
            _ => break,
        }
    }
    let find = |event: RecordedEvent| {
        let found = stood(&event.metadata)?;
        (found.sequence <= sequence).then_some(found)
    };
    let found = among_all(store, stream, find).await?;
    Ok(found.filter(|found| found.sequence == sequence))
}
