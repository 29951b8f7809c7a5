//! `--overload`: the peak of a closed loop, then more than the server can carry, then at once what it can.

use std::time::Duration;

use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use crate::failure::{Failure, Result, fail};
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

/// Runs the three phases; their steps, and what the mode is about.
pub(crate) fn run(
    generator: &mut Generator,
    args: &ReservationArgs,
    trees: &[Tree],
    stop: &CancellationToken,
) -> Result<(Vec<Step>, Value)> {
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
    let [peak, over, after] = steps.as_slice() else {
        return Err(Failure(
            "interrupted before there was anything to tell".into(),
        ));
    };
    let figures = figures(peak, over, after);
    Ok((steps, figures))
}

fn figures(peak: &Step, over: &Step, after: &Step) -> Value {
    let (best, good) = (
        peak.result.accepted_per_second(),
        over.result.accepted_per_second(),
    );
    let ratio = if best > 0.0 { good / best } else { 0.0 };
    let measures = &over.result.measures;
    json!({
        "peak_per_second": best.round(),
        "goodput_per_second": good.round(),
        "goodput_ratio": (ratio * 1_000.0).round() / 1_000.0,
        "refused_ms": measures.over(|_, outcome| outcome == Outcome::Refused),
        "reads_ms": measures.over(|call, outcome| (call, outcome) == (Call::Read, Outcome::Accepted)),
        "reads_not_answered": measures.over(|call, outcome| call == Call::Read && outcome != Outcome::Accepted).count,
        "accepted_ms": measures.over(|call, outcome| call != Call::Read && outcome == Outcome::Accepted),
        "lag_ms": over.result.lag.percentiles(),
        "recovered_after_ms": after.result.good_after().map(|time| time.as_secs_f64() * 1_000.0),
        "recovery_slots": after.result.slots.iter().take(50).collect::<Vec<_>>(),
    })
}

/// Tells people.
pub(crate) fn print(figures: &Value) {
    let ms = |name: &str, figure: &str| figures[name][figure].as_f64().unwrap_or(0.0);
    println!(
        "overload: goodput {} of {} requests/s at the peak: {:.1} %",
        figures["goodput_per_second"],
        figures["peak_per_second"],
        figures["goodput_ratio"].as_f64().unwrap_or(0.0) * 100.0
    );
    for (name, what) in [
        ("refused_ms", "refused"),
        ("reads_ms", "reads"),
        ("accepted_ms", "accepted commands"),
        ("lag_ms", "generator's lag"),
    ] {
        println!(
            "  {what}: {} x, p50 {:.2} ms, p99 {:.2} ms, p99.9 {:.2} ms, max {:.2} ms",
            figures[name]["count"],
            ms(name, "p50"),
            ms(name, "p99"),
            ms(name, "p999"),
            ms(name, "max")
        );
    }
    let recovered = match figures["recovered_after_ms"].as_f64() {
        Some(millis) => format!("recovered after {millis} ms"),
        None => "NOT recovered".into(),
    };
    println!(
        "  reads not answered: {}; {recovered} (then a second with 99 % accepted in time)",
        figures["reads_not_answered"]
    );
}
