//! A consumer: its side of the group.

use std::pin::Pin;
use std::task::{Context, Poll};

use futures::Stream;

use crate::commands::Commands;
use crate::error::Result;
use crate::machine::{Action, ConsumerId, Which};
use crate::names::GroupId;
use crate::queue::{Delivery, Membership};

/// A consumer of a group. Dropping it leaves the group: what it holds is delivered to others at once.
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

    /// The number that answers from elsewhere must carry.
    #[must_use]
    pub fn id(&self) -> ConsumerId {
        self.membership.id
    }

    /// The group.
    #[must_use]
    pub fn group(&self) -> &GroupId {
        &self.membership.group
    }

    /// The next event.
    ///
    /// # Errors
    /// Why the consumer is not in the group any more: `Dropped`, `TakenOver`, `NotHere`, `NotFound` if the group was
    /// deleted, `Stopping`, `Store`. What it held is delivered again.
    ///
    /// # Cancel safety
    /// Dropping the future loses nothing.
    pub async fn next(&mut self) -> Result<Delivery> {
        std::future::poll_fn(|cx| self.membership.queue.poll(cx)).await
    }

    /// These events are finished. Returns for how many of them the answer came in time.
    ///
    /// # Errors
    /// `NoConsumer` if the consumer is not in the group any more.
    ///
    /// # Cancel safety
    /// Dropping the future may leave the answer given or not.
    pub async fn ack(&self, events: Vec<Which>) -> Result<usize> {
        self.commands
            .ack(&self.membership.group, self.membership.id, events)
            .await
    }

    /// These events are refused. Returns for how many of them the answer came in time.
    ///
    /// # Errors
    /// As [`Consumer::ack`].
    ///
    /// # Cancel safety
    /// As [`Consumer::ack`].
    pub async fn nack(&self, events: Vec<Which>, action: Action, reason: &str) -> Result<usize> {
        let reason = reason.to_owned();
        self.commands
            .nack(
                &self.membership.group,
                self.membership.id,
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
