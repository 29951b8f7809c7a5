//! Deciding appends: do the claims hold, is it a retry, where do the events go?
//!
//! Decided is decided against the *tip*: all that was decided before, stored or not. So a refusal is
//! not answered before everything that it rests on has committed; it rides on a batch ([`Rider`]).

use gesta_core::backend::LogEnd;
use gesta_core::{Appended, AppendedStream, Checkpoint, Position, StreamId, Timestamp};

use crate::command::{Change, Command, Part};
use crate::forming::{Place, Rider};
use crate::judge::{self, Fit, Judged, Verdict};
use crate::lookup::{Found, Question, Suspected, WindowPart};
use crate::recent::Recent;
use crate::sequencer::{Sequencer, attempt_key};
use crate::waiting::Waiting;

/// Answers that may ride on one batch.
const RIDERS_MAX: usize = 10_000;

impl Sequencer {
    pub(crate) fn decide_inbox(&mut self) {
        if self.waiting_ready {
            self.decide_waiting();
        }
        let now = self.clock.now();
        while let Some(next) = self.inbox.front()
            && !self.is_full_for(next)
        {
            let Some(command) = self.inbox.pop_front() else {
                break;
            };
            if let Some(command) = self.join_attempt(command) {
                self.decide_or_wait(command, now);
            }
        }
    }

    /// This command does not fit into the forming batch. One that is larger than a batch travels alone.
    pub(crate) fn is_full_for(&self, command: &Command) -> bool {
        let forming = &self.forming;
        let full = !forming.commands.is_empty()
            && (forming.rows.len() + command.permit.events > self.config.batch_events_max
                || forming.bytes + command.permit.bytes > self.config.batch_bytes_max
                || forming.commands.len() >= self.batch_commands_max);
        full || forming.riders.len() >= RIDERS_MAX
    }

    /// Registers an attempt with ids of the client; a retry of one that is under way waits for it.
    fn join_attempt(&mut self, command: Command) -> Option<Command> {
        let Some(key) = attempt_key(&command) else {
            return Some(command);
        };
        if command.registered {
            return Some(command);
        }
        match self.attempts.entry(key) {
            std::collections::hash_map::Entry::Occupied(mut entry) => {
                self.stats.joined.add(1);
                entry.get_mut().push(command);
                None
            }
            std::collections::hash_map::Entry::Vacant(entry) => {
                entry.insert(Vec::new());
                Some(Command {
                    registered: true,
                    ..command
                })
            }
        }
    }

    fn decide_or_wait(&mut self, command: Command, now: Timestamp) {
        let held = !self.held.is_empty()
            && command
                .parts
                .iter()
                .any(|part| self.held.contains_key(&part.stream));
        if held || !self.knows_all(&command) {
            self.wait(Waiting {
                command,
                lookup: None,
                found: None,
            });
        } else {
            self.decide(command, None, now);
        }
    }

    pub(crate) fn knows_all(&mut self, command: &Command) -> bool {
        command.parts.iter().all(|part| {
            self.knows_stream(&part.stream)
                && part
                    .event_types()
                    .all(|event_type| self.heads.knows_type(&event_type))
        })
    }

    fn knows_stream(&mut self, stream: &StreamId) -> bool {
        self.heads.knows_stream(stream)
            || !self.loading.contains(stream) && self.heads.takes_as_new(stream)
    }

    /// Decides a command whose streams and types are all known.
    pub(crate) fn decide(&mut self, command: Command, found: Option<Vec<Found>>, now: Timestamp) {
        let judged = self.judge(&command);
        let found = match found {
            Some(found) => found,
            None if judged.iter().all(|judged| judged.fit == Fit::Fits) => {
                return self.place(command, now);
            }
            None => {
                let questions = self.questions(&command, &judged, now);
                if questions.iter().any(Option::is_some) {
                    return self.ask_first(command, &judged, questions);
                }
                vec![Found::Nothing; judged.len()]
            }
        };
        match judge::verdict(&command.parts, &judged, found) {
            Verdict::Place => self.place(command, now),
            Verdict::Refuse(refusal) => self.forming.riders.push(Rider::Refuse(command, refusal)),
            Verdict::Retry(stored) => {
                self.stats.retries.add(1);
                let answer = self.answer_of(stored);
                self.answer(command, Ok(answer));
            }
        }
    }

    fn judge(&mut self, command: &Command) -> Vec<Judged> {
        let judge = |part: &Part| {
            let state = self.heads.tip(&part.stream).unwrap_or_default();
            Judged {
                fit: judge::check(part, &state),
                state,
            }
        };
        command.parts.iter().map(judge).collect()
    }

    /// The events of a command may be stored already: looks before deciding.
    fn ask_first(&mut self, command: Command, judged: &[Judged], questions: Vec<Option<Question>>) {
        let compares_open = command.parts.iter().zip(judged).any(|(part, judged)| {
            matches!(judged.fit, Fit::RefusedUnlessStoredAt(..)) && self.heads.is_open(&part.stream)
        });
        if compares_open && !command.rechecked {
            let rechecked = Command {
                rechecked: true,
                ..command
            };
            self.forming.riders.push(Rider::Recheck(rechecked));
            return;
        }
        let lookup = Some(self.start_lookup(questions));
        self.wait(Waiting {
            command,
            lookup,
            found: None,
        });
    }

    /// What has to be looked up. Parts behind the first one that is refused in any case do not matter.
    fn questions(
        &mut self,
        command: &Command,
        judged: &[Judged],
        now: Timestamp,
    ) -> Vec<Option<Question>> {
        let refused = |judged: &Judged| matches!(judged.fit, Fit::Refused(_));
        let end = judged.iter().position(refused).unwrap_or(judged.len());
        let parts = command.parts.iter().zip(judged).take(end);
        let mut questions: Vec<_> = parts
            .map(|(part, judged)| self.question(part, judged, now))
            .collect();
        questions.resize_with(judged.len(), || None);
        questions
    }

    fn question(&mut self, part: &Part, judged: &Judged, now: Timestamp) -> Option<Question> {
        let head = match &part.change {
            Change::Events { .. } | Change::Owned { .. } => judged.state.main?,
            Change::Lifecycle { .. } => judged.state.meta?,
        };
        let target = part.target();
        let place = match &judged.fit {
            Fit::RefusedUnlessStoredAt(first, _) => Suspected::At(*first),
            Fit::FitsUnlessStored => match self.recent.find(head.row, part.first_id()?) {
                Recent::Perhaps(position) => {
                    let before = Position(position.0.saturating_sub(1));
                    Suspected::Near(position, self.window_part(now, before))
                }
                Recent::No => return None,
                // A stream that began behind that position has no other events.
                Recent::NotBehind(position) if head.row.0 > position.0 => return None,
                Recent::NotBehind(position) => {
                    self.lacks_ids();
                    Suspected::Within(self.window_part(now, position))
                }
            },
            Fit::Fits | Fit::Refused(_) => return None,
        };
        Some(Question {
            stream: target,
            row: head.row,
            ids: part.ids(),
            place,
        })
    }

    /// The window up to a position.
    fn window_part(&self, now: Timestamp, until: Position) -> WindowPart {
        let age = i64::try_from(self.config.idempotency.time.as_micros()).unwrap_or(i64::MAX);
        let after = Position(
            self.committed
                .position
                .0
                .saturating_sub(self.config.idempotency.positions),
        );
        WindowPart {
            after,
            created_from: Timestamp(now.0.saturating_sub(age)),
            until,
        }
    }

    fn place(&mut self, command: Command, now: Timestamp) {
        if command.parts.iter().all(Part::is_question) {
            self.forming.riders.push(Rider::Confirm(command));
            return;
        }
        let place = Place {
            log: self.log,
            logs: self.backend.info().logs,
            incarnation: self.backend.history().incarnation,
            after: self.tip(),
            now,
        };
        self.forming.place(command, &mut self.heads, place);
    }

    /// The row that the next batch follows.
    pub(crate) fn tip(&self) -> LogEnd {
        self.in_flight
            .back()
            .map_or(self.committed, |batch| batch.end)
    }

    pub(crate) fn answer_of(&self, streams: Vec<AppendedStream>) -> Appended {
        let info = self.backend.info();
        let position = streams
            .iter()
            .map(|stream| stream.position)
            .max()
            .unwrap_or_default();
        let checkpoint = Checkpoint::in_log(
            self.backend.history().incarnation,
            info.logs,
            self.log,
            position,
        );
        Appended {
            streams,
            log: self.log,
            position,
            checkpoint,
        }
    }
}
