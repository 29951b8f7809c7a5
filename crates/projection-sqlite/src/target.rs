//! The target: registration, sessions, leases, commands and versions in an SQLite file.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use gesta_core::{Error, LogId, Position};
use gesta_projection::{
    Begin, Cells, Command, Found, Life, Order, OwnedValue, Parked, ProjectionId, Registration,
    Seen, State, Stored, SwitchFrom, Switched, Table, Target, TargetError, TargetErrorKind,
    filter_to_text, older_tables,
};
use rusqlite::{Connection, OptionalExtension, TransactionBehavior, params};
use tempfile::TempDir;
use uuid::Uuid;

use crate::connections::{Connections, Synchronous};
use crate::error::{OrTarget, Result, kind_of};
use crate::rows;
use crate::session::SqliteSession;
use crate::statements;
use crate::tables;

/// The steps that make the tables: each brings them to the version of its number. A released step is never edited.
const STEPS: [&str; 2] = [
    include_str!("../sql/migrate_0001.sql"),
    include_str!("../sql/migrate_0002.sql"),
];
/// How long `switch` waits for another process that writes.
const SWITCH_WAITS: Duration = Duration::from_millis(100);

/// How an [`SqliteTarget`] is opened.
#[derive(Clone, Copy, Debug, Default)]
pub struct Options {
    /// What a commit survives.
    pub synchronous: Synchronous,
}

/// An SQLite file in which projections live. It is opened when it is first used, and made if it does not exist.
///
/// The file must not be that of the event store.
#[derive(Clone)]
pub struct SqliteTarget {
    connections: Arc<Connections>,
}

impl std::fmt::Debug for SqliteTarget {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("SqliteTarget")
    }
}

impl SqliteTarget {
    /// Makes a target of the file at this path.
    #[must_use]
    pub fn at(path: impl Into<PathBuf>) -> Self {
        Self::with(path, Options::default())
    }

    /// Makes a target of the file at this path, with options.
    #[must_use]
    pub fn with(path: impl Into<PathBuf>, options: Options) -> Self {
        Self::in_folder(path.into(), options, None)
    }

    /// Makes a target beside a store, by the URL of the store: the file `cinema.views.db` beside `sqlite:cinema.db`.
    /// Beside `sqlite::memory:` it is a temporary file, which is deleted with the last handle.
    ///
    /// # Errors
    /// `InvalidArgument` if the URL is no `sqlite:…`, or a temporary file cannot be made.
    pub fn beside(store: &str, options: Options) -> gesta_core::Result<Self> {
        let refused = |rule: String| Error::invalid("store", rule);
        let path = store
            .strip_prefix("sqlite:")
            .ok_or_else(|| refused("must be sqlite:PATH or sqlite::memory:".to_owned()))?;
        let path = path.split_once('?').map_or(path, |(path, _)| path);
        let path = path.strip_prefix("//").unwrap_or(path);
        if path != ":memory:" {
            let name = path.strip_suffix(".db").unwrap_or(path);
            return Ok(Self::with(format!("{name}.views.db"), options));
        }
        let folder = tempfile::tempdir()
            .map_err(|error| refused(format!("needs a temporary file beside it: {error}")))?;
        let path = folder.path().join("views.db");
        Ok(Self::in_folder(path, options, Some(folder)))
    }

    fn in_folder(path: PathBuf, options: Options, folder: Option<TempDir>) -> Self {
        let connections = Connections::new(path, options.synchronous, folder);
        Self {
            connections: Arc::new(connections),
        }
    }

    /// Returns how many calls wait for their turn to write. For tests.
    #[doc(hidden)]
    #[must_use]
    pub fn waiting(&self) -> usize {
        self.connections.waiting()
    }

    /// Reads on a thread for blocking work.
    async fn read<R: Send + 'static>(
        &self,
        work: impl FnOnce(&Connection) -> Result<R> + Send + 'static,
    ) -> Result<R> {
        let connections = Arc::clone(&self.connections);
        blocking(move || {
            let connection = connections.take()?;
            let result = work(&connection).map_err(|error| explained(&connection, error));
            connections.give_back(connection);
            result
        })
        .await
    }

    /// Writes in a transaction, on a thread for blocking work.
    async fn write<R: Send + 'static>(
        &self,
        work: impl FnOnce(&Connection) -> Result<R> + Send + 'static,
    ) -> Result<R> {
        let turn = self.connections.turn().await?;
        let connections = Arc::clone(&self.connections);
        blocking(move || {
            let mut connection = connections.take()?;
            let transaction = connection
                .transaction_with_behavior(TransactionBehavior::Immediate)
                .or_target()?;
            // Dropping the transaction rolls it back.
            let result = work(&transaction).map_err(|error| explained(&transaction, error))?;
            transaction.commit().or_target()?;
            connections.give_back(connection);
            drop(turn);
            Ok(result)
        })
        .await
    }
}

async fn blocking<R: Send + 'static>(
    work: impl FnOnce() -> Result<R> + Send + 'static,
) -> Result<R> {
    tokio::task::spawn_blocking(work)
        .await
        .unwrap_or_else(|error| {
            let text = format!("the thread of a call of SQLite ended: {error}");
            Err(TargetError::new(TargetErrorKind::Away, text))
        })
}

/// Says of a column that is missing why: the tables are those of an earlier program.
fn explained(connection: &Connection, error: TargetError) -> TargetError {
    if !error.to_string().contains("no such column") {
        return error;
    }
    let found: rusqlite::Result<i64> =
        connection.query_row(statements::READ_SCHEMA_VERSION, [], |row| row.get(0));
    match found {
        Ok(found) if usize::try_from(found).is_ok_and(|found| found < STEPS.len()) => {
            older_tables(found, STEPS.len())
        }
        _ => error,
    }
}

fn migrate(connection: &Connection) -> Result<()> {
    let exists: bool = connection
        .query_row(statements::FIND_SCHEMA_VERSION, [], |row| row.get(0))
        .or_target()?;
    if !exists {
        let is_store: bool = connection
            .query_row(statements::FIND_STORE, [], |row| row.get(0))
            .or_target()?;
        if is_store {
            return Err(TargetError::new(
                TargetErrorKind::Unusable,
                "the file is that of an event store, which belongs to the store alone: name another file",
            ));
        }
    }
    let found: i64 = match exists {
        false => 0,
        true => connection
            .query_row(statements::READ_SCHEMA_VERSION, [], |row| row.get(0))
            .or_target()?,
    };
    let steps = usize::try_from(found)
        .ok()
        .and_then(|found| STEPS.get(found..));
    let steps = steps.ok_or_else(|| {
        let text = format!(
            "the tables of projections have version {found}, newer than {}, the last that this program knows",
            STEPS.len()
        );
        TargetError::new(TargetErrorKind::Unusable, text)
    })?;
    steps
        .iter()
        .try_for_each(|step| connection.execute_batch(step).or_target())
}

fn register(connection: &Connection, new: &Registration) -> Result<Stored> {
    let filter = filter_to_text(&new.filter);
    if let Some(stored) = rows::one(connection, &new.id)? {
        if stored.filter.is_some() || stored.made_with != new.made_with {
            return Ok(stored);
        }
        let values = params![filter, new.id.name, new.id.version];
        let filled = connection.execute(statements::FILL_FILTER, values);
        filled.or_target()?;
        return Ok(Stored {
            filter: Some(new.filter.clone()),
            ..stored
        });
    }
    let life = match rows::active(connection, &new.id.name)? {
        None => Life::Active,
        Some(_) => Life::Building,
    };
    if let Some(table) = &new.table {
        tables::create(connection, table)?;
        if life == Life::Active {
            tables::show(connection, &new.id, &new.read_as)?;
        }
    }
    let start = new.start.to_string();
    connection
        .execute(
            statements::INSERT_PROJECTION,
            params![
                new.id.name,
                new.id.version,
                life.as_str(),
                start,
                new.made_with,
                new.read_as.join(","),
                filter,
                new.definition
            ],
        )
        .or_target()?;
    rows::one(connection, &new.id)?
        .ok_or_else(|| TargetError::new(TargetErrorKind::Away, "the row that was made is gone"))
}

enum Claimed {
    Begun(Stored, i64),
    Owned(Stored),
    NotFound,
}

fn claim(connection: &Connection, id: &ProjectionId, node: Uuid) -> Result<Claimed> {
    let Some(stored) = rows::one(connection, id)? else {
        return Ok(Claimed::NotFound);
    };
    if stored.owned && stored.owner != Some(node) {
        return Ok(Claimed::Owned(stored));
    }
    let epoch = stored.epoch + 1;
    connection
        .execute(
            statements::CLAIM_PROJECTION,
            params![epoch, node.as_bytes(), id.name, id.version],
        )
        .or_target()?;
    Ok(Claimed::Begun(stored, epoch))
}

fn switch(
    connection: &Connection,
    id: &ProjectionId,
    from: SwitchFrom,
    seen: Option<&Seen>,
) -> Result<Switched> {
    let Some(new) = rows::one(connection, id)?.filter(|new| new.life != Life::Retired) else {
        return Ok(Switched::NotFound);
    };
    if new.life == Life::Active {
        return Ok(Switched::Done);
    }
    if let Some(old) = rows::active(connection, &id.name)? {
        if let Some(refusal) = new.may_not_follow(&old, from, seen) {
            return Ok(refusal);
        }
        connection
            .execute(
                statements::UPDATE_LIFE,
                params![Life::Previous.as_str(), old.id.name, old.id.version],
            )
            .or_target()?;
        for name in old
            .read_as
            .iter()
            .filter(|name| !new.read_as.contains(name))
        {
            let drop = format!("DROP VIEW IF EXISTS \"{name}\"");
            connection.execute_batch(&drop).or_target()?;
        }
    }
    connection
        .execute(
            statements::UPDATE_LIFE,
            params![Life::Active.as_str(), id.name, id.version],
        )
        .or_target()?;
    tables::show(connection, id, &new.read_as)?;
    Ok(Switched::Done)
}

fn retire(connection: &Connection, id: &ProjectionId) -> Result<bool> {
    let found = rows::one(connection, id)?;
    let Some(old) = found.filter(|old| old.life != Life::Active) else {
        return Ok(false);
    };
    tables::drop_all(connection, id, &old.read_as)?;
    let of = params![id.name, id.version];
    connection
        .execute(statements::DELETE_ALL_PARKED, of)
        .or_target()?;
    connection
        .execute(statements::RETIRE_PROJECTION, params![id.name, id.version])
        .or_target()?;
    Ok(true)
}

impl Target for SqliteTarget {
    type Transaction = Connection;
    type Session = SqliteSession;
    const BLOCKING: bool = true;

    async fn migrate(&self) -> Result<()> {
        self.write(migrate).await
    }

    async fn register(&self, registration: &Registration) -> Result<Stored> {
        let registration = registration.clone();
        self.write(move |connection| register(connection, &registration))
            .await
    }

    async fn list(&self) -> Result<Vec<Stored>> {
        self.read(rows::all).await
    }

    async fn begin(&self, id: &ProjectionId, node: Uuid) -> Result<Begin<SqliteSession>> {
        let (connections, of) = (Arc::clone(&self.connections), id.clone());
        let claimed = self
            .write(move |connection| claim(connection, &of, node))
            .await?;
        Ok(match claimed {
            Claimed::Begun(stored, epoch) => Begin::Begun(
                SqliteSession::new(connections, id.clone(), node, epoch),
                stored,
            ),
            Claimed::Owned(stored) => Begin::Owned(stored),
            Claimed::NotFound => Begin::NotFound,
        })
    }

    /// Blocks its thread, as the calls of a session do.
    async fn load(&self, table: &Table, keys: &dyn Cells, found: &mut Found) -> Result<()> {
        let connection = self.connections.take()?;
        let result = tables::load(&connection, table, keys, found);
        self.connections.give_back(connection);
        result
    }

    async fn find(
        &self,
        table: &Table,
        values: &[(String, OwnedValue)],
        after: Option<(LogId, Position)>,
        limit: usize,
    ) -> Result<Vec<(LogId, Position)>> {
        let (table, values) = (table.clone(), values.to_vec());
        self.read(move |connection| tables::find(connection, &table, &values, after, limit))
            .await
    }

    async fn page(
        &self,
        table: &Table,
        after: Option<Vec<OwnedValue>>,
        limit: usize,
    ) -> Result<Vec<OwnedValue>> {
        let table = table.clone();
        self.read(move |connection| tables::page(connection, &table, after.as_deref(), limit))
            .await
    }

    async fn renew(&self, node: Uuid, name: &str, lease: Duration) -> Result<()> {
        let (name, lease) = (
            name.to_owned(),
            i64::try_from(lease.as_millis()).unwrap_or(i64::MAX),
        );
        self.write(move |connection| {
            connection
                .execute(statements::DELETE_LEASES, params![node.as_bytes(), lease])
                .or_target()?;
            if lease > 0 {
                connection
                    .execute(statements::CUT_LEASES, params![node.as_bytes(), lease])
                    .or_target()?;
                connection
                    .execute(
                        statements::RENEW_LEASE,
                        params![node.as_bytes(), name, lease],
                    )
                    .or_target()?;
            }
            Ok(())
        })
        .await
    }

    async fn set_state(&self, id: &ProjectionId, state: State, why: Option<&str>) -> Result<bool> {
        let (id, why) = (id.clone(), why.map(str::to_owned));
        self.write(move |connection| {
            let values = params![state.as_str(), why, id.name, id.version];
            let changed = connection.execute(statements::UPDATE_STATE, values);
            Ok(changed.or_target()? == 1)
        })
        .await
    }

    async fn parked(
        &self,
        id: &ProjectionId,
        key: Option<&str>,
        limit: usize,
    ) -> Result<Vec<Parked>> {
        let (id, key) = (id.clone(), key.map(str::to_owned));
        self.read(move |connection| rows::parked(connection, &id, key.as_deref(), limit))
            .await
    }

    async fn count_parked(&self, id: &ProjectionId, at_most: usize) -> Result<usize> {
        let id = id.clone();
        self.read(move |connection| rows::count_parked(connection, &id, at_most))
            .await
    }

    async fn parked_keys(&self, id: &ProjectionId) -> Result<Vec<String>> {
        let id = id.clone();
        self.read(move |connection| rows::parked_keys(connection, &id))
            .await
    }

    async fn command(&self, id: &ProjectionId, order: &Order) -> Result<i64> {
        let (id, text) = (id.clone(), order.to_text());
        self.write(move |connection| {
            connection
                .execute(statements::DELETE_OLD_COMMANDS, [])
                .or_target()?;
            connection
                .execute(
                    statements::INSERT_COMMAND,
                    params![id.name, id.version, text],
                )
                .or_target()?;
            Ok(connection.last_insert_rowid())
        })
        .await
    }

    async fn commands(&self) -> Result<Vec<Command>> {
        self.read(rows::commands).await
    }

    async fn answer(&self, number: i64) -> Result<Option<String>> {
        self.read(move |connection| {
            let found = connection.query_row(statements::READ_ANSWER, [number], |row| row.get(0));
            Ok(found.optional().or_target()?.flatten())
        })
        .await
    }

    async fn switch(
        &self,
        id: &ProjectionId,
        from: SwitchFrom,
        seen: Option<&Seen>,
    ) -> Result<Switched> {
        let Ok(turn) = tokio::time::timeout(SWITCH_WAITS, self.connections.turn()).await else {
            return Ok(Switched::Busy);
        };
        drop(turn);
        let (id, seen) = (id.clone(), seen.cloned());
        self.write(move |connection| switch(connection, &id, from, seen.as_ref()))
            .await
    }

    async fn retire(&self, id: &ProjectionId) -> Result<bool> {
        let id = id.clone();
        self.write(move |connection| retire(connection, &id)).await
    }

    fn classify(error: &(dyn std::error::Error + 'static)) -> Option<TargetErrorKind> {
        let mut cause = Some(error);
        while let Some(error) = cause {
            if let Some(error) = error.downcast_ref::<rusqlite::Error>() {
                return Some(kind_of(error));
            }
            if let Some(error) = error.downcast_ref::<TargetError>() {
                return Some(error.kind());
            }
            cause = error.source();
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: beside a store the file lies next to that of the store; beside one in memory it is gone with the target.
    #[tokio::test]
    async fn the_file_lies_beside_the_store() {
        let beside = |url: &str| SqliteTarget::beside(url, Options::default());
        let path = |url: &str| beside(url).expect("a place").connections.path().to_owned();
        for (url, file) in [
            ("sqlite:data/cinema.db", "data/cinema.views.db"),
            (
                "sqlite://data/cinema.db?synchronous=full",
                "data/cinema.views.db",
            ),
            ("sqlite:cinema", "cinema.views.db"),
        ] {
            assert_eq!(path(url), PathBuf::from(file), "{url}");
        }
        for wrong in ["", "cinema.db", "postgres://h/d"] {
            assert!(beside(wrong).is_err(), "{wrong}");
        }
        let [one, other] = ["sqlite::memory:"; 2].map(|url| beside(url).expect("a place"));
        let file = one.connections.path().to_owned();
        assert_ne!(file, other.connections.path());
        one.migrate().await.expect("made");
        let clone = one.clone();
        drop(one);
        assert!(file.exists());
        drop(clone);
        assert!(!file.exists());
    }
}
