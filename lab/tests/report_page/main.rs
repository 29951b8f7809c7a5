//! The page of `gesta-lab report`, from lines in the shapes of all commands: read by a strict parser, and shown in a
//! browser without a screen, light and dark, narrow and wide.
//!
//! Without a browser the second part is skipped loudly; with `CI=true` it fails. `GESTA_CHROMIUM` names another program.

#![allow(
    clippy::unwrap_used,
    reason = "a test that stumbles should stop and say where"
)]

mod browser;
mod findings;
mod hostile;

use std::path::{Path, PathBuf};

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
