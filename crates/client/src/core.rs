//! What only fuzzing uses: what reads the answers of servers.

use gesta_core::{Result, SubscriptionMessage};

use crate::sse::{Messages, understood};

/// Reads a subscription that comes in these parts, up to its first error. Messages whose names are not known are passed
/// over.
pub fn subscription<'a>(
    parts: impl IntoIterator<Item = &'a [u8]>,
) -> Vec<Result<SubscriptionMessage>> {
    let mut messages = Messages::default();
    let mut read = Vec::new();
    for part in parts {
        messages.push(part);
        loop {
            let message = match messages.next() {
                Ok(None) => break,
                Ok(Some(message)) => understood(&message).transpose(),
                Err(error) => Some(Err(error)),
            };
            let is_last = matches!(message, Some(Err(_)));
            read.extend(message);
            if is_last {
                return read;
            }
        }
    }
    read
}
