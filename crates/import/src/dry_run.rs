//! A dry run: reads the whole source, makes names and events as an import would, and counts.
//!
//! Memory: some 100 bytes for each stream, since a name that two keys would have is found only so.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use gesta_core::{BackOff, Error, ErrorKind, Result, StreamId};
use tokio::time::Instant;

use crate::convert::convert;
use crate::event::{Place, Role, SourceEvent};
use crate::options::{Deleted, Options};
use crate::report::Report;
use crate::source::{Source, still_open};
use crate::transform::Transform;

/// What is known of a stream of the source.
struct Met {
    seen: Option<u64>,
    tenant: Option<String>,
    /// Why no name can be made of the key.
    unnamed: Option<String>,
}

struct DryRun<'a> {
    options: &'a Options,
    source: &'a mut dyn Source,
    transform: Option<Transform>,
    met: HashMap<Arc<str>, Met>,
    names: HashMap<StreamId, Arc<str>>,
    report: Report,
}

pub(crate) async fn run(
    options: &Options,
    source: &mut dyn Source,
    mut progress: impl FnMut(&Report),
) -> Result<Report> {
    let report = Report {
        in_source: source.count(Place::START).await?,
        snapshots: source.snapshots().await?,
        ..Report::default()
    };
    let command = options.transform.as_deref();
    let command = command.map(|command| Transform::start(command, options.patience.transform));
    let mut run = DryRun {
        options,
        source,
        transform: command.transpose()?,
        met: HashMap::new(),
        names: HashMap::new(),
        report,
    };
    let mut place = Place::START;
    let mut waits = None;
    let mut pause = BackOff::new(Duration::from_millis(20), Duration::from_millis(500));
    loop {
        let page = run.source.page(place).await?;
        place = page.place;
        run.take(page.events).await?;
        run.report.place = place.to_string();
        run.report.streams = run.names.len() as u64;
        progress(&run.report);
        if page.end {
            return Ok(run.report.finished());
        }
        let Some(told) = page.waiting else {
            waits = None;
            pause.reset();
            continue;
        };
        if waits.get_or_insert_with(Instant::now).elapsed() > options.patience.settle {
            return Err(still_open(&told));
        }
        tokio::time::sleep(pause.pause()).await;
    }
}

impl DryRun<'_> {
    async fn take(&mut self, events: Vec<SourceEvent>) -> Result<()> {
        let mut chosen = Vec::new();
        for event in events {
            self.report.read += 1;
            match event.role {
                Role::LeftOut(why) => {
                    self.report.leave_out(why);
                    if let Some(met) = self.met.get_mut(&event.key) {
                        met.seen = met.seen.max(Some(event.sequence));
                    }
                }
                Role::StreamMetadata => {
                    self.report.leave_out("metadata of streams, which were set")
                }
                Role::Tombstone => self.report.leave_out("tombstones, which were set"),
                Role::Event => self.sift(event, &mut chosen).await?,
            }
        }
        if let Some(transform) = &mut self.transform {
            chosen = transform.turn(chosen).await?;
        }
        for event in chosen {
            if let Role::LeftOut(why) = event.role {
                self.report.leave_out(why);
                continue;
            }
            match convert(self.options.kind, &self.options.types, &event) {
                Err(error) => self.report.cannot(&event, error.to_string()),
                Ok(_) => {
                    self.report.take(&event);
                    self.report.stored += 1;
                }
            }
        }
        Ok(())
    }

    async fn sift(&mut self, event: SourceEvent, chosen: &mut Vec<SourceEvent>) -> Result<()> {
        let (seen, unnamed) = self.meet(&event);
        if let Some(why) = unnamed {
            self.report.cannot(&event, why);
            return Ok(());
        }
        let first = self.options.kind.first_sequence_of(event.sequence);
        let next = seen.map_or(first, |seen| seen.saturating_add(1));
        if event.sequence < next && !self.source.resumes() {
            let why = "it comes after later ones of its stream, or its number comes twice";
            self.report.cannot(&event, why.to_owned());
            return Ok(());
        }
        if event.sequence < next {
            // It was read before: by another scan, or as one that was passed over.
            self.report.already_stored += 1;
            return Ok(());
        }
        if event.sequence > next {
            let mut from = next;
            let mut found = 0;
            loop {
                let passed = self.source.between(&event, from, event.sequence).await?;
                let Some(last) = passed.last().map(|event| event.sequence) else {
                    break;
                };
                found += passed.len() as u64;
                self.report.read += passed.len() as u64;
                for event in passed {
                    match event.role {
                        Role::LeftOut(why) => self.report.leave_out(why),
                        _ => self.choose(event, chosen),
                    }
                }
                from = last.saturating_add(1);
            }
            self.report.missing_numbers += (event.sequence - next).saturating_sub(found);
            self.report.streams_without_beginning += u64::from(seen.is_none() && found == 0);
        }
        self.choose(event, chosen);
        Ok(())
    }

    fn choose(&mut self, event: SourceEvent, chosen: &mut Vec<SourceEvent>) {
        if let Some(met) = self.met.get_mut(&event.key) {
            met.seen = met.seen.max(Some(event.sequence));
        }
        match event.deleted && self.options.deleted == Deleted::LeaveOut {
            true => self.report.leave_out("deleted or archived in the source"),
            false => chosen.push(event),
        }
    }

    /// Returns the last number that was met of the stream of an event, and why it can have no name.
    fn meet(&mut self, event: &SourceEvent) -> (Option<u64>, Option<String>) {
        if let Some(met) = self.met.get(&event.key) {
            if met.tenant != event.tenant {
                return (met.seen, Some(event.of_two_tenants().to_string()));
            }
            return (met.seen, met.unnamed.clone());
        }
        let named = self
            .options
            .names
            .name(event, self.options.kind.separator());
        let named = named.and_then(|stream| match self.names.get(&stream) {
            Some(other) => Err(Error::new(ErrorKind::Unsupported(format!(
                "{:?} and {other:?} of the source would both be stream {stream:?}: give a rule for names (--names) that \
                 tells them apart",
                &*event.key
            )))),
            None => {
                self.names.insert(stream, Arc::clone(&event.key));
                Ok(())
            }
        });
        let unnamed = named.err().map(|error| error.to_string());
        let met = Met {
            seen: None,
            tenant: event.tenant.clone(),
            unnamed: unnamed.clone(),
        };
        self.met.insert(Arc::clone(&event.key), met);
        (None, unnamed)
    }
}
