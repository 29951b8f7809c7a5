//! Joining a consumer group, which is created if there is none.

use std::fmt;
use std::sync::Arc;

use futures::future::BoxFuture;
use gesta_core::Filter;
use gesta_groups::{
    ConsumerGroups, Create, Error, GroupConsumer, GroupId, Result, Settings, Source,
};

/// Most events that a consumer holds at a time, if it does not say.
const BUFFER: u32 = 10;

/// A consumer that has not joined its group yet. It joins when this is awaited.
///
/// # Errors
/// Those of [`ConsumerGroups::join`] and, where the group is created, of [`ConsumerGroups::create`].
///
/// # Cancel safety
/// If the future is dropped, the group may have been created or not; the consumer leaves again.
#[must_use = "no group is joined until it is awaited"]
pub struct Join {
    groups: Arc<dyn ConsumerGroups>,
    group: gesta_core::Result<GroupId>,
    buffer: u32,
    consumer: String,
    settings: Settings,
    filter: Filter,
    creates: bool,
}

impl Join {
    pub(crate) fn new(
        groups: Arc<dyn ConsumerGroups>,
        source: impl TryInto<Source, Error: Into<gesta_core::Error>>,
        group: &str,
    ) -> Self {
        Self {
            groups,
            group: GroupId::new(source, group),
            buffer: BUFFER,
            consumer: String::new(),
            settings: Settings::default(),
            filter: Filter::ALL,
            creates: true,
        }
    }

    /// Sets how many events the consumer holds at most at a time; 10 without another word.
    pub fn buffer(mut self, events: u32) -> Self {
        self.buffer = events;
        self
    }

    /// Sets the name of the consumer, for people who look at the group.
    pub fn consumer(mut self, name: impl Into<String>) -> Self {
        self.consumer = name.into();
        self
    }

    /// Sets the settings with which the group is created. A group that exists keeps its own.
    pub fn settings(mut self, settings: Settings) -> Self {
        self.settings = settings;
        self
    }

    /// Sets the filter with which a group on `$all` is created. A group that exists keeps its own.
    pub fn filter(mut self, filter: Filter) -> Self {
        self.filter = filter;
        self
    }

    /// Refuses with `NotFound` if there is no such group.
    pub fn existing(mut self) -> Self {
        self.creates = false;
        self
    }

    async fn join(self) -> Result<GroupConsumer> {
        let group = self.group?;
        let joined = self.groups.join(&group, self.buffer, &self.consumer).await;
        if !self.creates || !matches!(joined, Err(Error::NotFound(_))) {
            return joined;
        }
        let create = Create::new(group.clone())
            .settings(self.settings)
            .filter(self.filter);
        match self.groups.create(&create).await {
            // Another consumer was faster.
            Ok(_) | Err(Error::Exists(_)) => {}
            Err(error) => return Err(error),
        }
        self.groups.join(&group, self.buffer, &self.consumer).await
    }
}

impl IntoFuture for Join {
    type Output = Result<GroupConsumer>;
    type IntoFuture = BoxFuture<'static, Self::Output>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(self.join())
    }
}

impl fmt::Debug for Join {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Join")
            .field("group", &self.group)
            .field("buffer", &self.buffer)
            .field("creates", &self.creates)
            .finish_non_exhaustive()
    }
}
