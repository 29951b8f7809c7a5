//! The connection that appends: one statement per batch, pipelined, each in a transaction of its own.
//!
//! A batch is handed to the connection inside of [`LogWriter::submit`], so the order of calls is the order of
//! execution, and dropping the returned future takes nothing back: it only reads the answer.
//! Invariants: *committed* is said only after the server's `ReadyForQuery`, without any warning on the
//! connection so far; once one outcome is unknown, every later one is, and nothing more is sent.
//! Not here: what a batch contains, and what to do about its outcome (`gesta-append`).

use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use futures::FutureExt;
use futures::future::BoxFuture;
use gesta_core::backend::{Batch, BatchOutcome, LogWriter, WriterEpoch};
use gesta_core::{Error, ErrorKind, LogId, Position, Result};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::Instant;
use tokio_postgres::Statement;

use crate::connection::{Connection, Connector, Notices, Role};
use crate::encode::{Encoded, StatementKind};
use crate::error::{self, Class};
use crate::flights::{Flights, Look};
use crate::history::Ledger;
use crate::reach::{LATE_AFTER, Lookout};
use crate::witness::Mark;

pub(crate) const INSERT_EVENTS: &str = include_str!("../sql/insert_events.sql");
const INSERT_EVENT: &str = include_str!("../sql/insert_event.sql");
const INSERT_EVENTS_PACKED: &str = include_str!("../sql/insert_events_packed.sql");
const INSERT_EVENTS_AND_NAMES: &str = include_str!("../sql/insert_events_and_names.sql");
const CONFIRM_END: &str = include_str!("../sql/confirm_end.sql");

/// Number of statements in a row that give up waiting before the writer turns to the other hosts, if there are any.
const WAITS_GIVEN_UP_MAX: u32 = 2;
/// Why a writer must be discarded after a fail-over: what it commits may be in the old server alone.
const CHANGED_OVER: &str = "the database has changed over";

/// The answer to a batch in flight: number of rows, or what the driver says.
type Answer = Pin<Box<dyn Future<Output = std::result::Result<u64, tokio_postgres::Error>> + Send>>;

/// Appends to one log.
#[derive(Debug)]
pub(crate) struct Writer {
    epoch: WriterEpoch,
    log: LogId,
    connection: Connection,
    statements: Statements,
    answer_timeout: Duration,
    shared: Arc<Shared>,
    ledger: Arc<Ledger>,
    /// Ends the writer's use when its host is given up, or the database changes over.
    _telling: Telling,
}

#[derive(Clone, Debug)]
struct Statements {
    insert_one: Statement,
    insert: Statement,
    insert_packed: Statement,
    insert_and_names: Statement,
    confirm: Statement,
}

/// A task that ends with the writer.
#[derive(Debug)]
struct Telling(JoinHandle<()>);

impl Drop for Telling {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// What the writer shares with the futures that await its answers.
#[derive(Debug)]
struct Shared {
    flights: Mutex<Flights>,
    /// True once something is in doubt.
    doubted: watch::Sender<bool>,
    /// Statements in a row that gave up waiting in the database.
    waits_given_up: AtomicU32,
    lookout: Lookout,
}

impl Shared {
    fn new(lookout: Lookout) -> Arc<Self> {
        Arc::new(Self {
            flights: Mutex::new(Flights::new(Instant::now())),
            doubted: watch::Sender::new(false),
            waits_given_up: AtomicU32::new(0),
            lookout,
        })
    }

    fn flights(&self) -> MutexGuard<'_, Flights> {
        self.flights.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Everything without an answer is in doubt.
    fn raise(&self, reason: &str) {
        self.flights().raise(reason);
        self.doubted.send_replace(true);
    }

    /// The answer to this batch puts it, and all after it, in doubt.
    fn raise_from(&self, number: u64, reason: &str) {
        self.flights().raise_from(number, reason);
        self.doubted.send_replace(true);
    }

    /// Counts statements that gave up waiting, for a lock or for anything else. Twice in a row is no accident: what is
    /// waited for may be a commit that itself waits for a lost standby. The other hosts come first.
    fn count_given_up(&self, judged: &Judged) {
        match judged {
            Judged::Answer(Err(error)) if error::is_wait_given_up(error) => {
                if self.waits_given_up.fetch_add(1, Ordering::Relaxed) + 1 >= WAITS_GIVEN_UP_MAX {
                    self.lookout
                        .give_up("statements repeatedly gave up waiting");
                }
            }
            _ => self.waits_given_up.store(0, Ordering::Relaxed),
        }
    }

    /// Waits until this batch is in doubt, and says why.
    async fn doubted(&self, number: u64) -> String {
        let mut receiver = self.doubted.subscribe();
        // The sender is `self`.
        let _ = receiver.wait_for(|doubted| *doubted).await;
        let reason = self.flights().doubt_of(number);
        match reason {
            Some(reason) => reason,
            // Answered before the doubt came up: the answer is there.
            None => std::future::pending().await,
        }
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
        let ledger = connector
            .ledger
            .get()
            .map(Arc::clone)
            .ok_or_else(|| Error::unavailable("the store is not open"))?;
        let statements = Statements::prepare(&connection).await;
        let statements =
            statements.map_err(|error| error::general(&error).during("prepare the append"))?;
        let shared = Shared::new(connection.lookout());
        let (over, told) = (connection.used.over(), Arc::downgrade(&shared));
        let outdated = ledger.outdated(connection.generation);
        let telling = async move {
            let reason = tokio::select! {
                reason = over => reason,
                () = outdated => CHANGED_OVER.to_owned(),
            };
            if let Some(shared) = told.upgrade() {
                shared.raise(&reason);
            }
        };
        Ok(Self {
            _telling: Telling(tokio::spawn(telling)),
            epoch: WriterEpoch(rand::random()),
            log,
            connection,
            statements,
            answer_timeout: connector.config.answer_timeout,
            shared,
            ledger,
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
                StatementKind::Confirm => &statements.confirm,
                StatementKind::One => &statements.insert_one,
                StatementKind::Plain => &statements.insert,
                StatementKind::Packed => &statements.insert_packed,
                StatementKind::Names => &statements.insert_and_names,
            };
            client.execute(statement, &params).await
        };
        Ok(sent(Box::pin(answer)))
    }

    /// What tells whether an answer still counts, if the writer then knows this row.
    fn witness(&self, position: Position, writer: WriterEpoch) -> impl FnOnce() -> bool + use<> {
        let mark = Mark {
            log: self.log,
            position,
            writer,
        };
        let (ledger, generation) = (Arc::clone(&self.ledger), self.connection.generation);
        move || ledger.observe(generation, Some(mark))
    }

    /// Awaits an answer, unless the writer's use ends before. The answer may take `limit` from when the statement was
    /// sent or from the answer before it, whichever is later.
    fn judged(
        &mut self,
        mut answer: Answer,
        expected: u64,
        limit: Duration,
    ) -> impl Future<Output = Judged> + Send + use<> {
        let begun = Instant::now();
        let number = self.shared.flights().send(limit, begun);
        let shared = Arc::clone(&self.shared);
        let notices = Arc::clone(&self.connection.notices);
        async move {
            let mut due = begun + LATE_AFTER.min(limit);
            let mut late = None;
            let answer = loop {
                tokio::select! {
                    biased;
                    answer = &mut answer => break answer,
                    reason = shared.doubted(number) => return Judged::Unknown(reason),
                    () = tokio::time::sleep_until(due) => {}
                }
                let look = shared.flights().look(LATE_AFTER, due, Instant::now());
                match look {
                    Look::Wait(until) => (due, late) = (until, None),
                    Look::Late(until) => {
                        due = until;
                        late = late.or_else(|| shared.lookout.is_late());
                    }
                    Look::Overdue => {
                        let reason = format!("no answer within {} s", limit.as_secs_f64());
                        shared.raise(&reason);
                        shared.lookout.give_up(&reason);
                    }
                }
            };
            judge(number, expected, answer, &shared, &notices)
        }
    }
}

/// What an answer means, with what is known about the others.
fn judge(
    number: u64,
    expected: u64,
    answer: std::result::Result<u64, tokio_postgres::Error>,
    shared: &Shared,
    notices: &Notices,
) -> Judged {
    let mut flights = shared.flights();
    let spoils = match (&answer, notices.warning()) {
        (Err(error), _) if error::was_not_sent(error) => {
            flights.withdraw(number);
            return Judged::Answer(answer);
        }
        // A later batch was answered without a warning: so was this one.
        (_, Some(warning)) if !flights.is_answered(number) => {
            Some(format!("warning of the database: {warning}"))
        }
        (Err(error), _) if error::class_of(error) == Class::Unknown => Some(error::text(error)),
        (Ok(count), _) if *count != 0 && *count != expected => Some(format!(
            "the database stored {count} events of a batch of {expected}: does a rule or trigger change inserts?"
        )),
        _ => None,
    };
    if let Some(reason) = spoils {
        drop(flights);
        shared.raise_from(number, &reason);
        return Judged::Unknown(reason);
    }
    match flights.answered(number, Instant::now()) {
        Some(reason) => Judged::Unknown(reason),
        None => Judged::Answer(answer),
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
        if let Some(reason) = self.shared.flights().reason() {
            return std::future::ready(BatchOutcome::Unknown(unknown(reason))).boxed();
        }
        let expected = u64::try_from(batch.rows.len().max(1)).unwrap_or(u64::MAX);
        let limit = self.answer_timeout + upload_allowance(&batch);
        let counts = match batch.rows.last() {
            Some(last) => self.witness(last.position, self.epoch),
            None => self.witness(batch.after.position, batch.after.writer),
        };
        let answer = match self.send(batch) {
            Ok(answer) => answer,
            Err(error) => return std::future::ready(BatchOutcome::Refused(error)).boxed(),
        };
        let shared = Arc::clone(&self.shared);
        let outcome = self.judged(answer, expected, limit).map(move |judged| {
            shared.count_given_up(&judged);
            match judged {
                Judged::Unknown(reason) => BatchOutcome::Unknown(unknown(reason)),
                Judged::Answer(Err(error)) => error::outcome(&error),
                Judged::Answer(Ok(0)) => BatchOutcome::Missed,
                Judged::Answer(Ok(_)) if counts() => BatchOutcome::Committed,
                Judged::Answer(Ok(_)) => {
                    shared.raise(CHANGED_OVER);
                    BatchOutcome::Unknown(unknown(CHANGED_OVER.to_owned()))
                }
            }
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
        let (insert_one, insert, insert_packed, insert_and_names, confirm) = tokio::try_join!(
            client.prepare(INSERT_EVENT),
            client.prepare(INSERT_EVENTS),
            client.prepare(INSERT_EVENTS_PACKED),
            client.prepare(INSERT_EVENTS_AND_NAMES),
            client.prepare(CONFIRM_END),
        )?;
        Ok(Self {
            insert_one,
            insert,
            insert_packed,
            insert_and_names,
            confirm,
        })
    }
}
