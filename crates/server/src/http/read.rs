//! Calls that read: one page as a JSON document, or everything up to the end, one event in each line.

use std::borrow::Cow;
use std::sync::Arc;

use bytes::Bytes;
use gesta_core::{
    AllFrom, CATEGORY_PREFIX, Checkpoint, Direction, EventStore, EventStoreExt, Filter,
    ListStreams, ONLY_VIRTUAL, ReadAll, ReadStream, Resolved, Revision, StreamFrom, TYPE_PREFIX,
};
use gesta_wire::answer::{self, Streams};
use gesta_wire::event::{self, Framing, write_resolved};
use gesta_wire::percent::Plus;
use gesta_wire::request::QueryBody;
use gesta_wire::shown;
use hyper::StatusCode;
use hyper::header::{ETAG, HeaderValue};

use crate::call::{Answer, Call, json};
use crate::http::document;
use crate::http::lines::{NDJSON, lines};
use crate::shared::body::Reservation;
use crate::shared::pages::{Links, PAGE_EVENTS, PageReader};
use crate::shared::problem::{Problem, Result};
use crate::shared::queries::{filter_of, query};
use crate::shared::uri::{self, Parameters, percent_decode};

/// Lists the parameters of a call with those that make a filter.
macro_rules! with_filter {
    ($($name:literal),*) => {
        &[$($name,)* "type", "stream_prefix", "category", "tag", "filter"]
    };
}
pub(crate) use with_filter;

/// Carries out `GET /streams/{stream}`.
pub(crate) async fn stream(call: &Call<'_>) -> Result<Answer> {
    let parameters = call.parameters(&["from", "direction", "limit", "resolve_links"])?;
    let direction = direction(&parameters)?;
    let from = match parameters.one("from")?.as_deref() {
        None if direction == Direction::Backwards => StreamFrom::End,
        None | Some("start") => StreamFrom::Start,
        Some("end") => StreamFrom::End,
        Some(text) => StreamFrom::Revision(revision("from", text)?),
    };
    let limit = limit(&parameters)?;
    let request = ReadStream {
        stream: call.stream()?,
        from,
        direction,
        limit: limit.unwrap_or(PAGE_EVENTS),
    };
    let links = links(&parameters)?;
    if call.accepts(NDJSON) {
        return lines(call, PageReader::Stream(request), links, limit).await;
    }
    request.validate()?;
    let mut held = call.reservation();
    let store = call.store();
    let page = {
        let _turn = call.turn_to_read().await;
        match links {
            Links::AsTheyAre => event::write_stream_page(store.read_stream(request).await?),
            Links::Followed => {
                event::write_resolved_page(store.read_stream_resolved(request).await?)
            }
        }
    };
    held.grow(page.len())?;
    Ok(document(page, held))
}

/// Carries out `GET /all`.
pub(crate) async fn all(call: &Call<'_>) -> Result<Answer> {
    let parameters = call.parameters(with_filter!("from", "direction", "limit"))?;
    let direction = direction(&parameters)?;
    let from = match parameters.one("from")?.as_deref() {
        None if direction == Direction::Backwards => AllFrom::End,
        None | Some("start") => AllFrom::Start,
        Some("end") => AllFrom::End,
        Some(text) => AllFrom::Checkpoint(checkpoint("from", text)?),
    };
    let limit = limit(&parameters)?;
    let request = ReadAll {
        only: None,
        from,
        direction,
        limit: limit.unwrap_or(PAGE_EVENTS),
        filter: filter(&parameters)?,
    };
    if request.filter.is_of_virtual_streams() {
        refuse_virtual_alone(&**call.store()).await?;
    }
    if call.accepts(NDJSON) {
        return lines(call, PageReader::All(request), Links::AsTheyAre, limit).await;
    }
    request.validate()?;
    let mut held = call.reservation();
    let page = {
        let _turn = call.turn_to_read().await;
        event::write_all_page(call.store().read_all(request).await?)
    };
    held.grow(page.len())?;
    Ok(document(page, held))
}

/// Carries out `GET /streams/{stream}/{revision}`.
pub(crate) async fn event(call: &Call<'_>) -> Result<Answer> {
    let links = links(&call.parameters(&["resolve_links"])?)?;
    let stream = call.stream()?;
    let text = percent_decode("revision", call.revision(), Plus::Itself)?;
    let revision = revision("revision", &text)?;
    let mut held = call.reservation();
    let mut out = Vec::new();
    {
        let _turn = call.turn_to_read().await;
        let store = call.store();
        let event = Arc::new(store.read_event(stream, revision).await?);
        let found = match links {
            Links::AsTheyAre => Resolved::itself(event),
            Links::Followed => {
                let found = store.resolve(vec![Arc::clone(&event)]).await?;
                found.into_iter().next().unwrap_or(Resolved::itself(event))
            }
        };
        write_resolved(&mut out, &found, Framing::Document);
        out.push(b'\n');
    }
    held.grow(out.len())?;
    Ok(document(out.into(), held))
}

/// Carries out `GET /streams/{stream}/metadata`. The answer is the document byte for byte, with its revision as entity
/// tag.
pub(crate) async fn metadata(call: &Call<'_>) -> Result<Answer> {
    call.parameters(&[])?;
    let stream = call.stream()?;
    let _turn = call.turn_to_read().await;
    let record = call.store().stream_metadata(stream).await?;
    let mut answer = json(StatusCode::OK, record.metadata.json().clone());
    if let Some(revision) = record.revision
        && let Ok(tag) = HeaderValue::try_from(format!("\"{revision}\""))
    {
        answer.headers_mut().insert(ETAG, tag);
    }
    Ok(answer)
}

/// Carries out `GET /streams`.
pub(crate) async fn streams(call: &Call<'_>) -> Result<Answer> {
    let parameters = call.parameters(&["prefix", "after", "limit"])?;
    let prefix = parameters.one("prefix")?.unwrap_or_default();
    let after = match parameters.one("after")? {
        Some(name) => Some(uri::stream_named("after", &name)?),
        None => None,
    };
    let request = ListStreams {
        prefix: uri::name_part("prefix", &prefix)?,
        after,
        limit: limit(&parameters)?.unwrap_or(PAGE_EVENTS),
    };
    request.validate()?;
    let _turn = call.turn_to_read().await;
    let page = call.store().list_streams(request).await?;
    Ok(json(StatusCode::OK, answer::write(&Streams::from(&page))))
}

fn document(bytes: Bytes, held: Reservation) -> Answer {
    let mut answer = json(StatusCode::OK, bytes);
    answer.body_mut().guards().bytes = Some(held);
    answer
}

pub(crate) fn direction(parameters: &Parameters<'_>) -> Result<Direction> {
    match parameters.one("direction")?.as_deref() {
        None | Some("forwards") => Ok(Direction::Forwards),
        Some("backwards") => Ok(Direction::Backwards),
        Some(other) => Err(Problem::invalid(
            "direction",
            format!("must be forwards or backwards, found {}", shown(other)),
        )),
    }
}

pub(crate) fn limit(parameters: &Parameters<'_>) -> Result<Option<usize>> {
    let Some(text) = parameters.one("limit")? else {
        return Ok(None);
    };
    let max = u64::try_from(usize::MAX).unwrap_or(u64::MAX);
    let limit = uri::number("limit", &text, max)?;
    if limit == 0 {
        return Err(Problem::invalid("limit", "must be at least 1, found 0"));
    }
    Ok(Some(usize::try_from(limit).unwrap_or(usize::MAX)))
}

pub(crate) fn revision(field: &str, text: &str) -> Result<Revision> {
    uri::number(field, text, Revision::MAX.0).map(Revision)
}

pub(crate) fn checkpoint(field: &str, text: &str) -> Result<Checkpoint> {
    text.parse()
        .map_err(|error| Problem::invalid_at(field, &error))
}

/// Reads the filter that the parameters make: one query from `type`, `tag`, `stream_prefix` and `category`, or any
/// queries from `filter`, a JSON list of them.
pub(crate) fn filter(parameters: &Parameters<'_>) -> Result<Filter> {
    let owned = |values: Vec<Cow<'_, str>>| values.into_iter().map(Cow::into_owned).collect();
    let simple = query(
        "",
        ["type", "tag", "stream_prefix", "category"],
        QueryBody {
            types: owned(parameters.many("type")?),
            tags: owned(parameters.many("tag")?),
            stream_prefixes: owned(parameters.many("stream_prefix")?),
            categories: owned(parameters.many("category")?),
        },
    )?;
    let filter = match parameters.one("filter")? {
        None => Filter::query(simple),
        Some(_) if !simple.is_empty() => {
            return Err(Problem::invalid(
                "filter",
                "must not stand beside type, tag, stream_prefix or category",
            ));
        }
        Some(text) => filter_of("filter", document::parse_owned(&text, "filter")?)?,
    };
    filter.validate()?;
    Ok(filter)
}

/// Refuses a filter that only virtual streams pass, whose links are not among all events: it would find nothing for
/// ever. A store that has streams of such names from an older version is searched all the same.
pub(crate) async fn refuse_virtual_alone(store: &dyn EventStore) -> gesta_core::Result<()> {
    for prefix in [CATEGORY_PREFIX, TYPE_PREFIX] {
        let request = ListStreams {
            prefix: prefix.to_owned(),
            after: None,
            limit: 1,
        };
        if !store.list_streams(request).await?.streams.is_empty() {
            return Ok(());
        }
    }
    Err(gesta_core::Error::invalid("filter", ONLY_VIRTUAL))
}

/// Reads the parameter `resolve_links`.
pub(crate) fn links(parameters: &Parameters<'_>) -> Result<Links> {
    match parameters.one("resolve_links")?.as_deref() {
        None | Some("false") => Ok(Links::AsTheyAre),
        Some("true") => Ok(Links::Followed),
        Some(other) => Err(Problem::invalid(
            "resolve_links",
            format!("must be true or false, found {}", shown(other)),
        )),
    }
}
