//! What the target of `gesta all import` has of a stream.

use std::collections::HashSet;

use gesta_core::{
    AllFrom, Direction, ErrorKind, EventId, EventStore, Filter, Lifecycle, Query, ReadAll,
    ReadStream, RecordedEvent, Revision, StreamFrom, StreamId,
};

use crate::exit::Outcome;

/// The most events in one page.
const PAGE: usize = 1_000;

/// What is known about a stream of the target store.
pub(super) struct Target {
    pub(super) last: Option<Revision>,
    pub(super) ids: HashSet<EventId>,
}

/// Reads what a stream of the target store has, also what its metadata hide.
pub(super) async fn read_target(store: &dyn EventStore, stream: &StreamId) -> Outcome<Target> {
    let mut target = Target {
        last: None,
        ids: HashSet::new(),
    };
    // A metadata stream has no metadata, so nothing hides its events.
    let is_metadata = stream.as_str().starts_with("$$");
    if !is_metadata
        && store
            .stream_metadata(stream.clone())
            .await?
            .revision
            .is_some()
    {
        read_hidden(store, stream, &mut target).await?;
    } else {
        read_visible(store, stream, &mut target).await?;
    }
    Ok(target)
}

async fn read_visible(store: &dyn EventStore, stream: &StreamId, target: &mut Target) -> Outcome {
    let mut from = StreamFrom::Start;
    loop {
        let request = ReadStream {
            stream: stream.clone(),
            from,
            direction: Direction::Forwards,
            limit: PAGE,
        };
        let page = match store.read_stream(request).await {
            Ok(page) => page,
            Err(error) if matches!(error.kind(), ErrorKind::StreamNotFound(_)) => return Ok(()),
            Err(error) => return Err(error.into()),
        };
        target.take(page.events.iter());
        match page.next {
            Some(next) if !page.end => from = StreamFrom::Revision(next),
            _ => return Ok(()),
        }
    }
}

/// Reads the events of a stream out of all events, where metadata hide none that still exists.
async fn read_hidden(store: &dyn EventStore, stream: &StreamId, target: &mut Target) -> Outcome {
    let mut request = ReadAll {
        filter: Filter::query(Query {
            stream_prefixes: vec![stream.as_str().to_owned()],
            ..Query::default()
        }),
        ..ReadAll::forwards()
    };
    loop {
        let page = store.read_all(request.clone()).await?;
        target.take(page.events.iter().filter(|event| event.stream == *stream));
        if page.end {
            return Ok(());
        }
        request.from = AllFrom::Checkpoint(page.next);
    }
}

impl Target {
    fn take<'a>(&mut self, events: impl Iterator<Item = &'a RecordedEvent>) {
        for event in events {
            self.ids.insert(event.id);
            self.last = Some(event.revision);
        }
    }
}

/// Tells whether a stream was deleted, so that a scavenge may have removed what it had.
pub(super) async fn is_deleted(store: &dyn EventStore, stream: &StreamId) -> Outcome<bool> {
    let request = ReadStream::backwards(stream.metadata_stream()).limit(1);
    let page = match store.read_stream(request).await {
        Ok(page) => page,
        Err(error) if matches!(error.kind(), ErrorKind::StreamNotFound(_)) => return Ok(false),
        Err(error) => return Err(error.into()),
    };
    let Some(event) = page.events.first() else {
        return Ok(false);
    };
    Ok(Lifecycle::from_event(&event.data, &event.metadata)?.deleted_before > Revision(0))
}
