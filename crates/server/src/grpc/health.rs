//! `grpc.health.v1.Health`: whether the server can be used, as load balancers and clients of any gRPC library ask.
//!
//! The answer is that of `/health/ready`: appends can succeed, and the server is not stopping. Anybody may ask for it
//! once; to follow it takes a place among the subscriptions, so whoever does must have proved who they are where the
//! server asks that.

use std::sync::Arc;
use std::time::Duration;

use futures::stream;
use gesta_grpc::messages::health::health_check_response::ServingStatus;
use gesta_grpc::messages::health::{HealthCheckRequest, HealthCheckResponse};
use gesta_grpc::{Code, Refusal, features, frame};
use tokio::time::MissedTickBehavior;

use super::Result;
use super::call::GrpcCall;
use super::reply::{self, Reply};
use crate::state::State;

/// Time between two looks whether the answer has changed. All who follow it share a look.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// Carries out `Check`.
pub(crate) async fn check(call: &mut GrpcCall) -> Result<Reply> {
    let request: HealthCheckRequest = call.message().await?;
    if !is_known(&request.service) {
        let text = format!("there is no service {:?}", shortened(&request.service));
        return Err(Refusal::new(Code::NotFound, text));
    }
    let state = &call.state;
    let is_ready = !state.stopping.is_cancelled() && state.probe().await.is_ok();
    Ok(Reply::message(&told(status(is_ready))))
}

/// Carries out `Watch`: tells the answer, and each time that it changes.
pub(crate) async fn watch(call: &mut GrpcCall) -> Result<Reply> {
    let request: HealthCheckRequest = call.message().await?;
    let ticket = call.enter_subscriptions()?;
    let mut ticks = tokio::time::interval(LOOK_EVERY);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let is_known = is_known(&request.service);
    let begun = Some((call.state.clone(), ticks, None));
    let parts = stream::unfold(begun, move |begun| async move {
        let (state, mut ticks, mut last) = begun?;
        loop {
            tokio::select! {
                () = state.stopping.cancelled() => return Some((Err(Refusal::stopping()), None)),
                _ = ticks.tick() => {}
            }
            let found = match is_known {
                // It may be known once the server is another version.
                false => ServingStatus::ServiceUnknown,
                true => status(is_ready_lately(&state).await),
            };
            if last.replace(found) != Some(found) {
                let part = frame::framed(&told(found));
                return Some((Ok(part), Some((state, ticks, last))));
            }
        }
    });
    Ok(Reply::Endless(reply::made(parts), Some(ticket)))
}

async fn is_ready_lately(state: &Arc<State>) -> bool {
    state.readiness.lately(LOOK_EVERY, state.probe()).await
}

/// Returns true if a request names a service of this server, or the server itself.
fn is_known(service: &str) -> bool {
    service.is_empty() || features::has_service(service)
}

fn shortened(text: &str) -> String {
    text.chars().take(60).collect()
}

fn status(is_ready: bool) -> ServingStatus {
    match is_ready {
        true => ServingStatus::Serving,
        false => ServingStatus::NotServing,
    }
}

fn told(status: ServingStatus) -> HealthCheckResponse {
    HealthCheckResponse {
        status: status.into(),
    }
}
