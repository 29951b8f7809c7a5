//! Calls that subscribe.

use futures::StreamExt;
use gesta_core::{Subscribe, SubscribeFrom, SubscribeTo, resolve_subscription};
use hyper::StatusCode;
use hyper::header::{CACHE_CONTROL, HeaderName, HeaderValue};

use crate::api::{Answer, Call, with_type};
use crate::body::AnswerBody;
use crate::gate::Ticket;
use crate::pages::Links;
use crate::problem::{Problem, Result};
use crate::read::{self, with_filter};
use crate::sse::{self, Events, Feed};
use crate::uri::Parameters;

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

async fn begin(call: &Call<'_>, request: Subscribe, links: Links) -> Result<Answer> {
    let ticket = call.state.subscriptions.enter(call.holder())?;
    request.validate()?;
    if let SubscribeTo::All(filter) = &request.to
        && filter.is_of_virtual_streams()
    {
        read::refuse_virtual_alone(&**call.store()).await?;
    }
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
    Ok(endless(call, feed, ticket))
}

/// Makes an answer without an end.
pub(crate) fn endless(call: &Call<'_>, feed: Feed, ticket: Ticket) -> Answer {
    let events = Events::new(
        call.state.clone(),
        call.admitted(),
        feed,
        call.activity.clone(),
        ticket.gave_way(),
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
