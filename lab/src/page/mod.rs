//! `report`: one page from the JSON lines, for people who were not there.
//!
//! The page is a single file: charts are drawn into it, style and script stand in it, it loads nothing from anywhere and
//! its own policy forbids that. It can be read without the script, in light and dark, on a phone and on paper.
//! Every section begins with a sentence that says what was found. What a line says is text and nothing else (`html`),
//! and a line that lacks something has less to show, never a wrong figure (`look`).
//! Read `section` first, then any kind, such as `quick`. Not here: how the lines come about (each command).

mod chart;
mod entities;
mod html;
mod latency;
mod lines;
mod look;
mod machine;
mod marks;
mod numbers;
mod peers;
mod plain;
mod quick;
mod recovery;
mod reservation;
mod schemas;
mod section;
mod soak;
mod table;
mod tags;
mod verdict;

use std::path::{Path, PathBuf};

use gesta_core::{Clock, SystemClock};

use crate::failure::{Context, Result};
use html::{Html, el};
use lines::Lines;
use numbers::{moment, plural};
use section::Section;

const STYLE: &str = include_str!("page.css");
const SCRIPT: &str = include_str!("page.js");
/// Nothing is loaded: style and script stand in the page.
const POLICY: &str = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:; base-uri 'none'; form-action 'none'";

/// A page with charts from the results of earlier commands.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct PageArgs {
    /// Files of JSON lines, as `--results` of the other commands writes them.
    #[arg(required = true)]
    files: Vec<PathBuf>,
    /// The page.
    #[arg(short, long, default_value = "gesta-lab.html")]
    output: PathBuf,
}

/// The command. True once the page is written, whatever it says.
pub(crate) fn run(args: &PageArgs) -> Result<bool> {
    let written = write(&args.files, &args.output)?;
    println!(
        "the report of {} runs: {}",
        written.runs,
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
    for note in &lines.notes {
        eprintln!("{note}");
    }
    std::fs::write(output, page(&lines, &SystemClock.now().to_string()))
        .context(output.display())?;
    Ok(Written {
        runs: lines.all.len(),
        notes: lines.notes,
    })
}

fn sections(lines: &Lines) -> Vec<Section> {
    let first = [
        quick::section(lines),
        schemas::section(lines),
        latency::section(lines),
        tags::section(lines),
        recovery::section(lines),
        soak::section(lines),
        reservation::section(lines),
        reservation::kills(lines),
        entities::locking(lines),
        entities::entities(lines),
    ];
    let last = [
        peers::section(lines),
        marks::section(lines),
        Some(machine::section(lines)),
    ];
    let first = first.into_iter().flatten();
    first
        .chain(plain::sections(lines))
        .chain(last.into_iter().flatten())
        .collect()
}

/// Kinds of lines that some section tells.
fn is_known(kind: &str) -> bool {
    const OWN: [&str; 13] = [
        "quick",
        "schemas",
        "latency",
        "tags",
        "recovery",
        "soak",
        "reservation",
        "reservation-kill",
        "locking",
        "entities-hot",
        "entities-restart",
        "entities-memory",
        "entities-shared",
    ];
    OWN.contains(&kind) || kind == "compare-peers" || plain::kinds().any(|known| known == kind)
}

/// What was left out: lines that cannot be read, and kinds that this program does not know.
fn left_out(lines: &Lines) -> Html {
    let unknown = lines.all.iter().filter(|line| !is_known(&line.kind));
    let unknown =
        unknown.map(|line| format!("{}: this program does not know the kind", line.name()));
    let all: Vec<String> = lines.notes.iter().cloned().chain(unknown).collect();
    if all.is_empty() {
        return Html::default();
    }
    el("section")
        .attr("id", "left-out")
        .with(el("h2").with("Left out"))
        .with(
            el("p")
                .class("finding")
                .with(format!("{} not shown.", are(all.len()))),
        )
        .with(section::bullets(all))
        .into()
}

fn are(lines: usize) -> String {
    format!(
        "{} {}",
        plural(lines, "line"),
        if lines == 1 { "is" } else { "are" }
    )
}

/// The document.
fn page(lines: &Lines, now: &str) -> String {
    let sections = sections(lines);
    let header = el("header")
        .with(el("p").class("brand").with("gesta-lab"))
        .with(el("h1").with("What the measurements say"))
        .with(
            el("button")
                .attr("type", "button")
                .attr("id", "theme")
                .attr("hidden", "hidden")
                .with("light or dark"),
        );
    let verdict = el("section")
        .attr("id", "verdict")
        .with(el("h2").with("In short"))
        .with(verdict::draw(lines, &sections))
        .with(table::details("Words on this page", machine::glossary()));
    let footer = format!(
        "Drawn {} UTC from {} by gesta-lab {}.",
        moment(now),
        plural(lines.all.len(), "run"),
        env!("CARGO_PKG_VERSION")
    );
    let body = el("body")
        .with(header)
        .with(
            el("main")
                .with(verdict)
                .all(sections.into_iter().map(Section::draw))
                .with(left_out(lines)),
        )
        .with(el("footer").with(footer))
        .with(el("script").with(Html::own(SCRIPT)));
    let meta =
        |name: &'static str, content: &str| el("meta").attr("name", name).attr("content", content);
    let head = el("head")
        .with(el("meta").attr("charset", "utf-8"))
        .with(
            el("meta")
                .attr("http-equiv", "Content-Security-Policy")
                .attr("content", POLICY),
        )
        .with(meta("viewport", "width=device-width, initial-scale=1"))
        .with(meta("referrer", "no-referrer"))
        .with(el("link").attr("rel", "icon").attr("href", "data:,"))
        .with(el("title").with("gesta-lab: what the measurements say"))
        .with(el("style").with(Html::own(STYLE)));
    let html: Html = el("html").attr("lang", "en").with(head).with(body).into();
    format!("<!DOCTYPE html>\n{}\n", html.into_string())
}
