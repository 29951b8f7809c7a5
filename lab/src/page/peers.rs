//! `compare-peers`: other systems behind the same workload, with every losing number.
//!
//! A peer that broke its word has no figures; one whose acknowledgement means something else is shown and not ranked,
//! and neither is a floor: the bare database without what a store has to do.

use super::chart::{Axis, LineChart, Point, Role, Scale, Series};
use super::html::Html;
use super::lines::{Line, Lines};
use super::look::Look;
use super::numbers::{Unit, count, list, millis, percent, several, times};
use super::section::{
    Section, bullets, distinct, is_ours, newest_first, paragraph, phase_tip, runs, short_engine,
    side_by_side,
};
use super::table::{Cell, Emphasis, Table, details, figure, words};

pub(super) fn section(lines: &Lines) -> Option<Section> {
    let all = newest_first(lines.of("compare-peers"));
    let newest = all.first()?;
    Some(Section {
        lead: None,
        id: "peers",
        title: "Beside other systems",
        finding: Contest::of(newest).finding(),
        is_result: newest.is_valid(),
        body: runs(&all, |line| Contest::of(line).draw()),
    })
}

/// How many append how much.
#[derive(Clone, Copy, PartialEq)]
struct Load {
    workers: f64,
    events: f64,
}

impl Load {
    fn of(cell: Look<'_>) -> Self {
        Self {
            workers: cell.number_or_0("workers"),
            events: cell.number_or_0("events"),
        }
    }

    fn told(self) -> String {
        let events = several(self.events, "event");
        format!("{}\u{a0}×\u{a0}{events}", count(self.workers))
    }
}

/// A system, or one way of using it.
#[derive(Clone, Copy)]
struct Peer<'a> {
    look: Look<'a>,
    title: &'a str,
    is_ours: bool,
    role: Role,
}

impl<'a> Peer<'a> {
    fn is_sound(&self) -> bool {
        self.look.get("valid").flag() != Some(false)
    }

    /// True if its figures stand against others'.
    fn is_ranked(&self) -> bool {
        self.is_sound()
            && self.look.get("comparable").flag() != Some(false)
            && !self.title.starts_with("(floor)")
    }

    fn cells(&self) -> impl Iterator<Item = Look<'a>> + use<'a> {
        self.look.get("cells").items()
    }

    /// What it did under this load; none if it broke its word.
    fn phase(&self, load: Load) -> Option<Look<'a>> {
        let found = self.cells().find(|cell| Load::of(*cell) == load);
        found
            .filter(|_| self.is_sound())
            .map(|cell| cell.get("phase"))
    }

    fn rate(&self, load: Load) -> Option<f64> {
        self.phase(load)?.get("events_per_second").number()
    }
}

struct Contest<'a> {
    line: &'a Line,
    peers: Vec<Peer<'a>>,
    loads: Vec<Load>,
}

impl<'a> Contest<'a> {
    fn of(line: &'a Line) -> Self {
        let looks = line.result().get("peers").items();
        let (mut ours, mut others) = (0, 0);
        let peers: Vec<Peer<'a>> = looks
            .map(|look| {
                let name = look.get("name").text().unwrap_or("unnamed");
                // The first of Gesta's ways has Gesta's look.
                let is_ours = is_ours(name);
                ours += usize::from(is_ours);
                let role = if is_ours && ours == 1 {
                    Role::Ours
                } else {
                    others += 1;
                    Role::Other(others - 1)
                };
                Peer {
                    look,
                    title: look.get("title").text().unwrap_or(name),
                    is_ours,
                    role,
                }
            })
            .collect();
        let cells: Vec<Look<'_>> = peers.iter().flat_map(Peer::cells).collect();
        let mut loads = Vec::new();
        for events in distinct(cells.iter().map(|cell| cell.number_or_0("events"))) {
            for workers in distinct(cells.iter().map(|cell| cell.number_or_0("workers"))) {
                let load = Load { workers, events };
                if cells.iter().any(|cell| Load::of(*cell) == load) {
                    loads.push(load);
                }
            }
        }
        Self { line, peers, loads }
    }

    /// The best of Gesta's ways, or of the others, under a load.
    fn best(&self, load: Load, ours: bool) -> Option<(f64, &'a str)> {
        let side = self
            .peers
            .iter()
            .filter(|peer| peer.is_ours == ours && peer.is_ranked());
        let rates = side.filter_map(|peer| Some((peer.rate(load)?, peer.title)));
        rates.max_by(|a, b| a.0.total_cmp(&b.0))
    }

    fn finding(&self) -> String {
        let systems = self
            .peers
            .iter()
            .filter(|peer| peer.cells().next().is_some())
            .count();
        let (mut ahead, mut behind) = (0, Vec::new());
        for load in &self.loads {
            let (Some((own, _)), Some((other, who))) =
                (self.best(*load, true), self.best(*load, false))
            else {
                continue;
            };
            if other > own {
                let ratio = times(other / own.max(1e-9));
                behind.push(format!("{who} at {} ({ratio})", load.told()));
            } else {
                ahead += 1;
            }
        }
        match (ahead, behind.len()) {
            (0, 0) => format!("{systems} systems were measured."),
            (all, 0) => {
                format!("Of {systems} systems Gesta stored the most events at all {all} loads.")
            }
            (ahead, losses) => format!(
                "Of {systems} systems Gesta stored the most events at {ahead} of {} loads; ahead of it: {}.",
                ahead + losses,
                list(&behind)
            ),
        }
    }

    fn draw(&self) -> Html {
        let batches = distinct(self.loads.iter().map(|load| load.events));
        let charts = batches.into_iter().map(|events| self.chart(events));
        let mut all = side_by_side(charts.collect::<Vec<_>>());
        all.push(self.table());
        if let Some(noise) = self.line.result().get("noise").number() {
            all.push(paragraph(format!(
                "Gesta was measured again before each of the others, to watch the machine: it differed by ±{}.",
                percent(noise)
            )));
        }
        let notes = self.peers.iter().filter_map(|peer| {
            let note = peer
                .look
                .get("note")
                .text()
                .filter(|note| !note.is_empty())?;
            Some(format!("{}: {note}", peer.title))
        });
        all.push(details("How each is driven", bullets(notes)));
        all
    }

    fn chart(&self, events: f64) -> Html {
        let loads: Vec<Load> = self
            .loads
            .iter()
            .copied()
            .filter(|load| load.events == events)
            .collect();
        if loads.len() < 2 {
            return Html::default();
        }
        let mut told = Vec::new();
        let series = self.peers.iter().filter_map(|peer| {
            let points = loads.iter().filter_map(|load| {
                let (phase, rate) = (peer.phase(*load)?, peer.rate(*load)?);
                let workers = count(load.workers);
                told.push(format!(
                    "{} with {workers} workers: {}",
                    peer.title,
                    count(rate)
                ));
                let tip = format!("{workers} workers: {}", phase_tip(phase));
                Some(Point::new(load.workers, rate, tip))
            });
            let points: Vec<Point> = points.collect();
            let name = peer.look.get("name").text().unwrap_or(peer.title);
            (!points.is_empty()).then(|| Series::new(peer.title, peer.role, points).called(name))
        });
        let series = series.collect();
        LineChart {
            title: format!("{} per append", several(events, "event")),
            description: told.join("; "),
            x: Axis::new(
                "workers, each with an append under way",
                Scale::Log,
                Unit::Count,
            ),
            y: Axis::new("events/s", Scale::Log, Unit::Count),
            series,
            limits: Vec::new(),
            marks: Vec::new(),
            note: None,
        }
        .draw()
    }

    fn table(&self) -> Html {
        let heads: Vec<String> = self.loads.iter().map(|load| load.told()).collect();
        let mut all = vec!["system"];
        all.extend(heads.iter().map(String::as_str));
        all.extend(["version", "stores in", "durability", "not shown, because"]);
        let caption = "Events/s (p99 of an append), by workers × events per append";
        let mut table = Table::new(caption, &all);
        for peer in &self.peers {
            let mut cells = vec![words(peer.title)];
            cells.extend(self.loads.iter().map(|load| match peer.phase(*load) {
                Some(phase) => figure(format!(
                    "{} ({})",
                    count(phase.number_or_0("events_per_second")),
                    millis(phase.number_or_0("latency_ms.p99"))
                )),
                None if !peer.is_sound() => figure("no result"),
                None => Cell::Unknown,
            }));
            let durability = peer.look.text_or_empty("durability");
            let is_measured = peer.cells().next().is_some();
            cells.extend([
                words(peer.look.text_or_empty("version")),
                words(short_engine(peer.look.text_or_empty("engine"))),
                words(match peer.look.get("comparable").flag() {
                    Some(false) if is_measured => format!("{durability}: not comparable"),
                    _ => durability.to_owned(),
                }),
                words(peer.look.text_or_empty("skipped")),
            ]);
            let emphasis = match (peer.is_sound(), peer.is_ours) {
                (false, _) => Emphasis::Bad,
                (true, true) => Emphasis::Ours,
                (true, false) => Emphasis::Plain,
            };
            table.styled(emphasis, cells);
        }
        table.draw()
    }
}
