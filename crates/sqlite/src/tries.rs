//! Looks at the disk, and tries whether it takes writes: each time on a thread of its own, and one at a time.
//!
//! Why so: a disk may hang instead of failing, and who asks whether the store is ready does so on a thread of a
//! runtime, which others need. A blocking task of the runtime would keep the process from ending.
//!
//! Invariants: while a try is under way no other one begins, and nobody waits for it but who began it, for a moment.
//! Not here: what a look and a try do (`place`).

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

/// The shortest time between the beginnings of two tries to write. A look that does not write has no such time.
const TRY_EVERY: Duration = Duration::from_secs(2);

/// How long a try is under way until the disk counts as one that hangs.
pub(crate) const HANGS_AFTER: Duration = Duration::from_secs(5);

/// How long who began a try waits for it. A disk that is well answers far sooner.
const WAIT_MAX: Duration = Duration::from_millis(100);

/// The looks at one disk, each of which finds an `F`.
#[derive(Debug)]
pub(crate) struct Tries<F> {
    tried: Mutex<Tried<F>>,
    ended: Condvar,
}

#[derive(Debug)]
struct Tried<F> {
    /// The uptime at which the last look began.
    begun: Option<Duration>,
    /// The uptime at which the last try to write began.
    wrote: Option<Duration>,
    is_under_way: bool,
    /// What the last look that has ended found; `None` before that.
    found: Option<F>,
    /// What the last try that has ended said against the disk.
    refusal: Option<String>,
}

impl<F> Default for Tries<F> {
    fn default() -> Self {
        Self {
            tried: Mutex::new(Tried {
                begun: None,
                wrote: None,
                is_under_way: false,
                found: None,
                refusal: None,
            }),
            ended: Condvar::new(),
        }
    }
}

/// What is known about the disk.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Disk<F> {
    /// The disk answers.
    Answers {
        /// What the last look found; `None` if none has ended yet.
        found: Option<F>,
        /// Why the disk takes no writes, if the last try to write says so.
        refusal: Option<String>,
    },
    /// The last look has been under way for this time.
    Hangs(Duration),
}

impl<F: Clone + Send + 'static> Tries<F> {
    /// Says what is known at this uptime, after another look, and after a try to write if the last one is not new. A
    /// try is told what the look found, and returns what it has against the disk.
    pub(crate) fn ask(
        self: &Arc<Self>,
        now: Duration,
        look: impl FnOnce() -> F + Send + 'static,
        attempt: impl FnOnce(&F) -> Option<String> + Send + 'static,
    ) -> Disk<F> {
        let mut tried = self.lock();
        let since = |begun| now.saturating_sub(begun);
        let is_due = tried.wrote.is_none_or(|wrote| since(wrote) >= TRY_EVERY);
        let attempt = is_due.then_some(attempt);
        if !tried.is_under_way && self.begin(look, attempt) {
            tried.begun = Some(now);
            if is_due {
                tried.wrote = Some(now);
            }
            tried.is_under_way = true;
            let wait = |tried: &mut Tried<F>| tried.is_under_way;
            let waited = self.ended.wait_timeout_while(tried, WAIT_MAX, wait);
            tried = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        match tried.begun.map(since) {
            Some(time) if tried.is_under_way && time >= HANGS_AFTER => Disk::Hangs(time),
            _ => Disk::Answers {
                found: tried.found.clone(),
                refusal: tried.refusal.clone(),
            },
        }
    }

    /// Begins a look, and a try after it if there is one. It ends no sooner than the caller lets go of the lock.
    /// Returns
    /// false if there is no thread to be had, which says nothing about the disk.
    fn begin(
        self: &Arc<Self>,
        look: impl FnOnce() -> F + Send + 'static,
        attempt: Option<impl FnOnce(&F) -> Option<String> + Send + 'static>,
    ) -> bool {
        let tries = Arc::clone(self);
        let thread = thread::Builder::new().name("gesta-try".into());
        let begun = thread.spawn(move || {
            let found = look();
            let refusal = attempt.map(|attempt| attempt(&found));
            let mut tried = tries.lock();
            tried.is_under_way = false;
            tried.found = Some(found);
            if let Some(refusal) = refusal {
                tried.refusal = refusal;
            }
            tries.ended.notify_all();
        });
        begun.is_ok()
    }

    fn lock(&self) -> MutexGuard<'_, Tried<F>> {
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

    fn ends(tries: &Tries<u8>) {
        let wait = |tried: &mut Tried<u8>| tried.is_under_way;
        let ended = &tries.ended;
        let waited = ended.wait_timeout_while(tries.lock(), PATIENCE, wait);
        assert!(!waited.expect("no panic").0.is_under_way, "a try ends");
    }

    fn no_try(_: &u8) -> Option<String> {
        panic!("a try that must not begin")
    }

    /// Goal: a disk that hangs costs one thread, and is told after some time; what it answers in the end counts.
    #[test]
    fn a_try_that_does_not_end_is_told_and_is_the_only_one() {
        let tries = Arc::new(Tries::default());
        let (answer, answered) = channel();
        let hangs = move |_: &u8| answered.recv_timeout(PATIENCE).expect("told");
        let at = |time: Duration| Duration::from_secs(1_000) + time;
        let answers = |found: Option<u8>, refusal: Option<&str>| Disk::Answers {
            found,
            refusal: refusal.map(str::to_owned),
        };
        let first = tries.ask(at(Duration::ZERO), || 1, hangs);
        assert_eq!(first, answers(None, None), "nothing is known yet");
        let no_look = || -> u8 { panic!("a look that must not begin") };
        for time in [TRY_EVERY, HANGS_AFTER - Duration::from_micros(1)] {
            assert_eq!(tries.ask(at(time), no_look, no_try), answers(None, None));
        }
        for time in [HANGS_AFTER, HANGS_AFTER * 100] {
            assert_eq!(tries.ask(at(time), no_look, no_try), Disk::Hangs(time));
        }
        answer.send(Some("broken".to_owned())).expect("it waits");
        ends(&tries);
        let later = at(HANGS_AFTER * 101);
        let _ = tries.ask(later, || 2, |_| Some("broken again".to_owned()));
        ends(&tries);
        // The last try is new, so there is a look alone.
        let again = later + TRY_EVERY - Duration::from_micros(1);
        let _ = tries.ask(again, || 3, no_try);
        ends(&tries);
        let known = tries.lock();
        let (found, refusal) = (known.found, known.refusal.clone());
        drop(known);
        assert_eq!((found, refusal.as_deref()), (Some(3), Some("broken again")));
        let _ = tries.ask(later + TRY_EVERY, || 4, |_| None);
        ends(&tries);
        assert_eq!(tries.lock().refusal, None);
    }
}
