//! Frames of gRPC: a byte that tells of compression, four bytes of length, and the message.
//!
//! Invariants: a message that is too large is refused by its length, before it arrives; a whole message owns its memory
//! and nothing beside it.

use bytes::{Buf, BufMut, Bytes, BytesMut};
use prost::Message;

use crate::refusal::{Code, Refusal};
use crate::request::{Bounds, Request, unreadable};

/// Number of bytes before each message.
const HEAD_BYTES: usize = 5;

/// Takes messages out of the frames of one direction of a call.
#[derive(Debug)]
pub struct Frames {
    /// Bounds of one message.
    bounds: Bounds,
    head: BytesMut,
    /// Message that is arriving.
    message: Option<BytesMut>,
    /// Number of bytes of that message that are still to come.
    missing: usize,
}

impl Frames {
    /// Makes a reader of frames whose messages have these bounds.
    #[must_use]
    pub fn new(bounds: Bounds) -> Self {
        Self {
            bounds,
            head: BytesMut::new(),
            message: None,
            missing: 0,
        }
    }

    /// Sets the bounds of the messages that are still to begin.
    pub fn set_bounds(&mut self, bounds: Bounds) {
        self.bounds = bounds;
    }

    /// Returns how many bytes are kept of a message that is not whole yet.
    #[must_use]
    pub fn kept_bytes(&self) -> usize {
        self.head.len() + self.message.as_ref().map_or(0, BytesMut::len)
    }

    /// Takes from `data` what belongs to the next message. Returns the message once it is whole.
    ///
    /// # Errors
    /// The refusal of [`Bounds::refuse`] if the message is too large; `Unimplemented` if it is compressed.
    pub fn next(&mut self, data: &mut Bytes) -> Result<Option<Bytes>, Refusal> {
        if self.message.is_none() {
            let wanted = (HEAD_BYTES - self.head.len()).min(data.len());
            self.head.extend_from_slice(&data.split_to(wanted));
            if self.head.len() < HEAD_BYTES {
                return Ok(None);
            }
            self.begin()?;
        }
        let Some(message) = &mut self.message else {
            return Ok(None);
        };
        let wanted = self.missing.min(data.len());
        message.extend_from_slice(&data.split_to(wanted));
        self.missing -= wanted;
        if self.missing > 0 {
            return Ok(None);
        }
        Ok(self.message.take().map(BytesMut::freeze))
    }

    fn begin(&mut self) -> Result<(), Refusal> {
        let compressed = self.head.get_u8();
        let length = usize::try_from(self.head.get_u32()).unwrap_or(usize::MAX);
        self.head.clear();
        if compressed != 0 {
            return Err(Refusal::new(
                Code::Unimplemented,
                "messages must not be compressed",
            ));
        }
        let most = self.bounds.bytes_max;
        if length > most {
            let text = format!("a message must be at most {most} bytes, found {length}");
            return Err((self.bounds.refuse)(text, length));
        }
        // A length is a promise: memory is taken as bytes arrive.
        self.message = Some(BytesMut::with_capacity(length.min(64 * 1_024)));
        self.missing = length;
        Ok(())
    }

    /// Returns true if no part of a message waits for the rest of it.
    #[must_use]
    pub fn is_between(&self) -> bool {
        self.head.is_empty() && self.message.is_none()
    }
}

/// Appends a message in its frame.
pub fn write(out: &mut BytesMut, message: &impl Message) {
    let length = message.encoded_len();
    write_head(out, length);
    // Room is made as it is needed, so this cannot fail.
    let encoded = message.encode(out);
    debug_assert!(encoded.is_ok(), "writing to memory: {encoded:?}");
}

/// Appends what stands before a message of `length` bytes.
pub(crate) fn write_head(out: &mut BytesMut, length: usize) {
    out.reserve(HEAD_BYTES + length);
    out.put_u8(0);
    out.put_u32(u32::try_from(length).unwrap_or(u32::MAX));
}

/// Makes the frame of a message.
#[must_use]
pub fn framed(message: &impl Message) -> Bytes {
    let mut out = BytesMut::with_capacity(HEAD_BYTES + message.encoded_len());
    write(&mut out, message);
    out.freeze()
}

/// Reads a message. Its elements are counted before it is decoded.
///
/// # Errors
/// `InvalidArgument` if the bytes are no such message; the refusal of [`Bounds::refuse`] if it has more elements than
/// it may.
pub fn read<M: Request>(bytes: Bytes) -> Result<M, Refusal> {
    M::check(&bytes)?;
    M::decode(bytes).map_err(unreadable)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Frames whose messages have at most so many bytes.
    fn frames(bytes_max: usize) -> Frames {
        Frames::new(Bounds {
            bytes_max,
            ..Bounds::OTHERS
        })
    }

    proptest! {
        #[test]
        fn messages_arrive_however_they_are_cut(
            messages in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..200), 0..6),
            cut in 1_usize..50,
        ) {
            let mut wire = BytesMut::new();
            for message in &messages {
                write_head(&mut wire, message.len());
                wire.extend_from_slice(message);
            }
            let mut reader = frames(200);
            let mut found = Vec::new();
            for part in wire.chunks(cut) {
                let mut part = Bytes::copy_from_slice(part);
                while !part.is_empty() {
                    if let Some(message) = reader.next(&mut part).expect("a good message") {
                        found.push(message.to_vec());
                    }
                }
            }
            prop_assert!(reader.is_between());
            prop_assert_eq!(found, messages);
        }

        #[test]
        fn no_bytes_panic(bytes in prop::collection::vec(any::<u8>(), 0..100)) {
            let mut data = Bytes::from(bytes);
            let mut reader = frames(50);
            while !data.is_empty() && reader.next(&mut data).is_ok() {}
        }
    }

    #[test]
    fn too_large_and_compressed_messages_are_refused_by_their_head() {
        let refuse = |head: &'static [u8]| {
            let mut data = Bytes::from_static(head);
            frames(10).next(&mut data).expect_err("refused").code
        };
        assert_eq!(refuse(&[0, 0, 0, 0, 11]), Code::ResourceExhausted);
        assert_eq!(refuse(&[0, 255, 255, 255, 255]), Code::ResourceExhausted);
        assert_eq!(refuse(&[1, 0, 0, 0, 1]), Code::Unimplemented);
    }

    #[test]
    fn an_empty_message_is_whole_with_its_head() {
        let mut data = Bytes::from_static(&[0, 0, 0, 0, 0]);
        let message = frames(10).next(&mut data).expect("good");
        assert_eq!(message, Some(Bytes::new()));
    }
}
