//! How far a command has come, for who stops it.

use std::sync::{Mutex, PoisonError};

/// A sentence that the command keeps true; `None` if a stop is its ordinary end.
#[derive(Debug, Default)]
pub(super) struct Progress(Mutex<Option<String>>);

impl Progress {
    /// Says how far the command has come.
    pub(super) fn set(&self, text: String) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(text);
    }

    /// How far the command has come.
    pub(super) fn text(&self) -> Option<String> {
        self.0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }
}
