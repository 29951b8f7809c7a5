//! The HTTP API (README.md): the calls of the published reference application, so that the same load drives both.
//!
//! Errors are a line of text that begins with the name of the reason. A request that is refused for lack of capacity or
//! because the database is away gets a 503 and was not stored; a 504 says that the outcome is unknown.
//! Invariants: handlers decode, ask and encode; no rule of the domain is here.
//! Not here: connections (`server`), reading requests (`request`), what is refused and how (`refusal`).

mod refusal;
mod request;
mod server;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::State;
use axum::http::{StatusCode, Uri, header};
use axum::middleware;
use axum::response::IntoResponse;
use axum::routing::{MethodRouter, get, patch, post};
use axum::{Json, Router};
use gesta::{DatabaseStore, EventStore, Node};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use uuid::Uuid;

use crate::domain::{Command, Price, SeatStatus, Show};
use crate::http::refusal::Refusal;
use crate::http::request::{
    Body, IdempotencyKey, Path, Query, RequestDocument, seat_number, show_id,
};
pub use crate::http::server::Server;
pub(crate) use crate::http::server::bind;
use crate::metrics::{self, Metrics};
use crate::read_model::ReadModel;
use crate::shows::Shows;

const SEATS_PAGE_DEFAULT: u16 = 100;
const SEATS_PAGE_MAX: u16 = 1_000;
/// How long the store may take to show that it can append.
const HEALTH_MAX: Duration = Duration::from_secs(2);

/// The parts of the application from which requests are answered.
#[derive(Debug)]
pub(crate) struct App {
    pub(crate) shows: Shows,
    pub(crate) read_model: ReadModel,
    /// Store of the shows and of the read model.
    pub(crate) store: Arc<DatabaseStore>,
    /// Node that this process is, if there are other nodes.
    pub(crate) node: Option<Arc<Node>>,
    pub(crate) metrics: Arc<Metrics>,
}

impl App {
    /// Returns the store as this process takes part in it.
    pub(crate) fn store(&self) -> &dyn EventStore {
        let node = self.node.as_deref();
        node.map_or(&*self.store, |node| node as _)
    }
}

type Answer<T> = Result<T, Refusal>;
/// A line that says what was done, with its status.
type Done = (StatusCode, &'static str);

/// Makes the routes of the API.
fn router(app: &Arc<App>) -> Router {
    Router::new()
        .route("/shows", only("POST", post(create_show)))
        .route("/shows/{showId}", only("GET, HEAD", get(show)))
        .route(
            "/shows/{showId}/seats/{seatNum}",
            only("PATCH", patch(change_seat)),
        )
        .route(
            "/shows/{showId}/seats/",
            only("PATCH", patch(async || seat_number("").map(drop))),
        )
        .route("/available-seats", only("GET, HEAD", get(available_seats)))
        .route("/health", only("GET, HEAD", get(health)))
        .route("/metrics", only("GET, HEAD", get(show_metrics)))
        .fallback(async |uri: Uri| Refusal::not_found(&uri))
        .layer(middleware::from_fn_with_state(
            Arc::clone(&app.metrics),
            metrics::count,
        ))
        .with_state(Arc::clone(app))
}

/// Makes a route refuse all other methods.
fn only(allow: &'static str, methods: MethodRouter<Arc<App>>) -> MethodRouter<Arc<App>> {
    methods.fallback(async move || Refusal::method_not_allowed(allow))
}

/// The body of `POST /shows`.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct CreateShow {
    show_id: String,
    title: String,
    max_seats: serde_json::Number,
}

impl RequestDocument for CreateShow {
    const EXAMPLE: &str = r#"{"showId": "<uuid>", "title": "…", "maxSeats": 50}"#;
}

async fn create_show(
    State(app): State<Arc<App>>,
    IdempotencyKey(key): IdempotencyKey,
    Body(asked): Body<CreateShow>,
) -> Answer<Done> {
    let show_id = show_id(&asked.show_id)?;
    let max_seats = asked.max_seats.as_u64();
    let max_seats =
        max_seats.ok_or_else(|| Refusal::body("maxSeats must be a whole number, not below 0"))?;
    let command = Command::CreateShow {
        show_id,
        title: asked.title,
        max_seats: u32::try_from(max_seats).unwrap_or(u32::MAX),
    };
    app.shows.execute(show_id, command, key).await?;
    Ok((StatusCode::CREATED, "Show created"))
}

/// The body of `PATCH /shows/{showId}/seats/{seatNum}`.
#[derive(Deserialize)]
#[serde(tag = "action", rename_all = "SCREAMING_SNAKE_CASE")]
enum ChangeSeat {
    Reserve,
    CancelReservation,
    Pay,
}

impl RequestDocument for ChangeSeat {
    const EXAMPLE: &str = r#"{"action": "RESERVE"}"#;
}

async fn change_seat(
    State(app): State<Arc<App>>,
    Path((id, seat)): Path<(String, String)>,
    IdempotencyKey(key): IdempotencyKey,
    Body(asked): Body<ChangeSeat>,
) -> Answer<Done> {
    let (show_id, seat) = (show_id(&id)?, seat_number(&seat)?);
    let (command, done) = match asked {
        ChangeSeat::Reserve => (Command::ReserveSeat { seat }, "Seat reserved"),
        ChangeSeat::CancelReservation => {
            (Command::CancelReservation { seat }, "Reservation cancelled")
        }
        ChangeSeat::Pay => (Command::PaySeat { seat }, "Seat paid"),
    };
    app.shows.execute(show_id, command, key).await?;
    Ok((StatusCode::ACCEPTED, done))
}

/// The answer to `GET /shows/{showId}`.
#[derive(Serialize)]
struct ShowDocument<'a> {
    id: Uuid,
    title: &'a str,
    seats: Vec<SeatDocument>,
}

#[derive(Serialize)]
struct SeatDocument {
    number: usize,
    status: &'static str,
    price: Option<Arc<RawValue>>,
}

/// Writes a number with two decimals, such as `100.00`.
fn number(price: Price) -> Option<Arc<RawValue>> {
    RawValue::from_string(price.to_string()).ok().map(Arc::from)
}

impl<'a> From<&'a Show> for ShowDocument<'a> {
    fn from(show: &'a Show) -> Self {
        // A show has many seats, but few prices.
        let mut prices = HashMap::new();
        let seats = show.seats.iter().enumerate();
        let seats = seats.map(|(index, seat)| SeatDocument {
            number: index,
            status: match seat.status {
                SeatStatus::Available => "AVAILABLE",
                SeatStatus::Reserved => "RESERVED",
                SeatStatus::Paid => "PAID",
            },
            price: prices
                .entry(seat.price.cents)
                .or_insert_with(|| number(seat.price))
                .clone(),
        });
        Self {
            id: show.id,
            title: &show.title,
            seats: seats.collect(),
        }
    }
}

async fn show(State(app): State<Arc<App>>, Path(id): Path<String>) -> Answer<impl IntoResponse> {
    let show = app.shows.show(show_id(&id)?).await?;
    let show = show.ok_or_else(Refusal::show_not_found)?;
    Ok(Json(ShowDocument::from(&show)).into_response())
}

/// The page of available seats that is asked for.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Page {
    after: Option<String>,
    limit: Option<u16>,
}

/// A row of the answer to `GET /available-seats`.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct AvailableSeats {
    show_id: Uuid,
    available_seats: i64,
}

async fn available_seats(
    State(app): State<Arc<App>>,
    Query(page): Query<Page>,
) -> Answer<Json<Vec<AvailableSeats>>> {
    let after = page.after.as_deref().map(show_id).transpose()?;
    let limit = page.limit.unwrap_or(SEATS_PAGE_DEFAULT);
    if !(1..=SEATS_PAGE_MAX).contains(&limit) {
        return Err(Refusal::parameter("limit must be 1 to 1000"));
    }
    let page = app.read_model.page(after, limit).await;
    let rows = page.map_err(Refusal::unavailable)?.into_iter();
    let rows = rows.map(|(show_id, seats)| AvailableSeats {
        show_id,
        available_seats: seats.available,
    });
    Ok(Json(rows.collect()))
}

async fn health(State(app): State<Arc<App>>) -> Answer<&'static str> {
    match tokio::time::timeout(HEALTH_MAX, app.store().ready()).await {
        Ok(Ok(())) => Ok("OK"),
        Ok(Err(error)) => Err(Refusal::unavailable(error)),
        Err(_) => Err(Refusal::unavailable("the store does not answer")),
    }
}

async fn show_metrics(State(app): State<Arc<App>>) -> impl IntoResponse {
    (
        [(header::CONTENT_TYPE, metrics::CONTENT_TYPE)],
        app.metrics.text(),
    )
}
