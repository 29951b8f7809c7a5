//! The generator and the checks against a small cinema that keeps its word, and one that does not.

use std::sync::Arc;
use std::time::{Duration, Instant};

use clap::Parser as _;
use gesta_core::{AllFrom, EventData, EventStore, EventStoreExt as _, EventType, ExpectedRevision};
use gesta_kit::verdict::{Kind, Verdict};
use gesta_load::cinema::ledger::Ledger;
use gesta_load::cinema::model::{Answer, Call, Fact, Op, Outcome};
use gesta_load::cinema::stored;
use gesta_memory::MemoryStore;
use prost::Message as _;
use tokio_util::sync::CancellationToken;

use super::fake::{Fake, Faults};
use super::*;

/// No test waits longer for what it has planted.
const PATIENCE: Duration = Duration::from_secs(60);

#[derive(clap::Parser)]
#[command(args_override_self = true)]
struct Cli {
    #[command(flatten)]
    args: ReservationArgs,
}

fn args(servers: &[&Fake], more: &str) -> ReservationArgs {
    let urls: Vec<String> = servers.iter().map(|server| server.url()).collect();
    let short = "lab --warm-up 0 --duration 300ms --seats 10 --shows 20";
    let urls = urls.iter().flat_map(|url| ["--url", url]);
    Cli::parse_from(short.split(' ').chain(urls).chain(more.split_whitespace())).args
}

async fn measured(servers: &[&Fake], more: &str) -> Measured {
    let args = args(servers, more);
    let shows = Shows {
        run: Run::random().number(),
        seats: args.seats,
    };
    let stop = CancellationToken::new();
    alone(move || measure(args, shows, Watched::default(), stop))
        .await
        .unwrap()
}

/// Measures again and again until a run shows what was planted, or something wrong that was not: on a busy machine a
/// run may have a few requests only. The servers count on from run to run.
async fn measured_until(
    servers: &[&Fake],
    more: &str,
    is_shown: impl Fn(&Measured) -> bool,
) -> Measured {
    let begun = Instant::now();
    loop {
        let run = measured(servers, more).await;
        if is_shown(&run) || begun.elapsed() > PATIENCE {
            return run;
        }
    }
}

/// The number of requests with this outcome.
fn count(run: &Measured, outcome: Outcome) -> u64 {
    run.steps[0].result.over(|_, o| o == outcome).count
}

#[tokio::test]
async fn a_closed_loop_fills_shows_and_everything_is_found_again() {
    let fake = Fake::start(Faults::default()).await;
    let calls = [Call::Create, Call::Reserve, Call::Read];
    let accepted = |run: &Measured, call| {
        let result = &run.steps[0].result;
        result
            .over(|c, o| (c, o) == (call, Outcome::Accepted))
            .count
    };
    let run = measured_until(&[&fake], "--closed 4 --reads 0.1", |run| {
        let has_all = calls.iter().all(|call| accepted(run, *call) > 0);
        !run.checks.verdict.is_clean() || has_all && run.checks.acknowledged > 10
    })
    .await;
    let (checks, result) = (&run.checks, &run.steps[0].result);
    assert!(checks.verdict.is_clean(), "{checks:?}");
    assert!(checks.shows > 0 && checks.acknowledged > 10, "{checks:?}");
    for call in calls {
        assert!(accepted(&run, call) > 0, "{call:?}");
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
    })
    .await;
    for more in [
        "--closed 8 --reads 0.2 --scenario concurrent",
        "--open 2000 --connections 16 --active-users 40 --reads 0.2 --scenario serial",
        "--open 2000 --connections 16 --scenario concurrent",
    ] {
        let outcomes = [Outcome::Refused, Outcome::Failed];
        let run = measured_until(&[&fake], more, |run| {
            let has_all = outcomes.iter().all(|outcome| count(run, *outcome) > 0);
            !run.checks.verdict.is_clean() || has_all && run.checks.unknown > 0
        })
        .await;
        let checks = &run.checks;
        assert!(checks.verdict.is_clean(), "{more}: {checks:?}");
        assert!(checks.unknown > 0, "{more}: {checks:?}");
        for outcome in outcomes {
            assert!(count(&run, outcome) > 0, "{more}: {outcome:?}");
        }
    }
}

/// Goal: what a server does to its word is found, and named for what it is.
#[tokio::test]
async fn a_lost_reservation_and_a_seat_sold_twice_are_found() {
    let (lose, sell_twice) = (Some(50), Some(20));
    let losing = Faults {
        lose,
        ..Faults::default()
    };
    let has = |wrong| move |run: &Measured| run.checks.verdict.count(wrong) > 0;
    let fake = Fake::start(losing).await;
    let run = measured_until(&[&fake], "--closed 4", has(Kind::Lost)).await;
    assert_eq!(run.checks.verdict.count(Kind::Lost), 1, "{:?}", run.checks);
    let selling = Faults {
        sell_twice,
        ..Faults::default()
    };
    // So few seats that users meet on them.
    let meeting = "--closed 16 --scenario concurrent --shows 3 --seats 2";
    let fake = Fake::start(selling).await;
    let run = measured_until(&[&fake], meeting, has(Kind::HeldTwice)).await;
    assert!(has(Kind::HeldTwice)(&run), "{:?}", run.checks);
}

#[tokio::test]
async fn a_stale_read_of_the_other_server_is_found() {
    let one = Fake::start(Faults::default()).await;
    for stale_reads in [false, true] {
        let faults = Faults {
            stale_reads,
            ..Faults::default()
        };
        let other = one.beside(faults).await;
        let more = "--closed 8 --scenario concurrent --reads 0.3";
        let is_stale = |run: &Measured| run.checks.verdict.count(Kind::Stale) > 0;
        let reaches_both = |run: &Measured| {
            let by_server = &run.steps[0].result.by_server;
            by_server.iter().flatten().all(|count| *count > 0)
        };
        let run = measured_until(&[&one, &other], more, |run| {
            is_stale(run) || !stale_reads && reaches_both(run)
        })
        .await;
        assert_eq!(is_stale(&run), stale_reads, "{:?}", run.checks);
        if !stale_reads {
            assert!(run.checks.verdict.is_clean(), "{:?}", run.checks);
            assert!(reaches_both(&run));
        }
    }
}

/// Goal: a server that stops for a while shows in the latencies of all requests that were intended meanwhile.
#[tokio::test]
async fn a_stall_is_counted_from_the_intended_start() {
    let load = "--open 500 --duration 1s --connections 4 --active-users 20";
    let begun = Instant::now();
    loop {
        let fake = Fake::start(Faults {
            stall: Some((100, Duration::from_millis(300))),
            ..Faults::default()
        })
        .await;
        let run = measured(&[&fake], load).await;
        let result = &run.steps[0].result;
        let latency = result.served();
        assert_eq!(latency.count, 500, "every intended request is counted");
        assert!(result.slots.iter().map(|slot| slot.intended).sum::<u64>() == 500);
        assert!(run.checks.verdict.is_clean(), "{:?}", run.checks);
        // 150 requests were intended during the stall; half of them waited longer than half of it.
        let waited = result.connection_wait.percentiles().max;
        if latency.p90 > 100.0 && latency.max > 290.0 && waited > 100.0 {
            return;
        }
        // On a busy machine the end may come before the stall.
        assert!(begun.elapsed() < PATIENCE, "{waited} {latency:?}");
    }
}

#[tokio::test]
async fn overload_is_told_with_its_recovery() {
    let fake = Fake::start(Faults {
        refuse_every: Some(3),
        ..Faults::default()
    })
    .await;
    let more = "--overload 3 --sustainable 200 --closed 4 --connections 16 --reads 0.1";
    let run = measured_until(&[&fake], more, |run| {
        let (over, after) = (&run.steps[1], &run.steps[2]);
        let refused = over.result.over(|_, outcome| outcome == Outcome::Refused);
        let reads = over.result.over(|call, _| call == Call::Read);
        refused.count > 0
            && reads.count > 0
            && overload::goodput(&run.steps[0], over) > 0.0
            && after.result.good_after().is_none()
    })
    .await;
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
        let faults = Faults {
            lose,
            ..Faults::default()
        };
        let fake = Fake::start(faults).await;
        let more = format!("--results {}", dir.path().join("results.jsonl").display());
        let (begun, mut is_valid) = (Instant::now(), true);
        // On a busy machine a run may end before the reservation that is lost.
        while is_valid && begun.elapsed() < PATIENCE {
            let done = run(&args(&[&fake], &more), &CancellationToken::new()).await;
            is_valid = done.unwrap();
            if valid {
                break;
            }
        }
        assert_eq!(is_valid, valid);
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
        let (fact, status, show) = (Fact::None, 0, 0);
        let answer = Answer {
            outcome,
            fact,
            status,
        };
        ledger.record(Op { call, show, seat }, begin, answer);
    }
    ledger
}

/// How many events there were, and what is wrong with them.
async fn events(of: &[(&str, u32)]) -> (u64, Verdict) {
    let store: Arc<dyn EventStore> = Arc::new(MemoryStore::new());
    for (kind, seat_number) in of.iter().copied() {
        let data = stored::SeatEvent { seat_number }.encode_to_vec();
        // A foreign show has the same.
        for show in [0, 9] {
            let event = EventData::binary(EventType::new(kind).unwrap(), data.clone());
            let stream = format!("show-{}", SHOWS.id(show));
            let appended = store.append_to(&stream, ExpectedRevision::Any, vec![event]);
            appended.await.unwrap();
        }
    }
    let mut found = Verdict::default();
    let checked = stored::check(&store, AllFrom::Start, &ledger(), &mut found).await;
    (checked.unwrap(), found)
}

#[tokio::test]
async fn events_are_compared_with_what_was_acknowledged() {
    let reserved = |seat| ("seat-reserved.v1", seat);
    let cancelled = |seat| ("seat-reservation-cancelled.v1", seat);
    let created = ("show-created.v1", 0);
    let good = [created, reserved(0), reserved(1), cancelled(1)];
    let (count, found) = events(&good).await;
    assert!(found.is_clean() && count == 4, "{found:?}");
    let (count, found) = events(&[&good[..], &[reserved(2)]].concat()).await;
    assert!(
        found.is_clean() && count == 5,
        "what may have happened: {found:?}"
    );

    let kinds = [
        Kind::NotStored,
        Kind::StoredTwice,
        Kind::Uninvited,
        Kind::Unreadable,
    ];
    for (events_kept, more, wanted) in [
        (3, &[][..], [1, 0, 0, 0]),
        (4, &[reserved(0)], [0, 1, 1, 0]),
        (4, &[reserved(3)], [0, 0, 1, 0]),
        (4, &[("seat-moved", 1), reserved(77)], [0, 0, 0, 2]),
    ] {
        let (_, found) = events(&[&good[..events_kept], more].concat()).await;
        assert_eq!(kinds.map(|kind| found.count(kind)), wanted, "{found:?}");
    }
}

/// Runs a ladder to its end, and tells of it.
async fn ladder_told(fake: &Fake, more: &str) -> (Vec<Step>, Report) {
    let run = measured(&[fake], more).await;
    let mut report = Report::begin("reservation", "Seats", 7);
    tell(&mut report, &args(&[fake], more), &run);
    (run.steps, report)
}

/// Goal: the steps of a ladder come one after the other and all stand in the report, beside the published ones.
#[tokio::test]
async fn a_ladder_climbs_to_its_end() {
    let fake = Fake::start(Faults::default()).await;
    let begun = Instant::now();
    let more = "--steps 100:50:250 --step-duration 400ms --warm-up 100ms --stop-p99 1h";
    let highest = "250 requests/s are the highest step";
    let (steps, report, finding) = loop {
        let (steps, report) = ladder_told(&fake, more).await;
        let finding = report.finding.replace('\u{a0}', " ");
        // On a busy machine a step may be carried out in part, which ends the ladder.
        if finding.starts_with(highest) || begun.elapsed() > PATIENCE {
            break (steps, report, finding);
        }
    };
    let offered: Vec<f64> = steps
        .iter()
        .filter_map(Step::reached)
        .map(|step| step.offered)
        .collect();
    assert_eq!(offered, [100.0, 150.0, 200.0, 250.0], "{report}");
    assert!(finding.starts_with(highest), "{finding}");
    assert_eq!(
        report.setting,
        "serial, a ladder of 100:50:250 req/s, steps of 400\u{a0}ms"
    );
    let rows = |title: &str| {
        report
            .tables()
            .find(|table| table.title.starts_with(title))
            .unwrap()
            .rows
            .len()
    };
    assert_eq!((rows("Steps"), rows("p99 at each rate")), (4, 4 + 32));
}

/// Goal: a ladder ends with the step that breaks the bar, and with one that is not carried out.
#[tokio::test]
async fn a_ladder_ends_where_its_bar_breaks() {
    let refusing = Faults {
        refuse_every: Some(3),
        ..Faults::default()
    };
    // What happened: as long as 97 % were answered, what failed did not count.
    let failing = Faults {
        fail_every: Some(10),
        ..Faults::default()
    };
    for (faults, bar, why) in [
        (Faults::default(), "1us", "is above"),
        (refusing, "1h", "were carried out"),
        (failing, "1h", "requests that failed: "),
    ] {
        let fake = Fake::start(faults).await;
        let more = format!("--steps 200:200:2000 --stop-p99 {bar}");
        let (steps, report) = ladder_told(&fake, &more).await;
        assert_eq!(steps.len(), 1, "{report}");
        let stopped = steps[0].stopped.as_deref().unwrap();
        assert!(stopped.contains(why), "{stopped}");
        assert!(
            report
                .finding
                .starts_with("The first step, 200 requests/s,"),
            "{report}"
        );
        let is_told = |problem: &String| problem.ends_with("failed or were not answered");
        let is_failing = why.starts_with("requests that failed");
        assert_eq!(report.problems.iter().any(is_told), is_failing, "{report}");
    }
}

/// Goal: a server that refuses most makes no result, however soon it does so.
#[tokio::test]
async fn a_server_that_refuses_most_makes_no_result() {
    let fake = Fake::start(Faults {
        refuse_every: Some(1),
        ..Faults::default()
    })
    .await;
    // Nothing is created before the clock starts.
    let run = measured_until(&[&fake], "--closed 4", |run| {
        count(run, Outcome::Refused) > 0
    })
    .await;
    let result = &run.steps[0].result;
    assert_eq!(result.served().count, 0);
    // Of 300 ms each user has slept at least 50 after each refusal.
    assert!(count(&run, Outcome::Refused) <= 4 * 7);
    let mut report = Report::begin("reservation", "", 0);
    tell(&mut report, &args(&[&fake], "--closed 4"), &run);
    let problem = "most requests were refused as overloaded";
    assert!(
        report.problems.iter().any(|it| it.contains(problem)),
        "{report}"
    );
}

/// What happened: a step that was interrupted, and one of a load without a ladder that fell short, were told to have
/// been carried out in full.
#[tokio::test]
async fn a_step_that_fell_short_is_not_told_as_carried_out() {
    let fake = Fake::start(Faults::default()).await;
    let mut run = measured(&[&fake], "--open 100").await;
    for (complete, accepted, wanted) in [(true, 100, "yes"), (false, 100, "no"), (true, 90, "no")] {
        let result = &mut run.steps[0].result;
        (result.complete, result.seconds) = (complete, 1.0);
        result.answered = [accepted, 0, 0, 0];
        let mut report = Report::begin("reservation", "", 0);
        tell(&mut report, &args(&[&fake], "--open 100"), &run);
        let mut tables = report.tables();
        let table = tables.find(|table| table.title.starts_with("p99 at each rate"));
        let table = table.unwrap();
        let at = table.column(ladder::KEPT_UP_TOLD).unwrap();
        assert_eq!(
            table.rows[0].cells[at],
            wanted.into(),
            "{complete} {accepted}"
        );
    }
}

/// What happened: the store of the application was open during the load, one more process that every append told.
#[tokio::test(flavor = "multi_thread")]
async fn the_store_is_not_open_while_the_load_runs() {
    let Some(server) = gesta_rig::shared() else {
        return;
    };
    let url = server.create_database(&gesta_rig::fresh_schema()).unwrap();
    let opened = store::open_url(&url, Duration::ZERO, 1).await.unwrap();
    opened.store.shutdown().await.unwrap();
    let hold = Arc::new(tokio::sync::Semaphore::new(0));
    let fake = Fake::start(Faults {
        hold: Some(Arc::clone(&hold)),
        ..Faults::default()
    })
    .await;
    let folder = tempfile::tempdir().unwrap();
    let results = folder.path().join("results.jsonl");
    let more = format!("--closed 1 --store {url} --results {}", results.display());
    let args = args(&[&fake], &more);
    let stop = CancellationToken::new();
    let looked = async {
        fake.held.notified().await;
        let client = gesta_load::machine::postgres::connect(&url).await.unwrap();
        let begun = Instant::now();
        loop {
            // That of the counters alone, beside our own. What was closed a moment ago may be there still.
            let sql = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()
                       AND backend_type = 'client backend' AND pid <> pg_backend_pid()";
            let others: i64 = client.query_one(sql, &[]).await.unwrap().get(0);
            if others <= 1 || begun.elapsed() > PATIENCE {
                hold.add_permits(1_000_000);
                return others;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    let (done, others) = tokio::join!(drive(&args, &stop), looked);
    let (report, _) = done.unwrap();
    assert_eq!(others, 1);
    // Nothing of what was acknowledged is there, which is found all the same.
    assert!(
        report.problems.iter().any(|it| it.contains("not stored")),
        "{report}"
    );
}

#[test]
fn a_url_of_a_server_holds_no_secret() {
    for url in ["http://u:secret@127.0.0.1:1", "http://127.0.0.1:1/?secret"] {
        let line = format!("lab --url {url}");
        let args = Cli::parse_from(line.split(' ')).args;
        let why = args.targets().unwrap_err().to_string();
        assert!(
            why.contains("is not a URL like") && !why.contains("secret"),
            "{why}"
        );
    }
}

#[test]
fn a_ladder_is_refused_that_cannot_be_meant() {
    let refused = |more: &str| {
        let line = format!("lab --url http://127.0.0.1:1 {more}");
        match Cli::try_parse_from(line.split_whitespace()) {
            Ok(cli) => cli.args.check().unwrap_err().to_string(),
            Err(error) => error.to_string(),
        }
    };
    for (more, rule) in [
        ("--steps 500:250", "three numbers"),
        ("--steps 1:1:5 --open 7", "cannot be used with"),
        ("--steps 1:1:5 --closed 7", "cannot be used with"),
        ("--step-duration 1s", "--steps"),
        (
            "--steps 1:1:5 --step-duration 5s --warm-up 5s",
            "must be longer than --warm-up",
        ),
    ] {
        let why = refused(more);
        assert!(why.contains(rule), "{more}: {why}");
    }
}
