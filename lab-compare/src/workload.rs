//! The workload: one definition for all, given to peers in this process as it is and to drivers as JSON.

use std::time::Duration;

use clap::builder::RangedU64ValueParser;
use serde::Serialize;

/// Most events of one stream; then its worker goes on with a new one. Events of the lab have revisions below 4,096.
const EVENTS_PER_STREAM_MAX: u64 = 4_096;
/// Events per append with `--batches`.
const BATCH_EVENTS: u64 = 100;
/// Workers with `--batches`.
const BATCH_WORKERS: [u32; 2] = [1, 16];

/// What every peer is asked to do.
///
/// Each worker owns its streams, fills them by turns, and waits for each answer (a closed loop). Each append claims
/// the stream's real revision, so the check is made and never refuses.
#[derive(Debug, Clone, Serialize, clap::Args)]
pub(crate) struct Workload {
    /// Numbers of workers, one cell each.
    #[arg(long, value_delimiter = ',', default_value = "1,16,64", value_parser = RangedU64ValueParser::<u32>::new().range(1..=1_000))]
    pub(crate) workers: Vec<u32>,
    /// Events per append.
    #[arg(long = "events", default_value_t = 1, value_parser = RangedU64ValueParser::<u64>::new().range(1..=1_000))]
    pub(crate) events_per_append: u64,
    /// Also 100 events per append, with 1 and 16 workers.
    #[arg(long)]
    pub(crate) batches: bool,
    /// Bytes of the data of an event.
    #[arg(long = "payload", default_value_t = 100, value_parser = RangedU64ValueParser::<usize>::new().range(80..=1_048_576))]
    pub(crate) payload_bytes: usize,
    /// Seconds on the clock per cell.
    #[arg(long, default_value_t = 5, value_parser = RangedU64ValueParser::<u64>::new().range(1..=3_600))]
    pub(crate) seconds: u64,
    /// Seconds before the clock starts.
    #[arg(long = "warm-up", default_value_t = 1, value_parser = RangedU64ValueParser::<u64>::new().range(0..=600))]
    pub(crate) warm_up_seconds: u64,
    /// Streams that each worker fills by turns.
    #[arg(long = "streams", default_value_t = 500, value_parser = RangedU64ValueParser::<u32>::new().range(1..=100_000))]
    pub(crate) streams_per_worker: u32,
}

/// One measurement of a peer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub(crate) struct Cell {
    /// Workers, each with one append under way.
    pub(crate) workers: u32,
    /// Events per append.
    pub(crate) events: u64,
    /// A multiple of `events`.
    pub(crate) events_per_stream: u64,
}

impl Cell {
    pub(crate) fn new(workers: u32, events: u64) -> Self {
        Self {
            workers,
            events,
            events_per_stream: EVENTS_PER_STREAM_MAX / events * events,
        }
    }
}

impl Workload {
    /// What is measured of each peer, in this order.
    pub(crate) fn cells(&self) -> Vec<Cell> {
        let single = self
            .workers
            .iter()
            .map(|&workers| Cell::new(workers, self.events_per_append));
        let batches = BATCH_WORKERS.map(|workers| Cell::new(workers, BATCH_EVENTS));
        let batches = batches.into_iter().filter(|_| self.batches);
        single.chain(batches).collect()
    }

    /// Connections that a peer may need.
    pub(crate) fn connections(&self) -> u32 {
        let most = self.cells().iter().map(|cell| cell.workers).max();
        most.unwrap_or(1) + 100
    }

    pub(crate) fn warm_up(&self) -> Duration {
        Duration::from_secs(self.warm_up_seconds)
    }

    pub(crate) fn duration(&self) -> Duration {
        Duration::from_secs(self.seconds)
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    pub(crate) fn workload() -> Workload {
        Workload {
            workers: vec![1, 16],
            events_per_append: 1,
            batches: true,
            payload_bytes: 100,
            seconds: 5,
            warm_up_seconds: 1,
            streams_per_worker: 500,
        }
    }

    #[test]
    fn cells_are_single_events_and_then_batches() {
        let cells = workload().cells();
        let told: Vec<_> = cells
            .iter()
            .map(|cell| (cell.workers, cell.events))
            .collect();
        assert_eq!(told, [(1, 1), (16, 1), (1, 100), (16, 100)]);
        for cell in cells {
            assert_eq!(cell.events_per_stream % cell.events, 0);
            assert!(cell.events_per_stream <= EVENTS_PER_STREAM_MAX);
        }
        assert_eq!(workload().connections(), 116);
    }
}
