//! The commands that measure, end to end and short: real processes, the lines that they leave, the page.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    missing_docs,
    reason = "tests"
)]

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use gesta_report::{Cell, Part, Report, Row, Table};

/// How long a command is run again because the machine was too busy for it to show everything.
const PATIENCE: Duration = Duration::from_secs(300);

/// Runs a command in a directory; gives the last line of its results.
fn report(directory: &Path, command: &str) -> Report {
    let mut lab = Command::new(env!("CARGO_BIN_EXE_gesta-lab"));
    lab.current_dir(directory).args(command.split(' '));
    let output = lab.output().unwrap();
    let [said, complained] = [output.stdout, output.stderr].map(String::from_utf8);
    let said = format!("{}\n{}", said.unwrap(), complained.unwrap());
    let lines = std::fs::read_to_string(directory.join("gesta-lab.jsonl")).expect(&said);
    let report: Report = serde_json::from_str(lines.lines().last().unwrap()).unwrap();
    assert!(report.complete, "{said}");
    let read_backs = report.checks.iter().map(|check| &check.read_back);
    let mut clean = read_backs.map(|found| found.is_clean() && found.acknowledged > 0);
    assert!(clean.len() > 0 && clean.all(|clean| clean), "{said}");
    report
}

/// Runs a command in a new directory, and again until its report has enough in it: on a busy machine a phase may be
/// over before anything has happened in it. What each run has stored must be right.
fn report_until(
    command: impl Fn() -> String,
    has_enough: impl Fn(&Report) -> bool,
) -> (tempfile::TempDir, Report) {
    let begun = Instant::now();
    loop {
        let directory = tempfile::tempdir().unwrap();
        let report = report(directory.path(), &command());
        if has_enough(&report) {
            return (directory, report);
        }
        assert!(begun.elapsed() < PATIENCE, "{report}");
    }
}

/// Makes a database of its own for a run, and returns its URL.
fn database(server: &gesta_rig::Server) -> String {
    let name = gesta_rig::fresh_schema();
    server.create_database(&name).unwrap()
}

fn table<'a>(report: &'a Report, title: &str) -> &'a Table {
    let mut tables = report.tables();
    tables.find(|table| table.title == title).unwrap()
}

/// The cell of a row in the column of this name.
fn cell<'a>(table: &Table, row: &'a Row, name: &str) -> &'a Cell {
    let mut columns = table.columns.iter();
    &row.cells[columns.position(|column| column.name == name).unwrap()]
}

/// Goal: `quick` leaves a line, a page, and nothing else.
///
/// What happened on PostgreSQL: the bare INSERT, which was measured after the store had been made, removed the schema
/// that both use, and every append failed.
#[test]
fn quick_answers_with_a_page() {
    let on_postgres = gesta_rig::shared().map(Some);
    for server in std::iter::once(None).chain(on_postgres) {
        let quick = || {
            let store = server.map(|server| format!(" --store {}", database(server)));
            let store = store.unwrap_or_default();
            format!("quick --phase 200ms --sizes 300{store}")
        };
        let (directory, report) = report_until(quick, |report| {
            let acknowledged = report.checks[0].read_back.acknowledged;
            // A machine that other programs use gets no number.
            let answers = ["The limit is", "Other programs used"];
            acknowledged > 100 && answers.iter().any(|text| report.finding.contains(text))
        });
        assert_eq!(report.tables().next().unwrap().rows.len(), 4, "{report}");
        let page = std::fs::read_to_string(directory.path().join("gesta-lab.html")).unwrap();
        assert!(page.contains("What this database carries"));
        let left = std::fs::read_dir(directory.path()).unwrap();
        let left: BTreeSet<_> = left.map(|entry| entry.unwrap().file_name()).collect();
        let is_all = left.iter().eq(["gesta-lab.html", "gesta-lab.jsonl"]);
        assert!(is_all, "{left:?}");
    }
}

/// Goal: journals and Gesta are measured step by step, and what they stored is read back.
#[test]
fn schemas_are_measured() {
    if gesta_rig::shared().is_none() {
        return;
    }
    let short = "schemas --schemas gesta,jdbc --step 2 --max 4 --phase 1s --rounds 2 --sizes 500";
    // A schema that is slow or stores nothing at all is not asked for more.
    let (_, report) = report_until(
        || short.to_owned(),
        |report| table(report, "Every phase").rows.len() == 8,
    );
    assert_eq!(report.store.as_ref().unwrap().durability, "full");
    assert_eq!(report.tables().next().unwrap().rows.len(), 2, "{report}");
    assert_eq!(report.checks.len(), 4, "two schemas, two rounds");
    let phases = table(&report, "Every phase");
    let rows = phases.rows.iter().map(|row| {
        let connections = cell(phases, row, "connections").number().unwrap();
        (cell(phases, row, "schema"), connections)
    });
    let rows: Vec<_> = rows.collect();
    for schema in [rows[0].0, rows[4].0] {
        let of = rows.iter().filter(|(name, _)| *name == schema);
        let connections: Vec<f64> = of.map(|(_, connections)| *connections).collect();
        assert_eq!(connections, [2.0, 4.0, 2.0, 4.0], "{schema:?}: {report}");
    }
    assert!(rows.len() == 8 && rows[0].0 != rows[4].0, "{report}");
}

/// The connections of a process in each row of a table, and the names of the processes.
fn processes(report: &Report) -> Vec<(Cell, Option<f64>, Option<f64>)> {
    let table = table(report, "Every process in every phase");
    let rows = table.rows.iter().map(|row| {
        let number = |name: &str| cell(table, row, name).number();
        let of_all = number("connections of all");
        (
            cell(table, row, "process").clone(),
            number("its connections"),
            of_all,
        )
    });
    rows.collect()
}

/// Goal: several processes load in step, each with connections and events of its own, all of it is read back, and what
/// the database did stands beside it.
#[test]
fn several_processes_load_in_step() {
    if gesta_rig::shared().is_none() {
        return;
    }
    let short = "schemas --schemas gesta,akka-net-column --processes 2 --step 2 --max 4 --phase 1s --rounds 1 --sizes 500";
    let (_, report) = report_until(
        || short.to_owned(),
        |report| table(report, "Every phase").rows.len() == 4,
    );
    assert!(
        report.setting.ends_with("2 load processes in step"),
        "{report}"
    );
    let phases = table(&report, "Every phase");
    let connections = phases
        .rows
        .iter()
        .map(|row| cell(phases, row, "connections").number());
    let connections: Vec<_> = connections.flatten().collect();
    assert_eq!(connections, [4.0, 8.0, 4.0, 8.0], "{report}");
    let one = |number: u32, own, all| {
        (
            Cell::from(format!("process {number}")),
            Some(own),
            Some(all),
        )
    };
    let phase = [
        one(0, 2.0, 4.0),
        one(1, 2.0, 4.0),
        one(0, 4.0, 8.0),
        one(1, 4.0, 8.0),
    ];
    assert_eq!(
        processes(&report),
        [phase.clone(), phase].concat(),
        "{report}"
    );
    assert_eq!(report.checks.len(), 2, "two schemas, one round: {report}");
    assert_eq!(
        table(&report, "What the database did").rows.len(),
        2,
        "{report}"
    );
}

/// Goal: processes that are started apart, as on several hosts, meet by a name, and one of them reports.
#[test]
fn processes_meet_by_a_name() {
    let Some(server) = gesta_rig::shared() else {
        return;
    };
    let store = database(server);
    let run = |directory: &tempfile::TempDir, step: &str| {
        let mut lab = Command::new(env!("CARGO_BIN_EXE_gesta-lab"));
        lab.current_dir(directory.path());
        let short = "schemas --schemas jdbc --max 2 --phase 1s --rounds 1 --sizes 500 --processes 2 --meeting by_name";
        lab.args(short.split(' '))
            .args(["--store", &store, "--step", step]);
        lab.stdout(std::process::Stdio::null()).spawn().unwrap()
    };
    let directories = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
    let all = directories.each_ref().map(|directory| run(directory, "2"));
    // Whether it is a result depends on how busy the machine is.
    for mut one in all {
        assert!(matches!(one.wait().unwrap().code(), Some(0 | 1)));
    }
    let lines = directories.each_ref().map(|directory| {
        let line = std::fs::read_to_string(directory.path().join("gesta-lab.jsonl")).ok()?;
        Some(serde_json::from_str::<Report>(&line).unwrap())
    });
    let reports: Vec<&Report> = lines.iter().flatten().collect();
    let [report] = reports[..] else {
        panic!("{reports:?}");
    };
    assert!(report.checks[0].read_back.is_clean(), "{report}");
    assert_eq!(processes(report).len(), 2, "{report}");
    // Whoever measures something else is refused, by both.
    let all = ["1", "2"].map(|step| run(&directories[0], step));
    for mut one in all {
        assert_eq!(one.wait().unwrap().code(), Some(2));
    }
}

/// Goal: what the database did stands in the report of `append`, wherever the database is.
#[test]
fn appends_are_told_with_what_the_database_did() {
    let Some(server) = gesta_rig::shared() else {
        return;
    };
    let append = || {
        format!(
            "append --store {} --waiters 4 --warm-up 100ms --duration 1s",
            database(server)
        )
    };
    let (_, report) = report_until(append, |report| {
        report.checks[0].read_back.acknowledged > 100
    });
    let did = table(&report, "What the database did");
    let log = cell(did, &did.rows[0], "log written per event").number();
    assert!(log > Some(50.0), "an event has 50 bytes: {report}");
    let how = report.to_string();
    assert!(how.contains("pg_stat_statements"), "{how}");
}

/// What was published and must keep a command: the number in our list, what it is, and the command. Whoever tidies the
/// lab moves a row to another command, but removes none.
const ROWS: [(u32, &str, &str); 33] = [
    (
        4,
        "reads of an entity in memory, also while there is too much load",
        "reservation --cinema c --overload 3 --sustainable 15000 --reads 0.05",
    ),
    (
        5,
        "the serial scenario",
        "reservation --cinema c --scenario serial",
    ),
    (
        5,
        "the concurrent scenario",
        "reservation --cinema c --scenario concurrent --shows 100",
    ),
    (
        6,
        "250 requests/s more every five minutes, until p99 breaks",
        "reservation --cinema c --steps 500:250:5000 --step-duration 5m",
    ),
    (
        8,
        "processors of application and database in each step",
        "reservation --url http://a:1 --store postgres://d/x --steps 1:1:2",
    ),
    (
        9,
        "a bar of 50 ms for a request",
        "reservation --cinema c --steps 1:1:2 --stop-p99 50ms",
    ),
    (
        10,
        "a scenario of one's own, as for Gatling",
        "scenario lab/scenarios/cinema-serial.toml --target http://a:1 --steps 50:50:1000",
    ),
    (
        11,
        "the application on three nodes",
        "gesta-chaos --world nodes --load seats --cinema c",
    ),
    (
        11,
        "the same to load and look at",
        "cluster up --cinema c --nodes 3",
    ),
    (
        12,
        "commands that meet another node in two of three cases",
        "reservation --url http://a:1 --scenario concurrent --closed 64",
    ),
    (12, "the cost of the hop", "cluster hop --rates 1000,6000"),
    (
        12,
        "the cost of the hop for the application",
        "cluster cinema --cinema c --rates 0,1000,3000 --rounds 5",
    ),
    (
        12,
        "where the time of a hop goes",
        "cluster cinema --cinema c --trace 100",
    ),
    (
        6,
        "the ladder on one node and on three",
        "cluster cinema --cinema c --steps 500:250:5000 --step-duration 5m",
    ),
    (
        16,
        "overload",
        "reservation --cinema c --overload 3 --sustainable 15000",
    ),
    (
        17,
        "the entity in memory against optimistic locking",
        "locking --store postgres:new",
    ),
    (
        22,
        "journals of other designs",
        "schemas --schemas jdbc,plain,partitioned,nested,r2dbc,akka-net-tags,akka-net-column",
    ),
    (
        24,
        "sizes of a production system",
        "schemas --sizes published",
    ),
    (
        25,
        "a step more connections each ten seconds",
        "schemas --step 200 --max 600 --phase 10s",
    ),
    (
        27,
        "several load processes in step",
        "schemas --processes 8 --step 75",
    ),
    (
        27,
        "the same on several hosts",
        "schemas --store postgres://d/x --processes 8 --meeting tuesday",
    ),
    (
        28,
        "results as JSON, in a place of one's own",
        "schemas --results here.jsonl",
    ),
    (
        30,
        "charts of throughput and latency",
        "report here.jsonl -o page.html",
    ),
    (
        31,
        "figures of a database elsewhere",
        "append --store postgres://d/x",
    ),
    (
        36,
        "a primary that is lost, and a standby in its place",
        "gesta-chaos --world patroni",
    ),
    (
        36,
        "the same without a standby that has everything",
        "gesta-chaos --world standbys --load groups",
    ),
    (
        38,
        "a lock that is held across the network",
        "latency --rtt 5ms",
    ),
    (
        39,
        "distances up to 100 ms, and bad networks",
        "latency --rtt 0,100ms --jitter 2ms --loss 0.001 --retransmission 200ms --bandwidth 1.5m",
    ),
    (
        40,
        "the time for 80 batches of 5 and 100, by 40 workers",
        "latency --workers --events 5,100 --batches 80 --batch-workers 40",
    ),
    (
        43,
        "35 readers by tag, 2,000 events",
        "tags --readers 35 --events 2000",
    ),
    (
        44,
        "text tags without a bound, with 3,000,000 older events",
        "tags --forms like-unbounded,like-bounded --older 3000000",
    ),
    (
        46,
        "a table of tags",
        "tags --forms tag-table-unbounded,tag-table-bounded,array-gin,gesta",
    ),
    (
        47,
        "polling every second, while nothing happens",
        "tags --poll 1s",
    ),
];

fn look_over(command: &str) -> Result<(), String> {
    let words = command.split_whitespace().map(str::to_owned);
    if command.starts_with("gesta-chaos ") {
        return gesta_chaos::look_over(words);
    }
    gesta_lab::look_over(std::iter::once("gesta-lab".to_owned()).chain(words))
}

/// What happened: three experiments that others had published went when the lab was tidied.
#[test]
fn everything_published_keeps_a_command() {
    for (row, what, command) in ROWS {
        let found = look_over(command);
        assert!(found.is_ok(), "row {row}, {what}: {}", found.unwrap_err());
    }
    // Row 7: "99.9 or 99.99". Row 20, events that stream out of the database, has a page: docs/guides/cdc.md.
    let columns = gesta_load::target::Phase::COLUMNS.map(|(name, _)| name);
    assert!(
        ["p99", "p99.9", "p99.99"]
            .iter()
            .all(|name| columns.contains(name))
    );
    assert!(look_over("reservation --cinema c --no-such-option").is_err());
}

/// Goal: each command that the script of all pages and the pages about figures name can be run as it stands there.
#[test]
fn commands_in_script_and_pages_are_commands() {
    let repository = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let read = |path: &str| std::fs::read_to_string(repository.join(path)).expect(path);
    let script = read("scripts/benchmarks");
    let variable = |name: &str| {
        let mut values = script
            .lines()
            .filter_map(|line| line.strip_prefix(&format!("{name}=\"")));
        values.next().expect(name).trim_end_matches('"').to_owned()
    };
    let known = ["new", "short", "nodes"].map(|name| (format!("${name}"), variable(name)));
    let of_script = script.lines().filter_map(|line| {
        let mut command = line.split_once("\"$lab\" ")?.1.to_owned();
        for (name, value) in &known {
            command = command.replace(name, value);
        }
        Some(command)
    });
    let mut commands: Vec<String> = of_script.collect();
    assert!(commands.len() > 20, "{commands:?}");
    let pages = std::fs::read_dir(repository.join("docs/benchmarks")).unwrap();
    let pages = pages
        .map(|page| page.unwrap().path())
        .chain([repository.join("lab/README.md")]);
    for page in pages {
        let text = std::fs::read_to_string(page).unwrap();
        let named = text
            .lines()
            .filter_map(|line| line.strip_prefix("gesta-lab "));
        commands.extend(named.map(str::to_owned));
    }
    for command in commands {
        // Comments and what a shell takes for itself.
        let command = command
            .split(" #")
            .next()
            .unwrap_or_default()
            .replace(['"', '\'', '[', ']'], "");
        if let Err(why) = look_over(&command) {
            panic!("{command}: {why}");
        }
    }
}

/// Goal: `latency` tells the three ways apart.
#[test]
fn distance_is_measured() {
    if gesta_rig::shared().is_none() {
        return;
    }
    let short = "latency --rtt 0,5ms --workers 8 --events 5 --phase 1s --batches 16 --batch-workers 8 --jitter 1ms \
                 --loss 0.001 --retransmission 20ms";
    let (_, report) = report_until(
        || short.to_owned(),
        |report| {
            let table = table(report, "Every figure");
            let rate = |row| cell(table, row, "events/s").number();
            table.rows.iter().all(|row| rate(row) > Some(0.0))
        },
    );
    assert_eq!(report.checks.len(), 6 + 6, "rates and fixed work: {report}");
    let told = "jitter up to 1ms each way, 0.1 % of packets lost and sent again after 20ms";
    assert_eq!(report.setting, told);
    let times = table(
        &report,
        "Time for 16 batches by 8 workers, the middle of three",
    );
    assert_eq!(times.rows.len(), 2, "{report}");
    // The one row of the global order is held across the network, from its statement to the COMMIT: a round trip for
    // each batch.
    let separate = cell(times, &times.rows[1], "separate statements").number();
    assert!(separate > Some(16.0 * 0.005), "{report}");
    let table = table(&report, "Every figure");
    assert_eq!(table.rows.len(), 6, "{report}");
    for row in &table.rows {
        let number = |name: &str| cell(table, row, name).number().unwrap();
        // Five round trips each way for one, at least one for the others.
        let floor = match *cell(table, row, "way") == Cell::from("separate statements") {
            true => number("round trip") * 4.9,
            false => number("round trip") * 0.95,
        };
        assert!(number("p50") >= floor, "{row:?}");
    }
}

/// Goal: every way to speak to a server is measured, what it stored is read back, and `$all` is read to its end.
#[test]
fn every_protocol_is_measured() {
    let _ = gesta_rig::beside(env!("CARGO_BIN_EXE_gesta-lab"), "gesta");
    for protocol in ["library", "bare", "grpc", "grpc-batch"] {
        let directory = tempfile::tempdir().unwrap();
        let load = "append --store sqlite:lab.db --serve --waiters 8 --events 3 --warm-up 100ms --duration 400ms";
        let load = format!("{load} --read-all --protocol {protocol}");
        let report = report(directory.path(), &load);
        let acknowledged = report.checks[0].read_back.acknowledged;
        assert!(acknowledged > 10, "{protocol}: {report}");
        let facts = report.parts.iter().filter_map(|part| match part {
            Part::Facts(facts) => Some(facts),
            _ => None,
        });
        let read = facts.flatten().filter_map(|fact| {
            let (events, _) = fact.note.split_once(" events")?;
            events.parse::<u64>().ok()
        });
        assert!(read.max() >= Some(acknowledged), "{protocol}: {report}");
    }
}

/// Goal: whichever way everything is read, all of it is shown, and the plain statements are the bound of the others.
#[test]
fn every_way_of_catching_up_shows_everything() {
    let _ = gesta_rig::beside(env!("CARGO_BIN_EXE_gesta-lab"), "gesta");
    let database = gesta_rig::shared().map(database);
    for store in [Some("sqlite:lab.db".to_owned()), database]
        .into_iter()
        .flatten()
    {
        let directory = tempfile::tempdir().unwrap();
        let short = format!("catch-up --store {store} --events 6100 --rounds 1");
        let report = report(directory.path(), &short);
        let shown = report.checks.iter().map(|check| check.read_back.found);
        assert_eq!(shown.collect::<Vec<_>>(), [6_100; 5], "{report}");
        let table = table(&report, "Everything that is stored");
        let share = |row| cell(table, row, "of the plain statements").number();
        assert_eq!(share(&table.rows[0]), Some(1.0), "{report}");
        assert!(
            table.rows.iter().all(|row| share(row) > Some(0.0)),
            "{report}"
        );
    }
}
