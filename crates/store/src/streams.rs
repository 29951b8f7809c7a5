//! Reads about single streams: a page, the metadata, the names.
//!
//! A page costs two round trips: one looks the stream up (last revision and metadata, in one snapshot of the
//! primary), one reads what of it is visible.

use gesta_core::backend::{LoadRequest, LoadedStream, StreamHead, StreamSlice};
use gesta_core::{
    Direction, ErrorKind, Lifecycle, ListStreams, LogId, ReadStream, Result, Revision, StreamFrom,
    StreamId, StreamInfo, StreamMetadataRecord, StreamPage, StreamsPage, Visibility,
};

use crate::Store;

/// Most streams that are looked up at once.
const LOOK_UP_MAX: usize = 1_000;

/// What the database knows of a stream.
#[derive(Default)]
pub(crate) struct Looked {
    pub(crate) head: Option<StreamHead>,
    pub(crate) lifecycle: Lifecycle,
    /// Last revision of the metadata stream.
    pub(crate) metadata_revision: Option<Revision>,
}

impl Looked {
    /// A loaded stream as seen by who asked for `stream`: that stream or its metadata stream.
    fn of(stream: &StreamId, loaded: LoadedStream) -> Result<Self> {
        if stream.described_stream().is_some() {
            return Ok(Self {
                head: loaded.meta.map(|meta| meta.head),
                ..Self::default()
            });
        }
        let lifecycle = match &loaded.meta {
            Some(meta) => Lifecycle::from_event(&meta.data, &meta.metadata)?,
            None => Lifecycle::default(),
        };
        Ok(Self {
            head: loaded.head,
            lifecycle,
            metadata_revision: loaded.meta.map(|meta| meta.head.last),
        })
    }

    /// The head of a stream that readers may see.
    fn existing(&self) -> Option<StreamHead> {
        let last = self.head.map(|head| head.last);
        self.head.filter(|_| self.lifecycle.exists(last))
    }
}

/// Revisions to read, both included; empty if `from > to`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Range {
    from: Revision,
    to: Revision,
}

impl Store {
    pub(crate) async fn stream_page(&self, request: ReadStream) -> Result<StreamPage> {
        self.check_open()?;
        request.validate()?;
        let looked = self.look_up(&request.stream).await?;
        if looked.lifecycle.tombstoned {
            return Err(ErrorKind::StreamTombstoned(request.stream).into());
        }
        let Some(head) = looked.existing() else {
            return Err(ErrorKind::StreamNotFound(request.stream).into());
        };
        let visible = looked.lifecycle.visibility(head.last, self.clock.now());
        match request.direction {
            Direction::Forwards => self.page_forwards(request, head, visible).await,
            Direction::Backwards => self.page_backwards(request, head, visible).await,
        }
    }

    async fn page_forwards(
        &self,
        request: ReadStream,
        head: StreamHead,
        visible: Visibility,
    ) -> Result<StreamPage> {
        let asked = match request.from {
            StreamFrom::Start => Revision(0),
            StreamFrom::Revision(revision) => revision,
            StreamFrom::End => head.last.next(),
        };
        let range = Range {
            from: asked.max(visible.from),
            to: head.last,
        };
        let (events, complete) = self
            .read_range(&request, head, visible, range, request.limit)
            .await?;
        let next = match events.last() {
            Some(event) if !complete => event.revision.next(),
            _ => asked.max(head.last.next()),
        };
        Ok(StreamPage {
            events,
            next: Some(next),
            end: complete,
            last_revision: head.last,
        })
    }

    async fn page_backwards(
        &self,
        request: ReadStream,
        head: StreamHead,
        visible: Visibility,
    ) -> Result<StreamPage> {
        let whole = Range {
            from: visible.from,
            to: head.last,
        };
        let (events, complete) = match request.from {
            // Nothing lies before the first readable event, which only a read forwards can find.
            StreamFrom::Start => {
                let first = ReadStream {
                    direction: Direction::Forwards,
                    ..request.clone()
                };
                let (events, _) = self.read_range(&first, head, visible, whole, 1).await?;
                (events, true)
            }
            from => {
                let to = match from {
                    StreamFrom::Revision(revision) => revision.min(head.last),
                    StreamFrom::Start | StreamFrom::End => head.last,
                };
                let range = Range { to, ..whole };
                self.read_range(&request, head, visible, range, request.limit)
                    .await?
            }
        };
        let before = |revision: Revision| revision.0.checked_sub(1).map(Revision);
        let next = events
            .last()
            .filter(|_| !complete)
            .and_then(|event| before(event.revision));
        Ok(StreamPage {
            events,
            next,
            end: complete,
            last_revision: head.last,
        })
    }

    /// Reads visible events of a range; true if there are no more in it.
    async fn read_range(
        &self,
        request: &ReadStream,
        head: StreamHead,
        visible: Visibility,
        range: Range,
        limit: usize,
    ) -> Result<(Vec<gesta_core::RecordedEvent>, bool)> {
        if range.from > range.to {
            return Ok((Vec::new(), true));
        }
        let slice = StreamSlice {
            log: self.log_of(&request.stream),
            stream: request.stream.clone(),
            stream_row: head.row,
            from: range.from,
            to: range.to,
            created_from: visible.created_from,
            direction: request.direction,
            limit,
        };
        let rows = self.backend.read_stream(slice).await?;
        Ok((rows.events, rows.complete))
    }

    pub(crate) async fn metadata_record(&self, stream: &StreamId) -> Result<StreamMetadataRecord> {
        self.check_open()?;
        let looked = self.look_up(stream).await?;
        if looked.lifecycle.tombstoned {
            return Err(ErrorKind::StreamTombstoned(stream.clone()).into());
        }
        Ok(StreamMetadataRecord {
            metadata: looked.lifecycle.metadata,
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
                last_revision: looked.existing()?.last,
                stream,
            })
        });
        Ok(StreamsPage {
            streams: streams.collect(),
            next,
        })
    }

    /// Looks up one stream, which may be a metadata stream.
    async fn look_up(&self, stream: &StreamId) -> Result<Looked> {
        let looked = self.look_up_all(std::slice::from_ref(stream)).await?;
        Ok(looked.into_iter().next().unwrap_or_default())
    }

    /// Looks up streams, in their order.
    pub(crate) async fn look_up_all(&self, streams: &[StreamId]) -> Result<Vec<Looked>> {
        let mut found: Vec<Looked> = streams.iter().map(|_| Looked::default()).collect();
        for log in (0..self.backend_info().logs).map(LogId) {
            let of_log: Vec<(usize, StreamId)> = streams
                .iter()
                .enumerate()
                .filter(|(_, stream)| self.log_of(stream) == log)
                .filter_map(|(place, stream)| Some((place, base_of(stream)?)))
                .collect();
            for part in of_log.chunks(LOOK_UP_MAX) {
                let request = LoadRequest {
                    streams: part.iter().map(|(_, base)| base.clone()).collect(),
                    types: Vec::new(),
                };
                let loaded = self.backend.load(log, request).await?;
                for ((place, _), loaded) in part.iter().zip(loaded.streams) {
                    if let (Some(slot), Some(stream)) = (found.get_mut(*place), streams.get(*place))
                    {
                        *slot = Looked::of(stream, loaded)?;
                    }
                }
            }
        }
        Ok(found)
    }
}

/// The stream to look up for `stream`: itself or the one it describes; `None` if it cannot exist.
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
