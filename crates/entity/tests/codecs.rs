//! The codecs: what stands on disk, byte for byte; that it comes back; that nothing else is taken for an event.

#![allow(clippy::expect_used, reason = "test code: a panic is how a test fails")]

#[cfg(feature = "cbor")]
#[path = "codecs/cbor.rs"]
mod cbor;
#[path = "codecs/events.rs"]
mod events;
#[path = "codecs/golden.rs"]
mod golden;
#[path = "codecs/json.rs"]
mod json;
#[cfg(feature = "proto")]
#[path = "codecs/proto.rs"]
mod proto;
