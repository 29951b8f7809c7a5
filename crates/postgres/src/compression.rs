//! Data that this process compresses itself: large data that is not JSON, or what the URL of the store says by
//! `compression=…` (decision 0012).
//!
//! Why: a log has one writing connection, and the database compresses large values while it works on the statement of
//! that connection, which is a third of that work with events of 20 kB. Here the process that appends compresses them,
//! on any core, and less data travels. The price: SQL alone cannot read such data. How: an LZ4 block (Collet,
//! `lz4_Block_format.md`) follows the length of the data as four bytes, little-endian, which the usual LZ4 packages of
//! other languages read. The stored code of the content type says that the data is compressed. Invariants: the checksum
//! of a row is that of its data as it was appended; a reader needs no option; stored bytes grow to at most
//! [`GROWTH_MAX`] times as many. Not here: what the database compresses (`sql/migrate_0001.sql`).

use bytes::Bytes;
use gesta_core::limits::EVENT_BYTES_MAX;
use gesta_core::{ContentType, StreamId};
use lz4::block;

/// Is added to the code of the content type of data that was compressed here.
pub(crate) const PACKED: i16 = 2;

/// The least size of data that is compressed, in bytes. Smaller data stays in its row, where the database does not
/// compress it either.
const BYTES_MIN: usize = 2 * 1_024;
/// How many times as large as its compressed form data may be. Data that shrinks more is left to the database, so that
/// the memory for a page of rows can be foreseen.
const GROWTH_MAX: usize = 8;
/// How many bytes hold the length.
const PREFIX_BYTES: usize = 4;

/// Which data of large events this process compresses itself. The database compresses the other data. Every process
/// reads both, whatever its own setting.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Compression {
    /// This process compresses nothing.
    Database,
    /// This process compresses data that is not JSON, which SQL could not use in any case. JSON stays readable for SQL.
    #[default]
    Binary,
    /// This process compresses all data. SQL shows large JSON data compressed.
    Client,
}

impl Compression {
    /// Returns the compressed data, if it is to be stored compressed.
    pub(crate) fn pack(
        self,
        stream: &StreamId,
        content_type: ContentType,
        data: &[u8],
    ) -> Option<Vec<u8>> {
        let wanted = match self {
            Compression::Database => false,
            Compression::Binary => content_type != ContentType::Json,
            Compression::Client => true,
        };
        // Statements of other shape read the metadata of streams.
        if !wanted || data.len() < BYTES_MIN || stream.described_stream().is_some() {
            return None;
        }
        let packed = block::compress(data, None, true).ok()?;
        let is_worth_it = packed.len() <= data.len() / 8 * 7;
        let is_bounded = data.len() <= packed.len().saturating_mul(GROWTH_MAX);
        (is_worth_it && is_bounded).then_some(packed)
    }
}

/// Returns the length of the data as it was appended, by its stored code and bytes. Damaged bytes count as they are.
pub(crate) fn length(code: i16, stored: &[u8]) -> usize {
    match told_length(stored).filter(|_| code >= PACKED) {
        Some(length) => length,
        None => stored.len(),
    }
}

/// Returns the code of the content type and the data as they were appended, from those that are stored.
///
/// # Errors
/// A text that says what is wrong.
pub(crate) fn unpack(code: i16, stored: &Bytes) -> Result<(i64, Bytes), String> {
    if code < PACKED {
        return Ok((i64::from(code), stored.clone()));
    }
    let length = told_length(stored).ok_or("its data have no possible length")?;
    let data = block::decompress(stored, None)
        .map_err(|error| format!("its data cannot be decompressed: {error}"))?;
    if data.len() != length {
        return Err(format!(
            "its data have {} bytes instead of {length}",
            data.len()
        ));
    }
    Ok((i64::from(code - PACKED), data.into()))
}

/// Returns the length that the first bytes tell, if it can be the length of these data.
fn told_length(stored: &[u8]) -> Option<usize> {
    let prefix = stored.first_chunk::<PREFIX_BYTES>()?;
    let length = usize::try_from(u32::from_le_bytes(*prefix)).ok()?;
    let possible = length <= EVENT_BYTES_MAX && length <= stored.len().saturating_mul(GROWTH_MAX);
    possible.then_some(length)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Words that no two places have in common for long: shrinks to about half.
    fn text(length: usize) -> Bytes {
        let mut number = 1_u64;
        let words = std::iter::repeat_with(|| {
            number = number
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            format!("seat-{:05} ", number >> 47)
        });
        let mut text: String = words.take(length / 11 + 1).collect();
        text.truncate(length);
        text.into()
    }

    fn pack(stream: &str, data: &[u8]) -> Option<Vec<u8>> {
        let stream = StreamId::new(stream).expect("valid");
        Compression::Client.pack(&stream, ContentType::Json, data)
    }

    #[test]
    fn what_is_packed_comes_back_and_is_smaller() {
        for length in [BYTES_MIN, 20_000, EVENT_BYTES_MAX] {
            let data = text(length);
            let packed: Bytes = pack("s", &data).expect("packed").into();
            assert!(packed.len() < data.len() * 7 / 8, "{}", packed.len());
            assert_eq!(super::length(PACKED, &packed), data.len());
            for code in [0, 1] {
                assert_eq!(
                    unpack(PACKED + code, &packed),
                    Ok((i64::from(code), data.clone()))
                );
            }
        }
    }

    #[test]
    fn other_data_stay_as_they_are() {
        let noise: Vec<u8> = (0..20_000).map(|_| rand::random()).collect();
        for (stream, data) in [
            ("s", text(BYTES_MIN - 1)),
            ("s", noise.into()),
            ("s", Bytes::from(vec![b'a'; 100_000])),
            ("$$s", text(20_000)),
        ] {
            assert_eq!(pack(stream, &data), None, "{stream}");
            assert_eq!(super::length(0, &data), data.len());
            assert_eq!(unpack(1, &data), Ok((1, data)));
        }
    }

    #[test]
    fn json_is_packed_only_if_asked_for() {
        let stream = StreamId::new("s").expect("valid");
        let data = text(20_000);
        for (compression, of_json, of_others) in [
            (Compression::Database, false, false),
            (Compression::Binary, false, true),
            (Compression::Client, true, true),
        ] {
            let is_packed = |content_type| compression.pack(&stream, content_type, &data).is_some();
            assert_eq!(is_packed(ContentType::Json), of_json, "{compression:?}");
            assert_eq!(is_packed(ContentType::Binary), of_others, "{compression:?}");
        }
        assert_eq!(Compression::default(), Compression::Binary);
    }

    #[test]
    fn damaged_bytes_are_refused_and_cost_no_memory() {
        let packed = pack("s", &text(20_000)).expect("packed");
        for cut in [0, 1, 3, 4, 5, packed.len() - 1] {
            let cut = Bytes::copy_from_slice(&packed[..cut]);
            assert!(unpack(PACKED, &cut).is_err(), "{} bytes", cut.len());
        }
        let told = |length: u32| {
            let mut changed = packed.clone();
            changed[..PREFIX_BYTES].copy_from_slice(&length.to_le_bytes());
            Bytes::from(changed)
        };
        let bomb = told(u32::MAX);
        assert_eq!(super::length(PACKED, &bomb), bomb.len());
        let problem = unpack(PACKED, &bomb).expect_err("too long");
        assert!(problem.contains("length"), "{problem}");
        assert!(unpack(PACKED, &told(20_001)).is_err());
        assert!(unpack(PACKED, &told(19_999)).is_err());
    }

    /// Whatever the bytes are: an answer, and no more memory than they may tell of.
    #[test]
    fn no_bytes_do_harm() {
        let packed = pack("s", &text(20_000)).expect("packed");
        for _ in 0..5_000 {
            let mut hostile = packed.clone();
            for _ in 0..rand::random_range(1..10) {
                let place = rand::random_range(0..hostile.len());
                hostile[place] = rand::random();
            }
            hostile.truncate(rand::random_range(0..=hostile.len()));
            let hostile = Bytes::from(hostile);
            if let Ok((_, data)) = unpack(PACKED, &hostile) {
                assert_eq!(data.len(), super::length(PACKED, &hostile));
            }
        }
    }
}
