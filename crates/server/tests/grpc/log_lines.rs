//! Tests what the log tells of gRPC calls.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use gesta_core::{
    Append, Appended, DeleteStream, Deleted, Error, ErrorKind, EventData, EventStore,
    EventStoreExt, EventType, ExpectedRevision, ReadStream, Result, StreamFrom, StreamId,
    StreamPage,
};
use gesta_groups::Source;
use gesta_grpc::messages::groups::{DeleteReq, delete_req};
use gesta_grpc::messages::shared::Empty;
use gesta_kit::support::OffsetClock;
use gesta_kit::{Outer, Wrapper};
use gesta_memory::MemoryStore;
use gesta_server::Config;

use crate::access::rows::{batch, read, status};
use crate::access::{basic, world, world_over};
use crate::client::Client;
use crate::connection::soon;
use crate::logged::Logged;
use crate::requests::{APPEND, GROUPS, READ, appending, bytes_of, identifier};
use gesta_grpc::messages::streams::AppendReq;
use gesta_grpc::messages::streams::append_req::Content;

/// A store that takes appends, or is away.
#[derive(Default)]
struct Away {
    inner: MemoryStore,
    is_away: AtomicBool,
    /// True if deletes hang.
    hangs: AtomicBool,
    /// Number of deletes that hang, or hung.
    hanging: AtomicUsize,
    /// The error with which carts cannot be appended to, nor read beyond the first page.
    failure: Mutex<Option<Error>>,
}

impl Away {
    fn fail(&self, stream: &StreamId) -> Result<()> {
        match &*self.failure.lock().unwrap() {
            Some(error) if stream.as_str().starts_with("cart-") => Err(error.clone()),
            _ => Ok(()),
        }
    }
}

#[async_trait]
impl Wrapper for Away {
    fn inner(&self) -> &dyn EventStore {
        &self.inner
    }

    async fn append(&self, append: Append) -> Result<Appended> {
        if self.is_away.load(Ordering::SeqCst) {
            return Err(Error::unavailable("the database is away"));
        }
        let mut parts = append.streams.iter();
        parts.try_for_each(|part| self.fail(&part.stream))?;
        self.inner.append(append).await
    }

    async fn read_stream(&self, request: ReadStream) -> Result<StreamPage> {
        if request.from != StreamFrom::Start {
            self.fail(&request.stream)?;
        }
        self.inner.read_stream(request).await
    }

    async fn delete_stream(&self, delete: DeleteStream) -> Result<Deleted> {
        if self.hangs.load(Ordering::SeqCst) {
            self.hanging.fetch_add(1, Ordering::SeqCst);
            std::future::pending::<()>().await;
        }
        self.inner.delete_stream(delete).await
    }
}

/// What happened: when the store was away and all clients spoke gRPC, the log said nothing. Goal: it tells that calls
/// begin to fail, once, and that the store answers again.
#[tokio::test]
async fn calls_that_fail_because_the_store_is_away_are_told_once() {
    let (logged, _guard) = Logged::begin();
    let store = Arc::new(Outer(Away::default()));
    let client = Client::with(Config::default(), store.clone()).await;
    let append = async || client.call(APPEND, &appending("cart-1", 1)).await.code;
    let begun = "requests fail because the store is away";
    let over = "the store answers requests again";

    assert_eq!(append().await, 0);
    store.is_away.store(true, Ordering::SeqCst);
    for _ in 0..3 {
        assert_eq!(append().await, 14);
    }
    let told = (logged.with(begun).len(), logged.with(over).len());
    assert_eq!(told, (1, 0), "{:?}", logged.with(""));
    assert!(logged.with(begun)[0].contains("the database is away"));
    store.is_away.store(false, Ordering::SeqCst);
    soon(async {
        while logged.with(over).is_empty() {
            assert_eq!(append().await, 0);
        }
    })
    .await;
    assert_eq!(logged.with("WARN").len(), 1, "{:?}", logged.with("WARN"));
}

/// What happened: callers were told that the log says why a call failed, and the log said nothing. Goal: it tells what
/// they may not know, also of a part of a call.
#[tokio::test]
async fn why_a_call_fails_is_told_to_the_log() {
    let (logged, _guard) = Logged::begin();
    let store = Arc::new(Outer(Away::default()));
    let world = world_over(store.clone(), OffsetClock::default()).await;
    let event = || EventData::json(EventType::new("T").expect("valid"), "1");
    let events: Vec<_> = (0..1_500).map(|_| event()).collect();
    let seeded = store.append_to("cart-1", ExpectedRevision::Any, events);
    seeded.await.expect("stored");
    let batches = "/event_store.client.streams.Streams/BatchAppend";
    for (n, (path, request)) in [
        (APPEND, bytes_of(&appending("cart-1", 1))),
        (batches, batch("cart-1")),
        (READ, read("cart-1")),
    ]
    .into_iter()
    .enumerate()
    {
        let why = |kind: &str| format!("db-{n} {kind}");
        let denied = Error::new(ErrorKind::Unsupported(why("denies"))).until_administrator_acts();
        let schema = ErrorKind::Schema(why("lacks a table")).into();
        let away = Error::unavailable(why("is away"));
        // Readiness tells of calls that fail as a whole because the store is away.
        let is_told_by_readiness = n == 0;
        let errors = [denied, schema].into_iter();
        for error in errors.chain((!is_told_by_readiness).then_some(away)) {
            let text = error.to_string();
            *store.failure.lock().unwrap() = Some(error);
            soon(async {
                // There is one line a second at most, which another test may have.
                while logged.with(&text).is_empty() {
                    let by = (&*basic("user"), "60S");
                    let code = status(&world.client, path, by, request.clone()).await;
                    assert_ne!(code, 0, "{path}");
                }
            })
            .await;
        }
    }
}

/// Goal: what an operator has asked for, and what others may not ask for, is in the audit log.
#[tokio::test]
async fn operations_are_in_the_audit_log() {
    let (logged, _guard) = Logged::begin();
    let world = world().await;
    let path = |method: &str| format!("/event_store.client.operations.Operations/{method}");
    let nothing = || bytes_of(&[Empty {}]);
    let merge = path("MergeIndexes");
    assert_eq!(world.call(&merge, &basic("ops"), nothing()).await.0, 0);
    assert_eq!(world.call(&merge, &basic("user"), nothing()).await.0, 7);
    let lines = logged.with("gesta::audit");
    let is_told = |who: &str, what: &str| {
        let told = |line: &&String| line.contains(&format!("who=\"{who}\"")) && line.contains(what);
        lines.iter().any(|line| told(&line))
    };
    assert!(is_told("ops", "MergeIndexes"), "{lines:#?}");
    assert!(is_told("user", "refused"), "{lines:#?}");
}

/// What happened: who deleted a group and left at once was not in the audit log. Goal: the change is told.
#[tokio::test]
async fn a_change_of_a_group_whose_caller_leaves_is_told() {
    let (logged, _guard) = Logged::begin();
    let store = Arc::new(Outer(Away::default()));
    let world = world_over(store.clone(), OffsetClock::default()).await;
    world
        .group(Source::Stream(StreamId::new("open").expect("valid")))
        .await;
    store.hangs.store(true, Ordering::SeqCst);
    let delete = DeleteReq {
        options: Some(delete_req::Options {
            group_name: "g".to_owned(),
            stream_option: Some(delete_req::options::StreamOption::StreamIdentifier(
                identifier("open"),
            )),
        }),
    };
    let (path, root) = (format!("{GROUPS}/Delete"), basic("root"));
    let mut call = world.client.open(&path, &[("authorization", &root)]).await;
    call.send(&delete).await;
    call.close();
    soon(async {
        while store.hanging.load(Ordering::SeqCst) == 0 {
            tokio::task::yield_now().await;
        }
    })
    .await;
    call.cancel();
    soon(async {
        while logged.with("the caller left").is_empty() {
            tokio::task::yield_now().await;
        }
    })
    .await;
    let lines = logged.with("the caller left");
    assert_eq!(lines.len(), 1, "{lines:#?}");
    let is_told = lines[0].contains("open::g") && lines[0].contains("who=\"root\"");
    assert!(is_told, "{lines:#?}");
}

/// Makes the request that appends metadata to a metadata stream, as clients do that know no call for it.
fn describing(stream: &str, metadata: &str) -> [AppendReq; 2] {
    let mut request = appending(&format!("$${stream}"), 0);
    if let Some(Content::ProposedMessage(event)) = &mut request[1].content {
        event
            .metadata
            .insert("type".to_owned(), "$metadata".to_owned());
        event.data = metadata.to_owned().into();
    }
    request
}

/// What happened: the mark in the metadata by which clients of EventStoreDB delete stood in the audit log as an append.
/// Goal: it is a delete, other metadata are a change of the metadata, and both name the stream.
#[tokio::test]
async fn deletes_by_metadata_are_told_as_deletes() {
    let (logged, _guard) = Logged::begin();
    let world = world().await;
    let mark = r#"{"$tb":9223372036854775807}"#;
    for who in ["root", "user"] {
        let who = basic(who);
        for stream in ["gone", "kept"] {
            let append = bytes_of(&appending(stream, 1));
            assert_eq!(world.call(APPEND, &who, append).await.0, 0);
        }
        for (stream, metadata) in [("kept", r#"{"a":1}"#), ("gone", mark)] {
            let append = bytes_of(&describing(stream, metadata));
            assert_eq!(world.call(APPEND, &who, append).await.0, 0);
        }
    }
    let lines = logged.with("gesta::audit");
    let count = |kind: &str, who: &str, call: &str, what: &str| {
        let parts = [
            kind.to_owned(),
            format!("who=\"{who}\""),
            format!("call=\"{call}\""),
            format!("what=\"{what}\""),
        ];
        let is_told = |line: &&String| parts.iter().all(|part| line.contains(part));
        lines.iter().filter(is_told).count()
    };
    for (kind, who) in [("administrative", "root"), ("change", "user")] {
        assert_eq!(count(kind, who, "delete", "gone"), 1, "{lines:#?}");
        let changed = count(kind, who, "change the metadata of", "kept");
        assert_eq!(changed, 1, "{lines:#?}");
    }
    assert!(
        !lines.iter().any(|line| line.contains("append to")),
        "{lines:#?}"
    );
}
