//! What callers ask of an entity, and how they are answered.

use std::convert::Infallible;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

use gesta_core::capacity::Permit;
use gesta_core::{Appended, Checkpoint, ErrorKind, Position, Revision};
use tokio::sync::oneshot;
use tokio::time::Instant;

use crate::decider::Decider;
use crate::error::Error;

/// A command, and how it is to be carried out.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Request<C> {
    /// The command that is to be carried out.
    pub command: C,
    /// The idempotency key of the command. A retry with the same key gets the reply of the first time, and no further
    /// events are stored.
    pub idempotency_key: Option<String>,
}

impl<C> Request<C> {
    /// Makes a request without a key.
    #[must_use]
    pub fn new(command: C) -> Self {
        Self {
            command,
            idempotency_key: None,
        }
    }

    /// Sets the idempotency key, which makes retries safe. The key has at most [`KEY_BYTES_MAX`](crate::KEY_BYTES_MAX)
    /// bytes and is unique among the commands of the entity. A key must not begin with `$made-`, as the keys do that
    /// nodes make.
    #[must_use]
    pub fn key(mut self, key: impl Into<String>) -> Self {
        self.idempotency_key = Some(key.into());
        self
    }
}

impl<C> From<C> for Request<C> {
    fn from(command: C) -> Self {
        Self::new(command)
    }
}

/// A command that was carried out.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Done<R> {
    /// The reply of the entity.
    pub reply: R,
    /// The revision of the last event of the command. The revision is `None` if the command had no events, and also if
    /// the revision is not known. The revision is not known if the store had given the command up as unknown and a
    /// later submission has proven that it is stored, or if the command is known by its key only.
    pub revision: Option<Revision>,
    /// A checkpoint after the events, for example to wait until a read model has seen them. The checkpoint is `None`
    /// without events, for repeated commands, and if the first answer of another node was lost.
    pub checkpoint: Option<Checkpoint>,
    /// Whether the command had been carried out before, because its idempotency key was known.
    pub repeated: bool,
}

/// The result that the caller of a command gets.
pub(crate) type CommandResult<D> =
    Result<Done<<D as Decider>::Reply>, Error<<D as Decider>::Rejection>>;

/// A future that returns the outcome of a command that was handed over. If it is dropped, the command is carried out
/// all the same.
pub struct PendingReply<D: Decider> {
    pub(crate) answer: oneshot::Receiver<CommandResult<D>>,
}

impl<D: Decider> std::fmt::Debug for PendingReply<D> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("PendingReply")
    }
}

impl<D: Decider> Future for PendingReply<D> {
    type Output = CommandResult<D>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        Pin::new(&mut self.answer)
            .poll(cx)
            .map(|answer| answer.unwrap_or_else(|_| Err(lost())))
    }
}

/// Makes the error for a command or read whose entity or runtime has ended by a panic.
pub(crate) fn lost<R>() -> Error<R> {
    Error::OutcomeUnknown(gesta_core::Error::new(
        gesta_core::ErrorKind::OutcomeUnknown(
            "the entity or its runtime has ended by a panic".into(),
        ),
    ))
}

/// A request to one entity.
pub(crate) enum Ask<D: Decider> {
    Command(CommandAsk<D>),
    Read(Box<dyn ReadAsk<D>>),
}

/// A command that waits for its answer.
pub(crate) struct CommandAsk<D: Decider> {
    pub(crate) request: Request<D::Command>,
    pub(crate) reply: oneshot::Sender<CommandResult<D>>,
    pub(crate) permit: Permit,
    /// How often the command was decided.
    pub(crate) attempts: u32,
    pub(crate) origin: Origin,
    /// Whether this node has made the key of the request, because the caller gave none.
    pub(crate) has_made_key: bool,
    /// Whether another node may have carried the command out, or may carry it out later.
    pub(crate) is_in_doubt: bool,
    /// The moment until which the command may wait for other nodes; `None` until it was first to be sent.
    pub(crate) sent_until: Option<Instant>,
    /// The last position of the log that the node of the caller knew of when the command was first to be sent. What is
    /// stored up to it was stored before. 0 if nothing was known.
    pub(crate) begun_after: Position,
}

/// Who has handed a command over.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Origin {
    /// A caller on this node has handed the command over.
    Caller,
    /// Another node has handed the command over. The command is not decided after this moment, and is not forwarded any
    /// further.
    Node { decided_until: Instant },
}

impl<D: Decider> CommandAsk<D> {
    pub(crate) fn new(
        request: Request<D::Command>,
        reply: oneshot::Sender<CommandResult<D>>,
        permit: Permit,
        origin: Origin,
    ) -> Self {
        Self {
            request,
            reply,
            permit,
            attempts: 0,
            origin,
            has_made_key: false,
            is_in_doubt: false,
            sent_until: None,
            begun_after: Position::START,
        }
    }

    /// Returns whether another attempt may have been carried out before. An attempt that was overtaken by a later one
    /// is not reported as such. But then others have changed the entity since it came, and the command is decided
    /// again, which `attempts` shows.
    pub(crate) fn may_be_done(&self) -> bool {
        self.is_in_doubt || self.origin != Origin::Caller && self.attempts > 1
    }

    /// Returns whether another attempt may have been carried out at this position or before it, so that a delete there
    /// may have removed what it stored.
    ///
    /// A command that another node has sent may be overtaken by a later attempt, of which nobody tells. But then what
    /// was stored is after everything that the other node knew of when it first sent the command.
    pub(crate) fn may_be_done_until(&self, position: Position) -> bool {
        if position == Position::START {
            return false;
        }
        let is_after_begin = position > self.begun_after;
        match self.origin {
            Origin::Caller => self.is_in_doubt && is_after_begin,
            // Another attempt may have been made, whether this one tells of it or not.
            Origin::Node { .. } => self.is_in_doubt || is_after_begin,
        }
    }

    pub(crate) fn answer(self, result: CommandResult<D>) {
        drop(self.permit);
        let mut result = match self.is_in_doubt {
            true => conclusive(result),
            false => result,
        };
        if let Ok(done) = &mut result
            && self.has_made_key
        {
            // The caller has not asked before.
            done.repeated = false;
        }
        // A caller that has gone away does not want to know.
        let _ = self.reply.send(result);
    }
}

/// Returns what may be said about a command of which another attempt, on another node, may have been carried out or may
/// be carried out later.
///
/// If the command has events, now or before, they are its effect. The other attempt finds its key in them, because the
/// store accepts events only after these. If the key was used for another command, the other attempt is refused too.
/// After any other answer the other attempt may be decided later, on another state, and have events.
fn conclusive<R, E>(result: Result<Done<R>, Error<E>>) -> Result<Done<R>, Error<E>> {
    let unknown = |cause: Option<gesta_core::Error>| {
        let text = "another node was sent the command, and its answer was lost";
        let error = gesta_core::Error::new(ErrorKind::OutcomeUnknown(text.into()));
        Err(Error::OutcomeUnknown(match cause {
            Some(cause) => error.caused_by(cause),
            None => error,
        }))
    };
    match result {
        Ok(done) if done.repeated || done.revision.is_some() => Ok(done),
        Err(Error::KeyReused(key)) => Err(Error::KeyReused(key)),
        Err(Error::OutcomeUnknown(error)) => Err(Error::OutcomeUnknown(error)),
        Err(Error::Unavailable(error) | Error::Failed(error)) => unknown(Some(error)),
        Ok(_) | Err(Error::Rejected(_) | Error::Overloaded(_)) => unknown(None),
    }
}

/// How current the state must be that a read sees.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Freshness {
    /// The read sees every event that was stored by anyone before it began.
    Confirmed,
    /// The read sees what this process knows to be stored.
    StaleAllowed,
}

/// A read that waits for its answer.
pub(crate) trait ReadAsk<D>: Send {
    fn freshness(&self) -> Freshness;
    /// Returns whether another node has asked for the state.
    fn is_from_node(&self) -> bool;
    /// Looks at the state and keeps what was found. `is_initial` says that the state is the one before the first event.
    /// This may be called again after a conflict.
    fn look(&mut self, state: &D, is_initial: bool);
    /// Returns how often the read has looked.
    fn looks(&self) -> u32;
    /// Gives the caller what was found last.
    fn release(self: Box<Self>);
    fn refuse(self: Box<Self>, error: Error<Infallible>);
}

/// A read by a function of the caller.
pub(crate) struct FnRead<F, R> {
    pub(crate) read: F,
    pub(crate) freshness: Freshness,
    pub(crate) found: Option<R>,
    pub(crate) looks: u32,
    pub(crate) reply: oneshot::Sender<Result<R, Error<Infallible>>>,
    pub(crate) permit: Permit,
}

impl<D, R: Send, F: Fn(&D) -> R + Send> ReadAsk<D> for FnRead<F, R> {
    fn freshness(&self) -> Freshness {
        self.freshness
    }

    fn is_from_node(&self) -> bool {
        false
    }

    fn look(&mut self, state: &D, _: bool) {
        self.looks += 1;
        self.found = Some((self.read)(state));
    }

    fn looks(&self) -> u32 {
        self.looks
    }

    fn release(self: Box<Self>) {
        drop(self.permit);
        let _ = self.reply.send(self.found.ok_or_else(lost));
    }

    fn refuse(self: Box<Self>, error: Error<Infallible>) {
        drop(self.permit);
        let _ = self.reply.send(Err(error));
    }
}

impl<D: Decider> Ask<D> {
    /// Returns whether another node has forwarded the request. If so, it is done on this node.
    pub(crate) fn is_from_node(&self) -> bool {
        match self {
            Ask::Command(ask) => ask.origin != Origin::Caller,
            Ask::Read(ask) => ask.is_from_node(),
        }
    }

    pub(crate) fn refuse(self, error: Error<Infallible>) {
        match self {
            Ask::Command(ask) => ask.answer(Err(error.cast())),
            Ask::Read(ask) => ask.refuse(error),
        }
    }
}

/// Makes the result of a stored command for its caller.
pub(crate) fn done<R>(reply: R, appended: &Appended) -> Done<R> {
    Done {
        reply,
        revision: appended.streams.first().map(|stream| stream.last_revision),
        checkpoint: Some(appended.checkpoint.clone()),
        repeated: false,
    }
}
