//! What a reader must know first: what is no result, what to be careful with, and the findings in one list.

use super::html::{Element, Html, el};
use super::lines::{Line, Lines};
use super::look::Look;
use super::machine::durability;
use super::numbers::plural;
use super::section::Section;
use super::table::details;

/// Most items of a box that are not folded away.
const ITEMS_MAX: usize = 8;
/// Most reasons of one line that are told.
const REASONS_MAX: usize = 6;

/// The boxes and the findings.
pub(super) fn draw(lines: &Lines, sections: &[Section]) -> Html {
    let mut all = Html::default();
    all.push(no_result(lines));
    all.push(careful(lines));
    let of_results: Vec<&Section> = sections
        .iter()
        .filter(|section| section.is_result && !["marks", "machine"].contains(&section.id))
        .collect();
    let (leads, others): (Vec<&Section>, Vec<&Section>) = of_results
        .into_iter()
        .partition(|section| section.lead.is_some());
    let large = |section: &Section| el("p").class("lead").with(section.headline());
    match (leads.as_slice(), others.as_slice()) {
        ([], []) => all.push(
            el("p")
                .class("lead")
                .with("There is no result among these runs."),
        ),
        ([], [one]) => all.push(large(one)),
        (leads, others) => {
            leads.iter().for_each(|section| all.push(large(section)));
            all.push(list(others));
        }
    }
    all
}

/// Findings with the way to their sections.
fn list(sections: &[&Section]) -> Html {
    if sections.is_empty() {
        return Html::default();
    }
    let items = sections.iter().map(|section| {
        let address = format!("#{}", section.id);
        el("li")
            .with(el("a").attr("href", address).with(section.title))
            .with(": ")
            .with(section.headline())
    });
    el("ul").class("findings").all(items).into()
}

fn boxed(class: &'static str, title: &str, reasons: Vec<String>) -> Option<Element> {
    if reasons.is_empty() {
        return None;
    }
    let mut items: Vec<Element> = reasons
        .into_iter()
        .map(|reason| el("li").with(reason))
        .collect();
    let more = items.split_off(items.len().min(ITEMS_MAX));
    let folded = (!more.is_empty()).then(|| {
        let summary = format!("{} more", more.len());
        details(&summary, el("ul").all(more))
    });
    Some(
        el("div")
            .class(class)
            .attr("role", "note")
            .with(el("strong").with(title))
            .with(el("ul").all(items))
            .with(folded),
    )
}

fn no_result(lines: &Lines) -> Option<Element> {
    let bad = lines.all.iter().filter(|line| !line.is_valid());
    let reasons = bad.map(|line| format!("{}: {}", line.name(), reasons(line).join("; ")));
    boxed("box red", "NO RESULT", reasons.collect())
}

/// Why a line is no result.
fn reasons(line: &Line) -> Vec<String> {
    let mut all: Vec<String> = line
        .problems()
        .into_iter()
        .chain(line.complaints())
        .collect();
    let mut seen: Vec<String> = Vec::new();
    all.retain(|reason| {
        let is_new = !seen.contains(reason);
        seen.push(reason.clone());
        is_new
    });
    if all.is_empty() {
        let told = line
            .result()
            .get("told")
            .items()
            .chain(line.result().get("wrongs").items());
        all.extend(told.map(Look::told));
    }
    if all.is_empty() {
        all.push(match line.get("valid").flag() {
            Some(_) => "the run itself says that its check failed or a promise was broken".into(),
            None => "the line does not say that it is a result".into(),
        });
    }
    let more = all.len().saturating_sub(REASONS_MAX);
    all.truncate(REASONS_MAX);
    if more > 0 {
        all.push(format!("and {more} more"));
    }
    all
}

fn careful(lines: &Lines) -> Option<Element> {
    let mut reasons = Vec::new();
    let mut tell = |what: &str, of: &dyn Fn(&Line) -> bool| {
        let names: Vec<String> = lines
            .all
            .iter()
            .filter(|line| of(line))
            .map(Line::name)
            .collect();
        match names.as_slice() {
            [] => {}
            [first @ .., last] if names.len() > 4 => {
                let runs = plural(names.len(), "run");
                reasons.push(format!("{what}: {runs}, from {} to {last}", first[0]));
            }
            _ => reasons.push(format!("{what}: {}", names.join(", "))),
        }
    };
    tell(
        "Interrupted, so these are the figures of what there was",
        &|line| line.get("complete").flag() != Some(true),
    );
    tell(
        "Debug build: several times slower than a release build, figures say little",
        &|line| {
            line.get("build")
                .text()
                .is_some_and(|build| build != "release")
        },
    );
    tell(
        "An acknowledgement did not mean that the event was safe on disk",
        &|line| durability(line).is_some_and(|word| word != "full"),
    );
    for line in lines.all.iter().filter(|line| line.is_valid()) {
        let problems = line.problems();
        reasons.extend(
            problems
                .into_iter()
                .map(|problem| format!("{}: {problem}", line.name())),
        );
    }
    reasons.extend(lines.all.iter().filter_map(generator));
    boxed("box amber", "Be careful", reasons)
}

/// Where the load generator was the limit.
fn generator(line: &Line) -> Option<String> {
    let mut limits = Vec::new();
    let mut measured = 0;
    line.result().each_object(&mut |object| {
        let is_measurement = ["latency_ms", "append_ms"]
            .iter()
            .any(|member| object.get(member).is_there());
        let limit = object.get("generator_limit").text();
        measured += usize::from(is_measurement);
        limits.extend(limit.filter(|_| is_measurement));
    });
    let first = limits.first()?;
    Some(format!(
        "{}: in {} of {} the load generator was the limit, not the database ({first})",
        line.name(),
        limits.len(),
        plural(measured, "measurement"),
    ))
}
