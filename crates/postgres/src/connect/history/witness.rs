//! What this process knows about the logs, and whether a database still has it. Pure.
//!
//! Why: a fail-over can lose commits. Then positions are used again for other events, and what a process remembers
//! (names of streams, heads, pages, checkpoints) may be wrong without looking wrong. So for each log the last row is
//! kept that this process has committed, read as the end or handed out, and it is compared with every database to which
//! a new connection leads. Invariants: nothing is handed out that the witness does not cover; every row before a row
//! that is still there is still there as well, since a database loses commits only from its end; connections carry the
//! *generation* in which they were compared, and what comes from a connection of an older one is dropped. That
//! everything which this process knows is there does not prove that nothing was lost: others may have acknowledged
//! what it never saw. So on another timeline it counts only if a synchronous standby was promoted (`lineage`). Not
//! here: asking the database, and telling others (`history`).

use std::collections::{BTreeMap, HashSet};

use gesta_core::backend::WriterEpoch;
use gesta_core::{Incarnation, LogId, Position};

use crate::connect::history::lineage::{Conclusion, Noted, conclude};
use crate::connect::hosts::Timeline;
use crate::connect::identity::Identity;

/// Identifies a row.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Mark {
    pub(crate) log: LogId,
    pub(crate) position: Position,
    pub(crate) writer: WriterEpoch,
}

/// What is known, to be compared with a database.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct View {
    pub(crate) generation: u64,
    pub(crate) incarnation: Incarnation,
    /// The version of the database's copy of the map of the logs.
    pub(crate) map_version: u64,
    pub(crate) marks: Vec<Mark>,
    server: Option<Timeline>,
    /// Whether the witness was found on this timeline before.
    same_timeline: bool,
}

/// What a database says about one log.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct FoundLog {
    pub(crate) log: LogId,
    /// The last row of the log; `None` if the log is empty.
    pub(crate) end: Option<(Position, WriterEpoch)>,
    /// The writer of the row at the position of the mark; `None` if there is no such row.
    pub(crate) writer: Option<WriterEpoch>,
}

/// What a database says.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Found {
    pub(crate) identity: Identity,
    pub(crate) incarnation: Incarnation,
    pub(crate) map_version: u64,
    /// Where the store was noted to be.
    pub(crate) noted: Option<Noted>,
    pub(crate) logs: Vec<FoundLog>,
}

/// What the comparison of the store with the witness shows.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Comparison {
    /// Everything that the witness names is there.
    Same,
    /// The store has another incarnation, which another process has begun.
    Begun,
    /// Commits were lost, or nobody can tell whether some were, so a new incarnation must be begun in place of the one
    /// that was found. The text is the reason.
    Lost(String),
}

/// The server was replaced by one on this timeline without knowing it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Replaced(pub(crate) i64);

/// Everything that is known about the history of a store.
#[derive(Debug)]
pub(crate) struct KnownHistory {
    generation: u64,
    incarnation: Incarnation,
    /// The incarnations that were replaced. A database that has one of them again has lost the replacement.
    ended: HashSet<Incarnation>,
    /// The server of this generation; `None` as long as no server has told its timeline.
    server: Option<Timeline>,
    /// Where the witness was found last, and whether synchronous standbys were seen there at the last look.
    verified: Option<Noted>,
    /// Whether this process has looked for synchronous standbys there.
    looked: bool,
    /// The newest version of the copy of the map that this database was seen to have. It only grows, so a database with
    /// an older copy has lost commits: logs may have come to it with them, and others may have left.
    map_version: u64,
    marks: BTreeMap<LogId, Mark>,
}

impl KnownHistory {
    /// `server` is the one on which the store was opened.
    pub(crate) fn new(incarnation: Incarnation, server: Option<Timeline>) -> Self {
        Self {
            generation: 0,
            incarnation,
            ended: HashSet::new(),
            server: None,
            verified: server.map(unsynchronous),
            looked: false,
            map_version: 0,
            marks: BTreeMap::new(),
        }
    }

    pub(crate) fn generation(&self) -> u64 {
        self.generation
    }

    pub(crate) fn incarnation(&self) -> Incarnation {
        self.incarnation
    }

    /// Returns the greatest position that this process knows of any log, lost ones included.
    pub(crate) fn end(&self) -> Position {
        let ends = self.marks.values().map(|mark| mark.position);
        ends.max().unwrap_or(Position::START)
    }

    /// Notes that a connection of this generation has handed over these rows. Returns false if its generation is over;
    /// then the answer must not be used.
    pub(crate) fn observe(
        &mut self,
        generation: u64,
        marks: impl IntoIterator<Item = Mark>,
    ) -> bool {
        if generation != self.generation {
            return false;
        }
        let marks = marks.into_iter();
        for mark in marks.filter(|mark| mark.position > Position::START) {
            let known = self.marks.entry(mark.log).or_insert(mark);
            if mark.position > known.position {
                *known = mark;
            }
        }
        true
    }

    /// Returns what is known, to be compared with this server, before anything is noted about the server.
    pub(crate) fn view(&self, server: Option<Timeline>) -> View {
        let same = match (server, self.verified) {
            (Some(found), Some(verified)) => verified.is_on(found),
            (None, _) | (_, None) => true,
        };
        View {
            generation: self.generation,
            incarnation: self.incarnation,
            map_version: self.map_version,
            marks: self.marks.values().copied().collect(),
            server,
            same_timeline: same,
        }
    }

    /// Notes what a server says of its place. It counts only on the timeline where the witness was found last.
    pub(crate) fn see_place(&mut self, place: Noted) {
        if let Some(verified) = &mut self.verified
            && verified.is_beside(place)
        {
            *verified = place;
            self.looked = true;
        }
    }

    /// Notes that this server holds another store. If it is the server of this generation, or nobody can tell, a new
    /// generation begins: the old connections may lead to the other store as well.
    pub(crate) fn refuse(&mut self, server: Option<Timeline>) {
        if server.is_none() || server == self.server {
            self.generation += 1;
        }
    }

    /// Returns the last position of a log that is known; 0 if none is.
    pub(crate) fn position_of(&self, log: LogId) -> Position {
        self.marks
            .get(&log)
            .map_or(Position::START, |mark| mark.position)
    }

    /// Returns the last position of each log of which an event is known.
    pub(crate) fn positions(&self) -> BTreeMap<LogId, Position> {
        let marks = self.marks.iter();
        marks.map(|(log, mark)| (*log, mark.position)).collect()
    }

    /// Notes that a connection of this generation has handed over this version of the map. Returns false if its
    /// generation is over; then the map must not be used.
    pub(crate) fn observe_map(&mut self, generation: u64, version: u64) -> bool {
        let current = generation == self.generation;
        if current {
            self.map_version = self.map_version.max(version);
        }
        current
    }

    /// Notes that a new connection leads to this server. Another server than before begins a new generation, whatever
    /// it knows, since what the old connections still say is of the old server.
    ///
    /// # Errors
    /// [`Replaced`] if the server is an old primary.
    pub(crate) fn admit(&mut self, server: Option<Timeline>) -> Result<View, Replaced> {
        if let (Some(known), Some(found)) = (self.server, server) {
            if found.was_replaced_by(known) {
                return Err(Replaced(known.number));
            }
            if known != found {
                self.generation += 1;
            }
        }
        self.server = server.or(self.server);
        Ok(self.view(server))
    }

    /// Compares what is known with what a database says.
    pub(crate) fn judge(&self, view: &View, found: &Found) -> Comparison {
        if found.incarnation != view.incarnation {
            return match self.ended.contains(&found.incarnation) {
                true => {
                    Comparison::Lost("it has an incarnation that was replaced before".to_owned())
                }
                false => Comparison::Begun,
            };
        }
        let (known, version) = (view.map_version, found.map_version);
        if version < known {
            return Comparison::Lost(format!(
                "the map of the logs has version {version}, and version {known} was known"
            ));
        }
        view.marks
            .iter()
            .find_map(|mark| lost(mark, found, view.same_timeline))
            .map_or(Comparison::Same, Comparison::Lost)
    }

    /// Tells whether the way to this place can have lost anything that anybody has acknowledged, after everything that
    /// this process knows was found there. It rests on what was noted in the database, and on what this process has
    /// seen itself.
    pub(crate) fn judge_place(&self, view: &View, found: &Found, place: Noted) -> Comparison {
        if view.same_timeline {
            return Comparison::Same;
        }
        let before = match (found.noted, self.verified) {
            // That synchronous standbys were given up was noted too, but the note may be lost with all that followed.
            (Some(noted), Some(seen))
                if self.looked && !seen.synchronous && seen.is_beside(noted) =>
            {
                Some(seen)
            }
            (noted, seen) => noted.or(seen),
        };
        match conclude(before, Some(place)) {
            Conclusion::Same | Conclusion::Note => Comparison::Same,
            Conclusion::MayBeLost(why) => Comparison::Lost(why),
        }
    }

    /// Notes that everything was found. Returns the generation of the connection; `None` if the view is outdated.
    pub(crate) fn settle(&mut self, view: &View, found: &Found) -> Option<u64> {
        if view.generation != self.generation || view.incarnation != self.incarnation {
            return None;
        }
        if let Some(server) = view.server
            && self.verified.is_none_or(|verified| !verified.is_on(server))
        {
            self.verified = Some(unsynchronous(server));
            self.looked = false;
        }
        self.map_version = self.map_version.max(found.map_version);
        // A row that scavenging has removed proves nothing at the next fail-over, so the end takes its place.
        for log in found.logs.iter().filter(|log| log.writer.is_none()) {
            if let Some((position, writer)) = log.end {
                let log = log.log;
                self.observe(
                    view.generation,
                    Some(Mark {
                        log,
                        position,
                        writer,
                    }),
                );
            }
        }
        Some(self.generation)
    }

    /// Begins another history: all that was known is forgotten. Returns the generation of the connection; `None` if the
    /// view is outdated.
    pub(crate) fn change(&mut self, view: &View, incarnation: Incarnation) -> Option<u64> {
        if view.generation != self.generation || view.incarnation != self.incarnation {
            return None;
        }
        self.ended.insert(self.incarnation);
        self.incarnation = incarnation;
        self.generation += 1;
        self.map_version = 0;
        self.marks.clear();
        self.verified = view.server.map(unsynchronous);
        self.looked = false;
        Some(self.generation)
    }
}

/// The place of a server whose settings are not known yet.
fn unsynchronous(server: Timeline) -> Noted {
    Noted {
        cluster: server.cluster,
        timeline: server.number,
        synchronous: false,
    }
}

/// Returns why the row of a mark was lost; `None` if it was not.
fn lost(mark: &Mark, found: &Found, same_timeline: bool) -> Option<String> {
    let Mark {
        log,
        position,
        writer,
    } = *mark;
    let found = found.logs.iter().find(|found| found.log == log)?;
    let end = found.end.map_or(Position::START, |(end, _)| end);
    match found.writer {
        _ if end < position => Some(format!(
            "log {log} ends at {end}, and position {position} was known"
        )),
        Some(other) if other != writer => Some(format!(
            "position {position} of log {log} holds another event than before"
        )),
        Some(_) => None,
        // The row was scavenged, if this is the timeline that we know. On another timeline nobody can tell.
        None if same_timeline => None,
        None => Some(format!(
            "position {position} of log {log} is gone, on another timeline"
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOG: LogId = LogId(0);

    fn server(timeline: i64) -> Option<Timeline> {
        Some(Timeline {
            cluster: 7,
            number: timeline,
            started: timeline,
        })
    }

    fn mark(position: u64, writer: i64) -> Option<Mark> {
        Some(Mark {
            log: LOG,
            position: Position(position),
            writer: WriterEpoch(writer),
        })
    }

    fn found(incarnation: Incarnation, end: u64, end_writer: i64, writer: Option<i64>) -> Found {
        Found {
            identity: Identity {
                store: uuid::Uuid::nil(),
                database: uuid::Uuid::nil(),
                logs: 1,
                version: 1,
            },
            incarnation,
            map_version: 1,
            noted: None,
            logs: vec![FoundLog {
                log: LOG,
                end: (end > 0).then_some((Position(end), WriterEpoch(end_writer))),
                writer: writer.map(WriterEpoch),
            }],
        }
    }

    /// Position 10 by writer 1 is known, on timeline 1.
    fn known() -> (KnownHistory, Incarnation) {
        let incarnation = Incarnation::random();
        let mut known = KnownHistory::new(incarnation, server(1));
        let view = known.admit(server(1)).expect("first");
        let generation = known.settle(&view, &found(incarnation, 0, 0, None));
        assert_eq!(generation, Some(0));
        assert!(known.observe(0, mark(10, 1)));
        assert!(known.observe(0, mark(4, 9)), "an older row changes nothing");
        (known, incarnation)
    }

    #[test]
    fn a_promotion_that_lost_nothing_ends_the_old_connections_only() {
        let (mut known, incarnation) = known();
        let view = known.admit(server(2)).expect("newer");
        assert!(!known.observe(0, mark(11, 1)), "of the old server");
        let found = found(incarnation, 12, 2, Some(1));
        assert_eq!(known.judge(&view, &found), Comparison::Same);
        assert_eq!(known.settle(&view, &found), Some(1));
        assert!(known.observe(1, mark(12, 2)));
        assert_eq!(known.incarnation(), incarnation);
    }

    #[test]
    fn a_lower_end_another_writer_and_a_missing_row_are_losses() {
        let (mut known, incarnation) = known();
        let view = known.admit(server(2)).expect("newer");
        for found in [
            found(incarnation, 9, 1, None),
            found(incarnation, 0, 0, None),
            found(incarnation, 10, 2, Some(2)),
            found(incarnation, 50, 2, Some(2)),
            found(incarnation, 50, 2, None),
        ] {
            let comparison = known.judge(&view, &found);
            assert!(matches!(comparison, Comparison::Lost(_)), "{found:?}");
        }
    }

    /// Goal: a database that has lost the arrival of a log is noticed by whoever knew that the log had come, even if no
    /// event of that log was read.
    #[test]
    fn an_older_map_is_a_loss() {
        let (mut known, incarnation) = known();
        assert!(known.observe_map(0, 3));
        let view = known.admit(server(2)).expect("newer");
        assert!(!known.observe_map(0, 4), "of the old server");
        let mut all_there = found(incarnation, 10, 1, Some(1));
        let comparison = known.judge(&view, &all_there);
        assert!(matches!(comparison, Comparison::Lost(_)), "{comparison:?}");
        all_there.map_version = 3;
        assert_eq!(known.judge(&view, &all_there), Comparison::Same);
        known.change(&view, Incarnation::random());
        let view = known.admit(server(2)).expect("the same");
        assert_eq!(view.map_version, 0, "forgotten with the rest");
    }

    #[test]
    fn on_the_same_timeline_a_missing_row_was_scavenged_and_the_end_takes_its_place() {
        let (mut known, incarnation) = known();
        let view = known.admit(server(1)).expect("the same");
        let scavenged = found(incarnation, 50, 2, None);
        assert_eq!(known.judge(&view, &scavenged), Comparison::Same);
        known.settle(&view, &scavenged);
        let view = known.admit(server(2)).expect("newer");
        assert_eq!(view.marks, [mark(50, 2).expect("one")]);
    }

    #[test]
    fn an_old_primary_is_refused() {
        let (mut known, _) = known();
        known.admit(server(3)).expect("newer");
        assert_eq!(known.admit(server(2)), Err(Replaced(3)));
        let other = Timeline {
            cluster: 8,
            number: 1,
            started: 0,
        };
        assert!(known.admit(Some(other)).is_ok(), "of another cluster");
    }

    /// Goal: another store in place of ours ends the connections to what was there before; another store on a host that
    /// we do not use ends nothing.
    #[test]
    fn another_store_ends_the_connections_to_its_server_only() {
        let (mut known, _) = known();
        known.refuse(server(2));
        assert!(known.observe(0, mark(11, 1)), "of our own server");
        known.refuse(server(1));
        assert!(!known.observe(0, mark(12, 1)));
        let generation = known.generation();
        known.refuse(None);
        assert_eq!(known.generation(), generation + 1, "nobody can tell");
        assert_eq!(known.view(server(1)).marks.len(), 1, "nothing is forgotten");
    }

    /// Goal: that a process finds all it knows proves nothing about what others have acknowledged. Only a synchronous
    /// standby does, by the note or, without one, by what the process has seen itself.
    #[test]
    fn only_synchronous_standbys_prove_that_a_promotion_lost_nothing() {
        let place = |timeline, synchronous| Noted {
            cluster: 7,
            timeline,
            synchronous,
        };
        for (seen, noted, is_proven) in [
            (None, Some(place(1, false)), false),
            (Some(true), Some(place(1, false)), false),
            (None, Some(place(1, true)), true),
            (Some(true), Some(place(1, true)), true),
            // The note that they were given up was lost.
            (Some(false), Some(place(1, true)), false),
            // Whoever has noted the new timeline in this incarnation has judged the promotion.
            (Some(false), Some(place(2, false)), true),
            (None, None, false),
            (Some(true), None, true),
        ] {
            let (mut known, incarnation) = known();
            if let Some(seen) = seen {
                known.see_place(place(1, seen));
            }
            known.see_place(place(2, true));
            let mut all_there = found(incarnation, 12, 2, Some(1));
            all_there.noted = noted;
            let view = known.admit(server(2)).expect("newer");
            assert_eq!(known.judge(&view, &all_there), Comparison::Same);
            let judged = known.judge_place(&view, &all_there, place(2, false));
            let shown = format!("{seen:?} {noted:?} {judged:?}");
            assert_eq!(judged == Comparison::Same, is_proven, "{shown}");
            assert!(known.settle(&view, &all_there).is_some());
            let view = known.admit(server(2)).expect("the same");
            let judged = known.judge_place(&view, &all_there, place(2, false));
            assert_eq!(judged, Comparison::Same, "judged once: {shown}");
        }
    }

    #[test]
    fn after_a_change_all_is_forgotten_once() {
        let (mut known, incarnation) = known();
        let (one, other) = (known.admit(server(2)), known.admit(server(2)));
        let (one, other) = (one.expect("newer"), other.expect("the same"));
        let new = Incarnation::random();
        let generation = known.change(&one, new).expect("the first");
        assert_eq!(known.change(&other, new), None, "seen by two, changed once");
        assert!(!known.observe(generation - 1, mark(3, 3)));
        assert!(known.observe(generation, mark(3, 3)));
        // The new incarnation is lost as well.
        let view = known.admit(server(3)).expect("newer");
        let comparison = known.judge(&view, &found(incarnation, 60, 3, Some(3)));
        assert!(matches!(comparison, Comparison::Lost(_)));
        let begun = found(Incarnation::random(), 60, 3, Some(3));
        assert_eq!(known.judge(&view, &begun), Comparison::Begun);
    }
}
