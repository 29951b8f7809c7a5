//! A store in a schema of its own on the server that all tests share, and batches to put into it.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::StreamExt;
use futures::stream::{BoxStream, select_all};
use gesta_core::backend::{
    Backend, Batch, BatchOutcome, LogEnd, LogWriter, Purpose, Row, RowId, Signal, Topic,
};
use gesta_core::{
    ContentType, EventId, EventType, LogId, Position, Revision, StreamId, Tag, Tags, Timestamp,
};
use gesta_postgres::{Config, PostgresBackend};
use gesta_rig::{Server, fresh_schema, shared};
use uuid::Uuid;

pub(crate) const LOG: LogId = LogId(0);

/// No test waits longer for anything.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// The store's URL on `server`, in a schema of its own.
pub(crate) fn store_url(server: &Server) -> String {
    format!("{}?schema={}", server.url(), fresh_schema())
}

/// The configuration of a store. The times that the URL does not name are long, so that no busy machine exceeds them.
pub(crate) fn config(url: &str) -> Config {
    let mut url = url.to_owned();
    for option in ["answer_timeout", "connect_timeout"] {
        if !url.contains(option) {
            let mark = if url.contains('?') { '&' } else { '?' };
            url.push_str(&format!("{mark}{option}={}", PATIENCE.as_secs()));
        }
    }
    let mut config = Config::parse(&url).expect("valid URL");
    config.registry_timeout = PATIENCE;
    config
}

pub(crate) async fn open(url: &str) -> PostgresBackend {
    PostgresBackend::open(config(url)).await.expect("opens")
}

/// An empty store on the shared server, with its URL; `None` if PostgreSQL is missing.
pub(crate) async fn fresh() -> Option<(PostgresBackend, String)> {
    let url = store_url(shared()?);
    Some((open(&url).await, url))
}

/// The schema in a URL that has no other option.
pub(crate) fn schema_of(url: &str) -> &str {
    let (_, schema) = url.split_once("?schema=").expect("has a schema");
    schema
}

/// A plain connection to the store's schema, as superuser.
pub(crate) async fn direct(url: &str) -> tokio_postgres::Client {
    let (server, schema) = url.split_once("?schema=").expect("has a schema");
    let client = gesta_rig::connect(server).await.expect("connects");
    client
        .batch_execute(&format!("SET search_path = {schema}"))
        .await
        .expect("set");
    client
}

/// Asks until the answer has a row, which is returned.
pub(crate) async fn until_row(client: &tokio_postgres::Client, sql: &str) -> tokio_postgres::Row {
    let found = async {
        loop {
            if let Some(row) = client
                .query(sql, &[])
                .await
                .expect("reads")
                .into_iter()
                .next()
            {
                return row;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    let found = tokio::time::timeout(PATIENCE, found).await;
    found.unwrap_or_else(|_| panic!("never a row: {sql}"))
}

/// All messages that a process is told, those for the pipeline of the first log among them.
pub(crate) fn signals_of(backend: &PostgresBackend) -> BoxStream<'static, Signal> {
    let topics = [Topic::Appends, Topic::Requests(LOG)];
    select_all(topics.map(|topic| backend.signals(topic))).boxed()
}

/// Waits until a message arrives, so that both listen from now on.
pub(crate) async fn until_heard(one: &PostgresBackend, at_other: &mut BoxStream<'static, Signal>) {
    let hello = Signal::GiveWay {
        log: LOG,
        by: Uuid::from_u128(7),
        needed: Duration::from_millis(50),
        waited: Duration::from_millis(3),
    };
    until_told(one, &[hello], at_other).await;
}

/// Sends these messages once and waits for the last of them. Only when one of the two processes says that messages may
/// have been lost is the last one sent again. Returns what has arrived before it.
pub(crate) async fn until_told(
    one: &PostgresBackend,
    messages: &[Signal],
    at_other: &mut BoxStream<'static, Signal>,
) -> Vec<Signal> {
    let mut at_one = signals_of(one);
    for message in messages {
        one.send_signal(*message).await;
    }
    let last = *messages.last().expect("a message");
    let mut before = Vec::new();
    let arrives = async {
        loop {
            let is_interrupted = tokio::select! {
                next = at_other.next() => {
                    let next = next.expect("endless");
                    if next == last {
                        return;
                    }
                    before.push(next);
                    next == Signal::Interrupted
                }
                next = at_one.next() => next == Some(Signal::Interrupted),
            };
            if is_interrupted {
                one.send_signal(last).await;
            }
        }
    };
    let arrived = tokio::time::timeout(PATIENCE, arrives).await;
    arrived.unwrap_or_else(|_| panic!("never arrives: {last:?}"));
    before
}

/// An empty store of several logs on `server`, with its URL. The sessions of the backend have the name of its schema.
pub(crate) async fn fresh_logs(server: &Server, logs: u16) -> (PostgresBackend, String) {
    let url = store_url(server);
    let mut config = config(&format!("{url}&application_name={}", schema_of(&url)));
    config.logs_if_new = logs;
    (PostgresBackend::open(config).await.expect("opens"), url)
}

/// Grows batches that are right if nobody else appends.
#[derive(Clone, Debug, Default)]
pub(crate) struct Author {
    pub(crate) log: LogId,
    pub(crate) end: LogEnd,
    streams: Vec<(StreamId, RowId, u64)>,
    types: Vec<(EventType, RowId)>,
}

/// An event to be.
pub(crate) struct Draft<'a> {
    pub(crate) stream: &'a str,
    pub(crate) event_type: &'a str,
    pub(crate) data: Bytes,
    pub(crate) packed: Option<Bytes>,
    pub(crate) tags: &'a [&'a str],
}

pub(crate) fn draft<'a>(stream: &'a str, event_type: &'a str) -> Draft<'a> {
    Draft {
        stream,
        event_type,
        data: Bytes::from_static(b"{\"n\":1}"),
        packed: None,
        tags: &[],
    }
}

impl Author {
    pub(crate) fn of(log: LogId) -> Self {
        Self {
            log,
            ..Self::default()
        }
    }

    /// The batch that stores these drafts after the end that the author knows, which then is its last row.
    pub(crate) fn batch(&mut self, writer: &dyn LogWriter, drafts: &[Draft<'_>]) -> Arc<Batch> {
        let mut batch = Batch {
            log: self.log,
            after: self.end,
            rows: Vec::new(),
            new_streams: Vec::new(),
            new_types: Vec::new(),
        };
        for draft in drafts {
            let position = self.end.position.next();
            let stream = StreamId::new(draft.stream).expect("valid");
            let event_type = EventType::new(draft.event_type).expect("valid");
            let fresh = RowId(position.0);
            let known = self.streams.iter().position(|(name, ..)| *name == stream);
            let index = known.unwrap_or_else(|| {
                batch.new_streams.push((fresh, stream.clone()));
                self.streams.push((stream.clone(), fresh, 0));
                self.streams.len() - 1
            });
            let (_, stream_row, next) = &mut self.streams[index];
            let known = self.types.iter().find(|(name, _)| *name == event_type);
            let type_row = known.map(|(_, row)| *row);
            let type_row = type_row.unwrap_or_else(|| {
                batch.new_types.push((fresh, event_type.clone()));
                self.types.push((event_type.clone(), fresh));
                fresh
            });
            let tags = draft
                .tags
                .iter()
                .map(|tag| Tag::new(*tag).expect("valid"))
                .collect();
            let created =
                Timestamp(1_790_000_000_000_000 + i64::try_from(position.0).expect("small"));
            batch.rows.push(Row {
                position,
                stream,
                stream_row: *stream_row,
                revision: Revision(*next),
                id: EventId::random(),
                event_type,
                type_row,
                created,
                content_type: ContentType::Json,
                data: draft.data.clone(),
                packed: draft.packed.clone(),
                metadata: Bytes::from_static(b"m"),
                tags: Tags::new(tags).expect("valid"),
            });
            *next += 1;
            self.end = LogEnd {
                position,
                writer: writer.epoch(),
                created,
            };
        }
        Arc::new(batch)
    }

    pub(crate) async fn append(
        &mut self,
        writer: &mut dyn LogWriter,
        drafts: &[Draft<'_>],
    ) -> BatchOutcome {
        let batch = self.batch(writer, drafts);
        writer.submit(batch).await
    }

    /// Takes what the database knows of one stream and one type.
    pub(crate) fn know(
        &mut self,
        stream: &str,
        loaded: &gesta_core::backend::Loaded,
        event_type: &str,
    ) {
        if let Some(head) = loaded.streams[0].head {
            let stream = StreamId::new(stream).expect("valid");
            self.streams.push((stream, head.row, head.last.0 + 1));
        }
        if let Some(row) = loaded.types[0] {
            self.types
                .push((EventType::new(event_type).expect("valid"), row));
        }
    }

    pub(crate) fn stream_row(&self, name: &str) -> RowId {
        self.streams
            .iter()
            .find(|(stream, ..)| stream.as_str() == name)
            .expect("known")
            .1
    }
}

/// The empty batch: is this the end?
pub(crate) fn confirm(end: LogEnd) -> Arc<Batch> {
    confirm_of(LOG, end)
}

/// The empty batch: is this the end of that log?
pub(crate) fn confirm_of(log: LogId, end: LogEnd) -> Arc<Batch> {
    Arc::new(Batch {
        log,
        after: end,
        rows: Vec::new(),
        new_streams: Vec::new(),
        new_types: Vec::new(),
    })
}

pub(crate) fn is_committed(outcome: &BatchOutcome) -> bool {
    matches!(outcome, BatchOutcome::Committed)
}

pub(crate) fn is_missed(outcome: &BatchOutcome) -> bool {
    matches!(outcome, BatchOutcome::Missed)
}

pub(crate) async fn end_of(backend: &dyn Backend) -> Position {
    backend
        .log_end(LOG, Purpose::Read)
        .await
        .expect("answers")
        .position
}
