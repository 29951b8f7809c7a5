//! The faults since the last success: how long to wait before the next try, whether appends can succeed at present, and
//! whether the fault was logged.

use std::time::Duration;

use gesta_core::{BackOff, Error, ErrorKind, LastingFault, LogId, Moment, warn_once};

const BACK_OFF_MIN: Duration = Duration::from_millis(10);
const BACK_OFF_MAX: Duration = Duration::from_secs(1);
/// The time within which a fault may pass without being reported.
const TOLD_AFTER: Duration = Duration::from_secs(2);
/// The time after which an unanswered commit has stalled.
const STALLED_AFTER: Duration = Duration::from_secs(3);
/// The time without another try after which nobody knows whether a lasting fault is still there.
const FORGOTTEN_AFTER: Duration = Duration::from_secs(10);

/// The faults since the last commit.
#[derive(Debug)]
pub(crate) struct Trouble {
    back_off: BackOff,
    pause: Duration,
    since: Option<Moment>,
    last: Option<(Moment, Error)>,
    told: LastingFault,
    /// Whether a lasting fault was logged. This is kept apart, because a lasting fault may begin while a passing one
    /// lasts.
    told_lasting: LastingFault,
}

/// Returns the pauses between tries that follow one another.
pub(crate) fn pauses() -> BackOff {
    BackOff::new(BACK_OFF_MIN, BACK_OFF_MAX)
}

impl Default for Trouble {
    fn default() -> Self {
        Self {
            back_off: pauses(),
            pause: BACK_OFF_MIN,
            since: None,
            last: None,
            told: LastingFault::default(),
            told_lasting: LastingFault::default(),
        }
    }
}

/// Returns whether waiting and trying again may help by itself.
pub(crate) fn is_passing(error: &Error) -> bool {
    !error.is_for_administrator()
        && matches!(
            error.kind(),
            ErrorKind::Unavailable(_) | ErrorKind::Overloaded(_) | ErrorKind::OutcomeUnknown(_)
        )
}

impl Trouble {
    /// Notes a failure.
    pub(crate) fn note(&mut self, error: &Error, now: Moment) {
        self.pause = self.back_off.pause();
        self.since.get_or_insert(now);
        self.last = Some((now, error.clone()));
    }

    /// Logs a passing failure, `what`, as a warning if it is the first since the last success.
    pub(crate) fn warn(&mut self, log: LogId, error: &Error, what: &str) {
        warn_once!(self.told, log = log.0, %error, "{what}");
    }

    /// Logs a lasting failure, as an error if it is the first since the last success.
    pub(crate) fn fail(&mut self, log: LogId, error: &Error, what: &str) {
        if self.told_lasting.begins() {
            tracing::error!(log = log.0, %error, "{what}");
        } else {
            tracing::debug!(log = log.0, %error, "{what}");
        }
    }

    /// Forgets all faults, because something has succeeded. Returns whether one was logged.
    pub(crate) fn clear(&mut self) -> bool {
        self.forget();
        self.told.ends() | self.told_lasting.ends()
    }

    /// Forgets all faults though nothing has succeeded, because nothing is tried any more. The log is not told again
    /// when something is, and fails.
    pub(crate) fn forget(&mut self) {
        *self = Self {
            told: self.told,
            told_lasting: self.told_lasting,
            ..Self::default()
        };
    }

    /// Returns the last failure.
    pub(crate) fn last_error(&self) -> Option<&Error> {
        self.last.as_ref().map(|(_, error)| error)
    }

    /// Returns how long to wait before the next try, at most `longest`.
    pub(crate) fn back_off(&self, longest: Duration) -> Duration {
        self.pause.min(longest)
    }

    /// Returns whether only a commit can show that a passing fault is over.
    pub(crate) fn wants_proof(&self) -> bool {
        self.last
            .as_ref()
            .is_some_and(|(_, error)| is_passing(error))
    }

    /// Returns why appends cannot succeed now; `None` if they can. `oldest_sent` is the time at which the oldest
    /// unanswered batch was sent.
    pub(crate) fn why_not_ready(&self, oldest_sent: Option<Moment>, now: Moment) -> Option<String> {
        if let (Some((at, error)), Some(since)) = (&self.last, self.since) {
            let has_lasted = now.since(since) >= TOLD_AFTER;
            let is_old = now.since(*at) >= FORGOTTEN_AFTER;
            let is_lasting = !is_passing(error);
            if is_lasting && !is_old || !is_lasting && has_lasted {
                return Some(error.to_string());
            }
        }
        let unanswered = now.since(oldest_sent?);
        (unanswered >= STALLED_AFTER)
            .then(|| format!("a commit is unanswered for {} s", unanswered.as_secs()))
    }
}

/// The pause of a kind of reads, because one has failed.
#[derive(Debug, Default)]
pub(crate) struct Pause {
    /// The time before which none is tried.
    until: Option<Moment>,
    trouble: Trouble,
}

impl Pause {
    /// Begins a pause, which is longer each time.
    pub(crate) fn begin(&mut self, log: LogId, error: &Error, what: &str, now: Moment) {
        self.trouble.note(error, now);
        self.trouble.warn(log, error, what);
        self.until = Some(now + self.trouble.back_off(Duration::MAX));
    }

    /// Returns when the pause ends; `None` if there is none.
    pub(crate) fn until(&self) -> Option<Moment> {
        self.until
    }

    /// Returns the last error since a read has succeeded.
    pub(crate) fn last_error(&self) -> Option<&Error> {
        self.trouble.last_error()
    }

    /// Returns whether there is no pause. One that is over ends.
    pub(crate) fn is_over(&mut self, now: Moment) -> bool {
        self.until = self.until.filter(|until| now < *until);
        self.until.is_none()
    }

    /// Ends the pause, because a read has succeeded. Returns whether the fault was logged.
    pub(crate) fn end(&mut self) -> bool {
        self.until = None;
        self.trouble.clear()
    }

    /// Ends the pause, because nothing is to be read.
    pub(crate) fn forget(&mut self) {
        self.until = None;
        self.trouble.forget();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tries_follow_one_another_ever_more_slowly() {
        let (mut trouble, now) = (Trouble::default(), Moment::START);
        let error = Error::unavailable("away");
        let mut waits = Vec::new();
        for _ in 0..12 {
            trouble.note(&error, now);
            waits.push(trouble.back_off(Duration::MAX));
        }
        assert_eq!(waits[0], BACK_OFF_MIN);
        assert_eq!(waits[3], BACK_OFF_MIN * 8);
        assert_eq!(waits[11], BACK_OFF_MAX);
        assert_eq!(
            trouble.back_off(Duration::from_millis(7)),
            Duration::from_millis(7)
        );
        trouble.clear();
        trouble.note(&error, now);
        assert_eq!(trouble.back_off(Duration::MAX), BACK_OFF_MIN);
    }

    #[test]
    fn a_passing_fault_is_told_once_it_has_lasted_and_a_lasting_one_at_once() {
        let now = Moment::START;
        let mut trouble = Trouble::default();
        assert_eq!(trouble.why_not_ready(None, now), None);
        trouble.note(&Error::unavailable("away"), now);
        assert_eq!(trouble.why_not_ready(None, now), None);
        assert!(trouble.why_not_ready(None, now + TOLD_AFTER).is_some());
        assert!(trouble.wants_proof());
        trouble.clear();
        trouble.note(&ErrorKind::Unsupported("read only".into()).into(), now);
        assert!(trouble.why_not_ready(None, now).is_some());
        assert!(!trouble.wants_proof());
        assert_eq!(trouble.why_not_ready(None, now + FORGOTTEN_AFTER), None);
    }

    #[test]
    fn a_commit_without_an_answer_is_told() {
        let now = Moment::START;
        let trouble = Trouble::default();
        assert_eq!(trouble.why_not_ready(Some(now), now), None);
        let later = now + STALLED_AFTER;
        assert!(trouble.why_not_ready(Some(now), later).is_some());
    }

    #[test]
    fn a_success_tells_whether_a_fault_was_told() {
        let (log, error) = (LogId(0), Error::unavailable("away"));
        let mut trouble = Trouble::default();
        trouble.note(&error, Moment::START);
        assert!(!trouble.clear(), "it passed before anybody was told");
        trouble.warn(log, &error, "again");
        trouble.forget();
        assert!(trouble.clear() && !trouble.clear());
        trouble.fail(log, &error, "at last");
        assert!(trouble.clear());
    }

    #[test]
    fn the_last_fault_is_remembered_until_a_commit() {
        let now = Moment::START;
        let mut trouble = Trouble::default();
        assert!(trouble.last_error().is_none());
        trouble.note(&Error::unavailable("first"), now);
        trouble.note(&Error::unavailable("second"), now);
        let last = trouble.last_error().expect("noted").to_string();
        assert!(last.contains("second"), "{last}");
        trouble.clear();
        assert!(trouble.last_error().is_none());
    }
}
