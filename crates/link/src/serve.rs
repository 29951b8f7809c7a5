//! What the owner's side calls: [`Serve`].

use std::time::Duration;

use bytes::Bytes;
use futures::future::BoxFuture;
use gesta_core::LogId;
use uuid::Uuid;

use crate::route::{Epoch, Hint};

/// A call that another node forwards.
#[derive(Clone, Debug)]
pub struct Call {
    /// What is called. The link does not know the meaning.
    pub kind: u8,
    /// True if the forwarder has written the call before, to this node or another, and that attempt may have been done,
    /// or may yet be done. Of attempts that were written later, and arrive earlier, it says nothing.
    pub is_in_doubt: bool,
    /// The body as the edge encoded it. It may share memory with others: who keeps a part of it for long, copies it.
    pub body: Bytes,
    /// The time that was left to the deadline when the call had arrived; never zero. A call whose deadline is over when
    /// it would be begun may be dropped, and answered by [`Answer::DeadlineOver`]. One that was begun is done, however
    /// late: its caller has then heard that nobody knows.
    pub remaining: Duration,
    /// The ownership that the forwarder means. A node that knows that it is about to become the owner at this epoch may
    /// hold the call back until it is; that of `gesta-node` does not.
    pub epoch: Epoch,
    /// The forwarder: a random id that a process makes when it starts.
    pub from: Uuid,
}

/// A question from one node to another that belongs to no lane, for example a step of a hand-over.
#[derive(Clone, Debug)]
pub struct Question {
    /// What is asked. The link does not know the meaning.
    pub kind: u8,
    /// The body.
    pub body: Bytes,
    /// The time that was left to the deadline when the question had arrived; never zero.
    pub remaining: Duration,
    /// The node that asks: a random id that a process makes when it starts.
    pub from: Uuid,
}

/// What becomes of a call that was handed over.
pub enum Served {
    /// This node does not own the log. Neither this call nor a later one of the lane is served.
    NotHere(Hint),
    /// The call was taken. The future may be polled late, or dropped if the link breaks; what it waits for must go on
    /// without it.
    Taken(BoxFuture<'static, Answer>),
}

impl std::fmt::Debug for Served {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::NotHere(hint) => f.debug_tuple("NotHere").field(hint).finish(),
            Self::Taken(_) => f.write_str("Taken"),
        }
    }
}

/// The end of a call that was taken.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// The call was done, or refused for good: the edge gets these bytes, at most `body_bytes_max`.
    Reply(Bytes),
    /// The call was not done, because the node stopped owning the log. Calls of the lane that were taken after this one
    /// must not have been done either, unless doing them first is harmless: the edge sends all of them again, in order.
    NotHere(Hint),
    /// The deadline was over before the call was decided. Nothing was done.
    DeadlineOver,
}

/// Serves the calls of other nodes.
pub trait Serve: Send + Sync + 'static {
    /// Takes a call. Called for the calls of one lane in their order, and never by two lanes of the same forwarder and
    /// log at once. It must hand the call over, so that the next call cannot overtake it, before it returns. It must
    /// not block, and it must not forward the call to a third node.
    fn call(&self, log: LogId, call: Call) -> Served;

    /// Answers a question. Questions have no order.
    fn ask(&self, question: Question) -> BoxFuture<'static, Bytes>;
}
