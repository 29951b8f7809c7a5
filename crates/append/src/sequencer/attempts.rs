//! The attempts under way whose event ids the client made, and the retries that wait for them.
//!
//! A retry that arrives while its first attempt is being stored must not be stored a second time. Each part of an
//! attempt is registered by its stream and its first event id, so that a retry is recognised in whatever order it names
//! the streams.

use std::collections::HashMap;
use std::collections::hash_map::Entry;

use gesta_core::{EventId, StreamId};

use crate::command::{Command, IdSource, StreamPart};

/// The attempts under way, and the retries of them.
#[derive(Debug)]
pub(crate) struct Attempts<T> {
    /// The attempt to which a part belongs, by its number in the order of arrival.
    parts: HashMap<(StreamId, EventId), u64>,
    /// The retries that wait, by the number of the attempt, in the order of arrival.
    retries: HashMap<u64, Vec<Command<T>>>,
}

impl<T> Default for Attempts<T> {
    fn default() -> Self {
        Self {
            parts: HashMap::new(),
            retries: HashMap::new(),
        }
    }
}

impl<T> Attempts<T> {
    /// Returns whether no attempt is under way.
    pub(crate) fn is_empty(&self) -> bool {
        self.parts.is_empty()
    }

    /// Registers an attempt and gives it back. A retry of an attempt that is under way is kept instead, and the result
    /// is `None`.
    pub(crate) fn join(&mut self, mut command: Command<T>) -> Option<Command<T>> {
        if command.registered {
            return Some(command);
        }
        let first = keys(&command).find_map(|key| self.parts.get(&key).copied());
        if let Some(attempt) = first {
            self.retries.entry(attempt).or_default().push(command);
            return None;
        }
        for key in keys(&command) {
            if let Entry::Vacant(entry) = self.parts.entry(key) {
                entry.insert(command.sequence);
            }
        }
        command.registered = true;
        Some(command)
    }

    /// Ends an attempt that is answered. Returns the retries that waited for it: they may be decided now.
    pub(crate) fn end(&mut self, command: &Command<T>) -> Vec<Command<T>> {
        if !command.registered {
            return Vec::new();
        }
        for key in keys(command) {
            self.parts.remove(&key);
        }
        if self.retries.is_empty() {
            return Vec::new();
        }
        self.retries.remove(&command.sequence).unwrap_or_default()
    }
}

fn keys<T>(command: &Command<T>) -> impl Iterator<Item = (StreamId, EventId)> + '_ {
    let parts = command.parts.iter();
    parts
        .filter(|part| part.ids_from() == IdSource::Client)
        .filter_map(|part: &StreamPart| part.first_id().map(|id| (part.target(), id)))
}
