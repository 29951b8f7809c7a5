//! The calls of the store that a group needs, as futures that its task drives beside everything else.

use std::ops::Range;
use std::time::Duration;

use gesta_core::{
    BackOff, Checkpoint, Error, ErrorKind, ExpectedRevision, Filter, Incarnation, LastingFault,
    Place, Result, Revision, Subscribe, SubscribeFrom, SubscribeTo, Subscription, Timestamp,
    warn_once,
};
use uuid::Uuid;

use crate::machine::{Machine, ParkOrder, Token};
use crate::mark::{Mark, MarkState, ParkedMark, another_history};
use crate::names::Source;
use crate::record::{self, Course, Progressed};
use crate::storage::{ParkedPage, Storage};

/// Most events that are parked at once.
const PARK_EVENTS_MAX: usize = 500;

/// The result of a call of the store.
pub(crate) enum Done {
    Subscribed(Result<Subscription>),
    /// A checkpoint was written at this revision; `None`: another process has written one.
    Checkpoint(Result<Option<Revision>>),
    /// The events with these numbers are parked, the last of them by this link.
    Parked(Vec<Token>, Result<Option<ParkedMark>>),
    LookedUp(Result<ParkedPage>),
    Truncated(Result<()>),
}

/// Returns the place up to which a subscription has looked; `None` if the checkpoint has no place.
pub(crate) fn place_of(checkpoint: &Checkpoint) -> Option<u64> {
    match &checkpoint.place {
        Place::Logs(positions) => positions.first().map(|position| position.0),
        Place::Stream { revision, .. } => revision.map(|revision| revision.0),
    }
}

/// Where the subscription of a group begins.
#[derive(Clone, Debug)]
pub(crate) struct From {
    /// First place to read.
    pub(crate) next: u64,
    /// Event before it that the group has read.
    pub(crate) mark: Option<Mark>,
    /// Incarnation of the store in which the place was reached.
    pub(crate) incarnation: Incarnation,
    /// Whether the place is the one at which the group begins, which may be beyond the end of the source.
    pub(crate) may_be_ahead: bool,
}

/// Subscribes to the source.
pub(crate) async fn subscribe(storage: Storage, filter: Filter, from: From) -> Done {
    let mut pauses = BackOff::new(Duration::from_millis(20), Duration::from_secs(2));
    let mut told = LastingFault::default();
    loop {
        match subscribe_once(&storage, &filter, &from).await {
            Err(error) if error.is_retryable() => {
                let group = &storage.group;
                warn_once!(told, %group, %error, "a consumer group waits for its source");
                tokio::time::sleep(pauses.pause()).await;
            }
            outcome => return Done::Subscribed(outcome),
        }
    }
}

async fn subscribe_once(storage: &Storage, filter: &Filter, from: &From) -> Result<Subscription> {
    if let Some(mark) = &from.mark
        && let MarkState::Other | MarkState::NotParked =
            storage.find(mark, from.incarnation).await?
    {
        return Err(another_history());
    }
    let mut after = from.next.checked_sub(1);
    if from.may_be_ahead {
        // What comes before the place is passed over by the group.
        let end = storage.end_of_source().await?;
        after = after.min(end.checked_sub(1));
    }
    let to = match storage.group.source() {
        Source::Stream(stream) => SubscribeTo::Stream(stream.clone()),
        Source::All => {
            let logs = storage.store.info().await?.logs;
            if logs != 1 {
                return Err(several_logs(logs));
            }
            SubscribeTo::All(filter.clone())
        }
    };
    let from = match after {
        None => SubscribeFrom::Start,
        Some(after) => SubscribeFrom::Checkpoint(storage.checkpoint_at(after, from.incarnation)),
    };
    storage.store.subscribe(Subscribe { to, from }).await
}

/// Makes the error that tells why a store of several logs has no groups on all events.
pub(crate) fn several_logs(logs: u16) -> Error {
    ErrorKind::Unsupported(format!(
        "a group on all events needs one order of them, but this store has {logs} logs: \
         make a group for each stream, or a store with one log"
    ))
    .into()
}

pub(crate) async fn checkpoint(
    storage: Storage,
    checkpoint: Progressed,
    expected: ExpectedRevision,
) -> Done {
    Done::Checkpoint(storage.write_checkpoint(checkpoint, expected).await)
}

/// Takes the events that are to be parked next, at most as many as are parked at once.
pub(crate) fn take_orders(machine: &mut Machine) -> Vec<ParkOrder> {
    std::iter::from_fn(|| machine.next_park())
        .take(PARK_EVENTS_MAX)
        .collect()
}

pub(crate) async fn park(
    storage: Storage,
    course: Course,
    orders: Vec<ParkOrder>,
    added: Timestamp,
    present: Incarnation,
) -> Done {
    let source = storage.group.source();
    let link = |order: &ParkOrder| record::parked(source, course, order, added);
    let links: Result<Vec<_>> = orders.iter().map(link).collect();
    let tokens = orders.iter().map(|order| order.token).collect();
    // The events themselves are not needed any more.
    drop(orders);
    match links {
        Ok(links) => Done::Parked(tokens, storage.park(links, present).await),
        Err(error) => Done::Parked(tokens, Err(error)),
    }
}

pub(crate) async fn look_up(storage: Storage, range: Range<u64>, life: Uuid) -> Done {
    Done::LookedUp(storage.look_up_parked(range, life).await)
}

pub(crate) async fn truncate(storage: Storage, before: u64, present: Incarnation) -> Done {
    Done::Truncated(storage.truncate_parked(before, present).await)
}
