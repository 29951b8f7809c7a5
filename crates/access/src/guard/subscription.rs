//! A subscription that delivers what its caller may see, and ends when the rights of the caller do.
//!
//! Invariant: for a caller who may not see every event, the messages, their checkpoints and their order depend on the
//! events that the caller may see and on positions alone. A store passes its logs in turns that end at positions,
//! whatever its filter finds (`crates/tail/src/all.rs`). At each multiple of a number of positions it tells where it is
//! ([`CHECKPOINT_POSITIONS_CATCHING_UP`]), by a checkpoint or by an event. These places are all that the caller gets
//! between events: so it makes no difference at which other places the store sends something that the caller does not
//! get. In a virtual stream, where revisions count the links that are left out, places are not told but with links,
//! and once after very many links that were left out.
//!
//! Not hidden: when a message comes; how the logs mix while events are being stored, because that depends on time; and
//! when a live subscriber has fallen behind, because the newest events that a store keeps are bounded by their size.
//! The first checkpoint after a caller has lost the right to see everything may depend on a hidden event that matches.

use std::future::ready;

use futures::stream;
use gesta_core::limits::PAGE_SCAN_MAX;
use gesta_core::{
    CHECKPOINT_POSITIONS_CATCHING_UP, CHECKPOINT_POSITIONS_LIVE, Checkpoint, Error, ErrorKind,
    Place, Position, ReadStream, Result, Revision, SharedEvent, StreamId, Subscribe, SubscribeFrom,
    SubscribeTo, Subscription, SubscriptionMessage, next_multiple,
};
use tokio::sync::watch;

use super::Guarded;
use crate::rights::Operation;

struct Running {
    guarded: Guarded,
    inner: Subscription,
    of: Subject,
    changes: watch::Receiver<u64>,
    /// Whether the caller may see every event, as far as is known. It is looked at again when rights have changed.
    sees_all: bool,
    has_ended: bool,
}

/// What is followed.
enum Subject {
    Stream(StreamId),
    /// A virtual stream: of its links the caller gets those that lead to what they may read.
    Virtual {
        stream: StreamId,
        /// Revision of the last link that the caller was told of.
        told: Option<Revision>,
        left_out: u64,
    },
    All(ShownTo),
}

/// How far a caller knows that all events were looked at.
struct ShownTo {
    /// Position of each log; `None` as long as the number of logs is not known.
    positions: Option<Vec<Position>>,
    is_live: bool,
    /// The message of the store that the caller is being told. The checkpoints before it are made one by one, as the
    /// caller takes them: there may be very many, where positions have a hole.
    pending: Option<Pending>,
}

struct Pending {
    message: SubscriptionMessage,
    /// Whether the caller may see the event, if the message is one.
    is_shown: bool,
}

/// Begins a subscription, which the caller may begin.
pub(super) async fn begin(
    guarded: Guarded,
    mut request: Subscribe,
    changes: watch::Receiver<u64>,
) -> Result<Subscription> {
    let sees_all = guarded.access.shared.sees_all(&guarded.caller)?;
    let of = match &request.to {
        SubscribeTo::Stream(stream) if stream.is_virtual() => {
            let stream = stream.clone();
            let mut told = None;
            if !sees_all {
                (request.from, told) = begin_virtual(&guarded, &stream, request.from).await?;
            }
            Subject::Virtual {
                stream,
                told,
                left_out: 0,
            }
        }
        SubscribeTo::Stream(stream) => Subject::Stream(stream.clone()),
        SubscribeTo::All(_) => Subject::All(ShownTo {
            positions: match &request.from {
                SubscribeFrom::Checkpoint(Checkpoint {
                    place: Place::Logs(positions),
                    ..
                }) => Some(positions.clone()),
                _ => None,
            },
            is_live: false,
            pending: None,
        }),
    };
    let from_start = matches!(request.from, SubscribeFrom::Start);
    let inner = guarded.store.subscribe(request).await?;
    let mut running = Running {
        guarded,
        inner,
        of,
        changes,
        sees_all,
        has_ended: false,
    };
    if from_start
        && !sees_all
        && let Subject::All(told) = &mut running.of
    {
        let logs = running.guarded.store.info().await?.heads.len();
        told.positions = Some(vec![Position::START; logs]);
    }
    Ok(Subscription::new(stream::unfold(
        running,
        |mut running| async {
            let message = running.next().await?;
            running.has_ended = message.is_err();
            Some((message, running))
        },
    )))
}

/// Returns where a subscription to a virtual stream begins for a caller who may not see all its links, and the revision
/// that the caller then knows. A place after the last link is not refused, because that would tell where the last one
/// is.
async fn begin_virtual(
    guarded: &Guarded,
    stream: &StreamId,
    from: SubscribeFrom,
) -> Result<(SubscribeFrom, Option<Revision>)> {
    let after = match &from {
        SubscribeFrom::Start => None,
        SubscribeFrom::Revision(revision) => Some(*revision),
        SubscribeFrom::Checkpoint(checkpoint) => {
            checkpoint.revision_for(checkpoint.incarnation, stream)?
        }
        SubscribeFrom::End => return Ok((from, guarded.last_link(stream).await?)),
    };
    let newest = ReadStream::backwards(stream.clone()).limit(1);
    let last = match guarded.store.read_stream(newest).await {
        Ok(page) => Some(page.last_revision),
        Err(error) if matches!(error.kind(), ErrorKind::StreamNotFound(_)) => None,
        Err(error) => return Err(error),
    };
    let begin = after.min(last);
    let from = match (from, begin) {
        (SubscribeFrom::Checkpoint(checkpoint), begin) => {
            let begin = Checkpoint::stream(checkpoint.incarnation, stream, begin);
            SubscribeFrom::Checkpoint(begin)
        }
        (_, Some(begin)) => SubscribeFrom::Revision(begin),
        (_, None) => SubscribeFrom::Start,
    };
    Ok((from, after))
}

impl Running {
    async fn next(&mut self) -> Option<Result<SubscriptionMessage>> {
        if self.has_ended {
            return None;
        }
        loop {
            let wait = self.guarded.wait();
            tokio::select! {
                biased;
                changed = self.changes.changed() => {
                    let checked = match changed {
                        Ok(()) => self.look_again().await,
                        Err(_) => Err(Error::unavailable("the accounts are no longer followed")),
                    };
                    if let Err(error) = checked {
                        return Some(Err(error));
                    }
                }
                () = ready(()), if self.of.has_pending() => {
                    if let Some(message) = self.of.step() {
                        return Some(Ok(message));
                    }
                }
                // A user who has had too much is told of changes of rights, but gets no more events.
                () = tokio::time::sleep(wait.unwrap_or_default()), if wait.is_some() => {}
                message = self.inner.next(), if wait.is_none() => {
                    let taken = match message? {
                        Ok(message) => self.take(message).await,
                        Err(error) => Err(self.guarded.told(error)),
                    };
                    match taken {
                        Ok(None) => {}
                        Ok(Some(message)) => return Some(Ok(message)),
                        Err(error) => return Some(Err(error)),
                    }
                }
            }
        }
    }

    /// Checks the rights again, which have changed.
    async fn look_again(&mut self) -> Result<()> {
        let operation = match &self.of {
            Subject::Stream(stream) | Subject::Virtual { stream, .. } => Operation::Read(stream),
            Subject::All(_) => Operation::ReadMany,
        };
        let guarded = &self.guarded;
        guarded.check(operation).await?;
        let shared = &guarded.access.shared;
        let sees_all = shared.sees_all(&guarded.caller)?;
        if let Subject::All(told) = &mut self.of {
            if sees_all != self.sees_all {
                // Who saw everything was told of everything up to the next message.
                told.positions = None;
            }
            // The event may have waited for long.
            if let Some(Pending { message, is_shown }) = &mut told.pending
                && let SubscriptionMessage::Event { event, .. } = message
            {
                *is_shown = *is_shown && shared.shows(&guarded.caller, event).await?;
            }
        }
        self.sees_all = sees_all;
        Ok(())
    }

    /// Returns the first that the caller gets of a message; `None` if nothing. The rest is pending.
    async fn take(&mut self, message: SubscriptionMessage) -> Result<Option<SubscriptionMessage>> {
        let shown = match &message {
            SubscriptionMessage::Event { event, .. } => {
                shows(&self.guarded, &self.of, event).await?
            }
            _ => true,
        };
        if shown && let SubscriptionMessage::Event { event, .. } = &message {
            self.guarded.had(event.payload_bytes());
        }
        if self.sees_all {
            if let Subject::Virtual { told, .. } = &mut self.of {
                *told = revision_of(&message);
            }
            return Ok(shown.then_some(message));
        }
        match &mut self.of {
            Subject::Stream(_) => Ok(Some(message)),
            Subject::Virtual {
                stream,
                told,
                left_out,
            } => Ok(of_virtual(stream, told, left_out, message, shown)),
            Subject::All(told) => Ok(told.take(message, shown)),
        }
    }
}

impl Subject {
    /// Tells whether more may come of the last message of the store.
    fn has_pending(&self) -> bool {
        matches!(self, Self::All(told) if told.pending.is_some())
    }

    /// Returns what the caller gets next of the last message of the store; `None` if nothing more.
    fn step(&mut self) -> Option<SubscriptionMessage> {
        match self {
            Self::All(told) => told.step(),
            Self::Stream(_) | Self::Virtual { .. } => None,
        }
    }
}

/// Tells whether the caller may see an event of what is followed.
async fn shows(guarded: &Guarded, of: &Subject, event: &SharedEvent) -> Result<bool> {
    match of {
        // Events of one stream are delivered or the subscription ends; only links to hidden events are left out.
        Subject::Stream(stream) => {
            guarded.check(Operation::Read(stream)).await?;
            Ok(true)
        }
        Subject::Virtual { stream, .. } => {
            guarded.check(Operation::Read(stream)).await?;
            guarded.may_follow(event).await
        }
        Subject::All(_) => {
            let shared = &guarded.access.shared;
            shared.shows(&guarded.caller, event).await
        }
    }
}

/// Returns the revision up to which a message tells that a stream was looked at.
fn revision_of(message: &SubscriptionMessage) -> Option<Revision> {
    let (SubscriptionMessage::Event { checkpoint, .. }
    | SubscriptionMessage::Checkpoint(checkpoint)
    | SubscriptionMessage::CaughtUp(checkpoint)
    | SubscriptionMessage::FellBehind(checkpoint)) = message;
    match checkpoint.place {
        Place::Stream { revision, .. } => revision,
        Place::Logs(_) => None,
    }
}

fn of_virtual(
    stream: &StreamId,
    told: &mut Option<Revision>,
    left_out: &mut u64,
    message: SubscriptionMessage,
    shown: bool,
) -> Option<SubscriptionMessage> {
    match message {
        SubscriptionMessage::Event { event, checkpoint } if shown => {
            *told = Some(event.revision);
            *left_out = 0;
            Some(SubscriptionMessage::Event { event, checkpoint })
        }
        SubscriptionMessage::Event { event, checkpoint } => {
            *left_out += 1;
            if *left_out < PAGE_SCAN_MAX {
                return None;
            }
            // A reader who may see little of very much gets on nevertheless.
            *told = Some(event.revision);
            *left_out = 0;
            Some(SubscriptionMessage::Checkpoint(checkpoint))
        }
        SubscriptionMessage::Checkpoint(_) => None,
        SubscriptionMessage::CaughtUp(Checkpoint { incarnation, .. }) => {
            let known = Checkpoint::stream(incarnation, stream, *told);
            Some(SubscriptionMessage::CaughtUp(known))
        }
        SubscriptionMessage::FellBehind(Checkpoint { incarnation, .. }) => {
            let known = Checkpoint::stream(incarnation, stream, *told);
            Some(SubscriptionMessage::FellBehind(known))
        }
    }
}

impl ShownTo {
    /// Takes the next message of the store, of which everything that was pending was told. Returns as
    /// [`step`](Self::step) does.
    fn take(
        &mut self,
        message: SubscriptionMessage,
        is_shown: bool,
    ) -> Option<SubscriptionMessage> {
        self.pending = Some(Pending { message, is_shown });
        self.step()
    }

    /// Returns the next checkpoint before the pending message, or that message after the last one; `None` if it is not
    /// told.
    fn step(&mut self) -> Option<SubscriptionMessage> {
        let Pending {
            mut message,
            is_shown,
        } = self.pending.take()?;
        let own = match &message {
            SubscriptionMessage::Event { event, .. } => {
                is_shown.then(|| (usize::from(event.log.0), event.position))
            }
            _ => None,
        };
        let has_caught_up = matches!(message, SubscriptionMessage::CaughtUp(_));
        let has_fallen_behind = matches!(message, SubscriptionMessage::FellBehind(_));
        let checkpoint = match &mut message {
            SubscriptionMessage::Event { checkpoint, .. }
            | SubscriptionMessage::Checkpoint(checkpoint)
            | SubscriptionMessage::CaughtUp(checkpoint)
            | SubscriptionMessage::FellBehind(checkpoint) => checkpoint,
        };
        let incarnation = checkpoint.incarnation;
        let Place::Logs(reached) = &mut checkpoint.place else {
            return Some(message);
        };
        let told = self.positions.get_or_insert_with(|| reached.clone());
        told.resize(reached.len(), Position::START);
        // Who falls behind is told at once of the places that were left out while live. Later they would come with the
        // next message of the store, whichever that is.
        let step = match self.is_live && !has_fallen_behind {
            true => CHECKPOINT_POSITIONS_LIVE,
            false => CHECKPOINT_POSITIONS_CATCHING_UP,
        };
        let end = |log: usize| match own {
            Some((own, position)) if own == log => Position(position.0.saturating_sub(1)),
            _ => reached[log],
        };
        if let Some(log) = (0..told.len()).find(|log| next_multiple(told[*log], step) <= end(*log))
        {
            told[log] = next_multiple(told[log], step);
            let passed = Checkpoint::logs(incarnation, told.clone());
            self.pending = Some(Pending { message, is_shown });
            return Some(SubscriptionMessage::Checkpoint(passed));
        }
        if has_caught_up {
            self.is_live = true;
            told.clone_from(reached);
            return Some(message);
        }
        if has_fallen_behind {
            self.is_live = false;
            reached.clone_from(told);
            return Some(message);
        }
        let (log, position) = own?;
        if let Some(told) = told.get_mut(log) {
            *told = position;
        }
        reached.clone_from(told);
        Some(message)
    }
}

#[cfg(test)]
mod tests {
    use gesta_core::Incarnation;

    use super::*;

    /// What happened: a message after a hole of positions, which scavenging leaves, made all checkpoints of the hole at
    /// once, 100,000 for a hole of 100 million. Goal: each is made when the caller takes it.
    #[test]
    fn checkpoints_of_a_hole_are_made_one_by_one() {
        let incarnation = Incarnation::random();
        let at = |logs: [u64; 2]| Checkpoint::logs(incarnation, logs.map(Position).to_vec());
        let checkpoint = |logs| Some(SubscriptionMessage::Checkpoint(at(logs)));
        let begin = || ShownTo {
            positions: Some(vec![Position::START; 2]),
            is_live: false,
            pending: None,
        };
        let mut shown = begin();
        let caught_up = SubscriptionMessage::CaughtUp(at([u64::MAX / 2, 0]));
        assert_eq!(shown.take(caught_up, true), checkpoint([1_000, 0]));
        for count in 2..=10 {
            assert_eq!(shown.step(), checkpoint([count * 1_000, 0]));
        }
        assert!(!shown.is_live, "as long as it was not told");

        let mut shown = begin();
        let caught_up = SubscriptionMessage::CaughtUp(at([2_001, 1_000]));
        assert_eq!(shown.take(caught_up.clone(), true), checkpoint([1_000, 0]));
        assert_eq!(shown.step(), checkpoint([2_000, 0]));
        assert_eq!(shown.step(), checkpoint([2_000, 1_000]));
        assert_eq!(shown.step(), Some(caught_up));
        assert_eq!(shown.step(), None);
        let passed = SubscriptionMessage::Checkpoint(at([2_001, 12_000]));
        assert_eq!(shown.take(passed, true), checkpoint([2_001, 10_000]));
        assert_eq!(shown.step(), None, "a checkpoint of the store is not told");
    }
}
