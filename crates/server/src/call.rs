//! A call: its request, its caller, and the frame of every answer.
//!
//! Invariant: every error answer is a problem document.
//! Not here: which call a request is (`router`), what the calls do (`http`, `grpc`).

mod audit;
pub(crate) mod deliveries;
pub(crate) mod gossip;
pub(crate) mod host;

use std::net::IpAddr;
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use bytes::Bytes;
use futures::FutureExt;
use futures::future::BoxFuture;
use gesta_access::{Access, Caller, Guarded, Operation, OwnedOperation};
use gesta_core::shares::Holder;
use gesta_core::{EventStore, StreamId};
use gesta_wire::shown;
use hyper::header::{
    ALLOW, AUTHORIZATION, CONTENT_LENGTH, CONTENT_TYPE, HOST, HeaderMap, HeaderName, HeaderValue,
    RETRY_AFTER, TRANSFER_ENCODING, WWW_AUTHENTICATE,
};
use hyper::http::request::Parts;
use hyper::{Response, StatusCode};

use crate::route::{Matched, Route};
use crate::shared::activity::Activity;
use crate::shared::body::{AnswerBody, Reservation};
use crate::shared::gate::Ticket;
use crate::shared::pace::Paced;
use crate::shared::problem::{self, Problem, Result};
use crate::shared::uri;
use crate::state::State;

pub(crate) use audit::AuditLine;

pub(crate) type Answer = Response<AnswerBody>;

const JSON: HeaderValue = HeaderValue::from_static("application/json");
const PROBLEM_JSON: HeaderValue = HeaderValue::from_static("application/problem+json");
const RETRY_AFTER_SECONDS: HeaderValue = HeaderValue::from_static("1");
const BASIC: HeaderValue = HeaderValue::from_static("Basic realm=\"gesta\", charset=\"UTF-8\"");
const BEARER: HeaderValue = HeaderValue::from_static("Bearer realm=\"gesta\"");
const NO_SNIFF: HeaderValue = HeaderValue::from_static("nosniff");
const X_CONTENT_TYPE_OPTIONS: HeaderName = HeaderName::from_static("x-content-type-options");

/// Refuses what no call of this API may have: a `Host` that is missing, wrong or not this server, and a body in a
/// transfer coding that cannot be undone.
pub(crate) fn check_frame(state: &State, parts: &Parts) -> Result<()> {
    host::check(parts)?;
    // Who must prove who they are cannot be led here by the name of another site.
    let asks = state.access.as_ref().is_some_and(Access::is_on);
    let own = state
        .config
        .advertise
        .as_ref()
        .map(gesta_core::HostPort::host);
    // A server that anybody may reach cannot know its names, unless it was told the one by which it is called.
    let knows_names = !state.config.insecure || own.is_some();
    if knows_names && !asks && !host::is_local(parts, own) {
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
        "Host must be localhost, an address, or the name that --advertise-clients gives the server, found {found}; one that has several names needs users, or --insecure without --advertise-clients"
    );
    Problem::new(problem::MISDIRECTED_REQUEST, detail).field("Host")
}

/// The caller of a request, and the store as the caller may use it.
#[derive(Clone)]
pub(crate) struct Admitted {
    caller: Caller,
    pub(crate) store: Arc<dyn EventStore>,
    guarded: Option<Guarded>,
    /// Whose share the call uses.
    holder: Holder,
    /// True if nobody asked who calls.
    is_stranger: bool,
}

impl Admitted {
    /// Makes a caller who has not been asked to prove who they are.
    pub(crate) fn unasked(state: &State, from: IpAddr) -> Self {
        Self {
            caller: Caller::anonymous(Some(from)),
            store: Arc::clone(&state.store),
            guarded: None,
            holder: state.stranger(from),
            is_stranger: true,
        }
    }

    /// Finds out who calls, and refuses a caller who may do nothing.
    pub(crate) async fn of(state: &State, headers: &HeaderMap, from: IpAddr) -> Result<Self> {
        let Some(access) = &state.access else {
            if state.config.requires_access {
                return Err(Problem::new(
                    problem::UNAVAILABLE,
                    "the server has no accounts",
                ));
            }
            return Ok(Self {
                is_stranger: false,
                ..Self::unasked(state, from)
            });
        };
        let shown = headers.get_all(AUTHORIZATION).iter();
        let mut finding = pin!(access.caller(shown.map(HeaderValue::as_bytes), from));
        let caller = match futures::poll!(finding.as_mut()) {
            Poll::Ready(caller) => caller,
            // Until it is known who calls, the call takes nothing of what users need.
            Poll::Pending => {
                let place = state.bounds.strangers.enter(&state.stranger(from))?;
                tokio::select! {
                    biased;
                    caller = finding => caller,
                    problem = place.gave_way() => return Err(problem),
                }
            }
        }?;
        // Before a body is read, and whatever the call is.
        access.check(&caller, Operation::Info).await?;
        let guarded = access.guard(Arc::clone(&state.store), caller.clone());
        Ok(Self {
            caller,
            // Who has proved nothing was refused above, unless nobody has to.
            holder: guarded
                .user()
                .map_or(Holder::Everybody, |user| Holder::User(Arc::clone(user))),
            is_stranger: false,
            store: Arc::new(guarded.clone()),
            guarded: Some(guarded),
        })
    }

    /// Returns whose share the call uses.
    pub(crate) fn holder(&self) -> &Holder {
        &self.holder
    }

    /// Makes a reservation of bytes for the call, which holds nothing yet.
    pub(crate) fn reservation(&self, state: &State) -> Reservation {
        let budget = match self.is_stranger {
            true => &state.bounds.budget_of_strangers,
            false => &state.bounds.budget,
        };
        budget.reservation(&self.holder)
    }

    /// Makes a reservation for what a subscriber holds.
    pub(crate) fn reservation_of_subscriptions(&self, state: &State) -> Reservation {
        state
            .bounds
            .budget
            .reservation_of_subscriptions(&self.holder)
    }

    /// Refuses an operation that the caller may not do now.
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

    /// Tells whether the caller may do this, where an answer shows more to those who may.
    pub(crate) async fn may(
        &self,
        state: &State,
        operation: Operation<'_>,
    ) -> gesta_core::Result<bool> {
        match &state.access {
            Some(access) => access.allows(&self.caller, operation).await,
            None => Ok(true),
        }
    }

    /// Returns the name of the user as whom the caller came; it is empty if the caller has proved nothing.
    pub(crate) fn user(&self, state: &State) -> String {
        let access = state.access.as_ref();
        access.map_or_else(String::new, |access| access.user_of(&self.caller))
    }

    /// Tells whether the caller may know why the store fails.
    pub(crate) fn is_told_all(&self) -> bool {
        self.guarded.as_ref().is_none_or(Guarded::is_told_all)
    }

    /// Returns an error of the store itself as the caller may be told it.
    pub(crate) fn told(&self, error: gesta_core::Error) -> gesta_core::Error {
        match &self.guarded {
            Some(guarded) => guarded.told(error),
            None => error,
        }
    }

    /// Returns an error of a group as the caller may be told it: groups use the store itself.
    pub(crate) fn told_of_group(&self, error: gesta_groups::Error) -> gesta_groups::Error {
        match error {
            gesta_groups::Error::Store(error) => gesta_groups::Error::Store(self.told(error)),
            error => error,
        }
    }

    /// Counts the bytes of a payload that was delivered to the caller's user.
    pub(crate) fn had(&self, bytes: usize) {
        if let Some(guarded) = &self.guarded {
            guarded.had(bytes);
        }
    }

    /// Returns how long the caller's user has to wait for more events; `None` if there is no need to wait.
    pub(crate) fn wait(&self) -> Option<Duration> {
        self.guarded.as_ref()?.wait()
    }

    /// Checks that the caller may do this now. The future that it returns ends with an error once the caller may not do
    /// it any more.
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

/// The place that a call has among the requests, and whose it is, once that is known.
#[derive(Default)]
pub(crate) struct RequestPlace {
    pub(crate) ticket: Option<Ticket>,
    pub(crate) holder: Option<Holder>,
    pub(crate) paced: Option<Paced>,
}

impl RequestPlace {
    /// Notes whose call it is.
    pub(crate) fn belong_to(&mut self, holder: &Holder, state: &State) {
        self.holder = Some(holder.clone());
        self.paced = state.bounds.paces.of(holder);
    }

    /// Lets an answer keep the place until it is sent, also if it is a refusal. An answer without an end has a place
    /// among the subscriptions instead.
    pub(crate) fn keep_until_sent(self, answer: &mut Answer) {
        let body = answer.body_mut();
        body.guards().holder = self.holder;
        body.guards().paced = self.paced;
        if let Some(ticket) = self.ticket
            && body.guards().request.is_none()
        {
            body.keep(ticket);
        }
    }
}

/// One request, without its body.
pub(crate) struct Call<'a> {
    pub(crate) state: &'a Arc<State>,
    /// What happens on the connection of the request.
    pub(crate) activity: &'a Arc<Activity>,
    /// Address from which the call came.
    pub(crate) from: IpAddr,
    admitted: Admitted,
    parts: &'a Parts,
    matched: Matched<'a>,
}

impl<'a> Call<'a> {
    /// Makes a call whose caller has not been asked to prove who they are.
    pub(crate) fn unasked(
        state: &'a Arc<State>,
        activity: &'a Arc<Activity>,
        from: IpAddr,
        parts: &'a Parts,
        matched: Matched<'a>,
    ) -> Self {
        Self {
            admitted: Admitted::unasked(state, from),
            state,
            activity,
            from,
            parts,
            matched,
        }
    }

    /// Finds out who calls.
    pub(crate) async fn admit(&mut self) -> Result<()> {
        self.admitted = Admitted::of(self.state, &self.parts.headers, self.from).await?;
        Ok(())
    }

    /// Refuses an operation that the caller may not do now.
    pub(crate) async fn check(&self, operation: Operation<'_>) -> Result<()> {
        Ok(self.admitted.check(self.state, operation).await?)
    }

    /// Makes the line of the audit log about an operation that begins now. `subject` is what it is about, beside a
    /// stream.
    pub(crate) fn audit(&self, operation: OwnedOperation, subject: impl Into<String>) -> AuditLine {
        AuditLine::new(&self.admitted, self.state, operation, subject)
    }

    /// Returns whose share the call uses as long as it is not known who calls.
    pub(crate) fn stranger(&self) -> Holder {
        self.state.stranger(self.from)
    }

    /// Returns true if callers must prove who they are.
    pub(crate) fn is_guarded(&self) -> bool {
        self.state.access.as_ref().is_some_and(Access::is_on)
    }

    /// Returns the store as the caller may use it.
    pub(crate) fn store(&self) -> &Arc<dyn EventStore> {
        &self.admitted.store
    }

    /// Returns the caller and their store, for calls that go on after the answer has begun.
    pub(crate) fn admitted(&self) -> &Admitted {
        &self.admitted
    }

    /// Returns whose share the call uses.
    pub(crate) fn holder(&self) -> &Holder {
        self.admitted.holder()
    }

    /// Makes a reservation of bytes for the call, which holds nothing yet.
    pub(crate) fn reservation(&self) -> Reservation {
        self.admitted.reservation(self.state)
    }

    /// Waits for the caller's turn to read a page.
    pub(crate) async fn turn_to_read(&self) -> Ticket {
        self.state.turn_to_read(self.holder()).await
    }

    /// Returns the stream that the path names.
    pub(crate) fn stream(&self) -> Result<StreamId> {
        uri::stream(self.matched.stream)
    }

    /// Returns the request without its body.
    pub(crate) fn parts(&self) -> &'a Parts {
        self.parts
    }

    /// Returns the parts of the path.
    pub(crate) fn matched(&self) -> &Matched<'a> {
        &self.matched
    }

    /// Returns the address of the API that the path means.
    pub(crate) fn route(&self) -> Route {
        self.matched.route
    }

    /// Returns the name of the group in the path, still percent-encoded.
    pub(crate) fn group(&self) -> &'a str {
        self.matched.group
    }

    /// Returns the revision that the path names, still percent-encoded.
    pub(crate) fn revision(&self) -> &'a str {
        self.matched.revision
    }

    /// Reads the parameters, and refuses those that are not among `known`.
    pub(crate) fn parameters(&self, known: &'static [&'static str]) -> Result<uri::Parameters<'a>> {
        uri::Parameters::parse(self.parts.uri.query(), known)
    }

    pub(crate) fn headers(&self) -> &'a HeaderMap {
        &self.parts.headers
    }

    /// Returns true if the client accepts this media type by name.
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

/// Makes an answer with a JSON document.
pub(crate) fn json(status: StatusCode, document: impl Into<Bytes>) -> Answer {
    with_type(status, JSON, AnswerBody::whole(document))
}

/// Makes an answer with a body of this media type.
pub(crate) fn with_type(status: StatusCode, media_type: HeaderValue, body: AnswerBody) -> Answer {
    let mut answer = Response::new(body);
    *answer.status_mut() = status;
    answer.headers_mut().insert(CONTENT_TYPE, media_type);
    answer
}

/// Makes the answer that shows a problem.
pub(crate) fn show(problem: &Problem) -> Answer {
    let document = problem.to_body();
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
