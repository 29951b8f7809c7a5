//! Whether the place of a group is of the present history of its store, and where the group goes on if it is not.
//!
//! A store that was put back from a copy, or whose database lost commits in a fail-over, uses revisions and positions
//! again, for other events. A place alone does not tell that: a group that went on from it would skip what stands there
//! now. So a place is kept together with the incarnation in which it was reached, and with *marks*, events before it.
//! A loss takes the newest events of a log. So if a mark is where it was, everything before it is what the group has
//! finished, whatever the incarnation: the group goes on after the mark. If it is not, the group is *halted*: it
//! delivers nothing until somebody says where it goes on.
//! Invariant: nothing that a reader of the source would see is passed over without a word.
//!
//! A place without incarnation was stored by an older version. It is believed, unless the present incarnation tells
//! that it was begun later.
//! Not here: who asks (`begin`, `reset`, `groups`), places and marks (`mark`), how events are found (`storage`).

use gesta_core::{Incarnation, Result};

use crate::mark::{Halt, Mark, MarkState, StoredPlace, with_mark};
use crate::storage::Storage;

/// Where a group goes on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Standing {
    /// The group goes on at `next`. These marks before it are of the present history, as far as anybody can tell.
    Stands { next: u64, marks: Vec<Mark> },
    /// The group cannot go on.
    Lost(Halt),
}

impl StoredPlace {
    /// Finds out where a group goes on whose place is this.
    ///
    /// # Errors
    /// The errors of the store.
    pub(crate) async fn judge(&self, storage: &Storage, present: Incarnation) -> Result<Standing> {
        if self.next == 0 {
            let marks = Vec::new();
            return Ok(Standing::Stands { next: 0, marks });
        }
        let is_same = self.is_of(present);
        let found = match self.marks.last() {
            Some(mark) => storage.find(mark, present).await?,
            None => MarkState::Nothing,
        };
        let why = match (found, self.marks.last()) {
            (MarkState::Same, Some(mark)) => {
                // What is between the two was hidden when it was read, or does not pass the filter. Only of another
                // history it is not known.
                let is_exact = is_same && storage.group.is_on_all();
                let next = if is_exact { self.next } else { mark.next() };
                let marks = self.marks.clone();
                return Ok(Standing::Stands { next, marks });
            }
            (MarkState::Other, _) => "another event stands before it now".to_owned(),
            (MarkState::NotParked, _) => "events that were parked before it were lost".to_owned(),
            (MarkState::Same | MarkState::Nothing, _) if is_same => {
                if self.may_be_ahead || storage.reaches(self.next, present).await? {
                    let found = storage.mark_at(self.next - 1, present).await?;
                    return Ok(Standing::Stands {
                        next: self.next,
                        marks: with_mark(&self.marks, found),
                    });
                }
                "the source ends before it".to_owned()
            }
            (MarkState::Same | MarkState::Nothing, _) => {
                "the event before it cannot be read any more, so nothing proves that it was not lost"
                    .to_owned()
            }
        };
        Ok(Standing::Lost(Halt {
            place: self.next,
            surviving: self.surviving(storage, present).await?,
            why,
        }))
    }

    /// Returns the place after the newest of the older marks that is where it was.
    async fn surviving(&self, storage: &Storage, present: Incarnation) -> Result<Option<u64>> {
        for mark in self.marks.iter().rev().skip(1) {
            if storage.find(mark, present).await? == MarkState::Same {
                return Ok(Some(mark.next()));
            }
        }
        Ok(None)
    }
}
