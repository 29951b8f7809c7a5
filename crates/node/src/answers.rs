//! The answers of owners, and the form in which they are sent.

use bytes::Bytes;
use gesta_core::{
    Appended, AppendedStream, Checkpoint, Deleted, Error, ErrorKind, KnownEnd, LogId, MetadataSet,
    Position, Result, Revision, StreamId,
};
use gesta_wire::problem::Document;
use prost::Message;

use crate::ends::EndMessage;

/// The answer to any change, which is the answer to an append, because a delete and a change of metadata are events as
/// well.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Changed(pub Appended);

impl From<Changed> for Deleted {
    fn from(Changed(appended): Changed) -> Self {
        Self {
            log: appended.log,
            position: appended.position,
            checkpoint: appended.checkpoint,
        }
    }
}

impl From<Changed> for MetadataSet {
    fn from(Changed(appended): Changed) -> Self {
        Self {
            log: appended.log,
            position: appended.position,
            checkpoint: appended.checkpoint,
        }
    }
}

impl From<Deleted> for Changed {
    fn from(deleted: Deleted) -> Self {
        Self(Appended {
            streams: Vec::new(),
            log: deleted.log,
            position: deleted.position,
            checkpoint: deleted.checkpoint,
        })
    }
}

impl From<MetadataSet> for Changed {
    fn from(set: MetadataSet) -> Self {
        Self(Appended {
            streams: Vec::new(),
            log: set.log,
            position: set.position,
            checkpoint: set.checkpoint,
        })
    }
}

#[derive(Clone, PartialEq, Message)]
struct AnswerMessage {
    #[prost(message, repeated, tag = "1")]
    streams: Vec<StreamMessage>,
    #[prost(uint32, tag = "2")]
    log: u32,
    #[prost(uint64, tag = "3")]
    position: u64,
    #[prost(string, tag = "4")]
    checkpoint: String,
    /// A problem document, which takes the place of everything else.
    #[prost(bytes = "bytes", optional, tag = "5")]
    problem: Option<Bytes>,
    /// The end of the log as the owner knows it, if it has not stored the change only because another attempt may have
    /// been made. A build that does not know this finds a problem.
    #[prost(message, optional, tag = "6")]
    overtaken: Option<EndMessage>,
    /// True if the problem lasts until an administrator acts, so that not every caller may be told what it says. A
    /// build that does not know this tells every caller.
    #[prost(bool, optional, tag = "7")]
    for_administrator: Option<bool>,
}

#[derive(Clone, PartialEq, Message)]
struct StreamMessage {
    #[prost(string, tag = "1")]
    stream: String,
    #[prost(uint64, tag = "2")]
    first: u64,
    #[prost(uint64, tag = "3")]
    last: u64,
    #[prost(uint64, tag = "4")]
    position: u64,
}

/// What became of a change, as an owner tells it.
#[derive(Debug)]
pub(crate) struct Answered {
    /// The answer.
    pub(crate) result: Result<Changed>,
    /// If the change was not stored only because another attempt may have been made: the end of the log now.
    pub(crate) overtaken: Option<KnownEnd>,
}

/// Writes what became of a change. `end` is the end of the log as the owner knows it.
pub fn encode(result: &Result<Changed>, end: impl FnOnce() -> KnownEnd) -> Bytes {
    let message = match result {
        Ok(Changed(appended)) => AnswerMessage {
            streams: appended.streams.iter().map(StreamMessage::from).collect(),
            log: appended.log.0.into(),
            position: appended.position.0,
            checkpoint: appended.checkpoint.to_string(),
            problem: None,
            overtaken: None,
            for_administrator: None,
        },
        Err(error) => AnswerMessage {
            problem: Some(Document::from(error.kind()).to_json().into()),
            overtaken: error.is_overtaken().then(|| end().into()),
            for_administrator: error.is_for_administrator().then_some(true),
            ..AnswerMessage::default()
        },
    };
    message.encode_to_vec().into()
}

/// Reads what became of a change: `OutcomeUnknown` if the answer cannot be read, because the owner may have stored the
/// change.
pub(crate) fn decode(bytes: Bytes) -> Answered {
    let message = AnswerMessage::decode(bytes).map_err(unreadable);
    let mut overtaken = None;
    let result = message.and_then(|mut message| {
        if let Some(end) = message.overtaken.take() {
            let end = end.read();
            overtaken = Some(end.ok_or_else(|| unreadable("an end of the log of no incarnation"))?);
        }
        read(message)
    });
    Answered { result, overtaken }
}

fn read(message: AnswerMessage) -> Result<Changed> {
    if let Some(problem) = message.problem {
        let error = Document::read(&problem).and_then(Document::into_error);
        let error = Error::new(error.ok_or_else(|| unreadable("a problem of an unknown kind"))?);
        return Err(match message.for_administrator {
            Some(true) => error.until_administrator_acts(),
            _ => error,
        });
    }
    let log = u16::try_from(message.log).map_err(unreadable)?;
    let checkpoint = message.checkpoint.parse::<Checkpoint>();
    Ok(Changed(Appended {
        streams: message.streams.into_iter().map(Into::into).collect(),
        log: LogId(log),
        position: Position(message.position),
        checkpoint: checkpoint.map_err(unreadable)?,
    }))
}

impl From<&AppendedStream> for StreamMessage {
    fn from(of: &AppendedStream) -> Self {
        Self {
            stream: of.stream.as_str().to_owned(),
            first: of.first_revision.0,
            last: of.last_revision.0,
            position: of.position.0,
        }
    }
}

impl From<StreamMessage> for AppendedStream {
    fn from(of: StreamMessage) -> Self {
        Self {
            stream: StreamId::from_stored(of.stream.into()),
            first_revision: Revision(of.first),
            last_revision: Revision(of.last),
            position: Position(of.position),
        }
    }
}

/// Makes the error for an answer that cannot be read: it may say that the change is stored.
fn unreadable(why: impl std::fmt::Display) -> Error {
    let text = format!(
        "the answer of the node that owns the log cannot be read: {why}; do the builds of the nodes differ?"
    );
    ErrorKind::OutcomeUnknown(text).into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use gesta_core::{ExpectedRevision, Incarnation};

    /// Goal: the edge answers what the owner has answered, refusals with all that they tell.
    #[test]
    fn answers_are_read_as_they_were_written() {
        let stream = StreamId::new("cart-1").expect("valid");
        let appended = Appended {
            streams: vec![AppendedStream {
                stream: stream.clone(),
                first_revision: Revision(3),
                last_revision: Revision(4),
                position: Position(9),
            }],
            log: LogId(2),
            position: Position(9),
            checkpoint: Checkpoint::in_log(
                Incarnation(uuid::Uuid::from_u128(7)),
                4,
                LogId(2),
                Position(9),
            ),
        };
        let stored = Changed(appended);
        let end = KnownEnd {
            incarnation: Incarnation(uuid::Uuid::from_u128(7)),
            position: Position(12),
        };
        let read = decode(encode(&Ok(stored.clone()), || end));
        assert_eq!(read.result.expect("stored"), stored);
        assert_eq!(read.overtaken, None);
        let refusal = ErrorKind::WrongExpectedRevision {
            stream,
            expected: ExpectedRevision::Exact(Revision(1)),
            actual: None,
        };
        for kind in [refusal, ErrorKind::Overloaded("full".into())] {
            let read = decode(encode(&Err(kind.clone().into()), || end));
            let refused = read.result.expect_err("refused");
            assert_eq!(format!("{:?}", refused.kind()), format!("{kind:?}"));
            assert_eq!(read.overtaken, None);
        }
        let denied = || Error::new(ErrorKind::Unsupported("permission denied".into()));
        for (error, is_marked) in [
            (denied(), false),
            (denied().until_administrator_acts(), true),
            (Error::needs_administrator("the file is read-only"), true),
        ] {
            let read = decode(encode(&Err(error.clone()), || end));
            let refused = read.result.expect_err("refused");
            assert_eq!(refused.to_string(), error.to_string());
            assert_eq!(refused.is_for_administrator(), is_marked, "{refused}");
        }
        let overtaken = Error::overtaken(&StreamId::new("s").expect("valid"));
        let read = decode(encode(&Err(overtaken.during("append")), || end));
        let refused = read.result.expect_err("refused");
        assert!(matches!(refused.kind(), ErrorKind::Unavailable(_)));
        assert_eq!(read.overtaken, Some(end));
    }

    /// Goal: an answer that cannot be read is no refusal. What happened: a change that the owner had stored was told as
    /// unsupported, so a caller that asked again with new ids stored it twice.
    #[test]
    fn an_unreadable_answer_leaves_the_outcome_unknown() {
        let message = |change: fn(&mut AnswerMessage)| {
            let mut message = AnswerMessage::default();
            change(&mut message);
            Bytes::from(message.encode_to_vec())
        };
        let answers = [
            Bytes::from_static(b"\xff"),
            message(|message| message.problem = Some(Bytes::from_static(b"{}"))),
            message(|message| message.overtaken = Some(EndMessage::default())),
            message(|message| message.log = 70_000),
            message(|message| message.checkpoint = "none".to_owned()),
        ];
        for answer in answers {
            let error = decode(answer).result.expect_err("unreadable");
            assert!(
                matches!(error.kind(), ErrorKind::OutcomeUnknown(_)),
                "{error}"
            );
            assert!(error.to_string().contains("cannot be read"), "{error}");
        }
    }
}
