//! Effects: what happens outside of any database, at least once for each event.

use gesta_core::{Filter, RecordedEvent};

use crate::error::ApplyError;

/// Something that is done for each event, at least once and in order: a mail, a call over HTTP.
///
/// The checkpoint is kept in the event store, after the event was handled; a crash in between repeats the last events.
/// The id of the event is the key by which the other side recognises a repetition. A new version begins where the
/// version before it stands.
pub trait Effect: Send + Sync + 'static {
    /// Name of the effect: a letter, then up to 39 lower-case letters, digits and `_`.
    const NAME: &'static str;
    /// Version of the code. A process with an older version than the last one that ran does nothing.
    const VERSION: u32;

    /// Returns for which events something is done.
    fn filter(&self) -> Filter;

    /// Does it. `attempt` begins with 1 and counts the attempts of this process.
    ///
    /// # Errors
    /// The event is tried again after a pause; after the last attempt the effect does as it is told by
    /// [`OnPoison`](crate::OnPoison).
    fn perform(
        &self,
        event: &RecordedEvent,
        attempt: u32,
    ) -> impl Future<Output = Result<(), ApplyError>> + Send;
}
