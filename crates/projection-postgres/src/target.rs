//! The target: registration, sessions, leases, commands and versions in a PostgreSQL database.

use std::time::Duration;

use gesta_core::{LogId, Position};
use gesta_projection::{
    Begin, Cells, Command, Found, Order, OwnedValue, Parked, ProjectionId, Registration, Seen,
    State, Stored, SwitchFrom, Switched, Table, Target, TargetError, TargetErrorKind,
    filter_to_text,
};
use uuid::Uuid;

use crate::binary::{self, Param};
use crate::driver::{Driver, Limits, RowBytes, Synchronous};
use crate::failure::Failure;
use crate::open::{self, Open};
use crate::rows::{self, Columns};
use crate::session::PostgresSession;
use crate::statements::{
    COUNT_PARKED, CUT_LEASES, END_LEASE, FILL_FILTER, FIND_SCHEMA_VERSION, INSERT_COMMAND,
    READ_ANSWER, READ_COMMANDS, READ_PARKED, READ_PARKED_KEYS, READ_PROJECTIONS, READ_RIGHTS,
    READ_SCHEMA_VERSION, RENEW_LEASE, UPDATE_STATE,
};
use crate::tables::{self, Loading};
use crate::versions::{self, Claimed};

type Result<T> = std::result::Result<T, TargetError>;

/// The SQLSTATE of a column that is missing, as texts of errors show it.
const UNDEFINED_COLUMN: &str = "(42703)";
/// The SQLSTATEs of what a role may not do, or does not see, as texts of errors show them: a right, a table, a schema.
const UNSEEN: [&str; 3] = ["(42501)", "(42P01)", "(3F000)"];

/// A PostgreSQL database in which projections live, over some driver. A handle is cheap to clone.
#[derive(Clone)]
pub struct Postgres<D> {
    driver: D,
    limits: Limits,
    synchronous: Synchronous,
}

impl<D> std::fmt::Debug for Postgres<D> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Postgres")
            .field("limits", &self.limits)
            .field("synchronous", &self.synchronous)
            .finish_non_exhaustive()
    }
}

impl<D: Driver> Postgres<D> {
    /// Makes a target over a driver.
    #[must_use]
    pub fn over(driver: D, limits: Limits, synchronous: Synchronous) -> Self {
        Self {
            driver,
            limits,
            synchronous,
        }
    }

    async fn query(&self, statement: &str, params: Vec<Param>) -> Result<Vec<D::Row>> {
        match open::query_alone(&self.driver, &self.limits, statement, params).await {
            Ok(rows) => Ok(rows),
            Err(failure) => Err(self.explained(failure.into()).await),
        }
    }

    /// Says of a column that is missing why: the tables are those of an earlier program. Says of a table that is
    /// missing, and of a right, which right the role lacks, and what grants it: PostgreSQL takes tables in a schema
    /// that a role may not use for missing.
    async fn explained(&self, error: TargetError) -> TargetError {
        let text = error.to_string();
        if UNSEEN.iter().any(|state| text.contains(state)) {
            return self.with_rights(error).await;
        }
        if !text.contains(UNDEFINED_COLUMN) {
            return error;
        }
        let read = open::query_alone(&self.driver, &self.limits, READ_SCHEMA_VERSION, Vec::new());
        match read.await.map(|rows| versions::schema_version(&rows)) {
            Ok(Ok(found)) => versions::older(found).unwrap_or(error),
            _ => error,
        }
    }

    async fn with_rights(&self, error: TargetError) -> TargetError {
        let read = open::query_alone(&self.driver, &self.limits, READ_RIGHTS, Vec::new());
        let Ok(rows) = read.await else {
            return error;
        };
        let lacking = rows.first().and_then(|row| row.bytes(0).ok()?);
        match lacking.and_then(|text| binary::text(text).ok()) {
            Some(lacking) => TargetError::new(error.kind(), format!("{error}: {lacking}")),
            // Tables of readers are not meant.
            None if error.to_string().contains("gesta_projections") => TargetError::new(
                error.kind(),
                format!(
                    "there are no projections and no indexes here ({error}): the process that keeps the first one makes the \
                     tables; --schema names another schema"
                ),
            ),
            None => error,
        }
    }

    async fn begin_transaction(&self) -> Result<Open<D>> {
        Ok(Open::begin(&self.driver, &self.limits, self.synchronous).await?)
    }
}

/// Commits what went well, and rolls back what did not. A commit in doubt counts as not done here: whatever was
/// changed,
/// it may be done again.
async fn finish<D: Driver, T>(open: Open<D>, outcome: Result<T>) -> Result<T> {
    match outcome {
        Ok(value) => {
            open.commit().await?;
            Ok(value)
        }
        Err(error) => {
            if let Err(failure) = open.roll_back().await {
                tracing::debug!(
                    cause = failure.text,
                    "a transaction was not rolled back in order"
                );
            }
            Err(error)
        }
    }
}

impl<D: Driver> Target for Postgres<D> {
    type Transaction = D::Transaction;
    type Session = PostgresSession<D>;
    const BLOCKING: bool = false;

    async fn migrate(&self) -> Result<()> {
        let exists = self.query(FIND_SCHEMA_VERSION, Vec::new()).await?;
        if versions::is_true(&exists)? {
            let rows = self.query(READ_SCHEMA_VERSION, Vec::new()).await?;
            if versions::is_current(versions::schema_version(&rows)?)? {
                return Ok(());
            }
        }
        let mut open = self.begin_transaction().await?;
        let outcome = versions::migrate(&mut open).await;
        match finish(open, outcome).await {
            Ok(()) => Ok(()),
            Err(error) => Err(self.explained(error).await),
        }
    }

    async fn register(&self, registration: &Registration) -> Result<Stored> {
        let id = &registration.id;
        let params = vec![Param::text(&id.name), Param::int(i64::from(id.version))];
        let rows = self.query(READ_PROJECTIONS, params.clone()).await?;
        if let Some(row) = rows.first() {
            let mut stored = rows::stored(row)?;
            if stored.filter.is_none() && stored.made_with == registration.made_with {
                let mut params = params;
                params.push(Param::text(&filter_to_text(&registration.filter)));
                self.query(FILL_FILTER, params).await?;
                stored.filter = Some(registration.filter.clone());
            }
            return Ok(stored);
        }
        let mut open = self.begin_transaction().await?;
        let outcome = versions::register(&mut open, registration).await;
        finish(open, outcome).await
    }

    async fn list(&self) -> Result<Vec<Stored>> {
        let params = vec![Param::text_or_null(None), Param::int_or_null(None)];
        let rows = self.query(READ_PROJECTIONS, params).await?;
        rows.iter().map(rows::stored).collect()
    }

    async fn begin(&self, id: &ProjectionId, node: Uuid) -> Result<Begin<PostgresSession<D>>> {
        let mut open = self.begin_transaction().await?;
        let outcome = versions::claim(&mut open, id, node).await;
        Ok(match finish(open, outcome).await? {
            Claimed::Begun(stored, epoch) => {
                let session = PostgresSession {
                    driver: self.driver.clone(),
                    limits: self.limits,
                    synchronous: self.synchronous,
                    id: id.clone(),
                    node,
                    epoch,
                    open: None,
                };
                Begin::Begun(session, stored)
            }
            Claimed::Owned(stored) => Begin::Owned(stored),
            Claimed::NotFound => Begin::NotFound,
        })
    }

    async fn load(&self, table: &Table, keys: &dyn Cells, found: &mut Found) -> Result<()> {
        let loading = Loading::of(table, keys)?;
        for (first, params) in loading.pieces {
            let rows = self.query(&loading.statement, params).await?;
            tables::take_found(table, first, &rows, found)?;
        }
        Ok(())
    }

    async fn find(
        &self,
        table: &Table,
        values: &[(String, OwnedValue)],
        after: Option<(LogId, Position)>,
        limit: usize,
    ) -> Result<Vec<(LogId, Position)>> {
        let (statement, params) = tables::finding(table, values, after, limit);
        let rows = self.query(&statement, params).await?;
        rows.iter().map(rows::place).collect()
    }

    async fn page(
        &self,
        table: &Table,
        after: Option<Vec<OwnedValue>>,
        limit: usize,
    ) -> Result<Vec<OwnedValue>> {
        let (statement, params) = tables::paging(table, after.as_deref(), limit);
        let rows = self.query(&statement, params).await?;
        tables::take_page(table, &rows)
    }

    async fn renew(&self, node: Uuid, name: &str, lease: Duration) -> Result<()> {
        if lease.is_zero() {
            self.query(END_LEASE, vec![Param::uuid(node)]).await?;
            return Ok(());
        }
        let millis = i64::try_from(lease.as_millis()).unwrap_or(i64::MAX);
        // A statement of its own, which holds no row while it waits for another: two processes may do this at once.
        let params = vec![Param::uuid(node), Param::int(millis)];
        self.query(CUT_LEASES, params).await?;
        let params = vec![Param::uuid(node), Param::text(name), Param::int(millis)];
        self.query(RENEW_LEASE, params).await?;
        Ok(())
    }

    async fn set_state(&self, id: &ProjectionId, state: State, why: Option<&str>) -> Result<bool> {
        let params = vec![
            Param::text(&id.name),
            Param::int(i64::from(id.version)),
            Param::text(state.as_str()),
            Param::text_or_null(why),
        ];
        // A transaction, so that it waits for a batch under way no longer than others do.
        let mut open = self.begin_transaction().await?;
        let outcome = open.query(UPDATE_STATE, params).await;
        let rows = finish(open, outcome.map_err(TargetError::from)).await?;
        Ok(rows.len() == 1)
    }

    async fn parked(
        &self,
        id: &ProjectionId,
        key: Option<&str>,
        limit: usize,
    ) -> Result<Vec<Parked>> {
        let params = vec![
            Param::text(&id.name),
            Param::int(i64::from(id.version)),
            Param::text_or_null(key),
            Param::int(i64::try_from(limit).unwrap_or(i64::MAX)),
        ];
        let rows = self.query(READ_PARKED, params).await?;
        rows.iter().map(rows::parked).collect()
    }

    async fn count_parked(&self, id: &ProjectionId, at_most: usize) -> Result<usize> {
        let params = vec![
            Param::text(&id.name),
            Param::int(i64::from(id.version)),
            Param::int(i64::try_from(at_most).unwrap_or(i64::MAX)),
        ];
        let rows = self.query(COUNT_PARKED, params).await?;
        let count = match rows.first() {
            Some(row) => Columns::of(row).int()?,
            None => 0,
        };
        usize::try_from(count).map_err(|_| Failure::of_value("a count is below zero").into())
    }

    async fn parked_keys(&self, id: &ProjectionId) -> Result<Vec<String>> {
        let params = vec![Param::text(&id.name), Param::int(i64::from(id.version))];
        let rows = self.query(READ_PARKED_KEYS, params).await?;
        let keys = rows
            .iter()
            .map(|row| Columns::of(row).text().map(str::to_owned));
        keys.collect()
    }

    async fn command(&self, id: &ProjectionId, order: &Order) -> Result<i64> {
        let params = vec![
            Param::text(&id.name),
            Param::int(i64::from(id.version)),
            Param::text(&order.to_text()),
        ];
        let rows = self.query(INSERT_COMMAND, params).await?;
        let row = rows.first().ok_or_else(|| {
            TargetError::from(Failure::of_value("a command was stored without a number"))
        })?;
        Columns::of(row).int()
    }

    async fn commands(&self) -> Result<Vec<Command>> {
        let rows = self.query(READ_COMMANDS, Vec::new()).await?;
        let commands = rows.iter().map(rows::command).filter_map(Result::transpose);
        commands.collect()
    }

    async fn answer(&self, number: i64) -> Result<Option<String>> {
        let rows = self.query(READ_ANSWER, vec![Param::int(number)]).await?;
        match rows.first() {
            Some(row) => Columns::of(row).text_or_null(),
            None => Ok(None),
        }
    }

    async fn switch(
        &self,
        id: &ProjectionId,
        from: SwitchFrom,
        seen: Option<&Seen>,
    ) -> Result<Switched> {
        let mut open = self.begin_transaction().await?;
        let switched = versions::switch(&mut open, id, from, seen).await;
        let was_busy = open.was_busy();
        match finish(open, switched).await {
            Err(_) if was_busy => Ok(Switched::Busy),
            Err(error) => Err(self.explained(error).await),
            switched => switched,
        }
    }

    async fn retire(&self, id: &ProjectionId) -> Result<bool> {
        let mut open = self.begin_transaction().await?;
        let outcome = versions::retire(&mut open, id).await;
        match finish(open, outcome).await {
            Err(error) => Err(self.explained(error).await),
            retired => retired,
        }
    }

    fn classify(error: &(dyn std::error::Error + 'static)) -> Option<TargetErrorKind> {
        let mut cause = Some(error);
        while let Some(error) = cause {
            if let Some(failure) = D::failure(error) {
                return Some(failure.kind());
            }
            if let Some(error) = error.downcast_ref::<TargetError>() {
                return Some(error.kind());
            }
            cause = error.source();
        }
        None
    }
}
