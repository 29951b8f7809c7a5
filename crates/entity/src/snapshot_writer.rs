//! Writes snapshots, in a task of its own.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;

use futures::FutureExt;
use gesta_core::{
    Append, ExpectedRevision, OwnerStore, Result, SetStreamMetadata, StreamId, StreamMetadata,
};
use tokio::sync::mpsc;

use crate::decider::Decider;
use crate::kind::EntityKind;
use crate::snapshot::{Ready, Snapshots, snapshot_stream};
use crate::stats::Counters;

/// The key in the metadata of a stream that says how many of its last events the stream keeps.
const MAX_COUNT: &str = "$maxCount";

/// Writes snapshots, one after the other, until nobody can send any more.
pub(crate) async fn write_all<D: Decider>(
    kind: Arc<EntityKind<D>>,
    store: Arc<dyn OwnerStore>,
    mut drafts: mpsc::Receiver<Ready<D>>,
    counters: Arc<Counters>,
) {
    while let Some(due) = drafts.recv().await {
        let Some(snapshots) = &kind.snapshots else {
            return;
        };
        let stream = due.stream.clone();
        // The state itself is the user's, and so is its end.
        let written = AssertUnwindSafe(write(snapshots, &*store, due)).catch_unwind();
        let left_out = match written.await {
            Ok(Ok(keys_left_out)) => {
                counters.snapshots_written.add(1);
                counters.keys_left_out.add(keys_left_out);
                continue;
            }
            Ok(Err(error)) => error.to_string(),
            Err(_) => "the end of the state has panicked".to_owned(),
        };
        counters.snapshots_left_out.add(1);
        tracing::warn!(%stream, why = left_out, "snapshot not written");
    }
}

/// Writes a snapshot. Returns how many keys had to be left out.
async fn write<D>(snapshots: &Snapshots<D>, store: &dyn OwnerStore, due: Ready<D>) -> Result<u64> {
    let stream = snapshot_stream(&due.stream)?;
    let (event, left_out) = snapshots.event(&due)?;
    keep_one(store, &stream).await?;
    let append = Append::to(stream, ExpectedRevision::Any, vec![event]);
    store.append(append).await?;
    Ok(left_out)
}

/// Makes a stream keep only its last snapshot, unless its metadata says how many it keeps. This is checked before each
/// snapshot, so that neither a crash nor a deletion of the stream leaves a stream that grows for ever.
async fn keep_one(store: &dyn OwnerStore, stream: &StreamId) -> Result<()> {
    let found = store.stream_metadata(stream.clone()).await?;
    if found.metadata.max_count.is_some() {
        return Ok(());
    }
    let unreadable = |error: serde_json::Error| gesta_core::Error::corrupt(error.to_string());
    let mut document: serde_json::Map<String, serde_json::Value> =
        serde_json::from_slice(found.metadata.json()).map_err(unreadable)?;
    document.insert(MAX_COUNT.to_owned(), 1.into());
    let document = serde_json::to_vec(&document).map_err(unreadable)?;
    let request = SetStreamMetadata {
        stream: stream.clone(),
        expected: ExpectedRevision::Any,
        metadata: StreamMetadata::parse(document)?,
    };
    store.set_stream_metadata(request).await.map(drop)
}
