//! The checkpoint of an import: an event in a stream of its own in the target, `$import-NAME`.
//!
//! Why in the target: the place up to which everything is there belongs to what is there, and comes with it into every
//! copy and backup. Invariants: a checkpoint is written only after everything before it is durable; each names the
//! revision of the one before, so of two imports of one name that run at once the second is refused. Each names the
//! incarnation of the target in which all of that was durable. In another one it may be gone although the checkpoint is
//! there: other databases of the store have failed over, or this one just before the checkpoint was written.

use std::sync::Arc;

use gesta_core::system_streams::{IMPORT_PREFIX, keep_last};
use gesta_core::{
    Append, BackOff, Direction, Error, ErrorKind, EventData, EventId, EventStore, EventType,
    ExpectedRevision, Incarnation, ReadStream, Result, Revision, StreamFrom, StreamId,
};
use serde::{Deserialize, Serialize};
use std::time::Duration;

use crate::event::Place;
use crate::options::{Deleted, Options};
use crate::target::{TRIES, lost};

const EVENT_TYPE: &str = "$import-checkpoint";
/// How many checkpoints can be read; the others are freed by a scavenge.
const KEPT: u32 = 10;

/// What a checkpoint says.
#[derive(Serialize, Deserialize, Clone, PartialEq, Eq, Debug)]
struct Document {
    kind: String,
    /// Which database or server the events come from.
    source: String,
    names: String,
    types: String,
    /// Tells commands that turn payloads apart; `none` without one. Checkpoints of earlier versions do not say it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    transform: Option<String>,
    /// Which server has the source, if that is known: two servers can have databases of one name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    server: Option<String>,
    deleted: String,
    place: String,
    /// The greatest place up to which everything was stored once, if the import reads again what stands before it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    claimed: Option<String>,
    /// The life of the target that has everything up to this place. Checkpoints of earlier versions do not say it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    incarnation: Option<String>,
    /// What identifies the event at this place, if its number can be given out again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    mark: Option<String>,
    /// Whether events may have been stored after this place of which no checkpoint tells: none were after a run that
    /// has come to its end. Checkpoints of earlier versions do not say it, so they may.
    #[serde(default = "yes")]
    open: bool,
    /// Events that all runs of this import have stored.
    stored: u64,
}

fn yes() -> bool {
    true
}

/// Tells the commands apart that turn payloads.
fn transform_of(options: &Options) -> String {
    match &options.transform {
        // The command itself may hold what is nobody's business.
        Some(command) => format!("{:032x}", xxhash_rust::xxh3::xxh3_128(command.as_bytes())),
        None => "none".into(),
    }
}

/// The checkpoints of an import.
pub(crate) struct Checkpoints {
    store: Arc<dyn EventStore>,
    stream: StreamId,
    last: Option<Revision>,
    document: Document,
    /// The greatest place up to which everything was stored once.
    claimed: Place,
    incarnation: Incarnation,
    is_of_earlier_life: bool,
    retry: Duration,
}

impl Checkpoints {
    /// Opens the checkpoints of an import in this life of the store. Returns them with the place where the import goes
    /// on; `None` if there is none yet.
    ///
    /// # Errors
    /// `Unsupported` if the import of this name was made with other options or from another source.
    pub(crate) async fn open(
        (store, incarnation): (Arc<dyn EventStore>, Incarnation),
        options: &Options,
        source: &str,
        server: Option<String>,
    ) -> Result<(Self, Option<Place>)> {
        let stream = StreamId::new(format!("{IMPORT_PREFIX}{}", options.name))?;
        let wanted = Document {
            kind: options.kind.name().to_owned(),
            source: source.to_owned(),
            names: options.names.to_string(),
            types: options.types.to_string(),
            transform: Some(transform_of(options)),
            server,
            deleted: match options.deleted {
                // These words are stored, so they do not change.
                Deleted::LeaveOut => "left out",
                Deleted::Keep => "kept",
            }
            .into(),
            place: Place::START.to_string(),
            claimed: None,
            incarnation: Some(incarnation.to_string()),
            mark: None,
            open: false,
            stored: 0,
        };
        let mut checkpoints = Self {
            store,
            stream,
            last: None,
            document: wanted,
            claimed: Place::START,
            incarnation,
            is_of_earlier_life: false,
            retry: options.patience.retry,
        };
        let place = checkpoints.read().await?;
        Ok((checkpoints, place))
    }

    async fn read(&mut self) -> Result<Option<Place>> {
        let request = ReadStream {
            stream: self.stream.clone(),
            from: StreamFrom::End,
            direction: Direction::Backwards,
            limit: 1,
        };
        let page = match self.store.read_stream(request).await {
            Ok(page) => page,
            Err(error) if matches!(error.kind(), ErrorKind::StreamNotFound(_)) => return Ok(None),
            Err(error) => return Err(error),
        };
        self.last = Some(page.last_revision);
        let Some(event) = page.events.first() else {
            return Ok(None);
        };
        let found: Document = serde_json::from_slice(&event.data).map_err(|error| {
            let stream = &self.stream;
            Error::corrupt(format!(
                "the last event of {stream:?} is no checkpoint: {error}"
            ))
        })?;
        let known = |found: &Option<String>, wanted: &Option<String>| match (found, wanted) {
            (Some(found), Some(wanted)) => (found.clone(), wanted.clone()),
            _ => (String::new(), String::new()),
        };
        let (found_server, server) = known(&found.server, &self.document.server);
        let (found_transform, transform) = known(&found.transform, &self.document.transform);
        // An earlier version did not say which table it was.
        let found_types = match found.types == "table" && self.document.types.starts_with("table ")
        {
            true => self.document.types.clone(),
            false => found.types,
        };
        for (what, found, wanted) in [
            ("kind", &found.kind, &self.document.kind),
            ("source", &found.source, &self.document.source),
            ("server of the source", &found_server, &server),
            ("rule for names", &found.names, &self.document.names),
            ("rule for types", &found_types, &self.document.types),
            ("command of --transform", &found_transform, &transform),
            (
                "treatment of deleted events",
                &found.deleted,
                &self.document.deleted,
            ),
        ] {
            if found != wanted {
                let name = self.stream.as_str().trim_start_matches(IMPORT_PREFIX);
                return Err(ErrorKind::Unsupported(format!(
                    "the import {name:?} was begun with another {what}, {found:?}, and not {wanted:?}: go on with what it \
                     was begun with, or give this import a name of its own (--name)"
                ))
                .into());
            }
        }
        let written_in = found.incarnation.as_ref();
        self.is_of_earlier_life =
            written_in.is_some_and(|found| Some(found) != self.document.incarnation.as_ref());
        self.document.stored = found.stored;
        self.document.mark = found.mark;
        self.document.open = found.open;
        let place = found.place.parse()?;
        let claimed = found.claimed.map(|claimed| claimed.parse()).transpose()?;
        self.claimed = claimed.map_or(place, |claimed: Place| claimed.max(place));
        Ok(Some(place))
    }

    /// Returns the greatest place up to which everything was stored once, in whatever life of the target.
    pub(crate) fn claimed(&self) -> Place {
        self.claimed
    }

    /// Tells whether the last checkpoint was written in an earlier life of the target, which may have had more.
    pub(crate) fn is_of_earlier_life(&self) -> bool {
        self.is_of_earlier_life
    }

    /// Returns what identifies the event at the place of the last checkpoint.
    pub(crate) fn mark(&self) -> Option<&str> {
        self.document.mark.as_deref()
    }

    /// Tells whether events may have been stored after the last checkpoint of which none tells.
    pub(crate) fn is_open(&self) -> bool {
        self.document.open
    }

    /// Writes down, before anything is stored after `place`, where the import has begun or the last checkpoint is, that
    /// something may be. Without a checkpoint nothing needs to be said.
    ///
    /// # Errors
    /// As [`write`](Self::write).
    pub(crate) async fn open_again(&mut self, place: Place) -> Result<()> {
        if self.document.open || self.last.is_none() {
            return Ok(());
        }
        let mark = self.document.mark.clone();
        self.write(place, mark, 0, true).await
    }

    /// Writes a checkpoint. Everything up to `place` is durable; `stored` events were stored since the last one; `open`
    /// says whether more are stored after it at once.
    ///
    /// # Errors
    /// `Unsupported` if another import of this name writes too; `Unavailable` if it was written in another life of the
    /// store; those of the store.
    pub(crate) async fn write(
        &mut self,
        place: Place,
        mark: Option<String>,
        stored: u64,
        open: bool,
    ) -> Result<()> {
        self.claimed = self.claimed.max(place);
        self.document.place = place.to_string();
        self.document.claimed = (self.claimed > place).then(|| self.claimed.to_string());
        self.document.mark = mark;
        self.document.open = open;
        self.document.stored += stored;
        self.append().await
    }

    /// Appends the checkpoint after the last one.
    async fn append(&mut self) -> Result<()> {
        let data = serde_json::to_vec(&self.document)
            .map_err(|error| Error::corrupt(format!("a checkpoint cannot be written: {error}")))?;
        let event = EventData::json(EventType::new(EVENT_TYPE)?, data).with_id(EventId::random());
        let expected = match self.last {
            None => ExpectedRevision::NoStream,
            Some(last) => ExpectedRevision::Exact(last),
        };
        let append = Append::to(self.stream.clone(), expected, vec![event]);
        let mut back_off = BackOff::new(Duration::from_millis(100), Duration::from_secs(5));
        let deadline = tokio::time::Instant::now() + self.retry;
        let answer = loop {
            match self.store.append(append.clone()).await {
                Ok(answer) => break answer,
                Err(error) if error.is_retryable() && tokio::time::Instant::now() < deadline => {
                    tokio::time::sleep(back_off.pause()).await;
                }
                Err(error) => {
                    return Err(match error.kind() {
                        ErrorKind::WrongExpectedRevision { .. } => {
                            let text = format!(
                                "another import of this name has written to {:?}: let one run at a time",
                                self.stream
                            );
                            Error::new(ErrorKind::Unsupported(text)).caused_by(error)
                        }
                        _ => error,
                    });
                }
            }
        };
        if answer.checkpoint.incarnation != self.incarnation {
            return Err(lost());
        }
        let is_first = self.last.is_none();
        self.last = answer.streams.first().map(|stream| stream.last_revision);
        if is_first {
            self.keep_few().await;
        }
        Ok(())
    }

    /// Lets the stream keep few checkpoints, unless its metadata say how many. What else they say stays, above all who
    /// may go on with the import. What fails here only costs space: it is no reason to stop an import.
    async fn keep_few(&self) {
        if let Err(error) = self.try_to_keep_few().await {
            tracing::warn!(
                stream = %self.stream, %error,
                "old checkpoints of an import are kept: $maxCount was not set"
            );
        }
    }

    async fn try_to_keep_few(&self) -> Result<()> {
        let mut tries = 0;
        loop {
            let found = self.store.stream_metadata(self.stream.clone()).await?;
            let Some(set) = keep_last(&self.stream, &found, KEPT)? else {
                return Ok(());
            };
            tries += 1;
            match self.store.set_stream_metadata(set).await {
                // Somebody has changed them since they were read.
                Err(error)
                    if matches!(error.kind(), ErrorKind::WrongExpectedRevision { .. })
                        && tries < TRIES => {}
                answer => return answer.map(|_| ()),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kind::Kind;
    use async_trait::async_trait;
    use gesta_core::{SetStreamMetadata, StreamMetadata, StreamMetadataRecord};
    use gesta_kit::{Outer, Wrapper};
    use gesta_memory::MemoryStore;

    /// What happened: the first checkpoint replaced what an operator had said of the stream, above all who might write
    /// it beside administrators.
    #[tokio::test]
    async fn what_is_said_of_the_checkpoints_stays() {
        let store: Arc<dyn EventStore> = Arc::new(MemoryStore::new());
        let options = Options::new(Kind::Marten, "postgres://h/d").unwrap();
        let life = store.incarnation().await.unwrap();
        let of = (Arc::clone(&store), life);
        let (mut checkpoints, _) = Checkpoints::open(of, &options, "d", None).await.unwrap();
        let stream = checkpoints.stream.clone();
        let said = StreamMetadata::parse(r#"{"$acl":{"$w":["a"]}}"#).unwrap();
        let set = SetStreamMetadata::new(stream.clone(), said);
        store.set_stream_metadata(set).await.unwrap();
        for place in 1..3 {
            let written = checkpoints
                .write(Place::number(place), None, 1, false)
                .await;
            written.unwrap();
        }
        let known = store.stream_metadata(stream).await.unwrap();
        assert_eq!(
            (known.metadata.json().as_ref(), known.revision),
            (
                &br#"{"$acl":{"$w":["a"]},"$maxCount":10}"#[..],
                Some(Revision(1))
            )
        );
    }

    /// A store that tells its caller no metadata, nor lets them be changed.
    struct WithoutMetadata(MemoryStore);

    #[async_trait]
    impl Wrapper for WithoutMetadata {
        fn inner(&self) -> &dyn EventStore {
            &self.0
        }

        async fn stream_metadata(&self, _stream: StreamId) -> Result<StreamMetadataRecord> {
            Err(ErrorKind::Forbidden("metadata".into()).into())
        }
    }

    /// What happened: a user who may write checkpoints, and not read the metadata of their stream, was refused after
    /// the first one. Goal: the import goes on, and all its checkpoints stay.
    #[tokio::test]
    async fn who_may_not_read_metadata_writes_checkpoints() {
        let store: Arc<dyn EventStore> = Arc::new(Outer(WithoutMetadata(MemoryStore::new())));
        let options = Options::new(Kind::Marten, "postgres://h/d").unwrap();
        let life = store.incarnation().await.unwrap();
        let of = || (Arc::clone(&store), life);
        let (mut checkpoints, _) = Checkpoints::open(of(), &options, "d", None).await.unwrap();
        for place in 1..3 {
            let written = checkpoints
                .write(Place::number(place), None, 1, false)
                .await;
            written.unwrap();
        }
        let (_, place) = Checkpoints::open(of(), &options, "d", None).await.unwrap();
        assert_eq!(place, Some(Place::number(2)));
    }

    /// Goal: an import goes on where it was, and is refused with other rules or beside another one of its name.
    #[tokio::test]
    async fn a_checkpoint_is_found_again_by_its_own_import_alone() {
        let store: Arc<dyn EventStore> = Arc::new(MemoryStore::new());
        let options = Options::new(Kind::Marten, "postgres://h/d").unwrap();
        let open = |options: Options, source: &'static str| {
            let store = Arc::clone(&store);
            async move {
                let life = store.incarnation().await?;
                Checkpoints::open((store, life), &options, source, Some("s1".into())).await
            }
        };
        let (mut first, place) = open(options.clone(), "d").await.unwrap();
        assert_eq!(place, None);
        first.write(Place::number(7), None, 5, false).await.unwrap();
        let (mut second, place) = open(options.clone(), "d").await.unwrap();
        assert_eq!(place, Some(Place::number(7)));
        second
            .write(Place { major: 9, minor: 2 }, Some("m".into()), 1, false)
            .await
            .unwrap();
        let error = first
            .write(Place::number(8), None, 1, false)
            .await
            .expect_err("another one");
        assert!(error.to_string().contains("one run at a time"), "{error}");
        let (third, place) = open(options.clone(), "d").await.unwrap();
        assert_eq!(
            (place, third.document.stored),
            (Some(Place { major: 9, minor: 2 }), 6)
        );
        assert_eq!(third.mark(), Some("m"));
        let error = open(options.clone(), "other")
            .await
            .err()
            .expect("another source");
        assert!(error.to_string().contains("another source"), "{error}");
        let renamed = Options {
            names: "{key}".parse().unwrap(),
            ..options.clone()
        };
        let error = open(renamed, "d").await.err().expect("another rule");
        assert!(error.to_string().contains("rule for names"), "{error}");
        let renamed = Options {
            transform: Some("cat secret".into()),
            ..options.clone()
        };
        let error = open(renamed, "d").await.err().expect("another command");
        assert!(
            error.to_string().contains("command of --transform"),
            "{error}"
        );
        assert!(!error.to_string().contains("secret"), "{error}");
        let table = |json: &str| Options {
            types: crate::types::TypeRule::table(json.as_bytes()).unwrap(),
            name: "table".into(),
            ..options.clone()
        };
        let (mut one, _) = open(table(r#"{"a":"b"}"#), "d").await.unwrap();
        one.write(Place::number(1), None, 1, false).await.unwrap();
        assert!(open(table(r#"{"a":"b"}"#), "d").await.is_ok());
        let error = open(table(r#"{"a":"c"}"#), "d")
            .await
            .err()
            .expect("another table");
        assert!(error.to_string().contains("rule for types"), "{error}");
        // A database of the same name on another server.
        let life = store.incarnation().await.unwrap();
        let of = || (Arc::clone(&store), life);
        let there = Checkpoints::open(of(), &options, "d", Some("s2".into())).await;
        let error = there.err().expect("another server");
        assert!(
            error.to_string().contains("server of the source"),
            "{error}"
        );
        let (unknown, _) = Checkpoints::open(of(), &options, "d", None).await.unwrap();
        assert!(!unknown.is_of_earlier_life());
        let later = (Arc::clone(&store), Incarnation::random());
        let (later, _) = Checkpoints::open(later, &options, "d", None).await.unwrap();
        assert!(later.is_of_earlier_life());
        let own = Options {
            name: "two".into(),
            ..options
        };
        assert_eq!(open(own, "other").await.unwrap().1, None);
    }
}
