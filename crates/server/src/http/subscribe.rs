//! Calls that subscribe.
//!
//! Invariant: what a subscription keeps of its filter counts against the bytes that subscriptions may hold, because a
//! filter may be much larger than what is ever sent to its subscriber.

use futures::StreamExt;
use gesta_core::{Filter, Subscribe, SubscribeFrom, SubscribeTo, resolve_subscription};
use hyper::StatusCode;
use hyper::header::{CACHE_CONTROL, HeaderName, HeaderValue};

use crate::call::{Answer, Call, with_type};
use crate::http::read::{self, with_filter};
use crate::http::sse::{self, Events, Feed};
use crate::shared::body::{AnswerBody, Reservation};
use crate::shared::gate::{Ticket, either};
use crate::shared::pages::Links;
use crate::shared::problem::{Problem, Result};
use crate::shared::queries::filter_bytes;
use crate::shared::uri::Parameters;

const LAST_EVENT_ID: &str = "Last-Event-ID";
/// Header that tells proxies of the nginx family to pass each message on at once.
const X_ACCEL_BUFFERING: HeaderName = HeaderName::from_static("x-accel-buffering");

/// Carries out `GET /streams/{stream}/subscribe`.
pub(crate) async fn to_stream(call: &Call<'_>) -> Result<Answer> {
    let parameters = call.parameters(&["after", "resolve_links"])?;
    let request = Subscribe {
        to: SubscribeTo::Stream(call.stream()?),
        from: from(call, &parameters, Subject::Stream)?,
    };
    begin(call, request, read::links(&parameters)?).await
}

/// Carries out `GET /all/subscribe`.
pub(crate) async fn to_all(call: &Call<'_>) -> Result<Answer> {
    let parameters = call.parameters(with_filter!("after", "resolve_links"))?;
    let request = Subscribe {
        to: SubscribeTo::All(read::filter(&parameters)?),
        from: from(call, &parameters, Subject::All)?,
    };
    begin(call, request, read::links(&parameters)?).await
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Subject {
    Stream,
    All,
}

/// Reads where to begin. `Last-Event-ID`, which a browser sends when it connects again, counts more than `after`.
fn from(call: &Call<'_>, parameters: &Parameters<'_>, subject: Subject) -> Result<SubscribeFrom> {
    let after = parameters.one("after")?;
    let last = match call.headers().get(LAST_EVENT_ID) {
        Some(value) => value.to_str().map_err(|_| {
            Problem::invalid(
                LAST_EVENT_ID,
                "must be a checkpoint, found other bytes than text",
            )
        })?,
        None => "",
    };
    let (field, text) = match (last, after.as_deref()) {
        ("", None) => return Ok(SubscribeFrom::Start),
        ("", Some(after)) => ("after", after),
        (last, _) => (LAST_EVENT_ID, last),
    };
    Ok(match text {
        "start" => SubscribeFrom::Start,
        "end" => SubscribeFrom::End,
        // No checkpoint begins with a digit or a sign.
        number
            if subject == Subject::Stream
                && number.starts_with(|c: char| c.is_ascii_digit() || c == '-') =>
        {
            SubscribeFrom::Revision(read::revision(field, number)?)
        }
        checkpoint => SubscribeFrom::Checkpoint(read::checkpoint(field, checkpoint)?),
    })
}

/// Counts what is kept of the filter of a subscription, by the store and by its hub, against the bytes that
/// subscriptions may hold. Returns `None` if every event passes.
///
/// # Errors
/// Overloaded if the caller may not hold so much.
fn keep_filter(call: &Call<'_>, filter: &Filter) -> Result<Option<Reservation>> {
    let bytes = 2 * filter_bytes(filter);
    if bytes == 0 {
        return Ok(None);
    }
    let mut kept = call.admitted().reservation_of_subscriptions(call.state);
    kept.grow(bytes)?;
    Ok(Some(kept))
}

async fn begin(call: &Call<'_>, request: Subscribe, links: Links) -> Result<Answer> {
    let ticket = call.state.bounds.subscriptions.enter(call.holder())?;
    request.validate()?;
    if let SubscribeTo::All(filter) = &request.to
        && filter.is_of_virtual_streams()
    {
        read::refuse_virtual_alone(&**call.store()).await?;
    }
    let filter = match &request.to {
        SubscribeTo::All(filter) => keep_filter(call, filter)?,
        SubscribeTo::Stream(_) => None,
    };
    let subscription = {
        let _turn = call.turn_to_read().await;
        call.store().subscribe(request).await?
    };
    let feed = match links {
        Links::AsTheyAre => subscription.into(),
        Links::Followed => {
            let store = call.store().clone();
            Feed::Followed(resolve_subscription(store, subscription).boxed())
        }
    };
    Ok(endless(call, feed, ticket, filter))
}

/// Makes an answer without an end. `filter` is the share of what is kept of the filter of a subscription.
pub(crate) fn endless(
    call: &Call<'_>,
    feed: Feed,
    ticket: Ticket,
    filter: Option<Reservation>,
) -> Answer {
    let gave_way = match &filter {
        Some(filter) => either(ticket.gave_way(), filter.gave_way_as("the filter")),
        None => ticket.gave_way(),
    };
    let events = Events::new(
        call.state.clone(),
        call.admitted(),
        feed,
        call.activity.clone(),
        gave_way,
        filter,
    );
    let mut answer = with_type(
        StatusCode::OK,
        HeaderValue::from_static(sse::MEDIA_TYPE),
        AnswerBody::parts(events),
    );
    answer.body_mut().guards().request = Some(ticket);
    let headers = answer.headers_mut();
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    headers.insert(X_ACCEL_BUFFERING, HeaderValue::from_static("no"));
    answer
}
