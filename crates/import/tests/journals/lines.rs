//! Lines.

use gesta_core::EventStore as _;
use gesta_import::{Import, Kind, Options, Step};
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
        let options = Options {
            allow_gaps: true,
            ..options(&path)
        };
        assert_eq!(import(&options, &store).await.stored, stored);
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
        ("[{}]", "one object per line, not a list"),
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

/// Goal: files that are given in the wrong order are refused before the second one is taken, unless a hole is allowed.
///
/// What happened: the later file was taken, as if the source had deleted what lay between, and the earlier one was
/// refused from then on.
#[tokio::test]
async fn a_file_that_begins_behind_what_is_stored_is_refused() {
    let home = tempfile::tempdir().unwrap();
    let path = home.path().join("events.jsonl");
    let write = |numbers: &[u64]| {
        let of = |n: &u64| {
            line(
                "a-1",
                &format!("\"sequence\":{n},\"type\":\"t\",\"data\":{n}"),
            )
        };
        let text: String = numbers.iter().map(of).collect();
        std::fs::write(&path, text).unwrap();
    };
    let store = target();
    write(&[1, 2]);
    assert_eq!(import(&options(&path), &store).await.stored, 2);
    write(&[5, 6]);
    let refused = try_import(&options(&path), &store).await;
    let error = refused.expect_err("a hole").to_string();
    for part in ["numbers 3 to 4", "number 5", "--allow-gaps"] {
        assert!(error.contains(part), "{part}: {error}");
    }
    write(&[3, 4]);
    assert_eq!(import(&options(&path), &store).await.stored, 2);
    write(&[5, 6]);
    assert_eq!(import(&options(&path), &store).await.stored, 2);
    // A hole that the file itself shows is one of its source, also if the import was stopped in front of it.
    write(&[6, 8]);
    assert_eq!(import(&options(&path), &store).await.missing_numbers, 1);
    write(&[10]);
    let allowed = Options {
        allow_gaps: true,
        ..options(&path)
    };
    assert_eq!(import(&allowed, &store).await.missing_numbers, 1);
}

fn line(stream: &str, rest: &str) -> String {
    format!("{{\"stream\":\"{stream}\",{rest}}}\n")
}

/// Goal: an event that is another one than that of its number is refused, whatever tells them apart; the same event,
/// written by another program, is not.
#[tokio::test]
async fn another_event_of_a_number_is_refused_and_never_passed_over() {
    let home = tempfile::tempdir().unwrap();
    let path = home.path().join("events.jsonl");
    let first = r#""type":"a","data":{"x":[1, 2]},"metadata":{"by":"me"},"tags":["p","q"],"time":"2024-01-01T00:00:00Z""#;
    let numbered = format!("\"sequence\":1,{first}");
    let id = |n: u8| format!("\"id\":\"00000000-0000-0000-0000-0000000000{n:02}\",{first}");
    for (first, others) in [
        (
            first.to_owned(),
            vec![
                first.replace("\"a\"", "\"b\""),
                first.replace("[1, 2]", "[1,3]"),
                first.replace("\"me\"", "\"you\""),
                first.replace("\"q\"", "\"r\""),
                first.replace("00:00Z", "00:01Z"),
                id(2),
            ],
        ),
        (numbered.clone(), vec![numbered.replace("[1, 2]", "[]")]),
        (id(1), vec![id(2)]),
    ] {
        let store = target();
        std::fs::write(&path, line("s", &first)).unwrap();
        assert_eq!(import(&options(&path), &store).await.stored, 1);
        for name in ["lines", "day2"] {
            let options = Options {
                name: name.into(),
                ..options(&path)
            };
            for other in &others {
                std::fs::write(&path, format!("\n{}", line("s", other))).unwrap();
                let error = try_import(&options, &store)
                    .await
                    .expect_err(other)
                    .to_string();
                assert!(
                    error.contains("\"s\" number 1 (place 2)")
                        && error.contains("another event of this number, from place 1"),
                    "{error}"
                );
            }
            let same = line("s", &first.replace("[1, 2]", "[ 1,2 ]"));
            std::fs::write(&path, format!("\n\n{same}")).unwrap();
            let again = import(&options, &store).await;
            assert_eq!((again.stored, again.already_stored), (0, 1));
        }
        assert_eq!(imported(&store).await.len(), 1);
    }
}

/// Goal: repeating a file costs no read of a stream for each event, and what a stream hides stays imported.
#[tokio::test]
async fn a_file_of_many_pages_is_repeated_with_its_holes() {
    let home = tempfile::tempdir().unwrap();
    let path = home.path().join("events.jsonl");
    let numbers = (0..12_000_u64).filter(|n| n % 1_000 != 7);
    let text: String = numbers
        .map(|n| {
            let stream = if n % 3 == 0 { "few" } else { "many" };
            line(
                stream,
                &format!("\"sequence\":{n},\"type\":\"t\",\"data\":{n}"),
            )
        })
        .collect();
    std::fs::write(&path, &text).unwrap();
    let store = target();
    let report = import(&options(&path), &store).await;
    assert_eq!((report.read, report.stored), (11_988, 11_988));
    let again = import(&options(&path), &store).await;
    assert_eq!((again.stored, again.already_stored), (0, 11_988));
    // Far behind, one event is another one.
    std::fs::write(&path, text.replace("\"data\":11003}", "\"data\":1}")).unwrap();
    let error = try_import(&options(&path), &store)
        .await
        .expect_err("another")
        .to_string();
    assert!(error.contains("\"many\" number 11003"), "{error}");
    // What the stream does not show any more cannot be compared, and is there.
    let hide = gesta_core::StreamMetadata::parse(r#"{"$tb":3000}"#).unwrap();
    let few = gesta_core::StreamId::new("few").unwrap();
    let request = gesta_core::SetStreamMetadata::new(few, hide);
    store.set_stream_metadata(request).await.unwrap();
    std::fs::write(&path, &text).unwrap();
    let again = import(&options(&path), &store).await;
    assert_eq!((again.stored, again.already_stored), (0, 11_988));
}

/// Goal: events that a command leaves out stay left out when the file comes again.
#[tokio::test]
async fn what_a_command_left_out_does_not_stop_a_repetition() {
    let home = tempfile::tempdir().unwrap();
    let path = home.path().join("events.jsonl");
    let text: String = (1..=3)
        .map(|n| line("s", &format!("\"type\":\"t\",\"data\":{n}")))
        .collect();
    std::fs::write(&path, text).unwrap();
    let command = r#"while read -r l; do n=${l#*:}; n=${n%%,*}; case "$l" in *'"data":2'*) echo "{\"n\":$n,\"leave_out\":true}";; *) echo "{\"n\":$n,\"data\":{}}";; esac; done"#;
    let options = Options {
        transform: Some(command.into()),
        ..options(&path)
    };
    let store = target();
    assert_eq!(import(&options, &store).await.stored, 2);
    let again = import(&options, &store).await;
    assert_eq!(
        (again.stored, again.already_stored, again.left_out_in_all()),
        (0, 2, 1)
    );
}

/// Goal: numbers may begin at 0, and a dry run tells what an import refuses.
#[tokio::test]
async fn numbers_begin_at_0_or_at_1() {
    let home = tempfile::tempdir().unwrap();
    let path = home.path().join("events.jsonl");
    let lines = |numbers: &[u64]| -> String {
        let of = |n: &u64| {
            line(
                "s",
                &format!("\"sequence\":{n},\"type\":\"t\",\"data\":{n}"),
            )
        };
        numbers.iter().map(of).collect()
    };
    for (numbers, missing, beginnings) in [(&[0, 1, 2][..], 0, 0), (&[1, 2], 0, 0), (&[2], 1, 1)] {
        std::fs::write(&path, lines(numbers)).unwrap();
        let store = target();
        for report in [
            dry_run(&options(&path)).await,
            import(&options(&path), &store).await,
        ] {
            assert_eq!(
                (
                    report.stored,
                    report.missing_numbers,
                    report.streams_without_beginning
                ),
                (numbers.len() as u64, missing, beginnings)
            );
        }
        let again = import(&options(&path), &store).await;
        assert_eq!(
            (again.stored, again.already_stored),
            (0, numbers.len() as u64)
        );
    }
    std::fs::write(&path, lines(&[1, 0])).unwrap();
    let report = dry_run(&options(&path)).await;
    assert_eq!((report.stored, report.unmappable), (1, 1));
    let error = try_import(&options(&path), &target())
        .await
        .expect_err("0 after 1");
    assert!(error.to_string().contains("comes after later ones"));
}

/// Goal: what was given as JSON is JSON, also null, numbers and words.
#[tokio::test]
async fn every_json_value_is_json() {
    let home = tempfile::tempdir().unwrap();
    let path = home.path().join("events.jsonl");
    let values = ["null", "1", "\"txt\"", "true", "[]"];
    let mut text: String = values
        .iter()
        .map(|value| {
            line(
                "s",
                &format!("\"type\":\"t\",\"data\":{value},\"tags\":null"),
            )
        })
        .collect();
    // A query that prints both columns has null in one of them.
    text += &line("s", r#""type":"t","data":null,"data_base64":"MQ==""#);
    std::fs::write(&path, text).unwrap();
    let store = target();
    import(&options(&path), &store).await;
    let events = imported(&store).await;
    let told: Vec<_> = events
        .iter()
        .map(|event| (&event.data[..], event.content_type))
        .collect();
    let mut wanted: Vec<_> = values
        .iter()
        .map(|value| (value.as_bytes(), gesta_core::ContentType::Json))
        .collect();
    wanted.push((b"1", gesta_core::ContentType::Binary));
    assert_eq!(told, wanted);
}

/// Follows a file. Each time when its end is reached the next change is made; ends at the first end after the file was
/// opened again so often.
async fn follow(
    path: &std::path::Path,
    store: &std::sync::Arc<gesta_memory::MemoryStore>,
    changes: Vec<Box<dyn Fn() + '_>>,
    opened_again: usize,
) -> gesta_core::Result<()> {
    let options = Options {
        follow: true,
        ..options(path)
    };
    let target = std::sync::Arc::clone(store) as std::sync::Arc<dyn gesta_core::EventStore>;
    let done = tokio::sync::Notify::new();
    let lost = std::cell::Cell::new(0);
    let mut changes = changes.into_iter();
    let observe = |_: &Import, step: &Step| {
        if *step == Step::End {
            match changes.next() {
                Some(change) => change(),
                None if lost.get() == opened_again => done.notify_one(),
                None => {}
            }
        }
    };
    let following = Import::follow(&options, &target, observe, |_| lost.set(lost.get() + 1));
    let both = async {
        tokio::select! {
            result = following => result,
            () = done.notified() => Ok(()),
        }
    };
    let longest = std::time::Duration::from_secs(60);
    tokio::time::timeout(longest, both).await.expect("in time")
}

fn counted(numbers: std::ops::RangeInclusive<u64>) -> String {
    numbers
        .map(|n| {
            line(
                "s",
                &format!("\"sequence\":{n},\"type\":\"t\",\"data\":{n}"),
            )
        })
        .collect()
}

/// Goal: lines that are written to a file of the same name are read, however the file came to be another one.
#[tokio::test]
async fn a_followed_file_that_becomes_another_one_is_read_from_its_beginning() {
    let home = tempfile::tempdir().unwrap();
    let (path, old) = (home.path().join("events.jsonl"), home.path().join("old"));
    let write = |numbers| std::fs::write(&path, counted(numbers)).unwrap();
    // Shorter, of the same length, longer than what was read.
    for rewritten in [4..=4, 4..=6, 2..=6] {
        write(1..=3);
        let store = target();
        let last = *rewritten.end();
        let change: Box<dyn Fn()> = Box::new(|| write(rewritten.clone()));
        follow(&path, &store, vec![change], 1).await.unwrap();
        assert_eq!(imported(&store).await.len() as u64, last);
    }
    // Moved away, with a last line that was not ended; for a moment nothing has the name.
    write(1..=3);
    let store = target();
    let changes: Vec<Box<dyn Fn()>> = vec![
        Box::new(|| {
            std::fs::rename(&path, &old).unwrap();
            std::fs::write(&old, counted(1..=4)).unwrap();
        }),
        Box::new(|| {
            std::fs::write(&old, counted(1..=5).trim_end()).unwrap();
            write(6..=7);
        }),
    ];
    follow(&path, &store, changes, 1).await.unwrap();
    assert_eq!(imported(&store).await.len(), 7);
}

/// Goal: a new file that counts its events again from 1 stops the import, and its events are not taken for the old
/// ones.
#[tokio::test]
async fn a_followed_file_that_counts_anew_is_refused() {
    let home = tempfile::tempdir().unwrap();
    let path = home.path().join("events.jsonl");
    std::fs::write(&path, line("s", "\"type\":\"t\",\"data\":1")).unwrap();
    let change: Box<dyn Fn()> =
        Box::new(|| std::fs::write(&path, line("s", "\"type\":\"t\",\"data\":2")).unwrap());
    let error = follow(&path, &target(), vec![change], 1)
        .await
        .expect_err("another event")
        .to_string();
    assert!(error.contains("another event of this number"), "{error}");
}
