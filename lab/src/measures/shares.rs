//! `shares`: what do nine users keep beside one who takes all that there is of one thing, and what do users keep beside
//! ten thousand streams of callers without an account?
//!
//! A server with small maxima is started on a new SQLite store. The nine append and read one after the other, each on a
//! connection; first alone, then beside the takers of each thing in turn, which hold it or ask for it again and again.
//! The takers are a process of their own, so that the nine do not wait for them within this program. They have the same
//! processors all the same, so the table tells how much of these the takers themselves used.
//! Not here: consumer groups, whose shares tests of the server hold.

mod takers;

use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use bytes::Bytes;
use clap::ValueEnum as _;
use gesta_load::machine::child::{Program, ProgramArgs, Server};
use gesta_load::machine::http::Connection;
use gesta_report::failure::{Context as _, Result, fail};
use gesta_report::histogram::Latencies;
use gesta_report::units;
use gesta_report::{Report, ReportArgs, Table, Unit};
use hyper::Method;
use serde::Serialize;
use serde_json::json;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::measures::shares::takers::{Taken, Takers, take_until_told};

/// Users beside the one who takes.
const NINE: usize = 9;
/// Small maxima, so that one machine can take all.
const CONFIG: &str = "[server]\nconnections_max = 1500\nrequests_in_flight_max = 200\nsubscriptions_max = 200\n\
    bytes_in_flight_max = \"64MiB\"\nreads_in_flight_max = 8\n";
const EVENT: &str = r#"{"events":[{"type":"T","data":1}]}"#;

/// What nine users keep beside one who takes all there is of one thing, and users beside callers without an account.
#[derive(Debug, Clone, clap::Args, Serialize)]
pub(crate) struct SharesArgs {
    /// How long the nine work beside each taker, and before that alone.
    #[arg(long, default_value = "3s", value_parser = units::duration)]
    #[serde(serialize_with = "units::seconds", rename = "duration_seconds")]
    duration: Duration,
    /// What one takes, several times for several things. Default: each thing.
    #[arg(long, value_enum)]
    taken: Vec<Taken>,
    /// Takes it from this server until its input ends; the program calls itself so.
    #[arg(long, hide = true, requires = "taken")]
    #[serde(skip)]
    from: Option<SocketAddr>,
    #[command(flatten)]
    #[serde(skip)]
    program: ProgramArgs,
    #[command(flatten)]
    #[serde(skip)]
    report: ReportArgs,
}

/// How the nine worked.
#[derive(Debug)]
struct Worked {
    rate: f64,
    p99: f64,
    /// Calls that had another answer than they were to have, and one of these answers.
    refused: u64,
    answer: String,
}

/// A taker, and how the nine worked before and beside it.
#[derive(Debug)]
struct Row {
    taken: Taken,
    alone: Worked,
    beside: Worked,
    /// Processors that the takers themselves used meanwhile.
    processors: f64,
}

impl Row {
    fn kept(&self) -> f64 {
        self.beside.rate / self.alone.rate.max(0.000_001)
    }

    fn times(&self) -> f64 {
        self.beside.p99 / self.alone.p99.max(0.000_001)
    }

    fn is_good(&self) -> bool {
        self.kept() >= self.taken.floor() && self.times() <= 10.0 && self.beside.refused == 0
    }
}

/// The command. True if the users kept what they are to keep.
pub(crate) async fn run(args: &SharesArgs, stop: &CancellationToken) -> Result<bool> {
    if let Some(address) = args.from {
        take_until_told(&args.taken, address).await?;
        return Ok(true);
    }
    let mut report = Report::begin("shares", "One who takes everything, and nine others", 0);
    let program = args.program.find()?;
    let folder = tempfile::tempdir()?;
    let store = format!("sqlite:{}", folder.path().join("shares.db").display());
    let (one, nine) = users(&program, &store, folder.path())?;
    let config = folder.path().join("gesta.toml");
    std::fs::write(&config, CONFIG)?;
    let mut server = Program::gesta(&program);
    let config = config.display().to_string();
    server.arguments.extend(["--config".to_owned(), config]);
    let log = folder.path().join("server.log");
    let mut server = Server::start_program(server, &store, &log).await?;
    let address = server.address();
    let mut rows = Vec::new();
    let chosen = match args.taken.as_slice() {
        [] => Taken::value_variants(),
        chosen => chosen,
    };
    for &taken in chosen {
        if stop.is_cancelled() {
            break;
        }
        eprintln!("  {}", taken.title());
        let alone = work(address, &nine, args.duration).await?;
        let takers = Takers::start(taken, address, &one).await?;
        let (begun, used) = (Instant::now(), takers.busy());
        let beside = work(address, &nine, args.duration).await;
        let used = takers.busy().saturating_sub(used).as_secs_f64();
        let processors = used / begun.elapsed().as_secs_f64();
        takers.end().await?;
        rows.push(Row {
            taken,
            alone,
            beside: beside.context(taken.title())?,
            processors,
        });
    }
    server.stop().await;
    report.workload = json!(args);
    tell(&mut report, &rows);
    let complete = rows.len() == chosen.len();
    report.finish(&args.report, complete)
}

fn tell(report: &mut Report, rows: &[Row]) {
    let least = rows.iter().map(Row::kept).reduce(f64::min).unwrap_or(0.0);
    report.finding = format!(
        "Nine users kept at least {:.0} % of their rate, whatever one took.",
        least * 100.0
    );
    for row in rows.iter().filter(|row| !row.is_good()) {
        report.problem(format!(
            "{}: {:.0} % of the rate was kept, the p99 was {:.1} times that alone, and {} calls were refused {}",
            row.taken.title(),
            row.kept() * 100.0,
            row.times(),
            row.beside.refused,
            row.beside.answer
        ));
    }
    let table = Table::of("What the nine kept", rows)
        .column("taken", Unit::Words, |row| row.taken.title())
        .column("calls/s alone", Unit::Count, |row| row.alone.rate)
        .column("beside", Unit::Count, |row| row.beside.rate)
        .column("kept", Unit::Share, Row::kept)
        .column("p99 alone", Unit::Millis, |row| row.alone.p99)
        .column("p99 beside", Unit::Millis, |row| row.beside.p99)
        .column("times", Unit::Times, Row::times)
        .column("refused", Unit::Count, |row| row.beside.refused)
        .column("takers, cores", Unit::Cores, |row| row.processors);
    report.table(table.table());
}

/// Makes an administrator, the one and the nine, and returns what says who the latter are.
fn users(program: &Path, store: &str, folder: &Path) -> Result<(String, Vec<String>)> {
    let password = folder.join("password");
    std::fs::write(&password, "a password of the lab\n")?;
    let password = password.display().to_string();
    let gesta = |arguments: &[&str]| -> Result<String> {
        let command = || {
            Command::new(program)
                .args(arguments)
                .args(["--store", store])
                .output()
        };
        let done = tokio::task::block_in_place(command)?;
        if !done.status.success() {
            return fail(format!(
                "{arguments:?}: {}",
                String::from_utf8_lossy(&done.stderr)
            ));
        }
        Ok(String::from_utf8_lossy(&done.stdout).trim().to_owned())
    };
    let user = |name: &str| -> Result<String> {
        gesta(&["user", "add", name, "--password-file", &password])?;
        let token = gesta(&[
            "token", "create", name, "--scope", "read", "--scope", "append",
        ])?;
        Ok(format!("Bearer {token}"))
    };
    gesta(&[
        "user",
        "add",
        "admin",
        "--admin",
        "--password-file",
        &password,
    ])?;
    let one = user("one")?;
    let nine: Result<Vec<_>> = (0..NINE).map(|n| user(&format!("other-{n}"))).collect();
    Ok((one, nine?))
}

/// Lets the nine work: each appends an event and reads the last one, again and again.
async fn work(address: SocketAddr, nine: &[String], duration: Duration) -> Result<Worked> {
    let mut users = JoinSet::new();
    for (n, who) in nine.iter().enumerate() {
        let who = who.clone();
        users.spawn(async move {
            let mut connection = Connection::open_as(address, &who).await?;
            let (begun, mut latencies) = (Instant::now(), Latencies::default());
            let (mut refused, mut refusal) = (0, String::new());
            let (append, read) = (
                format!("/streams/user-{n}"),
                format!("/streams/user-{n}?direction=backwards&limit=1"),
            );
            while begun.elapsed() < duration {
                for (method, path, body, expected) in [
                    (Method::POST, &append, EVENT, 201),
                    (Method::GET, &read, "", 200),
                ] {
                    let asked = Instant::now();
                    let (status, answer) = connection.ask(method, path, Bytes::from(body)).await?;
                    if status == expected {
                        latencies.record(asked.elapsed());
                    } else {
                        refused += 1;
                        refusal = String::from_utf8_lossy(&answer).into_owned();
                    }
                }
            }
            Result::Ok((latencies, refused, refusal))
        });
    }
    let (mut all, mut refused, mut answer) = (Latencies::default(), 0, String::new());
    while let Some(of_one) = users.join_next().await {
        let (latencies, refused_of_one, refusal) = of_one??;
        all.merge(&latencies);
        refused += refused_of_one;
        if !refusal.is_empty() {
            answer = refusal;
        }
    }
    let all = all.percentiles();
    Ok(Worked {
        rate: all.count as f64 / duration.as_secs_f64(),
        p99: all.p99,
        refused,
        answer,
    })
}
