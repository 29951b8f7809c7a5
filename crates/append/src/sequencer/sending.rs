//! Sends batches, and answers commands when a batch has committed.

use std::sync::Arc;

use gesta_core::backend::{BatchOutcome, StoredId};
use gesta_core::{Appended, Error, ErrorKind, KnownEnd, Moment, Result};

use super::forming::{DependentAnswer, Forming, InFlight, appended};
use super::{Now, Output, Sequencer, unknown};
use crate::command::{Command, StoredBy};

/// The number of batches of full size under way at once near the database: one that it works on and one that waits.
const NEAR_IN_FLIGHT_MAX: usize = 2;
/// The number of batches of full size under way at once where a batch travels for longer than it is worked on. The
/// number is small, so that a miss loses little.
const FAR_IN_FLIGHT_MAX: usize = 4;
/// The number of batches of any size under way where they gather with those of other logs. More would be many small
/// batches, which cost this process more than the larger batches that form meanwhile.
const GATHERED_IN_FLIGHT_MAX: usize = 4;

impl<T> Sequencer<T> {
    pub(super) fn send_if_due(&mut self, now: Now) {
        loop {
            if self.writer.is_none() || self.giving_way.gives_way(self.has_work(), now.moment) {
                return;
            }
            let is_due = !self.forming.is_empty() && self.is_worth_sending(now.moment);
            if self.is_probe_due() || is_due && self.is_distance_unknown() {
                self.send(Forming::default(), now);
            }
            if is_due {
                let forming = std::mem::take(&mut self.forming);
                self.send(forming, now);
                self.decide_inbox(now);
            } else {
                return;
            }
        }
    }

    /// Returns true if a batch that leaves now is the first one of a connection. Under a load that never rests, no
    /// batch is ever under way alone. So an empty batch goes before the first one, and its answer is late by the
    /// distance alone.
    fn is_distance_unknown(&self) -> bool {
        let measures = self.setting.in_flight_max > 1;
        measures && self.in_flight.is_empty() && self.pace.round_trip().is_none()
    }

    /// Returns whether an empty batch should be sent: to measure the distance of the database, or to see whether it
    /// commits again.
    fn is_probe_due(&self) -> bool {
        let is_silent = self.in_flight.is_empty() && self.forming.is_empty();
        let measures = self.setting.in_flight_max > 1 && self.pace.wants_probe();
        is_silent && self.queue.is_empty() && (measures || self.trouble.wants_proof())
    }

    /// Returns whether the forming batch should be sent now. That is so if nothing is in flight. Otherwise the number
    /// of batches in flight must be below its bound, and one of three things must hold: the backend gathers batches and
    /// few are under way; the database would be idle before the next batch reaches it; or few are under way and the
    /// batch is at least as large as the smallest of them.
    fn is_worth_sending(&self, now: Moment) -> bool {
        let Some(oldest) = self.in_flight.front() else {
            return true;
        };
        let in_flight = self.in_flight.len();
        let room_for_a_small_one = || {
            let age = now.since(oldest.sent);
            self.pace.database_would_be_idle(in_flight, age)
        };
        let full_max = if self.pace.is_near() {
            NEAR_IN_FLIGHT_MAX
        } else {
            FAR_IN_FLIGHT_MAX
        };
        let room_to_gather = self.pace.is_gathered() && in_flight < GATHERED_IN_FLIGHT_MAX;
        in_flight < self.setting.in_flight_max
            && (room_to_gather
                || room_for_a_small_one()
                || in_flight < full_max && self.is_as_large_as_others())
    }

    /// Returns whether the forming batch is as large as the smallest in flight, or the next command does not fit.
    fn is_as_large_as_others(&self) -> bool {
        let rows = self.in_flight.iter().map(|batch| batch.batch.rows.len());
        self.forming.rows().len() >= rows.min().unwrap_or_default().max(1)
            || self
                .queue
                .inbox
                .front()
                .is_some_and(|next| self.is_full_for(next))
    }

    fn send(&mut self, forming: Forming<T>, now: Now) {
        let after = self.tip();
        let Some(writer) = self.writer else {
            return;
        };
        let queue = self.in_flight.len() + 1;
        let batch = forming.close(self.setting.log, after, writer, queue, now.moment);
        if !batch.is_probe() {
            self.stats.batches.add(1);
            self.stats.events.add(batch.batch.rows.len() as u64);
        }
        self.outputs.push(Output::Send(Arc::clone(&batch.batch)));
        self.in_flight.push_back(batch);
    }

    // ---- answers of the database ----

    pub(super) fn on_outcome(&mut self, outcome: BatchOutcome, now: Now) {
        let Some(batch) = self.in_flight.pop_front() else {
            return;
        };
        if !self.is_running() {
            return self.on_outcome_while_draining(batch, outcome, now);
        }
        match outcome {
            BatchOutcome::Committed => {
                self.measure(&batch, now.moment);
                // An empty batch that goes before another proves nothing about that one.
                if !batch.is_probe() || self.in_flight.is_empty() {
                    self.on_success();
                }
                self.committed = batch.end;
                // First give the database work again, then answer.
                self.send_if_due(now);
                self.complete(batch, now);
            }
            failed => self.begin_recovery(batch, failed, now),
        }
    }

    /// Forgets the faults before, because batches commit.
    fn on_success(&mut self) {
        self.recovery.on_committed();
        if self.trouble.clear() {
            tracing::info!(log = self.setting.log.0, "batches are committed again");
        }
    }

    fn measure(&mut self, batch: &InFlight<T>, now: Moment) {
        if !batch.is_probe() {
            let go_on = self.giving_way.committed(now);
            self.outputs.extend(go_on.map(Output::Signal));
        }
        let rows = batch.batch.rows.len();
        self.pace.committed(batch.sent, batch.queue, rows, now);
    }

    /// Answers all commands of a batch that is durable.
    pub(super) fn complete(&mut self, batch: InFlight<T>, now: Now) {
        self.committed = batch.end;
        self.tell_committed();
        for (stream, state) in &batch.cargo.touched {
            self.knowledge.commit(stream, *state);
        }
        for (row, event_type) in &batch.batch.new_types {
            self.knowledge.commit_type(event_type, *row);
        }
        for (stream, id, position) in &batch.cargo.retryable {
            self.knowledge.remember(StoredId {
                stream: *stream,
                id: *id,
                position: *position,
                created: batch.end.created,
            });
        }
        if !batch.batch.rows.is_empty() {
            self.outputs
                .push(Output::Committed(Arc::clone(&batch.batch)));
        }
        if self.has_ended_the_search(&batch) {
            self.bisection.commands_max = usize::MAX;
        }
        for (command, answer) in batch.cargo.placed {
            self.answer(command, Ok(answer));
        }
        for dependent in batch.cargo.dependents {
            self.answer_dependent(dependent.command, dependent.answer, now);
        }
        self.queue.committed();
        let end = batch.end;
        let nothing_open = self.in_flight.is_empty() && self.forming.is_empty();
        self.knowledge.shrink(now.moment, end, nothing_open);
    }

    fn answer_dependent(&mut self, command: Command<T>, answer: DependentAnswer, now: Now) {
        let streams = match answer {
            DependentAnswer::Refused(refusal) => {
                let refused = Err(Error::new(refusal).during("append"));
                return self.answer(command, refused);
            }
            DependentAnswer::Overtaken(stream) => {
                let overtaken = Err(Error::overtaken(&stream).during("append"));
                return self.answer(command, overtaken);
            }
            DependentAnswer::Confirmed => Vec::new(),
            DependentAnswer::Stored(streams) => streams,
        };
        let place = self.place_after(self.committed, now);
        self.answer(command, Ok(appended(streams, place)));
    }

    /// Tells others where the log ends, as far as is known. While everything known may be of another history, nothing
    /// is told.
    pub(super) fn tell_end(&self) {
        if self.is_running() {
            self.tell_committed();
        }
    }

    fn tell_committed(&self) {
        self.stats.known_end.set(KnownEnd {
            incarnation: self.setting.incarnation,
            position: self.committed.position,
        });
    }

    /// Returns whether all commands among which the offending append was sought are stored or answered.
    fn has_ended_the_search(&self, batch: &InFlight<T>) -> bool {
        let is_last = |command: &Command<T>| command.sequence >= self.bisection.suspects_until;
        self.bisection.commands_max != usize::MAX
            && batch
                .cargo
                .placed
                .iter()
                .any(|(command, _)| is_last(command))
    }

    /// Answers a command. Retries that waited for it are decided next.
    pub(super) fn answer(&mut self, command: Command<T>, result: Result<Appended>) {
        for retry in self.attempts.end(&command).into_iter().rev() {
            self.queue.inbox.push_front(retry);
        }
        let result = self.certain(&command, result);
        match &result {
            Ok(_) => self.stats.appends.add(1),
            Err(_) => self.stats.refusals.add(1),
        }
        self.outputs.push(Output::Answer(command.ticket, result));
    }

    /// Makes an answer *unknown* if it claims that nothing was stored although the events of the command may be stored,
    /// or may be stored later.
    ///
    /// The events cannot be stored later once the log has another row after the one that a lost statement must follow.
    fn certain(&self, command: &Command<T>, result: Result<Appended>) -> Result<Appended> {
        let end = self.committed.position;
        let may_commit_late = command.lost.iter().any(|lost| end <= lost.after);
        let stored_by = command.stored.as_ref().map(|found| found.by);
        let claims_too_much = |kind: &ErrorKind| match kind {
            ErrorKind::OutcomeUnknown(_) => false,
            // It says itself that the events were stored.
            ErrorKind::StoredAndDeleted { .. } => may_commit_late,
            // What a retry is told of a tombstone says nothing of the first attempt.
            ErrorKind::StreamTombstoned(_) => {
                may_commit_late || stored_by == Some(StoredBy::Itself)
            }
            _ => may_commit_late || stored_by.is_some(),
        };
        match result {
            Err(error) if claims_too_much(error.kind()) => {
                let why = command.why_unknown().unwrap_or_default();
                Err(unknown(why).caused_by(error))
            }
            result => result,
        }
    }
}
