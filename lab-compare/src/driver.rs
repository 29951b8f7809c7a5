//! A driver: a program in a peer's own language that does the workload and tells what came out.
//!
//! It reads one [`Task`] as JSON from standard input and writes one JSON object per line to standard output:
//! `{"at":"measuring"}` when its clock starts, `{"at":"measured"}` when it stops, then one `{"at":"result",…}`.
//! What it says was acknowledged is compared with what its store holds (`ledger`), which is read here.

use std::collections::BTreeMap;
use std::path::Path;

use futures::{StreamExt, pin_mut};
use gesta_report::failure::{Context, Failure, Result, fail};
use gesta_report::histogram::Latencies;
use gesta_report::host::{CpuMeter, CpuUse};
use gesta_report::read_back::ReadBack;
use gesta_load::target::PhaseRun;
use serde::{Deserialize, Serialize};

use crate::child::Child;
use crate::ledger::{Claim, Ledger};
use crate::peer::{Measured, Round};
use crate::workload::{Cell, Workload};
use crate::world::{Database, World};

/// What a driver is asked to do.
#[derive(Debug, Serialize)]
struct Task<'a> {
    workload: &'a Workload,
    cell: Cell,
    postgres: &'a Database,
    options: &'a BTreeMap<&'static str, bool>,
}

#[derive(Debug, Deserialize)]
#[serde(tag = "at", rename_all = "snake_case")]
enum Told {
    Measuring,
    Measured,
    Result(Box<Outcome>),
}

/// What a driver did.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Outcome {
    /// Appends acknowledged on the clock.
    appends: u64,
    /// Their events.
    events: u64,
    /// Their bytes.
    bytes: u64,
    /// Length of the window.
    seconds: f64,
    /// Latencies of the appends on the clock: pairs of microseconds and counts.
    latencies_us: Latencies,
    /// Appends that failed, by cause.
    #[serde(default)]
    errors: BTreeMap<String, u64>,
    /// Processor time that the driver with all its processes used on the clock.
    cpu_seconds: f64,
    /// All streams that were written to, also off the clock.
    streams: Vec<Claim>,
}

/// A driver of one peer.
#[derive(Debug, Default)]
pub(crate) struct Driver {
    options: BTreeMap<&'static str, bool>,
    ledger: Ledger,
    running: Option<Running>,
}

#[derive(Debug)]
struct Running {
    program: std::path::PathBuf,
    arguments: Vec<std::path::PathBuf>,
    database: Database,
    task: std::path::PathBuf,
    log: std::path::PathBuf,
}

impl Driver {
    pub(crate) fn with(options: impl IntoIterator<Item = (&'static str, bool)>) -> Self {
        Self {
            options: options.into_iter().collect(),
            ..Self::default()
        }
    }

    /// Makes the database; the program is run once per cell.
    pub(crate) fn start(
        &mut self,
        world: &mut World,
        database: &str,
        program: &Path,
        arguments: Vec<std::path::PathBuf>,
    ) -> Result<()> {
        self.running = Some(Running {
            program: program.to_owned(),
            arguments,
            database: world.database(database)?,
            task: world.scratch("task.json"),
            log: world.scratch("driver.log"),
        });
        Ok(())
    }

    /// Runs the program for one cell, then reads with `sql` what is stored: streams, revisions from 0, marks.
    pub(crate) async fn measure(&mut self, sql: &str, round: &Round<'_>) -> Result<Measured> {
        let running = crate::peer::started(self.running.as_ref())?;
        let task = Task {
            workload: round.workload,
            cell: round.cell,
            postgres: &running.database,
            options: &self.options,
        };
        std::fs::write(&running.task, serde_json::to_vec(&task)?).context("the driver's task")?;
        let mut child = Child::start(
            &running.program,
            &running.arguments,
            Some(&running.task),
            &running.log,
        )
        .await?;
        let told = tokio::select! {
            told = listen(&mut child) => told,
            () = round.stop.cancelled() => fail("interrupted"),
        };
        child.end().await?;
        let (outcome, machine_cores) = told?;
        let begin = std::time::Instant::now();
        let (run, claims) = outcome.into_run(machine_cores);
        let mut read_back = read(&running.database, sql, &mut self.ledger, claims).await?;
        read_back.seconds = begin.elapsed().as_secs_f64();
        // The peer's library works in the driver: its processor time is the peer's.
        let phase = run.figures(round.cell.workers, true);
        Ok(Measured { phase, read_back })
    }

    pub(crate) fn end(&mut self, world: &mut World) -> Result<()> {
        match self.running.take() {
            Some(running) => world.drop_database(&running.database),
            None => Ok(()),
        }
    }
}

impl Outcome {
    fn into_run(self, machine_cores: f64) -> (PhaseRun, Vec<Claim>) {
        let own_cores = if self.seconds > 0.0 {
            self.cpu_seconds / self.seconds
        } else {
            0.0
        };
        let own_cores = (own_cores * 100.0).round() / 100.0;
        let run = PhaseRun {
            latencies: self.latencies_us,
            appends: self.appends,
            events: self.events,
            bytes: self.bytes,
            seconds: self.seconds,
            errors: self.errors,
            cpu: CpuUse {
                machine_cores,
                own_cores,
            },
            complete: true,
            ..PhaseRun::default()
        };
        (run, self.streams)
    }
}

/// Follows a driver to its result; also gives the machine's processor time between its two signs.
async fn listen(child: &mut Child) -> Result<(Outcome, f64)> {
    let mut meter = None;
    let mut machine_cores = 0.0;
    while let Some(line) = child.line().await? {
        match parse(&line)? {
            Told::Measuring => meter = Some(CpuMeter::start()),
            Told::Measured => {
                machine_cores = meter.take().map_or(0.0, |meter| meter.used().machine_cores);
            }
            Told::Result(outcome) => return Ok((*outcome, machine_cores)),
        }
    }
    Err(child.complaint("ended without a result"))
}

fn parse(line: &str) -> Result<Told> {
    serde_json::from_str(line).map_err(|error| {
        let begin: String = line.chars().take(200).collect();
        Failure(format!("the driver wrote {begin:?}: {error}"))
    })
}

async fn read(
    database: &Database,
    sql: &str,
    ledger: &mut Ledger,
    claims: Vec<Claim>,
) -> Result<ReadBack> {
    let client = database.connect().await?;
    let none: [&str; 0] = [];
    let rows = client.query_raw(sql, none).await.context("read-back")?;
    pin_mut!(rows);
    let mut look = ledger.look(claims);
    while let Some(row) = rows.next().await {
        let row = row.context("read-back")?;
        let mark: Option<String> = row.try_get(2)?;
        look.see(
            row.try_get(0)?,
            row.try_get(1)?,
            mark.as_deref().unwrap_or_default(),
        );
    }
    Ok(look.end())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workload::tests::workload;

    const RESULT: &str = r#"{"at":"result","appends":3,"events":6,"bytes":600,"seconds":2.0,
        "latencies_us":[[1000,2],[9000,1]],"errors":{"boom":1},"cpu_seconds":1.5,
        "streams":[["a",4,6],["b",2,2]]}"#;

    #[test]
    fn a_result_becomes_a_phase() {
        let Told::Result(outcome) = parse(&RESULT.replace('\n', " ")).unwrap() else {
            panic!("not a result");
        };
        let (run, claims) = outcome.into_run(1.9);
        let phase = run.figures(2, true);
        assert_eq!(
            (phase.events_per_second, phase.appends_per_second),
            (3.0, 2.0)
        );
        assert_eq!((phase.cpu.own_cores, phase.cpu.machine_cores), (0.75, 1.9));
        assert_eq!(phase.latency_ms.count, 3);
        assert!((phase.latency_ms.p50 - 1.0).abs() < 0.01, "{phase:?}");
        assert_eq!(phase.errors["boom"], 1);
        assert!(phase.complete && phase.generator_limit.is_none());
        assert_eq!(claims, [("a".into(), 4, 6), ("b".into(), 2, 2)]);
    }

    #[test]
    fn other_lines_are_signs_or_mistakes() {
        assert!(matches!(
            parse(r#"{"at":"measuring"}"#),
            Ok(Told::Measuring)
        ));
        assert!(matches!(parse(r#"{"at":"measured"}"#), Ok(Told::Measured)));
        for bad in [
            "",
            "hello",
            "{}",
            r#"{"at":"result","appends":-1}"#,
            r#"{"at":"nowhere"}"#,
        ] {
            assert!(
                parse(bad).is_err_and(|failure| failure.0.contains("the driver wrote")),
                "{bad}"
            );
        }
    }

    #[test]
    fn a_task_says_all_that_a_driver_needs() {
        let database = Database {
            host: "127.0.0.1".into(),
            port: 5,
            user: "u".into(),
            name: "n".into(),
            url: "postgres://u@127.0.0.1:5/n".into(),
        };
        let task = serde_json::to_value(Task {
            workload: &workload(),
            cell: Cell::new(16, 100),
            postgres: &database,
            options: &BTreeMap::from([("db_functions", true)]),
        })
        .unwrap();
        assert_eq!(
            task["cell"],
            serde_json::json!({"workers": 16, "events": 100, "events_per_stream": 4000})
        );
        assert_eq!(task["workload"]["payload_bytes"], 100);
        assert_eq!(task["workload"]["streams_per_worker"], 500);
        assert_eq!(task["postgres"]["port"], 5);
        assert_eq!(task["options"]["db_functions"], true);
    }
}
