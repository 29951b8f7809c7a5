//! From a request to its answer: admission, routing, and the frame of every answer.
//!
//! Invariants: every error answer is a problem document; every answer is counted.
//! Not here: what the calls do (`write`, `read`, `subscribe`, `system`).

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::FutureExt;
use futures::future::BoxFuture;
use gesta_access::{Access, Caller, Guarded, Operation, OwnedOperation};
use gesta_core::{EventStore, StreamId};
use gesta_wire::{shortened, shown};
use hyper::body::Incoming;
use hyper::header::{
    ALLOW, AUTHORIZATION, CONNECTION, CONTENT_LENGTH, CONTENT_TYPE, EXPECT, HOST, HeaderMap,
    HeaderName, HeaderValue, RETRY_AFTER, TRANSFER_ENCODING, WWW_AUTHENTICATE,
};
use hyper::http::request::Parts;
use hyper::{Method, Request, Response, StatusCode, Version};
use tokio::time::Instant;

use crate::body::{AnswerBody, RequestBody};
use crate::edge::Activity;
use crate::problem::{self, Problem, Result};
use crate::route::{self, Matched, Route, Verb};
use crate::state::State;
use crate::{backup, cors, groups, grpc, host, read, subscribe, system, uri, write};

pub(crate) type Answer = Response<AnswerBody>;

const JSON: HeaderValue = HeaderValue::from_static("application/json");
const PROBLEM_JSON: HeaderValue = HeaderValue::from_static("application/problem+json");
const RETRY_AFTER_SECONDS: HeaderValue = HeaderValue::from_static("1");
const BASIC: HeaderValue = HeaderValue::from_static("Basic realm=\"gesta\", charset=\"UTF-8\"");
const BEARER: HeaderValue = HeaderValue::from_static("Bearer realm=\"gesta\"");
const NO_SNIFF: HeaderValue = HeaderValue::from_static("nosniff");
const X_CONTENT_TYPE_OPTIONS: HeaderName = HeaderName::from_static("x-content-type-options");

/// Answers a request. Never fails: what goes wrong is an answer too.
pub(crate) async fn answer(
    state: Arc<State>,
    activity: &Arc<Activity>,
    from: IpAddr,
    request: Request<Incoming>,
) -> Answer {
    if grpc::is_call(&request) {
        return grpc::answer(state, from, request).await;
    }
    let begun = Instant::now();
    let (parts, body) = request.into_parts();
    let matched = route::matched(parts.uri.path());
    let (route, verb) = (matched.route, matched.route.method(&parts.method));
    let call = Call {
        admitted: Admitted::unasked(&state, from),
        state: &state,
        activity,
        from,
        parts: &parts,
        matched,
    };
    let mut body = RequestBody::new(body);
    let answer = match verb {
        _ if let Err(problem) = check_frame(&state, &parts) => Err(problem),
        None if let Some(answer) = cors::preflight(&state.config.cors_origins, route, &parts) => {
            Ok(answer)
        }
        Some(verb) => call.answer(verb, &mut body).await,
        None => Err(call.no_such_call()),
    };
    match &answer {
        Err(problem) if problem.store_is_away() => state.readiness.request_failed(problem),
        Ok(_) if route.asks_store() => state.readiness.request_succeeded(),
        _ => {}
    }
    let mut answer = answer.unwrap_or_else(|problem| show(&problem));
    cors::allow(&state.config.cors_origins, &parts.headers, &mut answer);
    // A client that waits for leave to send its body is spared sending it.
    let waits = parts.headers.contains_key(EXPECT);
    if parts.version < Version::HTTP_2 && (!body.discard(waits).await) {
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

/// Refuses what no call of this API may have: a host that is missing, wrong or not this server, and a body in a form
/// that cannot be undone.
pub(crate) fn check_frame(state: &State, parts: &Parts) -> Result<()> {
    host::check(parts)?;
    // Who must prove who they are cannot be led here by the name of another site.
    let asks = state.access.as_ref().is_some_and(Access::is_on);
    if !state.config.insecure && !asks && !host::is_local(parts) {
        return Err(misdirected(&parts.headers));
    }
    let codings = parts.headers.get_all(TRANSFER_ENCODING);
    let unknown = codings
        .iter()
        .find(|coding| !coding.as_bytes().eq_ignore_ascii_case(b"chunked"));
    match unknown {
        None => Ok(()),
        Some(found) => Err(Problem::new(
            problem::UNSUPPORTED,
            format!(
                "Transfer-Encoding must be chunked, found {}",
                shown(&String::from_utf8_lossy(found.as_bytes()))
            ),
        )
        .field("Transfer-Encoding")),
    }
}

fn misdirected(headers: &HeaderMap) -> Problem {
    let found = headers.get(HOST).map_or(&b""[..], HeaderValue::as_bytes);
    let found = shown(&String::from_utf8_lossy(found));
    let detail = format!(
        "Host must be localhost or an address, found {found}; a server that has other names needs --insecure"
    );
    Problem::new(problem::MISDIRECTED_REQUEST, detail).field("Host")
}

/// Answers a request on a connection beyond the maximum: about the health of the server, or that it is full.
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
        let waits = request.headers().contains_key(EXPECT);
        RequestBody::new(request.into_body()).discard(waits).await;
        show(full)
    };
    if version < Version::HTTP_2 {
        let close = HeaderValue::from_static("close");
        answer.headers_mut().insert(CONNECTION, close);
    }
    answer
}

/// A method as metrics show it: names that clients invent are not kept.
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

/// Who calls, and the store that is theirs.
#[derive(Clone)]
pub(crate) struct Admitted {
    caller: Caller,
    pub(crate) store: Arc<dyn EventStore>,
    guarded: Option<Guarded>,
}

impl Admitted {
    /// Nobody has been asked who they are.
    pub(crate) fn unasked(state: &State, from: IpAddr) -> Self {
        Self {
            caller: Caller::anonymous(Some(from)),
            store: Arc::clone(&state.store),
            guarded: None,
        }
    }

    /// Finds out who calls.
    pub(crate) async fn of(state: &State, headers: &HeaderMap, from: IpAddr) -> Result<Self> {
        let Some(access) = &state.access else {
            if state.config.requires_access {
                return Err(Problem::new(
                    problem::UNAVAILABLE,
                    "the server has no accounts",
                ));
            }
            return Ok(Self::unasked(state, from));
        };
        let shown = headers.get_all(AUTHORIZATION).iter();
        let caller = access
            .caller(shown.map(HeaderValue::as_bytes), from)
            .await?;
        // Before a body is read, and whatever the call is.
        access.check(&caller, Operation::Info).await?;
        let guarded = access.guard(Arc::clone(&state.store), caller.clone());
        Ok(Self {
            caller,
            store: Arc::new(guarded.clone()),
            guarded: Some(guarded),
        })
    }

    /// Refuses what the caller may not do now.
    pub(crate) async fn check(
        &self,
        state: &State,
        operation: Operation<'_>,
    ) -> gesta_core::Result<()> {
        match &state.access {
            Some(access) => access.check(&self.caller, operation).await,
            None => Ok(()),
        }
    }

    /// The caller's user had this payload.
    pub(crate) fn had(&self, bytes: usize) {
        if let Some(guarded) = &self.guarded {
            guarded.had(bytes);
        }
    }

    /// How long the caller's user has to wait for more events.
    pub(crate) fn wait(&self) -> Option<Duration> {
        self.guarded.as_ref()?.wait()
    }

    /// Checks that the caller may do this now; what it gives ends with an error once they may not any more.
    pub(crate) async fn until_forbidden(
        &self,
        operation: OwnedOperation,
    ) -> gesta_core::Result<BoxFuture<'static, gesta_core::Error>> {
        match &self.guarded {
            Some(guarded) => Ok(guarded.clone().until_forbidden(operation).await?.boxed()),
            None => Ok(std::future::pending().boxed()),
        }
    }
}

/// One request, without its body.
pub(crate) struct Call<'a> {
    pub(crate) state: &'a Arc<State>,
    /// What happens on its connection.
    pub(crate) activity: &'a Arc<Activity>,
    from: IpAddr,
    admitted: Admitted,
    parts: &'a Parts,
    matched: Matched<'a>,
}

impl<'a> Call<'a> {
    async fn answer(mut self, verb: Verb, body: &mut RequestBody) -> Result<Answer> {
        // Whether the server lives can be asked even when it is full.
        let ticket = if self.matched.route.is_probe() {
            None
        } else {
            Some(self.state.requests.enter()?)
        };
        if !self.matched.route.is_public() {
            self.admitted = Admitted::of(self.state, &self.parts.headers, self.from).await?;
        }
        let mut answer = match (self.matched.route, verb) {
            (Route::Stream, Verb::Post) => write::append_to(&self, body).await,
            // Boxed, so that the one hot call above does not carry the memory of all others.
            _ => Box::pin(self.others(verb, body)).await,
        }?;
        if !self.matched.route.is_endless() {
            answer.body_mut().guards().request = ticket;
        }
        Ok(answer)
    }

    /// Refuses what the caller may not do now.
    pub(crate) async fn check(&self, operation: Operation<'_>) -> Result<()> {
        Ok(self.admitted.check(self.state, operation).await?)
    }

    /// Tells the log of what only administrators do.
    pub(crate) fn done(&self, operation: Operation<'_>) {
        if let Some(access) = &self.state.access {
            access.done(&self.admitted.caller, operation);
        }
    }

    /// True if callers prove who they are.
    pub(crate) fn is_guarded(&self) -> bool {
        self.state.access.as_ref().is_some_and(Access::is_on)
    }

    /// The store as the caller may use it.
    pub(crate) fn store(&self) -> &Arc<dyn EventStore> {
        &self.admitted.store
    }

    /// What the caller is, for calls that go on.
    pub(crate) fn admitted(&self) -> &Admitted {
        &self.admitted
    }

    async fn others(&self, verb: Verb, body: &mut RequestBody) -> Result<Answer> {
        match (self.matched.route, verb) {
            (Route::Append, _) => write::append_several(self, body).await,
            (Route::Stream, Verb::Delete) => write::delete(self).await,
            (Route::Metadata, Verb::Put) => write::put_metadata(self, body).await,
            (Route::Stream, _) => read::stream(self).await,
            (Route::Event, _) => read::event(self).await,
            (Route::Metadata, _) => read::metadata(self).await,
            (Route::Streams, _) => read::streams(self).await,
            (Route::All, _) => read::all(self).await,
            (Route::StreamSubscribe, _) => subscribe::to_stream(self).await,
            (Route::AllSubscribe, _) => subscribe::to_all(self).await,
            (Route::Root, _) => system::root(self),
            (Route::OpenApi, _) => system::openapi(self),
            (Route::Info, _) => system::info(self).await,
            (Route::Live, _) => system::live(self),
            (Route::Ready, _) => system::ready(self).await,
            (Route::Metrics, _) => system::metrics(self).await,
            (Route::Backup, _) => backup::backup(self).await,
            (Route::Groups | Route::StreamGroups | Route::AllGroups, _) => groups::list(self).await,
            (Route::GroupsRestart, _) => groups::restart(self, body).await,
            (Route::StreamGroup(of) | Route::AllGroup(of), verb) => {
                groups::call(self, of, verb, body).await
            }
            (Route::Grpc | Route::Unknown, _) => Err(self.no_such_call()),
        }
    }

    fn no_such_call(&self) -> Problem {
        let (method, path) = (&self.parts.method, self.parts.uri.path());
        if self.matched.route == Route::Unknown {
            let path = shown(path);
            return Problem::new(problem::NOT_FOUND, format!("there is nothing at {path}"));
        }
        let (template, allow) = (self.matched.route.template(), self.matched.route.allow());
        let method = shortened(method.as_str(), 20);
        let detail = format!("{template} has no method {method}, only {allow}");
        Problem::new(problem::METHOD_NOT_ALLOWED, detail).allowing(allow)
    }

    /// The stream that the path names.
    pub(crate) fn stream(&self) -> Result<StreamId> {
        uri::stream(self.matched.stream)
    }

    /// What the path leads to.
    pub(crate) fn route(&self) -> Route {
        self.matched.route
    }

    /// The name of the group in the path, still percent-encoded.
    pub(crate) fn group(&self) -> &'a str {
        self.matched.group
    }

    /// The revision that the path names, still percent-encoded.
    pub(crate) fn revision(&self) -> &'a str {
        self.matched.revision
    }

    /// The parameters, none but these being allowed.
    pub(crate) fn parameters(&self, known: &'static [&'static str]) -> Result<uri::Parameters<'a>> {
        uri::Parameters::parse(self.parts.uri.query(), known)
    }

    pub(crate) fn headers(&self) -> &'a HeaderMap {
        &self.parts.headers
    }

    /// True if the client accepts this media type by name.
    pub(crate) fn accepts(&self, media_type: &str) -> bool {
        self.headers()
            .get_all(hyper::header::ACCEPT)
            .iter()
            .filter_map(|value| value.to_str().ok())
            .flat_map(|value| value.split(','))
            .filter_map(|range| range.split(';').next())
            .any(|range| range.trim().eq_ignore_ascii_case(media_type))
    }
}

/// An answer with a JSON document.
pub(crate) fn json(status: StatusCode, document: impl Into<Bytes>) -> Answer {
    with_type(status, JSON, AnswerBody::whole(document))
}

/// An answer with a body of this media type.
pub(crate) fn with_type(status: StatusCode, media_type: HeaderValue, body: AnswerBody) -> Answer {
    let mut answer = Response::new(body);
    *answer.status_mut() = status;
    answer.headers_mut().insert(CONTENT_TYPE, media_type);
    answer
}

/// A problem as an answer.
pub(crate) fn show(problem: &Problem) -> Answer {
    let document = problem.to_json();
    let length = document.len();
    let mut answer = with_type(problem.status(), PROBLEM_JSON, AnswerBody::whole(document));
    let headers = answer.headers_mut();
    headers.insert(CONTENT_LENGTH, HeaderValue::from(length));
    headers.insert(X_CONTENT_TYPE_OPTIONS, NO_SNIFF);
    if problem.status() == StatusCode::UNAUTHORIZED {
        headers.append(WWW_AUTHENTICATE, BASIC);
        headers.append(WWW_AUTHENTICATE, BEARER);
    }
    if let Some(allow) = problem.allow() {
        headers.insert(ALLOW, HeaderValue::from_static(allow));
    }
    if problem.status() == StatusCode::SERVICE_UNAVAILABLE {
        headers.insert(RETRY_AFTER, RETRY_AFTER_SECONDS);
    }
    answer
}
