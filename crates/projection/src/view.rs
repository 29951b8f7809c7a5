//! Views: read models as pure functions, a row for each key.
//!
//! Why: most read models are "the row of this key, changed by this event". So written they run on every target, are
//! tested without a database, and are fast: a batch is folded in memory, and each row is written once.

use gesta_core::{Filter, RecordedEvent};

use crate::error::ApplyError;
use crate::row::{Key, Row};

/// A read model with a row for each key. Both functions are pure: they depend on nothing but their arguments.
///
/// The rows are in the table `NAME_vVERSION`; readers use the SQL view `NAME`, which shows the active version.
pub trait View: Send + Sync + 'static {
    /// Name of the view: a letter, then up to 39 lower-case letters, digits and `_`.
    const NAME: &'static str;
    /// Version of the code: whoever changes what the functions do, the filter or the columns raises it, and the rows
    /// are built anew beside those of the version before.
    const VERSION: u32;
    /// Names of the columns of the key.
    const KEY: &'static [&'static str] = &["id"];
    /// What tells the rows apart.
    type Key: Key;
    /// The rest of the row; [`columns!`](crate::columns) makes one.
    type Row: Row;

    /// Returns which events the view is made of.
    fn filter(&self) -> Filter;

    /// Returns the key of the row that the event changes, if it changes one.
    fn key(&self, event: &RecordedEvent) -> Option<Self::Key>;

    /// Changes the row. `None` is a row that does not exist; setting it to `None` deletes it.
    ///
    /// # Errors
    /// An event that cannot be read, or that cannot follow on what the row says: then the projection does as it is told
    /// by [`OnPoison`](crate::OnPoison).
    fn evolve(&self, row: &mut Option<Self::Row>, event: &RecordedEvent) -> Result<(), ApplyError>;

    /// Is called before [`evolve`](Self::evolve) when the row does not exist, and the first events of the event's
    /// stream were hidden or removed (`$tb`, `$maxCount`, `$maxAge`, scavenged) before the view could see them: the row
    /// may not be what a fold of all events gives. By default the event is folded like any other, and the number of
    /// such streams is reported.
    ///
    /// What is hidden after the view has seen it is not told, with one exception: if everything that the view has seen
    /// of a stream was hidden while no process ran it, nobody can know that it was seen.
    ///
    /// Nor is it told of a stream whose first event that a process meets is of a row that is there: the row is taken
    /// for a sign that the view has seen the stream, though another stream of this key may have made it.
    ///
    /// # Errors
    /// As [`evolve`](Self::evolve).
    fn front_hidden(
        &self,
        row: &mut Option<Self::Row>,
        event: &RecordedEvent,
    ) -> Result<(), ApplyError> {
        let _ = (row, event);
        Ok(())
    }
}
