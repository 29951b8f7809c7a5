//! The connection that appends: one statement after the other, pipelined, each in a transaction of its own.
//!
//! A statement is handed to the connection inside of [`Appender::send`], so the order of calls is the order of
//! execution, and dropping the returned future takes nothing back: the future only reads the answer.
//! Invariants: a statement counts as executed only after the server's `ReadyForQuery`, without any warning on the
//! connection so far; once one answer is in doubt, every later one is, and nothing more is sent.
//! Not here: which batches go into a statement (`gather`), the handles of the logs (`append`).

use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use gesta_core::{Error, Result};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::Instant;
use tokio_postgres::{Client, Row, Statement};

use crate::append::encode::{Binds, StatementKind, kind_of};
use crate::append::flights::{Flights, Look};
use crate::append::gather::StatementPart;
use crate::append::prepared::Prepared;
use crate::connect::connection::{Connection, Connector, Role};
use crate::connect::history::Ledger;
use crate::connect::history::witness::Mark;
use crate::connect::notices::Notices;
use crate::connect::reach::{HostWatch, LATE_AFTER};
use crate::error::{self, Class};

const INSERT_EVENTS: &str = include_str!("../../sql/insert_events.sql");
const INSERT_EVENT: &str = include_str!("../../sql/insert_event.sql");
const INSERT_EVENTS_PACKED: &str = include_str!("../../sql/insert_events_packed.sql");
const INSERT_EVENTS_AND_NAMES: &str = include_str!("../../sql/insert_events_and_names.sql");
const CONFIRM_END: &str = include_str!("../../sql/confirm_end.sql");
const INSERT_EVENTS_OF_LOGS: &str = include_str!("../../sql/insert_events_of_logs.sql");
const INSERT_EVENTS_OF_LOGS_AND_NAMES: &str =
    include_str!("../../sql/insert_events_of_logs_and_names.sql");

/// After so many statements in a row that gave up waiting, the writer turns to the other hosts, if there are any.
const WAITS_GIVEN_UP_MAX: u32 = 2;
/// The reason to discard a writer after a fail-over: what it commits may be in the old server alone.
const CHANGED_OVER: &str = "the database has changed over";

type Driver<T> = std::result::Result<T, tokio_postgres::Error>;
/// The future of the answer to a statement under way.
type Answer = Pin<Box<dyn Future<Output = Driver<Reply>> + Send>>;

/// Which statements a connection must know.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Appends {
    ToOneLog,
    ToLogs,
}

/// A connection that appends. Dropping it closes the connection.
#[derive(Debug)]
pub(crate) struct Appender {
    connection: Connection,
    statements: Statements,
    answer_timeout: Duration,
    shared: Arc<SharedFlights>,
    ledger: Arc<Ledger>,
    /// The task that ends the use of the connection when its host is given up, or the database changes over.
    _telling: Telling,
}

#[derive(Clone, Debug)]
struct Statements {
    insert_one: Statement,
    insert: Statement,
    insert_packed: Statement,
    insert_and_names: Statement,
    confirm: Statement,
    of_logs: Option<OfLogs>,
}

#[derive(Clone, Debug)]
struct OfLogs {
    insert: Statement,
    insert_and_names: Statement,
}

/// What the database says about a statement that it has executed.
enum Reply {
    /// The number of events that were stored in the one log; 1 if its end is confirmed.
    Count(u64),
    /// The logs whose named row was the last, and the number of events that were stored in them.
    Logs(Vec<i16>, i64),
}

/// The outcome of a statement.
pub(crate) enum Judged {
    /// The statement was executed. For each part, in their order, this tells whether the row that it follows was the
    /// last.
    Executed(Vec<bool>),
    /// Nothing of the statement was stored.
    Failed(tokio_postgres::Error),
    /// The statement may be stored, or may be stored later. The connection must be discarded.
    Unknown(String),
}

/// What must be known about a part of a statement to judge its answer.
struct Expected {
    sql_log: i16,
    events: u64,
    /// The row that is the last of the log, if the row that the part follows was.
    mark: Mark,
}

/// A task that ends with the connection.
#[derive(Debug)]
struct Telling(JoinHandle<()>);

impl Drop for Telling {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// What the connection shares with the futures that await its answers.
#[derive(Debug)]
struct SharedFlights {
    flights: Mutex<Flights>,
    /// True once something is in doubt.
    doubted: watch::Sender<bool>,
    /// How many statements in a row gave up waiting in the database.
    waits_given_up: AtomicU32,
    host_watch: HostWatch,
}

impl SharedFlights {
    fn new(host_watch: HostWatch) -> Arc<Self> {
        Arc::new(Self {
            flights: Mutex::new(Flights::new(Instant::now())),
            doubted: watch::Sender::new(false),
            waits_given_up: AtomicU32::new(0),
            host_watch,
        })
    }

    fn flights(&self) -> MutexGuard<'_, Flights> {
        self.flights.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Puts everything in doubt that has no answer.
    fn raise(&self, reason: &str) {
        self.flights().raise(reason);
        self.doubted.send_replace(true);
    }

    /// Puts this statement and all after it in doubt, because of the answer to it.
    fn raise_from(&self, number: u64, reason: &str) {
        self.flights().raise_from(number, reason);
        self.doubted.send_replace(true);
    }

    /// Counts statements in a row that gave up waiting, for a lock or for anything else. Two in a row are no accident:
    /// they may wait for a commit that itself waits for a lost standby. Then the other hosts come first.
    fn count_given_up(&self, judged: &Judged) {
        match judged {
            Judged::Failed(error) if error::is_wait_given_up(error) => {
                if self.waits_given_up.fetch_add(1, Ordering::Relaxed) + 1 >= WAITS_GIVEN_UP_MAX {
                    self.host_watch
                        .give_up("statements repeatedly gave up waiting");
                }
            }
            _ => self.waits_given_up.store(0, Ordering::Relaxed),
        }
    }

    /// Waits until this statement is in doubt, and returns the reason.
    async fn doubted(&self, number: u64) -> String {
        let mut receiver = self.doubted.subscribe();
        // The sender is `self`, so waiting cannot fail.
        let _ = receiver.wait_for(|doubted| *doubted).await;
        let reason = self.flights().doubt_of(number);
        match reason {
            Some(reason) => reason,
            // The statement was answered before the doubt arose, and the answer is there.
            None => std::future::pending().await,
        }
    }
}

impl Appender {
    /// Opens a connection and prepares it.
    ///
    /// # Errors
    /// `Unavailable` if no primary can be reached; `Unsupported` if the settings of the server cannot keep the
    /// contract.
    pub(crate) async fn open(connector: &Connector, appends: Appends) -> Result<Self> {
        let connection = connector.connect(Role::Writer).await?;
        let ledger = connector
            .ledger
            .get()
            .map(Arc::clone)
            .ok_or_else(|| Error::unavailable("the store is not open"))?;
        let statements = Statements::prepare(&connection.client, appends).await;
        let statements =
            statements.map_err(|error| error::general(&error).during("prepare the append"))?;
        let shared = SharedFlights::new(connection.host_watch());
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
            connection,
            statements,
            answer_timeout: connector.config.answer_timeout,
            shared,
            ledger,
        })
    }

    /// Returns the reason why nothing more may be sent; `None` if more may be sent.
    pub(crate) fn doubt(&self) -> Option<String> {
        self.shared.flights().reason()
    }

    /// Puts everything in doubt that has no answer. Nothing more may be sent.
    pub(crate) fn raise(&self, reason: &str) {
        self.shared.raise(reason);
    }

    /// Tells whether the connection must be discarded.
    pub(crate) fn is_lost(&self) -> bool {
        self.connection.is_lost()
            || !self.ledger.is_current(self.connection.generation)
            || self.doubt().is_some()
    }

    /// Writes a statement to the connection. The future returns its outcome.
    pub(crate) fn send(
        &self,
        parts: Vec<StatementPart<Arc<Prepared>>>,
    ) -> impl Future<Output = Judged> + Send + use<> {
        let limit = self.answer_timeout + upload_allowance(&parts);
        let expected: Vec<Expected> = parts.iter().filter_map(Expected::of).collect();
        let answer = self.write(parts);
        let judged = self.judged(answer, expected, limit);
        let shared = Arc::clone(&self.shared);
        async move {
            let judged = judged.await;
            shared.count_given_up(&judged);
            judged
        }
    }

    /// Hands a statement to the queue of the connection. The first poll encodes and queues it.
    fn write(&self, parts: Vec<StatementPart<Arc<Prepared>>>) -> Answer {
        let client = Arc::clone(&self.connection.client);
        let kind = kind_of(&parts);
        let statement = self.statements.of(kind);
        let mut answer: Answer = Box::pin(async move {
            let binds = Binds::new(kind, &parts);
            let params = binds.params();
            match statement {
                AppendStatement::OfOneLog(statement) => {
                    let count = client.execute(&statement, &params).await?;
                    Ok(Reply::Count(count))
                }
                AppendStatement::OfLogs(statement) => {
                    let rows = client.query(&statement, &params).await?;
                    read_reply(&rows)
                }
            }
        });
        match answer
            .as_mut()
            .poll(&mut Context::from_waker(Waker::noop()))
        {
            Poll::Ready(early) => Box::pin(std::future::ready(early)),
            Poll::Pending => answer,
        }
    }

    /// Awaits an answer, unless the use of the connection ends before. The answer may take `limit` from when the
    /// statement was sent or from the answer before it, whichever is later.
    fn judged(
        &self,
        mut answer: Answer,
        expected: Vec<Expected>,
        limit: Duration,
    ) -> impl Future<Output = Judged> + Send + use<> {
        let begun = Instant::now();
        let number = self.shared.flights().send(limit, begun);
        let shared = Arc::clone(&self.shared);
        let notices = Arc::clone(&self.connection.notices);
        let (ledger, generation) = (Arc::clone(&self.ledger), self.connection.generation);
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
                        late = late.or_else(|| shared.host_watch.is_late());
                    }
                    Look::Overdue => {
                        let reason = format!("no answer within {} s", limit.as_secs_f64());
                        shared.raise(&reason);
                        shared.host_watch.give_up(&reason);
                    }
                }
            };
            let judged = judge(number, &expected, answer, &shared, &notices);
            witness(judged, &expected, &shared, &ledger, generation)
        }
    }
}

impl Expected {
    fn of(part: &StatementPart<Arc<Prepared>>) -> Option<Self> {
        let last = part.batches.last()?;
        let events: usize = part.batches.iter().map(|batch| batch.events()).sum();
        let (position, writer) = last.end();
        let mark = Mark {
            log: part.log,
            position,
            writer,
        };
        Some(Self {
            sql_log: last.log,
            events: u64::try_from(events).unwrap_or(u64::MAX),
            mark,
        })
    }
}

/// Decides what an answer means, with what is known about the others.
fn judge(
    number: u64,
    expected: &[Expected],
    answer: Driver<Reply>,
    shared: &SharedFlights,
    notices: &Notices,
) -> Judged {
    let mut flights = shared.flights();
    let judged = match answer {
        Err(error) if error::was_not_sent(&error) => {
            flights.withdraw(number);
            return Judged::Failed(error);
        }
        Err(error) if error::class_of(&error) == Class::Unknown => {
            Judged::Unknown(error::text(&error))
        }
        Err(error) => Judged::Failed(error),
        Ok(reply) => match compare(expected, &reply) {
            Ok(good) => Judged::Executed(good),
            Err(reason) => Judged::Unknown(reason),
        },
    };
    // If a later statement was answered without a warning, so was this one.
    let warning = notices
        .warning()
        .filter(|_| !flights.is_answered(number))
        .map(|warning| format!("warning of the database: {warning}"));
    let spoils = match (&judged, warning) {
        (_, Some(warning)) => Some(warning),
        (Judged::Unknown(reason), None) => Some(reason.clone()),
        _ => None,
    };
    if let Some(reason) = spoils {
        drop(flights);
        shared.raise_from(number, &reason);
        return Judged::Unknown(reason);
    }
    match flights.answered(number, Instant::now()) {
        Some(reason) => Judged::Unknown(reason),
        None => judged,
    }
}

/// Returns for each part whether the row that it follows was the last. If the answer contradicts the statement, returns
/// how.
fn compare(expected: &[Expected], reply: &Reply) -> std::result::Result<Vec<bool>, String> {
    let (good, stored): (Vec<bool>, u64) = match reply {
        Reply::Count(count) => (vec![*count > 0; expected.len()], *count),
        Reply::Logs(logs, count) => {
            let is_good = |part: &Expected| logs.contains(&part.sql_log);
            let count = u64::try_from(*count).unwrap_or(u64::MAX);
            (expected.iter().map(is_good).collect(), count)
        }
    };
    let parts = expected.iter().zip(&good).filter(|(_, good)| **good);
    let mut wanted: u64 = parts.map(|(part, _)| part.events).sum();
    if let (Reply::Count(1), 0) = (reply, wanted) {
        // The end of one log is confirmed by a row.
        wanted = 1;
    }
    match stored == wanted {
        true => Ok(good),
        false => Err(format!(
            "the database stored {stored} events of {wanted}: does a rule or trigger change inserts?"
        )),
    }
}

/// Notes the last rows that this process now knows of the logs. If the answer does not count any more, its outcome is
/// unknown.
fn witness(
    judged: Judged,
    expected: &[Expected],
    shared: &SharedFlights,
    ledger: &Ledger,
    generation: u64,
) -> Judged {
    let Judged::Executed(good) = &judged else {
        return judged;
    };
    let parts = expected.iter().zip(good).filter(|(_, good)| **good);
    for (part, _) in parts {
        if !ledger.observe(generation, Some(part.mark)) {
            shared.raise(CHANGED_OVER);
            return Judged::Unknown(CHANGED_OVER.to_owned());
        }
    }
    judged
}

fn read_reply(rows: &[Row]) -> Driver<Reply> {
    match rows {
        [row] => Ok(Reply::Logs(row.try_get(0)?, row.try_get(1)?)),
        // This cannot happen; the comparison finds that the answer is not what was expected.
        _ => Ok(Reply::Logs(Vec::new(), -1)),
    }
}

/// Allows one second for each MiB, since a slow line is not a dead one.
fn upload_allowance(parts: &[StatementPart<Arc<Prepared>>]) -> Duration {
    let batches = parts.iter().flat_map(|part| &part.batches);
    let bytes: usize = batches.map(|batch| batch.bytes()).sum();
    Duration::from_secs(u64::try_from(bytes >> 20).unwrap_or(0))
}

/// A prepared statement, by the kind of its answer.
enum AppendStatement {
    OfOneLog(Statement),
    OfLogs(Statement),
}

impl Statements {
    async fn prepare(client: &Client, appends: Appends) -> Driver<Self> {
        let of_logs = async {
            if appends == Appends::ToOneLog {
                return Ok(None);
            }
            let (insert, insert_and_names) = tokio::try_join!(
                client.prepare(INSERT_EVENTS_OF_LOGS),
                client.prepare(INSERT_EVENTS_OF_LOGS_AND_NAMES),
            )?;
            Ok(Some(OfLogs {
                insert,
                insert_and_names,
            }))
        };
        let (insert_one, insert, insert_packed, insert_and_names, confirm, of_logs) = tokio::try_join!(
            client.prepare(INSERT_EVENT),
            client.prepare(INSERT_EVENTS),
            client.prepare(INSERT_EVENTS_PACKED),
            client.prepare(INSERT_EVENTS_AND_NAMES),
            client.prepare(CONFIRM_END),
            of_logs,
        )?;
        Ok(Self {
            insert_one,
            insert,
            insert_packed,
            insert_and_names,
            confirm,
            of_logs,
        })
    }

    fn of(&self, kind: StatementKind) -> AppendStatement {
        let of_logs = self.of_logs.as_ref();
        let statement = match (kind, of_logs) {
            (StatementKind::Logs, Some(of_logs)) => {
                return AppendStatement::OfLogs(of_logs.insert.clone());
            }
            (StatementKind::LogsAndNames, Some(of_logs)) => {
                return AppendStatement::OfLogs(of_logs.insert_and_names.clone());
            }
            (StatementKind::Confirm, _) => &self.confirm,
            (StatementKind::One, _) => &self.insert_one,
            (StatementKind::Plain, _) => &self.insert,
            (StatementKind::Packed, _) => &self.insert_packed,
            // A connection that appends to one log is given no parts of several logs.
            (StatementKind::Names | StatementKind::Logs | StatementKind::LogsAndNames, _) => {
                &self.insert_and_names
            }
        };
        AppendStatement::OfOneLog(statement.clone())
    }
}
