//! Why a run of a projection ended, and what is to be done about it.

use std::any::Any;
use std::collections::HashMap;

use gesta_core::{LogId, Position, RecordedEvent};

use crate::error::{ApplyError, TargetError, TargetErrorKind, cut};
use crate::target::Target;

/// Place of an event in its log, by which it is known.
pub(crate) type At = (LogId, Position);

pub(crate) fn at(event: &RecordedEvent) -> At {
    (event.log, event.position)
}

/// What went wrong with a batch.
#[derive(Debug)]
pub(crate) enum Fault {
    /// The target failed: not the author's fault.
    Target(TargetError),
    /// The target failed while the batch was written, or its rows were read: it had answered before, as the fence had
    /// held. The batch may be too large for the time that it may take.
    Unwritten(TargetError),
    /// The store failed.
    Store(gesta_core::Error),
    /// The author's code failed, or the target has refused what it made; `None` if the event is not known.
    Author(Option<At>, String),
    /// The projection has to stop, for this reason.
    Halt(String),
}

impl Fault {
    /// An error that came from a target while rows were written: what it refuses, the author's code has made.
    pub(crate) fn of_writing(error: TargetError) -> Self {
        match error.kind() {
            TargetErrorKind::Refused => Fault::Author(None, error.to_string()),
            _ => Fault::Target(error),
        }
    }

    /// The same fault, of a transaction whose fence had held.
    pub(crate) fn within_the_fence(self) -> Self {
        match self {
            Fault::Target(error) if error.kind() == TargetErrorKind::Away => {
                Fault::Unwritten(error)
            }
            fault => fault,
        }
    }

    /// An error that came from a target while it stored what Gesta keeps there itself: no event is to blame, and what
    /// is refused once is refused again.
    pub(crate) fn of_keeping(error: TargetError) -> Self {
        match error.kind() {
            TargetErrorKind::Refused => Fault::Halt(error.to_string()),
            _ => Fault::Target(error),
        }
    }

    /// An error of an author's statements. Rights and tables that are missing are no fault of an event: as the rows of
    /// a view do, the batch waits until they are there.
    pub(crate) fn of_apply<T: Target>(error: &ApplyError) -> Self {
        match T::classify(error.cause()) {
            None | Some(TargetErrorKind::Refused) => Fault::Author(None, cut(error.to_string())),
            Some(kind) => Fault::Target(TargetError::new(kind, error.to_string())),
        }
    }
}

/// Returns the text of a panic.
pub(crate) fn panic_text(panic: &(dyn Any + Send)) -> String {
    let text = panic
        .downcast_ref::<&str>()
        .map(|text| (*text).to_owned())
        .or_else(|| panic.downcast_ref::<String>().cloned());
    cut(format!(
        "panic: {}",
        text.unwrap_or_else(|| "without a text".to_owned())
    ))
}

/// What was decided about an event that cannot be applied.
#[derive(Clone, Debug)]
pub(crate) struct Verdict {
    pub(crate) error: String,
    pub(crate) attempts: u32,
    /// False if the process dies even when the event is put aside: then nobody can tell its key.
    pub(crate) has_key: bool,
}

/// The events that are to be put aside when they come.
pub(crate) type Verdicts = HashMap<At, Verdict>;
