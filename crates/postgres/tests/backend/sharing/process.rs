//! A process with several logs, and a way to hold its statements up, so that what it submits meanwhile gathers.

use std::sync::Arc;
use std::time::Duration;

use futures::future::join_all;
use gesta_core::backend::{Backend, Batch, BatchOutcome, LogSlice, LogWriter, Purpose};
use gesta_core::{Direction, Filter, LogId, Position, RecordedEvent, StreamId, log_of};
use gesta_postgres::PostgresBackend;
use gesta_rig::{Server, shared};
use tokio::task::JoinHandle;
use tokio::time::Instant;

use crate::common::{
    Author, PATIENCE, confirm_of, direct, draft, fresh_logs, is_committed, open, schema_of,
    until_row,
};

pub(super) const LOGS: u16 = 4;

/// Statements with an event that begins with `hold` wait until they are released.
pub(super) struct Hold {
    pub(super) client: tokio_postgres::Client,
    pub(super) key: i64,
    schema: String,
}

impl Hold {
    pub(super) async fn plant(url: &str) -> Self {
        let client = direct(url).await;
        let key = i64::from(rand::random::<u32>() >> 1);
        let plant = format!(
            "CREATE FUNCTION hold() RETURNS trigger LANGUAGE plpgsql AS $$
             BEGIN
                 PERFORM pg_advisory_xact_lock_shared({key});
                 IF NEW.data = 'hold, refuse' THEN RAISE EXCEPTION 'no way'; END IF;
                 RETURN NEW;
             END $$;
             CREATE TRIGGER hold BEFORE INSERT ON events FOR EACH ROW WHEN (substr(NEW.data, 1, 4) = 'hold')
             EXECUTE FUNCTION hold();
             CREATE FUNCTION fail() RETURNS trigger LANGUAGE plpgsql AS $$
             BEGIN RAISE EXCEPTION 'injected' USING ERRCODE = convert_from(NEW.data, 'UTF8'); END $$;
             CREATE TRIGGER fail BEFORE INSERT ON events FOR EACH ROW WHEN (octet_length(NEW.data) = 5)
             EXECUTE FUNCTION fail();
             SELECT pg_advisory_lock({key})"
        );
        client.batch_execute(&plant).await.expect("planted");
        let schema = schema_of(url).to_owned();
        Self {
            client,
            key,
            schema,
        }
    }

    /// Waits until a statement waits for its release.
    pub(super) async fn is_waited_for(&self) {
        let waits = format!(
            "SELECT pid FROM pg_locks WHERE NOT granted AND locktype = 'advisory' AND objid = {}",
            self.key
        );
        self.finds(&waits).await;
    }

    /// Waits until an append to several logs waits for the transaction of another process.
    pub(super) async fn waits_for_a_rival(&self) {
        let waits = format!(
            "SELECT pid FROM pg_locks JOIN pg_stat_activity USING (pid)
             WHERE NOT granted AND locktype = 'transactionid' AND application_name = '{}'
             AND query ~ '^-- (Stores batches of several|As insert_events_of_logs)'",
            self.schema
        );
        self.finds(&waits).await;
    }

    /// Waits until the query finds something.
    pub(super) async fn finds(&self, query: &str) {
        until_row(&self.client, query).await;
    }

    pub(super) async fn again(&self) {
        let again = format!("SELECT pg_advisory_lock({})", self.key);
        self.client.batch_execute(&again).await.expect("held");
    }

    pub(super) async fn release(&self) {
        let release = format!("SELECT pg_advisory_unlock({})", self.key);
        self.client.batch_execute(&release).await.expect("released");
    }
}

/// One process with a handle for each log.
pub(super) struct Process {
    pub(super) backend: PostgresBackend,
    pub(super) writers: Vec<Box<dyn LogWriter>>,
    pub(super) authors: Vec<Author>,
}

impl Process {
    pub(super) async fn begin(backend: PostgresBackend) -> Self {
        let authors = (0..LOGS).map(|log| Author::of(LogId(log)));
        let mut process = Self {
            writers: Vec::new(),
            authors: authors.collect(),
            backend,
        };
        process.open_writers().await;
        process.see_that_it_is_near().await;
        process
    }

    /// Confirms an end again and again, until an answer has come so quickly that the database is known to be near: then
    /// small batches wait for those under way.
    async fn see_that_it_is_near(&mut self) {
        let end = self.backend.log_end(LogId(0), Purpose::Read).await;
        let end = end.expect("answers");
        let begun = Instant::now();
        loop {
            let sent = Instant::now();
            let outcome = self.writers[0].submit(confirm_of(LogId(0), end)).await;
            assert!(is_committed(&outcome), "{outcome:?}");
            if sent.elapsed() < Duration::from_millis(1) {
                return;
            }
            assert!(begun.elapsed() < PATIENCE, "it is not near");
        }
    }

    /// All at once, as the pipelines do.
    pub(super) async fn open_writers(&mut self) {
        let opened = (0..LOGS).map(|log| self.backend.open_writer(LogId(log)));
        let writers = join_all(opened).await.into_iter();
        self.writers = writers.map(|one| one.expect("opens")).collect();
    }

    /// Submits a batch to a log, of so many events with this data, upon the one before.
    pub(super) fn submit(
        &mut self,
        log: usize,
        count: usize,
        data: &str,
    ) -> JoinHandle<BatchOutcome> {
        let batch = self.batch(log, count, data);
        tokio::spawn(self.writers[log].submit(batch))
    }

    pub(super) fn batch(&mut self, log: usize, count: usize, data: &str) -> Arc<Batch> {
        let stream = stream_of(log);
        let drafts: Vec<_> = (0..count)
            .map(|_| {
                let mut draft = draft(&stream, "T");
                draft.data = data.to_owned().into();
                draft.tags = if log == 2 { &["tagged"] } else { &[] };
                draft
            })
            .collect();
        self.authors[log].batch(&*self.writers[log], &drafts)
    }

    /// A batch in each log, so that names are known.
    pub(super) async fn settle(&mut self) {
        for log in 0..usize::from(LOGS) {
            assert!(is_committed(&ends(self.submit(log, 1, "{}")).await));
        }
    }

    /// Submits a batch to log 0 that waits in the database, and then to the others one event each, which together are
    /// as many, and so leave in one statement. Gives the answers in order of log.
    pub(super) async fn submit_to_all(
        &mut self,
        hold: &Hold,
        data: [&str; 4],
    ) -> Vec<JoinHandle<BatchOutcome>> {
        let mut answers = vec![self.submit(0, 3, data[0])];
        hold.is_waited_for().await;
        answers.extend((1..4).map(|log| self.submit(log, 1, data[log])));
        answers
    }

    pub(super) async fn everything(&self, log: u16) -> Vec<RecordedEvent> {
        let mut events: Vec<RecordedEvent> = Vec::new();
        loop {
            let slice = LogSlice {
                log: LogId(log),
                after: events.last().map_or(Position::START, |last| last.position),
                to: Position::MAX,
                direction: Direction::Forwards,
                filter: Filter::ALL,
                limit: 10_000,
            };
            let page = self.backend.read_log(slice).await.expect("reads");
            events.extend(page.events);
            if page.complete {
                return events;
            }
        }
    }
}

/// A stream that lies in this log.
pub(super) fn stream_of(log: usize) -> String {
    let mut names = (0..).map(|number| format!("s-{number}"));
    let lies_there = |name: &String| {
        let name = StreamId::new(name.as_str()).expect("valid");
        usize::from(log_of(&name, LOGS).0) == log
    };
    names.find(lies_there).expect("one")
}

pub(super) async fn ends<T>(task: JoinHandle<T>) -> T {
    let ended = tokio::time::timeout(PATIENCE, task).await;
    ended.expect("ends in time").expect("does not panic")
}

pub(super) async fn all_end(answers: Vec<JoinHandle<BatchOutcome>>) -> Vec<BatchOutcome> {
    let mut outcomes = Vec::new();
    for answer in answers {
        outcomes.push(ends(answer).await);
    }
    outcomes
}

pub(super) fn is_unknown(outcome: &BatchOutcome) -> bool {
    matches!(outcome, BatchOutcome::Unknown(_))
}

pub(super) async fn is_healthy(url: &str) {
    let mut source = open(url).await.audit_source().await.expect("snapshot");
    let report = gesta_sql::verify::audit(&mut source, &mut |_| {})
        .await
        .expect("audited");
    assert!(report.is_healthy(), "{report:?}");
}

pub(super) async fn process() -> Option<(Process, Hold, String)> {
    Some(process_on(shared()?).await)
}

pub(super) async fn process_on(server: &Server) -> (Process, Hold, String) {
    let (backend, url) = fresh_logs(server, LOGS).await;
    let process = Process::begin(backend).await;
    (process, Hold::plant(&url).await, url)
}
