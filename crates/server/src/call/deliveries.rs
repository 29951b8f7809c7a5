//! Deliveries to the consumer of a group as its caller may see them, over HTTP and gRPC alike.
//!
//! A group reads its source for all of its consumers. A delivery may show more than the event of the source: the event
//! to which a link leads, and the stream that a link of a virtual stream names. The caller who gets the delivery must
//! be allowed to read these. A caller who may not read them leaves the group, and the event goes to a consumer who may.
//! Nothing is passed over because of the rights of one consumer.
//! Invariants: a link that leads nowhere, for any caller, is finished; the bytes of what was delivered are counted for
//! the caller's user; why the store fails is told to those alone who look after the server.
//! Not here: which event goes to whom (`gesta_groups`), how deliveries are written (`sse`, `grpc`).

use std::sync::Arc;
use std::time::Duration;

use futures::future::BoxFuture;
use futures::stream::{self, BoxStream, StreamExt};
use gesta_access::Operation;
use gesta_core::{Error, ErrorKind, LinkTarget, Resolved, SharedEvent};
use gesta_groups::{Consumer, Delivery, GroupId, GroupInfo, Source, Token, Which};

use crate::call::Admitted;
use crate::shared::problem::{Problem, Result};
use crate::state::State;

/// What a caller may see of a group.
#[derive(Clone)]
pub(crate) struct Deliveries {
    state: Arc<State>,
    admitted: Admitted,
    /// True if the group is to deliver the events to which links lead.
    resolve_links: bool,
    /// True if the source names streams that the caller may not be allowed to know.
    is_virtual: bool,
}

/// A delivery as the caller sees it.
pub(crate) struct Shown {
    pub(crate) number: Token,
    pub(crate) resolved: Resolved,
    pub(crate) retries: u32,
}

impl Deliveries {
    pub(crate) fn new(state: &Arc<State>, admitted: &Admitted, info: &GroupInfo) -> Self {
        Self {
            state: Arc::clone(state),
            admitted: admitted.clone(),
            resolve_links: info.settings.resolve_links,
            is_virtual: match info.group.source() {
                Source::Stream(stream) => stream.is_virtual(),
                Source::All => false,
            },
        }
    }

    /// Returns how long the caller's user has to wait for more events.
    pub(crate) fn wait(&self) -> Option<Duration> {
        self.admitted.wait()
    }

    /// Returns what the caller sees of a delivery; `None` if the delivery is a link that leads nowhere, with which no
    /// consumer could do anything.
    pub(crate) async fn shown(&self, delivery: &Delivery) -> gesta_core::Result<Option<Shown>> {
        let event = &delivery.event;
        let shown = |resolved: Resolved| {
            self.admitted.had(resolved.event.payload_bytes());
            Some(Shown {
                number: delivery.number,
                resolved,
                retries: delivery.retries,
            })
        };
        let Some(target) = LinkTarget::of(event) else {
            return Ok(shown(Resolved::itself(Arc::clone(event))));
        };
        if self.resolve_links || self.is_virtual {
            self.check(&target).await?;
        }
        if !self.resolve_links {
            return Ok(shown(Resolved::itself(Arc::clone(event))));
        }
        // Not as the caller: whether it leads anywhere must not depend on who asks.
        Ok(self.follow(event).await?.and_then(shown))
    }

    async fn follow(&self, event: &SharedEvent) -> gesta_core::Result<Option<Resolved>> {
        let found = self.state.store.resolve(vec![Arc::clone(event)]).await;
        let found = found.map_err(|error| self.admitted.told(error))?;
        Ok(found
            .into_iter()
            .next()
            .filter(|found| found.link.is_some()))
    }

    /// Refuses a caller who may not read the event to which a link leads. The refusal does not name that event.
    async fn check(&self, target: &LinkTarget) -> gesta_core::Result<()> {
        let consume = Operation::Consume(&target.stream);
        let checked = self.admitted.check(&self.state, consume).await;
        checked.map_err(|error| match error.kind() {
            ErrorKind::Forbidden(_) => Error::new(ErrorKind::Forbidden(
                "the group delivers a link to an event that the caller may not read".into(),
            )),
            _ => error,
        })
    }

    /// Returns the error with which deliveries end as the caller may be told it.
    pub(crate) fn ended(&self, error: gesta_groups::Error) -> gesta_groups::Error {
        self.admitted.told_of_group(error)
    }

    /// Acknowledges the delivery of a link that leads nowhere.
    pub(crate) async fn pass_over(
        &self,
        group: &GroupId,
        consumer: &Consumer,
        number: Token,
    ) -> gesta_groups::Result<()> {
        let done = vec![Which::Delivery(number)];
        let acked = self.state.groups.ack(group, consumer.id(), done).await;
        acked.map(drop).map_err(|error| self.ended(error))
    }
}

/// A consumer over HTTP.
struct Consuming {
    deliveries: Deliveries,
    consumer: Consumer,
    /// Ends with an error when the caller may not read any more.
    forbidden: BoxFuture<'static, Error>,
}

/// Returns the deliveries of a consumer until it has left its group.
pub(crate) fn deliveries(
    deliveries: Deliveries,
    consumer: Consumer,
    forbidden: BoxFuture<'static, Error>,
) -> BoxStream<'static, Result<Shown>> {
    let consuming = Consuming {
        deliveries,
        consumer,
        forbidden,
    };
    let shown = stream::unfold(Some(consuming), |consuming| async {
        let mut consuming = consuming?;
        match consuming.next().await {
            Ok(shown) => Some((Ok(shown), Some(consuming))),
            Err(problem) => Some((Err(problem), None)),
        }
    });
    shown.boxed()
}

impl Consuming {
    async fn next(&mut self) -> Result<Shown> {
        loop {
            let wait = self.deliveries.wait();
            let delivery = tokio::select! {
                biased;
                error = &mut self.forbidden => return Err(Problem::from(error)),
                () = tokio::time::sleep(wait.unwrap_or_default()), if wait.is_some() => continue,
                delivery = self.consumer.next(), if wait.is_none() => {
                    delivery.map_err(|error| self.deliveries.ended(error))?
                }
            };
            if let Some(shown) = self.deliveries.shown(&delivery).await? {
                return Ok(shown);
            }
            let group = self.consumer.group().clone();
            let passed = self
                .deliveries
                .pass_over(&group, &self.consumer, delivery.number);
            passed.await?;
        }
    }
}
