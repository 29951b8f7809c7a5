//! Reads one log of a store by places in it, also of a server, which reads all logs together.

use gesta_core::{
    AllFrom, Checkpoint, Error, EventStore, LogId, Position, ReadAll, RecordedEvent, Result,
};

/// How often it is begun again at most, while other logs grow.
const TRIES_MAX: usize = 100;

/// Returns the first event of a log after a position; `None` if there is none.
///
/// # Errors
/// The errors of the store; `Unavailable` if other logs are appended to all the time.
pub(crate) async fn next_in_log(
    store: &dyn EventStore,
    log: LogId,
    after: Position,
) -> Result<Option<RecordedEvent>> {
    for _ in 0..TRIES_MAX {
        let info = store.info().await?;
        // The read begins at the ends of all other logs.
        let mut before = info.heads;
        let place = before.get_mut(usize::from(log.0));
        // A store that was restored is behind what is asked for.
        let Some(place) = place.filter(|head| after < **head) else {
            return Ok(None);
        };
        *place = after;
        let mut from = Checkpoint::logs(info.incarnation, before);
        loop {
            let request = ReadAll::forwards().from(AllFrom::Checkpoint(from)).limit(1);
            let page = store.read_all(request).await?;
            match page.events.into_iter().next() {
                Some(event) if event.log == log => return Ok(Some(event)),
                // Somebody has just appended to another log.
                Some(_) => break,
                None if page.end => return Ok(None),
                None => from = page.next,
            }
        }
    }
    Err(Error::unavailable(
        "other logs are appended to so fast that a place in one cannot be read",
    ))
}
