//! `--overload`: the peak of a closed loop, then more than the server can carry, then at once what it can.

use std::time::Duration;

use tokio_util::sync::CancellationToken;

use crate::cells;
use crate::failure::{Failure, Result, fail};
use crate::report::{Report, Table, Unit};
use crate::reservation::args::ReservationArgs;
use crate::reservation::drive::Phase;
use crate::reservation::generator::Generator;
use crate::reservation::model::{Call, Outcome};
use crate::reservation::processes::Tree;
use crate::reservation::step::{self, Step};

/// Connections: enough for the server's queue to be the limit, not they.
const CONNECTIONS: u32 = 4_096;
/// Longest measurement of the peak.
const PEAK_MAX: Duration = Duration::from_secs(20);
/// Longest look at the recovery.
const RECOVERY_MAX: Duration = Duration::from_secs(20);

/// Runs the three phases: the peak, the overload, and what comes after it.
pub(crate) fn run(
    generator: &mut Generator,
    args: &ReservationArgs,
    trees: &[Tree],
    stop: &CancellationToken,
) -> Result<Vec<Step>> {
    let (Some(factor), Some(sustainable)) = (args.overload, args.sustainable) else {
        return fail("--overload needs --sustainable");
    };
    if !(factor > 0.0 && sustainable > 0.0 && (factor * sustainable) < 10_000_000.0) {
        return fail("--overload and --sustainable are positive numbers");
    }
    let load = &args.load;
    let peak = load.phase(load.closed_loop());
    let peak = Phase {
        duration: peak.duration.min(PEAK_MAX),
        ..peak
    };
    generator.connect(args.connections_for(peak.drive, CONNECTIONS))?;
    eprintln!("peak");
    let mut steps = step::run(generator, &[("peak".into(), peak)], trees, stop)?;

    let over = load.phase(load.open_at(factor * sustainable));
    let after = Phase {
        warm_up: Duration::ZERO,
        duration: load.duration.min(RECOVERY_MAX),
        ..load.phase(load.open_at(sustainable))
    };
    generator.connect(args.connections_for(over.drive, CONNECTIONS))?;
    eprintln!("{factor} x {sustainable} req/s, then {sustainable} req/s");
    let phases = [("overload".into(), over), ("afterwards".into(), after)];
    steps.extend(step::run(generator, &phases, trees, stop)?);
    match steps.len() {
        3 => Ok(steps),
        _ => Err(Failure(
            "interrupted before there was anything to tell".into(),
        )),
    }
}

/// The share of the peak that was accepted under overload.
pub(crate) fn goodput(peak: &Step, over: &Step) -> f64 {
    let best = peak.result.accepted_per_second();
    match best > 0.0 {
        true => over.result.accepted_per_second() / best,
        false => 0.0,
    }
}

/// Tells what the mode is about.
pub(crate) fn tell(report: &mut Report, [peak, over, after]: &[Step; 3]) {
    let measures = &over.result.measures;
    report.finding = format!(
        "Under overload {:.0} requests/s are accepted, {:.1} % of the {:.0} at the peak.",
        over.result.accepted_per_second(),
        goodput(peak, over) * 100.0,
        peak.result.accepted_per_second(),
    );
    let recovered = after.result.good_after();
    report.fact(
        "recovered after",
        Unit::Millis,
        recovered.map(|time| time.as_secs_f64() * 1_000.0),
        "of the sustainable load, then a second with 99 % accepted in time",
    );
    if recovered.is_none() {
        report.caution("The application did not recover while it was watched.");
    }
    let unread = measures.over(|call, outcome| call == Call::Read && outcome != Outcome::Accepted);
    report.fact("reads not answered", Unit::Count, unread.count, "");
    let columns = [("under overload", Unit::Words)];
    let mut table = Table::new("Overload", columns.into_iter().chain(step::LATENCY));
    let accepted = |read: bool| {
        measures.over(|call, outcome| (call == Call::Read) == read && outcome == Outcome::Accepted)
    };
    for (name, p) in [
        (
            "refused",
            measures.over(|_, outcome| outcome == Outcome::Refused),
        ),
        ("reads", accepted(true)),
        ("accepted commands", accepted(false)),
        ("generator's lag", over.result.lag.percentiles()),
    ] {
        table.row([cells![name], step::latency_cells(&p)].concat());
    }
    report.table(table);
}
