//! The stream of requests: timers that are set and cancelled, by anybody.

use std::collections::HashSet;
use std::sync::{Arc, OnceLock};

use gesta_core::{
    Append, ErrorKind, EventData, EventId, EventStore, EventType, ExpectedRevision, Incarnation,
    ReadStream, RecordedEvent, Result, Revision, StreamFrom, StreamId, Subscribe, SubscribeFrom,
    SubscribeTo, Subscription,
};

use crate::book::Book;
use crate::record::{self, CANCELLED, Cancelled, SET, Set, Through};
use crate::timer::{Cause, NewTimer, check_key, id_of};

/// The number of events that are read at once.
const PAGE: usize = 5_000;
/// The greatest number of characters of an error about what others wrote.
pub(crate) const ERROR_CHARS_MAX: usize = 300;

/// How far the requests are read.
#[derive(Debug, Default)]
pub(crate) struct Place {
    pub(crate) through: Option<Through>,
    /// Nothing is pending of the requests up to this one: they are read for what they say of later ones.
    pub(crate) settled: Option<Through>,
    /// Whether there may be more to read.
    pub(crate) is_behind: bool,
    /// The number of requests that were read.
    pub(crate) events: u64,
    /// The number of requests that were skipped because they cannot be read.
    pub(crate) skipped: u64,
    /// Which one the last of them is, and what is wrong with it.
    pub(crate) unreadable: Option<String>,
    /// What has fired already, of what may be read.
    pub(crate) fired: HashSet<EventId>,
}

impl Place {
    /// Returns whether a request comes right after those that were read; `None` if it was read.
    pub(crate) fn is_next(&self, revision: Revision) -> Option<bool> {
        let after = |through: Through| Revision(through.revision).next();
        let next = self.through.map_or(Revision(0), after);
        (revision >= next).then_some(revision == next)
    }
}

/// What has become of a request that was read before.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fate {
    /// It is where it was.
    There,
    /// It cannot be read any more, because of metadata or because it was removed. The stream goes on after it.
    Hidden,
    /// It was lost: the stream ends before it, or another request has its place.
    Lost,
}

/// A part of the stream of requests.
#[derive(Debug, Default)]
struct Extract {
    events: Vec<RecordedEvent>,
    /// The revision before which it ends; none if it reaches to the end of the stream.
    ends_before: Option<Revision>,
    /// The last revision of the stream; none if nobody has written to it.
    last: Option<Revision>,
}

impl Extract {
    /// Returns whether it says what has become of a request, which is not before its begin.
    fn reaches(&self, through: Through) -> bool {
        self.ends_before.is_none_or(|end| through.revision < end.0)
    }

    fn fate(&self, through: Through) -> Fate {
        let place = |event: &RecordedEvent| event.revision.0;
        let found = self.events.binary_search_by_key(&through.revision, place);
        match found.ok().and_then(|at| self.events.get(at)) {
            Some(event) if through.is(event) => Fate::There,
            None if self.last.is_some_and(|last| last.0 >= through.revision) => Fate::Hidden,
            _ => Fate::Lost,
        }
    }
}

/// The stream of requests.
#[derive(Clone)]
pub(crate) struct Requests {
    store: Arc<dyn EventStore>,
    pub(crate) stream: StreamId,
    set: EventType,
    cancelled: EventType,
    /// The life of the store when a cause was stored first.
    life: Arc<OnceLock<Incarnation>>,
}

impl Requests {
    pub(crate) fn new(store: Arc<dyn EventStore>, stream: StreamId) -> Result<Self> {
        Ok(Self {
            store,
            stream,
            set: EventType::new(SET)?,
            cancelled: EventType::new(CANCELLED)?,
            life: Arc::default(),
        })
    }

    pub(crate) async fn set(&self, timer: &NewTimer) -> Result<()> {
        // The stream is a part of the id, so timers of two names never give commands of one key.
        let id = id_of(&[self.stream.as_str().as_bytes(), timer.id.0.as_bytes()]);
        let mut set = Set::of(timer);
        set.because = self.in_life(set.because).await?;
        let event = json(&self.set, &set)?.with_id(id);
        self.append(event).await
    }

    pub(crate) async fn cancel(&self, key: &str, event: Option<&RecordedEvent>) -> Result<()> {
        let cancelled = Cancelled {
            key: key.to_owned(),
            because: self.in_life(event.map(Cause::of)).await?,
        };
        let mut cancel = json(&self.cancelled, &cancelled)?;
        if let Some(event) = event {
            // Who handles the event again finds what is stored, as with a timer that is set again: otherwise it would
            // cancel what was set after it.
            let stream = self.stream.as_str().as_bytes();
            let parts = [stream, b"cancel", event.id.0.as_bytes(), key.as_bytes()];
            cancel = cancel.with_id(id_of(&parts));
        }
        self.append(cancel).await
    }

    /// Notes in which life of the store the event of a cause is there. Once another life has begun, this process does
    /// not: it may have read the event in the life before, and the event may be lost.
    async fn in_life(&self, because: Option<Cause>) -> Result<Option<Cause>> {
        let Some(cause) = because else {
            return Ok(None);
        };
        let present = self.store.incarnation().await?;
        let is_first = *self.life.get_or_init(|| present) == present;
        Ok(Some(Cause {
            incarnation: is_first.then_some(present.0),
            ..cause
        }))
    }

    /// Appends a request once: a retry after a lost answer has the same id.
    async fn append(&self, event: EventData) -> Result<()> {
        let append = Append::to(self.stream.clone(), ExpectedRevision::Any, vec![event]);
        match self.store.append(append.clone()).await {
            Err(doubt) if matches!(doubt.kind(), ErrorKind::OutcomeUnknown(_)) => {
                // That the repetition was not stored tells nothing of the first attempt.
                let again = self.store.append(append).await;
                again.map(drop).map_err(|_| doubt)
            }
            answer => answer.map(drop),
        }
    }

    /// Finds out what has become of a request.
    pub(crate) async fn fate(&self, through: Through) -> Result<Fate> {
        Ok(self.extract(through.revision, 1).await?.fate(through))
    }

    /// Returns those of these requests that are lost. It reads what lies between the first and the last of them once.
    pub(crate) async fn lost(&self, of: HashSet<Through>) -> Result<Vec<Through>> {
        let mut of: Vec<Through> = of.into_iter().collect();
        of.sort_by_key(|through| through.revision);
        let last = of.last().map_or(0, |through| through.revision);
        let mut lost = Vec::new();
        let mut extract: Option<Extract> = None;
        for through in of {
            let known = extract.take().filter(|known| known.reaches(through));
            let known = match known {
                Some(known) => known,
                None => {
                    let count = last.saturating_sub(through.revision).saturating_add(1);
                    let count = usize::try_from(count).unwrap_or(PAGE).min(PAGE);
                    self.extract(through.revision, count).await?
                }
            };
            if known.fate(through) == Fate::Lost {
                lost.push(through);
            }
            extract = Some(known);
        }
        Ok(lost)
    }

    /// Reads up to `count` requests from a revision on.
    async fn extract(&self, from: u64, count: usize) -> Result<Extract> {
        let from = StreamFrom::Revision(Revision(from));
        let request = ReadStream::forwards(self.stream.clone())
            .from(from)
            .limit(count);
        match self.store.read_stream(request).await {
            Err(error) if matches!(error.kind(), ErrorKind::StreamNotFound(_)) => {
                Ok(Extract::default())
            }
            page => page.map(|page| Extract {
                ends_before: page.next.filter(|_| !page.end),
                last: Some(page.last_revision),
                events: page.events,
            }),
        }
    }

    /// Reads the requests that the place has not passed into the book, as long as it has room.
    pub(crate) async fn read_on(&self, place: &mut Place, book: &mut Book) -> Result<()> {
        place.is_behind = true;
        while book.has_room() {
            let from = place.through.map_or(StreamFrom::Start, |after| {
                StreamFrom::Revision(Revision(after.revision).next())
            });
            let request = ReadStream::forwards(self.stream.clone()).from(from);
            let (events, end) = self.page(request.limit(PAGE)).await?;
            for event in &events {
                if !book.has_room() {
                    return Ok(());
                }
                self.take(event, place, book);
            }
            // A store that answers at once leaves others their turn as well.
            tokio::task::yield_now().await;
            if end {
                place.is_behind = false;
                return Ok(());
            }
        }
        Ok(())
    }

    /// Reads a page; nothing of a stream that nobody has written to.
    async fn page(&self, request: ReadStream) -> Result<(Vec<RecordedEvent>, bool)> {
        match self.store.read_stream(request).await {
            Err(error) if matches!(error.kind(), ErrorKind::StreamNotFound(_)) => {
                Ok((Vec::new(), true))
            }
            page => page.map(|page| (page.events, page.end)),
        }
    }

    /// Takes the next request into the book. One that cannot be read is skipped: it would hold up all timers for ever.
    pub(crate) fn take(&self, event: &RecordedEvent, place: &mut Place, book: &mut Book) {
        let is_settled = |settled: Through| event.revision.0 <= settled.revision;
        let is_settled = place.settled.is_some_and(is_settled);
        if let Err(error) = self.apply(event, place, book)
            && !is_settled
        {
            let (stream, revision) = (&event.stream, event.revision);
            // Whoever wrote it decides how long the error is.
            let error: String = error.to_string().chars().take(ERROR_CHARS_MAX).collect();
            let why = format!("revision {revision} of stream {stream} is skipped: {error}");
            tracing::warn!(timers = %stream, error = why, "a request cannot be read");
            place.skipped += 1;
            place.unreadable = Some(why);
        }
        if is_settled {
            book.remove_all();
        }
        place.through = Some(Through::of(event));
        place.events += 1;
    }

    fn apply(&self, event: &RecordedEvent, place: &Place, book: &mut Book) -> Result<()> {
        if event.event_type == self.set {
            let set: Set = record::read(event)?;
            // It replaces another one, also if it has fired since.
            book.set(set.timer(event.id)?);
            if place.fired.contains(&event.id) {
                book.remove(event.id);
            }
        } else if event.event_type == self.cancelled {
            let cancelled: Cancelled = record::read(event)?;
            check_key(&cancelled.key)?;
            book.cancel(&cancelled.key, cancelled.because);
        }
        Ok(())
    }

    /// Follows the stream after a request.
    pub(crate) async fn follow(&self, after: Option<Through>) -> Result<Subscription> {
        follow(
            &*self.store,
            &self.stream,
            after.map(|after| Revision(after.revision)),
        )
        .await
    }
}

/// Follows a stream after a revision.
pub(crate) async fn follow(
    store: &dyn EventStore,
    stream: &StreamId,
    after: Option<Revision>,
) -> Result<Subscription> {
    let request = Subscribe {
        to: SubscribeTo::Stream(stream.clone()),
        from: after.map_or(SubscribeFrom::Start, SubscribeFrom::Revision),
    };
    store.subscribe(request).await
}

/// Makes an event with this JSON.
pub(crate) fn json(event_type: &EventType, value: &impl serde::Serialize) -> Result<EventData> {
    let data = serde_json::to_vec(value)
        .map_err(|error| gesta_core::Error::invalid("data", error.to_string()))?;
    Ok(EventData::json(event_type.clone(), data).with_id(gesta_core::EventId::random()))
}
