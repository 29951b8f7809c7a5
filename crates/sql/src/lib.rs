//! What the SQL backends share: checksums, number conversions, migrations, and the audit of a store.
//!
//! Why: a store must mean the same on every database, down to the checksum of a row.
//! Invariants: nothing here changes the meaning of stored data of an earlier release.
//! Not here: drivers, SQL text, connections.

mod checksum;
mod convert;
mod migrate;
mod tags;
pub mod verify;

pub use checksum::{RawRow, checksum, name_checksum, recorded_checksum};
pub use convert::{
    content_type_code, content_type_from_code, from_sql, log_from_sql, position_from_sql,
    revision_from_sql, row_id_from_sql, to_sql,
};
pub use migrate::{
    MOVED_AWAY, Migration, Migrations, Start, UNFINISHED_COPY, is_unfinished_copy, moved_away,
};
pub use tags::{tags_from_text, tags_to_text};
