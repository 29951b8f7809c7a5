//! `gesta import`: the journals of other systems.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    missing_docs,
    reason = "tests"
)]

mod support;

use std::io::{BufRead, BufReader};
use std::process::Stdio;

use serde_json::Value;
use support::{Limit, code, gesta, run, stderr, succeed, url_of};

/// Statements that make a journal of akka-persistence-jdbc with this many events of four entities.
fn journal_of(events: u64) -> String {
    format!(
        "CREATE TABLE event_journal (ordering bigserial UNIQUE, persistence_id varchar(255) NOT NULL,
             sequence_number bigint NOT NULL, deleted boolean NOT NULL DEFAULT false, writer varchar(255) NOT NULL DEFAULT 'w',
             write_timestamp bigint DEFAULT 1700000000000, adapter_manifest varchar(255), event_ser_id int NOT NULL DEFAULT 33,
             event_ser_manifest varchar(255) NOT NULL DEFAULT 'bank.Deposited', event_payload bytea NOT NULL,
             meta_ser_id int, meta_ser_manifest varchar(255), meta_payload bytea,
             PRIMARY KEY (persistence_id, sequence_number));
         {}",
        more_of(0, events)
    )
}

fn more_of(from: u64, upto: u64) -> String {
    format!(
        "INSERT INTO event_journal (persistence_id, sequence_number, event_payload)
         SELECT 'Account|' || n % 4, n / 4 + 1, convert_to('{{\"n\":' || n || '}}', 'UTF8')
         FROM generate_series({from}, {upto} - 1) n ORDER BY n;"
    )
}

/// Goal: the journal of another system is counted, imported, followed while it is written and both sides are killed,
/// and each event is there once.
#[test]
fn a_journal_is_imported_and_followed_through_kills() {
    let Some(server) = gesta_rig::shared() else {
        return;
    };
    let name = gesta_rig::fresh_schema();
    let source = support::patient(&format!("{}?application_name={name}", server.url()));
    let run_sql = |sql: String| {
        let sql = format!("SET search_path TO {name}; {sql}");
        server.execute(&sql).unwrap();
    };
    server.execute(&format!("CREATE SCHEMA {name}")).unwrap();
    run_sql(journal_of(1_000));
    let home = tempfile::tempdir().unwrap();
    let store = url_of(&home.path().join("new.db"));
    let kind = ["--kind", "pekko-persistence-jdbc", "--schema", &name];
    let report = |more: &[&str]| -> Value {
        let all = [
            &["import", &source, "--store", &store, "--output", "json"],
            &kind[..],
            more,
        ]
        .concat();
        serde_json::from_str(&succeed(&all)).unwrap()
    };
    let dry = report(&["--dry-run", "--types", "short"]);
    assert_eq!(
        (&dry["stored"], &dry["streams"], &dry["unmappable"]),
        (&1_000.into(), &4.into(), &0.into())
    );
    assert!(
        !home.path().join("new.db").exists(),
        "a dry run makes no store"
    );
    let first = report(&["--types", "short"]);
    assert_eq!(
        (&first["stored"], &first["displaced"]),
        (&1_000.into(), &0.into())
    );
    // All events stand in the order of the source, although many appends were on their way at once.
    let all = succeed(&["all", "read", "--store", &store, "--output", "json"]);
    let events = all
        .lines()
        .map(|line| serde_json::from_str::<Value>(line).unwrap());
    let imported = events.filter(|event| !event["stream"].as_str().unwrap().starts_with('$'));
    let places: Vec<u64> = imported
        .map(|event| {
            event["metadata"]["$source"]["place"]
                .as_str()
                .unwrap()
                .parse()
                .unwrap()
        })
        .collect();
    assert_eq!(places, (1..=1_000).collect::<Vec<_>>());
    let refused = run(&[&["import", &source, "--store", &store][..], &kind[..]].concat());
    assert_eq!(code(&refused), 1, "{}", stderr(&refused));
    assert!(
        stderr(&refused).contains("begun with another rule for types"),
        "{}",
        stderr(&refused)
    );

    for round in 0..4 {
        let mut follower = gesta(
            &[
                &[
                    "import", &source, "--store", &store, "--follow", "--types", "short",
                ][..],
                &kind[..],
            ]
            .concat(),
        )
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
        let _limit = Limit::of(&follower);
        let said = BufReader::new(follower.stderr.take().unwrap()).lines();
        let (from, upto) = (1_000 + round * 500, 1_500 + round * 500);
        run_sql(more_of(from, from + 250));
        if round % 2 == 1 {
            run_sql(format!(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = '{name}'"
            ));
        }
        run_sql(more_of(from + 250, upto));
        let mut lines = said.map_while(Result::ok);
        assert!(
            lines.any(|line| line.starts_with("caught up: ")),
            "round {round}"
        );
        follower.kill().unwrap();
        follower.wait().unwrap();
    }
    let last = report(&["--types", "short"]);
    assert!(last["place"].as_str().unwrap().parse::<u64>().unwrap() >= 3_000);
    for account in 0..4 {
        let stream = format!("account-{account}");
        let events = succeed(&[
            "stream", "read", &stream, "--store", &store, "--output", "json",
        ]);
        let numbers: Vec<u64> = events
            .lines()
            .map(|line| {
                let event: Value = serde_json::from_str(line).unwrap();
                assert_eq!(event["type"], "Deposited");
                event["data"]["n"].as_u64().unwrap()
            })
            .collect();
        assert_eq!(
            numbers,
            (0..750).map(|n| n * 4 + account).collect::<Vec<_>>()
        );
    }
    let wrong = run(&[
        "import",
        "sqlite:x.db",
        "--kind",
        "marten",
        "--store",
        &store,
    ]);
    assert_eq!(code(&wrong), 2);
    assert!(
        stderr(&wrong).contains("must be postgres://… for the kind marten"),
        "{}",
        stderr(&wrong)
    );
}
