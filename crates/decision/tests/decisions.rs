//! Decisions over events of any streams: subscriptions of students to courses.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    missing_docs,
    reason = "tests"
)]

use std::collections::HashSet;
use std::error::Error;
use std::sync::Arc;

use futures::future::join_all;
use gesta_core::{
    Append, EventData, EventStore, EventStoreExt, EventType, ExpectedRevision, Query,
    RecordedEvent, StreamAppend, StreamId, Tag, Tags,
};
use gesta_decision::{DecisionError, DecisionModel, decide};
use gesta_kit::{MemoryFactory, StoreFactory, TestStore};
use tokio::sync::Barrier;

type Fold = Result<(), Box<dyn Error + Send + Sync>>;

fn tag(text: &str) -> Tag {
    Tag::new(text).unwrap()
}

fn query(event_type: &str, tags: &[&str]) -> Query {
    Query {
        types: vec![EventType::new(event_type).unwrap()],
        tags: tags.iter().map(|text| tag(text)).collect(),
        ..Query::default()
    }
}

fn event(stream: &str, event_type: &str, tags: &[&str]) -> StreamAppend {
    let tags = Tags::new(tags.iter().map(|text| tag(text)).collect()).unwrap();
    let event = EventData::json(EventType::new(event_type).unwrap(), "{}").with_tags(tags);
    let stream = StreamId::new(stream).unwrap();
    Append::to(stream, ExpectedRevision::Any, vec![event])
        .streams
        .remove(0)
}

/// How many students have subscribed to a course.
struct Taken<'a>(&'a str);

impl DecisionModel for Taken<'_> {
    type State = usize;

    fn queries(&self) -> Vec<Query> {
        vec![query("subscribed", &[self.0])]
    }

    fn evolve(&self, state: &mut usize, _: &RecordedEvent) -> Fold {
        *state += 1;
        Ok(())
    }
}

/// To which courses a student has subscribed.
struct CoursesOf<'a>(&'a str);

impl DecisionModel for CoursesOf<'_> {
    type State = HashSet<Tag>;

    fn queries(&self) -> Vec<Query> {
        vec![query("subscribed", &[self.0])]
    }

    fn evolve(&self, state: &mut HashSet<Tag>, event: &RecordedEvent) -> Fold {
        let tags = event.tags.as_slice().iter();
        state.extend(
            tags.filter(|tag| tag.as_str().starts_with("course:"))
                .cloned(),
        );
        Ok(())
    }
}

#[derive(Debug, PartialEq)]
enum Rejected {
    Full,
    TooMany,
    Already,
}

const CAPACITY: usize = 5;
const COURSES_MAX: usize = 2;

async fn subscribe(
    store: &dyn EventStore,
    course: &str,
    student: &str,
) -> Result<(), DecisionError<Rejected>> {
    let models = (Taken(course), CoursesOf(student));
    let done = decide(store, &models, |(taken, courses)| {
        if courses.contains(&tag(course)) {
            return Err(Rejected::Already);
        }
        if *taken >= CAPACITY {
            return Err(Rejected::Full);
        }
        if courses.len() >= COURSES_MAX {
            return Err(Rejected::TooMany);
        }
        let stream = format!("student-{student}");
        Ok(vec![event(&stream, "subscribed", &[course, student])])
    });
    done.await.map(|stored| assert!(stored.is_some()))
}

/// Goal: a decision can be made in a task of its own.
#[tokio::test]
async fn a_decision_is_made_in_a_task() {
    let store = store().await;
    let made =
        tokio::spawn(async move { subscribe(store.as_ref(), "course:1", "student:1").await });
    assert!(made.await.unwrap().is_ok());
}

async fn store() -> TestStore {
    MemoryFactory::new(1).create().await
}

/// Goal: whoever races whom, no course has more students than places, no student more courses than allowed, and
/// whoever was told to be in is in.
#[tokio::test(flavor = "multi_thread")]
async fn rules_over_streams_hold_under_races() {
    let store = store().await;
    let (courses, students) = (4, 16);
    let begin = Arc::new(Barrier::new(courses * students));
    let racers = (0..courses * students).map(|number| {
        let begin = Arc::clone(&begin);
        let store = &store;
        async move {
            let course = format!("course:{}", number % courses);
            let student = format!("student:{}", number / courses);
            begin.wait().await;
            loop {
                match subscribe(store.as_ref(), &course, &student).await {
                    Err(DecisionError::Conflict) => {}
                    other => return (course, student, other.is_ok()),
                }
            }
        }
    });
    let told: Vec<_> = join_all(racers).await;
    let stored = store.read_everything().await.unwrap();
    let carries = |event: &RecordedEvent, text: &str| event.tags.contains(&tag(text));
    for number in 0..courses {
        let course = format!("course:{number}");
        let taken = stored
            .iter()
            .filter(|event| carries(event, &course))
            .count();
        assert_eq!(taken, CAPACITY, "{course}: everybody wants it");
    }
    for number in 0..students {
        let student = format!("student:{number}");
        let of = stored
            .iter()
            .filter(|event| carries(event, &student))
            .count();
        assert!(of <= COURSES_MAX, "{student}: {of}");
    }
    for (course, student, is_in) in told {
        let is_stored = stored
            .iter()
            .any(|event| carries(event, &course) && carries(event, &student));
        assert_eq!(is_in, is_stored, "{course} {student}");
    }
}

/// Goal: a rejection stores nothing and says which rule it is; no events are no append.
#[tokio::test]
async fn a_rejection_stores_nothing() {
    let store = store().await;
    let store = store.as_ref();
    subscribe(store, "course:1", "student:1").await.unwrap();
    let again = subscribe(store, "course:1", "student:1").await;
    assert!(matches!(
        again,
        Err(DecisionError::Rejected(Rejected::Already))
    ));
    subscribe(store, "course:2", "student:1").await.unwrap();
    let third = subscribe(store, "course:3", "student:1").await;
    assert!(matches!(
        third,
        Err(DecisionError::Rejected(Rejected::TooMany))
    ));
    for number in 2..=CAPACITY {
        subscribe(store, "course:1", &format!("student:{number}"))
            .await
            .unwrap();
    }
    let late = subscribe(store, "course:1", "student:99").await;
    assert!(matches!(late, Err(DecisionError::Rejected(Rejected::Full))));
    let before = store.read_everything().await.unwrap();
    let nothing = decide(store, &(Taken("course:1"),), |(taken,)| {
        assert_eq!(*taken, CAPACITY);
        Ok::<_, Rejected>(Vec::new())
    });
    assert!(nothing.await.unwrap().is_none());
    assert_eq!(store.read_everything().await.unwrap(), before);
}

/// Counts everything of a type, by no tag.
struct Untagged;

impl DecisionModel for Untagged {
    type State = usize;

    fn queries(&self) -> Vec<Query> {
        vec![query("subscribed", &[])]
    }

    fn evolve(&self, state: &mut usize, _: &RecordedEvent) -> Fold {
        *state += 1;
        Ok(())
    }
}

/// Goal: models that would read the whole store at each decision are refused before anything is read or decided.
#[tokio::test]
async fn models_without_tags_are_refused() {
    let store = store().await;
    let mut decided = 0;
    let refused = decide(store.as_ref(), &(Taken("course:1"), Untagged), |_| {
        decided += 1;
        Ok::<_, Rejected>(Vec::new())
    });
    let refused = refused.await.expect_err("it has no tag");
    assert!(
        refused.to_string().contains("at least one tag"),
        "{refused}"
    );
    assert_eq!(decided, 0);
}
