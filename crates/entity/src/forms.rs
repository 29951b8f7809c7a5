//! The forms of requests and answers that nodes exchange: a head as JSON, and what users have written as bytes.
//!
//! Invariants: no bytes make a form panic; if a node cannot read a request, because its build is another one, it says
//! so, and nothing is done for the request.
//! Not here: what an answer means for its caller (`ask`).

use bytes::{BufMut, Bytes, BytesMut};
use gesta_core::{Checkpoint, Error as StoreError, ErrorKind, Position, Revision};
use gesta_wire::problem::Document;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::ask::{CommandResult, Done, Freshness};
use crate::decider::Decider;
use crate::error::Error;
use crate::guard::guarded;

/// The greatest number of bytes of an answer: what a link carries, less the bytes that go around it.
const ANSWER_BYTES_MAX: usize = (16 << 20) - (64 << 10);

type JsonResult<T> = Result<T, serde_json::Error>;

/// Turns a value into bytes and back.
struct Form<T> {
    write: fn(&T) -> JsonResult<Vec<u8>>,
    read: fn(&[u8]) -> JsonResult<T>,
}

impl<T: Serialize + DeserializeOwned> Form<T> {
    fn json() -> Self {
        Self {
            write: |value| serde_json::to_vec(value),
            read: |bytes| serde_json::from_slice(bytes),
        }
    }
}

impl<T> Form<T> {
    fn write(&self, what: &'static str, value: &T) -> Result<Vec<u8>, StoreError> {
        guarded("the writing of a forwarded value", || (self.write)(value))?
            .map_err(|error| StoreError::invalid(what, error.to_string()))
    }

    fn read(&self, bytes: &[u8]) -> Result<T, String> {
        guarded("the reading of a forwarded value", || (self.read)(bytes))
            .map_err(|panicked| panicked.to_string())?
            .map_err(|error| error.to_string())
    }
}

/// The forms of what is asked of entities of one kind, and of the answers.
pub(crate) struct Forms<D: Decider> {
    command: Form<D::Command>,
    reply: Form<D::Reply>,
    rejection: Form<D::Rejection>,
}

/// The head of a request.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum AskHead {
    /// The command follows.
    Command {
        key: String,
        /// Whether an earlier attempt may have been done, or may be done later. The link itself tells of attempts that
        /// it made.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        in_doubt: bool,
        /// The last position of the log that the node which asks knew of when it first sent the command; 0 if it knew
        /// of none.
        #[serde(default)]
        begun_after: u64,
    },
    /// The request is for the state, in the form that snapshots of this version have.
    Read { confirmed: bool, version: u32 },
}

/// The head of an answer.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum AnswerHead {
    /// The command was carried out. The reply follows.
    Done {
        revision: Option<u64>,
        checkpoint: Option<String>,
        repeated: bool,
    },
    /// The command was rejected. The rejection follows.
    Rejected,
    KeyReused {
        key: String,
    },
    Overloaded {
        why: String,
    },
    /// The error is `Unavailable`. A problem document follows.
    Unavailable,
    /// The error is `OutcomeUnknown`. A problem document follows.
    OutcomeUnknown,
    /// The error is `Failed`. A problem document follows.
    Failed,
    /// The state follows.
    State,
    /// The state is the one before the first event. That state may have no form, because snapshots are of entities that
    /// have events.
    InitialState,
    /// Nothing was done. The node that has asked does it itself, if it can.
    NotUnderstood,
}

/// A request of another node.
pub(crate) enum Call<D: Decider> {
    Command {
        key: String,
        command: D::Command,
        in_doubt: bool,
        begun_after: Position,
    },
    Read {
        freshness: Freshness,
        version: u32,
    },
}

impl<D: Decider> Forms<D> {
    pub(crate) fn json() -> Self
    where
        D::Command: Serialize + DeserializeOwned,
        D::Reply: Serialize + DeserializeOwned,
        D::Rejection: Serialize + DeserializeOwned,
    {
        Self {
            command: Form::json(),
            reply: Form::json(),
            rejection: Form::json(),
        }
    }

    // ---- where it is asked ----

    /// Writes a command that is to be forwarded.
    ///
    /// # Errors
    /// `InvalidArgument` if the command has no form.
    pub(crate) fn write_command(
        &self,
        key: &str,
        command: &D::Command,
        in_doubt: bool,
        begun_after: Position,
    ) -> Result<Bytes, StoreError> {
        let command = self.command.write("command", command)?;
        let head = AskHead::Command {
            key: key.to_owned(),
            in_doubt,
            begun_after: begun_after.0,
        };
        Ok(framed(&head, &command))
    }

    /// Reads what became of a command.
    pub(crate) fn read_result(&self, body: &Bytes) -> CommandResult<D> {
        let unreadable = |why: String| {
            let text = format!("the answer of another node cannot be read: {why}");
            Error::OutcomeUnknown(ErrorKind::OutcomeUnknown(text).into())
        };
        let (head, payload) = parted(body).map_err(unreadable)?;
        let error = || {
            let error = Document::read(payload).and_then(Document::into_error);
            error.map(StoreError::new)
        };
        let missing = || unreadable("its problem is unknown".to_owned());
        Err(match head {
            AnswerHead::Done {
                revision,
                checkpoint,
                repeated,
            } => {
                return Ok(Done {
                    reply: self.reply.read(payload).map_err(unreadable)?,
                    revision: revision.map(Revision),
                    checkpoint: read_checkpoint(checkpoint).map_err(unreadable)?,
                    repeated,
                });
            }
            AnswerHead::Rejected => {
                Error::Rejected(self.rejection.read(payload).map_err(unreadable)?)
            }
            AnswerHead::KeyReused { key } => Error::KeyReused(key),
            AnswerHead::Overloaded { why } => Error::Overloaded(why),
            AnswerHead::Unavailable => error().map_or_else(missing, Error::Unavailable),
            AnswerHead::OutcomeUnknown => error().map_or_else(missing, Error::OutcomeUnknown),
            AnswerHead::Failed => error().map_or_else(missing, Error::Failed),
            AnswerHead::State | AnswerHead::InitialState | AnswerHead::NotUnderstood => {
                unreadable("it answers something else".to_owned())
            }
        })
    }

    // ---- where it is answered ----

    /// Reads the request of another node. The error says why it cannot be read.
    pub(crate) fn read_call(&self, body: &Bytes) -> Result<Call<D>, String> {
        let (head, payload) = parted(body)?;
        Ok(match head {
            AskHead::Command {
                key,
                in_doubt,
                begun_after,
            } => Call::Command {
                key,
                in_doubt,
                begun_after: Position(begun_after),
                command: self.command.read(payload)?,
            },
            AskHead::Read { confirmed, version } => Call::Read {
                freshness: match confirmed {
                    true => Freshness::Confirmed,
                    false => Freshness::StaleAllowed,
                },
                version,
            },
        })
    }

    /// Writes the answer to a command.
    pub(crate) fn write_result(&self, result: CommandResult<D>) -> Bytes {
        let written = match result {
            Ok(done) => self.reply.write("reply", &done.reply).map(|reply| {
                let head = AnswerHead::Done {
                    revision: done.revision.map(|revision| revision.0),
                    checkpoint: done.checkpoint.map(|checkpoint| checkpoint.to_string()),
                    repeated: done.repeated,
                };
                framed(&head, &reply)
            }),
            Err(Error::Rejected(rejection)) => self
                .rejection
                .write("rejection", &rejection)
                .map(|rejection| framed(&AnswerHead::Rejected, &rejection)),
            Err(error) => Ok(write_error(error)),
        };
        match written {
            Ok(bytes) if bytes.len() <= ANSWER_BYTES_MAX => bytes,
            Ok(_) => unsent("it is too large"),
            Err(error) => unsent(error),
        }
    }
}

/// Writes the request for the state.
pub(crate) fn write_read(freshness: Freshness, version: u32) -> Bytes {
    let confirmed = freshness == Freshness::Confirmed;
    framed(&AskHead::Read { confirmed, version }, &[])
}

/// Writes the answer that the state is the one before the first event.
pub(crate) fn initial_state() -> Bytes {
    framed(&AnswerHead::InitialState, &[])
}

/// Writes the answer with the state. If the state is too large, the answer leaves the read to the node that has asked.
pub(crate) fn write_state(state: &[u8]) -> Bytes {
    match state.len() < ANSWER_BYTES_MAX {
        true => framed(&AnswerHead::State, state),
        false => not_understood(),
    }
}

/// Reads the state from an answer (`None` is the state before the first event), or the reason why there is none.
pub(crate) fn read_state(body: &Bytes) -> Result<Option<Bytes>, Error<std::convert::Infallible>> {
    let unavailable = |why: &str| {
        let text = format!("the answer of another node cannot be read: {why}");
        StoreError::unavailable(text)
    };
    let (head, payload) = parted(body).map_err(|why| unavailable(&why))?;
    let error = || {
        let error = Document::read(payload).and_then(Document::into_error);
        error.map_or_else(|| unavailable("its problem is unknown"), StoreError::new)
    };
    Err(match head {
        AnswerHead::State => return Ok(Some(body.slice_ref(payload))),
        AnswerHead::InitialState => return Ok(None),
        AnswerHead::Overloaded { why } => Error::Overloaded(why),
        AnswerHead::Unavailable => Error::Unavailable(error()),
        AnswerHead::OutcomeUnknown => Error::OutcomeUnknown(error()),
        AnswerHead::Failed => Error::Failed(error()),
        _ => Error::Unavailable(unavailable("it answers something else")),
    })
}

/// Writes the answer to a call that cannot be read.
pub(crate) fn not_understood() -> Bytes {
    framed(&AnswerHead::NotUnderstood, &[])
}

pub(crate) fn is_not_understood(body: &Bytes) -> bool {
    matches!(parted(body), Ok((AnswerHead::NotUnderstood, _)))
}

/// Writes the answer with an error. The error must not be a rejection.
pub(crate) fn write_error<R>(error: Error<R>) -> Bytes {
    let problem = |head, error: StoreError| framed(&head, &Document::from(error.kind()).to_json());
    match error {
        // Its form is the user's: see `write_result`.
        Error::Rejected(_) => unsent("it is a rejection"),
        Error::KeyReused(key) => framed(&AnswerHead::KeyReused { key }, &[]),
        Error::Overloaded(why) => framed(&AnswerHead::Overloaded { why }, &[]),
        Error::Unavailable(error) => problem(AnswerHead::Unavailable, error),
        Error::OutcomeUnknown(error) => problem(AnswerHead::OutcomeUnknown, error),
        Error::Failed(error) => problem(AnswerHead::Failed, error),
    }
}

/// Writes the answer to a command whose own answer cannot be sent.
fn unsent(why: impl std::fmt::Display) -> Bytes {
    let text = format!("the answer cannot be sent to the node that asked: {why}");
    let error = StoreError::new(ErrorKind::OutcomeUnknown(text));
    write_error(Error::<std::convert::Infallible>::OutcomeUnknown(error))
}

fn read_checkpoint(text: Option<String>) -> Result<Option<Checkpoint>, String> {
    let read = |text: String| text.parse().map_err(|error: StoreError| error.to_string());
    text.map(read).transpose()
}

/// Writes the length of a head, the head, and what follows it.
fn framed(head: &impl Serialize, payload: &[u8]) -> Bytes {
    let head = serde_json::to_vec(head).unwrap_or_default();
    let mut bytes = BytesMut::with_capacity(4 + head.len() + payload.len());
    bytes.put_u32(u32::try_from(head.len()).unwrap_or(u32::MAX));
    bytes.put_slice(&head);
    bytes.put_slice(payload);
    bytes.freeze()
}

fn parted<H: DeserializeOwned>(body: &Bytes) -> Result<(H, &[u8]), String> {
    let too_short = || "it is too short".to_owned();
    let (length, rest) = body.split_first_chunk::<4>().ok_or_else(too_short)?;
    let length = usize::try_from(u32::from_be_bytes(*length)).map_err(|_| too_short())?;
    let (head, payload) = rest.split_at_checked(length).ok_or_else(too_short)?;
    let head = serde_json::from_slice(head).map_err(|error| error.to_string())?;
    Ok((head, payload))
}
