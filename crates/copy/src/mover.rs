//! A move under way: does the steps that `moving` computes.
//!
//! The copy is that of `gesta copy`: rows in batches, each one transaction that also stores how far the copy has come.
//! It is made in rounds, each up to the end that the source had when the round began, and each round is read back and
//! compared before the next one. So when the source is closed only the few newest rows are left to copy and to compare.

use std::sync::Arc;
use std::time::Duration;

use gesta_core::{Error, Result};
use gesta_postgres::{Blocker, Config};
use serde::Serialize;
use tokio::time::Instant;
use uuid::Uuid;

use crate::batch::{Batch, Moving, Origin, State};
use crate::compare::{Comparison, names_after};
use crate::copy::{BATCH_BYTES, Progress, Ready, text};
use crate::mapping::{Mapping, Places};
use crate::moving::{Goal, Next, Note, SourceStand, TargetStand, next_step};
use crate::part::{Found, Names, Part};
use crate::pauses::Pauses;
use crate::postgres::PostgresPart;
use crate::reader::{Order, Reader};
use crate::refusal::refuse;
use crate::sides::{are_two, source_of, target_config, target_for};
use crate::source::{Closing, Copied, Look, Source};
use crate::target::make;

use refusals::never;

/// A round that was so quick is as quick again when the source is closed, also if many events come in that time.
const QUICK: Duration = Duration::from_millis(300);

mod ending;
mod refusals;

/// What becomes of consumers whose checkpoints would not be right in the target.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Consumers {
    /// They must go on, so such a store is not moved.
    GoOn,
    /// They begin again: the target gets an incarnation of its own.
    BeginAgain,
}

/// How a store is moved.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MoveSettings {
    /// What becomes of consumers of a store with virtual streams, which are made again.
    pub consumers: Consumers,
    /// How many rows are written in one transaction.
    pub batch_rows: usize,
}

impl Default for MoveSettings {
    fn default() -> Self {
        Self {
            consumers: Consumers::GoOn,
            batch_rows: 50_000,
        }
    }
}

/// What a step of a move has done.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum MoveStep {
    /// The target was marked.
    Begun,
    /// A batch was written.
    Copied(Progress),
    /// So many events of the target were read back, and are those of the source.
    Compared(u64),
    /// What others do in the source keeps it from being closed or shut: these sessions, if they are known. It is tried
    /// again after a pause.
    Waits(Vec<Blocker>),
    /// Nothing can be appended to the source any more.
    Closed,
    /// Nothing can be read from the source any more.
    Shut,
    /// The target has the id of its opening.
    Prepared,
    /// The source has noted which opening of the target is next.
    Announced,
    /// The target is open.
    Opened,
    /// The source has noted that the target was opened.
    Noted,
    /// The store has moved.
    Moved(MoveReport),
}

/// What a move has done.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct MoveReport {
    /// Number of events that were copied.
    pub events: u64,
    /// Number of streams that have, or had, an event.
    pub streams: u64,
    /// What both stores show, as one text.
    pub digest: String,
    /// Where the store is now.
    pub place: String,
    /// Whether checkpoints of consumers of the source are valid in the target.
    pub checkpoints_kept: bool,
    /// What is otherwise than in the source, in words.
    pub changes: Vec<String>,
}

/// A move under way.
pub struct Move {
    source: Box<dyn Source>,
    part: PostgresPart,
    place: String,
    logs: u16,
    settings: MoveSettings,
    work: Option<Work>,
    /// The pauses before closing and before shutting are tried again.
    pauses: (Pauses, Pauses),
    /// How long the next step waits before it begins.
    pause: Option<Duration>,
}

/// What is copied.
struct Work {
    mapping: Mapping,
    comparison: Comparison,
    state: State,
    moving: Moving,
    round: Option<Round>,
    /// The target was analysed, so the source may be closed.
    is_prepared: bool,
    /// The last round was quick.
    was_quick: bool,
}

struct Round {
    begun: Instant,
    reader: Reader,
    ready: Option<Ready>,
}

impl std::fmt::Debug for Move {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Move")
            .field("place", &self.place)
            .finish_non_exhaustive()
    }
}

impl Move {
    /// Opens a store that is to be moved, and the place to which it moves. A target that does not exist is made.
    ///
    /// # Errors
    /// `InvalidArgument` if the stores cannot be those of a move; `Unsupported` if the target was used, or the source
    /// cannot be moved; `Unavailable` if a database does not answer, or another process uses a file or moves the store.
    ///
    /// # Cancel safety
    /// If the future is dropped, the target may have been made; another move goes on there.
    pub async fn open(source: &str, target: &str, settings: MoveSettings) -> Result<Self> {
        let config = target_config(source, target)?;
        are_two(source, target).await?;
        let mut opened = source_of(source).await?;
        let begun = Self::begin_on(&mut opened, (target, &config)).await;
        match begun {
            Ok((part, logs)) => Ok(Self {
                source: opened,
                part,
                place: config.name(),
                logs,
                settings,
                work: None,
                pauses: (Pauses::while_open(), Pauses::while_closed()),
                pause: None,
            }),
            Err(error) => {
                opened.end().await;
                Err(error)
            }
        }
    }

    async fn begin_on(
        source: &mut Box<dyn Source>,
        (target, config): (&str, &Config),
    ) -> Result<(PostgresPart, u16)> {
        source.lock().await?;
        let stand = source.stand().await?;
        let logs = source.logs().await?;
        // A target that is lost must not be made anew in silence.
        let closed = match stand {
            SourceStand::Open => make(target, logs).await?,
            _ => None,
        };
        let Some(mut part) = PostgresPart::open(config).await? else {
            return match next_step(&stand, TargetStand::Empty, Goal::Move) {
                Err(error) => Err(error),
                Ok(_) => Err(Error::unavailable("the target is gone since it was made")),
            };
        };
        if let (Found::Empty, Some(closed)) = (part.look().await?, closed) {
            return Err(closed);
        }
        if part.logs() != logs || part.own().len() != usize::from(logs) {
            return refuse(format!(
                "the target must have as many logs as the source, in one database: {logs}; it has {}",
                part.logs()
            ));
        }
        Ok((part, logs))
    }

    /// Waits as long as the next step is to wait before it begins, which is so after [`MoveStep::Waits`]. The next
    /// step does so by itself: this is for whoever measures how long a step takes.
    ///
    /// # Cancel safety
    /// If the future is dropped, the next step begins at once.
    pub async fn pause(&mut self) {
        if let Some(pause) = self.pause.take() {
            tokio::time::sleep(pause).await;
        }
    }

    /// Does the next step.
    ///
    /// # Errors
    /// `Unavailable` if a database does not answer; `Unsupported` if the move cannot go on, and why; `Corrupt` if the
    /// target does not show what the source shows. After any error this value must not be used any more: another move
    /// goes on where it was.
    ///
    /// # Cancel safety
    /// As with an error.
    pub async fn step(&mut self) -> Result<MoveStep> {
        self.pause().await;
        if self.work.as_ref().is_some_and(|work| work.round.is_some()) {
            return self.copy_batch().await;
        }
        let source = self.source.stand().await?;
        let found = self.part.look().await?;
        let target = target_for(&mut self.source, &source, &self.part, &found).await?;
        match (next_step(&source, target, Goal::Move)?, found, source) {
            (Next::Begin, _, _) => self.begin().await,
            (Next::Follow, Found::Unfinished(state), _) => self.copy(*state, None).await,
            (Next::Rest(id), Found::Unfinished(state), _) => self.copy(*state, Some(id)).await,
            (Next::Prepare(id), Found::Unfinished(state), source) => {
                self.prepare(id, &source, &state).await
            }
            (Next::Announce(id, opening), _, _) => {
                self.source.note_opening(id, opening).await?;
                Ok(MoveStep::Announced)
            }
            (Next::Open(id, opening), Found::Unfinished(state), source) => {
                self.arrive((id, opening), &source, &state).await
            }
            (Next::ShutAgain(id), Found::Arrived(state), _) => self.shut_again(id, &state).await,
            (Next::Note(id, opening), _, _) => self.note(id, opening).await,
            (Next::Done, Found::Arrived(state), _) => {
                self.source.end().await;
                Ok(MoveStep::Moved(self.report(&state)))
            }
            (next, _, _) => Err(Error::corrupt(format!("no way leads to {next:?}"))),
        }
    }

    /// Ends this as it is: another move goes on. Dropping it does the same, but the source is closed some time later.
    pub async fn close(mut self) {
        self.work = None;
        self.source.end().await;
    }

    async fn begin(&mut self) -> Result<MoveStep> {
        let look = self.source.look().await?;
        self.check_virtual(&look)?;
        let mut rows = self.source.rows().await?;
        let mut mapping = Mapping::new(self.logs, Places::Kept);
        mapping.learn(&mut *rows, Some(&look.ends)).await?;
        drop(rows);
        if self.source.look().await?.scavenged != look.scavenged {
            return Err(Error::unavailable(
                "the source is being scavenged: move it when that has ended",
            ));
        }
        self.part.alone().await?;
        let of_each = || vec![0; usize::from(self.logs)];
        let comparison = Comparison::new(self.logs);
        let moving = Moving {
            id: Uuid::new_v4(),
            is_undone: false,
            opening: None,
            scavenged: look.scavenged,
            marks: of_each(),
            virtual_streams: look.virtual_streams,
            compared: comparison.done.clone(),
        };
        let state = State {
            batches: 0,
            after: of_each(),
            marks: Vec::new(),
            next: mapping.next.clone(),
            last: mapping.last.clone(),
            digest: mapping.digest,
            deleted_groups: Default::default(),
            is_verified: false,
            incarnation: None,
            moving: Some(moving.clone()),
            origin: Origin {
                incarnation: look.incarnation.0,
                ends: look.ends,
                marks: Vec::new(),
                floors: mapping.digest.floors,
                batch_rows: self.settings.batch_rows.max(1),
            },
        };
        self.part.begin(&state).await?;
        self.work = Some(Work::new(mapping, comparison, state, moving));
        Ok(MoveStep::Begun)
    }

    /// Takes up what was begun before.
    async fn load(&mut self, state: State) -> Result<Work> {
        let Some(moving) = state.moving.clone() else {
            return Err(Error::corrupt(
                "the target does not say which move it is of",
            ));
        };
        self.part.check_ends(&state.last).await?;
        let mut rows = self.source.rows().await?;
        let mut mapping = Mapping::new(self.logs, Places::Kept);
        mapping.learn(&mut *rows, Some(&state.origin.ends)).await?;
        drop(rows);
        for log in 0..self.logs {
            let next = state.next[usize::from(log)];
            let types = names_after(&mut self.part, Names::Types, log, i64::MIN).await?;
            let types = types.into_iter().filter(|name| name.id < next).collect();
            mapping.resume(log, &[], types);
        }
        mapping.next.clone_from(&state.next);
        mapping.last.clone_from(&state.last);
        mapping.digest = state.digest;
        let comparison = Comparison::resume(moving.compared.clone(), &mut self.part).await?;
        Ok(Work::new(mapping, comparison, state, moving))
    }

    /// Refuses to go on if the source does not have any more what was copied.
    async fn check(&mut self, look: &Look, state: &State, moving: &Moving) -> Result<()> {
        let is_same = look.incarnation.0 == state.origin.incarnation
            && look.ends.len() == state.after.len()
            && look
                .ends
                .iter()
                .zip(&state.after)
                .all(|(end, at)| end >= at);
        let mut is_known = is_same;
        for (log, mark) in (0..self.logs).zip(&moving.marks) {
            let position = state.after[usize::from(log)];
            is_known = is_known && self.source.has(log, position, *mark).await?;
        }
        if look.scavenged != moving.scavenged {
            return never(Closing::Scavenged);
        }
        match is_known {
            true => Ok(()),
            false => never(Closing::OtherHistory),
        }
    }

    /// Copies what is new. When few rows are missing, and all others were compared, the source is closed; if it is
    /// closed already, by the move `closed`, it is shut when nothing is missing.
    async fn copy(&mut self, state: State, closed: Option<Uuid>) -> Result<MoveStep> {
        let look = self.source.look().await?;
        self.check_virtual(&look)?;
        let mut work = match self.work.take() {
            Some(work) => work,
            None => {
                if let Some(moving) = &state.moving {
                    self.check(&look, &state, moving).await?;
                }
                self.load(state).await?
            }
        };
        self.check(&look, &work.state, &work.moving).await?;
        if work.state.batches == 0 {
            let first = work.mapping.first();
            let after = work.state.after.clone();
            work.put(&mut self.part, first, after).await?;
        }
        let missing = look.ends.iter().zip(&work.state.after);
        let missing: i64 = missing.map(|(end, at)| end - at).sum();
        let near = match (closed, self.source.near()) {
            (Some(_), _) => 0,
            // Where events come faster than that, rounds do not get shorter any more.
            (None, near) if near > 0 && work.is_prepared && work.was_quick => i64::MAX,
            (None, near) => near,
        };
        let is_switched = work.moving.virtual_streams != look.virtual_streams;
        work.moving.virtual_streams = look.virtual_streams;
        if missing > near || is_switched || !work.is_compared() {
            let begun = Instant::now();
            let mut rows = self.source.rows().await?;
            work.mapping.learn(&mut *rows, Some(&look.ends)).await?;
            work.state.origin.ends.clone_from(&look.ends);
            let reader = Reader::new(rows, Order::ByLog, &work.state.after, &look.ends);
            work.round = Some(Round {
                begun,
                reader,
                ready: None,
            });
            self.work = Some(work);
            return self.copy_batch().await;
        }
        let copied = text(work.state.digest);
        let done = match closed {
            None if !work.is_prepared => {
                // It may take minutes, so the source is looked at again.
                self.part.analyze().await?;
                work.is_prepared = true;
                Ok(MoveStep::Waits(Vec::new()))
            }
            None => self.close_source(&work, look, copied).await,
            Some(id) => {
                self.part.check_ends(&work.state.last).await?;
                let holds = work.copied(look);
                match self.source.shut(id, &copied, &holds).await? {
                    Closing::Done => Ok(MoveStep::Shut),
                    Closing::Later => self.later(Attempt::Shut).await,
                    Closing::Changed => Ok(MoveStep::Waits(Vec::new())),
                    done => never(done),
                }
            }
        };
        self.work = Some(work);
        done
    }

    async fn close_source(&mut self, work: &Work, look: Look, copied: String) -> Result<MoveStep> {
        let note = Note {
            id: work.moving.id,
            place: self.place.clone(),
            copied: Some(copied),
        };
        self.part.check_ends(&work.state.last).await?;
        match self.source.close(&note, &work.copied(look)).await? {
            Closing::Done => Ok(MoveStep::Closed),
            Closing::Later => self.later(Attempt::Close).await,
            Closing::Changed => Ok(MoveStep::Waits(Vec::new())),
            done => never(done),
        }
    }

    /// Others are in the way: finds out who, and has the next step wait.
    async fn later(&mut self, attempt: Attempt) -> Result<MoveStep> {
        let (open, closed) = &mut self.pauses;
        self.pause = Some(match attempt {
            Attempt::Close => open.next(),
            Attempt::Shut => closed.next(),
        });
        self.source.blockers().await.map(MoveStep::Waits)
    }

    /// Writes a batch, while the next one is read; at the end of the round, reads it back.
    async fn copy_batch(&mut self) -> Result<MoveStep> {
        let Some(mut work) = self.work.take() else {
            return Err(Error::corrupt("there is no round"));
        };
        let Some(mut round) = work.round.take() else {
            return Err(Error::corrupt("there is no round"));
        };
        let batch_rows = work.state.origin.batch_rows;
        let (rows, after) = match round.ready.take() {
            Some(ready) => ready,
            None => {
                let rows = round.reader.next(batch_rows, BATCH_BYTES).await?;
                (rows, round.reader.after())
            }
        };
        let step = if rows.is_empty() {
            let begun = round.begun;
            drop(round);
            let step = self.compare(&mut work).await?;
            work.was_quick = begun.elapsed() < QUICK;
            step
        } else {
            let batch = work.mapping.place(rows)?;
            let write = work.put(&mut self.part, batch, after);
            let read = round.reader.next(batch_rows, BATCH_BYTES);
            let (written, read) = tokio::join!(write, read);
            written?;
            round.ready = Some((read?, round.reader.after()));
            work.round = Some(round);
            MoveStep::Copied(work.progress())
        };
        self.work = Some(work);
        Ok(step)
    }

    async fn compare(&mut self, work: &mut Work) -> Result<MoveStep> {
        let before = work.comparison.done.digest.events;
        for log in 0..self.logs {
            work.comparison
                .read_on(&mut self.part, log, &mut |_| ())
                .await?;
        }
        let (found, copied) = (&work.comparison.done, work.mapping.digest);
        if found.digest != copied || found.after != work.state.after {
            return Err(Error::corrupt(format!(
                "the target does not show what the source shows, so the move does not go on: {} events instead of {}, digest \
                 {} instead of {}; undo the move, and begin with an empty target",
                found.digest.events,
                copied.events,
                text(found.digest),
                text(copied)
            )));
        }
        let read = found.digest.events - before;
        work.moving.compared = found.clone();
        work.state.digest = copied;
        work.state.moving = Some(work.moving.clone());
        self.part.put(&work.state).await?;
        Ok(MoveStep::Compared(read))
    }
}

/// What others are in the way of.
#[derive(Clone, Copy)]
enum Attempt {
    Close,
    Shut,
}

impl Work {
    fn new(mapping: Mapping, comparison: Comparison, state: State, moving: Moving) -> Self {
        Self {
            mapping,
            comparison,
            state,
            moving,
            round: None,
            is_prepared: false,
            was_quick: false,
        }
    }

    fn progress(&self) -> Progress {
        let sum = |positions: &[i64]| positions.iter().map(|at| at.unsigned_abs()).sum();
        Progress {
            positions: sum(&self.state.after),
            positions_all: sum(&self.state.origin.ends),
            events: self.state.digest.events,
        }
    }

    /// Tells whether all that was copied was read back.
    fn is_compared(&self) -> bool {
        self.state.is_compared()
    }

    /// Returns what the source must hold, which was seen so.
    fn copied(&self, look: Look) -> Copied {
        Copied {
            look: Look {
                ends: self.state.after.clone(),
                ..look
            },
            marks: self.moving.marks.clone(),
        }
    }

    async fn put(&mut self, part: &mut PostgresPart, batch: Batch, after: Vec<i64>) -> Result<()> {
        for (log, row) in &batch.rows {
            self.moving.marks[usize::from(*log)] = row.checksum;
        }
        let state = State {
            batches: self.state.batches + 1,
            after,
            next: self.mapping.next.clone(),
            last: self.mapping.last.clone(),
            digest: self.mapping.digest,
            moving: Some(self.moving.clone()),
            ..self.state.clone()
        };
        part.write(&Arc::new(batch), &state).await?;
        self.state = state;
        Ok(())
    }
}
