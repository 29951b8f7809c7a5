//! Limits of one event, one append and one page. They hold on every backend and every API.

/// Longest stream name, in bytes of UTF-8. The shortest is 1.
pub const STREAM_NAME_BYTES_MAX: usize = 1_024;
/// Longest event type, in bytes of UTF-8. The shortest is 1.
pub const EVENT_TYPE_BYTES_MAX: usize = 512;
/// Largest number of tags of one event.
pub const TAGS_MAX: usize = 32;
/// Longest tag, in bytes of UTF-8. The shortest is 1.
pub const TAG_BYTES_MAX: usize = 256;
/// Largest event: data plus metadata, in bytes (16 MiB).
pub const EVENT_BYTES_MAX: usize = 16 * 1024 * 1024;
/// Largest append: data plus metadata of all its events, in bytes (64 MiB).
pub const APPEND_BYTES_MAX: usize = 64 * 1024 * 1024;
/// Largest number of events in one append, over all its streams.
pub const APPEND_EVENTS_MAX: usize = 10_000;
/// Largest number of streams in one append.
pub const APPEND_STREAMS_MAX: usize = 1_000;
/// Largest number of events in one page of a read.
pub const PAGE_EVENTS_MAX: usize = 10_000;
/// Size in bytes after which a page ends early, though it always holds at least one event (32 MiB).
pub const PAGE_BYTES_MAX: usize = 32 * 1024 * 1024;
/// Largest number of positions that one page of a filtered read looks at before it returns, even if it found nothing.
/// Reads of events that a tag alone selects need no such bound ([`Filter::scan_max`](crate::Filter::scan_max)).
pub const PAGE_SCAN_MAX: u64 = 50_000;
/// Largest number of queries in one filter, and of values in each list of a query.
pub const FILTER_VALUES_MAX: usize = 100;
/// Largest number of queries in the filter of a condition of an append, which is compared with many events.
pub const CONDITION_QUERIES_MAX: usize = 16;
/// Largest metadata document of a stream, in bytes (64 KiB).
pub const STREAM_METADATA_BYTES_MAX: usize = 64 * 1024;
/// Largest number of logs of a store: each has at least one slice.
pub const LOGS_MAX: u16 = 1_024;

/// Largest number of databases of a store.
pub const DATABASES_MAX: usize = 64;
