//! An import: pages of a source become appends to the target, with a checkpoint from time to time.

mod again;
#[cfg(test)]
mod deleted;
mod lifecycle;
#[cfg(test)]
mod losses;
#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use gesta_core::{BackOff, Error, ErrorKind, EventStore, Result, StreamId};
use tokio::time::Instant;

use crate::checkpoint::Checkpoints;
use crate::convert::convert;
use crate::event::{Place, Role, SourceEvent};
use crate::kind::Kind;
use crate::known::Again;
use crate::options::{Deleted, Options, Unmappable};
use crate::report::Report;
use crate::source::{self, Page, Source};
use crate::target::{Ready, Target};
use crate::transform::Transform;

/// After how many events a checkpoint is written.
const CHECKPOINT_EVENTS: u64 = 20_000;
/// After what time a place is written down although nothing was read.
const CHECKPOINT_EVERY: Duration = Duration::from_secs(60);
/// How long to wait before a source that had nothing, or waits itself, is asked again.
const PAUSE_MIN: Duration = Duration::from_millis(20);
const PAUSE_MAX: Duration = Duration::from_millis(500);
/// The longest pause before a follower opens its source and its target again.
const REOPEN_MAX: Duration = Duration::from_secs(5);

/// What a step of an import has found.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Step {
    /// A page was read.
    Went,
    /// The source cannot tell what follows before others have finished; the text says who.
    Waiting(String),
    /// The source has nothing more at present, and everything that it had is durable in the target.
    End,
}

/// An import under way.
pub struct Import {
    options: Options,
    source: Box<dyn Source>,
    target: Target,
    /// `None` in a dry run.
    checkpoints: Option<Checkpoints>,
    transform: Option<Transform>,
    place: Place,
    /// The place up to which everything was stored once, as the checkpoint tells with which this import was opened.
    claimed: Option<Place>,
    /// Up to which place events may have been stored of which neither a checkpoint nor this run can tell: streams that
    /// were deleted and scavenged hide them. `None` if that may be anywhere.
    doubtful: Option<Place>,
    /// The greatest place of an event that was sent to the target.
    reached: Place,
    /// The place of the last checkpoint, and when it was written.
    written: Option<Place>,
    written_at: Instant,
    /// Events that were stored before the last checkpoint.
    counted: u64,
    since_checkpoint: u64,
    /// What the target has of the page under way, if the source has no places that last.
    again: HashMap<(Arc<str>, u64), Again>,
    /// In a dry run, the places of the events that were taken before their turn, and did not come again yet.
    passed_over: HashMap<(Arc<str>, u64), Place>,
    /// The places of the rows that were left out as deleted, and may be read again: those after `place`.
    deleted: HashMap<(Arc<str>, u64), Place>,
    report: Report,
}

/// Makes the error for lines that begin behind what is stored of their stream, before which `next` is missing.
fn gap_behind_stored(event: &SourceEvent, next: u64) -> Error {
    let last = event.sequence.saturating_sub(1);
    let missing = match last == next {
        true => format!("number {next} is"),
        false => format!("numbers {next} to {last} are"),
    };
    let text = format!(
        "event {} cannot be imported: {missing} not stored, and would be refused once it is: give the file with what is \
         missing first, or --allow-gaps if that is gone, or was left out",
        event.named()
    );
    ErrorKind::Unsupported(text).into()
}

impl std::fmt::Debug for Import {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Import")
            .field("kind", &self.options.kind)
            .field("place", &self.place)
            .finish_non_exhaustive()
    }
}

impl Import {
    /// Reads a whole source, without a target, and tells what an import would do.
    ///
    /// # Errors
    /// Those of the source; `Unavailable` if its last transactions do not end in time.
    ///
    /// # Cancel safety
    /// Dropping the future changes nothing.
    pub async fn dry_run(options: &Options, mut progress: impl FnMut(&Report)) -> Result<Report> {
        let options = Options {
            // It tells of all of them.
            unmappable: Unmappable::LeaveOut,
            ..options.clone()
        };
        let source = source::open(&options).await?;
        let mut import = Self::with(options, source, Target::counting(), None, None).await?;
        import.run(|import| progress(&import.report())).await?;
        Ok(import.report())
    }

    /// Tells whether the source can be opened. Whoever makes the target for an import asks this before.
    ///
    /// # Errors
    /// Those of the source.
    ///
    /// # Cancel safety
    /// Dropping the future changes nothing.
    pub async fn check(options: &Options) -> Result<()> {
        source::check(options).await
    }

    /// Opens the source, and finds the place in the target where the import goes on.
    ///
    /// # Errors
    /// `InvalidArgument` if the source is no journal of this kind; `Unsupported` if the import was begun otherwise;
    /// those of source and target.
    ///
    /// # Cancel safety
    /// Dropping the future changes nothing.
    pub async fn open(options: Options, store: Arc<dyn EventStore>) -> Result<Self> {
        let source = source::open(&options).await?;
        Self::from(options, source, store).await
    }

    async fn from(
        options: Options,
        mut source: Box<dyn Source>,
        store: Arc<dyn EventStore>,
    ) -> Result<Self> {
        let identity = source.identity();
        // Before anything is read: what belongs to a later life than that is noticed.
        let life = store.incarnation().await?;
        let of = (Arc::clone(&store), life);
        let (checkpoints, found) =
            Checkpoints::open(of, &options, &identity, source.server()).await?;
        if let Some(mark) = checkpoints.mark() {
            source.recall(mark);
        }
        let fresh = found.is_none() && source.resumes();
        let (in_flight, retry) = (options.in_flight, options.patience.retry);
        let target = Target::open(store, life, in_flight, retry, fresh).await?;
        // What an earlier life has lost is found by reading everything again.
        let begin = match checkpoints.is_of_earlier_life() {
            true => Some(Place::START),
            false => found,
        };
        let claimed = (found.is_some() && source.resumes()).then(|| checkpoints.claimed());
        // Another life may lack the last checkpoints, and have what they told of.
        let is_certain = !checkpoints.is_open() && !checkpoints.is_of_earlier_life();
        let import = Self::with(options, source, target, Some(checkpoints), begin).await?;
        Ok(Self {
            claimed,
            doubtful: claimed.filter(|_| is_certain),
            ..import
        })
    }

    async fn with(
        options: Options,
        mut source: Box<dyn Source>,
        target: Target,
        checkpoints: Option<Checkpoints>,
        written: Option<Place>,
    ) -> Result<Self> {
        let place = written.filter(|_| source.resumes()).unwrap_or(Place::START);
        let patience = options.patience;
        let transform = options.transform.as_deref();
        let transform = transform.map(|command| Transform::start(command, patience.transform));
        let report = Report {
            in_source: source.count(place).await?,
            snapshots: source.snapshots().await?,
            place: place.to_string(),
            ..Report::default()
        };
        Ok(Self {
            target,
            transform: transform.transpose()?,
            written,
            written_at: Instant::now(),
            options,
            source,
            checkpoints,
            place,
            claimed: None,
            doubtful: None,
            reached: Place::START,
            counted: 0,
            since_checkpoint: 0,
            again: HashMap::new(),
            passed_over: HashMap::new(),
            deleted: HashMap::new(),
            report,
        })
    }

    /// Returns how far the import has come.
    #[must_use]
    pub fn report(&self) -> Report {
        Report {
            stored: self.target.stored,
            already_stored: self.report.already_stored + self.target.already,
            displaced: self.target.displaced,
            streams: self.target.streams() as u64,
            place: self.place.to_string(),
            ..self.report.clone()
        }
        .finished()
    }

    /// Imports everything that the source has, up to its present end.
    ///
    /// # Errors
    /// Those of source and target; `Unavailable` if transactions of the source do not end in time, or if the target has
    /// lost commits meanwhile: another import stores what is missing.
    ///
    /// # Cancel safety
    /// Dropping the future leaves what is stored; another import goes on from there.
    pub async fn run(&mut self, mut progress: impl FnMut(&Self)) -> Result<()> {
        let mut pause = BackOff::new(PAUSE_MIN, PAUSE_MAX);
        let mut waits = None;
        loop {
            match self.step().await? {
                Step::End => return Ok(()),
                Step::Went => {
                    waits = None;
                    pause.reset();
                    progress(self);
                }
                Step::Waiting(told) => {
                    let since = *waits.get_or_insert_with(Instant::now);
                    if since.elapsed() > self.options.patience.settle {
                        return Err(source::still_open(&told));
                    }
                    tokio::time::sleep(pause.pause()).await;
                }
            }
        }
    }

    /// Imports what the source has, and then what is written to it, for ever. Source and target are opened again
    /// whenever one of them does not answer. `observe` is told of each step.
    ///
    /// # Errors
    /// Everything that trying again does not mend.
    ///
    /// # Cancel safety
    /// Dropping the future leaves what is stored; another import goes on from there.
    pub async fn follow(
        options: &Options,
        store: &Arc<dyn EventStore>,
        mut observe: impl FnMut(&Self, &Step),
        mut lost: impl FnMut(&Error),
    ) -> Result<()> {
        let mut reopen = BackOff::new(Duration::from_millis(100), REOPEN_MAX);
        loop {
            let failed = match Self::open(options.clone(), Arc::clone(store)).await {
                Err(error) => error,
                Ok(mut import) => {
                    let mut pause = BackOff::new(PAUSE_MIN, PAUSE_MAX);
                    loop {
                        let begun = Instant::now();
                        let step = match import.step().await {
                            Err(error) => break error,
                            Ok(step) => step,
                        };
                        reopen.reset();
                        observe(&import, &step);
                        match step {
                            Step::Went => pause.reset(),
                            // A source that takes long to tell that it has nothing is asked less often.
                            _ => tokio::time::sleep(pause.pause().max(begun.elapsed())).await,
                        }
                    }
                }
            };
            if !failed.is_retryable() {
                return Err(failed);
            }
            lost(&failed);
            tokio::time::sleep(reopen.pause()).await;
        }
    }

    /// Reads a page and appends its events. At the end of the source everything is durable, and the checkpoint is
    /// written.
    ///
    /// # Errors
    /// Those of source and target. The import must not be used any more; another one goes on from its last checkpoint.
    ///
    /// # Cancel safety
    /// As with an error.
    pub async fn step(&mut self) -> Result<Step> {
        let page = match self.source.page(self.place).await {
            Ok(page) => page,
            Err(error) => {
                // What was read before may be gone from the source: a file of lines can be another one now.
                self.target.drain().await?;
                return Err(error);
            }
        };
        let Page {
            events,
            place,
            end,
            waiting,
            late,
        } = page;
        let count = events.len() as u64;
        self.take(events, late).await?;
        self.place = place;
        self.since_checkpoint += count;
        if end || waiting.is_some() || self.since_checkpoint >= CHECKPOINT_EVENTS {
            let is_known = end || (waiting.is_some() && self.doubtful.is_some());
            self.checkpoint(is_known).await?;
        }
        Ok(match waiting {
            Some(told) => Step::Waiting(told),
            None if end => Step::End,
            None => Step::Went,
        })
    }

    /// Makes everything durable that was sent, and writes down the place. The checkpoint is closed if nothing was
    /// stored that lies behind it. `is_known` tells that this run would know of it: a run that goes on after one that
    /// was stopped does so only once it has been at the end of the source.
    async fn checkpoint(&mut self, is_known: bool) -> Result<()> {
        let is_closed = is_known && self.reached <= self.place;
        self.target.drain().await?;
        self.target.check_life().await?;
        let stored = self.target.stored - self.counted;
        let has_moved = self.written.unwrap_or(Place::START) != self.place;
        // A source whose place moves with time alone is not written down all the time.
        let is_due = self.since_checkpoint > 0 || self.written_at.elapsed() > CHECKPOINT_EVERY;
        if let Some(checkpoints) = &mut self.checkpoints
            && self.source.resumes()
            && (stored > 0 || (has_moved && is_due) || (is_closed && checkpoints.is_open()))
        {
            let mark = self.source.mark();
            let open = !is_closed;
            if let Err(error) = checkpoints.write(self.place, mark, stored, open).await {
                // A target that has lost the last checkpoint has one as if another import had written it.
                self.target.check_life().await?;
                return Err(error);
            }
            self.written = Some(self.place);
            self.written_at = Instant::now();
        }
        if is_closed && self.source.resumes() {
            self.doubtful = Some(self.doubtful.unwrap_or(Place::START));
        }
        // What is forgotten below is hidden, too, once its stream is erased.
        self.doubtful = self
            .doubtful
            .map(|place| place.max(self.reached).max(self.place));
        self.counted = self.target.stored;
        self.since_checkpoint = 0;
        let place = self.place;
        self.deleted.retain(|_, at| *at > place);
        self.target.forget_many();
        Ok(())
    }

    async fn take(&mut self, events: Vec<SourceEvent>, late: bool) -> Result<()> {
        self.prepare(&events).await?;
        self.again = self.read_again(&events).await?;
        let mut chosen = Vec::new();
        for event in events {
            self.report.read += 1;
            match event.role {
                Role::LeftOut(why) => {
                    self.report.leave_out(why);
                    self.target.see(&event.key, event.sequence);
                }
                Role::Event => self.sift(event, late, &mut chosen).await?,
                Role::StreamMetadata | Role::Tombstone => {
                    self.store(std::mem::take(&mut chosen)).await?;
                    self.change_stream(event).await?;
                }
            }
        }
        self.store(chosen).await
    }

    /// Reads what the target has of the streams of a page.
    async fn prepare(&mut self, events: &[SourceEvent]) -> Result<()> {
        let mut wanted: Vec<(Arc<str>, StreamId)> = Vec::new();
        let mut met = std::collections::HashSet::new();
        for event in events {
            let has_stream = match event.role {
                Role::Event => true,
                // A dry run counts the streams that have events.
                Role::StreamMetadata | Role::Tombstone => !self.target.only_counts(),
                Role::LeftOut(_) => false,
            };
            if !has_stream || self.target.known(&event.key).is_some() || !met.insert(&event.key) {
                continue;
            }
            if let Ok(stream) = self.name(event) {
                wanted.push((Arc::clone(&event.key), stream));
            }
        }
        self.target.prepare(wanted).await?;
        for event in events.iter().filter(|event| event.category.is_some()) {
            self.find_untyped(event).await?;
        }
        Ok(())
    }

    /// A stream that had no type at first may have got one since. It stays where its first events are.
    async fn find_untyped(&mut self, event: &SourceEvent) -> Result<()> {
        let known = self.target.known(&event.key);
        let unmet = known.filter(|known| known.seen.is_none() && !known.closed);
        let Some(known) = unmet.filter(|_| !self.target.is_fresh()) else {
            return Ok(());
        };
        let untyped = SourceEvent {
            category: None,
            ..event.clone()
        };
        match self.name(&untyped) {
            Ok(other) if other != known.stream => self.target.adopt(&event.key, &other).await,
            _ => Ok(()),
        }
    }

    fn name(&self, event: &SourceEvent) -> Result<StreamId> {
        self.options
            .names
            .name(event, self.options.kind.separator())
    }

    /// Decides what becomes of an event, and of those of its stream that were passed over before it.
    async fn sift(
        &mut self,
        event: SourceEvent,
        late: bool,
        chosen: &mut Vec<SourceEvent>,
    ) -> Result<()> {
        let tenant = event.tenant.as_deref();
        if !self.target.is_of_tenant(&event.key, tenant) {
            let why = event.of_two_tenants();
            if self.options.unmappable == Unmappable::LeaveOut {
                self.report.cannot(&event, why.to_string());
                return Ok(());
            }
            return self.cannot(&event, &why);
        }
        let was_met = self.target.meet(&event.key);
        let Some(known) = self.target.known(&event.key) else {
            // A key is not prepared if no name can be made of it, or if its stream was deleted just now.
            let stream = match self.name(&event) {
                Ok(stream) => stream,
                Err(error) => {
                    self.store(std::mem::take(chosen)).await?;
                    return self.cannot(&event, &error);
                }
            };
            self.store(std::mem::take(chosen)).await?;
            self.target.drain().await?;
            self.target
                .prepare(vec![(Arc::clone(&event.key), stream)])
                .await?;
            return Box::pin(self.sift(event, late, chosen)).await;
        };
        if let Some(why) = self.target.refused(&event.key) {
            return self.cannot(&event, &why);
        }
        if known.closed {
            self.report
                .leave_out("events of streams that are closed in the target");
            return Ok(());
        }
        let was_claimed = self.claimed.is_some_and(|claimed| event.place <= claimed);
        // What this run has stored itself is known.
        let is_doubtful =
            known.stored.is_none() && self.doubtful.is_none_or(|place| event.place <= place);
        if known.erased && (was_claimed || is_doubtful) {
            return self.pass_erased(event, was_claimed, chosen).await;
        }
        let first = match known.erased {
            true => event.sequence,
            false => self.options.kind.first_sequence_of(event.sequence),
        };
        let next = known.seen.map_or(first, |seen| seen.saturating_add(1));
        if event.sequence < next && self.target.only_counts() {
            return self.count_again(event, chosen).await;
        }
        if event.sequence < next {
            let is_later = known.stored.is_none_or(|(_, place)| event.place > place);
            // Of a source without places only the events themselves tell.
            let is_doubtful = !self.source.resumes() || late || is_later;
            let came_before = known.base.is_some_and(|(base, _)| event.sequence <= base);
            return match is_doubtful {
                true => self.compare(event, came_before, chosen).await,
                false => {
                    self.report.already_stored += 1;
                    Ok(())
                }
            };
        }
        if event.sequence > next {
            let is_first = known.seen.is_none();
            // If this run has met the stream and forgotten it, what it has stored of it tells.
            let is_between_files = !was_met && !is_first && !self.target.has_stored_of(&event.key);
            if self.options.kind == Kind::Lines && !self.options.allow_gaps && is_between_files {
                return Err(gap_behind_stored(&event, next));
            }
            let may_be_truncated = self.options.kind == Kind::KurrentDb;
            if is_first && may_be_truncated && !self.target.only_counts() {
                self.store(std::mem::take(chosen)).await?;
                self.move_early_truncation(&event).await?;
            }
            let (mut found, place) = (0, event.place);
            let (mut from, mut has_first) = (next, false);
            loop {
                let passed = self.source.between(&event, from, event.sequence).await?;
                let Some(last) = passed.last().map(|event| event.sequence) else {
                    break;
                };
                found += passed.len() as u64;
                has_first |= passed[0].sequence == next;
                for event in passed {
                    self.report.read += 1;
                    match event.role {
                        Role::LeftOut(why) => self.report.leave_out(why),
                        _ => {
                            self.note_passed_over(&event, place);
                            self.choose(event, chosen);
                        }
                    }
                }
                from = last.saturating_add(1);
            }
            self.report.missing_numbers += (event.sequence - next).saturating_sub(found);
            if is_first && !has_first {
                self.report.streams_without_beginning += 1;
            }
        }
        self.choose(event, chosen);
        Ok(())
    }

    fn choose(&mut self, event: SourceEvent, chosen: &mut Vec<SourceEvent>) {
        self.target.see(&event.key, event.sequence);
        match event.deleted && self.options.deleted == Deleted::LeaveOut {
            true => self.leave_out_deleted(&event),
            false => {
                self.report.late += u64::from(event.place <= self.place);
                chosen.push(event);
            }
        }
    }

    /// Stops at an event that cannot be imported, or counts it.
    fn cannot(&mut self, event: &SourceEvent, why: &Error) -> Result<()> {
        if self.options.unmappable == Unmappable::LeaveOut {
            self.report.cannot(event, why.to_string());
            self.target.see(&event.key, event.sequence);
            return Ok(());
        }
        let text = format!(
            "event {} cannot be imported: {why} (--skip-unmappable leaves such events out)",
            event.named()
        );
        Err(ErrorKind::Unsupported(text).into())
    }

    /// Turns, converts and appends events.
    async fn store(&mut self, mut events: Vec<SourceEvent>) -> Result<()> {
        if events.is_empty() {
            return Ok(());
        }
        if let Some(checkpoints) = self.checkpoints.as_mut().filter(|_| self.source.resumes())
            && let Err(error) = checkpoints
                .open_again(self.written.unwrap_or(Place::START))
                .await
        {
            self.target.check_life().await?;
            return Err(error);
        }
        if let Some(transform) = &mut self.transform {
            events = transform.turn(events).await?;
        }
        for event in events {
            if let Role::LeftOut(why) = event.role {
                self.report.leave_out(why);
                self.forget_passed_over(&event);
                continue;
            }
            match convert(self.options.kind, &self.options.types, &event) {
                Err(error) => {
                    self.forget_passed_over(&event);
                    self.cannot(&event, &error)?;
                }
                Ok(made) => {
                    self.report.take(&event);
                    self.reached = self.reached.max(event.place);
                    let ready = Ready {
                        key: event.key,
                        sequence: event.sequence,
                        place: event.place,
                        event: made,
                    };
                    self.target.push(ready).await?;
                }
            }
        }
        Ok(())
    }
}
