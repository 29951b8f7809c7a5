//! The generator and the checks against a small cinema that keeps its word, and one that does not.

use std::time::Duration;

use bytes::Bytes;
use clap::Parser as _;
use gesta_core::{AllFrom, EventData, EventStoreExt as _, EventType, ExpectedRevision};
use gesta_memory::MemoryStore;
use prost::Message as _;
use tokio_util::sync::CancellationToken;

use super::fake::{Fake, Faults};
use super::ledger::Ledger;
use super::model::{Answer, Fact, Outcome};
use super::*;

#[derive(clap::Parser)]
#[command(args_override_self = true)]
struct Cli {
    #[command(flatten)]
    args: ReservationArgs,
}

fn args(servers: &[&Fake], more: &str) -> ReservationArgs {
    let urls: Vec<String> = servers.iter().map(|server| server.url()).collect();
    let words = [
        "lab",
        "--warm-up",
        "0",
        "--duration",
        "300ms",
        "--seats",
        "10",
        "--shows",
        "20",
    ];
    let words = words.into_iter().map(str::to_owned);
    let urls = urls.into_iter().flat_map(|url| ["--url".to_owned(), url]);
    let more = more.split_whitespace().map(str::to_owned);
    Cli::parse_from(words.chain(urls).chain(more)).args
}

async fn measured(servers: &[&Fake], more: &str) -> Measured {
    let args = args(servers, more);
    let shows = Shows {
        run: Run::random().number(),
        seats: args.seats,
    };
    let stop = CancellationToken::new();
    alone(move || measure(args, shows, Vec::new(), stop))
        .await
        .unwrap()
}

#[tokio::test]
async fn a_closed_loop_fills_shows_and_everything_is_found_again() {
    let fake = Fake::start(Faults::default());
    let run = measured(&[&fake], "--closed 4 --reads 0.1").await;
    assert!(run.verdict.is_clean(), "{:?}", run.verdict);
    let result = &run.steps[0].result;
    assert!(
        run.verdict.shows > 0 && run.verdict.acknowledged > 10,
        "{:?}",
        run.verdict
    );
    for call in [Call::Create, Call::Reserve, Call::Read] {
        let count = result
            .over(|c, o| (c, o) == (call, Outcome::Accepted))
            .count;
        assert!(count > 0, "{call:?}");
    }
    let bad = result.over(|_, outcome| outcome != Outcome::Accepted);
    let unsent = result.unsent.percentiles();
    assert_eq!((bad.count, unsent.count), (0, 0), "{:?}", result.errors);
    assert!(result.complete);
}

/// Goal: closed connections, refusals and lost answers are all told apart, and none is a false alarm.
#[tokio::test]
async fn a_difficult_server_that_keeps_its_word_is_found_clean() {
    let fake = Fake::start(Faults {
        close_every: Some(7),
        silent_every: Some(41),
        refuse_every: Some(5),
        ..Faults::default()
    });
    for more in [
        "--closed 8 --reads 0.2 --scenario concurrent",
        "--open 2000 --connections 16 --active-users 40 --reads 0.2 --scenario serial",
        "--open 2000 --connections 16 --scenario concurrent",
    ] {
        let run = measured(&[&fake], more).await;
        assert!(run.verdict.is_clean(), "{more}: {:?}", run.verdict);
        assert!(run.verdict.answers.unknown > 0, "{more}: {:?}", run.verdict);
        let result = &run.steps[0].result;
        let count = |outcome| result.over(|_, o| o == outcome).count;
        assert!(
            count(Outcome::Refused) > 0 && count(Outcome::Failed) > 0,
            "{more}"
        );
    }
}

#[tokio::test]
async fn a_lost_reservation_is_found() {
    let fake = Fake::start(Faults {
        lose: Some(50),
        ..Faults::default()
    });
    let run = measured(&[&fake], "--closed 4").await;
    assert_eq!(run.verdict.answers.lost, 1, "{:?}", run.verdict);
    assert!(!run.verdict.is_clean());
}

#[tokio::test]
async fn a_seat_sold_twice_is_found() {
    let fake = Fake::start(Faults {
        sell_twice: Some(20),
        ..Faults::default()
    });
    // So few seats that users meet on them.
    let run = measured(
        &[&fake],
        "--closed 16 --scenario concurrent --shows 3 --seats 2",
    )
    .await;
    assert!(run.verdict.answers.held_twice > 0, "{:?}", run.verdict);
}

#[tokio::test]
async fn a_stale_read_of_the_other_server_is_found() {
    let one = Fake::start(Faults::default());
    let good = one.beside(Faults::default());
    let run = measured(
        &[&one, &good],
        "--closed 8 --scenario concurrent --reads 0.3",
    )
    .await;
    assert!(run.verdict.is_clean(), "{:?}", run.verdict);
    for [commands, reads] in &run.steps[0].result.by_server {
        assert!(*commands > 0 && *reads > 0);
    }
    let stale = one.beside(Faults {
        stale_reads: true,
        ..Faults::default()
    });
    let run = measured(
        &[&one, &stale],
        "--closed 8 --scenario concurrent --reads 0.3",
    )
    .await;
    assert!(run.verdict.answers.stale > 0, "{:?}", run.verdict);
}

/// Goal: a server that stops for a while shows in the latencies of all requests that were intended meanwhile.
#[tokio::test]
async fn a_stall_is_counted_from_the_intended_start() {
    let fake = Fake::start(Faults {
        stall: Some((100, Duration::from_millis(300))),
        ..Faults::default()
    });
    let run = measured(
        &[&fake],
        "--open 500 --duration 1s --connections 4 --active-users 20",
    )
    .await;
    let result = &run.steps[0].result;
    let latency = result.overall();
    assert_eq!(latency.count, 500, "every intended request is counted");
    // 150 requests were intended during the stall; half of them waited longer than half of it.
    assert!(latency.p90 > 100.0 && latency.max > 290.0, "{latency:?}");
    assert!(result.connection_wait.percentiles().max > 100.0);
    assert!(result.slots.iter().map(|slot| slot.intended).sum::<u64>() == 500);
    assert!(run.verdict.is_clean(), "{:?}", run.verdict);
}

#[tokio::test]
async fn overload_is_told_with_its_recovery() {
    let fake = Fake::start(Faults {
        refuse_every: Some(3),
        ..Faults::default()
    });
    let more = "--overload 3 --sustainable 200 --closed 4 --connections 16 --reads 0.1";
    let run = measured(&[&fake], more).await;
    assert_eq!(run.steps.len(), 3);
    assert!(overload::goodput(&run.steps[0], &run.steps[1]) > 0.0);
    let mut report = Report::begin("reservation", "", 0);
    tell(&mut report, &args(&[&fake], more), &run);
    let table = report.tables().find(|table| table.title == "Overload");
    for (row, name) in table.unwrap().rows.iter().zip(["refused", "reads"]) {
        assert_eq!(row.cells[0], name.into());
        assert!(row.cells[1].number().unwrap() > 0.0, "{row:?}");
    }
    // It refuses a third for ever.
    let recovered = run.steps[2].result.good_after();
    assert!(recovered.is_none() && report.cautions.iter().any(|c| c.contains("not recover")));
}

/// Goal: the command says no when a promise was broken.
#[tokio::test]
async fn a_broken_promise_is_no_result() {
    let dir = tempfile::tempdir().unwrap();
    for (lose, valid) in [(None, true), (Some(20), false)] {
        let fake = Fake::start(Faults {
            lose,
            ..Faults::default()
        });
        let more = format!("--results {}", dir.path().join("results.jsonl").display());
        let done = run(&args(&[&fake], &more), &CancellationToken::new()).await;
        assert_eq!(done.unwrap(), valid);
    }
}

const SHOWS: Shows = Shows { run: 3, seats: 5 };

/// A ledger with one show, two reservations, one cancellation, one reservation of unknown outcome.
fn ledger() -> Ledger {
    let mut ledger = Ledger::new(SHOWS);
    for (call, seat, outcome) in [
        (Call::Create, 0, Outcome::Accepted),
        (Call::Reserve, 0, Outcome::Accepted),
        (Call::Reserve, 1, Outcome::Accepted),
        (Call::Cancel, 1, Outcome::Accepted),
        (Call::Reserve, 2, Outcome::Failed),
    ] {
        let begin = ledger.tick();
        let answer = Answer {
            outcome,
            fact: Fact::None,
            status: 0,
        };
        let op = Op {
            call,
            show: 0,
            seat,
        };
        ledger.record(op, begin, answer);
    }
    ledger
}

async fn events(of: &[(&str, u32)]) -> stored::StoredCheck {
    let store = MemoryStore::new();
    for (kind, seat_number) in of {
        let data = Bytes::from(
            stored::SeatEvent {
                seat_number: *seat_number,
            }
            .encode_to_vec(),
        );
        let event = EventData::binary(EventType::new(*kind).unwrap(), data);
        let stream = format!("show-{}", SHOWS.id(0));
        let foreign = format!("show-{}", SHOWS.id(9));
        for stream in [stream, foreign] {
            store
                .append_to(
                    &stream,
                    ExpectedRevision::Any,
                    vec![event.clone().with_id(gesta_core::EventId::random())],
                )
                .await
                .unwrap();
        }
    }
    stored::check(&store, AllFrom::Start, &ledger())
        .await
        .unwrap()
}

const CREATED: (&str, u32) = ("show-created.v1", 0);

fn reserved(seat: u32) -> (&'static str, u32) {
    ("seat-reserved.v1", seat)
}

fn cancelled(seat: u32) -> (&'static str, u32) {
    ("seat-reservation-cancelled.v1", seat)
}

#[tokio::test]
async fn events_are_compared_with_what_was_acknowledged() {
    let good = [CREATED, reserved(0), reserved(1), cancelled(1)];
    let check = events(&good).await;
    assert!(check.findings.is_empty() && check.events == 4, "{check:?}");
    let maybe = [&good[..], &[reserved(2)]].concat();
    assert!(events(&maybe).await.findings.is_empty());

    let lost = events(&good[..3]).await;
    assert_eq!((lost.lost, lost.held_twice), (1, 0));
    let twice = events(&[&good[..], &[reserved(0)]].concat()).await;
    assert_eq!((twice.held_twice, twice.uninvited), (1, 1));
    let uninvited = events(&[&good[..], &[reserved(3)]].concat()).await;
    assert_eq!((uninvited.held_twice, uninvited.uninvited), (0, 1));
    let strange = events(&[&good[..], &[("seat-moved", 1), reserved(77)]].concat()).await;
    assert_eq!(strange.unreadable, 2);
    assert_eq!(strange.findings.len(), 2);
}
