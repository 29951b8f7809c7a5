//! What the runner does with a batch, for views and for projections alike: fold it, then write it.

use std::collections::HashSet;
use std::sync::Arc;

use gesta_core::Checkpoint;

use crate::batch::Batch;
use crate::error::ApplyError;
use crate::fault::{At, Fault, Verdict, Verdicts, at};
use crate::projection::Projection;
use crate::target::{Parked, Session, Target};

/// A batch that is ready to be written.
#[derive(Debug)]
pub(crate) struct Folded<O> {
    pub(crate) to: Checkpoint,
    /// All events of the batch, and the first of them.
    pub(crate) span: usize,
    pub(crate) first: Option<At>,
    /// Events that were folded, those that were put aside not among them.
    pub(crate) events: u64,
    pub(crate) caught_up: bool,
    pub(crate) parked: Vec<Parked>,
    pub(crate) hidden_fronts: u64,
    pub(crate) output: O,
}

impl<O> Folded<O> {
    /// True if nothing is to be written but the checkpoint.
    pub(crate) fn moves_only(&self) -> bool {
        self.events == 0 && self.parked.is_empty()
    }
}

/// How a batch is folded.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Fold<'a> {
    /// In order, with what was decided about events that could not be applied.
    InOrder(&'a Verdicts),
    /// Parked events that are applied again.
    Replay,
}

/// The part that is folded, in memory.
pub(crate) trait Work<T: Target>: Send + 'static {
    /// What folding gives.
    type Output: Send + Sync + 'static;
    /// The part that writes.
    type Writer: Writer<T, Output = Self::Output>;

    fn writer(&self) -> Self::Writer;

    /// Begins after the stored checkpoint, knowing nothing of the rows but whether there are none.
    fn begin(&mut self, parked_keys: HashSet<String>, is_empty: bool);

    /// True if the rows in memory are too many: once all batches are committed, [`forget`](Self::forget) is called.
    fn is_full(&self) -> bool;

    /// Forgets the rows in memory.
    fn forget(&mut self);

    /// Folds a batch. After an error the rows in memory are forgotten.
    fn fold(
        &mut self,
        batch: Batch,
        how: Fold<'_>,
    ) -> impl Future<Output = Result<Folded<Self::Output>, Fault>> + Send;
}

/// The part that writes, in the transaction.
pub(crate) trait Writer<T: Target>: Clone + Send + Sync + 'static {
    /// What folding gives.
    type Output: Send + Sync + 'static;
    /// Whether [`create`](Self::create) does anything.
    const CREATES: bool;

    /// Makes the tables of the version, in the open transaction. Called once.
    fn create(&self, session: &mut T::Session) -> impl Future<Output = Result<(), Fault>> + Send;

    /// Writes what was folded, in the open transaction.
    fn write(
        &self,
        session: &mut T::Session,
        output: &Self::Output,
    ) -> impl Future<Output = Result<(), Fault>> + Send;

    /// Deletes all rows and parked events, in the open transaction.
    fn clear(&self, session: &mut T::Session) -> impl Future<Output = Result<(), Fault>> + Send;
}

/// Makes the record of an event that is put aside.
pub(crate) fn parked(
    event: &gesta_core::RecordedEvent,
    key: Option<String>,
    verdict: Option<&Verdict>,
) -> Parked {
    Parked {
        log: event.log,
        position: event.position,
        key,
        event: event.id,
        error: verdict.map(|v| v.error.clone()).unwrap_or_default(),
        attempts: verdict.map_or(0, |v| v.attempts),
        at: gesta_core::Timestamp::default(),
    }
}

tokio::task_local! {
    static APPLYING: ();
}

/// Returns true within [`Projection::apply`].
pub(crate) fn is_applying() -> bool {
    APPLYING.try_with(|()| ()).is_ok()
}

/// The work of a [`Projection`]: nothing is folded, the author's code writes.
pub(crate) struct ProjectionWork<P>(pub(crate) Arc<P>);

impl<T: Target, P: Projection<T>> Work<T> for ProjectionWork<P> {
    type Output = Batch;
    type Writer = ProjectionWriter<P>;

    fn writer(&self) -> ProjectionWriter<P> {
        ProjectionWriter(Arc::clone(&self.0))
    }

    fn begin(&mut self, _: HashSet<String>, _: bool) {}

    fn is_full(&self) -> bool {
        false
    }

    fn forget(&mut self) {}

    async fn fold(&mut self, mut batch: Batch, how: Fold<'_>) -> Result<Folded<Batch>, Fault> {
        let mut aside = Vec::new();
        let (span, first) = (batch.len(), batch.first());
        if let Fold::InOrder(verdicts) = how
            && !verdicts.is_empty()
        {
            let mut n = 0;
            while n < batch.len() {
                let event = batch.event(n);
                match verdicts.get(&at(event)) {
                    Some(verdict) => {
                        aside.push(parked(event, None, Some(verdict)));
                        batch.take(n);
                    }
                    None => n += 1,
                }
            }
        }
        Ok(Folded {
            to: batch.to.clone(),
            span,
            first,
            events: u64::try_from(batch.len()).unwrap_or(u64::MAX),
            caught_up: batch.caught_up,
            parked: aside,
            hidden_fronts: 0,
            output: batch,
        })
    }
}

pub(crate) struct ProjectionWriter<P>(Arc<P>);

impl<P> Clone for ProjectionWriter<P> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

async fn author<T: Target>(
    work: impl Future<Output = Result<(), ApplyError>>,
) -> Result<(), Fault> {
    let done = APPLYING.scope((), work).await;
    done.map_err(|error| Fault::of_apply::<T>(&error))
}

impl<T: Target, P: Projection<T>> Writer<T> for ProjectionWriter<P> {
    type Output = Batch;
    const CREATES: bool = true;

    async fn create(&self, session: &mut T::Session) -> Result<(), Fault> {
        let transaction = session.transaction().map_err(Fault::of_writing)?;
        author::<T>(self.0.create(transaction)).await
    }

    async fn write(&self, session: &mut T::Session, batch: &Batch) -> Result<(), Fault> {
        if batch.is_empty() {
            return Ok(());
        }
        let transaction = session.transaction().map_err(Fault::of_writing)?;
        author::<T>(self.0.apply(transaction, batch)).await
    }

    async fn clear(&self, session: &mut T::Session) -> Result<(), Fault> {
        let transaction = session.transaction().map_err(Fault::of_writing)?;
        author::<T>(self.0.clear(transaction)).await?;
        session.clear(None).await.map_err(Fault::of_writing)
    }
}
