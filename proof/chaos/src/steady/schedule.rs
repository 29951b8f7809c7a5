//! Which fault comes when: few, of kinds that a year in production has, one at a time, at multiples of a period.

use std::time::Duration;

use gesta_load::random::{Bag, Random};
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;

use super::args::SteadyArgs;
use super::state::SteadyState;
use crate::fault::Fault;
use crate::inflict::Field;
use crate::world::World;

/// How often it is looked whether the load has recovered.
const LOOK: Duration = Duration::from_millis(5);
/// A load that has no append acknowledged for this long after a fault is stuck.
const RECOVERY_WITHIN: Duration = Duration::from_secs(120);

/// Inflicts faults until the run is over, each kind once before any comes again. Every fault is healed when this
/// returns; if one cannot be, the run is over.
pub(super) async fn run(
    args: &SteadyArgs,
    kinds: Vec<Fault>,
    world: &mut World,
    state: &SteadyState,
    over: &CancellationToken,
) {
    let (strength, mut random) = (args.strength(), Random::new(0));
    let mut bag = Bag::new(kinds, Random::fork(args.seed, 77));
    while let Some(fault) = bag.draw()
        && let Some(at) = next(args, state.begin.elapsed())
    {
        tokio::select! {
            () = sleep_until(state.begin + at) => {}
            () = over.cancelled() => return,
        }
        eprintln!("  {}", fault.name());
        let began = state.fault_began(&fault.name());
        let mut field = Field {
            world: &mut *world,
            owners: None,
            prober: None,
            strength,
            owned_within: RECOVERY_WITHIN,
            over,
        };
        if let Err(failure) = field.inflict(fault, &mut random).await {
            state.findings.add(format!("{}: {failure}", fault.name()));
            return over.cancel();
        }
        let healed = Instant::now();
        while state.newest_begun() <= healed {
            if over.is_cancelled() {
                return;
            }
            if healed.elapsed() > RECOVERY_WITHIN {
                let name = fault.name();
                state.findings.add(format!(
                    "no append was acknowledged within {RECOVERY_WITHIN:?} after {name}"
                ));
                return over.cancel();
            }
            tokio::time::sleep(LOOK).await;
        }
        state.fault_healed(began);
    }
    over.cancelled().await;
}

/// When the next fault comes: at a multiple of the period, after which another period is left before the end of the
/// run, if that is known.
fn next(args: &SteadyArgs, now: Duration) -> Option<Duration> {
    let passed = now.as_nanos() / args.fault_every.as_nanos();
    let at = (args.fault_every).checked_mul(u32::try_from(passed + 1).ok()?)?;
    let is_in_time = args.until_events.is_some() || at + args.fault_every <= args.duration;
    is_in_time.then_some(at)
}
