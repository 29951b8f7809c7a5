//! Leads a request to its answer: finds the call, and does what is the same for the answers of all calls.
//!
//! Invariants: every error answer is a problem document; every answer is counted.
//! Not here: the frame of an answer (`call`), what the calls do (`http`, `grpc`).

use std::net::IpAddr;
use std::sync::Arc;

use gesta_core::shares;
use gesta_wire::{shortened, shown};
use hyper::body::{Body, Incoming};
use hyper::header::{CONNECTION, CONTENT_LENGTH, CONTENT_TYPE, EXPECT, HeaderMap, HeaderValue};
use hyper::http::request::Parts;
use hyper::{Method, Request, StatusCode, Version};
use tokio::time::Instant;

use crate::call::gossip;
use crate::call::{Answer, Call, RequestPlace, check_frame, show};
use crate::grpc;
use crate::http::backup;
use crate::http::cors;
use crate::http::groups;
use crate::http::maintenance;
use crate::http::read;
use crate::http::sse;
use crate::http::subscribe;
use crate::http::system;
use crate::http::write;
use crate::route::{self, Matched, Route, Verb};
use crate::shared::activity::Activity;
use crate::shared::body::RequestBody;
use crate::shared::problem::{self, Problem, Result};
use crate::shared::request_log::Answered;
use crate::state::State;

/// Answers a request. It never fails: an error is an answer too.
pub(crate) async fn answer(
    state: Arc<State>,
    activity: &Arc<Activity>,
    from: IpAddr,
    request: Request<Incoming>,
) -> Answer {
    if grpc::is_call(&request) {
        return grpc::answer(state, activity, from, request).await;
    }
    let begun = Instant::now();
    let (parts, body) = request.into_parts();
    let matched = route::matched(parts.uri.path());
    let (route, verb) = (matched.route, matched.route.method(&parts.method));
    let call = Call::unasked(&state, activity, from, &parts, matched);
    let mut body = RequestBody::new(body);
    let mut place = RequestPlace::default();
    let answer = match verb {
        _ if let Err(problem) = check_frame(&state, &parts) => Err(problem),
        None if let Some(answer) = cors::preflight(&state.trusted.origins, route, &parts) => {
            Ok(answer)
        }
        Some(verb) => answer_call(call, verb, &mut body, &mut place).await,
        None => Err(no_such_call(&parts, &matched)),
    };
    match &answer {
        Err(problem) if problem.store_is_away() => {
            state
                .readiness
                .request_failed(problem.kind.name, problem.why());
        }
        Ok(_) if route.asks_store() => state.readiness.request_succeeded(),
        _ => {}
    }
    let answer = answer.and_then(|answer| tells_its_end(&parts, answer));
    let mut answer = answer.unwrap_or_else(|problem| show(&problem));
    state.request_log.answered(&Answered {
        method: parts.method.as_str(),
        path: parts.uri.path(),
        headers: &parts.headers,
        status: answer.status().as_u16(),
        took: begun.elapsed(),
        from,
        holder: place.holder.as_ref(),
        may_last: route == Route::Backup,
    });
    place.keep_until_sent(&mut answer);
    cors::allow(&state.trusted.origins, &parts.headers, &mut answer);
    // A client that waits for leave to send its body is spared sending it.
    let waits = waits_for_leave(&parts.headers);
    // Proxies may have seen another end of a body whose coding is not known.
    let is_framed_oddly = answer.status() == StatusCode::NOT_IMPLEMENTED;
    if parts.version < Version::HTTP_2 && (is_framed_oddly || !body.discard(waits).await) {
        let close = HeaderValue::from_static("close");
        answer.headers_mut().insert(CONNECTION, close);
    }
    state.metrics.request(
        method_name(&parts.method),
        route,
        answer.status().as_u16(),
        begun.elapsed(),
    );
    answer
}

/// Returns true if the client sends its body only once it is told to. Other expectations than that are ignored, as RFC
/// 9110, section 10.1.1, leaves to a server.
fn waits_for_leave(headers: &HeaderMap) -> bool {
    let expected = headers.get_all(EXPECT).iter();
    expected
        .map(HeaderValue::as_bytes)
        .any(|value| value.eq_ignore_ascii_case(b"100-continue"))
}

/// Refuses an answer whose receiver could not tell that it broke off: in HTTP/1.0 an answer without a length ends when
/// the connection does, and a proxy that asks by HTTP/1.0, as nginx does by default, passes part of it on as whole.
///
/// Events that a server sends (SSE) are let through: their reader takes each end for a break, and goes on after the
/// last event.
fn tells_its_end(parts: &Parts, answer: Answer) -> Result<Answer> {
    let has_length = || {
        answer.headers().contains_key(CONTENT_LENGTH) || answer.body().size_hint().exact().is_some()
    };
    let is_events = || {
        answer
            .headers()
            .get(CONTENT_TYPE)
            .is_some_and(|it| it == sse::MEDIA_TYPE)
    };
    if parts.version >= Version::HTTP_11 || has_length() || is_events() {
        return Ok(answer);
    }
    let detail = "this answer has no length, and HTTP/1.0 cannot tell whether it came whole: ask by HTTP/1.1 or HTTP/2; \
                  a proxy must do so too (nginx: proxy_http_version 1.1)";
    Err(Problem::new(problem::UNSUPPORTED, detail))
}

/// Admits a call, and carries it out. The place that it takes is noted in `place`.
async fn answer_call(
    mut call: Call<'_>,
    verb: Verb,
    body: &mut RequestBody,
    place: &mut RequestPlace,
) -> Result<Answer> {
    // What anybody may ask takes no place of users: its answers are whole at once, see `serve`.
    if !call.route().is_public() {
        call.admit().await?;
        // Before it is answered, which may last.
        call.activity.prove();
        place.belong_to(call.holder(), call.state);
        // Metrics can be asked even when the server is full.
        if !call.route().is_probe() {
            place.ticket = Some(call.state.bounds.requests.enter(call.holder())?);
        }
    }
    let answering = async {
        match (call.route(), verb) {
            (Route::Stream, Verb::Post) => write::append_to(&call, body).await,
            // Boxed, so that the one hot call above does not carry the memory of all others.
            _ => Box::pin(answer_other(&call, verb, body)).await,
        }
    };
    let answer = shares::act(call.holder(), answering).await;
    answer.map_err(|problem| match call.admitted().is_told_all() {
        true => problem,
        false => problem.for_others(),
    })
}

async fn answer_other(call: &Call<'_>, verb: Verb, body: &mut RequestBody) -> Result<Answer> {
    match (call.route(), verb) {
        (Route::Append, _) => write::append_several(call, body).await,
        (Route::Stream, Verb::Delete) => write::delete(call).await,
        (Route::Metadata, Verb::Put) => write::put_metadata(call, body).await,
        (Route::Stream, _) => read::stream(call).await,
        (Route::Event, _) => read::event(call).await,
        (Route::Metadata, _) => read::metadata(call).await,
        (Route::Streams, _) => read::streams(call).await,
        (Route::All, _) => read::all(call).await,
        (Route::StreamSubscribe, _) => subscribe::to_stream(call).await,
        (Route::AllSubscribe, _) => subscribe::to_all(call).await,
        (Route::Root, _) => system::root(call),
        (Route::OpenApi, _) => system::openapi(call),
        (Route::Gossip, _) => gossip::gossip(call),
        (Route::Info, _) => system::info(call).await,
        (Route::Live, _) => system::live(call),
        (Route::Ready, _) => system::ready(call).await,
        (Route::Metrics, _) => system::metrics(call).await,
        (Route::Backup, _) => backup::backup(call).await,
        (Route::Verify, _) => maintenance::verify(call).await,
        (Route::Scavenge, _) => maintenance::scavenge(call).await,
        (Route::VirtualStreams, verb) => maintenance::virtual_streams(call, verb, body).await,
        (Route::Groups | Route::StreamGroups | Route::AllGroups, _) => groups::list(call).await,
        (Route::GroupsRestart, _) => groups::restart(call, body).await,
        (Route::StreamGroup(of) | Route::AllGroup(of), verb) => {
            groups::call(call, of, verb, body).await
        }
        (Route::Grpc | Route::Unknown, _) => Err(no_such_call(call.parts(), call.matched())),
    }
}

fn no_such_call(parts: &Parts, matched: &Matched<'_>) -> Problem {
    let (method, path) = (&parts.method, parts.uri.path());
    if matched.route == Route::Unknown {
        let hint = match path {
            "/health" | "/healthz" | "/livez" | "/readyz" | "/ready" | "/live" => {
                "; health is asked at /health/live and /health/ready"
            }
            _ => "",
        };
        let detail = format!("there is nothing at {}{hint}", shown(path));
        return Problem::new(problem::NOT_FOUND, detail);
    }
    let (template, allow) = (matched.route.template(), matched.route.allow());
    let method = shortened(method.as_str(), 20);
    let detail = format!("{template} has no method {method}, only {allow}");
    Problem::new(problem::METHOD_NOT_ALLOWED, detail).allowing(allow)
}

/// Answers a request on a connection beyond the maximum: a probe with its answer, any other request with the problem
/// `full`.
pub(crate) async fn answer_beyond(
    state: Arc<State>,
    activity: &Arc<Activity>,
    from: IpAddr,
    request: Request<Incoming>,
    full: &Problem,
) -> Answer {
    let version = request.version();
    let mut answer = if route::matched(request.uri().path()).route.is_probe() {
        answer(state, activity, from, request).await
    } else {
        let waits = waits_for_leave(request.headers());
        RequestBody::new(request.into_body()).discard(waits).await;
        show(full)
    };
    if version < Version::HTTP_2 {
        let close = HeaderValue::from_static("close");
        answer.headers_mut().insert(CONNECTION, close);
    }
    answer
}

/// Returns a method as metrics show it. Names that clients invent are not kept.
fn method_name(method: &Method) -> &'static str {
    match *method {
        Method::GET => "GET",
        Method::POST => "POST",
        Method::PUT => "PUT",
        Method::DELETE => "DELETE",
        Method::HEAD => "HEAD",
        _ => "other",
    }
}
