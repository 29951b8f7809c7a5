//! What is done after an append has failed: what the target has is read again, and what it lacks is sent again.
//!
//! Invariants: nothing is sent after a gap, that is, if the target lacks an event of the stream that was stored or sent
//! before; and nothing is sent to another life of the target, which has lost commits.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use gesta_core::{BackOff, Error, ErrorKind, EventStore, Result, StreamId};
use tokio::time::Instant;

use super::{Part, TRIES, Target, append_of};
use crate::convert::stood;
use crate::known::{self, Known};

impl Target {
    /// After an append has failed: waits for the later ones, and sends again what the target does not have.
    pub(super) async fn recover(&mut self, parts: Vec<Part>, error: Error) -> Result<()> {
        let mut failed = vec![(parts, Some(error))];
        while let Some(flight) = self.flights.pop_front() {
            let (parts, answer) = flight.end().await;
            match answer {
                Ok(answer) => self.note(&parts, &answer)?,
                Err(error) => failed.push((parts, Some(error))),
            }
        }
        let forming = std::mem::take(&mut self.forming);
        self.forming_is_over();
        if !forming.is_empty() {
            failed.push((forming, None));
        }
        let mut told = HashSet::new();
        for (parts, error) in failed {
            self.send_again(parts, error, &mut told).await?;
        }
        Ok(())
    }

    /// Sends again what the target lacks. `told` are the streams that were deleted in the target, and of whose events
    /// the target has just told one by one that they were stored before.
    async fn send_again(
        &mut self,
        mut parts: Vec<Part>,
        mut error: Option<Error>,
        told: &mut HashSet<StreamId>,
    ) -> Result<()> {
        let mut back_off = BackOff::new(Duration::from_millis(100), Duration::from_secs(5));
        let deadline = Instant::now() + self.retry;
        let mut refusals = 0;
        loop {
            if let Some(error) = error.take() {
                match error.kind() {
                    ErrorKind::WrongExpectedRevision { .. } | ErrorKind::StreamTombstoned(_)
                        if refusals < TRIES =>
                    {
                        refusals += 1;
                    }
                    ErrorKind::StoredAndDeleted { stream, .. } => {
                        if !self.drop_first_of(stream, &mut parts) {
                            return Err(error);
                        }
                        told.insert(stream.clone());
                    }
                    _ if error.is_retryable() && Instant::now() < deadline => {
                        tokio::time::sleep(back_off.pause()).await;
                    }
                    _ => return Err(error),
                }
            }
            let read = self.read_again(&mut parts, told).await;
            let sent = match read {
                Ok(()) if parts.is_empty() => return Ok(()),
                Ok(()) => self.store()?.append(append_of(&parts)).await,
                Err(error) => Err(error),
            };
            match sent {
                Ok(answer) => {
                    self.note(&parts, &answer)?;
                    for (part, answer) in parts.iter().zip(&answer.streams) {
                        if let (Some(known), Some((sequence, place, _))) =
                            (self.known.get_mut(&part.key), part.events.last())
                        {
                            known.revision = Some(answer.last_revision);
                            known.stored = Some((*sequence, *place));
                        }
                    }
                    return Ok(());
                }
                Err(failed) if self.is_lost => return Err(failed),
                Err(failed) => error = Some(failed),
            }
        }
    }

    /// Drops the first event of a stream from an append, which was stored before the stream was deleted in the target:
    /// it is not stored again. Those after it may be new. Returns false if there is none.
    fn drop_first_of(&mut self, stream: &StreamId, parts: &mut [Part]) -> bool {
        let part = parts.iter_mut().find(|part| part.stream == *stream);
        let Some(part) = part.filter(|part| !part.events.is_empty()) else {
            return false;
        };
        part.events.remove(0);
        self.already += 1;
        true
    }

    /// Reads what the target has of the streams of an append, and drops the events that are there.
    async fn read_again(&mut self, parts: &mut Vec<Part>, told: &HashSet<StreamId>) -> Result<()> {
        let store = self.store()?;
        for part in parts.iter_mut() {
            let found = known::read(&*store, &part.stream, &part.key).await?;
            let is_told = told.contains(&part.stream);
            if found.erased && found.revision > part.expected && !is_told {
                return Err(ErrorKind::Unsupported(format!(
                    "the events of {:?} from number {} on cannot be imported: stream {:?} was deleted and scavenged in the \
                     target, so nothing tells which of them it had; import them into another stream (--names)",
                    part.key,
                    part.events.first().map_or(0, |(number, _, _)| *number),
                    part.stream
                ))
                .into());
            }
            let before = part.events.len();
            compare_again(&*store, part, &found).await?;
            let is_new = |sequence: u64| found.stored.is_none_or(|(stored, _)| sequence > stored);
            part.events
                .retain(|(sequence, _, _)| !found.closed && is_new(*sequence));
            part.expected = found.revision;
            // What was deleted and scavenged in the target meanwhile has lost nothing.
            let is_whole = part.events.is_empty()
                || found.erased
                || found.stored.map(|(stored, _)| stored) >= part.after;
            if !is_whole {
                return Err(self.lost());
            }
            let there = (before - part.events.len()) as u64;
            // What a tombstone has closed was there before it.
            let is_before = |(log, position)| self.was_there(log, position);
            match found.closed || found.found.is_some_and(is_before) {
                true => self.already += there,
                false => self.stored += there,
            }
            let seen = self.known.get(&part.key).and_then(|known| known.seen);
            let seen = seen.max(found.seen);
            self.known.insert(
                Arc::clone(&part.key),
                Known {
                    seen,
                    met: true,
                    ..found
                },
            );
        }
        parts.retain(|part| !part.events.is_empty());
        self.fresh = false;
        // What was read is of this life or an earlier one.
        self.check_life().await
    }

    /// Tells that the target has lost commits.
    pub(super) fn lost(&mut self) -> Error {
        self.is_lost = true;
        lost()
    }

    /// Refuses to go on with another life of the target than that in which the import was opened.
    ///
    /// # Errors
    /// `Unavailable` if it is another one, or the target does not answer.
    pub(crate) async fn check_life(&mut self) -> Result<()> {
        let Some(store) = &self.store else {
            return Ok(());
        };
        match Some(store.incarnation().await?) == self.incarnation {
            true => Ok(()),
            false => Err(self.lost()),
        }
    }
}

/// Makes the error for a target that has lost commits. Another import, which goes on from the last checkpoint that is
/// there, finds out what is missing.
pub(crate) fn lost() -> Error {
    Error::unavailable(
        "the target has lost commits since this import was opened, by a fail-over or a restore: repeat the import, which \
         stores what is missing",
    )
}

/// Refuses an append if somebody else has stored other events of its numbers since, as far as digests tell.
async fn compare_again(store: &dyn EventStore, part: &Part, found: &Known) -> Result<()> {
    let Some((last, _)) = found.stored.filter(|_| !found.closed) else {
        return Ok(());
    };
    let there = part.events.iter().filter(|(number, _, _)| *number <= last);
    for (number, place, event) in there {
        let Some(digest) = stood(&event.metadata).and_then(|stood| stood.digest) else {
            continue;
        };
        let stored = known::find(store, &part.stream, *number).await?;
        if let Some(other) = stored.filter(|stored| stored.differs(digest)) {
            return Err(ErrorKind::Unsupported(format!(
                "event {:?} number {number} (place {place}) cannot be imported: another import has just stored \
                 another event of this number, from place {}",
                part.key, other.place
            ))
            .into());
        }
    }
    Ok(())
}
