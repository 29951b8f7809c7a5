//! Events that come again: whether they are those that are there.

use std::collections::HashMap;
use std::sync::Arc;

use gesta_core::{Error, ErrorKind, Result};

use super::Import;
use crate::event::{Place, Role, SourceEvent};
use crate::known::Again;
use crate::options::Deleted;

impl Import {
    /// Notes in a dry run that an event is taken before its turn, because one at this place comes after it in its
    /// stream.
    pub(super) fn note_passed_over(&mut self, event: &SourceEvent, place: Place) {
        if self.target.only_counts() && event.place > place {
            let at = (Arc::clone(&event.key), event.sequence);
            self.passed_over.insert(at, event.place);
        }
    }

    /// Notes that such an event was not stored after all.
    pub(super) fn forget_passed_over(&mut self, event: &SourceEvent) {
        if !self.passed_over.is_empty() {
            let at = (Arc::clone(&event.key), event.sequence);
            self.passed_over.remove(&at);
        }
    }

    /// Counts a row that the source has marked as deleted, once: it is read again if it was taken before its turn, or
    /// stands after the place.
    pub(super) fn leave_out_deleted(&mut self, event: &SourceEvent) {
        let at = (Arc::clone(&event.key), event.sequence);
        match self.deleted.insert(at, event.place) {
            Some(place) if place == event.place => self.report.already_stored += 1,
            _ => self.report.leave_out("deleted or archived in the source"),
        }
    }

    /// Reads what the target had before of the events of a page, if the source has no places that last.
    pub(super) async fn read_again(
        &mut self,
        events: &[SourceEvent],
    ) -> Result<HashMap<(Arc<str>, u64), Again>> {
        if self.source.resumes() {
            return Ok(HashMap::new());
        }
        let mut wanted: HashMap<Arc<str>, Vec<u64>> = HashMap::new();
        for event in events {
            let base = self.target.known(&event.key).and_then(|known| known.base);
            if base.is_some_and(|(base, _)| event.sequence <= base) {
                let numbers = wanted.entry(Arc::clone(&event.key)).or_default();
                numbers.push(event.sequence);
            }
        }
        for numbers in wanted.values_mut() {
            numbers.sort_unstable();
            numbers.dedup();
        }
        self.target.again(wanted.into_iter().collect()).await
    }

    /// Judges an event that comes again in a dry run, as [`compare`](Self::compare) does with what an import has
    /// stored.
    pub(super) async fn count_again(
        &mut self,
        event: SourceEvent,
        chosen: &mut Vec<SourceEvent>,
    ) -> Result<()> {
        self.store(std::mem::take(chosen)).await?;
        let stored = self.target.known(&event.key).and_then(|known| known.stored);
        let is_later = stored.is_none_or(|(_, place)| event.place > place);
        let at = (Arc::clone(&event.key), event.sequence);
        let is_known = !is_later || self.passed_over.remove(&at) == Some(event.place);
        let lasts = self.source.resumes();
        if lasts && is_known {
            // It was read before: by another scan, or as one that was passed over.
            self.report.already_stored += 1;
            return Ok(());
        }
        if event.deleted && self.options.deleted == Deleted::LeaveOut {
            self.leave_out_deleted(&event);
            return Ok(());
        }
        let why = match lasts {
            false => "it comes after later ones of its stream, or its number comes twice",
            true if self.is_left_out(&event).await? => return Ok(()),
            true => {
                "it comes after later ones of its stream, or the source has used its number again"
            }
        };
        self.report.cannot(&event, why.to_owned());
        Ok(())
    }

    /// Passes over an event of a stream of which the target has nothing left, if it was stored before: what was deleted
    /// there does not come back.
    pub(super) async fn pass_erased(
        &mut self,
        event: SourceEvent,
        was_claimed: bool,
        chosen: &mut Vec<SourceEvent>,
    ) -> Result<()> {
        if was_claimed {
            self.report
                .leave_out("events of streams that were deleted and scavenged in the target");
            return Ok(());
        }
        if event.deleted && self.options.deleted == Deleted::LeaveOut {
            self.leave_out_deleted(&event);
            return Ok(());
        }
        let why = match self.claimed {
            None => {
                "its stream was deleted and scavenged in the target (or is hidden from who imports), so nothing tells what \
                 was imported of it, and there is no checkpoint that tells"
            }
            Some(_) => {
                "its stream was deleted and scavenged in the target (or is hidden from who imports), and it may have been \
                 stored after the last checkpoint of this import: nothing tells"
            }
        };
        self.store(std::mem::take(chosen)).await?;
        self.cannot(&event, &Error::new(ErrorKind::Unsupported(why.into())))
    }

    /// Looks whether an event that comes again is the one that is there.
    pub(super) async fn compare(
        &mut self,
        event: SourceEvent,
        came_before: bool,
        chosen: &mut Vec<SourceEvent>,
    ) -> Result<()> {
        if event.deleted && self.options.deleted == Deleted::LeaveOut {
            self.leave_out_deleted(&event);
            return Ok(());
        }
        let lasts = self.source.resumes();
        let read = self.again.get(&(Arc::clone(&event.key), event.sequence));
        let found = match read.filter(|_| came_before && !lasts) {
            // Nobody can compare what is not shown any more.
            Some(Again::Hidden) => {
                self.report.already_stored += 1;
                return Ok(());
            }
            Some(Again::Missing) => None,
            Some(Again::Stored(stored)) => Some(stored.clone()),
            None => {
                self.store(std::mem::take(chosen)).await?;
                self.target.drain().await?;
                self.target.find(&event.key, event.sequence).await?
            }
        };
        let is_turned = self.transform.is_some();
        let why = match found {
            Some(stored) if lasts && stored.place == event.place => {
                self.report.already_stored += 1;
                return Ok(());
            }
            Some(stored) if !lasts && came_before => {
                if stored.is_of(&event, is_turned) {
                    self.report.already_stored += 1;
                    return Ok(());
                }
                format!(
                    "the target has another event of this number, from place {}: give each event the number that it has \
                     in its stream (sequence), begin each file at the first event, or import it into other streams (--names)",
                    stored.place
                )
            }
            Some(stored) => format!(
                "the target has an event of this number from place {}: the source has used the number again, or was \
                 itself restored",
                stored.place
            ),
            None if self.is_left_out(&event).await? => return Ok(()),
            None => "it comes after later ones of its stream, which are there already".to_owned(),
        };
        self.store(std::mem::take(chosen)).await?;
        self.cannot(&event, &Error::new(ErrorKind::Unsupported(why)))
    }

    /// Asks the command about an event that is missing in the target. It may have left it out before.
    async fn is_left_out(&mut self, event: &SourceEvent) -> Result<bool> {
        let Some(transform) = &mut self.transform else {
            return Ok(false);
        };
        let turned = transform.turn(vec![event.clone()]).await?;
        let Some(Role::LeftOut(why)) = turned.first().map(|event| event.role) else {
            return Ok(false);
        };
        self.report.leave_out(why);
        Ok(true)
    }
}
