//! Reads the log from the last known row, or forgets everything known and begins at the end of the log.
//!
//! Invariant: nothing is decided meanwhile. Everything known is forgotten if the log cannot be followed row by row: a
//! page does not begin with the known row, there is a gap, or there are more than [`CATCH_UP_MAX`] rows.

use gesta_core::backend::{EventRef, LogEnd, Signal};
use gesta_core::{Error, Position};

use super::job::{Gave, What};
use super::late::Late;
use super::reads::Purpose;
use super::recovery::{CatchUp, Goal, Phase, Step};
use super::trouble::is_passing;
use super::{Now, Output, Sequencer, unknown};
use crate::command::Command;

/// The number of events that are read at once when catching up with other processes.
const CATCH_UP_PAGE: usize = 20_000;
/// The number of positions beyond which it is quicker to forget everything known. Reading so many takes a few tenths of
/// a second.
const CATCH_UP_MAX: u64 = 60_000;
/// The number of misses in sequence, without anything new in the log, after which everything known is doubted.
const IDLE_MISSES_MAX: u32 = 2;

impl<T> Sequencer<T> {
    /// Reads what was appended after the last known row. Nothing may be decided meanwhile.
    ///
    /// That row is read again first. If another row is found in its place, the database has lost commits, or scavenging
    /// has removed the row. Then nothing that is known of streams can be trusted.
    pub(super) fn read_on(&mut self, under_way: Option<CatchUp>) {
        let catch_up = under_way.unwrap_or_else(|| CatchUp {
            known: Some(self.committed).filter(|end| end.position > Position::START),
            limit: self.committed.position.plus(CATCH_UP_MAX),
        });
        let before = u64::from(catch_up.known.is_some());
        let after = Position(self.committed.position.0 - before);
        let what = What::After(after, CATCH_UP_PAGE);
        let (id, job) = self.reads.begin(what, Purpose::Recovery);
        self.outputs.push(Output::Read(id, job));
        self.recovery.phase = Phase::CatchingUp(catch_up);
    }

    pub(super) fn read_end(&mut self, phase: Phase<T>) {
        let (id, job) = self.reads.begin(What::End, Purpose::Recovery);
        self.outputs.push(Output::Read(id, job));
        self.recovery.phase = phase;
    }

    pub(super) fn on_recovery_read(&mut self, gave: Gave, now: Now) {
        let phase = std::mem::replace(&mut self.recovery.phase, Phase::Running);
        match (phase, gave) {
            (Phase::CatchingUp(catch_up), Gave::After(Ok(events))) => {
                self.on_events(catch_up, events, now);
            }
            (Phase::CatchingUp(catch_up), Gave::End(Ok(end))) => {
                if end.position > catch_up.limit {
                    self.try_step(Step::Reach(Goal::Forget));
                } else {
                    self.read_on(Some(catch_up));
                }
            }
            (Phase::Forgetting, Gave::End(Ok(end))) => self.forget(end, now),
            (Phase::CatchingUp(_), Gave::After(Err(error)) | Gave::End(Err(error))) => {
                self.retry_reading(Goal::CatchUp, &error, now);
            }
            (Phase::Forgetting, Gave::End(Err(error))) => {
                self.retry_reading(Goal::Forget, &error, now);
            }
            (phase, _) => self.recovery.phase = phase,
        }
    }

    fn retry_reading(&mut self, goal: Goal, error: &Error, now: Now) {
        self.trouble.note(error, now.moment);
        if !is_passing(error) {
            self.refuse_all(error);
        }
        self.pause(Step::Reach(goal), now);
    }

    /// Takes a page of the log.
    fn on_events(&mut self, mut catch_up: CatchUp, mut events: Vec<EventRef>, now: Now) {
        let is_complete = events.len() < CATCH_UP_PAGE;
        if let Some(known) = catch_up.known.take() {
            let is_known =
                |event: &EventRef| (event.position, event.writer) == (known.position, known.writer);
            if !events.first().is_some_and(is_known) {
                return self.try_step(Step::Reach(Goal::Forget));
            }
            events.remove(0);
        }
        for event in &events {
            if event.position != self.committed.position.next() {
                // Scavenging has left a gap: what it removed may have been the last events of streams.
                return self.try_step(Step::Reach(Goal::Forget));
            }
            self.knowledge.observe(event);
            self.recovery.late.observe(event);
            self.recovery.others_until = event.position;
            self.committed = LogEnd {
                position: event.position,
                writer: event.writer,
                created: event.created,
            };
        }
        self.note_to_look_up(&events);
        if is_complete {
            self.end_catching_up(now);
        } else {
            self.read_end(Phase::CatchingUp(catch_up));
        }
    }

    fn end_catching_up(&mut self, now: Now) {
        let late = std::mem::take(&mut self.recovery.late);
        let in_doubt = |command: &&mut Command<T>| !command.lost.is_empty();
        for command in self.queue.inbox.iter_mut().filter(in_doubt) {
            late.settle(command, self.committed.position);
        }
        if let Some(before) = self.recovery.missed_at.take()
            && self.misses_without_news(before)
        {
            let text = "the database refuses the next row of the log, though nothing new is in it";
            let error = Error::unavailable(text);
            tracing::error!(log = self.setting.log.0, %error, "forgetting all stream heads");
            self.trouble.note(&error, now.moment);
            return self.pause(Step::Reach(Goal::Forget), now);
        }
        if self.recovery.to_look_up.is_some() {
            // Perhaps this process commits nothing after it, and nothing else brings the memory back to its bounds.
            self.knowledge.shrink(now.moment, self.committed, true);
        }
        self.resume();
    }

    /// Returns whether batches miss repeatedly although nothing new is in the log. Then what is known must be wrong.
    fn misses_without_news(&mut self, before: Position) -> bool {
        if self.committed.position != before {
            self.recovery.idle_misses = 0;
            return false;
        }
        self.recovery.idle_misses += 1;
        self.recovery.idle_misses >= IDLE_MISSES_MAX
    }

    /// Forgets everything known and begins at the end of the log.
    fn forget(&mut self, end: LogEnd, now: Now) {
        self.recovery.late = Late::default();
        self.recovery.missed_at = None;
        self.recovery.seen_after = end.position;
        self.recovery.others_until = end.position;
        self.committed = end;
        self.knowledge.forget(&self.setting.config, end, now);
        self.reads.forget();
        self.recovery.is_in_doubt |= self.recovery.has_run;
        let is_unknown = |command: &Command<T>| command.why_unknown().is_some();
        for command in self.queue.extract(is_unknown) {
            let why = command.why_unknown().unwrap_or_default();
            let detail = format!("{why}, and the log cannot be followed any more");
            self.answer(command, Err(unknown(&detail)));
        }
        self.resume();
    }

    /// Ends the recovery.
    fn resume(&mut self) {
        self.recovery.phase = Phase::Running;
        self.recovery.has_run = true;
        self.look_noted_up();
        if std::mem::take(&mut self.recovery.is_in_doubt) {
            self.outputs.push(Output::ReadLogEnd);
            self.outputs.push(Output::Signal(Signal::Appended {
                log: self.setting.log,
                position: self.committed.position,
            }));
        }
    }
}
