//! Short soaks: on real databases that are hurt, and on stores that break their word.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use clap::Parser;
use gesta_core::EventStore;
use tokio_util::sync::CancellationToken;

use super::args::SoakArgs;
use super::door::Door;
use super::faults::World;
use super::run::{Disk, Outcome, behind, soak};
use super::slices::Slice;
use crate::torture::bumpy::{Breach, Bumpy};

#[derive(Debug, Parser)]
struct Cli {
    #[command(flatten)]
    args: SoakArgs,
}

fn args(line: &str) -> SoakArgs {
    Cli::parse_from(std::iter::once("soak").chain(line.split_whitespace())).args
}

type Line = serde_json::Value;

fn lines(results: &Path) -> Vec<Line> {
    let text = std::fs::read_to_string(results).unwrap_or_default();
    // The last may be half written.
    let lines = text
        .lines()
        .map_while(|line| serde_json::from_str(line).ok());
    lines.collect()
}

/// The whole command, until `enough` says so of the lines so far; then all its lines.
async fn command(line: &str, enough: fn(&[Line]) -> bool) -> (bool, Vec<Line>) {
    let dir = tempfile::tempdir().unwrap();
    let results = dir.path().join("results.jsonl");
    let store = match line.contains("--store") {
        true => String::new(),
        false => format!("--store sqlite:{}", dir.path().join("soak.db").display()),
    };
    let args = args(&format!("{line} {store} --results {}", results.display()));
    let stop = CancellationToken::new();
    let watch = async {
        while !enough(&lines(&results)) {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        stop.cancel();
        std::future::pending::<()>().await;
    };
    let valid = tokio::select! {
        valid = super::run(&args, &stop) => valid.unwrap(),
        () = watch => unreachable!("it never ends"),
    };
    (valid, lines(&results))
}

fn never(_: &[Line]) -> bool {
    false
}

fn array(value: &Line) -> &[Line] {
    value.as_array().unwrap()
}

/// What every short soak must tell. Returns the kinds of its faults that have healed.
fn look(lines: &[Line]) -> Vec<&str> {
    let (soak, told) = lines.split_last().unwrap();
    assert_eq!(
        (&soak["kind"], &soak["valid"]),
        (&"soak".into(), &true.into()),
        "{soak:#}"
    );
    let result = &soak["result"];
    let slices = array(&result["slices"]);
    assert_eq!(slices.len(), told.len());
    for (number, line) in told.iter().enumerate() {
        assert_eq!(
            (&line["kind"], &line["complete"]),
            (&"soak-slice".into(), &false.into())
        );
        assert_eq!(line["result"]["number"], number);
        assert_eq!(line["result"]["slice"], slices[number]);
    }
    let events = |name: &str| result["read_back"][name].as_u64().unwrap();
    assert!(events("acknowledged") > 100, "{soak:#}");
    assert_eq!(events("acknowledged"), events("found"));
    let count = |of: &str| {
        let counts = slices
            .iter()
            .map(|slice| slice[of]["count"].as_u64().unwrap());
        counts.sum::<u64>()
    };
    assert!(count("append_ms") > 0 && count("read_ms") > 0 && count("deliver_ms") > 0);
    assert!(
        slices
            .iter()
            .any(|slice| slice["disk_bytes"].as_u64() > Some(0))
    );
    assert!(result["verdict"].is_string());
    let healed = array(&result["faults"])
        .iter()
        .filter(|fault| fault["healed_after_seconds"].as_f64() > Some(0.0));
    healed
        .map(|fault| fault["kind"].as_str().unwrap())
        .collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn sqlite_is_closed_and_opened_under_load_and_keeps_its_word() {
    let line = "--duration 3s --slice 500ms --rate 200 --writers 8 --reads 50 --fault-every 1s --streams 20";
    let (valid, lines) = command(line, never).await;
    assert!(valid);
    assert_eq!(lines.len(), 7);
    assert_eq!(lines[6]["complete"], true);
    assert!(look(&lines).contains(&"reopen"));
}

/// The kinds of the faults in PostgreSQL's soak.
const HURT: [&str; 3] = ["cut", "freeze", "database_kill"];

#[tokio::test(flavor = "multi_thread")]
async fn postgres_is_cut_frozen_and_killed_under_load_and_keeps_its_word() {
    // Loud if PostgreSQL is not installed; a failure where `CI` is set.
    if gesta_pgtest::shared().is_none() {
        return;
    }
    let all_healed = |lines: &[Line]| {
        let faults = |line: &Line| array(&line["result"]["slice"]["faults"]).to_vec();
        let seen: Vec<Line> = lines.iter().flat_map(faults).collect();
        HURT.iter().all(|kind| seen.contains(&(*kind).into()))
            && lines.last().is_some_and(|line| faults(line).is_empty())
    };
    let line = "--store postgres:new --duration 2m --slice 500ms --peak 300ms --share 0.2 --writers 16 \
        --reads 50 --fault-every 1s --faults cut,freeze,database-kill --freeze 300ms --streams 20";
    let (valid, lines) = command(line, all_healed).await;
    assert!(valid);
    let healed = look(&lines);
    assert!(HURT.iter().all(|kind| healed.contains(kind)), "{healed:?}");
    let soak = lines.last().unwrap();
    // It was stopped: all that there was is told.
    assert_eq!(soak["complete"], false);
    assert!(soak["result"]["peak_appends_per_second"].as_f64() > Some(0.0));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_ends_with_its_events_or_when_it_is_stopped() {
    let line = "--until-events 500 --rate 400 --writers 4 --fault-every 0 --slice 10s --streams 20";
    let (valid, lines) = command(line, never).await;
    assert!(valid);
    let result = &lines.last().unwrap()["result"];
    let acknowledged = result["read_back"]["acknowledged"].as_u64().unwrap();
    assert!((500..1_000).contains(&acknowledged), "{acknowledged}");

    let stop = CancellationToken::new();
    stop.cancel();
    let store: Arc<dyn EventStore> = Arc::new(gesta_memory::MemoryStore::new());
    let outcome = on(store, "--rate 400 --writers 4", &stop).await;
    assert!(!outcome.complete && outcome.is_clean(), "{outcome:?}");
    assert_eq!(outcome.slices.len(), 1);
}

/// A short soak without faults on a store of the test's own.
async fn on(store: Arc<dyn EventStore>, line: &str, stop: &CancellationToken) -> Outcome {
    let start = crate::store::end_of(store.as_ref()).await.unwrap();
    let mut world = World {
        door: Door::new(store, None),
        proxy: None,
        round_trip: Duration::ZERO,
        server: None,
    };
    let args = args(&format!("{line} --reads 200 --streams 20"));
    let mut ignore = |_: &Slice, _: usize, _: u64| {};
    soak(
        &args,
        Vec::new(),
        &mut world,
        start,
        &Disk::Unknown,
        &mut ignore,
        stop,
    )
    .await
    .unwrap()
}

async fn with_breach(breach: Breach) -> Outcome {
    let line = "--until-events 600 --rate 2000 --writers 4 --slice 100ms";
    on(
        Arc::new(Bumpy::store(breach)),
        line,
        &CancellationToken::new(),
    )
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_store_that_is_merely_bumpy_is_in_order() {
    let outcome = with_breach(Breach::Bumpy).await;
    assert!(outcome.is_clean(), "{:?}", outcome.problems());
    let errors = outcome.errors();
    assert!(errors["append unavailable"] > 0 && errors["append outcome_unknown"] > 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_store_that_drops_an_event_is_caught() {
    let outcome = with_breach(Breach::Forget).await;
    assert!(!outcome.is_clean());
    assert!(outcome.read_back.as_ref().unwrap().lost > 0, "{outcome:?}");
    let problems = outcome.problems().join("\n");
    assert!(problems.contains("live subscriber 1"), "{problems}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wrong_refusal_is_caught() {
    let outcome = with_breach(Breach::Refuse).await;
    let problems = outcome.problems().join("\n");
    assert!(problems.contains("refused wrongly"), "{problems}");
}

#[test]
fn what_is_due_and_not_begun_is_behind() {
    assert_eq!(behind(100.0, 10.0, 1_000), 0);
    assert_eq!(behind(100.0, 10.0, 900), 100);
    assert_eq!(behind(100.0, 0.001, 5), 0);
}

#[test]
fn the_size_is_asked_of_the_schema_of_the_store() {
    let schema = |url| match Disk::of(url) {
        Disk::Postgres(_, schema) => schema,
        other => panic!("{other:?}"),
    };
    assert_eq!(schema("postgres://h/x"), "gesta");
    assert_eq!(schema("postgres://h/x?a=b&schema=mine"), "mine");
    assert!(matches!(Disk::of("sqlite:x.db"), Disk::File(_)));
    assert!(matches!(Disk::of("http://h"), Disk::Unknown));
}
