//! Rows of the read model in the database and schema of the store: `cinema_available_seats` and `cinema_checkpoint`.
//!
//! Each change is one statement, so it is one transaction and one round trip. Statements are not prepared, so nothing
//! depends on the session. Waiting is bounded; a connection that gave an error or no answer is given up.

use std::time::Duration;

use async_trait::async_trait;
use gesta::ErrorKind;
use tokio::sync::Mutex;
use tokio_postgres::config::{SslMode, TargetSessionAttrs};
use tokio_postgres::types::{FromSql, ToSql, Type};
use tokio_postgres::{Client, Config, NoTls, Row};
use uuid::Uuid;

use super::{AvailableSeats, Batch, Error, Views};

/// Longest time for connecting, and for an answer. Tests count what is done again, so a machine that stands still must
/// not make an answer late.
const ANSWER_MAX: Duration = Duration::from_secs(if cfg!(test) { 600 } else { 10 });

// In each statement SCHEMA stands for the schema of the store.
const FIND_TABLES: &str = "
    SELECT to_regclass('SCHEMA.cinema_available_seats') IS NOT NULL
        AND to_regclass('SCHEMA.cinema_checkpoint') IS NOT NULL";
/// Makes the tables. Pages have room for a new version of each row, so an update touches no index and writes little.
const MAKE_TABLES: &str = "
    CREATE TABLE IF NOT EXISTS SCHEMA.cinema_available_seats (
        show_id uuid PRIMARY KEY, available bigint NOT NULL) WITH (fillfactor = 40);
    CREATE TABLE IF NOT EXISTS SCHEMA.cinema_checkpoint (
        name text PRIMARY KEY, checkpoint text NOT NULL);
    INSERT INTO SCHEMA.cinema_checkpoint VALUES ('available-seats', '') ON CONFLICT DO NOTHING;";
const READ_CHECKPOINT: &str =
    "SELECT checkpoint FROM SCHEMA.cinema_checkpoint WHERE name = 'available-seats'";
/// Applies a batch. A statement that waited for the checkpoint compares it again. A batch that removes rows adds none.
const APPLY: &str = "
    WITH moved AS (
        UPDATE SCHEMA.cinema_checkpoint SET checkpoint = $2
        WHERE name = 'available-seats' AND checkpoint = $1 RETURNING name
    ), removed AS (
        DELETE FROM SCHEMA.cinema_available_seats WHERE $5 AND EXISTS (SELECT FROM moved)
    ), change AS (
        SELECT * FROM unnest($3::uuid[], $4::bigint[], $6::bool[]) AS change (show_id, seats, is_new)
        WHERE EXISTS (SELECT FROM moved)
    ), put AS (
        INSERT INTO SCHEMA.cinema_available_seats (show_id, available)
        SELECT show_id, seats FROM change WHERE is_new
        ON CONFLICT (show_id) DO UPDATE SET available = excluded.available
    ), added AS (
        UPDATE SCHEMA.cinema_available_seats AS row SET available = row.available + change.seats
        FROM change WHERE row.show_id = change.show_id AND NOT change.is_new
    )
    SELECT EXISTS (SELECT FROM moved)";
const READ_PAGE: &str = "
    SELECT show_id, available FROM SCHEMA.cinema_available_seats
    WHERE $1::uuid IS NULL OR show_id > $1 ORDER BY show_id LIMIT $2";

const UNENCRYPTED: &str =
    "the read model of the cinema connects without encryption; sslmode must be disable or prefer";

type Param<'a> = (&'a (dyn ToSql + Sync), Type);

/// Rows of the read model in PostgreSQL.
#[derive(Debug)]
pub(super) struct PostgresViews {
    config: Config,
    schema: String,
    client: Mutex<Option<Client>>,
}

impl PostgresViews {
    /// Makes the place for rows in the first database of the store at `urls`, without the store's own options in it.
    /// The name of the schema is a plain identifier, or the store would not have opened.
    pub(super) fn beside(urls: &str) -> gesta::Result<Self> {
        let url = urls.split_whitespace().next().unwrap_or_default();
        let (base, query) = url.split_once('?').unwrap_or((url, ""));
        let find = |name| query.split('&').find_map(|it| it.strip_prefix(name));
        if find("sslmode=").is_some_and(|mode| !matches!(mode, "disable" | "prefer")) {
            return Err(ErrorKind::Unsupported(UNENCRYPTED.into()).into());
        }
        // What the driver does not know is of the store, which has a list of what it knows.
        let options = query.split('&');
        let is_of_driver = |it: &&str| format!("postgres://h?{it}").parse::<Config>().is_ok();
        let of_driver: Vec<&str> = options.filter(is_of_driver).collect();
        // The driver's message names an option, but never its value.
        let config = format!("{base}?{}", of_driver.join("&")).parse::<Config>();
        let mut config =
            config.map_err(|error| gesta::Error::invalid("store", error.to_string()))?;
        config.ssl_mode(SslMode::Disable);
        config.target_session_attrs(TargetSessionAttrs::ReadWrite);
        if config.get_hosts().is_empty() && config.get_hostaddrs().is_empty() {
            config.host("localhost");
        }
        if config.get_application_name().is_none() {
            config.application_name("cinema");
        }
        Ok(Self {
            config,
            schema: find("schema=").unwrap_or("gesta").to_owned(),
            client: Mutex::default(),
        })
    }

    /// Runs a statement on the connection. A new one is opened if there is none, or if the last statement failed.
    async fn query(&self, sql: &str, params: &[Param<'_>]) -> Result<Vec<Row>, Error> {
        let sql = sql.replace("SCHEMA", &self.schema);
        let mut place = self.client.lock().await;
        let client = match place.take() {
            Some(client) if !client.is_closed() => client,
            _ => self.connect().await?,
        };
        let rows = in_time(client.query_typed(&sql, params)).await?;
        *place = Some(client);
        Ok(rows)
    }

    async fn connect(&self) -> Result<Client, Error> {
        let (client, connection) = in_time(self.config.connect(NoTls)).await?;
        // Ends when the client is dropped, or when the connection breaks, which the client tells.
        tokio::spawn(connection);
        let find_tables = FIND_TABLES.replace("SCHEMA", &self.schema);
        if !first::<bool>(&in_time(client.query_typed(&find_tables, &[])).await?)? {
            in_time(client.batch_execute(&MAKE_TABLES.replace("SCHEMA", &self.schema))).await?;
        }
        Ok(client)
    }
}

/// Returns the first column of the first row.
fn first<'a, T: FromSql<'a>>(rows: &'a [Row]) -> Result<T, Error> {
    let row = rows.first();
    let row = row.ok_or_else(|| Error::Database("the row of the checkpoint is missing".into()))?;
    row.try_get(0).map_err(told)
}

async fn in_time<T>(
    work: impl Future<Output = Result<T, tokio_postgres::Error>>,
) -> Result<T, Error> {
    match tokio::time::timeout(ANSWER_MAX, work).await {
        Ok(done) => done.map_err(told),
        Err(_) => Err(Error::Database("no answer in time".into())),
    }
}

/// Makes an error of the driver's message and its cause.
fn told(error: tokio_postgres::Error) -> Error {
    let cause = std::error::Error::source(&error);
    Error::Database(cause.map_or_else(|| error.to_string(), |cause| format!("{error}: {cause}")))
}

#[async_trait]
impl Views for PostgresViews {
    async fn checkpoint(&self) -> Result<String, Error> {
        first(&self.query(READ_CHECKPOINT, &[]).await?)
    }

    async fn apply(&self, batch: &Batch) -> Result<bool, Error> {
        let shows: Vec<Uuid> = batch.changes.keys().copied().collect();
        let seats: Vec<i64> = batch.changes.values().map(|change| change.seats).collect();
        let are_new: Vec<bool> = batch.changes.values().map(|change| change.is_new).collect();
        let params: [Param<'_>; 6] = [
            (&batch.from, Type::TEXT),
            (&batch.to, Type::TEXT),
            (&shows, Type::UUID_ARRAY),
            (&seats, Type::INT8_ARRAY),
            (&batch.is_anew, Type::BOOL),
            (&are_new, Type::BOOL_ARRAY),
        ];
        first(&self.query(APPLY, &params).await?)
    }

    async fn page(&self, after: Option<Uuid>, limit: u16) -> Result<Vec<AvailableSeats>, Error> {
        let params: [Param<'_>; 2] = [(&after, Type::UUID), (&i64::from(limit), Type::INT8)];
        let rows = self.query(READ_PAGE, &params).await?;
        let seats = |row: &Row| {
            let (show_id, available) = (row.try_get(0)?, row.try_get(1)?);
            Ok(AvailableSeats { show_id, available })
        };
        let seats: Result<_, tokio_postgres::Error> = rows.iter().map(seats).collect();
        seats.map_err(told)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rows_lie_in_the_database_of_the_store() {
        // The first of several databases. Not all options are the driver's.
        let url = "postgres://u:pa%2Fss@h:5433/d?schema=shop&readers=9&connect_timeout=1&compression=client \
                   postgres://h2/d2?schema=other";
        let found = PostgresViews::beside(url).expect("a place");
        assert_eq!(found.schema, "shop");
        assert_eq!(found.config.get_dbname(), Some("d"));
        assert_eq!(found.config.get_ports(), [5433]);
        assert!(found.config.get_connect_timeout().is_some());
        for mode in ["require", "verify-full"] {
            assert!(PostgresViews::beside(&format!("postgres://h/d?sslmode={mode}")).is_err());
        }
        assert!(PostgresViews::beside("postgres://h/d?sslmode=prefer").is_ok());
    }
}
