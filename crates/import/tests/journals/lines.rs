//! Lines.

use gesta_import::{Kind, Options};
use serde_json::json;

use crate::support::{dry_run, import, imported, metadata, target, told, try_import};

fn options(path: &std::path::Path) -> Options {
    Options::new(Kind::Lines, path.display().to_string()).unwrap()
}

#[tokio::test]
async fn lines_are_imported_once_however_often_and_however_they_grow() {
    let home = tempfile::tempdir().unwrap();
    let path = home.path().join("events.jsonl");
    let one = "\u{feff}{\"stream\":\"cart-1\",\"type\":\"added\",\"data\":{\"a\": 1},\"tags\":[\"x\"],\"time\":\"2024-01-01T00:00:00Z\"}\n\
               \n{\"stream\":\"cart-2\",\"type\":\"added\",\"data_base64\":\"AA\\nEC\",\"metadata\":{\"by\":\"me\"}}\n";
    std::fs::write(&path, one).unwrap();
    let store = target();
    let report = import(&options(&path), &store).await;
    assert_eq!((report.read, report.stored), (2, 2));
    assert_eq!(dry_run(&options(&path)).await.stored, 2);
    // The last line has no line break.
    let more = "{\"stream\":\"cart-1\",\"type\":\"added\",\"data\":[2]}";
    std::fs::write(&path, format!("{one}{more}")).unwrap();
    let report = import(&options(&path), &store).await;
    assert_eq!(
        (report.read, report.stored, report.already_stored),
        (3, 1, 2)
    );
    let events = imported(&store).await;
    assert_eq!(
        told(&events),
        [
            "cart-1 0 added {\"a\": 1} x",
            "cart-2 0 added \u{0}\u{1}\u{2}",
            "cart-1 1 added [2]"
        ]
    );
    assert_eq!(
        metadata(&events[0])["$source"]["time"],
        json!("2024-01-01T00:00:00.000000Z")
    );
    assert_eq!(metadata(&events[1])["by"], json!("me"));
}

#[tokio::test]
async fn lines_with_numbers_need_not_begin_at_the_beginning() {
    let home = tempfile::tempdir().unwrap();
    let path = home.path().join("events.jsonl");
    let line =
        |n: u64| format!("{{\"stream\":\"a-1\",\"sequence\":{n},\"type\":\"t\",\"data\":{{}}}}\n");
    let store = target();
    for (numbers, stored) in [(1..=3, 3), (2..=5, 2), (7..=7, 1)] {
        std::fs::write(&path, numbers.map(line).collect::<String>()).unwrap();
        assert_eq!(import(&options(&path), &store).await.stored, stored);
    }
    let events = imported(&store).await;
    let numbers: Vec<_> = events
        .iter()
        .map(|event| metadata(event)["$source"]["sequence"].clone())
        .collect();
    assert_eq!(numbers, [1, 2, 3, 4, 5, 7]);
}

#[tokio::test]
async fn wrong_lines_are_refused_by_their_number() {
    let home = tempfile::tempdir().unwrap();
    let path = home.path().join("events.jsonl");
    let good = "{\"stream\":\"a\",\"type\":\"t\",\"data\":1}\n";
    for (bad, why) in [
        ("{", "is no event"),
        (
            "{\"stream\":\"a\",\"type\":\"t\"}",
            "neither data nor data_base64",
        ),
        (
            "{\"stream\":\"a\",\"type\":\"t\",\"data\":1,\"colour\":1}",
            "unknown field",
        ),
        (
            "{\"stream\":\"a\",\"type\":\"t\",\"data_base64\":\"?\"}",
            "data_base64",
        ),
        (
            "{\"stream\":\"a\",\"type\":\"t\",\"data\":1,\"time\":\"x\"}",
            "wrong time",
        ),
        (
            "{\"stream\":\"a\",\"type\":\"t\",\"data\":1,\"sequence\":3}",
            "if the first line has one",
        ),
    ] {
        std::fs::write(&path, format!("{good}{bad}\n")).unwrap();
        let error = try_import(&options(&path), &target())
            .await
            .expect_err(bad)
            .to_string();
        assert!(
            error.contains("line 2 of the input") && error.contains(why),
            "{bad}: {error}"
        );
    }
    let error = try_import(&options(&home.path().join("none")), &target())
        .await
        .expect_err("no file");
    assert!(error.to_string().contains("No such file"), "{error}");
}

/// Goal: a line that comes after a later one of its stream, or twice, is told and not taken for what is there.
#[tokio::test]
async fn lines_out_of_order_are_refused() {
    let home = tempfile::tempdir().unwrap();
    let path = home.path().join("events.jsonl");
    let lines = |numbers: &[u64]| -> String {
        let line = |n: &u64| {
            format!("{{\"stream\":\"a-1\",\"sequence\":{n},\"type\":\"t\",\"data\":{{}}}}\n")
        };
        numbers.iter().map(line).collect()
    };
    for (numbers, why) in [
        (&[1, 3, 2][..], "comes after later ones"),
        (&[1, 2, 2][..], "has used the number again"),
    ] {
        std::fs::write(&path, lines(numbers)).unwrap();
        let error = try_import(&options(&path), &target())
            .await
            .expect_err(why)
            .to_string();
        assert!(
            error.contains("\"a-1\" number 2 (place 3)") && error.contains(why),
            "{error}"
        );
    }
    // Also what a hole of an earlier run would hide.
    let store = target();
    std::fs::write(&path, lines(&[1, 3])).unwrap();
    assert_eq!(import(&options(&path), &store).await.missing_numbers, 1);
    std::fs::write(&path, lines(&[3, 4, 1])).unwrap();
    assert_eq!(import(&options(&path), &store).await.stored, 1);
    std::fs::write(&path, lines(&[2])).unwrap();
    let error = try_import(&options(&path), &store)
        .await
        .expect_err("a hole")
        .to_string();
    assert!(error.contains("comes after later ones"), "{error}");
}
