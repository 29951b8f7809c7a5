//! A comparison of the tag index with the events, without sorting or keeping either.
//!
//! How: positions fall into ranges of 1,024. For each range both sides add up the hash of every (position, tag); equal
//! sums mean equal sets. Only ranges that differ are read again and compared one by one.
//! Not here: reports (`auditor`).

use std::collections::{BTreeMap, BTreeSet};

use gesta_core::{LogId, Result};
use xxhash_rust::xxh3::xxh3_64_with_seed;

use super::{AuditSource, AuditTag};

/// Number of positions in a range, as a power of two.
const RANGE_BITS: u32 = 10;
/// Largest number of ranges that are compared one by one.
const RANGES_COMPARED_MAX: usize = 100;

/// Sums of the hashes by range: first those of the events, then those of the index.
#[derive(Default)]
pub(super) struct TagSums(BTreeMap<i64, (u64, u64)>);

/// Result of a scan of the tag index.
#[derive(Default)]
pub(super) struct IndexScan {
    /// Number of entries.
    pub(super) entries: u64,
    /// True if a page ended before it began. Then the index is damaged, and scanning it would never end.
    pub(super) leads_back: bool,
}

/// A difference: its position, if it has one, and its text.
pub(super) type Difference = (Option<i64>, String);

fn sum(position: i64, tag: &str) -> u64 {
    xxh3_64_with_seed(tag.as_bytes(), position.cast_unsigned())
}

fn range(position: i64) -> i64 {
    position >> RANGE_BITS
}

impl TagSums {
    pub(super) fn add_event(&mut self, position: i64, tags: &[String]) {
        for tag in tags {
            let sums = self.0.entry(range(position)).or_default();
            sums.0 = sums.0.wrapping_add(sum(position, tag));
        }
    }

    /// Adds up the hashes of the whole index.
    pub(super) async fn add_index(
        &mut self,
        source: &mut dyn AuditSource,
        log: LogId,
        page_rows: usize,
    ) -> Result<IndexScan> {
        let mut scan = IndexScan::default();
        let mut after: Option<AuditTag> = None;
        loop {
            let mut page = source.tags(log, after.as_ref(), page_rows).await?;
            for entry in &page {
                let sums = self.0.entry(range(entry.position)).or_default();
                sums.1 = sums.1.wrapping_add(sum(entry.position, &entry.tag));
                scan.entries += 1;
            }
            let Some(last) = page.pop() else {
                return Ok(scan);
            };
            if after.as_ref().is_some_and(|after| last <= *after) {
                scan.leads_back = true;
                return Ok(scan);
            }
            after = Some(last);
        }
    }

    /// Compares the ranges whose sums differ, and returns the differences.
    pub(super) async fn differences(
        &self,
        source: &mut dyn AuditSource,
        log: LogId,
        page_rows: usize,
    ) -> Result<Vec<Difference>> {
        let wrong: BTreeSet<i64> = (self.0.iter())
            .filter(|(_, (events, index))| events != index)
            .map(|(range, _)| *range)
            .collect();
        if wrong.is_empty() {
            return Ok(Vec::new());
        }
        let compared: BTreeSet<i64> = wrong.iter().copied().take(RANGES_COMPARED_MAX).collect();
        let events = event_tags(source, log, &compared, page_rows).await?;
        let index = index_tags(source, log, &compared, page_rows).await?;
        let mut found: Vec<Difference> = Vec::new();
        for (position, tag) in events.difference(&index) {
            found.push((
                Some(*position),
                format!("the tag index lacks {tag:?} of this event"),
            ));
        }
        for (position, tag) in index.difference(&events) {
            found.push((
                Some(*position),
                format!("the tag index has {tag:?}, which no event here carries"),
            ));
        }
        if found.is_empty() {
            found.push((
                None,
                "the tag index or an event holds an entry twice".into(),
            ));
        }
        if wrong.len() > compared.len() {
            let more = wrong.len() - compared.len();
            found.push((
                None,
                format!("the tag index differs in {more} more ranges of 1,024 positions"),
            ));
        }
        Ok(found)
    }
}

async fn event_tags(
    source: &mut dyn AuditSource,
    log: LogId,
    ranges: &BTreeSet<i64>,
    page_rows: usize,
) -> Result<BTreeSet<(i64, String)>> {
    let mut found = BTreeSet::new();
    for wanted in ranges {
        let mut after = (wanted << RANGE_BITS).saturating_sub(1);
        loop {
            let page = source.rows(log, after, page_rows).await?;
            let Some(last) = page.last() else { break };
            after = last.position;
            for row in page.iter().filter(|row| range(row.position) == *wanted) {
                found.extend(row.tags.iter().map(|tag| (row.position, tag.clone())));
            }
            if range(after) > *wanted {
                break;
            }
        }
    }
    Ok(found)
}

async fn index_tags(
    source: &mut dyn AuditSource,
    log: LogId,
    ranges: &BTreeSet<i64>,
    page_rows: usize,
) -> Result<BTreeSet<(i64, String)>> {
    let mut found = BTreeSet::new();
    let mut after: Option<AuditTag> = None;
    loop {
        let mut page = source.tags(log, after.as_ref(), page_rows).await?;
        let wanted = page
            .iter()
            .filter(|entry| ranges.contains(&range(entry.position)));
        found.extend(wanted.map(|entry| (entry.position, entry.tag.clone())));
        let Some(last) = page.pop() else {
            return Ok(found);
        };
        after = Some(last);
    }
}
