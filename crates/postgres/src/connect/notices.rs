//! The warnings of a server, which it sends beside its answers.
//!
//! Why: a commit whose wait for a synchronous standby is cut off counts as done for PostgreSQL, and only a warning
//! tells that it may be on this server alone. Invariant: a warning is recorded before the answer that follows it is
//! handed out. Not here: what becomes of an append that a warning follows (`appender`).

use std::future::poll_fn;
use std::sync::{Arc, Mutex, PoisonError};

use gesta_core::{ErrorKind, Result};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::watch;
use tokio_postgres::error::{DbError, Severity};
use tokio_postgres::{AsyncMessage, Client, Socket};

use crate::error;

/// The warnings of the server on one connection, in order with its answers.
#[derive(Debug)]
pub struct Notices {
    warning: Mutex<Option<String>>,
    /// Whether the connection has ended.
    pub(crate) lost: watch::Sender<bool>,
}

impl Notices {
    pub(crate) fn new() -> Self {
        Self {
            warning: Mutex::new(None),
            lost: watch::Sender::new(false),
        }
    }

    /// Drives a connection to its end, in a task of its own, and returns what its server warns of.
    pub fn of<S>(mut connection: tokio_postgres::Connection<Socket, S>) -> Arc<Self>
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let notices = Arc::new(Self::new());
        let recorded = Arc::clone(&notices);
        tokio::spawn(async move {
            // What breaks the connection shows in the calls.
            while let Some(Ok(message)) = poll_fn(|cx| connection.poll_message(cx)).await {
                if let AsyncMessage::Notice(notice) = message {
                    recorded.record(&notice);
                }
            }
            recorded.lost.send_replace(true);
        });
        notices
    }

    /// Commits the transaction that is open on `client`, whose notices these are.
    ///
    /// # Errors
    /// `OutcomeUnknown` if the server warns: then the commit is done, but perhaps not where every commit must be that
    /// is acknowledged. A later commit that ends well proves that it is. The outer error is that of the driver.
    ///
    /// # Cancel safety
    /// If the future is dropped, the transaction may have been committed or not.
    pub async fn commit(
        &self,
        client: &Client,
    ) -> std::result::Result<Result<()>, tokio_postgres::Error> {
        self.forget();
        client.batch_execute("COMMIT").await?;
        Ok(self.warning().map_or(Ok(()), |warning| {
            let text =
                format!("the commit may be on one server only, for the database warns: {warning}");
            Err(ErrorKind::OutcomeUnknown(text).into())
        }))
    }

    /// Returns the first warning since [`Notices::forget`].
    pub(crate) fn warning(&self) -> Option<String> {
        self.warning
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    pub(crate) fn record(&self, notice: &DbError) {
        let text = error::db_text(notice);
        if matches!(notice.parsed_severity(), Some(Severity::Warning)) {
            tracing::warn!(notice = text, "the database warns");
            let mut warning = self.warning.lock().unwrap_or_else(PoisonError::into_inner);
            warning.get_or_insert(text);
        } else {
            tracing::debug!(notice = text, "the database says");
        }
    }

    pub(crate) fn forget(&self) {
        *self.warning.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }
}
