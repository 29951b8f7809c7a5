//! Shows what stores, nodes and entities have done as metrics of `prometheus-client`. They are read when they are asked
//! for.
//!
//! Why collectors: the numbers are counted where the work is done; nothing is counted twice.
//! Not here: the registry and its text, which are the application's.

#[cfg(feature = "cluster")]
mod cluster;

use std::fmt;
use std::sync::Arc;

use gesta_append::PipelineStats;
use gesta_entity::Stats;
use gesta_store::Store;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;

#[cfg(feature = "cluster")]
pub use self::cluster::ClusterMetrics;

/// The name, the help text and the value of a counter.
type PipelineCounter = (&'static str, &'static str, fn(&PipelineStats) -> u64);

const PIPELINE_COUNTERS: [PipelineCounter; 9] = [
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
    (
        "gesta_pipeline_condition_lookups",
        "Searches of the database for events that conditions exclude",
        |stats| stats.condition_lookups,
    ),
    (
        "gesta_pipeline_condition_turns",
        "Times that comparing a condition with the newest events went on in another turn",
        |stats| stats.condition_turns,
    ),
];

/// The metrics of the append pipelines of a store, `gesta_pipeline_…`. The label is the number of the log.
pub struct PipelineMetrics(Arc<Store>);

impl PipelineMetrics {
    /// Makes the metrics of this store, to be registered as a collector.
    #[must_use]
    pub fn new(store: Arc<Store>) -> Self {
        Self(store)
    }
}

impl fmt::Debug for PipelineMetrics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("PipelineMetrics")
    }
}

impl Collector for PipelineMetrics {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let logs = self.0.pipeline_stats();
        let label = |log: usize| [("log", log.to_string())];
        for (name, help, value) in PIPELINE_COUNTERS {
            let mut family = encoder.encode_descriptor(name, help, None, MetricType::Counter)?;
            for (log, stats) in logs.iter().enumerate() {
                ConstCounter::new(value(stats)).encode(family.encode_family(&label(log))?)?;
            }
        }
        let help = "Events that wait or are in flight";
        let name = "gesta_pipeline_queued_events";
        let mut family = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
        for (log, stats) in logs.iter().enumerate() {
            gauge(stats.queued_events).encode(family.encode_family(&label(log))?)?;
        }
        Ok(())
    }
}

/// The metrics of a runtime of entities: each number of [`Stats`] under its name.
pub struct EntityMetrics<F> {
    stats: F,
}

impl<F: Fn() -> Stats> EntityMetrics<F> {
    /// Makes the metrics of the runtime whose statistics `stats` returns, to be registered as a collector. Their names
    /// have no prefix; register them in a `sub_registry_with_prefix`.
    pub fn new(stats: F) -> Self {
        Self { stats }
    }
}

impl<F> fmt::Debug for EntityMetrics<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("EntityMetrics")
    }
}

impl<F: Fn() -> Stats + Send + Sync + 'static> Collector for EntityMetrics<F> {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let stats = (self.stats)();
        for (name, help, value) in stats.counters() {
            let counter = encoder.encode_descriptor(name, help, None, MetricType::Counter)?;
            ConstCounter::new(value).encode(counter)?;
        }
        for (name, help, value) in stats.gauges() {
            let metric = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
            gauge(value).encode(metric)?;
        }
        Ok(())
    }
}

fn gauge(value: u64) -> ConstGauge<i64> {
    ConstGauge::new(i64::try_from(value).unwrap_or(i64::MAX))
}
