//! The queue of deliveries between a group and one of its consumers, and the consumer's membership.
//!
//! Invariants: the queue holds nothing but events that the group counts as held by the consumer, so it has the bound
//! that the consumer asked for; an event that the consumer loses because its time is over is taken out of the queue
//! again. A membership that is dropped ends at once, without a message that could be lost.

use std::collections::{HashSet, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use gesta_core::SharedEvent;
use tokio::sync::Notify;

use crate::error::{Error, Result};
use crate::machine::{ConsumerId, Token};
use crate::names::GroupId;

/// An event that is delivered to a consumer.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Delivery {
    /// Number of the event in the group, which the answer names.
    pub number: Token,
    /// The event.
    pub event: SharedEvent,
    /// How many earlier deliveries of the event failed.
    pub retries: u32,
}

/// The queue that the group and one consumer share.
#[derive(Debug)]
pub(crate) struct Queue {
    inner: Mutex<Inner>,
    /// Tells the task of the group that a consumer has left.
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

    /// Takes a delivery out of the queue again. Returns false if the consumer has taken it already.
    pub(crate) fn withdraw(&self, token: Token) -> bool {
        let mut inner = self.lock();
        let before = inner.deliveries.len();
        inner.deliveries.retain(|delivery| delivery.number != token);
        inner.deliveries.len() < before
    }

    /// Ends the queue with the error `why`. Deliveries that the consumer has not taken are removed; the group still
    /// holds their events.
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

    /// Removes the deliveries that the consumer never took, and returns their numbers.
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

    pub(crate) fn poll(&self, cx: &mut Context<'_>) -> Poll<Result<Delivery>> {
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

/// The membership of a consumer in a group. Dropping it leaves the group.
#[derive(Debug)]
pub(crate) struct Membership {
    pub(crate) id: ConsumerId,
    pub(crate) group: GroupId,
    pub(crate) queue: Arc<Queue>,
}

impl Drop for Membership {
    fn drop(&mut self) {
        self.queue.leave();
    }
}
