//! What a run says of schemas that are faster, slower, close, or no result.

use clap::Parser;

use super::SchemasArgs;
use super::contest::Round;
use super::ranking::{Ranking, Row};
use crate::histogram::Percentiles;
use crate::report::Report;
use crate::target::{Phase, ReadBack};

#[derive(Parser)]
struct Cli {
    #[command(flatten)]
    args: SchemasArgs,
}

/// Two rounds of each: what it carries with 16 and with 64 connections.
fn rounds(rates: [f64; 2], noise: f64) -> Vec<Round> {
    let phase = |connections: u32, rate: f64| Phase {
        connections,
        events_per_second: rate,
        complete: true,
        latency_ms: Percentiles {
            count: 9,
            p99: 5.0,
            ..Percentiles::default()
        },
        ..Phase::default()
    };
    let round = |factor: f64| Round {
        phases: vec![phase(16, rates[0] * factor), phase(64, rates[1] * factor)],
        ..Round::default()
    };
    vec![round(1.0 - noise), round(1.0 + noise)]
}

/// What the report says of these schemas: their names, rates with 16 and 64 connections, and the noise.
fn told(schemas: &[(&'static str, [f64; 2], f64)], change: impl Fn(&mut Vec<Round>)) -> Report {
    let args = Cli::parse_from(["schemas"]).args;
    let all: Vec<(&str, Vec<Round>)> = schemas
        .iter()
        .map(|(name, rates, noise)| {
            let mut rounds = rounds(*rates, *noise);
            change(&mut rounds);
            (*name, rounds)
        })
        .collect();
    let rows = all
        .iter()
        .map(|(name, rounds)| Row::of(name, name, rounds, &args));
    let mut report = Report::begin("schemas", "Schemas", 7);
    Ranking::ranked(rows.collect(), &args, &[], Vec::new()).tell(&mut report);
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
fn schemas_are_ranked_and_the_published_relations_are_looked_for() {
    let report = told(&FIELD, |_| {});
    assert!(report.valid, "{report}");
    assert_eq!(
        report.finding.replace('\u{a0}', " "),
        "Gesta carried the most, 30,000 events/s with 99 of 100 appends stored within 100 ms: 5 times the next (plain) \
         and 300 times the last (nested)."
    );
    let text = plain(&report);
    for row in [
        "nested partitions collapse",
        "1.7 % of the best of jdbc, plain and r2dbc",
        "74 % of plain",
        "the lowest has 75 % of the highest",
        "ahead at 2 of 2 numbers of connections; with 16: 96 % ahead of plain; with 64: 5 times plain",
    ] {
        assert!(text.contains(row), "{row} in {text}");
    }
    assert!(
        !text.contains("no, ") && !text.contains("the noise of"),
        "{text}"
    );
}

/// Goal: a lead that is smaller than the noise is not sold as one, nor a lag.
#[test]
fn what_is_less_than_the_noise_is_said_to_be() {
    let noisy = FIELD.map(|(name, rates, _)| (name, rates, 0.6));
    let text = plain(&told(&noisy, |_| {}));
    assert!(
        text.contains("within the noise of ±60 %") || text.contains("yes, by less than the noise"),
        "{text}"
    );
    let close = [
        ("gesta", [1_000.0, 1_000.0], 0.05),
        ("jdbc", [990.0, 980.0], 0.05),
    ];
    let text = plain(&told(&close, |_| {}));
    assert!(
        text.contains("1.01 times the next (jdbc), which is within the noise of ±5 %"),
        "{text}"
    );
    assert!(text.contains("yes, by less than the noise"), "{text}");
}

/// Goal: where another schema is ahead the report says which, with how many connections, and by how much.
#[test]
fn a_schema_that_is_ahead_of_gesta_is_named() {
    let behind = [
        ("gesta", [4_500.0, 9_000.0], 0.01),
        ("jdbc", [5_000.0, 4_000.0], 0.01),
    ];
    let text = plain(&told(&behind, |_| {}));
    assert!(
        text.contains("ahead at 1 of 2 numbers of connections; with 16: 10 % behind jdbc"),
        "{text}"
    );
    let slower = [
        ("gesta", [450.0, 900.0], 0.01),
        ("jdbc", [5_000.0, 4_000.0], 0.01),
    ];
    let told = told(&slower, |_| {}).finding.replace('\u{a0}', " ");
    assert!(
        told.starts_with("jdbc carried the most, 5,000")
            && told.ends_with("Gesta carried 18 % of that."),
        "{told}"
    );
}

/// Goal: Gesta with two logs is no rival of Gesta with one; each is compared with the other schemas.
#[test]
fn forms_of_gesta_are_not_compared_with_each_other() {
    let forms = [
        FIELD[0],
        ("gesta-2-logs", [20_000.0, 60_000.0], 0.01),
        FIELD[1],
    ];
    let text = plain(&told(&forms, |_| {}));
    assert!(
        text.contains("(not published) gesta is ahead of all from 8 connections on"),
        "{text}"
    );
    assert!(
        text.contains("(not published) gesta-2-logs is ahead of all from 8 connections on"),
        "{text}"
    );
    assert!(!text.contains("behind gesta"), "{text}");
}

#[test]
fn a_schema_that_lost_events_makes_no_result() {
    let report = told(&FIELD, |rounds| {
        rounds[1].read_back = Some(ReadBack {
            acknowledged: 9,
            lost: 2,
            ..ReadBack::default()
        });
    });
    assert!(
        !report.valid && plain(&report).contains("plain, round 2: of 9 acknowledged events 2 lost"),
        "{report}"
    );
    let report = told(&FIELD, |rounds| {
        rounds[0].phases[1].generator_limit = Some("late".into())
    });
    assert!(
        !report.valid && plain(&report).contains("at its best, late"),
        "{report}"
    );
}
