//! Tries whether the disk takes writes: each on a thread of its own, and one at a time.
//!
//! Why so: a disk may hang instead of failing, and who asks whether the store is ready does so on a thread of a
//! runtime, which others need. A blocking task of the runtime would keep the process from ending.
//!
//! Invariants: while a try is under way no other one begins, and nobody waits for it but who began it, for a moment.
//! Not here: what a try does (`place`).

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

/// The shortest time between the beginnings of two tries.
const TRY_EVERY: Duration = Duration::from_secs(2);

/// How long a try is under way until the disk counts as one that hangs.
pub(crate) const HANGS_AFTER: Duration = Duration::from_secs(5);

/// How long who began a try waits for it. A disk that is well answers far sooner.
const WAIT_MAX: Duration = Duration::from_millis(100);

/// The tries to write to one disk.
#[derive(Debug, Default)]
pub(crate) struct Tries {
    tried: Mutex<Tried>,
    ended: Condvar,
}

#[derive(Debug, Default)]
struct Tried {
    /// The uptime at which the last try began.
    begun: Option<Duration>,
    is_under_way: bool,
    /// What the last try that has ended said against the disk.
    refusal: Option<String>,
}

/// What the tries say about the disk.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Disk {
    /// It takes writes, as far as is known.
    Writable,
    /// It takes none, for this reason.
    Refuses(String),
    /// The last try has been under way for this time.
    Hangs(Duration),
}

impl Tries {
    /// Says what is known at this uptime, after a try if the last one is not new. A try returns what it has against the
    /// disk.
    pub(crate) fn ask(
        self: &Arc<Self>,
        now: Duration,
        attempt: impl FnOnce() -> Option<String> + Send + 'static,
    ) -> Disk {
        let mut tried = self.lock();
        let since = |begun| now.saturating_sub(begun);
        let is_due = tried.begun.is_none_or(|begun| since(begun) >= TRY_EVERY);
        if !tried.is_under_way && is_due && self.begin(attempt) {
            tried.begun = Some(now);
            tried.is_under_way = true;
            let wait = |tried: &mut Tried| tried.is_under_way;
            let waited = self.ended.wait_timeout_while(tried, WAIT_MAX, wait);
            tried = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        match tried.begun.map(since) {
            Some(time) if tried.is_under_way && time >= HANGS_AFTER => Disk::Hangs(time),
            _ => tried.refusal.clone().map_or(Disk::Writable, Disk::Refuses),
        }
    }

    /// Begins a try, which ends no sooner than the caller lets go of the lock. Returns false if there is no thread to
    /// be had, which says nothing about the disk.
    fn begin(self: &Arc<Self>, attempt: impl FnOnce() -> Option<String> + Send + 'static) -> bool {
        let tries = Arc::clone(self);
        let thread = thread::Builder::new().name("gesta-try".into());
        let begun = thread.spawn(move || {
            let refusal = attempt();
            let mut tried = tries.lock();
            tried.is_under_way = false;
            tried.refusal = refusal;
            tries.ended.notify_all();
        });
        begun.is_ok()
    }

    fn lock(&self) -> MutexGuard<'_, Tried> {
        // Nothing that holds the lock panics halfway.
        self.tried.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;

    use super::*;

    /// How long a test waits for what must come at all.
    const PATIENCE: Duration = Duration::from_secs(60);

    fn ends(tries: &Tries) {
        let wait = |tried: &mut Tried| tried.is_under_way;
        let ended = &tries.ended;
        let waited = ended.wait_timeout_while(tries.lock(), PATIENCE, wait);
        assert!(!waited.expect("no panic").0.is_under_way, "a try ends");
    }

    fn no_try() -> Option<String> {
        panic!("a try that must not begin")
    }

    /// Goal: a disk that hangs costs one thread, and is told after some time; what it answers in the end counts.
    #[test]
    fn a_try_that_does_not_end_is_told_and_is_the_only_one() {
        let tries = Arc::new(Tries::default());
        let (answer, answered) = channel();
        let hangs = move || answered.recv_timeout(PATIENCE).expect("told");
        let at = |time: Duration| Duration::from_secs(1_000) + time;
        let first = tries.ask(at(Duration::ZERO), hangs);
        assert_eq!(first, Disk::Writable, "nothing is known yet");
        for time in [TRY_EVERY, HANGS_AFTER - Duration::from_micros(1)] {
            assert_eq!(tries.ask(at(time), no_try), Disk::Writable);
        }
        for time in [HANGS_AFTER, HANGS_AFTER * 100] {
            assert_eq!(tries.ask(at(time), no_try), Disk::Hangs(time));
        }
        answer.send(Some("broken".to_owned())).expect("it waits");
        ends(&tries);
        let later = at(HANGS_AFTER * 101);
        let _ = tries.ask(later, || Some("broken again".to_owned()));
        ends(&tries);
        let again = later + TRY_EVERY - Duration::from_micros(1);
        let refuses = Disk::Refuses("broken again".to_owned());
        assert_eq!(tries.ask(again, no_try), refuses, "the last try is new");
        let _ = tries.ask(later + TRY_EVERY, || None);
        ends(&tries);
        assert_eq!(tries.ask(later + TRY_EVERY, no_try), Disk::Writable);
    }
}
