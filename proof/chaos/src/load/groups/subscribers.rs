//! Subscribers over HTTP and gRPC, and readers of pages, that go through everything. Each remembers how far it has come
//! as its protocol tells it to, comes back after every interruption, and begins anew when it is told that the history
//! is another one.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use gesta_core::{
    AllFrom, Checkpoint, ErrorKind, EventId, EventStore as _, Filter, Position, ReadAll,
    RecordedEvent, Revision, StreamId, Subscribe, SubscribeFrom, SubscribeTo, SubscriptionMessage,
    Timestamp,
};
use gesta_grpc::messages::shared::{Empty, StreamIdentifier, Uuid};
use gesta_grpc::messages::streams::{ReadReq, ReadResp, read_req, read_resp};
use gesta_grpc::{frame, ids};
use gesta_kit::judge::tails::{self, Extent, Given};
use gesta_load::machine::grpc::{self, Messages, STREAMS, identifier, read};
use gesta_report::failure::{Result, fail};
use http_body_util::{BodyExt as _, Full};
use tokio::sync::watch;
use tokio::task::JoinSet;

use super::judge::{Stored, Wanted, is_named};
use crate::world::Way;

/// Pause before a subscriber comes back.
const BACK_OFF: Duration = Duration::from_millis(20);
/// Events of a page, and the pause between two at the end.
const PAGE: usize = 500;
const POLL_PAUSE: Duration = Duration::from_millis(3);
/// Statuses of a refusal, and of calls that may be made again.
const REFUSED: &str = "3";
const AGAIN: [&str; 5] = ["", "1", "8", "10", "14"];

/// How a subscriber is served.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Wire {
    Http,
    Grpc,
    /// Reads pages, again and again at the end.
    Pages,
}

/// Why a subscription has ended.
enum Ended {
    /// The history is another one.
    OtherHistory(String),
    /// Nothing was said about the history.
    Broken,
    /// It should not have ended so.
    Wrongly(String),
}

/// What a subscriber was given until it was told of another history.
struct Past {
    given: Vec<Given>,
    told: String,
}

#[derive(Default)]
struct Seen {
    past: Vec<Past>,
    /// Since it has begun anew.
    given: Vec<Given>,
    /// The greatest revision in this stretch.
    furthest: u64,
    /// The position of the last event, where every event of one log is given.
    position: Option<Position>,
    wrong: Vec<String>,
}

/// Where it goes on: as the protocol says.
#[derive(Default)]
struct At {
    /// Of HTTP.
    checkpoint: Option<Checkpoint>,
    /// Of gRPC, of all events.
    position: Option<u64>,
}

struct Subscriber {
    name: String,
    wanted: Wanted,
    wire: Wire,
    /// It is given every event of one log.
    has_whole_log: bool,
    /// It is away while the databases fail over.
    naps: bool,
    seen: Mutex<Seen>,
}

/// All of them. Whoever drops it ends them.
pub(super) struct Subscribers {
    all: Vec<Arc<Subscriber>>,
    asleep: watch::Sender<bool>,
    tasks: JoinSet<()>,
}

/// What a stretch has shown.
pub(super) struct Verdict {
    /// Subscribers that were told of another history.
    pub(super) told: u64,
    pub(super) wrong: Vec<String>,
}

impl Subscribers {
    /// Starts them: of all events, which gRPC has of one log only, and of a stream; there all the time, and away while
    /// commits are lost. Each of them turns to another server when one fails; if there are several servers, each has
    /// one more that stays there.
    pub(super) fn start(ways: &[Way], logs: u16, stream: &StreamId) -> Self {
        let mut subscribers = Self {
            all: Vec::new(),
            asleep: watch::Sender::new(false),
            tasks: JoinSet::new(),
        };
        for wire in [Wire::Http, Wire::Grpc, Wire::Pages] {
            for wanted in [Wanted::All, Wanted::Stream(stream.clone())] {
                let is_there = match (wire, &wanted) {
                    (Wire::Grpc, Wanted::All) => logs == 1,
                    (Wire::Pages, Wanted::Stream(_)) => false,
                    _ => true,
                };
                if !is_there {
                    continue;
                }
                for naps in [false, true] {
                    let what = match wanted {
                        Wanted::All => "all events",
                        Wanted::Stream(_) => "a stream",
                    };
                    let away = if naps { ", away meanwhile" } else { "" };
                    let subscriber = Subscriber {
                        name: format!("{wire:?} subscriber of {what}{away}"),
                        has_whole_log: logs == 1 && wanted == Wanted::All,
                        wanted: wanted.clone(),
                        wire,
                        naps,
                        seen: Mutex::default(),
                    };
                    subscribers.begin(subscriber, ways);
                }
            }
        }
        let each = if ways.len() > 1 { ways } else { &[] };
        for way in each {
            let subscriber = Subscriber {
                name: format!("Http subscriber of all events at {}", way.name),
                has_whole_log: logs == 1,
                wanted: Wanted::All,
                wire: Wire::Http,
                naps: false,
                seen: Mutex::default(),
            };
            subscribers.begin(subscriber, std::slice::from_ref(way));
        }
        subscribers
    }

    /// One begins, which turns from each of these ways to the next.
    fn begin(&mut self, subscriber: Subscriber, ways: &[Way]) {
        let subscriber = Arc::new(subscriber);
        let run = Arc::clone(&subscriber).run(ways.to_vec(), self.asleep.subscribe());
        self.tasks.spawn(run);
        self.all.push(subscriber);
    }

    /// Lets those that nap go away, or come back.
    pub(super) fn sleep(&self, asleep: bool) {
        self.asleep.send_replace(asleep);
    }

    /// The names of those that have not got all that is stored.
    pub(super) fn behind(&self, stored: &Stored) -> Vec<String> {
        let behind = self.all.iter().filter(|one| {
            let last = stored.wanted(&one.wanted).pop();
            let seen = one.seen.lock().unwrap();
            last.is_some_and(|last| !seen.given.iter().rev().any(|given| *given == last))
        });
        behind.map(|one| one.name.clone()).collect()
    }

    /// The greatest revision that one of a stream was given in this stretch.
    pub(super) fn furthest(&self) -> u64 {
        let streams = self.all.iter().filter(|one| one.wanted != Wanted::All);
        let furthest = streams.map(|one| one.seen.lock().unwrap().furthest);
        furthest.max().unwrap_or_default()
    }

    /// Judges what they were given, as nobody appends any more.
    pub(super) fn judge(&self, stored: &Stored) -> Verdict {
        let mut verdict = Verdict {
            told: 0,
            wrong: Vec::new(),
        };
        for one in &self.all {
            let seen = &mut *one.seen.lock().unwrap();
            let wanted = stored.wanted(&one.wanted);
            let wrong = std::mem::take(&mut seen.wrong);
            for past in seen.past.drain(..) {
                verdict.told += 1;
                let extent = Extent::BeginningThenLost;
                let found = tails::judge(&one.name, &past.given, &wanted, stored.logs, extent);
                let found = found.violations.iter();
                let found = found.map(|text| format!("{text}; told: {}", past.told));
                verdict.wrong.extend(found);
            }
            let found = tails::judge(&one.name, &seen.given, &wanted, stored.logs, Extent::All);
            let found = found.violations.iter().map(ToString::to_string);
            verdict.wrong.extend(found);
            let named = wrong
                .into_iter()
                .map(|text| format!("{}: {text}", one.name));
            verdict.wrong.extend(named);
            seen.furthest = 0;
        }
        verdict
    }
}

impl Subscriber {
    async fn run(self: Arc<Self>, ways: Vec<Way>, mut asleep: watch::Receiver<bool>) {
        let (mut at, mut nap) = (At::default(), asleep.clone());
        for way in ways.iter().cycle() {
            if self.naps && asleep.wait_for(|asleep| !asleep).await.is_err() {
                return;
            }
            let ended = tokio::select! {
                ended = self.follow(way, &mut at) => ended,
                _ = nap.wait_for(|asleep| *asleep), if self.naps => Ended::Broken,
            };
            match ended {
                Ended::OtherHistory(told) => {
                    let seen = &mut *self.seen.lock().unwrap();
                    let given = std::mem::take(&mut seen.given);
                    seen.position = None;
                    seen.past.push(Past { given, told });
                    at = At::default();
                }
                Ended::Broken => {}
                Ended::Wrongly(text) => self.seen.lock().unwrap().wrong.push(text),
            }
            tokio::time::sleep(BACK_OFF).await;
        }
    }

    async fn follow(&self, way: &Way, at: &mut At) -> Ended {
        let ended = match self.wire {
            Wire::Http => self.over_http(way, at).await,
            Wire::Grpc => self.over_grpc(way, at).await,
            Wire::Pages => self.by_pages(way, at).await,
        };
        // The connection is gone, or there was none.
        ended.unwrap_or(Ended::Broken)
    }

    async fn over_http(&self, way: &Way, at: &mut At) -> Result<Ended> {
        let store = way.connect()?;
        let to = match &self.wanted {
            Wanted::All => SubscribeTo::All(Filter::ALL),
            Wanted::Stream(stream) => SubscribeTo::Stream(stream.clone()),
        };
        let from = at.checkpoint.clone();
        let from = from.map_or(SubscribeFrom::Start, SubscribeFrom::Checkpoint);
        let mut subscription = match store.subscribe(Subscribe { to, from }).await {
            Ok(subscription) => subscription,
            Err(error) => return Ok(Ended::of(&error)),
        };
        loop {
            let checkpoint = match subscription.next().await {
                Some(Ok(SubscriptionMessage::Event { event, checkpoint })) => {
                    self.event(&event);
                    checkpoint
                }
                Some(Ok(
                    SubscriptionMessage::Checkpoint(checkpoint)
                    | SubscriptionMessage::CaughtUp(checkpoint)
                    | SubscriptionMessage::FellBehind(checkpoint),
                )) => checkpoint,
                Some(Err(error)) => return Ok(Ended::of(&error)),
                None => return Ok(Ended::Broken),
            };
            at.checkpoint = Some(checkpoint);
        }
    }

    async fn by_pages(&self, way: &Way, at: &mut At) -> Result<Ended> {
        let store = way.connect()?;
        loop {
            let from = at.checkpoint.clone();
            let from = from.map_or(AllFrom::Start, AllFrom::Checkpoint);
            let page = match store
                .read_all(ReadAll::forwards().from(from).limit(PAGE))
                .await
            {
                Ok(page) => page,
                Err(error) => return Ok(Ended::of(&error)),
            };
            page.events.iter().for_each(|event| self.event(event));
            at.checkpoint = Some(page.next);
            if page.end {
                tokio::time::sleep(POLL_PAUSE).await;
            }
        }
    }

    async fn over_grpc(&self, way: &Way, at: &mut At) -> Result<Ended> {
        let mut calls = grpc::open_url(&way.url).await?;
        // A revision does not tell of which history it is, so the last event seen is asked for once more.
        let mut last = match self.wanted {
            Wanted::Stream(_) => self.seen.lock().unwrap().given.last().cloned(),
            Wanted::All => None,
        };
        let request = request(&self.wanted, at.position, last.as_ref());
        let body = Full::new(frame::framed(&request)).boxed();
        let mut messages = Messages::of(calls.call(STREAMS, "Read", body).await?);
        while let Some(message) = messages.next().await? {
            match read::<ReadResp>(message)?.content {
                Some(read_resp::Content::Event(event)) => {
                    let Some(event) = event.event else {
                        return fail("a message without an event");
                    };
                    let stream = event.stream_identifier.as_ref();
                    let created = event.metadata.get("created");
                    let given = given(event.id.as_ref(), stream, event.stream_revision, created)?;
                    match last.take() {
                        Some(last) if last == given => continue,
                        Some(last) => {
                            let text = format!("another event where {last:?} was: {given:?}");
                            return Ok(Ended::OtherHistory(text));
                        }
                        None => self.given(given, &event.data),
                    }
                    at.position = Some(event.commit_position);
                }
                Some(read_resp::Content::Checkpoint(passed)) => {
                    at.position = Some(passed.commit_position);
                }
                _ => {}
            }
        }
        let (status, text) = (messages.status(), messages.text("grpc-message"));
        Ok(match status {
            REFUSED => Ended::OtherHistory(text.to_owned()),
            _ if AGAIN.contains(&status) => Ended::Broken,
            _ => Ended::Wrongly(format!("ended with status {status}: {text}")),
        })
    }

    /// An event as the store gives it, whose position tells whether one before it is missing.
    fn event(&self, event: &RecordedEvent) {
        if self.has_whole_log {
            let seen = &mut *self.seen.lock().unwrap();
            let last = seen.position.replace(event.position);
            let (wanted, given) = (last.map_or(Position(1), Position::next), event.position);
            if given != wanted {
                seen.wrong
                    .push(format!("was given {given} where {wanted} comes next"));
            }
        }
        self.given(Given::without_position(event), &event.data);
    }

    fn given(&self, given: Given, data: &[u8]) {
        if given.stream.is_system() {
            return;
        }
        let seen = &mut *self.seen.lock().unwrap();
        if !is_named(given.stream.as_str(), data) {
            seen.wrong
                .push(format!("was given another's name: {given:?}"));
        }
        seen.furthest = seen.furthest.max(given.revision.0);
        seen.given.push(given);
    }
}

impl Ended {
    fn of(error: &gesta_core::Error) -> Self {
        match error.kind() {
            ErrorKind::InvalidCheckpoint(text) => Self::OtherHistory(text.clone()),
            _ if error.is_retryable() => Self::Broken,
            _ => Self::Wrongly(error.to_string()),
        }
    }
}

/// An event of a message. `created` are tenths of microseconds.
pub(super) fn given(
    id: Option<&Uuid>,
    stream: Option<&StreamIdentifier>,
    revision: u64,
    created: Option<&String>,
) -> Result<Given> {
    let Some(created) = created.and_then(|ticks| ticks.parse::<i64>().ok()) else {
        return fail(format!("an event without its time: {id:?}, {created:?}"));
    };
    let (Ok((id, _)), Ok(stream)) = (ids::read_uuid("id", id), ids::stream(stream)) else {
        return fail(format!("an event without id or stream: {id:?}, {stream:?}"));
    };
    Ok(Given {
        stream,
        revision: Revision(revision),
        id: EventId(id),
        created: Timestamp(created / 10),
        position: None,
    })
}

fn request(wanted: &Wanted, after: Option<u64>, last: Option<&Given>) -> ReadReq {
    use read_req::options::{
        AllOptions, CountOption, FilterOption, Position, StreamOption, StreamOptions,
        SubscriptionOptions, UuidOption, all_options::AllOption, stream_options::RevisionOption,
        uuid_option,
    };
    let stream_option = match wanted {
        Wanted::All => StreamOption::All(AllOptions {
            all_option: Some(match after {
                None => AllOption::Start(Empty {}),
                Some(at) => AllOption::Position(Position {
                    commit_position: at,
                    prepare_position: at,
                }),
            }),
        }),
        Wanted::Stream(stream) => StreamOption::Stream(StreamOptions {
            stream_identifier: identifier(stream.as_str()),
            revision_option: Some(match last.and_then(|last| last.revision.0.checked_sub(1)) {
                None => RevisionOption::Start(Empty {}),
                Some(before) => RevisionOption::Revision(before),
            }),
        }),
    };
    let structured = uuid_option::Content::Structured(Empty {});
    ReadReq {
        options: Some(read_req::Options {
            read_direction: 0,
            resolve_links: false,
            uuid_option: Some(UuidOption {
                content: Some(structured),
            }),
            control_option: None,
            stream_option: Some(stream_option),
            count_option: Some(CountOption::Subscription(SubscriptionOptions {})),
            filter_option: Some(FilterOption::NoFilter(Empty {})),
        }),
    }
}
