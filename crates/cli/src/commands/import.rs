//! `gesta all import`: appends events that were exported, in their order, each one once however often the import is
//! repeated.
//!
//! How: the lines are appended in batches, each stream after its last revision. When a stream occurs for the first
//! time, the ids that it has already are read, and events with these ids are passed over; so it does not matter where
//! an earlier import was stopped, how large its batches were, or how long ago it was. Memory: 16 bytes and some
//! overhead for each event that the target has already, and one batch.
//!
//! What hides events: metadata of streams are set at their place in the order. Deletes, tombstones and `$maxAge` cannot
//! be copied by appends, which make times anew and add to streams only; an import without them would make readable what
//! was hidden. So an input that has them is refused, before anything is stored if it is a file. What says a revision is
//! refused if that is of another event in the copy (`import_places`).
//!
//! A target that loses commits while the import runs, by a fail-over, ends it: what comes later would stand before what
//! is missing.
//!
//! Who may do what: lines of accounts are refused, unless they are accepted (`import_accounts`).
//!
//! Consumer groups are made anew when all events are there (`import_groups`), so that a deleted group is no obstacle.

use std::collections::{HashMap, HashSet};
use std::fs::File;
use std::path::Path;
use std::time::Instant;

use gesta_core::{
    Append, Error, ErrorKind, EventData, EventId, EventStore, ExpectedRevision, Incarnation,
    LifecycleChange, Revision, SetStreamMetadata, StreamAppend, StreamId, StreamMetadata, limits,
};
use gesta_groups::GroupsOfCopy;
use serde_json::json;

use super::appending::append_surely;
use super::import_accounts;
use super::import_groups::{self, GroupReport, Home};
use super::import_places::{Revisions, link_of, without_truncation};
use super::import_target::{Target, is_deleted, read_target};
use super::progress::Progress;
use crate::args::AllImport;
use crate::exit::{Failure, Outcome};
use crate::input::{Feed, Ids, LineEvent, refuse_line};
use crate::output::{Output, ProgressLine, count, counted, rate, say};

/// The most bytes of data and metadata in one append.
const BATCH_BYTES_MAX: usize = 4 * 1024 * 1024;
/// How often streams are read again at most because another writer has appended to them.
const TRIES: u32 = 5;

/// An import under way.
struct Import<'a> {
    store: &'a dyn EventStore,
    /// Whether each append has one stream only, since the streams of one append must be of one log.
    one_stream: bool,
    targets: HashMap<StreamId, Target>,
    batch: Vec<(StreamId, Vec<EventData>)>,
    batch_events: usize,
    batch_bytes: usize,
    /// The number of the last line that is stored with all lines before it.
    line: u64,
    stored: u64,
    there: u64,
    /// Whether events that were hidden may become readable.
    revive_deleted: bool,
    /// How many lines that hide events were passed over.
    passed_over: u64,
    /// How many links lead to other events now.
    misleading: u64,
    revisions: Revisions,
    /// The life of the store to which everything belongs that is known of it.
    incarnation: Incarnation,
    /// Whether it has another life now.
    is_lost: bool,
    /// How many events of accounts were taken.
    accounts: u64,
    /// The consumer groups of the input.
    groups: GroupsOfCopy,
}

/// An input that was looked at.
pub(super) struct Input {
    feed: Feed,
    /// The lines at which an import into an empty store would be refused.
    doubts: Vec<Doubt>,
    /// The ids of the events of accounts in it, if it is a file.
    accounts: HashSet<EventId>,
}

/// A line that is refused unless the target has what is missing before it.
struct Doubt {
    line: u64,
    stream: StreamId,
    why: String,
}

/// Looks at the input before a store is opened, or made: a mistake in it should leave no empty store behind.
pub(super) async fn prepare(args: &AllImport) -> Outcome<Input> {
    let file = file_of(args);
    let mut doubts = Vec::new();
    let accounts = match file {
        Some(path) => import_accounts::look_through(open(path)?, args).await?,
        None => HashSet::new(),
    };
    if let Some(path) = file
        && !args.revive_deleted
    {
        doubts = refuse_what_hides(open(path)?, args.skip).await?;
    }
    let mut feed = Feed::start(file.map(open).transpose()?, Ids::OfText, 0)?;
    if !feed.begin().await? {
        let name = file.map_or("standard input".into(), |path| path.display().to_string());
        return Err(Failure::usage(format!(
            "the input is empty, nothing to import: {name} must hold an event a line, as `gesta all read --output json` prints \
             them"
        )));
    }
    Ok(Input {
        feed,
        doubts,
        accounts,
    })
}

fn file_of(args: &AllImport) -> Option<&Path> {
    args.file.as_deref().filter(|path| *path != Path::new("-"))
}

fn open(path: &Path) -> Outcome<File> {
    File::open(path).map_err(|error| {
        Failure::usage(format!(
            "FILE must be a file of events that can be read, or - for standard input: {}: {error}",
            path.display()
        ))
    })
}

pub(super) async fn run(
    store: &dyn EventStore,
    home: &Home,
    Input {
        mut feed,
        doubts,
        accounts,
    }: Input,
    args: &AllImport,
    (progress, line): (&Progress, &ProgressLine),
    output: &mut Output,
) -> Outcome {
    if args.with_accounts {
        let has_file = file_of(args).is_some();
        import_accounts::refuse_others(store, &accounts, has_file).await?;
    }
    for Doubt { line, stream, why } in doubts {
        if read_target(store, &stream).await?.last.is_none() {
            return Err(refuse_line(line, &why));
        }
    }
    let info = store.info().await?;
    let mut import = Import {
        store,
        one_stream: info.logs > 1,
        targets: HashMap::new(),
        batch: Vec::new(),
        batch_events: 0,
        batch_bytes: 0,
        line: args.skip,
        stored: 0,
        there: 0,
        revive_deleted: args.revive_deleted,
        passed_over: 0,
        misleading: 0,
        revisions: Revisions::default(),
        incarnation: info.incarnation,
        is_lost: false,
        accounts: 0,
        groups: GroupsOfCopy::default(),
    };
    progress.set(import.came());
    let begun = Instant::now();
    let came = |import: &Import<'_>| {
        progress.set(import.came());
        line.tell(|_| rate("lines imported", import.line, None, begun.elapsed()));
    };
    let done = import.all(&mut feed, args, came).await;
    if let Err(failure) = done {
        say!("{}", import.came());
        return Err(failure);
    }
    if import.passed_over > 0 {
        say!(
            "lines passed over because they hide events: {}; what they hid can be read now",
            import.passed_over
        );
    }
    if import.misleading > 0 {
        say!(
            "links whose stream has other revisions now, so that they lead to other events or to none: {}",
            import.misleading
        );
    }
    import_accounts::tell(import.accounts);
    let (stored, there) = (import.stored, import.there);
    line.tell(|_| "making the consumer groups".into());
    let groups = import_groups::make(
        import.groups,
        store,
        home,
        file_of(args).map(open).transpose()?,
    );
    let groups = groups.await?;
    let record = json!({
        "lines": feed.lines(), "stored": stored, "already_stored": there, "passed_over": import.passed_over, "groups": groups,
    });
    output.record(&record, |_| {
        let imported = format!(
            "imported {}; {} there already",
            count(stored, "event"),
            counted(there, "was", "were")
        );
        let groups = groups.iter().map(GroupReport::pretty);
        std::iter::once(imported)
            .chain(groups)
            .collect::<Vec<_>>()
            .join("\n")
    })
}

impl Import<'_> {
    /// Says how far the import has come, and how to go on.
    fn came(&self) -> String {
        if self.is_lost {
            return format!(
                "{} stored, and the store has lost some since: repeat the import from its first line (without --skip), \
                 which stores what is missing",
                counted(self.stored, "event was", "events were")
            );
        }
        format!(
            "imported up to line {}: {} stored, {} there already; repeat the import, or go on with --skip {}",
            self.line,
            count(self.stored, "event"),
            counted(self.there, "was", "were"),
            self.line
        )
    }

    /// Imports all lines. `came` is told after each batch.
    async fn all(&mut self, feed: &mut Feed, args: &AllImport, came: impl Fn(&Self)) -> Outcome {
        while let Some(LineEvent {
            line,
            stream,
            revision,
            mut event,
            ..
        }) = feed.next().await?
        {
            if line <= args.skip {
                // The consumer groups in the lines that are passed over are made all the same.
                if let Some(stream) = &stream {
                    self.groups.take(stream, revision, &event);
                }
                continue;
            }
            let stream = stream
                .or_else(|| args.stream.clone())
                .ok_or_else(|| refuse_line(line, "names no stream: give one with --stream"))?;
            self.accounts += import_accounts::accepted(line, &stream, args)?;
            if self.groups.take(&stream, revision, &event) {
                continue;
            }
            if let Some(described) = stream.as_str().strip_prefix("$$") {
                if let Some(why) = what_hides(described, &event) {
                    if !self.revive_deleted {
                        return Err(refuse_line(line, &why));
                    }
                    self.passed_over += 1;
                    continue;
                }
                // The store writes the metadata of such an event itself.
                event.metadata = Default::default();
                let metadata = StreamMetadata::parse(event.data.clone())
                    .map_err(|error| refuse_line(line, &error.to_string()))?;
                let there = &self.target(&stream).await?.ids;
                let is_there = event.id.is_some_and(|id| there.contains(&id));
                let is_truncated = metadata.truncate_before.is_some() && !is_there;
                let why = self.revisions.set_metadata(described, is_truncated);
                let is_wrong = why.is_some();
                self.refuse(line, why)?;
                if is_wrong {
                    event.data = without_truncation(&metadata)?.json().clone();
                    self.revisions.set_metadata(described, false);
                    self.passed_over += 1;
                }
            } else {
                if let Some(revision) = revision {
                    let why = self.compare_revision(&stream, revision, &event).await?;
                    let is_wrong = why.is_some();
                    self.refuse(line, why)?;
                    if is_wrong {
                        self.end_truncation(&stream).await?;
                    }
                }
                let why = self.revisions.link(&event);
                self.misleading += u64::from(why.is_some());
                self.refuse(line, why)?;
            }
            if self.is_full_for(&stream, &event, usize::from(args.batch)) {
                self.flush().await?;
                self.line = line - 1;
                came(self);
            }
            self.add(stream, event);
        }
        self.flush().await?;
        self.check_life().await?;
        self.line = feed.lines();
        Ok(())
    }

    /// Refuses a line, if there is a reason, unless all that hides events is to be passed over.
    fn refuse(&self, line: u64, why: Option<String>) -> Outcome {
        match why {
            Some(why) if !self.revive_deleted => Err(refuse_line(line, &why)),
            _ => Ok(()),
        }
    }

    /// Tells that the store has lost commits.
    fn lost(&mut self) -> Failure {
        self.is_lost = true;
        let text = "the store has lost commits since the import began, by a fail-over or a restore";
        Error::unavailable(text).into()
    }

    /// Refuses to go on with another life of the store than that in which the import began.
    async fn check_life(&mut self) -> Outcome {
        match self.store.incarnation().await? == self.incarnation {
            true => Ok(()),
            false => Err(self.lost()),
        }
    }

    /// Tells whether the event must wait for the next batch: it would lose its place in the order, or make the append
    /// too large.
    fn is_full_for(&self, stream: &StreamId, event: &EventData, events_max: usize) -> bool {
        let is_last = self.batch.last().is_some_and(|(last, _)| last == stream);
        let is_among = self.batch.iter().any(|(other, _)| other == stream);
        let is_metadata = stream.as_str().starts_with("$$");
        self.batch_events >= events_max
            || (is_last && is_metadata)
            || (self.batch_events > 0 && self.batch_bytes + event.payload_bytes() > BATCH_BYTES_MAX)
            || (!is_last && is_among)
            || (!is_last && self.one_stream && !self.batch.is_empty())
            || (!is_last && self.batch.len() >= limits::APPEND_STREAMS_MAX)
    }

    /// Remembers the stream if the event will stand at another revision than where it stood. Returns what that would
    /// make wrong.
    async fn compare_revision(
        &mut self,
        stream: &StreamId,
        revision: Revision,
        event: &EventData,
    ) -> Outcome<Option<String>> {
        if self.revisions.is_renumbered(stream) {
            return Ok(None);
        }
        let waiting = self.batch.iter().filter(|(other, _)| other == stream);
        let waiting: usize = waiting.map(|(_, events)| events.len()).sum();
        let target = self.target(stream).await?;
        let next = target.last.map_or(0, |last| last.0 + 1) + waiting as u64;
        // What is there may have got another revision by an import that was stopped.
        let is_there = event.id.is_some_and(|id| target.ids.contains(&id))
            && target.last.is_some_and(|last| revision <= last);
        if is_there || revision.0 == next {
            return Ok(None);
        }
        let found = self.store.stream_metadata(stream.clone()).await?.metadata;
        let is_truncated = found.truncate_before.is_some();
        Ok(self.revisions.renumber(stream, is_truncated))
    }

    /// Takes `$tb` out of the metadata of a stream whose events get other revisions: it would hide others.
    async fn end_truncation(&mut self, stream: &StreamId) -> Outcome {
        self.flush().await?;
        let found = self.store.stream_metadata(stream.clone()).await?;
        if found.metadata.truncate_before.is_none() {
            return Ok(());
        }
        let set = SetStreamMetadata {
            stream: stream.clone(),
            expected: found
                .revision
                .map_or(ExpectedRevision::NoStream, ExpectedRevision::Exact),
            metadata: without_truncation(&found.metadata)?,
        };
        self.store.set_stream_metadata(set).await?;
        self.targets.remove(&stream.metadata_stream());
        self.revisions.set_metadata(stream.as_str(), false);
        self.passed_over += 1;
        Ok(())
    }

    fn add(&mut self, stream: StreamId, event: EventData) {
        self.batch_events += 1;
        self.batch_bytes += event.payload_bytes();
        match self.batch.last_mut() {
            Some((last, events)) if *last == stream => events.push(event),
            _ => self.batch.push((stream, vec![event])),
        }
    }

    async fn flush(&mut self) -> Outcome {
        let batch = std::mem::take(&mut self.batch);
        (self.batch_events, self.batch_bytes) = (0, 0);
        let mut tries = 1;
        loop {
            let mut append = Append {
                streams: Vec::new(),
                conditions: Vec::new(),
            };
            let mut there = 0;
            for (stream, events) in &batch {
                let target = self.target(stream).await?;
                let mut events = events.clone();
                let all = events.len();
                events.retain(|event| event.id.is_none_or(|id| !target.ids.contains(&id)));
                there += all - events.len();
                if !events.is_empty() {
                    append.streams.push(StreamAppend {
                        stream: stream.clone(),
                        expected: target
                            .last
                            .map_or(ExpectedRevision::NoStream, ExpectedRevision::Exact),
                        events,
                    });
                }
            }
            if append.streams.is_empty() {
                self.there += there as u64;
                return Ok(());
            }
            match append_surely(self.store, &append).await {
                Ok(answer) if answer.checkpoint.incarnation != self.incarnation => {
                    return Err(self.lost());
                }
                Ok(answer) => {
                    self.stored += append.events() as u64;
                    self.there += there as u64;
                    for stream in answer.streams {
                        if let Some(target) = self.targets.get_mut(&stream.stream) {
                            target.last = Some(stream.last_revision);
                        }
                    }
                    return Ok(());
                }
                // Another writer has appended to one of the streams, so all of them are read again.
                Err(error)
                    if matches!(error.kind(), ErrorKind::WrongExpectedRevision { .. })
                        && tries < TRIES =>
                {
                    tries += 1;
                    for (stream, _) in &batch {
                        let before = self.targets.remove(stream).and_then(|target| target.last);
                        // Nothing may follow what is missing, also if this process has not noticed the loss yet. What
                        // was deleted and scavenged meanwhile is not missing.
                        let last = self.target(stream).await?.last;
                        let is_erased = last.is_none() && is_deleted(self.store, stream).await?;
                        if last < before && !is_erased {
                            return Err(self.lost());
                        }
                    }
                    self.check_life().await?;
                }
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Returns what the target store has of a stream, which is read at first.
    async fn target(&mut self, stream: &StreamId) -> Outcome<&Target> {
        if !self.targets.contains_key(stream) {
            let target = read_target(self.store, stream).await?;
            self.targets.insert(stream.clone(), target);
        }
        self.targets
            .get(stream)
            .ok_or_else(|| Failure::other("a stream was forgotten"))
    }
}

/// What to do instead of an import that would make hidden events readable.
pub(super) const CURE: &str = "copy the store by `gesta copy SOURCE TARGET`, which keeps deletes and times, or accept with \
                    --revive-deleted that all events can be read";

/// Says why an event of the metadata stream of `described` cannot be imported.
fn what_hides(described: &str, event: &EventData) -> Option<String> {
    let what = match event.event_type.as_str() {
        "$deleted" => "is the delete",
        "$tombstone" => "is the tombstone",
        _ => match StreamMetadata::parse_event(event.data.clone()) {
            Ok((LifecycleChange::Deleted, _)) => "is the delete",
            Ok((_, metadata)) if metadata.max_age.is_some() => "sets $maxAge",
            _ => return None,
        },
    };
    Some(format!(
        "{what} of the stream {described:?}; an import gives new times and only appends, so that events which were hidden \
         could be read; {CURE}"
    ))
}

/// Reads a whole file, and refuses it if a line hides events. Returns what would be refused if the store is empty.
async fn refuse_what_hides(file: File, skip: u64) -> Outcome<Vec<Doubt>> {
    let mut doubts = Vec::new();
    let (mut revisions, mut next) = (Revisions::default(), HashMap::new());
    let mut feed = Feed::start(Some(file), Ids::OfText, skip)?;
    while let Some(LineEvent {
        line,
        stream,
        revision,
        event,
        ..
    }) = feed.next().await?
    {
        let Some(stream) = stream.filter(|stream| !GroupsOfCopy::is_of_group(stream)) else {
            continue;
        };
        let (of, mut wrong) = match stream.as_str().strip_prefix("$$") {
            Some(described) => {
                if let Some(why) = what_hides(described, &event) {
                    return Err(refuse_line(line, &why));
                }
                let metadata = StreamMetadata::parse(event.data.clone());
                let is_truncated = metadata.is_ok_and(|found| found.truncate_before.is_some());
                let wrong = revisions.set_metadata(described, is_truncated);
                (StreamId::new(described).ok(), wrong)
            }
            None => {
                let next = next.entry(stream.clone()).or_insert(0);
                let is_other = revision.is_some_and(|revision| revision.0 != *next);
                *next += 1;
                let wrong = match is_other && !revisions.is_renumbered(&stream) {
                    true => revisions.renumber(&stream, false),
                    false => None,
                };
                (Some(stream), wrong)
            }
        };
        let mut of = of;
        if wrong.is_none()
            && let Some((_, linked)) = link_of(&event)
        {
            wrong = revisions.link(&event);
            of = Some(linked);
        }
        doubts.extend(
            of.zip(wrong)
                .map(|(stream, why)| Doubt { line, stream, why }),
        );
    }
    Ok(doubts)
}
