//! The experiment in small, on a throw-away server, and wrong input.

use std::time::Duration;

use clap::Parser as _;
use tokio_util::sync::CancellationToken;

use super::*;

/// No test waits longer for anything.
const SOON: Duration = Duration::from_secs(60);

#[derive(Debug, clap::Parser)]
struct Cli {
    #[command(flatten)]
    args: TagsArgs,
}

fn parse(line: &str) -> TagsArgs {
    Cli::parse_from(std::iter::once("tags").chain(line.split_whitespace())).args
}

/// A server, or none where PostgreSQL is not installed: then the test is skipped aloud, and fails in CI.
fn server() -> Option<gesta_rig::Server> {
    gesta_rig::installed()?;
    Some(store::new_server().unwrap())
}

/// Small pages, short pauses.
fn small<'a>(args: &'a TagsArgs, url: &'a str, watch: &'a Watch) -> Lab<'a> {
    let mut lab = Lab::new(args, url, watch);
    lab.settings = Settings {
        page: 7,
        // One append: how many batches the pipeline makes of several depends on the machine's mood.
        per_append: 100,
        waiters: 1,
        older_tagged: 20,
        idle: Duration::from_millis(200),
        ..lab.settings
    };
    lab
}

async fn schemas_left(url: &str) -> i64 {
    let client = gesta_load::machine::postgres::connect(url).await.unwrap();
    let sql = "SELECT count(*) FROM pg_namespace WHERE nspname LIKE 'gesta\\_lab\\_tags%'";
    client.query_one(sql, &[]).await.unwrap().get(0)
}

#[tokio::test(flavor = "multi_thread")]
async fn every_form_is_measured_and_only_polled_ones_cost_more_for_more_readers() {
    let Some(server) = server() else { return };
    // Each of many readers gets one event, so it reads at least once. The few ones read so rarely that they cannot make
    // up for that while a burst is slow.
    let line = "--events 100 --readers 5 --older 0,1000 --poll 500ms --sweep 3,100";
    let (args, url) = (parse(line), server.url());
    let watch = Watch::start(&url).await.unwrap();
    let mut lab = small(&args, &url, &watch);
    lab.all(&CancellationToken::new()).await.unwrap();
    all_is_right(&lab);
    assert_eq!(schemas_left(&url).await, 0);
    let mut report = Report::begin("tags", "Tags", 7);
    show::tell(&mut report, &lab.forms, &lab.sweep, "");
    report.end(true);
    assert!(report.valid, "{report}");

    if lab.forms[0].burst.spent.appends.is_none() {
        return;
    }
    let (gesta, polled) = (
        queries(&lab, Form::Gesta),
        queries(&lab, Form::TagTableBounded),
    );
    let is_cheap = gesta[0].abs_diff(gesta[1]) <= 5;
    assert!(
        is_cheap && polled[1] >= polled[0] + 20,
        "for 3 and 100 readers: Gesta {gesta:?}, polled {polled:?}"
    );
}

/// Every form gave every reader what it should have.
fn all_is_right(lab: &Lab<'_>) {
    assert_eq!(lab.forms.len(), 2 * 6);
    for result in &lab.forms {
        // A reader without bounds may have passed an event; it must then be told, and only then.
        let is_unbounded = result.form.title().ends_with("unbounded");
        assert!(result.is_right() || is_unbounded, "{result:?}");
        let burst = &result.burst;
        assert_eq!(burst.seconds_to_last.is_some(), burst.faults.is_empty());
        let start = result.from_start.as_ref().unwrap();
        let start = (start.complete_readers, start.faults.len());
        assert_eq!(start, (5, 0), "{result:?}");
        if let Some(appends) = burst.spent.appends {
            assert!(appends >= 1 && burst.spent.queries >= appends, "{result:?}");
        }
    }
}

/// Queries of the sweep's bursts. A busy machine makes more and smaller batches of the same events: what inserts them
/// is not counted.
fn queries(lab: &Lab<'_>, form: Form) -> Vec<u64> {
    let of_form = lab.sweep.iter().filter(|result| result.form == form);
    let reading = of_form.map(|result| {
        let spent = &result.burst.spent;
        spent.queries.saturating_sub(spent.appends.unwrap_or(0))
    });
    reading.collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stopped_run_leaves_nothing_behind() {
    let Some(server) = server() else { return };
    let url = server.url();
    let watch = Watch::start(&url).await.unwrap();
    for form in ["like-bounded", "gesta"] {
        let args = parse(&format!("--forms {form} --older 1000000 --sweep"));
        let mut lab = Lab::new(&args, &url, &watch);
        let stop = CancellationToken::new();
        let stop_it = async {
            // While it is filled.
            let begun = Instant::now();
            while schemas_left(&url).await == 0 {
                assert!(begun.elapsed() < SOON, "{form}: it does not begin");
                tokio::task::yield_now().await;
            }
            stop.cancel();
        };
        let (outcome, ()) = tokio::join!(lab.all(&stop), stop_it);
        outcome.unwrap();
        assert!(lab.forms.is_empty());
        assert_eq!(schemas_left(&url).await, 0);
    }
}

/// An event draws its number, a later one is committed first, readers look, then the first is committed. A look is so
/// rare that the first is not given up before, however busy the machine is.
async fn faults_after_a_late_commit(form: Form, server: &gesta_rig::Server) -> Vec<String> {
    let url = server.url();
    let args = parse("--events 2 --readers 1 --poll 1s");
    let watch = Watch::start(&url).await.unwrap();
    let plan = Lab::new(&args, &url, &watch).plan(1, 0);
    let mut journal = Polled::new(form, &url, plan, &args.settings()).unwrap();
    journal.prepare(&CancellationToken::new()).await.unwrap();
    let mut readers = journal.readers(From::End, None).await.unwrap();
    readers.all_live(SOON).await.unwrap();

    let late = gesta_load::machine::postgres::connect(&url).await.unwrap();
    late.batch_execute("BEGIN").await.unwrap();
    journal.write_through(&late, 0).await.unwrap();
    let early = gesta_load::machine::postgres::connect(&url).await.unwrap();
    journal.write_through(&early, 1).await.unwrap();
    journal.wait_for_reads(2).await;
    late.batch_execute("COMMIT").await.unwrap();

    readers.pen().send_replace(Some(2));
    let outcome = readers.finish(SOON).await.unwrap();
    journal.remove().await.unwrap();
    outcome.faults
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reader_without_bounds_passes_an_event_that_commits_late() {
    let Some(server) = server() else { return };
    let missed = ["reader 0 missed 1 (the first: event 0)"];
    for (form, wanted) in [
        (Form::LikeUnbounded, &missed[..]),
        (Form::TagTableUnbounded, &missed),
        (Form::LikeBounded, &[]),
        (Form::TagTableBounded, &[]),
        (Form::ArrayGin, &[]),
    ] {
        let faults = faults_after_a_late_commit(form, &server).await;
        assert_eq!(faults, wanted, "{form:?}");
    }
}
