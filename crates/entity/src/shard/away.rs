//! What of a shard goes to other nodes: the requests of an entity wait in its [`Queue`], whose steps are carried out
//! here.
//!
//! Invariant: while a request of an entity is away, other requests of callers for this entity go through the queue too,
//! because they would overtake it otherwise. What other nodes forward is done here at once.
//! Not here: what is sent when (`forward::queue`).

use std::collections::VecDeque;

use bytes::Bytes;
use futures::FutureExt;
use gesta_core::peers::{PeerAnswer, Unanswered, UnansweredReason};
use gesta_core::{Error as StoreError, ErrorKind, Position, StreamId, way_point};
use tokio::time::Instant;

use super::{Away, Shard};
use crate::ask::{Ask, Freshness};
use crate::decider::Decider;
use crate::env::Env;
use crate::error::Error;
use crate::forms;
use crate::forward::queue::{Queue, Refusal, RequestPlace, Seen, Step};
use crate::guard::guarded;
use crate::keys;
use crate::message::Message;
use crate::slot::Slot;

impl<D: Decider> Shard<D> {
    /// Takes a request that goes to another node. Returns a request that must be done here now.
    pub(super) fn ask_away(&mut self, stream: &StreamId, ask: Ask<D>) -> Option<Ask<D>> {
        let Some(forwarding) = &self.env.forwarding else {
            return Some(ask);
        };
        if ask.is_from_node() {
            return Some(ask);
        }
        if ask.may_be_stale() && self.slots.peek(stream).is_some() {
            return Some(ask);
        }
        let place = self.env.place(&ask);
        let waiting = self.away.get(stream).map(|away| away.queue.len());
        if waiting.is_none() && (place == RequestPlace::Here || forwarding.is_here(stream)) {
            return Some(ask);
        }
        let latest = self.env.turn + forwarding.within;
        let mut ask = self.env.refuse_if_full(ask, waiting.unwrap_or(0))?;
        let known_end = || self.env.store.known_end(stream);
        let deadline = ask.sent_until(latest, known_end);
        let away = self.away.entry(stream.clone()).or_insert_with(Away::new);
        away.queue.push(ask, place, deadline);
        self.advance(stream);
        None
    }

    pub(super) fn forwarded(
        &mut self,
        stream: &StreamId,
        number: u64,
        outcome: Result<PeerAnswer, Unanswered>,
    ) {
        way_point!(stream, "returned");
        let outcome = outcome.and_then(|answer| match forms::is_not_understood(&answer.body) {
            true => Err(Unanswered {
                reason: UnansweredReason::NotServed,
                was_written: answer.is_in_doubt,
            }),
            false => Ok(answer),
        });
        if let Some(away) = self.away.get_mut(stream) {
            away.queue.outcome(number, outcome, self.env.turn);
        }
        self.advance(stream);
    }

    pub(super) fn wake(&mut self, stream: &StreamId) {
        if let Some(away) = self.away.get_mut(stream) {
            away.wakes_at = None;
        }
        self.advance(stream);
    }

    /// Notes that something was done for an entity here, because its queue may have waited for that.
    pub(super) fn touch(&mut self, stream: &StreamId) {
        if let Some(forwarding) = &self.env.forwarding
            && let Some(moving) = self.env.moving.take()
        {
            let latest = self.env.turn + forwarding.within;
            let known_end = || self.env.store.known_end(stream);
            let requests = moving.into_iter().map(|mut ask| {
                let (place, deadline) = (self.env.place(&ask), ask.sent_until(latest, known_end));
                (ask, place, deadline)
            });
            let requests = requests.collect();
            let away = self.away.entry(stream.clone()).or_insert_with(Away::new);
            away.queue.push_front(requests);
        }
        if !self.away.is_empty() && self.away.contains_key(stream) {
            self.touched.push(stream.clone());
        }
    }

    /// Does for the queue of an entity what can be done now.
    pub(super) fn advance(&mut self, stream: &StreamId) {
        while let Some(away) = self.away.get_mut(stream) {
            let seen = Seen {
                is_here: self.env.is_here(stream),
                is_busy: self.slots.peek(stream).is_some_and(Slot::is_busy),
                now: self.env.turn,
            };
            let Some(step) = away.queue.next(seen) else {
                return self.rest(stream);
            };
            match step {
                Step::Send(number) => self.send_away(stream, number),
                Step::Here { request, in_doubt } => {
                    let ask = request.done_here(in_doubt);
                    self.ask_here(stream.clone(), ask);
                }
                Step::Answer {
                    request,
                    body,
                    in_doubt,
                } => self.env.answer_away(request.doubted(in_doubt), &body),
                Step::Refuse {
                    request,
                    refusal,
                    in_doubt,
                } => self.env.refuse_away(request.doubted(in_doubt), refusal),
            }
        }
    }

    /// Forgets an empty queue, or arranges that the shard is woken for the queue.
    fn rest(&mut self, stream: &StreamId) {
        let Some(away) = self.away.get_mut(stream) else {
            return;
        };
        if away.queue.len() == 0 {
            self.away.remove(stream);
            return;
        }
        let Some(moment) = away.queue.wake_at(self.env.turn) else {
            return;
        };
        if away.wakes_at.is_none_or(|wakes_at| moment < wakes_at) {
            away.wakes_at = Some(moment);
            let stream = stream.clone();
            let woken = tokio::time::sleep_until(moment).map(|()| Message::Wake { stream });
            self.awaited.push(woken.boxed());
        }
    }

    /// Sends a request to the owner of the stream. What is in memory of the entity here is outdated from now on, so it
    /// is removed.
    fn send_away(&mut self, stream: &StreamId, number: u64) {
        self.leave(stream, |counters| &counters.passivated_moved);
        let Some(forwarding) = self.env.forwarding.clone() else {
            return;
        };
        let away = self.away.get_mut(stream);
        let Some((ask, deadline, in_doubt)) = away.and_then(|away| away.queue.sending(number))
        else {
            return;
        };
        let body = match self.env.body_of(ask, in_doubt) {
            Ok(body) => body,
            Err(_) => return self.cannot_be_sent(stream, number),
        };
        self.env.counters.forwarded.add(1);
        way_point!(stream, "forwarded");
        let within = deadline.saturating_duration_since(self.env.turn);
        let sent = forwarding
            .peers
            .forward(&forwarding.service, stream, body, within);
        let stream = stream.clone();
        let outcome = sent.map(move |outcome| Message::Forwarded {
            stream,
            number,
            outcome,
        });
        self.awaited.push(outcome.boxed());
    }

    /// Lets a request without a form be done here, where the same mistake shows or does no harm.
    fn cannot_be_sent(&mut self, stream: &StreamId, number: u64) {
        let outcome = Err(Unanswered {
            reason: UnansweredReason::NotServed,
            was_written: false,
        });
        if let Some(away) = self.away.get_mut(stream) {
            away.queue.outcome(number, outcome, self.env.turn);
        }
    }
}

impl<D: Decider> Env<D> {
    /// Returns where a request may be done.
    fn place(&self, ask: &Ask<D>) -> RequestPlace {
        match ask {
            Ask::Read(_) if self.kind.snapshots.is_none() => RequestPlace::Here,
            Ask::Read(_) | Ask::Command(_) => RequestPlace::Owner,
        }
    }

    /// Returns the form in which a request is sent.
    fn body_of(&self, ask: &mut Ask<D>, in_doubt: bool) -> Result<Bytes, StoreError> {
        let missing = || StoreError::invalid("request", "has no form");
        match ask {
            Ask::Command(ask) => {
                if ask.request.idempotency_key.is_none() {
                    ask.request.idempotency_key = Some(keys::make());
                    ask.has_made_key = true;
                }
                let key = ask.request.idempotency_key.as_deref().unwrap_or_default();
                let forms = self.kind.forms.as_ref().ok_or_else(missing)?;
                let in_doubt = in_doubt || ask.is_in_doubt;
                forms.write_command(key, &ask.request.command, in_doubt, ask.begun_after)
            }
            Ask::Read(read) => {
                let snapshots = self.kind.snapshots.as_ref().ok_or_else(missing)?;
                Ok(forms::write_read(read.freshness(), snapshots.version()))
            }
        }
    }

    /// Tells the caller what another node has answered.
    fn answer_away(&self, ask: Ask<D>, body: &Bytes) {
        match (ask, &self.kind.forms, &self.kind.snapshots) {
            (Ask::Command(ask), Some(forms), _) => ask.answer(forms.read_result(body)),
            (Ask::Read(mut read), _, Some(snapshots)) => {
                let state = forms::read_state(body).and_then(|state| {
                    let unreadable = |why| StoreError::corrupt(format!("forwarded state: {why}"));
                    let is_initial = state.is_none();
                    let state = match state {
                        Some(state) => snapshots.read_state(&state).map_err(unreadable)?,
                        None => {
                            guarded("the initial state", D::default).map_err(StoreError::from)?
                        }
                    };
                    guarded("the read", || read.look(&state, is_initial))
                        .map_err(StoreError::from)?;
                    Ok(())
                });
                match state {
                    Ok(()) => read.release(),
                    Err(error) => read.refuse(error),
                }
            }
            // What has no form is not sent.
            (ask, ..) => ask.refuse(StoreError::unavailable("the answer has no form").into()),
        }
    }

    /// Tells the caller why no other node has answered. If the command is in doubt, `CommandAsk::answer` makes the
    /// answer *outcome unknown*.
    fn refuse_away(&self, ask: Ask<D>, refusal: Refusal) {
        let why = match refusal {
            Refusal::Unreachable => "the node that owns the stream cannot be reached",
            Refusal::Unreadable => "the answer of the node that owns the stream cannot be read",
            Refusal::AnswerTooLarge => "the answer of the node that owns the stream is too large",
            Refusal::Late => "the node that owns the stream did not answer in time",
            Refusal::Overtaken => "the stream changed its owner, which took later requests first",
            Refusal::Overloaded => "too many requests wait for the node that owns the stream",
            Refusal::Closed => "the node is shutting down",
        };
        let error = match refusal {
            Refusal::Overloaded => {
                self.counters.overloaded.add(1);
                ErrorKind::Overloaded(why.into()).into()
            }
            _ => {
                self.counters.failed.add(1);
                StoreError::unavailable(why)
            }
        };
        ask.refuse(Error::from(error));
    }

    /// Takes those requests that must be decided again, but belong to another node. Returns the others.
    pub(crate) fn move_away(
        &mut self,
        stream: &StreamId,
        again: VecDeque<Ask<D>>,
    ) -> VecDeque<Ask<D>> {
        if self.is_here(stream) {
            return again;
        }
        let (moving, mut staying): (VecDeque<_>, VecDeque<_>) =
            again.into_iter().partition(|ask| !ask.is_from_node());
        // What has to be done here goes along, so that it does not overtake the others.
        if moving
            .iter()
            .any(|ask| self.place(ask) == RequestPlace::Owner)
        {
            self.moving.get_or_insert_default().extend(moving);
        } else {
            staying.extend(moving);
        }
        staying
    }
}

impl<D: Decider> Away<D> {
    fn new() -> Self {
        Self {
            queue: Queue::default(),
            wakes_at: None,
        }
    }
}

impl<D: Decider> Ask<D> {
    fn may_be_stale(&self) -> bool {
        matches!(self, Ask::Read(read) if read.freshness() == Freshness::StaleAllowed)
    }

    /// Returns the moment until which the request may wait for other nodes. That moment is `latest`, unless a moment
    /// was fixed when the request was first to be sent. So a command is never sent, or done again here, later than made
    /// keys are kept. A read has no effect, so no moment is fixed for it.
    fn sent_until(&mut self, latest: Instant, known_end: impl FnOnce() -> Position) -> Instant {
        match self {
            Ask::Command(ask) => {
                if ask.sent_until.is_none() {
                    ask.begun_after = known_end();
                }
                *ask.sent_until.get_or_insert(latest)
            }
            Ask::Read(_) => latest,
        }
    }

    /// Marks a request that another node may have done, if `in_doubt` says so.
    fn doubted(mut self, in_doubt: bool) -> Self {
        if let Ask::Command(ask) = &mut self {
            ask.is_in_doubt |= in_doubt;
        }
        self
    }

    /// Prepares a request that came back to be done here. The request keeps a key that was made for it if another node
    /// may know that key.
    fn done_here(self, in_doubt: bool) -> Self {
        let mut ask = self.doubted(in_doubt);
        if let Ask::Command(command) = &mut ask
            && command.has_made_key
            && !command.is_in_doubt
        {
            command.request.idempotency_key = None;
            command.has_made_key = false;
        }
        ask
    }
}
