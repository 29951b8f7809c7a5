//! Changes that nodes send again by themselves, whose events are not found stored.
//!
//! The earlier attempt of such a change may have been stored, its stream deleted, and its events scavenged: then
//! nothing is left by which it could be recognised. To store it now would bring the deleted stream back, or undo what
//! others have done since. So a change with other attempts ([`Attempt`]) is not stored if its stream was deleted, or if
//! its metadata were changed, after the end of the log that was known before all attempts; nor are events stored in a
//! stream whose metadata hide events (`$maxAge`, `$maxCount`, `$tb`), for those are scavenged too.
//!
//! * A later attempt is refused as *outcome unknown*: nobody can tell. This rests on the state of the stream alone, not
//!   on any memory.
//! * A first attempt can have been overtaken only by an attempt that another process has stored, or this one before it
//!   forgot what it knew. If others have stored nothing since, it is the only one. Otherwise it is refused as
//!   *overtaken*: if the node that has sent it gets this answer, it has made no other attempt, and sends it again with
//!   the end of the log as it is now. That this process itself has stored no later attempt, which was deleted since, is
//!   not looked at. It cannot be: later attempts come on newer lanes, and an owner never serves an older lane of a
//!   forwarder after a newer one (`Newest` in `crates/link`).
//!
//! Changes of streams of which nothing can be gone are not concerned. Nor are those with a claim that holds only if
//! no attempt was stored.

use gesta_core::{Attempt, ErrorKind, ExpectedRevision, Position};

use super::Sequencer;
use super::forming::DependentAnswer;
use super::knowledge::StreamState;
use crate::command::{Change, Command, IdSource, StreamPart};

impl<T> Sequencer<T> {
    /// Returns the answer to a command that holds and is not found stored, if another attempt of it may have been
    /// stored and deleted.
    pub(super) fn deleted_attempt(&mut self, command: &Command<T>) -> Option<DependentAnswer> {
        let (known, is_first) = match command.attempt {
            Attempt::Only => return None,
            Attempt::First(known) => (known, true),
            Attempt::Later(known) => (known, false),
        };
        let known = known.within(self.setting.incarnation);
        if is_first && self.recovery.others_until <= known {
            return None;
        }
        let mut found = None;
        for part in command.parts.iter().filter(|part| !part.is_question()) {
            let state = self.knowledge.tip(&part.stream).unwrap_or_default();
            match trace(part, &state, known) {
                Trace::NeverStored => return None,
                Trace::MayBeGone => found = found.or(Some(&part.stream)),
                Trace::None => {}
            }
        }
        let stream = found?.clone();
        Some(match is_first {
            true => DependentAnswer::Overtaken(stream),
            false => DependentAnswer::Refused(ErrorKind::OutcomeUnknown(format!(
                "a node has sent the change before, and the metadata of stream {stream} were changed since, as a \
                 delete does, or hide events: whether the earlier attempt was stored cannot be told any more"
            ))),
        })
    }
}

/// What the state of a stream tells about earlier attempts of a part whose events are not found.
#[derive(Debug, PartialEq, Eq)]
enum Trace {
    /// None was ever stored, nor was any other part of it.
    NeverStored,
    /// One may have been stored, and be gone.
    MayBeGone,
    /// If one was stored, it is there.
    None,
}

/// Returns what the state of the stream of a part tells, if the claim of the part holds. All attempts were made after
/// this end of the log.
fn trace(part: &StreamPart, state: &StreamState, known: Position) -> Trace {
    let (head, hides_events) = match part.change {
        Change::Events { .. } => (state.main, state.hides_events),
        // Of the events of a metadata stream only the last one stays: then the metadata were changed.
        Change::Lifecycle { .. } => (state.meta, false),
        Change::Owned { .. } | Change::Condition(_) => return Trace::None,
    };
    // Revisions are never given twice, so a stored attempt would have made the claim wrong.
    if head.is_none() || matches!(part.expected, ExpectedRevision::Exact(_)) {
        return Trace::NeverStored;
    }
    let was_changed = state.meta.is_some_and(|meta| meta.position > known);
    match part.ids_from() == IdSource::Client && (was_changed || hides_events) {
        true => Trace::MayBeGone,
        false => Trace::None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::command::{of_append, of_delete};
    use gesta_core::backend::{RowId, StreamHead};
    use gesta_core::{
        Append, DeleteKind, DeleteStream, EventData, EventId, EventType, LifecycleChange, Revision,
        StreamId,
    };

    const DELETED_AT: u64 = 18;

    fn head(position: u64) -> Option<StreamHead> {
        Some(StreamHead {
            row: RowId(10),
            last: Revision(5),
            position: Position(position),
            id: None,
        })
    }

    fn deleted(deleted_before: u64) -> StreamState {
        StreamState {
            main: head(15),
            meta: head(DELETED_AT),
            deleted_before: Revision(deleted_before),
            tombstoned: false,
            hides_events: false,
        }
    }

    fn stream() -> StreamId {
        StreamId::new("s").expect("valid")
    }

    fn part(expected: ExpectedRevision) -> StreamPart {
        let event = EventData::json(EventType::new("e").expect("valid"), "{}");
        let append = Append::to(stream(), expected, vec![event.with_id(EventId::random())]);
        of_append(append).expect("valid").parts.remove(0)
    }

    /// Goal: an attempt counts as gone only if its stream was deleted, or hid events, after the end of the log before
    /// all attempts.
    #[test]
    fn only_what_may_have_been_scavenged_leaves_doubt() {
        use ExpectedRevision::{Any, Exact, NoStream, StreamExists};
        let of = |expected, state, known| trace(&part(expected), &state, Position(known));
        for expected in [Any, NoStream, StreamExists] {
            let at = |known| of(expected, deleted(6), known);
            assert_eq!(at(DELETED_AT - 1), Trace::MayBeGone, "{expected}");
            assert_eq!(at(DELETED_AT), Trace::None, "{expected}");
            let never = of(expected, deleted(0), DELETED_AT);
            assert_eq!(never, Trace::None, "{expected}: never deleted");
            let bounded = StreamState {
                hides_events: true,
                ..deleted(0)
            };
            let bounded = of(expected, bounded, DELETED_AT);
            assert_eq!(bounded, Trace::MayBeGone, "{expected}: bounded before");
            let fresh = of(expected, StreamState::default(), 0);
            assert_eq!(fresh, Trace::NeverStored, "{expected}: no stream");
        }
        let exact = of(Exact(Revision(5)), deleted(6), 0);
        assert_eq!(exact, Trace::NeverStored);
    }

    /// Goal: of a change of a stream's life nothing is left once another one has come after it.
    #[test]
    fn a_change_of_life_may_be_gone_after_any_other() {
        let request = DeleteStream {
            stream: stream(),
            expected: ExpectedRevision::Any,
            kind: DeleteKind::Soft,
        };
        let part = of_delete(request, Some(EventId::random()));
        assert!(matches!(
            part.change,
            Change::Lifecycle {
                kind: LifecycleChange::Deleted,
                ..
            }
        ));
        let of = |state, known| trace(&part, &state, Position(known));
        assert_eq!(of(deleted(3), DELETED_AT - 1), Trace::MayBeGone);
        assert_eq!(of(deleted(3), DELETED_AT), Trace::None);
        let without = StreamState {
            meta: None,
            ..deleted(0)
        };
        assert_eq!(of(without, 0), Trace::NeverStored);
    }

    /// Goal: an event whose id the store has made has no other attempt that could be recognised.
    #[test]
    fn ids_of_the_store_leave_no_doubt() {
        let mut part = part(ExpectedRevision::Any);
        if let Change::Events { ids, .. } = &mut part.change {
            *ids = IdSource::Store;
        }
        assert_eq!(trace(&part, &deleted(6), Position(0)), Trace::None);
    }
}
