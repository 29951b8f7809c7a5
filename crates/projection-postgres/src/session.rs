//! A session: the fence, the rows and the commit of one owner's batches.

use gesta_core::{LogId, Position};
use gesta_projection::{
    Attempt, Cells, Fence, Parked, ProjectionId, Session, Table, TargetError, TargetErrorKind,
};
use uuid::Uuid;

use crate::binary::Param;
use crate::driver::{Driver, Limits, Synchronous};
use crate::failure::Failure;
use crate::open::Open;
use crate::statements::{
    ANNOUNCE_ATTEMPT, ANSWER_COMMAND, DELETE_ALL_PARKED, DELETE_PARKED, END_SESSION, INSERT_PARKED,
    MOVE_CHECKPOINT, RESET_PROJECTION,
};
use crate::tables;

type Result<T> = std::result::Result<T, TargetError>;

/// A session of a [`Postgres`](crate::Postgres) target.
pub struct PostgresSession<D: Driver> {
    pub(crate) driver: D,
    pub(crate) limits: Limits,
    pub(crate) synchronous: Synchronous,
    pub(crate) id: ProjectionId,
    pub(crate) node: Uuid,
    pub(crate) epoch: i64,
    pub(crate) open: Option<Open<D>>,
}

impl<D: Driver> std::fmt::Debug for PostgresSession<D> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "PostgresSession({}, epoch {})", self.id, self.epoch)
    }
}

impl<D: Driver> PostgresSession<D> {
    /// Name and version.
    fn of_version(&self) -> Vec<Param> {
        vec![
            Param::text(&self.id.name),
            Param::int(i64::from(self.id.version)),
        ]
    }

    /// Name, version, epoch and node, with further values.
    fn of_session(&self, further: impl IntoIterator<Item = Param>) -> Vec<Param> {
        let mut params = self.of_version();
        params.push(Param::int(self.epoch));
        params.push(Param::uuid(self.node));
        params.extend(further);
        params
    }

    async fn begin(&mut self) -> Result<&mut Open<D>> {
        self.roll_back().await;
        let open = Open::begin(&self.driver, &self.limits, self.synchronous).await?;
        Ok(self.open.insert(open))
    }

    /// Begins a transaction with a statement that gives one row if this session may go on.
    async fn begin_with(&mut self, statement: &str, params: Vec<Param>) -> Result<()> {
        let rows = self.begin().await?.query(statement, params).await;
        let error = match rows {
            Ok(rows) if rows.len() == 1 => return Ok(()),
            Ok(_) => TargetError::lost(),
            Err(failure) => failure.into(),
        };
        self.roll_back().await;
        Err(error)
    }

    fn opened(&mut self) -> Result<&mut Open<D>> {
        let open = self.open.as_mut();
        open.ok_or_else(|| TargetError::new(TargetErrorKind::Unusable, "no transaction is open"))
    }
}

/// What a failed commit means. The server tells by a constraint's code, or that of an earlier statement, that it has
/// rolled back; whatever else it says, or does not say, leaves open what has become of the transaction.
fn commit_failed(failure: Failure) -> TargetError {
    match failure.kind() {
        TargetErrorKind::Away => TargetError::new(
            TargetErrorKind::InDoubt,
            format!("PostgreSQL: the answer to the commit: {}", failure.text),
        ),
        _ => failure.into(),
    }
}

fn position(position: Position) -> i64 {
    i64::try_from(position.0).unwrap_or(i64::MAX)
}

impl<D: Driver> Session for PostgresSession<D> {
    type Transaction = D::Transaction;

    async fn open(&mut self, fence: Fence<'_>) -> Result<()> {
        let events = i64::try_from(fence.events).unwrap_or(i64::MAX);
        let params = self.of_session([
            Param::text(&fence.from.to_string()),
            Param::text(&fence.to.to_string()),
            Param::int(events),
            Param::int(fence.events_before),
        ]);
        self.begin_with(MOVE_CHECKPOINT, params).await
    }

    fn transaction(&mut self) -> Result<&mut D::Transaction> {
        Ok(self.opened()?.lend())
    }

    async fn write(&mut self, table: &Table, rows: &dyn Cells, deleted: &dyn Cells) -> Result<()> {
        let open = self.opened()?;
        tables::upsert(open, table, rows).await?;
        tables::delete(open, table, deleted).await
    }

    async fn park(&mut self, parked: &[Parked]) -> Result<()> {
        let mut params = self.of_version();
        let events = || parked.iter();
        params.push(Param::ints(events().map(|event| i64::from(event.log.0))));
        params.push(Param::ints(events().map(|event| position(event.position))));
        params.push(Param::texts(events().map(|event| event.key.as_deref())));
        params.push(Param::uuids(events().map(|event| event.event.0)));
        params.push(Param::texts(
            events().map(|event| Some(event.error.as_str())),
        ));
        params.push(Param::ints(events().map(|event| i64::from(event.attempts))));
        self.opened()?.query(INSERT_PARKED, params).await?;
        Ok(())
    }

    async fn unpark(&mut self, events: &[(LogId, Position)]) -> Result<()> {
        let mut params = self.of_version();
        params.push(Param::ints(events.iter().map(|(log, _)| i64::from(log.0))));
        params.push(Param::ints(events.iter().map(|(_, at)| position(*at))));
        self.opened()?.query(DELETE_PARKED, params).await?;
        Ok(())
    }

    async fn show(&mut self, read_as: &[String]) -> Result<()> {
        let id = self.id.clone();
        tables::show(self.opened()?, &id, read_as).await
    }

    async fn clear(&mut self, table: Option<&Table>) -> Result<()> {
        let params = self.of_version();
        let open = self.opened()?;
        if let Some(table) = table {
            tables::clear(open, table).await?;
        }
        open.query(DELETE_ALL_PARKED, params.clone()).await?;
        open.query(RESET_PROJECTION, params).await?;
        Ok(())
    }

    async fn reply(&mut self, number: i64, answer: &str) -> Result<()> {
        let params = vec![Param::int(number), Param::text(answer)];
        self.opened()?.query(ANSWER_COMMAND, params).await?;
        Ok(())
    }

    async fn commit(&mut self) -> Result<()> {
        match self.open.take() {
            Some(open) => open.commit().await.map_err(commit_failed),
            None => Ok(()),
        }
    }

    async fn roll_back(&mut self) {
        if let Some(open) = self.open.take()
            && let Err(failure) = open.roll_back().await
        {
            // The connection is closed, which rolls back as well.
            tracing::debug!(
                cause = failure.text,
                "a transaction was not rolled back in order"
            );
        }
    }

    async fn announce(&mut self, attempt: Attempt) -> Result<()> {
        let (log, at) = attempt.first;
        let params = self.of_session([
            Param::int(i64::from(attempt.number)),
            Param::int(i64::from(attempt.events)),
            Param::int(i64::from(log.0)),
            Param::int(position(at)),
            Param::boolean(attempt.is_replay),
        ]);
        self.begin_with(ANNOUNCE_ATTEMPT, params).await?;
        self.commit().await
    }

    async fn end(mut self, stop: Option<&str>) -> Result<()> {
        let params = self.of_session([Param::text_or_null(stop)]);
        self.begin().await?.query(END_SESSION, params).await?;
        self.commit().await
    }
}
