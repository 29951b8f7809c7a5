//! Payloads are copied out of SQLite's memory: small ones side by side into chunks, large ones alone.
//!
//! Why: two allocations per event cost as much as decoding it. Price: an event that is kept keeps its chunk, 16 KiB at
//! most.

use bytes::{Bytes, BytesMut};

/// Size of the first chunk of a page, in bytes. Each further chunk is twice as large, so that short pages waste little.
const CHUNK_BYTES_MIN: usize = 512;
/// Largest size of a chunk, in bytes.
const CHUNK_BYTES_MAX: usize = 16 * 1024;
/// Largest size of a payload that shares a chunk with others, in bytes.
const SHARED_BYTES_MAX: usize = 1024;

/// The chunk that is being filled.
#[derive(Debug, Default)]
pub(crate) struct Payloads {
    chunk: BytesMut,
    chunk_bytes: usize,
}

impl Payloads {
    pub(crate) fn copy(&mut self, bytes: &[u8]) -> Bytes {
        if bytes.is_empty() {
            return Bytes::new();
        }
        if bytes.len() > SHARED_BYTES_MAX {
            return Bytes::copy_from_slice(bytes);
        }
        if self.chunk.capacity() < bytes.len() {
            let doubled = (self.chunk_bytes * 2).clamp(CHUNK_BYTES_MIN, CHUNK_BYTES_MAX);
            self.chunk_bytes = doubled;
            self.chunk = BytesMut::with_capacity(doubled.max(bytes.len()));
        }
        self.chunk.extend_from_slice(bytes);
        self.chunk.split().freeze()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_size_comes_back_as_it_was() {
        let mut payloads = Payloads::default();
        let whole: Vec<u8> = (0..20_000_u32).map(|n| n.to_le_bytes()[0]).collect();
        let copies: Vec<Bytes> = (0..200).map(|n| payloads.copy(&whole[..n * 97])).collect();
        for (n, copy) in copies.iter().enumerate() {
            assert_eq!(copy, &whole[..n * 97]);
        }
    }
}
