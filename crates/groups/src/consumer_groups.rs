//! Consumer groups as a program uses them, wherever they run: in this process, or on a server.
//!
//! Why: a program that begins with an embedded store and moves to a server changes a URL, not its code.
//! Invariant: the same call gives the same answer, here and over the network.
//! Not here: what only a process that runs groups can do ([`Groups`]).

use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use async_trait::async_trait;
use futures::Stream;
use futures::stream::{self, BoxStream, StreamExt};
use gesta_core::{EventStore, LinkTarget};

use crate::changes::Create;
use crate::commands::JoinGroup;
use crate::consumer::Consumer;
use crate::document::Group;
use crate::error::Result;
use crate::groups::Groups;
use crate::info::Identity;
use crate::machine::{Action, ConsumerId, Which};
use crate::names::{GroupId, Source};
use crate::queue::Delivery;
use crate::reset::ResetTo;
use crate::settings::Settings;

/// The consumer groups of a store: those of this process ([`Groups`]), or those of a server.
///
/// # Examples
/// ```
/// # use gesta_core::{EventData, EventStoreExt, ExpectedRevision};
/// # use gesta_groups::*;
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<()> {
/// # let store = std::sync::Arc::new(gesta_memory::MemoryStore::new());
/// # store.append_to("cart-1", ExpectedRevision::Any, [EventData::new("item-added", "book")?]).await?;
/// let groups: Box<dyn ConsumerGroups> = Box::new(Groups::start(store, Config::default()));
/// let mail = GroupId::new("cart-1", "mail")?;
/// groups.create(&Create::new(mail.clone())).await?;
///
/// let mut consumer = groups.join(&mail, 10, "worker-1").await?;
/// while let Some(delivery) = consumer.next().await {
///     let delivery = delivery?;
///     println!("{} for the {}th time", delivery.event.event_type, delivery.retries + 1);
///     consumer.ack(&delivery).await?;
/// #   break;
/// }
/// # Ok(()) }
/// ```
#[async_trait]
pub trait ConsumerGroups: Send + Sync + 'static {
    /// Creates a group and returns it.
    ///
    /// # Errors
    /// `Exists` if there is such a group; `NotHere` if another node runs it; `Overloaded`; `Store`: `InvalidArgument`
    /// if a setting or the filter is out of range, `Unsupported` for a group on all events of a store of several logs.
    ///
    /// # Cancel safety
    /// If the future is dropped, the group is created or not.
    async fn create(&self, create: &Create) -> Result<Group>;

    /// Replaces all settings of a group and returns it. Its consumers are told to join again.
    ///
    /// # Errors
    /// `NotFound` if there is no such group; `NotHere`; `Overloaded`; `Store`.
    ///
    /// # Cancel safety
    /// If the future is dropped, the settings are replaced or not.
    async fn update(&self, group: &GroupId, settings: &Settings) -> Result<Group>;

    /// Deletes a group with its checkpoint and its parked events. Its consumers are told.
    ///
    /// # Errors
    /// `NotFound` if there is no such group; `NotHere`; `Overloaded`; `Store`.
    ///
    /// # Cancel safety
    /// If the future is dropped, the group is deleted or not.
    async fn delete(&self, group: &GroupId) -> Result<()>;

    /// Returns what a group is and does now.
    ///
    /// # Errors
    /// `NotFound` if there is no such group; `NotHere`; `Store`.
    ///
    /// # Cancel safety
    /// Dropping the future changes nothing.
    async fn info(&self, group: &GroupId) -> Result<Group>;

    /// Lists the groups of a source, or all groups, in the order of their names: those after `after`, at most `limit`.
    ///
    /// # Errors
    /// `Store`: `InvalidArgument` if `limit` is out of range.
    ///
    /// # Cancel safety
    /// Dropping the future changes nothing.
    async fn list(
        &self,
        source: Option<&Source>,
        after: Option<&GroupId>,
        limit: usize,
    ) -> Result<Vec<GroupId>>;

    /// Joins a group as a consumer that holds at most `buffer` events at a time. The name is shown to people who look
    /// at the group.
    ///
    /// # Errors
    /// `NotFound` if there is no such group; `Refused` if the group has no room for the consumer; `Halted` if its place
    /// is not of the present history of the store; `NotHere`; `Dropped`; `TakenOver`; `Overloaded`; `Store`.
    ///
    /// # Cancel safety
    /// If the future is dropped, the consumer leaves again.
    async fn join(&self, group: &GroupId, buffer: u32, name: &str) -> Result<GroupConsumer>;

    /// Acknowledges events for a consumer: they are finished. Returns for how many of them the answer came in time.
    ///
    /// # Errors
    /// `NoConsumer` if the consumer has left the group; `NotHere`; `Store`.
    ///
    /// # Cancel safety
    /// If the future is dropped, the answer is given or not.
    async fn ack(&self, group: &GroupId, consumer: ConsumerId, events: &[Which]) -> Result<usize>;

    /// Refuses events for a consumer. Returns for how many of them the answer came in time.
    ///
    /// # Errors
    /// Those of [`ack`](Self::ack).
    ///
    /// # Cancel safety
    /// If the future is dropped, the answer is given or not.
    async fn nack(
        &self,
        group: &GroupId,
        consumer: ConsumerId,
        events: &[Which],
        action: Action,
        reason: &str,
    ) -> Result<usize>;

    /// Delivers parked events again: those before revision `stop_at` of the parked stream, or all of them.
    ///
    /// # Errors
    /// `NotFound` if there is no such group; `ReplayRunning` if another replay is not finished; `NotHere`;
    /// `Overloaded`; `Store`.
    ///
    /// # Cancel safety
    /// If the future is dropped, the replay begins or not.
    async fn replay_parked(&self, group: &GroupId, stop_at: Option<u64>) -> Result<()>;

    /// Lets a group go on at another place, whatever it has finished, and returns it.
    ///
    /// # Errors
    /// `NotFound` if there is no such group; `NotHere`; `Overloaded`; `Store`: `InvalidArgument` if the place is beyond
    /// the end of the source, or if the group knows no place that survives.
    ///
    /// # Cancel safety
    /// If the future is dropped, the group is moved or not.
    async fn reset(&self, group: &GroupId, to: ResetTo) -> Result<Group>;
}

/// A consumer of a group. Dropping it leaves the group: the events that it holds are delivered to others at once.
pub struct GroupConsumer {
    groups: Arc<dyn ConsumerGroups>,
    group: GroupId,
    id: ConsumerId,
    deliveries: BoxStream<'static, Result<Delivery>>,
}

impl GroupConsumer {
    /// Makes the consumer that has joined a group of these groups, of what is delivered to it. For who implements
    /// [`ConsumerGroups`].
    #[must_use]
    pub fn new(
        groups: Arc<dyn ConsumerGroups>,
        group: GroupId,
        id: ConsumerId,
        deliveries: impl Stream<Item = Result<Delivery>> + Send + 'static,
    ) -> Self {
        Self {
            groups,
            group,
            id,
            deliveries: deliveries.fuse().boxed(),
        }
    }

    /// Returns the id of the consumer, which an answer that comes another way must carry ([`ConsumerGroups::ack`]).
    #[must_use]
    pub fn id(&self) -> ConsumerId {
        self.id
    }

    /// Returns the group that the consumer has joined.
    #[must_use]
    pub fn group(&self) -> &GroupId {
        &self.group
    }

    /// Waits for the next event. Returns `None` once the consumer has left the group with an error.
    ///
    /// # Errors
    /// The reason why the consumer is not in the group any more: `Dropped`, `TakenOver`, `NotHere`, `NotFound` if the
    /// group was deleted, `Silent`, `Stopping`, or `Store`, with `Unavailable` if a connection broke. The events that
    /// it held are delivered again.
    ///
    /// # Cancel safety
    /// Dropping the future loses no event.
    pub async fn next(&mut self) -> Option<Result<Delivery>> {
        self.deliveries.next().await
    }

    /// Acknowledges an event: it is finished. Returns false if the answer came too late, so that the event is, or was,
    /// delivered again.
    ///
    /// # Errors
    /// Those of [`ConsumerGroups::ack`].
    ///
    /// # Cancel safety
    /// If the future is dropped, the answer is given or not.
    pub fn ack(&self, delivery: &Delivery) -> impl Future<Output = Result<bool>> + Send + use<> {
        let answer = self.answer(vec![Which::from(delivery)]);
        async move { Ok(answer.await? > 0) }
    }

    /// Acknowledges several events together. Returns for how many of them the answer came in time.
    ///
    /// # Errors
    /// Those of [`ConsumerGroups::ack`].
    ///
    /// # Cancel safety
    /// If the future is dropped, the answer is given or not.
    pub fn ack_all<'a>(
        &self,
        deliveries: impl IntoIterator<Item = &'a Delivery>,
    ) -> impl Future<Output = Result<usize>> + Send {
        self.answer(deliveries.into_iter().map(Which::from).collect())
    }

    /// The future holds no reference to the consumer, which is no value that two threads may share.
    fn answer(&self, which: Vec<Which>) -> impl Future<Output = Result<usize>> + Send + use<> {
        let (groups, group, id) = (Arc::clone(&self.groups), self.group.clone(), self.id);
        async move { groups.ack(&group, id, &which).await }
    }

    /// Refuses an event. Returns false if the answer came too late. The reason is kept with an event that is parked.
    ///
    /// # Errors
    /// Those of [`ConsumerGroups::ack`].
    ///
    /// # Cancel safety
    /// If the future is dropped, the answer is given or not.
    pub fn nack(
        &self,
        delivery: &Delivery,
        action: Action,
        reason: &str,
    ) -> impl Future<Output = Result<bool>> + Send + use<> {
        let (groups, group, id) = (Arc::clone(&self.groups), self.group.clone(), self.id);
        let (which, reason) = ([Which::from(delivery)], reason.to_owned());
        async move {
            let answered = groups.nack(&group, id, &which, action, &reason).await?;
            Ok(answered > 0)
        }
    }
}

impl From<&Delivery> for Which {
    fn from(delivery: &Delivery) -> Self {
        Which::Delivery(delivery.number)
    }
}

impl Stream for GroupConsumer {
    type Item = Result<Delivery>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.deliveries.poll_next_unpin(cx)
    }
}

impl fmt::Debug for GroupConsumer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("GroupConsumer")
            .field("group", &self.group)
            .field("id", &self.id)
            .finish_non_exhaustive()
    }
}

/// Returns what a consumer gets with the events to which links lead in place of the links.
fn resolved(
    consumer: Consumer,
    store: Arc<dyn EventStore>,
) -> impl Stream<Item = Result<Delivery>> + Send {
    stream::unfold(Some((consumer, store)), |joined| async move {
        let (mut consumer, store) = joined?;
        match next_resolved(&mut consumer, &*store).await {
            Ok(delivery) => Some((Ok(delivery), Some((consumer, store)))),
            Err(error) => Some((Err(error), None)),
        }
    })
}

/// Waits for the next event. A link that leads nowhere, with which no consumer could do anything, is passed over.
async fn next_resolved(consumer: &mut Consumer, store: &dyn EventStore) -> Result<Delivery> {
    loop {
        let delivery = consumer.next().await?;
        if LinkTarget::of(&delivery.event).is_none() {
            return Ok(delivery);
        }
        let found = store.resolve(vec![Arc::clone(&delivery.event)]).await?;
        if let Some(found) = found.into_iter().find(|found| found.link.is_some()) {
            let event = found.event;
            return Ok(Delivery { event, ..delivery });
        }
        consumer.ack(vec![Which::from(&delivery)]).await?;
    }
}

/// The groups that this process runs.
#[async_trait]
impl ConsumerGroups for Groups {
    async fn create(&self, create: &Create) -> Result<Group> {
        Groups::create(self, create.clone()).await?;
        ConsumerGroups::info(self, &create.group).await
    }

    async fn update(&self, group: &GroupId, settings: &Settings) -> Result<Group> {
        Groups::update(self, group, settings.clone()).await?;
        ConsumerGroups::info(self, group).await
    }

    async fn delete(&self, group: &GroupId) -> Result<()> {
        Groups::delete(self, group).await
    }

    async fn info(&self, group: &GroupId) -> Result<Group> {
        Ok(Group::from(&Groups::info(self, group).await?))
    }

    async fn list(
        &self,
        source: Option<&Source>,
        after: Option<&GroupId>,
        limit: usize,
    ) -> Result<Vec<GroupId>> {
        Groups::list(self, source, after, limit).await
    }

    async fn join(&self, group: &GroupId, buffer: u32, name: &str) -> Result<GroupConsumer> {
        let join = JoinGroup {
            buffer,
            identity: Identity {
                name: name.to_owned(),
                ..Identity::default()
            },
            patience: Duration::ZERO,
        };
        let consumer = Groups::join(self, group, join).await?;
        let settings = Groups::info(self, group).await?.settings;
        let (groups, id) = (Arc::new(self.clone()), consumer.id());
        let deliveries = match settings.resolve_links {
            true => resolved(consumer, self.store()).boxed(),
            false => consumer.boxed(),
        };
        Ok(GroupConsumer::new(groups, group.clone(), id, deliveries))
    }

    async fn ack(&self, group: &GroupId, consumer: ConsumerId, events: &[Which]) -> Result<usize> {
        Groups::ack(self, group, consumer, events.to_vec()).await
    }

    async fn nack(
        &self,
        group: &GroupId,
        consumer: ConsumerId,
        events: &[Which],
        action: Action,
        reason: &str,
    ) -> Result<usize> {
        Groups::nack(self, group, consumer, events.to_vec(), action, reason).await
    }

    async fn replay_parked(&self, group: &GroupId, stop_at: Option<u64>) -> Result<()> {
        Groups::replay_parked(self, group, stop_at).await
    }

    async fn reset(&self, group: &GroupId, to: ResetTo) -> Result<Group> {
        Groups::reset(self, group, to).await?;
        ConsumerGroups::info(self, group).await
    }
}
