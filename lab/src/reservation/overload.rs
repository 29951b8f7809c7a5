//! `--overload`: the peak of a closed loop, then more than the server can carry, then at once what it can.

use std::rc::Rc;
use std::time::Duration;

use gesta_load::cinema::generator::{Generator, Phase};
use gesta_load::cinema::model::{Call, Outcome};
use gesta_report::failure::{Result, fail};
use gesta_report::{Report, Table, Unit};
use tokio_util::sync::CancellationToken;

use super::args::ReservationArgs;
use super::step::{self, Step};
use crate::workload::watch::Watched;

/// Connections: enough for the server's queue to be the limit, not they.
const CONNECTIONS: u32 = 4_096;
/// Longest measurement of the peak, and longest look at the recovery.
const LONGEST: Duration = Duration::from_secs(20);

/// Runs the three phases: the peak, the overload, and what comes after it.
pub(crate) async fn run(
    generator: &Rc<Generator>,
    args: &ReservationArgs,
    watched: &Watched,
    stop: &CancellationToken,
) -> Result<Vec<Step>> {
    let (Some(factor), Some(sustainable)) = (args.overload, args.sustainable) else {
        return fail("--overload needs --sustainable");
    };
    let peak = Phase {
        duration: args.duration.min(LONGEST),
        ..args.phase(args.closed_loop())
    };
    let over = args.phase(args.open_at(factor * sustainable));
    let after = Phase {
        warm_up: Duration::ZERO,
        duration: args.duration.min(LONGEST),
        ..args.phase(args.open_at(sustainable))
    };
    eprintln!("peak");
    let mut steps = step::run(generator, &[("peak".into(), peak)], watched, stop).await;
    let connections = args.connections_for(over.drive, CONNECTIONS);
    generator.connect(connections).await?;
    eprintln!("{factor} x {sustainable} req/s, then {sustainable} req/s");
    let phases = [("overload".into(), over), ("afterwards".into(), after)];
    steps.extend(step::run(generator, &phases, watched, stop).await);
    Ok(steps)
}

/// The share of the peak that was accepted under overload.
pub(crate) fn goodput(peak: &Step, over: &Step) -> f64 {
    over.result.accepted_per_second() / peak.result.accepted_per_second().max(0.001)
}

/// Tells what the mode is about.
pub(crate) fn tell(report: &mut Report, [peak, over, after]: &[Step; 3]) {
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
    let over = &over.result;
    let unread = over.over(|call, outcome| call == Call::Read && outcome != Outcome::Accepted);
    report.fact("reads not answered", Unit::Count, unread.count, "");
    let accepted =
        |read: bool| over.over(|call, o| (call == Call::Read) == read && o == Outcome::Accepted);
    let rows = [
        ("refused", over.over(|_, o| o == Outcome::Refused)),
        ("reads", accepted(true)),
        ("accepted commands", accepted(false)),
        ("generator's lag", over.lag.percentiles()),
    ];
    let table = Table::of("Overload", &rows)
        .column("under overload", Unit::Words, |(name, _)| *name)
        .columns(&step::LATENCY, |(_, latency)| step::latency_cells(latency));
    report.table(table.table());
}
