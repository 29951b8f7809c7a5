//! The site that `scripts/docs` builds from the pages, and what makes a page readable in it.

use std::path::Path;
use std::process::Command;

use crate::support::{is_installed, output_of, stderr, stdout};

/// The site, built into a folder; `None`, said aloud, where its generator is not and cannot be installed.
fn site() -> Option<tempfile::TempDir> {
    if !is_installed("python3") {
        return None;
    }
    let folder = tempfile::tempdir().unwrap();
    let mut build = Command::new(crate::root().join("scripts/docs"));
    let built = output_of(build.current_dir(crate::root()).arg(folder.path()));
    let said = stdout(&built) + &stderr(&built);
    if said.contains("could not be installed") {
        assert!(std::env::var_os("CI").is_none(), "{said}");
        eprintln!("SKIPPED: {said}");
        return None;
    }
    assert!(built.status.success(), "{said}");
    Some(folder)
}

/// What a browser makes of a page, after its scripts have run.
fn shown(address: &str, profile: &Path) -> Option<String> {
    let browser = std::env::var("GESTA_CHROMIUM").unwrap_or_else(|_| "chromium".to_owned());
    if !is_installed(&browser) {
        return None;
    }
    let mut chromium = Command::new(browser);
    chromium.args(["--headless", "--no-sandbox", "--disable-gpu", "--dump-dom"]);
    // In the browser's own time, which stands still while it has something to do.
    chromium.args([
        "--virtual-time-budget=60000",
        "--host-resolver-rules=MAP * ~NOTFOUND",
    ]);
    chromium.arg(format!("--user-data-dir={}", profile.display()));
    Some(stdout(&output_of(chromium.arg(address))))
}

fn pages_below(folder: &Path) -> Vec<(String, String)> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            found.extend(pages_below(&path));
        } else if path
            .extension()
            .is_some_and(|extension| extension == "html")
        {
            let text = std::fs::read_to_string(&path).unwrap();
            found.push((path.display().to_string(), text));
        }
    }
    found
}

/// Goal: the site is built, so each link leads to a page and a heading; its pages load nothing from elsewhere; and its
/// search finds something when a page is opened as a file, without a server and without a network.
#[test]
fn the_site_is_built_and_searched_without_a_network() {
    let Some(site) = site() else { return };
    let pages = pages_below(site.path());
    assert!(pages.len() > 50, "{} pages", pages.len());
    for (name, text) in pages {
        for tag in text.split('<').skip(1) {
            let loads = ["script", "link", "img", "iframe"]
                .iter()
                .any(|element| tag.starts_with(element));
            let is_outside = ["=\"http://", "=\"https://", "=\"//"]
                .iter()
                .any(|outside| tag.contains(outside));
            let is_loaded = loads && !tag.contains("rel=\"canonical\"");
            assert!(!(is_loaded && is_outside), "{name} loads <{tag}");
        }
    }
    let profile = tempfile::tempdir().unwrap();
    let index = site.path().join("docs/index.html");
    let address = format!("file://{}?q=tombstone", index.display());
    let Some(shown) = shown(&address, profile.path()) else {
        return;
    };
    assert!(shown.contains("matching documents"), "{shown}");
    assert!(shown.contains("designing-events.html"), "{shown}");
}

/// Goal: no cell of a table is a paragraph: what needs more than 200 characters stands below the table.
#[test]
fn cells_of_tables_are_short() {
    let mut long = Vec::new();
    for (path, text) in crate::pages() {
        let mut is_code = false;
        for (number, line) in text.lines().enumerate() {
            is_code ^= line.trim_start().starts_with("```");
            if is_code || !line.starts_with('|') {
                continue;
            }
            for cell in line.replace("\\|", "/").split('|') {
                let length = readable(cell).trim().chars().count();
                if length > 200 {
                    long.push(format!("{}:{}: {length}", path.display(), number + 1));
                }
            }
        }
    }
    assert!(long.is_empty(), "{}", long.join("\n"));
}

/// A text without the addresses of its links.
fn readable(text: &str) -> String {
    let mut parts = text.split("](");
    let mut kept = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        kept += part.split_once(')').map_or(part, |(_, rest)| rest);
    }
    kept
}

/// Goal: pages for users speak as others do: no word that has to be read twice where a common one exists.
#[test]
fn pages_for_users_use_common_words() {
    const INSTEAD: [(&str, &str); 10] = [
        ("anew", "again"),
        ("whoever", "the one who, everybody who"),
        ("shall", "must, will"),
        ("is the business of", "is the task of"),
        ("want a person", "need an operator"),
        ("is no word about", "says nothing about"),
        ("another life", "another incarnation"),
        ("need be done", "is needed"),
        ("makes a store", "creates a store"),
        ("is waited for", "is awaited"),
    ];
    let mut found = Vec::new();
    for (path, text) in crate::pages() {
        let name = path
            .strip_prefix(crate::root())
            .unwrap()
            .display()
            .to_string();
        let is_for_users = [
            "README",
            "docs/tutorials",
            "docs/guides",
            "docs/operating",
            "docs/reference",
        ]
        .iter()
        .any(|part| name.starts_with(part));
        for (number, line) in text.lines().enumerate().filter(|_| is_for_users) {
            let words = format!(
                " {} ",
                line.to_lowercase()
                    .replace(|c: char| !c.is_alphanumeric(), " ")
            );
            for (word, other) in INSTEAD {
                if words.contains(&format!(" {word} ")) {
                    found.push(format!("{name}:{}: {word}: {other}", number + 1));
                }
            }
        }
    }
    assert!(found.is_empty(), "{}", found.join("\n"));
}

/// What happened: errors and help pages used words that pages for users may not use.
#[test]
fn texts_of_programs_use_common_words() {
    const INSTEAD: [(&str, &str); 3] = [
        ("anew", "again"),
        ("whoever", "the one who, everybody who"),
        ("shall", "must, will"),
    ];
    let (mut found, mut texts) = (Vec::new(), 0);
    for (path, source) in crate::files(&["rs"]) {
        let name = path.strip_prefix(crate::root()).unwrap();
        let name = name.display().to_string();
        let is_of_tests = ["/tests", "/testing/", "/examples/", "/benches/"];
        let is_of_a_program = name.starts_with("crates/") && name.contains("/src/");
        if !is_of_a_program || is_of_tests.iter().any(|part| name.contains(part)) {
            continue;
        }
        let source = source.split("#[cfg(test)]").next().unwrap();
        let mut shown = literals(source);
        if name.starts_with("crates/cli/src/args") {
            let lines = source.lines().map(str::trim_start);
            shown.extend(lines.filter_map(|line| line.strip_prefix("///").map(str::to_owned)));
        }
        texts += shown.len();
        for text in shown {
            let lower = text.to_lowercase();
            let has = |word: &str| {
                lower
                    .split(|c: char| !c.is_alphanumeric())
                    .any(|own| own == word)
            };
            for (word, other) in INSTEAD.iter().filter(|(word, _)| has(word)) {
                found.push(format!("{name}: {word}: {other}: {text}"));
            }
        }
    }
    assert!(texts > 5_000, "{texts}");
    assert!(found.is_empty(), "{}", found.join("\n"));
}

/// The texts in quotes of a source.
fn literals(source: &str) -> Vec<String> {
    let (mut found, mut rest) = (Vec::new(), source);
    while let Some(at) = rest.find(['"', '\'', '/', 'r']) {
        let (before, from) = rest.split_at(at);
        let is_name = before.ends_with(|c: char| c.is_alphanumeric() || c == '_');
        let raw = from.strip_prefix('r').filter(|_| !is_name).and_then(|raw| {
            let hashes = raw.len() - raw.trim_start_matches('#').len();
            let text = raw[hashes..].strip_prefix('"')?;
            let end = format!("\"{}", "#".repeat(hashes));
            text.split_once(&end)
        });
        rest = if let Some((text, after)) = raw {
            found.push(text.to_owned());
            after
        } else if from.starts_with("//") {
            from.split_once('\n').map_or("", |(_, after)| after)
        } else if let Some(text) = from.strip_prefix('"') {
            let mut is_escaped = false;
            let end = text.find(|c| {
                let ends = c == '"' && !is_escaped;
                is_escaped = c == '\\' && !is_escaped;
                ends
            });
            let (text, after) = text.split_at(end.expect("a text has an end"));
            found.push(text.to_owned());
            &after[1..]
        } else if let Some(quoted) = from.strip_prefix('\'') {
            // A character; a lifetime has no second quote.
            match quoted.strip_prefix('\\') {
                Some(escaped) => {
                    let skipped = escaped.chars().next().map_or(0, char::len_utf8);
                    let after = &escaped[skipped..];
                    after.split_once('\'').map_or("", |(_, after)| after)
                }
                None => {
                    let width = quoted.chars().next().map_or(0, char::len_utf8);
                    quoted[width..].strip_prefix('\'').unwrap_or(quoted)
                }
            }
        } else {
            &from[1..]
        };
    }
    found
}
