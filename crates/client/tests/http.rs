//! What travels through HTTP comes out as it went in: errors, data, names; and what happens when the server goes.

#![allow(clippy::expect_used, reason = "test code: a panic is how a test fails")]

use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use gesta_client::HttpStore;
use gesta_core::{
    AllPage, Append, Appended, Checkpoint, DeleteStream, Deleted, Error, ErrorKind, EventData,
    EventStore, EventStoreExt, EventType, ExpectedRevision, Filter, Incarnation, ListStreams,
    MetadataSet, Query, ReadAll, ReadStream, Resolved, Result, Revision, SetStreamMetadata,
    SharedEvent, StoreInfo, StreamId, StreamMetadata, StreamMetadataRecord, StreamPage,
    StreamsPage, Subscribe, SubscribeFrom, SubscribeTo, Subscription, SubscriptionMessage,
    resolve_one_by_one,
};
use gesta_memory::MemoryStore;
use gesta_server::{Config, Handle, Registry};

async fn serve(store: Arc<dyn EventStore>) -> (Handle, HttpStore) {
    let config = Config {
        listen: ([127, 0, 0, 1], 0).into(),
        ..Config::default()
    };
    let server = gesta_server::start(config, store, Registry::default())
        .await
        .expect("a free port");
    let client = HttpStore::connect(&format!("http://{}", server.local_addr())).expect("valid");
    (server, client)
}

fn stream(name: &str) -> StreamId {
    StreamId::new(name).expect("valid")
}

fn event(data: &'static str) -> EventData {
    EventData::json(EventType::new("T").expect("valid"), data).without_id()
}

/// Goal: a token or a password travels as plain text only on this machine, unless the configuration says otherwise.
#[tokio::test]
async fn credentials_do_not_travel_as_plain_text() {
    let config = || gesta_client::Config {
        credentials: Some(gesta_client::Credentials::Token("secret".into())),
        ..gesta_client::Config::default()
    };
    for url in [
        "http://127.0.0.1:2113",
        "http://localhost:2113",
        "http://[::1]:2113",
    ] {
        assert!(HttpStore::with_config(url, config()).is_ok(), "{url}");
    }
    for url in [
        "http://192.0.2.1:2113",
        "http://store.example.org",
        "http://[2001:db8::1]:2113",
        "http://localhost.example.org",
    ] {
        let alone = HttpStore::with_config(url, config());
        let in_cluster = HttpStore::connect_to_cluster(&["http://127.0.0.1:2113", url], config());
        for refused in [alone, in_cluster] {
            let refused = refused.expect_err("refused").to_string();
            assert!(
                refused.contains("https://") && !refused.contains("secret"),
                "{refused}"
            );
        }
        let anonymous = HttpStore::connect(url);
        assert!(anonymous.is_ok(), "there is nothing to read");
        let allowed = gesta_client::Config {
            plain_http: gesta_client::PlainHttp::Anywhere,
            ..config()
        };
        assert!(HttpStore::with_config(url, allowed).is_ok(), "{url}");
    }
}

/// Answers everything with one error.
struct Failing(ErrorKind);

impl Failing {
    fn error<T>(&self) -> Result<T> {
        Err(Error::new(self.0.clone())
            .during("test")
            .caused_by("a secret"))
    }
}

#[async_trait]
impl EventStore for Failing {
    async fn incarnation(&self) -> Result<Incarnation> {
        self.error()
    }

    async fn info(&self) -> Result<StoreInfo> {
        self.error()
    }
    async fn ready(&self) -> Result<()> {
        self.error()
    }
    async fn append(&self, _: Append) -> Result<Appended> {
        self.error()
    }
    async fn read_stream(&self, _: ReadStream) -> Result<StreamPage> {
        self.error()
    }
    async fn read_all(&self, _: ReadAll) -> Result<AllPage> {
        self.error()
    }
    async fn list_streams(&self, _: ListStreams) -> Result<StreamsPage> {
        self.error()
    }
    async fn delete_stream(&self, _: DeleteStream) -> Result<Deleted> {
        self.error()
    }
    async fn stream_metadata(&self, _: StreamId) -> Result<StreamMetadataRecord> {
        self.error()
    }
    async fn set_stream_metadata(&self, _: SetStreamMetadata) -> Result<MetadataSet> {
        self.error()
    }
    async fn subscribe(&self, _: Subscribe) -> Result<Subscription> {
        let error = self.error();
        Ok(Subscription::new(futures::stream::once(async { error })))
    }
    async fn resolve(&self, events: Vec<SharedEvent>) -> Result<Vec<Resolved>> {
        resolve_one_by_one(self, events).await
    }
    async fn shutdown(&self) -> Result<()> {
        Ok(())
    }
}

fn every_kind() -> Vec<ErrorKind> {
    let wrong = |expected, actual| ErrorKind::WrongExpectedRevision {
        stream: stream("a/\"b\" ☃"),
        expected,
        actual,
    };
    vec![
        ErrorKind::InvalidArgument {
            field: "events[3].tags".into(),
            rule: "must differ, found \"x\" twice".into(),
        },
        wrong(ExpectedRevision::Any, None),
        wrong(ExpectedRevision::NoStream, Some(Revision(0))),
        wrong(ExpectedRevision::StreamExists, None),
        wrong(ExpectedRevision::Exact(Revision(7)), Some(Revision::MAX)),
        ErrorKind::StreamNotFound(stream("a")),
        ErrorKind::StreamTombstoned(stream("a").metadata_stream()),
        ErrorKind::EventNotFound {
            stream: stream("a"),
            revision: Revision(3),
        },
        ErrorKind::InvalidCheckpoint("it is of another store".into()),
        ErrorKind::Overloaded("the queue is full".into()),
        ErrorKind::Unavailable("no connection".into()),
        ErrorKind::OutcomeUnknown("the connection broke".into()),
        ErrorKind::Refused("value too long".into()),
        ErrorKind::Corrupt("event 3 of stream a".into()),
        ErrorKind::Schema("the store has schema 7".into()),
        ErrorKind::Unsupported("no rights".into()),
    ]
}

#[tokio::test]
async fn every_error_kind_arrives_as_it_left() {
    for kind in every_kind() {
        let (server, client) = serve(Arc::new(Failing(kind.clone()))).await;
        let written = client.append_to("a", ExpectedRevision::Any, vec![event("1")]);
        assert_eq!(written.await.expect_err("fails").kind(), &kind);
        let read = client.read_all(ReadAll::forwards());
        assert_eq!(read.await.expect_err("fails").kind(), &kind);
        let mut subscription = client
            .subscribe(Subscribe {
                to: SubscribeTo::All(Filter::ALL),
                from: SubscribeFrom::Start,
            })
            .await
            .expect("begins");
        let ended = subscription.next().await.expect("a message");
        assert_eq!(ended.expect_err("fails").kind(), &kind);
        assert!(subscription.next().await.is_none());
        server.shutdown().await;
    }
}

/// JSON, what is nearly JSON, and what is not even text.
const TEXTS: &[&[u8]] = &[
    b"",
    b"null",
    b" null ",
    b"{ \"a\" : 1.0e5 }",
    b"\t{\"a\":\n1}\r\n",
    b"{\"a\":1}{}",
    b"x",
    b"\"\\ud800\"",
    b"\"\xff\"",
    b"\0",
    b"[]",
    b"\"</script>\\u0000\"",
    b"1e999",
    b"\xef\xbb\xbf{}",
    b"\n\n",
    b"{\"a\":1,\"a\":2}",
];

/// Goal: no byte of data or metadata changes on its way, whatever it is.
#[tokio::test]
async fn data_come_back_byte_for_byte() {
    let (server, client) = serve(Arc::new(MemoryStore::new())).await;
    let ty = || EventType::new("T \"ü\\").expect("valid");
    let mut events = Vec::new();
    for data in TEXTS {
        for metadata in TEXTS {
            events.push(EventData::json(ty(), *data).with_metadata(*metadata));
            events.push(EventData::binary(ty(), *data).with_metadata(*metadata));
        }
    }
    client
        .append_to("a", ExpectedRevision::NoStream, events.clone())
        .await
        .expect("stored");
    let same = |found: &gesta_core::RecordedEvent, given: &EventData| {
        assert_eq!(
            (
                &found.data,
                &found.metadata,
                found.content_type,
                &found.event_type
            ),
            (
                &given.data,
                &given.metadata,
                given.content_type,
                &given.event_type
            )
        );
    };
    let read = client.read_whole_stream("a").await.expect("readable");
    assert_eq!(read.len(), events.len());
    read.iter().zip(&events).for_each(|(f, g)| same(f, g));
    let read = client.read_everything().await.expect("readable");
    read.iter().zip(&events).for_each(|(f, g)| same(f, g));
    let mut subscription = client
        .subscribe(Subscribe {
            to: SubscribeTo::Stream(stream("a")),
            from: SubscribeFrom::Start,
        })
        .await
        .expect("begins");
    for given in &events {
        same(&subscription.next_event().await.expect("an event"), given);
    }
    server.shutdown().await;
}

/// Names that mean something in an address, in JSON or in HTML, or are easily changed on their way.
const ODD_NAMES: &[&str] = &[
    ".",
    "..",
    "/",
    "a/b",
    "a//b",
    "//",
    "a b",
    "%",
    "%2F",
    "%ff",
    "?x=1",
    "#",
    "a+b",
    "☃",
    "metadata",
    "a/metadata",
    "subscribe",
    "0",
    "\"\\",
    "<>&'",
    "{7}",
    "~",
    "a\u{200d}b",
    "\u{10ffff}",
];

#[tokio::test]
async fn odd_stream_names_are_reached() {
    let (server, client) = serve(Arc::new(MemoryStore::new())).await;
    let long = "ü".repeat(512);
    let names: Vec<&str> = ODD_NAMES.iter().copied().chain([&*long]).collect();
    for &name in &names {
        client
            .append_to(name, ExpectedRevision::NoStream, vec![event("1")])
            .await
            .expect(name);
        let read = client.read_whole_stream(name).await.expect(name);
        assert_eq!(read[0].stream.as_str(), name);
        let one = client
            .read_event(stream(name), Revision(0))
            .await
            .expect(name);
        assert_eq!(one, read[0]);
        client
            .set_stream_metadata(SetStreamMetadata {
                stream: stream(name),
                expected: ExpectedRevision::NoStream,
                metadata: StreamMetadata::parse("{ \"a\": 1 }\n").expect("valid"),
            })
            .await
            .expect(name);
        let record = client.stream_metadata(stream(name)).await.expect(name);
        assert_eq!(
            (record.metadata.json(), record.revision),
            (&Bytes::from_static(b"{ \"a\": 1 }\n"), Some(Revision(0)))
        );
        let described = stream(name).metadata_stream();
        client
            .read_stream(ReadStream::forwards(described))
            .await
            .expect(name);
    }
    let listed = client
        .list_streams(ListStreams {
            prefix: String::new(),
            after: None,
            limit: 100,
        })
        .await
        .expect("listed");
    assert_eq!(listed.streams.len(), names.len());
    server.shutdown().await;
}

#[tokio::test]
async fn filters_of_several_queries_travel_whole() {
    let (server, client) = serve(Arc::new(MemoryStore::new())).await;
    let query = |types: &[&str], prefix: &str| Query {
        types: types
            .iter()
            .map(|t| EventType::new(*t).expect("valid"))
            .collect(),
        stream_prefixes: vec![prefix.to_owned()],
        ..Query::default()
    };
    for (name, ty) in [("a-1", "X"), ("a-1", "Y"), ("b&-1", "X"), ("b&-1", "Y")] {
        let event = EventData::json(EventType::new(ty).expect("valid"), "1");
        client
            .append_to(name, ExpectedRevision::Any, vec![event])
            .await
            .expect("stored");
    }
    let filter = Filter {
        any_of: vec![query(&["X"], "a-"), query(&["Y"], "b&")],
    };
    let page = client
        .read_all(ReadAll::forwards().filter(filter.clone()))
        .await
        .expect("readable");
    let found: Vec<_> = page
        .events
        .iter()
        .map(|e| (e.stream.as_str(), e.event_type.as_str()))
        .collect();
    assert_eq!(found, [("a-1", "X"), ("b&-1", "Y")]);
    let large = Query {
        stream_prefixes: vec!["☃".repeat(300); 100],
        ..Query::default()
    };
    let error = client
        .read_all(ReadAll::forwards().filter(Filter {
            any_of: vec![large],
        }))
        .await
        .expect_err("too long for an address");
    assert!(
        matches!(error.kind(), ErrorKind::InvalidArgument { field, .. } if field == "filter"),
        "{error}"
    );
    server.shutdown().await;
}

#[tokio::test]
async fn a_server_that_goes_is_told_from_one_that_is_not_there() {
    let (server, client) = serve(Arc::new(MemoryStore::new())).await;
    let mut subscription = client
        .subscribe(Subscribe {
            to: SubscribeTo::Stream(stream("a")),
            from: SubscribeFrom::End,
        })
        .await
        .expect("begins");
    assert!(matches!(
        subscription.next().await,
        Some(Ok(SubscriptionMessage::CaughtUp(_)))
    ));
    server.shutdown().await;
    let ended = subscription
        .next()
        .await
        .expect("a message")
        .expect_err("the end");
    assert!(matches!(ended.kind(), ErrorKind::Unavailable(_)), "{ended}");
    let refused = client
        .append_to("a", ExpectedRevision::Any, vec![event("1")])
        .await
        .expect_err("nobody there");
    assert!(
        matches!(refused.kind(), ErrorKind::Unavailable(_)),
        "{refused}"
    );
    client.shutdown().await.expect("closes");
    let closed = client.info().await.expect_err("closed");
    assert!(
        matches!(closed.kind(), ErrorKind::Unavailable(_)),
        "{closed}"
    );
}

/// Goal: an append whose answer is lost is never called harmless.
#[tokio::test]
async fn a_lost_answer_is_an_unknown_outcome_for_writes_alone() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0")
        .await
        .expect("a free port");
    let client = HttpStore::connect(&format!("http://{}", listener.local_addr().expect("bound")))
        .expect("valid");
    tokio::spawn(async move {
        loop {
            let (mut socket, _) = listener.accept().await.expect("accept");
            // Takes the whole request (they are small) and goes.
            let mut some = [0; 4_096];
            let _ = tokio::io::AsyncReadExt::read(&mut socket, &mut some).await;
        }
    });
    let append = client
        .append_to("a", ExpectedRevision::Any, vec![event("1")])
        .await;
    let error = append.expect_err("no answer");
    assert!(
        matches!(error.kind(), ErrorKind::OutcomeUnknown(_)),
        "{error}"
    );
    let error = client.info().await.expect_err("no answer");
    assert!(matches!(error.kind(), ErrorKind::Unavailable(_)), "{error}");
}

#[tokio::test]
async fn a_subscription_resumes_from_its_checkpoints() {
    let (server, client) = serve(Arc::new(MemoryStore::new())).await;
    let events = vec![event("1"), event("2"), event("3")];
    client
        .append_to("a", ExpectedRevision::NoStream, events)
        .await
        .expect("stored");
    for to in [
        SubscribeTo::Stream(stream("a")),
        SubscribeTo::All(Filter::ALL),
    ] {
        let mut subscription = client
            .subscribe(Subscribe {
                to: to.clone(),
                from: SubscribeFrom::Start,
            })
            .await
            .expect("begins");
        let Some(Ok(SubscriptionMessage::Event { checkpoint, .. })) = subscription.next().await
        else {
            panic!("an event");
        };
        let mut resumed = client
            .subscribe(Subscribe {
                to: to.clone(),
                from: SubscribeFrom::Checkpoint(checkpoint.clone()),
            })
            .await
            .expect("begins");
        assert_eq!(resumed.next_event().await.expect("an event").data, "2");
        let other = Checkpoint {
            incarnation: Incarnation::random(),
            ..checkpoint
        };
        let refused = client
            .subscribe(Subscribe {
                to,
                from: SubscribeFrom::Checkpoint(other),
            })
            .await
            .expect_err("another store's");
        assert!(
            matches!(refused.kind(), ErrorKind::InvalidCheckpoint(_)),
            "{refused}"
        );
    }
    server.shutdown().await;
}
