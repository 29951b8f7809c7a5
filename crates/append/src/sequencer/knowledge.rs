//! Everything that the sequencer knows of streams, event types and the ids of the deduplication window. This knowledge
//! answers one question: can a command be decided now, or what must be looked up first?
//!
//! * `heads`: the last events of streams, as committed and as decided; * `names`: which streams there may be;
//! * `window`: the ids of the deduplication window, to recognise retries; `ages`: which events are in it;
//! * `newest`: the newest events, for conditions on all events.

mod ages;
pub(super) mod heads;
mod names;
mod newest;
mod window;

use std::time::Duration;

use gesta_core::backend::{EventRef, LoadRequest, Loaded, LogEnd, Row, RowId, StoredId};
use gesta_core::{Error, EventId, EventType, Moment, Position, Revision, StreamId, Timestamp};

use super::Now;
use super::judge::{self, Fit, Judged};
use super::lookup::{Question, Questions, Suspected, WindowPart};
use crate::Config;
use crate::command::{Change, Command, Compared, NoMatch, StreamPart};
use ages::Ages;
use heads::Heads;
use names::Names;
use newest::{Bounds, NewestEvents, Sought};
use window::{InWindow, WindowIds};

pub(crate) use heads::StreamState;
pub(crate) use names::{Hashes, Listing};
pub(crate) use window::OlderIds;

/// The greatest number of positions after an event that may have been scavenged that are looked at for others.
const CONFIRMED_MAX: u64 = 10_000;

/// The number of appends that are looked up, because their ids are not known, before the ids of the window are read.
const LOOKED_UP_BEFORE: u32 = 16;

/// Whether a command can be decided now.
#[derive(Debug)]
pub(crate) enum Assessment {
    /// Streams or types of the command must be loaded first.
    Unknown,
    /// All claims of the command hold, and it is no retry.
    Fits,
    /// The command may be a retry of events that are still being committed: it must wait for these commits.
    RestsOnOpenCommits,
    /// The events of the command may be stored already: they must be looked up.
    MayBeStored(Questions),
    /// Everything is known; some claim does not hold.
    Judged(Vec<Judged>),
}

/// Whether an event passes the filter of a condition.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Matching {
    /// None does.
    Nothing,
    /// This one does.
    Found(Position),
    /// Some events are not compared yet: the next turn goes on.
    Unfinished,
    /// The database must be asked about the events of this part of the log.
    Unknown {
        /// The number of the history that the answer belongs to.
        history: u64,
        after: Position,
        until: Position,
        /// The number of the state of the newest events, if one of them passes that may have been scavenged: it is
        /// asked which are still there.
        confirms: Option<u64>,
    },
}

/// The knowledge of one log. Appends of other processes may outdate it; then the batch that rests on it misses.
#[derive(Debug)]
pub(crate) struct Knowledge {
    heads: Heads,
    ages: Ages,
    window: WindowIds,
    newest: NewestEvents,
    window_positions: u64,
    window_time: Duration,
    /// The number of appends that were looked up since all ids were forgotten, because their ids were not known.
    looked_up: u32,
    /// Whether the backfill of the ids of the window was begun.
    is_backfilling: bool,
}

impl Knowledge {
    pub(crate) fn new(config: &Config) -> Self {
        let names = Names::new(config.names_max, config.names_listed_after);
        Self {
            heads: Heads::new(config.streams_cached_max, names),
            ages: Ages::new(config.idempotency_time),
            window: WindowIds::new(config.idempotency(), Position::START),
            newest: NewestEvents::new(Bounds {
                events_max: config.newest_events_max,
                bytes_max: config.newest_bytes_max,
            }),
            window_positions: config.idempotency_positions,
            window_time: config.idempotency_time,
            looked_up: 0,
            is_backfilling: false,
        }
    }

    /// Assesses a command. `committed` is the end of the log as far as it is known to be committed.
    pub(crate) fn assess<T>(
        &mut self,
        command: &Command<T>,
        committed: Position,
        now: Moment,
        is_loading: impl Fn(&StreamId) -> bool,
    ) -> Assessment {
        if !self.knows(command, is_loading) {
            return Assessment::Unknown;
        }
        let judged: Vec<Judged> = command.parts.iter().map(|part| self.judge(part)).collect();
        if judged.iter().all(|judged| judged.fit == Fit::Fits) {
            return Assessment::Fits;
        }
        let questions = self.questions(command, &judged, committed, self.ages.now(now));
        if questions.iter().all(Option::is_none) {
            return match judge::all_fit(&judged) {
                true => Assessment::Fits,
                false => Assessment::Judged(judged),
            };
        }
        let compares_open = command.parts.iter().zip(&judged).any(|(part, judged)| {
            matches!(judged.fit, Fit::RefusedUnlessStoredAt(..)) && self.heads.is_open(&part.stream)
        });
        if compares_open {
            return Assessment::RestsOnOpenCommits;
        }
        Assessment::MayBeStored(questions)
    }

    /// Returns whether all streams and types of the command are known. `is_loading` says whether a stream is being
    /// looked up.
    pub(crate) fn knows<T>(
        &mut self,
        command: &Command<T>,
        is_loading: impl Fn(&StreamId) -> bool,
    ) -> bool {
        command.parts.iter().all(|part| {
            let knows_stream = self.heads.knows_stream(&part.stream)
                || !is_loading(&part.stream) && self.heads.takes_as_new(&part.stream);
            knows_stream
                && part
                    .event_types()
                    .all(|event_type| self.heads.knows_type(&event_type))
        })
    }

    /// Judges all claims of a command. All its streams must be known.
    pub(crate) fn judge_all<T>(&mut self, command: &Command<T>) -> Vec<Judged> {
        command.parts.iter().map(|part| self.judge(part)).collect()
    }

    fn judge(&mut self, part: &StreamPart) -> Judged {
        let state = self.heads.tip(&part.stream).unwrap_or_default();
        Judged {
            fit: judge::check(part, &state),
            state,
        }
    }

    /// Returns the questions that must be looked up. Parts after the first part that is refused in any case do not
    /// matter.
    fn questions<T>(
        &mut self,
        command: &Command<T>,
        judged: &[Judged],
        committed: Position,
        now: Timestamp,
    ) -> Questions {
        let refused = |judged: &Judged| matches!(judged.fit, Fit::Refused(_));
        let end = judged.iter().position(refused).unwrap_or(judged.len());
        let parts = command.parts.iter().zip(judged).take(end);
        let mut questions: Questions = parts
            .map(|(part, judged)| self.question(part, judged, committed, now))
            .collect();
        questions.resize_with(judged.len(), || None);
        questions
    }

    fn question(
        &mut self,
        part: &StreamPart,
        judged: &Judged,
        committed: Position,
        now: Timestamp,
    ) -> Option<Question> {
        let head = match &part.change {
            Change::Events { .. } | Change::Owned { .. } => judged.state.main?,
            Change::Lifecycle { .. } => judged.state.meta?,
            Change::Condition(_) => return None,
        };
        let was_deleted = judged.state.deleted_before > Revision(0);
        let (at, is_sought) = match &judged.fit {
            // Wherever they were stored before the last delete, the refusal says so.
            Fit::RefusedUnlessStoredAt(first, _) => (Some(Suspected::At(*first)), was_deleted),
            Fit::FitsUnlessStored
            | Fit::FitsUnlessDeleted
            | Fit::RefusedUnlessStored(_)
            | Fit::RefusedUnlessDeleted(_) => (None, true),
            Fit::Fits | Fit::Refused(_) | Fit::ConditionFails(_) => return None,
        };
        let sought = match is_sought {
            true => self.in_window(head.row, part.first_id()?, committed, now),
            false => None,
        };
        let places: Vec<Suspected> = at.into_iter().chain(sought).collect();
        (!places.is_empty()).then(|| Question {
            stream: part.target(),
            row: head.row,
            ids: part.ids(),
            deleted_before: match &part.change {
                Change::Events { .. } => judged.state.deleted_before,
                _ => Revision(0),
            },
            places,
        })
    }

    /// Returns where an event of a stream may be stored within the window; `None` if it is not.
    fn in_window(
        &mut self,
        stream: RowId,
        id: EventId,
        committed: Position,
        now: Timestamp,
    ) -> Option<Suspected> {
        match self.window.find(stream, id) {
            InWindow::Perhaps(position) => {
                let before = Position(position.0.saturating_sub(1));
                let rest = self.window_part(committed, now, before);
                Some(Suspected::Near(position, rest))
            }
            InWindow::No => None,
            // A stream that began after that position has no other events.
            InWindow::NotAfter(position) if stream.0 > position.0 => None,
            InWindow::NotAfter(position) => {
                self.looked_up = self.looked_up.saturating_add(1);
                let part = self.window_part(committed, now, position);
                Some(Suspected::Within(part))
            }
        }
    }

    /// Returns the part of the window that ends with position `until`.
    fn window_part(&self, committed: Position, now: Timestamp, until: Position) -> WindowPart {
        let age = i64::try_from(self.window_time.as_micros()).unwrap_or(i64::MAX);
        WindowPart {
            after: Position(committed.0.saturating_sub(self.window_positions)),
            created_from: Timestamp(now.0.saturating_sub(age)),
            until,
        }
    }

    // ---- conditions on all events ----

    /// Notes that a condition is to be judged: the newest events are kept from now on. `open` are the rows that are
    /// decided and not committed.
    pub(crate) fn keep_newest<'a>(
        &mut self,
        committed: Position,
        open: impl Iterator<Item = &'a Row>,
    ) {
        self.newest.keep(committed, open);
    }

    /// Judges a condition. `after` is the position after which events count, `committed` the end of what is committed,
    /// and `work` how many values may still be compared in this turn. [`keep_newest`](Self::keep_newest) comes first.
    pub(crate) fn match_after(
        &mut self,
        condition: &mut NoMatch,
        after: Position,
        committed: Position,
        work: &mut usize,
    ) -> Matching {
        let history = self.newest.history();
        let known = condition.known.filter(|known| known.history == history);
        if let Some(position) = known.and_then(|known| known.first) {
            return Matching::Found(position);
        }
        let after = known.map_or(after, |known| after.max(known.none_until));
        let revision = self.newest.revision();
        let compared = condition.compared.filter(|one| one.revision == revision);
        let from = compared.map_or(after, |one| after.max(one.none_until));
        match self.newest.seek(&condition.filter, from, work) {
            Sought::Found(position) if self.may_be_scavenged(position, committed) => {
                Matching::Unknown {
                    history,
                    after: Position(position.0.saturating_sub(1)),
                    until: committed.min(position.plus(CONFIRMED_MAX)),
                    confirms: Some(revision),
                }
            }
            // An earlier one makes no difference.
            Sought::Found(position) => Matching::Found(position),
            Sought::Unfinished(none_until) => {
                condition.compared = Some(Compared {
                    revision,
                    none_until,
                });
                Matching::Unfinished
            }
            Sought::Nothing if after >= self.newest.known_after() => Matching::Nothing,
            // Up to the end and not only to what is here: what is here moves on while the database answers, and a
            // search that ends where it began would come too late again and again. Others may have committed more.
            Sought::Nothing => Matching::Unknown {
                history,
                after,
                until: committed.max(self.newest.known_after()),
                confirms: None,
            },
        }
    }

    /// Returns whether one of the newest events may be gone: it is committed, and its stream was deleted or has
    /// metadata, or nobody knows. Nothing is scavenged of other streams, so most refusals need no look at the database.
    fn may_be_scavenged(&mut self, position: Position, committed: Position) -> bool {
        if position > committed {
            return false;
        }
        let stream = self.newest.stream_at(position);
        let state = stream.and_then(|stream| self.heads.tip(stream));
        state.is_none_or(|state| state.meta.is_some())
    }

    // ---- what is decided, and what becomes of it ----

    /// Takes a row that was decided.
    pub(crate) fn see(&mut self, row: &Row, committed: Position) {
        self.newest.see(row, committed);
    }

    /// Notes that all rows after this position were undone.
    pub(crate) fn undo_after(&mut self, committed: Position) {
        self.newest.undo(committed);
    }

    /// Returns the tip of a stream, if it is known.
    pub(crate) fn tip(&mut self, stream: &StreamId) -> Option<StreamState> {
        self.heads.tip(stream)
    }

    /// Returns the row id of a type as of the tip; `None` if the type must be created.
    pub(crate) fn type_tip(&self, event_type: &EventType) -> Option<RowId> {
        self.heads.type_tip(event_type)
    }

    /// Notes that a batch being formed creates a type.
    pub(crate) fn create_type(&mut self, event_type: &EventType, row: RowId) {
        self.heads.create_type(event_type, row);
    }

    /// Notes the state in which a batch being formed leaves a stream. `opens` says whether the batch touches the stream
    /// for the first time.
    pub(crate) fn advance(&mut self, stream: &StreamId, tip: StreamState, opens: bool) {
        self.heads.advance(stream, tip, opens);
    }

    /// Resets a stream to its committed state, because a batch was undone. This must be called for all open batches.
    pub(crate) fn rewind(&mut self, stream: &StreamId) {
        self.heads.rewind(stream);
    }

    /// Resets a type to its committed state, because a batch that would have created it was undone.
    pub(crate) fn rewind_type(&mut self, event_type: &EventType) {
        self.heads.rewind_type(event_type);
    }

    /// Notes that a batch that left the stream in this state has committed.
    pub(crate) fn commit(&mut self, stream: &StreamId, state: StreamState) {
        self.heads.commit(stream, state);
    }

    /// Notes that a batch that created this type has committed.
    pub(crate) fn commit_type(&mut self, event_type: &EventType, row: RowId) {
        self.heads.commit_type(event_type, row);
    }

    /// Remembers an event that was committed and that a retry would name.
    pub(crate) fn remember(&mut self, id: StoredId) {
        self.window.insert(id);
    }

    /// Takes an event that another process has committed, or an event of this process that was found by looking. No
    /// batch may be open.
    pub(crate) fn observe(&mut self, event: &EventRef) {
        self.heads.observe(event);
        self.window.insert(event.stored_id());
        self.newest.others_appended(event.position);
    }

    /// Brings the memory back to its bounds. `end` is the last row known to be committed.
    pub(crate) fn shrink(&mut self, now: Moment, end: LogEnd, nothing_open: bool) {
        self.ages.see(end.created, now);
        self.window.expire(self.ages.now(now), end.position);
        self.heads.shrink(nothing_open);
    }

    /// Forgets everything: the log is known to end at `end`, and nothing is known of its contents. No batch may be
    /// open.
    pub(crate) fn forget(&mut self, config: &Config, end: LogEnd, now: Now) {
        self.heads.clear();
        self.ages.begin(end.created, now);
        self.window = WindowIds::new(config.idempotency(), end.position);
        self.newest.forget(end.position);
        self.looked_up = 0;
        self.is_backfilling = false;
    }

    /// Notes that the log has lost events, or is another one. The rest will be forgotten by [`forget`](Self::forget).
    pub(crate) fn history_changed(&mut self) {
        self.ages.clear();
    }

    // ---- what is looked up ----

    /// Returns whether the stream is known.
    pub(crate) fn knows_stream(&mut self, stream: &StreamId) -> bool {
        self.heads.knows_stream(stream)
    }

    /// Passes the streams and types of a command that must be loaded to `stream` and `event_type`.
    pub(crate) fn missing<T>(
        &mut self,
        command: &Command<T>,
        mut stream: impl FnMut(&StreamId),
        mut event_type: impl FnMut(EventType),
    ) {
        for part in &command.parts {
            if !self.heads.knows_stream(&part.stream) {
                stream(&part.stream);
            }
            part.event_types()
                .filter(|of| !self.heads.knows_type(of))
                .for_each(&mut event_type);
        }
    }

    /// Takes the answer of the database. What is known already is newer and stays. Returns the streams whose stored
    /// state cannot be read, each with the error.
    pub(crate) fn learn(
        &mut self,
        request: LoadRequest,
        loaded: &Loaded,
    ) -> Vec<(StreamId, Error)> {
        self.heads.learn(request, loaded)
    }

    /// Begins to list all names, if the number of streams that were looked up and not found makes that worthwhile.
    pub(crate) fn begin_listing(&mut self) -> Option<Listing> {
        self.heads.begin_listing()
    }

    /// Takes the names of the listing of that number; `None` means that there are too many.
    pub(crate) fn listed(&mut self, number: u64, names: Option<Hashes>) {
        self.heads.names.listed(number, names);
    }

    /// Notes that the listing of that number failed.
    pub(crate) fn not_listed(&mut self, number: u64) {
        self.heads.names.not_listed(number);
    }

    /// Returns true once: when so many appends had to be looked up that a backfill of the ids of the window is
    /// worthwhile. The backfill goes backwards from the beginning of the known ids
    /// ([`ids_known_after`](Self::ids_known_after)).
    pub(crate) fn begins_backfill(&mut self) -> bool {
        let begins = !self.is_backfilling && self.looked_up >= LOOKED_UP_BEFORE;
        self.is_backfilling |= begins;
        begins
    }

    /// Returns the position after which every id is known.
    pub(crate) fn ids_known_after(&self) -> Position {
        self.window.covered_from()
    }

    /// Returns the time by which the times of events tell which of them are in the window.
    pub(crate) fn time_of_window(&self, now: Moment) -> Timestamp {
        self.ages.now(now)
    }

    /// Makes an empty range of older ids, to be filled, which ends where the known ids begin; `None` if the window is
    /// covered.
    pub(crate) fn older_ids(&self, window_start: Position) -> Option<OlderIds> {
        (!self.window.covers_window()).then(|| self.window.older(window_start))
    }

    /// Adds older ids. Returns false if they do not join the known ids, or are too many.
    pub(crate) fn take_older_ids(&mut self, ids: OlderIds) -> bool {
        self.window.prepend(ids)
    }
}

#[cfg(test)]
mod tests;
