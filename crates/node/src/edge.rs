//! What the end of a forwarded change means for the node that a caller has come to: its *edge*.
//!
//! The module is pure, and simulated (`proof/sim`). Invariant: once another node may have the change, only a
//! success is certain; a node that refuses the change later does not know what the other node does.

use gesta_core::{Attempt, Error, ErrorKind, KnownEnd, Result};
use gesta_link::{ForwardError, Reply, ReturnReason};

use crate::answers::{self, Answered, Changed};

/// What becomes of a change whose forwarding has ended.
#[derive(Debug)]
pub enum Next {
    /// The caller gets this answer.
    Answer(Result<Changed>),
    /// The change has come back, and this node makes it.
    Here(Here),
    /// No attempt was stored, nor can one be stored later. The change is sent once more, as if for the first time, with
    /// this end of the log.
    Afresh(KnownEnd),
}

/// A change that has come back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Here {
    /// Whether another node may be at work, so that the change goes at the pace of changes that are made here
    /// nevertheless (`direct`).
    pub is_paced: bool,
    /// Whether another node may have made the change, or may make it later.
    was_written: bool,
}

/// Returns what becomes of a change. `known` is the end of the log that was sent with it.
pub fn next(known: KnownEnd, outcome: std::result::Result<Reply, ForwardError>) -> Next {
    match outcome {
        Ok(reply) => {
            let Answered { result, overtaken } = answers::decode(reply.body);
            match (reply.is_in_doubt, overtaken) {
                (true, _) => Next::Answer(result.map_err(in_doubt)),
                // The owner feared an attempt that was not made. An end that is not news would be no help.
                (false, Some(end)) if end != known => Next::Afresh(end),
                (false, _) => Next::Answer(result),
            }
        }
        Err(ForwardError::Overloaded) => {
            let text = "too many changes wait for the node that owns the log";
            Next::Answer(Err(ErrorKind::Overloaded(text.into()).into()))
        }
        Err(ForwardError::TooLarge) => Next::Here(Here {
            is_paced: false,
            was_written: false,
        }),
        Err(ForwardError::Returned {
            reason,
            was_written,
        }) => returned(reason, was_written),
    }
}

fn returned(reason: ReturnReason, was_written: bool) -> Next {
    let here = |is_paced| {
        Next::Here(Here {
            is_paced,
            was_written,
        })
    };
    let text = match reason {
        ReturnReason::Local => return here(false),
        ReturnReason::Unreachable | ReturnReason::Silent | ReturnReason::NoOwner => {
            return here(true);
        }
        ReturnReason::DeadlineOver => return Next::Answer(Err(late(was_written))),
        _ => "the store is shutting down",
    };
    Next::Answer(Err(not_done(text, was_written)))
}

/// Makes the error of a change whose time is over.
pub(crate) fn late(was_begun: bool) -> Error {
    not_done("the change was not answered in time", was_begun)
}

fn not_done(text: &str, was_begun: bool) -> Error {
    let kind = match was_begun {
        true => ErrorKind::OutcomeUnknown(text.into()),
        false => ErrorKind::Unavailable(text.into()),
    };
    kind.into()
}

impl Here {
    /// Returns the answer to the caller, once this node has made the change or refused it.
    pub fn answer<R>(self, done: Result<R>) -> Result<R> {
        match self.was_written {
            true => done.map_err(in_doubt),
            false => done,
        }
    }

    /// Returns which attempt it is that this node makes. `known` is the end of the log that was sent with the others.
    pub fn attempt(self, known: KnownEnd) -> Attempt {
        match self.was_written {
            true => Attempt::Later(known),
            false => Attempt::Only,
        }
    }

    /// Makes the error of a change whose time was over before this node began it.
    pub fn late(self) -> Error {
        late(self.was_written)
    }
}

/// Makes the error of a change that another node may have stored before, or may store later: nobody can say that it is
/// not stored. A request that breaks a rule is stored nowhere, so its error stays. So does the error that says that it
/// is stored, and that its stream was deleted since: whoever made the change, it is not made a second time.
fn in_doubt(error: Error) -> Error {
    match error.kind() {
        ErrorKind::OutcomeUnknown(_)
        | ErrorKind::InvalidArgument { .. }
        | ErrorKind::StoredAndDeleted { .. } => error,
        _ => {
            let text = "the change was sent to another node, whose answer was lost";
            Error::new(ErrorKind::OutcomeUnknown(text.into())).caused_by(error)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use gesta_core::StreamId;

    /// Goal: once another node may have the change, no refusal is said to be certain.
    #[test]
    fn a_refusal_after_a_lost_answer_is_no_refusal() {
        let stream = StreamId::from_stored("s".into());
        let doubtful = in_doubt(ErrorKind::StreamTombstoned(stream).into());
        assert!(matches!(doubtful.kind(), ErrorKind::OutcomeUnknown(_)));
        assert!(doubtful.to_string().contains("another node"));
        let invalid = in_doubt(Error::invalid("events", "must not be empty"));
        assert!(matches!(invalid.kind(), ErrorKind::InvalidArgument { .. }));
    }

    /// Goal: what an owner says of a call that was sent before is certain only if it says that the change is stored.
    #[test]
    fn a_refusal_of_a_call_in_doubt_is_no_refusal() {
        let stream = || StreamId::from_stored("s".into());
        let told = |kind: ErrorKind, is_in_doubt| {
            let body = answers::encode(&Err(Error::new(kind)), || KnownEnd::NOTHING);
            match next(KnownEnd::NOTHING, Ok(Reply { body, is_in_doubt })) {
                Next::Answer(Err(error)) => error.kind().clone(),
                other => panic!("{other:?}"),
            }
        };
        let refused = ErrorKind::StreamTombstoned(stream());
        assert_eq!(told(refused.clone(), false), refused);
        assert!(matches!(told(refused, true), ErrorKind::OutcomeUnknown(_)));
        let stored = ErrorKind::StoredAndDeleted {
            stream: stream(),
            position: gesta_core::Position(7),
        };
        for is_in_doubt in [false, true] {
            assert_eq!(told(stored.clone(), is_in_doubt), stored);
        }
    }
    /// Goal: an owner that fears a later attempt is asked again, with the end of the log that it has told, if none was
    /// made. If there may be one, nobody knows.
    #[test]
    fn a_change_that_was_not_overtaken_is_sent_afresh() {
        let at = |position| KnownEnd {
            incarnation: gesta_core::Incarnation(uuid::Uuid::from_u128(7)),
            position: gesta_core::Position(position),
        };
        let told = |is_in_doubt, end| {
            let refused = Error::overtaken(&StreamId::from_stored("s".into()));
            let body = answers::encode(&Err(refused), || end);
            next(at(3), Ok(Reply { body, is_in_doubt }))
        };
        assert!(matches!(told(false, at(9)), Next::Afresh(end) if end == at(9)));
        let is_kind = |next, is: fn(&ErrorKind) -> bool| match next {
            Next::Answer(Err(error)) => is(error.kind()),
            other => panic!("{other:?}"),
        };
        let is_unknown = |kind: &ErrorKind| matches!(kind, ErrorKind::OutcomeUnknown(_));
        assert!(is_kind(told(true, at(9)), is_unknown));
        let is_unavailable = |kind: &ErrorKind| matches!(kind, ErrorKind::Unavailable(_));
        assert!(is_kind(told(false, at(3)), is_unavailable), "no news");
    }

    /// Goal: a change that another node may have made is a later attempt of it.
    #[test]
    fn a_change_that_was_written_is_a_later_attempt() {
        for was_written in [false, true] {
            let returned = returned(ReturnReason::Local, was_written);
            let Next::Here(here) = returned else {
                panic!("{returned:?}")
            };
            let known = KnownEnd::NOTHING;
            let is_later = here.attempt(known) == Attempt::Later(known);
            assert_eq!(is_later, was_written);
            assert_eq!(here.attempt(known) == Attempt::Only, !was_written);
        }
    }
}
