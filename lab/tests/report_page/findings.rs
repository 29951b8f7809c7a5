//! What the page says of each kind of run.

use gesta_lab::report::{Cell, Part, Report};

use super::{FIXTURES, count, fixture, page, page_of, parsed, section, shows, text};

/// The reports of a fixture that the page draws.
fn reports(name: &str) -> Vec<Report> {
    let lines = std::fs::read_to_string(fixture(name)).unwrap();
    let reports = lines
        .lines()
        .filter_map(|line| serde_json::from_str::<Report>(line).ok());
    reports
        .filter(|report| report.format == gesta_lab::report::FORMAT)
        .collect()
}

/// Simple spaces, and the replacements of what no document may hold.
fn shown(text: &str) -> String {
    let is_odd = |c: char| c.is_control() || c == '\u{202e}';
    text.replace('\u{a0}', " ").replace(is_odd, "\u{fffd}")
}

/// Goal: the page leaves out nothing that a report says, and each section begins with what was found.
#[test]
fn a_section_shows_everything_that_its_reports_say() {
    for name in FIXTURES {
        let html = page_of(name);
        let document = parsed(&html);
        for report in reports(name) {
            let letters = report.kind.chars();
            let id: String = letters
                .map(|c| if c.is_ascii_alphanumeric() { c } else { '-' })
                .collect();
            let section = section(&document, &id);
            let all = text(section);
            let has = |what: &str| {
                assert!(
                    all.contains(&shown(what)),
                    "{name}, {id} does not show {what:?}"
                )
            };
            has(&report.finding);
            let mut charts = 0;
            for part in &report.parts {
                match part {
                    Part::Text(text) => has(text),
                    Part::Facts(facts) => facts.iter().for_each(|fact| {
                        [&fact.name, &fact.note, &fact.value.told(fact.unit)]
                            .into_iter()
                            .for_each(|text| has(text));
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
            assert!(count(section, "figure") >= charts, "{name}, {id}");
            let sentences = section.descendants();
            let first = sentences
                .filter(|node| {
                    node.attribute("class")
                        .is_some_and(|class| class.contains("finding"))
                })
                .map(text);
            assert!(first.take(1).all(|first| !first.is_empty()), "{name}, {id}");
        }
    }
}

#[test]
fn quick_says_what_to_plan_for_and_what_the_limit_is() {
    let html = page_of("quick");
    let document = parsed(&html);
    let verdict = text(section(&document, "verdict"));
    assert!(verdict.contains("On this database plan for 14,000 events/s of 500 bytes each"));
    assert!(verdict.contains("The limit is the one writer"), "{verdict}");
    assert!(!verdict.contains("NO RESULT"), "{verdict}");
    let figures = [
        "plan for",
        "14,000",
        "759 bytes",
        "Parameters of the run",
        "What was read back",
    ];
    shows(
        &document,
        "quick",
        "On this database plan for 14,000 events/s of 500 bytes each",
        &figures,
    );
    assert_eq!(count(section(&document, "quick"), "figure"), 2);
    shows(
        &document,
        "machine",
        "one machine: Example 4-core processor, 4 cores, 16 GiB; every acknowledgement meant that the event was safe on disk",
        &[
            "SQLite",
            "synchronous",
            "0123456789ab",
            "Closed loop",
            "Open loop",
        ],
    );
}

#[test]
fn schemas_are_drawn_as_bars_and_over_connections() {
    let html = page_of("schemas");
    let document = parsed(&html);
    let figures = [
        "the limit for a best rate",
        "nested partitions collapse",
        "Noise: rounds of the same schema",
        "VirtusLab",
    ];
    shows(
        &document,
        "schemas",
        "with 99 of 100 appends stored within 100 ms",
        &figures,
    );
    assert_eq!(count(section(&document, "schemas"), "figure"), 3);
}

#[test]
fn what_is_no_result_is_said_first_and_never_shown_as_one() {
    let (html, written) = page(&[fixture("odd")]);
    let document = parsed(&html);
    let verdict = text(section(&document, "verdict"));
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
    let left_out = text(section(&document, "left-out")).replace('\u{a0}', " ");
    assert!(
        left_out.starts_with("Left out5 lines are not shown."),
        "{left_out}"
    );
    for said in [
        "its format is 1, this program draws format 2",
        "not a JSON line",
        "its format is missing",
        "invalid type: integer `7`",
        "cut off in the middle",
    ] {
        assert!(left_out.contains(said), "{said}: {left_out}");
    }
}

/// Goal: runs with different settings are not mixed, and a kind that no command of this program has is shown too.
#[test]
fn each_setting_has_its_own_finding() {
    let html = page_of("odd");
    let document = parsed(&html);
    shows(
        &document,
        "telepathy",
        "Thoughts were stored before",
        &["dry", "wet", "Thoughts were lost."],
    );
}
