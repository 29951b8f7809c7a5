//! Which place a row of the source gets in the target.
//!
//! With as many logs as the source has, everything stays: positions, row ids, checksums. With another number a stream
//! lies in the log to which its name hashes; the events of each log are counted anew in the order in which they come,
//! and the row ids of names are, as always, the positions of their first events. Revisions stay in any case. What
//! scavenging has removed keeps its positions: with another number of logs these come first, before all events.
//!
//! Memory: about 100 bytes for each stream.

use std::collections::{BTreeSet, HashMap};

use gesta_core::system_streams::GROUP_CONFIGURATION_PREFIX as GROUPS;
use gesta_core::{Error, LifecycleChange, LogId, Result, StreamMetadata, log_of};
use gesta_sql::name_checksum;
use gesta_sql::verify::{AuditFloor, AuditName, AuditRow, AuditSource};

use crate::batch::{Batch, Floor, NewName};
use crate::digest::{Digest, checksum_of, name_hash};

/// How many names or marks are read at once.
pub(crate) const PAGE_NAMES: usize = 10_000;

/// A stream of the source.
struct Stream {
    name: Box<str>,
    hash: i64,
    /// The log in the target.
    log: u16,
    /// The row id in the target; 0 if it has none yet.
    id: i64,
}

struct Type {
    name: Box<str>,
    hash: i64,
}

/// Whether places stay as they are.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Places {
    /// The target has as many logs as the source.
    Kept,
    /// The target has this other number of logs.
    Anew(u16),
}

/// Gives rows their places in the target.
pub(crate) struct Mapping {
    places: Places,
    /// The streams of each log of the source, by their row ids.
    streams: Vec<HashMap<i64, Stream>>,
    types: Vec<HashMap<i64, Type>>,
    /// How far streams were scavenged, by the log of the source; `None` before that was read.
    floors: Option<Vec<(usize, AuditFloor)>>,
    /// Up to which row id the names of each log of the source are known.
    known: Vec<i64>,
    /// The types that each log of the target has.
    target_types: Vec<HashMap<Box<str>, i64>>,
    /// The next position in each log of the target.
    pub(crate) next: Vec<i64>,
    /// The last position in each log of the target that holds a row.
    pub(crate) last: Vec<i64>,
    pub(crate) digest: Digest,
    /// The consumer groups that were deleted, and not made again since.
    pub(crate) deleted_groups: BTreeSet<String>,
}

/// Notes whether an event makes a consumer group, or deletes one.
fn note_group(deleted: &mut BTreeSet<String>, stream: &str, event_type: &str, row: &AuditRow) {
    if let Some(group) = stream.strip_prefix(GROUPS) {
        deleted.remove(group);
    }
    let described = stream.strip_prefix("$$");
    let Some(group) = described.and_then(|described| described.strip_prefix(GROUPS)) else {
        return;
    };
    let deletes = match event_type {
        "$deleted" | "$tombstone" => true,
        _ => matches!(
            StreamMetadata::parse_event(row.data.clone()),
            Ok((LifecycleChange::Deleted, _))
        ),
    };
    if deletes {
        deleted.insert(group.to_owned());
    }
}

fn log_id(log: usize) -> LogId {
    LogId(u16::try_from(log).unwrap_or(u16::MAX))
}

/// Reads all names of a kind, page by page, and checks each.
pub(crate) async fn each_name(
    log: LogId,
    mut after: i64,
    mut page: impl AsyncFnMut(i64) -> Result<Vec<AuditName>>,
    mut take: impl FnMut(AuditName) -> Result<()>,
) -> Result<()> {
    loop {
        let names = page(after).await?;
        let Some(last) = names.last() else {
            return Ok(());
        };
        after = last.id;
        for name in names {
            let row = gesta_core::backend::RowId(name.id.cast_unsigned());
            if name_checksum(log, row, &name.name) != name.checksum {
                return Err(Error::corrupt(format!(
                    "the name {:?} (log {log}, row {}) has a wrong checksum: run `gesta verify`",
                    name.name, name.id
                )));
            }
            take(name)?;
        }
    }
}

impl Mapping {
    /// Reads the names and marks of a source.
    ///
    /// # Errors
    /// `Corrupt` if a name is damaged; `Unavailable` if the source does not answer.
    pub(crate) async fn read(source: &mut dyn AuditSource, places: Places) -> Result<Self> {
        let mut mapping = Self::new(source.logs(), places);
        mapping.learn(source, None).await?;
        Ok(mapping)
    }

    /// Makes one that knows nothing of a source with this number of logs.
    pub(crate) fn new(logs: u16, places: Places) -> Self {
        let target_logs = match places {
            Places::Kept => logs,
            Places::Anew(logs) => logs,
        };
        Self {
            places,
            streams: std::iter::repeat_with(HashMap::new)
                .take(logs.into())
                .collect(),
            types: std::iter::repeat_with(HashMap::new)
                .take(logs.into())
                .collect(),
            floors: None,
            known: vec![i64::MIN; logs.into()],
            target_types: vec![HashMap::new(); usize::from(target_logs)],
            next: vec![1; usize::from(target_logs)],
            last: vec![0; usize::from(target_logs)],
            digest: Digest::default(),
            deleted_groups: BTreeSet::new(),
        }
    }

    /// Reads the names of a source that are not known yet, up to the end of each log if there is one, and the first
    /// time the marks.
    ///
    /// # Errors
    /// Those of [`Mapping::read`].
    pub(crate) async fn learn(
        &mut self,
        source: &mut dyn AuditSource,
        ends: Option<&[i64]>,
    ) -> Result<()> {
        let reads_floors = self.floors.is_none();
        let mut floors = self.floors.take().unwrap_or_default();
        for log in 0..self.known.len() {
            let end = ends.map_or(i64::MAX, |ends| ends[log]);
            let places = self.places;
            let streams = &mut self.streams[log];
            let before = streams.len();
            let take = |found: AuditName| {
                if found.id > end {
                    return Ok(());
                }
                let name: Box<str> = found.name.into();
                let stream = gesta_core::StreamId::new(&*name)?;
                let stream = Stream {
                    hash: name_hash(&name),
                    log: match places {
                        Places::Kept => log_id(log).0,
                        Places::Anew(logs) => log_of(&stream, logs).0,
                    },
                    id: if places == Places::Kept { found.id } else { 0 },
                    name,
                };
                streams.insert(found.id, stream);
                Ok(())
            };
            let after = self.known[log];
            let page = async |after| source.streams(log_id(log), after, PAGE_NAMES).await;
            each_name(log_id(log), after, page, take).await?;
            self.digest.streams += (streams.len() - before) as u64;
            let types = &mut self.types[log];
            let take = |found: AuditName| {
                if found.id <= end {
                    let name: Box<str> = found.name.into();
                    let hash = name_hash(&name);
                    types.insert(found.id, Type { name, hash });
                }
                Ok(())
            };
            let page = async |after| source.types(log_id(log), after, PAGE_NAMES).await;
            each_name(log_id(log), after, page, take).await?;
            self.known[log] = end;
            if reads_floors {
                self.read_floors(source, log, end, &mut floors).await?;
            }
        }
        self.floors = Some(floors);
        Ok(())
    }

    /// Reads how far streams of a log were scavenged, of those that are known.
    async fn read_floors(
        &mut self,
        source: &mut dyn AuditSource,
        log: usize,
        end: i64,
        floors: &mut Vec<(usize, AuditFloor)>,
    ) -> Result<()> {
        let mut after = i64::MIN;
        loop {
            let page = source.floors(log_id(log), after, PAGE_NAMES).await?;
            let Some(last) = page.last() else {
                return Ok(());
            };
            after = last.stream;
            for floor in page.into_iter().filter(|floor| floor.stream <= end) {
                let Some(stream) = self.streams[log].get(&floor.stream) else {
                    return Err(unknown("a scavenged stream", log, floor.stream));
                };
                self.digest.add_floor(&stream.name, floor.revision);
                floors.push((log, floor));
            }
        }
    }

    /// Reads how far streams of a source are scavenged now, as the sum of the digest.
    ///
    /// # Errors
    /// `Unavailable` if the source does not answer.
    pub(crate) async fn floors_of(&self, source: &mut dyn AuditSource) -> Result<u64> {
        let mut digest = Digest::default();
        for (log, streams) in self.streams.iter().enumerate() {
            let mut after = i64::MIN;
            loop {
                let page = source.floors(log_id(log), after, PAGE_NAMES).await?;
                let Some(last) = page.last() else {
                    break;
                };
                after = last.stream;
                for floor in page {
                    // A stream that is not known is new: then the sum differs, as it must.
                    let name = streams
                        .get(&floor.stream)
                        .map_or("", |stream| &*stream.name);
                    digest.add_floor(name, floor.revision);
                }
            }
        }
        Ok(digest.floors)
    }

    /// Returns the names of the consumer groups, once all rows were placed.
    pub(crate) fn groups(&self) -> Vec<String> {
        let streams = self.streams.iter().flat_map(HashMap::values);
        let groups = streams.filter_map(|stream| stream.name.strip_prefix(GROUPS));
        let groups = groups.filter(|group| !self.deleted_groups.contains(*group));
        let mut groups: Vec<String> = groups.map(str::to_owned).collect();
        groups.sort();
        groups
    }

    /// Makes the first batch: the streams of which something was scavenged.
    pub(crate) fn first(&mut self) -> Batch {
        let mut batch = Batch {
            before: self.last.clone(),
            ..Batch::default()
        };
        for (log, floor) in self.floors.iter().flatten() {
            let Some(stream) = self.streams[*log].get_mut(&floor.stream) else {
                continue;
            };
            let next = &mut self.next[usize::from(stream.log)];
            let position = match self.places {
                Places::Kept => floor.position,
                Places::Anew(_) => {
                    stream.id = *next;
                    *next += floor.revision;
                    *next - 1
                }
            };
            batch.streams.push(NewName {
                log: stream.log,
                id: stream.id,
                name: stream.name.clone(),
            });
            batch.floors.push(Floor {
                log: stream.log,
                stream: stream.id,
                revision: floor.revision,
                position,
            });
        }
        batch
    }

    /// Takes the names that a target has already, so that the copy goes on after some batches.
    pub(crate) fn resume(&mut self, log: u16, streams: &[AuditName], types: Vec<AuditName>) {
        if self.places != Places::Kept {
            let ids: HashMap<&str, i64> = streams
                .iter()
                .map(|stream| (&*stream.name, stream.id))
                .collect();
            let all = self.streams.iter_mut().flat_map(HashMap::values_mut);
            for stream in all.filter(|stream| stream.log == log) {
                if let Some(id) = ids.get(&*stream.name) {
                    stream.id = *id;
                }
            }
        }
        let types = types.into_iter().map(|found| (found.name.into(), found.id));
        self.target_types[usize::from(log)].extend(types);
    }

    /// Gives rows of the source their places.
    ///
    /// # Errors
    /// `Corrupt` if a row is damaged.
    pub(crate) fn place(&mut self, rows: Vec<(u16, AuditRow)>) -> Result<Batch> {
        let mut batch = Batch {
            before: self.last.clone(),
            rows: Vec::with_capacity(rows.len()),
            ..Batch::default()
        };
        for (from, mut row) in rows {
            if checksum_of(from, &row) != Some(row.checksum) {
                return Err(Error::corrupt(format!(
                    "the event at log {from}, position {} of the source has a wrong checksum: run `gesta verify`",
                    row.position
                )));
            }
            let at = usize::from(from);
            let Some(stream) = self.streams[at].get_mut(&row.stream) else {
                return Err(unknown("the stream of an event", at, row.stream));
            };
            let Some(event_type) = self.types[at].get(&row.event_type) else {
                return Err(unknown("the type of an event", at, row.event_type));
            };
            note_group(
                &mut self.deleted_groups,
                &stream.name,
                &event_type.name,
                &row,
            );
            let log = stream.log;
            let to = usize::from(log);
            let known = self.target_types[to].get(&event_type.name).copied();
            let (seen_stream, seen_type) = (stream.hash, event_type.hash);
            if let Places::Anew(_) = self.places {
                row.position = self.next[to];
                if row.revision == 0 {
                    stream.id = row.position;
                }
                row.stream = stream.id;
                row.event_type = known.unwrap_or(row.position);
            }
            if stream.id == 0 {
                return Err(unknown(
                    "the beginning of the stream of an event",
                    at,
                    row.stream,
                ));
            }
            if row.revision == 0 {
                batch.streams.push(NewName {
                    log,
                    id: stream.id,
                    name: stream.name.clone(),
                });
            }
            if known.is_none() {
                let name = event_type.name.clone();
                self.target_types[to].insert(name.clone(), row.event_type);
                batch.types.push(NewName {
                    log,
                    id: row.event_type,
                    name,
                });
            }
            if let (Places::Anew(_), Some(checksum)) = (self.places, checksum_of(log, &row)) {
                row.checksum = checksum;
            }
            self.next[to] = row.position + 1;
            self.last[to] = row.position;
            self.digest.add(&row, seen_stream, seen_type, row.checksum);
            batch.rows.push((log, row));
        }
        Ok(batch)
    }
}

fn unknown(what: &str, log: usize, row: i64) -> Error {
    Error::corrupt(format!(
        "{what} (log {log}, row {row}) is not in the source: run `gesta verify`"
    ))
}
