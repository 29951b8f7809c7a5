//! One stream from another node: a lane of calls, or a question.
//!
//! One task reads the calls, hands them over, waits for their answers and writes them, so no call needs a task of its
//! own.

use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};

use bytes::Bytes;
use futures::future::BoxFuture;
use futures::stream::{FuturesUnordered, StreamExt};
use gesta_core::capacity::Permit;
use gesta_core::{LogId, Moment};
use tokio_util::sync::WaitForCancellationFuture;
use uuid::Uuid;

use super::freshness::Freshness;
use super::{Caller, ServerShared};
use crate::clock::Clock;
use crate::frame::Frame;
use crate::pipe::{Pipe, PipeEvent};
use crate::receiving::{CallVerdict, Newest, Receiver, Refusal};
use crate::route::{Epoch, Hint};
use crate::sending::Violation;
use crate::serve::{Answer, Call, Question, Served};

/// The greatest number of answers that are taken at once.
const ANSWERS_MAX: usize = 256;

/// Serves a stream until it ends.
pub(super) async fn run(mut pipe: Pipe, caller: Caller, shared: Arc<ServerShared>) {
    let forwarder = caller.process;
    let first = loop {
        match poll_fn(|context| pipe.poll(context)).await {
            PipeEvent::Ended => return,
            PipeEvent::Room => {}
            PipeEvent::Data => match pipe.next_frame(Clock::MACHINE.now()) {
                Ok(None) => {}
                Ok(Some(first)) => break Ok(first),
                Err(violation) => break Err(violation),
            },
        }
    };
    let served = match first {
        Ok((Frame::Open { log, lane, epoch }, _)) => {
            let lane = ServedLane::new(pipe, &caller, log, lane, epoch, &shared);
            lane.run().await
        }
        Ok((
            Frame::Ask {
                kind,
                remaining,
                body,
            },
            since,
        )) => {
            let deadline = since + remaining;
            answer(pipe, kind, body, deadline, forwarder, &shared).await;
            Ok(())
        }
        Ok(_) => Err(Violation("a stream that begins with another frame")),
        Err(violation) => Err(violation),
    };
    if let Err(Violation(what)) = served {
        tracing::warn!(%forwarder, what, "a lane is ended because its rules were broken");
    }
}

/// Answers a question.
async fn answer(
    mut pipe: Pipe,
    kind: u8,
    body: Bytes,
    deadline: Moment,
    from: Uuid,
    shared: &ServerShared,
) {
    let remaining = deadline.since(Clock::MACHINE.now());
    let Some(_open) = shared.open.take([1]).ok().filter(|_| !remaining.is_zero()) else {
        return;
    };
    let question = Question {
        kind,
        body,
        remaining,
        from,
    };
    let answer = shared.serve.ask(question);
    if let Ok(body) = tokio::time::timeout(remaining, answer).await {
        pipe.push(Frame::Answer { body });
        pipe.finish().await;
    }
}

/// An answer of the part of the node that serves the log.
struct Answered {
    seq: u64,
    bytes: usize,
    answer: Answer,
}

/// A call that was taken. This is a future that has no other box than the one it was given.
struct OpenCall {
    seq: u64,
    bytes: usize,
    answer: BoxFuture<'static, Answer>,
    _open: Option<Permit>,
}

impl Future for OpenCall {
    type Output = Answered;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Answered> {
        let (seq, bytes) = (self.seq, self.bytes);
        let answer = self.answer.as_mut().poll(context);
        answer.map(|answer| Answered { seq, bytes, answer })
    }
}

enum LaneEvent {
    Answers,
    Pipe(PipeEvent),
    End,
}

/// A lane.
struct ServedLane<'a> {
    shared: &'a ServerShared,
    pipe: Pipe,
    forwarder: Uuid,
    log: LogId,
    number: u64,
    epoch: Epoch,
    newest: Arc<Mutex<Newest>>,
    freshness: Arc<Freshness>,
    core: Receiver,
    taken: FuturesUnordered<OpenCall>,
    answers: Vec<Answered>,
}

impl<'a> ServedLane<'a> {
    fn new(
        pipe: Pipe,
        caller: &Caller,
        log: LogId,
        number: u64,
        epoch: Epoch,
        shared: &'a ServerShared,
    ) -> Self {
        Self {
            shared,
            pipe,
            forwarder: caller.process,
            log,
            number,
            epoch,
            newest: caller.lanes.get(log),
            freshness: Arc::clone(&caller.freshness),
            core: Receiver::new(shared.config.bounds.credit()),
            taken: FuturesUnordered::new(),
            answers: Vec::new(),
        }
    }

    async fn run(mut self) -> Result<(), Violation> {
        if self.log.0 >= self.shared.config.store.logs {
            return Err(Violation("a log that does not exist"));
        }
        let newest = Arc::clone(&self.newest);
        let is_newest = lock(&newest).open(self.number);
        if !is_newest {
            return Ok(());
        }
        // The first bytes may have had calls in them.
        self.read()?;
        let ending = self.shared.ending.clone();
        let mut ending = std::pin::pin!(ending.cancelled());
        loop {
            match poll_fn(|context| self.poll(ending.as_mut(), context)).await {
                LaneEvent::Answers => self.write()?,
                LaneEvent::Pipe(PipeEvent::Data) => self.read()?,
                LaneEvent::Pipe(PipeEvent::Room) => {}
                LaneEvent::Pipe(PipeEvent::Ended) => return Ok(()),
                LaneEvent::End => {
                    self.refuse_the_rest();
                    self.pipe.finish().await;
                    return Ok(());
                }
            }
            if !lock(&newest).serves(self.number) {
                // The forwarder has given this lane up and opened another.
                return Ok(());
            }
        }
    }

    /// Takes the answers that are ready, unless too much waits to be written. Otherwise it writes and reads.
    fn poll(
        &mut self,
        ending: Pin<&mut WaitForCancellationFuture<'_>>,
        context: &mut Context<'_>,
    ) -> Poll<LaneEvent> {
        while !self.pipe.is_full() && self.answers.len() < ANSWERS_MAX {
            match self.taken.poll_next_unpin(context) {
                Poll::Ready(Some(answered)) => self.answers.push(answered),
                Poll::Ready(None) | Poll::Pending => break,
            }
        }
        if !self.answers.is_empty() {
            return Poll::Ready(LaneEvent::Answers);
        }
        if let Poll::Ready(event) = self.pipe.poll(context) {
            return Poll::Ready(LaneEvent::Pipe(event));
        }
        ending.poll(context).map(|()| LaneEvent::End)
    }

    /// Hands over the calls that have come.
    fn read(&mut self) -> Result<(), Violation> {
        let newest = Arc::clone(&self.newest);
        // Held while calls are handed over, so that none is handed over after one of a newer lane.
        let newest = lock(&newest);
        let now = Clock::MACHINE.now();
        if !self.freshness.is_fresh(self.shared.clock.now()) {
            return Err(Violation("calls that have lain here for too long"));
        }
        while let Some((frame, since)) = self.pipe.next_frame(now)? {
            let Frame::Call {
                seq,
                kind,
                is_in_doubt,
                remaining,
                body,
            } = frame
            else {
                return Err(Violation("a frame that forwarders do not send on a lane"));
            };
            if !newest.serves(self.number) {
                return Ok(());
            }
            let bytes = body.len();
            match self.core.call(now, seq, bytes, since, remaining)? {
                CallVerdict::Refused => {}
                CallVerdict::DeadlineOver => self.send(seq, bytes, Answer::DeadlineOver),
                CallVerdict::HandOver(remaining) => {
                    let call = Call {
                        kind,
                        is_in_doubt,
                        body,
                        remaining,
                        epoch: self.epoch,
                        from: self.forwarder,
                    };
                    self.hand_over(seq, bytes, call);
                }
            }
        }
        Ok(())
    }

    fn hand_over(&mut self, seq: u64, bytes: usize, call: Call) {
        match self.shared.serve.call(self.log, call) {
            Served::NotHere(hint) => self.send(seq, bytes, Answer::NotHere(hint)),
            Served::Taken(answer) => {
                self.core.taken(seq);
                self.taken.push(OpenCall {
                    seq,
                    bytes,
                    answer,
                    _open: self.shared.open.take([1]).ok(),
                });
            }
        }
    }

    fn write(&mut self) -> Result<(), Violation> {
        let bytes_max = self.shared.config.bounds.body_bytes_max;
        let mut answers = std::mem::take(&mut self.answers);
        for answered in answers.drain(..) {
            if let Answer::Reply(body) = &answered.answer
                && u32::try_from(body.len()).map_or(true, |bytes| bytes > bytes_max)
            {
                return Err(Violation("a reply of this node that is too large"));
            }
            self.send(answered.seq, answered.bytes, answered.answer);
        }
        // Its memory is used again.
        self.answers = answers;
        Ok(())
    }

    fn send(&mut self, seq: u64, bytes: usize, answer: Answer) {
        match answer {
            Answer::Reply(body) => {
                if self.core.answered(seq, bytes) {
                    self.pipe.push(Frame::Reply { seq, body });
                }
            }
            Answer::DeadlineOver => {
                if self.core.answered(seq, bytes) {
                    self.pipe.push(Frame::DeadlineOver { seq });
                }
            }
            Answer::NotHere(hint) => self.refuse(seq, bytes, hint),
        }
    }

    fn refuse(&mut self, seq: u64, bytes: usize, hint: Hint) {
        let refusal = self.core.not_here(seq, bytes);
        self.push_refusal(refusal, hint);
    }

    /// Refuses the calls that are still on their way when this node stops. It does not know who takes them.
    fn refuse_the_rest(&mut self) {
        let refusal = self.core.end();
        self.push_refusal(refusal, Hint::nothing(self.epoch.incarnation));
    }

    fn push_refusal(&mut self, refusal: Refusal, hint: Hint) {
        if let Refusal::From { from, untaken } = refusal {
            self.pipe.push(Frame::NotHere {
                from,
                untaken,
                hint,
            });
        }
    }
}

fn lock(newest: &Mutex<Newest>) -> std::sync::MutexGuard<'_, Newest> {
    newest.lock().unwrap_or_else(PoisonError::into_inner)
}
