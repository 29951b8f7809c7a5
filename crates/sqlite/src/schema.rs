//! The schema of a SQLite store: it is created and migrated here, and files of other programs are refused.

use std::collections::BTreeMap;
use std::path::Path;

use gesta_core::backend::RowId;
use gesta_core::{Clock, Error, ErrorKind, Incarnation, Position, SystemClock};
use gesta_sql::{MOVED_AWAY, Migration, Migrations, Start, from_sql, moved_away};
use rusqlite::{Connection, OptionalExtension, params};
use uuid::Uuid;

use crate::config::{Location, Missing};
use crate::end_note::Opening;
use crate::error::Outcome;

/// All steps of the schema, in their order.
const MIGRATIONS: Migrations = Migrations::new(&[
    Migration {
        version: 1,
        name: "events, streams, types, tags",
        sql: include_str!("../sql/schema_v1.sql"),
    },
    Migration {
        version: 2,
        name: "virtual streams",
        sql: include_str!("../sql/schema_v2.sql"),
    },
]);

/// `GEST` in ASCII. It lets `file(1)` and people tell a store from other SQLite files.
const APPLICATION_ID: i32 = 0x4745_5354;

/// Returns the schema as statements, for reading. A SQLite store needs no preparation by hand.
#[must_use]
pub fn schema_text() -> String {
    MIGRATIONS.print()
}

/// Result of a migration.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Migrated {
    /// Schema version before; `None` if the store was empty.
    pub from: Option<u32>,
    /// Schema version now.
    pub to: u32,
}

/// The marks of a store: the one row of its table `store`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Marks {
    pub(crate) version: u32,
    pub(crate) incarnation: Incarnation,
    pub(crate) logs: u16,
}

/// Reads the marks of a store; `None` if the file is empty.
///
/// # Errors
/// `Schema` if it is the file of another program; `Corrupt` if the marks cannot be read.
pub(crate) fn read_marks(conn: &Connection) -> Outcome<Option<Marks>> {
    let names = names_of_tables(conn)?;
    if names.is_empty() {
        return Ok(None);
    }
    if !["events", "store", "streams", "types"]
        .iter()
        .all(|wanted| names.iter().any(|name| name == wanted))
    {
        let shown: Vec<_> = names.iter().take(5).cloned().collect();
        return Err(Error::new(ErrorKind::Schema(format!(
            "the file is a SQLite database, but not of gesta: it has the tables {}",
            shown.join(", ")
        )))
        .into());
    }
    let found = conn
        .query_row(include_str!("../sql/select_store.sql"), [], |row| {
            Ok((
                row.get::<_, i64>(0)?,
                row.get::<_, Vec<u8>>(1)?,
                row.get::<_, i64>(2)?,
            ))
        })
        .optional()?;
    let (version, incarnation, logs) =
        found.ok_or_else(|| Error::corrupt("table store has no row"))?;
    if version > i64::from(MOVED_AWAY) {
        let place = conn.query_row(include_str!("../sql/select_place.sql"), [], |row| {
            row.get::<_, String>(0)
        });
        return Err(moved_away(place.ok().as_deref()).into());
    }
    Ok(Some(Marks {
        version: u32::try_from(from_sql(version, "schema version")?).unwrap_or(u32::MAX),
        incarnation: Uuid::from_slice(&incarnation)
            .map(Incarnation)
            .map_err(|error| Error::corrupt("incarnation of the store").caused_by(error))?,
        logs: u16::try_from(logs)
            .map_err(|error| Error::corrupt("number of logs").caused_by(error))?,
    }))
}

/// A trigger: the table or view for which it is, as its statement names it, and that statement, in one line.
struct Trigger {
    table: String,
    text: String,
}

/// Says which triggers of the tables of a store are not those that this program makes, and how that is mended. Without
/// them events can be changed, and what another trigger does is done by each append. Triggers of other tables are left
/// alone: nothing that a store does runs them.
pub(crate) fn odd_triggers(conn: &Connection) -> Outcome<Vec<String>> {
    let model = Connection::open_in_memory()?;
    for step in MIGRATIONS.pending(None)? {
        model.execute_batch(step.sql)?;
    }
    let (expected, found) = (triggers(&model)?, triggers(conn)?);
    let mut odd = Vec::new();
    for (name, Trigger { text: create, .. }) in &expected {
        match found.get(name) {
            Some(same) if same.text == *create => {}
            Some(_) => odd.push(format!(
                "trigger {name} is not as Gesta makes it; this mends it: DROP TRIGGER {name}; {create};"
            )),
            None => odd.push(format!(
                "trigger {name} is missing, which keeps what is stored from being changed; this mends it: {create};"
            )),
        }
    }
    let tables = names_of_tables(&model)?;
    for (name, Trigger { table, .. }) in &found {
        let is_ours = tables.iter().any(|ours| ours.eq_ignore_ascii_case(table));
        if is_ours && !expected.contains_key(name) {
            let quoted = name.replace('"', "\"\"");
            odd.push(format!(
                "trigger {name:?} of {table} is not one of a store; this mends it: DROP TRIGGER \"{quoted}\";"
            ));
        }
    }
    Ok(odd)
}

/// Returns the triggers by their names.
fn triggers(conn: &Connection) -> Outcome<BTreeMap<String, Trigger>> {
    let mut statement = conn.prepare(include_str!("../sql/select_triggers.sql"))?;
    let found = statement.query_map([], |row| {
        let text: String = row.get(2)?;
        let words: Vec<&str> = text.split_whitespace().collect();
        let trigger = Trigger {
            table: row.get(1)?,
            text: words.join(" "),
        };
        Ok((row.get(0)?, trigger))
    })?;
    Ok(found.collect::<rusqlite::Result<_>>()?)
}

fn names_of_tables(conn: &Connection) -> Outcome<Vec<String>> {
    let mut statement = conn.prepare(include_str!("../sql/select_table_names.sql"))?;
    let names = statement.query_map([], |row| row.get(0))?;
    Ok(names.collect::<rusqlite::Result<_>>()?)
}

/// Refuses an empty file. A store in memory may be empty.
///
/// # Errors
/// `Schema`, with the path, if the file is empty; those of [`read_marks`].
pub(crate) fn require(conn: &Connection, location: &Location) -> Outcome<()> {
    match (read_marks(conn)?, location) {
        (Some(_), _) | (_, Location::Memory) => Ok(()),
        (None, Location::File(path)) => Err(no_store(path).into()),
    }
}

/// Makes the error for a path at which there is no store, although one must be.
pub(crate) fn no_store(path: &Path) -> Error {
    ErrorKind::Schema(format!(
        "there is no store at {} (`gesta serve` and `gesta schema create` make one, in a program `gesta::open(…).create()`; `gesta --help` names \
         the other commands that do)",
        path.display()
    ))
    .into()
}

/// Makes a store ready on opening. An empty one is created if that is allowed; one of another version is refused.
pub(crate) fn prepare(conn: &Connection, location: &Location, missing: Missing) -> Outcome<Marks> {
    if missing == Missing::Refuse {
        require(conn, location)?;
    }
    let found = read_marks(conn)?;
    match (MIGRATIONS.on_open(found.map(|marks| marks.version))?, found) {
        (Start::Ready, Some(marks)) => Ok(marks),
        _ => {
            migrate(conn)?;
            read_marks(conn)?.ok_or_else(|| Error::corrupt("a new store has no marks").into())
        }
    }
}

/// Runs the steps that the store lacks. An existing store gets each step in a transaction of its own. A new store gets
/// all of them in one, because a half-made store would look like one that waits for a migration.
pub(crate) fn migrate(conn: &Connection) -> Outcome<Migrated> {
    let from = read_marks(conn)?.map(|marks| marks.version);
    let pending = MIGRATIONS.pending(from)?;
    let steps_at_once = from.map_or(pending.len(), |_| 1).max(1);
    for steps in pending.chunks(steps_at_once) {
        let transaction =
            rusqlite::Transaction::new_unchecked(conn, rusqlite::TransactionBehavior::Immediate)?;
        for step in steps {
            apply(&transaction, step)?;
        }
        transaction.commit()?;
        match (from, steps.last()) {
            (None, Some(last)) => tracing::info!(
                file = conn.path(),
                version = last.version,
                "created a new store"
            ),
            _ => {
                for step in steps {
                    tracing::info!(version = step.version, name = step.name, "schema migrated");
                }
            }
        }
        // Into the file itself: a store is not to be taken for an empty file if its write-ahead log is deleted.
        conn.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |_| Ok(()))?;
    }
    Ok(Migrated {
        from,
        to: MIGRATIONS.latest(),
    })
}

fn apply(transaction: &Connection, step: &Migration) -> Outcome<()> {
    transaction.execute_batch(step.sql)?;
    if step.version == 1 {
        transaction.pragma_update(None, "application_id", APPLICATION_ID)?;
        transaction.execute(
            include_str!("../sql/insert_store.sql"),
            params![
                step.version,
                Incarnation::random().0.as_bytes(),
                SystemClock.now().0
            ],
        )?;
    } else {
        transaction.execute(
            include_str!("../sql/update_schema_version.sql"),
            [step.version],
        )?;
    }
    Ok(())
}

/// Begins a new life of the store: makes the incarnation that follows the present one, stores it and returns it.
pub(crate) fn new_incarnation(conn: &Connection) -> Outcome<Incarnation> {
    let before: Vec<u8> = conn.query_row(include_str!("../sql/select_store.sql"), [], |row| {
        row.get(1)
    })?;
    let before = Uuid::from_slice(&before).unwrap_or_default();
    let end: Option<i64> = conn
        .query_row(include_str!("../sql/select_log_end.sql"), [], |row| {
            row.get(0)
        })
        .optional()?;
    let end = Position(end.and_then(|end| u64::try_from(end).ok()).unwrap_or(0));
    let incarnation = Incarnation(before).after(end, SystemClock.now());
    conn.execute(
        include_str!("../sql/update_incarnation.sql"),
        [incarnation.0.as_bytes()],
    )?;
    Ok(incarnation)
}

/// Reads the mark of the opening, as the whole store has it.
pub(crate) fn read_mark(conn: &Connection) -> rusqlite::Result<Opening> {
    conn.pragma_query_value(None, "user_version", |row| row.get(0))
        .map(Opening)
}

/// Sets the mark of the opening. It is in the file itself after the next checkpoint.
pub(crate) fn set_mark(conn: &Connection, opening: Opening) -> rusqlite::Result<()> {
    conn.pragma_update(None, "user_version", opening.0)
}

/// Corrupt, naming an interned name that cannot be believed.
pub(crate) fn name_corrupt(what: &str, row: RowId, detail: &str) -> Error {
    Error::corrupt(format!("{what} row {} {detail}", row.0))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn empty() -> Connection {
        Connection::open_in_memory().expect("opens")
    }

    #[test]
    fn an_empty_file_becomes_a_store_once() {
        let conn = empty();
        let marks = prepare(&conn, &Location::Memory, Missing::Create).expect("creates");
        assert_eq!((marks.version, marks.logs), (2, 1));
        assert_eq!(
            prepare(&conn, &Location::Memory, Missing::Create).expect("ready"),
            marks
        );
        assert_eq!(
            migrate(&conn).expect("nothing to do"),
            Migrated {
                from: Some(2),
                to: 2
            }
        );
        let new = new_incarnation(&conn).expect("changes");
        assert_ne!(new, marks.incarnation);
        assert_eq!(
            prepare(&conn, &Location::Memory, Missing::Create)
                .expect("ready")
                .incarnation,
            new
        );
    }

    #[test]
    fn files_of_others_and_newer_stores_are_refused() {
        let conn = empty();
        conn.execute_batch("CREATE TABLE orders (id)")
            .expect("creates");
        let error =
            Error::from(prepare(&conn, &Location::Memory, Missing::Create).expect_err("refused"))
                .to_string();
        assert!(
            error.contains("not of gesta") && error.contains("orders"),
            "{error}"
        );

        let conn = empty();
        prepare(&conn, &Location::Memory, Missing::Create).expect("creates");
        conn.execute_batch("UPDATE store SET schema_version = 9")
            .expect("changes");
        let error =
            Error::from(prepare(&conn, &Location::Memory, Missing::Create).expect_err("refused"))
                .to_string();
        assert!(
            error.contains("version 9") && error.contains("than 2"),
            "{error}"
        );
        assert!(migrate(&conn).is_err());
    }

    /// Goal: a store of version 1 waits for a migration, which adds what it lacks and keeps what it has.
    #[test]
    fn a_store_of_version_1_is_migrated() {
        let conn = empty();
        let first = &MIGRATIONS.pending(None).expect("steps")[0];
        apply(&conn, first).expect("version 1");
        let before = read_marks(&conn).expect("reads").expect("a store");
        assert_eq!(before.version, 1);
        let error = prepare(&conn, &Location::Memory, Missing::Create).expect_err("older");
        assert!(Error::from(error).to_string().contains("schema migrate"));
        let migrated = migrate(&conn).expect("migrates");
        assert_eq!((migrated.from, migrated.to), (Some(1), 2));
        let after = prepare(&conn, &Location::Memory, Missing::Create).expect("ready");
        assert_eq!(after.incarnation, before.incarnation);
    }

    /// Goal: the database itself refuses to change what was appended.
    #[test]
    fn events_and_names_are_immutable() {
        let conn = empty();
        prepare(&conn, &Location::Memory, Missing::Create).expect("creates");
        conn.execute_batch(
            "INSERT INTO streams (id, name, checksum) VALUES (1, 'a-1', 0);
             INSERT INTO types (id, name, checksum) VALUES (1, 'T', 0);
             INSERT INTO tags (tag, position) VALUES ('red', 1);
             INSERT INTO virtual_streams (id, name, next_revision) VALUES (4, '$ce-a', 1);
             INSERT INTO virtual_entries (stream, revision, position) VALUES (4, 0, 1);
             INSERT INTO events (position, stream, revision, event_id, type, created, content_type, writer, checksum, metadata, data)
             VALUES (1, 1, 0, x'000102030405060708090a0b0c0d0e0f', 1, 1790000000000001, 0, 5, 6, x'', '{\"a\":1}')",
        )
        .expect_err("data must be a blob");
        conn.execute_batch(
            "INSERT INTO events (position, stream, revision, event_id, type, created, content_type, writer, checksum, metadata, data)
             VALUES (1, 1, 0, x'000102030405060708090a0b0c0d0e0f', 1, 1790000000000001, 0, 5, 6, x'', CAST('{\"a\":1}' AS BLOB))",
        )
        .expect("stores");
        for forbidden in [
            "UPDATE events SET data = x''",
            "DELETE FROM events",
            "UPDATE streams SET name = 'b'",
            "DELETE FROM streams",
            "UPDATE types SET name = 'b'",
            "DELETE FROM types",
            "UPDATE tags SET tag = 'b'",
            "DELETE FROM tags",
            "UPDATE virtual_entries SET position = 2",
            "DELETE FROM virtual_entries",
            "DELETE FROM virtual_streams",
        ] {
            assert!(conn.execute_batch(forbidden).is_err(), "{forbidden}");
        }
        let readable: (String, String, String, String, String) = conn
            .query_row(
                "SELECT stream, type, event_id, created, data FROM events_readable",
                [],
                |row| {
                    Ok((
                        row.get(0)?,
                        row.get(1)?,
                        row.get(2)?,
                        row.get(3)?,
                        row.get(4)?,
                    ))
                },
            )
            .expect("one row");
        assert_eq!(readable.0, "a-1");
        assert_eq!(readable.2, "00010203-0405-0607-0809-0a0b0c0d0e0f");
        assert_eq!(readable.3, "2026-09-21T14:13:20.000001Z");
        assert_eq!(readable.4, "{\"a\":1}");
        conn.execute_batch("BEGIN; INSERT INTO retention VALUES (1); DELETE FROM events; DELETE FROM retention; COMMIT")
            .expect("scavenging may");
    }

    /// Goal: the schema changes on purpose only. Edit a released step never; add one.
    #[test]
    fn the_schema_is_the_one_that_was_released() {
        let conn = empty();
        prepare(&conn, &Location::Memory, Missing::Create).expect("creates");
        let mut statement = conn
            .prepare("SELECT type || ' ' || name FROM sqlite_schema WHERE name NOT LIKE 'sqlite_%' ORDER BY 1")
            .expect("valid");
        let found: Vec<String> = statement
            .query_map([], |row| row.get(0))
            .expect("rows")
            .map(|name| name.expect("text"))
            .collect();
        assert_eq!(
            found,
            [
                "index events_by_stream",
                "table events",
                "table retention",
                "table scavenges",
                "table store",
                "table streams",
                "table tags",
                "table types",
                "table virtual_entries",
                "table virtual_index",
                "table virtual_streams",
                "trigger events_are_not_deleted",
                "trigger events_are_not_updated",
                "trigger streams_are_not_deleted",
                "trigger streams_are_not_updated",
                "trigger tags_are_not_deleted",
                "trigger tags_are_not_updated",
                "trigger types_are_not_deleted",
                "trigger types_are_not_updated",
                "trigger virtual_entries_are_not_deleted",
                "trigger virtual_entries_are_not_updated",
                "trigger virtual_streams_are_not_deleted",
                "view events_readable",
            ]
        );
        let columns: String = conn
            .query_row(
                "SELECT group_concat(name, ' ') FROM pragma_table_info('events')",
                [],
                |row| row.get(0),
            )
            .expect("columns");
        assert_eq!(
            columns,
            "position log stream revision event_id type created content_type writer checksum tags metadata data"
        );
    }
}
