//! Changes of streams, as the source has changed them at this place: metadata, deletes and tombstones.

use std::sync::Arc;

use bytes::Bytes;
use gesta_core::{Error, ErrorKind, EventId, Result, StreamId, StreamMetadata};

use super::Import;
use crate::convert::id_of;
use crate::event::{Role, SourceEvent};

/// What is said of changes of streams, which are no events.
const METADATA: &str = "metadata of streams, which were set";
const TOMBSTONES: &str = "tombstones, which were set";

impl Import {
    /// Changes a stream as the source has changed it at this place.
    pub(super) async fn change_stream(&mut self, event: SourceEvent) -> Result<()> {
        if self.target.only_counts() {
            self.report.leave_out(match event.role {
                Role::Tombstone => TOMBSTONES,
                _ => METADATA,
            });
            return Ok(());
        }
        let stream = match self.name(&event) {
            Ok(stream) => stream,
            Err(error) => return self.cannot(&event, &error),
        };
        if event.role == Role::Tombstone {
            self.target.close(&event.key, &stream).await?;
            self.report.leave_out(TOMBSTONES);
            return Ok(());
        }
        let document = self.moved_truncation(&event, &stream).await?;
        let id = event.id.map_or_else(EventId::random, EventId);
        match self
            .target
            .set_metadata(&event.key, &stream, id, document)
            .await
        {
            Ok(_) => {
                self.report.leave_out(METADATA);
                Ok(())
            }
            Err(error) if matches!(error.kind(), ErrorKind::StreamTombstoned(_)) => {
                self.report.leave_out(METADATA);
                Ok(())
            }
            Err(error) if matches!(error.kind(), ErrorKind::InvalidArgument { .. }) => {
                self.cannot(&event, &error)
            }
            Err(error) => Err(error),
        }
    }

    /// Returns the metadata with `$tb` counted as the target counts, which has no events that the source has removed.
    /// What the target has is read anew, since the change before this one may have deleted the stream.
    async fn moved_truncation(&mut self, event: &SourceEvent, stream: &StreamId) -> Result<Bytes> {
        let metadata = StreamMetadata::parse(event.data.clone());
        let Some(before) = metadata.ok().and_then(|found| found.truncate_before) else {
            return Ok(event.data.clone());
        };
        let known = self.target.read_anew(&event.key, stream).await?;
        if known.closed {
            return Ok(event.data.clone());
        }
        let moved = self.target.revision_from(&event.key, before.0).await?;
        match moved {
            // Before the first event that comes nothing tells how the target will count; see `move_early_truncation`.
            None => Ok(event.data.clone()),
            Some(moved) => truncated(&event.data, moved),
        }
    }

    /// Counts `$tb` as the target counts, if it was set before the target had an event of the stream. `event` is the
    /// first one, and the source has removed those before it.
    pub(super) async fn move_early_truncation(&mut self, event: &SourceEvent) -> Result<()> {
        let Some(known) = self.target.known(&event.key) else {
            return Ok(());
        };
        let next = known.revision.map_or(0, |revision| revision.0 + 1);
        let stream = known.stream.clone();
        let metadata = self.target.metadata(&stream).await?;
        let Some(before) = metadata.truncate_before else {
            return Ok(());
        };
        let removed = event.sequence.saturating_sub(next);
        let document = truncated(metadata.json(), before.0.saturating_sub(removed).max(next))?;
        // The same each time, so that it is not moved twice.
        let id = id_of(self.options.kind, event).0;
        let id = EventId(uuid::Uuid::from_u128(id.as_u128() ^ EARLY));
        self.target
            .set_metadata(&event.key, &stream, id, document)
            .await?;
        let wanted = vec![(Arc::clone(&event.key), stream)];
        self.target.prepare(wanted).await
    }
}

/// Tells the id of a change that the import makes before an event from the id of the event.
const EARLY: u128 = 0x8a5f_1d34_c0be_4f7a_9d21_6be3_57f0_12c9;

/// Returns a document of metadata with another `$tb`.
fn truncated(document: &Bytes, before: u64) -> Result<Bytes> {
    let mut document: serde_json::Map<String, serde_json::Value> = serde_json::from_slice(document)
        .map_err(|error| Error::corrupt(format!("metadata of a stream: {error}")))?;
    document.insert("$tb".into(), before.into());
    Ok(serde_json::Value::Object(document).to_string().into())
}
