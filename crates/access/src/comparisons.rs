//! Compares passwords: few at a time, a turn for each address and class of names, and those of guessers last and
//! seldom.
//!
//! Why: a comparison takes some 20 ms of a processor by design. A caller who sends thousands of wrong passwords a
//! second must take neither the threads that serve requests, nor the processor from them, nor the turns of others.
//! Invariants: at most `places` comparisons run, each on a thread of its own; after a wrong password a place rests for
//! as long as the comparison took; of all [guessing addresses](crate::guessing) together one wrong password is compared
//! a second, and only while nobody else waits; the same password of the same user is compared once, however many calls
//! wait for it.
//! Not here: which passwords are known already.

use std::collections::HashMap;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use gesta_core::newcomers::whom;
pub(crate) use gesta_core::turns::Full;
use gesta_core::turns::{Bounds, Turns};
use gesta_core::uptime;
use tokio::sync::oneshot;

use crate::guessing::{Asker, GuessingAddresses};
use crate::password::{Hashed, Password};

/// How many comparisons wait at most.
const WAITING: Bounds = Bounds {
    all: 1_024,
    of_one: 16,
};
/// The most calls that wait for one comparison.
const CALLS_OF_ONE_MAX: usize = 4_096;
/// How long guessing addresses rest after a wrong password of one of them. A flood of wrong passwords then takes a
/// fiftieth of a processor. Bursts of 20 ms delay the requests that they meet, so there must be few of them.
const REST_OF_GUESSING: Duration = Duration::from_secs(1);
/// How long a comparison for a guessing address keeps other guessing addresses from running, should it never end.
const COMPARISON_MAX: Duration = Duration::from_secs(10);

/// Stands for what is compared: comparisons with the same key have the same answer.
pub(crate) type Key = [u8; 32];

struct Comparison {
    key: Key,
    from: Asker,
    password: Password,
    hash: Hashed,
}

type Answer = Result<bool, Full>;

/// What a place does next. A place is a thread that compares passwords.
enum Next {
    Compare(Comparison),
    /// Only guessing addresses wait, and the next of them may be compared after this time.
    Rest(Duration),
    /// Nobody waits.
    End,
}

#[derive(Default)]
struct State {
    waiting: Turns<Asker, Comparison>,
    /// The comparisons for [guessing addresses](crate::guessing), which come last.
    put_off: Turns<Asker, Comparison>,
    guessing: GuessingAddresses,
    /// The moment from which on the next comparison for a guessing address may begin.
    guessing_from: Duration,
    /// For each comparison that waits or runs, the calls that wait for its outcome.
    calls: HashMap<Key, Vec<oneshot::Sender<Answer>>>,
    running: usize,
}

impl State {
    /// Lets a comparison wait after those of the same address.
    fn push(&mut self, comparison: Comparison, now: Duration) -> Result<(), Full> {
        let from = comparison.from;
        let waiting = match self.guessing.has(from, now) {
            true => &mut self.put_off,
            false => &mut self.waiting,
        };
        if let Some(displaced) = waiting.push_within(WAITING, from, comparison)? {
            self.answer_all(&displaced.key, || Err(Full));
        }
        Ok(())
    }

    /// Takes the next comparison. Comparisons for which no call waits any more are left out. A comparison whose address
    /// became a guessing address while it waited is put off.
    fn take(&mut self, now: Duration) -> Next {
        while let Some((_, comparison)) = self.waiting.pop() {
            if !self.is_asked(&comparison.key) {
                continue;
            }
            if !self.guessing.has(comparison.from, now) {
                return Next::Compare(comparison);
            }
            let key = comparison.key;
            if self.push(comparison, now).is_err() {
                self.answer_all(&key, || Err(Full));
            }
        }
        if now < self.guessing_from && !self.put_off.is_empty() {
            return Next::Rest(self.guessing_from - now);
        }
        while let Some((_, comparison)) = self.put_off.pop() {
            if self.is_asked(&comparison.key) {
                self.guessing_from = now + COMPARISON_MAX;
                return Next::Compare(comparison);
            }
        }
        Next::End
    }

    /// Tells whether a call still waits for a comparison. If none does, the comparison is forgotten.
    fn is_asked(&mut self, key: &Key) -> bool {
        let calls = self.calls.get(key);
        let is_asked = calls.is_some_and(|calls| calls.iter().any(|call| !call.is_closed()));
        if !is_asked {
            self.calls.remove(key);
        }
        is_asked
    }

    /// Answers the calls that wait for a comparison, and notes for its address whether the password was wrong.
    fn compared(&mut self, key: &Key, from: Asker, is_right: bool, now: Duration) {
        self.answer_all(key, || Ok(is_right));
        let was_guessing = self.guessing.has(from, now);
        if !is_right {
            self.guessing.wrong(from, now);
        }
        if was_guessing {
            let rest = match is_right {
                true => Duration::ZERO,
                false => REST_OF_GUESSING,
            };
            self.guessing_from = now + rest;
        }
    }

    fn answer_all(&mut self, key: &Key, answer: impl Fn() -> Answer) {
        for call in self.calls.remove(key).unwrap_or_default() {
            // The call that asked may have been dropped.
            let _ = call.send(answer());
        }
    }
}

/// Compares passwords with hashes, in a bounded number of threads.
pub(crate) struct Comparisons {
    state: Mutex<State>,
    /// Is notified when something waits that a resting place might take, and when guessing addresses may go on at
    /// another time.
    changed: Condvar,
    places: usize,
}

impl std::fmt::Debug for Comparisons {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Comparisons")
    }
}

impl Comparisons {
    pub(crate) fn new(places: usize) -> Arc<Self> {
        Arc::new(Self {
            state: Mutex::default(),
            changed: Condvar::new(),
            places: places.max(1),
        })
    }

    /// Tells whether the password is that of the hash. `key` stands for user and password.
    ///
    /// # Errors
    /// [`Full`] if too many comparisons or calls wait.
    ///
    /// # Cancel safety
    /// If the future is dropped, the comparison stays in its queue. It is left out when its turn comes, unless other
    /// calls wait for it too.
    pub(crate) async fn compare(
        self: &Arc<Self>,
        from: Asker,
        key: Key,
        password: Password,
        hash: Hashed,
    ) -> Answer {
        let answer = {
            let (sender, answer) = oneshot::channel();
            let mut state = self.state();
            match state.calls.get_mut(&key) {
                Some(calls) if calls.len() >= CALLS_OF_ONE_MAX => return Err(Full),
                Some(calls) => calls.push(sender),
                None => {
                    let comparison = Comparison {
                        key,
                        from: Asker {
                            from: whom(from.from),
                            ..from
                        },
                        password,
                        hash,
                    };
                    state.push(comparison, uptime())?;
                    state.calls.insert(key, vec![sender]);
                    if state.running < self.places {
                        self.start(&mut state);
                    }
                    self.changed.notify_one();
                }
            }
            answer
        };
        // The sender is dropped unused only if the runtime ends.
        answer.await.unwrap_or(Err(Full))
    }

    /// Starts one more place. If no thread can be had, all that waits is refused, unless another place works.
    fn start(self: &Arc<Self>, state: &mut State) {
        let all = Arc::clone(self);
        let place = std::thread::Builder::new().name("gesta-password".into());
        match place.spawn(move || all.work()) {
            Ok(_) => state.running += 1,
            Err(_) if state.running > 0 => {}
            Err(_) => {
                while let Some((_, comparison)) =
                    state.waiting.pop().or_else(|| state.put_off.pop())
                {
                    state.answer_all(&comparison.key, || Err(Full));
                }
            }
        }
    }

    /// Compares what waits until nothing waits any more. Everything else of this machine has a better claim to the
    /// processor: whoever waits for a comparison expects to wait a little.
    fn work(&self) {
        give_way_to_other_threads();
        while let Some(comparison) = self.next() {
            let begun = uptime();
            let is_right = comparison.hash.is_of(&comparison.password.0);
            let now = uptime();
            let Comparison { key, from, .. } = comparison;
            self.state().compared(&key, from, is_right, now);
            self.changed.notify_all();
            if !is_right {
                std::thread::sleep(now.saturating_sub(begun));
            }
        }
    }

    /// Waits for the next comparison; `None` ends the place.
    fn next(&self) -> Option<Comparison> {
        let mut state = self.state();
        loop {
            match state.take(uptime()) {
                Next::Compare(comparison) => return Some(comparison),
                Next::Rest(rest) => {
                    let waited = self.changed.wait_timeout(state, rest);
                    state = waited.unwrap_or_else(PoisonError::into_inner).0;
                }
                Next::End => {
                    state.running -= 1;
                    return None;
                }
            }
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Lowers the priority of this thread, if that can be done.
fn give_way_to_other_threads() {
    // Elsewhere this would be the priority of the whole process.
    #[cfg(target_os = "linux")]
    if let Err(error) = rustix::process::setpriority_process(None, 10) {
        tracing::debug!(%error, "the priority of a thread that compares passwords stays");
    }
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;
    use std::task::Poll;

    use futures::StreamExt as _;

    use super::*;

    fn address(n: u32) -> Asker {
        Asker {
            from: IpAddr::V4(n.into()),
            names: 1,
        }
    }

    #[tokio::test]
    async fn the_same_question_is_asked_once() {
        let comparisons = Comparisons::new(1);
        let hash = Hashed::new("correct horse").expect("hashed");
        let ask = |key: u8, password: &str| {
            comparisons.compare(
                address(1),
                [key; 32],
                Password(password.into()),
                hash.clone(),
            )
        };
        let right = futures::future::join_all((0..100).map(|_| ask(1, "correct horse")));
        let (right, wrong) = futures::join!(right, ask(2, "wrong horse"));
        assert!(right.iter().all(|answer| *answer == Ok(true)), "{right:?}");
        assert_eq!(wrong, Ok(false));
        assert!(comparisons.state().calls.is_empty());
    }

    /// Goal: what nobody waits for any more is not compared.
    #[tokio::test]
    async fn what_was_given_up_costs_nothing() {
        let comparisons = Comparisons::new(1);
        let hash = Hashed::new("correct horse").expect("hashed");
        let ask = |key: u8| {
            comparisons.compare(
                address(1),
                [key; 32],
                Password("correct horse".into()),
                hash.clone(),
            )
        };
        comparisons.state().running = 1;
        let (mut first, mut second) = (Box::pin(ask(1)), Box::pin(ask(2)));
        assert!(
            futures::poll!(&mut first).is_pending() && futures::poll!(&mut second).is_pending()
        );
        drop(first);
        let next = comparisons.next().expect("the second");
        assert_eq!(next.key, [2; 32]);
        assert_eq!(comparisons.state().calls.len(), 1);
        assert!(comparisons.next().is_none());
        assert_eq!(comparisons.state().running, 0);
    }

    /// A comparison of an address that somebody waits for, as far as the answer is kept.
    fn asked(state: &mut State, from: Asker, n: u8) -> oneshot::Receiver<Answer> {
        let (sender, answer) = oneshot::channel();
        let comparison = Comparison {
            key: [n; 32],
            from,
            password: Password(String::new()),
            hash: Hashed::of_nobody(),
        };
        state.calls.insert([n; 32], vec![sender]);
        assert_eq!(state.push(comparison, Duration::ZERO), Ok(()));
        answer
    }

    fn take(state: &mut State, now: Duration) -> Option<u8> {
        match state.take(now) {
            Next::Compare(comparison) => Some(comparison.key[0]),
            Next::Rest(_) | Next::End => None,
        }
    }

    /// Goal: who guesses waits until nobody else does and is served once a second, also with what waited already.
    #[test]
    fn guessers_come_last_and_seldom() {
        let mut state = State::default();
        let (guesser, other) = (address(1), address(2));
        let _waiting = [asked(&mut state, guesser, 1), asked(&mut state, guesser, 2)];
        for _ in 0..crate::guessing::WRONG_MAX {
            state.compared(&[0; 32], guesser, false, Duration::ZERO);
        }
        let _waiting_too = [asked(&mut state, guesser, 3), asked(&mut state, other, 4)];
        assert_eq!(take(&mut state, Duration::ZERO), Some(4));
        assert_eq!(take(&mut state, Duration::ZERO), Some(3));
        let soon = Duration::from_millis(20);
        assert_eq!(take(&mut state, soon), None, "one of theirs at a time");
        state.compared(&[3; 32], guesser, false, soon);
        let Next::Rest(rest) = state.take(soon) else {
            panic!("they rest after a wrong one");
        };
        assert_eq!(rest, REST_OF_GUESSING);
        let _others_go_on = asked(&mut state, other, 5);
        assert_eq!(take(&mut state, soon), Some(5));
        assert_eq!(take(&mut state, soon + rest), Some(1));
        state.compared(&[1; 32], guesser, true, soon + rest);
        assert_eq!(take(&mut state, soon + rest), Some(2), "it was right");
        state.compared(&[2; 32], guesser, true, soon + rest);
        assert!(matches!(state.take(soon + rest), Next::End));
    }

    /// Behind a proxy all have one address, and whoever guessed there kept all others of it from their first login.
    /// Goal: only those wait whose names are of the class that is guessed at.
    #[test]
    fn who_guesses_some_names_keeps_no_others_waiting() {
        let mut state = State::default();
        let guesser = address(1);
        let other = Asker {
            names: 2,
            ..guesser
        };
        for _ in 0..crate::guessing::WRONG_MAX {
            state.compared(&[0; 32], guesser, false, Duration::ZERO);
        }
        let waiting = u8::try_from(WAITING.of_one).expect("few");
        let _waiting: Vec<_> = (1..=waiting)
            .map(|n| asked(&mut state, guesser, n))
            .collect();
        let _other = asked(&mut state, other, 99);
        assert_eq!(take(&mut state, Duration::ZERO), Some(99));
    }

    /// Goal: a comparison of a guessing address that never ends, because its thread died, stops the others for a while
    /// only.
    #[test]
    fn a_comparison_that_is_lost_stops_guessing_addresses_for_a_while() {
        let mut state = State::default();
        for _ in 0..crate::guessing::WRONG_MAX {
            state.compared(&[0; 32], address(1), false, Duration::ZERO);
        }
        let _answers = [
            asked(&mut state, address(1), 1),
            asked(&mut state, address(1), 2),
        ];
        assert_eq!(take(&mut state, Duration::ZERO), Some(1));
        assert_eq!(take(&mut state, COMPARISON_MAX / 2), None);
        assert_eq!(take(&mut state, COMPARISON_MAX), Some(2));
    }

    /// Goal: who floods the comparisons from one network is refused there, and nobody else waits because of it.
    #[tokio::test]
    async fn a_flood_from_one_network_is_bounded() {
        let comparisons = Comparisons::new(1);
        // No place takes anything: the test does.
        comparisons.state().running = 1;
        let hash = Hashed::new("correct horse").expect("hashed");
        let from = |n: u32| Asker {
            from: format!("2001:db8::{n:x}").parse().expect("an address"),
            names: 1,
        };
        let mut flood: futures::stream::FuturesUnordered<_> = (0..200u32)
            .map(|n| {
                let mut key = [9; 32];
                key[..4].copy_from_slice(&n.to_be_bytes());
                comparisons.compare(from(n), key, Password("wrong horse".into()), hash.clone())
            })
            .collect();
        let mut refused = 0;
        while let Poll::Ready(Some(answer)) = futures::poll!(flood.next()) {
            refused += usize::from(answer == Err(Full));
        }
        assert_eq!(refused, 200 - WAITING.of_one);
        let right = Password("correct horse".into());
        let mut answer = Box::pin(comparisons.compare(address(7), [1; 32], right, hash.clone()));
        assert!(futures::poll!(&mut answer).is_pending());
        let first = [(); 2].map(|()| comparisons.next().expect("they wait"));
        let mut first = first.into_iter();
        let of_other = first.find(|comparison| comparison.key == [1; 32]);
        let of_other = of_other.expect("at most one was before it");
        let is_right = of_other.hash.is_of(&of_other.password.0);
        comparisons
            .state()
            .compared(&of_other.key, of_other.from, is_right, uptime());
        assert_eq!(answer.await, Ok(true));
        assert_eq!(flood.len(), WAITING.of_one, "they wait still");
    }
}
