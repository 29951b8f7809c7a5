//! Where a projection or an effect begins that was never registered before.

use gesta_core::{AllFrom, Checkpoint, EventStore, LogId, Position, ReadAll, StoreInfo, Timestamp};

use crate::error::Error;

/// Where a version begins that was never registered before. It is kept with the version: a reset begins there again,
/// and a later version that says nothing else begins there too.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum BeginAt {
    /// Before the first event.
    Start,
    /// After the last event that is stored when it is registered.
    End,
    /// After a place.
    Checkpoint(Checkpoint),
    /// Before the first event, of each log, that was stored at this time or later.
    Time(Timestamp),
}

impl BeginAt {
    /// Returns the place in the store as it is now.
    pub(crate) async fn place(
        &self,
        store: &dyn EventStore,
        info: &StoreInfo,
    ) -> Result<Checkpoint, Error> {
        let places = match self {
            BeginAt::Start => vec![Position::START; info.heads.len()],
            BeginAt::End => info.heads.clone(),
            BeginAt::Checkpoint(checkpoint) => return Ok(checkpoint.clone()),
            BeginAt::Time(time) => return place_at(store, info, *time).await,
        };
        Ok(Checkpoint::logs(info.incarnation, places))
    }
}

/// Returns the place before the first event of each log that was stored at this time or later. The times of a log never
/// decrease, so each is found by some twenty or forty reads of one event.
async fn place_at(
    store: &dyn EventStore,
    info: &StoreInfo,
    time: Timestamp,
) -> Result<Checkpoint, Error> {
    let mut places = Vec::with_capacity(info.heads.len());
    for (log, head) in (0..).map(LogId).zip(&info.heads) {
        let (mut before, mut end) = (0, head.0);
        // Every event up to `before` is older; the events after `end` are not.
        while before < end {
            let middle = before + (end - before) / 2;
            let mut at = vec![Position::START; info.heads.len()];
            at[usize::from(log.0)] = Position(middle);
            let from = AllFrom::Checkpoint(Checkpoint::logs(info.incarnation, at));
            let request = ReadAll::forwards().only(log).from(from).limit(1);
            let page = store.read_all(request).await?;
            match page.events.first() {
                Some(event) if event.created < time => before = event.position.0,
                // Between `middle` and this event is none.
                _ => end = middle,
            }
        }
        places.push(Position(before));
    }
    Ok(Checkpoint::logs(info.incarnation, places))
}
