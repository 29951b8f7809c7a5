//! Tells how far a command has come, for a user who stops it.

use std::sync::{Mutex, PoisonError};

/// A sentence that the command keeps true; `None` if a stop is the ordinary end of the command.
#[derive(Debug, Default)]
pub(super) struct Progress(Mutex<Option<String>>);

impl Progress {
    /// Sets the sentence about how far the command has come.
    pub(super) fn set(&self, text: String) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(text);
    }

    /// Returns the sentence about how far the command has come.
    pub(super) fn text(&self) -> Option<String> {
        self.0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }
}
