//! Slices of the run: what is measured in each, and what their row tells about growth.

use std::collections::BTreeMap;
use std::time::Duration;

use gesta_load::target::Phase;
use gesta_report::cells;
use gesta_report::histogram::{Percentiles, median};
use gesta_report::{Cell, Chart, Scale, Table, Unit, causes};

use crate::per_fault::PerFault;

/// What happened in one slice.
#[derive(Debug, Clone, Default)]
pub(super) struct Slice {
    /// When it ended, from the beginning of the load.
    pub(super) to_seconds: f64,
    /// Appends, from their intended start to their acknowledgement.
    pub(super) appends: Phase,
    /// Events in the store at its end.
    pub(super) events_total: u64,
    /// From the intended start of a read of a stream to its end.
    pub(super) read_ms: Percentiles,
    /// From the acknowledgement of an append to a live subscriber; 0.001 if it was there before.
    pub(super) deliver_ms: Percentiles,
    /// Appends that were due at its end and not begun.
    pub(super) behind: u64,
    /// Bytes of tables and indexes, or files, over `events_total`.
    pub(super) disk_bytes_per_event: Option<f64>,
    /// Memory of this process at its end.
    pub(super) memory_bytes: u64,
    /// Answers and endings that were errors, by kind.
    pub(super) errors: BTreeMap<String, u64>,
    /// Kinds of the faults in it, until the load had recovered.
    pub(super) faults: Vec<String>,
}

impl Slice {
    /// In a line, for who looks on.
    pub(super) fn told(&self) -> String {
        let [read, deliver] = [self.read_ms, self.deliver_ms].map(|of| Unit::Millis.told(of.p99));
        format!(
            "{:>7.0} s: {}; p99 of reads {read}, of deliveries {deliver}; {} bytes per event, {} MiB; {}",
            self.to_seconds,
            self.appends.told(),
            self.disk_bytes_per_event.unwrap_or_default(),
            self.memory_bytes >> 20,
            self.faults.join(", "),
        )
    }
}

/// One fault as it is reported.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct FaultLine {
    /// When it began.
    pub(super) at_seconds: f64,
    /// Which.
    pub(super) kind: String,
    /// From its beginning until an append was acknowledged that began after its end; none if none was.
    pub(super) healed_after_seconds: Option<f64>,
}

/// Title of the table of slices.
pub(super) const SLICES: &str = "Slices";

/// What is told of a slice, and of a quarter of them.
const COLUMNS: [(&str, Unit); 10] = [
    ("events", Unit::Count),
    ("events/s", Unit::Count),
    ("append p50", Unit::Millis),
    ("append p99", Unit::Millis),
    ("append p99.9", Unit::Millis),
    ("read p99", Unit::Millis),
    ("deliver p99", Unit::Millis),
    ("disk per event", Unit::Bytes),
    ("own memory", Unit::Bytes),
    ("cores busy", Unit::Cores),
];

/// The cells of these columns: medians over slices, and where they end.
fn cells_of(slices: &[&Slice]) -> Vec<Cell> {
    // A slice in which nothing was answered has no latency.
    let latency = |figure: fn(&Slice) -> (Percentiles, f64)| {
        typical(slices, |slice| {
            let (all, figure) = figure(slice);
            (all.count > 0).then_some(figure)
        })
    };
    let end = slices.last();
    cells![
        end.map(|slice| slice.events_total),
        typical(slices, |slice| Some(slice.appends.events_per_second)),
        latency(|s| (s.appends.latency_ms, s.appends.latency_ms.p50)),
        latency(|s| (s.appends.latency_ms, s.appends.latency_ms.p99)),
        latency(|s| (s.appends.latency_ms, s.appends.latency_ms.p999)),
        latency(|s| (s.read_ms, s.read_ms.p99)),
        latency(|s| (s.deliver_ms, s.deliver_ms.p99)),
        typical(slices, |slice| slice.disk_bytes_per_event),
        end.map(|slice| slice.memory_bytes),
        typical(slices, |slice| Some(slice.appends.cpu.machine_cores)),
    ]
}

/// One row per slice.
pub(super) fn table(slices: &[Slice]) -> Table {
    let last = [
        ("generator late (p99)", Unit::Millis),
        ("due, not begun", Unit::Count),
        ("faults", Unit::Words),
        ("errors", Unit::Words),
    ];
    let columns = [("at", Unit::Seconds)]
        .into_iter()
        .chain(COLUMNS)
        .chain(last);
    let mut table = Table::new(SLICES, columns).folded();
    for slice in slices {
        let at = cells![slice.to_seconds];
        let last = cells![
            slice.appends.lag_ms.p99,
            slice.behind,
            slice.faults.join(", "),
            causes(&slice.errors)
        ];
        table.row([at, cells_of(&[slice]), last].concat());
    }
    table
}

/// One row per quarter: medians over the slices without a fault.
pub(super) fn quarters(slices: &[Slice]) -> Table {
    let columns = [("quarter", Unit::Words)].into_iter().chain(COLUMNS);
    let mut table = Table::new("Medians over the slices without a fault", columns);
    for (number, name) in (0..4).zip(["first", "second", "third", "last"]) {
        let of = quarter(slices, number);
        if !of.is_empty() {
            table.row([cells![name], cells_of(&quiet(of))].concat());
        }
    }
    table
}

/// Latencies over time, with the faults; and what changes as the log grows.
pub(super) fn charts(faults: &[FaultLine]) -> [Chart; 3] {
    let names = ["append p50", "append p99", "read p99", "deliver p99"];
    let (x, y) = (("at", Scale::Linear), (&names[..], Scale::Log));
    let latency = Chart::lines("Latency, slice by slice", SLICES, x, y).y_name("latency");
    let latency = faults.iter().fold(latency, |chart, fault| {
        chart.mark(fault.at_seconds, fault.kind.clone())
    });
    let grown = |title, y: &str, scale| {
        Chart::lines(title, SLICES, ("events", Scale::Linear), (&[y], scale))
    };
    [
        latency,
        grown(
            "p99 of appends over the size of the log",
            "append p99",
            Scale::Log,
        ),
        grown(
            "Disk per event over the size of the log",
            "disk per event",
            Scale::Linear,
        ),
    ]
}

/// One row per kind of fault; the last may not have healed before the end.
pub(super) fn fault_table(faults: &[FaultLine]) -> Table {
    let mut all = PerFault::new(&["healed"], &["load back after"]);
    for fault in faults {
        let after = fault.healed_after_seconds.map(Duration::from_secs_f64);
        all.add(&fault.kind, Some(&[u64::from(after.is_some())]), &[after]);
    }
    all.table("Faults")
}

/// The faults between two moments; one that has not healed lasts.
pub(super) fn faults_between(faults: &[FaultLine], from: f64, to: f64) -> Vec<String> {
    let within = |fault: &&FaultLine| {
        let end = fault
            .healed_after_seconds
            .map_or(f64::INFINITY, |after| fault.at_seconds + after);
        fault.at_seconds < to && end >= from
    };
    let kinds = faults.iter().filter(within);
    kinds.map(|fault| fault.kind.clone()).collect()
}

/// A quarter of the slices, 0 to 3.
pub(super) fn quarter(slices: &[Slice], number: usize) -> &[Slice] {
    let at = |quarter: usize| slices.len() * quarter / 4;
    &slices[at(number)..at(number + 1)]
}

/// The slices without a fault, or all if each has one.
pub(super) fn quiet(slices: &[Slice]) -> Vec<&Slice> {
    let quiet: Vec<&Slice> = slices.iter().filter(|s| s.faults.is_empty()).collect();
    if quiet.is_empty() {
        return slices.iter().collect();
    }
    quiet
}

/// The median of a figure over slices; none if no slice has it.
pub(super) fn typical(slices: &[&Slice], figure: impl Fn(&Slice) -> Option<f64>) -> Option<f64> {
    let values: Vec<f64> = slices.iter().filter_map(|slice| figure(slice)).collect();
    (!values.is_empty()).then(|| median(&values))
}

/// How the last quarter compares with the second, in words: the first is warm-up.
pub(super) fn verdict(slices: &[Slice]) -> String {
    let of = |number, figure: fn(&Slice) -> Option<f64>| {
        let enough = slices.len() >= 4;
        typical(&quiet(quarter(slices, number)), figure).filter(|_| enough)
    };
    let p99 = |slice: &Slice| {
        let latency = slice.appends.latency_ms;
        (latency.count > 0).then_some(latency.p99)
    };
    let (Some(second), Some(last)) = (of(1, p99), of(3, p99)) else {
        return "The run was too short to tell whether anything grows.".into();
    };
    let times = last / second.max(0.001);
    let bytes = |slice: &Slice| slice.disk_bytes_per_event;
    let disk = match (of(3, bytes), of(1, bytes)) {
        (Some(last), Some(second)) => {
            format!("disk per event {last:.0} bytes, from {second:.0}")
        }
        _ => "nobody could tell the disk".into(),
    };
    format!(
        "p99 of the last quarter is {times:.2} times that of the second ({last:.1} ms after {second:.1} ms); {disk}."
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn slice(p99: f64, disk: Option<f64>, faults: &[&str]) -> Slice {
        Slice {
            appends: Phase {
                latency_ms: Percentiles {
                    count: 1,
                    p99,
                    ..Percentiles::default()
                },
                ..Phase::default()
            },
            disk_bytes_per_event: disk,
            faults: faults.iter().map(|kind| (*kind).to_owned()).collect(),
            ..Slice::default()
        }
    }

    #[test]
    fn growth_compares_quiet_slices_of_the_second_and_the_last_quarter() {
        let slices = [
            slice(90.0, Some(900.0), &[]),
            slice(90.0, Some(900.0), &[]),
            slice(10.0, Some(300.0), &[]),
            slice(5_000.0, Some(310.0), &["freeze"]),
            slice(90.0, None, &[]),
            slice(90.0, None, &[]),
            slice(5_000.0, Some(330.0), &["cut"]),
            slice(25.0, Some(330.0), &[]),
        ];
        assert_eq!(
            verdict(&slices),
            "p99 of the last quarter is 2.50 times that of the second (25.0 ms after 10.0 ms); \
             disk per event 330 bytes, from 300."
        );
        let all_hurt = [
            slice(1.0, None, &["cut"]),
            slice(2.0, None, &["cut"]),
            slice(3.0, None, &["cut"]),
            slice(4.0, None, &["cut"]),
        ];
        let told = verdict(&all_hurt);
        assert!(told.contains("(4.0 ms after 2.0 ms); nobody could tell the disk."));
        assert!(verdict(&all_hurt[..3]).contains("too short"));
        assert!(verdict(&vec![Slice::default(); 8]).contains("too short"));
    }

    #[test]
    fn a_fault_belongs_to_slices_until_it_has_healed() {
        let fault = |at, healed| FaultLine {
            at_seconds: at,
            kind: format!("at {at}"),
            healed_after_seconds: healed,
        };
        let faults = [fault(10.0, Some(3.0)), fault(25.0, None)];
        let between = |from, to| faults_between(&faults, from, to).len();
        assert_eq!(between(0.0, 10.0), 0);
        assert_eq!(between(0.0, 10.1), 1);
        assert_eq!(between(12.0, 20.0), 1);
        assert_eq!(between(13.1, 20.0), 0);
        assert_eq!(between(12.0, 26.0), 2);
        assert_eq!(between(100.0, 101.0), 1);
    }
}
