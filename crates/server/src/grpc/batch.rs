//! `BatchAppend`: batches on one long call, several at once, which are answered as they are stored.
//!
//! What arrives counts against the whole budget, not against the share of subscriptions: batches are how most clients
//! append, and that share would keep from them the memory that is left for appends. Time bounds how long a client may
//! hold it: a message that has begun must be whole, and a batch that has begun must have its last chunk, within
//! `body_read_max`.

use std::collections::VecDeque;
use std::future::Future;
use std::pin::Pin;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use futures::stream::{self, FuturesUnordered, StreamExt};
use gesta_grpc::batch::{Arriving, Batch, Taken};
use gesta_grpc::messages::streams::{BatchAppendReq, BatchAppendResp};
use gesta_grpc::{Code, Refusal, frame};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::call::{GrpcCall, Requests};
use super::claim::{self, Backing};
use super::reply::{self, Reply};
use super::{BATCH_APPEND, Result, refusal_of};
use crate::shared::body::Reservation;
use crate::shared::gate::{GaveWay, Ticket, either};
use crate::shared::problem::tell_operators;

/// Most batches of one call that are being stored at once. No more are read meanwhile.
const IN_FLIGHT_MAX: usize = 256;

type Storing = Pin<Box<dyn Future<Output = BatchAppendResp> + Send>>;

/// The state of one call, between its messages and its answers.
struct Session {
    on: Backing,
    requests: Requests,
    arriving: Arriving,
    storing: FuturesUnordered<Storing>,
    /// Answers that wait to be handed out.
    answers: VecDeque<BatchAppendResp>,
    stopping: CancellationToken,
    /// True if the client sends no more.
    closed: bool,
    /// The reason why the call ends once everything that is being stored is answered.
    ending: Option<Refusal>,
    gave_way: GaveWay,
    _ticket: Ticket,
}

/// Carries out `BatchAppend`.
pub(crate) fn batch_append(call: GrpcCall) -> Result<Reply> {
    let ticket = call.enter_subscriptions()?;
    let session = Session {
        ending: None,
        gave_way: either(ticket.gave_way(), call.connection_gave_way()),
        _ticket: ticket,
        stopping: call.state.stopping.clone(),
        on: call.backing(),
        requests: call.requests,
        arriving: Arriving::default(),
        storing: FuturesUnordered::new(),
        answers: VecDeque::new(),
        closed: false,
    };
    let parts = stream::unfold(Some(session), |session| async {
        let mut session = session?;
        match session.next().await {
            Ok(Some(part)) => Some((Ok(part), Some(session))),
            Ok(None) => None,
            Err(refusal) => Some((Err(refusal), None)),
        }
    });
    Ok(Reply::Endless(reply::made(parts), None))
}

impl Session {
    /// Returns the next answers; `None` once the client has closed and every batch is answered.
    async fn next(&mut self) -> Result<Option<Bytes>> {
        while self.answers.is_empty() {
            if self.closed && self.storing.is_empty() {
                return Ok(None);
            }
            if let Some(refusal) = self.ending.take_if(|_| self.storing.is_empty()) {
                return Err(refusal);
            }
            let goes_on = !self.closed && self.ending.is_none();
            let may_read = goes_on && self.storing.len() < IN_FLIGHT_MAX;
            let wait_max = self.on.state.config.body_read_max;
            let late_at = self
                .arriving
                .oldest()
                .map(|begun| Instant::from_std(begun) + wait_max);
            tokio::select! {
                Some(answer) = self.storing.next() => self.answers.push_back(answer),
                // A client that is not read from cannot go on.
                () = sleep_until(late_at), if late_at.is_some() && may_read => self.refuse_late(wait_max)?,
                chunk = self.requests.next_within::<BatchAppendReq>(wait_max), if may_read => match chunk? {
                    Some(chunk) => self.take(chunk)?,
                    None => self.closed = true,
                },
                // What is being stored is answered first.
                () = self.stopping.cancelled(), if self.storing.is_empty() => {
                    return Err(Refusal::stopping());
                }
                problem = &mut self.gave_way, if self.ending.is_none() => {
                    self.ending = Some(Refusal::overloaded(&problem.detail));
                }
            }
        }
        // Answers that are ready leave together.
        while let Some(Some(answer)) = futures::FutureExt::now_or_never(self.storing.next()) {
            self.answers.push_back(answer);
        }
        let mut out = BytesMut::new();
        for answer in self.answers.drain(..) {
            frame::write(&mut out, &answer);
        }
        Ok(Some(out.freeze()))
    }

    /// Refuses the batches that were begun longer ago than `time_max` and are not whole.
    fn refuse_late(&mut self, time_max: Duration) -> Result<()> {
        let Some(begun_by) = Instant::now().checked_sub(time_max) else {
            return Ok(());
        };
        let refusal = Refusal::new(
            Code::DeadlineExceeded,
            format!("the batch was not whole within {} s", time_max.as_secs()),
        );
        let late = self.arriving.refuse_begun_by(begun_by.into_std(), &refusal);
        self.answers.extend(late);
        self.requests.hold(self.arriving.bytes())
    }

    fn take(&mut self, chunk: BatchAppendReq) -> Result<()> {
        let now = Instant::now().into_std();
        match self.arriving.take(chunk, self.requests.last_bytes(), now)? {
            Taken::More => {}
            Taken::Refused(answer) => self.answers.push_back(*answer),
            Taken::Whole(batch) => {
                // The batch has what was held of its message.
                self.requests.hold(self.arriving.bytes())?;
                let mut held = self.on.admitted.reservation(&self.on.state);
                match held.grow(batch.cost_bytes()) {
                    Ok(()) => self
                        .storing
                        .push(Box::pin(store(self.on.clone(), *batch, held))),
                    Err(problem) => {
                        let refusal = refusal_of(&problem);
                        self.answers.push_back(batch.asked.refused(&refusal));
                    }
                }
                return Ok(());
            }
        }
        if let Err(refusal) = self.requests.hold(self.arriving.bytes()) {
            // There is no room for what has come of this batch; the others go on.
            let refused = self.arriving.refuse_last(&refusal);
            self.answers.extend(refused);
            if let Err(refusal) = self.requests.hold(self.arriving.bytes()) {
                // Not even for the id of what was refused: what is being stored is answered, and the call ends.
                self.ending = Some(refusal);
            }
        }
        Ok(())
    }
}

/// Waits until a time, or for ever.
async fn sleep_until(time: Option<Instant>) {
    match time {
        Some(time) => tokio::time::sleep_until(time).await,
        None => std::future::pending().await,
    }
}

/// Stores a batch. If that takes longer than the client of the batch waits, the answer is that the deadline has passed.
async fn store(on: Backing, batch: Batch, held: Reservation) -> BatchAppendResp {
    let asked = batch.asked.clone();
    let answer = match tokio::time::timeout(batch.deadline, attempt(&on, batch)).await {
        Ok(Ok(answer)) => answer,
        Ok(Err(refusal)) => {
            tell_operators(Some(BATCH_APPEND), &refusal);
            asked.refused(&refusal)
        }
        Err(_) => asked.refused(&Refusal::deadline()),
    };
    drop(held);
    answer
}

async fn attempt(on: &Backing, batch: Batch) -> Result<BatchAppendResp> {
    let Batch {
        asked,
        stream,
        expected,
        events,
        ..
    } = batch;
    if events.is_empty() {
        let checked = claim::check(on, &stream, expected).await?;
        return Ok(match checked {
            Ok(last) => asked.nothing_stored(last),
            Err(actual) => asked.wrong_version(actual),
        });
    }
    Ok(match claim::append(on, stream, expected, events).await? {
        claim::Outcome::Stored(appended) => asked.stored(&appended),
        claim::Outcome::Wrong(actual) => asked.wrong_version(actual),
    })
}
