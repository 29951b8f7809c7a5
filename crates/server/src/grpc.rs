//! The gRPC calls of the EventStoreDB and KurrentDB clients, on the same port as HTTP.
//!
//! Why they are written by hand: see `gesta_grpc`. Each call reads its messages, asks the store, and writes its
//! messages; an error is a status in the trailers.
//! Invariants: what arrives counts against the bytes in flight as it arrives; a call that may last for ever counts as a
//! subscription, every other call as a request; the deadline that a client names ends its call.
//! Not here: messages, errors, filters and everything else that is pure (`gesta_grpc`).

mod append;
mod batch;
mod call;
mod claim;
mod delete;
mod discovery;
mod groups;
mod health;
mod links;
mod operations;
mod projections;
mod read;
mod reply;
mod stats;
mod subscribe;
mod users;
mod v2;

use std::net::IpAddr;
use std::sync::Arc;

use gesta_access::FOR_OPERATORS;
use gesta_core::shares;
use gesta_grpc::{Code, Refusal};
use hyper::body::Incoming;
use hyper::header::CONTENT_TYPE;
use hyper::http::request::Parts;
use hyper::{Method, Request, Version};
use tokio::time::Instant;

use crate::call::{Admitted, Answer, RequestPlace, check_frame};
use crate::grpc::call::GrpcCall;
use crate::grpc::reply::Reply;
use crate::route::Route;
use crate::shared::activity::Activity;
use crate::shared::body::MessageSource;
use crate::shared::gate::Ticket;
use crate::shared::problem::{self, tell_operators};
use crate::shared::request_log::Answered;
use crate::state::State;

/// Result of a call.
type Result<T> = std::result::Result<T, Refusal>;

/// Returns true if a request is a call of gRPC, by the type of its body.
pub(crate) fn is_call<B>(request: &Request<B>) -> bool {
    let media_type = request.headers().get(CONTENT_TYPE);
    media_type.is_some_and(|value| {
        let rest = value.as_bytes().strip_prefix(b"application/grpc");
        rest.is_some_and(|rest| matches!(rest.first(), None | Some(b'+' | b';')))
    })
}

/// Answers a call. It never fails: an error is a status.
pub(crate) async fn answer(
    state: Arc<State>,
    activity: &Arc<Activity>,
    from: IpAddr,
    request: Request<Incoming>,
) -> Answer {
    let begun = Instant::now();
    let (parts, body) = request.into_parts();
    let noted = state.clone();
    let path = parts.uri.path();
    let mut caller = None;
    let answer = match admit(&state, activity, &parts, from).await {
        Err(refusal) => refuse(path, refusal),
        Ok((ticket, admitted)) => {
            let mut place = RequestPlace {
                ticket: Some(ticket),
                ..RequestPlace::default()
            };
            place.belong_to(admitted.holder(), &state);
            let call = GrpcCall::new(state, activity, admitted, from, &parts, body);
            let deadline = call.deadline();
            let asking = call.admitted.clone();
            let holder = asking.holder().clone();
            caller = Some(holder.clone());
            let answering = reply::in_time(deadline, dispatch(path, call));
            let answering = shares::act(&holder, answering);
            let outcome = match &place.ticket {
                // What changes nothing may end anywhere.
                Some(ticket) if PUBLIC.contains(&path) => tokio::select! {
                    biased;
                    outcome = answering => outcome,
                    problem = ticket.gave_way() => Err(refusal_of(&problem)),
                },
                _ => answering.await,
            };
            note(&noted, path, &outcome);
            let outcome = outcome.map_err(|refusal| match asking.is_told_all() {
                true => refusal,
                false => refusal.for_others(FOR_OPERATORS),
            });
            let mut answer = match outcome {
                Ok(Reply::Endless(messages, of_subscriptions)) => {
                    // Messages that hold their place themselves end by themselves.
                    let ends = of_subscriptions.is_some();
                    place.ticket = of_subscriptions;
                    let mut answer = reply::answer(messages, deadline);
                    if ends {
                        answer.body_mut().end_with(activity.gave_way());
                    }
                    answer
                }
                Ok(Reply::Finite(messages)) => reply::answer(messages, deadline),
                Err(refusal) => refuse(path, refusal),
            };
            place.keep_until_sent(&mut answer);
            answer
        }
    };
    noted.request_log.answered(&Answered {
        method: "POST",
        path,
        headers: &parts.headers,
        status: answer.status().as_u16(),
        took: begun.elapsed(),
        from,
        holder: caller.as_ref(),
        may_last: false,
    });
    noted.metrics.request(
        "POST",
        Route::Grpc,
        answer.status().as_u16(),
        begun.elapsed(),
    );
    answer
}

/// Notes whether the store has answered, so that the log tells when calls begin to fail because it is away.
fn note(state: &State, path: &str, outcome: &Result<Reply>) {
    match outcome {
        Err(refusal) if refusal.is_store_away() => {
            let why = refusal.why();
            tracing::debug!(path, why, "call failed");
            let kind = match refusal.code {
                Code::Aborted => problem::OUTCOME_UNKNOWN,
                _ => problem::UNAVAILABLE,
            };
            state.readiness.request_failed(kind.name, why);
        }
        Err(refusal) => tell_operators(Some(path), refusal),
        // Messages that are made on the way ask the store later.
        Ok(Reply::Finite(MessageSource::Framed(_))) if !PUBLIC.contains(&path) => {
            state.readiness.request_succeeded();
        }
        _ => {}
    }
}

/// Makes the answer that is a refusal. In the second version of the protocol it has details, whatever refused the call.
fn refuse(path: &str, refusal: Refusal) -> Answer {
    reply::refuse(&match path.strip_prefix(STREAMS_V2) {
        Some(method) => gesta_grpc::v2::detailed(refusal, method),
        None => refusal,
    })
}

/// Path of the call by which others learn whether the server can be used.
const HEALTH_CHECK: &str = "/grpc.health.v1.Health/Check";

/// Paths of the calls that anybody may make. Clients make them before they say who they are.
const PUBLIC: [&str; 3] = [
    HEALTH_CHECK,
    "/event_store.client.server_features.ServerFeatures/GetSupportedMethods",
    "/event_store.client.gossip.Gossip/Read",
];

/// Admits a call if its frame is that of a call, the server is not full, and the caller has proved who they are.
async fn admit(
    state: &State,
    activity: &Activity,
    parts: &Parts,
    from: IpAddr,
) -> Result<(Ticket, Admitted)> {
    if parts.version != Version::HTTP_2 {
        return Err(Refusal::invalid("gRPC needs HTTP/2"));
    }
    if parts.method != Method::POST {
        return Err(Refusal::invalid("gRPC needs the method POST"));
    }
    check_frame(state, parts).map_err(|problem| refusal_of(&problem))?;
    let enter = async {
        if PUBLIC.contains(&parts.uri.path()) {
            let admitted = Admitted::unasked(state, from);
            return Ok((state.bounds.strangers.enter(admitted.holder())?, admitted));
        }
        let admitted = Admitted::of(state, &parts.headers, from).await?;
        // Before it is answered, which may last. What anybody may call proves nothing.
        activity.prove();
        Ok((state.bounds.requests.enter(admitted.holder())?, admitted))
    };
    let entered: crate::shared::problem::Result<_> = enter.await;
    entered.map_err(|problem| refusal_of(&problem))
}

/// Makes a refusal of a problem of HTTP.
fn refusal_of(problem: &crate::shared::problem::Problem) -> Refusal {
    let detail = problem.detail.as_str();
    match problem.status().as_u16() {
        401 => Refusal::unauthenticated(),
        403 => Refusal::access_denied(),
        503 if problem.kind == crate::shared::problem::OVERLOADED => Refusal::overloaded(detail),
        500..600 => Refusal::unavailable(detail),
        413 => Refusal::new(gesta_grpc::Code::ResourceExhausted, detail),
        _ => Refusal::invalid(detail),
    }
}

/// Carries out the call that the path names.
async fn dispatch(path: &str, mut call: GrpcCall) -> Result<Reply> {
    match path {
        "/event_store.client.streams.Streams/Append" => append::append(&mut call).await,
        // Boxed, so that the one hot call above does not carry the memory of all others.
        _ => Box::pin(others(path, call)).await,
    }
}

/// Path of the call that appends batches.
const BATCH_APPEND: &str = "/event_store.client.streams.Streams/BatchAppend";

async fn others(path: &str, mut call: GrpcCall) -> Result<Reply> {
    match path {
        "/event_store.client.streams.Streams/Read" => read::read(&mut call).await,
        BATCH_APPEND => batch::batch_append(call),
        "/event_store.client.streams.Streams/Delete" => delete::delete(&mut call).await,
        "/event_store.client.streams.Streams/Tombstone" => delete::tombstone(&mut call).await,
        "/event_store.client.server_features.ServerFeatures/GetSupportedMethods" => {
            discovery::features(&mut call).await
        }
        "/event_store.client.gossip.Gossip/Read" => discovery::gossip(&mut call).await,
        "/event_store.client.monitoring.Monitoring/Stats" => stats::stats(&mut call).await,
        HEALTH_CHECK => health::check(&mut call).await,
        "/grpc.health.v1.Health/Watch" => health::watch(&mut call).await,
        path => {
            if let Some(method) = path.strip_prefix(GROUPS) {
                return of_groups(method, path, call).await;
            }
            if let Some(method) = path.strip_prefix(USERS) {
                return of_users(method, path, call).await;
            }
            if let Some(method) = path.strip_prefix(OPERATIONS) {
                return of_operators(method, path, call).await;
            }
            if let Some(method) = path.strip_prefix(PROJECTIONS) {
                return of_projections(method, path, call).await;
            }
            match path.strip_prefix(STREAMS_V2) {
                Some(method) => of_streams_v2(method, path, call).await,
                None => Err(Refusal::unimplemented(path)),
            }
        }
    }
}

/// Beginning of the paths of the calls of the second version.
const STREAMS_V2: &str = "/kurrentdb.protocol.v2.streams.StreamsService/";

async fn of_streams_v2(method: &str, path: &str, mut call: GrpcCall) -> Result<Reply> {
    match method {
        "AppendSession" => v2::append_session(&mut call).await,
        "AppendRecords" => v2::append_records(&mut call).await,
        _ => Err(Refusal::unimplemented(path)),
    }
}

/// Beginning of the paths of the calls of operators.
const OPERATIONS: &str = "/event_store.client.operations.Operations/";

async fn of_operators(method: &str, path: &str, mut call: GrpcCall) -> Result<Reply> {
    match method {
        "StartScavenge" => operations::start_scavenge(&mut call).await,
        "StopScavenge" => operations::stop_scavenge(&mut call).await,
        "MergeIndexes" => operations::merge_indexes(&mut call).await,
        "ResignNode" => operations::resign(&mut call, path).await,
        "SetNodePriority" => operations::set_priority(&mut call, path).await,
        // The name that this call had before groups had a service of their own.
        "RestartPersistentSubscriptions" => groups::restart(&mut call).await,
        _ => Err(Refusal::unimplemented(path)),
    }
}

/// Beginning of the paths of the calls about projections.
const PROJECTIONS: &str = "/event_store.client.projections.Projections/";

async fn of_projections(method: &str, path: &str, mut call: GrpcCall) -> Result<Reply> {
    match method {
        "Statistics" => projections::statistics(&mut call).await,
        "Enable" => projections::enable(&mut call).await,
        "Disable" => projections::disable(&mut call).await,
        _ => Err(Refusal::unimplemented(path)),
    }
}

/// Beginning of the paths of the calls about users.
const USERS: &str = "/event_store.client.users.Users/";

async fn of_users(method: &str, path: &str, mut call: GrpcCall) -> Result<Reply> {
    match method {
        "Create" => users::create(&mut call).await,
        "Update" => users::update(&mut call).await,
        "Delete" => users::delete(&mut call).await,
        "Disable" => users::disable(&mut call).await,
        "Enable" => users::enable(&mut call).await,
        "Details" => users::details(&mut call).await,
        "ChangePassword" => users::change_password(&mut call).await,
        "ResetPassword" => users::reset_password(&mut call).await,
        _ => Err(Refusal::unimplemented(path)),
    }
}

/// Beginning of the paths of the calls about consumer groups.
const GROUPS: &str = "/event_store.client.persistent_subscriptions.PersistentSubscriptions/";

async fn of_groups(method: &str, path: &str, mut call: GrpcCall) -> Result<Reply> {
    match method {
        "Create" => groups::create(&mut call).await,
        "Update" => groups::update(&mut call).await,
        "Delete" => groups::delete(&mut call).await,
        "Read" => groups::consume(call).await,
        "GetInfo" => groups::get_info(&mut call).await,
        "ReplayParked" => groups::replay_parked(&mut call).await,
        "List" => groups::list(&mut call).await,
        "RestartSubsystem" => groups::restart(&mut call).await,
        _ => Err(Refusal::unimplemented(path)),
    }
}
