//! Does one round: the same operations on the store under test and on the model.

use std::collections::HashSet;
use std::fmt::Debug;

use gesta_core::{
    AllFrom, Append, Appended, Checkpoint, DeleteKind, DeleteStream, Deleted, Direction, Error,
    EventData, EventId, EventStore, EventStoreExt, ExpectedRevision, Filter, Incarnation,
    MetadataSet, Place, Position, ReadAll, ReadStream, RecordedEvent, Revision, SetStreamMetadata,
    StreamFrom, StreamMetadata, SubscribeFrom, Tags, Timestamp,
};
use gesta_memory::{Config, MemoryStore};
use uuid::Uuid;

use super::operation::{AppendPart, Change, Claim, Event, From, Ids, Operation, STREAMS};
use crate::factory::{StoreFactory, TestStore};
use crate::support::{ErrorKind, Follower, all_pages, by_log, event, list, stream, tag};

/// The two stores that must agree.
struct World {
    tested: TestStore,
    tested_incarnation: Incarnation,
    model: MemoryStore,
    model_incarnation: Incarnation,
    /// The appends so far, which may be sent again.
    sent: Vec<Append>,
    ids: HashSet<EventId>,
    logs: u16,
}

/// Does the operations and compares every answer.
pub(super) async fn round(
    factory: &dyn StoreFactory,
    operations: Vec<Operation>,
) -> Result<(), String> {
    let tested = factory.create().await;
    let logs = factory.logs();
    let model = MemoryStore::with_config(Config {
        logs,
        ..Config::default()
    });
    let incarnation = |info: gesta_core::StoreInfo| info.incarnation;
    let mut world = World {
        tested_incarnation: tested.info().await.map(incarnation).map_err(describe)?,
        model_incarnation: model.info().await.map(incarnation).map_err(describe)?,
        tested,
        model,
        sent: Vec::new(),
        ids: HashSet::new(),
        logs,
    };
    let mut live = Follower::all(world.tested.as_ref(), SubscribeFrom::Start).await;
    for (step, operation) in operations.iter().enumerate() {
        let done = world.apply(operation).await;
        done.map_err(|difference| format!("step {step}, {operation:?}: {difference}"))?;
    }
    world.compare_all(&mut live).await
}

fn describe(error: Error) -> String {
    error.to_string()
}

/// Fails if the two answers differ.
fn same<T: PartialEq + Debug>(what: &str, tested: &T, model: &T) -> Result<(), String> {
    if tested == model {
        return Ok(());
    }
    Err(format!(
        "{what} differ\n  tested: {tested:?}\n  model:  {model:?}"
    ))
}

/// How exactly errors are compared.
#[derive(Clone, Copy, PartialEq)]
enum Errors {
    Exactly,
    /// Only their kinds are compared, since stores may tell differently which of several streams is to blame.
    ByKind,
}

/// Describes an error, without what may differ.
fn error_of(error: &Error, errors: Errors) -> String {
    match error.kind() {
        ErrorKind::InvalidArgument { .. } => "invalid argument".into(),
        ErrorKind::InvalidCheckpoint(_) => "invalid checkpoint".into(),
        ErrorKind::WrongExpectedRevision { .. } if errors == Errors::ByKind => "wrong".into(),
        kind => format!("{kind:?}"),
    }
}

fn same_answer<T: PartialEq + Debug>(
    tested: gesta_core::Result<T>,
    model: gesta_core::Result<T>,
    errors: Errors,
) -> Result<(), String> {
    let plain = |error: Error| error_of(&error, errors);
    same("answers", &tested.map_err(plain), &model.map_err(plain))
}

impl World {
    async fn apply(&mut self, operation: &Operation) -> Result<(), String> {
        match operation {
            Operation::Append(parts) => {
                let mut streams = Vec::new();
                for part in parts {
                    streams.extend(self.part(part).await.streams);
                }
                let append = Append {
                    streams,
                    conditions: Vec::new(),
                };
                self.sent.push(append.clone());
                self.append(append).await
            }
            Operation::AppendIf(part, conditions) => {
                let mut append = self.part(part).await;
                for (name, claim) in conditions {
                    let expected = self.expected(name, *claim).await;
                    append = append.provided_that(stream(name), expected);
                }
                self.sent.push(append.clone());
                self.append(append).await
            }
            Operation::Again(back, change) => self.again(*back, *change).await,
            Operation::Delete(name, claim, kind) => self.delete(name, *claim, *kind).await,
            Operation::SetMetadata(name, claim, json) => {
                self.set_metadata(name, *claim, json).await
            }
            Operation::AppendMetadata(name, claim, json, ids) => {
                let name = format!("$${name}");
                let mut document = event("$metadata");
                document.data = (*json).into();
                document.id = self.id(*ids);
                let expected = self.expected(&name, *claim).await;
                let append = Append::to(stream(&name), expected, vec![document]);
                self.sent.push(append.clone());
                self.append(append).await
            }
            Operation::Metadata(name) => {
                let tested = self.tested.stream_metadata(stream(name)).await;
                let model = self.model.stream_metadata(stream(name)).await;
                same_answer(tested, model, Errors::Exactly)
            }
            Operation::ReadStream {
                stream: name,
                from,
                direction,
                limit,
            } => self.read_stream(name, *from, *direction, *limit).await,
            Operation::ReadAll {
                from,
                direction,
                limit,
                filter,
            } => self.read_all(*from, *direction, *limit, filter).await,
            Operation::List(prefix, limit) => {
                let tested = list(self.tested.as_ref(), prefix, *limit).await;
                same("lists", &tested, &list(&self.model, prefix, *limit).await)
            }
        }
    }

    async fn delete(&mut self, name: &str, claim: Claim, kind: DeleteKind) -> Result<(), String> {
        let request = DeleteStream {
            stream: stream(name),
            expected: self.expected(name, claim).await,
            kind,
        };
        let tested = self.tested.delete_stream(request.clone()).await;
        let model = self.model.delete_stream(request).await;
        let plain = |it: Deleted| (it.log, it.position, it.checkpoint.place);
        same_answer(tested.map(plain), model.map(plain), Errors::Exactly)
    }

    async fn set_metadata(
        &mut self,
        name: &str,
        claim: Claim,
        json: &'static str,
    ) -> Result<(), String> {
        let request = SetStreamMetadata {
            stream: stream(name),
            expected: self.expected(&format!("$${name}"), claim).await,
            metadata: StreamMetadata::parse(json).map_err(describe)?,
        };
        let tested = self.tested.set_stream_metadata(request.clone()).await;
        let model = self.model.set_stream_metadata(request).await;
        let plain = |it: MetadataSet| (it.log, it.position, it.checkpoint.place);
        same_answer(tested.map(plain), model.map(plain), Errors::Exactly)
    }

    /// Returns a new id that the model knows, or none.
    fn id(&mut self, ids: Ids) -> Option<EventId> {
        let id = EventId(Uuid::from_u128(self.ids.len() as u128 + 1));
        (ids == Ids::Given).then(|| {
            self.ids.insert(id);
            id
        })
    }

    fn event(&mut self, event: &Event, ids: Ids) -> EventData {
        let tags = event.tags.iter().map(|name| tag(name)).collect();
        EventData {
            id: self.id(ids),
            data: event.data.clone().into(),
            ..EventData::binary(event.event_type.parse().expect("valid"), "")
        }
        .with_tags(Tags::new(tags).expect("different"))
    }

    async fn part(&mut self, part: &AppendPart) -> Append {
        let events = part.events.iter().map(|event| self.event(event, part.ids));
        let events = events.collect();
        let expected = self.expected(part.stream, part.claim).await;
        Append::to(stream(part.stream), expected, events)
    }

    /// Returns the claim as an expected revision, by what the model holds.
    async fn expected(&self, name: &str, claim: Claim) -> ExpectedRevision {
        match claim {
            Claim::Any => ExpectedRevision::Any,
            Claim::NoStream => ExpectedRevision::NoStream,
            Claim::StreamExists => ExpectedRevision::StreamExists,
            Claim::Last(offset) => {
                let all = self.model.read_everything().await.unwrap_or_default();
                let events = all.iter().filter(|event| event.stream.as_str() == name);
                let last = events.map(|event| event.revision.0).max().unwrap_or(0);
                ExpectedRevision::Exact(Revision(last.saturating_add_signed(offset)))
            }
        }
    }

    async fn again(&mut self, back: usize, change: Change) -> Result<(), String> {
        let Some(at) = self.sent.len().checked_sub(back + 1) else {
            return Ok(());
        };
        let mut append = self.sent[at].clone();
        match change {
            Change::Nothing => {}
            Change::Shorter => append.streams[0].events.truncate(1),
            Change::Longer => {
                let id = self.id(Ids::Given);
                append.streams[0].events.push(EventData {
                    id,
                    ..event("added")
                });
            }
            Change::Claim(claim) => {
                let name = append.streams[0].stream.clone();
                append.streams[0].expected = self.expected(name.as_str(), claim).await;
            }
            Change::FewerStreams => append.streams.truncate(1),
        }
        self.append(append).await
    }

    async fn append(&self, append: Append) -> Result<(), String> {
        let errors = match append.named_streams().count() {
            1 => Errors::Exactly,
            _ => Errors::ByKind,
        };
        let tested = self.tested.append(append.clone()).await;
        let model = self.model.append(append).await;
        let tested = tested.map(|answer| self.plain_answer(answer, self.tested_incarnation));
        let model = model.map(|answer| self.plain_answer(answer, self.model_incarnation));
        same_answer(tested, model, errors)
    }

    fn plain_answer(&self, mut answer: Appended, incarnation: Incarnation) -> Appended {
        assert_eq!(
            answer.checkpoint.incarnation, incarnation,
            "its own incarnation"
        );
        answer.checkpoint.incarnation = self.model_incarnation;
        answer
    }

    /// Returns an event without what may differ.
    fn plain(&self, mut event: RecordedEvent) -> RecordedEvent {
        event.created = Timestamp(0);
        if !self.ids.contains(&event.id) {
            event.id = EventId(Uuid::nil());
        }
        event
    }

    fn plain_all(&self, events: Vec<RecordedEvent>) -> Vec<RecordedEvent> {
        events.into_iter().map(|event| self.plain(event)).collect()
    }

    async fn read_stream(
        &self,
        name: &str,
        from: From,
        direction: Direction,
        limit: usize,
    ) -> Result<(), String> {
        let request = ReadStream {
            stream: stream(name),
            from: match from {
                From::Start => StreamFrom::Start,
                From::End => StreamFrom::End,
                From::Within(hundredths) => StreamFrom::Revision(Revision(hundredths / 8)),
            },
            direction,
            limit,
        };
        let mut tested = self.tested.read_stream(request.clone()).await;
        let mut model = self.model.read_stream(request).await;
        for page in [&mut tested, &mut model].into_iter().flatten() {
            page.events = self.plain_all(std::mem::take(&mut page.events));
        }
        same_answer(tested, model, Errors::Exactly)
    }

    async fn read_all(
        &self,
        from: From,
        direction: Direction,
        limit: usize,
        filter: &Filter,
    ) -> Result<(), String> {
        let heads = self.model.info().await.map_err(describe)?.heads;
        let place = |incarnation| match from {
            From::Start => AllFrom::Start,
            From::End => AllFrom::End,
            From::Within(hundredths) => {
                let at = |head: &Position| Position(head.0 * hundredths / 100);
                AllFrom::Checkpoint(Checkpoint::logs(
                    incarnation,
                    heads.iter().map(at).collect(),
                ))
            }
        };
        let request = |incarnation| ReadAll {
            only: None,
            from: place(incarnation),
            direction,
            limit,
            filter: filter.clone(),
        };
        let tested = request(self.tested_incarnation);
        let model = request(self.model_incarnation);
        match self.model.read_all(model.clone()).await {
            // Pages may be cut differently and then mix logs otherwise, but all of them together must agree.
            Ok(_) => {
                let (tested, tested_end) = all_pages(self.tested.as_ref(), tested).await;
                let (model, model_end) = all_pages(&self.model, model).await;
                let (tested, model) = (by_log(tested), by_log(model));
                same("reads", &self.plain_all(tested), &self.plain_all(model))?;
                match direction {
                    Direction::Forwards => same("ends", &tested_end.place, &model_end.place),
                    Direction::Backwards => Ok(()),
                }
            }
            Err(error) => {
                let none = |_| ();
                let answer = self.tested.read_all(tested).await.map(none);
                same_answer(answer, Err(error), Errors::Exactly)
            }
        }
    }

    /// Compares all that can be read.
    async fn compare_all(&self, live: &mut Follower) -> Result<(), String> {
        for request in [ReadAll::forwards(), ReadAll::backwards()] {
            let (tested, _) = all_pages(self.tested.as_ref(), request.clone()).await;
            let (model, _) = all_pages(&self.model, request).await;
            let (tested, model) = (by_log(tested), by_log(model));
            same(
                "all events",
                &self.plain_all(tested),
                &self.plain_all(model),
            )?;
        }
        let metadata = STREAMS.iter().map(|name| format!("$${name}"));
        for name in STREAMS.iter().map(|&name| name.to_owned()).chain(metadata) {
            for direction in [Direction::Forwards, Direction::Backwards] {
                let from = match direction {
                    Direction::Forwards => From::Start,
                    Direction::Backwards => From::End,
                };
                let read = self.read_stream(&name, from, direction, 1_000).await;
                read.map_err(|difference| format!("stream {name}: {difference}"))?;
            }
        }
        for prefix in ["", "$"] {
            let tested = list(self.tested.as_ref(), prefix, 3).await;
            same("lists", &tested, &list(&self.model, prefix, 4).await)?;
        }
        self.compare_subscriptions(live).await
    }

    /// Compares what a subscriber since the beginning and one that begins now have received.
    async fn compare_subscriptions(&self, live: &mut Follower) -> Result<(), String> {
        let stored = by_log(self.tested.read_everything().await.map_err(describe)?);
        let mut late = Follower::all(self.tested.as_ref(), SubscribeFrom::Start).await;
        let caught_up = late.until_caught_up().await;
        let seen = live.events(stored.len()).await;
        for (what, got) in [("a live subscriber", seen), ("a new subscriber", caught_up)] {
            let got = by_log(got.iter().map(|e| e.as_ref().clone()).collect());
            same(what, &got, &stored)?;
        }
        let Some(Place::Logs(positions)) = late.checkpoint.map(|checkpoint| checkpoint.place)
        else {
            return Err("a checkpoint that is not in the logs".into());
        };
        same("logs", &positions.len(), &usize::from(self.logs))
    }
}
