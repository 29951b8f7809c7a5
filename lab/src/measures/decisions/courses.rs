//! The rules: a user name is taken once, a course has so many places, a student takes at most so many courses. And the
//! check that what is stored keeps them, and is what callers were told.

use std::collections::BTreeMap;
use std::time::Duration;

use gesta::decision::{DecisionError, DecisionModel, decide};
use gesta_core::{
    AllFrom, Append, EventData, EventStore, EventType, ExpectedRevision, Query, RecordedEvent,
    StreamAppend, StreamId, Tag, Tags,
};
use gesta_load::machine::{CurrentStore, ask};
use gesta_report::failure::{Context, Result};
use gesta_report::read_back::ReadBack;

use super::Stores;
use super::ways::{Measured, Way};

/// Places of a course.
pub(super) const PLACES: usize = 20;
/// Courses that a student takes at most.
pub(super) const COURSES: usize = 3;
const SUBSCRIBED: &str = "subscribed";
const REGISTERED: &str = "registered";
/// How long the store may be unavailable.
const PATIENCE: Duration = Duration::from_secs(60);

type Fold = std::result::Result<(), Box<dyn std::error::Error + Send + Sync>>;

pub(super) fn tag(text: &str) -> Tag {
    Tag::new(text).expect("valid")
}

/// An event of a new id with these tags.
pub(super) fn event(event_type: &str, tags: &[&Tag]) -> EventData {
    let tags = Tags::new(tags.iter().map(|tag| (*tag).clone()).collect::<Vec<_>>()).expect("few");
    let event_type = EventType::new(event_type).expect("valid");
    EventData::new(event_type.as_str(), &serde_json::json!({}))
        .expect("JSON")
        .with_tags(tags)
}

pub(super) fn to(stream: &str, event: EventData) -> StreamAppend {
    let stream = StreamId::new(stream).expect("valid");
    let mut append = Append::to(stream, ExpectedRevision::Any, vec![event]);
    append.streams.remove(0)
}

/// Where the events of a rule are found: by tags of their own, or by one that all share.
#[derive(Debug, Clone)]
pub(super) struct Finding {
    pub(super) shared: Option<Tag>,
}

impl Finding {
    fn query(&self, event_type: &str, own: &Tag) -> Query {
        Query {
            types: vec![EventType::new(event_type).expect("valid")],
            tags: vec![self.shared.clone().unwrap_or_else(|| own.clone())],
            ..Query::default()
        }
    }

    /// The tags of an event: its own, and that which all share.
    fn event(&self, event_type: &str, own: &[&Tag]) -> EventData {
        let tags: Vec<&Tag> = own.iter().copied().chain(&self.shared).collect();
        event(event_type, &tags)
    }
}

/// How many events with a tag of its own there are: students of a course, courses of a student, users of a name.
struct Count<'a> {
    finding: &'a Finding,
    event_type: &'static str,
    own: &'a Tag,
}

impl DecisionModel for Count<'_> {
    type State = usize;

    fn queries(&self) -> Vec<Query> {
        vec![self.finding.query(self.event_type, self.own)]
    }

    fn evolve(&self, state: &mut usize, event: &RecordedEvent) -> Fold {
        if event.tags.as_slice().contains(self.own) {
            *state += 1;
        }
        Ok(())
    }
}

/// What became of a decision.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Decided {
    Stored,
    Rejected,
    GaveUp,
}

fn decided(
    answer: std::result::Result<Option<gesta_core::Appended>, DecisionError<()>>,
) -> std::result::Result<Decided, String> {
    match answer {
        Ok(_) => Ok(Decided::Stored),
        Err(DecisionError::Rejected(())) => Ok(Decided::Rejected),
        Err(DecisionError::Conflict) => Ok(Decided::GaveUp),
        Err(error) => Err(error.to_string()),
    }
}

/// Subscribes a student to a course; `times` counts how often that was decided.
pub(super) async fn subscribe(
    store: &dyn EventStore,
    finding: &Finding,
    course: &Tag,
    student: &Tag,
    times: &mut u64,
) -> std::result::Result<Decided, String> {
    let count = |own| Count {
        finding,
        event_type: SUBSCRIBED,
        own,
    };
    let models = (count(course), count(student));
    let stream = format!("student-{}", student.as_str());
    let answer = decide(store, &models, |(taken, courses)| {
        *times += 1;
        if *taken >= PLACES || *courses >= COURSES {
            return Err(());
        }
        let subscribed = finding.event(SUBSCRIBED, &[course, student]);
        Ok(vec![to(&stream, subscribed)])
    });
    decided(answer.await)
}

/// Registers a user name.
pub(super) async fn register(
    store: &dyn EventStore,
    finding: &Finding,
    name: &Tag,
    times: &mut u64,
) -> std::result::Result<Decided, String> {
    let models = (Count {
        finding,
        event_type: REGISTERED,
        own: name,
    },);
    let stream = format!("user-{}", name.as_str());
    let answer = decide(store, &models, |(users,)| {
        *times += 1;
        if *users > 0 {
            return Err(());
        }
        Ok(vec![to(&stream, finding.event(REGISTERED, &[name]))])
    });
    decided(answer.await)
}

/// Holds the events of a measurement against the rules and against the answers.
pub(super) async fn checked(
    way: Way,
    stores: &Stores,
    run: &str,
    measured: &Measured,
) -> Result<ReadBack> {
    let store = CurrentStore::new(std::sync::Arc::clone(stores.of(0)), None);
    let (mut found, mut counts) = (0_u64, BTreeMap::<String, usize>::new());
    let read = ask::read_all(&store, AllFrom::Start, PATIENCE, |event| {
        let tags = event.tags.as_slice().iter().map(Tag::as_str);
        let ours: Vec<&str> = tags.filter(|tag| tag.contains(run)).collect();
        if ours.is_empty() {
            return;
        }
        found += 1;
        for tag in ours {
            *counts.entry(tag.to_owned()).or_default() += 1;
        }
    });
    read.await.context("reading all")?;
    let stored = measured.stored;
    let mut read_back = ReadBack {
        acknowledged: stored,
        found,
        lost: stored.saturating_sub(found),
        uninvited: found.saturating_sub(stored),
        ..ReadBack::default()
    };
    if found != stored {
        let told = format!("{found} events are stored, and {stored} were acknowledged");
        read_back.findings.push(told);
    }
    if way.has_rules() {
        let limits = [("course:", PLACES), ("student:", COURSES), ("name:", 1)];
        for (tag, count) in counts {
            let limit = limits.iter().find(|(kind, _)| tag.starts_with(kind));
            if limit.is_some_and(|(_, limit)| count > *limit) {
                read_back.uninvited += 1;
                read_back
                    .findings
                    .push(format!("{count} events with {tag}"));
            }
        }
    }
    Ok(read_back)
}
