//! What the append pipelines did, as metrics of the server: read when they are asked for.

use std::fmt;
use std::sync::Arc;

use gesta_append::PipelineStats;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;

/// Name, help and value of a counter.
type Counter = (&'static str, &'static str, fn(&PipelineStats) -> u64);

const COUNTERS: [Counter; 7] = [
    (
        "gesta_pipeline_batches",
        "Batches sent to the database, missed ones included",
        |stats| stats.batches,
    ),
    (
        "gesta_pipeline_batched_events",
        "Events in these batches",
        |stats| stats.events,
    ),
    (
        "gesta_pipeline_misses",
        "Batches that missed because another server had appended",
        |stats| stats.misses,
    ),
    (
        "gesta_pipeline_failures",
        "Batches that failed for a passing reason or whose outcome was unknown at first",
        |stats| stats.failures,
    ),
    (
        "gesta_pipeline_reconnects",
        "Connections for appends opened after the first",
        |stats| stats.reconnects,
    ),
    (
        "gesta_pipeline_retries",
        "Appends recognised as retries",
        |stats| stats.retries + stats.joined,
    ),
    (
        "gesta_pipeline_loads",
        "Statements that looked up streams",
        |stats| stats.loads,
    ),
];

/// The pipelines of a store.
pub(super) struct PipelineMetrics(pub(super) Arc<gesta::Store>);

impl fmt::Debug for PipelineMetrics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("PipelineMetrics")
    }
}

impl Collector for PipelineMetrics {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let logs = self.0.pipeline_stats();
        let label = |log: usize| [("log", log.to_string())];
        for (name, help, value) in COUNTERS {
            let mut family = encoder.encode_descriptor(name, help, None, MetricType::Counter)?;
            for (log, stats) in logs.iter().enumerate() {
                ConstCounter::new(value(stats)).encode(family.encode_family(&label(log))?)?;
            }
        }
        let help = "Events that wait or are in flight";
        let name = "gesta_pipeline_queued_events";
        let mut family = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
        for (log, stats) in logs.iter().enumerate() {
            let queued = i64::try_from(stats.queued_events).unwrap_or(i64::MAX);
            ConstGauge::new(queued).encode(family.encode_family(&label(log))?)?;
        }
        Ok(())
    }
}
