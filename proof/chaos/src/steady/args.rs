//! The parameters of a steady load.

use std::time::Duration;

use gesta_load::machine::store::StoreArgs;
use gesta_load::target::Load;
use gesta_report::ReportArgs;
use gesta_report::units::{self, seconds};

use super::plan::{LANES, Plan};
use crate::fault::Fault;
use crate::inflict::Strength;

/// Hours of mixed load with faults, then the read-back.
#[derive(Debug, Clone, clap::Args, serde::Serialize)]
pub(crate) struct SteadyArgs {
    #[command(flatten)]
    #[serde(skip)]
    pub(crate) store: StoreArgs,
    #[command(flatten)]
    #[serde(skip)]
    pub(crate) report: ReportArgs,
    /// How long.
    #[arg(long, default_value = "10m", value_parser = units::duration)]
    #[serde(serialize_with = "seconds", rename = "duration_seconds")]
    pub(crate) duration: Duration,
    /// Goes on until so many events were acknowledged, for example 50m (million) or 500k.
    #[arg(long, value_parser = units::count, conflicts_with = "duration")]
    pub(crate) until_events: Option<u64>,
    /// Appends per second. Default: a share of the peak of a closed loop that comes first.
    #[arg(long, value_parser = units::rate)]
    pub(crate) rate: Option<f64>,
    /// That share.
    #[arg(long, default_value_t = 0.5, value_parser = units::share)]
    pub(crate) share: f64,
    /// Events per append.
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u64).range(1..=200))]
    pub(crate) events: u64,
    /// Bytes of data per event.
    #[arg(long, default_value_t = 58)]
    pub(crate) payload: usize,
    /// Writers: the most appends under way at once.
    #[arg(long, default_value_t = 128, value_parser = clap::value_parser!(u32).range(1..=65_536))]
    pub(crate) writers: u32,
    /// Reads of random streams per second. Default: a tenth of the appends.
    #[arg(long, value_parser = units::rate)]
    pub(crate) reads: Option<f64>,
    /// Length of a slice.
    #[arg(long, default_value = "30s", value_parser = units::duration)]
    #[serde(serialize_with = "seconds", rename = "slice_seconds")]
    pub(crate) slice: Duration,
    /// Time from one fault to the next; 0 for none.
    #[arg(long, default_value = "60s", value_parser = units::duration)]
    #[serde(serialize_with = "seconds", rename = "fault_every_seconds")]
    pub(crate) fault_every: Duration,
    /// Only these faults. Default: all that fit the store.
    #[arg(long, value_enum, value_delimiter = ',')]
    #[serde(skip)]
    pub(crate) faults: Vec<Fault>,
    /// How long the database is frozen.
    #[arg(long, default_value = "5s", value_parser = units::duration)]
    #[serde(serialize_with = "seconds", rename = "freeze_seconds")]
    pub(crate) freeze: Duration,
    /// Seed of contents, reads and faults.
    #[arg(long, default_value_t = 7)]
    pub(crate) seed: u64,
}

impl SteadyArgs {
    /// How hard faults are.
    pub(super) fn strength(&self) -> Strength {
        Strength {
            time: Duration::ZERO,
            freeze: self.freeze,
            delay: Duration::from_millis(50),
            delay_for: Duration::from_secs(10),
            away: Duration::from_secs(1),
        }
    }

    /// What the writers do, of which the first has this number: a closed loop, or so many appends per second.
    pub(super) fn load(&self, first: u32, rate: Option<f64>, duration: Duration) -> Load {
        Load {
            first_worker: first,
            workers: self.writers,
            events: self.events,
            events_per_stream: Plan::events_per_stream(self.events),
            streams: LANES,
            rate,
            warm_up: Duration::ZERO,
            duration,
        }
    }
}
