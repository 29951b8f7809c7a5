//! Decisions whose answers are lost: what is known of them, and when it is decided again.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "tests: a panic is how a test fails"
)]

use std::collections::VecDeque;
use std::error::Error as StdError;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use gesta_core::{
    Append, Appended, DeleteKind, DeleteStream, Error, ErrorKind, EventData, EventStore,
    EventStoreExt, EventType, ExpectedRevision, Query, RecordedEvent, Result, StreamAppend,
    StreamId, Tag, Tags,
};
use gesta_decision::{DecisionError, DecisionModel, decide};
use gesta_kit::faulty::{Fault, FaultyStore};
use gesta_kit::{MemoryFactory, Outer, StoreFactory, TestStore, Wrapper};

/// What becomes of an append on its way.
#[derive(Clone, Debug)]
enum Way {
    /// The store answers, and the answer is lost.
    AnswerLost,
    /// The append itself is lost, which looks the same.
    AppendLost,
    /// Somebody else, as a gateway, refuses it.
    Refused(ErrorKind),
    /// Another event with the tag is stored before it arrives.
    Overtaken,
    /// Its stream gets a tombstone before it arrives.
    Closed,
    /// Its stream is deleted before it arrives.
    Deleted,
}

/// A store that is far away.
struct Far {
    store: Arc<dyn EventStore>,
    /// What becomes of the next appends; those after them arrive.
    ways: Mutex<VecDeque<Way>>,
    /// How often the store itself did not know the outcome.
    unknown: AtomicU32,
}

fn unknown() -> Error {
    ErrorKind::OutcomeUnknown("the answer was lost".into()).into()
}

#[async_trait]
impl Wrapper for Far {
    fn inner(&self) -> &dyn EventStore {
        &*self.store
    }

    async fn append(&self, request: Append) -> Result<Appended> {
        let way = self.ways.lock().unwrap().pop_front();
        let delete = |kind| DeleteStream {
            stream: request.streams[0].stream.clone(),
            expected: ExpectedRevision::Any,
            kind,
        };
        match way {
            Some(Way::AnswerLost) => {
                self.store.append(request).await?;
                return Err(unknown());
            }
            Some(Way::AppendLost) => return Err(unknown()),
            Some(Way::Refused(kind)) => return Err(kind.into()),
            Some(Way::Overtaken) => {
                let other = registered("user-other");
                let append = self
                    .store
                    .append_to(other.stream, other.expected, other.events);
                append.await?;
            }
            Some(Way::Closed) => drop(
                self.store
                    .delete_stream(delete(DeleteKind::Tombstone))
                    .await?,
            ),
            Some(Way::Deleted) => drop(self.store.delete_stream(delete(DeleteKind::Soft)).await?),
            None => {}
        }
        let answer = self.store.append(request).await;
        if let Err(error) = &answer
            && matches!(error.kind(), ErrorKind::OutcomeUnknown(_))
        {
            self.unknown.fetch_add(1, Ordering::SeqCst);
        }
        answer
    }
}

fn ada() -> Tag {
    Tag::new("name:ada").unwrap()
}

fn registered(stream: &str) -> StreamAppend {
    let tags = Tags::new(vec![ada()]).unwrap();
    let event = EventData::json(EventType::new("registered").unwrap(), "{}").with_tags(tags);
    StreamAppend {
        stream: StreamId::new(stream).unwrap(),
        expected: ExpectedRevision::Any,
        events: vec![event],
    }
}

/// How often the name was taken.
struct Taken;

impl DecisionModel for Taken {
    type State = usize;

    fn queries(&self) -> Vec<Query> {
        vec![Query::tag(ada()).unwrap()]
    }

    fn evolve(
        &self,
        state: &mut usize,
        _: &RecordedEvent,
    ) -> std::result::Result<(), Box<dyn StdError + Send + Sync>> {
        *state += 1;
        Ok(())
    }
}

/// Registers the user, who shares the name with one other at most. Returns also how often it was decided.
async fn register(
    store: &dyn EventStore,
) -> (
    std::result::Result<Option<Appended>, DecisionError<usize>>,
    u32,
) {
    let mut decided = 0;
    let done = decide(store, &(Taken,), |(taken,)| {
        decided += 1;
        match *taken {
            0 | 1 => Ok(vec![registered("user-ada")]),
            taken => Err(taken),
        }
    });
    let done = done.await;
    (done, decided)
}

/// Registers over these ways. Returns also the events that are stored then.
async fn register_over(
    ways: &[Way],
) -> (
    std::result::Result<Option<Appended>, DecisionError<usize>>,
    u32,
    usize,
) {
    let store: TestStore = MemoryFactory::new(1).create().await;
    let far = Outer(Far {
        store: store.share(),
        ways: Mutex::new(ways.iter().cloned().collect()),
        unknown: AtomicU32::new(0),
    });
    let (done, decided) = register(&far).await;
    let stored = far.read_everything().await.unwrap();
    let tagged = stored.iter().filter(|event| event.tags.contains(&ada()));
    (done, decided, tagged.count())
}

/// Goal: an append whose answer was lost is repeated as it is, and recognised, though others have changed the facts
/// meanwhile; only when the store refuses the repetition, which tells that the first attempt is not stored, it is
/// decided again.
#[tokio::test(start_paused = true)]
async fn it_is_repeated_before_it_is_decided_again() {
    use Way::{AnswerLost, AppendLost, Overtaken};
    for (ways, times, events) in [
        (&[AnswerLost][..], 1, 1),
        (&[AnswerLost, AnswerLost, AppendLost], 1, 1),
        (&[AnswerLost, Overtaken], 1, 2),
        (&[AppendLost], 1, 1),
        (&[AppendLost, Overtaken], 2, 2),
        (&[Overtaken], 2, 2),
    ] {
        let (done, decided, stored) = register_over(ways).await;
        assert!(done.unwrap().is_some(), "{ways:?}");
        assert_eq!((decided, stored), (times, events), "{ways:?}");
    }
}

/// What happened: after a lost answer any other refusal of the repetition was told as if nothing was stored: the token
/// of the caller had expired, the server was closed for a move, the stream had got a tombstone. Goal: such a refusal
/// tells nothing of the first attempt, so its outcome is not known.
#[tokio::test(start_paused = true)]
async fn a_refusal_that_tells_nothing_leaves_the_doubt() {
    let text = String::new;
    let refusals = [
        ErrorKind::Unauthenticated(text()),
        ErrorKind::Forbidden(text()),
        ErrorKind::Unsupported(text()),
        ErrorKind::Unavailable(text()),
        ErrorKind::Overloaded(text()),
        ErrorKind::Refused(text()),
        ErrorKind::Schema(text()),
        ErrorKind::Corrupt(text()),
        ErrorKind::InvalidCheckpoint(text()),
        ErrorKind::StreamTombstoned(StreamId::new("user-ada").unwrap()),
        ErrorKind::InvalidArgument {
            field: text(),
            rule: text(),
        },
    ];
    let is_unknown = |done: &std::result::Result<_, DecisionError<usize>>| {
        matches!(done, Err(DecisionError::Store(error))
            if matches!(error.kind(), ErrorKind::OutcomeUnknown(_)))
    };
    for refusal in refusals {
        for first in [Way::AnswerLost, Way::AppendLost] {
            let ways = [first, Way::Refused(refusal.clone())];
            let (done, decided, _) = register_over(&ways).await;
            assert!(is_unknown(&done), "{ways:?}: {done:?}");
            assert_eq!(decided, 1, "{ways:?}");
        }
        // Without a doubt it is told as it is.
        let (done, ..) = register_over(&[Way::Refused(refusal.clone())]).await;
        let kind = match &done {
            Err(DecisionError::Store(error)) => error.kind(),
            other => panic!("{other:?}"),
        };
        assert_eq!(*kind, refusal);
    }
    let (done, decided, stored) = register_over(&[Way::AnswerLost, Way::Closed]).await;
    assert!(is_unknown(&done), "{done:?}");
    assert_eq!(
        (decided, stored),
        (1, 1),
        "it was stored, and can be read among all events"
    );
    // This one says itself what became of the first attempt.
    let (done, decided, _) = register_over(&[Way::AnswerLost, Way::Deleted]).await;
    assert!(
        matches!(&done, Err(DecisionError::Store(error))
            if matches!(error.kind(), ErrorKind::StoredAndDeleted { .. })),
        "{done:?}"
    );
    assert_eq!(decided, 1);
}

/// Goal: the same over the pipeline of a real store, whose database is away for so long after it has stored the events
/// that the append is given up.
#[tokio::test(start_paused = true)]
async fn what_a_store_has_given_up_is_repeated_and_found() {
    for fault in [Fault::LostReply, Fault::LostReplies] {
        let store = FaultyStore::new();
        let far = Outer(Far {
            store: store.share(),
            ways: Mutex::default(),
            unknown: AtomicU32::new(0),
        });
        // From the commit on nothing answers.
        let is_away = Arc::new(AtomicBool::new(false));
        let (commits, reads) = (Arc::clone(&is_away), is_away);
        store.refuse_rows(move |_| {
            commits.store(true, Ordering::SeqCst);
            false
        });
        store.fail_reads(move |_| {
            let is_away = reads.load(Ordering::SeqCst);
            is_away.then(|| Error::unavailable("the database is away"))
        });
        store.fail_next_commit(fault.clone());
        let back = async {
            // For longer than an append is tried.
            tokio::time::sleep(Duration::from_secs(45)).await;
            store.let_reads_succeed();
        };
        let ((done, decided), ()) = tokio::join!(register(&far), back);
        assert!(done.unwrap().is_some(), "{fault:?}");
        let stored = store.world().stored().len();
        assert_eq!((decided, stored), (1, 1), "{fault:?}");
        assert_eq!(far.unknown.load(Ordering::SeqCst), 1, "{fault:?}");
    }
}
