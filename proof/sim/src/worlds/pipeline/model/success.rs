//! Answers that say that a command is stored, or that what it claims is confirmed.

use super::*;

/// Checks that a command is stored where its answer says.
pub(super) fn check(
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
        let was_there = |truth: &StreamTruth| {
            truth.deleted_before <= part.first_revision && !truth.is_tombstoned
        };
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
    asked: &StreamRequest,
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
    asked: &StreamRequest,
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
    asked: &StreamRequest,
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
