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
            () = tokio::time::sleep_until((board.begin() + at).into()) => {}
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

#[cfg(test)]
mod tests {
    use super::*;

    const STRENGTH: Strength = Strength {
        time: Duration::ZERO,
        freeze: Duration::from_secs(5),
        delay: Duration::from_millis(50),
        delay_for: Duration::from_secs(10),
        away: Duration::from_secs(1),
    };

    fn seconds(n: u64) -> Duration {
        Duration::from_secs(n)
    }

    #[test]
    fn faults_come_at_multiples_of_the_period_each_once_before_any_again() {
        let kinds = vec![
            Fault::DatabaseCut,
            Fault::DatabaseFreeze,
            Fault::DatabaseDelay,
        ];
        let mut schedule = Schedule::new(seconds(60), None, STRENGTH, kinds, 1);
        let (mut now, mut seen) = (Duration::ZERO, Vec::new());
        for n in 1..=30_u64 {
            let (at, kind) = schedule.next(now).unwrap();
            assert_eq!(at, seconds(60 * n));
            seen.push(kind);
            now = at + seconds(10);
        }
        for round in seen.chunks(3) {
            assert!(
                [
                    Fault::DatabaseCut,
                    Fault::DatabaseFreeze,
                    Fault::DatabaseDelay
                ]
                .iter()
                .all(|kind| round.contains(kind))
            );
        }
        // What takes longer than a period leaves the next out.
        assert_eq!(schedule.next(seconds(1_900)).unwrap().0, seconds(1_920));
        assert_eq!(schedule.next(seconds(1_920)).unwrap().0, seconds(1_980));
    }

    #[test]
    fn no_fault_comes_too_late_to_see_the_recovery() {
        let schedule = |kind, end| {
            Schedule::new(seconds(60), Some(seconds(end)), STRENGTH, vec![kind], 1)
                .next(Duration::ZERO)
        };
        assert!(schedule(Fault::DatabaseCut, 90).is_some());
        assert!(schedule(Fault::DatabaseCut, 89).is_none());
        assert!(schedule(Fault::DatabaseDelay, 100).is_some());
        assert!(schedule(Fault::DatabaseDelay, 99).is_none());
    }

    #[test]
    fn without_a_period_or_kinds_there_are_no_faults() {
        let none = Schedule::new(Duration::ZERO, None, STRENGTH, vec![Fault::DatabaseCut], 1)
            .next(seconds(1));
        assert!(none.is_none());
        let none = Schedule::new(seconds(1), None, STRENGTH, Vec::new(), 1).next(seconds(1));
        assert!(none.is_none());
    }
}
