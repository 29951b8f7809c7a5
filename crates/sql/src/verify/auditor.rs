//! The audit passes over the rows of each log once, in order of position, with the state of every stream in memory.
//!
//! Cost: one hash look-up per row for its stream, one for its type, and two to see whether its position is a row id.
//! Holes: scavenging removes the first revisions of a stream, so a stream whose floor is `f` has lost exactly `f`
//! events. The holes of a log must add up to the floors of its streams, and none may be after the last position that
//! scavenging removed.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use gesta_core::{LogId, Result, StreamId, log_of};
use xxhash_rust::xxh3::xxh3_128;

use super::report::{AuditReport, Finding, FindingKind, LogSummary};
use super::tags::TagSums;
use super::unreadable;
use super::{AuditFloor, AuditName, AuditRow, AuditSource};
use crate::checksum::{RawRow, name_checksum};

/// Number of rows that are asked for at once.
const PAGE_ROWS: usize = 5_000;
/// By how many microseconds a time decreases at least, where an administrator has set it back: by five minutes.
const SET_BACK_MIN_US: i64 = 300_000_000;

/// Progress of an audit.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct AuditProgress {
    /// Log that is being read.
    pub log: LogId,
    /// Position up to which the log was read.
    pub position: i64,
    /// Number of events read so far, in all logs.
    pub events: u64,
}

/// Audits a store. It calls `progress` after every page of events.
///
/// # Errors
/// `Unavailable` if the source fails. Damage of the store is no error: it is in the report.
///
/// # Cancel safety
/// The audit only reads. Dropping the future ends it.
pub async fn audit(
    source: &mut dyn AuditSource,
    progress: &mut (dyn FnMut(AuditProgress) + Send),
) -> Result<AuditReport> {
    let mut report = AuditReport::default();
    let logs = source.logs();
    let mut events_before = 0;
    for log in (0..logs).map(LogId) {
        let mut of_log = LogAudit::new(log, logs, &mut report);
        let loaded = of_log.load_names(source).await;
        of_log.forgive(loaded, "names")?;
        let mut after = i64::MIN;
        loop {
            let read = unreadable::rows(source, log, after, PAGE_ROWS).await?;
            if let Some(text) = read.skipped {
                of_log.unreadable(text);
            }
            let page = read.page;
            let Some(last) = page.last() else { break };
            page.iter().for_each(|row| of_log.check_row(row));
            if !of_log.goes_on(&mut after, last.position, "events") {
                break;
            }
            progress(AuditProgress {
                log,
                position: after,
                events: events_before + of_log.summary.events,
            });
        }
        of_log.check_rest();
        let checked = of_log.check_tags(source).await;
        of_log.forgive(checked, "the tag index")?;
        events_before += of_log.summary.events;
        let summary = of_log.summary;
        report.logs.push(summary);
    }
    let virtual_streams = match name_streams(source, &mut report).await {
        Ok(()) => source.virtual_findings(PAGE_ROWS).await,
        Err(error) => Err(error),
    };
    add_texts(&mut report, FindingKind::Virtual, virtual_streams)?;
    let engine = source.engine_findings().await;
    add_texts(&mut report, FindingKind::Engine, engine)?;
    let schema = source.schema_findings().await;
    add_texts(&mut report, FindingKind::Schema, schema)?;
    Ok(report)
}

/// Adds what the database itself has found to the report.
fn add_texts(
    report: &mut AuditReport,
    kind: FindingKind,
    texts: Result<Vec<String>>,
) -> Result<()> {
    let texts = match texts {
        Ok(texts) => texts,
        // Damage was found, and the database says no more: what is known is the report.
        Err(error) if !report.is_healthy() => vec![format!("the check ended early: {error}")],
        Err(error) => return Err(error),
    };
    for text in texts {
        report.add(Finding {
            kind,
            log: LogId(0),
            position: None,
            stream_row: None,
            stream: None,
            revision: None,
            text,
        });
    }
    Ok(())
}

/// Adds the names of streams to the findings that are kept.
async fn name_streams(source: &mut dyn AuditSource, report: &mut AuditReport) -> Result<()> {
    for finding in &mut report.findings {
        if let (Some(row), None) = (finding.stream_row, &finding.stream) {
            finding.stream = source.stream_name(finding.log, row).await?;
        }
    }
    Ok(())
}

#[derive(Default)]
struct StreamState {
    /// Number of revisions that scavenging removed; 0 if it removed none.
    floor: i64,
    /// Position of the last event that scavenging removed; 0 if it removed none.
    floor_position: i64,
    /// Revision that the next event of the stream must have.
    next: i64,
    seen: bool,
}

struct LogAudit<'a> {
    log: LogId,
    logs: u16,
    report: &'a mut AuditReport,
    summary: LogSummary,
    streams: HashMap<i64, StreamState>,
    /// Event types by row id; true if an event of the type was seen.
    types: HashMap<i64, bool>,
    tags: TagSums,
    /// Highest position that scavenging removed, in all streams of the log.
    floor_position_max: i64,
    last: Option<(i64, i64)>,
    holes: u64,
    hole_reported: bool,
    /// True if something could not be read: then the rest seems to lack what could not be read.
    unread: bool,
}

impl<'a> LogAudit<'a> {
    fn new(log: LogId, logs: u16, report: &'a mut AuditReport) -> Self {
        Self {
            log,
            logs,
            report,
            summary: LogSummary {
                log,
                ..LogSummary::default()
            },
            streams: HashMap::new(),
            types: HashMap::new(),
            tags: TagSums::default(),
            floor_position_max: 0,
            last: None,
            holes: 0,
            hole_reported: false,
            unread: false,
        }
    }

    /// Adds a finding about a part that cannot be read; the audit goes on.
    fn unreadable(&mut self, text: String) {
        self.finding(FindingKind::Engine, text);
        self.unread = true;
    }

    /// Turns the damage of a table into a finding, so that it does not end the audit.
    fn forgive(&mut self, done: Result<()>, what: &str) -> Result<()> {
        match done {
            Err(error) if unreadable::is_damage(&error) => {
                self.unreadable(format!("{what} cannot be read: {error}"));
                Ok(())
            }
            done => done,
        }
    }

    /// Returns true if a finding of this kind may only be a consequence of what could not be read.
    fn says_nothing(&self, kind: FindingKind) -> bool {
        let by_itself = matches!(
            kind,
            FindingKind::Checksum | FindingKind::Engine | FindingKind::Name | FindingKind::Created
        );
        self.unread && !by_itself
    }

    async fn load_names(&mut self, source: &mut dyn AuditSource) -> Result<()> {
        let mut names = HashSet::new();
        let mut after = i64::MIN;
        loop {
            let page = source.streams(self.log, after, PAGE_ROWS).await?;
            let Some(last) = page.last() else { break };
            page.iter()
                .for_each(|name| self.check_stream_name(name, &mut names));
            if !self.goes_on(&mut after, last.id, "streams") {
                break;
            }
        }
        names.clear();
        after = i64::MIN;
        loop {
            let page = source.types(self.log, after, PAGE_ROWS).await?;
            let Some(last) = page.last() else { break };
            page.iter()
                .for_each(|name| self.check_type_name(name, &mut names));
            if !self.goes_on(&mut after, last.id, "event types") {
                break;
            }
        }
        after = i64::MIN;
        loop {
            let page = source.floors(self.log, after, PAGE_ROWS).await?;
            let Some(last) = page.last() else { break };
            page.iter().for_each(|floor| self.check_floor(floor));
            if !self.goes_on(&mut after, last.stream, "scavenge marks") {
                break;
            }
        }
        Ok(())
    }

    /// Moves on to the next page. A damaged index can lead back; then the answer is false, so that the audit ends.
    fn goes_on(&mut self, after: &mut i64, last: i64, what: &str) -> bool {
        let forwards = last > *after;
        if !forwards {
            let text = format!("{what} after {after} end at {last}: their index leads back");
            self.finding(FindingKind::Engine, text);
        }
        *after = last;
        forwards
    }

    fn check_stream_name(&mut self, name: &AuditName, names: &mut HashSet<u128>) {
        self.summary.streams += 1;
        self.check_name("stream", name, names);
        if self
            .streams
            .insert(name.id, StreamState::default())
            .is_some()
        {
            let text = format!("row id {} is used by two streams", name.id);
            self.stream_finding(FindingKind::Name, name.id, text);
        }
        let home = log_of(
            &StreamId::from_stored(Arc::from(name.name.as_str())),
            self.logs,
        );
        if home != self.log {
            let text = format!("belongs to log {home}");
            self.stream_finding(FindingKind::Name, name.id, text);
        }
    }

    fn check_type_name(&mut self, name: &AuditName, names: &mut HashSet<u128>) {
        self.summary.types += 1;
        self.check_name("event type", name, names);
        if self.types.insert(name.id, false).is_some() {
            let text = format!("row id {} is used by two event types", name.id);
            self.finding(FindingKind::Name, text);
        }
    }

    fn check_name(&mut self, what: &str, name: &AuditName, names: &mut HashSet<u128>) {
        let expected = name_checksum(
            self.log,
            gesta_core::backend::RowId(name.id.cast_unsigned()),
            &name.name,
        );
        if expected != name.checksum {
            let text = format!(
                "{what} row {} ({:?}) has checksum {}, expected {expected}",
                name.id, name.name, name.checksum
            );
            self.finding(FindingKind::Checksum, text);
        }
        if !names.insert(xxh3_128(name.name.as_bytes())) {
            let text = format!("{what} {:?} is stored twice", name.name);
            self.finding(FindingKind::Name, text);
        }
    }

    fn check_floor(&mut self, floor: &AuditFloor) {
        if floor.revision <= 0 || floor.position <= 0 {
            let text = format!(
                "scavenge mark of revision {} at position {} is out of range",
                floor.revision, floor.position
            );
            self.stream_finding(FindingKind::Revision, floor.stream, text);
            return;
        }
        self.summary.removed += floor.revision.unsigned_abs();
        self.floor_position_max = self.floor_position_max.max(floor.position);
        let Some(state) = self.streams.get_mut(&floor.stream) else {
            let text = "scavenge mark of a stream that does not exist".into();
            self.stream_finding(FindingKind::Orphan, floor.stream, text);
            return;
        };
        state.floor = floor.revision;
        state.next = floor.revision;
        state.floor_position = floor.position;
    }

    fn check_row(&mut self, row: &AuditRow) {
        self.summary.events += 1;
        self.summary.last_position = row.position;
        let bytes = row.data.len() + row.metadata.len();
        self.summary.payload_bytes += u64::try_from(bytes).unwrap_or(u64::MAX);
        self.check_order(row);
        self.check_checksum(row);
        self.check_stream(row);
        self.check_type(row);
        self.tags.add_event(row.position, &row.tags);
    }

    fn check_order(&mut self, row: &AuditRow) {
        let (position, created) = self
            .last
            .replace((row.position, row.created))
            .unwrap_or((0, i64::MIN));
        if row.position < 1 {
            self.row_finding(FindingKind::Position, row, "position is below 1".into());
        } else if row.position == position {
            self.row_finding(FindingKind::Position, row, "position is used twice".into());
        } else if row.position < position {
            let text = format!("position comes after {position}");
            self.row_finding(FindingKind::Position, row, text);
        } else if let Some(missing) = u64::try_from(row.position.saturating_sub(position))
            .ok()
            .filter(|n| *n > 1)
        {
            self.holes += missing - 1;
            if row.position - 1 > self.floor_position_max {
                self.hole_reported = true;
                let text = format!(
                    "positions {} to {} are missing, which scavenging does not explain",
                    position.saturating_add(1),
                    row.position - 1
                );
                self.row_finding(FindingKind::Position, row, text);
            }
        }
        // Where a clock was years ahead, an administrator may have set the time back: by more than clocks differ.
        let is_set_back = created.saturating_sub(row.created) > SET_BACK_MIN_US;
        if row.created < created && !is_set_back {
            let text = format!(
                "created {} is before {created} of the event before it",
                row.created
            );
            self.row_finding(FindingKind::Created, row, text);
        }
    }

    fn check_checksum(&mut self, row: &AuditRow) {
        let Ok(event_id) = <&[u8; 16]>::try_from(row.event_id.as_ref()) else {
            let text = format!("event id has {} bytes, not 16", row.event_id.len());
            return self.row_finding(FindingKind::Checksum, row, text);
        };
        let raw = RawRow {
            log: self.log,
            position: row.position,
            stream: row.stream,
            revision: row.revision,
            event_id,
            event_type: row.event_type,
            created: row.created,
            content_type: row.content_type,
            writer: row.writer,
            data: &row.data,
            metadata: &row.metadata,
        };
        let expected = raw.checksum(row.tags.iter().map(String::as_str));
        if expected != row.checksum {
            let text = format!("checksum is {}, expected {expected}", row.checksum);
            self.row_finding(FindingKind::Checksum, row, text);
        }
    }

    fn check_stream(&mut self, row: &AuditRow) {
        if row.stream != row.position && self.streams.contains_key(&row.position) {
            let text = "a stream has the row id of this position, but its first event is not here";
            self.row_finding(FindingKind::RowId, row, text.into());
        }
        let Some(state) = self.streams.get_mut(&row.stream) else {
            let text = format!("its stream, row {}, does not exist", row.stream);
            return self.row_finding(FindingKind::Link, row, text);
        };
        let first = !std::mem::replace(&mut state.seen, true);
        let expected = state.next;
        if row.revision >= expected {
            state.next = row.revision.saturating_add(1);
        }
        let (floor, floor_position) = (state.floor, state.floor_position);
        let moved = if floor == 0 {
            row.position != row.stream
        } else {
            row.position <= row.stream
        };
        if first && moved {
            let text = format!(
                "its stream has row id {}, not the position of its first event",
                row.stream
            );
            self.row_finding(FindingKind::RowId, row, text);
        }
        if row.revision != expected {
            self.row_finding(
                FindingKind::Revision,
                row,
                format!("expected revision {expected}"),
            );
        }
        if row.position <= floor_position {
            let text = format!("scavenging has removed its stream up to position {floor_position}");
            self.row_finding(FindingKind::Revision, row, text);
        }
    }

    fn check_type(&mut self, row: &AuditRow) {
        if row.event_type != row.position && self.types.contains_key(&row.position) {
            let text =
                "an event type has the row id of this position, but the event is of another type";
            self.row_finding(FindingKind::RowId, row, text.into());
        }
        let Some(seen) = self.types.get_mut(&row.event_type) else {
            let text = format!("its event type, row {}, does not exist", row.event_type);
            return self.row_finding(FindingKind::Link, row, text);
        };
        let first = !std::mem::replace(seen, true);
        let scavenged = row.event_type < row.position && row.event_type <= self.floor_position_max;
        if first && row.event_type != row.position && !scavenged {
            let text = format!(
                "its event type has row id {}, not the position of its first event",
                row.event_type
            );
            self.row_finding(FindingKind::RowId, row, text);
        }
    }

    /// Checks what can only be checked once all rows were seen.
    fn check_rest(&mut self) {
        if self.holes != self.summary.removed && !self.hole_reported {
            let text = format!(
                "{} positions are missing, scavenging removed {}",
                self.holes, self.summary.removed
            );
            self.finding(FindingKind::Position, text);
        }
        let mut unused: Vec<i64> = (self.streams.iter())
            .filter(|(_, state)| !state.seen && state.floor == 0)
            .map(|(id, _)| *id)
            .collect();
        unused.sort_unstable();
        for id in unused {
            self.stream_finding(FindingKind::Orphan, id, "the stream has no event".into());
        }
        let mut unused: Vec<i64> = (self.types.iter())
            .filter(|(id, seen)| !**seen && **id > self.floor_position_max)
            .map(|(id, _)| *id)
            .collect();
        unused.sort_unstable();
        for id in unused {
            self.finding(
                FindingKind::Orphan,
                format!("event type row {id} has no event"),
            );
        }
    }

    async fn check_tags(&mut self, source: &mut dyn AuditSource) -> Result<()> {
        let scan = self.tags.add_index(source, self.log, PAGE_ROWS).await?;
        self.summary.tags = scan.entries;
        if scan.leads_back {
            let text = "the tag index leads back: it is damaged".into();
            self.finding(FindingKind::Engine, text);
            return Ok(());
        }
        for (position, text) in self.tags.differences(source, self.log, PAGE_ROWS).await? {
            if self.says_nothing(FindingKind::Tags) {
                break;
            }
            self.report.add(Finding {
                kind: FindingKind::Tags,
                log: self.log,
                position,
                stream_row: None,
                stream: None,
                revision: None,
                text,
            });
        }
        Ok(())
    }

    fn row_finding(&mut self, kind: FindingKind, row: &AuditRow, text: String) {
        if self.says_nothing(kind) {
            return;
        }
        self.report.add(Finding {
            kind,
            log: self.log,
            position: Some(row.position),
            stream_row: Some(row.stream),
            stream: None,
            revision: Some(row.revision),
            text,
        });
    }

    fn stream_finding(&mut self, kind: FindingKind, stream: i64, text: String) {
        if self.says_nothing(kind) {
            return;
        }
        self.report.add(Finding {
            kind,
            log: self.log,
            position: None,
            stream_row: Some(stream),
            stream: None,
            revision: None,
            text,
        });
    }

    fn finding(&mut self, kind: FindingKind, text: String) {
        if self.says_nothing(kind) {
            return;
        }
        self.report.add(Finding {
            kind,
            log: self.log,
            position: None,
            stream_row: None,
            stream: None,
            revision: None,
            text,
        });
    }
}
