//! What happens when a batch does not commit.
//!
//! All batches chained after it miss as well. When nothing is in flight any more, everything decided is undone, the log
//! is read from the last known row, and all commands are decided again in their order.
//!
//! The outcome decides what is done. *Missed*: another process has appended. The log is read, and the sequencer goes
//! on. *Refused*: the database refuses the content. The batch is halved until the offending append stands alone.
//! *Failed*: for a passing reason the sequencer waits and goes on; for a lasting one the appends of the batch are
//! answered at once. *Unknown*: the connection died. Its statements may still be waiting in the database and commit
//! later, so looking alone proves nothing. On a new connection (with a new epoch) the log is read from the last known
//! row; what is found of the lost appends is stored ([`Late`]). The others are decided and sent again after the same
//! last row. The first commit makes the lost statements impossible, because the position that they need is taken.
//! Whichever of the two comes first wins, and the other misses. If the lost statement came first, catching up finds its
//! events.
//!
//! Whatever is found by looking is answered with the next commit on the new connection. That commit proves it durable,
//! because a row can be visible while its commit still waits for a synchronous standby.
//!
//! When the log cannot be followed from the last known row (too many rows, a gap that scavenging has left, another row
//! in its place), everything known is forgotten. Appends in doubt are then answered *outcome unknown*, because nobody
//! can tell any more. So are retries that were found stored and not confirmed: decided again, they would be stored a
//! second time if they have left the deduplication window meanwhile.

use std::time::Duration;

use gesta_core::backend::{BatchOutcome, LogEnd};
use gesta_core::{Error, ErrorKind, Incarnation, Moment, Position, Result, StreamId};

use super::forming::InFlight;
use super::late::Late;
use super::pace::Pace;
use super::trouble::is_passing;
use super::{Connected, Now, Output, Sequencer, unknown};
use crate::command::Command;

/// The divisor of `give_up_after` that gives the longest back-off. So while appends wait for a database that does not
/// answer, their age is checked at least this often.
const GIVE_UP_PRECISION_DIVISOR: u32 = 4;

/// How far catching up has come.
#[derive(Debug)]
pub(super) struct CatchUp {
    /// The last known row, until it was found in the log again.
    pub(super) known: Option<LogEnd>,
    /// The position after which it is quicker to forget everything known.
    pub(super) limit: Position,
}

/// How far a recovery has come.
#[derive(Debug)]
pub(super) enum Phase<T> {
    /// No recovery is under way.
    Running,
    /// A batch did not commit; the answers to all others in flight are awaited.
    Draining {
        /// The outcome of the first batch that did not commit.
        first: BatchOutcome,
        lost: Vec<Lost<T>>,
    },
    /// The next step is tried at this time.
    Pausing(Moment, Step),
    /// A connection was asked for.
    Connecting(Goal),
    /// The log is being read from the last known row.
    CatchingUp(CatchUp),
    /// The end of the log is being read; everything known will be forgotten.
    Forgetting,
    /// Everything is answered, and nothing will come.
    Stopped,
}

/// A batch that did not commit.
#[derive(Debug)]
pub(super) struct Lost<T> {
    batch: InFlight<T>,
    verdict: Verdict,
}

/// What is known of a batch that did not commit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Verdict {
    /// The batch is not stored, and never will be.
    NotStored,
    /// The batch may be stored, or may be stored later.
    Unknown,
    /// The batch is said to be stored although one that it was chained to is said not to be: one of the two is wrong.
    Contradicts,
}

#[derive(Debug, Clone, Copy)]
pub(super) enum Step {
    Connect(Goal),
    Reach(Goal),
}

/// What is to be done with a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Goal {
    CatchUp,
    Forget,
}

/// The state of recovery.
#[derive(Debug)]
pub(crate) struct Recovery<T> {
    pub(super) phase: Phase<T>,
    /// The events of appends in doubt.
    pub(super) late: Late,
    /// The end of the log as it was known when a batch last missed.
    pub(super) missed_at: Option<Position>,
    /// The number of misses in sequence after which nothing new was found.
    pub(super) idle_misses: u32,
    /// Whether rows may have been stored of which the observer was not told.
    pub(super) is_in_doubt: bool,
    /// Whether a connection was open before.
    was_connected: bool,
    /// Whether appends were decided before.
    pub(super) has_run: bool,
    /// The end of the log when everything known was last forgotten.
    pub(super) seen_after: Position,
    /// The position up to which other processes may have stored rows, or this process before it forgot what it knew.
    pub(super) others_until: Position,
    /// The streams that will be looked up once the log has been read; `None` unless the sequencer prepares.
    pub(super) to_look_up: Option<Vec<StreamId>>,
}

impl<T> Recovery<T> {
    /// Makes the state at the start: the first connection was asked for.
    pub(super) fn first() -> Self {
        Self {
            phase: Phase::Connecting(Goal::Forget),
            late: Late::default(),
            missed_at: None,
            idle_misses: 0,
            is_in_doubt: false,
            was_connected: false,
            has_run: false,
            seen_after: Position::START,
            others_until: Position::START,
            to_look_up: None,
        }
    }

    /// Resets the counts, because a batch has committed.
    pub(super) fn on_committed(&mut self) {
        self.idle_misses = 0;
    }

    pub(super) fn is_without_commands(&self) -> bool {
        match &self.phase {
            Phase::Draining { lost, .. } => lost.iter().all(|lost| lost.batch.cargo.is_empty()),
            _ => true,
        }
    }
}

impl<T> Sequencer<T> {
    pub(super) fn is_running(&self) -> bool {
        matches!(self.recovery.phase, Phase::Running)
    }

    /// Returns whether nothing is decided at present: there is no connection, or a batch did not commit and it is not
    /// yet known what became of it.
    #[must_use]
    pub fn is_recovering(&self) -> bool {
        !matches!(self.recovery.phase, Phase::Running | Phase::Stopped)
    }

    /// Returns the position after which the sequencer has seen everything stored, up to the last known row. It moves
    /// when everything known is forgotten.
    #[must_use]
    pub fn seen_after(&self) -> Position {
        self.recovery.seen_after
    }

    /// Returns whether the last output was given.
    #[must_use]
    pub fn is_stopped(&self) -> bool {
        matches!(self.recovery.phase, Phase::Stopped)
    }

    pub(super) fn stop(&mut self) {
        if !self.is_stopped() && self.in_flight.is_empty() {
            self.recovery.phase = Phase::Stopped;
            self.outputs.push(Output::Stopped);
        }
    }

    // ---- a batch did not commit ----

    /// Begins a recovery with the first batch that did not commit.
    pub(super) fn begin_recovery(&mut self, batch: InFlight<T>, outcome: BatchOutcome, now: Now) {
        let verdict = Verdict::of(&outcome);
        self.recovery.phase = Phase::Draining {
            first: outcome,
            lost: vec![Lost { batch, verdict }],
        };
        self.end_draining(now);
    }

    /// Takes the answer to a batch that was sent after one that did not commit.
    pub(super) fn on_outcome_while_draining(
        &mut self,
        batch: InFlight<T>,
        outcome: BatchOutcome,
        now: Now,
    ) {
        let Phase::Draining { lost, .. } = &mut self.recovery.phase else {
            return;
        };
        if !matches!(outcome, BatchOutcome::Committed) {
            let verdict = Verdict::of(&outcome);
            lost.push(Lost { batch, verdict });
        } else if lost.iter().all(Lost::may_have_committed) {
            // It could only commit after those before it: so they have committed too.
            let is_stored = |lost: &mut Lost<T>| lost.verdict == Verdict::Unknown;
            let stored: Vec<Lost<T>> = lost.extract_if(.., is_stored).collect();
            for lost in stored {
                self.complete(lost.batch, now);
            }
            self.complete(batch, now);
        } else {
            tracing::error!(
                log = self.setting.log.0,
                "a batch is said to have committed although one that it was chained to did not: looking what is stored"
            );
            let verdict = Verdict::Contradicts;
            lost.push(Lost { batch, verdict });
        }
        self.end_draining(now);
    }

    /// Goes on once nothing is in flight.
    fn end_draining(&mut self, now: Now) {
        if !self.in_flight.is_empty() {
            return;
        }
        let drained = std::mem::replace(&mut self.recovery.phase, Phase::Running);
        let Phase::Draining { first, mut lost } = drained else {
            self.recovery.phase = drained;
            return;
        };
        // The first outcome alone does not tell: a later one may have raised doubt.
        let is_known = |lost: &Lost<T>| lost.verdict == Verdict::NotStored;
        let is_in_doubt = matches!(first, BatchOutcome::Unknown(_)) || !lost.iter().all(is_known);
        let lasts = matches!(&first, BatchOutcome::Failed(error) if error.is_for_administrator());
        doubt(&mut lost);
        self.recovery.is_in_doubt |= is_in_doubt;
        let pause = self.react(&first, &mut lost, now);
        let batches = lost.into_iter().map(|lost| lost.batch).collect();
        self.undo_all(batches);
        // As long as the database takes no appends, no connection can be opened, and that is what readiness tells.
        let step = if is_in_doubt || lasts {
            self.disconnect();
            Step::Connect(Goal::CatchUp)
        } else {
            Step::Reach(Goal::CatchUp)
        };
        match pause {
            Some(pause) => self.recovery.phase = Phase::Pausing(now.moment + pause, step),
            None => self.try_step(step),
        }
    }

    /// Reacts to the first outcome: counts it, logs it, asks others to give way, or seeks the offending append. Returns
    /// how long the next try should wait.
    fn react(&mut self, first: &BatchOutcome, lost: &mut [Lost<T>], now: Now) -> Option<Duration> {
        let log = self.setting.log;
        match first {
            BatchOutcome::Committed => None,
            BatchOutcome::Missed => {
                self.stats.misses.add(1);
                self.recovery.missed_at = Some(self.committed.position);
                let sent = lost.first().map_or(now.moment, |lost| lost.batch.sent);
                let distance = self.pace.round_trip();
                let ask = self.giving_way.missed(sent, distance, now.moment)?;
                self.outputs.push(Output::Signal(ask.signal));
                ask.read_after
            }
            BatchOutcome::Refused(error) => {
                let pauses = self.bisect(error, lost, now);
                pauses.then(|| self.back_off())
            }
            BatchOutcome::Failed(error) => {
                self.stats.failures.add(1);
                self.trouble.note(error, now.moment);
                if is_passing(error) {
                    self.trouble.warn(log, error, "batch failed, trying again");
                    return Some(self.back_off());
                }
                self.trouble.fail(log, error, "batch failed");
                for lost in lost {
                    let placed = std::mem::take(&mut lost.batch.cargo.placed);
                    for (command, _) in placed {
                        let error = refused_for_good(&command, error);
                        self.answer(command, Err(error));
                    }
                }
                None
            }
            BatchOutcome::Unknown(error) => {
                self.stats.failures.add(1);
                // A batch that ends every connection is not sent as fast as connections are made.
                let is_again = self.trouble.last_error().is_some();
                self.trouble.note(error, now.moment);
                let what = "connection lost during a commit; connecting again until it is known what was stored";
                self.trouble.warn(log, error, what);
                is_again.then(|| self.back_off())
            }
        }
    }

    /// Reacts to a refusal of the content of the first batch: answers its only command, or halves the batch. Returns
    /// true if neither can be done.
    fn bisect(&mut self, error: &Error, lost: &mut [Lost<T>], now: Now) -> bool {
        let Some(offending) = lost.first_mut() else {
            return false;
        };
        let placed = &mut offending.batch.cargo.placed;
        match placed.len() {
            0 => {
                self.trouble.note(error, now.moment);
                return true;
            }
            1 => {
                if let Some((command, _)) = placed.pop() {
                    self.answer(command, Err(error.clone()));
                }
            }
            count => {
                self.bisection.commands_max = count / 2;
                let last = placed.iter().map(|(command, _)| command.sequence).max();
                let last = last.unwrap_or_default();
                self.bisection.suspects_until = self.bisection.suspects_until.max(last);
            }
        }
        false
    }

    /// Undoes the batch being formed and these batches. All their commands will be decided again, in the order in which
    /// they came.
    pub(super) fn undo_all(&mut self, lost: Vec<InFlight<T>>) {
        let forming = std::mem::take(&mut self.forming);
        let mut commands: Vec<Command<T>> = forming.undo(&mut self.knowledge).collect();
        for batch in lost {
            commands.extend(batch.undo(&mut self.knowledge));
        }
        self.knowledge.undo_after(self.committed.position);
        self.queue.start_over(commands);
        self.reads.outdate();
        self.recovery.late = Late::default();
        for command in &self.queue.inbox {
            self.recovery.late.seek(command);
        }
    }

    fn disconnect(&mut self) {
        self.writer = None;
        self.outputs.push(Output::Disconnect);
    }

    // ---- steps ----

    pub(super) fn try_step(&mut self, step: Step) {
        match step {
            Step::Connect(goal) => {
                self.recovery.phase = Phase::Connecting(goal);
                self.outputs.push(Output::Connect);
            }
            Step::Reach(Goal::CatchUp) => self.read_on(None),
            Step::Reach(Goal::Forget) => self.read_end(Phase::Forgetting),
        }
    }

    pub(super) fn pause(&mut self, step: Step, now: Now) {
        let until = now.moment + self.back_off();
        self.recovery.phase = Phase::Pausing(until, step);
    }

    pub(super) fn back_off(&self) -> Duration {
        let longest = self.setting.config.give_up_after / GIVE_UP_PRECISION_DIVISOR;
        self.trouble.back_off(longest)
    }

    /// Ends a pause that is over, and gives up commands that have waited for too long.
    pub(super) fn on_time(&mut self, now: Now) {
        if self.is_running() && self.reads.failing().is_none() {
            return;
        }
        self.give_up_old(now.moment);
        if let Phase::Pausing(until, step) = self.recovery.phase
            && until <= now.moment
        {
            self.try_step(step);
        }
    }

    pub(super) fn recovery_wakes_at(&self) -> Option<Moment> {
        let oldest = self.queue.inbox.front();
        let gives_up = oldest.map(|oldest| oldest.arrived + self.setting.config.give_up_after);
        match &self.recovery.phase {
            Phase::Pausing(until, _) => Some(gives_up.map_or(*until, |at| at.min(*until))),
            Phase::Running | Phase::Stopped => None,
            _ => gives_up,
        }
    }

    fn give_up_old(&mut self, now: Moment) {
        let give_up_after = self.setting.config.give_up_after;
        let is_old = |command: &Command<T>| now.since(command.arrived) >= give_up_after;
        // Retries that waited for a command that is given up may be as old.
        loop {
            let old = self.queue.extract(is_old);
            if old.is_empty() {
                return;
            }
            for command in old {
                let waited = now.since(command.arrived).as_secs();
                let error = self.given_up(&command, waited);
                self.answer(command, Err(error));
            }
        }
    }

    fn given_up(&self, command: &Command<T>, waited: u64) -> Error {
        let cause = self.trouble.last_error().or_else(|| self.reads.failing());
        let error = if let Some(why) = command.why_unknown() {
            unknown(&format!(
                "{why}, and the database did not answer for {waited} s"
            ))
        } else {
            let why = cause.map_or_else(String::new, |cause| format!(": {}", cause.kind()));
            Error::unavailable(format!("the database did not answer for {waited} s{why}"))
                .during("append")
        };
        match cause {
            Some(cause) => error.caused_by(cause.clone()),
            None => error,
        }
    }

    // ---- connecting ----

    pub(super) fn on_connected(&mut self, connected: Result<Connected>, now: Now) {
        let Phase::Connecting(goal) = self.recovery.phase else {
            return;
        };
        match connected {
            Ok(connected) => {
                self.writer = Some(connected.epoch);
                self.pace = Pace::on(connected);
                if std::mem::replace(&mut self.recovery.was_connected, true) {
                    self.stats.reconnects.add(1);
                    tracing::debug!(log = self.setting.log.0, "connected again");
                }
                self.try_step(Step::Reach(goal));
            }
            Err(error) => {
                self.trouble.note(&error, now.moment);
                if !is_passing(&error) {
                    self.refuse_all(&error);
                }
                self.pause(Step::Connect(goal), now);
            }
        }
    }

    /// Answers every command with the error, because nothing can be stored until the database is repaired.
    pub(super) fn refuse_all(&mut self, error: &Error) {
        // Retries that waited for a command come to the queue when it is answered.
        loop {
            let waiting = self.queue.extract(|_| true);
            if waiting.is_empty() {
                return;
            }
            for command in waiting {
                let error = refused_for_good(&command, error);
                self.answer(command, Err(error));
            }
        }
    }

    /// Forgets everything, because history has changed. What is in flight stays in doubt for good.
    pub(super) fn on_history_changed(&mut self, incarnation: Incarnation) {
        self.knowledge.history_changed();
        self.setting.incarnation = incarnation;
        // Positions of the lost history say nothing about this one, which may have given them to other events.
        self.stats.known_end.forget(incarnation);
        self.stats.seen_end.set(Position::START);
        if self.is_stopped() {
            return;
        }
        let phase = std::mem::replace(&mut self.recovery.phase, Phase::Running);
        let (next, mut drained) = match phase {
            // Whether the connection that is being opened knows of the change is found out when it is used.
            Phase::Connecting(_) => (Some(Phase::Connecting(Goal::Forget)), Vec::new()),
            Phase::Pausing(until, Step::Connect(_)) => {
                let step = Step::Connect(Goal::Forget);
                (Some(Phase::Pausing(until, step)), Vec::new())
            }
            Phase::Draining { lost, .. } => (None, lost),
            _ => (None, Vec::new()),
        };
        doubt(&mut drained);
        let mut lost: Vec<InFlight<T>> = self.in_flight.drain(..).collect();
        lost.iter_mut().for_each(InFlight::doubt);
        lost.extend(drained.into_iter().map(|lost| lost.batch));
        self.recovery.is_in_doubt = true;
        self.undo_all(lost);
        self.reads.abandon_recovery();
        match next {
            Some(phase) => self.recovery.phase = phase,
            None => {
                self.disconnect();
                self.try_step(Step::Connect(Goal::Forget));
            }
        }
    }
}

impl<T> Lost<T> {
    /// Returns whether a batch after this one can have committed. That is so if this one may have committed too, or has
    /// no rows.
    fn may_have_committed(&self) -> bool {
        self.verdict != Verdict::NotStored || self.batch.batch.rows.is_empty()
    }
}

impl Verdict {
    fn of(outcome: &BatchOutcome) -> Self {
        match outcome {
            BatchOutcome::Unknown(_) => Self::Unknown,
            _ => Self::NotStored,
        }
    }
}

/// Marks as in doubt what may be stored of these batches, which are all that were in flight, oldest first. What was
/// known not to be stored before there was doubt is not stored. What is said of later batches is not believed, nor is
/// anything if what was said contradicts itself.
fn doubt<T>(lost: &mut [Lost<T>]) {
    let is = |verdict: Verdict| move |lost: &Lost<T>| lost.verdict == verdict;
    let known = match lost.iter().any(is(Verdict::Contradicts)) {
        true => 0,
        false => lost
            .iter()
            .position(is(Verdict::Unknown))
            .unwrap_or(lost.len()),
    };
    let in_doubt = lost.iter_mut().skip(known);
    in_doubt.for_each(|lost| lost.batch.doubt());
}

/// Makes the answer to an append that cannot be stored until the database is repaired.
fn refused_for_good<T>(command: &Command<T>, error: &Error) -> Error {
    let refused = match command.why_unknown() {
        Some(why) => unknown(&format!(
            "{why}, and the database takes no appends any more"
        )),
        None => match error.kind() {
            ErrorKind::Unavailable(text) => Error::unavailable(text),
            other => Error::unavailable(other.to_string()),
        }
        .during("append"),
    };
    refused.caused_by(error.clone())
}
