//! What is not known of a command: its statements whose outcomes are not known, and events that were found stored and
//! are not confirmed.

use gesta_core::backend::WriterEpoch;
use gesta_core::{AppendedStream, EventId, Position};

use super::Command;

/// A statement with the events of a command, whose outcome is not known.
#[derive(Debug)]
pub(crate) struct LostStatement {
    /// The position of the row that the statement must follow to be stored. Once another row has followed that one, the
    /// statement is never stored.
    pub(crate) after: Position,
    /// The epoch of the connection on which the statement was sent.
    pub(crate) writer: WriterEpoch,
    /// The position of the last event of the command if the statement is stored.
    pub(crate) last: Position,
    /// The streams in which the events are if the statement is stored.
    pub(crate) streams: Vec<AppendedStream>,
}

/// Where the events of a command were found stored.
#[derive(Debug, Clone)]
pub(crate) struct FoundStored {
    pub(crate) streams: Vec<AppendedStream>,
    pub(crate) by: StoredBy,
}

/// What has stored the events of a command.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum StoredBy {
    /// One of the lost statements of the command has.
    Itself,
    /// An earlier attempt has: the command is a retry.
    EarlierAttempt,
}

impl<T> Command<T> {
    /// Returns the id of the last event.
    pub(crate) fn last_id(&self) -> Option<EventId> {
        let mut written = self.parts.iter().filter(|part| !part.is_question());
        written.next_back()?.ids().pop()
    }

    /// Returns why it is not known what has become of the command; `None` if none of its statements may be stored, and
    /// its events were not found stored.
    pub(crate) fn why_unknown(&self) -> Option<&'static str> {
        match &self.stored {
            Some(found) if found.by == StoredBy::EarlierAttempt && self.lost.is_empty() => Some(
                "the events were found stored by an earlier attempt, which no commit has confirmed",
            ),
            None if self.lost.is_empty() => None,
            _ => Some("the connection was lost during the commit"),
        }
    }
}
