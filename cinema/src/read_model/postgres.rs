//! Rows in the database and schema of the store: tables `cinema_available_seats` and `cinema_checkpoint`.
//!
//! Each change is one statement, so it is one transaction and one round trip. Statements are not prepared, so nothing
//! depends on the session. Waiting is bounded; a connection that gave an error or no answer is given up.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use tokio::sync::Mutex;
use tokio_postgres::types::{ToSql, Type};
use tokio_postgres::{Client, NoTls, Row};
use uuid::Uuid;

use super::batch::Batch;
use super::location::PostgresLocation;
use super::{AvailableSeats, Error, Moved, Views};

/// Time for connecting, and for an answer.
const ANSWER_MAX: Duration = Duration::from_secs(10);

type Param<'a> = (&'a (dyn ToSql + Sync), Type);

/// Rows in PostgreSQL.
pub(super) struct PostgresViews {
    location: PostgresLocation,
    sql: Sql,
    client: Mutex<Option<Arc<Client>>>,
}

/// The statements, with the schema's name in them. It is a plain identifier, or the store would not have opened.
struct Sql {
    find_tables: String,
    make_tables: String,
    checkpoint: String,
    apply: String,
    clear: String,
    page: String,
}

impl Sql {
    fn new(schema: &str) -> Self {
        let (seats, checkpoint) = (
            format!("{schema}.cinema_available_seats"),
            format!("{schema}.cinema_checkpoint"),
        );
        Self {
            find_tables: format!(
                "SELECT to_regclass('{seats}') IS NOT NULL AND to_regclass('{checkpoint}') IS NOT NULL"
            ),
            // Room in every page for a new version of each row: then an update touches no index and writes little.
            make_tables: format!(
                "CREATE TABLE IF NOT EXISTS {seats} (show_id uuid PRIMARY KEY, available bigint NOT NULL) WITH (fillfactor = 40);
                 CREATE TABLE IF NOT EXISTS {checkpoint} (name text PRIMARY KEY, checkpoint text NOT NULL);
                 INSERT INTO {checkpoint} VALUES ('available-seats', '') ON CONFLICT DO NOTHING;"
            ),
            checkpoint: format!(
                "SELECT checkpoint FROM {checkpoint} WHERE name = 'available-seats'"
            ),
            // Whoever waits for the row of the checkpoint compares again with what it has become.
            apply: format!(
                "WITH moved AS (
                     UPDATE {checkpoint} SET checkpoint = $2
                     WHERE name = 'available-seats' AND checkpoint = $1 RETURNING name
                 ), added AS (
                     INSERT INTO {seats} AS seats (show_id, available)
                     SELECT change.* FROM unnest($3::uuid[], $4::bigint[]) AS change
                     WHERE EXISTS (SELECT FROM moved)
                     ON CONFLICT (show_id) DO UPDATE SET available = seats.available + excluded.available
                 )
                 SELECT EXISTS (SELECT FROM moved)"
            ),
            clear: format!(
                "WITH moved AS (
                     UPDATE {checkpoint} SET checkpoint = ''
                     WHERE name = 'available-seats' AND checkpoint = $1 RETURNING name
                 ), removed AS (
                     DELETE FROM {seats} WHERE EXISTS (SELECT FROM moved)
                 )
                 SELECT EXISTS (SELECT FROM moved)"
            ),
            page: format!(
                "SELECT show_id, available FROM {seats}
                 WHERE $1::uuid IS NULL OR show_id > $1 ORDER BY show_id LIMIT $2"
            ),
        }
    }
}

impl PostgresViews {
    pub(super) fn new(location: PostgresLocation) -> Self {
        Self {
            sql: Sql::new(&location.schema),
            location,
            client: Mutex::new(None),
        }
    }

    /// The connection; a new one if there is none or it was lost.
    async fn client(&self) -> Result<Arc<Client>, Error> {
        let mut place = self.client.lock().await;
        if let Some(client) = place.as_ref().filter(|client| !client.is_closed()) {
            return Ok(Arc::clone(client));
        }
        let connecting = self.location.config.connect(NoTls);
        let (client, connection) = in_time(connecting).await?;
        // Ends when the client is dropped, or when the connection breaks, which the client tells.
        tokio::spawn(connection);
        let client = Arc::new(client);
        *place = Some(Arc::clone(&client));
        Ok(client)
    }

    async fn query(&self, sql: &str, params: &[Param<'_>]) -> Result<Vec<Row>, Error> {
        let client = self.client().await?;
        let rows = in_time(client.query_typed(sql, params)).await;
        if rows.is_err() {
            self.forget(&client).await;
        }
        rows
    }

    /// Gives a connection up, unless there is another one by now.
    async fn forget(&self, client: &Arc<Client>) {
        let mut place = self.client.lock().await;
        if place.as_ref().is_some_and(|now| Arc::ptr_eq(now, client)) {
            *place = None;
        }
    }

    async fn moved(&self, sql: &str, params: &[Param<'_>]) -> Result<Moved, Error> {
        let rows = self.query(sql, params).await?;
        Ok(if first(&rows)? { Moved::Yes } else { Moved::No })
    }
}

/// The first column of the first row.
fn first<'a, T: tokio_postgres::types::FromSql<'a>>(rows: &'a [Row]) -> Result<T, Error> {
    let row = rows.first();
    let row = row.ok_or_else(|| Error::Database("the row of the checkpoint is missing".into()))?;
    row.try_get(0).map_err(|error| told(&error))
}

async fn in_time<T>(
    work: impl Future<Output = Result<T, tokio_postgres::Error>>,
) -> Result<T, Error> {
    match tokio::time::timeout(ANSWER_MAX, work).await {
        Ok(done) => done.map_err(|error| told(&error)),
        Err(_) => Err(Error::Database("no answer in time".into())),
    }
}

/// The driver's message and its cause.
fn told(error: &tokio_postgres::Error) -> Error {
    let cause = std::error::Error::source(error);
    Error::Database(cause.map_or_else(|| error.to_string(), |cause| format!("{error}: {cause}")))
}

#[async_trait]
impl Views for PostgresViews {
    async fn checkpoint(&self) -> Result<String, Error> {
        if !first::<bool>(&self.query(&self.sql.find_tables, &[]).await?)? {
            let client = self.client().await?;
            in_time(client.batch_execute(&self.sql.make_tables)).await?;
        }
        first(&self.query(&self.sql.checkpoint, &[]).await?)
    }

    async fn apply(&self, batch: &Batch) -> Result<Moved, Error> {
        let (shows, changes) = batch.columns();
        let params: [Param<'_>; 4] = [
            (&batch.from, Type::TEXT),
            (&batch.to, Type::TEXT),
            (&shows, Type::UUID_ARRAY),
            (&changes, Type::INT8_ARRAY),
        ];
        self.moved(&self.sql.apply, &params).await
    }

    async fn clear(&self, checkpoint: &str) -> Result<Moved, Error> {
        let params: [Param<'_>; 1] = [(&checkpoint, Type::TEXT)];
        self.moved(&self.sql.clear, &params).await
    }

    async fn page(&self, after: Option<Uuid>, limit: u16) -> Result<Vec<AvailableSeats>, Error> {
        let limit = i64::from(limit);
        let params: [Param<'_>; 2] = [(&after, Type::UUID), (&limit, Type::INT8)];
        let rows = self.query(&self.sql.page, &params).await?;
        let seats = |row: &Row| {
            Ok(AvailableSeats {
                show_id: row.try_get(0)?,
                available: row.try_get(1)?,
            })
        };
        let rows: Result<Vec<_>, tokio_postgres::Error> = rows.iter().map(seats).collect();
        rows.map_err(|error| told(&error))
    }
}
