//! A subscription that delivers what its caller may see, and ends when the rights of the caller do.

use futures::stream;
use gesta_core::{Checkpoint, Result, StreamId, Subscription, SubscriptionMessage};
use tokio::sync::watch;

use super::Guarded;
use crate::rights::Operation;

/// After so many events were left out, a checkpoint is delivered, so that a reader who may see little gets on.
const LEFT_OUT_MAX: usize = 1_000;

struct Running {
    guarded: Guarded,
    inner: Subscription,
    /// The stream that is followed; `None` if all events are.
    stream: Option<StreamId>,
    changes: watch::Receiver<u64>,
    left_out: usize,
    has_ended: bool,
}

pub(super) fn guarded(
    guarded: Guarded,
    inner: Subscription,
    stream: Option<StreamId>,
    changes: watch::Receiver<u64>,
) -> Subscription {
    let running = Running {
        guarded,
        inner,
        stream,
        changes,
        left_out: 0,
        has_ended: false,
    };
    Subscription::new(stream::unfold(running, |mut running| async {
        let message = running.next().await?;
        running.has_ended = message.is_err();
        Some((message, running))
    }))
}

impl Running {
    async fn next(&mut self) -> Option<Result<SubscriptionMessage>> {
        if self.has_ended {
            return None;
        }
        loop {
            let wait = self.guarded.wait();
            tokio::select! {
                biased;
                changed = self.changes.changed() => {
                    let operation = self.stream.as_ref().map_or(Operation::ReadMany, Operation::Read);
                    let checked = match changed {
                        Ok(()) => self.guarded.check(operation).await,
                        Err(_) => Err(gesta_core::Error::unavailable("the accounts are no longer followed")),
                    };
                    if let Err(error) = checked {
                        return Some(Err(error));
                    }
                }
                // A user who has had too much is told of changes of rights, but gets no more events.
                () = tokio::time::sleep(wait.unwrap_or_default()), if wait.is_some() => {}
                message = self.inner.next(), if wait.is_none() => match self.shown(message?).await {
                    Ok(None) => {}
                    Ok(Some(message)) => return Some(Ok(message)),
                    Err(error) => return Some(Err(error)),
                },
            }
        }
    }

    /// Returns what the caller gets of a message; `None` if nothing.
    async fn shown(
        &mut self,
        message: Result<SubscriptionMessage>,
    ) -> Result<Option<SubscriptionMessage>> {
        let (event, checkpoint) = match message? {
            SubscriptionMessage::Event { event, checkpoint } => (event, checkpoint),
            other => {
                self.left_out = 0;
                return Ok(Some(other));
            }
        };
        let access = &self.guarded.access.shared;
        match &self.stream {
            // Events of one stream are delivered or the subscription ends; only links to hidden events are left out.
            Some(stream) => {
                self.guarded.check(Operation::Read(stream)).await?;
                if stream.is_virtual() && !self.guarded.may_follow(&event).await? {
                    return Ok(self.leave_out(checkpoint));
                }
            }
            None if !access.shows(&self.guarded.caller, &event).await? => {
                return Ok(self.leave_out(checkpoint));
            }
            None => {}
        }
        self.left_out = 0;
        self.guarded.had(event.payload_bytes());
        Ok(Some(SubscriptionMessage::Event { event, checkpoint }))
    }

    fn leave_out(&mut self, checkpoint: Checkpoint) -> Option<SubscriptionMessage> {
        self.left_out += 1;
        if self.left_out < LEFT_OUT_MAX {
            return None;
        }
        self.left_out = 0;
        Some(SubscriptionMessage::Checkpoint(checkpoint))
    }
}
