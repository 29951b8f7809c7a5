//! Where a projection or an effect begins that was never registered before.

use gesta_core::{Checkpoint, EventStore, LogId, Position, StoreInfo, Timestamp};

use crate::batch::not_of;
use crate::batch::positions;
use crate::error::Error;
use crate::one_log::next_in_log;

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

/// Returns where a version begins in the store as it is now that began at `floor` when it was registered. A floor
/// before the first event is one in every life of the store. Any other place means nothing in another life: then the
/// version begins where the program says.
///
/// # Errors
/// `Invalid` if the floor is of another life of the store and the program does not say where the version begins now;
/// `Store` if the store does not answer.
pub(crate) async fn floor_now(
    floor: &Checkpoint,
    told: Option<&BeginAt>,
    store: &dyn EventStore,
    info: &StoreInfo,
) -> Result<Checkpoint, Error> {
    let Some(why) = not_of(info, floor) else {
        return Ok(floor.clone());
    };
    let told = match told {
        _ if positions(floor).iter().all(|at| *at == Position::START) => &BeginAt::Start,
        Some(told) => told,
        None => {
            return Err(Error::Invalid(format!(
                "it began at {floor}, which is no place of the store any more ({why}): \
                 say with begin_at where it begins now"
            )));
        }
    };
    let place = told.place(store, info).await?;
    match not_of(info, &place) {
        None => Ok(place),
        Some(why) => Err(Error::Invalid(format!("it cannot begin at {place}: {why}"))),
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
            match next_in_log(store, log, Position(middle)).await? {
                Some(event) if event.created < time => before = event.position.0,
                // Between `middle` and this event is none.
                _ => end = middle,
            }
        }
        places.push(Position(before));
    }
    Ok(Checkpoint::logs(info.incarnation, places))
}
