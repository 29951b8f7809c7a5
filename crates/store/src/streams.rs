//! Reads about single streams: a page of events, the metadata, the names.
//!
//! A page costs two round trips. One looks the stream up (its last revision and its metadata, in one snapshot of the
//! primary), the other reads what of it is visible.

use std::collections::BTreeMap;

use gesta_core::backend::{LoadRequest, LoadedStream, Purpose, Rows, StreamHead, StreamSlice};
use gesta_core::{
    Direction, Error, ErrorKind, Lifecycle, ListStreams, LogId, Position, ReadStream, Result,
    Revision, StreamFrom, StreamId, StreamInfo, StreamMetadataRecord, StreamPage, StreamsPage,
    Timestamp, Visibility,
};

use crate::Store;

/// Largest number of streams that are looked up at once.
pub(crate) const LOOK_UP_MAX: usize = 1_000;

/// What the database holds about a stream.
pub(crate) struct StoredStream {
    pub(crate) head: Option<StreamHead>,
    /// State of the stream. It is `Corrupt` if the metadata of this stream cannot be read. Nothing else is known of the
    /// stream then, least of all what may be shown; other streams of the same look-up are not concerned.
    pub(crate) lifecycle: Result<Lifecycle>,
    /// Last revision of the metadata stream; `None` if there is none.
    pub(crate) metadata_revision: Option<Revision>,
    /// Position of the last event of the metadata stream; 0 if there is none.
    pub(crate) changed_at: Position,
}

impl Default for StoredStream {
    /// Stands for a stream that was never written.
    fn default() -> Self {
        Self {
            head: None,
            lifecycle: Ok(Lifecycle::default()),
            metadata_revision: None,
            changed_at: Position::START,
        }
    }
}

impl StoredStream {
    /// Makes the answer about `stream` of what was loaded for it, or for the stream that it describes.
    fn of(stream: &StreamId, loaded: LoadedStream) -> Self {
        if stream.described_stream().is_some() {
            return Self {
                head: loaded.meta.map(|meta| meta.head),
                ..Self::default()
            };
        }
        let lifecycle = match &loaded.meta {
            Some(meta) => Lifecycle::from_event(&meta.data, &meta.metadata),
            None => Ok(Lifecycle::default()),
        };
        Self {
            head: loaded.head,
            lifecycle: lifecycle.map_err(|error| unreadable(stream, error)),
            changed_at: loaded
                .meta
                .as_ref()
                .map_or(Position::START, |meta| meta.head.position),
            metadata_revision: loaded.meta.map(|meta| meta.head.last),
        }
    }

    /// Makes the answer about a stream that could not be looked up.
    fn failed(stream: &StreamId, error: Error) -> Self {
        Self {
            lifecycle: Err(unreadable(stream, error)),
            ..Self::default()
        }
    }

    fn lifecycle(&self) -> Result<&Lifecycle> {
        self.lifecycle.as_ref().map_err(Clone::clone)
    }

    /// Returns the head of a stream to list. That is a stream that readers may see, or one whose metadata cannot be
    /// read, so that people find it.
    fn listed(&self) -> Option<StreamHead> {
        let last = self.head.map(|head| head.last);
        let exists = |lifecycle: &Lifecycle| lifecycle.exists(last);
        self.head
            .filter(|_| self.lifecycle.as_ref().map_or(true, exists))
    }

    /// Returns the revision before which all events of the stream were deleted; 0 if that is not known.
    pub(crate) fn deleted_before(&self) -> Revision {
        let lifecycle = self.lifecycle.as_ref();
        lifecycle.map_or(Revision(0), |lifecycle| lifecycle.deleted_before)
    }

    /// Returns what readers may see of `stream` at `now`.
    ///
    /// # Errors
    /// `StreamNotFound`, `StreamTombstoned`; `Corrupt` if the metadata of the stream cannot be read.
    pub(crate) fn readable(&self, stream: &StreamId, now: Timestamp) -> Result<Readable> {
        let lifecycle = self.lifecycle()?;
        if lifecycle.tombstoned {
            return Err(ErrorKind::StreamTombstoned(stream.clone()).into());
        }
        let existing = self.head.filter(|head| lifecycle.exists(Some(head.last)));
        let Some(head) = existing else {
            return Err(ErrorKind::StreamNotFound(stream.clone()).into());
        };
        Ok(Readable {
            head,
            visible: lifecycle.visibility(head.last, now),
        })
    }
}

/// Revisions to read, both ends included. The range is empty if `from > to`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Range {
    from: Revision,
    to: Revision,
}

impl Range {
    /// Returns the part of the range that is this one revision; it is empty if the range does not hold that revision.
    pub(crate) fn only(self, revision: Revision) -> Self {
        Self {
            from: self.from.max(revision),
            to: self.to.min(revision),
        }
    }
}

/// A stream that readers may see.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Readable {
    pub(crate) head: StreamHead,
    visible: Visibility,
}

impl Readable {
    /// Returns what to ask the backend for; `None` if the range is empty.
    pub(crate) fn slice(
        &self,
        log: LogId,
        request: &ReadStream,
        range: Range,
    ) -> Option<StreamSlice> {
        (range.from <= range.to).then(|| StreamSlice {
            log,
            stream: request.stream.clone(),
            stream_row: self.head.row,
            from: range.from,
            to: range.to,
            created_from: self.visible.created_from,
            direction: request.direction,
            limit: request.limit,
        })
    }

    /// Returns the range that a read forwards asks for.
    pub(crate) fn forwards(&self, request: &ReadStream) -> Range {
        Range {
            from: self.asked(request).max(self.visible.from),
            to: self.head.last,
        }
    }

    /// Makes the page of a read forwards from the rows of its range.
    pub(crate) fn page_forwards(&self, request: &ReadStream, rows: Rows) -> StreamPage {
        let next = match rows.events.last() {
            _ if rows.complete => self.asked(request).max(self.head.last.next()),
            Some(event) => event.revision.next(),
            None => self.forwards(request).from,
        };
        StreamPage {
            events: rows.events,
            next: Some(next),
            end: rows.complete,
            last_revision: self.head.last,
        }
    }

    /// Returns the first revision that a read forwards asks for.
    fn asked(&self, request: &ReadStream) -> Revision {
        match request.from {
            StreamFrom::Start => Revision(0),
            StreamFrom::Revision(revision) => revision,
            StreamFrom::End => self.head.last.next(),
        }
    }
}

/// Makes the answer about an empty range.
pub(crate) fn no_rows() -> Rows {
    Rows {
        events: Vec::new(),
        complete: true,
        last_writer: None,
    }
}

impl Store {
    pub(crate) async fn stream_page(&self, request: ReadStream) -> Result<StreamPage> {
        self.check_open()?;
        request.validate()?;
        let looked = self.look_up(&request.stream).await?;
        let readable = looked.readable(&request.stream, self.clock.now())?;
        match request.direction {
            Direction::Forwards => {
                let range = readable.forwards(&request);
                let rows = self.read_range(&request, readable, range).await?;
                Ok(readable.page_forwards(&request, rows))
            }
            Direction::Backwards => self.page_backwards(request, readable).await,
        }
    }

    async fn page_backwards(&self, request: ReadStream, readable: Readable) -> Result<StreamPage> {
        let last_revision = readable.head.last;
        let whole = Range {
            from: readable.visible.from,
            to: last_revision,
        };
        let rows = match request.from {
            // Nothing lies before the first readable event, which only a read forwards can find.
            StreamFrom::Start => {
                let first = ReadStream {
                    direction: Direction::Forwards,
                    limit: 1,
                    ..request.clone()
                };
                let rows = self.read_range(&first, readable, whole).await?;
                Rows {
                    complete: true,
                    ..rows
                }
            }
            from => {
                let to = match from {
                    StreamFrom::Revision(revision) => revision.min(last_revision),
                    StreamFrom::Start | StreamFrom::End => last_revision,
                };
                let range = Range { to, ..whole };
                self.read_range(&request, readable, range).await?
            }
        };
        let before = |revision: Revision| revision.0.checked_sub(1).map(Revision);
        let next = rows
            .events
            .last()
            .filter(|_| !rows.complete)
            .and_then(|event| before(event.revision));
        Ok(StreamPage {
            events: rows.events,
            next,
            end: rows.complete,
            last_revision,
        })
    }

    /// Reads the visible events of a range.
    async fn read_range(
        &self,
        request: &ReadStream,
        readable: Readable,
        range: Range,
    ) -> Result<Rows> {
        let log = self.log_of(&request.stream);
        match readable.slice(log, request, range) {
            Some(slice) => self.backend.read_stream(slice).await,
            None => Ok(no_rows()),
        }
    }

    pub(crate) async fn metadata_record(&self, stream: &StreamId) -> Result<StreamMetadataRecord> {
        self.check_open()?;
        let looked = self.look_up(stream).await?;
        let lifecycle = looked.lifecycle?;
        if lifecycle.tombstoned {
            return Err(ErrorKind::StreamTombstoned(stream.clone()).into());
        }
        Ok(StreamMetadataRecord {
            metadata: lifecycle.metadata,
            revision: looked.metadata_revision,
        })
    }

    pub(crate) async fn streams_page(&self, request: ListStreams) -> Result<StreamsPage> {
        self.check_open()?;
        request.validate()?;
        // One more than wanted tells whether there is more.
        let mut names = self
            .backend
            .list_streams(&request.prefix, request.after.as_ref(), request.limit + 1)
            .await?;
        let more = names.len() > request.limit;
        names.truncate(request.limit);
        let next = names.last().filter(|_| more).cloned();
        let looked = self.look_up_all(&names).await?;
        let streams = names.into_iter().zip(looked);
        let streams = streams.filter_map(|(stream, looked)| {
            Some(StreamInfo {
                last_revision: looked.listed()?.last,
                stream,
            })
        });
        Ok(StreamsPage {
            streams: streams.collect(),
            next,
        })
    }

    /// Looks up one stream, which may be a metadata stream.
    async fn look_up(&self, stream: &StreamId) -> Result<StoredStream> {
        let looked = self.look_up_all(std::slice::from_ref(stream)).await?;
        Ok(looked.into_iter().next().unwrap_or_default())
    }

    /// Looks up streams. The answers are in their order.
    pub(crate) async fn look_up_all(&self, streams: &[StreamId]) -> Result<Vec<StoredStream>> {
        let mut by_log: BTreeMap<LogId, Vec<(usize, &StreamId)>> = BTreeMap::new();
        for (place, stream) in streams.iter().enumerate() {
            let of_log = by_log.entry(self.log_of(stream)).or_default();
            of_log.push((place, stream));
        }
        let mut found: Vec<StoredStream> =
            streams.iter().map(|_| StoredStream::default()).collect();
        for (log, of_log) in by_log {
            for part in of_log.chunks(LOOK_UP_MAX) {
                let streams: Vec<&StreamId> = part.iter().map(|(_, stream)| *stream).collect();
                let looked = self.look_up_in(log, &streams).await?;
                for ((place, _), looked) in part.iter().zip(looked) {
                    if let Some(slot) = found.get_mut(*place) {
                        *slot = looked;
                    }
                }
            }
        }
        Ok(found)
    }

    /// Looks up at most [`LOOK_UP_MAX`] streams of one log, in one snapshot. If the database finds that something of
    /// them is corrupt, it looks them up one by one, to answer about the others. The answers are in the order of the
    /// streams.
    pub(crate) async fn look_up_in(
        &self,
        log: LogId,
        streams: &[&StreamId],
    ) -> Result<Vec<StoredStream>> {
        match self.look_up_together(log, streams).await {
            Err(error) if is_corrupt(&error) => {}
            looked => return looked,
        }
        let mut looked = Vec::with_capacity(streams.len());
        for stream in streams {
            looked.push(match self.look_up_together(log, &[stream]).await {
                Ok(one) => one.into_iter().next().unwrap_or_default(),
                Err(error) if is_corrupt(&error) => StoredStream::failed(stream, error),
                Err(error) => return Err(error),
            });
        }
        Ok(looked)
    }

    async fn look_up_together(
        &self,
        log: LogId,
        streams: &[&StreamId],
    ) -> Result<Vec<StoredStream>> {
        let bases: Vec<Option<StreamId>> = streams.iter().map(|stream| base_of(stream)).collect();
        let request = LoadRequest {
            streams: bases.iter().flatten().cloned().collect(),
            types: Vec::new(),
        };
        let mut loaded = if request.streams.is_empty() {
            Vec::new().into_iter()
        } else {
            let loaded = self.backend.load(log, request, Purpose::Read).await?;
            self.note_end(log, loaded.end.position);
            loaded.streams.into_iter()
        };
        let looked = streams.iter().zip(&bases).map(|(stream, base)| {
            let loaded = base.as_ref().and_then(|_| loaded.next());
            StoredStream::of(stream, loaded.unwrap_or_default())
        });
        Ok(looked.collect())
    }
}

pub(crate) fn is_corrupt(error: &Error) -> bool {
    matches!(error.kind(), ErrorKind::Corrupt(_))
}

/// Makes the error for a stream of which the database holds something that cannot be read.
fn unreadable(stream: &StreamId, error: Error) -> Error {
    Error::corrupt(format!("what is known of stream {stream}")).caused_by(error)
}

/// Returns the stream to look up for `stream`: itself, or the one that it describes; `None` if it cannot exist.
fn base_of(stream: &StreamId) -> Option<StreamId> {
    match stream.described_stream() {
        // Metadata streams have no metadata streams.
        Some(described) if described.as_str().starts_with("$$") => None,
        Some(described) => Some(described),
        None => Some(stream.clone()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_metadata_stream_is_looked_up_through_the_stream_it_describes() {
        let base = |name: &str| base_of(&StreamId::new(name).expect("valid"));
        assert_eq!(base("cart-1"), base("$$cart-1"));
        assert_eq!(base("$$$x").map(|s| s.to_string()), Some("$x".into()));
        assert_eq!(base("$$$$x"), None);
        assert_eq!(base("$$").map(|s| s.to_string()), Some("$$".into()));
    }
}
