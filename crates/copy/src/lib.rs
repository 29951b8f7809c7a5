//! Copies a whole store into an empty one, on any database and with any number of logs, as fast as rows can be written.
//!
//! Why rows: events keep their ids, times, tags and revisions only if the rows are copied; an append makes times and
//! positions anew. The rows are read as the audit reads them (`gesta_sql::verify`), so every backend can be a source,
//! and each row proves itself by its checksum before it is copied.
//!
//! How: rows come in batches, whose order and limits follow from the source alone. Each batch is one transaction of
//! each database of the target, which also stores how far the copy has come. So a copy that was killed goes on where it
//! was, and what stands in the target is always a whole number of batches.
//!
//! Invariants: a target that is not whole is marked by a schema version that no program opens, from before the first
//! row until everything was read back and compared with the source, and the source was seen to be as it was when the
//! copy began. Programs that are connected already do not look at the mark, so a PostgreSQL target is not written while
//! they are. Nothing is written to a store that had an event before, nor after one that this copy did not write, and a
//! target that has such an event is not opened. Not here: making an empty store (`gesta::schema`).

mod batch;
mod compare;
mod copy;
mod digest;
mod mapping;
mod mover;
mod moving;
mod part;
mod pauses;
mod postgres;
mod reader;
mod refusal;
mod sides;
mod source;
mod source_postgres;
mod source_sqlite;
mod sqlite;
mod target;
mod undoing;

pub use copy::{Copy, Progress, Report, Settings, Step};
pub use digest::Digest;
pub use gesta_postgres::Blocker;
pub use gesta_sql::is_unfinished_copy;
pub use mover::{Consumers, Move, MoveReport, MoveSettings, MoveStep};
pub use moving::Target;
pub use undoing::{Undone, undo};
