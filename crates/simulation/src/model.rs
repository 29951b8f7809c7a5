//! What callers were promised: records every command with its answer, and checks it against what the database held and
//! holds.

use std::collections::HashMap;
use std::time::Duration;

use gesta_core::backend::Row;
use gesta_core::{
    After, Appended, AppendedStream, ErrorKind, EventId, ExpectedRevision, Incarnation, Position,
    Result, Revision, StreamId, Tag,
};

use crate::archive::{self, Archive, Double, Former, StoredCopy, Window};
use crate::database::{Database, StreamTruth, incarnation};
use crate::process::POISON;

/// What a command asks of one stream.
#[derive(Debug, Clone)]
pub struct Asked {
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

impl Asked {
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
    pub asked: Vec<Asked>,
    /// What must hold besides, of streams to which the command appends nothing.
    pub conditions: Vec<Asked>,
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
            let holds = |asked: &&Asked| {
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
            Ok(appended) => check_success(record, appended, known),
            Err(error) => check_refusal(record, is_only_attempt, error.kind(), known),
        };
        record.answer = Some(result);
        checked.map_err(|why| format!("command {ticket}: {why}: {record:?}"))?;
        self.check_order(ticket)
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
        let is_plain =
            |asked: &Asked| asked.claim == any && !asked.ids.is_empty() && !is_delete(asked);
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
    /// stored again only if it was scavenged at once.
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
            Former::Removed => is_repeated || !stored.was_deleted_between(double.event, database),
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

fn is_delete(asked: &Asked) -> bool {
    asked.target != asked.stream
}

fn check_success(
    record: &Record,
    appended: &Appended,
    known: &Known<'_>,
) -> std::result::Result<(), String> {
    let Known {
        database, stored, ..
    } = known;
    if record.asked.iter().all(|asked| asked.ids.is_empty()) {
        for asked in &record.asked {
            if is_delete(asked) {
                if !stored.was_at(appended.position, &asked.target) {
                    return Err(format!("nothing of {} is there", asked.target));
                }
            } else if !database.was_ever(&asked.stream, record.since, |truth| asked.holds(truth)) {
                return Err("confirmed, but it never held since".into());
            }
        }
        return Ok(());
    }
    for asked in &record.asked {
        check_checkpoint(asked, appended, stored)?;
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
            && !database.was_ever(&asked.stream, record.since, |truth| asked.holds(truth))
        {
            return Err("stored after an event that never was the last since".into());
        }
    }
    Ok(())
}

/// Checks the checkpoint of an answer: in the history that it names, a reader that resumes from it skips nothing.
fn check_checkpoint(
    asked: &Asked,
    appended: &Appended,
    stored: &Archive,
) -> std::result::Result<(), String> {
    let copies = asked
        .ids
        .last()
        .map_or(&[][..], |last| stored.copies(*last));
    let is_it = |copy: &StoredCopy| {
        let last = copy.histories.1;
        copy.position <= appended.position
            && (copy.histories.0..=last).any(|history| {
                let checkpoint = &appended.checkpoint;
                let at = checkpoint.positions_for(incarnation(history), 1);
                at.is_ok_and(|at| at == [appended.position])
            })
    };
    match copies.iter().any(is_it) {
        true => Ok(()),
        false => Err(format!(
            "its checkpoint {:?} is not there",
            appended.checkpoint
        )),
    }
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
        let is_it =
            |copy: &StoredCopy| copy.stream == asked.target && copy.revision == Revision(revision);
        if !stored.copies(*id).iter().any(is_it) {
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
    let is_there = |last: &EventId| {
        let mut copies = stored.copies(*last).iter();
        copies.any(|copy| copy.position == position)
    };
    match asked.ids.last() {
        Some(last) if !is_there(last) => Err(format!("event {last} is not at position {position}")),
        _ => Ok(()),
    }
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

/// Checks the refusal of a command for an event at this position.
fn check_condition_failed(
    record: &Record,
    position: Position,
    known: &Known<'_>,
) -> std::result::Result<(), String> {
    let Some(condition) = &record.no_match else {
        return Err("refused for a condition that it does not have".into());
    };
    let had_tag = known.stored.had_tag(position, &condition.tag, record.since);
    match position > condition.begin() && had_tag {
        true => Ok(()),
        false => Err(format!(
            "refused for an event at {position} that was not there since it was given, or that its condition allows"
        )),
    }
}

fn check_refusal(
    record: &Record,
    is_only_attempt: bool,
    kind: &ErrorKind,
    known: &Known<'_>,
) -> std::result::Result<(), String> {
    let was_ever = |stream: &StreamId, is_so: &dyn Fn(&StreamTruth) -> bool| {
        known.database.was_ever(stream, record.since, is_so)
    };
    let is_named = |stream: &StreamId| {
        let mut named = record.asked.iter().chain(&record.conditions);
        named.any(|asked| asked.stream == *stream || asked.target == *stream)
    };
    match kind {
        ErrorKind::StoredAndDeleted { stream, position } => {
            check_stored_and_deleted(record, stream, *position, known)
        }
        ErrorKind::WrongExpectedRevision { stream, actual, .. } => {
            check_wrong(record, is_only_attempt, stream, *actual, known)
        }
        ErrorKind::StreamTombstoned(stream) | ErrorKind::StreamNotFound(stream)
            if !is_named(stream) =>
        {
            Err(format!("refused for {stream}, which it does not name"))
        }
        ErrorKind::StreamTombstoned(stream) => match was_ever(stream, &|now| now.is_tombstoned) {
            true => Ok(()),
            false => Err("refused for a tombstone that never was".into()),
        },
        ErrorKind::StreamNotFound(stream) => match was_ever(stream, &|now| now.visible.is_none()) {
            true => Ok(()),
            false => Err("refused for lack of a stream that was always there".into()),
        },
        ErrorKind::ConditionFailed { position, .. } => {
            check_condition_failed(record, *position, known)
        }
        ErrorKind::InvalidCheckpoint(_) => check_invalid_checkpoint(record, known),
        ErrorKind::Refused(why) if *why == POISON && !record.is_poison => {
            Err("refused for the events of another command".into())
        }
        _ => Ok(()),
    }
}

/// Checks the refusal of a command for the checkpoint of its condition: while the command was under way, another
/// history than that of the checkpoint was the present one, or the log ended before the checkpoint.
fn check_invalid_checkpoint(record: &Record, known: &Known<'_>) -> std::result::Result<(), String> {
    let after = record.no_match.as_ref().and_then(|of| of.after);
    let Some((history, position)) = after else {
        return Err("refused for a checkpoint that it does not have".into());
    };
    let is_refused = |of, end| of != history || end < position;
    match known.database.ended_ever(record.since, is_refused) {
        true => Ok(()),
        false => Err("refused for a checkpoint that was right all the time".into()),
    }
}

/// Checks the refusal of an append whose events are said to be stored at a position, before the stream was deleted.
fn check_stored_and_deleted(
    record: &Record,
    stream: &StreamId,
    position: Position,
    known: &Known<'_>,
) -> std::result::Result<(), String> {
    let asked = record.asked.iter().find(|asked| asked.target == *stream);
    let ids = asked.into_iter().flat_map(|asked| &asked.ids);
    let mut copies = ids.flat_map(|id| known.stored.copies(*id));
    let Some(copy) = copies.find(|copy| copy.stream == *stream && copy.position == position) else {
        return Err(format!(
            "refused as stored in {stream} at position {position}, where it never was"
        ));
    };
    let was_deleted = |truth: &StreamTruth| truth.deleted_before > copy.revision;
    match known.database.was_ever(stream, record.since, was_deleted) {
        true => Ok(()),
        false => Err(format!("refused as deleted from {stream}, which never was")),
    }
}

/// Checks the refusal of a claim or a condition about a stream.
fn check_wrong(
    record: &Record,
    is_only_attempt: bool,
    stream: &StreamId,
    actual: Option<Revision>,
    known: &Known<'_>,
) -> std::result::Result<(), String> {
    let named = || record.asked.iter().chain(&record.conditions);
    let asked = named().find(|asked| asked.target == *stream);
    let asked = asked.or_else(|| named().find(|asked| asked.stream == *stream));
    let Some(asked) = asked else {
        return Err(format!("refused for {stream}, which it does not name"));
    };
    let is_about_metadata = is_delete(asked) && asked.target == *stream;
    // The id of an event that was scavenged is not known, so nobody can tell that it is the last.
    let is_forgotten = match asked.claim {
        StreamClaim::After(After::Event(id)) => {
            known.stored.rows_with(id).any(|copy| copy.is_removed)
        }
        _ => false,
    };
    let was_so = known
        .database
        .was_ever(&asked.stream, record.since, |truth| {
            let found = match is_about_metadata {
                true => truth.meta,
                false => asked.actual(truth),
            };
            // The caller may have repeated the command, and what is stored already is the reason.
            found == actual && (!is_only_attempt || is_forgotten || !asked.holds(truth))
        });
    if !was_so {
        return Err(format!("refused for {actual:?}, which it never was since"));
    }
    match !is_only_attempt
        && record
            .asked
            .iter()
            .all(|asked| is_found(asked, record, known))
    {
        true => Err("refused, but all of it had been stored before it was given".into()),
        false => Ok(()),
    }
}

/// Returns true if the events of a part were stored before a command was given, so that the command must be recognised
/// as a retry.
fn is_found(asked: &Asked, record: &Record, known: &Known<'_>) -> bool {
    let (history, end) = (known.database.history(), known.database.end().position);
    let is_there = |id: &EventId| {
        let [copy] = known.stored.copies(*id) else {
            return false;
        };
        let is_deleted = !is_delete(asked)
            && known.database.was_ever(&copy.stream, 0, |truth| {
                truth.is_tombstoned || truth.deleted_before > copy.revision
            });
        copy.stored < record.since
            && copy.was_in(history)
            && !copy.is_removed
            && !is_deleted
            && known.window.holds(copy, known.now, end)
    };
    !asked.ids.is_empty() && asked.ids.iter().all(is_there)
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
