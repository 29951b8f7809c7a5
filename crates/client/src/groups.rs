//! Consumer groups on a server.
//!
//! A consumer is a connection: when it is dropped or breaks, the consumer leaves its group and the events that it held
//! are delivered to others. A caller who loses the connection joins again, and the group goes on where it was. Not
//! here: joining again automatically, since only the caller knows which events it was working on.

use gesta_core::LogId;
use gesta_groups::document::{self, Name, Names};
use gesta_groups::{
    Action, CONSUMERS_MAX, ConsumerId, Create, Delivery, Elsewhere, Error, GroupId, Refused,
    ResetTo, Result, Settings, Source, Token, Which,
};
use gesta_wire::answer;
use gesta_wire::event::read_event;
use gesta_wire::problem::{self, Document};
use gesta_wire::request::QueryBody;
use hyper::Method;
use serde::Deserialize;
use serde_json::json;
use serde_json::value::RawValue;
use tokio_util::sync::CancellationToken;

use crate::address::Path;
use crate::sse::SseReader;
use crate::transport::{Call, Told, Transport, told};

/// The consumer groups of a server. Clones are cheap.
///
/// ```no_run
/// # async fn example() -> Result<(), gesta_groups::Error> {
/// use gesta_core::StreamId;
/// use gesta_groups::{GroupId, Source, Which};
///
/// let store = gesta_client::HttpStore::connect("http://127.0.0.1:2113")?;
/// let group = GroupId::new(Source::Stream(StreamId::new("cart-1")?), "mail")?;
/// let mut consumer = store.groups().join(&group, 10, "worker-1").await?;
/// loop {
///     let delivery = consumer.next().await?;
///     println!("{}", delivery.event.event_type);
///     consumer.ack(&[Which::Delivery(delivery.number)]).await?;
/// }
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct HttpGroups {
    transport: Transport,
    closed: CancellationToken,
}

impl HttpGroups {
    pub(crate) fn new(transport: Transport, closed: CancellationToken) -> Self {
        Self { transport, closed }
    }

    /// Creates a group.
    ///
    /// # Errors
    /// `Exists` if there is such a group; `NotHere` if another node runs it; `Overloaded`; `Store` if the store refuses
    /// or does not answer.
    ///
    /// # Cancel safety
    /// If the future is dropped, the group may have been created or not.
    pub async fn create(&self, create: &Create) -> Result<document::Group> {
        let filter: Vec<QueryBody> = create.filter.any_of.iter().map(QueryBody::from).collect();
        let mut body = json!({ "settings": create.settings });
        if !filter.is_empty() {
            body["filter"] = json!(filter);
        }
        self.group(Method::PUT, &create.group, body).await
    }

    /// Replaces all settings of a group.
    ///
    /// # Errors
    /// `NotFound` if there is no such group; `NotHere` if another node runs it; `Overloaded`; `Store` if the store
    /// refuses or does not answer.
    ///
    /// # Cancel safety
    /// If the future is dropped, the settings may have been replaced or not.
    pub async fn update(&self, group: &GroupId, settings: &Settings) -> Result<document::Group> {
        let body = json!({ "settings": settings });
        self.group(Method::POST, group, body).await
    }

    /// Deletes a group.
    ///
    /// # Errors
    /// `NotFound` if there is no such group; `NotHere` if another node runs it; `Overloaded`; `Store` if the store
    /// refuses or does not answer.
    ///
    /// # Cancel safety
    /// If the future is dropped, the group may have been deleted or not.
    pub async fn delete(&self, group: &GroupId) -> Result<()> {
        let call = Call::write(
            Method::DELETE,
            Path::of_group(group, ""),
            Default::default(),
        );
        self.sent(call, group).await.map(|_| ())
    }

    /// Returns a group as it is now.
    ///
    /// # Errors
    /// `NotFound` if there is no such group; `NotHere` if another node runs it; `Store` if the store refuses or does
    /// not answer.
    ///
    /// # Cancel safety
    /// Dropping the future changes nothing.
    pub async fn info(&self, group: &GroupId) -> Result<document::Group> {
        let found = self
            .sent(Call::get(Path::of_group(group, "")), group)
            .await?;
        Ok(answer::read(&found)?)
    }

    /// Lists the names of the groups of a source, or of all groups. The list begins after the group `after` and has at
    /// most `limit` names.
    ///
    /// # Errors
    /// `Store` if the store refuses or does not answer.
    ///
    /// # Cancel safety
    /// Dropping the future changes nothing.
    pub async fn list(
        &self,
        source: Option<&Source>,
        after: Option<&GroupId>,
        limit: usize,
    ) -> Result<Vec<Name>> {
        let mut path = match source {
            None => Path::of("/groups"),
            Some(Source::Stream(stream)) => Path::of_stream(stream, "/groups"),
            Some(Source::All) => Path::of("/all/groups"),
        };
        if let Some(after) = after {
            let name = match source {
                None => after.to_string(),
                Some(_) => after.name().to_owned(),
            };
            path = path.with("after", name);
        }
        let call = Call::get(path.with("limit", limit.to_string()));
        let found = self.transport.send(call).await?.body;
        Ok(answer::read::<Names>(&found)?.groups)
    }

    /// Joins a group as a consumer that holds at most `buffer` events at a time. The name is shown to people who look
    /// at the group.
    ///
    /// # Errors
    /// `NotFound` if there is no such group; `Refused` if the group is full; `NotHere` if another node runs it;
    /// `Dropped` if the group was changed meanwhile, so that it must be joined again; `Overloaded`; `Store` if the
    /// store refuses or does not answer.
    ///
    /// # Cancel safety
    /// If the future is dropped, the consumer leaves the group again.
    pub async fn join(&self, group: &GroupId, buffer: u32, name: &str) -> Result<GroupConsumer> {
        let mut path = Path::of_group(group, "/consume").with("buffer", buffer.to_string());
        if !name.is_empty() {
            path = path.with("name", name);
        }
        let opened = self.transport.open(Call::get(path)).await;
        let body = opened.map_err(|error| of_group(error, group))?.into_body();
        let silence_max = self.transport.config().silence_max;
        let mut reader = SseReader::new(body, silence_max, self.closed.clone());
        loop {
            let message = reader.message().await?;
            match message.name.as_str() {
                "joined" => {
                    let joined: Joined = answer::read(&message.data)?;
                    return Ok(GroupConsumer {
                        groups: self.clone(),
                        group: group.clone(),
                        id: ConsumerId(joined.consumer),
                        reader,
                    });
                }
                "error" => return Err(ended(&message.data, group)),
                _ => {}
            }
        }
    }

    /// Acknowledges events for a consumer: they are finished. Returns for how many of them the answer came in time.
    ///
    /// # Errors
    /// `NoConsumer` if the consumer has left the group; `NotHere` if another node runs the group; `Store` if the store
    /// refuses or does not answer.
    ///
    /// # Cancel safety
    /// If the future is dropped, the answer may have been taken or not.
    pub async fn ack(&self, group: &GroupId, id: ConsumerId, events: &[Which]) -> Result<usize> {
        let body = answers(id, events);
        self.answered(group, "/ack", body)
            .await
            .map_err(|error| lost(error, group, id))
    }

    /// Refuses events for a consumer. Returns for how many of them the answer came in time.
    ///
    /// # Errors
    /// The errors of [`HttpGroups::ack`].
    ///
    /// # Cancel safety
    /// If the future is dropped, the answer may have been taken or not.
    pub async fn nack(
        &self,
        group: &GroupId,
        id: ConsumerId,
        events: &[Which],
        action: Action,
        reason: &str,
    ) -> Result<usize> {
        let mut body = answers(id, events);
        body["action"] = json!(match action {
            Action::Unknown => "unknown",
            Action::Park => "park",
            Action::Retry => "retry",
            Action::Skip => "skip",
            Action::Stop => "stop",
        });
        body["reason"] = json!(reason);
        self.answered(group, "/nack", body)
            .await
            .map_err(|error| lost(error, group, id))
    }

    /// Delivers the parked events again: those before revision `stop_at` of the parked stream, or all of them.
    ///
    /// # Errors
    /// `NotFound` if there is no such group; `ReplayRunning` if parked events are being delivered again already;
    /// `NotHere` if another node runs the group; `Overloaded`; `Store` if the store refuses or does not answer.
    ///
    /// # Cancel safety
    /// If the future is dropped, the delivery may have begun or not.
    pub async fn replay_parked(&self, group: &GroupId, stop_at: Option<u64>) -> Result<()> {
        let body = stop_at.map_or_else(|| json!({}), |stop_at| json!({ "stop_at": stop_at }));
        let path = Path::of_group(group, "/replay-parked");
        let call = Call::write(Method::POST, path, body.to_string().into());
        self.sent(call, group).await.map(|_| ())
    }

    /// Lets a group go on at another place, whatever it has finished: above all a group that is halted. Returns the
    /// group as it is then.
    ///
    /// # Errors
    /// `NotFound` if there is no such group; `NotHere` if another node runs it; `Overloaded`; `Store` if the place
    /// cannot be, or if the store refuses or does not answer.
    ///
    /// # Cancel safety
    /// If the future is dropped, the group may have been moved or not.
    pub async fn reset(&self, group: &GroupId, to: ResetTo) -> Result<document::Group> {
        let to = match to {
            ResetTo::Start => json!("start"),
            ResetTo::End => json!("end"),
            ResetTo::Surviving => json!("surviving"),
            ResetTo::At(at) => json!({ "at": at }),
        };
        let body = json!({ "to": to }).to_string();
        let call = Call::write(Method::POST, Path::of_group(group, "/reset"), body.into());
        let found = self.sent(call, group).await?;
        Ok(answer::read(&found)?)
    }

    async fn group(
        &self,
        method: Method,
        group: &GroupId,
        body: serde_json::Value,
    ) -> Result<document::Group> {
        let call = Call::write(method, Path::of_group(group, ""), body.to_string().into());
        let found = self.sent(call, group).await?;
        Ok(answer::read(&found)?)
    }

    async fn answered(
        &self,
        group: &GroupId,
        path: &str,
        body: serde_json::Value,
    ) -> Result<usize> {
        let path = Path::of_group(group, path);
        let call = Call::write(Method::POST, path, body.to_string().into());
        let found = self.sent(call, group).await?;
        Ok(answer::read::<Answered>(&found)?.answered)
    }

    async fn sent(&self, call: Call, group: &GroupId) -> Result<bytes::Bytes> {
        if self.closed.is_cancelled() {
            return Err(gesta_core::Error::unavailable("the store is closed").into());
        }
        let sent = self.transport.send(call).await;
        Ok(sent.map_err(|error| of_group(error, group))?.body)
    }
}

/// A consumer of a group on a server. Dropping it leaves the group.
pub struct GroupConsumer {
    groups: HttpGroups,
    group: GroupId,
    id: ConsumerId,
    reader: SseReader,
}

impl std::fmt::Debug for GroupConsumer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("GroupConsumer")
            .field("group", &self.group)
            .field("id", &self.id)
            .finish_non_exhaustive()
    }
}

impl GroupConsumer {
    /// Returns the id of the consumer.
    #[must_use]
    pub fn id(&self) -> ConsumerId {
        self.id
    }

    /// Waits for the next event and returns it.
    ///
    /// # Errors
    /// The reason why the consumer is not in the group any more: `Dropped`, `NotHere`, `NotFound`, or `Store` with
    /// `Unavailable` if the connection broke. The events that it held are delivered again.
    ///
    /// # Cancel safety
    /// Dropping the future loses nothing.
    pub async fn next(&mut self) -> Result<Delivery> {
        loop {
            let message = self.reader.message().await?;
            match message.name.as_str() {
                "event" => {
                    let found: Delivered<'_> = answer::read(&message.data)?;
                    return Ok(Delivery {
                        number: Token(found.delivery),
                        event: read_event(found.event.get().as_bytes())?.into(),
                        retries: found.retries,
                    });
                }
                "error" => return Err(ended(&message.data, &self.group)),
                // Messages of other names are skipped; a newer server may send them.
                _ => {}
            }
        }
    }

    /// Acknowledges these events: they are finished. Returns for how many of them the answer came in time.
    ///
    /// # Errors
    /// The errors of [`HttpGroups::ack`].
    ///
    /// # Cancel safety
    /// If the future is dropped, the answer may have been taken or not.
    pub async fn ack(&self, events: &[Which]) -> Result<usize> {
        self.groups.ack(&self.group, self.id, events).await
    }

    /// Refuses these events. Returns for how many of them the answer came in time.
    ///
    /// # Errors
    /// The errors of [`HttpGroups::ack`].
    ///
    /// # Cancel safety
    /// If the future is dropped, the answer may have been taken or not.
    pub async fn nack(&self, events: &[Which], action: Action, reason: &str) -> Result<usize> {
        let groups = &self.groups;
        groups
            .nack(&self.group, self.id, events, action, reason)
            .await
    }
}

#[derive(Deserialize)]
struct Joined {
    consumer: uuid::Uuid,
}

#[derive(Deserialize)]
struct Delivered<'a> {
    delivery: u64,
    retries: u32,
    #[serde(borrow)]
    event: &'a RawValue,
}

#[derive(Deserialize)]
struct Answered {
    answered: usize,
}

fn answers(consumer: ConsumerId, events: &[Which]) -> serde_json::Value {
    let number = |which: &Which| match which {
        Which::Delivery(token) => Some(token.0),
        Which::Event(_) => None,
    };
    let id = |which: &Which| match which {
        Which::Event(id) => Some(id.to_string()),
        Which::Delivery(_) => None,
    };
    json!({
        "consumer": consumer.to_string(),
        "deliveries": events.iter().filter_map(number).collect::<Vec<_>>(),
        "ids": events.iter().filter_map(id).collect::<Vec<_>>(),
    })
}

/// Returns the error for which the server has ended a consumer.
fn ended(problem: &[u8], group: &GroupId) -> Error {
    let why = told(problem);
    let why =
        why.unwrap_or_else(|| gesta_core::Error::unavailable("the server ended the consumer"));
    of_group(why, group)
}

/// Returns the error of the group that the server had, if its answer tells one.
fn of_group(error: gesta_core::Error, group: &GroupId) -> Error {
    let source = std::error::Error::source(&error);
    let Some(Told(document)) = source.and_then(|source| source.downcast_ref::<Told>()) else {
        return error.into();
    };
    let group = group.clone();
    match document.kind {
        kind if kind == problem::GROUP_EXISTS => Error::Exists(group),
        kind if kind == problem::GROUP_NOT_FOUND => Error::NotFound(group),
        kind if kind == problem::GROUP_DROPPED => Error::Dropped(group),
        kind if kind == problem::GROUP_REPLAYING => Error::ReplayRunning(group),
        kind if kind == problem::OVERLOADED => Error::Overloaded(document.detail.clone()),
        kind if kind == problem::GROUP_FULL => full(document, group),
        kind if kind == problem::GROUP_ELSEWHERE => elsewhere(document, group),
        _ => error.into(),
    }
}

fn full(document: &Document, group: GroupId) -> Error {
    let max = document
        .members
        .max
        .and_then(|max| usize::try_from(max).ok());
    let refused = Refused::Full {
        max: max.unwrap_or(CONSUMERS_MAX),
    };
    Error::Refused { group, refused }
}

fn elsewhere(document: &Document, group: GroupId) -> Error {
    match &document.members.owner {
        Some(owner) => Error::NotHere {
            group,
            elsewhere: Elsewhere {
                log: LogId(owner.log),
                node: owner.node,
                address: owner.address.clone(),
            },
        },
        None => gesta_core::Error::unavailable(document.detail.clone()).into(),
    }
}

/// Returns `NoConsumer` if the server does not know the consumer, else the same error.
fn lost(error: Error, group: &GroupId, consumer: ConsumerId) -> Error {
    let Error::Store(of_store) = &error else {
        return error;
    };
    let source = std::error::Error::source(of_store);
    match source.and_then(|source| source.downcast_ref::<Told>()) {
        Some(Told(document)) if document.kind == problem::CONSUMER_NOT_FOUND => Error::NoConsumer {
            group: group.clone(),
            consumer,
        },
        _ => error,
    }
}
