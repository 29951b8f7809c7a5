//! The read models that are measured, and their events.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use gesta_core::{
    Append, EventData, EventType, ExpectedRevision, Filter, Query, RecordedEvent, StreamId, Tag,
    Tags,
};
use gesta_projection::{ApplyError, Effect, View, columns};
use serde::Deserialize;

use gesta_report::failure::Result;

/// Types of events.
pub(super) const TYPES: u64 = 10;
/// Events of an append of a burst.
const APPEND_EVENTS: u64 = 5;

columns! {
    /// What is known of an item.
    pub(super) struct Item {
        pub(super) events: i64,
        pub(super) amount: i64,
        pub(super) name: String,
    }
}

columns! {
    /// How many events there were.
    pub(super) struct Counted {
        pub(super) events: i64,
    }
}

#[derive(Deserialize)]
struct Data {
    item: i64,
    amount: i64,
    name: String,
}

/// A row for each item: each event changes one.
#[derive(Debug)]
pub(super) struct Items;

impl View for Items {
    const NAME: &'static str = "lab_items";
    const VERSION: u32 = 1;
    type Key = i64;
    type Row = Item;

    fn filter(&self) -> Filter {
        Filter::ALL
    }

    fn key(&self, event: &RecordedEvent) -> Option<i64> {
        event.stream.as_str().split_once('-')?.1.parse().ok()
    }

    fn evolve(
        &self,
        row: &mut Option<Item>,
        event: &RecordedEvent,
    ) -> std::result::Result<(), ApplyError> {
        let data: Data = serde_json::from_slice(&event.data)?;
        let row = row.get_or_insert_with(|| Item {
            events: 0,
            amount: 0,
            name: String::new(),
        });
        row.events += 1;
        row.amount += data.amount;
        row.name = data.name;
        debug_assert!(data.item >= 0, "numbers of items begin with 0");
        Ok(())
    }
}

/// A row for each type of events: each event is counted.
#[derive(Debug)]
pub(super) struct Types;

impl View for Types {
    const NAME: &'static str = "lab_types";
    const VERSION: u32 = 1;
    type Key = String;
    type Row = Counted;

    fn filter(&self) -> Filter {
        Filter::ALL
    }

    fn key(&self, event: &RecordedEvent) -> Option<String> {
        Some(event.event_type.as_str().to_owned())
    }

    fn evolve(
        &self,
        row: &mut Option<Counted>,
        _: &RecordedEvent,
    ) -> std::result::Result<(), ApplyError> {
        row.get_or_insert(Counted { events: 0 }).events += 1;
        Ok(())
    }
}

/// The tag that the read model or effect of a number follows.
pub(super) fn tag(number: usize) -> Tag {
    Tag::new(format!("reader-{number}")).expect("valid")
}

fn of_tag(number: usize) -> Filter {
    Filter::query(Query {
        tags: vec![tag(number)],
        ..Query::default()
    })
}

/// One of many effects: it counts the events of its tag, as a call would be made for each.
#[derive(Debug)]
pub(super) struct Performed {
    pub(super) tag: usize,
    pub(super) count: Arc<AtomicU64>,
}

impl Effect for Performed {
    const NAME: &'static str = "lab_effect";
    const VERSION: u32 = 1;

    fn filter(&self) -> Filter {
        of_tag(self.tag)
    }

    async fn perform(&self, _: &RecordedEvent, _: u32) -> std::result::Result<(), ApplyError> {
        self.count.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }
}

/// One of many read models: it counts the events of its tag.
#[derive(Debug)]
pub(super) struct Tagged(pub(super) usize);

impl View for Tagged {
    const NAME: &'static str = "lab_tagged";
    const VERSION: u32 = 1;
    type Key = String;
    type Row = Counted;

    fn filter(&self) -> Filter {
        of_tag(self.0)
    }

    fn key(&self, event: &RecordedEvent) -> Option<String> {
        Some(event.event_type.as_str().to_owned())
    }

    fn evolve(
        &self,
        row: &mut Option<Counted>,
        event: &RecordedEvent,
    ) -> std::result::Result<(), ApplyError> {
        Types.evolve(row, event)
    }
}

/// Returns event `number`: of an item, and of a type.
pub(super) fn event(number: u64, keys: u64) -> EventData {
    let item = number % keys;
    let event_type = EventType::new(format!("Type{}", number % TYPES)).expect("valid");
    let data = format!(
        "{{\"item\":{item},\"amount\":{},\"name\":\"item number {item} of many\"}}",
        number % 97
    );
    EventData::json(event_type, data)
}

/// Returns the appends of all events, in which no item comes twice within thousands of events.
///
/// The stream of an event is that of its item, so each append is of one event, and they are many.
pub(super) fn appends(events: u64, keys: u64) -> impl Iterator<Item = Append> {
    (0..events).map(move |number| {
        let stream = StreamId::new(format!("item-{}", number % keys)).expect("valid");
        Append::to(stream, ExpectedRevision::Any, vec![event(number, keys)])
    })
}

/// Returns the appends of a burst, in which each event has the tag of one reader.
pub(super) fn burst(events: u64, readers: usize, name: &str) -> Result<Vec<Append>> {
    let mut appends = Vec::new();
    for first in (0..events).step_by(usize::try_from(APPEND_EVENTS)?) {
        let numbers = first..(first + APPEND_EVENTS).min(events);
        let made = numbers.map(|number| {
            let reader = usize::try_from(number).unwrap_or(0) % readers;
            let mut made = event(number, events);
            made.tags = Tags::new(vec![tag(reader)])?;
            Ok(made)
        });
        let stream = StreamId::new(format!("{name}-{first}"))?;
        let made: gesta_core::Result<Vec<EventData>> = made.collect();
        appends.push(Append::to(stream, ExpectedRevision::Any, made?));
    }
    Ok(appends)
}
