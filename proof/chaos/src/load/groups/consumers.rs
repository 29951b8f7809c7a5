//! Consumer groups, whose consumers come over gRPC, answer in every way that there is, and come back after every
//! interruption.

use std::collections::HashSet;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use gesta::groups::{ConsumerGroups as _, Create, GroupId, Settings, Source};
use gesta_core::{Filter, Revision, StreamId};
use gesta_grpc::messages::groups::{ReadReq, ReadResp, read_req, read_resp};
use gesta_grpc::messages::shared::Empty;
use gesta_grpc::{frame, ids};
use gesta_kit::history::Deliveries;
use gesta_kit::judge::groups;
use gesta_kit::judge::tails::Given;
use gesta_load::entities::tally::read_stream;
use gesta_load::machine::grpc::{self, GROUPS, Messages, identifier, read};
use gesta_load::random::Random;
use gesta_report::failure::{Context, Result, fail};
use http_body_util::BodyExt as _;
use http_body_util::channel::Channel;
use tokio::task::JoinSet;

use super::judge::{Stored, Wanted};
use super::subscribers::given;
use crate::world::{Operator, Way};

/// Consumers of each group.
const CONSUMERS: u64 = 2;
/// Events that a consumer holds.
const BUFFER: i32 = 20;
/// Messages of a consumer that wait to be sent.
const WAITING: usize = 64;
/// Pause before a consumer comes back.
const BACK_OFF: Duration = Duration::from_millis(20);
/// Statuses.
const FAILED_PRECONDITION: &str = "9";
const NOT_FOUND: &str = "5";
const AGAIN: [&str; 5] = ["", "1", "8", "10", "14"];

struct Group {
    id: GroupId,
    wanted: Wanted,
    history: Deliveries<Given>,
    wrong: Mutex<Vec<String>>,
}

/// All groups. Whoever drops it ends their consumers.
pub(crate) struct Consumers {
    all: Vec<Arc<Group>>,
    _consumers: JoinSet<()>,
}

impl Consumers {
    /// Creates a group on each of these streams, and one on all events if there is one log, and starts their consumers.
    pub(crate) async fn start(
        ways: &[Way],
        logs: u16,
        streams: &[StreamId],
        operator: &Arc<Operator>,
        seed: u64,
    ) -> Result<Self> {
        let mut sources: Vec<Source> = streams.iter().cloned().map(Source::Stream).collect();
        if logs == 1 {
            sources.push(Source::All);
        }
        let (mut all, mut consumers) = (Vec::new(), JoinSet::new());
        for source in sources {
            let wanted = match &source {
                Source::Stream(stream) => Wanted::Stream(stream.clone()),
                _ => Wanted::All,
            };
            let id = GroupId::new(source, "workers").context("the name of a group")?;
            create(ways, &id).await?;
            let group = Arc::new(Group {
                id,
                wanted,
                history: Deliveries::new(),
                wrong: Mutex::default(),
            });
            for consumer in 0..CONSUMERS {
                let random = Random::fork(seed, 20_000 + CONSUMERS * all.len() as u64 + consumer);
                let (group, operator) = (Arc::clone(&group), Arc::clone(operator));
                consumers.spawn(group.consume(ways.to_vec(), operator, random));
            }
            all.push(group);
        }
        Ok(Self {
            all,
            _consumers: consumers,
        })
    }

    /// Events that are neither finished nor parked, by the names of the groups.
    pub(crate) async fn unsettled(&self, way: &Way, stored: &Stored) -> Result<Vec<String>> {
        let (store, mut open) = (way.connect()?, Vec::new());
        for group in &self.all {
            let links = read_stream(&store, group.id.parked_stream().as_str()).await?;
            let links = links.iter().filter_map(|link| groups::linked(&link.data));
            let parked: HashSet<(Revision, StreamId)> = links.collect();
            let wanted = stored.wanted(&group.wanted);
            let is_parked = |one: &&Given| parked.contains(&(one.revision, one.stream.clone()));
            let parked: Vec<Given> = wanted.iter().filter(is_parked).cloned().collect();
            let left = groups::unsettled(&group.history, &wanted, &parked);
            if let Some(first) = left.first() {
                open.push(format!(
                    "group {}: {} events were not delivered, first {first:?}",
                    group.id,
                    left.len()
                ));
            }
        }
        Ok(open)
    }

    /// How many events were delivered so far.
    pub(crate) fn deliveries(&self) -> u64 {
        let all = self.all.iter();
        all.map(|group| group.history.counts().0 as u64).sum()
    }

    /// What should not have happened.
    pub(crate) fn wrong(&self) -> Vec<String> {
        let all = self.all.iter().flat_map(|group| {
            let wrong = std::mem::take(&mut *group.wrong.lock().unwrap());
            wrong
                .into_iter()
                .map(|text| format!("group {}: {text}", group.id))
        });
        all.collect()
    }
}

/// Creates a group, through the server that is to run it.
async fn create(ways: &[Way], group: &GroupId) -> Result<()> {
    let settings = Settings {
        message_timeout_ms: 2_000,
        max_retry_count: 100,
        checkpoint_after_ms: 200,
        min_checkpoint_count: 1,
        max_checkpoint_count: 50,
        ..Settings::default()
    };
    let create = Create {
        group: group.clone(),
        settings,
        filter: Filter::ALL,
    };
    let mut last = String::new();
    for _ in 0..100 {
        for way in ways {
            match way.connect()?.groups().create(&create).await {
                Ok(_) => return Ok(()),
                Err(error) => last = error.to_string(),
            }
        }
        tokio::time::sleep(10 * BACK_OFF).await;
    }
    fail(format!("group {group} cannot be created: {last}"))
}

impl Group {
    async fn consume(self: Arc<Self>, ways: Vec<Way>, operator: Arc<Operator>, mut random: Random) {
        for way in ways.iter().cycle() {
            match self.join(way, &mut random).await {
                // The connection is gone, or there was none.
                Err(_) => {}
                Ok((status, text)) if AGAIN.contains(&status.as_str()) => drop(text),
                Ok((status, text)) => match status.as_str() {
                    FAILED_PRECONDITION if text.contains("halted") => {
                        operator.reset(&self.id.to_string(), &way.url).await;
                    }
                    NOT_FOUND if text.contains("not-leader") => {}
                    _ => {
                        let text = format!("a consumer ended with status {status}: {text}");
                        self.wrong.lock().unwrap().push(text);
                    }
                },
            }
            tokio::time::sleep(BACK_OFF).await;
        }
    }

    /// Works until the call ends; gives its status, and what is said beside it.
    async fn join(&self, way: &Way, random: &mut Random) -> Result<(String, String)> {
        let mut calls = grpc::open_url(&way.url).await?;
        let (mut sender, body) = Channel::new(WAITING);
        sender.send_data(frame::framed(&self.options())).await?;
        let answer = calls.call(GROUPS, "Read", body.boxed()).await?;
        let mut messages = Messages::of(answer);
        while let Some(message) = messages.next().await? {
            let Some(read_resp::Content::Event(event)) = read::<ReadResp>(message)?.content else {
                continue;
            };
            let Some(event) = event.event else {
                return fail("a message without an event");
            };
            match self.answer(&event, random)? {
                None => return Ok(Default::default()),
                Some(answer) => sender.send_data(frame::framed(&answer)).await?,
            }
        }
        let text = format!(
            "{} {}",
            messages.text("exception"),
            messages.text("grpc-message")
        );
        Ok((messages.status().to_owned(), text))
    }

    /// What a consumer says of an event; none if it goes away instead.
    fn answer(
        &self,
        event: &read_resp::read_event::RecordedEvent,
        random: &mut Random,
    ) -> Result<Option<ReadReq>> {
        use read_req::nack::Action;
        let stream = event.stream_identifier.as_ref();
        let created = event.metadata.get("created");
        let given = given(event.id.as_ref(), stream, event.stream_revision, created)?;
        self.history.delivered(0, given.clone(), 0);
        let ids = vec![ids::uuid(given.id.0, ids::UuidForm::Structured)];
        let nack = |action: Action| {
            read_req::Content::Nack(read_req::Nack {
                id: bytes::Bytes::new(),
                ids: ids.clone(),
                action: action.into(),
                reason: "for the test".into(),
            })
        };
        let finish = || {
            self.history.finish(given.clone());
        };
        let content = match random.below(1_000) {
            0..3 => return Ok(None),
            3..43 => nack(Action::Retry),
            43..83 => nack(Action::Park),
            83..103 => {
                finish();
                nack(Action::Skip)
            }
            _ => {
                finish();
                read_req::Content::Ack(read_req::Ack {
                    id: bytes::Bytes::new(),
                    ids: ids.clone(),
                })
            }
        };
        Ok(Some(ReadReq {
            content: Some(content),
        }))
    }

    fn options(&self) -> ReadReq {
        use read_req::options::{StreamOption, UuidOption, uuid_option};
        let stream_option = match &self.wanted {
            Wanted::All => StreamOption::All(Empty {}),
            Wanted::Stream(stream) => {
                StreamOption::StreamIdentifier(identifier(stream.as_str()).unwrap_or_default())
            }
        };
        let structured = uuid_option::Content::Structured(Empty {});
        let options = read_req::Options {
            group_name: self.id.name().to_owned(),
            buffer_size: BUFFER,
            uuid_option: Some(UuidOption {
                content: Some(structured),
            }),
            stream_option: Some(stream_option),
        };
        ReadReq {
            content: Some(read_req::Content::Options(options)),
        }
    }
}
