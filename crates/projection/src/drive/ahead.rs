//! What is done ahead of the writer: pages are read, and batches folded, each in a task or on a thread of its own.

use std::panic::AssertUnwindSafe;

use futures::FutureExt;
use tokio::sync::{mpsc, watch};

use crate::batch::Batch;
use crate::fault::{Fault, Verdicts, panic_text};
use crate::reader::Reader;
use crate::target::Target;
use crate::work::{Fold, Folded, Work};

/// Runs a job in a task of its own, or on a thread for blocking work; a panic becomes its text.
pub(super) async fn on_thread<F>(blocks: bool, job: F) -> Result<F::Output, String>
where
    F: Future + Send + 'static,
    F::Output: Send + 'static,
{
    let done = if blocks {
        let handle = tokio::runtime::Handle::current();
        tokio::task::spawn_blocking(move || handle.block_on(job)).await
    } else {
        tokio::spawn(job).await
    };
    done.map_err(|error| match error.try_into_panic() {
        Ok(panic) => panic_text(&*panic),
        Err(error) => error.to_string(),
    })
}

/// Reads batch after batch, ahead of the writer while there is more to read. After one that has everything there was it
/// waits until that one is committed: what comes meanwhile could not be written before, and is one batch then instead
/// of several small ones that wait for each other's commits.
pub(super) async fn read_all(
    mut reader: Reader,
    batch_events_max: usize,
    batches: mpsc::Sender<gesta_core::Result<Batch>>,
    mut committed: watch::Receiver<u64>,
) {
    let mut sent = 0;
    loop {
        let read = reader.next(batch_events_max).await;
        let is_over = read.is_err();
        let has_all = read.as_ref().is_ok_and(|batch| batch.caught_up);
        if batches.send(read).await.is_err() || is_over {
            return;
        }
        sent += 1;
        let all_written = committed.wait_for(|committed| !has_all || *committed >= sent);
        if all_written.await.is_err() {
            return;
        }
    }
}

/// What was folded, or the fault and the number of events of the batch.
pub(super) type FoldedOrFault<O> = Result<Folded<O>, (Fault, usize)>;

pub(super) async fn fold_all<T: Target, W: Work<T>>(
    mut work: W,
    mut batches: mpsc::Receiver<gesta_core::Result<Batch>>,
    folded: mpsc::Sender<FoldedOrFault<W::Output>>,
    mut committed: watch::Receiver<u64>,
) {
    let mut sent = 0;
    while let Some(batch) = batches.recv().await {
        if work.is_full() {
            // What is read again must be what was folded: nothing may be on its way.
            if committed
                .wait_for(|committed| *committed >= sent)
                .await
                .is_err()
            {
                return;
            }
            work.forget();
        }
        let result = match batch {
            Err(error) => Err((Fault::Store(error), 0)),
            Ok(batch) => {
                let events = batch.len();
                match fold::<T, W>(work, batch, Verdicts::new()).await {
                    (Some(same), result) => {
                        work = same;
                        result.map_err(|fault| (fault, events))
                    }
                    (None, result) => {
                        let failed = result.map_err(|fault| (fault, events));
                        let _ = folded.send(failed).await;
                        return;
                    }
                }
            }
        };
        let is_over = result.is_err();
        if folded.send(result).await.is_err() || is_over {
            return;
        }
        sent += 1;
    }
}

/// Folds a batch, on a thread for blocking work if reading rows blocks. The work is gone if the author's code has
/// panicked where the event is not known: as it compares keys, for example.
pub(super) async fn fold<T: Target, W: Work<T>>(
    mut work: W,
    batch: Batch,
    verdicts: Verdicts,
) -> (Option<W>, Result<Folded<W::Output>, Fault>) {
    let blocks = T::BLOCKING && !batch.is_empty();
    // Boxed, as are the parts of a session: they are large, and the stack of a thread is not.
    let job = Box::pin(async move {
        let folded = work.fold(batch, Fold::InOrder(&verdicts)).await;
        (work, folded)
    });
    let job = AssertUnwindSafe(job).catch_unwind();
    let done = match blocks {
        true => on_thread(true, job).await,
        false => Ok(job.await),
    };
    let done = done.and_then(|done| done.map_err(|panic| panic_text(&*panic)));
    match done {
        Ok((work, folded)) => (Some(work), folded),
        Err(panic) => (None, Err(Fault::Author(None, panic))),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use gesta_core::{Append, Checkpoint, EventData, EventStore, ExpectedRevision, Filter};
    use gesta_memory::MemoryStore;

    use super::*;

    async fn append(store: &dyn EventStore, events: usize) {
        for _ in 0..events {
            let stream = "a-1".parse().expect("a stream");
            let event = EventData::json("noted".parse().expect("a type"), "{}");
            let append = Append::to(stream, ExpectedRevision::Any, vec![event]);
            store.append(append).await.expect("appended");
            // The reader takes the event if it may.
            for _ in 0..100 {
                tokio::task::yield_now().await;
            }
        }
    }

    /// What happened: when live, each event that came while a batch was written became a batch of its own, up to five
    /// of them, so that an event waited for six commits. What holds: it waits for the commit before its own alone.
    #[tokio::test]
    async fn what_comes_while_a_batch_is_written_is_one_batch() {
        let store: Arc<dyn EventStore> = Arc::new(MemoryStore::new());
        let info = store.info().await.expect("info");
        let start = Checkpoint::logs(info.incarnation, info.heads);
        let reader = Reader::new(Arc::clone(&store), Filter::ALL, start, 100);
        let (batches_in, mut batches) = mpsc::channel(8);
        let committed = watch::Sender::new(0);
        tokio::spawn(read_all(reader, 100, batches_in, committed.subscribe()));
        // Commits what is handed out until there is a batch with events, which is returned uncommitted.
        let mut next = async || loop {
            let batch = batches.recv().await.expect("a batch").expect("no error");
            if !batch.is_empty() {
                return batch.len();
            }
            committed.send_modify(|committed| *committed += 1);
        };
        let mut live = Vec::new();
        tokio::join!(async { live.push(next().await) }, append(&*store, 1));
        for events in [3, 2] {
            append(&*store, events).await;
            committed.send_modify(|committed| *committed += 1);
            live.push(next().await);
        }
        assert_eq!(live, [1, 3, 2]);
    }
}
