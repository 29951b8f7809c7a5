//! The lane in which passwords are compared: few at a time, a turn for each address.
//!
//! Why: a comparison takes some 20 ms of a processor by design. Who sends thousands of wrong passwords a second must take
//! neither the threads that serve requests, nor the processor from them, nor the turns of others.
//! Invariants: at most `places` comparisons run, each on a thread that gives way to those of requests; after a wrong
//! password a place rests for as long as it worked, so that guessing takes at most half of its processor; an address has at most [`WAITING_OF_ONE_MAX`] waiting and all together
//! at most [`WAITING_MAX`]; who has fewest waiting is not refused for those who have most; the same password of the same
//! user is compared once, however many wait for it.
//! Not here: which passwords are known already.

use std::collections::{HashMap, VecDeque};
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use gesta_core::newcomers::whom;
use gesta_core::uptime;
use tokio::sync::oneshot;

use crate::password::{Hashed, Password};

/// Most comparisons that wait.
const WAITING_MAX: usize = 1_024;
/// Most comparisons of one address that wait.
const WAITING_OF_ONE_MAX: usize = 16;
/// Most calls that wait for one comparison.
const CALLS_OF_ONE_MAX: usize = 4_096;

/// How far a place stands behind other threads (0 to 19): under full load it gets a tenth of what one of them gets.
#[cfg(target_os = "linux")]
const NICENESS: i32 = 10;

/// What is compared: the same key, the same question.
pub(crate) type Key = [u8; 32];

/// The queue is full for this address.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Full;

/// Who waits, by address.
#[derive(Debug)]
struct Waiting<T> {
    /// Of each address that has some.
    of: HashMap<IpAddr, VecDeque<T>>,
    /// The addresses in the order of their turns.
    turns: VecDeque<IpAddr>,
    count: usize,
}

impl<T> Default for Waiting<T> {
    fn default() -> Self {
        Self {
            of: HashMap::new(),
            turns: VecDeque::new(),
            count: 0,
        }
    }
}

impl<T> Waiting<T> {
    /// Takes one more. If all together are too many, the last one of the address with most gives way and is handed back.
    fn push(&mut self, from: IpAddr, item: T) -> Result<Option<T>, Full> {
        let own = self.of.get(&from).map_or(0, VecDeque::len);
        if own >= WAITING_OF_ONE_MAX {
            return Err(Full);
        }
        let mut displaced = None;
        if self.count >= WAITING_MAX {
            let most = self.of.iter().max_by_key(|(_, items)| items.len());
            let (most, len) = most
                .map(|(address, items)| (*address, items.len()))
                .ok_or(Full)?;
            if len <= own + 1 {
                return Err(Full);
            }
            displaced = self.of.get_mut(&most).and_then(VecDeque::pop_back);
            self.count -= 1;
        }
        let items = self.of.entry(from).or_default();
        if items.is_empty() {
            self.turns.push_back(from);
        }
        items.push_back(item);
        self.count += 1;
        Ok(displaced)
    }

    /// The next one, of the address whose turn it is.
    fn pop(&mut self) -> Option<T> {
        let address = self.turns.pop_front()?;
        let items = self.of.get_mut(&address)?;
        let item = items.pop_front();
        if items.is_empty() {
            self.of.remove(&address);
        } else {
            self.turns.push_back(address);
        }
        self.count -= usize::from(item.is_some());
        item
    }
}

struct Comparison {
    key: Key,
    password: Password,
    hash: Hashed,
}

type Answer = Result<bool, Full>;

#[derive(Default)]
struct State {
    waiting: Waiting<Comparison>,
    /// Who waits for the outcome of each comparison, waiting or running.
    calls: HashMap<Key, Vec<oneshot::Sender<Answer>>>,
    running: usize,
}

/// Compares passwords with hashes.
pub(crate) struct Lane {
    state: Mutex<State>,
    places: usize,
}

impl std::fmt::Debug for Lane {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Lane")
    }
}

impl Lane {
    pub(crate) fn new(places: usize) -> Arc<Self> {
        Arc::new(Self {
            state: Mutex::default(),
            places: places.max(1),
        })
    }

    /// Whether the password is that of the hash. `key` stands for user and password.
    ///
    /// # Cancel safety
    /// Dropping the future leaves the comparison in its place; it is left out when its turn comes, unless others wait for
    /// it too.
    pub(crate) async fn compare(
        self: &Arc<Self>,
        from: IpAddr,
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
                        password,
                        hash,
                    };
                    let displaced = state.waiting.push(whom(from), comparison)?;
                    state.calls.insert(key, vec![sender]);
                    if let Some(displaced) = displaced {
                        answer_all(&mut state, &displaced.key, || Err(Full));
                    }
                    if state.running < self.places {
                        self.start(&mut state);
                    }
                }
            }
            answer
        };
        // Its sender is dropped unused only if the runtime ends.
        answer.await.unwrap_or(Err(Full))
    }

    /// Starts one more place. Without a thread for it, what waits is refused, unless another place works.
    fn start(self: &Arc<Self>, state: &mut State) {
        let lane = Arc::clone(self);
        let place = std::thread::Builder::new().name("gesta-password".into());
        match place.spawn(move || work(&lane)) {
            Ok(_) => state.running += 1,
            Err(_) if state.running > 0 => {}
            Err(_) => {
                while let Some(comparison) = state.waiting.pop() {
                    answer_all(state, &comparison.key, || Err(Full));
                }
            }
        }
    }

    /// What is compared next; `None` ends the place. Nobody waits any more for what was given up by all who asked.
    fn next(&self) -> Option<Comparison> {
        let mut state = self.state();
        while let Some(comparison) = state.waiting.pop() {
            let calls = state.calls.get(&comparison.key);
            if calls.is_some_and(|calls| calls.iter().any(|call| !call.is_closed())) {
                return Some(comparison);
            }
            state.calls.remove(&comparison.key);
        }
        state.running -= 1;
        None
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn answer_all(state: &mut State, key: &Key, answer: impl Fn() -> Answer) {
    for call in state.calls.remove(key).unwrap_or_default() {
        // Whoever asked may have gone.
        let _ = call.send(answer());
    }
}

/// Compares what waits until nothing does.
fn work(lane: &Lane) {
    give_way();
    loop {
        let Some(comparison) = lane.next() else {
            return;
        };
        let begun = uptime();
        let is_right = comparison.hash.is_of(&comparison.password.0);
        answer_all(&mut lane.state(), &comparison.key, || Ok(is_right));
        if !is_right {
            std::thread::sleep(uptime().saturating_sub(begun));
        }
    }
}

/// Makes this thread run a little when others want the processor, and as it likes when nobody does: a comparison computes
/// for tens of milliseconds, for which requests would wait.
fn give_way() {
    // Elsewhere the call is about the whole process.
    #[cfg(target_os = "linux")]
    if let Err(error) = rustix::process::nice(NICENESS) {
        tracing::debug!(%error, "passwords are compared with the priority of requests");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(n: u32) -> IpAddr {
        IpAddr::V4(n.into())
    }

    #[test]
    fn addresses_take_turns() {
        let mut waiting = Waiting::default();
        for n in 0..3 {
            assert_eq!(waiting.push(address(1), (1, n)), Ok(None));
        }
        assert_eq!(waiting.push(address(2), (2, 0)), Ok(None));
        assert_eq!(waiting.push(address(3), (3, 0)), Ok(None));
        let order: Vec<_> = std::iter::from_fn(|| waiting.pop()).collect();
        assert_eq!(order, [(1, 0), (2, 0), (3, 0), (1, 1), (1, 2)]);
        assert_eq!(waiting.count, 0);
        assert!(waiting.of.is_empty() && waiting.turns.is_empty());
    }

    #[test]
    fn an_address_that_has_many_gives_way_to_one_that_has_few() {
        let mut waiting = Waiting::default();
        for n in 0..WAITING_MAX {
            let from = address(u32::try_from(n / WAITING_OF_ONE_MAX).expect("few"));
            assert_eq!(waiting.push(from, n), Ok(None));
        }
        assert_eq!(waiting.push(address(0), 0), Err(Full), "it has enough");
        let displaced = waiting.push(address(9_999), 0).expect("taken");
        assert!(displaced.is_some());
        assert_eq!(waiting.count, WAITING_MAX);
        let mut popped = 0;
        while waiting.pop().is_some() {
            popped += 1;
        }
        assert_eq!(popped, WAITING_MAX);
    }

    #[test]
    fn addresses_that_share_the_queue_evenly_displace_nobody() {
        let mut waiting = Waiting::default();
        for n in 0..u32::try_from(WAITING_MAX).expect("few") {
            assert_eq!(waiting.push(address(n), n), Ok(None));
        }
        assert_eq!(waiting.push(address(u32::MAX), 0), Err(Full));
    }

    #[tokio::test]
    async fn the_same_question_is_asked_once() {
        let lane = Lane::new(1);
        let hash = Hashed::new("correct horse").expect("hashed");
        let ask = |key: u8, password: &str| {
            lane.compare(
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
        assert!(lane.state().calls.is_empty());
    }

    /// Goal: what nobody waits for any more is not compared.
    #[tokio::test]
    async fn what_was_given_up_costs_nothing() {
        let lane = Lane::new(1);
        let hash = Hashed::new("correct horse").expect("hashed");
        let ask = |key: u8| {
            lane.compare(
                address(1),
                [key; 32],
                Password("correct horse".into()),
                hash.clone(),
            )
        };
        lane.state().running = 1;
        let (mut first, mut second) = (Box::pin(ask(1)), Box::pin(ask(2)));
        assert!(
            futures::poll!(&mut first).is_pending() && futures::poll!(&mut second).is_pending()
        );
        drop(first);
        let next = lane.next().expect("the second");
        assert_eq!(next.key, [2; 32]);
        assert_eq!(lane.state().calls.len(), 1);
        assert!(lane.next().is_none());
        assert_eq!(lane.state().running, 0);
    }

    /// Goal: who floods the lane from one network is refused there, and waits behind nobody else's turn.
    #[tokio::test]
    async fn a_flood_from_one_network_is_bounded() {
        let lane = Lane::new(1);
        let hash = Hashed::new("correct horse").expect("hashed");
        let from = |n: u32| format!("2001:db8::{n:x}").parse().expect("an address");
        let flood = futures::future::join_all((0..200u32).map(|n| {
            let mut key = [9; 32];
            key[..4].copy_from_slice(&n.to_be_bytes());
            lane.compare(from(n), key, Password("wrong horse".into()), hash.clone())
        }));
        let other = async {
            let asked = lane.compare(
                address(7),
                [1; 32],
                Password("correct horse".into()),
                hash.clone(),
            );
            let answer = asked.await;
            // Of the flood at most one was before it, and one may run.
            (answer, lane.state().waiting.count)
        };
        let (flood, (answer, left)) = futures::join!(flood, other);
        assert_eq!(answer, Ok(true));
        assert!(left >= WAITING_OF_ONE_MAX - 3, "{left}");
        let refused = flood.iter().filter(|answer| **answer == Err(Full)).count();
        assert!(refused >= 200 - WAITING_OF_ONE_MAX - 1, "{refused}");
    }
}
