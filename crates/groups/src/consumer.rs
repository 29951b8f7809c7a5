//! A consumer: its queue of deliveries, and its side of the group.
//!
//! Invariants: the queue holds nothing but events that the group counts as held by the consumer, so it has the bound that
//! the consumer asked for; what a consumer loses by its time is taken out of the queue again. A consumer that is dropped
//! leaves at once, without a message that could be lost.

use std::collections::{HashSet, VecDeque};
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use futures::Stream;
use gesta_core::SharedEvent;
use tokio::sync::Notify;

use crate::commands::Commands;
use crate::error::{Error, Result};
use crate::machine::{Action, ConsumerId, Token, Which};
use crate::names::GroupId;

/// An event for a consumer.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Delivery {
    /// The number of the event in the group, for the answer.
    pub number: Token,
    /// The event.
    pub event: SharedEvent,
    /// How often it was delivered before without success.
    pub retries: u32,
}

/// What the group and one consumer share.
#[derive(Debug)]
pub(crate) struct Queue {
    inner: Mutex<Inner>,
    /// Tells the group that a consumer has left.
    departures: Arc<Notify>,
}

#[derive(Debug, Default)]
struct Inner {
    deliveries: VecDeque<Delivery>,
    ended: Option<Error>,
    has_left: bool,
    waker: Option<Waker>,
}

impl Queue {
    pub(crate) fn new(departures: Arc<Notify>) -> Arc<Self> {
        let inner = Mutex::default();
        Arc::new(Self { inner, departures })
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        // Nothing can panic while it is held.
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn push(&self, delivery: Delivery) {
        let mut inner = self.lock();
        inner.deliveries.push_back(delivery);
        let waker = inner.waker.take();
        drop(inner);
        waker.into_iter().for_each(Waker::wake);
    }

    /// Takes a delivery out again. False if the consumer has it already.
    pub(crate) fn withdraw(&self, token: Token) -> bool {
        let mut inner = self.lock();
        let before = inner.deliveries.len();
        inner.deliveries.retain(|delivery| delivery.number != token);
        inner.deliveries.len() < before
    }

    /// Ends it; what the consumer has not taken stays the group's.
    pub(crate) fn end(&self, why: Error) {
        let mut inner = self.lock();
        inner.deliveries.clear();
        inner.ended.get_or_insert(why);
        let waker = inner.waker.take();
        drop(inner);
        waker.into_iter().for_each(Waker::wake);
    }

    pub(crate) fn has_left(&self) -> bool {
        self.lock().has_left
    }

    /// What the consumer never took.
    pub(crate) fn drain(&self) -> HashSet<Token> {
        let deliveries = std::mem::take(&mut self.lock().deliveries);
        deliveries
            .into_iter()
            .map(|delivery| delivery.number)
            .collect()
    }

    fn leave(&self) {
        self.lock().has_left = true;
        self.departures.notify_one();
    }

    fn poll(&self, cx: &mut Context<'_>) -> Poll<Result<Delivery>> {
        let mut inner = self.lock();
        if let Some(delivery) = inner.deliveries.pop_front() {
            return Poll::Ready(Ok(delivery));
        }
        if let Some(why) = &inner.ended {
            return Poll::Ready(Err(why.clone()));
        }
        inner.waker = Some(cx.waker().clone());
        Poll::Pending
    }
}

/// A consumer of a group. Dropping it leaves the group: what it holds is delivered to others at once.
#[derive(Debug)]
pub struct Consumer {
    pub(crate) id: ConsumerId,
    pub(crate) group: GroupId,
    pub(crate) queue: Arc<Queue>,
    pub(crate) commands: Commands,
    pub(crate) has_ended: bool,
}

impl Consumer {
    /// The number that answers from elsewhere must carry.
    #[must_use]
    pub fn id(&self) -> ConsumerId {
        self.id
    }

    /// The group.
    #[must_use]
    pub fn group(&self) -> &GroupId {
        &self.group
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
        std::future::poll_fn(|cx| self.queue.poll(cx)).await
    }

    /// These events are finished. Returns for how many of them the answer came in time.
    ///
    /// # Errors
    /// `NoConsumer` if the consumer is not in the group any more.
    ///
    /// # Cancel safety
    /// Dropping the future may leave the answer given or not.
    pub async fn ack(&self, events: Vec<Which>) -> Result<usize> {
        self.commands.ack(&self.group, self.id, events).await
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
            .nack(&self.group, self.id, events, action, reason)
            .await
    }
}

impl Stream for Consumer {
    type Item = Result<Delivery>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        if self.has_ended {
            return Poll::Ready(None);
        }
        let polled = self.queue.poll(cx);
        self.has_ended = matches!(polled, Poll::Ready(Err(_)));
        polled.map(Some)
    }
}

impl Drop for Consumer {
    fn drop(&mut self) {
        self.queue.leave();
    }
}
