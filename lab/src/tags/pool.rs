//! Connections that readers share, as the plugins' readers share their pool.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_postgres::{Client, Row, Statement, types::ToSql};

use crate::failure::{Context, Result};

/// A connection with its statement.
pub(super) struct Prepared {
    /// The connection.
    pub(super) client: Client,
    /// The statement.
    pub(super) statement: Statement,
}

impl Prepared {
    /// Runs the statement.
    pub(super) async fn query(&self, binds: &[&(dyn ToSql + Sync)]) -> Result<Vec<Row>> {
        Ok(self.client.query(&self.statement, binds).await?)
    }
}

/// Some connections with the same statement.
#[derive(Clone)]
pub(super) struct Pool(Arc<Inner>);

struct Inner {
    /// Queries answered so far.
    answers: AtomicU64,
    idle: Mutex<Vec<Prepared>>,
    free: Arc<Semaphore>,
}

/// A connection that goes back when it is dropped.
struct Taken<'a> {
    pool: &'a Inner,
    connection: Option<Prepared>,
    _permit: OwnedSemaphorePermit,
}

impl Pool {
    /// A pool of these.
    pub(super) fn of(connections: Vec<Prepared>) -> Self {
        let free = Arc::new(Semaphore::new(connections.len()));
        Self(Arc::new(Inner {
            answers: AtomicU64::new(0),
            idle: Mutex::new(connections),
            free,
        }))
    }

    /// Runs the statement on a free connection, waiting for one in turn.
    pub(super) async fn query(&self, binds: &[&(dyn ToSql + Sync)]) -> Result<Vec<Row>> {
        let permit = Arc::clone(&self.0.free).acquire_owned().await;
        let taken = Taken {
            pool: &self.0,
            connection: self.0.idle().pop(),
            _permit: permit.context("the pool is closed")?,
        };
        let connection = taken.connection.as_ref().expect("a permit is a connection");
        let rows = connection.query(binds).await?;
        self.0.answers.fetch_add(1, Ordering::Relaxed);
        Ok(rows)
    }

    /// Queries answered so far.
    #[cfg(test)]
    pub(super) fn answers(&self) -> u64 {
        self.0.answers.load(Ordering::Relaxed)
    }
}

impl Inner {
    fn idle(&self) -> std::sync::MutexGuard<'_, Vec<Prepared>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Taken<'_> {
    fn drop(&mut self) {
        // Back before the permit is.
        let connection = self.connection.take();
        self.pool.idle().extend(connection);
    }
}
