//! A section: all runs of one kind. Runs with the same setting make a group, whose newest run is shown in the open.

use std::collections::BTreeMap;

use maud::{Markup, html};
use serde_json::Value;

use super::{agree, chart, details};
use crate::cells;
use crate::report::numbers::{Unit, moment};
use crate::report::{Cell, Fact, Part, Report, Table, Whose};

/// Sections come in this order, others after them as they come.
const ORDER: [&str; 10] = [
    "quick",
    "compare-peers",
    "schemas",
    "latency",
    "tags",
    "recovery",
    "soak",
    "reservation",
    "reservation-kill",
    "locking",
];
/// Words longer than this want a wide column.
const LONG: usize = 22;

/// Runs of one kind.
pub(super) struct Section<'a> {
    kind: &'a str,
    groups: Vec<Vec<&'a Report>>,
}

/// The run in a few words.
pub(super) fn name(report: &Report) -> String {
    format!("{} of {}", report.kind, began(report))
}

fn began(report: &Report) -> String {
    match report.started.as_str() {
        "" => "unknown time".into(),
        started => format!("{} UTC", moment(started)),
    }
}

impl<'a> Section<'a> {
    /// The sections of these runs.
    pub(super) fn all(reports: &'a [Report]) -> Vec<Self> {
        let mut sections: Vec<Self> = Vec::new();
        for report in reports {
            match sections
                .iter_mut()
                .find(|section| section.kind == report.kind)
            {
                Some(section) => section.add(report),
                None => sections.push(Self {
                    kind: &report.kind,
                    groups: vec![vec![report]],
                }),
            }
        }
        for section in &mut sections {
            for group in &mut section.groups {
                let key = |report: &Report| (report.is_valid(), report.started.clone());
                group.sort_by_key(|report| std::cmp::Reverse(key(report)));
            }
            section.groups.sort_by_key(|group| !group[0].is_valid());
        }
        let place = |section: &Self| ORDER.iter().position(|kind| *kind == section.kind);
        sections.sort_by_key(|section| place(section).unwrap_or(ORDER.len()));
        sections
    }

    fn add(&mut self, report: &'a Report) {
        let mut groups = self.groups.iter_mut();
        match groups.find(|group| group[0].setting == report.setting) {
            Some(group) => group.push(report),
            None => self.groups.push(vec![report]),
        }
    }

    /// Names it in addresses.
    pub(super) fn id(&self) -> String {
        let letters = self.kind.chars();
        let id = letters.map(|c| if c.is_ascii_alphanumeric() { c } else { '-' });
        id.collect()
    }

    pub(super) fn title(&self) -> &str {
        match self.groups[0][0].title.as_str() {
            "" => self.kind,
            title => title,
        }
    }

    /// What was found, by setting; nothing of what is no result.
    pub(super) fn findings(&self) -> Vec<&str> {
        let newest = self.groups.iter().map(|group| group[0]);
        let results = newest.filter(|report| report.is_valid());
        results.map(|report| report.finding.as_str()).collect()
    }

    /// The markup.
    pub(super) fn draw(&self) -> Markup {
        html! {
            section id=(self.id()) {
                h2 { (self.title()) }
                @for (number, group) in self.groups.iter().enumerate() {
                    // A section begins with what was found.
                    @if number > 0 { h3 { (group[0].setting) } }
                    (finding(group[0]))
                    @if number == 0 && self.groups.len() > 1 { p.setting { (group[0].setting) } }
                    @if let Some(sentence) = agree::sentence(group) { p { (sentence) } }
                    (body(group[0]))
                    @for older in &group[1..] {
                        @let what = format!("The run of {}{}", began(older), if older.is_valid() { "" } else { ", which is no result" });
                        (details(&what, &html! { (finding(older)) (body(older)) }))
                    }
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

fn is_chart(part: &Part, folded: bool) -> bool {
    matches!(part, Part::Chart(chart) if chart.folded == folded)
}

fn body(report: &Report) -> Markup {
    let looks = chart::Looks::of(report);
    let same = |a: &Part, b: &Part| {
        [true, false]
            .iter()
            .any(|folded| is_chart(a, *folded) && is_chart(b, *folded))
    };
    html! {
        // Charts that follow each other stand side by side where there is room.
        @for parts in report.parts.chunk_by(same) {
            @match &parts[0] {
                Part::Chart(first) => {
                    @let charts = html! { div.charts { @for part in parts {
                        @if let Part::Chart(chart) = part { (chart::draw(chart, report, &looks)) }
                    } } };
                    @if first.folded { (details("More charts", &charts)) } @else { (charts) }
                }
                Part::Text(text) => { p { (text) } }
                Part::Facts(facts) => { (cards(facts)) }
                Part::Table(one) => {
                    @if one.folded { (details(&one.title, &table(one))) } @else { (table(one)) }
                }
            }
        }
        (details("What was read back", &table(&checks(report))))
        (details("Parameters", &table(&parameters(report))))
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
    let is_figures = |column: usize| {
        let mut rows = table.rows.iter();
        column > 0 && rows.any(|row| matches!(row.cells.get(column), Some(Cell::Number(_))))
    };
    html! { @if !table.rows.is_empty() && !table.columns.is_empty() {
        div.scroll role="region" tabindex="0" aria-label=(table.title) { table {
            caption { (table.title) }
            thead { tr { @for column in &columns {
                th.figure[is_figures(*column)] scope="col" { (table.columns[*column].name) }
            } } }
            tbody { @for (number, row) in table.rows.iter().enumerate() {
                tr.ours[row.whose == Whose::Ours].bad[row.whose == Whose::Bad].published[row.whose == Whose::Published] {
                    @for column in &columns { (cell(table, number, *column)) }
                }
            } }
        } }
    } }
}

fn cell(table: &Table, row: usize, column: usize) -> Markup {
    let cell = table.rows[row].cells.get(column).unwrap_or(&Cell::Unknown);
    let told = cell.told(table.columns[column].unit);
    let is_long = matches!(cell, Cell::Words(text) if text.chars().count() > LONG);
    let is_figure = match cell {
        Cell::Words(_) => false,
        Cell::Number(_) => true,
        Cell::Unknown => table.columns[column].unit != Unit::Words,
    };
    let is_best = table.is_best(row, column);
    html! {
        @if column == 0 { th.long[is_long] scope="row" { (told) } }
        @else { td.long[is_long].figure[is_figure].best[is_best] { (told) } }
    }
}

/// What was read back, and what was found.
fn checks(report: &Report) -> Table {
    let found = ["lost", "doubled", "misplaced", "altered", "uninvited"];
    let heads = ["what", "acknowledged", "found"].into_iter().chain(found);
    let unit = |head| {
        if head == "what" {
            Unit::Words
        } else {
            Unit::Count
        }
    };
    let columns = heads.map(|head| (head, unit(head)));
    let mut table = Table::new(
        "What was read back after the load",
        columns.chain([("time", Unit::Seconds)]),
    );
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
        table.row_of(
            whose,
            cells![
                what,
                is.acknowledged,
                is.found,
                is.lost,
                is.doubled,
                is.misplaced,
                is.altered,
                is.uninvited,
                is.seconds
            ],
        );
    }
    table
}

/// The parameters of the run, by their paths.
fn parameters(report: &Report) -> Table {
    let mut all = BTreeMap::new();
    flatten(&report.workload, "", &mut all);
    let mut table = Table::new(
        "Parameters of the run",
        [("parameter", Unit::Words), ("value", Unit::Words)],
    );
    for (name, value) in all {
        table.row(cells![name, value]);
    }
    table
}

fn flatten(value: &Value, path: &str, all: &mut BTreeMap<String, String>) {
    match value {
        Value::Object(members) => {
            for (name, value) in members {
                let path = if path.is_empty() {
                    name.clone()
                } else {
                    format!("{path}.{name}")
                };
                flatten(value, &path, all);
            }
        }
        Value::Null => {}
        Value::String(text) => drop(all.insert(path.into(), text.clone())),
        value => drop(all.insert(path.into(), value.to_string())),
    }
}
