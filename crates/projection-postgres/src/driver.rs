//! What a driver of PostgreSQL has to offer: transactions, and statements with values in binary form.

use std::error::Error as StdError;
use std::time::Duration;

use crate::binary::Param;
use crate::failure::Failure;

/// How long a transaction may last. All but the first two are shorter than the lease of a process.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Limits {
    /// How long a batch may take from its first statement to the answer to its commit. Then its connection is given up.
    pub batch: Duration,
    /// How long a statement outside of batches may take.
    pub statement: Duration,
    /// How long a statement may wait for a lock.
    pub lock: Duration,
    /// How long a transaction may wait for its process. The server ends it then: so one whose process stands still
    /// frees
    /// its row before another process takes the projection over.
    pub idle: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            batch: Duration::from_secs(60),
            statement: Duration::from_secs(20),
            lock: Duration::from_secs(3),
            idle: Duration::from_secs(6),
        }
    }
}

/// What a commit of rows survives.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Synchronous {
    /// What the database is set to.
    #[default]
    AsSet,
    /// `synchronous_commit = off`: a crash of the server takes the last batches with it, rows and checkpoint together,
    /// so
    /// that they are applied again. Until then readers have seen what is gone for a moment.
    Off,
}

impl Limits {
    /// Returns the statements that begin a transaction. The settings are those of the transaction alone, so they hold
    /// also where a pool hands each transaction to another session.
    pub(crate) fn begin(&self, synchronous: Synchronous) -> String {
        let further = match synchronous {
            Synchronous::AsSet => "",
            Synchronous::Off => "; SET LOCAL synchronous_commit = off",
        };
        // To PostgreSQL 0 means "no limit".
        let millis = |limit: Duration| limit.as_millis().max(1);
        format!(
            "BEGIN ISOLATION LEVEL READ COMMITTED; SET LOCAL lock_timeout = {}; \
             SET LOCAL idle_in_transaction_session_timeout = {}; SET LOCAL statement_timeout = {}{further}",
            millis(self.lock),
            millis(self.idle),
            millis(self.batch),
        )
    }
}

/// A row of an answer, whose columns are in PostgreSQL's binary format.
pub trait RowBytes: Send {
    /// Returns the bytes of a column, or `None` if it holds nothing.
    ///
    /// # Errors
    /// If there is no such column, or it is not in binary format.
    fn bytes(&self, column: usize) -> Result<Option<&[u8]>, Failure>;
}

/// A driver, with the connections that it keeps.
pub trait Driver: Clone + Send + Sync + 'static {
    /// A connection in a transaction. Dropping it rolls the transaction back, at the latest when the connection closes.
    type Open: Send + 'static;
    /// What authors get of an open transaction.
    type Transaction: Send + 'static;
    /// A row of an answer.
    type Row: RowBytes;

    /// Takes a connection and begins a transaction with these statements, as one simple query.
    fn begin(&self, statements: String)
    -> impl Future<Output = Result<Self::Open, Failure>> + Send;

    /// Returns what authors get.
    fn lend(open: &mut Self::Open) -> &mut Self::Transaction;

    /// Sends a statement that is prepared and kept.
    fn query(
        open: &mut Self::Open,
        statement: &str,
        params: Vec<Param>,
    ) -> impl Future<Output = Result<Vec<Self::Row>, Failure>> + Send;

    /// Sends statements as one simple query.
    fn run(
        open: &mut Self::Open,
        statements: String,
    ) -> impl Future<Output = Result<(), Failure>> + Send;

    /// Commits, unless a statement has failed: then the error is that of the next statement (25P02), for to PostgreSQL
    /// the commit of a failed transaction is a rollback that succeeds. Gives the connection back.
    fn commit(open: Self::Open) -> impl Future<Output = Result<(), Failure>> + Send;

    /// Rolls back, and gives the connection back.
    fn roll_back(open: Self::Open) -> impl Future<Output = Result<(), Failure>> + Send;

    /// Sends a statement that is a transaction of its own.
    fn query_alone(
        &self,
        statement: &str,
        params: Vec<Param>,
    ) -> impl Future<Output = Result<Vec<Self::Row>, Failure>> + Send;

    /// Returns an error of this driver as a failure; `None` if it is not of this driver.
    fn failure(error: &(dyn StdError + 'static)) -> Option<Failure>;
}
