//! Finds one reply of a PostgreSQL server, so that it can be lost.
//!
//! Bytes from the server pass whole messages at a time, because the fault is told in messages: *lose the reply of a
//! commit*. Encrypted connections cannot be looked into; for them the fault does nothing.

use super::{Shared, lock};

/// Lose the answer of one commit: the request reaches the server, the reply does not come back, the connection is cut.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LoseReply {
    /// Counts only replies whose command tag starts with this, for example `INSERT`.
    pub tag_prefix: String,
    /// Which one is lost, over all connections: 1 is the next.
    pub nth: u32,
}

/// Cuts the server's bytes into messages (kind, length, body) and finds the reply to lose.
#[derive(Default)]
pub(super) struct Replies {
    rest: Vec<u8>,
    /// The answer to a request for encryption is a single byte without a length.
    started: bool,
    opaque: bool,
    /// The reply to lose has begun; it ends with `ReadyForQuery`, after the commit.
    losing: bool,
}

impl Replies {
    /// Moves what may pass to `forward`. True once the reply to lose is complete.
    pub(super) fn take(&mut self, bytes: &[u8], forward: &mut Vec<u8>, shared: &Shared) -> bool {
        if !self.started {
            // `S`: encrypted from here on. `N`: a plain start-up follows.
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
