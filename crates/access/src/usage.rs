//! Limits how much one user does at once, and how much in a second.
//!
//! Why: the bounds of a server are for all callers together; without these limits one user could use all of them up.
//! Tokens count for their user. Invariants: what is kept is bounded by the users that call at present or have bytes
//! outstanding; a call that is refused has done nothing.
//! How bytes are counted: payloads that are appended, and payloads of events that are read, once their size is known.
//! Bytes are outstanding until the time has passed that they take at the user's rate. If a user has more than a
//! second's worth outstanding, a call is refused and a subscription waits.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use gesta_core::capacity::{Capacity, Permit};
use gesta_core::{Error, ErrorKind, Result};

/// When so many users are kept, those who no longer call are forgotten.
const SWEEP_AFTER: usize = 1_024;

/// The limits of one user.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Limits {
    pub(crate) calls_max: usize,
    pub(crate) bytes_per_second: u64,
}

/// What all users do that call at present.
#[derive(Debug)]
pub(crate) struct Usages {
    limits: Limits,
    of: Mutex<HashMap<Arc<str>, Arc<Usage>>>,
}

/// What one user does at present.
#[derive(Debug)]
pub(crate) struct Usage {
    user: Arc<str>,
    limits: Limits,
    calls: Arc<Capacity>,
    account: Mutex<Account>,
}

/// Counts the bytes whose time has not passed yet.
#[derive(Debug)]
struct Account {
    outstanding: u64,
    at: Duration,
}

impl Account {
    fn settle(&mut self, now: Duration, bytes_per_second: u64) {
        let passed = now.saturating_sub(self.at);
        let passed_bytes = u128::from(bytes_per_second) * passed.as_nanos() / 1_000_000_000;
        let passed_bytes = u64::try_from(passed_bytes).unwrap_or(u64::MAX);
        // A time that is too short for one byte counts with the next one.
        if passed_bytes > 0 || self.outstanding == 0 {
            self.at = now;
        }
        self.outstanding = self.outstanding.saturating_sub(passed_bytes);
    }

    /// Returns how long it takes until no more than a second's worth is outstanding; `None` if that is so now.
    fn wait(&self, bytes_per_second: u64) -> Option<Duration> {
        let over = self
            .outstanding
            .checked_sub(bytes_per_second)
            .filter(|over| *over > 0)?;
        let nanos = u128::from(over) * 1_000_000_000 / u128::from(bytes_per_second.max(1));
        Some(Duration::from_nanos(
            u64::try_from(nanos).unwrap_or(u64::MAX),
        ))
    }
}

impl Usages {
    pub(crate) fn new(limits: Limits) -> Self {
        Self {
            limits,
            of: Mutex::default(),
        }
    }

    pub(crate) fn of(&self, user: &Arc<str>, now: Duration) -> Arc<Usage> {
        let mut users = self.of.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(usage) = users.get(user) {
            return Arc::clone(usage);
        }
        if users.len() >= SWEEP_AFTER {
            // Users who call or have bytes outstanding are kept.
            users.retain(|_, usage| Arc::strong_count(usage) > 1 || usage.has_outstanding(now));
        }
        let usage = Arc::new(Usage {
            user: Arc::clone(user),
            limits: self.limits,
            calls: Capacity::new([self.limits.calls_max]),
            account: Mutex::new(Account {
                outstanding: 0,
                at: now,
            }),
        });
        users.insert(Arc::clone(user), Arc::clone(&usage));
        usage
    }
}

impl Usage {
    /// Returns the name of the user.
    pub(crate) fn user(&self) -> &Arc<str> {
        &self.user
    }

    /// Begins a call, which ends when the permit is dropped.
    pub(crate) fn enter(&self, now: Duration) -> Result<Permit> {
        let overloaded = |why: String| Error::new(ErrorKind::Overloaded(why));
        if self.wait(now).is_some() {
            let max = self.limits.bytes_per_second;
            return Err(overloaded(format!(
                "user {:?} has had more than {max} bytes a second",
                self.user
            )));
        }
        self.calls.take([1]).map_err(|_| {
            let max = self.limits.calls_max;
            overloaded(format!(
                "{max} calls of user {:?} are in flight, no more are taken",
                self.user
            ))
        })
    }

    /// Counts bytes that the user has read or appended.
    pub(crate) fn had(&self, bytes: usize, now: Duration) {
        let mut account = self.account();
        account.settle(now, self.limits.bytes_per_second);
        account.outstanding = account
            .outstanding
            .saturating_add(u64::try_from(bytes).unwrap_or(u64::MAX));
    }

    /// Returns how long the user has to wait for more; `None` if not at all.
    pub(crate) fn wait(&self, now: Duration) -> Option<Duration> {
        let mut account = self.account();
        account.settle(now, self.limits.bytes_per_second);
        account.wait(self.limits.bytes_per_second)
    }

    fn has_outstanding(&self, now: Duration) -> bool {
        let mut account = self.account();
        account.settle(now, self.limits.bytes_per_second);
        account.outstanding > 0
    }

    fn account(&self) -> MutexGuard<'_, Account> {
        self.account.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn usages(calls_max: usize, bytes_per_second: u64) -> Usages {
        Usages::new(Limits {
            calls_max,
            bytes_per_second,
        })
    }

    #[test]
    fn calls_of_one_user_are_bounded() {
        let all = usages(2, u64::MAX);
        let (a, b) = (all.of(&"a".into(), SECOND), all.of(&"b".into(), SECOND));
        let same = all.of(&"a".into(), SECOND);
        let first = a.enter(SECOND).expect("room");
        let _second = same.enter(SECOND).expect("room");
        let error = a.enter(SECOND).expect_err("no room");
        assert!(
            error.to_string().contains("2 calls of user \"a\""),
            "{error}"
        );
        assert!(b.enter(SECOND).is_ok());
        drop(first);
        assert!(same.enter(SECOND).is_ok());
    }

    #[test]
    fn bytes_are_outstanding_for_their_time() {
        let one = usages(9, 1_000).of(&"a".into(), SECOND);
        one.had(1_000, SECOND);
        assert_eq!(one.wait(SECOND), None, "a second's worth");
        one.had(3_000, SECOND);
        assert_eq!(one.wait(SECOND), Some(SECOND * 3));
        assert!(one.enter(SECOND).is_err());
        assert_eq!(one.wait(SECOND * 3), Some(SECOND));
        assert!(one.enter(SECOND * 4).is_ok());
        one.had(usize::MAX, SECOND * 4);
        assert!(one.wait(SECOND * 4).is_some());
    }

    /// Goal: looking often settles as much as looking once.
    #[test]
    fn short_times_count_too() {
        let one = usages(9, 10).of(&"a".into(), SECOND);
        one.had(30, SECOND);
        for n in 0..2_000 {
            one.wait(SECOND + Duration::from_millis(n));
        }
        assert_eq!(one.wait(SECOND * 3), None);
    }

    #[test]
    fn users_that_no_longer_call_are_forgotten() {
        let all = usages(1, 1);
        all.of(&"debtor".into(), SECOND).had(100, SECOND);
        for n in 0..5_000 {
            all.of(&n.to_string().into(), SECOND);
        }
        assert!(all.of.lock().expect("unlocked").len() <= SWEEP_AFTER);
        let debtor = all.of(&"debtor".into(), SECOND);
        assert!(debtor.wait(SECOND).is_some(), "a debt outlives the call");
    }
}
