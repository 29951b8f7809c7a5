//! Consumer groups on a server, or on the servers of a cluster.
//!
//! A group is run by one node, and the others refuse. A client of several servers asks the next one then.
//!
//! A consumer is a connection: when it is dropped or breaks, the consumer leaves its group and the events that it held
//! are delivered to others. A caller who loses the connection joins again, and the group goes on where it was. Not
//! here: joining again automatically, since only the caller knows which events it was working on.

use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use futures::Stream;
use futures::stream;
use gesta_core::{ErrorKind, LogId};
use gesta_groups::document::{self, Names};
use gesta_groups::{
    Action, CONSUMERS_MAX, ConsumerGroups, ConsumerId, Create, Delivery, Elsewhere, Error,
    GroupConsumer, GroupId, Refused, ResetTo, Result, Settings, Source, Token, Which,
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
use crate::transport::{Call, ErrorDocument, Transport, told};

/// The consumer groups of a server: [`ConsumerGroups`] over HTTP. Clones are cheap.
#[derive(Clone, Debug)]
pub struct HttpGroups {
    transport: Transport,
    closed: CancellationToken,
}

impl HttpGroups {
    pub(crate) fn new(transport: Transport, closed: CancellationToken) -> Self {
        Self { transport, closed }
    }

    async fn group(
        &self,
        method: Method,
        group: &GroupId,
        body: serde_json::Value,
    ) -> Result<document::Group> {
        let found = self.sent(method, group, "", body.to_string()).await?;
        Ok(answer::read(&found)?)
    }

    async fn answered(
        &self,
        group: &GroupId,
        path: &str,
        body: serde_json::Value,
    ) -> Result<usize> {
        let found = self.sent(Method::POST, group, path, body.to_string());
        Ok(answer::read::<Answered>(&found.await?)?.answered)
    }

    /// Sends a change of a group, to the node that runs it. `rest` is what follows its name in the address.
    async fn sent(
        &self,
        method: Method,
        group: &GroupId,
        rest: &str,
        body: String,
    ) -> Result<Bytes> {
        let body = Bytes::from(body);
        let call = || Call::write(method.clone(), Path::of_group(group, rest), body.clone());
        self.asked(call, group).await
    }

    /// Asks one server after the other, until one runs the group.
    async fn asked(&self, call: impl Fn() -> Call + Send, group: &GroupId) -> Result<Bytes> {
        let refused = match self.send(call(), group).await {
            Err(error @ Error::NotHere { .. }) => error,
            sent => return sent,
        };
        for other in self.others() {
            match other.send(call(), group).await {
                Err(error) if goes_on(&error) => {}
                sent => return sent,
            }
        }
        Err(refused)
    }

    /// Returns these groups as each of the servers alone tells that the client was given; none if it is one.
    fn others(&self) -> impl Iterator<Item = Self> + Send {
        let of = |transport| Self::new(transport, self.closed.clone());
        self.transport.each_server().into_iter().map(of)
    }

    async fn send(&self, call: Call, group: &GroupId) -> Result<Bytes> {
        if self.closed.is_cancelled() {
            return Err(gesta_core::Error::unavailable("the store is closed").into());
        }
        let sent = self.transport.send(call).await;
        Ok(sent.map_err(|error| of_group(error, group))?.body)
    }

    async fn join_here(&self, group: &GroupId, buffer: u32, name: &str) -> Result<GroupConsumer> {
        let mut path = Path::of_group(group, "/consume").with("buffer", buffer.to_string());
        if !name.is_empty() {
            path = path.with("name", name);
        }
        let opened = self.transport.open(Call::get(path)).await;
        let body = opened.map_err(|error| of_group(error, group))?.into_body();
        let silence_max = self.transport.config().silence_max;
        let mut reader = SseReader::new(body, silence_max, self.closed.clone());
        let id = loop {
            let message = reader.message().await?;
            match message.name.as_str() {
                "joined" => break answer::read::<Joined>(&message.data)?.consumer,
                "error" => return Err(ended(&message.data, group)),
                _ => {}
            }
        };
        Ok(GroupConsumer::new(
            Arc::new(self.clone()),
            group.clone(),
            ConsumerId(id),
            deliveries(reader, group.clone()),
        ))
    }
}

#[async_trait]
impl ConsumerGroups for HttpGroups {
    async fn create(&self, create: &Create) -> Result<document::Group> {
        let filter: Vec<QueryBody> = create.filter.any_of.iter().map(QueryBody::from).collect();
        let mut body = json!({ "settings": create.settings });
        if !filter.is_empty() {
            body["filter"] = json!(filter);
        }
        self.group(Method::PUT, &create.group, body).await
    }

    async fn update(&self, group: &GroupId, settings: &Settings) -> Result<document::Group> {
        let body = json!({ "settings": settings });
        self.group(Method::POST, group, body).await
    }

    async fn delete(&self, group: &GroupId) -> Result<()> {
        self.sent(Method::DELETE, group, "", String::new())
            .await
            .map(drop)
    }

    async fn info(&self, group: &GroupId) -> Result<document::Group> {
        let call = || Call::get(Path::of_group(group, ""));
        Ok(answer::read(&self.asked(call, group).await?)?)
    }

    async fn list(
        &self,
        source: Option<&Source>,
        after: Option<&GroupId>,
        limit: usize,
    ) -> Result<Vec<GroupId>> {
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
        let names = answer::read::<Names>(&found)?.groups.into_iter();
        let read = |name: document::Name| {
            GroupId::new(name.source.as_str(), &name.group).map_err(|error| {
                gesta_core::Error::corrupt("answer of the server: the name of a group")
                    .caused_by(error)
                    .into()
            })
        };
        names.map(read).collect()
    }

    async fn join(&self, group: &GroupId, buffer: u32, name: &str) -> Result<GroupConsumer> {
        let refused = match self.join_here(group, buffer, name).await {
            Err(error @ Error::NotHere { .. }) => error,
            joined => return joined,
        };
        for other in self.others() {
            match other.join_here(group, buffer, name).await {
                Err(error) if goes_on(&error) => {}
                joined => return joined,
            }
        }
        Err(refused)
    }

    async fn ack(&self, group: &GroupId, id: ConsumerId, events: &[Which]) -> Result<usize> {
        self.answered(group, "/ack", answers(id, events))
            .await
            .map_err(|error| lost(error, group, id))
    }

    async fn nack(
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

    async fn replay_parked(&self, group: &GroupId, stop_at: Option<u64>) -> Result<()> {
        let body = stop_at.map_or_else(|| json!({}), |stop_at| json!({ "stop_at": stop_at }));
        self.sent(Method::POST, group, "/replay-parked", body.to_string())
            .await
            .map(drop)
    }

    async fn reset(&self, group: &GroupId, to: ResetTo) -> Result<document::Group> {
        let to = match to {
            ResetTo::Start => json!("start"),
            ResetTo::End => json!("end"),
            ResetTo::Surviving => json!("surviving"),
            ResetTo::At(at) => json!({ "at": at }),
        };
        let body = json!({ "to": to }).to_string();
        let found = self.sent(Method::POST, group, "/reset", body).await?;
        Ok(answer::read(&found)?)
    }
}

/// Tells whether another server is asked after this answer, once one has said that another one runs the group.
fn goes_on(error: &Error) -> bool {
    match error {
        Error::NotHere { .. } => true,
        Error::Store(error) => matches!(error.kind(), ErrorKind::Unavailable(_)),
        _ => false,
    }
}

/// Returns what the server delivers to a consumer, until the consumer has left its group.
fn deliveries(reader: SseReader, group: GroupId) -> impl Stream<Item = Result<Delivery>> + Send {
    stream::unfold(Some((reader, group)), |joined| async move {
        let (mut reader, group) = joined?;
        match next(&mut reader, &group).await {
            Ok(delivery) => Some((Ok(delivery), Some((reader, group)))),
            Err(error) => Some((Err(error), None)),
        }
    })
}

async fn next(reader: &mut SseReader, group: &GroupId) -> Result<Delivery> {
    loop {
        let message = reader.message().await?;
        match message.name.as_str() {
            "event" => {
                let found: Delivered<'_> = answer::read(&message.data)?;
                return Ok(Delivery {
                    number: Token(found.delivery),
                    event: read_event(found.event.get().as_bytes())?.into(),
                    retries: found.retries,
                });
            }
            "error" => return Err(ended(&message.data, group)),
            // Messages of other names are skipped; a newer server may send them.
            _ => {}
        }
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
    let Some(ErrorDocument(document)) =
        source.and_then(|source| source.downcast_ref::<ErrorDocument>())
    else {
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
    match source.and_then(|source| source.downcast_ref::<ErrorDocument>()) {
        Some(ErrorDocument(document)) if document.kind == problem::CONSUMER_NOT_FOUND => {
            Error::NoConsumer {
                group: group.clone(),
                consumer,
            }
        }
        _ => error,
    }
}
