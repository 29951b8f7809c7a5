//! How fast a consumer catches up on the whole log: by pages and by a subscription, through the library and through a
//! server, and what plain statements carry that read page after page of the same table.
//!
//! Every event is decoded, but those that come from a server are only counted: how quick its consumer is, in whatever
//! language, is no property of the store.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use gesta_core::{
    AllFrom, EventStore, Filter, Subscribe, SubscribeFrom, SubscribeTo, SubscriptionMessage,
};
use gesta_report::failure::{Context, Result, fail};
use http_body_util::BodyExt as _;
use tokio_util::sync::CancellationToken;

use gesta_load::machine::http::Connection;
use gesta_load::machine::postgres;
use gesta_load::machine::{CurrentStore, ask};

/// How long the store may be unavailable.
const PATIENCE: Duration = Duration::from_secs(60);
/// Rows of a page of plain statements.
const PAGE: i64 = 5_000;
const READ_POSTGRES: &str = include_str!("../../sql/read_postgres.sql");
const READ_SQLITE: &str = include_str!("../../sql/read_sqlite.sql");

/// Reads the log page by page; returns how many events there were, and how many a second.
pub(crate) async fn by_pages(store: &Arc<dyn EventStore>) -> Result<(u64, f64)> {
    let (begin, mut events) = (Instant::now(), 0);
    let store = CurrentStore::new(Arc::clone(store), None);
    let read = ask::read_all(&store, AllFrom::Start, PATIENCE, |event| {
        events += 1;
        decode(&event);
    });
    read.await.context("reading all")?;
    Ok((events, per_second(events, begin)))
}

/// The same by a subscription from the start of the log until it has caught up.
pub(crate) async fn by_subscription(
    store: &dyn EventStore,
    stop: &CancellationToken,
) -> Result<(u64, f64)> {
    let request = Subscribe {
        to: SubscribeTo::All(Filter::ALL),
        from: SubscribeFrom::Start,
    };
    let (begin, mut events) = (Instant::now(), 0);
    let mut subscription = store.subscribe(request).await.context("subscribing")?;
    while !stop.is_cancelled() {
        match subscription.next().await {
            Some(Ok(SubscriptionMessage::Event { event, .. })) => {
                events += 1;
                decode(&event);
            }
            Some(Ok(SubscriptionMessage::CaughtUp(_))) => break,
            Some(Ok(_)) => {}
            Some(Err(error)) => return Err(error.into()),
            None => return fail("a subscription ended"),
        }
    }
    Ok((events, per_second(events, begin)))
}

/// How a server is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Answer {
    /// `GET /all` as one event a line.
    Lines,
    /// `GET /all/subscribe`, until it has caught up.
    ServerSentEvents,
}

impl Answer {
    /// Where it is, its media type, and the line of each event; `None`: every line is one.
    fn parts(self) -> (&'static str, &'static str, Option<&'static [u8]>) {
        match self {
            Answer::Lines => ("/all", "application/x-ndjson", None),
            Answer::ServerSentEvents => {
                let each = Some(b"event: event".as_slice());
                ("/all/subscribe", "text/event-stream", each)
            }
        }
    }
}

/// The same from a server.
pub(crate) async fn by_http(address: SocketAddr, answer: Answer) -> Result<(u64, f64)> {
    let (path, media_type, each) = answer.parts();
    let mut connection = Connection::open(address).await?;
    let (begin, mut events, mut rest) = (Instant::now(), 0, Vec::new());
    let mut body = connection.stream(path, media_type).await?;
    while let Some(frame) = body.frame().await {
        let Ok(data) = frame.context(path)?.into_data() else {
            continue;
        };
        // The beginning of a line that the last part broke off.
        let mut lines = data.split(|byte| *byte == b'\n');
        rest.extend_from_slice(lines.next().unwrap_or_default());
        for next in lines {
            if rest == b"event: caught_up" {
                return Ok((events, per_second(events, begin)));
            }
            events += u64::from(each.is_none_or(|each| rest == each));
            rest.clear();
            rest.extend_from_slice(next);
        }
    }
    match answer {
        Answer::Lines => Ok((events, per_second(events, begin))),
        Answer::ServerSentEvents => fail("a subscription ended before it had caught up"),
    }
}

/// The bound: plain statements, page after page of the rows alone, on the database of this URL, whose store is closed.
pub(crate) async fn by_statements(url: &str) -> Result<(u64, f64)> {
    match url.strip_prefix("sqlite:") {
        Some(path) => tokio::task::block_in_place(|| on_sqlite(path)),
        None => on_postgres(url).await,
    }
}

async fn on_postgres(url: &str) -> Result<(u64, f64)> {
    let client = postgres::connect(url).await?;
    let (_, schema) = url.rsplit_once("schema=").unwrap_or_default();
    // Nobody has analysed the table: without the last three, each page is sorted.
    let settings = format!(
        "SET search_path = {schema};
         SET enable_seqscan = off; SET enable_bitmapscan = off; SET plan_cache_mode = force_generic_plan"
    );
    client.batch_execute(&settings).await.context(settings)?;
    let statement = client.prepare(READ_POSTGRES).await?;
    // Positions have no gaps, so that the next page can be asked for while this one is parsed.
    let page = async |after: i64| client.query(&statement, &[&after, &(after + PAGE)]).await;
    let (begin, mut events, mut after) = (Instant::now(), 0, -1);
    let mut rows = page(after).await?;
    while !rows.is_empty() {
        after += PAGE;
        let parsed = async {
            for row in &rows {
                parse(row.get(9));
            }
        };
        events += rows.len() as u64;
        let (next, ()) = tokio::join!(page(after), parsed);
        rows = next?;
    }
    Ok((events, per_second(events, begin)))
}

fn on_sqlite(path: &str) -> Result<(u64, f64)> {
    let conn = rusqlite::Connection::open(path)?;
    conn.pragma_update(None, "cache_size", -64 * 1024)?;
    let mut statement = conn.prepare(READ_SQLITE)?;
    let (begin, mut events, mut last) = (Instant::now(), 0, 0_i64);
    loop {
        let (mut rows, before) = (statement.query((last, PAGE))?, events);
        while let Some(row) = rows.next()? {
            last = row.get("position")?;
            parse(row.get_ref("data")?.as_blob().unwrap_or_default());
            events += 1;
        }
        if events == before {
            return Ok((events, per_second(events, begin)));
        }
    }
}

fn per_second(events: u64, begin: Instant) -> f64 {
    events as f64 / begin.elapsed().as_secs_f64().max(0.000_001)
}

/// What a projection does at least: it looks at the event and parses its payload.
fn decode(event: &gesta_core::RecordedEvent) {
    parse(&event.data);
    std::hint::black_box((event.revision, event.id, &event.stream));
}

fn parse(data: &[u8]) {
    let parsed: Option<serde::de::IgnoredAny> = serde_json::from_slice(data).ok();
    std::hint::black_box(parsed.is_some());
}
