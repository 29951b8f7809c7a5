//! Frames: what is sent in the streams of a link, and how bytes become frames again.
//!
//! A frame is its length (4 bytes, of what follows), its type (1 byte) and its fields, all big-endian; a body is the
//! rest of the frame. A type with the highest bit set is optional: a node that does not know the type skips the frame.
//! An unknown type without that bit ends the stream.
//!
//! There are no frames for chunks: HTTP/2 cuts a stream into DATA frames of 16 KiB and interleaves those of all
//! streams, so a large body delays only its own lane. There are no frames for credit: each answer gives back what its
//! call took.

use std::collections::VecDeque;
use std::time::Duration;

use bytes::{Buf, BufMut, Bytes, BytesMut};
use gesta_core::{Incarnation, LogId, Moment};
use uuid::Uuid;

use crate::route::{Address, Epoch, Hint};
use crate::sending::Violation;

/// The size in bytes up to which bodies are copied beside the heads of their frames, so that many small calls leave as
/// one piece.
const COPIED_BYTES_MAX: usize = 4 << 10;
/// The number of bytes of a frame beside its body. This is enough for the longest hint.
const HEAD_BYTES_MAX: usize = 512;
/// The bit that is set in the types of frames that may be skipped.
const OPTIONAL: u8 = 0x80;
/// The bit that is set in the kind of a call of which an earlier attempt may have been done.
pub(crate) const IN_DOUBT: u8 = 0x80;

const OPEN: u8 = 1;
const CALL: u8 = 2;
const REPLY: u8 = 3;
const NOT_HERE: u8 = 4;
const DEADLINE_OVER: u8 = 5;
const ASK: u8 = 6;
const ANSWER: u8 = 7;
// 8, 9 and 10 were subscriptions to what owners push. They are not used again, for a build of then may be at the other
// end.

/// A frame.
#[derive(Debug, Clone, PartialEq, Eq)]
#[allow(
    missing_docs,
    reason = "the fields of a frame are those of what it stands for"
)]
pub enum Frame {
    /// The first frame of a lane: its log, its number, and the ownership that the forwarder means.
    Open { log: LogId, lane: u64, epoch: Epoch },
    /// A call on a lane. Numbers of calls are dense from 0. Kinds are below 0x80.
    Call {
        seq: u64,
        kind: u8,
        is_in_doubt: bool,
        remaining: Duration,
        body: Bytes,
    },
    /// The reply to a call.
    Reply { seq: u64, body: Bytes },
    /// All calls from `from` on are refused; those from `untaken` on were not handed over.
    NotHere { from: u64, untaken: u64, hint: Hint },
    /// A call was dropped because its deadline was over.
    DeadlineOver { seq: u64 },
    /// A question, which is the only frame of its stream.
    Ask {
        kind: u8,
        remaining: Duration,
        body: Bytes,
    },
    /// The answer to the question of this stream.
    Answer { body: Bytes },
}

/// The frames that wait to be written to a stream.
#[derive(Debug, Default)]
pub struct Outbox {
    small: BytesMut,
    pieces: VecDeque<Bytes>,
    bytes: usize,
}

impl Outbox {
    /// Returns the number of bytes that wait.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Adds a frame.
    pub fn push(&mut self, frame: Frame) {
        match frame {
            Frame::Open { log, lane, epoch } => self.frame(OPEN, Bytes::new(), |head| {
                head.put_u16(log.0);
                head.put_u64(lane);
                put_epoch(head, epoch);
            }),
            Frame::Call {
                seq,
                kind,
                is_in_doubt,
                remaining,
                body,
            } => self.frame(CALL, body, |head| {
                head.put_u64(seq);
                head.put_u8(kind | if is_in_doubt { IN_DOUBT } else { 0 });
                put_remaining(head, remaining);
            }),
            Frame::Reply { seq, body } => self.frame(REPLY, body, |head| head.put_u64(seq)),
            Frame::NotHere {
                from,
                untaken,
                hint,
            } => self.frame(NOT_HERE, Bytes::new(), |head| {
                head.put_u64(from);
                head.put_u64(untaken);
                put_epoch(head, hint.epoch);
                // An address that is too long for a hint is as good as none.
                let owner = hint.owner.as_ref().map_or("", Address::as_str);
                let length = u8::try_from(owner.len()).unwrap_or(0);
                head.put_u8(length);
                head.put_slice(&owner.as_bytes()[..usize::from(length)]);
            }),
            Frame::DeadlineOver { seq } => {
                self.frame(DEADLINE_OVER, Bytes::new(), |head| head.put_u64(seq));
            }
            Frame::Ask {
                kind,
                remaining,
                body,
            } => self.frame(ASK, body, |head| {
                head.put_u8(kind);
                put_remaining(head, remaining);
            }),
            Frame::Answer { body } => self.frame(ANSWER, body, |_| {}),
        }
    }

    fn frame(&mut self, kind: u8, body: Bytes, fields: impl FnOnce(&mut BytesMut)) {
        let start = self.small.len();
        self.small.put_u32(0);
        self.small.put_u8(kind);
        fields(&mut self.small);
        let length = self.small.len() - start - 4 + body.len();
        // Bodies are bounded far below; see `LinkConfig::check`.
        let length = u32::try_from(length).unwrap_or(u32::MAX);
        self.small[start..start + 4].copy_from_slice(&length.to_be_bytes());
        self.bytes += self.small.len() - start + body.len();
        if body.len() <= COPIED_BYTES_MAX {
            self.small.put_slice(&body);
        } else {
            self.pieces.push_back(self.small.split().freeze());
            self.pieces.push_back(body);
        }
    }

    /// Returns the next piece to write.
    #[allow(
        clippy::should_implement_trait,
        reason = "a piece belongs to the outbox until it is written"
    )]
    pub fn next(&mut self) -> Option<&mut Bytes> {
        if self.pieces.is_empty() && !self.small.is_empty() {
            self.pieces.push_back(self.small.split().freeze());
        }
        self.pieces.front_mut()
    }

    /// Notes that `bytes` bytes of the next piece were written.
    pub fn written(&mut self, bytes: usize) {
        self.bytes -= bytes;
        self.pieces.pop_front_if(|piece| piece.is_empty());
    }
}

fn put_epoch(head: &mut BytesMut, epoch: Epoch) {
    head.put_slice(epoch.incarnation.0.as_bytes());
    head.put_u64(epoch.number);
}

fn put_remaining(head: &mut BytesMut, remaining: Duration) {
    head.put_u32(u32::try_from(remaining.as_millis()).unwrap_or(u32::MAX));
}

/// Makes frames of the bytes of a stream.
#[derive(Debug)]
pub struct Frames {
    frame_bytes_max: usize,
    /// The bytes that have come and are not read yet. A small frame shares their memory.
    chunk: Bytes,
    /// The beginning of a frame that has not come whole. It grows with what comes, whatever length is claimed.
    partial: BytesMut,
    /// The moment at which the first byte of that frame had come.
    since: Moment,
}

impl Frames {
    /// Makes a reader of frames whose bodies have at most so many bytes.
    #[must_use]
    pub fn new(body_bytes_max: u32) -> Self {
        let body = usize::try_from(body_bytes_max).unwrap_or(usize::MAX);
        Self {
            frame_bytes_max: body.saturating_add(HEAD_BYTES_MAX),
            chunk: Bytes::new(),
            partial: BytesMut::new(),
            since: Moment::START,
        }
    }

    /// Takes bytes that have come. All frames of the bytes before must have been taken.
    pub fn feed(&mut self, now: Moment, chunk: Bytes) {
        if self.partial.is_empty() {
            self.since = now;
        }
        self.chunk = chunk;
    }

    /// Returns the next whole frame, and the moment at which its first byte had come.
    ///
    /// # Errors
    /// If the bytes are no frames, or if a frame is too long.
    pub fn next(&mut self, now: Moment) -> Result<Option<(Frame, Moment)>, Violation> {
        loop {
            let since = self.since;
            let Some(bytes) = self.next_bytes()? else {
                return Ok(None);
            };
            // The bytes of the next frame have come just now, with the end of this one.
            self.since = now;
            if let Some(frame) = decode(bytes)? {
                return Ok(Some((frame, since)));
            }
        }
    }

    fn next_bytes(&mut self) -> Result<Option<Bytes>, Violation> {
        if self.partial.is_empty()
            && let Some(length) = self.length(&self.chunk)?
            && self.chunk.len() >= 4 + length
        {
            self.chunk.advance(4);
            return Ok(Some(self.chunk.split_to(length)));
        }
        self.fill(4);
        let Some(length) = self.length(&self.partial)? else {
            return Ok(None);
        };
        self.fill(4 + length);
        if self.partial.len() < 4 + length {
            return Ok(None);
        }
        let mut frame = std::mem::take(&mut self.partial).freeze();
        frame.advance(4);
        Ok(Some(frame))
    }

    /// Moves bytes to `partial` until it has `length` bytes or all bytes have been moved.
    fn fill(&mut self, length: usize) {
        let missing = length.saturating_sub(self.partial.len());
        let bytes = self.chunk.split_to(missing.min(self.chunk.len()));
        self.partial.put_slice(&bytes);
    }

    fn length(&self, bytes: &[u8]) -> Result<Option<usize>, Violation> {
        let Some(length) = bytes.first_chunk() else {
            return Ok(None);
        };
        let length = usize::try_from(u32::from_be_bytes(*length)).unwrap_or(usize::MAX);
        if length > self.frame_bytes_max {
            return Err(Violation("a frame that is too long"));
        }
        Ok(Some(length))
    }
}

/// Reads a frame; `None` if the frame is optional and unknown.
fn decode(bytes: Bytes) -> Result<Option<Frame>, Violation> {
    let mut rest = bytes;
    match fields(&mut rest) {
        Ok(frame) => frame,
        Err(_) => Err(Violation("a frame that is too short")),
    }
}

type Fields = Result<Result<Option<Frame>, Violation>, bytes::TryGetError>;

fn fields(rest: &mut Bytes) -> Fields {
    let kind = rest.try_get_u8()?;
    let frame = match kind {
        OPEN => Frame::Open {
            log: LogId(rest.try_get_u16()?),
            lane: rest.try_get_u64()?,
            epoch: epoch(rest)?,
        },
        CALL => {
            let (seq, kind) = (rest.try_get_u64()?, rest.try_get_u8()?);
            Frame::Call {
                seq,
                kind: kind & !IN_DOUBT,
                is_in_doubt: kind & IN_DOUBT != 0,
                remaining: remaining(rest)?,
                body: std::mem::take(rest),
            }
        }
        REPLY => Frame::Reply {
            seq: rest.try_get_u64()?,
            body: std::mem::take(rest),
        },
        NOT_HERE => return not_here(rest),
        DEADLINE_OVER => Frame::DeadlineOver {
            seq: rest.try_get_u64()?,
        },
        ASK => Frame::Ask {
            kind: rest.try_get_u8()?,
            remaining: remaining(rest)?,
            body: std::mem::take(rest),
        },
        ANSWER => Frame::Answer {
            body: std::mem::take(rest),
        },
        unknown if unknown & OPTIONAL != 0 => return Ok(Ok(None)),
        _ => return Ok(Err(Violation("a required frame of an unknown type"))),
    };
    Ok(Ok(Some(frame)))
}

fn not_here(rest: &mut Bytes) -> Fields {
    let (from, untaken) = (rest.try_get_u64()?, rest.try_get_u64()?);
    let epoch = epoch(rest)?;
    let length = usize::from(rest.try_get_u8()?);
    let Some(owner) = rest.get(..length).map(std::str::from_utf8) else {
        return Ok(Err(Violation("a frame that is too short")));
    };
    let Ok(owner) = owner else {
        return Ok(Err(Violation("an address that is not text")));
    };
    let owner = (!owner.is_empty()).then(|| Address::new(owner));
    Ok(Ok(Some(Frame::NotHere {
        from,
        untaken,
        hint: Hint { owner, epoch },
    })))
}

fn epoch(rest: &mut Bytes) -> Result<Epoch, bytes::TryGetError> {
    let incarnation = Incarnation(Uuid::from_u128(rest.try_get_u128()?));
    let number = rest.try_get_u64()?;
    Ok(Epoch {
        incarnation,
        number,
    })
}

fn remaining(rest: &mut Bytes) -> Result<Duration, bytes::TryGetError> {
    Ok(Duration::from_millis(rest.try_get_u32()?.into()))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn any_frame() -> impl Strategy<Value = Frame> {
        let body =
            || prop_oneof![0..50_usize, 4_000..9_000_usize].prop_map(|n| Bytes::from(vec![7; n]));
        let epoch = || {
            (any::<u128>(), any::<u64>()).prop_map(|(incarnation, number)| Epoch {
                incarnation: Incarnation(Uuid::from_u128(incarnation)),
                number,
            })
        };
        let remaining = || any::<u32>().prop_map(|ms| Duration::from_millis(ms.into()));
        let owner = prop::option::of("[a-z0-9.]{1,200}:[0-9]{1,5}");
        prop_oneof![
            (any::<u16>(), any::<u64>(), epoch()).prop_map(|(log, lane, epoch)| Frame::Open {
                log: LogId(log),
                lane,
                epoch
            }),
            (
                any::<u64>(),
                0..IN_DOUBT,
                any::<bool>(),
                remaining(),
                body()
            )
                .prop_map(|(seq, kind, is_in_doubt, remaining, body)| Frame::Call {
                    seq,
                    kind,
                    is_in_doubt,
                    remaining,
                    body
                }),
            (any::<u64>(), body()).prop_map(|(seq, body)| Frame::Reply { seq, body }),
            (any::<u64>(), any::<u64>(), owner, epoch()).prop_map(
                |(from, untaken, owner, epoch)| {
                    let owner = owner.map(Address::new);
                    Frame::NotHere {
                        from,
                        untaken,
                        hint: Hint { owner, epoch },
                    }
                }
            ),
            any::<u64>().prop_map(|seq| Frame::DeadlineOver { seq }),
            (any::<u8>(), remaining(), body()).prop_map(|(kind, remaining, body)| Frame::Ask {
                kind,
                remaining,
                body
            }),
            body().prop_map(|body| Frame::Answer { body }),
        ]
    }

    fn bytes_of(mut outbox: Outbox) -> Vec<u8> {
        let mut all = Vec::new();
        while let Some(piece) = outbox.next() {
            let piece = piece.split_to(piece.len());
            all.extend_from_slice(&piece);
            outbox.written(piece.len());
        }
        assert_eq!(outbox.bytes(), 0);
        all
    }

    fn read(frames: &mut Frames, chunk: &[u8]) -> Result<Vec<Frame>, Violation> {
        let now = Moment::START;
        frames.feed(now, Bytes::copy_from_slice(chunk));
        let mut read = Vec::new();
        while let Some((frame, _)) = frames.next(now)? {
            read.push(frame);
        }
        Ok(read)
    }

    proptest! {
        #[test]
        fn frames_come_out_as_they_went_in(
            sent in prop::collection::vec(any_frame(), 0..20),
            chunk in 1_usize..5_000,
        ) {
            let mut outbox = Outbox::default();
            sent.iter().for_each(|frame| outbox.push(frame.clone()));
            let mut frames = Frames::new(1 << 20);
            let mut received = Vec::new();
            for chunk in bytes_of(outbox).chunks(chunk) {
                received.extend(read(&mut frames, chunk).expect("valid"));
            }
            prop_assert_eq!(sent, received);
        }

        /// Goal: random bytes, and valid frames with bytes changed, end in a violation or in frames, never in a panic.
        #[test]
        fn hostile_bytes_do_no_harm(
            mut sent in prop::collection::vec(any_frame(), 0..4),
            noise in prop::collection::vec(any::<u8>(), 0..300),
            changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..6),
            chunk in 1_usize..100,
        ) {
            let mut outbox = Outbox::default();
            sent.drain(..).for_each(|frame| outbox.push(frame));
            let mut bytes = bytes_of(outbox);
            bytes.extend(noise);
            for (at, value) in changes {
                if !bytes.is_empty() {
                    let at = at.index(bytes.len());
                    bytes[at] = value;
                }
            }
            let mut frames = Frames::new(1 << 16);
            for chunk in bytes.chunks(chunk) {
                if read(&mut frames, chunk).is_err() {
                    break;
                }
            }
        }
    }

    #[test]
    fn unknown_frames_are_skipped_if_optional_and_refused_if_required() {
        let mut frames = Frames::new(100);
        let optional = [0, 0, 0, 3, 0x90, 1, 2];
        assert_eq!(read(&mut frames, &optional), Ok(vec![]));
        let over = [0, 0, 0, 9, DEADLINE_OVER, 0, 0, 0, 0, 0, 0, 0, 5];
        assert_eq!(
            read(&mut frames, &over),
            Ok(vec![Frame::DeadlineOver { seq: 5 }])
        );
        for reserved_or_unknown in [8, 9, 10, 0x10] {
            let mut frames = Frames::new(100);
            let bytes = [0, 0, 0, 3, reserved_or_unknown, 0, 1];
            assert!(read(&mut frames, &bytes).is_err());
        }
    }

    #[test]
    fn a_length_that_is_claimed_takes_no_memory() {
        let mut frames = Frames::new(64 << 20);
        assert_eq!(read(&mut frames, &(60_u32 << 20).to_be_bytes()), Ok(vec![]));
        assert!(frames.partial.capacity() < 1_000);
        let mut frames = Frames::new(1_000);
        assert!(read(&mut frames, &2_000_u32.to_be_bytes()).is_err());
    }
}
