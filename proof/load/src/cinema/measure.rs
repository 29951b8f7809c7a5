//! What a phase of load came to: latencies by call and outcome, lag, and what happened in each tenth of a second.

use std::collections::BTreeMap;
use std::time::Duration;

use gesta_report::histogram::{Latencies, Percentiles};

use super::model::{Call, Outcome};
use super::routes::Arrival;

/// Length of a slot of the time line.
const SLOT: Duration = Duration::from_millis(100);

/// What happened to the requests intended in a tenth of a second.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Slot {
    /// All of them.
    pub intended: u64,
    /// Accepted, and not later than the bar.
    pub good: u64,
}

/// One phase of load. Latencies count from the intended start, of requests intended in the measured part.
#[derive(Debug, Default)]
pub struct PhaseResult {
    by: [[Latencies; Outcome::ALL.len()]; Call::ALL.len()],
    by_arrival: [Latencies; 2],
    /// Requests that were never sent, counted as if they had ended when they were given up.
    pub unsent: Latencies,
    /// Answers that arrived in the measured part, by outcome.
    pub answered: [u64; Outcome::ALL.len()],
    /// Accepted commands and reads of the measured part, by server.
    pub by_server: Vec<[u64; 2]>,
    /// From when a request could be sent until its task ran.
    pub lag: Latencies,
    /// From then until a connection was free.
    pub connection_wait: Latencies,
    /// Requests sent in the measured part.
    pub sent: u64,
    /// Length of the measured part.
    pub seconds: f64,
    /// By tenth of a second of the intended start, from the beginning of the warm-up.
    pub slots: Vec<Slot>,
    /// Failures and strange answers by status or cause.
    pub errors: BTreeMap<String, u64>,
    /// False if it was interrupted.
    pub complete: bool,
}

impl PhaseResult {
    /// Nothing was measured yet, at so many servers.
    pub fn new(servers: usize) -> Self {
        Self {
            by_server: vec![[0; 2]; servers],
            ..Self::default()
        }
    }

    /// Adds an answer, or a failure.
    pub fn record(&mut self, call: Call, outcome: Outcome, latency: Duration) {
        self.by[call as usize][outcome as usize].record(latency);
    }

    /// Adds a request that was carried out, by how it came to the owner of the show, if that is known.
    pub fn record_arrival(&mut self, arrival: Option<Arrival>, latency: Duration) {
        if let Some(arrival) = arrival {
            self.by_arrival[arrival as usize].record(latency);
        }
    }

    /// The figures of the requests that came to the owner so and were carried out.
    pub fn over_arrival(&self, arrival: Arrival) -> Percentiles {
        self.by_arrival[arrival as usize].percentiles()
    }

    /// The figures of the cells that `wanted` chooses, all together.
    pub fn over(&self, wanted: impl Fn(Call, Outcome) -> bool) -> Percentiles {
        self.merged(wanted).percentiles()
    }

    fn merged(&self, wanted: impl Fn(Call, Outcome) -> bool) -> Latencies {
        let mut all = Latencies::default();
        for (call, _) in Call::ALL {
            for (outcome, _) in Outcome::ALL {
                if wanted(call, outcome) {
                    all.merge(&self.by[call as usize][outcome as usize]);
                }
            }
        }
        all
    }

    /// What those who were served had to wait: the figures of the requests that were carried out, which is accepted or
    /// rejected by the rules of the application, and of those that were never sent. A refusal or a failure may come at
    /// once, so among them these would make an application that serves few look fast.
    pub fn served(&self) -> Percentiles {
        let is_done = |outcome| matches!(outcome, Outcome::Accepted | Outcome::Rejected);
        let mut served = self.merged(|_, outcome| is_done(outcome));
        served.merge(&self.unsent);
        served.percentiles()
    }

    /// True if most of the requests that ended were refused as overloaded: then the figures are those of the refusals.
    pub fn is_mostly_refused(&self) -> bool {
        self.answered[Outcome::Refused as usize] * 2 > self.answered.iter().sum::<u64>()
    }

    /// The slot of a request by the time since the phase's beginning.
    pub fn slot(&mut self, since: Duration) -> &mut Slot {
        // A phase of hours has a few hundred thousand slots.
        let index = usize::try_from(since.as_nanos() / SLOT.as_nanos()).unwrap_or(usize::MAX);
        let index = index.min(10_000_000);
        if index >= self.slots.len() {
            self.slots.resize(index + 1, Slot::default());
        }
        &mut self.slots[index]
    }

    fn per_second(&self, count: u64) -> f64 {
        count as f64 / self.seconds.max(0.001)
    }

    /// Accepted requests per second: the goodput.
    pub fn accepted_per_second(&self) -> f64 {
        self.per_second(self.answered[Outcome::Accepted as usize])
    }

    /// Requests per second that were carried out: accepted, or rejected by the rules of the application.
    pub fn decided_per_second(&self) -> f64 {
        let [accepted, _, rejected, _] = self.answered;
        self.per_second(accepted + rejected)
    }

    /// Answers per second, whatever they say.
    pub fn answered_per_second(&self) -> f64 {
        let [accepted, refused, rejected, _] = self.answered;
        self.per_second(accepted + refused + rejected)
    }

    /// How long after the phase's beginning a whole second began in which every tenth was good: at least 99 % of its
    /// requests accepted in time. `None` if there was no such second (or, shorter, no such end of the phase).
    pub fn good_after(&self) -> Option<Duration> {
        const SECOND: usize = 10;
        let good =
            |slot: &Slot| (slot.intended - slot.good.min(slot.intended)) * 100 <= slot.intended;
        let begins = |from: &usize| self.slots[*from..].iter().take(SECOND).all(good);
        let slots = (0..self.slots.len()).find(begins)?;
        Some(SLOT * u32::try_from(slots).unwrap_or(u32::MAX))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What happened: refusals, which come at once, stood among the latencies of the answers.
    #[test]
    fn refusals_and_failures_do_not_make_an_application_look_fast() {
        let (short, long) = (Duration::from_micros(100), Duration::from_millis(10));
        let mut phase = PhaseResult::default();
        for _ in 0..1_000 {
            phase.record(Call::Reserve, Outcome::Refused, short);
            phase.record(Call::Reserve, Outcome::Failed, short);
        }
        for _ in 0..5 {
            phase.record(Call::Read, Outcome::Accepted, long);
            phase.record(Call::Reserve, Outcome::Rejected, long);
        }
        let served = phase.served();
        assert!(served.count == 10 && served.p50 >= 10.0, "{served:?}");
        phase.unsent.record(Duration::from_secs(1));
        assert!(phase.served().max >= 1_000.0);
        assert!(!PhaseResult::default().is_mostly_refused());
        phase.answered = [49, 51, 0, 0];
        assert!(phase.is_mostly_refused());
        phase.answered = [20, 50, 20, 10];
        assert!(!phase.is_mostly_refused());
    }

    #[test]
    fn recovery_is_the_first_good_second() {
        let slot = |intended, good| Slot { intended, good };
        let mut phase = PhaseResult::default();
        assert_eq!(phase.good_after(), None);
        phase.slots = vec![slot(100, 40), slot(100, 0), slot(0, 0), slot(100, 98)];
        assert_eq!(phase.good_after(), None);
        phase.slots.extend([slot(100, 99); 10]);
        // Trouble of another kind, later.
        phase.slots.push(slot(100, 0));
        assert_eq!(phase.good_after(), Some(Duration::from_millis(400)));
    }
}
