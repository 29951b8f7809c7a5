//! The result of each peer, and what the report says of all: a finding, charts, one table, every figure.

use gesta_report::cells;
use gesta_report::read_back::ReadBack;
use gesta_report::{Cell, Chart, Report, Scale, Table, Unit, Whose};
use gesta_load::target::Phase;

use crate::peer::{About, Measured};
use crate::workload::Cell;

/// What replaces the figures of a peer that broke its word.
const NO_RESULT: &str = "NO RESULT";

/// One cell of a peer.
#[derive(Debug, Clone)]
pub(crate) struct CellResult {
    pub(crate) workers: u32,
    pub(crate) events: u64,
    pub(crate) phase: Phase,
    pub(crate) read_back: ReadBack,
}

/// A peer.
#[derive(Debug, Clone)]
pub(crate) struct PeerResult {
    pub(crate) name: &'static str,
    pub(crate) title: &'static str,
    pub(crate) about: About,
    pub(crate) cells: Vec<CellResult>,
    /// Why it was not measured, or not to the end.
    pub(crate) skipped: Option<String>,
    /// False if something that it had acknowledged was missing or wrong.
    pub(crate) valid: bool,
    /// False if its acknowledgements mean something else than Gesta's.
    pub(crate) comparable: bool,
}

impl PeerResult {
    pub(crate) fn new(name: &'static str, title: &'static str) -> Self {
        Self {
            name,
            title,
            about: About::default(),
            cells: Vec::new(),
            skipped: None,
            valid: true,
            comparable: true,
        }
    }

    pub(crate) fn add(&mut self, cell: Cell, measured: Measured) {
        self.valid &= measured.read_back.is_clean();
        self.cells.push(CellResult {
            workers: cell.workers,
            events: cell.events,
            phase: measured.phase,
            read_back: measured.read_back,
        });
    }

    /// True if it has figures that count.
    pub(crate) fn is_result(&self) -> bool {
        self.valid && !self.cells.is_empty()
    }

    /// What a reader must know, in sentences.
    pub(crate) fn problems(&self) -> Vec<String> {
        let mut problems = Vec::new();
        let mut tell = |what: String| problems.push(format!("{}: {what}", self.name));
        if let Some(why) = &self.skipped {
            tell(format!(
                "not measured{}: {why}",
                if self.cells.is_empty() {
                    ""
                } else {
                    " to the end"
                }
            ));
        }
        if !self.comparable {
            let About {
                durability,
                durability_detail,
                ..
            } = &self.about;
            tell(format!(
                "not comparable: durability is {durability} ({durability_detail})"
            ));
        }
        for cell in &self.cells {
            let at = head(cell.workers, cell.events);
            if let Some(complaint) = cell.read_back.complaint() {
                tell(format!("{NO_RESULT}: {at}: {complaint}"));
            }
            if let Some(limit) = &cell.phase.generator_limit {
                tell(format!("{at}: {limit}: the figure is the generator's"));
            }
            if !cell.phase.errors.is_empty() {
                tell(format!("{at}: failed: {}", counted(&cell.phase.errors)));
            }
            if !cell.phase.retries.is_empty() {
                tell(format!(
                    "{at}: tried again: {}",
                    counted(&cell.phase.retries)
                ));
            }
            if !cell.phase.complete {
                tell(format!(
                    "{at}: interrupted after {:.1} s",
                    cell.phase.seconds
                ));
            }
        }
        problems
    }

    fn whose(&self) -> Whose {
        if self.valid {
            Whose::named(self.name)
        } else {
            Whose::Bad
        }
    }

    /// True if its figures stand against others': those of the bare database do not, since it is no event store.
    fn is_ranked(&self) -> bool {
        self.is_result() && self.comparable && self.name != FLOOR
    }

    /// What it did under this load; none if it broke its word.
    fn phase(&self, cell: Cell) -> Option<&Phase> {
        let is_it =
            |found: &&CellResult| (found.workers, found.events) == (cell.workers, cell.events);
        self.cells
            .iter()
            .filter(|_| self.valid)
            .find(is_it)
            .map(|found| &found.phase)
    }
}

/// What is no event store.
const FLOOR: &str = "pgbench";
const SYSTEMS: &str = "Events/s, by workers × events per append";
const FIGURES: &str = "Every figure";

/// What these peers did under these loads.
pub(crate) fn tell(report: &mut Report, cells: &[Cell], peers: &[PeerResult]) {
    report.finding = finding(cells, peers);
    let mut batches: Vec<u64> = cells.iter().map(|cell| cell.events).collect();
    batches.sort_unstable();
    for batch in batches
        .chunk_by(|a, b| a == b)
        .filter(|batch| batch.len() > 1)
    {
        let events = batch[0];
        let title = format!(
            "{events} event{} per append",
            if events == 1 { "" } else { "s" }
        );
        let chart = Chart::lines(
            title,
            FIGURES,
            ("workers", Scale::Log),
            (&["events/s"], Scale::Log),
        );
        report.chart(chart.by("system").only("events per append", events));
    }
    report.table(systems(cells, peers));
    report.table(figures(peers));
    let columns =
        ["system", "by these settings", "how it is driven"].map(|name| (name, Unit::Words));
    let mut driven = Table::new("How each is driven", columns).folded();
    for peer in peers.iter().filter(|peer| !peer.about.note.is_empty()) {
        driven.row_of(
            peer.whose(),
            cells![peer.title, &peer.about.durability_detail, &peer.about.note],
        );
    }
    report.table(driven);
}

fn finding(cells: &[Cell], peers: &[PeerResult]) -> String {
    let measured = peers.iter().filter(|peer| !peer.cells.is_empty()).count();
    let best = |cell: Cell, ours: bool| {
        let side = peers
            .iter()
            .filter(|peer| peer.is_ranked() && (peer.whose() == Whose::Ours) == ours);
        let rates = side.filter_map(|peer| Some((peer.phase(cell)?.events_per_second, peer.title)));
        rates.max_by(|a, b| a.0.total_cmp(&b.0))
    };
    let (mut ahead, mut losses) = (0, Vec::new());
    for cell in cells {
        let (Some((own, _)), Some((other, who))) = (best(*cell, true), best(*cell, false)) else {
            continue;
        };
        if other > own {
            let ratio = other / own.max(1e-9);
            losses.push(format!(
                "{who} with {} ({ratio:.2} times)",
                head(cell.workers, cell.events)
            ));
        } else {
            ahead += 1;
        }
    }
    match (ahead, losses.len()) {
        (0, 0) => format!("{measured} systems were measured."),
        (all, 0) => {
            format!("Of {measured} systems Gesta stored the most events at all {all} loads.")
        }
        (ahead, lost) => format!(
            "Of {measured} systems Gesta stored the most events at {ahead} of {} loads; ahead of it: {}.",
            ahead + lost,
            losses.join(", ")
        ),
    }
}

/// A row for each peer, a column for each load.
fn systems(cells: &[Cell], peers: &[PeerResult]) -> Table {
    let loads: Vec<String> = cells
        .iter()
        .map(|cell| head(cell.workers, cell.events))
        .collect();
    let mut columns = vec![("system".to_owned(), Unit::Words)];
    columns.extend(loads.iter().map(|load| (load.clone(), Unit::Count)));
    let about = ["version", "stores in", "durability", "not shown, because"];
    columns.extend(about.map(|name| (name.to_owned(), Unit::Words)));
    let mut table = Table::new(SYSTEMS, columns);
    for peer in peers {
        let rate = |cell: &Cell| match peer.phase(*cell) {
            Some(phase) => phase.events_per_second.into(),
            None if !peer.valid => Cell::from(NO_RESULT),
            None => Cell::Unknown,
        };
        let durability = match (peer.about.durability.as_str(), peer.comparable) {
            (durability, true) => durability.to_owned(),
            (durability, false) => format!("{durability}: not comparable"),
        };
        let mut row = cells![peer.title];
        row.extend(cells.iter().map(rate));
        row.extend(cells![
            &peer.about.version,
            &peer.about.engine,
            durability,
            peer.skipped.as_ref()
        ]);
        table.row_of(peer.whose(), row);
    }
    table
}

fn figures(peers: &[PeerResult]) -> Table {
    let columns = [
        ("system", Unit::Words),
        ("workers", Unit::Count),
        ("events per append", Unit::Count),
    ];
    let mut table = Table::new(FIGURES, columns.into_iter().chain(Phase::COLUMNS)).folded();
    for peer in peers.iter().filter(|peer| peer.valid) {
        for cell in &peer.cells {
            let place = cells![peer.title, cell.workers, cell.events];
            table.row_of(peer.whose(), [place, cell.phase.cells()].concat());
        }
    }
    table
}

fn head(workers: u32, events: u64) -> String {
    let workers = format!("{workers} worker{}", if workers == 1 { "" } else { "s" });
    if events == 1 {
        workers
    } else {
        format!("{workers} × {events}")
    }
}

fn counted(causes: &std::collections::BTreeMap<String, u64>) -> String {
    let causes: Vec<String> = causes
        .iter()
        .map(|(cause, count)| format!("{count} × {cause}"))
        .collect();
    causes.join(", ")
}

/// A number with commas between thousands.
pub(crate) fn grouped(value: f64) -> String {
    let digits = format!("{:.0}", value.max(0.0));
    let mut text = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index) % 3 == 0 {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn measured(events_per_second: f64, lost: u64) -> Measured {
        let mut measured = Measured::default();
        measured.phase.events_per_second = events_per_second;
        measured.phase.latency_ms.p50 = 1.234;
        measured.phase.latency_ms.p99 = 12.6;
        measured.phase.complete = true;
        measured.read_back.acknowledged = 10;
        measured.read_back.lost = lost;
        measured
    }

    fn peer(name: &'static str, lost: u64) -> PeerResult {
        let mut peer = PeerResult::new(name, name);
        peer.about.durability = "full".into();
        peer.about.version = "1.0".into();
        peer.add(Cell::new(1, 1), measured(1_234.0, 0));
        peer.add(Cell::new(16, 100), measured(56_789.0, lost));
        peer
    }

    #[test]
    fn one_row_per_peer_and_no_figures_of_one_that_lost_events() {
        let cells = [Cell::new(1, 1), Cell::new(16, 100)];
        let mut absent = PeerResult::new("absent", "absent");
        absent.skipped = Some("not installed".into());
        let mut weak = peer("weak", 0);
        weak.comparable = false;
        weak.about.durability = "weakened".into();
        let peers = [peer("good", 0), peer("bad", 3), absent, weak];
        let mut report = Report::begin("compare-peers", "Peers", 1);
        tell(&mut report, &cells, &peers);
        let text = report.to_string();
        let row = |title: &str| {
            let mut rows = text.lines().filter(|line| line.starts_with(title));
            rows.next()
                .unwrap_or_else(|| panic!("no {title} in {text}"))
                .to_owned()
        };
        let heads = row("system");
        assert!(
            heads.contains("1 worker ") && heads.contains("16 workers × 100"),
            "{text}"
        );
        let good = row("good");
        assert!(good.contains("1,234") && good.contains("56,789"), "{text}");
        let bad = row("bad");
        assert!(
            bad.matches(NO_RESULT).count() == 2 && !bad.contains("1,234"),
            "{text}"
        );
        assert!(row("absent").contains("not installed"), "{text}");
        assert!(row("weak").contains("weakened: not comparable"), "{text}");
        let every = report
            .tables()
            .find(|table| table.title == FIGURES)
            .unwrap();
        assert!(every.rows.iter().all(|row| row.cells[0] != "bad".into()));
        assert!(peers[0].is_result() && peers[0].problems().is_empty());
        assert!(!peers[1].is_result() && peers[1].problems()[0].contains("3 lost"));
        assert!(!peers[2].is_result() && peers[2].problems()[0].contains("not installed"));
        assert!(peers[3].problems()[0].contains("not comparable"));
    }

    #[test]
    fn limits_errors_and_interruptions_are_told() {
        let mut peer = PeerResult::new("p", "p");
        let mut cell = measured(5.0, 0);
        cell.phase.generator_limit = Some("the generator used 1.9 of 2 cores".into());
        cell.phase.errors.insert("boom".into(), 2);
        cell.phase.complete = false;
        peer.add(Cell::new(1, 1), cell);
        let told = peer.problems().join("\n");
        assert!(
            told.contains("generator's")
                && told.contains("2 × boom")
                && told.contains("interrupted"),
            "{told}"
        );
    }

    /// Goal: every losing number is in the finding; what is not comparable, broke its word, or is no store is not
    /// ranked.
    #[test]
    fn the_finding_names_who_is_ahead() {
        let with = |name: &'static str, few: f64, many: f64, lost: u64| {
            let mut peer = PeerResult::new(name, name);
            peer.add(Cell::new(1, 1), measured(few, lost));
            peer.add(Cell::new(16, 100), measured(many, 0));
            peer
        };
        let cells = [Cell::new(1, 1), Cell::new(16, 100)];
        let mut weak = with("weak", 9e9, 9e9, 0);
        weak.comparable = false;
        let floor = with(FLOOR, 9e9, 9e9, 0);
        let mut peers = vec![
            with("gesta", 1_000.0, 5_000.0, 0),
            weak,
            floor,
            with("bad", 9e9, 9e9, 3),
        ];
        assert_eq!(finding(&cells, &peers), "4 systems were measured.");
        peers.push(with("other", 900.0, 4_000.0, 0));
        assert_eq!(
            finding(&cells, &peers),
            "Of 5 systems Gesta stored the most events at all 2 loads."
        );
        peers.push(with("quick", 1_160.0, 4_000.0, 0));
        assert_eq!(
            finding(&cells, &peers),
            "Of 6 systems Gesta stored the most events at 1 of 2 loads; ahead of it: quick with 1 worker (1.16 times)."
        );
    }
}
