//! Appending: the writing thread stores each batch in one transaction, in the order in which batches were sent.
//!
//! The chain: inside the transaction the last row of the log is compared with the one that the batch was decided on, by
//! position and writer. Nothing else of this process writes to the file, but another program could, and a batch that
//! follows a lost one must miss. Outcomes: batches that *miss* or are *refused*, and those that fail before their
//! commit, are rolled back. A commit that fails with an I/O error is *unknown*, and closes the store for writing
//! (`fault`): pages that could not be synced may be gone from the cache of the operating system, so a second attempt
//! could succeed without them. A commit is also *unknown* if the name of the store no longer leads to the file in which
//! it was stored.

use std::sync::Arc;

use futures::future::BoxFuture;
use gesta_core::backend::{Batch, BatchOutcome, LogEnd, LogWriter, WriterEpoch};
use gesta_core::{Error, ErrorKind, LogId, Result};
use gesta_sql::{checksum, content_type_code, name_checksum, tags_to_text, to_sql};
use rusqlite::{Connection, params};
use tokio::sync::oneshot;
use uuid::Uuid;

use crate::end_note::EndNote;
use crate::error::{Fault, FaultMark, Outcome, WriteFault, public, write_fault};
use crate::lookup;
use crate::write_thread::{WriteState, WriteThread};

/// Appends to the one log of the store.
pub(crate) struct SqliteWriter {
    thread: WriteThread,
    epoch: WriterEpoch,
}

impl SqliteWriter {
    pub(crate) fn new(thread: WriteThread) -> Self {
        let (_, low) = Uuid::new_v4().as_u64_pair();
        Self {
            thread,
            epoch: WriterEpoch(low.cast_signed()),
        }
    }
}

impl LogWriter for SqliteWriter {
    fn epoch(&self) -> WriterEpoch {
        self.epoch
    }

    fn is_gathered(&self) -> bool {
        false
    }

    fn submit(&mut self, batch: Arc<Batch>) -> BoxFuture<'static, BatchOutcome> {
        let epoch = self.epoch;
        let (answer, answered) = oneshot::channel();
        let sent = self.thread.run(move |state| {
            let _ = answer.send(store(state, &batch, epoch));
        });
        Box::pin(async move {
            match sent {
                Err(error) => BatchOutcome::Failed(error),
                Ok(()) => answered.await.unwrap_or_else(|_| {
                    BatchOutcome::Unknown(
                        ErrorKind::OutcomeUnknown("the writing thread has ended".into()).into(),
                    )
                }),
            }
        })
    }
}

/// Stores a batch on the writing thread.
fn store(state: &mut WriteState, batch: &Batch, epoch: WriterEpoch) -> BatchOutcome {
    if let Err(error) = state.check_writable() {
        return BatchOutcome::Failed(error);
    }
    let conn = &state.reader.conn;
    if batch.rows.is_empty() {
        return match lookup::log_end(conn) {
            Ok(end) if is_same_row(end, batch.after) => BatchOutcome::Committed,
            Ok(_) => BatchOutcome::Missed,
            Err(fault) => failed(conn, &state.fault, fault),
        };
    }
    match write(conn, batch, epoch) {
        Ok(true) => {}
        Ok(false) => return roll_back(conn, &state.fault, BatchOutcome::Missed),
        Err(fault) => return failed(conn, &state.fault, fault),
    }
    match commit(conn) {
        Ok(()) => {
            note_end(state.note.as_deref(), batch);
            answer_in_place(state)
        }
        Err(error) => commit_failed(conn, &state.fault, error),
    }
}

/// Answers a commit, unless the names of the store lead elsewhere now: then it may be in a file that nobody will find.
fn answer_in_place(state: &mut WriteState) -> BatchOutcome {
    match state.check_in_place() {
        Ok(()) => BatchOutcome::Committed,
        Err(error) => {
            let kind = ErrorKind::OutcomeUnknown(error.kind().to_string());
            BatchOutcome::Unknown(Error::new(kind).caused_by(error))
        }
    }
}

/// Notes where the log ends, before the commit is answered, if a note is due. That is about once for each checkpoint.
fn note_end(note: Option<&EndNote>, batch: &Batch) {
    if let Some(note) = note
        && let Some(last) = batch.rows.last()
        && note.take_due()
    {
        note.write(last.position);
    }
}

/// Compares two ends of the log. Position and writer identify a row; its time does not.
fn is_same_row(found: LogEnd, expected: LogEnd) -> bool {
    found.position == expected.position && found.writer == expected.writer
}

/// Writes the rows into an open transaction. Returns false if another row is the last of the log.
fn write(conn: &Connection, batch: &Batch, epoch: WriterEpoch) -> Outcome<bool> {
    conn.prepare_cached(include_str!("../sql/begin_write.sql"))?
        .execute([])?;
    if !is_same_row(lookup::log_end(conn)?, batch.after) {
        return Ok(false);
    }
    check_shape(batch)?;
    write_names(conn, batch)?;
    let mut event = conn.prepare_cached(include_str!("../sql/insert_event.sql"))?;
    for row in &batch.rows {
        let position = to_sql(row.position.0, "position")?;
        event.execute(params![
            position,
            to_sql(row.stream_row.0, "stream")?,
            to_sql(row.revision.0, "revision")?,
            row.id.0.as_bytes(),
            to_sql(row.type_row.0, "type")?,
            row.created.0,
            content_type_code(row.content_type),
            epoch.0,
            checksum(batch.log, row, epoch),
            tags_to_text(&row.tags),
            &*row.metadata,
            &*row.data,
        ])?;
        if !row.tags.is_empty() {
            let mut tag = conn.prepare_cached(include_str!("../sql/insert_tag.sql"))?;
            for text in row.tags.as_slice() {
                tag.execute(params![text.as_str(), position])?;
            }
        }
    }
    Ok(true)
}

fn write_names(conn: &Connection, batch: &Batch) -> Outcome<()> {
    if !batch.new_streams.is_empty() {
        let mut stream = conn.prepare_cached(include_str!("../sql/insert_stream.sql"))?;
        for (row, name) in &batch.new_streams {
            let sum = name_checksum(batch.log, *row, name.as_str());
            stream.execute(params![to_sql(row.0, "stream")?, name.as_str(), sum])?;
        }
    }
    if !batch.new_types.is_empty() {
        let mut event_type = conn.prepare_cached(include_str!("../sql/insert_type.sql"))?;
        for (row, name) in &batch.new_types {
            let sum = name_checksum(batch.log, *row, name.as_str());
            event_type.execute(params![to_sql(row.0, "type")?, name.as_str(), sum])?;
        }
    }
    Ok(())
}

/// Checks that the batch is for the only log, and that its positions follow the predecessor without a gap.
fn check_shape(batch: &Batch) -> Result<()> {
    if batch.log != LogId(0) {
        return Err(Error::invalid(
            "log",
            format!(
                "must be 0, the only one of a SQLite store, found {}",
                batch.log
            ),
        ));
    }
    let mut expected = batch.after.position;
    for row in &batch.rows {
        expected = expected.next();
        if row.position != expected {
            return Err(Error::invalid(
                "position",
                format!("must be {expected}, found {}", row.position),
            ));
        }
    }
    Ok(())
}

/// Commits the open transaction.
pub(crate) fn commit(conn: &Connection) -> rusqlite::Result<()> {
    conn.prepare_cached(include_str!("../sql/commit.sql"))?
        .execute([])
        .map(|_| ())
}

/// Answers for an error before the commit: nothing is stored.
fn failed(conn: &Connection, mark: &FaultMark, fault: Fault) -> BatchOutcome {
    let outcome = match fault {
        Fault::Store(error) => match error.kind() {
            ErrorKind::Corrupt(_) => BatchOutcome::Failed(error),
            _ => BatchOutcome::Refused(error),
        },
        Fault::Sql(error) => match write_fault(&error) {
            WriteFault::Taken => BatchOutcome::Missed,
            WriteFault::Content => BatchOutcome::Refused(
                Error::new(ErrorKind::Refused(format!("SQLite: {error}"))).caused_by(error),
            ),
            WriteFault::Passing => BatchOutcome::Failed(public(error)),
            WriteFault::Fatal => {
                mark.set(&error);
                BatchOutcome::Failed(public(error))
            }
        },
    };
    roll_back(conn, mark, outcome)
}

/// Answers for an error of the commit itself.
fn commit_failed(conn: &Connection, mark: &FaultMark, error: rusqlite::Error) -> BatchOutcome {
    match write_fault(&error) {
        // SQLite wrote no whole commit record: there was no space for it, or it did not begin.
        WriteFault::Passing => roll_back(conn, mark, BatchOutcome::Failed(public(error))),
        WriteFault::Taken | WriteFault::Content | WriteFault::Fatal => {
            mark.set(&error);
            let kind =
                ErrorKind::OutcomeUnknown(format!("SQLite could not finish the commit: {error}"));
            let outcome = BatchOutcome::Unknown(Error::new(kind).caused_by(error));
            roll_back(conn, mark, outcome)
        }
    }
}

/// Rolls back, so that no transaction stays open. If that fails, the store is closed for writing.
fn roll_back(conn: &Connection, mark: &FaultMark, outcome: BatchOutcome) -> BatchOutcome {
    if let Err(error) = end_transaction(conn) {
        mark.set(&error);
    }
    outcome
}

/// Rolls back the open transaction, unless SQLite has done so by itself.
pub(crate) fn end_transaction(conn: &Connection) -> rusqlite::Result<()> {
    if conn.is_autocommit() {
        return Ok(());
    }
    conn.prepare_cached(include_str!("../sql/rollback.sql"))?
        .execute([])
        .map(|_| ())
}
