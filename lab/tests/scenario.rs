//! Scenario files against services of their own process: a shop in Python, and the cinema.

#![allow(clippy::unwrap_used, missing_docs, reason = "tests")]

use std::io::{BufRead as _, BufReader};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use gesta_report::{Cell, Report};
use gesta_rig::{Child, Listening};
use tempfile::TempDir;

const LAB: &str = env!("CARGO_BIN_EXE_gesta-lab");
/// No test waits longer for something to happen at all.
const PATIENCE: Duration = Duration::from_secs(60);

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("..")
        .canonicalize()
        .unwrap()
}

fn example(name: &str) -> PathBuf {
    root().join("lab/scenarios").join(name)
}

/// The shop, and its URL; none, said aloud, without Python.
fn shop() -> Option<(Child, String)> {
    let mut command = Command::new("python3");
    command.arg(example("cart.py")).stdout(Stdio::piped());
    let Ok(mut child) = Child::spawn(&mut command) else {
        assert!(std::env::var_os("CI").is_none(), "no python3");
        eprintln!("\n*** SKIPPED: python3 is not installed ***\n");
        return None;
    };
    let mut line = String::new();
    BufReader::new(child.take_output().unwrap())
        .read_line(&mut line)
        .unwrap();
    Some((child, line.trim().to_owned()))
}

/// What the command has said, and its report, if there is one.
struct Said {
    output: Output,
    report: Option<Report>,
    folder: TempDir,
}

impl Said {
    fn text(&self) -> String {
        let [out, err] = [&self.output.stdout, &self.output.stderr]
            .map(|it| String::from_utf8_lossy(it).into_owned());
        out + "\n" + &err
    }

    fn code(&self) -> Option<i32> {
        self.output.status.code()
    }

    /// The cells of a column of a table.
    fn column(&self, title: &str, column: &str) -> Vec<Cell> {
        let report = self.report.as_ref().unwrap();
        let table = report.tables().find(|table| table.title == title);
        let Some(table) = table else {
            return Vec::new();
        };
        let at = table
            .columns
            .iter()
            .position(|it| it.name == column)
            .unwrap();
        table.rows.iter().map(|row| row.cells[at].clone()).collect()
    }
}

fn run(file: &Path, arguments: &[&str]) -> Said {
    let folder = tempfile::tempdir().unwrap();
    let results = folder.path().join("results.jsonl");
    let mut command = Command::new(LAB);
    command
        .arg("scenario")
        .arg(file)
        .args(arguments)
        .current_dir(folder.path());
    let output = command.arg("--results").arg(&results).output().unwrap();
    let line = std::fs::read_to_string(&results).ok();
    Said {
        output,
        report: line.map(|line| serde_json::from_str(&line).unwrap()),
        folder,
    }
}

/// What the report finds when the whole ladder was climbed.
const HIGHEST: &str = "60 requests/s are the highest step";

/// Goal: a file of twenty lines drives a service that is not ours, up a ladder, with checks, and draws the page.
#[test]
fn a_shop_in_python_is_driven_up_a_ladder() {
    let file = example("cart.toml");
    assert!(std::fs::read_to_string(&file).unwrap().lines().count() <= 20);
    let Some((_shop, url)) = shop() else { return };
    let begun = Instant::now();
    let said = loop {
        // Four users, so that each of them comes to the end of its flow.
        let ladder = "--steps 20:20:60 --step-duration 1s --warm-up 200ms --stop-p99 1h --users 4";
        let ladder: Vec<&str> = ladder.split(' ').collect();
        let more = ["--target", &url, "--page", "page.html"];
        let secret = ["--header", "authorization: Bearer secret"];
        let said = run(&file, &[&ladder, &more[..], &secret].concat());
        assert_eq!(said.code(), Some(0), "{}", said.text());
        // On a busy machine a step may be carried out in part, which ends the ladder, also the last one.
        let finding = &said.report.as_ref().unwrap().finding;
        if finding.starts_with(HIGHEST) || begun.elapsed() > PATIENCE {
            break said;
        }
    };
    let offered = said.column("Steps", "requests/s offered");
    assert_eq!(offered, [20, 40, 60].map(Cell::from), "{}", said.text());
    for none in ["failed a check", "not answered", "refused"] {
        assert_eq!(
            said.column("Steps", none),
            [0, 0, 0].map(Cell::from),
            "{}",
            said.text()
        );
    }
    let requests = said.column("Every kind of request", "request");
    for call in [
        "look: GET /products/{{product.id}}",
        "buy: open",
        "buy: put",
        "buy: order",
    ] {
        assert!(requests.contains(&call.into()), "{call}: {requests:?}");
    }
    if cfg!(target_os = "linux") {
        let cores = said.column("Steps", "application");
        assert!(
            cores.iter().all(|cores| cores.number().is_some()),
            "{cores:?}"
        );
    }
    let report = said.report.as_ref().unwrap();
    assert!(report.finding.starts_with(HIGHEST), "{}", report.finding);
    let page = std::fs::read_to_string(said.folder.path().join("page.html")).unwrap();
    for shown in [
        "Shopping cart",
        "Latency at each rate",
        "buy: order",
        HIGHEST,
    ] {
        assert!(page.contains(shown), "{shown}");
    }
    let line = serde_json::to_string(report).unwrap();
    assert!(
        !page.contains("secret") && !line.contains("secret"),
        "{line}"
    );
}

/// Goal: answers that are not as the file wants them are no result, with the request, the cause and an example.
#[test]
fn wrong_answers_are_no_result() {
    let Some((_shop, url)) = shop() else { return };
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("wrong.toml");
    let text =
        "steps = [{ request = \"GET /products/p3\", check = { json = { name = \"desk\" } } }]";
    std::fs::write(&file, text).unwrap();
    let arguments = [
        "--target",
        &url,
        "--concurrency",
        "2",
        "--duration",
        "200ms",
        "--warm-up",
        "0",
    ];
    let said = run(&file, &arguments);
    let text = said.text();
    assert_eq!(said.code(), Some(1), "{text}");
    for told in [
        "NO RESULT: 2 users: of",
        "most often: json name is not as it must be",
        "no request passed its checks",
        "\"lamp\" and not \"desk\"",
    ] {
        assert!(text.contains(told), "{told}: {text}");
    }
    // As many may fail as somebody says.
    let allowed = [&arguments[..], &["--failures-max", "1"]].concat();
    assert!(!run(&file, &allowed).text().contains("most often"));
}

/// Goal: what a PostgreSQL behind the service did is told of each step, wherever it is; one that cannot be asked is no
/// obstacle, and its password is not shown.
#[test]
fn what_the_database_did_is_told() {
    let (Some((_shop, url)), Some(server)) = (shop(), gesta_rig::shared()) else {
        return;
    };
    let away = "postgres://u:secret@127.0.0.1:1/x".to_owned();
    for (database, is_asked) in [(server.url(), true), (away, false)] {
        let load = "--rate 20 --duration 500ms --warm-up 0 --database";
        let load: Vec<&str> = load.split(' ').collect();
        let more = [database.as_str(), "--target", &url];
        let said = run(&example("cart.toml"), &[&load, &more[..]].concat());
        let text = said.text();
        assert_eq!(said.code(), Some(0), "{text}");
        let counted = said.column("What the database did", "transactions/s");
        assert_eq!(counted.len(), usize::from(is_asked), "{text}");
        let is_told = text.contains("The database could not be asked what it did");
        assert!(is_told != is_asked && !text.contains("secret"), "{text}");
        if cfg!(target_os = "linux") {
            assert!(text.contains("the application is python3"), "{text}");
        }
    }
}

/// Goal: a wrong file is refused with line and rule before the service is asked for anything.
#[test]
fn a_wrong_file_is_refused_before_a_request_is_sent() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    listener.set_nonblocking(true).unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("shop.toml");
    std::fs::write(
        &file,
        "name = \"x\"\nsteps = [\n  { request = \"GET /\", chekc = 1 },\n]\n",
    )
    .unwrap();
    for target in [&["--target", &url][..], &["--check"]] {
        let said = run(&file, target);
        assert_eq!(said.code(), Some(2), "{}", said.text());
        let wanted = format!(
            "{}:3: \"steps[0].chekc\" is not known here; known are body, capture, check",
            file.display()
        );
        assert!(said.text().contains(&wanted), "{}", said.text());
        assert!(said.report.is_none());
    }
    assert_eq!(
        listener.accept().unwrap_err().kind(),
        std::io::ErrorKind::WouldBlock
    );
    let said = run(&example("cart.toml"), &["--check"]);
    assert_eq!(said.code(), Some(0), "{}", said.text());
    assert!(
        said.text()
            .starts_with("Shopping cart: 2 flows, 4 kinds of request, 2 feeders\n"),
        "{}",
        said.text()
    );
}

/// A cinema on a store of its own.
fn cinema(folder: &Path) -> Listening {
    let store = format!("sqlite:{}", folder.join("gesta.db").display());
    let mut command = Command::new(gesta_rig::beside(LAB, "cinema"));
    command.args(["--store", &store, "--listen", "127.0.0.1:0"]);
    let cinema = Listening::start(command.stdout(Stdio::null()));
    cinema.unwrap_or_else(|log| panic!("it ended: {log:?}"))
}

/// Goal: the published scenarios of the cinema, as files, meet no refusal and no wrong answer.
#[test]
fn the_cinema_s_scenarios_are_files() {
    let folder = tempfile::tempdir().unwrap();
    let cinema = cinema(folder.path());
    for (name, last) in [("serial", "reserve"), ("concurrent", "cancel")] {
        let file = example(&format!("cinema-{name}.toml"));
        // On a busy machine one run makes a few requests only.
        let (begun, mut done) = (Instant::now(), 0.0);
        while done <= 100.0 {
            assert!(begun.elapsed() < PATIENCE, "{name}: {done}");
            let arguments = [
                "--target",
                &cinema.url,
                "--concurrency",
                "8",
                "--warm-up",
                "0",
                "--duration",
                "1s",
            ];
            let said = run(&file, &arguments);
            assert_eq!(said.code(), Some(0), "{}", said.text());
            assert_eq!(
                said.column("What went wrong", "cause"),
                [],
                "{}",
                said.text()
            );
            let outcomes = said.column("Every kind of request", "outcome");
            assert!(
                outcomes.iter().all(|outcome| *outcome == "passed".into()),
                "{}",
                said.text()
            );
            let calls = said.column("Every kind of request", "request");
            let counts = said.column("Every kind of request", "requests");
            let of_last = calls
                .iter()
                .zip(&counts)
                .filter(|(call, _)| **call == last.into());
            done += of_last.filter_map(|(_, count)| count.number()).sum::<f64>();
        }
    }
}

/// Goal: every command of the guide runs as it stands there, and so does its file.
#[test]
fn the_commands_of_the_guide_run() {
    if Command::new("python3").arg("--version").output().is_err() {
        assert!(std::env::var_os("CI").is_none(), "no python3");
        eprintln!("\n*** SKIPPED: python3 is not installed ***\n");
        return;
    }
    let guide = std::fs::read_to_string(root().join("docs/guides/load-any-service.md")).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let blocks: Vec<&str> = guide
        .split("\n```sh\n")
        .skip(1)
        .map(|rest| rest.split("\n```").next().unwrap())
        .collect();
    assert!(blocks.len() >= 4);
    let path = format!(
        "{}:{}",
        Path::new(LAB).parent().unwrap().display(),
        std::env::var("PATH").unwrap()
    );
    for block in blocks {
        let mut shell = Command::new("bash");
        shell
            .args(["-e", "-u", "-c", block])
            .current_dir(folder.path());
        let output = shell
            .env("PATH", &path)
            .env("CLONE", root())
            .stdin(Stdio::null())
            .output()
            .unwrap();
        let [said, failed] =
            [&output.stdout, &output.stderr].map(|it| String::from_utf8_lossy(it).into_owned());
        let noted = std::fs::read_to_string(folder.path().join("shop.pid"));
        if !output.status.success() {
            let _ = noted.map(|pid| Command::new("kill").arg(pid.trim()).status());
            panic!("{block}\n{said}\n{failed}");
        }
    }
    let pid = std::fs::read_to_string(folder.path().join("shop.pid")).unwrap();
    assert!(
        Command::new("kill")
            .arg(pid.trim())
            .status()
            .unwrap()
            .success()
    );
}
