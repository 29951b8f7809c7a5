//! The work of a view: a batch is folded in memory, each key once, and each row is written once.
//!
//! Why: a statement or an allocation for each event would bound the speed. A row that was touched stays in memory, so
//! that a busy key is read once. That is sound because nobody else writes the rows: whoever owns the projection later
//! moves the checkpoint, and then the fence of this session holds no more, whatever it remembers.
//! Invariants: the rows in memory are those of the last folded batch, committed or not. They are forgotten whenever a
//! batch has failed, and when they are too many; the latter only while no batch is on its way, so that what is read
//! again is what was folded.

use std::cell::Cell as StdCell;
use std::collections::{HashMap, HashSet};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use gesta_core::{ErrorKind, EventStore, Position, ReadStream, RecordedEvent, Revision, StreamId};

use crate::batch::{Batch, positions};
use crate::config::OnPoison;
use crate::definition::Table;
use crate::error::{ApplyError, cut};
use crate::fault::{Fault, Verdict, at, panic_text};
use crate::row::{Found, Key, KeyedRows, Keys, Row};
use crate::target::{Parked, Session, Target};
use crate::view::View;
use crate::work::{Fold, Folded, Work, Writer, parked};

/// Most streams that are remembered for what is known of their fronts.
const FRONTS_MAX: usize = 10_000;

/// What is known of the first events of a stream.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Front {
    /// The view has seen what came before, or was told of it.
    Seen,
    /// They were hidden when the view met the stream.
    Hidden,
    /// The view has met the stream after this position of its log, and needed no row so far.
    After(Position),
}

struct Entry<K, R> {
    key: K,
    row: Option<R>,
    /// True if the table has a row of this key once all folded batches are committed.
    is_stored: bool,
    is_known: bool,
    is_changed: bool,
    bytes: usize,
}

/// The rows of a view that are in memory.
struct Rows<K, R> {
    places: HashMap<K, usize>,
    entries: Vec<Entry<K, R>>,
    bytes: usize,
    /// True if a key that is not here has no row.
    is_complete: bool,
}

impl<K: Key, R: Row> Rows<K, R> {
    fn new(is_complete: bool) -> Self {
        Self {
            places: HashMap::new(),
            entries: Vec::new(),
            bytes: 0,
            is_complete,
        }
    }

    /// Returns the place of a key, and notes it as missing if its row has to be read.
    fn place(&mut self, key: K, missing: &mut Vec<usize>) -> usize {
        if let Some(place) = self.places.get(&key) {
            return *place;
        }
        let place = self.entries.len();
        if !self.is_complete {
            missing.push(place);
        }
        self.places.insert(key.clone(), place);
        let bytes = 2 * std::mem::size_of::<K>() + std::mem::size_of::<Entry<K, R>>() + 32;
        self.bytes += bytes;
        self.entries.push(Entry {
            key,
            row: None,
            is_stored: false,
            is_known: self.is_complete,
            is_changed: false,
            bytes,
        });
        place
    }

    fn set_cost(&mut self, place: usize) {
        let entry = &mut self.entries[place];
        let row = entry.row.as_ref().map_or(0, Row::cost_bytes);
        let bytes = 2 * std::mem::size_of::<K>() + std::mem::size_of::<Entry<K, R>>() + 32 + row;
        self.bytes = self.bytes + bytes - entry.bytes;
        entry.bytes = bytes;
    }
}

/// What is to be done about an event of a batch.
enum Met {
    /// It changes no row.
    Nothing,
    /// It changes the row at this place in memory.
    Row(usize),
    /// It is put aside.
    Aside(Box<Parked>),
}

impl Met {
    fn row(&self) -> Option<usize> {
        match self {
            Met::Row(place) => Some(*place),
            Met::Nothing | Met::Aside(_) => None,
        }
    }
}

/// Returns the text of a key, without the character that PostgreSQL has in no text.
fn text_of(key: &impl Key) -> String {
    let text = key.text();
    match text.contains('\0') {
        true => text.replace('\0', "\\0"),
        false => text,
    }
}

/// What the work of a view needs beside the view.
#[derive(Clone)]
pub(crate) struct ViewSettings {
    pub(crate) store: Arc<dyn EventStore>,
    pub(crate) on_poison: OnPoison,
    pub(crate) parked_keys_max: usize,
    pub(crate) row_cache_bytes_max: usize,
    /// True if the view gets all events of its streams from the first on: only then a missing front can be noticed.
    pub(crate) sees_whole_streams: bool,
}

pub(crate) struct ViewWork<V: View, T> {
    view: Arc<V>,
    target: T,
    table: Arc<Table>,
    settings: ViewSettings,
    rows: Rows<V::Key, V::Row>,
    parked_keys: HashSet<String>,
    fronts: HashMap<StreamId, Front>,
}

impl<V: View, T: Target> ViewWork<V, T> {
    pub(crate) fn new(view: Arc<V>, target: T, table: Arc<Table>, settings: ViewSettings) -> Self {
        Self {
            view,
            target,
            table,
            settings,
            rows: Rows::new(false),
            parked_keys: HashSet::new(),
            fronts: HashMap::new(),
        }
    }

    /// Finds what is to be done about each event, and the places of rows that have to be read.
    fn meet(&mut self, batch: &Batch, how: Fold<'_>) -> Result<(Vec<Met>, Vec<usize>), Fault> {
        let current = StdCell::new(0);
        let found = catch_unwind(AssertUnwindSafe(|| {
            let mut all = Vec::with_capacity(batch.len());
            let mut missing = Vec::new();
            for (n, event) in batch.events().enumerate() {
                current.set(n);
                all.push(self.meet_one(event, how, &mut missing)?);
            }
            Ok((all, missing))
        }));
        found.unwrap_or_else(|panic| {
            Err(Fault::Author(
                Some(at(batch.event(current.get()))),
                panic_text(&*panic),
            ))
        })
    }

    fn meet_one(
        &mut self,
        event: &RecordedEvent,
        how: Fold<'_>,
        missing: &mut Vec<usize>,
    ) -> Result<Met, Fault> {
        if let Fold::InOrder(verdicts) = how
            && let Some(verdict) = verdicts.get(&at(event))
        {
            return self.put_aside(event, verdict);
        }
        let Some(key) = self.view.key(event) else {
            return Ok(Met::Nothing);
        };
        if matches!(how, Fold::InOrder(_)) && !self.parked_keys.is_empty() {
            let text = text_of(&key);
            if self.parked_keys.contains(&text) {
                return Ok(Met::Aside(Box::new(parked(event, Some(text), None))));
            }
        }
        Ok(Met::Row(self.rows.place(key, missing)))
    }

    /// Puts an event aside that cannot be applied. Its row is not touched: it may be the row that cannot be read.
    fn put_aside(&mut self, event: &RecordedEvent, verdict: &Verdict) -> Result<Met, Fault> {
        let aside =
            |key: Option<String>| Ok(Met::Aside(Box::new(parked(event, key, Some(verdict)))));
        if self.settings.on_poison != OnPoison::Park {
            return aside(None);
        }
        let view = &self.view;
        let key = catch_unwind(AssertUnwindSafe(|| {
            view.key(event).map(|key| text_of(&key))
        }));
        let key = key.map_err(|panic| {
            let (place, panic) = (event.position, panic_text(&*panic));
            Fault::Halt(cut(format!(
                "the event at position {place} of log {} cannot be applied: {}; nor can it be parked, for its key \
                 cannot be told: {panic}",
                event.log, verdict.error
            )))
        })?;
        let Some(key) = key else {
            return Ok(Met::Nothing);
        };
        let parked_keys = self.parked_keys.len();
        if !self.parked_keys.contains(&key) {
            if parked_keys >= self.settings.parked_keys_max {
                return Err(Fault::Halt(format!(
                    "events of {parked_keys} keys are parked, which is the maximum; {}",
                    verdict.error
                )));
            }
            self.parked_keys.insert(key.clone());
        }
        aside(Some(key))
    }

    async fn load(&mut self, missing: &[usize]) -> Result<(), Fault> {
        if missing.is_empty() {
            return Ok(());
        }
        let keys = missing
            .iter()
            .map(|place| self.rows.entries[*place].key.clone());
        let keys = Keys(keys.collect());
        let mut found = Found::default();
        self.target
            .load(&self.table, &keys, &mut found)
            .await
            .map_err(Fault::of_writing)?;
        for place in missing {
            self.rows.entries[*place].is_known = true;
        }
        let rows = found
            .into_rows::<V::Row>()
            .map_err(|error| Fault::Halt(format!("a row of {} : {error}", self.table.stored)))?;
        for (key, row) in rows {
            let place = missing[key];
            let entry = &mut self.rows.entries[place];
            entry.row = Some(row);
            entry.is_stored = true;
            self.rows.set_cost(place);
        }
        Ok(())
    }

    /// Finds the events that meet no row though they are not the first of their stream, because the first are hidden;
    /// and how many streams are met so for the first time. What becomes hidden after the view has seen it hides nothing
    /// from the view: of a stream that was met before in this run nobody is asked.
    async fn hidden_fronts(
        &mut self,
        batch: &Batch,
        met: &[Met],
    ) -> Result<(HashSet<usize>, u64), Fault> {
        let (mut hidden, mut streams) = (HashSet::new(), 0);
        if !self.settings.sees_whole_streams {
            return Ok((hidden, streams));
        }
        let mut seen = HashSet::new();
        for (n, met) in met.iter().enumerate() {
            let event = batch.event(n);
            let needs_row = met.row().is_some_and(|place| {
                let entry = &self.rows.entries[place];
                entry.row.is_none() && !entry.is_stored && seen.insert(place)
            });
            let front = match self.fronts.get(&event.stream) {
                Some(front) => *front,
                None => {
                    let front = match met.row() {
                        _ if event.revision == Revision(0) => Front::Seen,
                        // The row is there: the view has seen the stream before this run.
                        Some(_) if !needs_row => Front::Seen,
                        _ => Front::After(before(batch, event)),
                    };
                    if self.fronts.len() >= FRONTS_MAX {
                        self.fronts.clear();
                    }
                    self.fronts.insert(event.stream.clone(), front);
                    front
                }
            };
            let is_hidden = match front {
                _ if !needs_row => continue,
                Front::Seen => false,
                Front::Hidden => true,
                Front::After(position) => {
                    let is_hidden = self.is_front_hidden(&event.stream, position).await?;
                    let known = match is_hidden {
                        true => Front::Hidden,
                        false => Front::Seen,
                    };
                    self.fronts.insert(event.stream.clone(), known);
                    streams += u64::from(is_hidden);
                    is_hidden
                }
            };
            if is_hidden {
                hidden.insert(n);
            }
        }
        Ok((hidden, streams))
    }

    /// Returns true if the first events of a stream are hidden that the view has met after a position. If the first one
    /// that can be read is not after it, the view has passed that one before, and what came before it then.
    async fn is_front_hidden(&self, stream: &StreamId, after: Position) -> Result<bool, Fault> {
        let first = ReadStream::forwards(stream.clone()).limit(1);
        match self.settings.store.read_stream(first).await {
            Ok(page) => {
                let mut first = page.events.first().into_iter();
                Ok(first.all(|event| event.revision > Revision(0) && event.position > after))
            }
            Err(error) => match error.kind() {
                ErrorKind::StreamNotFound(_) | ErrorKind::StreamTombstoned(_) => Ok(true),
                _ => Err(Fault::Store(error)),
            },
        }
    }

    /// Folds the events into the rows in memory. Returns those that are put aside, and the places that changed.
    fn evolve(
        &mut self,
        batch: &Batch,
        met: Vec<Met>,
        hidden: &HashSet<usize>,
    ) -> Result<(Vec<Parked>, Vec<usize>), Fault> {
        let current = StdCell::new(0);
        let (view, entries) = (&self.view, &mut self.rows.entries);
        let folded = catch_unwind(AssertUnwindSafe(|| {
            let (mut aside, mut changed) = (Vec::new(), Vec::new());
            for (n, met) in met.into_iter().enumerate() {
                let place = match met {
                    Met::Nothing => continue,
                    Met::Aside(parked) => {
                        aside.push(*parked);
                        continue;
                    }
                    Met::Row(place) => place,
                };
                current.set(n);
                let event = batch.event(n);
                let entry = &mut entries[place];
                if hidden.contains(&n) && entry.row.is_none() {
                    view.front_hidden(&mut entry.row, event)
                        .map_err(|error| refused(&error, at(event)))?;
                }
                view.evolve(&mut entry.row, event)
                    .map_err(|error| refused(&error, at(event)))?;
                if !entry.is_changed {
                    entry.is_changed = true;
                    changed.push(place);
                }
            }
            Ok((aside, changed))
        }));
        folded.unwrap_or_else(|panic| {
            Err(Fault::Author(
                Some(at(batch.event(current.get()))),
                panic_text(&*panic),
            ))
        })
    }

    async fn fold_rows(
        &mut self,
        batch: &Batch,
        how: Fold<'_>,
    ) -> Result<Folded<Changes<V>>, Fault> {
        let (met, missing) = self.meet(batch, how)?;
        self.load(&missing).await?;
        debug_assert!(
            met.iter()
                .filter_map(Met::row)
                .all(|place| self.rows.entries[place].is_known)
        );
        let (hidden, hidden_fronts) = self.hidden_fronts(batch, &met).await?;
        let (aside, changed) = self.evolve(batch, met, &hidden)?;
        let (mut rows, mut deleted) = (Vec::with_capacity(changed.len()), Vec::new());
        for place in changed {
            let entry = &mut self.rows.entries[place];
            entry.is_changed = false;
            match &entry.row {
                Some(row) => {
                    rows.push((entry.key.clone(), row.clone()));
                    entry.is_stored = true;
                }
                None if entry.is_stored => {
                    deleted.push(entry.key.clone());
                    entry.is_stored = false;
                }
                // The row came and went within the batch.
                None => {}
            }
            self.rows.set_cost(place);
        }
        // In the order of their keys, so that neighbours in the table are written together, and two writers of a table
        // lock rows in one order.
        rows.sort_unstable_by(|a, b| a.0.cmp(&b.0));
        deleted.sort_unstable();
        let events = batch.len() - aside.len();
        Ok(Folded {
            to: batch.to.clone(),
            span: batch.len(),
            first: batch.first(),
            events: u64::try_from(events).unwrap_or(u64::MAX),
            caught_up: batch.caught_up,
            parked: aside,
            hidden_fronts,
            output: Changes {
                rows: KeyedRows(rows),
                deleted: Keys(deleted),
            },
        })
    }
}

/// Returns the position up to which the view has passed the log of an event before its batch. A parked event that is
/// applied again may lie before that.
fn before(batch: &Batch, event: &RecordedEvent) -> Position {
    let passed = positions(&batch.from).get(usize::from(event.log.0));
    let passed = passed.copied().unwrap_or_default();
    passed.min(Position(event.position.0.saturating_sub(1)))
}

fn refused(error: &ApplyError, event: crate::fault::At) -> Fault {
    Fault::Author(Some(event), cut(error.to_string()))
}

/// The rows that a batch of a view changes.
pub(crate) struct Changes<V: View> {
    rows: KeyedRows<V::Key, V::Row>,
    deleted: Keys<V::Key>,
}

impl<V: View, T: Target> Work<T> for ViewWork<V, T> {
    type Output = Changes<V>;
    type Writer = ViewWriter<V>;

    fn writer(&self) -> ViewWriter<V> {
        ViewWriter {
            table: Arc::clone(&self.table),
            view: std::marker::PhantomData,
        }
    }

    fn begin(&mut self, parked_keys: HashSet<String>, is_empty: bool) {
        self.parked_keys = parked_keys;
        self.rows = Rows::new(is_empty);
    }

    fn is_full(&self) -> bool {
        self.rows.bytes > self.settings.row_cache_bytes_max
    }

    fn forget(&mut self) {
        self.rows = Rows::new(false);
    }

    async fn fold(&mut self, batch: Batch, how: Fold<'_>) -> Result<Folded<Changes<V>>, Fault> {
        let folded = self.fold_rows(&batch, how).await;
        if folded.is_err() {
            self.forget();
        }
        folded
    }
}

pub(crate) struct ViewWriter<V> {
    table: Arc<Table>,
    view: std::marker::PhantomData<fn() -> V>,
}

impl<V> Clone for ViewWriter<V> {
    fn clone(&self) -> Self {
        Self {
            table: Arc::clone(&self.table),
            view: std::marker::PhantomData,
        }
    }
}

impl<V: View, T: Target> Writer<T> for ViewWriter<V> {
    type Output = Changes<V>;
    const CREATES: bool = false;

    /// The target has made the table when it registered the view.
    async fn create(&self, _: &mut T::Session) -> Result<(), Fault> {
        Ok(())
    }

    async fn write(&self, session: &mut T::Session, changes: &Changes<V>) -> Result<(), Fault> {
        if changes.rows.0.is_empty() && changes.deleted.0.is_empty() {
            return Ok(());
        }
        let written = session.write(&self.table, &changes.rows, &changes.deleted);
        written.await.map_err(Fault::of_writing)
    }

    async fn clear(&self, session: &mut T::Session) -> Result<(), Fault> {
        let cleared = session.clear(Some(&self.table)).await;
        cleared.map_err(Fault::of_writing)
    }
}
