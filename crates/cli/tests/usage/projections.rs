//! `gesta projection …` beside a process that runs a projection.

use gesta::projection::{
    ApplyError, Config, OnPoison, Phase, ProjectionId, Projections, View, columns,
};
use gesta::projection_sqlite::SqliteTarget;
use gesta::{Filter, RecordedEvent};
use gesta_core::{EventStoreExt, ExpectedRevision};
use serde_json::Value;

use crate::support::{PATIENCE, code, run, stderr, stdout, succeed, url_of};

columns! {
    struct Total {
        total: i64,
    }
}

/// The sum of the numbers of each stream; text that is no number cannot be applied, but by the second version.
struct Totals<const VERSION: u32>;

impl<const V: u32> View for Totals<V> {
    const NAME: &'static str = "totals";
    const VERSION: u32 = V;
    type Key = String;
    type Row = Total;

    fn filter(&self) -> Filter {
        Filter::category("account")
    }

    fn key(&self, event: &RecordedEvent) -> Option<String> {
        Some(event.stream.as_str().to_owned())
    }

    fn evolve(&self, row: &mut Option<Total>, event: &RecordedEvent) -> Result<(), ApplyError> {
        let number: Result<i64, _> = std::str::from_utf8(&event.data)?.parse();
        let number = if V == 1 { number? } else { number.unwrap_or(0) };
        row.get_or_insert(Total { total: 0 }).total += number;
        Ok(())
    }
}

fn lines(output: &str) -> Vec<Value> {
    let lines = output.lines();
    lines
        .map(|line| serde_json::from_str(line).expect(line))
        .collect()
}

/// Goal: an operator sees how far each version is, what was put aside and why, and steers the process that runs it.
#[test]
fn an_operator_sees_and_steers_projections() {
    let home = tempfile::tempdir().unwrap();
    let store_url = url_of(&home.path().join("events.db"));
    let read = home.path().join("read.db");
    let target = url_of(&read);
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let (store, running) = runtime.block_on(async {
        let opened = gesta::open(&store_url).create().await.expect("opened");
        let store = opened.event_store();
        for (stream, data) in [
            ("account-1", "1"),
            ("account-2", "x"),
            ("account-2", "2"),
            ("other-1", "9"),
        ] {
            let event = gesta::EventData::json(gesta::EventType::new("added").unwrap(), data);
            store
                .append_to(stream, ExpectedRevision::Any, vec![event])
                .await
                .expect("appended");
        }
        let config = Config {
            look_every: std::time::Duration::from_millis(20),
            on_poison: OnPoison::Park,
            ..Config::default()
        };
        let projections = Projections::on(&store, SqliteTarget::at(&read)).config(config);
        let running = projections
            .view(Totals::<1>)
            .start()
            .await
            .expect("started");
        let id = ProjectionId {
            name: "totals".into(),
            version: 1,
        };
        let mut progress = running.progress(&id).expect("it runs");
        let live = progress.wait_for(|progress| progress.phase == Phase::Live);
        let live = tokio::time::timeout(PATIENCE, live).await.expect("in time");
        assert!(live.is_ok());
        drop(live);
        (opened, running)
    });
    let projection = |arguments: &[&str]| {
        let given = ["projection", "--target", &target, "--output", "json"];
        lines(&succeed(&[&given[..], arguments].concat()))
    };
    let list = projection(&["list"]);
    assert_eq!(list.len(), 1);
    assert_eq!(list[0]["name"], "totals");
    assert_eq!(list[0]["state"], "running");
    assert_eq!(
        (&list[0]["events"], &list[0]["parked"]),
        (&1.into(), &2.into())
    );
    assert!(list[0]["owner"].is_string() && list[0]["lag_seconds"].is_null());
    let parked = projection(&["parked", "totals"]);
    assert_eq!(parked.len(), 2);
    assert_eq!(parked[0]["key"], "account-2");
    let why = parked[0]["error"].as_str().expect("a reason");
    assert!(why.contains("invalid digit"), "{why}");
    // The code is as it was: the events stay where they are.
    let answer = projection(&["replay", "totals", "--key", "account-2"]);
    let done = answer[0]["done"].as_str().expect("an answer");
    assert!(done.contains("1 keys stay parked"), "{done}");
    let dropped = projection(&["drop", "totals", "--yes"]);
    assert_eq!(dropped[0]["done"], "2 events were dropped");
    for order in [&["replay", "totals"][..], &["drop", "totals", "--yes"]] {
        assert_eq!(projection(order)[0]["done"], "nothing is parked");
    }
    assert_eq!(projection(&["pause", "totals"])[0]["done"], "is paused");
    assert_eq!(projection(&["show", "totals"])[0]["state"], "paused");
    let waiting = [
        "projection",
        "wait",
        "totals",
        "--target",
        &target,
        "--store",
        &store_url,
    ];
    projection(&["resume", "totals"]);
    let reset = projection(&["rebuild", "totals", "--yes"]);
    assert_eq!(reset[0]["done"], "it was reset");
    // A second version is built beside, and takes the readers.
    let target_of_second = SqliteTarget::at(&read);
    let second = runtime.block_on(async {
        let projections = Projections::on(&store.event_store(), target_of_second);
        let second = projections.view(Totals::<2>).start().await;
        second.expect("started")
    });
    let deadline = std::time::Instant::now() + PATIENCE;
    while projection(&["show", "totals"])[0]["version"] != 2 {
        assert!(std::time::Instant::now() < deadline, "it is not switched");
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    projection(&["switch", "totals", "--version", "1"]);
    assert_eq!(projection(&["show", "totals"])[0]["version"], 1);
    projection(&["retire", "totals", "--version", "2", "--yes"]);
    runtime.block_on(async {
        second.shutdown().await;
        running.shutdown().await;
        store.event_store().shutdown().await.expect("closed");
    });
    // Nobody runs it now, and the store can be asked.
    let text = succeed(&[
        "projection",
        "list",
        "--target",
        &target,
        "--store",
        &store_url,
    ]);
    assert!(
        text.contains("totals v1  active  no process runs it"),
        "{text}"
    );
    assert!(text.contains("lag 0.0 s"), "{text}");
    assert!(succeed(&waiting).contains("shows everything"));
    orders_wait_for_a_process(&store_url, &target, &read);
    let retired = run(&[
        "projection",
        "switch",
        "totals",
        "--version",
        "2",
        "--target",
        &target,
    ]);
    assert_eq!(code(&retired), 2, "{retired:?}");
    let why = "totals v2 was retired: its rows are gone, and its number is not used again; the next one is version 3";
    assert!(stderr(&retired).contains(why), "{retired:?}");
    for (version, code_wanted, why) in [
        ("1", 2, "it is the active version"),
        ("7", 3, "there is no projection totals v7"),
    ] {
        let retire = [
            "projection",
            "retire",
            "totals",
            "--version",
            version,
            "--yes",
        ];
        let refused = run(&[&retire[..], &["--target", &target]].concat());
        assert_eq!(code(&refused), code_wanted, "{refused:?}");
        assert!(stderr(&refused).contains(why), "{refused:?}");
    }
}

/// What happened: an order to a projection that no process runs said after a minute that it *is running*, stored itself
/// anew each time that it was given, and did not say how it gets done. Now it says at once what is missing, and waits
/// once, until a process runs the projection.
fn orders_wait_for_a_process(store_url: &str, target: &str, read: &std::path::Path) {
    for _ in 0..2 {
        let reset = [
            "projection",
            "reset",
            "totals",
            "--yes",
            "--timeout",
            "1ms",
            "--target",
            target,
        ];
        let waits = run(&reset);
        assert_eq!(code(&waits), 5, "{waits:?}");
        let text = stderr(&waits);
        for said in [
            "no process runs totals v1: start the program that keeps it",
            "what was ordered is done by the next one that does",
        ] {
            assert!(text.contains(said), "{text}");
        }
        assert!(!text.contains("is running"), "{text}");
    }
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(async {
        let opened = gesta::open(store_url).await.expect("opened");
        let store = opened.event_store();
        let config = Config {
            on_poison: OnPoison::Park,
            ..Config::default()
        };
        let projections = Projections::on(&store, SqliteTarget::at(read)).config(config);
        let running = projections
            .view(Totals::<1>)
            .start()
            .await
            .expect("started");
        let id = ProjectionId {
            name: "totals".into(),
            version: 1,
        };
        let mut progress = running.progress(&id).expect("it runs");
        let live = progress.wait_for(|progress| progress.phase == Phase::Live);
        let live = tokio::time::timeout(PATIENCE, live).await.expect("in time");
        // Once for the order of before, and once for both of these.
        assert_eq!(live.expect("it runs").resets, 2);
        running.shutdown().await;
        store.shutdown().await.expect("closed");
    });
}

/// Goal: when the store has begun another life, an operator sees why a projection stands, and a reset lets it go on.
#[test]
fn an_operator_resets_a_projection_of_another_life() {
    let home = tempfile::tempdir().unwrap();
    let store_url = url_of(&home.path().join("events.db"));
    let read = home.path().join("read.db");
    let target = url_of(&read);
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let projection = |arguments: &[&str]| {
        let given = ["projection", "--target", &target, "--output", "json"];
        lines(&succeed(&[&given[..], arguments].concat()))
    };
    let until_state = |state: &str| {
        let deadline = std::time::Instant::now() + PATIENCE;
        loop {
            let shown = projection(&["show", "totals"]).remove(0);
            if shown["state"] == state && (state != "running" || shown["events"] == 1) {
                return shown;
            }
            assert!(std::time::Instant::now() < deadline, "{shown}");
            std::thread::sleep(std::time::Duration::from_millis(20));
        }
    };
    let start = || {
        runtime.block_on(async {
            let opened = gesta::open(&store_url).create().await.expect("opened");
            let config = Config {
                look_every: std::time::Duration::from_millis(20),
                ..Config::default()
            };
            let store = opened.event_store();
            let projections = Projections::on(&store, SqliteTarget::at(&read)).config(config);
            let running = projections.view(Totals::<1>).start().await;
            (store, running.expect("started"))
        })
    };
    let (store, running) = start();
    runtime.block_on(async {
        let event = gesta::EventData::json(gesta::EventType::new("added").unwrap(), "1");
        let appended = store.append_to("account-1", ExpectedRevision::Any, vec![event]);
        appended.await.expect("appended");
    });
    until_state("running");
    runtime.block_on(async {
        running.shutdown().await;
        store.shutdown().await.expect("closed");
    });
    succeed(&["schema", "new-incarnation", "--yes", "--store", &store_url]);
    let (store, running) = start();
    let stopped = until_state("stopped");
    let why = stopped["error"].as_str().expect("a reason");
    assert!(why.contains("the store was restored or replaced"), "{why}");
    let reset = projection(&["reset", "totals", "--yes"]);
    assert_eq!(reset[0]["done"], "it was reset");
    until_state("running");
    runtime.block_on(async {
        running.shutdown().await;
        store.shutdown().await.expect("closed");
    });
}

#[test]
fn wrong_targets_of_projections_are_refused() {
    let none = run(&["projection", "list"]);
    assert_eq!(code(&none), 2, "{none:?}");
    assert!(stderr(&none).contains("--target sqlite:PATH"), "{none:?}");
    let wrong = run(&["projection", "list", "--target", "mysql://a:secret@b/c"]);
    assert_eq!(code(&wrong), 2, "{wrong:?}");
    assert!(!stderr(&wrong).contains("secret"), "{wrong:?}");
    let home = tempfile::tempdir().unwrap();
    let missing = url_of(&home.path().join("none.db"));
    let missing = run(&["projection", "list", "--target", &missing]);
    assert_eq!(code(&missing), 3, "{missing:?}");
    assert_eq!(std::fs::read_dir(home.path()).unwrap().count(), 0);
    let read = home.path().join("read.db");
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let made = SqliteTarget::at(&read);
    let made = gesta::projection::Target::migrate(&made);
    runtime.block_on(made).expect("made");
    let read = url_of(&read);
    let unknown = run(&["projection", "show", "nothing", "--target", &read]);
    assert_eq!(code(&unknown), 3, "{unknown:?}");
    let unsure = run(&["projection", "reset", "nothing", "--target", &read]);
    assert_eq!(code(&unsure), 3, "{unsure:?}");
}

/// Goal: an index is made and kept by a command, and gives the events that have a value.
#[test]
fn events_are_found_by_an_index() {
    let home = tempfile::tempdir().unwrap();
    let store = url_of(&home.path().join("events.db"));
    let target = url_of(&home.path().join("read.db"));
    for (stream, data) in [
        ("order-1", r#"{"customer": {"id": "7"}, "total": 3}"#),
        ("order-2", r#"{"customer": {"id": "8"}, "total": 4}"#),
        ("other-1", r#"{"customer": {"id": "7"}}"#),
    ] {
        let append = [
            "stream", "append", stream, "--type", "placed", "--data", data,
        ];
        succeed(&[&["--store", &store][..], &append].concat());
    }
    let places = ["--store", &store, "--target", &target];
    let make = [
        "index",
        "run",
        "orders",
        "--category",
        "order",
        "--path",
        "customer.id",
        "--path",
        "total:number",
        "--once",
    ];
    let made = succeed(&[&make[..], &places].concat());
    assert!(made.contains("index orders v1"), "{made}");
    let find = |values: &[&str]| {
        let given = ["index", "find", "orders", "--output", "json"];
        lines(&succeed(&[&given[..], values, &places].concat()))
    };
    let found = find(&["customer.id=7"]);
    assert_eq!(found.len(), 1, "{found:?}");
    assert_eq!(found[0]["stream"], "order-1");
    assert_eq!(find(&["customer.id=7", "total=4"]), Vec::<Value>::new());
    let list = succeed(&["projection", "list", "--target", &target]);
    assert!(list.contains("orders v1  active"), "{list}");
    // A version with other paths is built beside, and `--once` ends when readers see it.
    let versions = |name: &[&str]| {
        let list = ["index", "list", "--target", &target, "--output", "json"];
        lines(&succeed(&[&list[..], name].concat()))
    };
    let second = [
        "index",
        "run",
        "orders",
        "--version",
        "2",
        "--path",
        "customer.id",
        "--once",
    ];
    let second = succeed(&[&second[..], &["--category", "order"], &places].concat());
    assert!(
        second.contains("index orders v2 shows everything"),
        "{second}"
    );
    assert!(!second.contains("another version"), "{second}");
    let found = versions(&["orders"]);
    let seen: Vec<_> = found
        .iter()
        .map(|version| (&version["version"], &version["life"]))
        .collect();
    assert_eq!(
        seen,
        [
            (&1.into(), &"previous".into()),
            (&2.into(), &"active".into())
        ]
    );
    assert_eq!(
        found[0]["paths"],
        serde_json::json!(["customer.id:text", "total:number"])
    );
    assert_eq!(
        (versions(&[]).len(), found[0]["events"].as_i64()),
        (2, Some(2))
    );
    let shown = succeed(&["index", "list", "--target", &target]);
    assert!(
        shown.contains("orders v2  active") && shown.contains("customer.id:text"),
        "{shown}"
    );
    let elsewhere = run(&["index", "list", "--target", &store]);
    assert!(
        stderr(&elsewhere).contains("no projections and no indexes in this file"),
        "{elsewhere:?}"
    );
    let unknown = run(&["index", "list", "order", "--target", &target]);
    assert_eq!(code(&unknown), 3, "{unknown:?}");
    assert!(
        stderr(&unknown).contains("no index \"order\""),
        "{unknown:?}"
    );
    succeed(&[
        "projection",
        "switch",
        "orders",
        "--version",
        "1",
        "--target",
        &target,
    ]);
    // Other paths under the same version.
    let other = ["index", "run", "orders", "--path", "customer.id", "--once"];
    let other = run(&[&other[..], &places].concat());
    assert_eq!(code(&other), 2, "{other:?}");
    let why =
        "index orders v1 is there already, with other paths or another filter: give --version 3";
    assert!(stderr(&other).contains(why), "{other:?}");
    a_version_that_nobody_reads_says_so(&places, &make);
    for (wrong, why) in [
        (
            &["index", "find", "orders", "colour=7"][..],
            "no path \"colour\"",
        ),
        (&["index", "find", "orders", "colour"], "PATH=VALUE"),
        (&["index", "find", "orders", "total=x"], "are numbers"),
        (
            &["index", "run", "Orders", "--path", "a"],
            "the name of an index",
        ),
    ] {
        let refused = run(&[wrong, &places].concat());
        assert_eq!(code(&refused), 2, "{refused:?}");
        assert!(stderr(&refused).contains(why), "{refused:?}");
    }
}

/// What happened: `index run` on a version that was retired ended with "shows everything", and then with the advice to
/// resume it, which answered that there was no such version. Now its number is refused, whatever is done with it; and a
/// version from which the readers were taken says that.
fn a_version_that_nobody_reads_says_so(places: &[&str], make: &[&str]) {
    let target = ["--target", places[3]];
    let steer = |what: &str, version: &str| {
        let steer = ["projection", what, "orders", "--version", version];
        succeed(&[&steer[..], &target].concat())
    };
    steer("switch", "2");
    let before = succeed(&[make, places].concat());
    let switch = "readers see another version until it is switched to: `gesta projection switch orders --version 1`";
    assert!(before.contains(switch), "{before}");
    steer("switch", "1");
    let retire = ["projection", "retire", "orders", "--version", "2", "--yes"];
    succeed(&[&retire[..], &target].concat());
    let run_retired = [
        "index",
        "run",
        "orders",
        "--version",
        "2",
        "--category",
        "order",
        "--path",
        "customer.id",
    ];
    let retired = "orders v2 was retired: its rows are gone, and its number is not used again";
    for (command, cure) in [
        (
            [&run_retired[..], &["--once"], places].concat(),
            "give --version 3",
        ),
        ([&run_retired[..], places].concat(), "give --version 3"),
        // With other paths as well.
        (
            [&run_retired[..], &["--path", "total", "--once"], places].concat(),
            "give --version 3",
        ),
        (
            [
                &["projection", "resume", "orders", "--version", "2"],
                &target[..],
            ]
            .concat(),
            "version 3",
        ),
        (
            [
                &["projection", "pause", "orders", "--version", "2"],
                &target[..],
            ]
            .concat(),
            "version 3",
        ),
        (
            [
                &["projection", "reset", "orders", "--version", "2", "--yes"],
                &target[..],
            ]
            .concat(),
            "version 3",
        ),
    ] {
        let refused = run(&command);
        assert_eq!(code(&refused), 2, "{command:?}: {refused:?}");
        let text = stderr(&refused);
        assert!(
            text.contains(retired) && text.contains(cure),
            "{command:?}: {text}"
        );
        assert_eq!(stdout(&refused), "", "{command:?}: {refused:?}");
    }
}
