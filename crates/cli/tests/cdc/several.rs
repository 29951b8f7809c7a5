//! A store in two databases, each with a publication and a slot of its own, and a log that moves between them.

use std::collections::BTreeMap;

use gesta_core::{StreamId, log_of};

use crate::consumer::{CLOSED, Consumer, Event, Place};
use crate::source::{Source, World, decoding};
use crate::support::succeed;

const LOGS: u16 = 2;

/// Two servers, of which each has one of the two logs at first.
struct Two {
    worlds: [World; 2],
    /// How often the consumer has run.
    runs: usize,
}

impl Two {
    /// `None`, said aloud, where PostgreSQL is not installed.
    fn captured() -> Option<Self> {
        let two = Self {
            worlds: [World::start(decoding())?, World::start(decoding())?],
            runs: 0,
        };
        let [first, second] = two.urls();
        succeed(&[
            "schema", "create", "--logs", "2", "--on", &first, "--on", &second,
        ]);
        for source in two.sources() {
            source.publish();
            source.make_slot();
        }
        Some(two)
    }

    fn sources(&self) -> [Source<'_>; 2] {
        self.worlds.each_ref().map(World::source)
    }

    fn urls(&self) -> [String; 2] {
        self.sources().map(Source::url)
    }

    /// Runs a command on the store.
    fn gesta(&self, arguments: &[&str]) {
        let [first, second] = self.urls();
        let store = ["--store", &first, "--store", &second];
        succeed(&[arguments, &store].concat());
    }

    fn append(&self, stream: &str, data: &str) {
        let append = ["stream", "append", stream, "--type", "happened"];
        self.gesta(&[&append[..], &["--data", data]].concat());
    }

    fn move_first_log(&self, to: usize) {
        self.gesta(&["cluster", "move-log", "0", "--to", &self.urls()[to]]);
    }

    /// Lets a consumer take what is new in one database.
    fn take(&mut self, database: usize, consumer: &mut Consumer) {
        self.runs += 1;
        let name = format!("changes.{}", self.runs);
        consumer.take_run(&self.sources()[database].receive(&name));
    }

    /// What the store holds if its logs lie in these databases.
    fn stored(&self, homes: [usize; 2]) -> BTreeMap<Place, Event> {
        let mut stored = BTreeMap::new();
        for (log, home) in (0..).zip(homes) {
            let rows = self.sources()[home].stored().into_iter();
            stored.extend(rows.filter(|((of, position), _)| *of == log && *position != CLOSED));
        }
        stored
    }
}

/// A stream of this log.
fn stream_of(log: u16) -> String {
    let mut names = (0..).map(|number| format!("cart-{number}"));
    let lies_there = |name: &String| log_of(&StreamId::new(name.as_str()).unwrap(), LOGS).0 == log;
    names.find(lies_there).unwrap()
}

/// Goal: each slot shows the logs of its own database. A log that moves comes once more in its new one, and if it comes
/// back, so do the rows that its old copy lacks, while what was scavenged meanwhile is removed from that copy. With the
/// rules of the page every event and every removal counts once.
#[test]
fn a_log_that_moves_comes_once_more_in_its_new_database() {
    let Some(mut two) = Two::captured() else {
        return;
    };
    let [moving, staying] = [stream_of(0), stream_of(1)];
    for (stream, data) in [(&moving, "1"), (&staying, "2"), (&moving, "3")] {
        two.append(stream, data);
    }
    let mut consumer = Consumer::default();
    for database in 0..2 {
        two.take(database, &mut consumer);
        let last = consumer.events.last();
        let (place, _) = last.expect("an event of each log");
        assert_eq!(place.0, i64::try_from(database).unwrap(), "its own log");
    }
    assert_eq!(consumer.kept(), two.stored([0, 1]));
    assert_eq!((consumer.events.len(), consumer.repeated), (3, 0));

    two.move_first_log(1);
    two.append(&moving, "4");
    two.append(&staying, "5");
    two.take(0, &mut consumer);
    assert_eq!(consumer.events.len(), 3, "the old database is silent");
    assert_eq!(consumer.closed, [0], "but for the row that closes the log");
    two.take(1, &mut consumer);
    assert_eq!(consumer.repeated, 2, "all of the log came again");
    assert_eq!(consumer.opened, [0]);
    assert_eq!(consumer.kept(), two.stored([1, 1]));

    two.gesta(&["stream", "delete", &moving, "--yes"]);
    two.gesta(&["scavenge", "--yes"]);
    two.append(&moving, "6");
    two.move_first_log(0);
    two.append(&moving, "7");
    assert!(consumer.removed.is_empty());
    two.take(0, &mut consumer);
    assert_eq!(consumer.repeated, 2, "what it has does not come again");
    let removed: Vec<Place> = vec![(0, 1), (0, 2)];
    assert_eq!(consumer.removed, removed, "scavenged meanwhile");
    // What came and was scavenged in the other database alone is removed there alone.
    two.take(1, &mut consumer);
    assert_eq!(consumer.kept(), two.stored([0, 1]));
    assert_eq!(consumer.opened, [0, 0]);
}
