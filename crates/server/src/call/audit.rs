//! Lines of the audit log about operations that the guard of the store does not see.
//!
//! Invariant: an operation that was begun is told, also if its caller leaves before the answer: the future of a call is
//! dropped with its connection, and what was begun may be done nevertheless. So nothing but [`AuditLine`] writes a
//! line.

use std::fmt::Display;
use std::sync::Arc;

use gesta_access::OwnedOperation;

use super::Admitted;
use crate::shared::problem::Problem;
use crate::state::State;

/// The line about an operation that begins now. It is written once, at the latest when it is dropped.
pub(crate) struct AuditLine {
    /// The caller; `None` if the line is written, or if nobody has to prove who they are.
    of: Option<(Admitted, Arc<State>)>,
    operation: OwnedOperation,
    subject: String,
    /// The outcome of an operation that is dropped.
    left: &'static str,
}

impl AuditLine {
    /// Makes the line of an operation of this caller. `subject` is what it is about, beside a stream.
    pub(crate) fn new(
        admitted: &Admitted,
        state: &Arc<State>,
        operation: OwnedOperation,
        subject: impl Into<String>,
    ) -> Self {
        let is_told = state.access.is_some();
        Self {
            of: is_told.then(|| (admitted.clone(), Arc::clone(state))),
            operation,
            subject: subject.into(),
            left: "the caller left before the outcome was known",
        }
    }

    /// The line with this outcome if it is dropped, in place of the one for a change whose outcome is not known.
    pub(crate) fn if_dropped(self, left: &'static str) -> Self {
        let mut line = self;
        line.left = left;
        line
    }

    /// Writes how the operation ended.
    pub(crate) fn ended<T, E: Display>(mut self, outcome: &std::result::Result<T, E>) {
        self.write(outcome);
    }

    /// Writes how an operation over HTTP ended.
    pub(crate) fn answered<T>(self, outcome: &std::result::Result<T, Problem>) {
        self.ended(&outcome.as_ref().map_err(|problem| &problem.detail));
    }

    fn write<T, E: Display>(&mut self, outcome: &std::result::Result<T, E>) {
        if let Some((admitted, state)) = self.of.take() {
            let operation = self.operation.borrowed();
            if let Some(access) = &state.access {
                access.done(&admitted.caller, operation, &self.subject, outcome);
            }
        }
    }
}

impl Drop for AuditLine {
    fn drop(&mut self) {
        let left: std::result::Result<(), _> = Err(self.left);
        self.write(&left);
    }
}
