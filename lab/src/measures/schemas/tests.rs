//! What a run says of schemas that are faster, slower, close, or no result.

use gesta_report::histogram::Percentiles;
use gesta_report::read_back::ReadBack;

use super::*;

fn phase(connections: u32, rate: f64, mean: f64, p99: f64) -> Phase {
    Phase {
        connections,
        events_per_second: rate,
        complete: true,
        latency_ms: Percentiles {
            count: 9,
            mean,
            p99,
            ..Percentiles::default()
        },
        ..Phase::default()
    }
}

/// What the report says of these schemas, by their names, rates with 16 and 64 connections, and the noise of two
/// rounds.
fn told(schemas: &[(&str, [f64; 2], f64)], change: impl Fn(&mut Vec<Round>)) -> Report {
    let entries = schemas.iter().map(|(name, rates, noise)| {
        let round = |factor: f64| Round {
            phases: vec![
                phase(16, rates[0] * factor, 1.0, 5.0),
                phase(64, rates[1] * factor, 1.0, 5.0),
            ],
            ..Round::default()
        };
        let mut rounds = vec![round(1.0 - noise), round(1.0 + noise)];
        change(&mut rounds);
        let facts = TargetFacts {
            engine: String::new(),
            durability: "full".into(),
            durability_detail: String::new(),
            note: String::new(),
        };
        Entry {
            name: (*name).into(),
            title: (*name).into(),
            facts,
            rounds,
        }
    });
    let mut report = Report::begin("schemas", "Schemas", 7);
    let sizes = Sizes::fixed(500).unwrap();
    let ranking = Ranking::of(entries.collect(), vec![100.0, 100.0], 1);
    ranking.tell(&mut report, &sizes, "Nothing is counted.");
    report.end(true);
    report
}

const FIELD: [(&str, [f64; 2], f64); 6] = [
    ("gesta", [10_000.0, 30_000.0], 0.01),
    ("jdbc", [5_000.0, 4_000.0], 0.01),
    ("r2dbc", [4_500.0, 4_500.0], 0.01),
    ("plain", [5_100.0, 6_000.0], 0.01),
    ("partitioned", [4_440.0, 4_400.0], 0.01),
    ("nested", [100.0, 90.0], 0.01),
];

fn plain(report: &Report) -> String {
    report.to_string().replace('\u{a0}', " ")
}

#[test]
fn schemas_are_ranked() {
    let report = told(&FIELD, |_| {});
    assert!(report.valid, "{report}");
    let text = plain(&report);
    let said = "Gesta carried the most, 30,000 events/s with 99 of 100 appends stored within 100 ms: 5 times the next (plain).";
    assert!(text.contains(said), "{text}");
}

/// Goal: a lead that is smaller than the noise is not sold as one, and who is ahead of Gesta is named.
#[test]
fn leads_and_lags_are_told_as_they_are() {
    let close = [
        ("gesta", [1_000.0, 1_000.0], 0.05),
        ("jdbc", [990.0, 980.0], 0.05),
    ];
    let text = plain(&told(&close, |_| {}));
    let said = "1.01 times the next (jdbc), which is within the noise of ±5 %";
    assert!(text.contains(said), "{text}");
    let slower = [
        ("gesta", [450.0, 900.0], 0.01),
        ("jdbc", [5_000.0, 4_000.0], 0.01),
    ];
    let finding = told(&slower, |_| {}).finding.replace('\u{a0}', " ");
    assert!(
        finding.starts_with("jdbc carried the most, 5,000"),
        "{finding}"
    );
    assert!(
        finding.ends_with("Gesta carried 18 % of that."),
        "{finding}"
    );
}

#[test]
fn a_schema_that_lost_events_or_that_the_generator_limited_makes_no_result() {
    let report = told(&FIELD, |rounds| {
        rounds[1].read_back = Some(ReadBack {
            acknowledged: 9,
            lost: 2,
            ..ReadBack::default()
        });
    });
    let said = "plain, round 2: of 9 acknowledged events 2 lost";
    assert!(!report.valid && plain(&report).contains(said), "{report}");
    let report = told(&FIELD, |rounds| {
        rounds[0].phases[1].generator_limit = Some("late".into());
    });
    assert!(
        !report.valid && plain(&report).contains("at its best, late"),
        "{report}"
    );
}

#[test]
fn a_schema_is_stopped_when_it_is_too_slow_or_stores_nothing() {
    assert_eq!(stopped(&phase(8, 1.0, 500.0, 9_000.0), 7), None);
    let slow = stopped(&phase(8, 1.0, 500.1, 600.0), 0);
    assert_eq!(slow.unwrap(), "average latency 500 ms at 8 connections");
    let mut nothing = phase(8, 0.0, 0.0, 0.0);
    nothing.latency_ms.count = 0;
    nothing.errors.insert("53200: out of memory".into(), 80);
    nothing.retries.insert("40001".into(), 7);
    let failed = stopped(&nothing, 0).unwrap();
    assert_eq!(failed, "failed at 8 connections: 53200: out of memory");
    assert!(
        stopped(&phase(8, 1.0, 1.0, 1.0), 8).is_some(),
        "all gave up"
    );
    nothing.complete = false;
    assert_eq!(stopped(&nothing, 8).unwrap(), "interrupted");
}

/// Goal: L(p) = n·p·S: the connections and rates of all processes are added, and latencies merged, not averaged.
#[test]
fn processes_are_added_up() {
    let post = |events: u64, seconds: f64, millis: u64, complete: bool| {
        let mut run = PhaseRun {
            events,
            appends: events,
            seconds,
            complete,
            gave_up: 1,
            ..PhaseRun::default()
        };
        for _ in 0..events {
            run.latencies.record(Duration::from_millis(millis));
        }
        Post { run, late_ms: 0.0 }
    };
    let posts = [post(950, 1.0, 2, true), post(100, 2.0, 40, true)];
    let (all, each, gave_up) = together(&posts, 6, true);
    assert_eq!((all.connections, gave_up), (12, 2));
    assert!((all.events_per_second - 1_000.0).abs() < 1e-9, "{all:?}");
    assert_eq!(all.latency_ms.count, 1_050);
    assert!(
        all.latency_ms.p50 < 3.0 && all.latency_ms.p99 >= 40.0,
        "{all:?}"
    );
    let own: Vec<(u32, f64)> = each
        .iter()
        .map(|one| (one.connections, one.events_per_second))
        .collect();
    assert_eq!(own, [(6, 950.0), (6, 50.0)]);
    assert!(all.complete && all.generator_limit.is_none());
    let mut late = post(100, 1.0, 2, false);
    late.run.lag.record(Duration::from_millis(500));
    let (all, each, _) = together(&[post(100, 1.0, 2, true), late], 6, false);
    assert!(!all.complete && all.generator_limit.is_some());
    assert!(each[0].generator_limit.is_none() && each[1].generator_limit.is_some());
}

/// What happened: a process that came late for a phase began at once, so that rates of windows were added that hardly
/// overlapped.
#[test]
fn rates_of_different_times_are_no_best() {
    let post = |late_ms: f64| {
        let run = PhaseRun {
            seconds: 1.0,
            complete: true,
            ..PhaseRun::default()
        };
        Post { run, late_ms }
    };
    let limit = |late: &[f64]| {
        let posts: Vec<Post> = late.iter().map(|late| post(*late)).collect();
        together(&posts, 6, true).0.generator_limit
    };
    assert_eq!(limit(&[0.0, 100.0, 3.0]), None);
    assert_eq!(limit(&[500.0]), None);
    // All of them late is together.
    assert_eq!(limit(&[500.0, 501.0]), None);
    let told = limit(&[2.0, 104.0]).unwrap();
    assert_eq!(told, "the load processes began 102 ms apart");
}
