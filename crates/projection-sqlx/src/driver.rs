//! The interface to drivers of `gesta-projection-postgres`, over sqlx.

use std::error::Error as StdError;

use gesta_projection_postgres::{Driver, Failure, Param, RowBytes};
use sqlx::encode::IsNull;
use sqlx::error::BoxDynError;
use sqlx::postgres::types::Oid;
use sqlx::postgres::{PgArgumentBuffer, PgRow, PgTypeInfo, PgValueFormat};
use sqlx::{AssertSqlSafe, Encode, Executor as _, PgConnection, PgPool, Postgres, Row as _, Type};

/// A pool of sqlx as a driver.
#[derive(Clone, Debug)]
pub struct SqlxPostgres {
    pool: PgPool,
}

impl SqlxPostgres {
    pub(crate) fn of(pool: PgPool) -> Self {
        Self { pool }
    }
}

/// A row of an answer.
#[derive(Debug)]
pub struct Row(PgRow);

async fn query(
    connection: &mut PgConnection,
    statement: &str,
    params: Vec<Param>,
) -> Result<Vec<Row>, Failure> {
    // The statements are Gesta's; of a table they have plain names in quotes.
    let mut query = sqlx::query(AssertSqlSafe(statement.to_owned()));
    for param in params {
        query = query.bind(Value(param));
    }
    let rows = query.fetch_all(connection).await;
    let rows = rows.map_err(|error| failure_of(&error))?;
    Ok(rows.into_iter().map(Row).collect())
}

impl Driver for SqlxPostgres {
    type Open = sqlx::Transaction<'static, Postgres>;
    type Transaction = PgConnection;
    type Row = Row;

    async fn begin(&self, statements: String) -> Result<Self::Open, Failure> {
        let begun = self.pool.begin_with(AssertSqlSafe(statements)).await;
        begun.map_err(|error| failure_of(&error))
    }

    fn lend(open: &mut Self::Open) -> &mut PgConnection {
        open
    }

    async fn query(
        open: &mut Self::Open,
        statement: &str,
        params: Vec<Param>,
    ) -> Result<Vec<Row>, Failure> {
        query(open, statement, params).await
    }

    async fn run(open: &mut Self::Open, statements: String) -> Result<(), Failure> {
        let done = open.execute(sqlx::raw_sql(AssertSqlSafe(statements))).await;
        done.map(|_| ()).map_err(|error| failure_of(&error))
    }

    async fn commit(mut open: Self::Open) -> Result<(), Failure> {
        // Fails if a statement before has failed.
        Self::run(&mut open, "SELECT".to_owned()).await?;
        open.commit().await.map_err(|error| failure_of(&error))
    }

    async fn roll_back(open: Self::Open) -> Result<(), Failure> {
        open.rollback().await.map_err(|error| failure_of(&error))
    }

    async fn query_alone(&self, statement: &str, params: Vec<Param>) -> Result<Vec<Row>, Failure> {
        let connection = self.pool.acquire().await;
        let mut connection = connection.map_err(|error| failure_of(&error))?;
        query(&mut connection, statement, params).await
    }

    fn failure(error: &(dyn StdError + 'static)) -> Option<Failure> {
        error.downcast_ref::<sqlx::Error>().map(failure_of)
    }
}

/// Returns an error of sqlx as a failure.
fn failure_of(error: &sqlx::Error) -> Failure {
    match error {
        sqlx::Error::Database(answer) => Failure {
            code: answer.code().map(|code| code.into_owned()),
            text: answer.message().to_owned(),
        },
        sqlx::Error::Io(_)
        | sqlx::Error::Tls(_)
        | sqlx::Error::Protocol(_)
        | sqlx::Error::PoolTimedOut
        | sqlx::Error::PoolClosed
        | sqlx::Error::WorkerCrashed
        | sqlx::Error::BeginFailed => Failure::without_answer(error.to_string()),
        _ => Failure::of_value(error.to_string()),
    }
}

/// A parameter whose type and bytes are given.
struct Value(Param);

impl Type<Postgres> for Value {
    /// The type of each value is what counts, see [`Encode::produces`].
    fn type_info() -> PgTypeInfo {
        PgTypeInfo::with_oid(Oid(25))
    }
}

impl Encode<'_, Postgres> for Value {
    fn encode_by_ref(&self, buffer: &mut PgArgumentBuffer) -> Result<IsNull, BoxDynError> {
        match &self.0.bytes {
            Some(bytes) => {
                buffer.extend_from_slice(bytes);
                Ok(IsNull::No)
            }
            None => Ok(IsNull::Yes),
        }
    }

    fn produces(&self) -> Option<PgTypeInfo> {
        Some(PgTypeInfo::with_oid(Oid(self.0.oid)))
    }

    fn size_hint(&self) -> usize {
        self.0.bytes.as_ref().map_or(0, Vec::len)
    }
}

impl RowBytes for Row {
    fn bytes(&self, column: usize) -> Result<Option<&[u8]>, Failure> {
        let value = self.0.try_get_raw(column);
        let value = value.map_err(|error| failure_of(&error))?;
        if sqlx::ValueRef::is_null(&value) {
            return Ok(None);
        }
        if value.format() != PgValueFormat::Binary {
            return Err(Failure::of_value("a column is not in binary format"));
        }
        let bytes = value.as_bytes();
        bytes
            .map(Some)
            .map_err(|error| Failure::of_value(error.to_string()))
    }
}
