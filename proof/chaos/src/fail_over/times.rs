//! When the database took writes again after a fault, and when Gesta did. Pure.

use std::time::{Duration, Instant};

use gesta_report::failure::{Failure, Result};

use crate::inflict::patroni::Primary;
use crate::world::probe::Write;

/// What a fail-over took.
#[derive(Debug)]
pub(crate) struct Times {
    /// From the fault until the database took writes: the new primary, or the old one again.
    pub(crate) database_after: Duration,
    /// How much later Gesta did.
    pub(crate) later: Duration,
    /// How long the database took none: since the last write of any member before.
    pub(crate) database_away: Duration,
    /// How long Gesta took none.
    pub(crate) gesta_away: Duration,
}

impl Times {
    /// Out of plain writes, and of when appends were acknowledged.
    ///
    /// # Errors
    /// If one of them did not go on, or had not begun.
    pub(crate) fn of(hurt: Primary, writes: &[Write], appends: &[Instant]) -> Result<Self> {
        let is_after = |write: &&Write| match hurt.promotes {
            true => write.member != hurt.member && write.begun >= hurt.begun,
            false => write.begun >= hurt.done,
        };
        let after = writes.iter().filter(is_after);
        let writable = after.map(|write| write.acknowledged).min();
        let writable = writable.ok_or_else(|| Failure("no member took writes".into()))?;
        let all = writes.iter().map(|write| write.acknowledged);
        let none = |of: &str| Failure(format!("{of} took no writes"));
        let database = around(all, writable).ok_or_else(|| none("the database"))?;
        let gesta = around(appends.iter().copied(), writable).ok_or_else(|| none("Gesta"))?;
        Ok(Self {
            database_after: writable - hurt.begun,
            later: gesta.1 - writable,
            database_away: database.1 - database.0,
            gesta_away: gesta.1 - gesta.0,
        })
    }
}

/// The last success before a moment and the first from it on.
fn around(successes: impl Iterator<Item = Instant>, moment: Instant) -> Option<(Instant, Instant)> {
    let (before, after): (Vec<_>, Vec<_>) = successes.partition(|success| *success < moment);
    Some((before.into_iter().max()?, after.into_iter().min()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The old primary (0) takes writes until 100 and, where it lives on, at 130; the new one (1) from 160 on.
    #[test]
    fn a_fail_over_is_over_when_the_new_primary_takes_writes() {
        let start = Instant::now();
        let at = |millis: u64| start + Duration::from_millis(millis);
        let write = |member: usize, millis: u64| Write {
            member,
            begun: at(millis - 5),
            acknowledged: at(millis),
        };
        let writes = [write(0, 90), write(0, 130), write(1, 160), write(1, 170)];
        let appends = [80, 120, 400, 90].map(at);
        let mut hurt = Primary {
            begun: at(100),
            done: at(110),
            member: 0,
            promotes: true,
        };
        let told = |hurt: Primary| {
            let times = Times::of(hurt, &writes, &appends).unwrap();
            let told = [
                times.database_after,
                times.later,
                times.database_away,
                times.gesta_away,
            ];
            told.map(|time| time.as_millis())
        };
        assert_eq!(told(hurt), [60, 240, 30, 280]);
        // The same server again: its first write that was begun after the fault.
        hurt.promotes = false;
        assert_eq!(told(hurt), [30, 270, 40, 280]);
        assert!(Times::of(hurt, &writes[..1], &appends).is_err());
        assert!(Times::of(hurt, &writes, &appends[..2]).is_err());
    }
}
