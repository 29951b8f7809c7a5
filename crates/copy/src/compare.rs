//! Reads a target back, log after log, and computes what it shows; for a target that grows, only what is new.
//!
//! Invariants: every row is checked by its checksum, every name by its own; the index of tags has as many entries as
//! the events have tags. Not here: what the source shows, with which the result is compared (`mapping`).

use std::collections::{HashMap, HashSet};

use gesta_core::{Error, LogId, Result};
use gesta_sql::verify::AuditName;

use crate::digest::{Compared, Digest, checksum_of, name_hash};
use crate::mapping::each_name;
use crate::part::{Names, Part, Which};

/// With more tags than this the whole index is counted.
const TAGS_MAX: usize = 10_000;

/// The names of a log, as their hashes by row id.
#[derive(Clone, Default)]
struct Known {
    streams: HashMap<i64, i64>,
    types: HashMap<i64, i64>,
    /// All names up to this row id are known.
    after: Option<i64>,
}

/// A target that is being read back.
pub(crate) struct Comparison {
    known: Vec<Known>,
    pub(crate) done: Compared,
}

/// Reads names of a log after a row id.
pub(crate) async fn names_after(
    part: &mut dyn Part,
    names: Names,
    log: u16,
    after: i64,
) -> Result<Vec<AuditName>> {
    let mut all = Vec::new();
    let page = async |after| part.names(names, log, after).await;
    let take = |name| {
        all.push(name);
        Ok(())
    };
    each_name(LogId(log), after, page, take).await?;
    Ok(all)
}

impl Comparison {
    /// Makes one for a target with this number of logs, of which nothing was read.
    pub(crate) fn new(logs: u16) -> Self {
        Self {
            known: vec![Known::default(); logs.into()],
            done: Compared {
                after: vec![0; logs.into()],
                tags: vec![0; logs.into()],
                digest: Digest::default(),
            },
        }
    }

    /// Goes on after what was read before.
    pub(crate) async fn resume(done: Compared, part: &mut dyn Part) -> Result<Self> {
        let mut this = Self {
            known: vec![Known::default(); done.after.len()],
            done,
        };
        for log in 0..part.logs() {
            let end = this.done.after[usize::from(log)];
            if end > 0 {
                this.learn(part, log, end).await?;
            }
        }
        Ok(this)
    }

    /// Gives the memory for the names of a log back, after it was read.
    pub(crate) fn forget_names(&mut self, log: u16) {
        self.known[usize::from(log)] = Known::default();
    }

    /// Reads the names of a log that are not known, up to a row id. Returns how many streams came.
    async fn learn(&mut self, part: &mut dyn Part, log: u16, end: i64) -> Result<u64> {
        let known = &mut self.known[usize::from(log)];
        let after = known.after.unwrap_or(i64::MIN);
        let hashes = |names: Vec<AuditName>| {
            let names = names.into_iter().filter(|name| name.id <= end);
            names.map(|name| (name.id, name_hash(&name.name)))
        };
        let before = known.streams.len();
        let streams = names_after(part, Names::Streams, log, after).await?;
        known.streams.extend(hashes(streams));
        // All of them, which are few: one whose events were scavenged comes back under its old number.
        let types = names_after(part, Names::Types, log, i64::MIN).await?;
        known.types.extend(hashes(types));
        known.after = Some(end);
        Ok((known.streams.len() - before) as u64)
    }

    async fn read_floors(&mut self, part: &mut dyn Part, log: u16) -> Result<()> {
        let floors = part.floors(log).await?;
        if floors.is_empty() {
            return Ok(());
        }
        let names = names_after(part, Names::Streams, log, i64::MIN).await?;
        let names: HashMap<i64, &str> = names.iter().map(|name| (name.id, &*name.name)).collect();
        for floor in floors {
            let name = names.get(&floor.stream).copied().unwrap_or("");
            self.done.digest.add_floor(name, floor.revision);
        }
        Ok(())
    }

    /// Reads what a log has more than before. `observe` is told how many events were read.
    ///
    /// # Errors
    /// `Corrupt` if a row is damaged.
    pub(crate) async fn read_on(
        &mut self,
        part: &mut dyn Part,
        log: u16,
        observe: &mut (dyn FnMut(u64) + Send),
    ) -> Result<()> {
        let at = usize::from(log);
        let is_first = self.known[at].after.is_none();
        let begin = self.done.after[at];
        // Names that come later than now belong to rows that are read the next time. Nobody writes meanwhile.
        let streams = self.learn(part, log, i64::MAX).await?;
        self.done.digest.streams += streams;
        if is_first && begin == 0 {
            self.read_floors(part, log).await?;
        }
        let (known, digest) = (&mut self.known[at], &mut self.done.digest);
        let tags_before = digest.tags;
        let mut tags: HashSet<String> = HashSet::new();
        let mut after = begin;
        loop {
            let rows = part.rows(log, after).await?;
            let Some(last) = rows.last() else {
                break;
            };
            after = last.position;
            for row in &rows {
                let names = known
                    .streams
                    .get(&row.stream)
                    .zip(known.types.get(&row.event_type));
                let (Some((stream, event_type)), Some(checksum)) = (names, checksum_of(log, row))
                else {
                    return Err(damaged(log, row.position));
                };
                if checksum != row.checksum {
                    return Err(damaged(log, row.position));
                }
                digest.add(row, *stream, *event_type, checksum);
                if begin > 0 && tags.len() <= TAGS_MAX {
                    tags.extend(row.tags.iter().cloned());
                }
            }
            observe(digest.events);
        }
        known.after = Some(after.max(known.streams.keys().copied().max().unwrap_or(0)));
        let new = digest.tags - tags_before;
        self.done.after[at] = after;
        self.done.tags[at] += new;
        let (which, expected) = match begin > 0 && tags.len() <= TAGS_MAX {
            true => (Which::After(begin, tags.into_iter().collect()), new),
            false => (Which::All, self.done.tags[at]),
        };
        if part.count_tags(log, which).await? != expected {
            return Err(Error::corrupt(format!(
                "the index of tags of log {log} of the target is not that of its events: begin with an empty target"
            )));
        }
        Ok(())
    }
}

fn damaged(log: u16, position: i64) -> Error {
    Error::corrupt(format!(
        "the event at log {log}, position {position} of the target is damaged: begin with an empty target"
    ))
}
