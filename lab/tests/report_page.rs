//! The page of `gesta-lab report`, from lines in the shapes of all commands: read by a strict parser, and shown in a
//! browser without a screen, light and dark, narrow and wide.
//!
//! Without a browser the second part is skipped loudly; with `CI=true` it fails. `GESTA_CHROMIUM` names another program.

#![allow(
    clippy::unwrap_used,
    reason = "a test that stumbles should stop and say where"
)]

#[path = "report_page/browser.rs"]
mod browser;

use std::path::{Path, PathBuf};

use gesta_lab::random::Random;
use roxmltree::{Document, Node, ParsingOptions};

/// Files of lines, one page each.
const FIXTURES: [&str; 7] = [
    "quick",
    "schemas",
    "experiments",
    "cinema",
    "others",
    "peers",
    "odd",
];
/// What the hostile lines hold wherever a text may stand.
const HOSTILE: &str =
    "</script><script>document.title='owned'</script><img src=x onerror=alert(1)>";

fn fixture(name: &str) -> PathBuf {
    let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures");
    fixtures.join(format!("{name}.jsonl"))
}

/// The page of these files, and what was left out.
fn page(files: &[PathBuf]) -> (String, gesta_lab::page::Written) {
    let folder = tempfile::tempdir().unwrap();
    let output = folder.path().join("report.html");
    let written = gesta_lab::page::write(files, &output).unwrap();
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

/// The section with this id.
fn section<'a, 'b>(document: &'a Document<'b>, id: &str) -> Node<'a, 'b> {
    let mut sections = document
        .descendants()
        .filter(|node| node.has_tag_name("section"));
    sections
        .find(|node| node.attribute("id") == Some(id))
        .unwrap_or_else(|| panic!("no section {id}"))
}

fn count(node: Node<'_, '_>, tag: &str) -> usize {
    let all = node.descendants().filter(|node| node.has_tag_name(tag));
    all.count()
}

/// Asserts that the section begins with a sentence that says this, and shows these figures.
fn shows(document: &Document<'_>, id: &str, finding: &str, figures: &[&str]) {
    let section = section(document, id);
    let sentence = section
        .descendants()
        .find(|node| node.attribute("class") == Some("finding"));
    let sentence = text(sentence.unwrap_or_else(|| panic!("{id} has no finding")));
    assert!(sentence.contains(finding), "{id}: {sentence}");
    let all = text(section);
    for figure in figures {
        assert!(all.contains(figure), "{id} does not show {figure}");
    }
}

#[test]
fn quick_says_what_to_plan_for_and_what_the_limit_is() {
    let html = page_of("quick");
    let document = parsed(&html);
    let verdict = text(section(&document, "verdict"));
    assert!(verdict.contains("On this database plan for 44,000 events/s of 500 bytes each"));
    assert!(verdict.contains("The limit is the one writer"), "{verdict}");
    assert!(!verdict.contains("NO RESULT") && !verdict.contains("Be careful"));
    shows(
        &document,
        "quick",
        "Callers that wait for their answers got 74,800 events/s stored at most (256 of them, p99 7 ms)",
        &[
            "plan for",
            "812,000",
            "48,700",
            "99.9 % (p99.9)",
            "812 bytes",
        ],
    );
    assert_eq!(count(section(&document, "quick"), "figure"), 2);
    shows(
        &document,
        "machine",
        "one machine: Example 4-core processor, 4 cores, 16 GiB",
        &[
            "PostgreSQL 17.2",
            "synchronous_commit",
            "0123456789ab",
            "release",
            "Closed loop",
            "Open loop",
        ],
    );
}

#[test]
fn schemas_are_ranked_by_compression_and_runs_are_compared() {
    let html = page_of("schemas");
    let document = parsed(&html);
    shows(
        &document,
        "schemas",
        "Gesta carried the most in each of two settings: 1.35 times the next (lz4 compression for all) and 3.4 times the next (pglz",
        &[
            "10,064",
            "Two runs agree: every schema's best rates lie within the noise",
            "Gesta is 4.8 times as fast",
            "24 × 53200: out of shared memory",
            "274 × 40001",
            "failed: 53200: out of shared memory, at 32 connections",
            "nested partitions collapse",
            "ahead at 4 of 4 numbers of connections, the smallest leads; with 16: 35 % ahead of",
            "the limit for a best rate",
        ],
    );
    shows(
        &document,
        "marks",
        "compare shapes and ratios",
        &[
            "VirtusLab",
            "partitioned trails plain (74 % of plain): yes",
            "not among these runs",
        ],
    );
    assert_eq!(
        count(section(&document, "schemas"), "figure"),
        6,
        "three per compression"
    );
}

/// Goal: a lead that is smaller than the noise is not sold as one, nor a lag.
#[test]
fn what_is_less_than_the_noise_is_said_to_be() {
    let folder = tempfile::tempdir().unwrap();
    let noisy = folder.path().join("noisy.jsonl");
    let lines = std::fs::read_to_string(fixture("schemas")).unwrap();
    let lines = lines.lines().map(|line| {
        let mut line: serde_json::Value = serde_json::from_str(line).unwrap();
        line["result"]["noise"] = 0.3.into();
        format!("{line}\n")
    });
    std::fs::write(&noisy, lines.collect::<String>()).unwrap();
    let (html, _) = page(&[noisy]);
    let document = parsed(&html);
    let marks = text(section(&document, "marks")).replace('\u{a0}', " ");
    for told in [
        "partitioned trails plain (74 % of plain): yes, by less than the noise",
        "with 64: 35 % ahead of akka-persistence-postgres, plain): yes, by less than the noise",
        "with 32: 3.4 times akka-persistence-postgres, plain; with 64",
    ] {
        assert!(marks.contains(told), "{told} in {marks}");
    }
}

/// Goal: where another schema is ahead the page says which, with how many connections, and by how much.
#[test]
fn a_schema_that_is_ahead_of_gesta_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let behind = folder.path().join("behind.jsonl");
    let line = std::fs::read_to_string(fixture("schemas")).unwrap();
    let mut line: serde_json::Value = serde_json::from_str(line.lines().next().unwrap()).unwrap();
    let targets = line["result"]["targets"].as_array_mut().unwrap();
    let gesta = targets.iter_mut().find(|target| target["name"] == "gesta");
    for round in gesta.unwrap()["rounds"].as_array_mut().unwrap() {
        round["phases"][1]["events_per_second"] = 5_000.into();
    }
    std::fs::write(&behind, line.to_string()).unwrap();
    let (html, _) = page(&[behind]);
    let schemas = text(section(&parsed(&html), "schemas")).replace('\u{a0}', " ");
    let told = "ahead at 3 of 4 numbers of connections, the smallest leads; with 16: 10 % behind akka-persistence-postgres, plain;";
    assert!(schemas.contains(told), "{told} in {schemas}");
}

#[test]
fn experiments_say_their_findings_and_stand_beside_the_published_ones() {
    let html = page_of("experiments");
    let document = parsed(&html);
    shows(
        &document,
        "latency",
        "At every round trip of 1.5 ms and more, separate statements are the slowest, one bundled statement stores 2.4 to 5.5 times as many",
        &[
            "up to 5.3×",
            "6.1×",
            "40 workers, 5 events per append",
            "200 batches a second",
            "level, within 3 %, at 2 of 16 places: 50 ms with 1 worker and 5 events each",
            "99 %",
        ],
    );
    shows(
        &document,
        "tags",
        "Gesta's queries do not grow with the readers: 221 with 1 reader and 220 with 350 readers; idle, 0.2 queries a second",
        &["5.2 min", "34 of 35", "3,000,000 older events in the table"],
    );
    shows(
        &document,
        "recovery",
        "with snapshots, entities of 1,000 events load 55 times as fast",
        &["from events", "420,000"],
    );
    shows(
        &document,
        "soak",
        "In 2 h the log grew to 35,834,400 events; p99 of appends was 3.1 ms in the last quarter",
        &[
            "disk per event 244 bytes, from 240 bytes",
            "3 faults, the longest healed after 10.3 s",
            "database kill",
        ],
    );
    shows(
        &document,
        "marks",
        "Published",
        &["6.1× at 10 ms", "with 3,000,000 older events"],
    );
    let verdict = text(section(&document, "verdict"));
    assert!(verdict.contains("Be careful") && verdict.contains("events 311 to 315 are missing"));
}

#[test]
fn the_cinema_stands_beside_the_published_steps() {
    let html = page_of("cinema");
    let document = parsed(&html);
    shows(
        &document,
        "reservation",
        "18,000 requests/s, offered by a schedule, were answered with p99 41 ms",
        &[
            "[A] 1 × 2 cores",
            "another machine",
            "86 %",
            "64 users, each waits for its answer",
        ],
    );
    shows(
        &document,
        "reservation-kill",
        "Killed 50 times under load: of 118,000 acknowledged requests none was lost, and no seat was held twice",
        &["59 ms"],
    );
}

#[test]
fn other_measurements_have_a_sentence_and_a_table_each() {
    let html = page_of("others");
    let document = parsed(&html);
    for (id, finding, figure) in [
        (
            "append",
            "Up to 121,000 events/s were stored (40 callers, 5 events each, 50 bytes)",
            "10 ms away",
        ),
        (
            "compare",
            "Gesta reaches 57 % to 116 % of what it was compared with",
            "bare insert",
        ),
        ("bound", "up to 104,700 events/s", "batch of 82"),
        (
            "read",
            "read at up to 782,000 events/s, single streams at 355,000",
            "decoded",
        ),
        (
            "subscribers",
            "1,000 subscribers cost 7 queries in 30 s of silence",
            "burst",
        ),
        (
            "servers",
            "67,100 events/s together (52 % and 48 %), one alone 148,200",
            "33 ms and 34 ms",
        ),
        (
            "snapshot",
            "open for 10 min, the last slice still had 85 %",
            "99,500",
        ),
        (
            "http",
            "Up to 52,300 requests/s over HTTP, with 1000 connections",
            "8.9 ms",
        ),
        (
            "torture",
            "200 rounds of faults: of 151,000 acknowledged appends none was lost",
            "database silent",
        ),
        ("locking", "7.8 to 121 times as many commands", "12"),
        (
            "entities",
            "One entity answers 10,030 commands/s",
            "231 bytes",
        ),
    ] {
        shows(&document, id, finding, &[figure]);
    }
}

#[test]
fn peers_are_one_table_with_the_losing_numbers() {
    let html = page_of("peers");
    let document = parsed(&html);
    shows(
        &document,
        "peers",
        "Of 8 systems Gesta stored the most events at 3 of 5 loads; ahead of it: UmaDB at 1 × 100 events (1.16 times)",
        &[
            "not installed",
            "398,000 (7.2 ms)",
            "9.5.6",
            "none: not comparable",
            "differed by ±1.4 %",
        ],
    );
    let peers = text(section(&document, "peers"));
    assert!(peers.contains("A forgetful peer") && peers.contains("no result"));
    assert!(
        !peers.contains("999,000"),
        "a peer that lost events has no figures"
    );
    let verdict = text(section(&document, "verdict"));
    assert!(verdict.contains("Be careful"), "{verdict}");
}

#[test]
fn what_is_no_result_is_said_first_and_never_shown_as_one() {
    let (html, written) = page(&[fixture("odd")]);
    let document = parsed(&html);
    let verdict = text(section(&document, "verdict"));
    for said in [
        "NO RESULT",
        "the check failed",
        "reading back found 3 lost",
        "Be careful",
        "Interrupted",
        "Debug build",
        "did not mean that the event was safe on disk",
        "the generator used 3.9 of 4 cores",
    ] {
        assert!(verdict.contains(said), "{said}: {verdict}");
    }
    assert!(
        !verdict.contains("99,000"),
        "the run that lost events is no finding"
    );
    assert_eq!(written.notes.len(), 4, "{:?}", written.notes);
    let left_out = text(section(&document, "left-out")).replace('\u{a0}', " ");
    assert!(
        left_out.starts_with("Left out6 lines are not shown."),
        "{left_out}"
    );
    for said in [
        "its format is 2, this program reads format 1",
        "not a JSON line",
        "cut off in the middle",
        "telepathy of 2026-05-09 09:20 UTC: this program does not know the kind",
    ] {
        assert!(left_out.contains(said), "{said}: {left_out}");
    }
}

#[test]
fn hostile_texts_stay_texts() {
    let html = page_of("odd");
    let document = parsed(&html);
    let root = document.root();
    assert!(text(root).contains(HOSTILE), "it is shown, as text");
    assert_eq!(count(root, "script"), 1);
    assert_eq!(count(root, "img"), 0);
    let titles = document
        .descendants()
        .filter(|node| node.has_tag_name("title"));
    let of_head = titles.filter(|node| {
        node.parent()
            .is_some_and(|parent| parent.has_tag_name("head"))
    });
    assert_eq!(of_head.count(), 1);
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
        for code in document
            .descendants()
            .filter(|node| node.has_tag_name("style") || node.has_tag_name("script"))
        {
            let code = text(code);
            for load in ["http:", "https:", "url(", "@import", "fetch(", "import("] {
                assert!(!code.contains(load), "{load}");
            }
        }
    }
}

/// Replaces some values anywhere in it, by chance, by values of other types or sizes, or by nothing.
fn spoil(value: &mut serde_json::Value, random: &mut Random) {
    use serde_json::{Value, json};
    if random.below(40) == 0 {
        let odd = [
            Value::Null,
            json!(-1),
            json!(0),
            json!(1e308),
            json!(1e-308),
            json!(u64::MAX),
            json!("text"),
            json!(true),
            json!([]),
            json!({}),
            json!([[1]]),
        ];
        *value = odd[random.below(odd.len())].clone();
        return;
    }
    match value {
        Value::Array(items) => items.iter_mut().for_each(|item| spoil(item, random)),
        Value::Object(members) => {
            members.retain(|_, _| random.below(60) > 0);
            members
                .values_mut()
                .for_each(|member| spoil(member, random));
        }
        _ => {}
    }
}

/// Bad input makes a poorer page, never a panic, nor a drawing with impossible places.
#[test]
fn lines_in_which_anything_is_missing_or_odd_make_a_page() {
    let seed = std::env::var("GESTA_SEED").ok();
    let seed = seed.map_or(4, |seed| seed.parse::<u64>().unwrap());
    println!("GESTA_SEED={seed}");
    let mut random = Random::new(seed);
    let folder = tempfile::tempdir().unwrap();
    let spoilt = folder.path().join("spoilt.jsonl");
    for name in FIXTURES {
        let lines = std::fs::read_to_string(fixture(name)).unwrap();
        for _ in 0..15 {
            let mut text = String::new();
            for line in lines.lines() {
                let Ok(mut value) = serde_json::from_str::<serde_json::Value>(line) else {
                    continue;
                };
                if value["format"] == 1 {
                    let kind = value["kind"].clone();
                    for member in value.as_object_mut().unwrap().values_mut() {
                        spoil(member, &mut random);
                    }
                    (value["format"], value["kind"]) = (1.into(), kind);
                    text.push_str(&format!("{value}\n"));
                }
            }
            std::fs::write(&spoilt, text).unwrap();
            let (html, _) = page(std::slice::from_ref(&spoilt));
            let document = parsed(&html);
            let of_drawings = document.descendants().filter(|node| {
                node.ancestors()
                    .any(|above| above.attribute("role") == Some("img"))
            });
            for node in of_drawings {
                for attribute in node.attributes() {
                    let value = attribute.value();
                    assert!(
                        !value.contains("NaN") && !value.contains("inf"),
                        "{name}: {value}"
                    );
                }
            }
        }
    }
}

#[test]
fn every_chart_has_a_title_and_says_what_it_shows() {
    for name in FIXTURES {
        let html = page_of(name);
        let document = parsed(&html);
        for chart in document
            .descendants()
            .filter(|node| node.attribute("role") == Some("img"))
        {
            let of = |tag: &str| {
                chart
                    .children()
                    .find(|node| node.has_tag_name(tag))
                    .map(text)
            };
            assert!(of("title").is_some_and(|title| !title.is_empty()), "{name}");
            assert!(of("desc").is_some(), "{name}");
            assert!(chart.attribute("viewBox").is_some());
        }
    }
}

#[test]
fn files_without_a_run_are_an_error_that_names_them() {
    let folder = tempfile::tempdir().unwrap();
    let (empty, broken) = (
        folder.path().join("empty.jsonl"),
        folder.path().join("broken.jsonl"),
    );
    std::fs::write(&empty, "\n").unwrap();
    std::fs::write(&broken, "{\"format\":1,\"ki").unwrap();
    let output = folder.path().join("report.html");
    let error = gesta_lab::page::write(&[empty.clone(), broken], &output)
        .unwrap_err()
        .0;
    assert!(
        error.contains("empty.jsonl") && error.contains("broken.jsonl"),
        "{error}"
    );
    assert!(error.contains("cut off"), "{error}");
    assert!(!output.exists());
    let missing = folder.path().join("missing.jsonl");
    let error = gesta_lab::page::write(&[missing], &output).unwrap_err().0;
    assert!(error.contains("missing.jsonl"), "{error}");
}

#[test]
fn pages_show_in_a_browser_light_and_dark_narrow_and_wide() {
    let Some(browser) = browser::find() else {
        return;
    };
    let pages: Vec<(&str, String)> = FIXTURES
        .iter()
        .map(|name| (*name, page(&[fixture(name)]).0))
        .collect();
    let mut grounds = Vec::new();
    for scheme in [browser::Scheme::Light, browser::Scheme::Dark] {
        let shown = browser.show(&pages, scheme);
        assert_eq!(shown.len(), pages.len() * browser::WIDTHS.len());
        for one in &shown {
            let at = format!("{} {} px {scheme:?}", one.name, one.width);
            assert_eq!(one.errors, Vec::<String>::new(), "{at}");
            assert!(
                one.scroll_width <= one.width,
                "{at}: {} px wide",
                one.scroll_width
            );
            assert_eq!(one.inner_width, one.width, "{at}");
            assert_eq!(one.empty_charts, 0, "{at}");
            assert_eq!(
                one.overlaps,
                Vec::<String>::new(),
                "{at}: labels run into each other"
            );
            assert_eq!(
                one.outside,
                Vec::<String>::new(),
                "{at}: labels are cut off"
            );
            assert!(one.contrast > 7.0, "{at}: contrast {}", one.contrast);
            assert!(one.theme_changes, "{at}: the button changes nothing");
            assert!(
                one.charts == 0 || one.tip.contains(':'),
                "{at}: {:?}",
                one.tip
            );
            assert_eq!(one.title, "gesta-lab: what the measurements say", "{at}");
        }
        grounds.push(shown[0].ground.clone());
    }
    assert_ne!(
        grounds[0], grounds[1],
        "light and dark have the same ground"
    );
}
