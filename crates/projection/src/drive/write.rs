//! One transaction of an owner: the fence first, then everything that belongs together, then the commit.

use gesta_core::Checkpoint;

use crate::fault::{At, Fault};
use crate::target::{Fence, Parked, Session, Target};
use crate::work::{Folded, Writer};

/// What one transaction does.
pub(super) struct Write<O> {
    /// The checkpoint that is stored.
    pub(super) to: Checkpoint,
    pub(super) events: u64,
    /// Make the tables, and show them to readers by these names.
    pub(super) create: Option<Vec<String>>,
    pub(super) clear: bool,
    pub(super) output: Option<O>,
    pub(super) park: Vec<Parked>,
    pub(super) unpark: Vec<At>,
    /// Answer a command.
    pub(super) reply: Option<(i64, String)>,
}

impl<O> Write<O> {
    /// Stores this checkpoint and nothing else, so far.
    pub(super) fn at(to: Checkpoint) -> Self {
        Self {
            to,
            events: 0,
            create: None,
            clear: false,
            output: None,
            park: Vec::new(),
            unpark: Vec::new(),
            reply: None,
        }
    }

    /// Writes a batch.
    pub(super) fn batch(folded: Folded<O>) -> Self {
        Self {
            events: folded.events,
            output: Some(folded.output),
            park: folded.parked,
            ..Self::at(folded.to)
        }
    }
}

/// Runs the transaction. After an error nothing of it is there, unless the commit is in doubt.
pub(super) async fn transact<T: Target, W: Writer<T>>(
    session: &mut T::Session,
    writer: &W,
    (from, events_before): (&Checkpoint, i64),
    write: &Write<W::Output>,
) -> Result<(), Fault> {
    let fence = Fence {
        from,
        to: &write.to,
        events_before,
        events: write.events,
    };
    session.open(fence).await.map_err(Fault::Target)?;
    let done = in_transaction::<T, W>(session, writer, write).await;
    if done.is_err() {
        session.roll_back().await;
        return done.map_err(Fault::within_the_fence);
    }
    let committed = session.commit().await.map_err(Fault::of_writing);
    committed.map_err(Fault::within_the_fence)
}

async fn in_transaction<T: Target, W: Writer<T>>(
    session: &mut T::Session,
    writer: &W,
    write: &Write<W::Output>,
) -> Result<(), Fault> {
    if let Some(show) = &write.create {
        writer.create(session).await?;
        if !show.is_empty() {
            session.show(show).await.map_err(Fault::of_writing)?;
        }
    }
    if write.clear {
        writer.clear(session).await?;
    }
    if let Some(output) = &write.output {
        writer.write(session, output).await?;
    }
    if !write.park.is_empty() {
        session.park(&write.park).await.map_err(Fault::of_keeping)?;
    }
    if !write.unpark.is_empty() {
        session
            .unpark(&write.unpark)
            .await
            .map_err(Fault::of_keeping)?;
    }
    if let Some((number, answer)) = &write.reply {
        session
            .reply(*number, answer)
            .await
            .map_err(Fault::of_keeping)?;
    }
    Ok(())
}
