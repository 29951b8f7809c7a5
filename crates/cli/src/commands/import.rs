//! `gesta all import`: appends events that were exported, in their order, each one once however often the import is
//! repeated.
//!
//! How: the lines are appended in batches, each stream after its last revision. When a stream occurs for the first
//! time, the ids that it has already are read, and events with these ids are passed over; so it does not matter where
//! an earlier import was stopped, how large its batches were, or how long ago it was. Memory: 16 bytes and some
//! overhead for each event that the target has already, and one batch.

use std::collections::{HashMap, HashSet};
use std::fs::File;
use std::path::Path;

use gesta_core::{
    Append, Direction, ErrorKind, EventData, EventId, EventStore, ExpectedRevision, ReadStream,
    Revision, StreamAppend, StreamFrom, StreamId, limits,
};
use serde_json::json;

use super::appending::append_surely;
use super::progress::Progress;
use crate::args::AllImport;
use crate::exit::{Failure, Outcome};
use crate::input::{Feed, Ids, LineEvent, refuse_line};
use crate::output::Output;

/// The most events in one page.
const PAGE: usize = 1_000;
/// The most bytes of data and metadata in one append.
const BATCH_BYTES_MAX: usize = 4 * 1024 * 1024;
/// How often streams are read again at most because another writer has appended to them.
const TRIES: u32 = 5;

/// What is known about a stream of the target store.
struct Target {
    last: Option<Revision>,
    ids: HashSet<EventId>,
}

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
    metadata: u64,
}

pub(super) async fn run(
    store: &dyn EventStore,
    args: &AllImport,
    progress: &Progress,
    output: &mut Output,
) -> Outcome {
    let file = args.file.as_deref().filter(|path| *path != Path::new("-"));
    let open = |path: &Path| {
        File::open(path).map_err(|error| Failure::usage(format!("{}: {error}", path.display())))
    };
    let mut feed = Feed::start(file.map(open).transpose()?, Ids::OfText, args.skip)?;
    let mut import = Import {
        store,
        one_stream: store.info().await?.logs > 1,
        targets: HashMap::new(),
        batch: Vec::new(),
        batch_events: 0,
        batch_bytes: 0,
        line: args.skip,
        stored: 0,
        there: 0,
        metadata: 0,
    };
    progress.set(import.came());
    let done = import.all(&mut feed, args, progress).await;
    if let Err(failure) = done {
        eprintln!("{}", import.came());
        return Err(failure);
    }
    if feed.lines() == 0 {
        return Err(Failure::usage("the input is empty: nothing to import"));
    }
    if import.metadata > 0 {
        eprintln!(
            "{} events of metadata streams were not imported: use `gesta stream metadata --set`",
            import.metadata
        );
    }
    let (stored, there) = (import.stored, import.there);
    let record = json!({"lines": feed.lines(), "stored": stored, "already_stored": there, "metadata_skipped": import.metadata});
    output.record(&record, |_| {
        format!("imported {stored} events; {there} were there already")
    })
}

impl Import<'_> {
    /// Says how far the import has come, and how to go on.
    fn came(&self) -> String {
        format!(
            "imported up to line {}: {} events stored, {} were there already; repeat the import, or go on with --skip {}",
            self.line, self.stored, self.there, self.line
        )
    }

    async fn all(&mut self, feed: &mut Feed, args: &AllImport, progress: &Progress) -> Outcome {
        while let Some(LineEvent {
            line,
            stream,
            event,
        }) = feed.next().await?
        {
            let stream = stream
                .or_else(|| args.stream.clone())
                .ok_or_else(|| refuse_line(line, "names no stream: give one with --stream"))?;
            if stream.as_str().starts_with("$$") {
                self.metadata += 1;
                continue;
            }
            if self.is_full_for(&stream, &event, usize::from(args.batch)) {
                self.flush().await?;
                self.line = line - 1;
                progress.set(self.came());
            }
            self.add(stream, event);
        }
        self.flush().await?;
        self.line = feed.lines();
        Ok(())
    }

    /// Tells whether the event must wait for the next batch: it would lose its place in the order, or make the append
    /// too large.
    fn is_full_for(&self, stream: &StreamId, event: &EventData, events_max: usize) -> bool {
        let is_last = self.batch.last().is_some_and(|(last, _)| last == stream);
        let is_among = self.batch.iter().any(|(other, _)| other == stream);
        self.batch_events >= events_max
            || (self.batch_events > 0 && self.batch_bytes + event.payload_bytes() > BATCH_BYTES_MAX)
            || (!is_last && is_among)
            || (!is_last && self.one_stream && !self.batch.is_empty())
            || (!is_last && self.batch.len() >= limits::APPEND_STREAMS_MAX)
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
                        self.targets.remove(stream);
                    }
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

async fn read_target(store: &dyn EventStore, stream: &StreamId) -> Outcome<Target> {
    let mut target = Target {
        last: None,
        ids: HashSet::new(),
    };
    let mut from = StreamFrom::Start;
    loop {
        let request = ReadStream {
            stream: stream.clone(),
            from,
            direction: Direction::Forwards,
            limit: PAGE,
        };
        let page = match store.read_stream(request).await {
            Ok(page) => page,
            Err(error) if matches!(error.kind(), ErrorKind::StreamNotFound(_)) => {
                return Ok(target);
            }
            Err(error) => return Err(error.into()),
        };
        for event in &page.events {
            target.ids.insert(event.id);
            target.last = Some(event.revision);
        }
        match page.next {
            Some(next) if !page.end => from = StreamFrom::Revision(next),
            _ => return Ok(target),
        }
    }
}
