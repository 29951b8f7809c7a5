//! Connections to the file, and their settings.
//!
//! Settings on which durability or order rest are read back after they were set.

use std::time::Duration;

use gesta_core::{Durability, Error, ErrorKind, Result};
use rusqlite::{Connection, OpenFlags};

use crate::config::{Location, SqliteConfig, Synchronous};
use crate::error::{Outcome, unfit};
use crate::place::{Found, Place};

/// Lowest version of SQLite that is accepted. Earlier versions can corrupt the WAL when one connection writes while
/// another checkpoints.
const LIBRARY_VERSION_MIN: i32 = 3_051_003;
/// Time that a statement waits for a lock that another program holds (the `sqlite3` shell, a backup tool).
pub(crate) const BUSY_TIMEOUT: Duration = Duration::from_secs(5);
/// Size of the page cache of the writing connection, in KiB.
const WRITER_CACHE_KIB: i64 = 64 * 1024;
/// Size of the page cache of each reading connection, in KiB; the operating system caches the rest.
const READER_CACHE_KIB: i64 = 8 * 1024;
/// Number of prepared statements kept per connection: more than there are files in `sql/`.
const STATEMENTS_MAX: usize = 64;

/// Refuses a SQLite library that is too old.
///
/// # Errors
/// `Unsupported` if the library is too old; it names both versions.
pub(crate) fn check_library() -> Result<()> {
    if rusqlite::version_number() >= LIBRARY_VERSION_MIN {
        return Ok(());
    }
    Err(ErrorKind::Unsupported(format!(
        "SQLite {} is too old: earlier versions than 3.51.3 can corrupt the WAL",
        rusqlite::version()
    ))
    .into())
}

/// Opens the connection that writes. The file must exist: one that SQLite made could be at a name that leads elsewhere
/// meanwhile, and would have another mode.
pub(crate) fn open_writing(location: &Location, config: &SqliteConfig) -> Outcome<Connection> {
    let synchronous = config.synchronous;
    let conn = match location {
        Location::Memory => Connection::open_in_memory()?,
        Location::File(path) => open_file(path, OpenFlags::SQLITE_OPEN_READ_WRITE)?,
    };
    if let Location::File(path) = location
        && conn.is_readonly(rusqlite::MAIN_DB)?
    {
        return Err(Error::new(ErrorKind::Unsupported(format!(
            "{} is read-only for this user: a store must be writable, also to be read",
            path.display()
        )))
        .into());
    }
    settle(&conn, WRITER_CACHE_KIB)?;
    if matches!(location, Location::Memory) {
        return Ok(conn);
    }
    let mode: String = conn.query_row("PRAGMA journal_mode = WAL", [], |row| row.get(0))?;
    if mode != "wal" {
        return Err(Error::new(ErrorKind::Unsupported(format!(
            "SQLite cannot use a write-ahead log here: journal mode is {mode} (a network file system?)"
        )))
        .into());
    }
    // Checkpoints belong to `checkpoint`, off the commit path.
    conn.pragma_update(None, "wal_autocheckpoint", 0)?;
    // A WAL that a reader made longer is cut when it begins again; within this size, writing needs no new blocks.
    let wal_bytes_kept = i64::try_from(config.wal_bytes_max)
        .unwrap_or(i64::MAX)
        .saturating_mul(2);
    conn.pragma_update(None, "journal_size_limit", wal_bytes_kept)?;
    conn.pragma_update(None, "synchronous", level(synchronous))?;
    // macOS only: fsync alone leaves data in the cache of the disk there.
    conn.pragma_update(None, "fullfsync", synchronous == Synchronous::Full)?;
    conn.pragma_update(
        None,
        "checkpoint_fullfsync",
        synchronous == Synchronous::Full,
    )?;
    let found: i64 = conn.pragma_query_value(None, "synchronous", |row| row.get(0))?;
    if found != level(synchronous) {
        return Err(Error::new(ErrorKind::Unsupported(format!(
            "SQLite does not take synchronous={synchronous:?}: it says {found}"
        )))
        .into());
    }
    Ok(conn)
}

/// Opens a connection to the file of an open store that can only read. From then on it needs no name of the store.
///
/// # Errors
/// `Unsupported` if the name of the store leads elsewhere: the connection would read another store.
pub(crate) fn open_reading(place: &Place) -> Outcome<Connection> {
    check_in_place(place)?;
    let conn = open_file(place.path(), OpenFlags::SQLITE_OPEN_READ_ONLY)?;
    settle(&conn, READER_CACHE_KIB)?;
    conn.pragma_update(None, "query_only", true)?;
    // SQLite opens the write-ahead log with the first read.
    conn.query_row(include_str!("../sql/select_store.sql"), [], |_| Ok(()))?;
    check_in_place(place)?;
    Ok(conn)
}

fn check_in_place(place: &Place) -> Result<()> {
    match place.look_at_names() {
        Found::Moved(text) => Err(unfit(text)),
        _ => Ok(()),
    }
}

fn open_file(path: &std::path::Path, flags: OpenFlags) -> Outcome<Connection> {
    // Each connection is used by one thread at a time.
    Ok(Connection::open_with_flags(
        path,
        flags | OpenFlags::SQLITE_OPEN_NO_MUTEX,
    )?)
}

fn settle(conn: &Connection, cache_kib: i64) -> Outcome<()> {
    conn.busy_timeout(BUSY_TIMEOUT)?;
    conn.set_prepared_statement_cache_capacity(STATEMENTS_MAX);
    conn.pragma_update(None, "cache_size", -cache_kib)?;
    conn.pragma_update(None, "trusted_schema", false)?;
    conn.pragma_update(None, "cell_size_check", true)?;
    conn.pragma_update(None, "temp_store", "MEMORY")?;
    Ok(())
}

fn level(synchronous: Synchronous) -> i64 {
    match synchronous {
        Synchronous::Off => 0,
        Synchronous::Normal => 1,
        Synchronous::Full => 2,
    }
}

/// Tells how safe a commit of this connection is: by what SQLite says of its settings, not by what it was asked for.
pub(crate) fn durability(conn: &Connection, location: &Location) -> Outcome<Durability> {
    if matches!(location, Location::Memory) {
        return Ok(Durability::None);
    }
    let mode: String = conn.pragma_query_value(None, "journal_mode", |row| row.get(0))?;
    let found: i64 = conn.pragma_query_value(None, "synchronous", |row| row.get(0))?;
    let name = match found {
        0 => "off",
        1 => "normal",
        2 => "full",
        _ => "extra",
    };
    let settings = format!("journal_mode={mode}, synchronous={name}");
    Ok(match found {
        0 => Durability::Weakened(format!(
            "{settings}: a power loss or a crash of the operating system can lose acknowledged events and destroy the store"
        )),
        1 => Durability::Weakened(format!(
            "{settings}: a power loss or a crash of the operating system can lose the last acknowledged events"
        )),
        _ => Durability::Full(settings),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bundled_library_is_new_enough() {
        check_library().expect("new enough");
    }

    #[test]
    fn durability_is_read_back_and_named() {
        let home = tempfile::tempdir().expect("dir");
        for (asked, name) in [
            (Synchronous::Full, "full"),
            (Synchronous::Normal, "weakened"),
            (Synchronous::Off, "weakened"),
        ] {
            let path = home.path().join("a.db");
            std::fs::write(&path, "").expect("writes");
            let mut config = SqliteConfig::file(path);
            config.synchronous = asked;
            let location = config.location.clone();
            let conn = open_writing(&location, &config).expect("opens");
            let found = durability(&conn, &location).expect("known");
            assert_eq!(found.name(), name);
            assert!(
                found.detail().starts_with("journal_mode=wal, synchronous="),
                "{found:?}"
            );
        }
    }

    #[test]
    fn a_reading_connection_cannot_write() {
        let home = tempfile::tempdir().expect("dir");
        let path = home.path().join("a.db");
        std::fs::write(&path, "").expect("writes");
        let place = Place::take(&path, &path).expect("free");
        let config = SqliteConfig::file(&path);
        let writer = open_writing(&config.location, &config).expect("opens");
        crate::schema::migrate(&writer).expect("creates");
        let reader = open_reading(&place).expect("opens");
        assert!(reader.execute_batch("DELETE FROM tags").is_err());
    }
}
