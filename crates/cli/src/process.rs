//! Metrics of this process, under the names that dashboards know: memory, processor time, open files, start.
//!
//! They are read from `/proc` when they are asked for; where there is none, they are left out.

use std::fmt;
use std::fs;

use gesta_core::{Clock, SystemClock};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::Unit;

/// How many ticks of processor time the kernel tells for a second: the same on every Linux.
const TICKS_A_SECOND: f64 = 100.0;

/// The metrics of this process.
#[derive(Debug)]
pub(crate) struct ProcessMetrics {
    started_seconds: f64,
}

impl ProcessMetrics {
    /// Makes the metrics. The process is taken to have started now.
    pub(crate) fn new() -> Self {
        let millis = SystemClock.now().as_micros() / 1_000;
        Self {
            started_seconds: seconds(millis),
        }
    }
}

impl Collector for ProcessMetrics {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let found = Found::read();
        if let Some(seconds) = found.cpu_seconds {
            let help = "Processor time that this process has used";
            let (name, unit) = ("process_cpu", Some(&Unit::Seconds));
            let metric = encoder.encode_descriptor(name, help, unit, MetricType::Counter)?;
            ConstCounter::new(seconds).encode(metric)?;
        }
        let start = Some(self.started_seconds);
        for (name, help, unit, value) in [
            (
                "process_start_time",
                "When this process began, in seconds since 1970",
                Some(Unit::Seconds),
                start,
            ),
            (
                "process_resident_memory",
                "Memory of this process that is in the machine's memory",
                Some(Unit::Bytes),
                found.resident_bytes,
            ),
            (
                "process_virtual_memory",
                "Memory that this process has reserved",
                Some(Unit::Bytes),
                found.virtual_bytes,
            ),
            (
                "process_open_fds",
                "Files and connections that this process has open",
                None,
                found.files,
            ),
            (
                "process_max_fds",
                "Files and connections that this process may have open",
                None,
                found.files_max,
            ),
        ] {
            let Some(value) = value else { continue };
            let metric = encoder.encode_descriptor(name, help, unit.as_ref(), MetricType::Gauge)?;
            ConstGauge::new(value).encode(metric)?;
        }
        Ok(())
    }
}

/// What the system tells of this process; `None` where it does not.
#[derive(Debug, Default, PartialEq)]
struct Found {
    cpu_seconds: Option<f64>,
    resident_bytes: Option<f64>,
    virtual_bytes: Option<f64>,
    files: Option<f64>,
    files_max: Option<f64>,
}

impl Found {
    fn read() -> Self {
        let text =
            |name: &str| fs::read_to_string(format!("/proc/self/{name}")).unwrap_or_default();
        let files = fs::read_dir("/proc/self/fd").ok().map(Iterator::count);
        Self {
            files: files
                .and_then(|files| u32::try_from(files).ok())
                .map(f64::from),
            ..Self::parse(&text("stat"), &text("status"), &text("limits"))
        }
    }

    fn parse(stat: &str, status: &str, limits: &str) -> Self {
        // The name of the program is in brackets, and may hold anything. Field 14 and 15 are processor time; the first
        // one after the brackets is field 3.
        let words = stat.rsplit_once(')').map_or("", |(_, rest)| rest);
        let mut ticks = words.split_ascii_whitespace().skip(11).take(2);
        let mut tick = || ticks.next()?.parse::<f64>().ok();
        let cpu_seconds = match (tick(), tick()) {
            (Some(user), Some(system)) => Some((user + system) / TICKS_A_SECOND),
            _ => None,
        };
        let kibibytes = |name: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(name))?;
            line.trim().strip_suffix("kB")?.trim().parse::<f64>().ok()
        };
        let files_max = limits
            .lines()
            .find_map(|line| line.strip_prefix("Max open files"))
            .and_then(|rest| rest.split_ascii_whitespace().next()?.parse::<f64>().ok());
        Self {
            cpu_seconds,
            resident_bytes: kibibytes("VmRSS:").map(|kibi| kibi * 1_024.0),
            virtual_bytes: kibibytes("VmSize:").map(|kibi| kibi * 1_024.0),
            files: None,
            files_max,
        }
    }
}

/// Converts milliseconds since 1970, which a number of this type holds exactly.
fn seconds(millis: i64) -> f64 {
    let whole = u32::try_from(millis / 1_000).map_or(0.0, f64::from);
    whole + i32::try_from(millis % 1_000).map_or(0.0, f64::from) / 1_000.0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_system_tells_is_read() {
        let stat = "7 (a) name) S 1 7 7 0 -1 4194560 100 0 0 0 250 50 0 0 20 0 5 0 99 1 2";
        let status = "Name:\tgesta\nVmSize:\t  2048 kB\nVmRSS:\t     512 kB\n";
        let limits =
            "Limit   Soft Limit  Hard Limit  Units\nMax open files   1024   4096   files\n";
        let expected = Found {
            cpu_seconds: Some(3.0),
            resident_bytes: Some(524_288.0),
            virtual_bytes: Some(2_097_152.0),
            files: None,
            files_max: Some(1024.0),
        };
        assert_eq!(Found::parse(stat, status, limits), expected);
        assert_eq!(Found::parse("", "", ""), Found::default());
    }
}
