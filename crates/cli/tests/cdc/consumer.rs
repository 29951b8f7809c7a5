//! A consumer that follows the rules of the page: it takes transactions as a whole, resolves names, passes over what it
//! has already, and leaves out the row that closes a log.

use std::collections::{BTreeMap, HashMap};

use crate::pgoutput::{Change, Kind, Row, Transaction};

/// The position of the row that closes a log in a database.
pub(crate) const CLOSED: i64 = i64::MAX;

/// The version of the schema of a store that has moved away is above this.
const MOVED: i64 = 2_000_000;

/// What an event is to a consumer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Event {
    pub(crate) stream: String,
    pub(crate) revision: i64,
    pub(crate) kind: String,
    pub(crate) id: String,
    pub(crate) data: String,
}

/// A log and a position.
pub(crate) type Place = (i64, i64);

#[derive(Default)]
pub(crate) struct Consumer {
    streams: HashMap<Place, String>,
    types: HashMap<Place, String>,
    /// The position up to which each log was taken.
    pub(crate) taken: HashMap<i64, i64>,
    /// In the order in which they came.
    pub(crate) events: Vec<(Place, Event)>,
    /// What was scavenged.
    pub(crate) removed: Vec<Place>,
    /// How many rows came again.
    pub(crate) repeated: usize,
    /// Logs that were closed in a database.
    pub(crate) closed: Vec<i64>,
    /// Logs that were opened in a database after that.
    pub(crate) opened: Vec<i64>,
    /// The incarnations of the store that were told, in their order.
    pub(crate) incarnations: Vec<String>,
    /// What was shown and then lost.
    pub(crate) dropped: Vec<Event>,
    /// The store is elsewhere now.
    pub(crate) has_moved: bool,
}

impl Consumer {
    /// Takes what one run of `pg_recvlogical` has written. Within it every log must be in order, each event once.
    pub(crate) fn take_run(&mut self, run: &[Transaction]) {
        let (mut before, mut commit) = (HashMap::new(), 0);
        for transaction in run {
            assert!(transaction.commit > commit, "commits are in order");
            commit = transaction.commit;
            for (log, position) in transaction.changes.iter().filter_map(event_place) {
                let last = before.insert(log, position);
                assert!(
                    last < Some(position),
                    "log {log}: {position} after {last:?}"
                );
            }
            self.take(transaction);
        }
    }

    /// Takes a transaction, or rows that were copied.
    pub(crate) fn take(&mut self, transaction: &Transaction) {
        // Names first: their rows may follow those of the events.
        for change in &transaction.changes {
            let names = match &*change.table {
                "gesta.streams" => &mut self.streams,
                "gesta.types" => &mut self.types,
                _ => continue,
            };
            // The end of an old copy is removed with its names, which come again.
            if change.kind == Kind::Delete {
                continue;
            }
            assert_eq!(change.kind, Kind::Insert, "{change:?}");
            let place = (number(&change.row, "log"), number(&change.row, "id"));
            names.insert(place, change.row["name"].clone());
        }
        for change in &transaction.changes {
            match (&*change.table, &change.kind) {
                ("gesta.events", Kind::Insert) => self.take_event(&change.row),
                ("gesta.events", Kind::Delete) => match place(&change.row) {
                    (log, CLOSED) => self.opened.push(log),
                    place => self.removed.push(place),
                },
                ("gesta.store", Kind::Update) => {
                    self.incarnations.push(change.row["incarnation"].clone());
                    self.has_moved = number(&change.row, "schema_version") > MOVED;
                }
                ("gesta.streams" | "gesta.types", _) => {}
                _ => panic!("{change:?}"),
            }
        }
    }

    fn take_event(&mut self, row: &Row) {
        let (log, position) = place(row);
        if position == CLOSED {
            self.closed.push(log);
            return;
        }
        let taken = self.taken.entry(log).or_default();
        if position <= *taken {
            self.repeated += 1;
            return;
        }
        *taken = position;
        let name = |names: &HashMap<Place, String>, column| {
            let id = number(row, column);
            let name = names.get(&(log, id));
            name.unwrap_or_else(|| panic!("no name for {row:?}"))
                .clone()
        };
        let event = Event {
            stream: name(&self.streams, "stream"),
            revision: number(row, "revision"),
            kind: name(&self.types, "type"),
            id: row["event_id"].clone(),
            data: row["data"].clone(),
        };
        self.events.push(((log, position), event));
    }

    /// Drops, from the end of each log, what the store does not have: a slot had shown it, and a fail-over has lost it.
    pub(crate) fn compare(&mut self, stored: &BTreeMap<Place, Event>) {
        let logs: Vec<i64> = self.taken.keys().copied().collect();
        for log in logs {
            let of_log = |((of, _), _): &&(Place, Event)| *of == log;
            while let Some((place, event)) = self.events.iter().rfind(of_log).cloned() {
                if stored.get(&place) == Some(&event) {
                    break;
                }
                self.events.retain(|(other, _)| *other != place);
                self.dropped.push(event);
            }
            let last = self.events.iter().rfind(of_log);
            let last = last.map_or(0, |((_, position), _)| *position);
            self.taken.insert(log, last);
        }
    }

    /// What is left: that which came and was not removed.
    pub(crate) fn kept(&self) -> BTreeMap<Place, Event> {
        let mut kept: BTreeMap<Place, Event> = self.events.iter().cloned().collect();
        assert_eq!(kept.len(), self.events.len(), "each event came once");
        for place in &self.removed {
            kept.remove(place);
        }
        kept
    }
}

fn number(row: &Row, column: &str) -> i64 {
    row[column].parse().unwrap()
}

fn place(row: &Row) -> Place {
    (number(row, "log"), number(row, "position"))
}

/// The place of an event that a change stores. The row that closes a log is none.
fn event_place(change: &Change) -> Option<Place> {
    let is_stored = change.table == "gesta.events" && change.kind == Kind::Insert;
    let place = is_stored.then(|| place(&change.row));
    place.filter(|(_, position)| *position != CLOSED)
}
