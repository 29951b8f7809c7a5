//! The parameters of `scenario`.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use gesta_load::TargetOptions;
use gesta_load::engine::Limits;
use gesta_load::figures::{Figures, Outcome};
use gesta_load::machine::processes::Tree;
use gesta_load::schedule::Drive;
use gesta_report::ReportArgs;
use gesta_report::endpoint::Endpoint;
use gesta_report::failure::{Context, Failure, Result, fail};
use gesta_report::numbers::millis;
use gesta_report::units::{self, maybe_seconds, seconds};
use gesta_report::{endpoint, file};
use hyper::header::{HeaderMap, HeaderName, HeaderValue};
use serde::Serialize;

use crate::workload::ladder::Steps;

/// Seconds between two requests of a user of the open loop who does not think.
const USER_PAUSE: f64 = 0.25;
/// Users of the closed loop.
const CONCURRENCY: u32 = 16;
/// Connections of the open loop.
const CONNECTIONS: u32 = 512;
/// Largest file of authorities; all that browsers believe are less than a MiB.
const AUTHORITIES_BYTES_MAX: u64 = 16 * 1024 * 1024;
/// Largest file of headers.
const HEADERS_BYTES_MAX: u64 = 64 * 1024;

/// Load on any HTTP service, out of a scenario file.
#[derive(Debug, Clone, clap::Args, Serialize)]
pub(crate) struct ScenarioArgs {
    /// The file: flows of requests, feeders of values, checks of answers.
    pub(crate) file: PathBuf,
    /// The service, http://host:port or https://host:port, with a path if all requests are below it.
    #[arg(long, value_name = "URL", required_unless_present = "check")]
    pub(crate) target: Option<String>,
    /// Reads the file and the files that it names, says what it found, and sends nothing.
    #[arg(long, conflicts_with_all = ["target", "rate", "concurrency", "steps"])]
    #[serde(skip)]
    pub(crate) check: bool,
    /// Strict open loop: so many requests a second, each counted from its intended start.
    #[arg(long, value_name = "R", conflicts_with_all = ["concurrency", "steps"], value_parser = units::rate)]
    pub(crate) rate: Option<f64>,
    /// Closed loop: so many users, each with the next request once the last is answered. Default: 16.
    #[arg(long, value_name = "N", conflicts_with = "steps", value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub(crate) concurrency: Option<u32>,
    /// A ladder: strict open loops of rising rates, FROM:STEP:TO requests a second, until one breaks the bar of
    /// --stop-p99, is carried out by less than 97 %, or has more failures than may be.
    #[arg(long, value_name = "FROM:STEP:TO", value_parser = Steps::parse)]
    pub(crate) steps: Option<Steps>,
    /// Length of a step of the ladder; --warm-up is its first part. Default: --warm-up and --duration.
    #[arg(long, requires = "steps", value_parser = units::duration)]
    #[serde(serialize_with = "maybe_seconds")]
    pub(crate) step_duration: Option<Duration>,
    /// The bar: a p99 above it ends a ladder.
    #[arg(long, default_value = "50ms", value_parser = units::duration)]
    #[serde(serialize_with = "seconds")]
    pub(crate) stop_p99: Duration,
    /// First part of a run, kept apart from the figures.
    #[arg(long, default_value = "5s", value_parser = units::duration)]
    #[serde(serialize_with = "seconds")]
    pub(crate) warm_up: Duration,
    /// Measured part of a run.
    #[arg(long, default_value = "30s", value_parser = units::duration)]
    #[serde(serialize_with = "seconds")]
    pub(crate) duration: Duration,
    /// Most connections at once. Default: one for each user of a closed loop, 512 for the open loop.
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    #[serde(skip)]
    pub(crate) connections: Option<u32>,
    /// Users of the open loop. Default: as many as make a request every 250 ms beside their think time, at least 64.
    #[arg(long, conflicts_with = "concurrency", value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub(crate) users: Option<u32>,
    /// A request whose answer takes longer has failed.
    #[arg(long, default_value = "60s", value_parser = units::duration)]
    #[serde(serialize_with = "seconds")]
    pub(crate) timeout: Duration,
    /// A request whose answer is longer has failed.
    #[arg(long, value_name = "BYTES", default_value_t = 1024 * 1024, value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) body_max: u32,
    /// A header of all requests, "Name: value"; it goes before those of the file, and its value is kept out of results.
    #[arg(long = "header", value_name = "NAME: VALUE")]
    #[serde(skip)]
    pub(crate) headers: Vec<String>,
    /// File with more of them, one a line: for secrets, since everybody on this machine can see arguments. Those of
    /// --header go before them.
    #[arg(long, value_name = "FILE")]
    #[serde(skip)]
    pub(crate) header_file: Option<PathBuf>,
    /// File with the authorities (PEM) that are believed instead of those of the operating system.
    #[arg(long, value_name = "FILE")]
    #[serde(skip)]
    pub(crate) ca_file: Option<PathBuf>,
    /// Share of the requests that may fail their checks or stay without an answer; more is no result.
    #[arg(long, value_name = "SHARE", default_value_t = 0.0, value_parser = share)]
    pub(crate) failures_max: f64,
    /// The PostgreSQL behind the service, postgres://user@host:port/database, wherever it is: what it did is told of
    /// each step, and its processor time if it is on this machine.
    #[arg(long, value_name = "URL")]
    #[serde(skip)]
    pub(crate) database: Option<String>,
    /// Seed of the order of rows and of the choice of flows; uuids and {{run}} are new in each run.
    #[arg(long, default_value_t = 7)]
    pub(crate) seed: u64,
    /// Also draws the page of this run, into this file.
    #[arg(long, value_name = "FILE")]
    #[serde(skip)]
    pub(crate) page: Option<PathBuf>,
    #[command(flatten)]
    #[serde(skip)]
    pub(crate) report: ReportArgs,
}

fn share(text: &str) -> std::result::Result<f64, String> {
    match text.parse() {
        Ok(share) if (0.0..=1.0).contains(&share) => Ok(share),
        _ => Err(format!("{text:?} is not a share from 0 to 1")),
    }
}

/// `1 user`, `16 users`.
pub(crate) fn users_told(users: usize) -> String {
    format!("{users} user{}", if users == 1 { "" } else { "s" })
}

/// The name and the value of a header; none if the text is not "Name: value".
fn header(text: &str) -> Option<(HeaderName, HeaderValue)> {
    let (name, value) = text.split_once(':')?;
    let name = HeaderName::try_from(name.trim()).ok()?;
    let mut value = HeaderValue::from_str(value.trim()).ok()?;
    value.set_sensitive(true);
    Some((name, value))
}

impl ScenarioArgs {
    /// Refuses what cannot be meant.
    pub(crate) fn check(&self) -> Result<()> {
        match self.step_duration {
            Some(step) if step <= self.warm_up => fail(format!(
                "--step-duration {step:?} must be longer than --warm-up {:?}, which is a part of it",
                self.warm_up
            )),
            _ if self.timeout.is_zero() => fail("--timeout must be above 0"),
            _ if self.measured().is_zero() => fail("--duration must be above 0"),
            _ => Ok(()),
        }
    }

    /// The part of a run or step that counts.
    pub(crate) fn measured(&self) -> Duration {
        let step = self.step_duration;
        let step = step.map(|step| step.saturating_sub(self.warm_up));
        step.unwrap_or(self.duration)
    }

    /// What is to be run, one after the other, with names.
    pub(crate) fn drives(&self, think: Duration) -> Vec<(String, Drive)> {
        let open = |rate: f64| (format!("{rate} req/s"), self.open_at(rate, think));
        match (self.steps, self.rate) {
            (Some(steps), _) => steps.rates().map(open).collect(),
            (None, Some(rate)) => vec![open(rate)],
            (None, None) => {
                let users = self.concurrency.unwrap_or(CONCURRENCY) as usize;
                vec![(users_told(users), Drive::Closed(users))]
            }
        }
    }

    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "clamped to a small positive number"
    )]
    fn open_at(&self, rate: f64, think: Duration) -> Drive {
        let wanted = rate * (USER_PAUSE + think.as_secs_f64());
        let wanted = wanted.clamp(64.0, 100_000.0) as usize;
        Drive::Open {
            rate,
            users: self.users.map_or(wanted, |users| users as usize),
        }
    }

    /// The load in words.
    pub(crate) fn load_told(&self) -> String {
        match (self.steps, self.rate) {
            (Some(steps), _) => {
                let length = millis((self.warm_up + self.measured()).as_secs_f64() * 1_000.0);
                format!("a ladder of {steps} req/s, steps of {length}")
            }
            (None, Some(rate)) => format!("{rate} req/s"),
            (None, None) => users_told(self.concurrency.unwrap_or(CONCURRENCY) as usize),
        }
    }

    /// Requests that failed, if more did than may; else 0.
    pub(crate) fn too_many(&self, figures: &Figures) -> u64 {
        let is_bad = |outcome| matches!(outcome, Outcome::Wrong | Outcome::Failed);
        let bad = figures.over(|_, outcome| is_bad(outcome)).count;
        let all = figures.over(|_, _| true).count;
        match bad as f64 > self.failures_max * all as f64 {
            true => bad,
            false => 0,
        }
    }

    /// What the generator may do.
    pub(crate) fn limits(&self) -> Result<Limits> {
        let closed = match (self.steps, self.rate) {
            (None, None) => Some(self.concurrency.unwrap_or(CONCURRENCY)),
            _ => None,
        };
        let connections = self.connections.or(closed).unwrap_or(CONNECTIONS);
        Ok(Limits {
            connections: connections as usize,
            timeout: self.timeout,
            body_bytes_max: self.body_max as usize,
            headers: self.headers()?,
            seed: self.seed,
        })
    }

    fn headers(&self) -> Result<HeaderMap> {
        let mut headers = HeaderMap::new();
        if let Some(path) = &self.header_file {
            let option = format!("--header-file {}", path.display());
            let read = file::read(path, HEADERS_BYTES_MAX).map_err(Failure);
            let text = file::text(read.context(&option)?);
            let text =
                text.map_err(|(line, why)| Failure(format!("{option}, line {line}: {why}")))?;
            for (number, line) in (1..).zip(text.lines()) {
                if line.trim().is_empty() {
                    continue;
                }
                // All of the line may be a secret.
                let rule = "must be \"Name: value\"";
                let wrong = || Failure(format!("{option}, line {number}: {rule}"));
                let (name, value) = header(line).ok_or_else(wrong)?;
                headers.insert(name, value);
            }
        }
        for text in &self.headers {
            // The value may be a secret, and without a name all of it may be the value.
            let name = text.split_once(':').map_or("***", |(name, _)| name);
            let wrong = || Failure(format!("--header {name:?}: must be \"Name: value\""));
            let (name, value) = header(text).ok_or_else(wrong)?;
            headers.insert(name, value);
        }
        Ok(headers)
    }

    pub(crate) fn target_options(&self) -> Result<TargetOptions> {
        let read = |path: &PathBuf| {
            let read = file::read(path, AUTHORITIES_BYTES_MAX).map_err(Failure);
            read.context(path.display())
        };
        Ok(TargetOptions {
            ca_pem: self.ca_file.as_ref().map(read).transpose()?,
        })
    }

    /// The processes whose time is measured: those that listen at the addresses of the service and of the database.
    pub(crate) fn trees(&self, target: Option<SocketAddr>) -> Result<Vec<Tree>> {
        let service = target.and_then(|address| Tree::listening_on("application", address));
        let database = match &self.database {
            Some(url) => {
                let wrong = || {
                    let told = endpoint::redacted_url(url);
                    Failure(format!(
                        "--database {told:?} is not a URL such as postgres://user@127.0.0.1:5432/shop"
                    ))
                };
                let endpoint = Endpoint::parse(url).ok_or_else(wrong)?;
                // Of several hosts, or of one that nobody knows here, no process is known.
                let address = endpoint.address().ok();
                address.and_then(|address| Tree::listening_on("database", address))
            }
            None => None,
        };
        Ok(service.into_iter().chain(database).collect())
    }
}
