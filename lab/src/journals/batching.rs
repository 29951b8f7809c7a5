//! The journal of akka-persistence-jdbc 5 as its plugin drives it: appends of all entities wait in one queue, from which
//! eight writers take up to 400 rows per transaction.
//!
//! Like the real one: table, indexes, the queue of 1,000 appends and what happens when it is full or one append of a batch
//! fails (all of it fails). Left out: tags; a batch is one statement and so one round trip, where the plugin binds row
//! after row and commits in another.

use std::sync::Arc;

use async_trait::async_trait;
use tokio::sync::{Mutex, mpsc, oneshot};
use tokio_postgres::types::ToSql;
use tokio_postgres::{Client, Statement};

use super::database::Database;
use super::inserts::JDBC;
use super::journal::{Design, Tables};
use super::rows::{Answer, execute, millis, sequence, writer};
use crate::failure::Result;
use crate::target::{Append, AppendError, Event, Session};

/// Appends that may wait.
const QUEUE_APPENDS_MAX: usize = 1_000;
/// Rows per transaction; an append with more goes alone.
const BATCH_ROWS_MAX: usize = 400;
/// Transactions under way at once.
const WRITERS: usize = 8;

static TABLES: Tables = Tables {
    name: "jdbc-batching",
    title: "akka-persistence-jdbc 5, with its queue",
    note: "untagged events; all workers share a queue of 1,000 appends and 8 connections, up to 400 rows per transaction",
    ..JDBC
};

/// The design; the queue is opened by the first worker.
#[derive(Default)]
pub(super) struct Batching {
    queue: Mutex<Option<mpsc::Sender<Waiting>>>,
}

#[async_trait]
impl Design for Batching {
    fn tables(&self) -> &'static Tables {
        &TABLES
    }

    async fn session(&self, database: &Arc<Database>) -> Result<Box<dyn Session>> {
        let mut queue = self.queue.lock().await;
        let sender = match queue.as_ref() {
            Some(sender) => sender.clone(),
            None => queue.insert(open(database).await?).clone(),
        };
        Ok(Box::new(Queued(sender)))
    }

    async fn close(&self) {
        // The writers end when the last session is gone too.
        self.queue.lock().await.take();
    }
}

/// Starts the writers.
async fn open(database: &Arc<Database>) -> Result<mpsc::Sender<Waiting>> {
    let (sender, receiver) = mpsc::channel(QUEUE_APPENDS_MAX);
    let queue = Arc::new(Mutex::new(Queue {
        receiver,
        held: None,
    }));
    let mut writers = Vec::new();
    for _ in 0..WRITERS {
        writers.push(Writer {
            connection: Some(Connection::open(database).await?),
            database: Arc::clone(database),
            name: writer(),
        });
    }
    for writer in writers {
        tokio::spawn(writer.run(Arc::clone(&queue)));
    }
    Ok(sender)
}

/// An append that waits.
struct Waiting {
    stream: String,
    first: i64,
    time: i64,
    events: Vec<Event>,
    answer: oneshot::Sender<Answer<()>>,
}

/// A worker's way to the queue.
struct Queued(mpsc::Sender<Waiting>);

#[async_trait]
impl Session for Queued {
    async fn append(&mut self, append: &Append<'_>) -> Answer<()> {
        let (answer, answered) = oneshot::channel();
        let waiting = Waiting {
            stream: append.stream.to_owned(),
            first: sequence(append.revision),
            time: millis(),
            events: append.events.to_vec(),
            answer,
        };
        match self.0.try_send(waiting) {
            Ok(()) => {}
            Err(mpsc::error::TrySendError::Full(_)) => {
                return Err(AppendError::Retry("queue full".into()));
            }
            Err(mpsc::error::TrySendError::Closed(_)) => {
                return Err(AppendError::Failed("no writer is left".into()));
            }
        }
        match answered.await {
            Ok(answer) => answer,
            Err(_) => Err(AppendError::Unknown("the writer ended".into())),
        }
    }
}

/// What the writers share.
struct Queue {
    receiver: mpsc::Receiver<Waiting>,
    /// An append that did not fit into the batch before.
    held: Option<Waiting>,
}

impl Queue {
    /// What is there now, up to a full batch; waits for the first. None if nothing can come any more.
    async fn take(&mut self) -> Option<Vec<Waiting>> {
        let first = match self.held.take() {
            Some(held) => held,
            None => self.receiver.recv().await?,
        };
        let mut rows = first.events.len();
        let mut batch = vec![first];
        while let Ok(next) = self.receiver.try_recv() {
            rows += next.events.len();
            if rows > BATCH_ROWS_MAX {
                self.held = Some(next);
                break;
            }
            batch.push(next);
        }
        Some(batch)
    }
}

struct Writer {
    database: Arc<Database>,
    connection: Option<Connection>,
    name: String,
}

impl Writer {
    async fn run(mut self, queue: Arc<Mutex<Queue>>) {
        loop {
            // Whoever holds the queue waits for its next append; the others wait for the queue.
            let batch = queue.lock().await.take().await;
            let Some(batch) = batch else {
                return;
            };
            let written = self.write(&batch).await;
            for waiting in batch {
                // The worker may have given up.
                let _ = waiting.answer.send(match &written {
                    Ok(()) => Ok(()),
                    Err(error) => Err(same(error)),
                });
            }
        }
    }

    async fn write(&mut self, batch: &[Waiting]) -> Answer<()> {
        let connection = match &self.connection {
            Some(connection) => connection,
            None => {
                let new = Connection::open(&self.database).await;
                let new = new.map_err(|failure| AppendError::Failed(failure.0))?;
                self.connection.insert(new)
            }
        };
        let written = connection.insert(batch, &self.name).await;
        if let Err(AppendError::Unknown(_)) = written {
            self.connection = None;
        }
        written
    }
}

struct Connection {
    client: Client,
    insert: Statement,
}

impl Connection {
    async fn open(database: &Database) -> Result<Self> {
        let client = database.worker().await?;
        let insert = include_str!("../../sql/journals/jdbc/insert_batch.sql");
        Ok(Self {
            insert: client.prepare(insert).await?,
            client,
        })
    }

    async fn insert(&self, batch: &[Waiting], writer: &str) -> Answer<()> {
        let rows = batch.iter().map(|waiting| waiting.events.len()).sum();
        let mut streams: Vec<&str> = Vec::with_capacity(rows);
        let mut sequences: Vec<i64> = Vec::with_capacity(rows);
        let mut times: Vec<i64> = Vec::with_capacity(rows);
        let mut data: Vec<&[u8]> = Vec::with_capacity(rows);
        for waiting in batch {
            for (number, event) in (waiting.first..).zip(&waiting.events) {
                streams.push(&waiting.stream);
                sequences.push(number);
                times.push(waiting.time);
                data.push(&event.data);
            }
        }
        let columns: &[&(dyn ToSql + Sync)] = &[&streams, &sequences, &times, &data, &writer];
        execute(&self.client, &self.insert, columns).await?;
        Ok(())
    }
}

/// The same answer for each append of a batch.
fn same(error: &AppendError) -> AppendError {
    match error {
        AppendError::Retry(cause) => AppendError::Retry(cause.clone()),
        AppendError::Failed(cause) => AppendError::Failed(cause.clone()),
        AppendError::Unknown(cause) => AppendError::Unknown(cause.clone()),
    }
}
