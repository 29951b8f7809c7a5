//! Calls about the server itself.

use gesta_access::Operation;
use gesta_core::{HostPort, limits};
use gesta_wire::answer::{self, Info};
use hyper::StatusCode;
use hyper::header::HeaderValue;
use serde::Serialize;

use crate::call::{Answer, Call, json, with_type};
use crate::shared::activity::CROWDED_BY_STRANGERS_MAX;
use crate::shared::body::AnswerBody;
use crate::shared::placement::ClusterPlacement;
use crate::shared::problem::{self, Problem, Result};
use crate::shared::readiness;

#[derive(Serialize)]
struct Welcome {
    name: &'static str,
    version: &'static str,
    description: &'static str,
    openapi: &'static str,
    info: &'static str,
}

/// Carries out `GET /`.
pub(crate) fn root(call: &Call<'_>) -> Result<Answer> {
    call.parameters(&[])?;
    Ok(document(&Welcome {
        name: "gesta",
        version: env!("CARGO_PKG_VERSION"),
        description: "An event store on the SQL database that you already run",
        openapi: "/openapi.json",
        info: "/info",
    }))
}

/// Carries out `GET /openapi.json`.
pub(crate) fn openapi(call: &Call<'_>) -> Result<Answer> {
    call.parameters(&[])?;
    Ok(json(StatusCode::OK, &include_bytes!("openapi.json")[..]))
}

#[derive(Serialize)]
struct ServerInfo {
    name: &'static str,
    version: &'static str,
    #[serde(flatten)]
    store: Info,
    limits: Limits,
    /// Address at which clients reach this server, if it was told one.
    #[serde(skip_serializing_if = "Option::is_none")]
    api: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    cluster: Option<ClusterPlacement>,
}

#[derive(Serialize)]
struct Limits {
    stream_name_bytes_max: usize,
    event_type_bytes_max: usize,
    tags_max: usize,
    tag_bytes_max: usize,
    event_bytes_max: usize,
    append_bytes_max: usize,
    append_events_max: usize,
    append_streams_max: usize,
    page_events_max: usize,
    stream_metadata_bytes_max: usize,
    filter_values_max: usize,
    request_body_bytes_max: usize,
}

/// Carries out `GET /info`.
pub(crate) async fn info(call: &Call<'_>) -> Result<Answer> {
    call.parameters(&[])?;
    let info = call.store().info().await?;
    Ok(document(&ServerInfo {
        name: "gesta",
        version: env!("CARGO_PKG_VERSION"),
        store: info.into(),
        limits: Limits {
            stream_name_bytes_max: limits::STREAM_NAME_BYTES_MAX,
            event_type_bytes_max: limits::EVENT_TYPE_BYTES_MAX,
            tags_max: limits::TAGS_MAX,
            tag_bytes_max: limits::TAG_BYTES_MAX,
            event_bytes_max: limits::EVENT_BYTES_MAX,
            append_bytes_max: limits::APPEND_BYTES_MAX,
            append_events_max: limits::APPEND_EVENTS_MAX,
            append_streams_max: limits::APPEND_STREAMS_MAX,
            page_events_max: limits::PAGE_EVENTS_MAX,
            stream_metadata_bytes_max: limits::STREAM_METADATA_BYTES_MAX,
            filter_values_max: limits::FILTER_VALUES_MAX,
            request_body_bytes_max: call.state.config.body_bytes_max,
        },
        api: call
            .state
            .config
            .advertise
            .as_ref()
            .map(HostPort::to_string),
        cluster: call.state.cluster.as_ref().map(|it| it.placement()),
    }))
}

#[derive(Serialize)]
struct Health {
    status: &'static str,
}

/// Carries out `GET /health/live`. It succeeds if the process answers.
pub(crate) fn live(call: &Call<'_>) -> Result<Answer> {
    call.parameters(&[])?;
    Ok(document(&Health { status: "live" }))
}

/// Carries out `GET /health/ready`. It succeeds if appends can succeed, and the server is not stopping.
pub(crate) async fn ready(call: &Call<'_>) -> Result<Answer> {
    call.parameters(&[])?;
    if call.state.stopping.is_cancelled() {
        return Err(Problem::stopping());
    }
    // Anybody may ask. Who asks more at once than there are places for is answered as long as the connection is not
    // crowded, so that strangers do not keep a probe from its answer.
    let place = call.state.bounds.strangers.enter(&call.stranger());
    if call.activity.is_crowded(CROWDED_BY_STRANGERS_MAX) {
        place.as_ref().map_err(Problem::clone)?;
    }
    let ready = call.state.probe().await;
    if ready.is_err() && call.is_guarded() {
        // Anybody may ask this, so the answer names no host, no database and nothing of an error of it.
        return Err(Problem::new(
            problem::UNAVAILABLE,
            "the server is not ready: its log says why",
        ));
    }
    ready?;
    Ok(document(&Health { status: "ready" }))
}

/// Carries out `GET /metrics`.
pub(crate) async fn metrics(call: &Call<'_>) -> Result<Answer> {
    call.parameters(&[])?;
    call.check(Operation::Observe).await?;
    let info = readiness::in_time(call.state.store.info()).await.ok();
    let text = call
        .state
        .metrics
        .show(call.state.in_flight(), info.as_ref());
    Ok(with_type(
        StatusCode::OK,
        HeaderValue::from_static("application/openmetrics-text; version=1.0.0; charset=utf-8"),
        AnswerBody::whole(text),
    ))
}

fn document(value: &impl Serialize) -> Answer {
    json(StatusCode::OK, answer::write(value))
}
