//! Scavenging removes for good what deletes, tombstones and metadata hide.
//!
//! A scavenge walks the metadata streams, because a stream without one hides nothing. Metadata streams themselves are
//! kept.
//! Not here: how rows are removed, and how a stream keeps its next revision (the backends).

use gesta_core::backend::{Removed, RunMode, StreamHead};
use gesta_core::{Error, Lifecycle, Result, StreamId, Visibility};

use crate::Store;

/// Number of metadata streams that are looked at together.
const STREAMS_AT_ONCE: usize = 500;

/// Progress of a scavenge.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ScavengeProgress {
    /// Number of streams with metadata that were looked at so far.
    pub streams: u64,
    /// Stream that was looked at last.
    pub stream: StreamId,
    /// What was removed so far, or would be.
    pub removed: Removed,
}

/// Result of a scavenge.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ScavengeReport {
    /// Whether events were removed or only counted.
    pub mode: RunMode,
    /// Number of streams with metadata that were looked at.
    pub streams: u64,
    /// Number of streams of which something was removed, or would be.
    pub streams_changed: u64,
    /// What was removed, or would be.
    pub removed: Removed,
    /// Number of streams whose metadata cannot be read. Nothing of them was removed.
    pub streams_unreadable: u64,
}

impl Store {
    /// Removes the events that deletes, tombstones and metadata hide, stream by stream. It calls `progress` after each
    /// stream.
    ///
    /// A scavenge may run while the store is in use, and again after it was interrupted.
    ///
    /// # Errors
    /// `Unavailable` if the database does not answer or the history of the store has changed; `Unsupported` if the
    /// retention role is missing; `Corrupt` if stored data cannot be read.
    ///
    /// # Cancel safety
    /// Dropping the future ends the scavenge, possibly half way through a stream. What was removed stays removed; a
    /// later scavenge goes on.
    pub async fn scavenge(
        &self,
        mode: RunMode,
        mut progress: impl FnMut(&ScavengeProgress) + Send,
    ) -> Result<ScavengeReport> {
        let mut report = ScavengeReport {
            mode,
            streams: 0,
            streams_changed: 0,
            removed: Removed::default(),
            streams_unreadable: 0,
        };
        let history = self.backend.history();
        let mut after = None;
        loop {
            let names = self.metadata_streams(after.as_ref()).await?;
            let Some(last) = names.last() else {
                return Ok(report);
            };
            after = Some(last.clone());
            let described = names.iter().filter_map(StreamId::described_stream);
            let described: Vec<StreamId> = described.collect();
            let looked = self.look_up_all(&described).await?;
            for (stream, looked) in described.into_iter().zip(looked) {
                if self.backend.history() != history {
                    // The rows of the streams are other streams' now.
                    let changed = "the history of the store has changed: start again";
                    return Err(Error::unavailable(changed).during("scavenge"));
                }
                let removed = match &looked.lifecycle {
                    Ok(lifecycle) => {
                        self.scavenge_stream(&stream, looked.head, lifecycle, mode)
                            .await?
                    }
                    Err(_) => {
                        report.streams_unreadable += 1;
                        Removed::default()
                    }
                };
                report.streams += 1;
                report.streams_changed += u64::from(removed.events > 0);
                report.removed.events += removed.events;
                report.removed.payload_bytes += removed.payload_bytes;
                progress(&ScavengeProgress {
                    streams: report.streams,
                    stream,
                    removed: report.removed,
                });
            }
        }
    }

    async fn metadata_streams(&self, after: Option<&StreamId>) -> Result<Vec<StreamId>> {
        self.check_open()?;
        let names = self
            .backend
            .list_streams("$$", after, STREAMS_AT_ONCE)
            .await;
        names.map_err(|error| error.during("scavenge"))
    }

    async fn scavenge_stream(
        &self,
        stream: &StreamId,
        head: Option<StreamHead>,
        lifecycle: &Lifecycle,
        mode: RunMode,
    ) -> Result<Removed> {
        let Some(head) = head else {
            return Ok(Removed::default());
        };
        let visible = if lifecycle.tombstoned {
            Visibility {
                from: head.last.next(),
                created_from: None,
            }
        } else {
            lifecycle.visibility(head.last, self.clock.now())
        };
        if visible == Visibility::default() {
            return Ok(Removed::default());
        }
        // A limit far above the last revision would also hide what is appended meanwhile.
        let visible = Visibility {
            from: visible.from.min(head.last.next()),
            ..visible
        };
        let removed = self
            .backend
            .remove_hidden(self.log_of(stream), head.row, visible, mode)
            .await;
        removed.map_err(|error| error.during("scavenge"))
    }
}
