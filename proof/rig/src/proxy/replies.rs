//! Finds one reply of a PostgreSQL server, so that it can be lost.
//!
//! Bytes from the server pass in whole messages, since the fault is defined by messages: *lose the reply of a commit*.
//! Encrypted connections cannot be parsed; for them the fault does nothing.

use super::{Shared, lock};

/// The loss of the answer to one commit: the request reaches the server, the reply does not come back, and the
/// connection is cut.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LoseReply {
    /// Only replies whose command tag begins with this text are counted, for example `INSERT`.
    pub tag_prefix: String,
    /// Which of these replies is lost, counted over all connections from now on; 1 is the next one.
    pub nth: u32,
}

/// Splits the bytes of the server into messages (kind, length, body) and finds the reply to lose.
#[derive(Default)]
pub(super) struct Replies {
    rest: Vec<u8>,
    /// Whether messages have begun. Before that, the answer to a request for encryption is a single byte without a
    /// length.
    started: bool,
    opaque: bool,
    /// Whether the reply to lose has begun. It ends with `ReadyForQuery`, after the commit.
    losing: bool,
}

impl Replies {
    /// Moves the bytes that may pass to `forward`. Returns true once the reply to lose is complete.
    pub(super) fn take(&mut self, bytes: &[u8], forward: &mut Vec<u8>, shared: &Shared) -> bool {
        if !self.started {
            // `S` means that what follows is encrypted, `N` that a plain start-up follows.
            self.opaque = bytes.first() == Some(&b'S') && bytes.len() == 1;
            self.started = self.opaque || bytes != b"N";
            if self.opaque || !self.started {
                forward.extend_from_slice(bytes);
                return false;
            }
        }
        if self.opaque {
            forward.extend_from_slice(bytes);
            return false;
        }
        self.rest.extend_from_slice(bytes);
        let mut at = 0;
        while let Some(message) = next_message(&self.rest[at..]) {
            at += message.len();
            self.losing = self.losing || is_reply_to_lose(message, shared);
            if self.losing && message[0] == b'Z' {
                return true;
            }
            if !self.losing {
                forward.extend_from_slice(message);
            }
        }
        self.rest.drain(..at);
        false
    }
}

fn next_message(bytes: &[u8]) -> Option<&[u8]> {
    let length = u32::from_be_bytes(bytes.get(1..5)?.try_into().ok()?);
    bytes.get(..1 + usize::try_from(length).ok()?)
}

fn is_reply_to_lose(message: &[u8], shared: &Shared) -> bool {
    if message[0] != b'C' {
        return false;
    }
    let mut armed = lock(&shared.lose);
    let Some(lose) = armed.as_mut() else {
        return false;
    };
    if !message[5..].starts_with(lose.tag_prefix.as_bytes()) {
        return false;
    }
    if lose.nth > 1 {
        lose.nth -= 1;
        return false;
    }
    *armed = None;
    true
}
