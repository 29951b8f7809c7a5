//! Registers: what a file tells of them fits one order of all operations, or not.

use super::search::{Effect, Search, Span, search};
use crate::operations::{Action, Done, Operation};

/// The operations of a key, for a search.
pub(super) fn spans(operations: &[Operation]) -> Vec<Span<&Action>> {
    let spans = operations.iter().map(|operation| Span {
        call: operation.call,
        answered: operation.answered,
        what: &operation.action,
    });
    spans.collect()
}

/// Judges all operations of a register.
#[must_use]
pub fn register(operations: &[Operation]) -> Search {
    search(&spans(operations), None, |held, action| match action {
        Action::Write { input, .. } => Some(Effect::Becomes(Some(input.to))),
        Action::CompareAndSet { input, output } => {
            let holds = *held == input.from;
            match output {
                None | Some(Done::Done) if holds => Some(Effect::Becomes(Some(input.to))),
                None => Some(Effect::Nothing),
                Some(Done::Refused) if !holds => Some(Effect::Nothing),
                Some(_) => None,
            }
        }
        Action::ReadRegister { output } => (output.value == *held).then_some(Effect::Nothing),
        _ => None,
    })
}
