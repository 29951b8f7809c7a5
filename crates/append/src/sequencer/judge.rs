//! Says whether a claim holds: pure functions from the state of a stream and a request to an answer.
//!
//! Invariant: whatever the claim, events whose ids the client made are neither stored again nor answered as a retry if
//! they were stored before the last delete of their stream, or if the stream is tombstoned. So no late repetition, by a
//! client or by a node, brings a deleted stream back, and nobody is told that what cannot be read is there. What is
//! known of no more, because it was scavenged, is judged in `repeated`.

use gesta_core::{
    After, AppendedStream, ErrorKind, ExpectedRevision, LifecycleChange, Position, Revision,
};

use super::knowledge::heads::StreamState;
use super::lookup::Found;
use crate::command::{About, Change, IdSource, StreamPart};

/// The answer to a claim.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Fit {
    /// The claim holds.
    Fits,
    /// The claim holds, unless the events are stored already; their ids decide.
    FitsUnlessStored,
    /// The claim holds, whatever is stored, unless the events were stored before the last delete of the stream; their
    /// ids decide.
    FitsUnlessDeleted,
    /// The claim does not hold, unless exactly these events are stored from this revision on.
    RefusedUnlessStoredAt(Revision, ErrorKind),
    /// The claim does not hold, unless the events are stored already; their ids decide.
    RefusedUnlessStored(ErrorKind),
    /// The claim does not hold. If the events were stored before the last delete of the stream, the refusal says so;
    /// their ids decide.
    RefusedUnlessDeleted(ErrorKind),
    /// The claim does not hold.
    Refused(ErrorKind),
    /// The claim of a condition does not hold. The events of the other parts decide whether the command is a retry,
    /// which is answered all the same.
    ConditionFails(ErrorKind),
}

/// Checks the claim of one part against the state of its stream.
pub(crate) fn check(part: &StreamPart, state: &StreamState) -> Fit {
    if state.tombstoned {
        let refusal = ErrorKind::StreamTombstoned(part.stream.clone());
        return match part.change {
            Change::Condition(_) => Fit::ConditionFails(refusal),
            // A change of metadata is no reason for its own refusal: it is refused as events are.
            Change::Lifecycle {
                claim: About::Metadata,
                ..
            } => Fit::Refused(refusal),
            _ => refused_lifecycle(part, refusal),
        };
    }
    match &part.change {
        Change::Events { .. } => {
            check_target(part, state.main.map(|head| head.last), state.deleted_before)
        }
        Change::Owned { after, .. } => check_owner(part, *after, state),
        Change::Condition(about) => {
            let fit = match about {
                About::Events => {
                    check_target(part, state.main.map(|head| head.last), state.deleted_before)
                }
                About::Metadata => {
                    check_target(part, state.meta.map(|head| head.last), Revision(0))
                }
            };
            match fit {
                Fit::Refused(refusal) => Fit::ConditionFails(refusal),
                fit => fit,
            }
        }
        Change::Lifecycle {
            claim: About::Metadata,
            ..
        } => check_target(part, state.meta.map(|head| head.last), Revision(0)),
        Change::Lifecycle { kind, .. } => {
            let fit = check_target(part, state.main.map(|head| head.last), state.deleted_before);
            match fit {
                Fit::RefusedUnlessStoredAt(_, refusal)
                | Fit::RefusedUnlessStored(refusal)
                | Fit::RefusedUnlessDeleted(refusal)
                | Fit::Refused(refusal) => refused_lifecycle(part, about_the_stream(refusal, part)),
                _ if *kind == LifecycleChange::Deleted
                    && state.visible().is_none()
                    && !has_metadata_alone(part, state) =>
                {
                    refused_lifecycle(part, ErrorKind::StreamNotFound(part.stream.clone()))
                }
                _ if part.ids_from() == IdSource::Client => Fit::FitsUnlessStored,
                _ => Fit::Fits,
            }
        }
    }
}

/// Returns true if a delete expects no stream, and there is none but its metadata. These are deleted.
fn has_metadata_alone(part: &StreamPart, state: &StreamState) -> bool {
    part.expected == ExpectedRevision::NoStream && state.main.is_none() && state.meta.is_some()
}

/// Refuses a part. The first attempt of a lifecycle change may itself be the reason for the refusal of its retry: a
/// client that deletes again what it has deleted finds no stream. If the client made the id, the ids decide.
fn refused_lifecycle(part: &StreamPart, refusal: ErrorKind) -> Fit {
    let is_lifecycle = matches!(part.change, Change::Lifecycle { .. });
    match is_lifecycle && part.ids_from() == IdSource::Client {
        true => Fit::RefusedUnlessStored(refusal),
        false => Fit::Refused(refusal),
    }
}

/// Checks the claim of an owner. The owner is up to date if the event that it takes for the last of the stream is the
/// last.
fn check_owner(part: &StreamPart, after: After, state: &StreamState) -> Fit {
    let actual = state.visible();
    let last = actual.and(state.main).and_then(|head| head.id);
    let holds = match after {
        After::NoStream { next } => {
            let last = state.main.map(|head| head.last);
            actual.is_none() && next == last.map_or(Revision(0), Revision::next)
        }
        After::Event(id) => last == Some(id),
    };
    if holds {
        return Fit::Fits;
    }
    Fit::Refused(ErrorKind::WrongExpectedRevision {
        stream: part.stream.clone(),
        expected: part.expected,
        actual,
    })
}

/// Makes the refusal of a delete name the stream itself: a delete writes to the metadata stream, but its claim is about
/// the stream.
fn about_the_stream(refusal: ErrorKind, part: &StreamPart) -> ErrorKind {
    match refusal {
        ErrorKind::WrongExpectedRevision {
            expected, actual, ..
        } => ErrorKind::WrongExpectedRevision {
            stream: part.stream.clone(),
            expected,
            actual,
        },
        other => other,
    }
}

/// Checks the claim of one part. `last` is the last revision of the stream that the claim is about, deleted events
/// included.
fn check_target(part: &StreamPart, last: Option<Revision>, deleted_before: Revision) -> Fit {
    let visible = last.filter(|last| *last >= deleted_before);
    let from_client = part.ids_from() == IdSource::Client;
    let refusal = || ErrorKind::WrongExpectedRevision {
        stream: part.target(),
        expected: part.expected,
        actual: visible,
    };
    let was_deleted = from_client && last.is_some() && deleted_before > Revision(0);
    let refused = || match was_deleted {
        true => Fit::RefusedUnlessDeleted(refusal()),
        false => Fit::Refused(refusal()),
    };
    let fits = match was_deleted {
        true => Fit::FitsUnlessDeleted,
        false => Fit::Fits,
    };
    let compare_from = |first: Revision| {
        if from_client && last.is_some_and(|last| first <= last) {
            Fit::RefusedUnlessStoredAt(first, refusal())
        } else {
            refused()
        }
    };
    let unless_stored = if from_client && last.is_some() {
        Fit::FitsUnlessStored
    } else {
        Fit::Fits
    };
    match part.expected {
        ExpectedRevision::Any => unless_stored,
        ExpectedRevision::StreamExists if visible.is_some() => unless_stored,
        ExpectedRevision::StreamExists => refused(),
        ExpectedRevision::NoStream if visible.is_none() => fits,
        ExpectedRevision::NoStream => compare_from(deleted_before),
        ExpectedRevision::Exact(claimed) if last == Some(claimed) => fits,
        ExpectedRevision::Exact(claimed) => compare_from(claimed.next()),
    }
}

/// Returns whether no claim is refused, provided that nothing is stored already.
pub(crate) fn all_fit(judged: &[Judged]) -> bool {
    judged.iter().all(|judged| match judged.fit {
        Fit::Fits | Fit::FitsUnlessStored | Fit::FitsUnlessDeleted => true,
        Fit::RefusedUnlessStoredAt(..)
        | Fit::RefusedUnlessStored(_)
        | Fit::RefusedUnlessDeleted(_)
        | Fit::Refused(_)
        | Fit::ConditionFails(_) => false,
    })
}

/// The state of the stream of a part, and what the state says about the claim of the part.
#[derive(Debug)]
pub(crate) struct Judged {
    pub(crate) state: StreamState,
    pub(crate) fit: Fit,
}

/// The answer to a whole command.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Decision {
    /// The events of the command must be stored.
    Store,
    /// All events of the command are stored already, in these streams.
    Retry(Vec<AppendedStream>),
    Refuse(ErrorKind),
}

/// Decides a whole command. The first part that fails by itself decides. A mixture of stored and new parts is refused
/// for its first stored part. Conditions count only if nothing is stored already.
pub(crate) fn decision(parts: &[StreamPart], judged: &[Judged], found: Vec<Found>) -> Decision {
    let (mut stored_first, mut failed_condition) = (None, None);
    let mut stored = Vec::with_capacity(parts.len());
    for ((part, judged), found) in parts.iter().zip(judged).zip(found) {
        if let Some(refusal) = gone(part, judged, &found) {
            return Decision::Refuse(refusal);
        }
        let refusal = match (&judged.fit, found) {
            (Fit::Refused(refusal) | Fit::RefusedUnlessDeleted(refusal), _) => {
                Some(refusal.clone())
            }
            (Fit::ConditionFails(refusal), _) => {
                failed_condition.get_or_insert_with(|| refusal.clone());
                None
            }
            // A claim that holds as it stands is a new append, even with ids that were used since the delete.
            (Fit::FitsUnlessDeleted, _) => None,
            (Fit::RefusedUnlessStoredAt(first, refusal), Found::Stored(stored))
                if stored.first_revision != *first =>
            {
                Some(refusal.clone())
            }
            (_, Found::Stored(streams)) => {
                stored_first.get_or_insert_with(|| no_retry(part, &judged.state));
                stored.push(streams);
                None
            }
            (_, Found::Otherwise { .. }) => Some(no_retry(part, &judged.state)),
            (
                Fit::RefusedUnlessStoredAt(_, refusal) | Fit::RefusedUnlessStored(refusal),
                Found::Nothing | Found::Removed { .. },
            ) => Some(refusal.clone()),
            (Fit::Fits | Fit::FitsUnlessStored, Found::Nothing | Found::Removed { .. }) => None,
        };
        if let Some(refusal) = refusal {
            return Decision::Refuse(refusal);
        }
    }
    let written = parts.iter().filter(|part| !part.is_question()).count();
    match stored_first {
        None => failed_condition.map_or(Decision::Store, Decision::Refuse),
        Some(_) if stored.len() == written => Decision::Retry(stored),
        Some(refusal) => Decision::Refuse(refusal),
    }
}

/// Returns the refusal of a command whose events were found stored, if the stream of some of them was deleted or
/// tombstoned since.
pub(crate) fn gone_since(
    parts: &[StreamPart],
    judged: &[Judged],
    stored: &[AppendedStream],
) -> Option<ErrorKind> {
    parts.iter().zip(judged).find_map(|(part, judged)| {
        let found = stored.iter().find(|one| one.stream == part.target())?;
        gone(part, judged, &Found::Stored(found.clone()))
    })
}

/// Returns the refusal of a part if its stream is tombstoned, or if its events were stored before the last delete of
/// the stream.
fn gone(part: &StreamPart, judged: &Judged, found: &Found) -> Option<ErrorKind> {
    if let Fit::Refused(refusal @ ErrorKind::StreamTombstoned(_)) = &judged.fit {
        return Some(refusal.clone());
    }
    let position = stored_and_deleted(part, &judged.state, found)?;
    let stream = part.stream.clone();
    Some(ErrorKind::StoredAndDeleted { stream, position })
}

/// Returns where the events of a part were stored, if that was before the last delete of their stream.
///
/// What was removed is known by a hash of its id only, which another id may share once in 10¹² times. So it counts only
/// for a stream that was deleted, and only at a position that the stream can have had before its last change of
/// lifecycle. What comes after the first event since the delete was not deleted: the metadata of the stream have hidden
/// it. If that first event is gone as well, nobody can tell, and what may have been deleted is not stored again.
fn stored_and_deleted(part: &StreamPart, state: &StreamState, found: &Found) -> Option<Position> {
    if !matches!(part.change, Change::Events { .. }) {
        return None;
    }
    let (first, position) = match found {
        Found::Nothing => return None,
        Found::Stored(stored) => (stored.first_revision, stored.position),
        Found::Otherwise { first, position } => (*first, *position),
        Found::Removed { position, begun } => {
            let (main, meta) = (state.main?, state.meta?);
            let is_between =
                main.row.0 <= position.0 && *position <= main.position && *position < meta.position;
            let was_deleted = state.deleted_before > Revision(0);
            let is_before = begun.is_none_or(|begun| *position < begun);
            return (was_deleted && is_between && is_before).then_some(*position);
        }
    };
    (first < state.deleted_before).then_some(position)
}

/// Makes the refusal of a part whose first event is stored, but which is not a retry as a whole.
fn no_retry(part: &StreamPart, state: &StreamState) -> ErrorKind {
    let actual = match &part.change {
        Change::Events { .. } | Change::Owned { .. } | Change::Condition(About::Events) => {
            state.visible()
        }
        Change::Lifecycle { .. } | Change::Condition(About::Metadata) => {
            state.meta.map(|head| head.last)
        }
    };
    ErrorKind::WrongExpectedRevision {
        stream: part.target(),
        expected: part.expected,
        actual,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use gesta_core::backend::{RowId, StreamHead};
    use gesta_core::{EventData, EventId, EventType, Position, StreamId};

    fn state(last: Option<u64>, deleted_before: u64) -> StreamState {
        let head = |last| StreamHead {
            row: RowId(1),
            last: Revision(last),
            position: Position(1),
            id: None,
        };
        StreamState {
            main: last.map(head),
            deleted_before: Revision(deleted_before),
            ..StreamState::default()
        }
    }

    fn part(expected: ExpectedRevision, ids: IdSource) -> StreamPart {
        let event =
            EventData::json(EventType::new("e").expect("valid"), "{}").with_id(EventId::random());
        StreamPart {
            stream: StreamId::new("s").expect("valid"),
            expected,
            change: Change::Events {
                events: vec![event],
                ids,
            },
            packed: Vec::new(),
        }
    }

    fn outcome(expected: ExpectedRevision, state: StreamState) -> &'static str {
        match check(&part(expected, IdSource::Client), &state) {
            Fit::Fits => "fits",
            Fit::FitsUnlessStored => "unless stored",
            Fit::FitsUnlessDeleted => "unless deleted",
            Fit::RefusedUnlessStoredAt(..) => "compare",
            Fit::RefusedUnlessStored(_) => "refused unless stored",
            Fit::RefusedUnlessDeleted(_) => "refused unless deleted",
            Fit::Refused(ErrorKind::WrongExpectedRevision { actual: None, .. }) => "wrong, none",
            Fit::Refused(ErrorKind::WrongExpectedRevision { .. }) => "wrong",
            Fit::Refused(_) | Fit::ConditionFails(_) => "refused",
        }
    }

    /// Goal: the table of docs/reference/contract.md, line by line.
    #[test]
    fn the_table_of_the_contract() {
        use ExpectedRevision::{Any, Exact, NoStream, StreamExists};
        let states = [
            state(None, 0),
            state(Some(5), 0),
            state(Some(5), 6),
            state(Some(5), 2),
            StreamState {
                tombstoned: true,
                ..state(Some(5), 0)
            },
        ];
        let (stored, deleted) = ("unless stored", "unless deleted");
        let refused_unless = "refused unless deleted";
        let rows = [
            (Any, ["fits", stored, stored, stored, "refused"]),
            (NoStream, ["fits", "compare", deleted, "compare", "refused"]),
            (
                StreamExists,
                ["wrong, none", stored, refused_unless, stored, "refused"],
            ),
            (
                Exact(Revision(5)),
                ["wrong, none", "fits", deleted, deleted, "refused"],
            ),
            (
                Exact(Revision(3)),
                ["wrong, none", "compare", "compare", "compare", "refused"],
            ),
            (
                Exact(Revision(7)),
                [
                    "wrong, none",
                    "wrong",
                    refused_unless,
                    refused_unless,
                    "refused",
                ],
            ),
        ];
        for (expected, answers) in rows {
            assert_eq!(
                states.map(|state| outcome(expected, state)),
                answers,
                "{expected}"
            );
        }
    }

    /// Goal: whatever is claimed, what was stored before the last delete is neither stored again nor answered as
    /// stored.
    #[test]
    fn what_was_stored_before_a_delete_is_refused_in_every_claim() {
        use ExpectedRevision::{Any, Exact, NoStream, StreamExists};
        let stream = StreamId::new("s").expect("valid");
        let at = |first| {
            Found::Stored(AppendedStream {
                stream: stream.clone(),
                first_revision: Revision(first),
                last_revision: Revision(first),
                position: Position(first + 10),
            })
        };
        let otherwise = |first| Found::Otherwise {
            first: Revision(first),
            position: Position(first + 10),
        };
        let exact = |revision| Exact(Revision(revision));
        let claims = [Any, NoStream, StreamExists, exact(0), exact(3), exact(5)];
        for (expected, deleted_before) in claims.into_iter().flat_map(|one| [(one, 6), (one, 5)]) {
            let decide = |found| {
                let part = part(expected, IdSource::Client);
                let state = state(Some(5), deleted_before);
                let fit = check(&part, &state);
                decision(&[part], &[Judged { state, fit }], vec![found])
            };
            for found in [at(4), otherwise(4)] {
                let refused = ErrorKind::StoredAndDeleted {
                    stream: stream.clone(),
                    position: Position(14),
                };
                assert_eq!(decide(found), Decision::Refuse(refused), "{expected}");
            }
            if deleted_before == 6 {
                continue;
            }
            // What was stored since the delete is decided as if there had been none.
            let is_retry = matches!(decide(at(5)), Decision::Retry(_));
            let by_ids = [Any, NoStream, StreamExists].contains(&expected);
            assert_eq!(is_retry, by_ids, "{expected}");
            let stores = matches!(decide(at(5)), Decision::Store);
            assert_eq!(stores, expected == exact(5), "{expected}");
        }
    }

    /// Goal: a condition decides only if nothing is stored: a retry is answered as the first time, whatever has become
    /// of the stream that the condition is about. A condition on metadata is about the metadata.
    #[test]
    fn a_condition_counts_only_if_nothing_is_stored() {
        let condition = |about, revision| StreamPart {
            stream: StreamId::new("c").expect("valid"),
            expected: ExpectedRevision::Exact(Revision(revision)),
            change: Change::Condition(about),
            packed: Vec::new(),
        };
        let tombstoned = StreamState {
            tombstoned: true,
            ..state(Some(5), 0)
        };
        let described = StreamState {
            meta: state(Some(2), 0).main,
            ..state(Some(5), 0)
        };
        let first = AppendedStream {
            stream: StreamId::new("s").expect("valid"),
            first_revision: Revision(4),
            last_revision: Revision(4),
            position: Position(14),
        };
        for (about, revision, of_condition, holds) in [
            (About::Events, 5, state(Some(5), 0), true),
            (About::Events, 4, state(Some(5), 0), false),
            (About::Events, 5, tombstoned, false),
            (About::Metadata, 2, described, true),
            (About::Metadata, 5, described, false),
        ] {
            let decide = |found| {
                let parts = [
                    part(ExpectedRevision::Any, IdSource::Client),
                    condition(about, revision),
                ];
                let judged = parts.iter().zip([state(Some(5), 0), of_condition]);
                let judged = judged.map(|(part, state)| Judged {
                    state,
                    fit: check(part, &state),
                });
                let judged: Vec<_> = judged.collect();
                decision(&parts, &judged, vec![found, Found::Nothing])
            };
            let retry = decide(Found::Stored(first.clone()));
            assert_eq!(retry, Decision::Retry(vec![first.clone()]));
            let stores = decide(Found::Nothing) == Decision::Store;
            assert_eq!(stores, holds, "{revision}");
        }
    }

    /// Goal: an event that scavenging has removed, and whose id is remembered, counts if its stream was deleted after
    /// it and can have had it.
    #[test]
    fn what_was_removed_after_a_delete_is_refused() {
        let head = |row, position| StreamHead {
            row: RowId(row),
            last: Revision(5),
            position: Position(position),
            id: None,
        };
        let deleted = |deleted_before| StreamState {
            main: Some(head(10, 20)),
            meta: Some(head(18, 18)),
            deleted_before: Revision(deleted_before),
            tombstoned: false,
            hides_events: false,
        };
        let refuses_in = |state, position, begun| {
            let part = part(ExpectedRevision::NoStream, IdSource::Client);
            let found = Found::Removed {
                position: Position(position),
                begun,
            };
            stored_and_deleted(&part, &state, &found).is_some()
        };
        let refuses = |state, position| refuses_in(state, position, None);
        assert!(refuses(deleted(5), 10) && refuses(deleted(5), 17));
        assert!(!refuses(deleted(0), 12), "never deleted");
        assert!(!refuses(deleted(5), 9) && !refuses(deleted(5), 19));
        // Once it was refused as deleted although it was stored after the delete, before a change of the metadata.
        let begun = Some(Position(14));
        assert!(refuses_in(deleted(5), 13, begun));
        assert!(!refuses_in(deleted(5), 14, begun) && !refuses_in(deleted(5), 15, begun));
    }

    #[test]
    fn ids_of_the_store_are_never_retries() {
        let part = part(ExpectedRevision::NoStream, IdSource::Store);
        assert!(matches!(check(&part, &state(Some(5), 0)), Fit::Refused(_)));
    }
}
