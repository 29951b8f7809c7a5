//! Consumer groups: is every event finished by a consumer or parked, whatever happened, and nothing delivered that is
//! not the group's?
//!
//! A group delivers at least once, and several consumers work at once, so neither doubles nor another order are wrong
//! by themselves. Order is promised only where one consumer at a time works on what belongs together, and nothing is
//! retried (`docs/guides/consumer-groups.md`); a run that has it says so.

use std::collections::{HashMap, HashSet};
use std::fmt::Debug;
use std::hash::Hash;

use gesta_core::{Revision, StreamId};

use crate::history::Deliveries;
use crate::verdict::{Kind, Verdict};

/// What is promised of a run beside that nothing is lost.
#[derive(Debug, Clone, Copy)]
pub struct Terms<K> {
    /// How often an event may be parked.
    pub parked_max: usize,
    /// Whether events may have been delivered that are not stored any more.
    pub may_lose: bool,
    /// What belongs together, if its events come in order when they come first: by a number.
    pub in_order: Option<fn(&K) -> u64>,
}

impl<K> Default for Terms<K> {
    /// An event is parked once at most, nothing is lost, and there is no order.
    fn default() -> Self {
        Self {
            parked_max: 1,
            may_lose: false,
            in_order: None,
        }
    }
}

/// Judges a group that was to deliver the events `wanted`, in order, and has parked `parked`, as often as it did.
#[must_use]
pub fn judge<K: Clone + Eq + Hash + Debug>(
    history: &Deliveries<K>,
    wanted: &[K],
    parked: &[K],
    terms: Terms<K>,
) -> Verdict {
    let records = history.lock();
    let again = records.deliveries.iter().filter(|one| one.retries > 0);
    let mut verdict = Verdict {
        deliveries: records.deliveries.len(),
        redeliveries: again.count(),
        ..Verdict::default()
    };
    let mut times: HashMap<&K, usize> = HashMap::new();
    for event in parked {
        *times.entry(event).or_default() += 1;
    }
    for (event, times) in &times {
        if *times > terms.parked_max {
            verdict.add(Kind::ParkedTooOften, 1, || {
                format!("{event:?} was parked {times} times")
            });
        }
    }
    for event in wanted {
        if records.finished.contains(event) || times.contains_key(event) {
            verdict.events_settled += 1;
        } else {
            verdict.add(Kind::NeverSettled, 1, || format!("{event:?}"));
        }
    }
    let places: HashMap<&K, usize> = wanted.iter().enumerate().map(|(at, k)| (k, at)).collect();
    let (mut seen, mut last) = (HashSet::new(), HashMap::new());
    for delivery in &records.deliveries {
        let (event, consumer) = (&delivery.event, delivery.consumer);
        let Some(place) = places.get(event).copied() else {
            if !terms.may_lose {
                verdict.add(Kind::DeliveredUninvited, 1, || {
                    format!("{event:?} to consumer {consumer}")
                });
            }
            continue;
        };
        if let Some(belongs) = terms.in_order
            && seen.insert(event)
        {
            let last = last.entry(belongs(event)).or_insert(place);
            if place < *last {
                verdict.add(Kind::DeliveryOrder, 1, || {
                    format!("{event:?} to consumer {consumer} after {:?}", wanted[*last])
                });
            }
            *last = place.max(*last);
        }
    }
    verdict
}

/// The events that are neither finished nor parked.
#[must_use]
pub fn unsettled<K: Clone + Eq + Hash>(
    history: &Deliveries<K>,
    wanted: &[K],
    parked: &[K],
) -> Vec<K> {
    let (records, parked): (_, HashSet<&K>) = (history.lock(), parked.iter().collect());
    let is_open = |event: &&K| !records.finished.contains(*event) && !parked.contains(*event);
    wanted.iter().filter(is_open).cloned().collect()
}

/// What a link of a parked stream names.
#[must_use]
pub fn linked(data: &[u8]) -> Option<(Revision, StreamId)> {
    let (revision, stream) = std::str::from_utf8(data).ok()?.split_once('@')?;
    Some((
        Revision(revision.parse().ok()?),
        StreamId::new(stream).ok()?,
    ))
}
