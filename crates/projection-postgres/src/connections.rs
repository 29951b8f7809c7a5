//! The driver tokio-postgres: a few connections for all projections of a process.
//!
//! Why few: appends and the application need the database's connections, and a projection needs one only while a batch
//! is written. One is left to reads, looks and leases while batches are written, so that a lease is renewed however
//! many batches wait.
//! Invariant: a connection goes back among the idle ones only after its transaction has ended in good order; any other
//! one is closed, which rolls back.

use std::collections::HashMap;
use std::error::Error as StdError;
use std::ops::Deref;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use bytes::BytesMut;
use gesta_core::Error;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_postgres::config::TargetSessionAttrs;
use tokio_postgres::types::{FromSql, IsNull, ToSql, Type};
use tokio_postgres::{Client, Row, Statement};
use tokio_postgres_rustls::MakeRustlsConnect;

use crate::binary::Param;
use crate::driver::{Driver, Limits, RowBytes, Synchronous};
use crate::failure::Failure;
use crate::target::Postgres;

/// Prepared statements that a connection keeps; with more, all are dropped and prepared anew.
const STATEMENTS_MAX: usize = 500;
/// The name that connections have in `pg_stat_activity`, unless the URL has another one.
const APPLICATION_NAME: &str = "gesta projections";

/// A PostgreSQL database in which projections live, over tokio-postgres.
pub type PostgresTarget = Postgres<TokioPostgres>;

/// How a [`PostgresTarget`] is opened.
#[derive(Clone, Debug)]
pub struct Options {
    /// The most connections for all projections of this target. All but one may write batches at once. On the store's
    /// own database leave it at 2, so that appends keep their commits.
    pub connections_max: usize,
    /// The schema in which all tables are; it must exist. Without, the tables are where the `search_path` of the user
    /// leads.
    pub schema: Option<String>,
    /// What a commit survives.
    pub synchronous: Synchronous,
    /// How long transactions may last.
    pub limits: Limits,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            connections_max: 2,
            schema: None,
            synchronous: Synchronous::AsSet,
            limits: Limits::default(),
        }
    }
}

impl PostgresTarget {
    /// Makes a target of a database, by a URL as that of a store, `postgres://…`. It connects when it is first used.
    ///
    /// # Errors
    /// `InvalidArgument` if the URL breaks a rule, which it names.
    pub fn at(url: &str) -> gesta_core::Result<Self> {
        Self::with(url, Options::default())
    }

    /// Makes a target beside a store, by the URL of the store: in its database, of several in the first one, and unless
    /// the options name a schema in that of the store, which must exist.
    ///
    /// # Errors
    /// As [`with`](Self::with).
    pub fn beside(store: &str, options: Options) -> gesta_core::Result<Self> {
        let (url, options) = beside(store, options)?;
        Self::with(url, options)
    }

    /// Makes a target of a database, with options.
    ///
    /// # Errors
    /// `InvalidArgument` if the URL or an option breaks a rule, which it names.
    pub fn with(url: &str, options: Options) -> gesta_core::Result<Self> {
        let (limits, synchronous) = (options.limits, options.synchronous);
        Ok(Self::over(
            TokioPostgres::new(url, options)?,
            limits,
            synchronous,
        ))
    }
}

/// Returns the URL of the first database of a store, and the options with the schema of the store.
fn beside(store: &str, options: Options) -> gesta_core::Result<(&str, Options)> {
    let url = store.split_whitespace().next().unwrap_or_default();
    let schema = match options.schema {
        Some(schema) => schema,
        None => gesta_postgres::Config::parse(url)?.schema,
    };
    let schema = Some(schema);
    Ok((url, Options { schema, ..options }))
}

/// The driver tokio-postgres, with the connections that it keeps.
#[derive(Clone)]
pub struct TokioPostgres {
    shared: Arc<Shared>,
}

struct Shared {
    hosts: Vec<tokio_postgres::Config>,
    tls: MakeRustlsConnect,
    schema: Option<String>,
    /// The host that is asked first: the last one that was the primary.
    first: AtomicUsize,
    permits: Arc<Semaphore>,
    /// Those of the permits that transactions may have.
    writers: Arc<Semaphore>,
    idle: Mutex<Vec<Connection>>,
}

impl std::fmt::Debug for TokioPostgres {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("TokioPostgres")
    }
}

struct Connection {
    client: Client,
    statements: HashMap<String, Statement>,
}

/// An open transaction, as the driver's own [`Client`]: all of its functions that take `&self` are there, those that
/// begin a transaction are not. For a part that may fail send `SAVEPOINT` and `ROLLBACK TO SAVEPOINT`. `COMMIT` and
/// `ROLLBACK` are Gesta's to send.
pub struct Transaction {
    connection: Connection,
    shared: Arc<Shared>,
    _permits: [OwnedSemaphorePermit; 2],
}

impl std::fmt::Debug for Transaction {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Transaction")
    }
}

impl Deref for Transaction {
    type Target = Client;

    fn deref(&self) -> &Client {
        &self.connection.client
    }
}

impl Transaction {
    /// Ends with some statements; only if they succeed, the connection is used again.
    async fn end(self, statements: &str) -> Result<(), Failure> {
        let ended = self.connection.client.batch_execute(statements).await;
        ended.map_err(|error| failure_of(&error))?;
        self.shared.give_back(self.connection);
        Ok(())
    }
}

impl TokioPostgres {
    fn new(url: &str, options: Options) -> gesta_core::Result<Self> {
        if options.connections_max == 0 {
            return Err(Error::invalid(
                "connections_max",
                "must be at least 1, found 0",
            ));
        }
        let plain =
            |name: &str| !name.is_empty() && name.len() <= 63 && !name.contains(['"', '\0']);
        if let Some(schema) = options.schema.as_deref().filter(|schema| !plain(schema)) {
            let rule =
                format!("must have 1 to 63 bytes, none of them a quote or zero, found {schema:?}");
            return Err(Error::invalid("schema", rule));
        }
        let config = gesta_postgres::Config::parse(url)?;
        let (mut hosts, tls) = gesta_postgres::connections(&config)?;
        for host in &mut hosts {
            // A standby takes no rows.
            host.target_session_attrs(TargetSessionAttrs::ReadWrite);
            if host.get_application_name() == Some("gesta") {
                host.application_name(APPLICATION_NAME);
            }
        }
        Ok(Self {
            shared: Arc::new(Shared {
                hosts,
                tls,
                schema: options.schema,
                first: AtomicUsize::new(0),
                permits: Arc::new(Semaphore::new(options.connections_max)),
                writers: Arc::new(Semaphore::new(
                    options.connections_max.saturating_sub(1).max(1),
                )),
                idle: Mutex::default(),
            }),
        })
    }

    /// Waits for its turn, then takes an idle connection, or opens one.
    async fn take(&self) -> Result<(Connection, OwnedSemaphorePermit), Failure> {
        let permit = turn(&self.shared.permits).await?;
        let connection = match self.shared.take_idle() {
            Some(connection) => connection,
            None => self.shared.connect().await?,
        };
        Ok((connection, permit))
    }
}

async fn turn(of: &Arc<Semaphore>) -> Result<OwnedSemaphorePermit, Failure> {
    let permit = Arc::clone(of).acquire_owned().await;
    // The semaphores are never closed.
    permit.map_err(|error| Failure::without_answer(error.to_string()))
}

impl Shared {
    fn take_idle(&self) -> Option<Connection> {
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        std::iter::from_fn(|| idle.pop()).find(|connection| !connection.client.is_closed())
    }

    fn give_back(&self, connection: Connection) {
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        idle.push(connection);
    }

    /// Connects to the first host that takes rows.
    async fn connect(&self) -> Result<Connection, Failure> {
        let first = self.first.load(Ordering::Relaxed);
        let mut failure = Failure::without_answer("the URL names no host");
        for at in 0..self.hosts.len() {
            let host = (first + at) % self.hosts.len();
            match self.connect_to(&self.hosts[host]).await {
                Ok(connection) => {
                    self.first.store(host, Ordering::Relaxed);
                    return Ok(connection);
                }
                Err(error) => failure = failure_of(&error),
            }
        }
        Err(failure)
    }

    async fn connect_to(
        &self,
        host: &tokio_postgres::Config,
    ) -> Result<Connection, tokio_postgres::Error> {
        let (client, driver) = host.connect(self.tls.clone()).await?;
        // It ends with the client.
        tokio::spawn(async move {
            if let Err(error) = driver.await {
                tracing::debug!(%error, "a connection of projections ended");
            }
        });
        if let Some(schema) = &self.schema {
            let set = format!("SET search_path = \"{schema}\"");
            client.batch_execute(&set).await?;
        }
        Ok(Connection {
            client,
            statements: HashMap::new(),
        })
    }
}

impl Connection {
    async fn query(&mut self, text: &str, params: &[Param]) -> Result<Vec<Row>, Failure> {
        let answer = self.try_query(text, params).await;
        answer.map_err(|error| failure_of(&error))
    }

    async fn try_query(
        &mut self,
        text: &str,
        params: &[Param],
    ) -> Result<Vec<Row>, tokio_postgres::Error> {
        let statement = match self.statements.get(text) {
            Some(statement) => statement.clone(),
            None => {
                let statement = self.client.prepare(text).await?;
                if self.statements.len() >= STATEMENTS_MAX {
                    self.statements.clear();
                }
                self.statements.insert(text.to_owned(), statement.clone());
                statement
            }
        };
        let params: Vec<&(dyn ToSql + Sync)> = params
            .iter()
            .map(|param| param as &(dyn ToSql + Sync))
            .collect();
        self.client.query(&statement, &params).await
    }
}

impl Driver for TokioPostgres {
    type Open = Transaction;
    type Transaction = Transaction;
    type Row = Row;

    async fn begin(&self, statements: String) -> Result<Transaction, Failure> {
        let writer = turn(&self.shared.writers).await?;
        let (connection, permit) = self.take().await?;
        let begun = connection.client.batch_execute(&statements).await;
        begun.map_err(|error| failure_of(&error))?;
        Ok(Transaction {
            connection,
            shared: Arc::clone(&self.shared),
            _permits: [writer, permit],
        })
    }

    fn lend(open: &mut Transaction) -> &mut Transaction {
        open
    }

    async fn query(
        open: &mut Transaction,
        statement: &str,
        params: Vec<Param>,
    ) -> Result<Vec<Row>, Failure> {
        open.connection.query(statement, &params).await
    }

    async fn run(open: &mut Transaction, statements: String) -> Result<(), Failure> {
        let done = open.connection.client.batch_execute(&statements).await;
        done.map_err(|error| failure_of(&error))
    }

    async fn commit(open: Transaction) -> Result<(), Failure> {
        // In a failed transaction the first statement fails, and the second is not run.
        open.end("SELECT; COMMIT").await
    }

    async fn roll_back(open: Transaction) -> Result<(), Failure> {
        open.end("ROLLBACK").await
    }

    async fn query_alone(&self, statement: &str, params: Vec<Param>) -> Result<Vec<Row>, Failure> {
        let (mut connection, _permit) = self.take().await?;
        let rows = connection.query(statement, &params).await?;
        self.shared.give_back(connection);
        Ok(rows)
    }

    fn failure(error: &(dyn StdError + 'static)) -> Option<Failure> {
        error
            .downcast_ref::<tokio_postgres::Error>()
            .map(failure_of)
    }
}

/// Returns an error of the driver as a failure.
fn failure_of(error: &tokio_postgres::Error) -> Failure {
    if let Some(answer) = error.as_db_error() {
        return Failure {
            code: Some(answer.code().code().to_owned()),
            text: answer.message().to_owned(),
        };
    }
    let mut text = error.to_string();
    if let Some(cause) = error.source() {
        text = format!("{text}: {cause}");
    }
    // The driver tells its errors apart by their text alone. These are of values that it cannot send or read; all
    // others
    // are of the connection.
    let of_value = [
        "error serializing parameter",
        "error deserializing column",
        "invalid column",
        "query returned an unexpected number",
        "error encoding message",
        "expected ",
    ];
    match of_value.iter().any(|begin| text.starts_with(begin)) {
        true => Failure::of_value(text),
        false => Failure::without_answer(text),
    }
}

impl ToSql for Param {
    fn to_sql(
        &self,
        _: &Type,
        out: &mut BytesMut,
    ) -> Result<IsNull, Box<dyn StdError + Sync + Send>> {
        match &self.bytes {
            Some(bytes) => {
                out.extend_from_slice(bytes);
                Ok(IsNull::No)
            }
            None => Ok(IsNull::Yes),
        }
    }

    fn accepts(_: &Type) -> bool {
        true
    }

    fn to_sql_checked(
        &self,
        wanted: &Type,
        out: &mut BytesMut,
    ) -> Result<IsNull, Box<dyn StdError + Sync + Send>> {
        if wanted.oid() != self.oid {
            return Err(format!("the statement takes {wanted}, not type {}", self.oid).into());
        }
        self.to_sql(wanted, out)
    }
}

/// The bytes of a column, whatever its type.
struct Raw<'a>(&'a [u8]);

impl<'a> FromSql<'a> for Raw<'a> {
    fn from_sql(_: &Type, raw: &'a [u8]) -> Result<Self, Box<dyn StdError + Sync + Send>> {
        Ok(Self(raw))
    }

    fn accepts(_: &Type) -> bool {
        true
    }
}

impl RowBytes for Row {
    fn bytes(&self, column: usize) -> Result<Option<&[u8]>, Failure> {
        let found = self.try_get::<_, Option<Raw<'_>>>(column);
        let found = found.map_err(|error| failure_of(&error))?;
        Ok(found.map(|raw| raw.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: beside a store the rows are in its first database and its schema, unless another one is named.
    #[test]
    fn rows_lie_in_the_schema_of_the_store() {
        let first = "postgres://u:pa%2Fss@h:5433/d?schema=shop&readers=9&compression=client";
        let store = format!("{first} postgres://h2/d2?schema=other");
        let found = |store, options| {
            let (url, options) = beside(store, options).expect("a place");
            PostgresTarget::with(url, options.clone()).expect("a target");
            (url.to_owned(), options.schema.expect("a schema"))
        };
        let default = Options::default;
        assert_eq!(found(&store, default()), (first.to_owned(), "shop".into()));
        let plain = "postgres://h/d";
        assert_eq!(found(plain, default()), (plain.to_owned(), "gesta".into()));
        let own = Options {
            schema: Some("views".to_owned()),
            ..default()
        };
        assert_eq!(found(&store, own), (first.to_owned(), "views".into()));
        for wrong in ["", "sqlite:a.db", "postgres://h/d?schema=No"] {
            assert!(PostgresTarget::beside(wrong, default()).is_err(), "{wrong}");
        }
    }
}
