//! A copy under way: opens both sides, moves batch after batch, compares, and opens the target for its users.

use std::collections::BTreeSet;
use std::sync::Arc;

use gesta::{Database, Options};
use gesta_core::{Clock, Error, Incarnation, LogId, Position, Result, SystemClock};
use gesta_sql::verify::{AuditRow, AuditSource};
use serde::Serialize;

use crate::batch::{Origin, State};
use crate::digest::Digest;
use crate::mapping::{Mapping, Places};
use crate::part::{Finish, used};
use crate::reader::{Order, Reader};
use crate::refusal::refuse;
use crate::sides::are_two;
use crate::target::{Stand, Target, file_of, is_sqlite, named};

/// How large the rows of one transaction may be in sum, in bytes.
pub(crate) const BATCH_BYTES: usize = 64 * 1024 * 1024;

/// How a store is copied.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Settings {
    /// How many logs a target gets that is made; `None` for as many as the source has (SQLite: 1).
    pub logs: Option<u16>,
    /// How many rows are written in one transaction. A copy that goes on keeps the number with which it was begun.
    pub batch_rows: usize,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            logs: None,
            batch_rows: 50_000,
        }
    }
}

/// How far a copy is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Progress {
    /// How many positions of the source were passed.
    pub positions: u64,
    /// How many there are.
    pub positions_all: u64,
    /// How many events are in the target.
    pub events: u64,
}

/// What a step has done.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Step {
    /// A batch was written.
    Copied(Progress),
    /// Everything is written; what is left is to compare it.
    Written,
}

/// What a copy has done.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Report {
    /// Number of events that were copied.
    pub events: u64,
    /// Number of streams that have, or had, an event.
    pub streams: u64,
    /// What both stores show, as one text. It covers positions only where they were kept.
    pub digest: String,
    /// Number of logs of the source and of the target.
    pub logs: (u16, u16),
    /// Whether every event has the position that it had.
    pub positions_kept: bool,
    /// Whether checkpoints of consumers of the source are valid in the target.
    pub checkpoints_kept: bool,
    /// Whether the target keeps virtual streams.
    pub virtual_streams: bool,
    /// Consumer groups whose places must be set again.
    pub groups_without_place: Vec<String>,
    /// What is otherwise than in the source, in words.
    pub changes: Vec<String>,
}

/// Rows with their logs, and the place of the reader after them.
pub(crate) type Ready = (Vec<(u16, AuditRow)>, Vec<i64>);

/// A copy under way.
pub struct Copy {
    database: Database,
    reader: Reader,
    mapping: Mapping,
    target: Target,
    state: State,
    logs: u16,
    batch_rows: usize,
    keeps_incarnation: bool,
    virtual_streams: bool,
    had_virtual_streams: bool,
    /// Rows that were read and are not written, and the place of the reader after them.
    ready: Option<Ready>,
}

impl std::fmt::Debug for Copy {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Copy")
            .field("batches", &self.state.batches)
            .finish_non_exhaustive()
    }
}

/// Tells whether two URLs name one store, as far as the names tell: the same text, or paths to the same file.
fn is_same(source: &str, target: &str) -> bool {
    // What is wrong with a URL is told by what opens it.
    let file = |url: &str| file_of(url).ok().flatten()?.canonicalize().ok();
    source == target || file(source).is_some_and(|from| file(target) == Some(from))
}

impl Copy {
    /// Opens a store to be copied, and the empty store to which it is copied, or one to which this was begun. A target
    /// that does not exist is made.
    ///
    /// # Errors
    /// `Unsupported` if the target is not empty and was not begun from this source; `InvalidArgument` if a URL or the
    /// number of logs cannot be used; `Unavailable` if a database does not answer, or another process uses a file;
    /// `Corrupt` if the source is damaged.
    ///
    /// # Cancel safety
    /// If the future is dropped, the target may have been made; another copy goes on there.
    pub async fn open(source: &str, target: &str, settings: Settings) -> Result<Self> {
        if is_same(source, target) {
            return Err(Error::invalid(
                "target",
                "must be another store than the source",
            ));
        }
        are_two(source, target).await?;
        let database = Database::open(&named(source), &Options::default()).await?;
        let begun = Self::begin(database.clone(), target, settings).await;
        if begun.is_err() {
            database.close().await;
        }
        begun
    }

    async fn begin(database: Database, target: &str, settings: Settings) -> Result<Self> {
        let logs = settings.logs;
        let snapshot = database.snapshot().await?;
        let mut rows = snapshot.rows;
        let source_logs = rows.logs();
        let default_logs = if is_sqlite(target) { 1 } else { source_logs };
        let mut target = Target::open(target, logs.unwrap_or(default_logs)).await?;
        target.alone().await?;
        if logs.is_some_and(|logs| logs != target.logs()) {
            return Err(Error::invalid(
                "logs",
                format!("must be {}, which the target has", target.logs()),
            ));
        }
        let places = match target.logs() == source_logs {
            true => Places::Kept,
            false => Places::Anew(target.logs()),
        };
        let mut mapping = Mapping::read(&mut *rows, places).await?;
        let ends = positions(&snapshot.ends);
        let origin = Origin {
            incarnation: snapshot.incarnation.0,
            marks: marks_at(&mut *rows, &ends).await?,
            ends,
            floors: mapping.digest.floors,
            batch_rows: settings.batch_rows.max(1),
        };
        let stand = target.stand().await?;
        let first = mapping.first();
        let state = match stand {
            Stand::Empty => {
                let state = State {
                    batches: 0,
                    after: vec![0; usize::from(source_logs)],
                    marks: vec![0; usize::from(source_logs)],
                    next: mapping.next.clone(),
                    last: mapping.last.clone(),
                    digest: mapping.digest,
                    deleted_groups: BTreeSet::new(),
                    is_verified: false,
                    incarnation: None,
                    moving: None,
                    origin,
                };
                target.begin(&state).await?;
                state
            }
            Stand::Arrived => return Err(used(target.name())),
            Stand::Unfinished(state) if state.moving.is_some() => {
                return refuse(
                    "the target is that of a move: end it by `gesta move`, or make another target",
                );
            }
            Stand::Unfinished(state) => {
                check_origin(&state.origin, &origin)?;
                check_copied(&state, &mut *rows).await?;
                if state.batches == 0 {
                    target.begin(&state).await?;
                }
                *state
            }
        };
        let mut copy = Self {
            // Virtual streams are made again. Their revisions can be others then, and checkpoints on them would pass
            // events over.
            keeps_incarnation: places == Places::Kept
                && target.databases() == 1
                && !snapshot.virtual_streams,
            virtual_streams: snapshot.virtual_streams
                && target.logs() == 1
                && target.databases() == 1,
            had_virtual_streams: snapshot.virtual_streams,
            reader: Reader::new(
                rows,
                match places {
                    Places::Kept => Order::ByLog,
                    Places::Anew(_) => Order::ByTime,
                },
                &state.after,
                &state.origin.ends,
            ),
            database,
            mapping,
            target,
            logs: source_logs,
            batch_rows: state.origin.batch_rows,
            ready: None,
            state,
        };
        match copy.state.batches {
            0 => {
                let (after, marks) = (copy.state.after.clone(), copy.state.marks.clone());
                copy.put(first, after, marks).await?;
            }
            _ => copy.resume().await?,
        }
        Ok(copy)
    }

    /// Finds out where a copy goes on that was begun before.
    async fn resume(&mut self) -> Result<()> {
        for log in 0..self.target.logs() {
            let (streams, types) = self.target.names(log).await?;
            let next = self.state.next[usize::from(log)];
            // A database that is one batch ahead has names that will come again.
            let is_known = |name: &gesta_sql::verify::AuditName| name.id < next;
            let types = types.into_iter().filter(is_known).collect();
            self.mapping.resume(log, &streams, types);
        }
        self.mapping.next.clone_from(&self.state.next);
        self.mapping.last.clone_from(&self.state.last);
        self.mapping.digest = self.state.digest;
        let deleted = &self.state.deleted_groups;
        self.mapping.deleted_groups.clone_from(deleted);
        Ok(())
    }

    /// Returns how far the copy is.
    #[must_use]
    pub fn progress(&self) -> Progress {
        let sum = |positions: &[i64]| positions.iter().map(|at| at.unsigned_abs()).sum();
        Progress {
            positions: sum(&self.state.after),
            positions_all: sum(&self.state.origin.ends),
            events: self.state.digest.events,
        }
    }

    /// Writes a batch, while the next one is read.
    ///
    /// # Errors
    /// Those of both databases; `Corrupt` if a row of the source is damaged; `Unsupported` if something else writes to
    /// the target. The copy must not be used any more; another one goes on where it was.
    ///
    /// # Cancel safety
    /// As with an error.
    pub async fn step(&mut self) -> Result<Step> {
        if self.state.is_verified {
            return Ok(Step::Written);
        }
        let (rows, after) = match self.ready.take() {
            Some(ready) => ready,
            None => {
                let rows = self.reader.next(self.batch_rows, BATCH_BYTES).await?;
                (rows, self.reader.after())
            }
        };
        if rows.is_empty() {
            return Ok(Step::Written);
        }
        let mut marks = self.state.marks.clone();
        for (log, row) in &rows {
            // A copy that an earlier version has begun has none.
            if let Some(mark) = marks.get_mut(usize::from(*log)) {
                *mark = row.checksum;
            }
        }
        let batch = self.mapping.place(rows)?;
        self.put(batch, after, marks).await?;
        Ok(Step::Copied(self.progress()))
    }

    async fn put(
        &mut self,
        batch: crate::batch::Batch,
        after: Vec<i64>,
        marks: Vec<i64>,
    ) -> Result<()> {
        let state = State {
            batches: self.state.batches + 1,
            after,
            marks,
            next: self.mapping.next.clone(),
            last: self.mapping.last.clone(),
            digest: self.mapping.digest,
            deleted_groups: self.mapping.deleted_groups.clone(),
            ..self.state.clone()
        };
        let batch = Arc::new(batch);
        let write = self.target.write(&batch, &state);
        let read = self.reader.next(self.batch_rows, BATCH_BYTES);
        let (written, read) = tokio::join!(write, read);
        written?;
        self.state = state;
        self.ready = Some((read?, self.reader.after()));
        // A source that is in use is noticed early, and not only after hours.
        match self.state.batches.is_power_of_two() {
            true => self.check_source().await,
            false => Ok(()),
        }
    }

    /// Refuses to go on if the source is not any more as it was when the copy began.
    async fn check_source(&self) -> Result<()> {
        let snapshot = self.database.snapshot().await?;
        let mut rows = snapshot.rows;
        let ends = positions(&snapshot.ends);
        let now = Origin {
            incarnation: snapshot.incarnation.0,
            marks: marks_at(&mut *rows, &ends).await?,
            ends,
            floors: self.mapping.floors_of(&mut *rows).await?,
            batch_rows: self.batch_rows,
        };
        check_origin(&self.state.origin, &now)?;
        check_copied(&self.state, &mut *rows).await
    }

    /// Reads the target back, compares it with what was copied, and opens it for its users. `observe` is told how many
    /// events were read back.
    ///
    /// # Errors
    /// `Corrupt` if the target does not show what the source shows: then it stays closed.
    ///
    /// # Cancel safety
    /// If the future is dropped, another copy goes on here.
    pub async fn finish(mut self, observe: impl FnMut(u64) + Send) -> Result<Report> {
        let finished = self.compare_and_open(observe).await;
        self.database.close().await;
        finished.map(|()| self.report())
    }

    /// Ends the copy as it is: another one goes on. Dropping it does the same, but the source is closed some time
    /// later.
    pub async fn close(self) {
        self.database.close().await;
    }

    async fn compare_and_open(&mut self, observe: impl FnMut(u64) + Send) -> Result<()> {
        self.check_source().await?;
        if !self.state.is_verified {
            let found = self.target.digest(observe).await?;
            if found != self.state.digest {
                return Err(Error::corrupt(format!(
                    "the target does not show what the source shows, so it is not opened: {} events instead of {}, digest {} \
                     instead of {}; begin with an empty target",
                    found.events,
                    self.state.digest.events,
                    text(found),
                    text(self.state.digest)
                )));
            }
            self.check_source().await?;
            self.state.is_verified = true;
            self.state.incarnation = Some(self.incarnation().0);
            self.target.verified(&self.state).await?;
        }
        let noted = self.state.incarnation.map(Incarnation);
        let incarnation = noted.unwrap_or_else(|| self.incarnation());
        self.state.incarnation = Some(incarnation.0);
        let finish = Finish {
            incarnation,
            virtual_streams: self.virtual_streams,
        };
        self.target.finish(finish).await
    }

    /// Returns the incarnation of the target: that of the source, or one that follows it, as after a restore.
    fn incarnation(&self) -> Incarnation {
        let origin = Incarnation(self.state.origin.incarnation);
        if self.keeps_incarnation {
            return origin;
        }
        let ends = self.state.origin.ends.iter().chain(&self.state.last);
        let end = ends.copied().max().unwrap_or(0);
        origin.after(Position(end.cast_unsigned()), SystemClock.now())
    }

    fn report(self) -> Report {
        let logs = (self.logs, self.target.logs());
        let positions_kept = logs.0 == logs.1;
        let checkpoints_kept = self.state.incarnation == Some(self.state.origin.incarnation);
        let mut changes = Vec::new();
        if !positions_kept {
            changes.push(format!(
                "{} logs have become {}: each log counts its positions again, by time; revisions and links are as they were",
                logs.0, logs.1
            ));
        }
        if !checkpoints_kept && self.had_virtual_streams && self.virtual_streams {
            changes.push(
                "the target has an incarnation of its own, since virtual streams are made again and their revisions can be \
                 others: checkpoints of consumers are refused, and they begin again"
                    .into(),
            );
        } else if !checkpoints_kept {
            changes.push(
                "the target has an incarnation of its own: checkpoints of consumers are refused, and they begin again"
                    .into(),
            );
        }
        let groups = match positions_kept {
            true => Vec::new(),
            false => self.mapping.groups(),
        };
        if !groups.is_empty() {
            changes.push(format!(
                "{} consumer groups halt, since the events by which they know their place have other positions: let each go \
                 on where it was, or begin again",
                groups.len()
            ));
        }
        match (self.had_virtual_streams, self.virtual_streams) {
            (true, true) if self.state.digest.floors != 0 => changes.push(
                "virtual streams are made again when the store is served; since events were scavenged, links can have other \
                 revisions than before"
                    .into(),
            ),
            (true, true) => {
                changes.push("virtual streams are made again when the store is served".into());
            }
            (true, false) => {
                changes.push("virtual streams need a store with one log, so the target has none".into());
            }
            (false, _) => {}
        }
        Report {
            events: self.state.digest.events,
            streams: self.state.digest.streams,
            digest: text(match positions_kept {
                true => self.state.digest,
                false => self.state.digest.without_places(),
            }),
            logs,
            positions_kept,
            checkpoints_kept,
            virtual_streams: self.virtual_streams,
            groups_without_place: groups,
            changes,
        }
    }
}

pub(crate) fn text(digest: Digest) -> String {
    format!(
        "{:016x}-{:016x}-{:016x}",
        digest.content, digest.floors, digest.places
    )
}

/// Refuses to go on with another source, or one that has changed.
fn check_origin(begun: &Origin, now: &Origin) -> Result<()> {
    if begun.incarnation != now.incarnation || begun.ends.len() != now.ends.len() {
        return refuse(
            "the target was begun as the copy of another store, or this one was restored since: begin with an empty target",
        );
    }
    if begun.floors != now.floors {
        return refuse(
            "the source was scavenged since the copy was begun: begin with an empty target",
        );
    }
    let mut more = 0;
    for (begun, now) in begun.ends.iter().zip(&now.ends) {
        if begun > now {
            return refuse(
                "the source has lost events since the copy was begun: begin with an empty target",
            );
        }
        more += now - begun;
    }
    if more > 0 {
        return refuse(format!(
            "{more} events were appended to the source since the copy was begun, and are not in the copy, so the target is \
             not opened: stop what writes to the source, begin with an empty target, and repeat the copy"
        ));
    }
    if !begun.marks.is_empty() && begun.marks != now.marks {
        return set_back();
    }
    Ok(())
}

/// Refuses to go on with a source that has other events now where it was copied: it was set back, and written to again,
/// so that it ends where it ended.
async fn check_copied(state: &State, rows: &mut dyn AuditSource) -> Result<()> {
    if state.marks.is_empty() || marks_at(rows, &state.after).await? == state.marks {
        return Ok(());
    }
    set_back()
}

fn set_back<T>() -> Result<T> {
    refuse(
        "the source does not have what was copied from it: it was set back since the copy was begun, or has failed over and \
         lost commits, and has other events now: begin with an empty target",
    )
}

/// Returns the checksum of the row at this position of each log; 0 where there is none.
async fn marks_at(rows: &mut dyn AuditSource, positions: &[i64]) -> Result<Vec<i64>> {
    let mut marks = Vec::with_capacity(positions.len());
    for (log, position) in (0..).zip(positions) {
        let found = match position {
            0 => Vec::new(),
            _ => rows.rows(LogId(log), position - 1, 1).await?,
        };
        let row = found.first().filter(|row| row.position == *position);
        marks.push(row.map_or(0, |row| row.checksum));
    }
    Ok(marks)
}

fn positions(ends: &[Position]) -> Vec<i64> {
    ends.iter().map(|end| end.0.cast_signed()).collect()
}
