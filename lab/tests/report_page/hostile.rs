//! The page of lines that are hostile, odd, or not there.

use gesta_lab::random::Random;
use roxmltree::Node;

use super::{FIXTURES, HOSTILE, count, fixture, page, page_of, parsed, text};

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

/// Replaces some values anywhere in it, by chance, by odd ones of the same type, or seldom of another, or by nothing.
fn spoil(value: &mut serde_json::Value, random: &mut Random) {
    use serde_json::{Value, json};
    let odd = match value {
        _ if random.below(3_000) == 0 => vec![
            json!(true),
            json!([]),
            json!({}),
            json!([[1]]),
            json!(u64::MAX),
        ],
        Value::Number(number) if number.is_f64() => vec![
            json!(-1.0),
            json!(0.0),
            json!(1e308),
            json!(1e-308),
            Value::Null,
        ],
        Value::String(_) => vec![json!(""), json!("text"), json!("größe ".repeat(40))],
        _ => Vec::new(),
    };
    if !odd.is_empty() && random.below(40) == 0 {
        *value = odd[random.below(odd.len())].clone();
        return;
    }
    match value {
        Value::Array(items) => items.iter_mut().for_each(|item| spoil(item, random)),
        Value::Object(members) => {
            members.retain(|_, _| random.below(200) > 0);
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
    let mut drawn = 0;
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
                if value["format"] == 2 {
                    let kind = value["kind"].clone();
                    for member in value.as_object_mut().unwrap().values_mut() {
                        spoil(member, &mut random);
                    }
                    (value["format"], value["kind"]) = (2.into(), kind);
                    text.push_str(&format!("{value}\n"));
                }
            }
            // One that stays, so that there is something to draw whatever becomes of the others.
            text.push_str("{\"format\":2,\"kind\":\"whole\"}\n");
            std::fs::write(&spoilt, text).unwrap();
            let (html, written) = page(std::slice::from_ref(&spoilt));
            drawn += written.runs - 1;
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
    assert!(
        drawn > 15,
        "{drawn} of the spoilt lines could still be read"
    );
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
    std::fs::write(&broken, "{\"format\":2,\"ki").unwrap();
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
