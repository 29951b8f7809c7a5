//! `bound` on SQLite: a prepared insert in a loop, a transaction per batch, with the settings of Gesta's writing connection.
//!
//! Checkpoints run beside the inserts, on a thread and connection of their own, as Gesta's do.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rusqlite::{Connection, params};
use tokio_util::sync::CancellationToken;

use super::{Bound, Clocked, Places, Plan};
use crate::failure::{Context, Result, fail};
use crate::store;

/// How often the log is looked at for a checkpoint.
const CHECKPOINT_EVERY: Duration = Duration::from_millis(100);

pub(super) async fn measure(plan: &Plan<'_>, stop: &CancellationToken) -> Result<Bound> {
    let files = tempfile::tempdir_in(folder(plan.url))?;
    let path = files.path().join("bound.db");
    let made = store::open_store(&format!("sqlite:{}", path.display()), 1).await?;
    made.shutdown().await?;
    drop(made);
    tokio::task::block_in_place(|| fill(&path, plan, stop))
}

/// Beside the measured store, so on the same disk.
fn folder(url: &str) -> PathBuf {
    let path = url.trim_start_matches("sqlite:");
    let path = Path::new(path.split('?').next().unwrap_or(path));
    match path.parent() {
        Some(dir) if dir.is_dir() && !dir.as_os_str().is_empty() => dir.to_owned(),
        _ => PathBuf::from("."),
    }
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

fn fill(path: &Path, plan: &Plan<'_>, stop: &CancellationToken) -> Result<Bound> {
    let conn = open(path)?;
    let over = Arc::new(AtomicBool::new(false));
    let beside = {
        let (over, conn) = (Arc::clone(&over), open(path)?);
        std::thread::spawn(move || checkpoints(&conn, &over))
    };
    let bound = insert(&conn, plan, stop);
    over.store(true, Ordering::Release);
    beside
        .join()
        .expect("the checkpoint thread does not panic")?;
    bound
}

fn insert(conn: &Connection, plan: &Plan<'_>, stop: &CancellationToken) -> Result<Bound> {
    let mut statement = conn.prepare(include_str!("../../sql/insert_sqlite.sql"))?;
    let mut places = Places::new(plan.workload);
    let mut clocked = Clocked::start(plan);
    let metadata: &[u8] = plan.workload.metadata();
    while !clocked.is_over(stop) {
        let begun = Instant::now();
        let transaction = conn.unchecked_transaction()?;
        for _ in 0..plan.form.events() {
            let place = places.next();
            let id = plan.workload.run.event_id(place.number);
            let (created, checksum) = (
                1_790_000_000_000_000 + places.position,
                places.random.next().cast_signed(),
            );
            let data: &[u8] = plan.workload.payload(place.number);
            statement
                .execute(params![
                    places.position,
                    place.stream,
                    place.revision,
                    id.0.as_bytes(),
                    created,
                    checksum,
                    metadata,
                    data
                ])
                .context("inserting")?;
        }
        transaction.commit().context("committing")?;
        clocked.add(begun, plan.form.events());
    }
    let stored: i64 = conn.query_row("SELECT count(*) FROM events", [], |row| row.get(0))?;
    Ok(clocked.finish(u64::try_from(stored).unwrap_or(0), places.number))
}

fn checkpoints(conn: &Connection, over: &AtomicBool) -> Result<()> {
    while !over.load(Ordering::Acquire) {
        std::thread::sleep(CHECKPOINT_EVERY);
        conn.query_row("PRAGMA wal_checkpoint(PASSIVE)", [], |_| Ok(()))
            .context("checkpoint")?;
    }
    Ok(())
}
