//! Checksums of stored rows: XXH3-64 (Collet, BSD specification `doc/xxhash_spec.md`), kept as a signed integer.
//!
//! Why: a bit that flips on disk, or a row that another program has changed, must be noticed when the row is read. A
//! checksum is no defence against somebody who can compute it anew. How: variable parts (data, metadata, tags) are
//! hashed one by one; their hashes and lengths join the fixed-width numbers, big-endian, in one small record on the
//! stack, which is hashed in turn. So the encoding is unambiguous and nothing is copied or allocated. Invariants: the
//! encoding never changes; `tests` hold fixed values. `docs/internals/schema.md` lists the columns that a checksum
//! covers. Not here: what to do about a wrong checksum (backends while reading, `verify` in the audit).

use gesta_core::backend::{Row, RowId, WriterEpoch};
use gesta_core::{LogId, RecordedEvent, Tags};
use xxhash_rust::xxh3::{xxh3_64, xxh3_64_with_seed};

use crate::convert::content_type_code;

/// The columns of an event row as they are stored, before they are checked. Numbers are the stored 64 bits.
#[derive(Clone, Copy, Debug)]
pub struct RawRow<'a> {
    /// Log of the event.
    pub log: LogId,
    /// Position of the event in its log.
    pub position: i64,
    /// Row id of the event's stream.
    pub stream: i64,
    /// Number of the event in its stream.
    pub revision: i64,
    /// Identity of the event.
    pub event_id: &'a [u8; 16],
    /// Row id of the event's type.
    pub event_type: i64,
    /// Time at which the event was stored, in microseconds since 1970-01-01T00:00:00Z.
    pub created: i64,
    /// Code of the content type, as [`content_type_code`](crate::content_type_code) gives it.
    pub content_type: i64,
    /// Epoch of the writer that stored the row.
    pub writer: i64,
    /// Payload of the event.
    pub data: &'a [u8],
    /// Data about the event; empty if there is none.
    pub metadata: &'a [u8],
}

/// Size of the record that is hashed at the end, in bytes: no more than 128, up to which XXH3 is fastest.
const RECORD_BYTES: usize = 16 * 8;

impl RawRow<'_> {
    /// Computes the checksum of these columns and of the tags, in the order in which the tags are stored.
    #[must_use]
    pub fn checksum<'t>(&self, tags: impl ExactSizeIterator<Item = &'t str>) -> i64 {
        let [id_high, id_low] = halves(self.event_id);
        let tags_count = wide(tags.len());
        let words: [u64; RECORD_BYTES / 8] = [
            u64::from(self.log.0),
            self.position.cast_unsigned(),
            self.stream.cast_unsigned(),
            self.revision.cast_unsigned(),
            id_high,
            id_low,
            self.event_type.cast_unsigned(),
            self.created.cast_unsigned(),
            self.content_type.cast_unsigned(),
            self.writer.cast_unsigned(),
            wide(self.data.len()),
            xxh3_64(self.data),
            wide(self.metadata.len()),
            xxh3_64(self.metadata),
            tags_count,
            // A chain of hashes: each tag is hashed with the hash of those before it as its seed.
            tags.fold(tags_count, |seed, tag| {
                xxh3_64_with_seed(tag.as_bytes(), seed)
            }),
        ];
        hash_words(&words)
    }
}

/// Computes the checksum of a row that the writer `epoch` is about to store in `log`.
#[must_use]
pub fn checksum(log: LogId, row: &Row, epoch: WriterEpoch) -> i64 {
    let raw = RawRow {
        log,
        position: row.position.0.cast_signed(),
        stream: row.stream_row.0.cast_signed(),
        revision: row.revision.0.cast_signed(),
        event_id: row.id.0.as_bytes(),
        event_type: row.type_row.0.cast_signed(),
        created: row.created.0,
        content_type: content_type_code(row.content_type),
        writer: epoch.0,
        data: &row.data,
        metadata: &row.metadata,
    };
    raw.checksum(texts(&row.tags))
}

/// Computes the checksum that the row of `event` must carry.
#[must_use]
pub fn recorded_checksum(
    event: &RecordedEvent,
    stream_row: RowId,
    type_row: RowId,
    epoch: WriterEpoch,
) -> i64 {
    let raw = RawRow {
        log: event.log,
        position: event.position.0.cast_signed(),
        stream: stream_row.0.cast_signed(),
        revision: event.revision.0.cast_signed(),
        event_id: event.id.0.as_bytes(),
        event_type: type_row.0.cast_signed(),
        created: event.created.0,
        content_type: content_type_code(event.content_type),
        writer: epoch.0,
        data: &event.data,
        metadata: &event.metadata,
    };
    raw.checksum(texts(&event.tags))
}

/// Computes the checksum of the name of an interned stream or event type.
#[must_use]
pub fn name_checksum(log: LogId, row: RowId, name: &str) -> i64 {
    hash_words(&[
        u64::from(log.0),
        row.0,
        wide(name.len()),
        xxh3_64(name.as_bytes()),
    ])
}

fn texts(tags: &Tags) -> impl ExactSizeIterator<Item = &str> {
    tags.as_slice().iter().map(gesta_core::Tag::as_str)
}

fn halves(id: &[u8; 16]) -> [u64; 2] {
    let whole = u128::from_be_bytes(*id);
    #[expect(
        clippy::cast_possible_truncation,
        reason = "the two halves of 128 bits"
    )]
    let halves = [(whole >> 64) as u64, whole as u64];
    halves
}

fn wide(length: usize) -> u64 {
    u64::try_from(length).unwrap_or(u64::MAX)
}

fn hash_words<const N: usize>(words: &[u64; N]) -> i64 {
    let mut record = [0_u8; RECORD_BYTES];
    for (place, word) in record.chunks_exact_mut(8).zip(words) {
        place.copy_from_slice(&word.to_be_bytes());
    }
    xxh3_64(record.get(..N * 8).unwrap_or(&record)).cast_signed()
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::Bytes;
    use gesta_core::{
        ContentType, EventId, EventType, Position, Revision, StreamId, Tag, Timestamp,
    };
    use uuid::Uuid;

    fn row(data: &'static str, metadata: &'static str, tags: &[&str]) -> Row {
        Row {
            position: Position(77),
            stream: StreamId::new("cart-1").expect("valid"),
            stream_row: RowId(70),
            revision: Revision(7),
            id: EventId(Uuid::from_u128(0x0123_4567_89ab_cdef_0011_2233_4455_6677)),
            event_type: EventType::new("ItemAdded").expect("valid"),
            type_row: RowId(3),
            created: Timestamp(1_790_000_000_000_001),
            content_type: ContentType::Json,
            data: Bytes::from_static(data.as_bytes()),
            packed: None,
            metadata: Bytes::from_static(metadata.as_bytes()),
            tags: Tags::new(tags.iter().map(|t| Tag::new(*t).expect("valid")).collect())
                .expect("valid"),
        }
    }

    const EPOCH: WriterEpoch = WriterEpoch(-5);

    /// Goal: the encoding never changes. These values stand in existing stores.
    #[test]
    fn checksums_are_fixed_for_ever() {
        let sums = [
            checksum(LogId(0), &row("{}", "", &[]), EPOCH),
            checksum(
                LogId(3),
                &row("{\"a\":1}", "{\"m\":2}", &["red", "blue"]),
                EPOCH,
            ),
            name_checksum(LogId(0), RowId(1), "cart-1"),
            name_checksum(LogId(1), RowId(1), "größe"),
        ];
        assert_eq!(
            sums,
            [
                254_893_021_369_040_236,
                -2_843_627_624_143_579_601,
                6_563_165_560_498_814_784,
                -7_892_306_694_691_328_963,
            ]
        );
    }

    #[test]
    fn every_column_counts() {
        let plain = checksum(LogId(0), &row("ab", "c", &["x", "yz"]), EPOCH);
        let mut others = vec![
            checksum(LogId(1), &row("ab", "c", &["x", "yz"]), EPOCH),
            checksum(LogId(0), &row("ab", "c", &["x", "yz"]), WriterEpoch(5)),
            checksum(LogId(0), &row("abc", "", &["x", "yz"]), EPOCH),
            checksum(LogId(0), &row("a", "bc", &["x", "yz"]), EPOCH),
            checksum(LogId(0), &row("ab", "c", &["xy", "z"]), EPOCH),
            checksum(LogId(0), &row("ab", "c", &["yz", "x"]), EPOCH),
            checksum(LogId(0), &row("ab", "c", &["xyz"]), EPOCH),
        ];
        let changes: [fn(&mut Row); 7] = [
            |r| r.position = Position(78),
            |r| r.stream_row = RowId(71),
            |r| r.revision = Revision(8),
            |r| r.id = EventId(Uuid::from_u128(1)),
            |r| r.type_row = RowId(4),
            |r| r.created = Timestamp(0),
            |r| r.content_type = ContentType::Binary,
        ];
        for change in changes {
            let mut changed = row("ab", "c", &["x", "yz"]);
            change(&mut changed);
            others.push(checksum(LogId(0), &changed, EPOCH));
        }
        assert!(others.iter().all(|sum| *sum != plain), "{plain} {others:?}");
        others.sort_unstable();
        others.dedup();
        assert_eq!(others.len(), 14);
    }

    #[test]
    fn a_row_read_back_has_the_checksum_it_was_stored_with() {
        let row = row("{\"a\":1}", "m", &["red"]);
        assert_eq!(
            checksum(LogId(2), &row, EPOCH),
            recorded_checksum(
                &row.to_recorded(LogId(2)),
                row.stream_row,
                row.type_row,
                EPOCH
            )
        );
    }
}
