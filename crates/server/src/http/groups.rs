//! Calls about consumer groups, on a stream and on all events.
//!
//! A consumer is an answer without an end: its first message names the consumer, and acknowledgements, which are calls
//! of their own, carry that name. When the connection ends the consumer leaves its group.
//! Not here: what groups do (`gesta_groups`), the messages (`sse`).

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use gesta_access::{Operation, OwnedOperation};
use gesta_core::{
    Error, ErrorKind, EventId, EventStore, Filter, LogId, StreamId, SystemClock, log_of,
};
use gesta_groups::document::{Group, Name, Names};
use gesta_groups::{
    Action, ConsumerId, Create, Elsewhere, GroupId, Groups, Identity, JoinGroup, REASON_CHARS_MAX,
    ResetTo, Settings, Source, Token, Which,
};
use gesta_wire::json::{Bounded, Object, Whole};
use gesta_wire::percent::Plus;
use gesta_wire::{answer, shown};
use hyper::StatusCode;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::call::deliveries::{Deliveries, deliveries};
use crate::call::{Answer, Call, json};
use crate::config::Config;
use crate::http::cors::is_of_other_site;
use crate::http::document::parse_owned;
use crate::http::read::refuse_virtual_alone;
use crate::http::sse::Feed;
use crate::http::subscribe::endless;
use crate::http::write::{check_media_type, payload};
use crate::route::{OfGroup, Route, Verb};
use crate::shared::body::RequestBody;
use crate::shared::placement::Cluster;
use crate::shared::problem::{Problem, Result};
use crate::shared::queries::{FilterBody, filter_of};
use crate::shared::uri;

/// Largest body of a call, in bytes.
const BODY_BYTES_MAX: usize = 1024 * 1024;
/// Most events that one call answers for.
const ANSWERS_MAX: usize = 10_000;
/// Number of names in a list unless the caller asks for another number.
const NAMES: usize = 100;
/// Number of events that a consumer may hold unless it asks for another number.
const BUFFER: u32 = 10;
/// Longest name that a consumer gives itself, in characters.
pub(crate) const NAME_CHARS_MAX: usize = 200;

/// Starts the groups of a server, which run here as far as this node owns their logs.
pub(crate) fn start(
    config: &Config,
    store: &Arc<dyn EventStore>,
    cluster: Option<Arc<dyn Cluster>>,
) -> Groups {
    let placement = Arc::new(OfCluster {
        cluster,
        logs: OnceLock::new(),
    });
    let clock = Arc::new(SystemClock);
    Groups::start_as(Arc::clone(store), config.groups.clone(), placement, clock)
}

/// The rule that the owner of the log of a group's checkpoints runs the group.
struct OfCluster {
    cluster: Option<Arc<dyn Cluster>>,
    /// Number of logs, once the cluster has told it. The number never changes.
    logs: OnceLock<u16>,
}

impl OfCluster {
    /// Returns the number of logs of the store; `None` while the cluster is not known yet.
    fn logs(&self, cluster: &dyn Cluster) -> Option<u16> {
        if let Some(logs) = self.logs.get() {
            return Some(*logs);
        }
        let logs = u16::try_from(cluster.placement().logs.len()).ok();
        let logs = logs.filter(|logs| *logs > 0)?;
        Some(*self.logs.get_or_init(|| logs))
    }
}

impl gesta_groups::GroupPlacement for OfCluster {
    fn elsewhere(&self, stream: &StreamId) -> Option<Elsewhere> {
        let cluster = self.cluster.as_deref()?;
        let owner = cluster.owner_elsewhere(log_of(stream, self.logs(cluster)?))?;
        Some(Elsewhere {
            log: LogId(owner.log),
            node: owner.node?,
            address: owner.address?,
        })
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct CreateBody {
    #[serde(default)]
    settings: Option<Object<Settings>>,
    #[serde(default)]
    filter: Option<FilterBody>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct UpdateBody {
    settings: Object<Settings>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct AckBody {
    consumer: String,
    #[serde(default)]
    deliveries: Option<Bounded<Whole<u64>, ANSWERS_MAX>>,
    #[serde(default)]
    ids: Option<Bounded<String, ANSWERS_MAX>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct NackBody {
    consumer: String,
    #[serde(default)]
    deliveries: Option<Bounded<Whole<u64>, ANSWERS_MAX>>,
    #[serde(default)]
    ids: Option<Bounded<String, ANSWERS_MAX>>,
    action: String,
    #[serde(default)]
    reason: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ReplayBody {
    #[serde(default)]
    stop_at: Option<Whole<u64>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ResetBody {
    to: ResetWhere,
}

#[derive(Deserialize)]
#[serde(rename_all = "snake_case")]
enum ResetWhere {
    Start,
    End,
    Surviving,
    At(Whole<u64>),
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct NoBody {}

#[derive(Serialize)]
struct Answered {
    /// Number of events for which the answer came in time.
    answered: usize,
    /// Number of events that the consumer did not hold.
    unknown: usize,
}

#[derive(Serialize)]
struct Done {}

/// Carries out a call about one group.
pub(crate) async fn call(
    call: &Call<'_>,
    of: OfGroup,
    verb: Verb,
    body: &mut RequestBody,
) -> Result<Answer> {
    check(call, of, verb).await?;
    let group = group(call)?;
    let operation = match (is_change(of, verb), of) {
        (true, _) => OwnedOperation::ManageGroups,
        (false, OfGroup::Consume | OfGroup::Ack | OfGroup::Nack) => following(group.source()),
        (false, _) => match group.source() {
            Source::Stream(stream) => OwnedOperation::Read(stream.clone()),
            Source::All => OwnedOperation::Manage,
        },
    };
    let what = match of {
        OfGroup::Consume => format!("{group}, join"),
        OfGroup::Ack => format!("{group}, ack"),
        OfGroup::Nack => format!("{group}, nack"),
        OfGroup::Reset => format!("{group}, reset"),
        OfGroup::Itself | OfGroup::ReplayParked => group.to_string(),
    };
    let line = call.audit(operation, what);
    let answer = answer_to(call, of, verb, body).await;
    line.answered(&answer);
    answer
}

async fn answer_to(
    call: &Call<'_>,
    of: OfGroup,
    verb: Verb,
    body: &mut RequestBody,
) -> Result<Answer> {
    match (of, verb) {
        (OfGroup::Itself, Verb::Put) => create(call, body).await,
        (OfGroup::Itself, Verb::Post) => update(call, body).await,
        (OfGroup::Itself, Verb::Delete) => delete(call).await,
        (OfGroup::Itself, Verb::Get) => {
            call.parameters(&[])?;
            info(call, &group(call)?, StatusCode::OK).await
        }
        (OfGroup::Consume, _) => consume(call).await,
        (OfGroup::Ack, _) => ack(call, body).await,
        (OfGroup::Nack, _) => nack(call, body).await,
        (OfGroup::ReplayParked, _) => replay(call, body).await,
        (OfGroup::Reset, _) => reset(call, body).await,
    }
}

/// Returns true if the call changes a group, or what its consumers get.
fn is_change(of: OfGroup, verb: Verb) -> bool {
    match of {
        OfGroup::Itself => verb != Verb::Get,
        OfGroup::ReplayParked | OfGroup::Reset => true,
        OfGroup::Consume | OfGroup::Ack | OfGroup::Nack => false,
    }
}

/// Returns the operation that a caller must be allowed to do, beside managing groups if the call changes one.
fn needed(of: OfGroup, source: &Source) -> Operation<'_> {
    match of {
        OfGroup::Consume | OfGroup::Ack | OfGroup::Nack => consuming(source),
        OfGroup::Itself | OfGroup::ReplayParked | OfGroup::Reset => reading(source),
    }
}

/// Refuses a caller who may not make the call: whoever sees what a group shows must be allowed to read it, whoever
/// answers for its events must be allowed to consume them, and whoever changes a group must be allowed to manage groups
/// too.
async fn check(call: &Call<'_>, of: OfGroup, verb: Verb) -> Result<()> {
    if is_change(of, verb) {
        call.check(Operation::ManageGroups).await?;
    }
    call.check(needed(of, group(call)?.source())).await
}

/// Returns the operation that a caller must be allowed to do if a group on this source shows them its events. All
/// events are for administrators, because a group leaves none of them out.
pub(crate) fn reading(source: &Source) -> Operation<'_> {
    match source {
        Source::Stream(stream) => Operation::Read(stream),
        Source::All => Operation::Manage,
    }
}

/// Returns the operation that a consumer of a group on this source must be allowed to do.
fn consuming(source: &Source) -> Operation<'_> {
    match source {
        Source::Stream(stream) => Operation::Consume(stream),
        Source::All => Operation::Manage,
    }
}

/// Returns the same operation in the form that is checked for as long as a consumer stays.
pub(crate) fn following(source: &Source) -> OwnedOperation {
    match source {
        Source::Stream(stream) => OwnedOperation::Consume(stream.clone()),
        Source::All => OwnedOperation::Manage,
    }
}

/// Carries out `GET /groups`, `GET /streams/{stream}/groups` and `GET /all/groups`.
pub(crate) async fn list(call: &Call<'_>) -> Result<Answer> {
    let parameters = call.parameters(&["after", "limit"])?;
    let source = source(call)?;
    let after = match (parameters.one("after")?, &source) {
        (None, _) => None,
        (Some(name), Some(source)) => Some(named("after", source.clone(), &name)?),
        (Some(name), None) => Some(full_name(&name)?),
    };
    let limit = match parameters.one("limit")? {
        None => NAMES,
        Some(text) => {
            usize::try_from(uri::number("limit", &text, u64::from(u32::MAX))?).unwrap_or(0)
        }
    };
    match &source {
        Some(source) => call.check(reading(source)).await?,
        None => call.check(Operation::Observe).await?,
    }
    let groups = &call.state.groups;
    let found = groups.list(source.as_ref(), after.as_ref(), limit).await?;
    let names = Names {
        groups: found.iter().map(Name::from).collect(),
        end: found.len() < limit,
    };
    Ok(json(StatusCode::OK, answer::write(&names)))
}

/// Carries out `POST /groups/restart`.
pub(crate) async fn restart(call: &Call<'_>, body: &mut RequestBody) -> Result<Answer> {
    call.parameters(&[])?;
    let _: NoBody = document(call, body).await?;
    call.check(Operation::ManageGroups).await?;
    let line = call.audit(OwnedOperation::ManageGroups, "restart");
    let restarted = call.state.groups.restart_all().await.map_err(Problem::from);
    line.answered(&restarted);
    restarted?;
    Ok(json(StatusCode::OK, answer::write(&Done {})))
}

async fn create(call: &Call<'_>, body: &mut RequestBody) -> Result<Answer> {
    call.parameters(&[])?;
    let group = group(call)?;
    let body: CreateBody = document(call, body).await?;
    let filter = body
        .filter
        .map_or(Ok(Filter::ALL), |filter| filter_of("filter", filter))?;
    if filter.is_of_virtual_streams() {
        refuse_virtual_alone(&**call.store()).await?;
    }
    let create = Create {
        group: group.clone(),
        settings: body
            .settings
            .map(|Object(settings)| settings)
            .unwrap_or_default(),
        filter,
    };
    let created = call.state.groups.create(create).await;
    created.map_err(of_settings)?;
    changed(call, &group, StatusCode::CREATED).await
}

async fn update(call: &Call<'_>, body: &mut RequestBody) -> Result<Answer> {
    call.parameters(&[])?;
    let group = group(call)?;
    let body: UpdateBody = document(call, body).await?;
    let Object(settings) = body.settings;
    let updated = call.state.groups.update(&group, settings).await;
    updated.map_err(of_settings)?;
    changed(call, &group, StatusCode::OK).await
}

/// Makes the problem of an error, and names a setting as the body names it.
fn of_settings(error: gesta_groups::Error) -> Problem {
    match &error {
        gesta_groups::Error::Store(of_store) => match of_store.kind() {
            ErrorKind::InvalidArgument { field, .. } if field != "filter" => {
                Problem::invalid_at(format!("settings.{field}"), of_store)
            }
            _ => error.into(),
        },
        _ => error.into(),
    }
}

async fn delete(call: &Call<'_>) -> Result<Answer> {
    call.parameters(&[])?;
    call.state.groups.delete(&group(call)?).await?;
    Ok(json(StatusCode::OK, answer::write(&Done {})))
}

/// Makes the answer to a change that was made. The change is told as made even if another node runs the group by now.
async fn changed(call: &Call<'_>, group: &GroupId, status: StatusCode) -> Result<Answer> {
    let groups = &call.state.groups;
    let info = match groups.info(group).await {
        Err(gesta_groups::Error::NotHere { .. }) => groups.stored(group).await?,
        info => info?,
    };
    Ok(json(status, answer::write(&Group::from(&info))))
}

/// Tells what a group is and does. Who consumes is told only to those who may manage groups.
async fn info(call: &Call<'_>, group: &GroupId, status: StatusCode) -> Result<Answer> {
    let mut shown = Group::from(&call.state.groups.info(group).await?);
    let may_manage = call.admitted().may(call.state, Operation::ManageGroups);
    if let Some(running) = shown.running.as_mut()
        && !may_manage.await?
    {
        for consumer in &mut running.consumers {
            consumer.name.clear();
            // Who knows the number of a consumer could answer for what it got.
            consumer.consumer.clear();
        }
    }
    Ok(json(status, answer::write(&shown)))
}

async fn consume(call: &Call<'_>) -> Result<Answer> {
    let parameters = call.parameters(&["buffer", "name"])?;
    if is_of_other_site(&call.state.trusted.origins, call.parts()) {
        return Err(of_other_site().into());
    }
    let group = group(call)?;
    let buffer = match parameters.one("buffer")? {
        None => BUFFER,
        Some(text) => {
            let number = uri::number("buffer", &text, u64::from(u32::MAX))?;
            u32::try_from(number).unwrap_or(u32::MAX)
        }
    };
    let name = parameters.one("name")?.unwrap_or_default();
    if name.chars().count() > NAME_CHARS_MAX {
        let rule = format!("must be at most {NAME_CHARS_MAX} characters");
        return Err(Problem::invalid("name", rule));
    }
    let identity = Identity {
        name: name.into_owned(),
        address: call.from.to_string(),
        user: call.admitted().user(call.state),
    };
    // Every call of a group is checked before (`check`). A consumer is asked for as long as it stays.
    let following = following(group.source());
    let forbidden = call.admitted().until_forbidden(following).await?;
    let ticket = call.state.bounds.subscriptions.enter(call.holder())?;
    let groups = &call.state.groups;
    let info = groups.info(&group).await?;
    let consumer = groups
        .join(
            &group,
            JoinGroup {
                buffer,
                identity,
                patience: Duration::ZERO,
            },
        )
        .await?;
    let seen = Deliveries::new(call.state, call.admitted(), &info);
    let feed = Feed::Consumer {
        id: consumer.id(),
        deliveries: deliveries(seen, consumer, forbidden),
    };
    Ok(endless(call, feed, ticket, None))
}

/// Makes the refusal of a request that a page of another site has made a browser send. The browser sends it with the
/// login of its user, so that events would go to the consumer of that page.
fn of_other_site() -> Error {
    Error::new(ErrorKind::Forbidden(
        "a page of another site may not join a group, unless --cors-origin names it".into(),
    ))
}

async fn ack(call: &Call<'_>, body: &mut RequestBody) -> Result<Answer> {
    call.parameters(&[])?;
    let group = group(call)?;
    let body: AckBody = document(call, body).await?;
    let (consumer, events) = (consumer(&body.consumer)?, which(body.deliveries, body.ids)?);
    let asked = events.len();
    let user = call.admitted().user(call.state);
    let groups = &call.state.groups;
    let answered = groups.ack_as(&user, &group, consumer, events).await?;
    Ok(shown_answers(asked, answered))
}

async fn nack(call: &Call<'_>, body: &mut RequestBody) -> Result<Answer> {
    call.parameters(&[])?;
    let group = group(call)?;
    let body: NackBody = document(call, body).await?;
    let (consumer, events) = (consumer(&body.consumer)?, which(body.deliveries, body.ids)?);
    let action = action(&body.action)?;
    if body.reason.chars().count() > REASON_CHARS_MAX {
        let rule = format!("must be at most {REASON_CHARS_MAX} characters");
        return Err(Problem::invalid("reason", rule));
    }
    let asked = events.len();
    let user = call.admitted().user(call.state);
    let groups = &call.state.groups;
    let refusal = (action, body.reason.as_str());
    let answered = groups.nack_as(&user, &group, consumer, events, refusal);
    Ok(shown_answers(asked, answered.await?))
}

async fn replay(call: &Call<'_>, body: &mut RequestBody) -> Result<Answer> {
    call.parameters(&[])?;
    let group = group(call)?;
    let body: ReplayBody = document(call, body).await?;
    call.state
        .groups
        .replay_parked(&group, body.stop_at.map(|Whole(revision)| revision))
        .await?;
    Ok(json(StatusCode::OK, answer::write(&Done {})))
}

async fn reset(call: &Call<'_>, body: &mut RequestBody) -> Result<Answer> {
    call.parameters(&[])?;
    let group = group(call)?;
    let body: ResetBody = document(call, body).await?;
    let to = match body.to {
        ResetWhere::Start => ResetTo::Start,
        ResetWhere::End => ResetTo::End,
        ResetWhere::Surviving => ResetTo::Surviving,
        ResetWhere::At(Whole(at)) => ResetTo::At(at),
    };
    call.state.groups.reset(&group, to).await?;
    changed(call, &group, StatusCode::OK).await
}

fn shown_answers(asked: usize, answered: usize) -> Answer {
    let unknown = asked.saturating_sub(answered);
    json(
        StatusCode::OK,
        answer::write(&Answered { answered, unknown }),
    )
}

/// Reads a whole body as a document.
async fn document<T: DeserializeOwned>(call: &Call<'_>, body: &mut RequestBody) -> Result<T> {
    check_media_type(call)?;
    let (payload, _held) = payload(call, body, BODY_BYTES_MAX).await?;
    let text = std::str::from_utf8(&payload.bytes)
        .map_err(|_| Problem::invalid("body", "must be UTF-8"))?;
    let Object(document) = parse_owned::<Object<T>>(text, "")?;
    Ok(document)
}

/// Returns the source that the path is about; `None` if it is about all groups.
fn source(call: &Call<'_>) -> Result<Option<Source>> {
    Ok(match call.route() {
        Route::StreamGroups | Route::StreamGroup(_) => Some(Source::Stream(call.stream()?)),
        Route::AllGroups | Route::AllGroup(_) => Some(Source::All),
        _ => None,
    })
}

/// Returns the group that the path names.
fn group(call: &Call<'_>) -> Result<GroupId> {
    let name = uri::percent_decode("group", call.group(), Plus::Itself)?;
    named("group", source(call)?.unwrap_or(Source::All), &name)
}

fn named(field: &'static str, source: Source, name: &str) -> Result<GroupId> {
    GroupId::new(source, name).map_err(|error| match error.kind() {
        ErrorKind::InvalidArgument { field: found, .. } if found == "group" => {
            Problem::invalid_at(field, &error)
        }
        _ => error.into(),
    })
}

/// Reads the full name of a group: the name of its source and its own, with `::` between them.
fn full_name(text: &str) -> Result<GroupId> {
    let Some((source, name)) = text.rsplit_once("::") else {
        let rule = format!("must be SOURCE::GROUP, found {}", shown(text));
        return Err(Problem::invalid("after", rule));
    };
    let source = if source == gesta_groups::ALL {
        Source::All
    } else {
        Source::Stream(uri::stream_named("after", source)?)
    };
    named("after", source, name)
}

fn uuid(field: &str, text: &str) -> Result<Uuid> {
    let found = (text.len() == 36)
        .then(|| Uuid::try_parse(text).ok())
        .flatten();
    found.ok_or_else(|| Problem::invalid(field, format!("must be a UUID, found {}", shown(text))))
}

fn consumer(text: &str) -> Result<ConsumerId> {
    uuid("consumer", text).map(ConsumerId)
}

fn which(
    deliveries: Option<Bounded<Whole<u64>, ANSWERS_MAX>>,
    ids: Option<Bounded<String, ANSWERS_MAX>>,
) -> Result<Vec<Which>> {
    let numbers = deliveries.map(|list| list.0).unwrap_or_default();
    let mut events: Vec<Which> = numbers
        .into_iter()
        .map(|Whole(number)| Which::Delivery(Token(number)))
        .collect();
    for (i, id) in ids
        .map(|list| list.0)
        .unwrap_or_default()
        .iter()
        .enumerate()
    {
        let id = EventId(uuid(&format!("ids[{i}]"), id)?);
        events.push(Which::Event(id));
    }
    if events.is_empty() {
        return Err(Problem::invalid("deliveries", "or ids must name an event"));
    }
    Ok(events)
}

fn action(text: &str) -> Result<Action> {
    match text {
        "retry" => Ok(Action::Retry),
        "park" => Ok(Action::Park),
        "skip" => Ok(Action::Skip),
        "stop" => Ok(Action::Stop),
        "unknown" => Ok(Action::Unknown),
        other => {
            let found = shown(other);
            let rule = format!("must be retry, park, skip, stop or unknown, found {found}");
            Err(Problem::invalid("action", rule))
        }
    }
}
