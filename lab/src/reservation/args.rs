//! The parameters of `reservation`.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use gesta_load::cinema::generator::{Drive, Phase};
use gesta_load::cinema::model::SEATS_MAX;
use gesta_load::cinema::script::Scenario;
use gesta_load::machine::processes::Tree;
use gesta_report::ReportArgs;
use gesta_report::endpoint;
use gesta_report::endpoint::Endpoint;
use gesta_report::failure::{Result, fail};
use gesta_report::numbers::millis;
use gesta_report::units::{self, maybe_seconds, seconds};
use serde::Serialize;

use crate::workload::ladder::Steps;

/// Seconds between two requests of a user of the open loop.
const USER_PAUSE: f64 = 0.25;
/// Seats of a show, unless others are wanted.
pub(crate) const SEATS: u16 = 50;
/// The bar, unless another one is wanted.
pub(crate) const STOP_P99: Duration = Duration::from_millis(50);
/// The same as a default of the command line.
const STOP_P99_TEXT: &str = "50ms";

/// Drives any server with the cinema's HTTP interface, and proves that no seat was held twice.
#[derive(Debug, Clone, clap::Args, Serialize)]
pub(crate) struct ReservationArgs {
    /// The server, http://host:port; several servers on one database are driven on the same shows.
    #[arg(long = "url", required_unless_present = "cinema", num_args = 1)]
    pub(crate) urls: Vec<String>,
    /// Starts this program as `cinema --store URL --listen ADDRESS`, on --store, which nobody else may use, or
    /// on a PostgreSQL server that is started for this run.
    #[arg(long, value_name = "PROGRAM", conflicts_with = "urls")]
    #[serde(skip)]
    pub(crate) cinema: Option<PathBuf>,
    /// Who meets whom.
    #[arg(long, value_enum, default_value_t = Scenario::Serial)]
    pub(crate) scenario: Scenario,
    /// Shows of the concurrent scenario, created before the clock starts.
    #[arg(long, default_value_t = 10_000, value_parser = clap::value_parser!(u32).range(1..=10_000_000))]
    pub(crate) shows: u32,
    /// Seats per show.
    #[arg(long, default_value_t = SEATS, value_parser = clap::value_parser!(u16).range(1..=i64::from(SEATS_MAX)))]
    pub(crate) seats: u16,
    /// Seed of the order of seats and reads; ids of shows are new in each run.
    #[arg(long, default_value_t = 7)]
    pub(crate) seed: u64,
    /// Closed loop: so many users with a connection each. Default: 64.
    #[arg(long, conflicts_with_all = ["open", "steps"], value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub(crate) closed: Option<u32>,
    /// Strict open loop: so many requests a second, each counted from its intended start.
    #[arg(long, conflicts_with = "steps", value_parser = units::rate)]
    pub(crate) open: Option<f64>,
    /// A ladder: strict open loops of rising rates, FROM:STEP:TO requests a second, until one breaks the bar of
    /// --stop-p99, is carried out by less than 97 %, or has a request that failed or was not answered.
    #[arg(long, value_name = "FROM:STEP:TO", value_parser = Steps::parse)]
    pub(crate) steps: Option<Steps>,
    /// Length of a step of the ladder; --warm-up is its first part. Default: --warm-up and --duration.
    #[arg(long, requires = "steps", value_parser = units::duration)]
    #[serde(serialize_with = "maybe_seconds")]
    pub(crate) step_duration: Option<Duration>,
    /// The bar: a p99 above it ends a ladder; and a request that is accepted later is no good one, when recovery from
    /// overload is looked for.
    #[arg(long, default_value = STOP_P99_TEXT, value_parser = units::duration)]
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
    /// Connections of the open loop. Default: 512; overload: 4096.
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub(crate) connections: Option<u32>,
    /// Users of the open loop, who take turns. Default: as many as make a request every 250 ms.
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub(crate) active_users: Option<u32>,
    /// Share of reads among requests, 0 to 0.9.
    #[arg(long, default_value_t = 0.0, value_parser = share)]
    pub(crate) reads: f64,
    /// The store behind the application, to compare its events with what was acknowledged.
    #[arg(long)]
    #[serde(skip)]
    pub(crate) store: Option<String>,
    /// Overload: so many times --sustainable for --duration, between the peak of a closed loop and --sustainable again.
    #[arg(long, requires = "sustainable", conflicts_with_all = ["open", "steps"], value_parser = units::rate)]
    pub(crate) overload: Option<f64>,
    /// Requests a second that the application carries.
    #[arg(long, value_parser = units::rate)]
    pub(crate) sustainable: Option<f64>,
    #[command(flatten)]
    #[serde(skip)]
    pub(crate) report: ReportArgs,
}

/// A ladder on servers that another command has started.
#[derive(Debug)]
pub(crate) struct Ladder {
    pub(crate) urls: Vec<String>,
    pub(crate) store: String,
    pub(crate) scenario: Scenario,
    /// Of the concurrent scenario.
    pub(crate) shows: u32,
    pub(crate) seed: u64,
    pub(crate) steps: Steps,
    pub(crate) step_duration: Duration,
    pub(crate) warm_up: Duration,
    pub(crate) report: ReportArgs,
}

impl From<Ladder> for ReservationArgs {
    fn from(ladder: Ladder) -> Self {
        Self {
            urls: ladder.urls,
            cinema: None,
            scenario: ladder.scenario,
            shows: ladder.shows,
            seats: SEATS,
            seed: ladder.seed,
            closed: None,
            open: None,
            steps: Some(ladder.steps),
            step_duration: Some(ladder.step_duration),
            stop_p99: STOP_P99,
            warm_up: ladder.warm_up,
            duration: ladder.step_duration,
            connections: None,
            active_users: None,
            reads: 0.0,
            store: Some(ladder.store),
            overload: None,
            sustainable: None,
            report: ladder.report,
        }
    }
}

/// As many users of the open loop as make so many requests a second.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "clamped to a small positive number"
)]
pub(crate) fn users_for(rate: f64) -> usize {
    (rate * USER_PAUSE).clamp(64.0, 100_000.0) as usize
}

fn share(text: &str) -> std::result::Result<f64, String> {
    match text.parse() {
        Ok(share) if (0.0..=0.9).contains(&share) => Ok(share),
        _ => Err(format!("{text:?} is not a share from 0 to 0.9")),
    }
}

impl ReservationArgs {
    /// The strict open loop at a rate.
    pub(crate) fn open_at(&self, rate: f64) -> Drive {
        let wanted = self.active_users.map(|users| users as usize);
        Drive::Open {
            rate,
            users: wanted.unwrap_or_else(|| users_for(rate)),
        }
    }

    pub(crate) fn closed_loop(&self) -> Drive {
        Drive::Closed(self.closed.unwrap_or(64) as usize)
    }

    /// Refuses what cannot be meant.
    pub(crate) fn check(&self) -> Result<()> {
        match self.step_duration {
            Some(step) if step <= self.warm_up => fail(format!(
                "--step-duration {step:?} must be longer than --warm-up {:?}, which is a part of it",
                self.warm_up
            )),
            _ => Ok(()),
        }
    }

    /// What is to be run, without overload, one after the other, with names.
    pub(crate) fn drives(&self) -> Vec<(String, Drive)> {
        let open = |rate: f64| (format!("{rate} req/s"), self.open_at(rate));
        match (self.steps, self.open) {
            (Some(steps), _) => steps.rates().map(open).collect(),
            (None, Some(rate)) => vec![open(rate)],
            (None, None) => vec![(self.load_told(), self.closed_loop())],
        }
    }

    /// The load in words.
    pub(crate) fn load_told(&self) -> String {
        match (self.steps, self.open) {
            (Some(steps), _) => {
                let length = millis((self.warm_up + self.measured()).as_secs_f64() * 1_000.0);
                format!("a ladder of {steps} req/s, steps of {length}")
            }
            (None, Some(rate)) => format!("{rate} req/s"),
            (None, None) => format!("{} connections", self.closed.unwrap_or(64)),
        }
    }

    /// The part of a run or step that counts.
    fn measured(&self) -> Duration {
        let step = self
            .step_duration
            .map(|step| step.saturating_sub(self.warm_up));
        step.unwrap_or(self.duration)
    }

    /// A phase of this load.
    pub(crate) fn phase(&self, drive: Drive) -> Phase {
        Phase {
            drive,
            reads: self.reads,
            warm_up: self.warm_up,
            duration: self.measured(),
            slow: self.stop_p99,
        }
    }

    /// Connections that a way of driving needs, all servers together; a user of the closed loop has one to each.
    pub(crate) fn connections_for(&self, drive: Drive, otherwise: u32) -> usize {
        match drive {
            Drive::Closed(users) => users * self.urls.len(),
            Drive::Open { .. } => self.connections.unwrap_or(otherwise) as usize,
        }
    }

    /// The addresses of the servers.
    pub(crate) fn targets(&self) -> Result<Vec<SocketAddr>> {
        let target = |url: &String| match Endpoint::parse(url) {
            // The URL stands in the results, and what of it could be a secret would be of no use here.
            Some(endpoint) if url.starts_with("http://") && !url.contains(['@', '?', '#']) => {
                endpoint.address()
            }
            _ => fail(format!(
                "{:?} is not a URL like http://127.0.0.1:8080",
                endpoint::redacted_url(url)
            )),
        };
        self.urls.iter().map(target).collect()
    }

    /// The processes whose time is measured: those that listen at the addresses of the servers and of the store.
    pub(crate) fn trees(&self) -> Result<Vec<Tree>> {
        let listening = self.targets()?.into_iter();
        let servers = listening.filter_map(|address| Tree::listening_on("application", address));
        let database = self.store.as_deref().and_then(Endpoint::parse);
        let database = database.and_then(|endpoint| endpoint.address().ok());
        let database = database.and_then(|address| Tree::listening_on("database", address));
        Ok(servers.chain(database).collect())
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        reservation: ReservationArgs,
    }

    /// Goal: a ladder of another command is that of this one, where nothing else is said.
    #[test]
    fn a_ladder_of_another_command_has_the_defaults_of_this_one() {
        let url = "http://127.0.0.1:8080";
        let line = format!("lab --url {url} --steps 100:100:200 --step-duration 9s");
        let given = Line::parse_from(line.split(' ')).reservation;
        let ladder = ReservationArgs::from(Ladder {
            urls: vec![url.into()],
            store: String::new(),
            scenario: given.scenario,
            shows: given.shows,
            seed: given.seed,
            steps: Steps::parse("100:100:200").unwrap(),
            step_duration: Duration::from_secs(9),
            warm_up: given.warm_up,
            report: given.report.clone(),
        });
        // The ladder measures for as long as a step.
        let given = ReservationArgs {
            duration: ladder.duration,
            ..given
        };
        let [given, ladder] = [given, ladder].map(|args| serde_json::to_value(args).unwrap());
        assert_eq!(given, ladder);
    }
}
