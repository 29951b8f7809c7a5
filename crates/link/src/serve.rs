//! What the side of the owner calls: [`Serve`].

use std::time::Duration;

use bytes::Bytes;
use futures::future::BoxFuture;
use gesta_core::LogId;
use uuid::Uuid;

use crate::route::{Epoch, Hint};

/// A call that another node forwards.
#[derive(Clone, Debug)]
pub struct Call {
    /// The kind of the call. The link does not know what it means.
    pub kind: u8,
    /// Whether the forwarder has written the call before, to this node or another, so that the earlier attempt may have
    /// been done, or may be done later. This says nothing about attempts that were written later and arrive earlier.
    pub is_in_doubt: bool,
    /// The body as the edge encoded it. The body may share memory with others, so a part of it that is kept for long
    /// must be copied.
    pub body: Bytes,
    /// The time that was left to the deadline when the call had arrived, which is never zero. A call whose deadline is
    /// over when it would be begun may be dropped, and answered by [`Answer::DeadlineOver`]. A call that was begun is
    /// done, however late; its caller has then been told that the outcome is unknown.
    pub remaining: Duration,
    /// The ownership that the forwarder means. A node that knows that it is about to become the owner at this epoch may
    /// hold the call back until it is. The node of `gesta-node` does not do so.
    pub epoch: Epoch,
    /// The forwarder: a random id that a process makes when it starts.
    pub from: Uuid,
}

/// A question from one node to another that belongs to no lane, for example a step of a hand-over.
#[derive(Clone, Debug)]
pub struct Question {
    /// The kind of the question. The link does not know what it means.
    pub kind: u8,
    /// The body of the question.
    pub body: Bytes,
    /// The time that was left to the deadline when the question had arrived, which is never zero.
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
    /// The call was done, or refused for good. The edge gets these bytes, at most `body_bytes_max`.
    Reply(Bytes),
    /// The call was not done, because the node stopped owning the log. Calls of the lane that were taken after this one
    /// must not have been done either, unless doing them first is harmless: the edge sends all of them again, in order.
    NotHere(Hint),
    /// The deadline was over before the call was decided. Nothing was done.
    DeadlineOver,
}

/// Serves the calls of other nodes.
pub trait Serve: Send + Sync + 'static {
    /// Takes a call. This is called for the calls of one lane in their order, and never for two lanes of the same
    /// forwarder and log at once. Before it returns, it must hand the call over, so that the next call cannot overtake
    /// it. The function must not block, and must not forward the call to a third node.
    fn call(&self, log: LogId, call: Call) -> Served;

    /// Answers a question. Questions have no order.
    fn ask(&self, question: Question) -> BoxFuture<'static, Bytes>;
}
