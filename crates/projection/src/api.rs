//! Projections over HTTP: what a server of an application answers under `/projections`, whichever framework it is
//! written with.
//!
//! Why no framework: an application has one, and gives what it knows of a request to [`Api::answer`].
//! Not here: who may ask. The application lets only operators pass, but for `…/wait`, which its clients need.
//! Invariants: what waits tells clients nothing of the target, the store or the author's errors, and one caller leaves
//! room for others; an order has a media type that no page of another site can make a browser send without asking.

mod waiting;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use gesta_core::{Checkpoint, EventStore, LogId, Position};
use serde::Serialize;
use serde_json::{Value, json};
use tokio::time::{Instant, timeout_at};

use crate::batch::{covers, distance};
use crate::control::{Control, active_of};
use crate::definition::ProjectionId;
use crate::error::{Error, TargetError, TargetErrorKind};
use crate::index::Find;
use crate::report::{EventReport, ParkedReport, metrics_text};
use crate::state::State;
use crate::target::{Order, Stored, Target};

use waiting::Waiting;

/// Longest time that a request may ask to wait.
pub const API_WAIT_MAX: Duration = Duration::from_secs(60);
/// Events of a page, unless told otherwise, and at most.
const PAGE: (usize, usize) = (100, 1_000);
/// Requests that wait at most, of all callers of a process together.
pub const API_WAITERS_MAX: usize = 256;
/// Requests that wait at most of one caller.
pub const API_CALLER_WAITERS_MAX: usize = 32;
/// The path of the metrics, which no projection can have as its name.
pub(crate) const METRICS: &str = "metrics";
/// Longest time for which the store is searched beyond the time that a request may wait.
const SEARCH_MAX: Duration = Duration::from_secs(1);
/// Time between two looks while a request waits.
const LOOK_EVERY: (Duration, Duration) = (Duration::from_millis(10), Duration::from_millis(100));

/// What an application knows of a request.
#[derive(Clone, Copy, Debug)]
pub struct Request<'a> {
    /// The method, as `GET`.
    pub method: &'a str,
    /// The path below the place where the application has put the [`Api`]: `/`, `/seats/wait`, …
    pub path: &'a str,
    /// The parameters, decoded.
    pub parameters: &'a HashMap<String, String>,
    /// The header `content-type`. An order must have `application/json`.
    pub content_type: Option<&'a str>,
    /// Who asks: a user or an address, so that one of them leaves places to wait for others. `None` if that is not
    /// known: all of these are one caller.
    pub caller: Option<&'a str>,
}

/// An answer, for the application's framework to send.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Answer {
    /// The status code.
    pub status: u16,
    /// The media type of the body.
    pub content_type: &'static str,
    /// The body.
    pub body: String,
}

impl Answer {
    fn json(status: u16, value: &impl Serialize) -> Self {
        Self {
            status,
            content_type: "application/json",
            // Reports are always JSON.
            body: serde_json::to_string(value).unwrap_or_default(),
        }
    }

    /// An error, as the problem documents of Gesta's HTTP API are.
    fn problem(status: u16, code: &str, detail: &str) -> Self {
        let problem = json!({"status": status, "code": code, "detail": detail});
        Self {
            content_type: "application/problem+json",
            ..Self::json(status, &problem)
        }
    }
}

/// What is asked for wrongly.
fn wrong(detail: impl Into<String>) -> Error {
    Error::Invalid(detail.into())
}

/// Answers requests about the projections of a target.
#[derive(Clone)]
pub struct Api<T> {
    control: Control<T>,
    store: Arc<dyn EventStore>,
    waiting: Arc<Waiting>,
}

impl<T> std::fmt::Debug for Api<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Api")
    }
}

type Parameters = HashMap<String, String>;

fn time(parameters: &Parameters, otherwise: Duration) -> Result<Duration, Error> {
    let Some(text) = parameters.get("timeout_ms") else {
        return Ok(otherwise);
    };
    let millis: Option<u64> = text.parse().ok();
    let time = millis.map(Duration::from_millis);
    time.filter(|time| *time <= API_WAIT_MAX).ok_or_else(|| {
        wrong(format!(
            "timeout_ms must be a number from 0 to {}, found {text:?}",
            API_WAIT_MAX.as_millis()
        ))
    })
}

fn known(parameters: &Parameters, names: &[&str]) -> Result<(), Error> {
    let unknown = parameters
        .keys()
        .find(|name| !names.contains(&name.as_str()));
    match unknown {
        None => Ok(()),
        Some(name) => Err(wrong(format!(
            "there is no parameter {name:?} here, but {}",
            names.join(", ")
        ))),
    }
}

/// The largest number of things that are asked for.
fn limit(parameters: &Parameters) -> Result<usize, Error> {
    let (usual, most) = PAGE;
    let Some(text) = parameters.get("limit") else {
        return Ok(usual);
    };
    let limit: Option<usize> = text.parse().ok();
    let limit = limit.filter(|limit| (1..=most).contains(limit));
    limit.ok_or_else(|| {
        wrong(format!(
            "limit must be a number from 1 to {most}, found {text:?}"
        ))
    })
}

/// The place after which a page of events begins.
fn after(parameters: &Parameters) -> Result<Option<(LogId, Position)>, Error> {
    let Some(text) = parameters.get("after") else {
        return Ok(None);
    };
    let place = text.split_once('-').and_then(|(log, position)| {
        Some((LogId(log.parse().ok()?), Position(position.parse().ok()?)))
    });
    let place = place.ok_or_else(|| {
        wrong(format!(
            "after must be the next of an answer, found {text:?}"
        ))
    });
    place.map(Some)
}

impl<T: Target> Api<T> {
    /// Makes one for the projections of a target, of the events of a store.
    #[must_use]
    pub fn of(store: &Arc<dyn EventStore>, target: T) -> Self {
        Self {
            control: Control::of(target),
            store: Arc::clone(store),
            waiting: Arc::default(),
        }
    }

    /// Answers a request.
    ///
    /// # Cancel safety
    /// If the future is dropped, what was ordered stays ordered.
    pub async fn answer(&self, request: Request<'_>) -> Answer {
        let Request {
            method,
            path,
            parameters,
            ..
        } = request;
        let parts: Vec<&str> = path.split('/').filter(|part| !part.is_empty()).collect();
        let answered = match (method, parts.as_slice()) {
            ("GET", []) => self.list(parameters).await,
            ("GET", [METRICS]) => self.metrics(parameters).await,
            ("GET", [name]) => self.show(name, parameters).await,
            ("GET", [name, "wait"]) => {
                let caller = request.caller.unwrap_or_default();
                let waited = self.wait(name, parameters, caller).await;
                waited.map_err(|error| for_clients(name, error))
            }
            ("GET", [name, "parked"]) => self.parked(name, parameters).await,
            ("GET", [name, "events"]) => self.events(name, parameters).await,
            ("POST", [_, _]) if !is_json(request.content_type) => {
                let detail = "an order must have the header content-type: application/json";
                return Answer::problem(415, "unsupported_media_type", detail);
            }
            ("POST", [name, order]) => match self.order(name, order, parameters).await {
                Some(answered) => answered,
                None => return Answer::problem(404, "not_found", "there is no such path"),
            },
            (_, [] | [_] | [_, _]) => {
                let detail = format!("{method} is not answered here");
                return Answer::problem(405, "method_not_allowed", &detail);
            }
            _ => return Answer::problem(404, "not_found", "there is no such path"),
        };
        answered.unwrap_or_else(|error| refused(&error))
    }

    async fn version(&self, name: &str, parameters: &Parameters) -> Result<Stored, Error> {
        let Some(version) = parameters.get("version") else {
            return self.control.active(name).await;
        };
        let number = version.parse();
        let version = number
            .map_err(|_| wrong(format!("version must be a whole number, found {version:?}")))?;
        let name = name.to_owned();
        self.control.version(&ProjectionId { name, version }).await
    }

    async fn list(&self, parameters: &Parameters) -> Result<Answer, Error> {
        known(parameters, &[])?;
        let reports = self.control.reports(Some(&*self.store)).await?;
        Ok(Answer::json(200, &json!({"projections": reports})))
    }

    async fn metrics(&self, parameters: &Parameters) -> Result<Answer, Error> {
        known(parameters, &[])?;
        let reports = self.control.reports(Some(&*self.store)).await?;
        Ok(Answer {
            status: 200,
            content_type: "text/plain; version=0.0.4; charset=utf-8",
            body: metrics_text(&reports),
        })
    }

    async fn show(&self, name: &str, parameters: &Parameters) -> Result<Answer, Error> {
        known(parameters, &["version"])?;
        let version = self.version(name, parameters).await?;
        let report = self.control.report(Some(&*self.store), &version).await?;
        Ok(Answer::json(200, &report))
    }

    async fn parked(&self, name: &str, parameters: &Parameters) -> Result<Answer, Error> {
        known(parameters, &["version", "key", "limit"])?;
        let limit = limit(parameters)?;
        let id = self.version(name, parameters).await?.id;
        let key = parameters.get("key").map(String::as_str);
        let parked = self.control.parked(&id, key, limit).await?;
        let parked: Vec<ParkedReport> = parked.into_iter().map(ParkedReport::from).collect();
        Ok(Answer::json(200, &json!({"parked": parked})))
    }

    /// Answers with the events that an index finds: a parameter for each path, and `limit` and `after` for pages.
    async fn events(&self, name: &str, parameters: &Parameters) -> Result<Answer, Error> {
        let (limit, after) = (limit(parameters)?, after(parameters)?);
        let paths = parameters
            .iter()
            .filter(|(name, _)| !["limit", "after"].contains(&name.as_str()));
        let mut values: Vec<(String, String)> = paths
            .map(|(path, value)| (path.clone(), value.clone()))
            .collect();
        values.sort();
        let find = Find {
            values,
            after,
            limit,
        };
        let found = self.control.find_events(&*self.store, name, &find).await?;
        let next = found
            .next
            .map(|(log, position)| format!("{log}-{position}"));
        let events: Vec<EventReport> = found.events.iter().map(EventReport::from).collect();
        Ok(Answer::json(200, &json!({"events": events, "next": next})))
    }

    /// Returns the versions as they were at a time or later. Those who ask while another one looks share the next look:
    /// one is under way, however many wait.
    async fn look(&self, at: Instant) -> Result<Arc<Vec<Stored>>, Error> {
        let mut last = self.waiting.look.lock().await;
        if let Some((begun, rows)) = &*last
            && *begun >= at
        {
            return Ok(Arc::clone(rows));
        }
        let begun = Instant::now();
        let rows = Arc::new(self.control.list().await?);
        *last = Some((begun, Arc::clone(&rows)));
        Ok(rows)
    }

    /// Waits until the active version shows everything up to a checkpoint, as
    /// [`Running::wait_for`](crate::Running::wait_for) does, whichever process runs it.
    async fn wait(
        &self,
        name: &str,
        parameters: &Parameters,
        caller: &str,
    ) -> Result<Answer, Error> {
        known(parameters, &["checkpoint", "timeout_ms"])?;
        let checkpoint = parameters
            .get("checkpoint")
            .ok_or_else(|| wrong("the parameter checkpoint says what is waited for"))?;
        let checkpoint: Checkpoint = checkpoint.parse()?;
        let timeout = time(parameters, Duration::from_secs(10))?;
        let overloaded = || {
            let detail = format!(
                "{API_WAITERS_MAX} requests wait already, or {API_CALLER_WAITERS_MAX} of this caller, the most there may \
                 be; ask again later"
            );
            Ok(Answer::problem(503, "overloaded", &detail))
        };
        let Some(place) = self.waiting.place(caller) else {
            return overloaded();
        };
        let gave_way = place.share.gave_way();
        tokio::select! {
            biased;
            () = gave_way => overloaded(),
            waited = self.wait_for(name, &checkpoint, timeout) => waited,
        }
    }

    async fn wait_for(
        &self,
        name: &str,
        checkpoint: &Checkpoint,
        timeout: Duration,
    ) -> Result<Answer, Error> {
        let until = Instant::now() + timeout;
        let (min, max) = LOOK_EVERY;
        let mut back_off = gesta_core::BackOff::new(min, max);
        let (mut resets, mut asked) = (None, None);
        loop {
            let rows = self.look(Instant::now()).await?;
            let version = active_of(&rows, name)?;
            match resets.replace((version.id.clone(), version.resets)) {
                // Another version has the readers since: it was not reset.
                Some((id, before)) if id == version.id && before != version.resets => {
                    return Err(Error::Reset(name.to_owned()));
                }
                _ => {}
            }
            let missing = match asked.take() {
                // What matches up to the checkpoint does not change: the store is asked once for each place.
                Some((id, place, missing)) if id == version.id && place == version.checkpoint => {
                    missing
                }
                _ => {
                    let search = self.control.missing(&*self.store, version, checkpoint);
                    let missing = self.waiting.missing(version, checkpoint, search);
                    let missing = timeout_at(until.max(Instant::now() + SEARCH_MAX), missing);
                    tokio::select! {
                        biased;
                        missing = missing => match missing {
                            Ok(missing) => missing?,
                            Err(_) => distance(&version.checkpoint, checkpoint),
                        },
                        changed = self.changed(name, version, checkpoint) => {
                            changed?;
                            continue;
                        }
                    }
                }
            };
            if missing == 0 {
                let shown = json!({"name": name, "version": version.id.version});
                return Ok(Answer::json(200, &shown));
            }
            if version.state != State::Running {
                return Err(Error::NotRunning {
                    name: name.to_owned(),
                    state: version.state,
                    // What it says of the author's code is for operators.
                    why: None,
                });
            }
            asked = Some((version.id.clone(), version.checkpoint.clone(), missing));
            let now = Instant::now();
            if now >= until {
                return Err(Error::TimedOut {
                    name: name.to_owned(),
                    events: missing,
                    waited: timeout,
                });
            }
            tokio::time::sleep_until(until.min(now + back_off.pause())).await;
        }
    }

    /// Waits until a version shows everything up to a checkpoint, or is not as it was: a search may take longer.
    async fn changed(
        &self,
        name: &str,
        before: &Stored,
        checkpoint: &Checkpoint,
    ) -> Result<(), Error> {
        let (min, max) = LOOK_EVERY;
        let mut back_off = gesta_core::BackOff::new(min, max);
        loop {
            tokio::time::sleep(back_off.pause()).await;
            let rows = self.look(Instant::now()).await?;
            let now = active_of(&rows, name)?;
            let is_same =
                now.id == before.id && now.resets == before.resets && now.state == before.state;
            if !is_same || covers(&now.checkpoint, checkpoint) == Some(true) {
                return Ok(());
            }
        }
    }

    /// Does what is asked for by `POST`; `None` if there is no such thing.
    async fn order(
        &self,
        name: &str,
        what: &str,
        parameters: &Parameters,
    ) -> Option<Result<Answer, Error>> {
        let takes: &[&str] = match what {
            "pause" | "resume" | "switch" | "retire" => &["version"],
            "reset" => &["version", "timeout_ms"],
            "replay" | "drop" => &["version", "key", "timeout_ms"],
            _ => return None,
        };
        Some(self.do_order(name, what, takes, parameters).await)
    }

    async fn do_order(
        &self,
        name: &str,
        what: &str,
        takes: &[&str],
        parameters: &Parameters,
    ) -> Result<Answer, Error> {
        known(parameters, takes)?;
        if matches!(what, "switch" | "retire") && !parameters.contains_key("version") {
            return Err(wrong(format!("the parameter version says what to {what}")));
        }
        let id = self.version(name, parameters).await?.id;
        let key = parameters.get("key").cloned();
        let timeout = time(parameters, API_WAIT_MAX)?;
        let control = &self.control;
        let done = match what {
            "pause" => control.pause(&id).await.map(|()| "it is paused".to_owned()),
            "resume" => control
                .resume(&id)
                .await
                .map(|()| "it may go on".to_owned()),
            "switch" => control
                .switch_in(&*self.store, &id)
                .await
                .map(|()| "readers see it".to_owned()),
            "retire" => control
                .retire(&id)
                .await
                .map(|()| "its rows are deleted".to_owned()),
            "reset" => control.order(&id, &Order::Reset, timeout).await,
            "replay" => control.order(&id, &Order::Replay { key }, timeout).await,
            _ => control.order(&id, &Order::Drop { key }, timeout).await,
        }?;
        let done = json!({"name": id.name, "version": id.version, "done": done});
        Ok(Answer::json(200, &done))
    }
}

fn is_json(content_type: Option<&str>) -> bool {
    let media_type = content_type.unwrap_or_default().split(';').next();
    media_type.is_some_and(|media_type| media_type.trim().eq_ignore_ascii_case("application/json"))
}

/// Tells whether the request is to blame for an error of the store.
fn is_of_request(error: &gesta_core::Error) -> bool {
    use gesta_core::ErrorKind::{InvalidArgument, InvalidCheckpoint};
    matches!(error.kind(), InvalidArgument { .. } | InvalidCheckpoint(_))
}

/// What clients that wait are told: texts of the target, the store and the author's code are for operators.
fn for_clients(name: &str, error: Error) -> Error {
    match error {
        Error::Target(error) => {
            tracing::warn!(projection = name, %error, "clients wait in vain");
            let text = "the database of the read model does not answer as it should";
            Error::Target(TargetError::new(error.kind(), text))
        }
        Error::Store(error) if !is_of_request(&error) => {
            tracing::warn!(projection = name, %error, "clients wait in vain");
            let text = "the event store does not answer as it should";
            Error::Store(gesta_core::Error::unavailable(text))
        }
        error => error,
    }
}

fn refused(error: &Error) -> Answer {
    let (status, code) = match error {
        Error::Invalid(_) | Error::WaitsInApply | Error::Changed { .. } => (400, "invalid"),
        Error::NotFound(_) => (404, "not_found"),
        Error::NotRunning { .. } | Error::Waits { .. } => (409, "not_running"),
        Error::Reset(_) => (409, "reset"),
        Error::TimedOut { .. } => (504, "timed_out"),
        Error::Store(error) if is_of_request(error) => (400, "invalid"),
        Error::Store(_) => (503, "store_unavailable"),
        Error::Target(error) => match error.kind() {
            TargetErrorKind::Unusable | TargetErrorKind::Refused => (500, "target_unusable"),
            _ => (503, "target_unavailable"),
        },
    };
    let mut answer = Answer::problem(status, code, &error.to_string());
    if let Error::TimedOut { events, .. } = error {
        let mut problem: Value = serde_json::from_str(&answer.body).unwrap_or_default();
        problem["positions"] = json!(events);
        answer.body = problem.to_string();
    }
    answer
}
