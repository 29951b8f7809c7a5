//! What a system reads back of its own journal, beside what `gesta import` makes of it.

use std::collections::{BTreeMap, BTreeSet};

use serde::Deserialize;
use serde_json::{Map, Value};
use tempfile::TempDir;

use crate::support::{succeed, url_of};

/// An event as the system reads it back: a line that its program prints.
#[derive(Clone, PartialEq, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct JournalEvent {
    /// The stream, in the system's words.
    pub(crate) key: String,
    /// The stream of the import.
    pub(crate) stream: Option<String>,
    /// The number of the event in its stream.
    pub(crate) sequence: u64,
    #[serde(rename = "type")]
    pub(crate) event_type: String,
    /// Data that are no JSON are an object with the only key `base64`.
    pub(crate) data: Value,
    /// The metadata of the event, without what the import adds.
    #[serde(default)]
    pub(crate) metadata: Map<String, Value>,
    /// In alphabetical order.
    #[serde(default)]
    pub(crate) tags: Vec<String>,
    /// The id that the system gave the event.
    pub(crate) id: Option<String>,
    /// When the system stored it, as the import writes it, or the beginning of that.
    pub(crate) time: Option<String>,
}

/// The lines that a program prints.
pub(crate) fn told_by(lines: &str) -> Vec<JournalEvent> {
    let parsed = |line| serde_json::from_str(line).unwrap_or_else(|why| panic!("{why}: {line}"));
    lines.lines().map(parsed).collect()
}

/// Reads an event that was imported as the system would have told it: with the stream, the id and the time if it told
/// these of an event like this one.
fn imported(line: &str, like: &JournalEvent) -> (u64, JournalEvent) {
    let mut event: Value = serde_json::from_str(line).unwrap();
    let mut metadata = match event["metadata"].take() {
        Value::Object(metadata) => metadata,
        other => panic!("{other} instead of metadata: {line}"),
    };
    let source = metadata.remove("$source").expect("where the event stood");
    let text = |value: &Value| value.as_str().map(str::to_owned);
    let data = match event.get("data_base64") {
        Some(bytes) => serde_json::json!({ "base64": bytes }),
        None => event["data"].take(),
    };
    let digits = like.time.as_ref().map(String::len);
    let told = JournalEvent {
        key: text(&source["key"]).unwrap(),
        stream: text(&event["stream"]).filter(|_| like.stream.is_some()),
        sequence: source["sequence"].as_u64().unwrap(),
        event_type: text(&event["type"]).unwrap(),
        data,
        metadata,
        tags: serde_json::from_value(event["tags"].take()).unwrap_or_default(),
        id: text(&event["id"]).filter(|_| like.id.is_some()),
        time: text(&source["time"]).and_then(|time| time.get(..digits?).map(str::to_owned)),
    };
    (event["revision"].as_u64().unwrap(), told)
}

/// Events by the keys of their streams.
fn by_stream(
    events: impl IntoIterator<Item = JournalEvent>,
) -> BTreeMap<String, Vec<JournalEvent>> {
    let mut streams = BTreeMap::<String, Vec<JournalEvent>>::new();
    for event in events {
        streams.entry(event.key.clone()).or_default().push(event);
    }
    streams
}

/// An import of one journal into a store of its own.
pub(crate) struct Import {
    pub(crate) source: Vec<String>,
    pub(crate) home: TempDir,
    /// How many rows of the source are left out, by the reason.
    pub(crate) left_out: Vec<(&'static str, u64)>,
    /// Events that the source has deleted without a trace.
    pub(crate) missing: u64,
    /// Streams whose beginning the source has deleted.
    pub(crate) without_beginning: u64,
    /// Streams whose events the source has all deleted, which it still names.
    pub(crate) emptied: u64,
    pub(crate) snapshots: Option<u64>,
    /// Whether the source can say before how much there is.
    pub(crate) is_counted: bool,
}

impl Import {
    pub(crate) fn of(kind: &str, source: &str) -> Self {
        Self {
            source: ["import", source, "--kind", kind].map(str::to_owned).into(),
            home: tempfile::tempdir().unwrap(),
            left_out: Vec::new(),
            missing: 0,
            without_beginning: 0,
            emptied: 0,
            snapshots: None,
            is_counted: true,
        }
    }

    pub(crate) fn store(&self) -> String {
        url_of(&self.home.path().join("gesta.db"))
    }

    /// Runs the command, and returns its report.
    fn report(&self, more: &[&str]) -> Value {
        let mut arguments: Vec<&str> = self.source.iter().map(String::as_str).collect();
        let store = self.store();
        arguments.extend(["--store", &store, "--output", "json"]);
        arguments.extend(more);
        serde_json::from_str(&succeed(&arguments)).unwrap()
    }

    /// Goal: the import brings these events and no others, each stream in its order; its dry run said so before, and
    /// repeating it brings nothing.
    pub(crate) fn brings(&self, told: &[JournalEvent]) {
        assert!(!told.is_empty());
        let dry = self.report(&["--dry-run"]);
        let is_there = self.home.path().join("gesta.db").exists();
        assert!(!is_there, "a dry run makes no store");
        let report = self.report(&[]);
        for report in [&dry, &report] {
            self.check(report, told);
        }
        let all = self.read_all();
        assert_eq!(all.len(), told.len());
        compare(&all, told);

        let again = self.report(&[]);
        assert_eq!(again["stored"], 0, "{again}");
        // A second import of another name begins without a place, and finds everything by its id.
        let anew = self.report(&["--name", "once-more"]);
        assert_eq!(anew["stored"], 0, "{anew}");
        // What the target shows no more cannot be compared.
        let closed = &anew["left_out"]["events of streams that are closed in the target"];
        let found = anew["already_stored"].as_u64().unwrap() + closed.as_u64().unwrap_or(0);
        assert!(found >= told.len() as u64, "{anew}");
        assert_eq!(self.read_all(), all);
    }

    /// Goal: what the source has now is imported, then all the rest that these events are.
    pub(crate) fn goes_on(&self, told: &[JournalEvent], comes: impl FnOnce()) {
        let stored = |report: Value| report["stored"].as_u64().unwrap();
        let before = stored(self.report(&[]));
        comes();
        let rest = stored(self.report(&[]));
        assert!(before > 0 && rest > 0, "{before} and {rest}");
        assert_eq!(before + rest, told.len() as u64);
        compare(&self.read_all(), told);
    }

    /// All imported events, in the order of the store.
    fn read_all(&self) -> Vec<String> {
        let lines = succeed(&["all", "read", "--store", &self.store(), "--output", "json"]);
        let is_event = |line: &&str| {
            let event: Value = serde_json::from_str(line).unwrap();
            !event["stream"].as_str().unwrap().starts_with('$')
        };
        lines.lines().filter(is_event).map(str::to_owned).collect()
    }

    /// The numbers of a report are those of what the system told.
    fn check(&self, report: &Value, told: &[JournalEvent]) {
        let keys: BTreeSet<&str> = told.iter().map(|told| told.key.as_str()).collect();
        let tags: usize = told.iter().map(|told| told.tags.len()).sum();
        let left_out: u64 = self.left_out.iter().map(|(_, count)| count).sum();
        let rows = told.len() as u64 + left_out;
        for (field, expected) in [
            ("stored", told.len() as u64),
            ("streams", keys.len() as u64 + self.emptied),
            ("tags", tags as u64),
            ("unmappable", 0),
            ("late", 0),
            ("missing_numbers", self.missing),
            ("streams_without_beginning", self.without_beginning),
        ] {
            assert_eq!(report[field], expected, "{field} of {report}");
        }
        // What was taken before its turn is read again where it stands.
        let read = report["read"].as_u64().unwrap() - report["already_stored"].as_u64().unwrap();
        assert_eq!(read, rows, "{report}");
        let in_source = self.is_counted.then_some(rows);
        assert_eq!(report["in_source"].as_u64(), in_source, "{report}");
        let reasons = serde_json::json!(self.left_out.iter().copied().collect::<BTreeMap<_, _>>());
        assert_eq!(report["left_out"], reasons, "{report}");
        assert_eq!(report["snapshots"].as_u64(), self.snapshots, "{report}");
        let mut times: Vec<&String> = told.iter().filter_map(|told| told.time.as_ref()).collect();
        times.sort_unstable();
        if let (Some(first), Some(last)) = (times.first(), times.last()) {
            for (field, time) in [("first_time", first), ("last_time", last)] {
                let found = report[field].as_str().unwrap();
                assert!(
                    found.starts_with(time.as_str()),
                    "{field} of {report}: {time}"
                );
            }
        }
    }
}

/// Goal: each stream has its events, in the order in which the system told them, with everything that it told.
fn compare(all: &[String], told: &[JournalEvent]) {
    let events: Vec<_> = all.iter().map(|line| imported(line, &told[0])).collect();
    let mut next = BTreeMap::<&str, u64>::new();
    for (revision, event) in &events {
        let next = next.entry(&event.key).or_default();
        assert_eq!(revision, next, "{event:?}");
        *next += 1;
    }
    let found = by_stream(events.iter().map(|(_, event)| event.clone()));
    let expected = by_stream(told.iter().cloned());
    assert!(found.keys().eq(expected.keys()), "{:?}", found.keys());
    for (found, expected) in found.values().flatten().zip(expected.values().flatten()) {
        assert_eq!(found, expected);
    }
}
