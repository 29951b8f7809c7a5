//! Reads and writes the streams that keep a group.
//!
//! Fencing: every process that begins to run a group appends a claim to the checkpoint stream, and every checkpoint
//! expects the revision of the one before. So of two processes that run one group, only the one that claimed it last
//! can write; the other learns that with its next checkpoint. No locks are needed.
//! Calls that may be tried again are tried until they succeed or are refused; each attempt carries the same event id. A
//! call for which a caller waits is tried no more after [`GIVE_UP_AFTER`]; a call that the task of a group makes by
//! itself has no such bound.

use std::sync::Arc;
use std::time::Duration;

use futures::future::try_join_all;
use gesta_core::system_streams::keep_last;
use gesta_core::{
    AllFrom, Append, BackOff, Checkpoint, Condition, DeleteKind, DeleteStream, Error, ErrorKind,
    EventData, EventId, EventStore, EventStoreExt, EventType, ExpectedRevision, Filter,
    Incarnation, LastingFault, Lifecycle, LogId, Position, ReadAll, ReadStream, RecordedEvent,
    Result, Revision, SharedEvent, StreamAppend, StreamFrom, StreamId, StreamMetadata, Subscribe,
    SubscribeFrom, SubscribeTo, Timestamp, warn_once,
};
use tokio::sync::OnceCell;
use tokio::time::Instant;
use uuid::Uuid;

use crate::mark::{Mark, MarkState, ParkedMark, StoredPlace, another_history};
use crate::names::{GroupId, PARKED_STREAMS_MAX, Source};
use crate::record::{self, Configuration, Course, ParkedLink, Progressed};

const PAUSE_MIN: Duration = Duration::from_millis(20);
const PAUSE_MAX: Duration = Duration::from_secs(2);
/// Checkpoints that their stream keeps: the last one, and the one before for people who look.
const CHECKPOINTS_KEPT: u32 = 2;
/// The type of an event that sets the metadata of a stream.
const METADATA: &str = "$metadata";
/// Most parked events that are looked up at once for a replay.
const REPLAY_EVENTS_MAX: usize = 100;
/// Bytes of parked events after which no more are looked up at once.
const REPLAY_BYTES_MAX: usize = 4 * 1024 * 1024;

/// How long a call for which a caller waits is tried again. It is as long as the store itself tries an append again. An
/// attempt that is under way at the end of this time is awaited.
const GIVE_UP_AFTER: Duration = Duration::from_secs(30);

/// The streams of one group in a store.
#[derive(Clone)]
pub(crate) struct Storage {
    pub(crate) store: Arc<dyn EventStore>,
    pub(crate) group: GroupId,
    /// Time after which no further attempt of a call is begun; `None` if there is always another attempt.
    until: Option<Instant>,
    /// The parked stream, once it is known.
    parked: OnceCell<ParkedStream>,
}

/// The stream to which a group parks events: the first of its parked streams that nobody has closed with a tombstone.
#[derive(Clone, Debug)]
pub(crate) struct ParkedStream {
    pub(crate) number: u16,
    stream: StreamId,
}

/// The revisions of a stream.
struct Bounds {
    /// Revision of the first event that can be read; the same as `end` if there is none.
    first: u64,
    /// Revision that the next event will have.
    end: u64,
}

/// The configuration of a group as it is stored, with its revision.
#[derive(Clone, Debug)]
pub(crate) struct Stored {
    pub(crate) configuration: Configuration,
    pub(crate) revision: Revision,
    pub(crate) stored: Timestamp,
}

/// The end of the checkpoint stream.
#[derive(Clone, Debug)]
pub(crate) struct LastCheckpoint {
    /// Expected revision of the checkpoint stream for the next checkpoint.
    pub(crate) expected: ExpectedRevision,
    /// Place of the last checkpoint; `None` if this life of the group has no checkpoint.
    pub(crate) place: Option<StoredPlace>,
    /// Whether there is one that cannot be read, because metadata hide it.
    pub(crate) is_hidden: bool,
    /// Random number of the move after which the place was reached; `None` if the group was never moved.
    moved: Option<Uuid>,
}

impl Stored {
    /// Returns the place at which the group begins while it has no checkpoint.
    pub(crate) fn place(&self) -> StoredPlace {
        let configuration = &self.configuration;
        StoredPlace {
            next: configuration.begin,
            incarnation: configuration.incarnation.map(Incarnation),
            marks: configuration.mark.into_iter().collect(),
            stored: self.stored,
            may_be_ahead: true,
        }
    }

    /// Returns the course in which the group goes on.
    pub(crate) fn course(&self, last: &LastCheckpoint) -> Course {
        let moved = match last.place {
            Some(_) => last.moved,
            None => self.configuration.moved,
        };
        let life = self.configuration.life;
        Course { life, moved }
    }
}

/// Parked events that were looked up, each with its revision of the parked stream; `None` stands for an event that does
/// not exist any more.
#[derive(Debug)]
pub(crate) struct ParkedPage {
    pub(crate) events: Vec<(u64, Option<SharedEvent>)>,
    /// Revision before which nothing is left to look up.
    pub(crate) next: u64,
}

/// The source ends before the place that was asked for.
struct EndsBefore;

impl Storage {
    /// Makes the storage of a group for a call for which a caller waits.
    pub(crate) fn of_call(store: Arc<dyn EventStore>, group: GroupId) -> Self {
        let until = Some(Instant::now() + GIVE_UP_AFTER);
        Self {
            store,
            group,
            until,
            parked: OnceCell::new(),
        }
    }

    /// Makes the same storage for the task of the group, for which no caller waits.
    pub(crate) fn of_task(self) -> Self {
        let until = None;
        Self { until, ..self }
    }

    /// Returns the stream to which the group parks events. A tombstone on a parked stream is for ever, so the group
    /// goes on with the next one.
    pub(crate) async fn parked_stream(&self) -> Result<&ParkedStream> {
        self.parked
            .get_or_try_init(|| self.find_parked_stream())
            .await
    }

    async fn find_parked_stream(&self) -> Result<ParkedStream> {
        let mut closed = None;
        for number in 0..=PARKED_STREAMS_MAX {
            let stream = self.group.parked_stream_of(number);
            // A read says of a stream that never had an event only that it is not there.
            let metadata = self.retried(|| self.store.stream_metadata(stream.clone()));
            match metadata.await {
                Err(error) if matches!(error.kind(), ErrorKind::StreamTombstoned(_)) => {
                    closed = Some(error);
                }
                Err(error) => return Err(error),
                Ok(_) => return Ok(ParkedStream { number, stream }),
            }
        }
        Err(closed.unwrap_or_else(|| Error::corrupt("a group without a parked stream")))
    }

    /// Returns the stream to which the group parks events, as far as it is known.
    pub(crate) fn known_parked_stream(&self) -> StreamId {
        let known = self.parked.get().map(|parked| parked.stream.clone());
        known.unwrap_or_else(|| self.group.parked_stream())
    }

    /// Reads the configuration; returns `None` if there is no such group.
    pub(crate) async fn configuration(&self) -> Result<Option<Stored>> {
        let event = match self.last(self.group.configuration_stream()).await {
            // Whoever has closed the stream has deleted the group, for ever.
            Err(error) if matches!(error.kind(), ErrorKind::StreamTombstoned(_)) => None,
            found => found?,
        };
        let Some(event) = event else {
            return Ok(None);
        };
        Ok(Some(Stored {
            configuration: record::read(&event)?,
            revision: event.revision,
            stored: event.created,
        }))
    }

    /// Stores a configuration. Returns false if another caller came first.
    pub(crate) async fn configure(
        &self,
        configuration: &Configuration,
        expected: ExpectedRevision,
    ) -> Result<bool> {
        let event = record::configured(configuration)?;
        let append = Append::to(self.group.configuration_stream(), expected, vec![event]);
        match self.retried(|| self.store.append(append.clone())).await {
            Ok(_) => Ok(true),
            Err(error) if is_conflict(&error) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Makes the checkpoint stream keep the last checkpoints only, unless it has a bound. If somebody else changes its
    /// metadata meanwhile, it is tried again when the group begins the next time.
    pub(crate) async fn bound_checkpoints(&self) -> Result<()> {
        let stream = self.group.checkpoint_stream();
        let found = self
            .retried(|| self.store.stream_metadata(stream.clone()))
            .await?;
        let Some(request) = keep_last(&stream, &found, CHECKPOINTS_KEPT)? else {
            return Ok(());
        };
        let set = self
            .retried(|| self.store.set_stream_metadata(request.clone()))
            .await;
        match set {
            Err(error) if is_conflict(&error) => Ok(()),
            set => set.map(drop),
        }
    }

    /// Deletes the configuration, which is the end of the group. Returns false if the configuration has changed since
    /// `revision`.
    pub(crate) async fn delete(&self, revision: Revision) -> Result<bool> {
        let expected = ExpectedRevision::Exact(revision);
        match self
            .delete_stream(self.group.configuration_stream(), expected)
            .await
        {
            Err(error) if is_conflict(&error) => Ok(false),
            Err(error) => Err(error),
            Ok(()) => Ok(true),
        }
    }

    /// Returns the streams of checkpoints and parked events that have events, each with its last revision.
    pub(crate) async fn ends_of_state(&self) -> Result<Vec<(StreamId, Revision)>> {
        let mut ends = Vec::new();
        let parked = self.parked_stream().await?.stream.clone();
        for stream in [self.group.checkpoint_stream(), parked] {
            match self.last_of(stream.clone()).await {
                Ok((_, Some(last))) => ends.push((stream, last)),
                Ok((_, None)) => {}
                // Nothing of it remains.
                Err(error) if matches!(error.kind(), ErrorKind::StreamTombstoned(_)) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(ends)
    }

    /// Deletes the streams that remain of a group that is deleted, unless they have grown since: then a new group of
    /// this name has begun. The new group does not take what is left for its own, because its life has another number.
    pub(crate) async fn delete_state(&self, ends: Vec<(StreamId, Revision)>) -> Result<()> {
        for (stream, last) in ends {
            let deleted = self
                .delete_stream(stream, ExpectedRevision::Exact(last))
                .await;
            if let Err(error) = deleted
                && !is_conflict(&error)
            {
                return Err(error);
            }
        }
        Ok(())
    }

    async fn delete_stream(&self, stream: StreamId, expected: ExpectedRevision) -> Result<()> {
        let kind = DeleteKind::Soft;
        let request = DeleteStream {
            stream,
            expected,
            kind,
        };
        match self
            .retried(|| self.store.delete_stream(request.clone()))
            .await
        {
            Err(error) if !matches!(error.kind(), ErrorKind::StreamNotFound(_)) => Err(error),
            _ => Ok(()),
        }
    }

    /// Reads the last checkpoint of this life of the group.
    pub(crate) async fn last_checkpoint(&self, life: Uuid) -> Result<LastCheckpoint> {
        let (event, last) = self.last_of(self.group.checkpoint_stream()).await?;
        let expected = last.map_or(ExpectedRevision::NoStream, ExpectedRevision::Exact);
        let Some(event) = event else {
            return Ok(LastCheckpoint {
                expected,
                place: None,
                is_hidden: last.is_some(),
                moved: None,
            });
        };
        let found: Progressed = record::read(&event)?;
        let next = found.next.filter(|_| found.life == life);
        Ok(LastCheckpoint {
            expected,
            is_hidden: false,
            moved: found.moved,
            place: next.map(|next| StoredPlace {
                next,
                incarnation: found.incarnation.map(Incarnation),
                marks: found.marks,
                stored: event.created,
                may_be_ahead: false,
            }),
        })
    }

    /// Returns the incarnation that the store has now.
    pub(crate) async fn incarnation(&self) -> Result<Incarnation> {
        self.retried(|| self.store.incarnation()).await
    }

    /// Refuses to go on if the store has another incarnation than this.
    async fn check_incarnation(&self, expected: Option<Uuid>) -> Result<()> {
        match expected {
            Some(expected) if self.store.incarnation().await?.0 != expected => {
                Err(another_history())
            }
            _ => Ok(()),
        }
    }

    /// Finds out what stands where a mark was.
    pub(crate) async fn find(&self, mark: &Mark, present: Incarnation) -> Result<MarkState> {
        Ok(match self.at(mark.at, present).await? {
            Ok(Some(event)) if mark.is_of(&event) => match mark.parked() {
                Some(parked) if self.was_lost(parked).await? => MarkState::NotParked,
                _ => MarkState::Same,
            },
            Ok(Some(_)) => MarkState::Other,
            Ok(None) => MarkState::Nothing,
            Err(EndsBefore) => MarkState::Other,
        })
    }

    /// Makes a mark of the event at this place, and of what is parked now; `None` if no event can be read there.
    pub(crate) async fn mark_at(&self, at: u64, present: Incarnation) -> Result<Option<Mark>> {
        let Some(event) = self.at(at, present).await?.ok().flatten() else {
            return Ok(None);
        };
        let parked = self.last_parked().await?;
        Ok(Some(Mark::new(at, &event).with_parked(parked)))
    }

    /// Returns the last link in the parked stream, if it has one that can be read.
    pub(crate) async fn last_parked(&self) -> Result<Option<ParkedMark>> {
        let parked = self.parked_stream().await?;
        let last = self.last(parked.stream.clone()).await?;
        Ok(last.map(|link| ParkedMark {
            at: link.revision.0,
            id: link.id.0,
            position: link.position.0,
            stream: parked.number,
        }))
    }

    /// Tells whether the store has lost a link of the parked stream. A link that metadata hide, or that somebody has
    /// deleted, is not lost.
    async fn was_lost(&self, parked: &ParkedMark) -> Result<bool> {
        let stream = self.group.parked_stream_of(parked.stream);
        match self.at_revision(&stream, parked.at).await? {
            Ok(Some(link)) => Ok((link.id.0, link.position.0) != (parked.id, parked.position)),
            Err(EndsBefore) => Ok(true),
            Ok(None) => Ok(!self.had_revision(stream, parked.at).await?),
        }
    }

    /// Tells whether a stream has, or had before it was deleted, an event of this revision.
    async fn had_revision(&self, stream: StreamId, revision: u64) -> Result<bool> {
        match self.bounds(stream).await {
            Ok(bounds) => Ok(bounds.end > revision),
            Err(error) if matches!(error.kind(), ErrorKind::StreamTombstoned(_)) => Ok(true),
            Err(error) => Err(error),
        }
    }

    /// Finds out where a stream begins and ends, whatever hides its events.
    async fn bounds(&self, stream: StreamId) -> Result<Bounds> {
        let last = ReadStream::backwards(stream.clone()).limit(1);
        let end = match self.retried(|| self.store.read_stream(last.clone())).await {
            Ok(page) => page.last_revision.next().0,
            Err(error) if matches!(error.kind(), ErrorKind::StreamNotFound(_)) => {
                let end = self.deleted_before(stream).await?;
                return Ok(Bounds { first: end, end });
            }
            Err(error) => return Err(error),
        };
        let first = ReadStream::forwards(stream.clone()).limit(1);
        let first = match self.retried(|| self.store.read_stream(first.clone())).await {
            Ok(page) => page.events.first().map_or(end, |event| event.revision.0),
            // It was deleted in between.
            Err(error) if matches!(error.kind(), ErrorKind::StreamNotFound(_)) => end,
            Err(error) => return Err(error),
        };
        Ok(Bounds { first, end })
    }

    /// Returns the revision before which all events of a stream were deleted.
    async fn deleted_before(&self, stream: StreamId) -> Result<u64> {
        let noted = self.retried(|| self.last(stream.metadata_stream())).await?;
        let Some(noted) = noted else {
            return Ok(0);
        };
        let lifecycle = Lifecycle::from_event(&noted.data, &noted.metadata)?;
        Ok(lifecycle.deleted_before.0)
    }

    /// Reads the event at a place of the source; `None` if there is none that can be read.
    async fn at(
        &self,
        at: u64,
        present: Incarnation,
    ) -> Result<std::result::Result<Option<RecordedEvent>, EndsBefore>> {
        match self.group.source() {
            Source::Stream(stream) => self.at_revision(stream, at).await,
            Source::All => self.at_position(Position(at), present).await,
        }
    }

    async fn at_revision(
        &self,
        stream: &StreamId,
        at: u64,
    ) -> Result<std::result::Result<Option<RecordedEvent>, EndsBefore>> {
        let request = ReadStream::forwards(stream.clone())
            .from(StreamFrom::Revision(Revision(at)))
            .limit(1);
        match self
            .retried(|| self.store.read_stream(request.clone()))
            .await
        {
            Ok(page) if page.last_revision.0 < at => Ok(Err(EndsBefore)),
            Ok(page) => {
                let found = page.events.into_iter().next();
                Ok(Ok(found.filter(|event| event.revision.0 == at)))
            }
            Err(error) => match error.kind() {
                ErrorKind::StreamNotFound(_) | ErrorKind::StreamTombstoned(_) => Ok(Ok(None)),
                _ => Err(error),
            },
        }
    }

    async fn at_position(
        &self,
        at: Position,
        present: Incarnation,
    ) -> Result<std::result::Result<Option<RecordedEvent>, EndsBefore>> {
        let before = Position(at.0.saturating_sub(1));
        let request = ReadAll::forwards()
            .from(AllFrom::Checkpoint(Checkpoint::in_log(
                present,
                1,
                LogId(0),
                before,
            )))
            .limit(1);
        match self.retried(|| self.store.read_all(request.clone())).await {
            Ok(page) => {
                let found = page.events.into_iter().next();
                let found = found.filter(|event| event.position == at);
                match found {
                    None if page.end && self.end_of_source().await? <= at.0 => Ok(Err(EndsBefore)),
                    found => Ok(Ok(found)),
                }
            }
            Err(error) if matches!(error.kind(), ErrorKind::InvalidCheckpoint(_)) => {
                self.check_incarnation(Some(present.0)).await?;
                Ok(Err(EndsBefore))
            }
            Err(error) => Err(error),
        }
    }

    /// Tells whether the source reaches up to a place, as far as this can be known.
    pub(crate) async fn reaches(&self, next: u64, present: Incarnation) -> Result<bool> {
        let Some(last) = next.checked_sub(1) else {
            return Ok(true);
        };
        let request = Subscribe {
            to: match self.group.source() {
                Source::Stream(stream) => SubscribeTo::Stream(stream.clone()),
                Source::All => SubscribeTo::All(Filter::ALL),
            },
            from: SubscribeFrom::Checkpoint(self.checkpoint_at(last, present)),
        };
        // Nothing is read: whether such a subscription may begin is all that is asked.
        match self.retried(|| self.store.subscribe(request.clone())).await {
            Err(error) if matches!(error.kind(), ErrorKind::InvalidCheckpoint(_)) => {
                self.check_incarnation(Some(present.0)).await?;
                Ok(false)
            }
            // If it may not for another reason, whoever reads the source is told so.
            _ => Ok(true),
        }
    }

    /// Makes the checkpoint of a reader of the source that has finished this place.
    pub(crate) fn checkpoint_at(&self, last: u64, present: Incarnation) -> Checkpoint {
        match self.group.source() {
            Source::Stream(stream) => Checkpoint::stream(present, stream, Some(Revision(last))),
            Source::All => Checkpoint::in_log(present, 1, LogId(0), Position(last)),
        }
    }

    /// Stores a checkpoint after the one before. Returns its revision; `None` if another process has written one.
    /// Nothing is stored once the store has another incarnation than the checkpoint. If it changes while this one is
    /// being stored, the checkpoint still tells of which it is.
    ///
    /// # Errors
    /// `InvalidCheckpoint` if the store has another incarnation; other errors of the store.
    pub(crate) async fn write_checkpoint(
        &self,
        checkpoint: Progressed,
        expected: ExpectedRevision,
    ) -> Result<Option<Revision>> {
        let event = record::progressed(&checkpoint)?;
        let append = Append::to(self.group.checkpoint_stream(), expected, vec![event]);
        let attempt = || async {
            self.check_incarnation(checkpoint.incarnation).await?;
            self.store.append(append.clone()).await
        };
        match self.retried(attempt).await {
            Ok(appended) => Ok(appended.streams.first().map(|part| part.last_revision)),
            Err(error) if is_conflict(&error) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Stores parked events, each by an append of its own: some of them may be parked already, and the store recognises
    /// only whole appends. Returns the last one.
    pub(crate) async fn park(
        &self,
        events: Vec<EventData>,
        present: Incarnation,
    ) -> Result<Option<ParkedMark>> {
        let parked = self.parked_stream().await?;
        let ends = events.into_iter().map(|event| async move {
            let id = event.id.map_or(Uuid::nil(), |id| id.0);
            let append = Append::to(parked.stream.clone(), ExpectedRevision::Any, vec![event]);
            let attempt = || async {
                self.check_incarnation(Some(present.0)).await?;
                self.store.append(append.clone()).await
            };
            let appended = match self.retried(attempt).await {
                Ok(appended) => appended,
                // It was parked before, and somebody has emptied the stream since.
                Err(error) if matches!(error.kind(), ErrorKind::StoredAndDeleted { .. }) => {
                    return Ok(None);
                }
                Err(error) => return Err(error),
            };
            let last = appended.streams.first().map(|part| ParkedMark {
                at: part.last_revision.0,
                id,
                position: part.position.0,
                stream: parked.number,
            });
            Ok::<_, Error>(last)
        });
        let ends = try_join_all(ends).await?;
        Ok(ends.into_iter().flatten().max_by_key(|last| last.at))
    }

    /// Returns the range of the revisions of the parked stream that are in use.
    pub(crate) async fn parked(
        &self,
        configuration: &Configuration,
    ) -> Result<std::ops::Range<u64>> {
        let parked = self.parked_stream().await?;
        let Bounds { first, end } = self.bounds(parked.stream.clone()).await?;
        let begin = match configuration.parked_stream == parked.number {
            true => configuration.parked_from,
            false => 0,
        };
        let from = first.max(begin);
        Ok(from..end.max(from))
    }

    /// Returns the revision that the next parked event will have.
    pub(crate) async fn parked_end(&self) -> Result<u64> {
        let parked = self.parked_stream().await?;
        Ok(self.bounds(parked.stream.clone()).await?.end)
    }

    /// Truncates the parked stream before this revision, which this process has learnt in the history `present`.
    /// Metadata that others have set stays as it is.
    ///
    /// A history that has lost parked events may have others there, or none yet: they must not be hidden. So nothing is
    /// stored if the store has another incarnation, nor if the stream has not come so far, nor if it changes meanwhile.
    /// The end of the stream alone does not tell a change: another history may end at the same revision. So the append
    /// itself requires the history, however late it is sent.
    ///
    /// # Errors
    /// `InvalidCheckpoint` if the store has another history; other errors of the store.
    pub(crate) async fn truncate_parked(&self, before: u64, present: Incarnation) -> Result<()> {
        loop {
            let stream = self.parked_stream().await?.stream.clone();
            let end = self.parked_end().await?;
            let info = self.retried(|| self.store.info()).await?;
            if info.incarnation != present || end < before {
                return Err(another_history());
            }
            let start = vec![Position::START; usize::from(info.logs)];
            let history = Condition::same_history(Checkpoint::logs(present, start));
            let found = self
                .retried(|| self.store.stream_metadata(stream.clone()))
                .await?;
            if found
                .metadata
                .truncate_before
                .is_some_and(|from| from.0 >= before)
            {
                return Ok(());
            }
            let mut document: serde_json::Map<String, serde_json::Value> =
                serde_json::from_slice(found.metadata.json()).map_err(|error| {
                    Error::corrupt("metadata of a parked stream").caused_by(error)
                })?;
            document.insert("$tb".to_owned(), before.into());
            let metadata = StreamMetadata::parse(serde_json::Value::Object(document).to_string())?;
            let event = EventData::json(EventType::new(METADATA)?, metadata.json().clone());
            let has_this_end = end.checked_sub(1).map(|last| Condition::Stream {
                stream: stream.clone(),
                expected: ExpectedRevision::Exact(Revision(last)),
            });
            let append = Append {
                streams: vec![StreamAppend {
                    stream: stream.metadata_stream(),
                    expected: found
                        .revision
                        .map_or(ExpectedRevision::NoStream, ExpectedRevision::Exact),
                    events: vec![event.with_id(EventId::random())],
                }],
                conditions: has_this_end.into_iter().chain([history]).collect(),
            };
            match self.store.append(append).await {
                Ok(_) => return Ok(()),
                Err(error) if is_conflict(&error) => {}
                // Looked at anew: what may have been written shows there.
                Err(error) if error.is_retryable() => tokio::time::sleep(PAUSE_MIN).await,
                Err(error) => return Err(error),
            }
        }
    }

    /// Looks up the first parked events in this range of revisions, at most one page. What another life of the group
    /// has parked is passed over.
    pub(crate) async fn look_up_parked(
        &self,
        range: std::ops::Range<u64>,
        life: Uuid,
    ) -> Result<ParkedPage> {
        let parked = self.parked_stream().await?;
        let request = ReadStream::forwards(parked.stream.clone())
            .from(StreamFrom::Revision(Revision(range.start)))
            .limit(REPLAY_EVENTS_MAX);
        let page = match self
            .retried(|| self.store.read_stream(request.clone()))
            .await
        {
            Ok(page) => page,
            Err(error) if matches!(error.kind(), ErrorKind::StreamNotFound(_)) => {
                return Ok(ParkedPage {
                    events: Vec::new(),
                    next: range.end,
                });
            }
            Err(error) => return Err(error),
        };
        let (mut events, mut bytes, mut next) = (Vec::new(), 0, range.start);
        for link in page
            .events
            .iter()
            .filter(|link| link.revision.0 < range.end)
        {
            if bytes >= REPLAY_BYTES_MAX {
                return Ok(ParkedPage { events, next });
            }
            let told = ParkedLink::of(link);
            let event = match record::target(link).filter(|_| told.is_of(life)) {
                Some((stream, revision)) => self.event(stream, revision).await?,
                None => None,
            };
            // After a loss another event may stand there, which the group delivers without this link.
            let event = event.filter(|event| told.is_for(event));
            bytes += event.as_ref().map_or(0, |event| event.cost_bytes());
            next = link.revision.next().0;
            events.push((link.revision.0, event.map(Arc::new)));
        }
        if page.end || page.events.iter().any(|link| link.revision.0 >= range.end) {
            next = range.end;
        }
        Ok(ParkedPage { events, next })
    }

    async fn event(&self, stream: StreamId, revision: Revision) -> Result<Option<RecordedEvent>> {
        let found = self
            .retried(|| self.store.read_event(stream.clone(), revision))
            .await;
        match found {
            Ok(event) => Ok(Some(event)),
            Err(error) => match error.kind() {
                ErrorKind::EventNotFound { .. }
                | ErrorKind::StreamNotFound(_)
                | ErrorKind::StreamTombstoned(_) => Ok(None),
                _ => Err(error),
            },
        }
    }

    /// Returns the place after the last event of the source.
    pub(crate) async fn end_of_source(&self) -> Result<u64> {
        match self.group.source() {
            Source::Stream(stream) => {
                let request = ReadStream::backwards(stream.clone()).limit(1);
                // Its last events may be hidden.
                match self.store.read_stream(request).await {
                    Ok(page) if page.events.is_empty() && page.last_revision == Revision(0) => {
                        Ok(0)
                    }
                    Ok(page) => Ok(page.last_revision.next().0),
                    Err(error) if matches!(error.kind(), ErrorKind::StreamNotFound(_)) => Ok(0),
                    Err(error) => Err(error),
                }
            }
            Source::All => {
                let heads = self.store.info().await?.heads;
                Ok(heads.first().copied().unwrap_or(Position::START).next().0)
            }
        }
    }

    /// Tries until the store succeeds or refuses, or the time to give up has come. Then the answer is that of the last
    /// attempt, unless the outcome of an earlier attempt is not known. All attempts write the same events, so the
    /// outcome of the call is not known then either.
    async fn retried<T, F: Future<Output = Result<T>>>(
        &self,
        mut attempt: impl FnMut() -> F,
    ) -> Result<T> {
        let mut pauses = BackOff::new(PAUSE_MIN, PAUSE_MAX);
        let mut in_doubt = None;
        let mut told = LastingFault::default();
        loop {
            let error = match attempt().await {
                Err(error) if error.is_retryable() => error,
                outcome => return outcome,
            };
            let group = &self.group;
            warn_once!(told, %group, %error, "a consumer group waits for the store");
            let next = Instant::now() + pauses.pause();
            if self.until.is_some_and(|until| next > until) {
                return Err(in_doubt.unwrap_or(error));
            }
            if matches!(error.kind(), ErrorKind::OutcomeUnknown(_)) {
                in_doubt = Some(error);
            }
            tokio::time::sleep_until(next).await;
        }
    }

    async fn last(&self, stream: StreamId) -> Result<Option<RecordedEvent>> {
        Ok(self.last_of(stream).await?.0)
    }

    /// Returns the last event of a stream that can be read, and the revision of its last event, which metadata may
    /// hide.
    async fn last_of(&self, stream: StreamId) -> Result<(Option<RecordedEvent>, Option<Revision>)> {
        let request = ReadStream::backwards(stream).limit(1);
        match self.store.read_stream(request).await {
            Ok(page) => Ok((page.events.into_iter().next(), Some(page.last_revision))),
            Err(error) if matches!(error.kind(), ErrorKind::StreamNotFound(_)) => Ok((None, None)),
            Err(error) => Err(error),
        }
    }
}

fn is_conflict(error: &Error) -> bool {
    matches!(error.kind(), ErrorKind::WrongExpectedRevision { .. })
}

#[cfg(test)]
mod tests;
