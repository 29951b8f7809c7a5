//! Appends imported events to the target: in the order of the source, each exactly once.
//!
//! How: events are gathered into appends of several streams. A stream occurs once in an append, and its events stand
//! together there, so an append ends where a stream comes again after another: what the target has is in exactly the
//! order of the source. So that this is no matter of one answer after the other, several appends are on their way at
//! once, handed over in their order.
//!
//! Invariants: each append names the revision that it expects of each stream, which follows from what was sent before;
//! so after a failure nothing later can have been stored in that stream, and what the target has is read again before
//! anything is sent again (`recovery`). All of it belongs to one life of the target: one that has lost commits since is
//! not gone on with, for what is known of it is not so any more.
//!
//! A dry run has a target that only counts (`counting`): it has no store, and takes every stream for new.

mod counting;
mod lifecycle;
mod recovery;
#[cfg(test)]
mod tests;

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt;
use futures::future::BoxFuture;
use futures::stream::{self, StreamExt, TryStreamExt};
use gesta_core::{
    Append, Appended, Error, ErrorKind, EventData, EventId, EventStore, ExpectedRevision,
    Incarnation, LogId, Position, Result, Revision, StreamAppend, StreamId, StreamMetadata, limits,
};

use crate::event::Place;
use crate::known::{self, Again, Known, Stored};

use counting::Names;
pub(crate) use recovery::lost;

/// The most events in one append.
const APPEND_EVENTS: usize = 1_000;
/// The most bytes in one append.
const APPEND_BYTES: usize = 4 * 1024 * 1024;
/// The most bytes on their way at once.
const IN_FLIGHT_BYTES: usize = 32 * 1024 * 1024;
/// How many streams are read at once.
const READS_AT_ONCE: usize = 32;
/// Of how many streams it is remembered what the target has. Others are read again.
const KNOWN_MAX: usize = 1_000_000;
/// How often a stream or its metadata are read again because a write found them otherwise.
pub(crate) const TRIES: u32 = 5;

/// An event that is ready to be appended.
pub(crate) struct Ready {
    pub(crate) key: Arc<str>,
    pub(crate) sequence: u64,
    pub(crate) place: Place,
    pub(crate) event: EventData,
}

/// The events of one stream in one append.
struct Part {
    key: Arc<str>,
    stream: StreamId,
    expected: Option<Revision>,
    /// The number of the event before them in their stream, which is stored or was sent; `None` if they are the first.
    after: Option<u64>,
    events: Vec<(u64, Place, EventData)>,
}

impl Part {
    fn append(&self) -> StreamAppend {
        StreamAppend {
            stream: self.stream.clone(),
            expected: self
                .expected
                .map_or(ExpectedRevision::NoStream, ExpectedRevision::Exact),
            events: self
                .events
                .iter()
                .map(|(_, _, event)| event.clone())
                .collect(),
        }
    }
}

fn append_of(parts: &[Part]) -> Append {
    Append {
        streams: parts.iter().map(Part::append).collect(),
        conditions: Vec::new(),
    }
}

/// An append that is on its way.
struct InFlight {
    parts: Vec<Part>,
    bytes: usize,
    answer: BoxFuture<'static, Result<Appended>>,
    done: Option<Result<Appended>>,
}

impl InFlight {
    async fn end(self) -> (Vec<Part>, Result<Appended>) {
        let answer = match self.done {
            Some(answer) => answer,
            None => self.answer.await,
        };
        (self.parts, answer)
    }
}

/// The store to which events are appended, and what is known of it.
pub(crate) struct Target {
    /// `None` for a target that only counts.
    store: Option<Arc<dyn EventStore>>,
    /// The names of a target that only counts.
    names: Names,
    /// Whether each append has one stream only, since the streams of one append must be of one log.
    one_stream: bool,
    in_flight: usize,
    retry: Duration,
    /// The life of the store to which everything belongs that is known.
    incarnation: Option<Incarnation>,
    /// Whether the store has another life now.
    is_lost: bool,
    /// The last position of each log when the import began: what stands there or before was there already.
    heads: Vec<Position>,
    known: HashMap<Arc<str>, Known>,
    pub(crate) known_max: usize,
    /// How many streams were met and are forgotten.
    met_before: usize,
    /// Streams with events that are forgotten since their metadata were set, or they were closed.
    changed: HashSet<Arc<str>>,
    /// Whether streams that are not known are taken for new. An append tells if that is wrong.
    fresh: bool,
    forming: Vec<Part>,
    /// The streams of what is gathered.
    forming_streams: HashSet<StreamId>,
    /// The ids of its events, which an append must not have twice.
    forming_ids: HashSet<EventId>,
    forming_events: usize,
    forming_bytes: usize,
    flights: VecDeque<InFlight>,
    ends: HashMap<LogId, Position>,
    /// Events that were stored.
    pub(crate) stored: u64,
    /// Events that were there before this import began.
    pub(crate) already: u64,
    /// Appends that stand before earlier ones.
    pub(crate) displaced: u64,
}

impl Target {
    /// Makes the target of an import. `fresh` tells that no checkpoint says that anything was imported. Streams are
    /// taken for new only if the store has never had an event: another import may have stored them, and somebody
    /// deleted them.
    pub(crate) async fn open(
        store: Arc<dyn EventStore>,
        incarnation: Incarnation,
        in_flight: usize,
        retry: Duration,
        fresh: bool,
    ) -> Result<Self> {
        let info = store.info().await?;
        Ok(Self {
            store: Some(store),
            incarnation: Some(incarnation),
            one_stream: info.logs > 1,
            fresh: fresh && info.heads.iter().all(|head| *head == Position::START),
            heads: info.heads,
            in_flight: in_flight.max(1),
            retry,
            known_max: KNOWN_MAX,
            ..Self::counting()
        })
    }

    /// Returns the store.
    ///
    /// # Errors
    /// `Unsupported` for a target that only counts.
    fn store(&self) -> Result<Arc<dyn EventStore>> {
        let none = || ErrorKind::Unsupported("a dry run has no store".into()).into();
        self.store.clone().ok_or_else(none)
    }

    /// Reads what the target has of these streams, as far as it is not known.
    pub(crate) async fn prepare(&mut self, wanted: Vec<(Arc<str>, StreamId)>) -> Result<()> {
        if self.fresh {
            for (key, stream) in wanted {
                if self.only_counts() {
                    self.names.give(&key, &stream);
                }
                self.known.insert(key, Known::none(stream));
            }
            return Ok(());
        }
        let store = &self.store()?;
        let read = |(key, stream): (Arc<str>, StreamId)| async move {
            let known = known::read(&**store, &stream, &key).await?;
            Ok::<_, Error>((key, known))
        };
        let found: Vec<_> = stream::iter(wanted)
            .map(read)
            .buffer_unordered(READS_AT_ONCE)
            .try_collect()
            .await?;
        self.known.extend(found);
        Ok(())
    }

    /// Returns true if streams that are not known are taken for new.
    pub(crate) fn is_fresh(&self) -> bool {
        self.fresh
    }

    /// Returns what the target has of the stream of a key, once it was prepared.
    pub(crate) fn known(&self, key: &str) -> Option<&Known> {
        self.known.get(key)
    }

    /// Notes whose tenant's stream has this key. Returns false if it is another one's: the key of a tenant's stream can
    /// be the same as that of a stream without a tenant.
    pub(crate) fn is_of_tenant(&mut self, key: &str, tenant: Option<&str>) -> bool {
        let Some(known) = self.known.get_mut(key) else {
            return true;
        };
        let first = known
            .tenant
            .get_or_insert_with(|| tenant.map(str::to_owned));
        first.as_deref() == tenant
    }

    /// Lets the stream of a key be another one, if that one has events of this key.
    pub(crate) async fn adopt(&mut self, key: &Arc<str>, other: &StreamId) -> Result<()> {
        let found = match known::read(&*self.store()?, other, key).await {
            Ok(found) => found,
            Err(error) if matches!(error.kind(), ErrorKind::Unsupported(_)) => return Ok(()),
            Err(error) => return Err(error),
        };
        if found.stored.is_some() {
            self.known.insert(Arc::clone(key), found);
        }
        Ok(())
    }

    /// Returns true if the last event that the target has of the stream of a key was not there when the import began.
    pub(crate) fn has_stored_of(&self, key: &str) -> bool {
        let found = self.known.get(key).and_then(|known| known.found);
        found.is_some_and(|(log, position)| !self.was_there(log, position))
    }

    /// Notes that this run has met an event of a stream. Returns whether it had met one before.
    pub(crate) fn meet(&mut self, key: &str) -> bool {
        let known = self.known.get_mut(key);
        known.is_none_or(|known| std::mem::replace(&mut known.met, true))
    }

    /// Notes that an event was met, whether it is stored or not.
    pub(crate) fn see(&mut self, key: &str, sequence: u64) {
        if let Some(known) = self.known.get_mut(key) {
            known.seen = known.seen.max(Some(sequence));
        }
    }

    /// Returns the number of streams that were met. Above a million it may count some twice.
    pub(crate) fn streams(&self) -> usize {
        if self.only_counts() {
            return self.names.given();
        }
        let changed = self.changed.iter();
        let forgotten = changed.filter(|key| !self.known.contains_key(*key));
        self.met_before + self.known.len() + forgotten.count()
    }

    /// Waits until everything is durable, and reads what the target has of the stream of a key.
    pub(crate) async fn read_anew(&mut self, key: &Arc<str>, stream: &StreamId) -> Result<&Known> {
        self.drain().await?;
        let found = known::read(&*self.store()?, stream, key).await?;
        let before = self.known.get(key);
        let seen = before.and_then(|known| known.seen).max(found.seen);
        let met = before.is_some_and(|known| known.met);
        let found = Known { seen, met, ..found };
        Ok(self
            .known
            .entry(Arc::clone(key))
            .insert_entry(found)
            .into_mut())
    }

    /// Returns the revision of the target that stands for the number `before` of the source, from which on a stream is
    /// to be shown; `None` if the target has nothing of the stream yet.
    pub(crate) async fn revision_from(&mut self, key: &str, before: u64) -> Result<Option<u64>> {
        match self.known.get(key) {
            Some(known) => known::revision_from(&*self.store()?, known, before).await,
            None => Ok(None),
        }
    }

    /// Returns the metadata of a stream.
    pub(crate) async fn metadata(&mut self, stream: &StreamId) -> Result<StreamMetadata> {
        let found = self.store()?.stream_metadata(stream.clone()).await?;
        Ok(found.metadata)
    }

    /// Looks for the event of a stream that has this number in the source.
    pub(crate) async fn find(&mut self, key: &str, sequence: u64) -> Result<Option<Stored>> {
        match self.known.get(key) {
            Some(known) => known::find(&*self.store()?, &known.stream, sequence).await,
            None => Ok(None),
        }
    }

    /// Reads what streams had at these numbers, sorted for each key, when they were read.
    pub(crate) async fn again(
        &mut self,
        wanted: Vec<(Arc<str>, Vec<u64>)>,
    ) -> Result<HashMap<(Arc<str>, u64), Again>> {
        if wanted.is_empty() {
            return Ok(HashMap::new());
        }
        let (store, known) = (&self.store()?, &self.known);
        let read = |(key, numbers): (Arc<str>, Vec<u64>)| async move {
            let found = match known.get(&key) {
                Some(known) => known::again(&**store, known, &numbers).await?,
                None => (Vec::new(), None),
            };
            Ok::<_, Error>((key, numbers, found))
        };
        let read: Vec<_> = stream::iter(wanted)
            .map(read)
            .buffer_unordered(READS_AT_ONCE)
            .try_collect()
            .await?;
        let mut all = HashMap::new();
        for (key, numbers, (found, compared)) in read {
            if let Some(known) = self.known.get_mut(&key) {
                known.compared = compared;
            }
            for (number, found) in numbers.into_iter().zip(found) {
                all.insert((Arc::clone(&key), number), found);
            }
        }
        Ok(all)
    }

    /// Takes an event, which is appended with those that follow or at the next [`drain`](Self::drain).
    pub(crate) async fn push(&mut self, ready: Ready) -> Result<()> {
        if self.only_counts() {
            self.stored += 1;
            if let Some(known) = self.known.get_mut(&ready.key) {
                known.stored = Some((ready.sequence, ready.place));
            }
            return Ok(());
        }
        let bytes = ready.event.payload_bytes();
        let Some(known) = self.known.get(&ready.key) else {
            return Err(Error::corrupt(format!(
                "stream {:?} was not prepared",
                ready.key
            )));
        };
        let is_last = self
            .forming
            .last()
            .is_some_and(|part| part.key == ready.key);
        // Another key can have the same name, which the append after this one tells.
        let is_among = self.forming_streams.contains(&known.stream);
        // Some sources have an id twice in a stream.
        let has_id = |id: EventId| self.forming_ids.contains(&id);
        let is_full = self.forming_events >= APPEND_EVENTS
            || ready.event.id.is_some_and(has_id)
            || (self.forming_events > 0 && self.forming_bytes + bytes > APPEND_BYTES)
            || (!is_last
                && !self.forming.is_empty()
                && (self.one_stream
                    || self.forming.len() >= limits::APPEND_STREAMS_MAX
                    || is_among));
        if is_full {
            self.submit().await?;
        }
        let Some(known) = self.known.get_mut(&ready.key) else {
            return Err(Error::corrupt(format!(
                "stream {:?} was not prepared",
                ready.key
            )));
        };
        let expected = known.revision;
        let after = known.stored.map(|(sequence, _)| sequence);
        known.revision = Some(expected.map_or(Revision(0), Revision::next));
        known.stored = Some((ready.sequence, ready.place));
        self.forming_ids.extend(ready.event.id);
        let event = (ready.sequence, ready.place, ready.event);
        self.forming_events += 1;
        self.forming_bytes += bytes;
        match self.forming.last_mut() {
            Some(part) if part.key == ready.key => part.events.push(event),
            _ => {
                self.forming_streams.insert(known.stream.clone());
                self.forming.push(Part {
                    key: ready.key,
                    stream: known.stream.clone(),
                    expected,
                    after,
                    events: vec![event],
                });
            }
        }
        Ok(())
    }

    /// Sends what is gathered.
    async fn submit(&mut self) -> Result<()> {
        if self.forming.is_empty() {
            return Ok(());
        }
        let on_the_way =
            |flights: &VecDeque<InFlight>| flights.iter().map(|flight| flight.bytes).sum::<usize>();
        while self.flights.len() >= self.in_flight || on_the_way(&self.flights) > IN_FLIGHT_BYTES {
            self.land().await?;
        }
        // What was gathered was sent by itself if an append before it had failed.
        let (parts, bytes) = (std::mem::take(&mut self.forming), self.forming_bytes);
        self.forming_is_over();
        if parts.is_empty() {
            return Ok(());
        }
        let (store, append) = (self.store()?, append_of(&parts));
        let mut answer = async move { store.append(append).await }.boxed();
        // The first poll hands the append over, so appends reach the store in their order.
        let done = match futures::poll!(&mut answer) {
            std::task::Poll::Ready(answer) => Some(answer),
            std::task::Poll::Pending => None,
        };
        self.flights.push_back(InFlight {
            parts,
            bytes,
            answer,
            done,
        });
        Ok(())
    }

    /// Forgets what was counted of what is gathered, once it was taken away.
    fn forming_is_over(&mut self) {
        (self.forming_events, self.forming_bytes) = (0, 0);
        self.forming_streams.clear();
        self.forming_ids.clear();
    }

    /// Waits for the oldest append on its way.
    async fn land(&mut self) -> Result<()> {
        let Some(flight) = self.flights.pop_front() else {
            return Ok(());
        };
        let (parts, answer) = flight.end().await;
        match answer {
            Ok(answer) => self.note(&parts, &answer),
            Err(error) => self.recover(parts, error).await,
        }
    }

    /// Sends everything, and waits until it is durable.
    pub(crate) async fn drain(&mut self) -> Result<()> {
        self.submit().await?;
        while !self.flights.is_empty() {
            self.land().await?;
        }
        Ok(())
    }

    /// Forgets what the target has of the streams if there are very many. Nothing may be gathered or on its way, nor
    /// may a page be under way, whose streams were prepared.
    pub(crate) fn forget_many(&mut self) {
        if self.known.len() + self.changed.len() > self.known_max {
            self.met_before = self.streams();
            self.known.clear();
            self.changed.clear();
            self.fresh = false;
        }
    }

    /// Counts what an append has stored.
    ///
    /// # Errors
    /// `Unavailable` if it was stored in another life of the store.
    fn note(&mut self, parts: &[Part], answer: &Appended) -> Result<()> {
        if Some(answer.checkpoint.incarnation) != self.incarnation {
            return Err(self.lost());
        }
        let count = parts
            .iter()
            .map(|part| part.events.len() as u64)
            .sum::<u64>();
        // The store has recognised the events by their ids, and stored nothing.
        if self.was_there(answer.log, answer.position) {
            self.already += count;
            self.fresh = false;
            return Ok(());
        }
        self.stored += count;
        let end = self.ends.entry(answer.log).or_insert(Position::START);
        if answer.position < *end {
            self.displaced += 1;
        }
        *end = answer.position.max(*end);
        Ok(())
    }

    fn was_there(&self, log: LogId, position: Position) -> bool {
        let head = self.heads.get(usize::from(log.0));
        head.is_some_and(|head| position <= *head)
    }

    fn forget(&mut self, key: &str) {
        if let Some((key, known)) = self.known.remove_entry(key)
            && known.seen.is_some()
        {
            self.changed.insert(key);
        }
        self.fresh = false;
    }
}
