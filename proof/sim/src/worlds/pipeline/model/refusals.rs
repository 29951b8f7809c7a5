//! Answers that refuse a command, or say that its outcome is unknown.

use super::*;

/// Checks the refusal of a command for an event at this position.
fn check_condition_failed(
    record: &Record,
    position: Position,
    known: &Known<'_>,
) -> std::result::Result<(), String> {
    let Some(condition) = &record.no_match else {
        return Err("refused for a condition that it does not have".into());
    };
    let had_tag = known
        .stored
        .had_tag(position, &condition.tag, record.since, 0);
    match position > condition.begin() && had_tag {
        true => Ok(()),
        false => Err(format!(
            "refused for an event at {position} that was not there since it was given, or that its condition allows"
        )),
    }
}

/// Checks that a command could be refused for this reason.
pub(super) fn check(
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
            true => check_no_retry(record, is_only_attempt, known),
            false => Err("refused for a tombstone that never was".into()),
        },
        ErrorKind::StreamNotFound(stream) => match was_ever(stream, &|now| now.visible.is_none()) {
            true => check_no_retry(record, is_only_attempt, known),
            false => Err("refused for lack of a stream that was always there".into()),
        },
        ErrorKind::ConditionFailed { position, .. } => {
            check_condition_failed(record, *position, known)?;
            check_no_retry(record, is_only_attempt, known)
        }
        ErrorKind::InvalidCheckpoint(_) => {
            check_invalid_checkpoint(record, known)?;
            check_no_retry(record, is_only_attempt, known)
        }
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
    let was_there = |copy: &&StoredCopy| {
        let was_present = |history, _| copy.was_in(history);
        let is_there = copy.stream == *stream && copy.position == position;
        is_there && known.database.ended_ever(record.since, was_present)
    };
    let Some(copy) = copies.find(was_there) else {
        return Err(format!(
            "refused as stored in {stream} at position {position}, where it never was since"
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
    check_no_retry(record, is_only_attempt, known)
}

/// Checks that a refused command is no retry of one whose events are all stored.
fn check_no_retry(
    record: &Record,
    is_only_attempt: bool,
    known: &Known<'_>,
) -> std::result::Result<(), String> {
    let mut parts = record.asked.iter();
    match !is_only_attempt && parts.all(|asked| is_found(asked, record, known)) {
        true => Err("refused, but all of it had been stored before it was given".into()),
        false => Ok(()),
    }
}

/// Returns true if the events of a part were stored before a command was given, so that the command must be recognised
/// as a retry.
fn is_found(asked: &StreamRequest, record: &Record, known: &Known<'_>) -> bool {
    let (history, end) = (known.database.history(), known.database.end().position);
    let is_there = |id: &EventId| {
        let [copy] = known.stored.copies(*id) else {
            return false;
        };
        let is_change_of_metadata = asked.about == About::Metadata;
        let is_deleted = known.database.was_ever(&asked.stream, 0, |truth| {
            let is_deleted = !is_delete(asked) && truth.deleted_before > copy.revision;
            let is_ended = !is_delete(asked) || is_change_of_metadata;
            is_deleted || is_ended && truth.is_tombstoned
        });
        copy.stored < record.since
            && copy.was_in(history)
            && !copy.is_removed
            && !is_deleted
            && known.window.holds(copy, known.now, end)
    };
    !asked.ids.is_empty() && asked.ids.iter().all(is_there)
}

/// Checks that a sequencer may say that the outcome of a command is unknown. `troubles` are those of its process until
/// now.
pub(super) fn check_unknown(
    record: &Record,
    is_only_attempt: bool,
    troubles: Troubles,
    stored: &Archive,
) -> std::result::Result<(), String> {
    if troubles.doubts > record.troubles.doubts {
        return Ok(());
    }
    // What a retry is found by is not confirmed before the next commit.
    let mut ids = record.asked.iter().flat_map(|asked| &asked.ids);
    let may_be_found = !is_only_attempt && ids.any(|id| !stored.copies(*id).is_empty());
    match may_be_found && troubles.faults > record.troubles.faults {
        true => Ok(()),
        false => Err("its outcome is said to be unknown, but no outcome was since".into()),
    }
}
