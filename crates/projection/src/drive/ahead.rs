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

pub(super) async fn read_all(
    mut reader: Reader,
    batch_events_max: usize,
    batches: mpsc::Sender<gesta_core::Result<Batch>>,
) {
    loop {
        let read = reader.next(batch_events_max).await;
        let is_over = read.is_err();
        if batches.send(read).await.is_err() || is_over {
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
