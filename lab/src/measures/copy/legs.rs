//! The copies of a run, one after the other: in this process for figures, or as a process that is killed on its way.

use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use gesta_copy::{Copy, Settings, Step};
use gesta_load::machine::postgres;
use gesta_load::random::Random;
use gesta_report::failure::{Context, Result, fail};
use gesta_rig::{Child, Output};
use serde::Deserialize;

use super::CopyArgs;
use super::places::Places;

/// The longest time that a copy runs before it is killed, in ms.
const KILLED_WITHIN_MS: usize = 2_000;
/// How often a copy is looked at that is to be killed.
const LOOK: Duration = Duration::from_millis(5);

/// One copy.
#[derive(Debug)]
pub(super) struct Leg {
    pub(super) title: String,
    source: String,
    target: String,
    logs: Option<u16>,
    log: std::path::PathBuf,
}

impl Leg {
    /// All copies, each from the target of the one before.
    pub(super) fn all(places: &Places, logs: u16) -> [Leg; 3] {
        let leg = |title: String, source, target, logs| Leg {
            title,
            source,
            target,
            logs,
            log: places.log(),
        };
        let several = format!("PostgreSQL to two databases, {logs} logs");
        [
            leg(
                "SQLite to PostgreSQL".into(),
                places.file(),
                places.one(),
                None,
            ),
            leg(several, places.one(), places.several(), Some(logs)),
            leg(
                format!("two databases, {logs} logs, to SQLite"),
                places.several(),
                places.last_file(),
                Some(1),
            ),
        ]
    }

    /// How large the target is.
    async fn bytes(&self) -> Result<u64> {
        if let Some(file) = self.target.strip_prefix("sqlite:") {
            return Ok(std::fs::metadata(file).context(file)?.len());
        }
        let mut sum = 0;
        for url in self.target.split(' ') {
            sum += database_bytes(url).await?;
        }
        Ok(sum)
    }
}

/// How large the tables of a database are, with their indexes and large values.
pub(super) async fn database_bytes(url: &str) -> Result<u64> {
    let client = postgres::connect(url).await?;
    let sql = "SELECT coalesce(sum(pg_total_relation_size(c.oid)), 0)::int8 FROM pg_class c JOIN pg_namespace n ON n.oid = \
               c.relnamespace WHERE c.relkind = 'r' AND n.nspname NOT IN ('pg_catalog', 'information_schema')";
    let row = client
        .query_one(sql, &[])
        .await
        .context("sizes of tables")?;
    Ok(u64::try_from(row.get::<_, i64>(0)).unwrap_or(0))
}

/// What a copy has done.
#[derive(Debug)]
pub(super) struct Copied {
    pub(super) events: u64,
    pub(super) seconds: f64,
    /// Size of the target.
    pub(super) bytes: u64,
    pub(super) kills: u32,
    pub(super) digest: String,
}

impl Copied {
    pub(super) fn rate(&self) -> f64 {
        self.events as f64 / self.seconds.max(0.001)
    }
}

/// Copies in this process.
pub(super) async fn copy(leg: &Leg) -> Result<Copied> {
    let settings = Settings {
        logs: leg.logs,
        ..Settings::default()
    };
    let begun = Instant::now();
    let mut copy = Copy::open(&leg.source, &leg.target, settings).await?;
    while let Step::Copied(_) = copy.step().await? {}
    let report = copy.finish(|_| ()).await?;
    Ok(Copied {
        events: report.events,
        seconds: begun.elapsed().as_secs_f64(),
        bytes: leg.bytes().await?,
        kills: 0,
        digest: report.digest,
    })
}

/// What `gesta copy` says at its end.
#[derive(Deserialize)]
struct Said {
    events: u64,
    digest: String,
}

/// Copies by processes that are killed at random moments, then by one that is not.
///
/// # Errors
/// A copy ended before it was killed often enough, or the last one fails.
pub(super) async fn copy_killed(leg: &Leg, args: &CopyArgs, round: u64) -> Result<Copied> {
    let program = args.program.find()?;
    let mut random = Random::fork(args.seed, round);
    let begun = Instant::now();
    let mut arguments = vec!["copy", &leg.source, &leg.target];
    let logs = leg.logs.map(|logs| logs.to_string());
    if let Some(logs) = &logs {
        arguments.extend(["--logs", logs]);
    }
    let mut kills = 0;
    while kills < args.kills {
        let rest = Duration::from_millis(random.below(KILLED_WITHIN_MS) as u64);
        if !killed(&program, &arguments, &leg.log, rest).await? {
            break;
        }
        kills += 1;
    }
    // A copy that has ended refuses to be made again, and has said its report to its log alone.
    let said = if kills < args.kills {
        last_report(&leg.log)?
    } else {
        report_of(&program, &arguments)?
    };
    Ok(Copied {
        events: said.events,
        seconds: begun.elapsed().as_secs_f64(),
        bytes: leg.bytes().await?,
        kills,
        digest: said.digest,
    })
}

/// Starts a copy and kills it after a time; false if it had ended before.
async fn killed(program: &Path, arguments: &[&str], log: &Path, rest: Duration) -> Result<bool> {
    let words = arguments.iter().chain(&["--output", "json"]);
    let mut child =
        Child::start(program, words, None, Output::Log, log).context("starting a copy")?;
    let deadline = Instant::now() + rest;
    while Instant::now() < deadline {
        if !child.is_alive() {
            return Ok(false);
        }
        tokio::time::sleep(LOOK).await;
    }
    child.kill();
    Ok(true)
}

fn report_of(program: &Path, arguments: &[&str]) -> Result<Said> {
    let done = tokio::task::block_in_place(|| {
        let mut command = Command::new(program);
        command.args(arguments).args(["--output", "json"]).output()
    })?;
    let said = String::from_utf8_lossy(&done.stdout);
    if !done.status.success() {
        let complaint = String::from_utf8_lossy(&done.stderr);
        return fail(format!("gesta copy: {said}{complaint}"));
    }
    serde_json::from_str(said.trim()).context("the report of gesta copy")
}

/// The report of a copy that ended by itself.
fn last_report(log: &Path) -> Result<Said> {
    let text = std::fs::read_to_string(log).context(log.display())?;
    let reports = text.lines().rev().map(serde_json::from_str::<Said>);
    match reports.flatten().next() {
        Some(said) => Ok(said),
        None => {
            let last = text.lines().last().unwrap_or_default();
            fail(format!("gesta copy ended without a report: {last}"))
        }
    }
}
