//! Tests of what is stored after commits were lost, or hidden.

use std::sync::Mutex;

use gesta_core::SetStreamMetadata;
use gesta_kit::faulty::{FaultyStore, World};
use gesta_kit::support::events;
use gesta_kit::{Outer, Wrapper};

use super::*;

/// Goal: a truncation that was begun before commits were lost hides nothing of what is parked afterwards: it is
/// refused, whether the loss is known or not.
#[tokio::test(start_paused = true)]
async fn a_truncation_of_another_history_is_refused() {
    let world = World::new(1);
    let process = world.store();
    let source = Source::Stream(StreamId::new("cart-1").unwrap());
    let group = GroupId::new(source, "mail").unwrap();
    let storage = Storage::of_call(process.share(), group.clone());
    let parked = group.parked_stream();
    let appended = process.append_to(parked.as_str(), ExpectedRevision::Any, events(5));
    appended.await.unwrap();
    let metadata = r#"{"own":true}"#;
    let set = SetStreamMetadata::new(parked.clone(), StreamMetadata::parse(metadata).unwrap());
    process.set_stream_metadata(set).await.unwrap();
    let present = world.incarnation();
    let begins = async || {
        let known = process.stream_metadata(parked.clone()).await.unwrap();
        assert!(
            known.metadata.json().starts_with(b"{\"$tb\":") || known.metadata.json() == metadata
        );
        known.metadata.truncate_before.map(|before| before.0)
    };
    storage.truncate_parked(3, present).await.unwrap();
    assert_eq!(begins().await, Some(3));
    // The stream ends before that: the loss is not known yet.
    let refused = storage.truncate_parked(6, present).await.unwrap_err();
    assert!(
        matches!(refused.kind(), ErrorKind::InvalidCheckpoint(_)),
        "{refused}"
    );
    process.begin_history();
    let refused = storage.truncate_parked(5, present).await.unwrap_err();
    assert!(
        matches!(refused.kind(), ErrorKind::InvalidCheckpoint(_)),
        "{refused}"
    );
    assert_eq!(begins().await, Some(3));
    storage
        .truncate_parked(5, world.incarnation())
        .await
        .unwrap();
    assert_eq!(begins().await, Some(5));
}

/// What happened: when a group began, what an operator had said of the stream of its checkpoints was replaced, above
/// all who might read it.
#[tokio::test(start_paused = true)]
async fn what_is_said_of_the_checkpoints_stays_when_they_are_bounded() {
    let world = World::new(1);
    let process = world.store();
    let source = Source::Stream(StreamId::new("cart-1").unwrap());
    let group = GroupId::new(source, "mail").unwrap();
    let storage = Storage::of_call(process.share(), group.clone());
    let stream = group.checkpoint_stream();
    let said = StreamMetadata::parse(r#"{"$acl":{"$r":[]}}"#).unwrap();
    let set = SetStreamMetadata::new(stream.clone(), said);
    process.set_stream_metadata(set).await.unwrap();
    for _ in 0..2 {
        storage.bound_checkpoints().await.unwrap();
        let known = process.stream_metadata(stream.clone()).await.unwrap();
        assert_eq!(
            (known.metadata.json().as_ref(), known.revision),
            (
                &br#"{"$acl":{"$r":[]},"$maxCount":2}"#[..],
                Some(Revision(1))
            )
        );
    }
}

/// A store that begins another history before the first append to it: its newest event is lost, and another one is
/// stored in its place.
struct LosesFirst {
    process: FaultyStore,
    parked: StreamId,
    lost: Mutex<bool>,
}

#[async_trait::async_trait]
impl Wrapper for LosesFirst {
    fn inner(&self) -> &dyn EventStore {
        &**self.process
    }

    async fn append(&self, request: Append) -> Result<gesta_core::Appended> {
        if !std::mem::replace(&mut *self.lost.lock().unwrap(), true) {
            self.process.world().lose_newest(LogId(0), 1);
            self.process.begin_history();
            let parked = self.parked.as_str();
            let another = self
                .inner()
                .append_to(parked, ExpectedRevision::Any, events(1));
            another.await.unwrap();
        }
        self.inner().append(request).await
    }
}

/// Goal: a truncation that is sent after commits were lost is refused, although the parked stream ends at the revision
/// at which it ended before. It happened that it hid what was parked since, because revisions alone were compared.
#[tokio::test(start_paused = true)]
async fn a_truncation_that_is_late_is_refused() {
    let world = World::new(1);
    let process = world.store();
    let source = Source::Stream(StreamId::new("cart-1").unwrap());
    let group = GroupId::new(source, "mail").unwrap();
    let parked = group.parked_stream();
    let appended = process.append_to(parked.as_str(), ExpectedRevision::Any, events(5));
    appended.await.unwrap();
    let present = world.incarnation();
    let store = Arc::new(Outer(LosesFirst {
        process: process.clone(),
        parked: parked.clone(),
        lost: Mutex::new(false),
    }));
    let storage = Storage::of_call(store, group);
    let refused = storage.truncate_parked(5, present).await.unwrap_err();
    assert!(
        matches!(refused.kind(), ErrorKind::InvalidCheckpoint(_)),
        "{refused}"
    );
    let readable = process.read_stream(ReadStream::forwards(parked)).await;
    assert_eq!(readable.unwrap().events.len(), 5);
}

/// Goal: a checkpoint that metadata hide is not taken for none: the next one is stored after it.
#[tokio::test(start_paused = true)]
async fn a_hidden_checkpoint_is_not_taken_for_none() {
    let world = World::new(1);
    let process = world.store();
    let group = GroupId::new(Source::All, "mail").unwrap();
    let storage = Storage::of_call(process.share(), group.clone());
    let (life, run) = (Uuid::from_u128(1), Uuid::from_u128(2));
    let checkpoint = || Progressed {
        life,
        run,
        next: Some(7),
        incarnation: Some(world.incarnation().0),
        marks: Vec::new(),
        moved: None,
    };
    let first = storage.last_checkpoint(life).await.unwrap();
    assert_eq!(
        (first.expected, first.is_hidden),
        (ExpectedRevision::NoStream, false)
    );
    storage
        .write_checkpoint(checkpoint(), first.expected)
        .await
        .unwrap();
    let metadata = StreamMetadata::parse(r#"{"$tb":1000}"#).unwrap();
    let set = SetStreamMetadata::new(group.checkpoint_stream(), metadata);
    process.set_stream_metadata(set).await.unwrap();
    let hidden = storage.last_checkpoint(life).await.unwrap();
    assert!(hidden.is_hidden && hidden.place.is_none());
    let next = storage
        .write_checkpoint(checkpoint(), hidden.expected)
        .await
        .unwrap();
    assert_eq!(next, Some(Revision(1)));
    assert_eq!(storage.ends_of_state().await.unwrap().len(), 1);
}
