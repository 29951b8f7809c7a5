//! Writes snapshots, in a task of its own.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;

use futures::FutureExt;
use gesta_core::system_streams::keep_last;
use gesta_core::{Append, ErrorKind, ExpectedRevision, OwnerStore, Result, StreamId};
use tokio::sync::mpsc;

use crate::decider::Decider;
use crate::kind::EntityKind;
use crate::snapshot::{Ready, Snapshots, snapshot_stream};
use crate::stats::Counters;

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
    let Some(request) = keep_last(stream, &found, 1)? else {
        return Ok(());
    };
    match store.set_stream_metadata(request).await {
        // Somebody else has changed them meanwhile. The next snapshot looks again.
        Err(error) if matches!(error.kind(), ErrorKind::WrongExpectedRevision { .. }) => Ok(()),
        set => set.map(drop),
    }
}
