//! What callers were promised: records every command with its answer, and checks it against what the database held and
//! holds.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use gesta_core::backend::Row;
use gesta_core::{
    After, Appended, AppendedStream, ErrorKind, EventId, ExpectedRevision, Position, Result,
    Revision, StreamId,
};

use crate::database::{Database, StreamTruth};

/// What a command asks of one stream.
#[derive(Debug, Clone)]
pub struct Asked {
    /// Stream that the claim is about.
    pub stream: StreamId,
    /// Stream to which the events go. For a delete or a change of metadata it is the metadata stream.
    pub target: StreamId,
    /// Claim about the stream.
    pub claim: StreamClaim,
    /// Ids of the events, if the caller knows them.
    pub ids: Vec<EventId>,
}

/// A claim about a stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StreamClaim {
    /// The claim is about the last revision of the stream.
    Expected(ExpectedRevision),
    /// The claim is about the last event of the stream.
    After(After),
}

/// A command, and what became of it.
#[derive(Debug)]
pub struct Record {
    /// What the command asks, by stream.
    pub asked: Vec<Asked>,
    /// Moment of the database at which the command was given.
    pub since: u64,
    /// Number of the command that this one repeats, or of this one.
    pub original: usize,
    /// Number of the process to which the command was given.
    pub process: usize,
    /// Time at which the command was given, since the start.
    pub given: Duration,
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
}

impl Model {
    /// Records an answer and checks it.
    ///
    /// # Errors
    /// The promise that the answer breaks.
    pub fn answered(
        &mut self,
        ticket: usize,
        result: Result<Appended>,
        database: &Database,
        stored: &Archive,
    ) -> std::result::Result<(), String> {
        let record = &mut self.records[ticket];
        if record.answer.is_some() {
            return Err(format!("command {ticket} was answered twice"));
        }
        let checked = match &result {
            Ok(appended) => check_success(record, appended, database, stored),
            Err(error) => check_refusal(record, error.kind(), database, stored),
        };
        record.answer = Some(result);
        checked.map_err(|why| format!("command {ticket}: {why}: {record:?}"))?;
        match database.history() {
            0 => self.check_order(ticket),
            // Positions of several histories do not compare.
            _ => Ok(()),
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
            let of = |stream: &StreamId| there.iter().find(|place| place.0 == *stream);
            for (stream, position) in &places {
                if of(stream)
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
    fn places(&self, ticket: usize) -> Option<Vec<(StreamId, Position)>> {
        let record = &self.records[ticket];
        let any = StreamClaim::Expected(ExpectedRevision::Any);
        let is_plain =
            |asked: &Asked| asked.claim == any && !asked.ids.is_empty() && !is_delete(asked);
        let appended = record.answer.as_ref()?.as_ref().ok()?;
        record.way?;
        let is_sure = record.asked.iter().all(is_plain) && self.is_only_attempt(ticket);
        let streams = appended.streams.iter();
        is_sure.then(|| {
            streams
                .map(|part| (part.stream.clone(), part.position))
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
                let times = stored.times.get(id);
                if times.is_some() && !may_be {
                    let record = &self.records[original];
                    return Err(format!(
                        "command {original} was said not to be stored, but is: {record:?}"
                    ));
                }
                if let Some((history, _)) = times
                    .into_iter()
                    .flatten()
                    .find(|(_, times)| **times > 1)
                    .filter(|_| !self.may_be_stored_again(original, database, stored))
                {
                    let record = &self.records[original];
                    return Err(format!(
                        "event {id} of command {original} was stored twice in history {history}: {record:?}"
                    ));
                }
            }
        }
        Ok(())
    }

    /// Returns true if an append may be stored again, because its events are not there any more: they were scavenged.
    fn may_be_stored_again(&self, original: usize, database: &Database, stored: &Archive) -> bool {
        let asked = &self.records[original].asked;
        let ids = asked.iter().flat_map(|asked| &asked.ids);
        let removed: Vec<&EventId> = ids.filter(|id| stored.removed.contains(id)).collect();
        let was_deleted = |id: &&EventId| stored.was_deleted_between(**id, database);
        !removed.is_empty() && (!self.is_only_attempt(original) || !removed.iter().any(was_deleted))
    }
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

fn is_delete(asked: &Asked) -> bool {
    asked.target != asked.stream
}

/// Returns what a caller knows an event by: the number in its data, which is its id if the caller has given one. A
/// delete or a change of metadata has only its id.
#[must_use]
pub fn name(row: &Row) -> EventId {
    let text = std::str::from_utf8(&row.data).ok();
    let number = text.and_then(|text| text.parse().ok());
    number.map_or(row.id, |number| EventId(uuid::Uuid::from_u128(number)))
}

/// Everything that was ever stored, in any history.
#[derive(Debug, Default)]
pub struct Archive {
    rows: HashMap<EventId, Vec<Row>>,
    /// How many times each event was stored, by history.
    times: HashMap<EventId, HashMap<u64, u32>>,
    /// Events that were scavenged.
    removed: HashSet<EventId>,
    /// Number of rows of the present history that were seen.
    seen: usize,
    history: u64,
    /// Moment at which the database was last read.
    moment: Option<u64>,
}

impl Archive {
    /// Reads what is new in the database.
    pub fn update(&mut self, database: &Database) {
        let moment = Some(database.moment());
        if std::mem::replace(&mut self.moment, moment) == moment {
            return;
        }
        let (rows, history) = (database.rows(), database.history());
        if history != self.history {
            // What is left of the former history is stored in this one, too.
            self.history = history;
            self.seen = 0;
        }
        for stored in rows.iter().skip(self.seen) {
            let name = name(&stored.row);
            let times = self.times.entry(name).or_default();
            *times.entry(history).or_default() += 1;
            let known = self.rows.entry(name).or_default();
            if !known.contains(&stored.row) {
                known.push(stored.row.clone());
            }
        }
        self.seen = rows.len();
        let removed = rows.iter().filter(|stored| stored.is_removed);
        self.removed.extend(removed.map(|stored| name(&stored.row)));
    }

    /// Returns true if the stream of this event was deleted between two times at which the event was stored.
    fn was_deleted_between(&self, id: EventId, database: &Database) -> bool {
        let mut rows: Vec<&Row> = self.rows.get(&id).into_iter().flatten().collect();
        rows.sort_by_key(|row| row.revision);
        rows.windows(2).any(|two| {
            let between = two[0].revision.next()..=two[1].revision;
            database.was_ever(&two[0].stream, 0, |truth| {
                between.contains(&truth.deleted_before)
            })
        })
    }

    fn holds(&self, id: EventId, is_it: impl Fn(&Row) -> bool) -> bool {
        self.rows
            .get(&id)
            .is_some_and(|rows| rows.iter().any(is_it))
    }
}

fn check_success(
    record: &Record,
    appended: &Appended,
    database: &Database,
    stored: &Archive,
) -> std::result::Result<(), String> {
    if record.asked.iter().all(|asked| asked.ids.is_empty()) {
        let is_question = |asked: &Asked| asked.target == asked.stream;
        if !record.asked.iter().all(is_question) {
            return Ok(());
        }
        for asked in &record.asked {
            if !database.was_ever(&asked.stream, record.since, |truth| {
                holds(asked.claim, truth)
            }) {
                return Err("confirmed, but it never held since".into());
            }
        }
        return Ok(());
    }
    for asked in &record.asked {
        if appended.streams.is_empty() && is_delete(asked) {
            // The answer to a delete or a change of metadata has come from another node, with a position only.
            check_position(asked, appended.position, stored)?;
            continue;
        }
        let part = appended
            .streams
            .iter()
            .find(|part| part.stream == asked.target);
        let Some(part) = part else {
            return Err(format!("the answer says nothing of {}", asked.target));
        };
        check_part(asked, part, stored)?;
        let was_there = |truth: &StreamTruth| truth.deleted_before <= part.first_revision;
        if !is_delete(asked) && !database.was_ever(&asked.stream, record.since, was_there) {
            return Err("answered as stored, but its stream was deleted before".into());
        }
        if let StreamClaim::After(_) = asked.claim
            && !database.was_ever(&asked.stream, record.since, |truth| {
                holds(asked.claim, truth)
            })
        {
            return Err("stored after an event that never was the last since".into());
        }
    }
    Ok(())
}

fn check_part(
    asked: &Asked,
    part: &AppendedStream,
    stored: &Archive,
) -> std::result::Result<(), String> {
    let count = part.last_revision.0 + 1 - part.first_revision.0;
    if count != asked.ids.len() as u64 {
        return Err(format!("the answer names {count} revisions"));
    }
    for (revision, id) in (part.first_revision.0..).zip(&asked.ids) {
        let is_it = |row: &Row| row.stream == asked.target && row.revision == Revision(revision);
        if !stored.holds(*id, is_it) {
            return Err(format!(
                "event {id} is not revision {revision} of {}",
                asked.target
            ));
        }
    }
    check_position(asked, part.position, stored)
}

fn check_position(
    asked: &Asked,
    position: Position,
    stored: &Archive,
) -> std::result::Result<(), String> {
    let is_last = |row: &Row| row.position == position;
    match asked.ids.last() {
        Some(last) if !stored.holds(*last, is_last) => {
            Err(format!("event {last} is not at position {position}"))
        }
        _ => Ok(()),
    }
}

fn check_refusal(
    record: &Record,
    kind: &ErrorKind,
    database: &Database,
    stored: &Archive,
) -> std::result::Result<(), String> {
    match kind {
        ErrorKind::StoredAndDeleted { stream, position } => {
            let asked = record.asked.iter().find(|asked| asked.target == *stream);
            let rows = asked.and_then(|asked| stored.rows.get(asked.ids.first()?));
            let of_stream = rows.into_iter().flatten();
            let first = of_stream
                .filter(|row| row.stream == *stream)
                .min_by_key(|row| row.revision);
            let Some(first) = first else {
                return Err(format!("refused as stored in {stream}, where it never was"));
            };
            let was_deleted = |truth: &StreamTruth| truth.deleted_before > first.revision;
            if !database.was_ever(stream, record.since, was_deleted) {
                return Err(format!("refused as deleted from {stream}, which never was"));
            }
            let ids = asked.into_iter().flat_map(|asked| &asked.ids);
            match ids
                .into_iter()
                .any(|id| stored.holds(*id, |row| row.position == *position))
            {
                true => Ok(()),
                false => Err(format!(
                    "refused as stored at position {position}, where it never was"
                )),
            }
        }
        ErrorKind::WrongExpectedRevision { stream, actual, .. } => {
            let asked = record.asked.iter().find(|asked| asked.target == *stream);
            let asked = asked.or_else(|| record.asked.iter().find(|asked| asked.stream == *stream));
            let Some(asked) = asked else {
                return Err(format!("refused for {stream}, which it does not name"));
            };
            let is_about_metadata = asked.target != asked.stream && asked.target == *stream;
            let was_so = database.was_ever(&asked.stream, record.since, |truth| {
                let found = if is_about_metadata {
                    truth.meta
                } else {
                    truth.visible
                };
                found == *actual
            });
            match was_so {
                true => Ok(()),
                false => Err(format!("refused for {actual:?}, which it never was since")),
            }
        }
        ErrorKind::StreamTombstoned(stream) => {
            match database.was_ever(stream, record.since, |truth| truth.is_tombstoned) {
                true => Ok(()),
                false => Err("refused for a tombstone that never was".into()),
            }
        }
        ErrorKind::StreamNotFound(stream) => {
            match database.was_ever(stream, record.since, |truth| truth.visible.is_none()) {
                true => Ok(()),
                false => Err("refused for lack of a stream that was always there".into()),
            }
        }
        _ => Ok(()),
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
