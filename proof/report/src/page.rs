//! `report`: one page from the JSON lines, for people who were not there.
//!
//! The page is a single file: charts are drawn into it, style and script stand in it, it loads nothing from anywhere
//! and its own policy forbids that. It can be read without the script, in light and dark, on a phone and on paper.
//! Every section begins with the sentence that says what was found. What a line says is text and nothing else: the
//! templates escape it, and `printable` takes out what no document may hold. Everything is closed as XML wants it,
//! which lets the tests read a page with a strict parser. Not here: what the figures mean (each command says that
//! itself).

mod chart;
mod lines;
mod markdown;
mod section;

use std::path::{Path, PathBuf};

use gesta_core::{Clock, SystemClock};
use maud::{Markup, PreEscaped, html};

use crate::failure::{Context, Result, fail};
use crate::numbers::{moment, plural};
use crate::report::Report;
use lines::Lines;
use section::{Section, name};

const STYLE: &str = include_str!("page/page.css");
const SCRIPT: &str = include_str!("page/page.js");
/// What stands before the style. Nothing is loaded: style and script stand in the page.
const HEAD: &str = concat!(
    r#"<meta charset="utf-8"/><meta http-equiv="Content-Security-Policy" content="default-src 'none'; "#,
    r#"style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:; base-uri 'none'; form-action 'none'"/>"#,
    r#"<meta name="viewport" content="width=device-width, initial-scale=1"/>"#,
    r#"<meta name="referrer" content="no-referrer"/><link rel="icon" href="data:,"/>"#,
);

/// How the figures are to be read.
const METHOD: [&str; 3] = [
    "Closed loop: a fixed number of callers, each of which sends the next request when the last is answered; it shows the most that can be carried.",
    "Open loop: requests come by a schedule, as users do; one that had to wait to be sent counts from its intended start.",
    "p99 of 5 ms means: 99 of 100 requests took 5 ms or less.",
];
/// The same, of what measures stores: a service of somebody else is loaded once, and nobody can read back what it has.
const METHOD_OF_STORES: [&str; 2] = [
    "Read back: after the load everything stored is compared with what was acknowledged; a run that lost, doubled, moved or changed one event is no result.",
    "Noise: the same is measured in several rounds; ± is half of their range, and a smaller difference says nothing.",
];

/// A page with charts from the results of earlier commands.
#[derive(Debug, Clone, clap::Args)]
pub struct PageArgs {
    /// Files of JSON lines, as `--results` of the other commands writes them.
    #[arg(required = true)]
    files: Vec<PathBuf>,
    /// The page.
    #[arg(
        short,
        long,
        default_value = "gesta-lab.html",
        conflicts_with = "markdown"
    )]
    output: PathBuf,
    /// Writes Markdown instead, into this file, or into this folder a page for each kind of run. A file that was not
    /// generated is not written over.
    #[arg(long, value_name = "FILE_OR_DIR")]
    markdown: Option<PathBuf>,
}

/// The command. True once the page is written, whatever it says.
pub fn run(args: &PageArgs) -> Result<bool> {
    if let Some(to) = &args.markdown {
        for file in write_markdown(&args.files, to)? {
            println!("{}", file.display());
        }
        return Ok(true);
    }
    let written = write(&args.files, &args.output)?;
    println!(
        "the report of {}: {}",
        plural(written.runs, "run").replace('\u{a0}', " "),
        args.output.display()
    );
    Ok(true)
}

/// What became of a page.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Written {
    /// Runs on it.
    pub runs: usize,
    /// What was left out, and why; also told on stderr and on the page.
    pub notes: Vec<String>,
}

/// Reads the files of JSON lines and writes the page.
///
/// # Errors
/// A file cannot be read, no line of them is a run, or the page cannot be written.
pub fn write(files: &[PathBuf], output: &Path) -> Result<Written> {
    let lines = lines::read(files)?;
    std::fs::write(output, page(&lines, &SystemClock.now().to_string()))
        .context(output.display())?;
    Ok(Written {
        runs: lines.all.len(),
        notes: lines.notes,
    })
}

/// Looks whether a page can be written there, before anything is measured: its folder must be there.
///
/// # Errors
/// The folder is not there, or the page is a folder.
pub fn check(output: &Path) -> Result<()> {
    let folder = output.parent().filter(|dir| !dir.as_os_str().is_empty());
    if !folder.unwrap_or(Path::new(".")).is_dir() {
        return fail(format!(
            "the page {}: its folder is not there",
            output.display()
        ));
    }
    match output.is_dir() {
        true => fail(format!("the page {} is a folder", output.display())),
        false => Ok(()),
    }
}

/// Writes the page of one run.
///
/// # Errors
/// The page cannot be written.
pub fn write_one(report: &Report, output: &Path) -> Result<()> {
    let lines = Lines {
        all: vec![report.clone()],
        notes: Vec::new(),
    };
    std::fs::write(output, page(&lines, &SystemClock.now().to_string())).context(output.display())
}

/// Reads the files of JSON lines and writes Markdown, into a file or into a folder. Returns the files that it wrote.
///
/// # Errors
/// A file cannot be read, no line of them is a run, a page would replace a file that was not generated, or cannot be
/// written.
pub fn write_markdown(files: &[PathBuf], to: &Path) -> Result<Vec<PathBuf>> {
    markdown::write(&lines::read(files)?.all, to)
}

/// The document.
fn page(lines: &Lines, now: &str) -> String {
    let sections = Section::all(&lines.all);
    let markup = html! {
        (PreEscaped("<!DOCTYPE html>\n"))
        html lang="en" {
            head {
                (PreEscaped(HEAD))
                title { "gesta-lab: what the measurements say" }
                style { (PreEscaped(STYLE)) }
            }
            body {
                header {
                    p.brand { "gesta-lab" }
                    h1 { "What the measurements say" }
                    button type="button" id="theme" hidden="hidden" { "light or dark" }
                }
                main {
                    section id="verdict" {
                        h2 { "In short" }
                        (boxed("box red", "NO RESULT", &no_result(&lines.all)))
                        (boxed("box amber", "Be careful", &careful(&lines.all)))
                        @if sections.iter().all(|section| section.finding().is_none()) {
                            p.lead { "There is no result among these runs." }
                        }
                        ul.findings { @for section in &sections { @if let Some(finding) = section.finding() { li {
                            a href=(format!("#{}", section.id)) { (section.title()) } ": " (finding)
                        } } } }
                    }
                    @for section in &sections { (section.draw()) }
                    section id="method" {
                        h2 { "Method" }
                        (bullets(&method(&lines.all)))
                    }
                    @if !lines.notes.is_empty() {
                        section id="left-out" {
                            h2 { "Left out" }
                            p.finding {
                                (plural(lines.notes.len(), "line")) " "
                                (if lines.notes.len() == 1 { "is" } else { "are" }) " not shown."
                            }
                            (bullets(&lines.notes))
                        }
                    }
                }
                footer {
                    "Drawn " (moment(now)) " UTC from " (plural(lines.all.len(), "run")) " by gesta-lab " (env!("CARGO_PKG_VERSION")) "."
                }
                script { (PreEscaped(SCRIPT)) }
            }
        }
    };
    printable(&markup.into_string())
}

/// How the figures of these runs are to be read.
fn method(reports: &[Report]) -> Vec<String> {
    let is_of_stores = reports.iter().any(|report| report.kind != "scenario");
    let of_stores = METHOD_OF_STORES.iter().filter(|_| is_of_stores);
    let all = METHOD.iter().chain(of_stores);
    all.map(|line| (*line).to_owned()).collect()
}

/// Shows what no document may hold, and what turns the direction of writing around, as a replacement character.
fn printable(page: &str) -> String {
    let is_forbidden = |c: char| match c {
        '\n' | '\t' => false,
        '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}' | '\u{fffe}' | '\u{ffff}' => true,
        c => c.is_control(),
    };
    page.replace(is_forbidden, "\u{fffd}")
}

fn boxed(class: &str, title: &str, reasons: &[String]) -> Markup {
    html! { @if !reasons.is_empty() { div class=(class) role="note" { strong { (title) } (bullets(reasons)) } } }
}

/// Each run that is none, and why.
fn no_result(reports: &[Report]) -> Vec<String> {
    let bad = reports.iter().filter(|report| !report.is_valid());
    bad.map(|report| format!("{}: {}", name(report), report.objections().join("; ")))
        .collect()
}

/// What to be careful with, run by run.
fn careful(reports: &[Report]) -> Vec<String> {
    let told = |report| {
        let reasons = cautions(report).into_iter();
        reasons.map(move |reason| format!("{}: {reason}", name(report)))
    };
    reports.iter().flat_map(told).collect()
}

/// What to be careful with in a run.
fn cautions(report: &Report) -> Vec<String> {
    let durability = report
        .store
        .as_ref()
        .map_or("", |store| store.durability.as_str());
    let mut told = report.cautions.clone();
    for (is_so, what) in [
        (
            !report.complete,
            "Interrupted, so these are the figures of what there was.",
        ),
        (
            !["", "release"].contains(&report.build.as_str()),
            "Debug build: figures say little.",
        ),
        (
            !["", "full"].contains(&durability),
            "An acknowledgement did not mean that the event was safe on disk.",
        ),
    ] {
        told.extend(is_so.then(|| what.to_owned()));
    }
    told
}

/// Something that is folded away at first.
fn details(summary: &str, inner: &Markup) -> Markup {
    html! { @if !inner.0.is_empty() { details { summary { (summary) } (inner) } } }
}

/// A list.
fn bullets(items: &[String]) -> Markup {
    html! { @if !items.is_empty() { ul { @for item in items { li { (item) } } } } }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_that_cannot_be_written_is_refused_before() {
        let folder = tempfile::tempdir().unwrap();
        assert!(check(&folder.path().join("no/page.html")).is_err());
        assert!(check(folder.path()).is_err());
        assert!(check(&folder.path().join("page.html")).is_ok());
        assert!(check(Path::new("page.html")).is_ok());
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
    }

    /// What happened: the page of a service that is no store said that everything stored was read back.
    #[test]
    fn the_method_claims_nothing_that_was_not_done() {
        let claims = |kinds: &[&str]| {
            let reports = kinds.iter().map(|kind| Report::begin(kind, "Title", 7));
            let told = method(&reports.collect::<Vec<_>>()).join(" ");
            told.contains("Read back") || told.contains("several rounds")
        };
        assert!(!claims(&["scenario"]));
        assert!(claims(&["scenario", "append"]));
    }
}
