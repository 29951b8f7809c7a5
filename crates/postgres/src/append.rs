//! The connection that appends: one statement per batch, pipelined, each in a transaction of its own.
//!
//! A batch is handed to the connection inside of [`LogWriter::submit`], so the order of calls is the order of
//! execution, and dropping the returned future takes nothing back: it only reads the answer.
//! Invariants: *committed* is said only after the server's `ReadyForQuery`, without any warning on the
//! connection so far; once one outcome is unknown, every later one is, and nothing more is sent.
//! Not here: what a batch contains, and what to do about its outcome (`gesta-append`).

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use futures::FutureExt;
use futures::future::BoxFuture;
use gesta_core::backend::{Batch, BatchOutcome, LogWriter, WriterEpoch};
use gesta_core::{Error, ErrorKind, LogId, Result};
use tokio::sync::watch;
use tokio::time::Instant;
use tokio_postgres::Statement;

use crate::connection::{Connection, Connector, Role};
use crate::encode::{Encoded, Kind};
use crate::error::{self, Class};

pub(crate) const INSERT_EVENTS: &str = include_str!("../sql/insert_events.sql");
const INSERT_EVENTS_PACKED: &str = include_str!("../sql/insert_events_packed.sql");
const INSERT_EVENTS_AND_NAMES: &str = include_str!("../sql/insert_events_and_names.sql");
const CONFIRM_END: &str = include_str!("../sql/confirm_end.sql");
const EMIT_BARRIER: &str = include_str!("../sql/emit_barrier.sql");

/// The answer to a batch on its way: number of rows, or what the driver says.
type Answer = Pin<Box<dyn Future<Output = std::result::Result<u64, tokio_postgres::Error>> + Send>>;

/// Appends to one log.
#[derive(Debug)]
pub(crate) struct Writer {
    epoch: WriterEpoch,
    log: LogId,
    connection: Connection,
    statements: Statements,
    answer_timeout: Duration,
    in_flight: Arc<AtomicU32>,
    doubt: Doubt,
}

#[derive(Clone, Debug)]
struct Statements {
    insert: Statement,
    insert_packed: Statement,
    insert_and_names: Statement,
    confirm: Statement,
    barrier: Statement,
}

/// Why the writer is of no more use, if it is.
#[derive(Clone, Debug)]
struct Doubt(Arc<watch::Sender<Option<String>>>);

impl Doubt {
    fn none() -> Self {
        Self(Arc::new(watch::Sender::new(None)))
    }

    fn reason(&self) -> Option<String> {
        self.0.borrow().clone()
    }

    /// The first reason stays.
    fn raise(&self, reason: &str) {
        self.0.send_if_modified(|doubt| {
            let first = doubt.is_none();
            doubt.get_or_insert_with(|| reason.to_owned());
            first
        });
    }

    /// Waits for a reason.
    async fn raised(&self) -> String {
        let mut receiver = self.0.subscribe();
        let reason = receiver.wait_for(Option::is_some).await;
        // The sender is `self`.
        reason
            .ok()
            .and_then(|reason| reason.clone())
            .unwrap_or_default()
    }
}

fn unknown(reason: String) -> Error {
    ErrorKind::OutcomeUnknown(reason).into()
}

impl Writer {
    /// Opens a connection and prepares it.
    ///
    /// # Errors
    /// `Unavailable`; `Unsupported` if the settings of the server cannot keep the contract.
    pub(crate) async fn open(connector: &Connector, log: LogId) -> Result<Self> {
        let connection = connector.connect(Role::Writer).await?;
        let statements = Statements::prepare(&connection).await;
        let statements =
            statements.map_err(|error| error::general(&error).during("prepare the append"))?;
        Ok(Self {
            epoch: WriterEpoch(rand::random()),
            log,
            connection,
            statements,
            answer_timeout: connector.config.answer_timeout,
            in_flight: Arc::default(),
            doubt: Doubt::none(),
        })
    }

    /// Writes the batch to the connection.
    fn send(&self, batch: Arc<Batch>) -> Result<Answer> {
        let encoded = Encoded::new(&batch, self.log, self.epoch)?;
        let client = Arc::clone(&self.connection.client);
        let statements = self.statements.clone();
        let answer = async move {
            let columns = encoded.columns(&batch);
            let params = encoded.params(&columns);
            let statement = match encoded.kind {
                Kind::Confirm => &statements.confirm,
                Kind::Plain => &statements.insert,
                Kind::Packed => &statements.insert_packed,
                Kind::Names => &statements.insert_and_names,
            };
            client.execute(statement, &params).await
        };
        Ok(sent(Box::pin(answer)))
    }

    /// Awaits an answer, unless the writer's use ends before. No answer may take longer than `limit` after the one before it.
    fn judged(
        &mut self,
        answer: Answer,
        limit: Duration,
    ) -> impl Future<Output = Judged> + Send + use<> {
        let flight = Flight::begin(&self.in_flight);
        let deadline = Instant::now() + limit * flight.ahead.saturating_add(1);
        let (doubt, notices) = (self.doubt.clone(), Arc::clone(&self.connection.notices));
        async move {
            let judged = tokio::select! {
                biased;
                answer = answer => match notices.warning() {
                    Some(warning) => Judged::Unknown(format!("warning of the database: {warning}")),
                    None => Judged::Answer(answer),
                },
                reason = doubt.raised() => Judged::Unknown(reason),
                () = tokio::time::sleep_until(deadline) => {
                    Judged::Unknown(format!("no answer within {} s", limit.as_secs()))
                }
            };
            drop(flight);
            match &judged {
                Judged::Unknown(reason) => doubt.raise(reason),
                Judged::Answer(Err(error)) if error::class_of(error) == Class::Unknown => {
                    doubt.raise(&error::text(error));
                }
                Judged::Answer(_) => {}
            }
            judged
        }
    }
}

/// Counts the batches in flight.
struct Flight {
    count: Arc<AtomicU32>,
    /// How many were in flight already.
    ahead: u32,
}

impl Flight {
    fn begin(count: &Arc<AtomicU32>) -> Self {
        let ahead = count.fetch_add(1, Ordering::Relaxed);
        Self {
            count: Arc::clone(count),
            ahead,
        }
    }
}

impl Drop for Flight {
    fn drop(&mut self) {
        self.count.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Hands a statement to the connection's queue: the first poll encodes and queues it.
fn sent(mut answer: Answer) -> Answer {
    match answer
        .as_mut()
        .poll(&mut Context::from_waker(Waker::noop()))
    {
        Poll::Ready(early) => Box::pin(std::future::ready(early)),
        Poll::Pending => answer,
    }
}

/// What came of a statement.
enum Judged {
    Answer(std::result::Result<u64, tokio_postgres::Error>),
    Unknown(String),
}

impl LogWriter for Writer {
    fn epoch(&self) -> WriterEpoch {
        self.epoch
    }

    fn submit(&mut self, batch: Arc<Batch>) -> BoxFuture<'static, BatchOutcome> {
        if let Some(reason) = self.doubt.reason() {
            return std::future::ready(BatchOutcome::Unknown(unknown(reason))).boxed();
        }
        let expected = if batch.rows.is_empty() {
            1
        } else {
            batch.rows.len()
        };
        let limit = self.answer_timeout + upload_allowance(&batch);
        let answer = match self.send(batch) {
            Ok(answer) => answer,
            Err(error) => return std::future::ready(BatchOutcome::Refused(error)).boxed(),
        };
        let judged = self.judged(answer, limit);
        let outcome = judged.map(move |judged| match judged {
            Judged::Unknown(reason) => BatchOutcome::Unknown(unknown(reason)),
            Judged::Answer(Err(error)) => error::outcome(&error),
            Judged::Answer(Ok(0)) => BatchOutcome::Missed,
            Judged::Answer(Ok(count)) if usize::try_from(count) == Ok(expected) => BatchOutcome::Committed,
            Judged::Answer(Ok(count)) => BatchOutcome::Unknown(unknown(format!(
                "the database stored {count} events of a batch of {expected}: does a rule or trigger change inserts?"
            ))),
        });
        outcome.boxed()
    }

    fn barrier(&mut self) -> BoxFuture<'static, Result<()>> {
        if let Some(reason) = self.doubt.reason() {
            return std::future::ready(Err(Error::unavailable(reason))).boxed();
        }
        let client = Arc::clone(&self.connection.client);
        let statement = self.statements.barrier.clone();
        let answer = sent(Box::pin(
            async move { client.execute(&statement, &[]).await },
        ));
        let judged = self.judged(answer, self.answer_timeout);
        let outcome = judged.map(|judged| match judged {
            Judged::Unknown(reason) => Err(Error::unavailable(reason)),
            Judged::Answer(Err(error)) => Err(error::general(&error)),
            Judged::Answer(Ok(_)) => Ok(()),
        });
        outcome.boxed()
    }
}

/// One second per MiB: a slow line is not a dead one.
fn upload_allowance(batch: &Batch) -> Duration {
    let bytes: usize = batch
        .rows
        .iter()
        .map(|row| row.data.len() + row.metadata.len())
        .sum();
    Duration::from_secs(u64::try_from(bytes >> 20).unwrap_or(0))
}

impl Statements {
    async fn prepare(connection: &Connection) -> std::result::Result<Self, tokio_postgres::Error> {
        let client = &connection.client;
        let (insert, insert_packed, insert_and_names, confirm, barrier) = tokio::try_join!(
            client.prepare(INSERT_EVENTS),
            client.prepare(INSERT_EVENTS_PACKED),
            client.prepare(INSERT_EVENTS_AND_NAMES),
            client.prepare(CONFIRM_END),
            client.prepare(EMIT_BARRIER),
        )?;
        Ok(Self {
            insert,
            insert_packed,
            insert_and_names,
            confirm,
            barrier,
        })
    }
}
