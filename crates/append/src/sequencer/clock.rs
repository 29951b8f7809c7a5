//! Whether what the clock of this machine shows is plausible, and with which time an event is stored. Pure.
//!
//! Why: the time of an event never decreases along a log, so one event of a clock that is years ahead would freeze the
//! time of all later ones, of all processes; then `$maxAge` hides nothing any more. The database's clock tells whether
//! ours is ahead. Where the database has none, only the newest event is there to compare with: a clock that is an hour
//! ahead cannot be told from a store that was idle for an hour. Invariants: nothing is asked for a single append; a
//! clock that is behind is never refused, since nothing follows from it. Not here: reading the database's clock
//! (backends).

use std::time::Duration;

use gesta_core::backend::LogEnd;
use gesta_core::{LastingFault, LogId, Position, Timestamp};
use serde::{Deserialize, Serialize};

use super::Now;

/// How far the clock of this machine may be ahead of the database's. Clocks that are kept by NTP differ by
/// milliseconds.
const AHEAD_MAX: Duration = Duration::from_secs(5 * 60);
/// How far the clock may be ahead of the newest event, where there is no other clock to compare with.
const LEAP_MAX: Duration = Duration::from_secs(366 * 86_400);
/// How far the newest event may be ahead of the clock until the log tells it.
const TOLD_FROM: Duration = Duration::from_secs(10);

/// What is done about a clock that is not plausible.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ClockPolicy {
    /// Appends are refused while the clock is more than 5 minutes ahead of the database's, or, where the database has
    /// no clock, more than 366 days ahead of the newest event.
    #[default]
    Checked,
    /// Whatever the clock shows is stored.
    Accepted,
    /// As `Checked`. And if the newest event is more than 5 minutes ahead of the clock, the next event is stored with
    /// what the clock shows, although that is earlier.
    SetBack,
}

/// What was told about the clock.
#[derive(Debug, Default)]
pub(crate) struct ClockWatch {
    policy: ClockPolicy,
    told: LastingFault,
}

impl ClockWatch {
    pub(crate) fn new(policy: ClockPolicy) -> Self {
        Self {
            policy,
            told: LastingFault::default(),
        }
    }

    /// Returns why an event must not be stored with what the clock shows; `None` if it may. `newest` is the last row of
    /// the log.
    pub(crate) fn refuses(&self, newest: LogEnd, now: Now) -> Option<String> {
        if self.policy == ClockPolicy::Accepted {
            return None;
        }
        let (other, what, max) = match now.database {
            Some(database) => (database, "the database's clock shows", AHEAD_MAX),
            None if newest.position > Position::START => {
                (newest.created, "the newest event is of", LEAP_MAX)
            }
            None => return None,
        };
        let ahead = ahead(now.wall, other);
        (ahead > max).then(|| {
            format!(
                "the clock of this machine shows {}, {what} {other}: {} ahead is not plausible; correct the clock, or \
                 accept it by append.clock = \"accepted\"",
                now.wall,
                text(ahead)
            )
        })
    }

    /// Returns the time with which an event is stored after one of time `previous`.
    pub(crate) fn time_after(
        policy: ClockPolicy,
        previous: Timestamp,
        wall: Timestamp,
    ) -> Timestamp {
        match policy == ClockPolicy::SetBack && ahead(previous, wall) > AHEAD_MAX {
            true => wall,
            false => wall.max(previous),
        }
    }

    /// Tells the log when the newest event begins or ends to be ahead of the clock.
    pub(crate) fn see(&mut self, log: LogId, newest: Timestamp, wall: Timestamp) {
        let ahead = ahead(newest, wall);
        if ahead > TOLD_FROM && self.policy != ClockPolicy::SetBack {
            if self.told.begins() {
                tracing::warn!(
                    log = log.0,
                    %newest,
                    clock = %wall,
                    "the newest event is {} ahead of the clock: until the clock reaches it, all events are stored with its \
                     time; if that is wrong, append.clock = \"set_back\" ends it",
                    text(ahead)
                );
            }
        } else if self.told.ends() {
            tracing::info!(
                log = log.0,
                "the newest event is not ahead of the clock any more"
            );
        }
    }

    /// Returns what is done about the time of the next event. The time is not set back by a clock that is itself behind
    /// the database's.
    pub(crate) fn policy(&self, now: Now) -> ClockPolicy {
        let is_behind = |database| ahead(database, now.wall) > AHEAD_MAX;
        match self.policy {
            ClockPolicy::SetBack if now.database.is_some_and(is_behind) => ClockPolicy::Checked,
            policy => policy,
        }
    }
}

/// Returns how far one time is ahead of another; zero if it is not.
fn ahead(one: Timestamp, other: Timestamp) -> Duration {
    let micros = one.0.saturating_sub(other.0);
    Duration::from_micros(u64::try_from(micros).unwrap_or(0))
}

fn text(time: Duration) -> String {
    match time.as_secs() {
        seconds if seconds >= 2 * 86_400 => format!("{} days", seconds / 86_400),
        seconds => format!("{seconds} s"),
    }
}

#[cfg(test)]
mod tests {
    use gesta_core::Moment;

    use super::*;

    const SECOND: i64 = 1_000_000;
    const DAY: i64 = 86_400 * SECOND;
    const NOW: i64 = 20_000 * DAY;

    fn at(wall: i64, database: Option<i64>) -> Now {
        Now {
            moment: Moment::START,
            wall: Timestamp(wall),
            database: database.map(Timestamp),
        }
    }

    fn end(created: i64) -> LogEnd {
        LogEnd {
            position: Position(1),
            created: Timestamp(created),
            ..LogEnd::default()
        }
    }

    #[test]
    fn a_clock_is_compared_with_the_databases_else_with_the_newest_event() {
        let checked = ClockWatch::new(ClockPolicy::Checked);
        for (newest, wall, database, is_refused) in [
            (NOW, NOW + 300 * SECOND, Some(NOW), false),
            (NOW, NOW + 301 * SECOND, Some(NOW), true),
            (NOW, NOW - 9 * DAY, Some(NOW), false),
            // The store was idle for years, and both clocks agree.
            (0, NOW, Some(NOW), false),
            // The newest event is ahead of both.
            (2 * NOW, NOW, Some(NOW), false),
            (NOW, NOW + 366 * DAY, None, false),
            (NOW, NOW + 367 * DAY, None, true),
            (2 * NOW, NOW, None, false),
        ] {
            let why = checked.refuses(end(newest), at(wall, database));
            assert_eq!(why.is_some(), is_refused, "{wall} {database:?} {why:?}");
        }
        let empty = checked.refuses(LogEnd::default(), at(NOW, None));
        assert_eq!(empty, None, "there is nothing to compare with");
        let accepted = ClockWatch::new(ClockPolicy::Accepted);
        assert_eq!(accepted.refuses(end(NOW), at(2 * NOW, Some(NOW))), None);
    }

    #[test]
    fn times_decrease_only_where_that_is_asked_for() {
        let after = |policy, previous: i64| {
            ClockWatch::time_after(policy, Timestamp(previous), Timestamp(NOW)).0
        };
        for policy in [ClockPolicy::Checked, ClockPolicy::Accepted] {
            assert_eq!(after(policy, NOW + DAY), NOW + DAY);
            assert_eq!(after(policy, NOW - DAY), NOW);
        }
        let watch = ClockWatch::new(ClockPolicy::SetBack);
        let checked = ClockPolicy::Checked;
        assert_eq!(
            watch.policy(at(NOW - DAY, Some(NOW))),
            checked,
            "it is behind"
        );
        let set_back = ClockPolicy::SetBack;
        assert_eq!(watch.policy(at(NOW, Some(NOW))), set_back);
        assert_eq!(watch.policy(at(NOW, None)), set_back);
        assert_eq!(after(set_back, NOW + DAY), NOW);
        assert_eq!(after(set_back, NOW + 300 * SECOND), NOW + 300 * SECOND);
    }
}
