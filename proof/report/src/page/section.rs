//! A section: all runs of one kind and setting. The newest result is shown in the open, the others are folded away.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use maud::{Markup, html};
use serde_json::Value;

use super::{chart, details};
use crate::cells;
use crate::numbers::{Unit, moment};
use crate::report::{Fact, Part, Report};
use crate::table::{Cell, Table, Whose};

/// Sections come in this order, others after them as they come.
const ORDER: [&str; 9] = [
    "quick",
    "compare-peers",
    "schemas",
    "latency",
    "tags",
    "recovery",
    "steady",
    "reservation",
    "locking",
];
/// Words longer than this want a wide column.
const LONG: usize = 22;

/// Runs of one kind and setting, the newest result first.
pub(super) struct Section<'a> {
    pub(super) id: String,
    runs: Vec<&'a Report>,
}

/// The run in a few words.
pub(super) fn name(report: &Report) -> String {
    match report.started.as_str() {
        "" => format!("{} of unknown time", report.kind),
        started => format!("{} of {} UTC", report.kind, moment(started)),
    }
}

impl<'a> Section<'a> {
    /// The sections of these runs.
    pub(super) fn all(reports: &'a [Report]) -> Vec<Self> {
        let mut groups: Vec<Vec<&Report>> = Vec::new();
        for report in reports {
            let key = |report: &'a Report| (&report.kind, &report.title, &report.setting);
            match groups.iter_mut().find(|group| key(group[0]) == key(report)) {
                Some(group) => group.push(report),
                None => groups.push(vec![report]),
            }
        }
        for group in &mut groups {
            group.sort_by_key(|report| Reverse((report.is_valid(), report.started.clone())));
        }
        let place = |kind: &str| ORDER.iter().position(|known| *known == kind);
        groups.sort_by_key(|group| place(&group[0].kind).unwrap_or(ORDER.len()));
        let sections = groups.into_iter().enumerate().map(|(number, runs)| {
            let letters = runs[0].kind.chars();
            let id = letters.map(|c| if c.is_ascii_alphanumeric() { c } else { '-' });
            let id = format!("{}-{number}", String::from_iter(id));
            Self { id, runs }
        });
        sections.collect()
    }

    /// The newest result, or the newest run if there is none.
    pub(super) fn newest(&self) -> &'a Report {
        self.runs[0]
    }

    /// The other runs.
    pub(super) fn older(&self) -> &[&'a Report] {
        &self.runs[1..]
    }

    pub(super) fn title(&self) -> &str {
        match self.runs[0].title.as_str() {
            "" => &self.runs[0].kind,
            title => title,
        }
    }

    /// What was found; nothing of what is no result.
    pub(super) fn finding(&self) -> Option<&str> {
        let newest = Some(self.runs[0]).filter(|report| report.is_valid());
        newest.map(|report| report.finding.as_str())
    }

    /// The markup.
    pub(super) fn draw(&self) -> Markup {
        let newest = self.runs[0];
        html! {
            section id=(self.id) {
                h2 { (self.title()) }
                (finding(newest))
                @if !newest.setting.is_empty() { p.setting { (newest.setting) } }
                (body(newest))
                @for older in self.older() {
                    @let what = format!("{}{}", name(older), if older.is_valid() { "" } else { ", which is no result" });
                    (details(&what, &html! { (finding(older)) (body(older)) }))
                }
            }
        }
    }
}

fn finding(report: &Report) -> Markup {
    let text = match report.finding.as_str() {
        "" => "The run does not say what it found.",
        finding => finding,
    };
    html! { p.finding { @if !report.is_valid() { strong.no-result { "No result" } " " } (text) } }
}

fn body(report: &Report) -> Markup {
    let is_chart = |part: &Part| matches!(part, Part::Chart(_));
    html! {
        // Charts that follow each other stand side by side where there is room.
        @for parts in report.parts.chunk_by(|a, b| is_chart(a) && is_chart(b)) {
            @match &parts[0] {
                Part::Chart(_) => div.charts { @for part in parts {
                    @if let Part::Chart(chart) = part { (chart::draw(chart, report)) }
                } },
                Part::Text(text) => p { (text) },
                Part::Facts(facts) => (cards(facts)),
                Part::Table(one) if one.folded => (details(&one.title, &table(one))),
                Part::Table(one) => (table(one)),
            }
        }
        (details("What was read back", &table(&checks(report))))
        (details("Parameters, machine and settings", &table(&parameters(report))))
    }
}

fn cards(facts: &[Fact]) -> Markup {
    html! { dl.cards { @for fact in facts { div.card {
        dt { (fact.name) }
        dd.value { (fact.value.told(fact.unit)) }
        @if !fact.note.is_empty() { dd { (fact.note) } }
    } } } }
}

/// A table: the first cell of a row names it, numbers stand on the right, a wide table scrolls in its own box.
pub(super) fn table(table: &Table) -> Markup {
    let columns = table.known();
    html! { @if !table.rows.is_empty() && !table.columns.is_empty() {
        div.scroll role="region" tabindex="0" aria-label=(table.title) { table {
            caption { (table.title) }
            thead { tr { @for column in &columns {
                th.figure[table.is_figures(*column)] scope="col" { (table.columns[*column].name) }
            } } }
            tbody { @for (number, row) in table.rows.iter().enumerate() {
                tr.ours[row.whose == Whose::Ours].bad[row.whose == Whose::Bad] {
                    @for column in &columns { (cell(table, number, *column)) }
                }
            } }
        } }
    } }
}

fn cell(table: &Table, row: usize, column: usize) -> Markup {
    let cell = table.rows[row].cells.get(column).unwrap_or(&Cell::Unknown);
    let told = cell.told(table.columns[column].unit);
    let is_long = told.chars().count() > LONG;
    let is_figure = !matches!(cell, Cell::Words(_)) && table.columns[column].unit != Unit::Words;
    html! {
        @if column == 0 { th.long[is_long] scope="row" { (told) } }
        @else { td.long[is_long].figure[is_figure] { (told) } }
    }
}

/// What was read back, and what was found.
pub(super) fn checks(report: &Report) -> Table {
    let heads = [
        "acknowledged",
        "found",
        "lost",
        "doubled",
        "misplaced",
        "altered",
        "uninvited",
    ];
    let columns = [("what", Unit::Words)]
        .into_iter()
        .chain(heads.map(|head| (head, Unit::Count)));
    let title = "What was read back after the load";
    let mut table = Table::new(title, columns.chain([("time", Unit::Seconds)]));
    for check in &report.checks {
        let is = &check.read_back;
        let whose = if is.is_clean() {
            Whose::Other
        } else {
            Whose::Bad
        };
        let what = if check.what.is_empty() {
            "everything"
        } else {
            &check.what
        };
        let found = cells![
            is.found,
            is.lost,
            is.doubled,
            is.misplaced,
            is.altered,
            is.uninvited,
            is.seconds
        ];
        table.row_of(whose, [cells![what, is.acknowledged], found].concat());
    }
    table
}

/// The parameters of the run by their paths, and all that its figures depend on.
fn parameters(report: &Report) -> Table {
    let mut all = BTreeMap::new();
    let facts = serde_json::json!({
        "command": report.command, "commit": report.commit, "build": report.build, "seed": report.seed, "host": report.host,
        "store": report.store,
    });
    flatten(&report.workload, "", &mut all);
    flatten(&facts, "", &mut all);
    let columns = ["parameter", "value"].map(|name| (name, Unit::Words));
    let mut table = Table::new("Parameters of the run", columns);
    for (name, value) in all {
        table.row(cells![name, value]);
    }
    table
}

fn flatten(value: &Value, path: &str, all: &mut BTreeMap<String, String>) {
    match value {
        Value::Object(members) => {
            for (name, value) in members {
                let dot = if path.is_empty() { "" } else { "." };
                flatten(value, &format!("{path}{dot}{name}"), all);
            }
        }
        Value::Null => {}
        Value::String(text) => drop(all.insert(path.into(), text.clone())),
        value => drop(all.insert(path.into(), value.to_string())),
    }
}
