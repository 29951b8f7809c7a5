//! What the task of a running group can be asked to do, and how callers reach the task.
//!
//! Invariant: a caller gets an answer or learns that the task has ended; the queue to the task has a bound.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{mpsc, oneshot};

use crate::error::{Error, Result};
use crate::info::{GroupInfo, Identity};
use crate::machine::{Action, ConsumerId, Which};
use crate::names::GroupId;
use crate::queue::Membership;

/// Most requests that wait for the task of one group.
const COMMANDS_MAX: usize = 1_024;

/// A request of a consumer to join a group.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct JoinGroup {
    /// Most events that the consumer holds at once, 1 to [`CONSUMER_EVENTS_MAX`](crate::CONSUMER_EVENTS_MAX).
    pub buffer: u32,
    /// What the consumer tells about itself.
    pub identity: Identity,
    /// How long the group waits at least for an answer of this consumer, whatever its settings say: for clients that
    /// hold answers back to send many at once.
    pub patience: Duration,
}

/// Why a group is told to stop.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Stop {
    /// The group was changed, or is restarted.
    Dropped,
    /// The group was deleted.
    Deleted,
}

/// Who answers for events.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Answerer {
    /// The consumer that got the events.
    pub(crate) consumer: ConsumerId,
    /// The user as whom the consumer must have joined; `None` if whoever knows its number may answer.
    pub(crate) user: Option<String>,
}

impl From<ConsumerId> for Answerer {
    fn from(consumer: ConsumerId) -> Self {
        Self {
            consumer,
            user: None,
        }
    }
}

type Reply<T> = oneshot::Sender<Result<T>>;

#[derive(Debug)]
pub(crate) enum Command {
    Join(JoinGroup, Reply<Membership>),
    Ack(Answerer, Vec<Which>, Reply<usize>),
    Nack(Answerer, Vec<Which>, Action, String, Reply<usize>),
    /// Replay what is parked before `stop_at`. `end` is the revision after the last parked event that is stored.
    Replay {
        stop_at: Option<u64>,
        end: u64,
        reply: Reply<()>,
    },
    Info(Reply<GroupInfo>),
    Stop(Stop),
}

impl Command {
    /// Answers the request with the error `why`.
    pub(crate) fn refuse(self, why: Error) {
        match self {
            Command::Join(_, reply) => drop(reply.send(Err(why))),
            Command::Ack(_, _, reply) | Command::Nack(_, _, _, _, reply) => {
                drop(reply.send(Err(why)));
            }
            Command::Replay { reply, .. } => drop(reply.send(Err(why))),
            Command::Info(reply) => drop(reply.send(Err(why))),
            Command::Stop(_) => {}
        }
    }
}

/// A handle to the task of a group.
#[derive(Clone, Debug)]
pub(crate) struct Commands {
    sender: Arc<mpsc::Sender<Command>>,
}

impl Commands {
    /// Makes the handle of a task that has its first request already.
    pub(crate) fn begun_with(first: Command) -> (Self, mpsc::Receiver<Command>) {
        let (sender, receiver) = mpsc::channel(COMMANDS_MAX);
        // There is room: nobody has sent anything.
        let _ = sender.try_send(first);
        let sender = Arc::new(sender);
        (Self { sender }, receiver)
    }

    /// Sends the task a request and waits for the answer; returns `None` if the task has ended without an answer.
    pub(crate) async fn ask<T>(
        &self,
        command: impl FnOnce(Reply<T>) -> Command,
    ) -> Option<Result<T>> {
        let (reply, answer) = oneshot::channel();
        self.sender.send(command(reply)).await.ok()?;
        answer.await.ok()
    }

    /// Tells the task to stop, and waits until it has stopped.
    pub(crate) async fn stop(&self, how: Stop) {
        // A task that has ended needs not be told.
        let _ = self.sender.send(Command::Stop(how)).await;
        self.sender.closed().await;
    }

    pub(crate) async fn ack(
        &self,
        group: &GroupId,
        by: Answerer,
        events: Vec<Which>,
    ) -> Result<usize> {
        let consumer = by.consumer;
        let answer = self.ask(|reply| Command::Ack(by, events, reply)).await;
        answer.unwrap_or_else(|| Err(no_consumer(group, consumer)))
    }

    pub(crate) async fn nack(
        &self,
        group: &GroupId,
        by: Answerer,
        events: Vec<Which>,
        action: Action,
        reason: String,
    ) -> Result<usize> {
        let consumer = by.consumer;
        let command = |reply| Command::Nack(by, events, action, reason, reply);
        let answer = self.ask(command).await;
        answer.unwrap_or_else(|| Err(no_consumer(group, consumer)))
    }
}

pub(crate) fn no_consumer(group: &GroupId, consumer: ConsumerId) -> Error {
    Error::NoConsumer {
        group: group.clone(),
        consumer,
    }
}
