//! Subscriptions from server-sent events (WHATWG HTML, section 9.2).
//!
//! Invariants: a message that is larger than any event, or a silence that is longer than the
//! server's heartbeats, ends the subscription; the caller resumes with its last checkpoint.

use std::time::Duration;

use bytes::{Buf, Bytes, BytesMut};
use futures::StreamExt;
use gesta_core::{Error, Result, Subscription, SubscriptionMessage};
use gesta_wire::event;
use http_body_util::BodyExt;
use hyper::body::Incoming;
use tokio_util::sync::CancellationToken;

use crate::transport;

/// The largest message, in bytes: the largest event in base64, with its names and tags.
const MESSAGE_BYTES_MAX: usize = 64 * 1024 * 1024;

/// Makes a subscription of the body of an answer. It ends when `closed` is cancelled.
pub(crate) fn subscription(
    body: Incoming,
    silence_max: Duration,
    closed: CancellationToken,
) -> Subscription {
    let reader = SseReader::new(body, silence_max, closed);
    let messages = futures::stream::unfold(Some(reader), |reader| async {
        let mut reader = reader?;
        let message = reader.next().await;
        let more = message.is_ok().then_some(reader);
        Some((message, more))
    });
    // The stream may be polled again after its end.
    Subscription::new(messages.fuse())
}

/// Reads the messages of an answer.
pub(crate) struct SseReader {
    body: Incoming,
    messages: Messages,
    silence_max: Duration,
    closed: CancellationToken,
}

impl SseReader {
    pub(crate) fn new(body: Incoming, silence_max: Duration, closed: CancellationToken) -> Self {
        Self {
            body,
            messages: Messages::default(),
            silence_max,
            closed,
        }
    }

    async fn next(&mut self) -> Result<SubscriptionMessage> {
        loop {
            if let Some(message) = understood(&self.message().await?)? {
                return Ok(message);
            }
        }
    }

    /// Returns the next message, whatever its name. Dropping the future loses nothing.
    pub(crate) async fn message(&mut self) -> Result<Message> {
        loop {
            if let Some(message) = self.messages.next()? {
                return Ok(message);
            }
            let frame = tokio::select! {
                biased;
                () = self.closed.cancelled() => return Err(Error::unavailable("the store is closed")),
                frame = tokio::time::timeout(self.silence_max, self.body.frame()) => frame,
            };
            match frame {
                Ok(Some(Ok(frame))) => {
                    if let Ok(data) = frame.into_data() {
                        self.messages.push(&data);
                    }
                }
                Ok(Some(Err(error))) => {
                    return Err(
                        Error::unavailable("the connection of the subscription broke")
                            .caused_by(error),
                    );
                }
                Ok(None) => {
                    return Err(Error::unavailable("the server ended the subscription"));
                }
                Err(_) => {
                    return Err(Error::unavailable(format!(
                        "the server was silent for {} s",
                        self.silence_max.as_secs()
                    )));
                }
            }
        }
    }
}

/// A message as it came.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Message {
    pub(crate) name: String,
    id: String,
    pub(crate) data: Bytes,
}

/// Returns what a message means; `None` if its name is not known, so that it is skipped.
pub(crate) fn understood(message: &Message) -> Result<Option<SubscriptionMessage>> {
    let checkpoint = || {
        message
            .id
            .parse()
            .map_err(|_| Error::corrupt("message of the server: its checkpoint cannot be read"))
    };
    Ok(Some(match message.name.as_str() {
        "event" => SubscriptionMessage::Event {
            event: event::read_event(&message.data)?.into(),
            checkpoint: checkpoint()?,
        },
        "checkpoint" => SubscriptionMessage::Checkpoint(checkpoint()?),
        "caught_up" => SubscriptionMessage::CaughtUp(checkpoint()?),
        "fell_behind" => SubscriptionMessage::FellBehind(checkpoint()?),
        "error" => {
            return Err(transport::told(&message.data)
                .unwrap_or_else(|| Error::unavailable("the server ended the subscription")));
        }
        _ => return Ok(None),
    }))
}

/// Splits received bytes into messages.
#[derive(Debug, Default)]
pub(crate) struct Messages {
    buffer: BytesMut,
    /// How many bytes at the beginning of `buffer` are known to hold no end of a line.
    searched: usize,
    name: String,
    id: String,
    data: BytesMut,
    has_data: bool,
}

impl Messages {
    pub(crate) fn push(&mut self, bytes: &[u8]) {
        self.buffer.extend_from_slice(bytes);
    }

    /// Returns the next whole message, if it has arrived.
    pub(crate) fn next(&mut self) -> Result<Option<Message>> {
        while let Some(length) = self.buffer[self.searched..]
            .iter()
            .position(|b| *b == b'\n')
            .map(|at| at + self.searched)
        {
            let mut line = self.buffer.split_to(length).freeze();
            self.buffer.advance(1);
            self.searched = 0;
            if line.last() == Some(&b'\r') {
                line.truncate(length - 1);
            }
            if line.is_empty() {
                if let Some(message) = self.end_message() {
                    return Ok(Some(message));
                }
            } else {
                self.line(&line)?;
            }
        }
        self.searched = self.buffer.len();
        if self.buffer.len() + self.data.len() > MESSAGE_BYTES_MAX {
            return Err(Error::corrupt("message of the server: it is too large"));
        }
        Ok(None)
    }

    fn line(&mut self, line: &[u8]) -> Result<()> {
        let colon = line.iter().position(|b| *b == b':');
        let (field, value) = line.split_at(colon.unwrap_or(line.len()));
        let value = value.strip_prefix(b":").unwrap_or(value);
        let value = value.strip_prefix(b" ").unwrap_or(value);
        let text = || {
            std::str::from_utf8(value)
                .map(str::to_owned)
                .map_err(|_| Error::corrupt("message of the server: it is not UTF-8"))
        };
        match field {
            b"event" => self.name = text()?,
            b"id" => self.id = text()?,
            b"data" => {
                if self.has_data {
                    self.data.extend_from_slice(b"\n");
                }
                self.data.extend_from_slice(value);
                self.has_data = true;
            }
            // This is a comment, or a field that is not known yet.
            _ => {}
        }
        Ok(())
    }

    /// Ends a message. A message without data is dropped. The id is kept until another one comes.
    fn end_message(&mut self) -> Option<Message> {
        let name = std::mem::take(&mut self.name);
        if !std::mem::take(&mut self.has_data) {
            return None;
        }
        Some(Message {
            name,
            id: self.id.clone(),
            data: self.data.split().freeze(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_found_however_the_bytes_are_cut() {
        let text = "retry: 1000\n\n: heartbeat\n\nid: a\nevent: event\ndata: {\"x\":\r\ndata:1}\n\nevent: caught_up\ndata: y\n\n";
        let expected = [("event", "a", "{\"x\":\n1}"), ("caught_up", "a", "y")];
        for step in 1..text.len() {
            let mut messages = Messages::default();
            let mut found = Vec::new();
            for chunk in text.as_bytes().chunks(step) {
                messages.push(chunk);
                while let Some(message) = messages.next().expect("valid") {
                    found.push(message);
                }
            }
            let found: Vec<_> = found
                .iter()
                .map(|m| {
                    (
                        m.name.as_str(),
                        m.id.as_str(),
                        std::str::from_utf8(&m.data).expect("text"),
                    )
                })
                .collect();
            assert_eq!(found, expected, "in steps of {step}");
        }
    }
}
