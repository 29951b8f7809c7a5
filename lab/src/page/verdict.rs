//! What a reader must know first: what is no result, what to be careful with, and the findings in one list.

use maud::{Markup, html};

use super::section::{Section, name};
use super::{bullets, details};
use crate::report::Report;
use crate::report::numbers::plural;

/// Most items of a box that are not folded away.
const ITEMS_MAX: usize = 8;
/// Most reasons of one line that are told.
const REASONS_MAX: usize = 6;
/// Most findings of one section that are told.
const FINDINGS_MAX: usize = 4;
/// Most runs that are named one by one.
const NAMES_MAX: usize = 4;

/// The boxes and the findings.
pub(super) fn draw(reports: &[Report], sections: &[Section<'_>]) -> Markup {
    let findings: Vec<(&Section<'_>, Vec<&str>)> = sections
        .iter()
        .map(|section| (section, section.findings()))
        .filter(|(_, findings)| !findings.is_empty())
        .collect();
    html! {
        (boxed("box red", "NO RESULT", no_result(reports)))
        (boxed("box amber", "Be careful", careful(reports)))
        @match findings.as_slice() {
            [] => { p.lead { "There is no result among these runs." } }
            [(_, found)] if found.len() == 1 => { p.lead { (found[0]) } }
            all => { ul.findings { @for (section, found) in all { li {
                a href=(format!("#{}", section.id())) { (section.title()) }
                ": " (found.iter().take(FINDINGS_MAX).copied().collect::<Vec<_>>().join(" "))
                @if found.len() > FINDINGS_MAX { " And " (found.len() - FINDINGS_MAX) " more." }
            } } } }
        }
    }
}

fn boxed(class: &str, title: &str, mut reasons: Vec<String>) -> Markup {
    let more = reasons.split_off(reasons.len().min(ITEMS_MAX));
    html! { @if !reasons.is_empty() {
        div class=(class) role="note" {
            strong { (title) }
            (bullets(&reasons))
            (details(&format!("{} more", more.len()), &bullets(&more)))
        }
    } }
}

fn no_result(reports: &[Report]) -> Vec<String> {
    let bad = reports.iter().filter(|report| !report.is_valid());
    let told = bad.map(|report| {
        let mut reasons = report.objections();
        let more = reasons.len().saturating_sub(REASONS_MAX);
        reasons.truncate(REASONS_MAX);
        if more > 0 {
            reasons.push(format!("and {more} more"));
        }
        format!("{}: {}", name(report), reasons.join("; "))
    });
    told.collect()
}

fn careful(reports: &[Report]) -> Vec<String> {
    let mut reasons = Vec::new();
    let mut tell = |what: &str, of: &dyn Fn(&Report) -> bool| {
        let names: Vec<String> = reports
            .iter()
            .filter(|report| of(report))
            .map(name)
            .collect();
        match names.as_slice() {
            [] => {}
            [first, .., last] if names.len() > NAMES_MAX => {
                let runs = plural(names.len(), "run");
                reasons.push(format!("{what}: {runs}, from {first} to {last}"));
            }
            _ => reasons.push(format!("{what}: {}", names.join(", "))),
        }
    };
    tell(
        "Interrupted, so these are the figures of what there was",
        &|report| !report.complete,
    );
    tell(
        "Debug build: several times slower than a release build, figures say little",
        &|report| !report.build.is_empty() && report.build != "release",
    );
    tell(
        "An acknowledgement did not mean that the event was safe on disk",
        &is_weak,
    );
    for report in reports {
        let told = report.cautions.iter();
        reasons.extend(told.map(|caution| format!("{}: {caution}", name(report))));
    }
    reasons
}

/// True if an acknowledgement did not mean that the event was safe on disk.
pub(super) fn is_weak(report: &Report) -> bool {
    let store = report.store.as_ref();
    store.is_some_and(|store| !store.durability.is_empty() && store.durability != "full")
}
