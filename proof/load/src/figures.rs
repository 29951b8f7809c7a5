//! What a stretch of load came to.

use std::collections::BTreeMap;
use std::time::Duration;

use gesta_report::histogram::{Latencies, Percentiles};

/// Most causes of trouble that are told apart.
const CAUSES_MAX: usize = 200;

/// How a request ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// Answered, and the answer passed its checks.
    Passed,
    /// Answered with 429 or 503: overloaded.
    Refused,
    /// Answered, and a check failed.
    Wrong,
    /// Not answered, or the answer could not be read.
    Failed,
}

impl Outcome {
    /// All of them, in the order of their discriminants, with their names.
    pub const ALL: [(Outcome, &str); 4] = [
        (Outcome::Passed, "passed"),
        (Outcome::Refused, "refused"),
        (Outcome::Wrong, "failed a check"),
        (Outcome::Failed, "not answered"),
    ];
}

/// What went wrong, and how often.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Trouble {
    /// How often.
    pub count: u64,
    /// What the first of them was.
    pub example: String,
}

/// One stretch of load. Latencies count from the intended start, of requests intended in the measured part.
#[derive(Debug, Default)]
pub struct Figures {
    by: Vec<[Option<Box<Latencies>>; Outcome::ALL.len()]>,
    /// Requests that were never sent, counted as if they had ended when they were given up.
    pub unsent: Latencies,
    /// Requests that ended in the measured part, by outcome.
    pub ended: [u64; Outcome::ALL.len()],
    /// From when a request could be sent until its task ran.
    pub lag: Latencies,
    /// From the intended start until a user was free to send it.
    pub user_wait: Latencies,
    /// From then until a connection was free.
    pub connection_wait: Latencies,
    /// Requests sent in the measured part.
    pub sent: u64,
    /// Length of the measured part.
    pub seconds: f64,
    /// By the number of the kind of request and the cause.
    pub troubles: BTreeMap<(usize, String), Trouble>,
    /// Passes through flows that ended well.
    pub passes: u64,
    /// False if it was interrupted.
    pub complete: bool,
}

impl Figures {
    pub(crate) fn new(calls: usize) -> Self {
        Self {
            by: (0..calls).map(|_| Default::default()).collect(),
            ..Self::default()
        }
    }

    pub(crate) fn record(&mut self, call: usize, outcome: Outcome, latency: Duration) {
        if let Some(by) = self.by.get_mut(call) {
            by[outcome as usize].get_or_insert_default().record(latency);
        }
    }

    pub(crate) fn trouble(&mut self, call: usize, cause: String, example: String) {
        let key = match self.troubles.len() < CAUSES_MAX {
            true => (call, cause),
            false if self.troubles.contains_key(&(call, cause.clone())) => (call, cause),
            false => (call, "other causes".to_owned()),
        };
        let trouble = self
            .troubles
            .entry(key)
            .or_insert(Trouble { count: 0, example });
        trouble.count += 1;
    }

    /// The figures of the cells that `wanted` chooses, all together.
    pub fn over(&self, wanted: impl Fn(usize, Outcome) -> bool) -> Percentiles {
        self.merged(wanted).percentiles()
    }

    fn merged(&self, wanted: impl Fn(usize, Outcome) -> bool) -> Latencies {
        let mut all = Latencies::default();
        for (call, by) in self.by.iter().enumerate() {
            for (outcome, _) in Outcome::ALL {
                if let Some(latencies) = &by[outcome as usize]
                    && wanted(call, outcome)
                {
                    all.merge(latencies);
                }
            }
        }
        all
    }

    /// What those who were served had to wait: the figures of the requests that passed, and of those that were never
    /// sent. A refusal or a failure may come at once, so among them these would make a service that serves few look
    /// fast; they are counted for themselves.
    pub fn served(&self) -> Percentiles {
        let mut served = self.merged(|_, outcome| outcome == Outcome::Passed);
        served.merge(&self.unsent);
        served.percentiles()
    }

    /// True if most of the requests that ended were refused as overloaded: then the figures are those of the refusals.
    pub fn is_mostly_refused(&self) -> bool {
        self.ended[Outcome::Refused as usize] * 2 > self.ended.iter().sum::<u64>()
    }

    /// The figures of all requests, whatever came of them, those never sent too.
    pub fn overall(&self) -> Percentiles {
        let mut all = self.merged(|_, _| true);
        all.merge(&self.unsent);
        all.percentiles()
    }

    /// Requests of this outcome that ended, per second.
    pub fn per_second(&self, outcome: Outcome) -> f64 {
        self.ended[outcome as usize] as f64 / self.seconds.max(0.001)
    }
}
