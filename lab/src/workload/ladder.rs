//! A ladder: steps of rising load, and the bar at which it ends.
//! Not here: who makes the load, and what is told of a step.

use std::time::Duration;

use serde::Serialize;

use gesta_report::numbers::{count, millis};

/// A step of which less than this share was carried out has not kept up.
const KEPT_UP: f64 = 0.97;
/// The same, as the head of a column.
pub(crate) const KEPT_UP_TOLD: &str = "at least 97 % carried out";
/// Most steps.
const STEPS_MAX: f64 = 1_000.0;

/// Rates of requests that rise from step to step: `FROM:STEP:TO`.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub(crate) struct Steps {
    from: f64,
    step: f64,
    to: f64,
}

impl Steps {
    /// Reads `FROM:STEP:TO`.
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        let wrong = |rule: &str| {
            Err(format!(
                "{text:?} is not FROM:STEP:TO, such as 500:250:5000: {rule}"
            ))
        };
        let numbers: Result<Vec<f64>, _> =
            text.split(':').map(|part| part.trim().parse()).collect();
        match numbers.as_deref() {
            Ok(&[from, step, to]) => match () {
                () if !(from > 0.0 && step > 0.0) => wrong("FROM and STEP must be above 0"),
                () if !(to >= from && to <= 1e9) => {
                    wrong("TO must not be below FROM, nor above 10^9")
                }
                () if (to - from) / step >= STEPS_MAX => wrong("at most 1,000 steps"),
                () => Ok(Self { from, step, to }),
            },
            _ => wrong("three numbers between colons"),
        }
    }

    /// The rates, the last not above the end.
    pub(crate) fn rates(self) -> impl Iterator<Item = f64> {
        let end = self.to + self.step * 1e-9;
        let rates = (0_u32..).map(move |n| self.from + f64::from(n) * self.step);
        rates.take_while(move |rate| *rate <= end)
    }
}

impl std::fmt::Display for Steps {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}:{}:{}", self.from, self.step, self.to)
    }
}

/// What a step came to.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Reached {
    /// Requests a second that the schedule offered.
    pub(crate) offered: f64,
    /// Requests a second that were carried out: what was refused as overloaded, failed or was never sent is not.
    pub(crate) done: f64,
    /// Of the requests that were carried out, and of those that were never sent.
    pub(crate) p99_ms: f64,
    /// Requests that were refused as overloaded.
    pub(crate) refused: u64,
    /// Requests that were not answered, or not as they must be, if that is more than may be.
    pub(crate) wrong: u64,
}

impl Reached {
    /// True if nearly all that was offered was carried out.
    pub(crate) fn has_kept_up(&self) -> bool {
        self.done > 0.0 && self.done >= self.offered * KEPT_UP
    }

    /// Why a ladder ends with this step, if it does.
    pub(crate) fn breaks(&self, bar: Duration) -> Option<String> {
        let bar_ms = bar.as_secs_f64() * 1_000.0;
        if self.done <= 0.0 {
            let [refused, wrong] = [self.refused, self.wrong].map(|n| count(n as f64));
            return Some(match (self.refused, self.wrong) {
                (0, 0) => "nothing was answered".into(),
                (0, _) => format!("no request was carried out; requests that failed: {wrong}"),
                _ => format!("no request was carried out; refused as overloaded: {refused}"),
            });
        }
        if self.wrong > 0 {
            let wrong = count(self.wrong as f64);
            return Some(format!("requests that failed: {wrong}"));
        }
        if self.p99_ms > bar_ms {
            return Some(format!(
                "p99 {} is above {}",
                millis(self.p99_ms),
                millis(bar_ms)
            ));
        }
        (!self.has_kept_up()).then(|| {
            let (done, offered) = (count(self.done.round()), count(self.offered));
            format!("only {done} of {offered} requests/s were carried out")
        })
    }
}

/// What was found, in a sentence: of the steps that were run to their end, out of those that were wanted.
pub(crate) fn finding(steps: &[Reached], wanted: Steps, bar: Duration) -> String {
    let broken = |step: &&Reached| step.breaks(bar).is_some();
    let bar_told = millis(bar.as_secs_f64() * 1_000.0);
    let Some(last) = steps.iter().rev().find(|step| !broken(step)) else {
        return match steps.first() {
            Some(first) => format!(
                "The first step, {} requests/s, did not keep the bar of p99 {bar_told}.",
                count(first.offered)
            ),
            None => "No step was run to its end.".into(),
        };
    };
    let (rate, p99) = (count(last.offered), millis(last.p99_ms));
    let end = match steps.iter().find(broken) {
        Some(step) => {
            let (rate, why) = (count(step.offered), step.breaks(bar).unwrap_or_default());
            format!("the ladder ended at {rate}: {why}")
        }
        None if steps.len() < wanted.rates().count() => "it was interrupted there".into(),
        None => "it was the last step, and kept the bar".into(),
    };
    format!("{rate} requests/s are the highest step with a p99 up to {bar_told} ({p99}); {end}.")
}

#[cfg(test)]
mod tests {
    use super::*;

    const BAR: Duration = Duration::from_millis(50);

    fn reached(offered: f64, done: f64, p99_ms: f64) -> Reached {
        Reached {
            offered,
            done,
            p99_ms,
            refused: 0,
            wrong: 0,
        }
    }

    #[test]
    fn steps_are_read_with_their_rule() {
        let rates = |text: &str| Steps::parse(text).map(|steps| steps.rates().collect::<Vec<_>>());
        assert_eq!(rates("500:250:1200").unwrap(), [500.0, 750.0, 1_000.0]);
        assert_eq!(rates("0.1:0.1:0.3").unwrap().len(), 3);
        assert_eq!(rates("5:1:5").unwrap(), [5.0]);
        assert_eq!(rates("500:250:5000").unwrap().len(), 19);
        for (bad, rule) in [
            ("500:250", "three numbers"),
            ("500:x:5000", "three numbers"),
            ("500:0:5000", "above 0"),
            ("0:250:5000", "above 0"),
            ("NaN:1:2", "above 0"),
            ("500:250:400", "TO must not be below FROM"),
            ("500:250:inf", "above 10^9"),
            ("1:0.001:5000", "at most 1,000 steps"),
        ] {
            let why = rates(bad).unwrap_err();
            assert!(why.contains(bad) && why.contains(rule), "{bad}: {why}");
        }
    }

    /// Goal: a ladder ends at the bar, and also with a step that was not carried out, however soon the rest was.
    #[test]
    fn a_ladder_ends_at_the_bar() {
        let why = |step: Reached| step.breaks(BAR).unwrap_or_default().replace('\u{a0}', " ");
        assert_eq!(why(reached(500.0, 500.0, 50.0)), "");
        assert_eq!(why(reached(500.0, 486.0, 5.0)), "");
        assert_eq!(why(reached(500.0, 500.0, 50.1)), "p99 50 ms is above 50 ms");
        assert_eq!(
            why(reached(500.0, 484.0, 5.0)),
            "only 484 of 500 requests/s were carried out"
        );
        assert_eq!(why(reached(500.0, 0.0, 0.0)), "nothing was answered");
        // What happened: it said so, too, where everything was answered by a refusal.
        let nothing = |refused, wrong| Reached {
            refused,
            wrong,
            ..reached(500.0, 0.0, 0.0)
        };
        for (refused, wrong, told) in [
            (1_200, 7, "refused as overloaded: 1,200"),
            (0, 7, "requests that failed: 7"),
        ] {
            let told = format!("no request was carried out; {told}");
            assert_eq!(why(nothing(refused, wrong)), told);
        }
        let wrong = Reached {
            wrong: 1_200,
            ..reached(500.0, 500.0, 5.0)
        };
        assert_eq!(why(wrong), "requests that failed: 1,200");
    }

    #[test]
    fn the_share_that_counts_is_the_one_that_is_told() {
        let percent = gesta_report::numbers::percent(KEPT_UP).replace('\u{a0}', " ");
        assert!(KEPT_UP_TOLD.contains(&percent), "{percent}");
        assert!(reached(500.0, 485.0, 5.0).has_kept_up());
        assert!(!reached(500.0, 484.0, 5.0).has_kept_up());
        assert!(!reached(0.0, 0.0, 0.0).has_kept_up());
    }

    #[test]
    fn the_finding_names_the_highest_step_that_held() {
        let ladder = |to: f64| Steps {
            from: 500.0,
            step: 250.0,
            to,
        };
        let told_of = |steps: &[Reached], wanted: Steps| {
            let told = finding(steps, wanted, BAR);
            told.replace('\u{a0}', " ")
        };
        let told = |steps: &[Reached]| told_of(steps, ladder(1_000.0));
        let (good, better, bad) = (
            reached(500.0, 500.0, 5.0),
            reached(750.0, 750.0, 14.0),
            reached(1_000.0, 990.0, 200.0),
        );
        assert_eq!(
            told(&[good, better, bad]),
            "750 requests/s are the highest step with a p99 up to 50 ms (14 ms); the ladder ended at 1,000: p99 200 ms is \
             above 50 ms."
        );
        let whole = told_of(&[good, better], ladder(750.0));
        assert!(whole.ends_with("(14 ms); it was the last step, and kept the bar."));
        // What happened: a ladder that was interrupted said that it had ended, with the bar unbroken.
        assert!(told(&[good, better]).ends_with("(14 ms); it was interrupted there."));
        assert!(told(&[bad]).starts_with("The first step, 1,000 requests/s, did not keep the bar"));
        assert_eq!(told(&[]), "No step was run to its end.");
    }
}
