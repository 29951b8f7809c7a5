//! The receiver of the outcome of a command. Each receiver is called exactly once.

use gesta_core::{Appended, OnOutcome, Result};
use tokio::sync::oneshot;

/// The receiver of an outcome. If it is dropped without an answer, the pipeline has failed.
#[derive(Debug)]
pub(crate) enum Reply {
    /// The receiver is a caller that waits, or that has gone away.
    Caller(oneshot::Sender<Result<Appended>>),
    /// The receiver is the owner of the stream.
    Owner(OwnerReply),
}

impl Reply {
    pub(crate) fn send(self, result: Result<Appended>) {
        match self {
            // A caller that has gone away does not want to know.
            Reply::Caller(sender) => drop(sender.send(result)),
            Reply::Owner(mut reply) => reply.tell(result),
        }
    }
}

/// A receiver that calls an owner exactly once, also if the receiver is dropped.
pub(crate) struct OwnerReply(Option<OnOutcome>);

impl OwnerReply {
    pub(crate) fn new(on_outcome: OnOutcome) -> Self {
        Self(Some(on_outcome))
    }

    fn tell(&mut self, result: Result<Appended>) {
        if let Some(on_outcome) = self.0.take() {
            on_outcome(result);
        }
    }
}

impl std::fmt::Debug for OwnerReply {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("OwnerReply")
    }
}

impl Drop for OwnerReply {
    fn drop(&mut self) {
        self.tell(Err(crate::failed()));
    }
}
