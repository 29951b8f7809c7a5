//! What happens when a batch does not commit.
//!
//! All batches chained behind it miss as well. When nothing is in flight any more, everything decided is
//! undone, the log is read from the last row known, and all commands are decided again in their order.
//!
//! *Missed*: another process has appended; look and go on.
//! *Refused*: the database refuses the content; the batch is halved until one append stands alone.
//! *Failed*: a passing reason; wait and go on.
//! *Unknown*: the connection died. The lost statement may still be waiting in the database and be stored
//! later, so looking alone proves nothing. On a new connection (with a new epoch) we look which batches are
//! stored: a row at their position with the old epoch can only be theirs. The others are decided and sent
//! again behind the same last row, and the first commit makes the lost statement impossible, because the
//! position that it needs is taken. Whichever of the two comes first wins; the other misses, and if it was the
//! lost statement that came first, catching up finds its events (`landed`).

use std::time::Duration;

use gesta_core::backend::{BatchOutcome, EventLookup, EventRef, LogEnd, Purpose, WriterEpoch};
use gesta_core::{Error, ErrorKind, Position, Result};
use tokio::time::Instant;

use crate::command::Command;
use crate::forming::InFlight;
use crate::sequencer::Sequencer;

/// Events read at once when catching up with other processes.
const CATCH_UP_PAGE: usize = 20_000;
/// Events behind after which it is quicker to forget everything known: reading so many takes a few tenths of a second.
const CATCH_UP_MAX: u64 = 60_000;
/// Misses without anything new after which everything known is doubted.
const IDLE_MISSES_MAX: u32 = 2;
const BACK_OFF_MIN: Duration = Duration::from_millis(10);
const BACK_OFF_MAX: Duration = Duration::from_secs(1);

impl Sequencer {
    /// Opens the first connection.
    pub(crate) async fn connect_first(&mut self) {
        loop {
            let error = match self.open_first().await {
                Ok(()) => return self.forget_ids(),
                Err(error) => error,
            };
            self.pause(&error, &mut Vec::new()).await;
            if self.nobody_is_left(&[]) {
                return;
            }
        }
    }

    async fn open_first(&mut self) -> Result<()> {
        self.writer = Some(self.backend.open_writer(self.log).await?);
        self.committed = self.backend.log_end(self.log, Purpose::Append).await?;
        Ok(())
    }

    /// A batch did not commit.
    pub(crate) async fn recover(&mut self, first: InFlight, outcome: BatchOutcome) {
        let old_epoch = self
            .writer
            .as_ref()
            .map(|writer| writer.epoch())
            .unwrap_or_default();
        let sent = first.sent;
        let mut lost = vec![first];
        let unknown = self.drain_in_flight(&mut lost, &outcome).await;
        let waiting = self.drain_waiting();
        self.inbox.extend(waiting);
        let forming = std::mem::take(&mut self.forming).undo(&mut self.heads);
        self.inbox.extend(forming);
        if unknown {
            self.writer = None;
            lost.iter_mut().for_each(InFlight::lose);
        }
        self.react(&outcome, &mut lost, sent).await;
        if unknown {
            self.settle(&mut lost, old_epoch).await;
        }
        self.decide_all_again(lost);
        let before = self.committed.position;
        self.catch_up_surely().await;
        if matches!(outcome, BatchOutcome::Missed) {
            self.doubt_idle_misses(before).await;
        }
    }

    /// Waits for the outcome of everything in flight. True if one of them is unknown.
    async fn drain_in_flight(&mut self, lost: &mut Vec<InFlight>, first: &BatchOutcome) -> bool {
        use futures::StreamExt;
        let mut unknown = matches!(first, BatchOutcome::Unknown(_));
        while let Some(outcome) = self.outcomes.next().await {
            let Some(batch) = self.in_flight.pop_front() else {
                break;
            };
            match outcome {
                BatchOutcome::Committed => {
                    assert!(
                        lost.iter().all(|batch| batch.batch.rows.is_empty()),
                        "a batch committed although one that it was chained to did not"
                    );
                    self.complete(batch);
                }
                outcome => {
                    unknown |= matches!(outcome, BatchOutcome::Unknown(_));
                    lost.push(batch);
                }
            }
        }
        unknown
    }

    /// Counts, tells, waits, or finds the guilty append.
    async fn react(&mut self, outcome: &BatchOutcome, lost: &mut Vec<InFlight>, sent: Instant) {
        match outcome {
            BatchOutcome::Committed => {}
            BatchOutcome::Missed => {
                self.stats.misses.add(1);
                if let Some(signal) = self.turns.missed(sent, Instant::now()) {
                    self.backend.send_signal(signal).await;
                }
            }
            BatchOutcome::Refused(error) => self.bisect(error, lost).await,
            BatchOutcome::Failed(error) => {
                self.stats.failures.add(1);
                tracing::warn!(log = self.log.0, %error, "batch failed, trying again");
                self.pause(error, lost).await;
            }
            BatchOutcome::Unknown(error) => {
                self.stats.failures.add(1);
                tracing::warn!(log = self.log.0, %error, "connection lost during a commit");
            }
        }
    }

    /// The database refuses the content of the first batch: answer its only command, or halve.
    async fn bisect(&mut self, error: &Error, lost: &mut Vec<InFlight>) {
        let Some(guilty) = lost.first_mut() else {
            return;
        };
        match guilty.commands.len() {
            0 => self.pause(error, lost).await,
            1 => {
                if let Some((command, _)) = guilty.commands.pop() {
                    self.answer(command, Err(error.clone()));
                }
            }
            count => {
                self.batch_commands_max = count / 2;
                let last = guilty
                    .commands
                    .iter()
                    .map(|(command, _)| command.sequence)
                    .max();
                self.suspects_until = self.suspects_until.max(last.unwrap_or(0));
            }
        }
    }

    /// Learns which of the lost batches are stored, and answers those.
    async fn settle(&mut self, lost: &mut Vec<InFlight>, epoch: WriterEpoch) {
        loop {
            let error = match self.find_stored(lost, epoch).await {
                Ok(stored) => {
                    for batch in lost.drain(..stored) {
                        self.complete(batch);
                    }
                    return;
                }
                Err(error) => error,
            };
            self.writer = None;
            self.pause(&error, lost).await;
            if self.nobody_is_left(lost) {
                return;
            }
        }
    }

    /// How many of the lost batches, from the first on, are stored; they are durable then.
    async fn find_stored(&mut self, lost: &[InFlight], epoch: WriterEpoch) -> Result<usize> {
        self.ensure_writer().await?;
        let positions: Vec<Position> = lost
            .iter()
            .filter_map(|batch| batch.batch.rows.last())
            .map(|row| row.position)
            .collect();
        let found = self
            .backend
            .lookup(self.log, EventLookup::Positions(positions), Purpose::Append)
            .await?;
        let is_stored = |batch: &InFlight| {
            batch.batch.rows.last().is_some_and(|row| {
                found.iter().any(|event| {
                    event.position == row.position && event.writer == epoch && event.id == row.id
                })
            })
        };
        let stored = lost.iter().rposition(is_stored).map_or(0, |last| last + 1);
        if stored > 0
            && let Some(writer) = &mut self.writer
        {
            writer.barrier().await?;
        }
        Ok(stored)
    }

    async fn ensure_writer(&mut self) -> Result<()> {
        if self.writer.is_none() {
            self.writer = Some(self.backend.open_writer(self.log).await?);
            self.stats.reconnects.add(1);
            tracing::info!(log = self.log.0, "connected again");
        }
        Ok(())
    }

    /// Undoes the lost batches; all commands are to be decided again, in the order in which they came.
    fn decide_all_again(&mut self, lost: Vec<InFlight>) {
        for batch in lost {
            let commands = batch.undo(&mut self.heads);
            self.inbox.extend(commands);
        }
        self.inbox
            .make_contiguous()
            .sort_by_key(|command| command.sequence);
        // Lookups under way may have missed what others have appended: their answers are dropped.
        self.generation += 1;
        self.loading.clear();
    }

    /// Our turn has come: see what others have appended before sending anything.
    pub(crate) async fn refresh(&mut self) {
        let waiting = self.drain_waiting();
        self.inbox.extend(waiting);
        let forming = std::mem::take(&mut self.forming).undo(&mut self.heads);
        self.inbox.extend(forming);
        self.decide_all_again(Vec::new());
        self.catch_up_surely().await;
    }

    async fn catch_up_surely(&mut self) {
        loop {
            let Err(error) = self.catch_up().await else {
                return;
            };
            self.pause(&error, &mut Vec::new()).await;
            if self.nobody_is_left(&[]) {
                return;
            }
        }
    }

    /// Reads what was appended behind the last row known. Nothing may be decided.
    ///
    /// That row is read again: if it is not the one that we know, the database has lost commits and others may have
    /// written in their place, below that row as well. Then nothing that we know can be trusted.
    async fn catch_up(&mut self) -> Result<()> {
        self.ensure_writer().await?;
        self.seek_landed();
        let mut known = Some(self.committed).filter(|end| end.position > Position::START);
        let limit = self.committed.position.plus(CATCH_UP_MAX);
        loop {
            let before = u64::from(known.is_some());
            let after = EventLookup::After {
                position: Position(self.committed.position.0 - before),
                limit: CATCH_UP_PAGE,
            };
            let mut events = self
                .backend
                .lookup(self.log, after, Purpose::Append)
                .await?;
            let complete = events.len() < CATCH_UP_PAGE;
            if let Some(known) = known.take() {
                let is_known = |event: &EventRef| {
                    (event.position, event.writer) == (known.position, known.writer)
                };
                if !events.first().is_some_and(is_known) {
                    break;
                }
                events.remove(0);
            }
            for event in &events {
                self.heads.observe(event);
                self.landed.observe(event);
                self.recent.insert(event.stored_id());
                self.committed = LogEnd {
                    position: event.position,
                    writer: event.writer,
                    created: event.created,
                };
            }
            if complete {
                return self.answer_landed().await;
            }
            if self
                .backend
                .log_end(self.log, Purpose::Append)
                .await?
                .position
                > limit
            {
                break;
            }
        }
        self.forget().await
    }

    /// Forgets everything known and begins at the end of the log.
    async fn forget(&mut self) -> Result<()> {
        let end = self.backend.log_end(self.log, Purpose::Append).await?;
        self.doubt_lost();
        self.heads.clear();
        self.committed = end;
        self.forget_ids();
        Ok(())
    }

    /// Missing again and again although nothing is new means that what is known is wrong.
    async fn doubt_idle_misses(&mut self, before: Position) {
        if self.committed.position != before {
            self.idle_misses = 0;
            return;
        }
        self.idle_misses += 1;
        if self.idle_misses < IDLE_MISSES_MAX {
            return;
        }
        let error = Error::unavailable(
            "the database refuses the next row of the log, though nothing new is in it",
        );
        tracing::error!(log = self.log.0, %error, "forgetting all stream heads");
        self.pause(&error, &mut Vec::new()).await;
        if let Err(error) = self.forget().await {
            self.pause(&error, &mut Vec::new()).await;
        }
    }

    /// Waits before the next try, and answers commands that have waited too long.
    async fn pause(&mut self, error: &Error, lost: &mut Vec<InFlight>) {
        let longest = BACK_OFF_MAX.min(self.config.give_up_after / 4);
        let wait = BACK_OFF_MIN
            .saturating_mul(1 << self.failures.min(10))
            .min(longest);
        self.failures = self.failures.saturating_add(1);
        tokio::time::sleep(wait).await;
        while let Ok(command) = self.receiver.try_recv() {
            self.inbox.push_back(command);
        }
        let give_up_after = self.config.give_up_after;
        let expired = |command: &Command| command.arrived.elapsed() >= give_up_after;
        let mut given_up = Vec::new();
        for batch in lost {
            given_up.extend(
                batch
                    .commands
                    .extract_if(.., |(command, _)| expired(command))
                    .map(|(command, _)| command),
            );
        }
        let (old, rest): (Vec<_>, Vec<_>) = std::mem::take(&mut self.inbox)
            .into_iter()
            .partition(expired);
        self.inbox = rest.into();
        given_up.extend(old);
        for command in given_up {
            let answer = given_up_error(&command, error);
            self.answer(command, Err(answer));
        }
    }

    /// The channel is closed and nobody waits for an answer: no need to go on trying.
    fn nobody_is_left(&self, lost: &[InFlight]) -> bool {
        self.receiver.is_closed()
            && self.receiver.is_empty()
            && self.inbox.is_empty()
            && lost
                .iter()
                .all(|batch| batch.commands.is_empty() && batch.riders.is_empty())
    }
}

fn given_up_error(command: &Command, cause: &Error) -> Error {
    let waited = command.arrived.elapsed().as_secs();
    let kind = if command.lost_behind.is_some() {
        ErrorKind::OutcomeUnknown(format!(
            "the connection was lost during the commit and did not come back for {waited} s"
        ))
    } else {
        ErrorKind::Unavailable(format!(
            "the database did not answer for {waited} s: {}",
            cause.kind()
        ))
    };
    Error::new(kind).during("append").caused_by(cause.clone())
}
