//! What a phase of load came to: latencies by call and outcome, lag, and what happened in each tenth of a second.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::histogram::{Latencies, Percentiles};
use crate::reservation::model::{Call, Outcome};

/// Length of a slot of the time line.
pub(crate) const SLOT_NANOS: u64 = 100_000_000;

/// Latencies from the intended start, by call and outcome.
#[derive(Debug, Clone, Default)]
pub(crate) struct Measures {
    by: [[Latencies; Outcome::ALL.len()]; Call::ALL.len()],
    /// Requests that were never sent, counted as if they had ended when the phase was over.
    unsent: Latencies,
}

impl Measures {
    /// Adds an answer, or a failure.
    pub(crate) fn record(&mut self, call: Call, outcome: Outcome, nanos: u64) {
        self.by[call as usize][outcome as usize].record(Duration::from_nanos(nanos));
    }

    /// Adds a request that was never sent.
    pub(crate) fn record_unsent(&mut self, nanos: u64) {
        self.unsent.record(Duration::from_nanos(nanos));
    }

    /// The figures of the cells that `wanted` chooses, all together.
    pub(crate) fn over(&self, wanted: impl Fn(Call, Outcome) -> bool) -> Percentiles {
        self.merged(wanted).percentiles()
    }

    fn merged(&self, wanted: impl Fn(Call, Outcome) -> bool) -> Latencies {
        let mut all = Latencies::default();
        for call in Call::ALL {
            for outcome in Outcome::ALL {
                if wanted(call, outcome) {
                    all.merge(&self.by[call as usize][outcome as usize]);
                }
            }
        }
        all
    }

    /// The figures of all requests, those never sent too.
    pub(crate) fn overall(&self) -> Percentiles {
        let mut all = self.merged(|_, _| true);
        all.merge(&self.unsent);
        all.percentiles()
    }

    /// How many requests were never sent.
    pub(crate) fn unsent(&self) -> u64 {
        self.unsent.percentiles().count
    }
}

/// What happened to the requests intended in a tenth of a second.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Slot {
    /// All of them.
    pub(crate) intended: u64,
    /// Accepted.
    pub(crate) accepted: u64,
    /// Refused as overloaded.
    pub(crate) refused: u64,
    /// Answered, but later than the bar.
    pub(crate) slow: u64,
}

/// One phase of load.
#[derive(Debug, Default)]
pub(crate) struct PhaseResult {
    /// Requests intended in the measured part.
    pub(crate) measures: Measures,
    /// Requests intended in the warm-up.
    pub(crate) warm_up: Measures,
    /// Answers that arrived in the measured part, by outcome.
    pub(crate) answered: [u64; Outcome::ALL.len()],
    /// Accepted commands and reads of the measured part, by server.
    pub(crate) by_target: Vec<[u64; 2]>,
    /// From when a request could be sent to when it was, with a connection at hand.
    pub(crate) lag: Latencies,
    /// From when a request could be sent until a connection was free.
    pub(crate) connection_wait: Latencies,
    /// From the intended start until the user's request before had ended.
    pub(crate) turn_wait: Latencies,
    /// Requests sent in the measured part.
    pub(crate) sent: u64,
    /// Length of the measured part.
    pub(crate) seconds: f64,
    /// Processor time of the generator's thread in the measured part.
    pub(crate) own: Duration,
    /// By tenth of a second of the intended start.
    pub(crate) slots: Vec<Slot>,
    /// Failures and strange answers by status or cause.
    pub(crate) errors: BTreeMap<String, u64>,
    /// False if it was interrupted.
    pub(crate) complete: bool,
}

impl PhaseResult {
    /// The slot of a request by the time since the phase's beginning.
    pub(crate) fn slot(&mut self, nanos: u64) -> &mut Slot {
        let index = usize::try_from(nanos / SLOT_NANOS).unwrap_or(usize::MAX);
        // A phase of hours has a few hundred thousand slots.
        let index = index.min(10_000_000);
        if index >= self.slots.len() {
            self.slots.resize(index + 1, Slot::default());
        }
        &mut self.slots[index]
    }

    /// A count per second of the measured part.
    #[expect(clippy::cast_precision_loss, reason = "counts of minutes fit")]
    pub(crate) fn per_second(&self, count: u64) -> f64 {
        if self.seconds <= 0.0 {
            return 0.0;
        }
        count as f64 / self.seconds
    }

    /// Accepted requests per second: the goodput.
    pub(crate) fn accepted_per_second(&self) -> f64 {
        self.per_second(self.answered[Outcome::Accepted as usize])
    }

    /// Answers per second, whatever they say.
    pub(crate) fn answered_per_second(&self) -> f64 {
        let [accepted, refused, rejected, _] = self.answered;
        self.per_second(accepted + refused + rejected)
    }

    /// Share of the time that the generator's thread was busy.
    pub(crate) fn own_share(&self) -> f64 {
        if self.seconds <= 0.0 {
            return 0.0;
        }
        self.own.as_secs_f64() / self.seconds
    }

    /// Processor time of the generator per request.
    #[expect(clippy::cast_precision_loss, reason = "counts of minutes fit")]
    pub(crate) fn own_micros_per_request(&self) -> f64 {
        if self.sent == 0 {
            return 0.0;
        }
        (self.own.as_secs_f64() * 1e7 / self.sent as f64).round() / 10.0
    }

    /// How long after the phase's beginning a whole second began in which every tenth was good: at least 99 % of its
    /// requests accepted, and not slow. `None` if there was no such second (or, shorter, no such end of the phase).
    pub(crate) fn good_after(&self) -> Option<Duration> {
        const SECOND: usize = 10;
        let good = |slot: &Slot| {
            let good = slot.accepted.saturating_sub(slot.slow);
            (slot.intended - good.min(slot.intended)) * 100 <= slot.intended
        };
        let begins = |from: &usize| self.slots[*from..].iter().take(SECOND).all(good);
        let slots = (0..self.slots.len()).find(begins)?;
        Some(Duration::from_nanos(slots as u64 * SLOT_NANOS))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn latencies_are_told_apart_and_put_together() {
        let mut measures = Measures::default();
        measures.record(Call::Reserve, Outcome::Accepted, 2_000_000);
        measures.record(Call::Reserve, Outcome::Refused, 1_000_000);
        measures.record(Call::Read, Outcome::Accepted, 3_000_000);
        measures.record_unsent(900_000_000);
        assert_eq!(measures.overall().count, 4);
        assert!(measures.overall().p99 >= 899.0, "{:?}", measures.overall());
        assert_eq!(measures.over(|_, o| o == Outcome::Accepted).count, 2);
        let refused = |call| {
            measures
                .over(|c, o| (c, o) == (call, Outcome::Refused))
                .count
        };
        assert_eq!((refused(Call::Reserve), refused(Call::Create)), (1, 0));
        assert_eq!(measures.unsent(), 1);
    }

    #[test]
    fn recovery_is_the_first_good_second() {
        let slot = |intended, accepted, slow| Slot {
            intended,
            accepted,
            slow,
            refused: 0,
        };
        let mut phase = PhaseResult::default();
        assert_eq!(phase.good_after(), None);
        phase.slots = vec![
            slot(100, 40, 0),
            slot(100, 100, 100),
            slot(0, 0, 0),
            slot(100, 98, 0),
        ];
        assert_eq!(phase.good_after(), None);
        phase.slots.extend([slot(100, 99, 0); 5]);
        phase.slots.extend([slot(100, 100, 1); 5]);
        // Trouble of another kind, later.
        phase.slots.push(slot(100, 0, 0));
        assert_eq!(phase.good_after(), Some(Duration::from_millis(400)));
    }

    #[test]
    fn slots_follow_the_intended_start() {
        let mut phase = PhaseResult::default();
        phase.slot(250_000_000).intended += 1;
        phase.slot(0).intended += 1;
        assert_eq!(
            phase.slots.iter().map(|s| s.intended).collect::<Vec<_>>(),
            [1, 0, 1]
        );
        phase.slot(u64::MAX).intended += 1;
    }
}
