//! The parameters of `reservation`.

use std::net::SocketAddr;
use std::time::Duration;

use serde::Serialize;

use super::generator::{Drive, Phase};
use super::model::SEATS_MAX;
use super::processes::{self, Tree};
use super::script::Scenario;
use crate::endpoint::Endpoint;
use crate::failure::{Result, fail};
use crate::histogram::Percentiles;
use crate::report::ReportArgs;
use crate::units::{self, seconds};

/// Seconds between two requests of a user of the open loop.
const USER_PAUSE: f64 = 0.25;

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
    /// Closed loop: so many users with a connection each. Default: 64.
    #[arg(long, conflicts_with_all = ["open", "steps"], value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub(crate) closed: Option<u32>,
    /// Strict open loop: so many requests a second, each counted from its intended start.
    #[arg(long, conflicts_with = "steps", value_parser = units::rate)]
    pub(crate) open: Option<f64>,
    /// Rising load in requests a second, FROM:STEP:TO, until a step's p99 is above --stop-p99.
    #[arg(long, value_parser = Steps::parse)]
    pub(crate) steps: Option<Steps>,
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

fn share(text: &str) -> std::result::Result<f64, String> {
    match text.parse() {
        Ok(share) if (0.0..=0.9).contains(&share) => Ok(share),
        _ => Err(format!("{text:?} is not a share from 0 to 0.9")),
    }
}

/// Steps of rising load.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub(crate) struct Steps {
    from: f64,
    step: f64,
    to: f64,
}

impl Steps {
    fn parse(text: &str) -> std::result::Result<Self, String> {
        let numbers: std::result::Result<Vec<f64>, _> = text.split(':').map(str::parse).collect();
        match numbers.as_deref() {
            Ok(&[from, step, to])
                if from > 0.0 && step > 0.0 && to >= from && to.is_finite() && to / step < 1e6 =>
            {
                Ok(Self { from, step, to })
            }
            _ => Err(format!(
                "{text:?} is not FROM:STEP:TO, such as 500:250:5000"
            )),
        }
    }

    fn loads(&self) -> impl Iterator<Item = f64> {
        let (from, step, end) = (self.from, self.step, self.to + self.step * 1e-9);
        let loads = (0_u32..).map(move |n| from + f64::from(n) * step);
        loads.take_while(move |load| *load <= end)
    }
}

impl ReservationArgs {
    /// Refuses what cannot be meant.
    pub(crate) fn check(&self) -> Result<()> {
        if self.steps.is_some() && self.step_duration <= self.warm_up {
            return fail("--step-duration must be longer than --warm-up");
        }
        Ok(())
    }

    /// True if the step is bad: too slow, or nothing was answered at all. Steps end with it.
    pub(crate) fn is_bad(&self, latency: &Percentiles) -> bool {
        latency.count == 0 || latency.p99 > self.stop_p99.as_secs_f64() * 1_000.0
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
    pub(crate) fn drives(&self) -> Vec<(String, Drive)> {
        let open = |rate: f64| (format!("{rate} req/s"), self.open_at(rate));
        match (self.steps, self.open) {
            (Some(steps), _) => steps.loads().map(open).collect(),
            (None, Some(rate)) => vec![open(rate)],
            (None, None) => {
                let name = format!("{} connections", self.closed.unwrap_or(64));
                vec![(name, self.closed_loop())]
            }
        }
    }

    /// A phase of this load.
    pub(crate) fn phase(&self, drive: Drive) -> Phase {
        let duration = match self.steps {
            Some(_) => self.step_duration.saturating_sub(self.warm_up),
            None => self.duration,
        };
        Phase {
            drive,
            reads: self.reads,
            warm_up: self.warm_up,
            duration,
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
            Some(endpoint) if url.starts_with("http://") => endpoint.address(),
            _ => fail(format!("{url:?} is not a URL like http://127.0.0.1:8080")),
        };
        self.urls.iter().map(target).collect()
    }

    /// The processes whose time is measured: those that listen at the addresses of the servers and of the store.
    pub(crate) fn trees(&self) -> Result<Vec<Tree>> {
        let listening = self.targets()?.into_iter();
        let servers = listening.filter_map(|address| Tree::listening_on("application", address));
        let database = self.store.as_deref().and_then(Endpoint::parse);
        let database = database.and_then(|endpoint| endpoint.address().ok());
        let database =
            database.and_then(|address| processes::Tree::listening_on("database", address));
        Ok(servers.chain(database).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_are_read_and_counted() {
        let loads = |text: &str| Steps::parse(text).map(|steps| steps.loads().collect::<Vec<_>>());
        let wanted = vec![500.0, 750.0, 1_000.0, 1_250.0];
        assert_eq!(loads("500:250:1300"), Ok(wanted));
        assert_eq!(loads("0.1:0.1:0.3").unwrap().len(), 3);
        for bad in [
            "", "1:2", "1:2:3:4", "0:1:2", "1:0:2", "3:1:2", "a:b:c", "1:1:inf", "1:1e-9:2",
        ] {
            assert!(loads(bad).is_err(), "{bad}");
        }
    }
}
