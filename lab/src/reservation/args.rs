//! The parameters of `reservation`.

use std::net::SocketAddr;
use std::time::Duration;

use serde::Serialize;

use crate::endpoint::Endpoint;
use crate::failure::{Failure, Result, fail};
use crate::report::ReportArgs;
use crate::reservation::drive::{Drive, Phase};
use crate::reservation::generator::Settings;
use crate::reservation::model::SEATS_MAX;
use crate::reservation::pace::{Steps, StopRule};
use crate::reservation::processes::{self, Tree};
use crate::reservation::script::Scenario;
use crate::units::{self, seconds};

/// How long an open loop goes on with its backlog after its end.
const GRACE: Duration = Duration::from_secs(1);
/// Seconds between two requests of a user of the open loop.
const USER_PAUSE: f64 = 0.25;

/// What steps count.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Unit {
    /// Requests a second, as --open.
    Requests,
    /// Connections, as --closed.
    Connections,
}

/// Drives any server with the cinema's HTTP interface, and proves that no seat was held twice.
#[derive(Debug, Clone, clap::Args, Serialize)]
pub(crate) struct ReservationArgs {
    /// The server, http://host:port; several servers on one database are driven on the same shows.
    #[arg(long = "url", required = true, num_args = 1)]
    pub(crate) urls: Vec<String>,
    /// Who meets whom.
    #[arg(long, value_enum, default_value_t = Scenario::Serial)]
    pub(crate) scenario: Scenario,
    /// Shows of the concurrent scenario, created before the clock starts.
    #[arg(long, default_value_t = 10_000, value_parser = clap::value_parser!(u32).range(1..=10_000_000))]
    pub(crate) shows: u32,
    /// Seats per show.
    #[arg(long, default_value_t = 50, value_parser = clap::value_parser!(u16).range(1..=i64::from(SEATS_MAX)))]
    pub(crate) seats: u16,
    /// Seed of the order of seats and reads; ids of shows are new in each run.
    #[arg(long, default_value_t = 7)]
    pub(crate) seed: u64,
    #[command(flatten)]
    #[serde(flatten)]
    pub(crate) load: LoadArgs,
    /// Process of the application; default: who listens on the port of --url on this machine.
    #[arg(long)]
    pub(crate) app_pid: Vec<u32>,
    /// Process of the database (PostgreSQL: the postmaster); default: who listens on the port of --store.
    #[arg(long)]
    pub(crate) db_pid: Vec<u32>,
    /// The store behind the application, to compare its events with what was acknowledged.
    #[arg(long)]
    #[serde(skip)]
    pub(crate) store: Option<String>,
    /// Overload: so many times --sustainable for --duration, between the peak of a closed loop and --sustainable again.
    #[arg(long, requires = "sustainable", conflicts_with_all = ["open", "steps"])]
    pub(crate) overload: Option<f64>,
    /// Requests a second that the application carries.
    #[arg(long)]
    pub(crate) sustainable: Option<f64>,
    #[command(flatten)]
    #[serde(skip)]
    pub(crate) report: ReportArgs,
}

/// The parameters of the load.
#[derive(Debug, Clone, clap::Args, Serialize)]
pub(crate) struct LoadArgs {
    /// Closed loop: so many users with a connection each. Default: 64.
    #[arg(long, conflicts_with_all = ["open", "steps"], value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub(crate) closed: Option<u32>,
    /// Strict open loop: so many requests a second, each counted from its intended start.
    #[arg(long, conflicts_with = "steps")]
    pub(crate) open: Option<f64>,
    /// Rising load, FROM:STEP:TO, until the stop rule ends it.
    #[arg(long, value_parser = Steps::parse)]
    pub(crate) steps: Option<Steps>,
    /// What the numbers of --steps are.
    #[arg(long, value_enum, default_value_t = Unit::Requests)]
    pub(crate) by: Unit,
    /// Length of a step, its warm-up included.
    #[arg(long, default_value = "30s", value_parser = units::duration)]
    #[serde(serialize_with = "seconds")]
    pub(crate) step_duration: Duration,
    /// The 99th percentile above which steps end.
    #[arg(long, default_value = "50ms", value_parser = units::duration)]
    #[serde(serialize_with = "seconds")]
    pub(crate) stop_p99: Duration,
    /// First part of a run or step, kept apart from the figures.
    #[arg(long, default_value = "5s", value_parser = units::duration)]
    #[serde(serialize_with = "seconds")]
    pub(crate) warm_up: Duration,
    /// Measured part of a run without steps.
    #[arg(long, default_value = "30s", value_parser = units::duration)]
    #[serde(serialize_with = "seconds")]
    pub(crate) duration: Duration,
    /// Connections of the open loop. Default: 512; overload: 4096.
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub(crate) connections: Option<u32>,
    /// Users of the open loop, who take turns. Default: as many as make a request every 250 ms.
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub(crate) active_users: Option<u32>,
    /// Share of reads among requests, 0 to 0.9.
    #[arg(long, default_value_t = 0.0, value_parser = share)]
    pub(crate) reads: f64,
    /// How often the open loop wakes: latencies are up to twice as much too long, and a wake-up costs some 20 us.
    #[arg(long, default_value = "500us", value_parser = units::duration)]
    #[serde(serialize_with = "seconds")]
    pub(crate) tick: Duration,
    /// When a request without an answer has failed.
    #[arg(long, default_value = "10s", value_parser = units::duration)]
    #[serde(serialize_with = "seconds")]
    pub(crate) timeout: Duration,
}

fn share(text: &str) -> std::result::Result<f64, String> {
    match text.parse() {
        Ok(share) if (0.0..=0.9).contains(&share) => Ok(share),
        _ => Err(format!("{text:?} is not a share from 0 to 0.9")),
    }
}

impl LoadArgs {
    /// The rule that ends steps.
    pub(crate) fn stop_rule(&self) -> StopRule {
        StopRule {
            p99_max: self.stop_p99,
        }
    }

    /// The strict open loop at a rate.
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "clamped to a small positive number"
    )]
    pub(crate) fn open_at(&self, rate: f64) -> Drive {
        let turns = (rate * USER_PAUSE).clamp(64.0, 100_000.0) as usize;
        Drive::Open {
            rate,
            users: self.active_users.map_or(turns, |users| users as usize),
        }
    }

    /// The closed loop.
    pub(crate) fn closed_loop(&self) -> Drive {
        Drive::Closed(self.closed.unwrap_or(64) as usize)
    }

    /// What is to be run, one after the other.
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "a positive number of connections"
    )]
    pub(crate) fn drives(&self) -> Vec<(String, Drive)> {
        if let Some(steps) = &self.steps {
            let loads = steps.loads().into_iter();
            return loads
                .map(|load| match self.by {
                    Unit::Requests => (format!("{load} req/s"), self.open_at(load)),
                    Unit::Connections => (
                        format!("{load:.0} connections"),
                        Drive::Closed(load.round().clamp(1.0, 1e5) as usize),
                    ),
                })
                .collect();
        }
        let one = match self.open {
            Some(rate) => (format!("{rate} req/s"), self.open_at(rate)),
            None => (
                format!("{} connections", self.closed.unwrap_or(64)),
                self.closed_loop(),
            ),
        };
        vec![one]
    }

    /// A phase of this load.
    pub(crate) fn phase(&self, drive: Drive) -> Phase {
        let duration = if self.steps.is_some() {
            self.step_duration.saturating_sub(self.warm_up)
        } else {
            self.duration
        };
        Phase {
            drive,
            reads: self.reads,
            warm_up: self.warm_up,
            duration,
            slow: self.stop_p99,
            grace: GRACE,
        }
    }

    /// Refuses what cannot be meant.
    pub(crate) fn check(&self) -> Result<()> {
        let good = |rate: &f64| (0.01..=10_000_000.0).contains(rate);
        if !self.open.iter().all(good) {
            return fail("--open is a number of requests a second");
        }
        if !(Duration::from_micros(20)..=Duration::from_millis(10)).contains(&self.tick) {
            return fail("--tick is between 20us and 10ms");
        }
        if self.steps.is_some() && self.step_duration <= self.warm_up {
            return fail("--step-duration must be longer than --warm-up");
        }
        Ok(())
    }
}

impl ReservationArgs {
    /// Connections that a way of driving needs, all servers together; a user of the closed loop has one to each.
    pub(crate) fn connections_for(&self, drive: Drive, otherwise: u32) -> usize {
        match drive {
            Drive::Closed(users) => users * self.urls.len(),
            _ => self.load.connections.unwrap_or(otherwise) as usize,
        }
    }

    /// The addresses of the servers.
    pub(crate) fn targets(&self) -> Result<Vec<SocketAddr>> {
        self.urls.iter().map(|url| target(url)).collect()
    }

    /// What the generator needs to know.
    pub(crate) fn settings(&self) -> Result<Settings> {
        Ok(Settings {
            targets: self.targets()?,
            timeout: self.load.timeout,
            tick: self.load.tick,
            seed: self.seed,
        })
    }

    /// The processes whose time is measured: those named, or else those that listen at the addresses.
    pub(crate) fn trees(&self) -> Result<Vec<Tree>> {
        let mut trees = Vec::new();
        let mut add = |name: &str, named: &[u32], listening: Vec<u32>| {
            let pids = if named.is_empty() {
                listening
            } else {
                named.to_vec()
            };
            let several = pids.len() > 1;
            for (i, pid) in pids.into_iter().enumerate() {
                let name = if several {
                    format!("{name}_{i}")
                } else {
                    name.to_owned()
                };
                trees.push(Tree::new(name, pid)?);
            }
            Ok::<_, Failure>(())
        };
        let servers = self.targets()?;
        let listening = servers.into_iter().filter_map(processes::listening_on);
        add("application", &self.app_pid, listening.collect())?;
        let database = self.store.as_deref().and_then(Endpoint::parse);
        let database = database.and_then(|endpoint| endpoint.address().ok());
        let listening = database.and_then(processes::listening_on);
        add("database", &self.db_pid, listening.into_iter().collect())?;
        Ok(trees)
    }
}

fn target(url: &str) -> Result<SocketAddr> {
    match Endpoint::parse(url) {
        Some(endpoint) if url.starts_with("http://") => endpoint.address(),
        _ => fail(format!("{url:?} is not a URL like http://127.0.0.1:8080")),
    }
}
