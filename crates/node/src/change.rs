//! A change that a caller asks this node for: done here if this node owns the log, else forwarded.

use gesta_core::{Append, Error, ErrorKind, LogId, Result};
use gesta_link::{ForwardError, Patience, ReturnReason};

use crate::Node;
use crate::answers::{self, Changed};
use crate::calls::Change;
use crate::deadline::Deadline;
use crate::serve::begin;

impl Node {
    /// Appends: here, without ids for events that have none, if the log is this node's.
    pub(crate) async fn append_anywhere(&self, request: Append) -> Result<Changed> {
        let log = self.store.log_of_append(&request)?;
        if self.is_mine(log) {
            return begin(&self.store, Change::Append(request)).await;
        }
        self.forward(log, Change::append(request)).await
    }

    /// Makes a change that has its id.
    pub(crate) async fn change_anywhere(&self, log: LogId, change: Change) -> Result<Changed> {
        match self.is_mine(log) {
            true => begin(&self.store, change).await,
            false => self.forward(log, change).await,
        }
    }

    async fn forward(&self, log: LogId, change: Change) -> Result<Changed> {
        change.check()?;
        let deadline = Deadline::after(self.give_up_after);
        let (kind, body) = (change.kind(), change.encode());
        let until = deadline.instant();
        let call = self
            .forwarder
            .call_with(log, kind, body, until, Patience::UntilSilent);
        let outcome = call.await;
        self.counts.forwarded(&outcome);
        let was_written = match outcome {
            Ok(reply) => {
                let answer = answers::decode(reply.body);
                return match reply.is_in_doubt {
                    true => answer.map_err(in_doubt),
                    false => answer,
                };
            }
            Err(ForwardError::Overloaded) => {
                let text = "too many changes wait for the nodes that own their logs";
                return Err(ErrorKind::Overloaded(text.into()).into());
            }
            Err(ForwardError::TooLarge) => false,
            Err(ForwardError::Returned {
                reason,
                was_written,
            }) => {
                self.go_on(log, reason, was_written).await?;
                was_written
            }
        };
        let done = self.do_here(change, deadline, was_written).await;
        match was_written {
            true => done.map_err(in_doubt),
            false => done,
        }
    }

    /// Whether a change that came back is done here, and when.
    async fn go_on(&self, log: LogId, reason: ReturnReason, was_written: bool) -> Result<()> {
        match reason {
            ReturnReason::Local => Ok(()),
            ReturnReason::Unreachable | ReturnReason::Silent | ReturnReason::NoOwner => {
                self.counts.direct();
                if let Some(pace) = self.direct.get(usize::from(log.0)) {
                    pace.turn().await;
                }
                Ok(())
            }
            ReturnReason::DeadlineOver => Err(late(was_written)),
            _ => Err(not_done("the store is shutting down", was_written)),
        }
    }

    /// Does a change that came back, unless its time is over, and waits until then. The pipeline may still do it later.
    async fn do_here(
        &self,
        change: Change,
        deadline: Deadline,
        was_written: bool,
    ) -> Result<Changed> {
        if deadline.is_over() {
            return Err(late(was_written));
        }
        let done = begin(&self.store, change);
        match tokio::time::timeout_at(deadline.instant(), done).await {
            Ok(done) => done,
            Err(_) => Err(late(true)),
        }
    }
}

/// The time of a change is over.
fn late(was_begun: bool) -> Error {
    not_done("the change was not answered in time", was_begun)
}

fn not_done(text: &str, was_begun: bool) -> Error {
    let kind = match was_begun {
        true => ErrorKind::OutcomeUnknown(text.into()),
        false => ErrorKind::Unavailable(text.into()),
    };
    kind.into()
}

/// The error of a change that another node may have stored before, or may yet store: nobody can say that it is not
/// stored. A request that breaks a rule is stored nowhere.
fn in_doubt(error: Error) -> Error {
    match error.kind() {
        ErrorKind::OutcomeUnknown(_) | ErrorKind::InvalidArgument { .. } => error,
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
}
