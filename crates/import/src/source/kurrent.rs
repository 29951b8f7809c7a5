//! KurrentDB and EventStoreDB, over their own protocol: all events are read in the order of their log.
//!
//! What hides events comes over too, at its place: metadata of streams, deletes (which are metadata) and tombstones.
//! Other system streams and links are left out: this store makes its own. `$maxAge` goes by the time at which an event
//! was stored, which the import makes anew; so the metadata are looked at before, and what the source hides for its age
//! is left out. Not here: the frames and messages, which the crate `gesta-grpc` has.

mod address;

use std::collections::HashMap;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use gesta_core::{Clock, Error, ErrorKind, Result, StreamMetadata, SystemClock, Timestamp};
use gesta_grpc::frame::{Frames, framed};
use gesta_grpc::ids::read_uuid;
use gesta_grpc::messages::shared::{Empty, StreamIdentifier};
use gesta_grpc::messages::streams::read_req::options::filter_options::{
    Expression, Filter, Window,
};
use gesta_grpc::messages::streams::read_req::options::uuid_option::Content as UuidForm;
use gesta_grpc::messages::streams::read_req::options::{
    self, AllOptions, ControlOption, CountOption, FilterOption, FilterOptions, ReadDirection,
    StreamOption, UuidOption, all_options,
};
use gesta_grpc::messages::streams::read_resp::read_event::RecordedEvent;
use gesta_grpc::messages::streams::{ReadReq, ReadResp, read_req, read_resp};
use gesta_grpc::request::Bounds;
use http_body_util::{BodyExt, Full};
use hyper::client::conn::http2::SendRequest;
use hyper::{HeaderMap, Request};
use prost::Message;
use uuid::Uuid;

use self::address::Address;
use super::{PAGE_BYTES, PAGE_EVENTS, Page, Source};
use crate::event::{Place, Role, SourceEvent};
use crate::options::Options;

const READ: &str = "/event_store.client.streams.Streams/Read";
/// How long connecting, and each piece of an answer, may take.
const ANSWER_MAX: Duration = Duration::from_secs(60);

/// A server to read from.
pub(super) struct Kurrent {
    address: Address,
    sender: Option<SendRequest<Full<Bytes>>>,
    /// Streams whose events get too old to be read, and after how long.
    ages: HashMap<String, Duration>,
    has_ages: bool,
    /// Whether a node may answer that has not yet got everything that the leader has.
    may_lag: bool,
    /// The last event that was read, which tells this server from another one.
    last: Option<(Place, Uuid)>,
    /// Whether `last` is of a checkpoint, and is to be compared with what the server has there.
    is_recalled: bool,
}

impl Kurrent {
    fn of(address: Address) -> Self {
        Self {
            address,
            sender: None,
            ages: HashMap::new(),
            has_ages: false,
            may_lag: false,
            last: None,
            is_recalled: false,
        }
    }

    /// Says whether the leader of a cluster has to answer. A follower gets all events too, but later: only who goes on
    /// after its end may read there.
    fn requires_leader(&self) -> &'static str {
        match self.may_lag {
            true => "false",
            false => "true",
        }
    }

    pub(super) async fn open(options: &Options) -> Result<Self> {
        let address = Address::parse(&options.url)?;
        address.check_login(options.plain_login)?;
        let mut source = Self {
            may_lag: options.follow,
            ..Self::of(address)
        };
        source.call(Place::START, 1, None).await?;
        Ok(source)
    }

    fn options(&self, after: Place, count: u64, prefix: Option<&str>) -> read_req::Options {
        let from = match after == Place::START {
            true => all_options::AllOption::Start(Empty {}),
            false => all_options::AllOption::Position(options::Position {
                commit_position: after.major,
                prepare_position: after.minor,
            }),
        };
        let filter = match prefix {
            None => FilterOption::NoFilter(Empty {}),
            Some(prefix) => FilterOption::Filter(FilterOptions {
                checkpoint_interval_multiplier: 1,
                filter: Some(Filter::StreamIdentifier(Expression {
                    regex: String::new(),
                    prefix: vec![prefix.to_owned()],
                })),
                window: Some(Window::Max(1_000)),
            }),
        };
        read_req::Options {
            read_direction: ReadDirection::Forwards.into(),
            resolve_links: false,
            uuid_option: Some(UuidOption {
                content: Some(UuidForm::String(Empty {})),
            }),
            control_option: Some(ControlOption { compatibility: 1 }),
            stream_option: Some(StreamOption::All(AllOptions {
                all_option: Some(from),
            })),
            count_option: Some(CountOption::Count(count)),
            filter_option: Some(filter),
        }
    }

    /// Reads a page: the event at `after` itself, if it is still there, and events after it. If there are any, the page
    /// has at least one of them.
    async fn call(
        &mut self,
        after: Place,
        count: u64,
        prefix: Option<&str>,
    ) -> Result<Vec<RecordedEvent>> {
        let answer = self
            .exchange(after, self.options(after, count, prefix))
            .await;
        if answer.is_err() {
            self.sender = None;
        }
        answer
    }

    /// Waits for a piece of an answer.
    async fn within<T>(&self, piece: impl Future<Output = T>) -> Result<T> {
        let named = self.address.named();
        tokio::time::timeout(ANSWER_MAX, piece).await.map_err(|_| {
            let text = format!("the source {named} does not answer within {ANSWER_MAX:?}");
            Error::unavailable(text)
        })
    }

    async fn exchange(
        &mut self,
        after: Place,
        wanted: read_req::Options,
    ) -> Result<Vec<RecordedEvent>> {
        let named = self.address.named();
        let fail = |error: &dyn std::fmt::Display| {
            Error::unavailable(format!("the source {named}: {error}"))
        };
        let mut sender = match self.sender.take().filter(|sender| !sender.is_closed()) {
            Some(sender) => sender,
            None => self.within(self.address.connect()).await??,
        };
        let scheme = if self.address.tls { "https" } else { "http" };
        let mut request = Request::post(format!("{scheme}://{named}{READ}"))
            .header("content-type", "application/grpc")
            .header("te", "trailers")
            .header("requires-leader", self.requires_leader());
        if let Some(login) = &self.address.login {
            request = request.header("authorization", login);
        }
        let message = ReadReq {
            options: Some(wanted),
        };
        let request = request
            .body(Full::new(framed(&message)))
            .map_err(|error| fail(&error))?;
        let ready = self.within(sender.ready()).await?;
        ready.map_err(|error| fail(&error))?;
        let answer = self.within(sender.send_request(request)).await?;
        let answer = answer.map_err(|error| fail(&error))?;
        let (head, mut body) = answer.into_parts();
        let mut trailers = head.headers;
        let mut frames = Frames::new(Bounds {
            bytes_max: usize::MAX,
            ..Bounds::OTHERS
        });
        let (mut found, mut bytes) = (Vec::<RecordedEvent>::new(), 0);
        // The event at the place comes first, and may fill a page by itself: who asks goes on after a later one only.
        let has_later = |found: &[RecordedEvent]| {
            let last = found.last();
            last.is_some_and(|event| place_of(event) > after)
        };
        while let Some(frame) = self.within(body.frame()).await? {
            match frame.map_err(|error| fail(&error))?.into_data() {
                Err(frame) => trailers = frame.into_trailers().unwrap_or_default(),
                Ok(_) if bytes >= PAGE_BYTES && has_later(&found) => {
                    // The rest is the next page.
                    self.sender = Some(sender);
                    return Ok(found);
                }
                Ok(mut data) => {
                    bytes += data.len();
                    while !data.is_empty() {
                        let message = frames.next(&mut data);
                        let message = message.map_err(|refusal| fail(&format!("{refusal:?}")))?;
                        if let Some(message) = message {
                            let message =
                                ReadResp::decode(message).map_err(|error| fail(&error))?;
                            if let Some(read_resp::Content::Event(event)) = message.content {
                                found.extend(event.event);
                            }
                        }
                    }
                }
            }
        }
        self.check(head.status.as_u16(), &trailers)?;
        self.sender = Some(sender);
        Ok(found)
    }

    /// Refuses the answer of a call that has failed.
    fn check(&self, status: u16, trailers: &HeaderMap) -> Result<()> {
        let text = |name: &str| {
            let value = trailers.get(name).and_then(|value| value.to_str().ok());
            percent_encoding::percent_decode_str(value.unwrap_or(""))
                .decode_utf8_lossy()
                .into_owned()
        };
        let named = self.address.named();
        let message = format!("the source {named} answers: {}", text("grpc-message"));
        match text("grpc-status").as_str() {
            "0" => Ok(()),
            "" => Err(Error::unavailable(format!(
                "the source {named} answers with status {status} and no status of gRPC: is it a KurrentDB server?"
            ))),
            "7" | "16" => Err(ErrorKind::Unsupported(format!(
                "{message}: reading all events needs a user who may, such as an administrator"
            ))
            .into()),
            _ if text("exception") == "not-leader" => Err(ErrorKind::Unsupported(format!(
                "the source {named} is a follower of its cluster, whose end may lie before that of the leader: name the \
                 leader, {}:{}, or follow (--follow)",
                text("leader-endpoint-host"),
                text("leader-endpoint-port")
            ))
            .into()),
            "3" | "5" | "12" => Err(ErrorKind::Unsupported(message).into()),
            _ => Err(Error::unavailable(message)),
        }
    }

    /// Reads after how long the events of which streams cannot be read any more.
    async fn read_ages(&mut self) -> Result<()> {
        let mut after = Place::START;
        loop {
            // The event at the place itself comes too.
            let wanted = PAGE_EVENTS as u64 + 1;
            let page = self.call(after, wanted, Some("$$")).await?;
            let last = page.last().map(place_of);
            for event in page {
                self.see_age(&event);
            }
            match last.filter(|last| *last > after) {
                Some(last) => after = last,
                None => return Ok(()),
            }
        }
    }

    /// Refuses a server that has another event, or nothing, where the import was. An event that was scavenged since
    /// tells nothing.
    fn compare(&self, found: Option<&RecordedEvent>) -> Result<()> {
        let Some((place, id)) = self.last else {
            return Ok(());
        };
        let is_other = match found {
            None => true,
            Some(event) if place_of(event) == place => {
                let (found, _) = read_uuid("id", event.id.as_ref()).map_err(|refusal| {
                    Error::corrupt(format!("an event of the source has no id: {refusal:?}"))
                })?;
                found != id
            }
            Some(_) => false,
        };
        match is_other {
            false => Ok(()),
            true => Err(ErrorKind::Unsupported(format!(
                "the source {} has not the event at place {place} up to which was imported: it is another server than the \
                 one with which this import was begun, or was restored; give this import a name of its own (--name)",
                self.address.named()
            ))
            .into()),
        }
    }

    fn see_age(&mut self, event: &RecordedEvent) {
        let stream = stream_of(event.stream_identifier.as_ref());
        let Some(of) = stream.strip_prefix("$$").filter(|of| !of.starts_with('$')) else {
            return;
        };
        if type_of(event) != "$metadata" {
            return;
        }
        let metadata = StreamMetadata::parse_event(event.data.clone());
        match metadata.ok().and_then(|(_, metadata)| metadata.max_age) {
            Some(age) => drop(self.ages.insert(of.to_owned(), age)),
            None => drop(self.ages.remove(of)),
        }
    }

    fn event(&self, event: RecordedEvent, now: Timestamp) -> Result<SourceEvent> {
        let stream = stream_of(event.stream_identifier.as_ref());
        let event_type = type_of(&event).to_owned();
        let described = stream.strip_prefix("$$").map(str::to_owned);
        let time = event
            .metadata
            .get("created")
            .and_then(|ticks| ticks.parse::<i64>().ok());
        // Tenths of a microsecond since 1970.
        let time = time.map(|ticks| Timestamp(ticks / 10));
        let is_old = self.ages.get(&stream).zip(time).is_some_and(|(age, time)| {
            let age = i64::try_from(age.as_micros()).unwrap_or(i64::MAX);
            now.0.saturating_sub(time.0) > age
        });
        let role = match (&described, event_type.as_str()) {
            (Some(of), "$metadata") if !of.starts_with('$') => Role::StreamMetadata,
            (Some(_), _) => Role::LeftOut("events of system streams"),
            (None, "$streamDeleted") => Role::Tombstone,
            (None, "$>") => Role::LeftOut("links"),
            (None, _) if stream.starts_with('$') => Role::LeftOut("events of system streams"),
            (None, _) if is_old => Role::LeftOut("too old by the metadata of their streams"),
            (None, _) => Role::Event,
        };
        let (id, _) = read_uuid("id", event.id.as_ref()).map_err(|refusal| {
            Error::corrupt(format!("an event of the source has no id: {refusal:?}"))
        })?;
        let place = place_of(&event);
        Ok(SourceEvent {
            key: described
                .filter(|_| role == Role::StreamMetadata)
                .unwrap_or(stream)
                .into(),
            sequence: event.stream_revision,
            place,
            id: Some(id),
            event_type: Some(event_type),
            data: event.data,
            metadata: event.custom_metadata,
            time,
            role,
            ..SourceEvent::default()
        })
    }
}

fn stream_of(identifier: Option<&StreamIdentifier>) -> String {
    identifier.map_or_else(String::new, |id| {
        String::from_utf8_lossy(&id.stream_name).into_owned()
    })
}

fn type_of(event: &RecordedEvent) -> &str {
    event.metadata.get("type").map_or("", String::as_str)
}

fn place_of(event: &RecordedEvent) -> Place {
    Place {
        major: event.commit_position,
        minor: event.prepare_position,
    }
}

#[async_trait]
impl Source for Kurrent {
    fn identity(&self) -> String {
        // A cluster answers by any of its nodes, so nothing of the address is part of what it is.
        "all".into()
    }

    fn mark(&self) -> Option<String> {
        let (place, id) = self.last?;
        Some(format!("{place} {id}"))
    }

    fn recall(&mut self, mark: &str) {
        let parsed = mark.split_once(' ').and_then(|(place, id)| {
            let (place, id) = (place.parse().ok()?, id.parse().ok()?);
            Some((place, id))
        });
        (self.last, self.is_recalled) = (parsed, parsed.is_some());
    }

    async fn page(&mut self, after: Place) -> Result<Page> {
        if !std::mem::replace(&mut self.has_ages, true)
            && let Err(error) = self.read_ages().await
        {
            self.has_ages = false;
            return Err(error);
        }
        // The event at the place itself comes too.
        let wanted = PAGE_EVENTS as u64 + 1;
        let found = self.call(after, wanted, None).await?;
        if std::mem::take(&mut self.is_recalled) {
            match self.last {
                // Everything is read again.
                Some((place, _)) if place != after => {
                    let at_place = self.call(place, 1, None).await?;
                    self.compare(at_place.first())?;
                }
                _ => self.compare(found.first())?,
            }
        }
        let now = SystemClock.now();
        let mut page = Page {
            place: after,
            end: true,
            ..Page::default()
        };
        for event in found {
            if after != Place::START && place_of(&event) <= after {
                continue;
            }
            page.place = place_of(&event);
            page.end = false;
            self.see_age(&event);
            let event = self.event(event, now)?;
            self.last = event.id.map(|id| (event.place, id));
            page.events.push(event);
        }
        Ok(page)
    }

    async fn count(&mut self, _after: Place) -> Result<Option<u64>> {
        Ok(None)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: a node that may lack the newest events is not taken for the end of the source.
    #[test]
    fn a_follower_is_asked_only_by_who_goes_on_after_its_end() {
        let mut source = Kurrent::of(Address::parse("esdb://h:1?tls=false").unwrap());
        assert_eq!(source.requires_leader(), "true");
        let mut trailers = HeaderMap::new();
        for (name, value) in [
            ("grpc-status", "5"),
            ("exception", "not-leader"),
            ("leader-endpoint-host", "other.example"),
            ("leader-endpoint-port", "2113"),
        ] {
            trailers.insert(name, value.parse().unwrap());
        }
        let error = source.check(200, &trailers).expect_err("a follower");
        assert!(error.to_string().contains("other.example:2113"), "{error}");
        source.may_lag = true;
        assert_eq!(source.requires_leader(), "false");
    }
}
