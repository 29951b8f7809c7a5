//! Which fault comes when: few, of kinds that a year in production has, one at a time, at multiples of a period.

use std::time::Duration;

use tokio_util::sync::CancellationToken;

use super::board::Board;
use crate::faults::{Fault, Strength, World, inflict};
use crate::random::{Bag, Random};

/// How often it is looked whether the load has recovered.
const LOOK: Duration = Duration::from_millis(5);
/// A load that has no append acknowledged for this long after a fault is stuck.
const RECOVERY_WITHIN: Duration = Duration::from_secs(120);

/// When which fault comes: at multiples of a period, each fault once before any comes again.
#[derive(Debug)]
pub(super) struct Schedule {
    every: Duration,
    /// The end of the run, if it is known: a fault comes only if half a period is left after it.
    end: Option<Duration>,
    strength: Strength,
    bag: Bag<Fault>,
}

impl Schedule {
    pub(super) fn new(
        every: Duration,
        end: Option<Duration>,
        strength: Strength,
        faults: Vec<Fault>,
        seed: u64,
    ) -> Self {
        Self {
            every,
            end,
            strength,
            bag: Bag::new(faults, Random::fork(seed, 77)),
        }
    }

    /// The first fault after a moment; none if there will be none.
    pub(super) fn next(&mut self, now: Duration) -> Option<(Duration, Fault)> {
        if self.every.is_zero() {
            return None;
        }
        let passed = now.as_nanos() / self.every.as_nanos();
        let at = self.every.checked_mul(u32::try_from(passed + 1).ok()?)?;
        let fault = self.bag.draw()?;
        let over = at + fault.lasts(&self.strength) + self.every / 2;
        (self.end.is_none_or(|end| over <= end)).then_some((at, fault))
    }
}

/// Inflicts one fault after the other until the run is over. Every fault is healed when this returns; if one cannot be,
/// the run is over.
pub(super) async fn run(
    schedule: &mut Schedule,
    world: &mut World,
    board: &Board,
    over: &CancellationToken,
) {
    let mut random = Random::new(0);
    while let Some((at, fault)) = schedule.next(board.begin().elapsed()) {
        tokio::select! {
            () = tokio::time::sleep_until(board.begin() + at) => {}
            () = over.cancelled() => return,
        }
        let began = board.fault_began(&fault.name());
        eprintln!("  {}", fault.name());
        let inflicted = inflict(fault, &schedule.strength, world, &mut random, over).await;
        let healed = board.begin().elapsed();
        if let Err(failure) = inflicted {
            board.finding(format!("{}: {failure}", fault.name()));
            return over.cancel();
        }
        while board.newest_begun() <= healed {
            if over.is_cancelled() {
                return;
            }
            if board.begin().elapsed() > healed + RECOVERY_WITHIN {
                board.finding(format!(
                    "no append was acknowledged within {RECOVERY_WITHIN:?} after {}",
                    fault.name()
                ));
                return over.cancel();
            }
            tokio::time::sleep(LOOK).await;
        }
        board.fault_healed(began);
    }
    over.cancelled().await;
}
