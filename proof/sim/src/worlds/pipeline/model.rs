//! What callers were promised: records every command with its answer, and checks it against what the database held and
//! holds.

mod refusals;
mod success;

use std::collections::HashMap;
use std::time::Duration;

use gesta_core::backend::Row;
use gesta_core::{
    After, Appended, AppendedStream, ErrorKind, EventId, ExpectedRevision, Incarnation, Position,
    Result, Revision, StreamId, Tag,
};

use crate::worlds::pipeline::archive::{self, Archive, Double, Former, StoredCopy, Window};
use crate::worlds::pipeline::database::{Database, StreamTruth, incarnation};
use crate::worlds::pipeline::process::{POISON, Troubles};

/// What a command asks of one stream.
#[derive(Debug, Clone)]
pub struct StreamRequest {
    /// Stream that the claim is about.
    pub stream: StreamId,
    /// Stream to which the events go. For a delete or a change of metadata it is the metadata stream.
    pub target: StreamId,
    /// What the claim is about.
    pub about: About,
    /// The claim itself.
    pub claim: StreamClaim,
    /// Ids of the events, if the caller knows them.
    pub ids: Vec<EventId>,
}

impl StreamRequest {
    /// Returns a claim about a stream, as an append with these events has it, or a condition or question without any.
    #[must_use]
    pub fn of(stream: StreamId, claim: StreamClaim, ids: Vec<EventId>) -> Self {
        Self {
            target: stream.clone(),
            stream,
            about: About::Events,
            claim,
            ids,
        }
    }

    fn holds(&self, truth: &StreamTruth) -> bool {
        match self.about {
            About::Events => holds(self.claim, truth),
            // A metadata stream is never deleted.
            About::Metadata => {
                let metadata = StreamTruth {
                    visible: truth.meta,
                    last: truth.meta,
                    ..StreamTruth::default()
                };
                holds(self.claim, &metadata)
            }
        }
    }

    /// Returns what a refusal of the claim calls the actual revision.
    fn actual(&self, truth: &StreamTruth) -> Option<Revision> {
        match self.about {
            About::Events => truth.visible,
            About::Metadata => truth.meta,
        }
    }
}

/// What a claim is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum About {
    /// The claim is about the events of the stream.
    Events,
    /// The claim is about the metadata of the stream.
    Metadata,
}

/// A claim about a stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StreamClaim {
    /// The claim is about the last revision of the stream.
    Expected(ExpectedRevision),
    /// The claim is about the last event of the stream.
    After(After),
}

/// What no event may be for a command to be stored.
#[derive(Debug, Clone)]
pub struct NoMatch {
    /// The tag that no event may carry.
    pub tag: Tag,
    /// The history and the position after which events count; `None` if all do.
    pub after: Option<(u64, Position)>,
    /// True if no event may carry two other tags either, as none does: then many events are compared.
    pub is_costly: bool,
}

impl NoMatch {
    /// Returns true if a row is what no event may be.
    fn is(&self, row: &Row) -> bool {
        row.tags.contains(&self.tag) && !row.stream.is_system() && row.position > self.begin()
    }

    fn begin(&self) -> Position {
        self.after.map_or(Position::START, |(_, position)| position)
    }
}

/// A command, and what became of it.
#[derive(Debug)]
pub struct Record {
    /// What the command asks, by stream.
    pub asked: Vec<StreamRequest>,
    /// What must hold besides, of streams to which the command appends nothing.
    pub conditions: Vec<StreamRequest>,
    /// What no event may be for the command to be stored.
    pub no_match: Option<NoMatch>,
    /// True if the database refuses an event of the command.
    pub is_poison: bool,
    /// Moment of the database at which the command was given.
    pub since: u64,
    /// Number of the command that this one repeats, or of this one.
    pub original: usize,
    /// Number of the process to which the command was given.
    pub process: usize,
    /// Time at which the command was given, by the clock of the process.
    pub given: Duration,
    /// What had gone wrong in the process until the command was given.
    pub troubles: Troubles,
    /// Answer, if there is one. A command whose process has died has none.
    pub answer: Option<Result<Appended>>,
    /// True if the process of the command has died.
    pub is_orphaned: bool,
    /// Way of the command, if it was handed over in the order of its invocation.
    pub way: Option<Way>,
}

/// The way by which a command came to its answer. Commands of one way were handed over in the order of their
/// invocation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Way {
    /// The command went to the sequencer of the process.
    Here,
    /// The command went on lanes, and no attempt was made but the one that was answered.
    Lane,
}

/// The record of all commands.
#[derive(Debug, Default)]
pub struct Model {
    /// Commands, by ticket.
    pub records: Vec<Record>,
    /// By the first event of each part of a command: the first command that asks for it, and the number of the part.
    firsts: HashMap<EventId, (usize, usize)>,
}

impl Model {
    /// Takes a command, and returns its ticket.
    pub fn add(&mut self, record: Record) -> usize {
        let ticket = self.records.len();
        self.records.push(record);
        self.know_firsts(ticket);
        ticket
    }

    /// Notes the ids that a process has given to events of a command.
    pub fn know_firsts(&mut self, ticket: usize) {
        for (part, asked) in self.records[ticket].asked.iter().enumerate() {
            if let Some(first) = asked.ids.first() {
                self.firsts.entry(*first).or_insert((ticket, part));
            }
        }
    }

    /// Checks that what was stored was stored where its claims and conditions held.
    ///
    /// # Errors
    /// The claim or condition that did not hold.
    pub fn check_stored(
        &self,
        fresh: &[(EventId, StoredCopy)],
        database: &Database,
    ) -> std::result::Result<(), String> {
        for (event, copy) in fresh {
            let Some((ticket, part)) = self.firsts.get(event) else {
                continue;
            };
            let record = &self.records[*ticket];
            let conditions = record.conditions.iter().filter(|_| *part == 0);
            let mut claims = std::iter::once(&record.asked[*part]).chain(conditions);
            let holds = |asked: &&StreamRequest| {
                database.was_at(&asked.stream, copy.stored, |now| asked.holds(now))
            };
            if let Some(asked) = claims.find(|asked| !holds(asked)) {
                return Err(format!(
                    "command {ticket} is stored at {}, where {asked:?} does not hold: {record:?}",
                    copy.position
                ));
            }
            if let Some(condition) = &record.no_match {
                check_no_match(record, condition, copy, database)
                    .map_err(|why| format!("command {ticket}: {why}: {record:?}"))?;
            }
        }
        Ok(())
    }

    /// Records an answer and checks it.
    ///
    /// # Errors
    /// The promise that the answer breaks.
    pub fn answered(
        &mut self,
        ticket: usize,
        result: Result<Appended>,
        known: &Known<'_>,
    ) -> std::result::Result<(), String> {
        let is_only_attempt = self.is_only_attempt(ticket);
        let record = &mut self.records[ticket];
        if record.answer.is_some() {
            return Err(format!("command {ticket} was answered twice"));
        }
        let checked = match &result {
            Ok(appended) => success::check(record, appended, known),
            Err(error) => refusals::check(record, is_only_attempt, error.kind(), known),
        };
        record.answer = Some(result);
        checked.map_err(|why| format!("command {ticket}: {why}: {record:?}"))?;
        self.check_order(ticket)
    }

    /// Checks the answer of a sequencer to a command that was given to its process, whose troubles until now are these.
    ///
    /// # Errors
    /// The outcome is said to be unknown although nothing was unknown since.
    pub fn check_certainty(
        &self,
        ticket: usize,
        result: &Result<Appended>,
        troubles: Troubles,
        stored: &Archive,
    ) -> std::result::Result<(), String> {
        let error = result.as_ref().err().map(gesta_core::Error::kind);
        let Some(ErrorKind::OutcomeUnknown(_)) = error else {
            return Ok(());
        };
        let record = &self.records[ticket];
        let is_only_attempt = self.is_only_attempt(ticket);
        refusals::check_unknown(record, is_only_attempt, troubles, stored)
            .map_err(|why| format!("command {ticket}: {why}: {record:?}"))
    }

    /// Checks the refusal of a command by the sequencer of a process that knows this history: what was lost before the
    /// history began refuses nothing in it.
    ///
    /// # Errors
    /// The event for which the command was refused was lost before.
    pub fn check_history(
        &self,
        ticket: usize,
        result: &Result<Appended>,
        history: u64,
        stored: &Archive,
    ) -> std::result::Result<(), String> {
        let error = result.as_ref().err().map(gesta_core::Error::kind);
        let record = &self.records[ticket];
        let (Some(ErrorKind::ConditionFailed { position, .. }), Some(condition)) =
            (error, &record.no_match)
        else {
            return Ok(());
        };
        match stored.had_tag(*position, &condition.tag, record.since, history) {
            true => Ok(()),
            false => Err(format!(
                "command {ticket}: refused in history {history} for an event at {position} that was lost before: {record:?}"
            )),
        }
    }

    /// Checks that appends without conditions of one process, which went the same way to one stream, are stored in the
    /// order in which they were made.
    fn check_order(&self, ticket: usize) -> std::result::Result<(), String> {
        let Some(places) = self.places(ticket) else {
            return Ok(());
        };
        let record = &self.records[ticket];
        let others = (0..self.records.len()).filter(|other| {
            let other = &self.records[*other];
            (other.process, other.way) == (record.process, record.way) && !other.is_orphaned
        });
        for other in others {
            let there = self.places(other).unwrap_or_default();
            // Positions of several histories do not compare.
            let of = |stream: &StreamId, history| {
                let mut places = there.iter();
                places.find(|place| place.0 == *stream && place.2 == history)
            };
            for (stream, position, history) in &places {
                if of(stream, *history)
                    .is_some_and(|at| (at.1 < *position) != (other < ticket) && other != ticket)
                {
                    return Err(format!(
                        "commands {other} and {ticket} are stored in another order than they were made: {record:?}"
                    ));
                }
            }
        }
        Ok(())
    }

    /// Returns where the events of an append without conditions are stored, if the order among other appends is
    /// certain.
    fn places(&self, ticket: usize) -> Option<Vec<(StreamId, Position, Incarnation)>> {
        let record = &self.records[ticket];
        let any = StreamClaim::Expected(ExpectedRevision::Any);
        let is_plain = |asked: &StreamRequest| {
            asked.claim == any && !asked.ids.is_empty() && !is_delete(asked)
        };
        let appended = record.answer.as_ref()?.as_ref().ok()?;
        record.way?;
        let is_sure = record.asked.iter().all(is_plain)
            && record.conditions.is_empty()
            && record.no_match.is_none()
            && self.is_only_attempt(ticket);
        let history = appended.checkpoint.incarnation;
        let streams = appended.streams.iter();
        is_sure.then(|| {
            streams
                .map(|part| (part.stream.clone(), part.position, history))
                .collect()
        })
    }

    /// Returns true if no other command asks for the same events.
    #[must_use]
    pub fn is_only_attempt(&self, ticket: usize) -> bool {
        let original = self.records[ticket].original;
        let attempts = self.records.iter().filter(|one| one.original == original);
        attempts.count() == 1
    }

    /// Checks that a process that waits for nothing but the database has given up commands that are too old.
    ///
    /// # Errors
    /// The command that still waits.
    pub fn check_ages(
        &self,
        process: usize,
        now: Duration,
        oldest: Duration,
    ) -> std::result::Result<(), String> {
        let is_old = |record: &Record| record.process == process && now > record.given + oldest;
        let is_open = |record: &Record| record.answer.is_none() && !record.is_orphaned;
        let mut records = self.records.iter().enumerate();
        match records.find(|(_, record)| is_open(record) && is_old(record)) {
            Some((ticket, record)) => Err(format!("command {ticket} is not given up: {record:?}")),
            None => Ok(()),
        }
    }

    /// Checks what must hold when nothing happens any more.
    ///
    /// # Errors
    /// The promise that is broken.
    pub fn check_end(
        &self,
        database: &Database,
        stored: &Archive,
    ) -> std::result::Result<(), String> {
        let mut may_be_stored: HashMap<usize, bool> = HashMap::new();
        for (ticket, record) in self.records.iter().enumerate() {
            let answer = record.answer.as_ref();
            if answer.is_none() && !record.is_orphaned {
                return Err(format!("command {ticket} was never answered: {record:?}"));
            }
            let is_certain_not = answer.is_some_and(is_not_stored);
            *may_be_stored.entry(record.original).or_default() |= !is_certain_not;
        }
        for (original, may_be) in may_be_stored {
            let ids = self.records[original]
                .asked
                .iter()
                .flat_map(|asked| &asked.ids);
            for id in ids {
                if !stored.copies(*id).is_empty() && !may_be {
                    let record = &self.records[original];
                    return Err(format!(
                        "command {original} was said not to be stored, but is: {record:?}"
                    ));
                }
            }
        }
        for double in stored.doubles() {
            if let Some(original) = self.firsts.get(&double.event).map(|(first, _)| *first)
                && !self.may_be_stored_again(original, double, database, stored)
            {
                let record = &self.records[original];
                return Err(format!(
                    "command {original} was stored twice: {double:?}: {record:?}"
                ));
            }
        }
        Ok(())
    }

    /// Returns true if the first event of a part, by which a retry is recognised, may be stored again: its caller has
    /// repeated the command, and no process had to know of the first time. What nodes send again by themselves is
    /// stored again only if it was scavenged at once. What was scavenged is known to a process that has seen it stored.
    fn may_be_stored_again(
        &self,
        original: usize,
        double: &Double,
        database: &Database,
        stored: &Archive,
    ) -> bool {
        let is_repeated = !self.is_only_attempt(original);
        match double.former {
            Former::InWindow => false,
            Former::OutOfWindow => is_repeated,
            Former::Removed => {
                let is_known = double.is_known_to_be_deleted(database);
                let was_deleted = || stored.was_deleted_between(double.event, database);
                !is_known && (is_repeated || !was_deleted())
            }
        }
    }
}

/// What is known of what was stored.
#[derive(Debug)]
pub struct Known<'a> {
    /// The database.
    pub database: &'a Database,
    /// What was ever stored.
    pub stored: &'a Archive,
    /// The deduplication window.
    pub window: Window,
    /// Time since the start.
    pub now: Duration,
}

/// Returns true if an answer says for certain that the events of its command are not stored, and never were.
pub fn is_not_stored(answer: &Result<Appended>) -> bool {
    match answer {
        Ok(_) => false,
        Err(error) => !matches!(
            error.kind(),
            ErrorKind::OutcomeUnknown(_) | ErrorKind::StoredAndDeleted { .. }
        ),
    }
}

fn is_delete(asked: &StreamRequest) -> bool {
    asked.target != asked.stream
}

/// Checks that no event was what the condition of a command excludes when the command was stored.
fn check_no_match(
    record: &Record,
    condition: &NoMatch,
    copy: &StoredCopy,
    database: &Database,
) -> std::result::Result<(), String> {
    let history = copy.histories.0;
    if condition.after.is_some_and(|(of, _)| of != history) {
        return Err(format!(
            "it is stored in history {history}, to which its checkpoint does not belong"
        ));
    }
    let is_own = |row: &Row| {
        let mut asked = record.asked.iter();
        asked.any(|asked| asked.ids.contains(&archive::name(row)))
    };
    let mut found = None;
    database.look(|rows, _, _| {
        let before = rows.iter().filter(|of| of.row.position < copy.position);
        let mut excluded = before.filter(|of| !of.is_removed && condition.is(&of.row));
        found = excluded
            .find(|of| !is_own(&of.row))
            .map(|of| of.row.position);
    });
    match found {
        None => Ok(()),
        Some(position) => Err(format!(
            "it is stored at {} after an event at {position} that its condition excludes",
            copy.position
        )),
    }
}

fn holds(claim: StreamClaim, truth: &StreamTruth) -> bool {
    match claim {
        StreamClaim::Expected(ExpectedRevision::Any) => true,
        StreamClaim::Expected(ExpectedRevision::NoStream) => truth.visible.is_none(),
        StreamClaim::After(After::NoStream { next }) => {
            truth.visible.is_none() && truth.last.map_or(Revision(0), Revision::next) == next
        }
        StreamClaim::Expected(ExpectedRevision::StreamExists) => truth.visible.is_some(),
        StreamClaim::Expected(ExpectedRevision::Exact(revision)) => truth.last == Some(revision),
        StreamClaim::After(After::Event(id)) => {
            truth.visible.is_some() && truth.last_id == Some(id)
        }
    }
}
