//! How far a version is behind: told by the age of the oldest event that it has not applied, not by a count.
//!
//! Why: a count says nothing about time, and is never zero for a filter that lets little pass. The age is right while
//! nothing happens, in one look.

use std::time::Duration;

use gesta_core::{AllFrom, Checkpoint, Clock, EventStore, Filter, ReadAll, SystemClock, Timestamp};

use crate::batch::{covers, distance, not_of, positions};
use crate::error::{Error, other_store};

/// Pages of a store that are read at most to find the oldest event that is not applied yet: a million positions. For a
/// version that stands still, with a filter that lets little pass, the store would else be read each time it is shown.
pub const LAG_PAGES_MAX: usize = 20;

/// How far a projection is behind.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Lag {
    /// Age of the oldest event that matches and is not applied yet; zero if there is none, and `None` if none was found
    /// in [`LAG_PAGES_MAX`] pages of the store, though there may be one later.
    pub age: Option<Duration>,
    /// Positions of all logs that were not looked at yet, whether their events match or not.
    pub positions: u64,
}

/// Returns how far a place is behind the end of the store.
pub(crate) async fn lag_at(
    store: &dyn EventStore,
    place: &Checkpoint,
    filter: &Filter,
) -> Result<Lag, Error> {
    let heads = store.info().await?;
    let head = Checkpoint::logs(heads.incarnation, heads.heads);
    let age = match next_match(store, place, filter, &head, LAG_PAGES_MAX).await? {
        Next::At(created) => {
            let age = SystemClock.now().as_micros() - created.as_micros();
            Some(Duration::from_micros(u64::try_from(age).unwrap_or(0)))
        }
        Next::Nothing => Some(Duration::ZERO),
        Next::Unknown => None,
    };
    let positions = distance(place, &head);
    Ok(Lag { age, positions })
}

/// The first event that matches after a place and up to another one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Next {
    /// It was stored at this time.
    At(Timestamp),
    /// There is none.
    Nothing,
    /// None was found in so many pages as might be read.
    Unknown,
}

/// Looks in so many pages for the first event that matches after a place and up to another one.
///
/// # Errors
/// `Invalid` if the store does not reach so far: what is not stored yet, or no longer, may match. `Store` if the store
/// does not answer.
pub(crate) async fn next_match(
    store: &dyn EventStore,
    place: &Checkpoint,
    filter: &Filter,
    up_to: &Checkpoint,
    pages_max: usize,
) -> Result<Next, Error> {
    let mut from = place.clone();
    for _ in 0..pages_max {
        let request = ReadAll::forwards()
            .from(AllFrom::Checkpoint(from))
            .filter(filter.clone())
            .limit(1);
        let page = store.read_all(request).await?;
        let log_end = |log: usize| positions(up_to).get(log).copied().unwrap_or_default();
        if let Some(event) = page.events.first() {
            if event.position <= log_end(usize::from(event.log.0)) {
                return Ok(Next::At(event.created));
            }
            if positions(up_to).len() == 1 {
                return Ok(Next::Nothing);
            }
        }
        if covers(&page.next, up_to) == Some(true) {
            return Ok(Next::Nothing);
        }
        // The page may have been read before what was appended since.
        if page.end && not_of(&store.info().await?, up_to).is_some() {
            return Err(other_store(up_to));
        }
        from = page.next;
    }
    Ok(Next::Unknown)
}
