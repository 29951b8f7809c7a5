//! The journal of akka-persistence-jdbc 5 as its plugin drives it: appends of all entities wait in one queue, from
//! which eight writers take up to 400 rows per transaction.
//!
//! Like the real one: table, indexes, the queue of 1,000 appends and what happens when it is full or one append of a
//! batch fails (all of it fails). Left out: tags; a batch is one statement and so one round trip, where the plugin
//! binds row after row and commits in another.

use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use gesta_load::target::{Append, AppendError, Session};
use gesta_report::failure::Result;
use tokio::sync::mpsc::error::TrySendError;
use tokio::sync::{Mutex, mpsc, oneshot};
use tokio_postgres::{Client, Statement};

use super::database::Database;
use super::inserts::JDBC;
use super::journal::{Design, Tables};
use super::rows::{Answer, millis, only, prepare, query, sequence, writer};

/// Appends that may wait.
const QUEUE_APPENDS_MAX: usize = 1_000;
/// Rows per transaction.
const BATCH_ROWS_MAX: usize = 400;
/// Transactions under way at once.
const WRITERS: usize = 8;

static TABLES: Tables = Tables {
    name: "jdbc-batching",
    title: "akka-persistence-jdbc 5, with its queue",
    note: "untagged events; all workers share a queue of 1,000 appends and 8 connections, up to 400 rows per transaction",
    ..JDBC.tables
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

async fn open(database: &Arc<Database>) -> Result<mpsc::Sender<Waiting>> {
    let (sender, queue) = mpsc::channel(QUEUE_APPENDS_MAX);
    let queue = Arc::new(Mutex::new(queue));
    let mut writers = Vec::new();
    for _ in 0..WRITERS {
        writers.push(Writer {
            connection: Some(connect(database).await?),
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
    sequence: i64,
    time: i64,
    data: Bytes,
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
            sequence: sequence(append.revision),
            time: millis(),
            data: only(append)?.data.clone(),
            answer,
        };
        match self.0.try_send(waiting) {
            Ok(()) => {}
            Err(TrySendError::Full(_)) => return Err(AppendError::Retry("queue full".into())),
            Err(TrySendError::Closed(_)) => {
                return Err(AppendError::Failed("no writer is left".into()));
            }
        }
        match answered.await {
            Ok(answer) => answer,
            Err(_) => Err(AppendError::Unknown("the writer ended".into())),
        }
    }
}

struct Writer {
    database: Arc<Database>,
    connection: Option<(Client, Statement)>,
    name: String,
}

async fn connect(database: &Database) -> Result<(Client, Statement)> {
    let client = database.worker().await?;
    let [insert] = prepare(&client, [sql!("jdbc/insert_batch")]).await?;
    Ok((client, insert))
}

impl Writer {
    /// Writes what is there, up to a full batch, until nothing can come any more.
    async fn run(mut self, queue: Arc<Mutex<mpsc::Receiver<Waiting>>>) {
        loop {
            let mut batch = Vec::new();
            // Whoever holds the queue waits for its next append; the others wait for the queue.
            let taken = queue
                .lock()
                .await
                .recv_many(&mut batch, BATCH_ROWS_MAX)
                .await;
            if taken == 0 {
                return;
            }
            let written = self.write(&batch).await;
            for waiting in batch {
                // The worker may have given up.
                let _ = waiting.answer.send(written.clone());
            }
        }
    }

    async fn write(&mut self, batch: &[Waiting]) -> Answer<()> {
        let (client, insert) = match &mut self.connection {
            Some(connection) => connection,
            none => {
                let new = connect(&self.database).await;
                none.insert(new.map_err(|failure| AppendError::Failed(failure.0))?)
            }
        };
        let streams: Vec<&str> = batch.iter().map(|one| one.stream.as_str()).collect();
        let sequences: Vec<i64> = batch.iter().map(|one| one.sequence).collect();
        let times: Vec<i64> = batch.iter().map(|one| one.time).collect();
        let data: Vec<&[u8]> = batch.iter().map(|one| &one.data[..]).collect();
        let values: [&(dyn tokio_postgres::types::ToSql + Sync); 5] =
            [&streams, &sequences, &times, &data, &self.name];
        let written = query(client, insert, &values).await;
        if let Err(AppendError::Unknown(_)) = written {
            self.connection = None;
        }
        written.map(drop)
    }
}
