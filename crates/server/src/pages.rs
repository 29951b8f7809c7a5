//! Reads page after page, of a stream or of all events.

use std::sync::Arc;

use gesta_core::{
    AllFrom, EventStore, EventStoreExt, ReadAll, ReadStream, RecordedEvent, Resolved, StreamFrom,
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

impl PageReader {
    /// Reads at most `limit` events, and moves on after them. Returns the events, and true if nothing follows them.
    pub(crate) async fn page(
        &mut self,
        store: &dyn EventStore,
        limit: usize,
    ) -> gesta_core::Result<(Vec<RecordedEvent>, bool)> {
        match self {
            PageReader::Stream(request) => {
                request.limit = limit;
                let page = store.read_stream(request.clone()).await?;
                let end = page.end || page.next.is_none();
                if let Some(next) = page.next {
                    request.from = StreamFrom::Revision(next);
                }
                Ok((page.events, end))
            }
            PageReader::All(request) => {
                request.limit = limit;
                let page = store.read_all(request.clone()).await?;
                request.from = AllFrom::Checkpoint(page.next);
                Ok((page.events, page.end))
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
        let (events, end) = self.page(store, limit).await?;
        let itself = |event| Resolved::itself(Arc::new(event));
        Ok((events.into_iter().map(itself).collect(), end))
    }
}
