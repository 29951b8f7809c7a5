//! A consumer as the caller that has joined a group sees it.

use std::pin::Pin;
use std::task::{Context, Poll};

use futures::Stream;

use crate::commands::Commands;
use crate::error::Result;
use crate::machine::{Action, ConsumerId, Which};
use crate::names::GroupId;
use crate::queue::{Delivery, Membership};

/// A consumer of a group. Dropping it leaves the group: the events that it holds are delivered to other consumers at
/// once.
#[derive(Debug)]
pub struct Consumer {
    membership: Membership,
    commands: Commands,
    has_ended: bool,
}

impl Consumer {
    pub(crate) fn new(membership: Membership, commands: Commands) -> Self {
        Self {
            membership,
            commands,
            has_ended: false,
        }
    }

    /// Returns the number of this consumer, which an answer that comes another way must carry
    /// ([`Groups::ack`](crate::Groups::ack)).
    #[must_use]
    pub fn id(&self) -> ConsumerId {
        self.membership.id
    }

    /// Returns the group that the consumer has joined.
    #[must_use]
    pub fn group(&self) -> &GroupId {
        &self.membership.group
    }

    /// Waits for the next event.
    ///
    /// # Errors
    /// The reason why the consumer is not in the group any more: `Dropped`, `TakenOver`, `NotHere`, `NotFound` if the
    /// group was deleted, `Stopping`, `Store`. The events that it held are delivered again.
    ///
    /// # Cancel safety
    /// Dropping the future loses no event.
    pub async fn next(&mut self) -> Result<Delivery> {
        std::future::poll_fn(|cx| self.membership.queue.poll(cx)).await
    }

    /// Acknowledges these events, which the consumer has finished. Returns for how many of them the answer came in
    /// time.
    ///
    /// # Errors
    /// `NoConsumer` if the consumer is not in the group any more.
    ///
    /// # Cancel safety
    /// If the future is dropped, the answer is given or not.
    pub async fn ack(&self, events: Vec<Which>) -> Result<usize> {
        self.commands
            .ack(&self.membership.group, self.membership.id.into(), events)
            .await
    }

    /// Refuses these events. Returns for how many of them the answer came in time. `reason` is kept with an event that
    /// is parked at the wish of the consumer.
    ///
    /// # Errors
    /// The errors of [`Consumer::ack`].
    ///
    /// # Cancel safety
    /// If the future is dropped, the answer is given or not.
    pub async fn nack(&self, events: Vec<Which>, action: Action, reason: &str) -> Result<usize> {
        let reason = reason.to_owned();
        self.commands
            .nack(
                &self.membership.group,
                self.membership.id.into(),
                events,
                action,
                reason,
            )
            .await
    }
}

impl Stream for Consumer {
    type Item = Result<Delivery>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        if self.has_ended {
            return Poll::Ready(None);
        }
        let polled = self.membership.queue.poll(cx);
        self.has_ended = matches!(polled, Poll::Ready(Err(_)));
        polled.map(Some)
    }
}
