//! An open transaction with its deadline, and statements that are transactions of their own.

use std::time::Duration;

use tokio::time::{Instant, timeout_at};

use crate::binary::Param;
use crate::driver::{Driver, Limits, Synchronous};
use crate::failure::Failure;

/// Waits for an answer until the deadline.
async fn until<T>(
    deadline: Instant,
    limit: Duration,
    answer: impl Future<Output = Result<T, Failure>> + Send,
) -> Result<T, Failure> {
    timeout_at(deadline, answer).await.unwrap_or_else(|_| {
        let text = format!("no answer within {limit:?}");
        Err(Failure::without_answer(text))
    })
}

/// An open transaction. Dropping it rolls back.
pub(crate) struct Open<D: Driver> {
    open: D::Open,
    deadline: Instant,
    limit: Duration,
    /// Whether a lock was not to be had in time.
    was_busy: bool,
}

impl<D: Driver> Open<D> {
    pub(crate) async fn begin(
        driver: &D,
        limits: &Limits,
        synchronous: Synchronous,
    ) -> Result<Self, Failure> {
        let limit = limits.batch;
        let deadline = Instant::now() + limit;
        let open = until(deadline, limit, driver.begin(limits.begin(synchronous))).await?;
        Ok(Self {
            open,
            deadline,
            limit,
            was_busy: false,
        })
    }

    pub(crate) fn lend(&mut self) -> &mut D::Transaction {
        D::lend(&mut self.open)
    }

    pub(crate) async fn query(
        &mut self,
        statement: &str,
        params: Vec<Param>,
    ) -> Result<Vec<D::Row>, Failure> {
        let answer = D::query(&mut self.open, statement, params);
        let answer = until(self.deadline, self.limit, answer).await;
        self.note(answer)
    }

    pub(crate) async fn run(&mut self, statements: String) -> Result<(), Failure> {
        let answer = D::run(&mut self.open, statements);
        let answer = until(self.deadline, self.limit, answer).await;
        self.note(answer)
    }

    fn note<T>(&mut self, answer: Result<T, Failure>) -> Result<T, Failure> {
        self.was_busy |= matches!(&answer, Err(failure) if failure.is_lock_timeout());
        answer
    }

    /// Tells whether a lock was not to be had in time.
    pub(crate) fn was_busy(&self) -> bool {
        self.was_busy
    }

    pub(crate) async fn commit(self) -> Result<(), Failure> {
        until(self.deadline, self.limit, D::commit(self.open)).await
    }

    pub(crate) async fn roll_back(self) -> Result<(), Failure> {
        until(self.deadline, self.limit, D::roll_back(self.open)).await
    }
}

/// Sends a statement that is a transaction of its own.
pub(crate) async fn query_alone<D: Driver>(
    driver: &D,
    limits: &Limits,
    statement: &str,
    params: Vec<Param>,
) -> Result<Vec<D::Row>, Failure> {
    let limit = limits.statement;
    let answer = driver.query_alone(statement, params);
    until(Instant::now() + limit, limit, answer).await
}
