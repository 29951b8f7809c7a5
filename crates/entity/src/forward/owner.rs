//! The side of the owner: commands and reads that other nodes forward.
//!
//! Invariants: requests are handed to their shard before the call returns, so they keep their order; they are not
//! forwarded any further, whichever node owns the stream by then.

use std::sync::{Arc, Weak};

use bytes::Bytes;
use futures::FutureExt;
use futures::future::{BoxFuture, ready};
use gesta_core::capacity::{Capacity, Permit};
use gesta_core::peers::{PeerCall, PeerService};
use gesta_core::{Position, StreamId};
use tokio::sync::oneshot;
use tokio::time::Instant;

use crate::ask::{Ask, CommandAsk, Freshness, Origin, ReadAsk, Request, lost};
use crate::decider::Decider;
use crate::error::Error;
use crate::forms::{self, Call};
use crate::kind::EntityKind;
use crate::shared::Shared;

type Never = std::convert::Infallible;
type AnswerFuture = BoxFuture<'static, Bytes>;

/// Serves what other nodes forward, as long as the runtime exists.
pub(crate) struct OwnerSide<D: Decider>(pub(crate) Weak<Shared<D>>);

impl<D: Decider> PeerService for OwnerSide<D> {
    fn call(&self, call: PeerCall) -> AnswerFuture {
        let begun = self.0.upgrade().and_then(|runtime| begin(&runtime, call));
        match begun {
            Some(Ok(answer)) => answer,
            Some(Err(error)) => ready(forms::write_error(error)).boxed(),
            None => ready(forms::not_understood()).boxed(),
        }
    }
}

/// Hands a call to its shard. Returns `None` if nothing is done: this build cannot read the call, has no such entities,
/// or is shutting down.
fn begin<D: Decider>(
    runtime: &Shared<D>,
    call: PeerCall,
) -> Option<Result<AnswerFuture, Error<Never>>> {
    let forms = runtime.kind.forms.as_ref()?;
    let stream = call.stream;
    if !runtime.kind.has(&stream) {
        return None;
    }
    let asked = forms.read_call(&call.body).ok()?;
    runtime.counters.from_nodes.add(1);
    match asked {
        Call::Command {
            key,
            command,
            in_doubt,
            begun_after,
        } => {
            let sent = Sent {
                request: Request::new(command).key(key),
                decided_until: Instant::now() + call.remaining,
                is_in_doubt: in_doubt || call.is_in_doubt,
                begun_after,
            };
            begin_command(runtime, stream, sent)
        }
        Call::Read { freshness, version } => {
            let snapshots = runtime.kind.snapshots.as_ref()?;
            let is_same = snapshots.version() == version;
            match is_same {
                true => begin_read(runtime, stream, freshness),
                false => None,
            }
        }
    }
}

/// Returns the permit for one more command or read; `None` if the runtime is shutting down.
fn admit<D: Decider>(
    runtime: &Shared<D>,
    capacity: &Arc<Capacity>,
) -> Option<Result<Permit, Error<Never>>> {
    match runtime.admit(capacity) {
        Err(Error::Unavailable(_)) => None,
        admitted => Some(admitted),
    }
}

/// A command that another node has sent.
struct Sent<C> {
    request: Request<C>,
    decided_until: Instant,
    is_in_doubt: bool,
    /// See [`CommandAsk::begun_after`].
    begun_after: Position,
}

fn begin_command<D: Decider>(
    runtime: &Shared<D>,
    stream: StreamId,
    sent: Sent<D::Command>,
) -> Option<Result<AnswerFuture, Error<Never>>> {
    let permit = match admit(runtime, &runtime.commands)? {
        Ok(permit) => permit,
        Err(error) => return Some(Err(error)),
    };
    let (reply, answer) = oneshot::channel();
    let origin = Origin::Node {
        decided_until: sent.decided_until,
    };
    let mut ask = CommandAsk::new(sent.request, reply, permit, origin);
    ask.is_in_doubt = sent.is_in_doubt;
    // Not what this node knows now: it may have stood still, and have heard since of a delete that came after an
    // attempt.
    ask.begun_after = sent.begun_after;
    runtime.send(stream, Ask::Command(ask));
    let kind = Arc::clone(&runtime.kind);
    let answer = answer.map(move |answer| {
        let result = answer.unwrap_or_else(|_| Err(lost()));
        match &kind.forms {
            Some(forms) => forms.write_result(result),
            None => forms::not_understood(),
        }
    });
    Some(Ok(answer.boxed()))
}

fn begin_read<D: Decider>(
    runtime: &Shared<D>,
    stream: StreamId,
    freshness: Freshness,
) -> Option<Result<AnswerFuture, Error<Never>>> {
    let permit = match admit(runtime, &runtime.reads)? {
        Ok(permit) => permit,
        Err(error) => return Some(Err(error)),
    };
    let (reply, answer) = oneshot::channel();
    let read = StateRead {
        kind: Arc::clone(&runtime.kind),
        freshness,
        found: None,
        looks: 0,
        reply,
        permit,
    };
    runtime.send(stream, Ask::Read(Box::new(read)));
    let kind = Arc::clone(&runtime.kind);
    let answer = answer.map(move |answer| {
        let found: Result<Option<Found<D>>, Error<Never>> = answer.unwrap_or_else(|_| Err(lost()));
        match (found, &kind.snapshots) {
            (Ok(Some(Found::Initial)), _) => forms::initial_state(),
            (Ok(Some(Found::State(state))), Some(snapshots)) => {
                match snapshots.write_state(&state) {
                    Ok(bytes) => forms::write_state(&bytes),
                    Err(_) => forms::not_understood(),
                }
            }
            (Ok(_), _) => forms::not_understood(),
            (Err(error), _) => forms::write_error(error),
        }
    });
    Some(Ok(answer.boxed()))
}

/// A read by another node, which copies the state.
struct StateRead<D: Decider> {
    kind: Arc<EntityKind<D>>,
    freshness: Freshness,
    found: Option<Found<D>>,
    looks: u32,
    reply: oneshot::Sender<Result<Option<Found<D>>, Error<Never>>>,
    permit: Permit,
}

/// What a read by another node has found.
enum Found<D> {
    /// The entity has no event yet.
    Initial,
    /// The read has found this copy of the state.
    State(D),
}

impl<D: Decider> ReadAsk<D> for StateRead<D> {
    fn freshness(&self) -> Freshness {
        self.freshness
    }

    fn is_from_node(&self) -> bool {
        true
    }

    fn look(&mut self, state: &D, is_initial: bool) {
        self.looks += 1;
        let copy = || self.kind.snapshots.as_ref().map(|s| s.copy(state));
        self.found = match is_initial {
            true => Some(Found::Initial),
            false => copy().map(Found::State),
        };
    }

    fn looks(&self) -> u32 {
        self.looks
    }

    fn release(self: Box<Self>) {
        drop(self.permit);
        let _ = self.reply.send(Ok(self.found));
    }

    fn refuse(self: Box<Self>, error: Error<Never>) {
        drop(self.permit);
        let _ = self.reply.send(Err(error));
    }
}
