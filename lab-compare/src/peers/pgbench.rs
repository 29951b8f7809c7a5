//! The floor: `pgbench` inserts the same bytes into a table with a number as its key. No streams, no claims, no store.

use std::path::{Path, PathBuf};
use std::time::Duration;

use async_trait::async_trait;
use gesta_report::failure::{Context, Failure, Result, fail};
use gesta_report::histogram::Latencies;
use gesta_report::host::{CpuMeter, CpuUse};
use gesta_report::read_back::ReadBack;
use gesta_load::target::PhaseRun;
use tokio::time::Instant;

use crate::child::Child;
use crate::peer::{About, Measured, Peer, Round, started};
use crate::world::{Database, World};

const TABLE: &str = "CREATE TABLE floor (position bigserial PRIMARY KEY, data text NOT NULL)";
/// Threads of `pgbench`.
const THREADS_MAX: u32 = 2;
/// How often the processor time of `pgbench` is looked at.
const LOOK: Duration = Duration::from_millis(50);
/// Clock ticks a second in `/proc`.
const TICKS: f64 = 100.0;

/// The floor.
pub(super) fn floor() -> Box<dyn Peer> {
    Box::new(Pgbench::default())
}

#[derive(Default)]
struct Pgbench {
    started: Option<Started>,
    cells: u32,
}

struct Started {
    program: PathBuf,
    database: Database,
    files: PathBuf,
}

#[async_trait]
impl Peer for Pgbench {
    fn name(&self) -> &'static str {
        "pgbench"
    }

    fn title(&self) -> &'static str {
        "(floor) bare INSERT by pgbench"
    }

    async fn start(&mut self, world: &mut World) -> Result<About> {
        let program = World::postgres_program("pgbench")?;
        if !program.is_file() {
            return fail("pgbench is not installed beside PostgreSQL");
        }
        let files = world.scratch("pgbench");
        std::fs::create_dir(&files).context(files.display())?;
        let database = world.database("floor")?;
        self.started = Some(Started {
            program,
            database: database.clone(),
            files,
        });
        database.connect().await?.batch_execute(TABLE).await?;
        let engine = world.engine().await?;
        let note = "no event store: rows without streams and claims, prepared statements";
        Ok(About::on(engine, "–", note))
    }

    async fn measure(&mut self, round: &Round<'_>) -> Result<Measured> {
        self.cells += 1;
        started(self.started.as_ref())?
            .measure(self.cells, round)
            .await
    }

    async fn end(&mut self, world: &mut World) -> Result<()> {
        match self.started.take() {
            Some(started) => world.drop_database(&started.database),
            None => Ok(()),
        }
    }
}

impl Started {
    async fn measure(&self, cell: u32, round: &Round<'_>) -> Result<Measured> {
        let client = self.database.connect().await?;
        let rows = || async {
            let row = client.query_one("SELECT count(*) FROM floor", &[]).await?;
            Ok::<_, Failure>(u64::try_from(row.get::<_, i64>(0))?)
        };
        let before = rows().await?;
        let prefix = format!("cell{cell}");
        let (text, cpu) = self.run(round, &prefix).await?;
        let processed = processed(&text).ok_or_else(|| {
            Failure(format!(
                "pgbench did not say what it did; it wrote {text:?}"
            ))
        })?;
        let window = window(
            &self.lines(&prefix)?,
            round.workload.warm_up(),
            round.workload.duration(),
        )?;
        let events = round.cell.events;
        let run = PhaseRun {
            appends: window.appends,
            events: window.appends * events,
            bytes: window.appends * events * round.workload.payload_bytes as u64,
            seconds: round.workload.duration().as_secs_f64(),
            latencies: window.latencies,
            cpu,
            complete: true,
            ..PhaseRun::default()
        };
        let acknowledged = processed * events;
        let found = rows().await? - before;
        let read_back = ReadBack {
            acknowledged,
            found,
            lost: acknowledged.saturating_sub(found),
            ..ReadBack::default()
        };
        Ok(Measured {
            phase: run.figures(round.cell.workers, false),
            read_back,
        })
    }

    /// Runs `pgbench` to its end; gives what it wrote and the processor time after the warm-up.
    async fn run(&self, round: &Round<'_>, prefix: &str) -> Result<(String, CpuUse)> {
        let (sql, log) = (
            self.files.join("insert.sql"),
            self.files.join("pgbench.err"),
        );
        std::fs::write(
            &sql,
            insert(round.workload.payload_bytes, round.cell.events),
        )?;
        let arguments = self.arguments(round, &sql, prefix);
        let mut child = Child::start(&self.program, arguments, None, &log).await?;
        let told = tokio::select! {
            told = follow(&mut child, round) => told,
            () = round.stop.cancelled() => fail("interrupted"),
        };
        let ended = child.end().await;
        let told = told?;
        ended?;
        Ok(told)
    }

    fn arguments(&self, round: &Round<'_>, sql: &Path, prefix: &str) -> Vec<String> {
        let seconds = round.workload.warm_up_seconds + round.workload.seconds;
        let clients = round.cell.workers;
        let database = &self.database;
        [
            "--no-vacuum",
            "--protocol",
            "prepared",
            "--log",
            "--log-prefix",
            &self.files.join(prefix).to_string_lossy(),
            "--file",
            &sql.to_string_lossy(),
            "--client",
            &clients.to_string(),
            "--jobs",
            &clients.min(THREADS_MAX).to_string(),
            "--time",
            &seconds.to_string(),
            "--host",
            &database.host,
            "--port",
            &database.port.to_string(),
            "--username",
            &database.user,
            &database.name,
        ]
        .map(str::to_owned)
        .to_vec()
    }

    /// The transactions that `pgbench` has logged, one file per thread.
    fn lines(&self, prefix: &str) -> Result<Vec<Line>> {
        let mut lines = Vec::new();
        for entry in std::fs::read_dir(&self.files)?.flatten() {
            let name = entry.file_name();
            if name
                .to_string_lossy()
                .strip_prefix(prefix)
                .is_some_and(|rest| rest.starts_with('.'))
            {
                let text = std::fs::read_to_string(entry.path())?;
                lines.extend(text.lines().filter_map(Line::parse));
                std::fs::remove_file(entry.path())?;
            }
        }
        Ok(lines)
    }
}

fn insert(payload_bytes: usize, events: u64) -> String {
    let data = "x".repeat(payload_bytes);
    match events {
        1 => format!("INSERT INTO floor (data) VALUES ('{data}');\n"),
        _ => {
            format!("INSERT INTO floor (data) SELECT '{data}' FROM generate_series(1, {events});\n")
        }
    }
}

/// Waits for the end; gives what `pgbench` wrote and the processor time after the warm-up.
async fn follow(child: &mut Child, round: &Round<'_>) -> Result<(String, CpuUse)> {
    let from = Instant::now() + round.workload.warm_up();
    let mut looks = tokio::time::interval(LOOK);
    let mut meter: Option<(CpuMeter, Instant, f64)> = None;
    let mut cpu = CpuUse::default();
    let mut text = String::new();
    loop {
        tokio::select! {
            line = child.line() => match line? {
                Some(line) => { text.push_str(&line); text.push('\n'); }
                None if text.is_empty() => return Err(child.complaint("wrote nothing")),
                None => return Ok((text, cpu)),
            },
            _ = looks.tick() => {
                if Instant::now() < from {
                    continue;
                }
                let Some(spent) = busy_seconds(child.pid()) else { continue };
                match &meter {
                    None => meter = Some((CpuMeter::start(), Instant::now(), spent)),
                    Some((machine, since, spent_before)) => {
                        let own = (spent - spent_before) / since.elapsed().as_secs_f64().max(0.001);
                        let own_cores = (own * 100.0).round() / 100.0;
                        cpu = CpuUse { own_cores, ..machine.used() };
                    }
                }
            }
        }
    }
}

/// Processor time of a process that still runs.
fn busy_seconds(pid: i32) -> Option<f64> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let (_, rest) = stat.rsplit_once(')')?;
    let fields: Vec<&str> = rest.split_whitespace().collect();
    let ticks = |index: usize| fields.get(index)?.parse::<f64>().ok();
    if matches!(fields.first(), Some(&"Z" | &"X")) {
        return None;
    }
    Some((ticks(11)? + ticks(12)?) / TICKS)
}

fn processed(text: &str) -> Option<u64> {
    let rest = text
        .lines()
        .find_map(|line| line.strip_prefix("number of transactions actually processed: "))?;
    rest.split('/').next()?.trim().parse().ok()
}

/// A transaction: when it ended, in microseconds of the clock of the day, and how long it took.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Line {
    end: u64,
    micros: u64,
}

impl Line {
    /// `client transaction micros script seconds microseconds`
    fn parse(line: &str) -> Option<Self> {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let number = |index: usize| fields.get(index)?.parse::<u64>().ok();
        Some(Self {
            end: number(4)? * 1_000_000 + number(5)?,
            micros: number(2)?,
        })
    }
}

struct Window {
    appends: u64,
    latencies: Latencies,
}

/// The transactions that ended in the window after the warm-up.
fn window(lines: &[Line], warm_up: Duration, duration: Duration) -> Result<Window> {
    let begin = lines
        .iter()
        .map(|line| line.end.saturating_sub(line.micros))
        .min();
    let begin = begin.ok_or_else(|| Failure("pgbench logged no transaction".into()))?;
    let from = begin + u64::try_from(warm_up.as_micros())?;
    let to = from + u64::try_from(duration.as_micros())?;
    let mut window = Window {
        appends: 0,
        latencies: Latencies::default(),
    };
    for line in lines.iter().filter(|line| (from..to).contains(&line.end)) {
        window.appends += 1;
        window.latencies.record(Duration::from_micros(line.micros));
    }
    Ok(window)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_window_leaves_the_warm_up_out() {
        let log =
            "0 1 1000 0 100 1000\n0 2 500 0 101 0\n1 1 700 0 101 500\n1 2 900 0 103 0\nnonsense\n";
        let lines: Vec<Line> = log.lines().filter_map(Line::parse).collect();
        assert_eq!(lines.len(), 4);
        let window = window(&lines, Duration::from_secs(1), Duration::from_secs(1)).unwrap();
        assert_eq!(window.appends, 2);
        let latency = window.latencies.percentiles();
        assert!(
            (latency.p50 - 0.5).abs() < 0.01 && (latency.max - 0.7).abs() < 0.01,
            "{latency:?}"
        );
        assert!(super::window(&[], Duration::ZERO, Duration::from_secs(1)).is_err());
    }

    #[test]
    fn the_number_of_transactions_is_read() {
        let text =
            "number of threads: 1\nnumber of transactions actually processed: 1234\ntps = 1\n";
        assert_eq!(processed(text), Some(1234));
        assert_eq!(
            processed("number of transactions actually processed: 12/12\n"),
            Some(12)
        );
        assert_eq!(processed("tps = 5"), None);
    }
}
