//! Runs the conformance suite through gRPC.
//!
//! Each call of a case is made twice: over gRPC, and on the store behind the server. Both must give the same answer. A
//! change of the store goes over gRPC first; the store then recognises it as a retry, and its answer is what gRPC must
//! have said. What gRPC refuses, the store must refuse too; the case gets the error of the store, which says more. What
//! this protocol cannot say (tags, filters, lists, the metadata of streams) is asked of the store alone.

use std::sync::Arc;

use async_trait::async_trait;
use futures::stream;
use gesta_core::*;
use gesta_grpc::Refusal;
use gesta_grpc::ids::{self, UuidForm};
use gesta_grpc::messages::shared::Empty;
use gesta_grpc::messages::streams::append_req::options::ExpectedStreamRevision as Claim;
use gesta_grpc::messages::streams::append_req::{self, ProposedMessage};
use gesta_grpc::messages::streams::append_resp::{self, success};
use gesta_grpc::messages::streams::delete_req::{self, options::ExpectedStreamRevision};
use gesta_grpc::messages::streams::delete_resp::PositionOption;
use gesta_grpc::messages::streams::read_req;
use gesta_grpc::messages::streams::read_req::options::{
    AllOptions, CountOption, Position as At, ReadDirection, StreamOption, StreamOptions,
    SubscriptionOptions, all_options, stream_options,
};
use gesta_grpc::messages::streams::read_resp::{Content, ReadEvent};
use gesta_grpc::messages::streams::{AppendReq, AppendResp, DeleteReq, DeleteResp, ReadResp};
use gesta_grpc::messages::v2;
use gesta_kit::{MemoryFactory, StoreFactory, TestStore};
use gesta_server::Config;
use prost::Message;

use crate::client::Client;
use crate::connection::{Ended, Open};
use crate::requests::{APPEND, READ, read_of, reading};

const SESSION: &str = "/kurrentdb.protocol.v2.streams.StreamsService/AppendSession";
const DELETES: &str = "/event_store.client.streams.Streams";
/// Largest request that goes over gRPC. Larger requests are for tests of bounds, which the two sides name differently.
const SPOKEN_BYTES_MAX: usize = 1_000_000;
const SPOKEN_EVENTS_MAX: usize = 1_000;

/// A store, and a connection to it over gRPC.
struct Compared {
    client: Client,
    store: Arc<dyn EventStore>,
}

fn identifier(stream: &StreamId) -> gesta_grpc::messages::shared::StreamIdentifier {
    ids::identifier(stream)
}

/// Returns true if the protocol can say this append.
fn is_spoken(request: &Append) -> bool {
    let events = || request.streams.iter().flat_map(|part| &part.events);
    let mut names: Vec<_> = request.streams.iter().map(|part| &part.stream).collect();
    names.sort_unstable();
    names.dedup();
    // Conditions are checks of another call, which has tests of its own.
    request.conditions.is_empty()
        && names.len() == request.streams.len()
        && !request.streams.is_empty()
        && request
            .streams
            .iter()
            .all(|part| !part.events.is_empty() && part.stream.described_stream().is_none())
        && events().all(|event| event.tags == Tags::NONE)
        && events().count() <= SPOKEN_EVENTS_MAX
        && request.payload_bytes() <= SPOKEN_BYTES_MAX
}

fn content_type(event: &EventData) -> &'static str {
    match event.content_type {
        ContentType::Json => "application/json",
        _ => "application/octet-stream",
    }
}

fn proposed(event: &EventData) -> AppendReq {
    let metadata = [
        ("type", event.event_type.as_str()),
        ("content-type", content_type(event)),
    ];
    let message = ProposedMessage {
        id: event.id.map(|id| ids::uuid(id.0, UuidForm::Text)),
        metadata: metadata
            .map(|(key, value)| (key.to_owned(), value.to_owned()))
            .into(),
        custom_metadata: event.metadata.clone(),
        data: event.data.clone(),
    };
    AppendReq {
        content: Some(append_req::Content::ProposedMessage(message)),
    }
}

fn claim(expected: ExpectedRevision) -> Claim {
    match expected {
        ExpectedRevision::Any => Claim::Any(Empty {}),
        ExpectedRevision::NoStream => Claim::NoStream(Empty {}),
        ExpectedRevision::StreamExists => Claim::StreamExists(Empty {}),
        // The greatest number means *no stream* here.
        ExpectedRevision::Exact(revision) => Claim::Revision(revision.0.min(u64::MAX - 1)),
    }
}

fn to_one(part: &StreamAppend) -> Vec<AppendReq> {
    let options = append_req::Options {
        stream_identifier: Some(identifier(&part.stream)),
        expected_stream_revision: Some(claim(part.expected)),
    };
    let options = AppendReq {
        content: Some(append_req::Content::Options(options)),
    };
    std::iter::once(options)
        .chain(part.events.iter().map(proposed))
        .collect()
}

/// Makes a part of an append to several streams. Its events have no bytes of metadata of their own.
fn to_several(part: &StreamAppend) -> v2::AppendRequest {
    let record = |event: &EventData| v2::AppendRecord {
        record_id: event.id.map(|id| id.0.to_string()),
        schema: Some(v2::SchemaInfo {
            format: v2::SchemaFormat::Json.into(),
            name: event.event_type.to_string(),
            id: None,
        }),
        data: event.data.clone(),
        ..v2::AppendRecord::default()
    };
    v2::AppendRequest {
        stream: part.stream.to_string(),
        records: part.events.iter().map(record).collect(),
        expected_revision: match part.expected {
            ExpectedRevision::Any => None,
            ExpectedRevision::NoStream => Some(-1),
            ExpectedRevision::StreamExists => Some(-4),
            ExpectedRevision::Exact(revision) => i64::try_from(revision.0).ok(),
        },
    }
}

/// The answer of gRPC to an append: the last revision of each stream and the position; `None` if it was refused.
type Said = Option<(Vec<u64>, u64)>;

impl Compared {
    /// Returns true if one of the streams must exist, and has metadata: to this protocol it then exists without events,
    /// too.
    async fn is_taken_to_exist(&self, request: &Append) -> Result<bool> {
        for part in &request.streams {
            if part.expected == ExpectedRevision::StreamExists {
                let described = self.store.stream_metadata(part.stream.clone()).await?;
                if described.revision.is_some() {
                    return Ok(true);
                }
            }
        }
        Ok(false)
    }

    async fn append_to_one(&self, part: &StreamAppend) -> (Said, String) {
        let ended = self.client.call(APPEND, &to_one(part)).await;
        if ended.code != 0 {
            return (None, refusal(&ended));
        }
        let answer = ended.read::<AppendResp>().remove(0);
        match answer.result.expect("a result") {
            append_resp::Result::WrongExpectedVersion(wrong) => (None, format!("{wrong:?}")),
            append_resp::Result::Success(stored) => {
                let Some(success::CurrentRevisionOption::CurrentRevision(revision)) =
                    stored.current_revision_option
                else {
                    panic!("{stored:?}");
                };
                let Some(success::PositionOption::Position(at)) = stored.position_option else {
                    panic!("{stored:?}");
                };
                (Some((vec![revision], at.commit_position)), String::new())
            }
        }
    }

    async fn append_to_several(&self, parts: &[StreamAppend]) -> (Said, String) {
        let parts: Vec<_> = parts.iter().map(to_several).collect();
        let ended = self.client.call(SESSION, &parts).await;
        if ended.code != 0 {
            return (None, refusal(&ended));
        }
        let answer = ended.read::<v2::AppendSessionResponse>().remove(0);
        let revisions = answer
            .output
            .iter()
            .map(|part| part.stream_revision.unsigned_abs());
        (
            Some((revisions.collect(), answer.position.unsigned_abs())),
            String::new(),
        )
    }

    /// Compares a page that the store has read with what gRPC reads from the first event of the page on.
    async fn compare(
        &self,
        options: read_req::Options,
        direction: Direction,
        events: &[RecordedEvent],
    ) {
        let options = read_req::Options {
            count_option: Some(CountOption::Count(events.len() as u64)),
            read_direction: match direction {
                Direction::Forwards => ReadDirection::Forwards.into(),
                Direction::Backwards => ReadDirection::Backwards.into(),
            },
            ..options
        };
        let found = self
            .client
            .call(READ, &reading(options))
            .await
            .read::<ReadResp>();
        assert_eq!(found.len(), events.len());
        for (found, event) in found.into_iter().zip(events) {
            let Some(Content::Event(found)) = found.content else {
                panic!("{found:?}");
            };
            same(&found, event);
        }
    }
}

fn refusal(ended: &Ended) -> String {
    assert!(
        matches!(ended.code, 3 | 5 | 8 | 9 | 10 | 12 | 14),
        "{} {}",
        ended.code,
        ended.message()
    );
    format!("{} {}", ended.code, ended.message())
}

/// Checks that an event as gRPC shows it is the event that the store has.
fn same(found: &ReadEvent, event: &RecordedEvent) {
    let shown = found.event.as_ref().expect("an event");
    assert_eq!(shown.commit_position, event.position.0);
    // Notes of deletes look otherwise to these clients.
    if event.stream.described_stream().is_some() {
        return;
    }
    let (id, _) = ids::read_uuid("id", shown.id.as_ref()).expect("an id");
    assert_eq!(id, event.id.0);
    assert_eq!(shown.stream_identifier, Some(identifier(&event.stream)));
    assert_eq!(shown.stream_revision, event.revision.0);
    assert_eq!(shown.metadata["type"], event.event_type.as_str());
    let is_json = event.content_type == ContentType::Json;
    assert_eq!(
        shown.metadata["content-type"] == "application/json",
        is_json
    );
    assert_eq!(
        shown.metadata["created"],
        (event.created.as_micros() * 10).to_string()
    );
    assert_eq!(
        (&shown.data, &shown.custom_metadata),
        (&event.data, &event.metadata)
    );
}

fn of_stream(stream: &StreamId, from: stream_options::RevisionOption) -> read_req::Options {
    read_req::Options {
        stream_option: Some(StreamOption::Stream(StreamOptions {
            stream_identifier: Some(identifier(stream)),
            revision_option: Some(from),
        })),
        ..read_of("x")
    }
}

fn of_all(from: all_options::AllOption) -> read_req::Options {
    read_req::Options {
        stream_option: Some(StreamOption::All(AllOptions {
            all_option: Some(from),
        })),
        ..read_of("x")
    }
}

fn at(position: u64) -> all_options::AllOption {
    all_options::AllOption::Position(At {
        commit_position: position,
        prepare_position: position,
    })
}

/// Makes the same subscription over gRPC; returns `None` if the protocol cannot say it.
fn followed(request: &Subscribe, logs: usize) -> Option<read_req::Options> {
    let options = match &request.to {
        SubscribeTo::Stream(stream) if stream.described_stream().is_none() => {
            let from = match &request.from {
                SubscribeFrom::Start => stream_options::RevisionOption::Start(Empty {}),
                SubscribeFrom::Revision(revision) => {
                    stream_options::RevisionOption::Revision(revision.0)
                }
                SubscribeFrom::Checkpoint(_) | SubscribeFrom::End => return None,
            };
            of_stream(stream, from)
        }
        SubscribeTo::All(filter) if *filter == Filter::ALL && logs == 1 => {
            let from = match &request.from {
                SubscribeFrom::Start => all_options::AllOption::Start(Empty {}),
                SubscribeFrom::Checkpoint(checkpoint) => match &checkpoint.place {
                    Place::Logs(positions) => at(positions.first()?.0),
                    Place::Stream { .. } => return None,
                },
                SubscribeFrom::Revision(_) | SubscribeFrom::End => return None,
            };
            of_all(from)
        }
        _ => return None,
    };
    Some(read_req::Options {
        count_option: Some(CountOption::Subscription(SubscriptionOptions {})),
        ..options
    })
}

/// Waits for the next event of a subscription over gRPC.
async fn next_event(open: &mut Open) -> ReadEvent {
    loop {
        let message = open.next().await.expect("the subscription goes on");
        let message = ReadResp::decode(message).expect("a message");
        if let Some(Content::Event(event)) = message.content {
            return event;
        }
    }
}

#[async_trait]
impl EventStore for Compared {
    async fn incarnation(&self) -> Result<Incarnation> {
        self.store.incarnation().await
    }

    async fn info(&self) -> Result<StoreInfo> {
        self.store.info().await
    }

    async fn ready(&self) -> Result<()> {
        self.store.ready().await
    }

    async fn append(&self, mut request: Append) -> Result<Appended> {
        if !is_spoken(&request) || self.is_taken_to_exist(&request).await? {
            return self.store.append(request).await;
        }
        let is_several = request.streams.len() > 1;
        for event in request.streams.iter_mut().flat_map(|part| &mut part.events) {
            event.id.get_or_insert_with(EventId::random);
            if is_several && (!event.metadata.is_empty() || event.content_type != ContentType::Json)
            {
                return self.store.append(request).await;
            }
        }
        let (said, why) = match request.streams.as_slice() {
            [part] => self.append_to_one(part).await,
            parts => self.append_to_several(parts).await,
        };
        let known = self.store.append(request).await;
        match (said, &known) {
            (Some((revisions, position)), Ok(known)) => {
                let expected: Vec<_> = known
                    .streams
                    .iter()
                    .map(|part| part.last_revision.0)
                    .collect();
                assert_eq!((revisions, position), (expected, known.position.0));
            }
            (None, Err(_)) => {}
            (said, known) => panic!("gRPC said {said:?} {why}, the store {known:?}"),
        }
        known
    }

    async fn read_stream(&self, request: ReadStream) -> Result<StreamPage> {
        let (stream, direction) = (request.stream.clone(), request.direction);
        let page = self.store.read_stream(request).await;
        if stream.described_stream().is_some() {
            return page;
        }
        match &page {
            Ok(page) if let Some(first) = page.events.first() => {
                let from = stream_options::RevisionOption::Revision(first.revision.0);
                self.compare(of_stream(&stream, from), direction, &page.events)
                    .await;
            }
            Err(error) if matches!(error.kind(), ErrorKind::StreamNotFound(_)) => {
                let from = stream_options::RevisionOption::Start(Empty {});
                let found = self
                    .client
                    .call(READ, &reading(of_stream(&stream, from)))
                    .await;
                let found = found.read::<ReadResp>().remove(0);
                if !matches!(found.content, Some(Content::StreamNotFound(_))) {
                    // An append whose caller has gone may have been stored between the two reads.
                    let again = self.store.read_stream(ReadStream::forwards(stream)).await;
                    assert!(again.is_ok(), "{found:?}");
                }
            }
            Err(error) if matches!(error.kind(), ErrorKind::StreamTombstoned(_)) => {
                let from = stream_options::RevisionOption::Start(Empty {});
                let found = self
                    .client
                    .call(READ, &reading(of_stream(&stream, from)))
                    .await;
                assert_eq!(found.code, Refusal::from(error).code as i32);
            }
            _ => {}
        }
        page
    }

    async fn read_all(&self, request: ReadAll) -> Result<AllPage> {
        let (direction, filter) = (request.direction, request.filter.clone());
        let page = self.store.read_all(request).await?;
        if let Some(first) = page.events.first()
            && filter == Filter::ALL
            && self.store.info().await?.heads.len() == 1
        {
            let from = match direction {
                Direction::Forwards => at(first.position.0),
                Direction::Backwards => at(first.position.0 + 1),
            };
            self.compare(of_all(from), direction, &page.events).await;
        }
        Ok(page)
    }

    async fn list_streams(&self, request: ListStreams) -> Result<StreamsPage> {
        self.store.list_streams(request).await
    }

    /// Deletes a stream. A stream that is gone may be deleted again over gRPC, and not in Gesta, so that goes to the
    /// store alone.
    async fn delete_stream(&self, request: DeleteStream) -> Result<Deleted> {
        let last = ReadStream::backwards(request.stream.clone()).limit(1);
        if self.store.read_stream(last).await.is_err() {
            return self.store.delete_stream(request).await;
        }
        let path = match request.kind {
            DeleteKind::Soft => format!("{DELETES}/Delete"),
            DeleteKind::Tombstone => format!("{DELETES}/Tombstone"),
        };
        let expected = match request.expected {
            ExpectedRevision::Any => ExpectedStreamRevision::Any(Empty {}),
            ExpectedRevision::NoStream => ExpectedStreamRevision::NoStream(Empty {}),
            ExpectedRevision::StreamExists => ExpectedStreamRevision::StreamExists(Empty {}),
            ExpectedRevision::Exact(revision) => {
                ExpectedStreamRevision::Revision(revision.0.min(u64::MAX - 1))
            }
        };
        let options = delete_req::Options {
            stream_identifier: Some(identifier(&request.stream)),
            expected_stream_revision: Some(expected),
        };
        let asked = [DeleteReq {
            options: Some(options),
        }];
        let ended = self.client.call(&path, &asked).await;
        if ended.code != 0 {
            let why = refusal(&ended);
            let known = self.store.delete_stream(request).await;
            assert!(known.is_err(), "gRPC said {why}");
            return known;
        }
        let answer = ended.read::<DeleteResp>().remove(0);
        let Some(PositionOption::Position(at)) = answer.position_option else {
            panic!("{answer:?}");
        };
        let info = self.store.info().await?;
        let (log, position) = (
            log_of(&request.stream, info.logs),
            Position(at.commit_position),
        );
        Ok(Deleted {
            log,
            position,
            checkpoint: Checkpoint::in_log(info.incarnation, info.logs, log, position),
        })
    }

    async fn stream_metadata(&self, stream: StreamId) -> Result<StreamMetadataRecord> {
        self.store.stream_metadata(stream).await
    }

    async fn set_stream_metadata(&self, request: SetStreamMetadata) -> Result<MetadataSet> {
        self.store.set_stream_metadata(request).await
    }

    async fn subscribe(&self, request: Subscribe) -> Result<Subscription> {
        let logs = self.store.info().await.map_or(0, |info| info.heads.len());
        let options = followed(&request, logs);
        let known = self.store.subscribe(request).await?;
        let Some(options) = options else {
            return Ok(known);
        };
        let mut open = self.client.open(READ, &[]).await;
        open.send(&reading(options)[0]).await;
        open.close();
        let both = stream::unfold((known, open), |(mut known, mut open)| async {
            let message = known.next().await?;
            if let Ok(SubscriptionMessage::Event { event, .. }) = &message {
                same(&next_event(&mut open).await, event);
            }
            Some((message, (known, open)))
        });
        Ok(Subscription::new(both))
    }

    async fn resolve(&self, events: Vec<SharedEvent>) -> Result<Vec<Resolved>> {
        self.store.resolve(events).await
    }

    async fn shutdown(&self) -> Result<()> {
        self.store.shutdown().await
    }
}

/// A factory that puts a server before the stores of another factory.
struct Grpc<F>(F);

async fn compared(store: TestStore) -> TestStore {
    let behind = store.share();
    let client = Client::with(Config::default(), Arc::clone(&behind)).await;
    let compared = Compared {
        client,
        store: behind,
    };
    TestStore::with_home(Arc::new(compared), Arc::new(store))
}

#[async_trait]
impl<F: StoreFactory> StoreFactory for Grpc<F> {
    fn name(&self) -> String {
        format!("gRPC to {}", self.0.name())
    }

    fn logs(&self) -> u16 {
        self.0.logs()
    }

    async fn create(&self) -> TestStore {
        compared(self.0.create().await).await
    }

    async fn create_with_clock(&self, clock: Arc<dyn Clock>) -> Option<TestStore> {
        Some(compared(self.0.create_with_clock(clock).await?).await)
    }

    async fn create_with_virtual_streams(&self) -> Option<TestStore> {
        Some(compared(self.0.create_with_virtual_streams().await?).await)
    }
}

mod one_log {
    use super::*;
    gesta_kit::conformance_tests!(Grpc(MemoryFactory::new(1)));
}

mod four_logs {
    use super::*;
    gesta_kit::conformance_tests!(Grpc(MemoryFactory::new(4)));
}
