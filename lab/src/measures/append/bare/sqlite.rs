//! The bare statement on SQLite: a prepared insert in a loop, a transaction per batch, with the settings of Gesta's
//! writing connection.
//!
//! As in Gesta, checkpoints run beside the inserts, on a thread and connection of their own; only when the
//! log has grown long does the inserting thread start it again from its beginning.

use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::time::{Duration, Instant};

use gesta_load::target::PhaseRun;
use gesta_report::failure::{Context, Result, fail};
use gesta_report::read_back::ReadBack;
use rusqlite::{Connection, params};
use tokio_util::sync::CancellationToken;

use super::{Clocked, Places, Plan};

/// How often the log is copied into the file.
const CHECKPOINT_EVERY: Duration = Duration::from_millis(50);
/// Pages of the log after which it is started again (32 MiB).
const RESTART_PAGES: i64 = 8_000;

pub(super) fn measure(
    plan: &Plan<'_>,
    url: &str,
    stop: &CancellationToken,
) -> Result<(PhaseRun, ReadBack)> {
    let path = Path::new(url.trim_start_matches("sqlite:"));
    let (over, pages) = (AtomicBool::new(false), AtomicI64::new(0));
    tokio::task::block_in_place(|| {
        let (conn, beside) = (open(path)?, open(path)?);
        std::thread::scope(|scope| {
            let (over, pages) = (&over, &pages);
            let checkpoints = scope.spawn(move || checkpoints(&beside, over, pages));
            let measured = insert(&conn, plan, stop, pages);
            over.store(true, Ordering::Release);
            checkpoints.join().expect("the thread does not panic")?;
            measured
        })
    })
}

fn open(path: &Path) -> Result<Connection> {
    let conn = Connection::open(path)?;
    let mode: String = conn.query_row("PRAGMA journal_mode = WAL", [], |row| row.get(0))?;
    if mode != "wal" {
        return fail(format!("SQLite cannot use a write-ahead log here: {mode}"));
    }
    conn.busy_timeout(Duration::from_secs(5))?;
    conn.pragma_update(None, "wal_autocheckpoint", 0)?;
    conn.pragma_update(None, "synchronous", "FULL")?;
    conn.pragma_update(None, "cache_size", -64 * 1024)?;
    conn.pragma_update(None, "temp_store", "MEMORY")?;
    conn.pragma_update(None, "cell_size_check", true)?;
    Ok(conn)
}

fn insert(
    conn: &Connection,
    plan: &Plan<'_>,
    stop: &CancellationToken,
    pages: &AtomicI64,
) -> Result<(PhaseRun, ReadBack)> {
    let mut statement = conn.prepare(include_str!("../../../../sql/insert_sqlite.sql"))?;
    let mut places = Places::new(plan.contents);
    let mut clocked = Clocked::start(plan);
    let metadata: &[u8] = &plan.contents.metadata;
    while !clocked.is_over(stop) {
        let begun = Instant::now();
        if pages.load(Ordering::Acquire) >= RESTART_PAGES {
            pages.store(0, Ordering::Release);
            conn.query_row("PRAGMA wal_checkpoint(RESTART)", [], |_| Ok(()))
                .context("checkpoint")?;
        }
        let transaction = conn.unchecked_transaction()?;
        for _ in 0..plan.events {
            let row = places.next();
            let created = 1_790_000_000_000_000 + row.position;
            let (position, stream, revision) = (row.position, row.stream, row.revision);
            let id: &[u8] = row.id.as_bytes();
            let inserted = statement.execute(params![
                position,
                stream,
                revision,
                id,
                created,
                row.checksum,
                metadata,
                row.data
            ]);
            inserted.context("inserting")?;
        }
        transaction.commit().context("committing")?;
        clocked.add(begun, plan.events);
    }
    let stored: i64 = conn.query_row("SELECT count(*) FROM events", [], |row| row.get(0))?;
    Ok(clocked.finish(stored, places.position))
}

/// Copies the log into the file, which makes nobody wait, and tells how long the log is.
fn checkpoints(conn: &Connection, over: &AtomicBool, pages: &AtomicI64) -> Result<()> {
    while !over.load(Ordering::Acquire) {
        std::thread::sleep(CHECKPOINT_EVERY);
        let length = conn
            .query_row("PRAGMA wal_checkpoint(PASSIVE)", [], |row| row.get(1))
            .context("checkpoint")?;
        pages.store(length, Ordering::Release);
    }
    Ok(())
}
