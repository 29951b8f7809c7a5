//! The HTTP API: the calls of the published reference application, so that the same load drives both.
//!
//! | call | answer |
//! |---|---|
//! | `POST /shows` | 201, 409, 400, 422 |
//! | `PATCH /shows/{showId}/seats/{seatNum}` | 202, 400, 422 |
//! | `GET /shows/{showId}` | 200, 404 |
//! | `GET /available-seats?after={showId}&limit={1–1000}` | 200 |
//! | `GET /health`, `GET /metrics` | 200 |
//!
//! Errors are a line of text that begins with the name of the reason. Whatever is refused for want of room or because
//! the database is away is a 503 and was not stored; a 504 says that the outcome is unknown.
//! Invariants: handlers decode, ask and encode; no rule of the domain is here.
//! Not here: connections (`server`), the bytes of answers (`answer`), bodies of requests (`body`).

mod answer;
mod body;
mod route;
mod server;

use std::borrow::Cow;
use std::sync::Arc;
use std::time::Duration;

use gesta::{EventStore, Store};
use hyper::body::Incoming;
use hyper::http::request::Parts;
use hyper::{Method, Request, StatusCode};
use serde::Deserialize;
use uuid::Uuid;

use crate::domain::Command;
use crate::http::answer::{Answer, Refusal};
pub use crate::http::route::Route;
use crate::http::route::route;
pub use crate::http::server::{Server, ServerConfig, StartError, start};
use crate::metrics::{self, Requests};
use crate::read_model::ReadModel;
use crate::shows::Shows;

/// Longest `idempotency-key`, in characters.
const KEY_CHARS_MAX: usize = 255;
const SEATS_PAGE_DEFAULT: u16 = 100;
const SEATS_PAGE_MAX: u16 = 1_000;
/// What a body looks like, for those who send another.
const CREATE_SHOW: &str = r#"{"showId": "<uuid>", "title": "…", "maxSeats": 50}"#;
const CHANGE_SEAT: &str = r#"{"action": "RESERVE"}"#;
/// How long the store may take to show that it is there.
const HEALTH_MAX: Duration = Duration::from_secs(2);

/// What requests are answered from.
#[derive(Debug)]
pub struct App {
    /// The shows.
    pub shows: Shows,
    /// Available seats per show.
    pub read_model: ReadModel,
    /// The store of both.
    pub store: Arc<Store>,
    /// What was answered.
    pub requests: Requests,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct CreateShow<'a> {
    #[serde(borrow)]
    show_id: Cow<'a, str>,
    #[serde(borrow)]
    title: Cow<'a, str>,
    #[serde(deserialize_with = "body::whole_number")]
    max_seats: u64,
}

#[derive(Deserialize)]
struct ChangeSeat {
    action: Action,
}

#[derive(Deserialize)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
enum Action {
    Reserve,
    CancelReservation,
}

impl App {
    /// Answers a request. What goes wrong is an answer too.
    async fn answer(&self, request: Request<Incoming>) -> Answer {
        let begun = self.requests.begin();
        let (parts, body) = request.into_parts();
        let route = route(parts.uri.path());
        let answer = match (route, method(&parts.method)) {
            (Route::Seat { show_id, seat }, Verb::Patch) => {
                self.change_seat(&parts, show_id, seat, body).await
            }
            (Route::Shows, Verb::Post) => self.create_show(&parts, body).await,
            (Route::Show { show_id }, Verb::Get) => self.show(show_id).await,
            // Rare, so their room is not part of the others' futures.
            (Route::AvailableSeats, Verb::Get) => Box::pin(self.available_seats(&parts)).await,
            (Route::Health, Verb::Get) => Box::pin(self.health()).await,
            (Route::Metrics, Verb::Get) => Ok(answer::metrics(metrics::text(self))),
            (Route::Unknown, _) => Err(Refusal::not_found(&parts)),
            (known, _) => Err(Refusal::method_not_allowed(known.allow())),
        };
        let answer = answer.unwrap_or_else(Refusal::into_answer);
        self.requests.end(begun, route, answer.status());
        answer
    }

    async fn create_show(&self, parts: &Parts, body: Incoming) -> Result<Answer, Refusal> {
        let key = idempotency_key(parts)?;
        let body = body::read(parts, body).await?;
        let asked: CreateShow<'_> = body::parse(&body, CREATE_SHOW)?;
        let show_id = show_id(&asked.show_id)?;
        let command = Command::CreateShow {
            show_id,
            title: asked.title.into_owned(),
            max_seats: u32::try_from(asked.max_seats).unwrap_or(u32::MAX),
        };
        self.shows.execute(show_id, command, key).await?;
        Ok(answer::text(StatusCode::CREATED, "Show created"))
    }

    async fn change_seat(
        &self,
        parts: &Parts,
        id: &str,
        seat: &str,
        body: Incoming,
    ) -> Result<Answer, Refusal> {
        let (show_id, seat) = (show_id(id)?, seat_number(seat)?);
        let key = idempotency_key(parts)?;
        let body = body::read(parts, body).await?;
        let asked: ChangeSeat = body::parse(&body, CHANGE_SEAT)?;
        let (command, done) = match asked.action {
            Action::Reserve => (Command::ReserveSeat { seat }, "Seat reserved"),
            Action::CancelReservation => {
                (Command::CancelReservation { seat }, "Reservation cancelled")
            }
        };
        self.shows.execute(show_id, command, key).await?;
        Ok(answer::text(StatusCode::ACCEPTED, done))
    }

    async fn show(&self, id: &str) -> Result<Answer, Refusal> {
        match self.shows.show(show_id(id)?).await? {
            Some(show) => Ok(answer::show(&show)),
            None => Err(Refusal::show_not_found()),
        }
    }

    async fn available_seats(&self, parts: &Parts) -> Result<Answer, Refusal> {
        let (mut after, mut limit) = (None, SEATS_PAGE_DEFAULT);
        let parameters = parts.uri.query().unwrap_or("").split('&');
        for parameter in parameters.filter(|parameter| !parameter.is_empty()) {
            match parameter.split_once('=') {
                Some(("after", id)) => after = Some(show_id(id)?),
                Some(("limit", text)) => limit = page_limit(text)?,
                _ => return Err(Refusal::parameter("known are after and limit")),
            }
        }
        Ok(answer::available_seats(
            &self.read_model.page(after, limit).await?,
        ))
    }

    async fn health(&self) -> Result<Answer, Refusal> {
        match tokio::time::timeout(HEALTH_MAX, self.store.info()).await {
            Ok(Ok(_)) => Ok(answer::text(StatusCode::OK, "OK")),
            Ok(Err(error)) => Err(Refusal::unavailable(&error)),
            Err(_) => Err(Refusal::unavailable("the store does not answer")),
        }
    }
}

/// The methods that any route has.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Verb {
    Get,
    Post,
    Patch,
    Other,
}

fn method(method: &Method) -> Verb {
    match *method {
        // hyper leaves the body of an answer to HEAD out.
        Method::GET | Method::HEAD => Verb::Get,
        Method::POST => Verb::Post,
        Method::PATCH => Verb::Patch,
        _ => Verb::Other,
    }
}

/// A UUID with hyphens, 36 characters.
fn show_id(text: &str) -> Result<Uuid, Refusal> {
    let id = (text.len() == 36).then(|| Uuid::try_parse(text).ok());
    id.flatten().ok_or_else(Refusal::show_id)
}

/// A whole number; one that is too large for any show is a seat that does not exist.
fn seat_number(text: &str) -> Result<u32, Refusal> {
    if text.is_empty() || text.len() > 20 || !text.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err(Refusal::seat_number());
    }
    Ok(text.parse().unwrap_or(u32::MAX))
}

fn page_limit(text: &str) -> Result<u16, Refusal> {
    let limit = text.parse().ok();
    limit
        .filter(|limit| (1..=SEATS_PAGE_MAX).contains(limit))
        .ok_or_else(|| Refusal::parameter("limit must be 1 to 1000"))
}

fn idempotency_key(parts: &Parts) -> Result<Option<String>, Refusal> {
    let Some(value) = parts.headers.get("idempotency-key") else {
        return Ok(None);
    };
    let key = value.to_str().ok();
    let key = key.filter(|key| (1..=KEY_CHARS_MAX).contains(&key.len()));
    key.map(|key| Some(key.to_owned()))
        .ok_or_else(Refusal::idempotency_key)
}
