//! What the page says of each kind of run.

use super::{count, fixture, page, page_of, parsed, section, shows, text};

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

/// Goal: Gesta with two logs is no rival of Gesta with one; each is compared with the other schemas.
#[test]
fn forms_of_gesta_are_not_compared_with_each_other() {
    let folder = tempfile::tempdir().unwrap();
    let two = folder.path().join("two.jsonl");
    let line = std::fs::read_to_string(fixture("schemas")).unwrap();
    let mut line: serde_json::Value = serde_json::from_str(line.lines().next().unwrap()).unwrap();
    let targets = line["result"]["targets"].as_array_mut().unwrap();
    let mut form = targets
        .iter()
        .find(|target| target["name"] == "gesta")
        .unwrap()
        .clone();
    form["name"] = "gesta-2-logs".into();
    form["title"] = "Gesta, 2 logs".into();
    for round in form["rounds"].as_array_mut().unwrap() {
        for phase in round["phases"].as_array_mut().unwrap() {
            let rate = phase["events_per_second"].as_f64().unwrap();
            phase["events_per_second"] = (rate * 2.0).into();
        }
    }
    targets.push(form);
    std::fs::write(&two, line.to_string()).unwrap();
    let (html, _) = page(&[two]);
    let schemas = text(section(&parsed(&html), "schemas")).replace('\u{a0}', " ");
    for told in [
        "(not published) Gesta is ahead of all from 8 connections on",
        "with 64: 35 % ahead of akka-persistence-postgres, plain",
        "(not published) Gesta, 2 logs is ahead of all from 8 connections on",
        "with 64: 2.7 times akka-persistence-postgres, plain",
    ] {
        assert!(schemas.contains(told), "{told} in {schemas}");
    }
    assert!(!schemas.contains("behind Gesta"), "{schemas}");
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
