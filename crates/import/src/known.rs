//! What the target has of a stream: read from the last event of the stream, which says where it stood in the source.

use gesta_core::{
    AllFrom, Direction, ErrorKind, EventId, EventStore, Filter, Lifecycle, LogId, Position,
    ReadAll, ReadStream, RecordedEvent, Result, Revision, StreamFrom, StreamId,
};

use crate::convert::stood;
use crate::digest;
use crate::event::{Place, SourceEvent};

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
    /// Number and revision of an event up to which the stream was read to compare what comes again.
    pub(crate) compared: Option<(u64, Revision)>,
    /// The last number that was met, also of events that were left out.
    pub(crate) seen: Option<u64>,
    /// Whether this run has met an event of the stream.
    pub(crate) met: bool,
    /// The tenant of the stream in the source; the outer `None` if that is not known yet.
    pub(crate) tenant: Option<Option<String>>,
    /// Whether the stream is closed by a tombstone.
    pub(crate) closed: bool,
    /// Whether the stream was deleted and scavenged, so that nothing tells what it had of the source.
    pub(crate) erased: bool,
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
            compared: None,
            seen: None,
            met: false,
            tenant: None,
            closed: false,
            erased: false,
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
    // Others may have appended to it after the import.
    let mut oldest = None;
    let found = among_all(store, stream, |event| {
        oldest = Some(event.revision);
        let found = stood(&event.metadata).filter(|found| found.key == key)?;
        Some((found, event.revision, (event.log, event.position)))
    })
    .await?;
    Ok(match found {
        Some((found, revision, at)) => Known {
            stored: Some((found.sequence, found.place)),
            base: Some((found.sequence, revision)),
            seen: Some(found.sequence),
            tenant: Some(found.tenant),
            found: Some(at),
            ..none
        },
        // If the first event is not among them, a scavenge may have removed what the import had stored.
        None => Known {
            erased: oldest != Some(Revision(0)),
            ..none
        },
    })
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
    // The oldest event that was looked at, which is not before that number. In a deleted stream, events of others may
    // stand after it.
    let base = known.base.filter(|(sequence, _)| *sequence == last);
    let mut oldest = (last, base.map_or(revision.0, |(_, stood)| stood.0));
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

/// An event of the target that may come again.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Stored {
    pub(crate) sequence: u64,
    pub(crate) place: Place,
    id: EventId,
    /// The digest of what the source showed. What earlier versions have imported has none.
    digest: Option<u128>,
    data: u128,
}

impl Stored {
    fn of(event: &RecordedEvent) -> Option<Self> {
        let found = stood(&event.metadata)?;
        Some(Self {
            sequence: found.sequence,
            place: found.place,
            id: event.id,
            digest: found.digest,
            data: digest::of_data(&event.data),
        })
    }

    /// Tells whether this is what was made of an event; `turned` if a command has made the data.
    pub(crate) fn is_of(&self, event: &SourceEvent, turned: bool) -> bool {
        match self.digest {
            Some(digest) => event.digest == Some(digest),
            None => {
                event.id.is_none_or(|id| EventId(id) == self.id)
                    && (turned || self.data == digest::of_data(&event.data))
            }
        }
    }

    /// Tells whether the digest of what the source showed is known and another one.
    pub(crate) fn differs(&self, digest: u128) -> bool {
        self.digest.is_some_and(|own| own != digest)
    }
}

/// What the target has at a number that comes again.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Again {
    Stored(Stored),
    /// Later events are shown, and this one is not among the earlier ones.
    Missing,
    /// The stream does not show so early events any more.
    Hidden,
}

/// Reads what a stream has at these numbers, which are sorted and not after the last one that it had. Returns also up
/// to which event the stream was read.
pub(crate) async fn again(
    store: &dyn EventStore,
    known: &Known,
    numbers: &[u64],
) -> Result<(Vec<Again>, Option<(u64, Revision)>)> {
    let (Some(&first), Some(&last), Some((base, revision))) =
        (numbers.first(), numbers.last(), known.base)
    else {
        return Ok((Vec::new(), known.compared));
    };
    // Where numbers are missing the event stands later, never earlier.
    let earliest = revision.0.saturating_sub(base.saturating_sub(first));
    let after = known.compared.filter(|(sequence, _)| *sequence < first);
    let begin = after.map_or(earliest, |(_, revision)| earliest.max(revision.0 + 1));
    let mut request = ReadStream {
        stream: known.stream.clone(),
        from: StreamFrom::Revision(Revision(begin)),
        direction: Direction::Forwards,
        limit: usize::try_from(last - first + 1)
            .unwrap_or(usize::MAX)
            .min(1_000),
    };
    let mut compared = known.compared;
    let mut shown_from = None;
    let mut found: Vec<Option<Stored>> = vec![None; numbers.len()];
    'pages: loop {
        let page = match store.read_stream(request.clone()).await {
            Ok(page) => page,
            Err(error) if matches!(error.kind(), ErrorKind::StreamNotFound(_)) => break,
            Err(error) => return Err(error),
        };
        for event in &page.events {
            let Some(stored) = Stored::of(event) else {
                continue;
            };
            let is_first = event.revision.0 == begin;
            shown_from.get_or_insert(if is_first { 0 } else { stored.sequence });
            if stored.sequence > last {
                break 'pages;
            }
            compared = Some((stored.sequence, event.revision));
            if let Ok(at) = numbers.binary_search(&stored.sequence) {
                found[at] = Some(stored);
            }
        }
        match page.next {
            Some(next) if !page.end => request.from = StreamFrom::Revision(next),
            _ => break,
        }
    }
    let shown_from = shown_from.unwrap_or(u64::MAX);
    let told = numbers
        .iter()
        .zip(found)
        .map(|(number, found)| match found {
            Some(stored) => Again::Stored(stored),
            None if *number < shown_from => Again::Hidden,
            None => Again::Missing,
        });
    Ok((told.collect(), compared))
}

/// Looks in a stream of the target for the event with this number of the source, newest first.
pub(crate) async fn find(
    store: &dyn EventStore,
    stream: &StreamId,
    sequence: u64,
) -> Result<Option<Stored>> {
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
        for found in page.events.iter().filter_map(Stored::of) {
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
        let found = Stored::of(&event)?;
        (found.sequence <= sequence).then_some(found)
    };
    let found = among_all(store, stream, find).await?;
    Ok(found.filter(|found| found.sequence == sequence))
}
