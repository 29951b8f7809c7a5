//! The page of `gesta-lab report`, from lines in the shapes of all commands: read by a strict parser, said to show
//! everything, and made of hostile, odd or missing lines.

#![allow(
    clippy::unwrap_used,
    reason = "a test that stumbles should stop and say where"
)]

use std::path::{Path, PathBuf};

use gesta_report::{Cell, Part, Report};
use roxmltree::{Document, Node, ParsingOptions};

/// Files of lines, one page each.
const FIXTURES: [&str; 5] = ["quick", "schemas", "experiments", "others", "odd"];
/// What the hostile lines hold wherever a text may stand.
const HOSTILE: &str =
    "</script><script>document.title='owned'</script><img src=x onerror=alert(1)>";

fn fixture(name: &str) -> PathBuf {
    let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures");
    fixtures.join(format!("{name}.jsonl"))
}

/// The page of these files, and what was left out.
fn page(files: &[PathBuf]) -> (String, gesta_report::page::Written) {
    let folder = tempfile::tempdir().unwrap();
    let output = folder.path().join("report.html");
    let written = gesta_report::page::write(files, &output).unwrap();
    (std::fs::read_to_string(&output).unwrap(), written)
}

/// The page of a fixture, with simple spaces between numbers and their units.
fn page_of(name: &str) -> String {
    page(&[fixture(name)]).0.replace('\u{a0}', " ")
}

fn parsed(html: &str) -> Document<'_> {
    let options = ParsingOptions {
        allow_dtd: true,
        ..ParsingOptions::default()
    };
    Document::parse_with_options(html, options).unwrap()
}

fn text(node: Node<'_, '_>) -> String {
    let texts = node.descendants().filter(|node| node.is_text());
    texts.filter_map(|node| node.text()).collect()
}

fn all<'a>(document: &'a Document<'_>, tag: &'a str) -> impl Iterator<Item = Node<'a, 'a>> {
    let nodes = document.descendants();
    nodes.filter(move |node| node.has_tag_name(tag))
}

/// The reports of a fixture that the page draws.
fn reports(name: &str) -> Vec<Report> {
    let lines = std::fs::read_to_string(fixture(name)).unwrap();
    let reports = lines
        .lines()
        .filter_map(|line| serde_json::from_str::<Report>(line).ok());
    reports
        .filter(|report| report.format == gesta_report::FORMAT)
        .collect()
}

/// Simple spaces, and the replacements of what no document may hold.
fn shown(text: &str) -> String {
    let is_odd = |c: char| c.is_control() || c == '\u{202e}';
    text.replace('\u{a0}', " ").replace(is_odd, "\u{fffd}")
}

/// Goal: the page leaves out nothing that a report says.
#[test]
fn a_page_shows_everything_that_its_reports_say() {
    for name in FIXTURES {
        let html = page_of(name);
        let document = parsed(&html);
        let said = text(document.root());
        let mut charts = 0;
        for report in reports(name) {
            let has =
                |what: &str| assert!(said.contains(&shown(what)), "{name} does not show {what:?}");
            has(&report.finding);
            for part in &report.parts {
                match part {
                    Part::Text(text) => has(text),
                    Part::Facts(facts) => facts.iter().for_each(|fact| {
                        has(&fact.name);
                        has(&fact.note);
                        has(&fact.value.told(fact.unit));
                    }),
                    Part::Table(table) => {
                        has(&table.title);
                        for row in &table.rows {
                            for (cell, column) in row.cells.iter().zip(&table.columns) {
                                if *cell != Cell::Unknown {
                                    has(&column.name);
                                }
                                has(&cell.told(column.unit));
                            }
                        }
                    }
                    Part::Chart(chart) => {
                        charts += 1;
                        has(&chart.title);
                        chart.note.iter().for_each(|note| has(note));
                    }
                }
            }
        }
        assert_eq!(all(&document, "figure").count(), charts, "{name}");
    }
}

#[test]
fn what_is_no_result_is_said_first_and_never_shown_as_one() {
    let (html, written) = page(&[fixture("odd")]);
    let document = parsed(&html);
    let section = |id: &str| {
        let mut sections = all(&document, "section");
        text(
            sections
                .find(|node| node.attribute("id") == Some(id))
                .unwrap(),
        )
    };
    let verdict = section("verdict");
    for said in [
        "NO RESULT",
        "the check failed",
        "of 792000 acknowledged events 3 lost; first: revision 3",
        "Be careful",
        "Interrupted",
        "Debug build",
        "did not mean that the event was safe on disk",
        "the generator used 3.9 of 4 cores",
        "4,000",
    ] {
        assert!(verdict.contains(said), "{said}: {verdict}");
    }
    for lost in ["99,000", "98,000"] {
        assert!(
            !verdict.contains(lost),
            "a run that lost events is no finding"
        );
    }
    assert_eq!(written.notes.len(), 5, "{:?}", written.notes);
    assert!(section("left-out").contains("cut off in the middle"));
}

#[test]
fn hostile_texts_stay_texts() {
    let html = page_of("odd");
    let document = parsed(&html);
    assert!(
        text(document.root()).contains(HOSTILE),
        "it is shown, as text"
    );
    let scripts = all(&document, "script").count();
    assert_eq!((scripts, all(&document, "img").count()), (1, 0));
    let head = all(&document, "head").next();
    let titles = all(&document, "title").filter(|node| node.parent() == head);
    assert_eq!(titles.count(), 1);
}

#[test]
fn a_page_loads_nothing_and_holds_no_code_but_its_own() {
    for name in FIXTURES {
        let html = page_of(name);
        let document = parsed(&html);
        for node in document.descendants().filter(Node::is_element) {
            for attribute in node.attributes() {
                let (name, value) = (attribute.name(), attribute.value());
                assert!(!name.starts_with("on"), "{name}={value}");
                let is_address =
                    ["src", "href", "action", "data", "srcset", "poster"].contains(&name);
                let is_here = value.starts_with('#') || value == "data:,";
                assert!(!is_address || is_here, "{name}={value}");
                assert!(!value.contains("url("), "{name}={value}");
            }
            let tag = node.tag_name().name();
            assert!(
                !["iframe", "object", "embed", "base", "image", "use"].contains(&tag),
                "{tag}"
            );
        }
        for code in all(&document, "style").chain(all(&document, "script")) {
            let code = text(code);
            for load in ["http:", "https:", "url(", "@import", "fetch(", "import("] {
                assert!(!code.contains(load), "{load}");
            }
        }
    }
}

#[test]
fn files_without_a_run_are_an_error_that_names_them() {
    let folder = tempfile::tempdir().unwrap();
    let [empty, broken, missing, output] = [
        "empty.jsonl",
        "broken.jsonl",
        "missing.jsonl",
        "report.html",
    ]
    .map(|n| folder.path().join(n));
    std::fs::write(&empty, "\n").unwrap();
    std::fs::write(&broken, "{\"format\":2,\"ki").unwrap();
    for (files, wanted) in [
        (
            vec![empty, broken],
            &["empty.jsonl", "broken.jsonl", "cut off"][..],
        ),
        (vec![missing], &["missing.jsonl"]),
    ] {
        let error = gesta_report::page::write(&files, &output).unwrap_err().0;
        assert!(wanted.iter().all(|name| error.contains(name)), "{error}");
        assert!(!output.exists());
    }
}

/// The Markdown of a fixture in one file, with the cells of tables as they are without escapes.
fn markdown_of(name: &str) -> String {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("page.md");
    let written = gesta_report::page::write_markdown(&[fixture(name)], &file).unwrap();
    assert_eq!(written, std::slice::from_ref(&file));
    std::fs::read_to_string(file).unwrap()
}

/// Goal: a page of Markdown says what its runs found, with all tables, what is wrong with it, and where it ran.
#[test]
fn a_page_of_markdown_shows_the_runs() {
    for name in ["quick", "schemas", "experiments", "others"] {
        let text = markdown_of(name);
        let mut lines = text.lines();
        let first = lines.next().unwrap();
        assert!(
            first.starts_with("<!-- Generated by `gesta-lab report"),
            "{first}"
        );
        assert!(lines.next().unwrap().starts_with("# "), "{text}");
        for line in text
            .lines()
            .filter(|line| !line.starts_with(['|', '#', '<']))
        {
            assert!(line.chars().count() <= 120, "{name}: {line}");
        }
        let unescaped = text
            .replace("&lt;", "<")
            .replace("&amp;", "&")
            .replace('\\', "");
        let said = unescaped.split_whitespace().collect::<Vec<_>>().join(" ");
        let has = |what: &str| {
            let what = shown(what).replace('\\', "");
            let what = what.split_whitespace().collect::<Vec<_>>().join(" ");
            assert!(said.contains(&what), "{name} does not show {what:?}");
        };
        // The newest result of each setting; the page of HTML folds the others away.
        let all = reports(name);
        let key = |report: &Report| {
            (
                report.kind.clone(),
                report.title.clone(),
                report.setting.clone(),
            )
        };
        let rank = |report: &Report| (report.is_valid(), report.started.clone());
        for report in &all {
            if all
                .iter()
                .any(|other| key(other) == key(report) && rank(other) > rank(report))
            {
                continue;
            }
            has(&report.finding);
            has(&report.commit);
            has(&format!("{} cores", report.host.cores));
            report.store.iter().for_each(|store| has(&store.engine));
            report
                .objections()
                .iter()
                .for_each(|why| has(&format!("No result**: {why}")));
            for table in report.tables() {
                has(&table.title);
                for row in &table.rows {
                    let cells = row.cells.iter().zip(&table.columns);
                    cells.for_each(|(cell, column)| has(&cell.told(column.unit)));
                }
            }
        }
    }
}

/// Goal: what a line says stays text, in its cell and on its line, whatever it holds.
#[test]
fn a_page_of_markdown_has_no_markup_of_its_lines() {
    let text = markdown_of("odd");
    for tag in ["<script", "<img"] {
        assert!(!text.contains(tag), "{text}");
    }
    let said = text.split_whitespace().collect::<Vec<_>>().join(" ");
    let lost = "of 792000 acknowledged events 3 lost; first: revision 3 of &lt;/script>";
    assert!(said.contains(lost), "{text}");
    let bars = |line: &str| line.replace("\\|", "").matches('|').count();
    let lines: Vec<&str> = text.lines().collect();
    for pair in lines
        .windows(2)
        .filter(|pair| pair.iter().all(|line| line.starts_with('|')))
    {
        assert_eq!(bars(pair[0]), bars(pair[1]), "{pair:?}");
    }
}

/// Goal: a folder gets a page for each kind of run, again and again, but nobody's own page is written over.
#[test]
fn a_folder_gets_a_page_for_each_kind_and_keeps_other_pages() {
    let folder = tempfile::tempdir().unwrap();
    let write = || gesta_report::page::write_markdown(&[fixture("experiments")], folder.path());
    let written = write().unwrap();
    let mut kinds: Vec<String> = reports("experiments")
        .iter()
        .map(|report| report.kind.clone())
        .collect();
    kinds.sort();
    kinds.dedup();
    assert!(kinds.len() > 1);
    let mut names: Vec<String> = written
        .iter()
        .map(|file| file.file_stem().unwrap().to_str().unwrap().to_owned())
        .collect();
    names.sort();
    assert_eq!(names, kinds);
    let first = std::fs::read_to_string(&written[0]).unwrap();
    assert_eq!(write().unwrap(), written);
    assert_eq!(std::fs::read_to_string(&written[0]).unwrap(), first);
    std::fs::write(&written[0], "# By hand\n").unwrap();
    let failure = write().unwrap_err().to_string();
    assert!(failure.contains("was not generated"), "{failure}");
    assert_eq!(std::fs::read_to_string(&written[0]).unwrap(), "# By hand\n");
}
