//! A session: the fence, the rows and the commit of one owner's batches.

use std::sync::Arc;

use gesta_core::{LogId, Position};
use gesta_projection::{
    Attempt, Cells, Fence, Parked, ProjectionId, Session, Table, TargetError, TargetErrorKind,
};
use rusqlite::{Connection, params};
use tokio::sync::OwnedSemaphorePermit;
use uuid::Uuid;

use crate::connections::Connections;
use crate::error::{OrTarget, Result, from_sqlite};
use crate::statements;
use crate::tables;

/// A session of an [`SqliteTarget`](crate::SqliteTarget).
pub struct SqliteSession {
    connections: Arc<Connections>,
    id: ProjectionId,
    node: Uuid,
    epoch: i64,
    /// The open transaction. Dropping the connection rolls it back.
    open: Option<(Connection, OwnedSemaphorePermit)>,
}

impl std::fmt::Debug for SqliteSession {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "SqliteSession({}, epoch {})", self.id, self.epoch)
    }
}

impl SqliteSession {
    pub(crate) fn new(
        connections: Arc<Connections>,
        id: ProjectionId,
        node: Uuid,
        epoch: i64,
    ) -> Self {
        Self {
            connections,
            id,
            node,
            epoch,
            open: None,
        }
    }

    async fn begin(&mut self) -> Result<()> {
        self.roll_back().await;
        let turn = self.connections.turn().await?;
        let connection = self.connections.take()?;
        connection.execute_batch("BEGIN IMMEDIATE").or_target()?;
        self.open = Some((connection, turn));
        Ok(())
    }

    fn connection(&mut self) -> Result<&mut Connection> {
        let open = self.open.as_mut().map(|(connection, _)| connection);
        open.ok_or_else(|| TargetError::new(TargetErrorKind::Unusable, "no transaction is open"))
    }

    /// Ends the transaction if the statement has not changed exactly the row of this session.
    async fn demand_one(&mut self, changed: rusqlite::Result<usize>) -> Result<()> {
        let error = match changed {
            Ok(1) => return Ok(()),
            Ok(_) => TargetError::lost(),
            Err(error) => from_sqlite(&error),
        };
        self.roll_back().await;
        Err(error)
    }
}

impl Session for SqliteSession {
    type Transaction = Connection;

    async fn open(&mut self, fence: Fence<'_>) -> Result<()> {
        self.begin().await?;
        let events = i64::try_from(fence.events).unwrap_or(i64::MAX);
        let before = fence.events_before;
        let (to, from) = (fence.to.to_string(), fence.from.to_string());
        let (name, version, epoch) = (self.id.name.clone(), self.id.version, self.epoch);
        let node = *self.node.as_bytes();
        let changed = self
            .connection()?
            .prepare_cached(statements::MOVE_CHECKPOINT)
            .and_then(|mut fence| {
                fence.execute(params![
                    to, events, name, version, epoch, node, from, before
                ])
            });
        self.demand_one(changed).await
    }

    fn transaction(&mut self) -> Result<&mut Connection> {
        self.connection()
    }

    async fn write(&mut self, table: &Table, rows: &dyn Cells, deleted: &dyn Cells) -> Result<()> {
        let connection = self.connection()?;
        tables::upsert(connection, table, rows)?;
        tables::delete(connection, table, deleted)
    }

    async fn park(&mut self, parked: &[Parked]) -> Result<()> {
        let (name, version) = (self.id.name.clone(), self.id.version);
        let connection = self.connection()?;
        let mut statement = connection
            .prepare_cached(statements::INSERT_PARKED)
            .or_target()?;
        for event in parked {
            let position = i64::try_from(event.position.0).unwrap_or(i64::MAX);
            statement
                .execute(params![
                    name,
                    version,
                    event.log.0,
                    position,
                    event.key,
                    event.event.0.as_bytes(),
                    event.error,
                    event.attempts
                ])
                .or_target()?;
        }
        Ok(())
    }

    async fn unpark(&mut self, events: &[(LogId, Position)]) -> Result<()> {
        let (name, version) = (self.id.name.clone(), self.id.version);
        let mut statement = self
            .connection()?
            .prepare_cached(statements::DELETE_PARKED)
            .or_target()?;
        for (log, position) in events {
            let position = i64::try_from(position.0).unwrap_or(i64::MAX);
            statement
                .execute(params![name, version, log.0, position])
                .or_target()?;
        }
        Ok(())
    }

    async fn show(&mut self, read_as: &[String]) -> Result<()> {
        let id = self.id.clone();
        tables::show(self.connection()?, &id, read_as)
    }

    async fn clear(&mut self, table: Option<&Table>) -> Result<()> {
        let (name, version) = (self.id.name.clone(), self.id.version);
        let connection = self.connection()?;
        if let Some(table) = table {
            tables::clear(connection, table)?;
        }
        connection
            .execute(statements::DELETE_ALL_PARKED, params![name, version])
            .or_target()?;
        connection
            .execute(statements::RESET_PROJECTION, params![name, version])
            .or_target()?;
        Ok(())
    }

    async fn reply(&mut self, number: i64, answer: &str) -> Result<()> {
        let connection = self.connection()?;
        connection
            .execute(statements::ANSWER_COMMAND, params![number, answer])
            .or_target()?;
        Ok(())
    }

    async fn commit(&mut self) -> Result<()> {
        let committed = self.connection()?.execute_batch("COMMIT");
        let Some((connection, turn)) = self.open.take() else {
            return Ok(());
        };
        match committed {
            Ok(()) => {
                self.connections.give_back(connection);
                drop(turn);
                Ok(())
            }
            // SQLite has rolled back or not: closing the connection rolls back, and a new session tells what is there.
            Err(error) => Err(TargetError::new(
                TargetErrorKind::InDoubt,
                format!("SQLite: the commit failed: {error}"),
            )),
        }
    }

    async fn roll_back(&mut self) {
        if let Some((connection, turn)) = self.open.take() {
            // A connection that does not roll back is closed, which does.
            if connection.is_autocommit() || connection.execute_batch("ROLLBACK").is_ok() {
                self.connections.give_back(connection);
            }
            drop(turn);
        }
    }

    async fn announce(&mut self, attempt: Attempt) -> Result<()> {
        self.begin().await?;
        let (log, position) = attempt.first;
        let position = i64::try_from(position.0).unwrap_or(i64::MAX);
        let (name, version, epoch) = (self.id.name.clone(), self.id.version, self.epoch);
        let node = *self.node.as_bytes();
        let changed = self.connection()?.execute(
            statements::ANNOUNCE_ATTEMPT,
            params![
                attempt.number,
                attempt.events,
                log.0,
                position,
                attempt.is_replay,
                name,
                version,
                epoch,
                node
            ],
        );
        self.demand_one(changed).await?;
        self.commit().await
    }

    async fn end(mut self, stop: Option<&str>) -> Result<()> {
        self.begin().await?;
        let (name, version, epoch) = (self.id.name.clone(), self.id.version, self.epoch);
        let node = *self.node.as_bytes();
        self.connection()?
            .execute(
                statements::END_SESSION,
                params![stop, name, version, epoch, node],
            )
            .or_target()?;
        self.commit().await
    }
}
