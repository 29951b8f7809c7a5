//! The trace of commands that nodes leave in their logs (`gesta_core::way_point`), put together: which leg of the way
//! takes how long.
//!
//! All points of a show are in one order, since the clock is that of the machine and a user has one request under way.
//! The line of a point is written before the command goes on, so each leg has some microseconds of its own trace.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::time::Duration;

use gesta_core::WAY_POINTS;

use gesta_report::cells;
use gesta_report::failure::Result;
use gesta_report::histogram::{Latencies, Percentiles};
use gesta_report::{Table, Unit};

/// The legs of a way that is complete, by the points at which they end, and what happens on them.
const LEGS: [(&str, &str); 8] = [
    ("forwarded", "edge: queue of the shard, encoding"),
    ("carried", "link: queue, write, way, read, decoding"),
    ("taken up", "owner: queue of the shard (and loading)"),
    ("decided", "decide, encoding the events"),
    ("sent", "queue of the pipeline, forming the batch"),
    (
        "committed",
        "statement and commit: to the database and back",
    ),
    ("stored", "the answer reaches the shard"),
    ("returned", "link back: encoding, queue, write, way, read"),
];
/// The first point.
const ASKED: &str = "asked";

/// What a point says.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Point {
    at: u64,
    name: String,
}

/// The ways of all commands.
#[derive(Debug, Default)]
pub(super) struct Trace {
    legs: BTreeMap<String, Latencies>,
    whole: Latencies,
}

impl Trace {
    /// Reads what the logs say of the time since `begun`: the ways through another node, or those without. The others,
    /// of requests that met a log on its way to another owner, are left out.
    pub(super) fn read<'a>(
        logs: impl Iterator<Item = &'a Path>,
        begun: Duration,
        forwarded: bool,
    ) -> Result<Self> {
        let mut streams: BTreeMap<String, Vec<Point>> = BTreeMap::new();
        for log in logs {
            for line in BufReader::new(File::open(log)?).lines() {
                let Some((stream, point)) = point(&line?) else {
                    continue;
                };
                if u128::from(point.at) >= begun.as_nanos() {
                    streams.entry(stream).or_default().push(point);
                }
            }
        }
        let mut trace = Self::default();
        for mut points in streams.into_values() {
            points.sort();
            let ways = points.chunk_by(|_, next| next.name != ASKED);
            ways.for_each(|way| trace.add(way, forwarded));
        }
        Ok(trace)
    }

    /// Adds a way, if it is one from the question to the answer, and forwarded or not as wanted. What follows the
    /// answer is of a read, which has no question of its own here.
    fn add(&mut self, way: &[Point], forwarded: bool) {
        let [first, second, ..] = way else {
            return;
        };
        let is_forwarded = second.name == "forwarded";
        let answer = match is_forwarded {
            true => "returned",
            false => "stored",
        };
        let Some(last) = way.iter().position(|point| point.name == answer) else {
            return;
        };
        if first.name != ASKED || is_forwarded != forwarded {
            return;
        }
        let way = &way[..=last];
        for leg in way.windows(2) {
            let took = Duration::from_nanos(leg[1].at - leg[0].at);
            let legs = self.legs.entry(leg[1].name.clone()).or_default();
            legs.record(took);
        }
        let whole = way[last].at - first.at;
        self.whole.record(Duration::from_nanos(whole));
    }

    /// Ways that are complete.
    pub(super) fn requests(&self) -> u64 {
        self.whole.percentiles().count
    }

    /// The median of the whole way in microseconds.
    pub(super) fn whole(&self) -> f64 {
        self.whole.percentiles().p50 * 1_000.0
    }

    /// A row for each leg, in the order of the way.
    pub(super) fn table(&self, title: &str) -> Table {
        let columns = [
            ("leg", Unit::Words),
            ("ends with", Unit::Words),
            ("times", Unit::Count),
            ("µs, p50", Unit::Count),
            ("µs, p99", Unit::Count),
        ];
        let mut table = Table::new(title, columns);
        let micros = |found: f64| (found * 1_000.0).round();
        let mut row = |what: &str, name: &str, found: &Percentiles| {
            table.row(cells![
                what,
                name,
                found.count,
                micros(found.p50),
                micros(found.p99)
            ]);
        };
        for (name, what) in LEGS {
            if let Some(leg) = self.legs.get(name) {
                row(what, name, &leg.percentiles());
            }
        }
        row(
            "the whole way within the nodes",
            "",
            &self.whole.percentiles(),
        );
        table
    }
}

/// Reads a line such as `… TRACE gesta_way: taken up at=123 stream=show-…`.
fn point(line: &str) -> Option<(String, Point)> {
    let (_, told) = line.split_once(WAY_POINTS)?;
    let told = told.strip_prefix(": ")?;
    let (name, fields) = told.split_once(" at=")?;
    let (at, stream) = fields.split_once(" stream=")?;
    let point = Point {
        at: at.parse().ok()?,
        name: name.to_owned(),
    };
    Some((stream.trim_end().to_owned(), point))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The log of a node: the points of one show, in microseconds.
    fn log(points: &[(&str, u64)]) -> tempfile::NamedTempFile {
        let lines = points.iter().map(|(name, micros)| {
            let at = micros * 1_000;
            format!("2026-01-01T00:00:00Z TRACE {WAY_POINTS}: {name} at={at} stream=show-1\n")
        });
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), lines.collect::<String>() + "another line\n").unwrap();
        file
    }

    /// Goal: the page about nodes names the legs that are told, in their order.
    #[test]
    fn the_page_about_nodes_has_the_legs() {
        let page = include_str!("../../../docs/internals/nodes.md");
        let (_, table) = page.split_once("| leg | ends with |").unwrap();
        let rows = table
            .lines()
            .skip(2)
            .take_while(|line| line.starts_with('|'));
        let ends: Vec<&str> = rows
            .map(|row| row.split('|').nth(2).unwrap().trim().trim_matches('`'))
            .collect();
        assert_eq!(ends, LEGS.map(|(name, _)| name));
    }

    #[test]
    fn a_hop_is_put_together_from_the_logs_of_two_nodes() {
        let edge = log(&[
            ("returned", 9),
            ("asked", 10),
            ("forwarded", 12),
            ("returned", 1_300),
            // A read.
            ("forwarded", 1_400),
            ("returned", 1_500),
            ("asked", 2_000),
            ("forwarded", 2_010),
        ]);
        let owner = log(&[
            ("carried", 100),
            ("taken up", 110),
            ("decided", 120),
            ("sent", 150),
            ("committed", 1_150),
            ("stored", 1_160),
        ]);
        let logs = || [edge.path(), owner.path()].into_iter();
        let direct = Trace::read(logs(), Duration::ZERO, false).unwrap();
        assert_eq!(direct.requests(), 0, "it was forwarded");
        let trace = Trace::read(logs(), Duration::ZERO, true).unwrap();
        assert_eq!(trace.requests(), 1, "the other one has no answer");
        let micros = |name: &str| (trace.legs[name].percentiles().p50 * 1_000.0).round();
        let near = |found: f64, wanted: f64| (found - wanted).abs() <= wanted * 0.02;
        assert!(near(micros("carried"), 88.0), "{}", micros("carried"));
        assert!(near(micros("committed"), 1_000.0));
        assert!(near(trace.whole(), 1_290.0), "{}", trace.whole());
        assert_eq!(trace.table("t").rows.len(), LEGS.len() + 1);
        let later = Trace::read(logs(), Duration::from_micros(500), true).unwrap();
        assert_eq!(later.requests(), 0, "it began before");
    }
}
