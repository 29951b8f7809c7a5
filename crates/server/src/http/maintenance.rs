//! `POST /admin/verify`, `POST /admin/scavenge` and `/admin/virtual-streams`: what administrators have a server do with
//! its store. A SQLite file belongs to one process, so that nobody else can do it while the store is served.
//!
//! Why only administrators may ask, or callers on loopback listeners while nobody has to prove who they are: a scavenge
//! removes for ever what a delete only hides, and a check keeps the database busy.
//! Why a media type is asked for: without it, any web page could make a browser send the request.
//! Invariants: one check or scavenge runs at a time; it ends soon after its caller has gone or may no longer do it, or
//! when the server stops; the audit log has its beginning and its end, however it ended.
//! Not here: how it is done ([`Maintenance`](crate::Maintenance), which the binary gives), the lines of the answer
//! (`gesta_wire`).

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::future::BoxFuture;
use futures::stream;
use gesta_access::{Operation, OwnedOperation};
use gesta_core::backend::RunMode;
use gesta_core::{Error, shares};
use gesta_wire::answer;
use gesta_wire::maintenance::{LINES_MEDIA_TYPE, Line, Progress, SwitchVirtualStreams};
use gesta_wire::shown;
use hyper::StatusCode;
use hyper::header::HeaderValue;
use serde::Serialize;
use tokio::sync::watch;
use tokio::time::{Interval, MissedTickBehavior};
use tokio_util::task::AbortOnDropHandle;

use crate::call::{Answer, Call, json, with_type};
use crate::http::document::parse;
use crate::http::write::{check_media_type, payload};
use crate::route::Verb;
use crate::shared::body::{AnswerBody, RequestBody};
use crate::shared::maintainer::{OnProgress, VirtualStreamsCall};
use crate::shared::problem::{self, Problem, Result};

/// The time between two lines that tell how far the work is.
const TOLD_EVERY: Duration = Duration::from_secs(1);
/// Largest body of a request, in bytes.
const BODY_BYTES_MAX: usize = 1024;

/// Refuses callers who may do nothing with the store as a whole.
pub(crate) async fn check_administrator(call: &Call<'_>, what: &str) -> Result<()> {
    call.check(Operation::Manage).await?;
    let config = &call.state.config;
    // Behind a proxy every caller comes from the machine of the proxy.
    let is_reached = config.behind_proxy
        || !call.state.trusted.proxies.is_empty()
        || !config.listen.ip().is_loopback();
    if !call.is_guarded() && is_reached {
        let detail = format!(
            "a server without users that others than this machine can reach {what}: run the command where the \
             store is while the server is stopped, or let the server listen on 127.0.0.1, or make a user"
        );
        return Err(Problem::new(problem::UNSUPPORTED, detail));
    }
    Ok(())
}

/// Carries out `POST /admin/verify`.
pub(crate) async fn verify(call: &Call<'_>) -> Result<Answer> {
    call.parameters(&[])?;
    check_media_type(call)?;
    check_administrator(call, "checks nothing").await?;
    let maintenance = Arc::clone(call.state.maintainer.maintenance()?);
    lasting(call, "verify", |told| maintenance.verify(told)).await
}

/// Carries out `POST /admin/scavenge`.
pub(crate) async fn scavenge(call: &Call<'_>) -> Result<Answer> {
    let parameters = call.parameters(&["dry_run"])?;
    let mode = match parameters.one("dry_run")?.as_deref() {
        None | Some("false") => RunMode::Real,
        Some("true") => RunMode::Dry,
        Some(other) => {
            let rule = format!("must be true or false, found {}", shown(other));
            return Err(Problem::invalid("dry_run", rule));
        }
    };
    check_media_type(call)?;
    check_administrator(call, "removes nothing").await?;
    let maintenance = Arc::clone(call.state.maintainer.maintenance()?);
    let what = match mode {
        RunMode::Real => "scavenge",
        RunMode::Dry => "scavenge, dry run",
    };
    lasting(call, what, |told| maintenance.scavenge(mode, told)).await
}

/// Carries out `GET` and `PUT /admin/virtual-streams`.
pub(crate) async fn virtual_streams(
    call: &Call<'_>,
    verb: Verb,
    body: &mut RequestBody,
) -> Result<Answer> {
    call.parameters(&[])?;
    let asked = match verb {
        Verb::Put => {
            check_media_type(call)?;
            check_administrator(call, "switches nothing").await?;
            let (payload, _held) = payload(call, body, BODY_BYTES_MAX).await?;
            match parse::<SwitchVirtualStreams>(&payload.bytes, "")?.on {
                true => VirtualStreamsCall::SwitchOn,
                false => VirtualStreamsCall::SwitchOff,
            }
        }
        _ => {
            check_administrator(call, "tells nothing about them").await?;
            VirtualStreamsCall::Look
        }
    };
    let maintenance = call.state.maintainer.maintenance()?;
    let what = match asked {
        VirtualStreamsCall::Look => None,
        VirtualStreamsCall::SwitchOn => Some("virtual streams on"),
        VirtualStreamsCall::SwitchOff => Some("virtual streams off"),
    };
    let line = what.map(|what| call.audit(OwnedOperation::Manage, what));
    let outcome = maintenance.virtual_streams(asked).await;
    let outcome = outcome.map_err(Problem::from);
    if let Some(line) = line {
        line.answered(&outcome);
    }
    Ok(json(StatusCode::OK, answer::write(&outcome?)))
}

/// Work that goes on while its answer is sent. Dropping it ends the work.
struct Lasting<T> {
    task: AbortOnDropHandle<gesta_core::Result<T>>,
    progress: watch::Receiver<Progress>,
    ticks: Interval,
}

/// Begins work, and answers with a line a second that tells how far it is, and a last one with its result.
async fn lasting<T>(
    call: &Call<'_>,
    what: &'static str,
    work: impl FnOnce(OnProgress) -> BoxFuture<'static, gesta_core::Result<T>>,
) -> Result<Answer>
where
    T: Serialize + Send + 'static,
{
    let turn = call.state.maintainer.turn()?;
    // Checked before (`check_administrator`). Here it is asked for as long as the work goes on.
    let forbidden = call
        .admitted()
        .until_forbidden(OwnedOperation::Manage)
        .await?;
    let begun: Result<()> = Ok(());
    let line = call.audit(OwnedOperation::Manage, format!("{what}, begun"));
    line.answered(&begun);
    let (telling, progress) = watch::channel(Progress::default());
    let work = work(Box::new(move |now| {
        telling.send_replace(now);
    }));
    let state = Arc::clone(call.state);
    let ending = call.audit(OwnedOperation::Manage, what);
    let ending = ending.if_dropped("stopped, its caller has gone");
    let working = shares::act_as(call.holder().clone(), async move {
        let _turn = turn;
        let outcome = tokio::select! {
            outcome = work => outcome,
            () = state.stopping.cancelled() => Err(Error::unavailable("the server is stopping")),
            error = forbidden => Err(error),
        };
        ending.ended(&outcome);
        outcome
    });
    let mut ticks = tokio::time::interval(TOLD_EVERY);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let lasting = Lasting {
        task: AbortOnDropHandle::new(tokio::spawn(working)),
        progress,
        ticks,
    };
    let lines = stream::unfold(Some(lasting), async |lasting| {
        let mut lasting = lasting?;
        let (line, goes_on) = tokio::select! {
            biased;
            ended = &mut lasting.task => (last_line(ended), None),
            _ = lasting.ticks.tick() => {
                let now = *lasting.progress.borrow();
                (Line::Progress(now), Some(lasting))
            }
        };
        Some((Ok(Bytes::from(line.write())), goes_on))
    });
    let media_type = HeaderValue::from_static(LINES_MEDIA_TYPE);
    Ok(with_type(
        StatusCode::OK,
        media_type,
        AnswerBody::parts(lines),
    ))
}

fn last_line<T>(
    ended: std::result::Result<gesta_core::Result<T>, tokio::task::JoinError>,
) -> Line<T> {
    let problem = match ended {
        Ok(Ok(done)) => return Line::Done(done),
        Ok(Err(error)) => Problem::from(&error),
        Err(error) => {
            tracing::error!(%error, "maintenance failed");
            Problem::new(problem::INTERNAL, "the server failed")
        }
    };
    Line::Problem(Box::new((*problem).clone()))
}
