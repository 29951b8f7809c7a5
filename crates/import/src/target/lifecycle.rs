//! Changes of streams in the target, each at its place: metadata, deletes (which are metadata) and tombstones.

use std::time::Duration;

use gesta_core::{
    Append, DeleteKind, DeleteStream, ErrorKind, EventData, EventId, EventType, ExpectedRevision,
    ReadStream, Result, Revision, StreamFrom, StreamId,
};

use super::{TRIES, Target};

impl Target {
    /// Sets the metadata of the stream of a key at this place of the order, unless this event was appended already.
    /// Metadata streams are never scavenged, so that it is found.
    pub(crate) async fn set_metadata(
        &mut self,
        key: &str,
        stream: &StreamId,
        id: EventId,
        document: bytes::Bytes,
    ) -> Result<bool> {
        self.drain().await?;
        let metadata = stream.metadata_stream();
        let mut tries = 0;
        loop {
            let (last, is_there) = self.look_for(&metadata, id).await?;
            if is_there {
                self.forget(key);
                return Ok(false);
            }
            let event = EventData::json(EventType::new("$metadata")?, document.clone()).with_id(id);
            let expected = last.map_or(ExpectedRevision::NoStream, ExpectedRevision::Exact);
            let append = Append::to(metadata.clone(), expected, vec![event]);
            match self.store()?.append(append).await {
                Ok(_) => break,
                Err(error)
                    if tries < TRIES
                        && (error.is_retryable()
                            || matches!(error.kind(), ErrorKind::WrongExpectedRevision { .. })) =>
                {
                    tokio::time::sleep(Duration::from_millis(200)).await;
                }
                Err(error) => return Err(error),
            }
            tries += 1;
        }
        // It may have deleted the stream, so what the target has of it is read again.
        self.forget(key);
        Ok(true)
    }

    /// Looks for an event of this id. Returns it with the last revision of the stream.
    async fn look_for(
        &mut self,
        stream: &StreamId,
        id: EventId,
    ) -> Result<(Option<Revision>, bool)> {
        let mut request = ReadStream::forwards(stream.clone());
        let mut last = None;
        loop {
            let page = match self.store()?.read_stream(request.clone()).await {
                Ok(page) => page,
                Err(error) if matches!(error.kind(), ErrorKind::StreamNotFound(_)) => {
                    return Ok((None, false));
                }
                Err(error) => return Err(error),
            };
            last = last.max(Some(page.last_revision));
            if page.events.iter().any(|event| event.id == id) {
                return Ok((last, true));
            }
            match page.next {
                Some(next) if !page.end => request.from = StreamFrom::Revision(next),
                _ => return Ok((last, false)),
            }
        }
    }

    /// Closes the stream of a key for ever at this place of the order. Returns false if it is closed already.
    pub(crate) async fn close(&mut self, key: &str, stream: &StreamId) -> Result<bool> {
        self.drain().await?;
        let request = DeleteStream {
            stream: stream.clone(),
            expected: ExpectedRevision::Any,
            kind: DeleteKind::Tombstone,
        };
        let mut tries = 0;
        let closed = loop {
            match self.store()?.delete_stream(request.clone()).await {
                Ok(_) => break true,
                Err(error) if matches!(error.kind(), ErrorKind::StreamTombstoned(_)) => {
                    break false;
                }
                Err(error) if error.is_retryable() && tries < TRIES => {
                    tries += 1;
                    tokio::time::sleep(Duration::from_millis(200)).await;
                }
                Err(error) => return Err(error),
            }
        };
        self.forget(key);
        Ok(closed)
    }
}
