//! Reads page after page, of a stream or of all events.

use std::sync::Arc;

use gesta_core::{
    AllFrom, EventStore, EventStoreExt, ReadAll, ReadStream, RecordedEvent, Resolved, Revision,
    StreamFrom,
};

/// Number of events of a page unless the caller asks for another number, and of each page of which a long answer is
/// made.
pub(crate) const PAGE_EVENTS: usize = 1_000;

/// What is done with links.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Links {
    AsTheyAre,
    Followed,
}

/// A read that goes from page to page.
pub(crate) enum PageReader {
    Stream(ReadStream),
    All(ReadAll),
}

/// A page that was read.
pub(crate) struct Read {
    pub(crate) events: Vec<RecordedEvent>,
    /// True if nothing follows these events.
    pub(crate) end: bool,
    /// Last revision of the stream; `None` if all events are read.
    pub(crate) last: Option<Revision>,
}

impl PageReader {
    /// Reads at most `limit` events, and moves on after them.
    pub(crate) async fn page(
        &mut self,
        store: &dyn EventStore,
        limit: usize,
    ) -> gesta_core::Result<Read> {
        match self {
            PageReader::Stream(request) => {
                request.limit = limit;
                let page = store.read_stream(request.clone()).await?;
                let end = page.end || page.next.is_none();
                if let Some(next) = page.next {
                    request.from = StreamFrom::Revision(next);
                }
                Ok(Read {
                    events: page.events,
                    end,
                    last: Some(page.last_revision),
                })
            }
            PageReader::All(request) => {
                request.limit = limit;
                let page = store.read_all(request.clone()).await?;
                request.from = AllFrom::Checkpoint(page.next);
                Ok(Read {
                    events: page.events,
                    end: page.end,
                    last: None,
                })
            }
        }
    }

    /// Reads as [`PageReader::page`] does, and follows the links of a stream. Links in a page of all events stay as
    /// they are.
    pub(crate) async fn resolved_page(
        &mut self,
        store: &dyn EventStore,
        limit: usize,
    ) -> gesta_core::Result<(Vec<Resolved>, bool)> {
        if let PageReader::Stream(request) = self {
            request.limit = limit;
            let page = store.read_stream_resolved(request.clone()).await?;
            if let Some(next) = page.next {
                request.from = StreamFrom::Revision(next);
            }
            return Ok((page.events, page.end || page.next.is_none()));
        }
        let Read { events, end, .. } = self.page(store, limit).await?;
        let itself = |event| Resolved::itself(Arc::new(event));
        Ok((events.into_iter().map(itself).collect(), end))
    }
}
