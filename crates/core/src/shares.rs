//! Fair shares: what all callers use together, and how much of it one caller may hold.
//!
//! Why: a bound on the sum alone lets one caller take everything, and a fixed bound on each caller either is too small
//! for a caller who is alone, or lets a few callers together take everything. So the share moves: **a caller may hold
//! as much as is left free.** One greedy caller gets half of it; two who take and give back by turns get a third each
//! (Choudhury and Hahne, *Dynamic queue length thresholds for shared-memory packet switches*, 1998).
//! The limit of this: nothing is taken back from who holds it. Of callers who come one after the other and keep what
//! they take, each gets half of what the ones before have left, so that a dozen of them leave next to nothing. It is a
//! bound on one caller and on few, and none on many who work together.
//! Where a caller waits instead of being refused, those who wait take turns by caller, so that a caller who asks a
//! thousand times waits behind one request of each other caller, and nobody waits behind the thousand.
//! Invariants: the sum of what is held is never above the maximum; a caller holds more than [`Shares::least`] only if
//! at least as much was free after it was taken; who is refused takes nothing.
//! Not here: who a caller is, and what is held.

use std::cell::RefCell;
use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::future::poll_fn;
use std::net::IpAddr;
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use futures::channel::oneshot;

use crate::newcomers::whom;

/// A caller, as shares count it.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum Holder {
    /// A user, with all tokens of the user, from whatever address.
    User(Arc<str>),
    /// An address, of callers of whom nothing else is known.
    Address(IpAddr),
    /// All callers of a store where nobody has to prove who they are, and the process itself. Only the bound on the sum
    /// holds for them.
    Everybody,
}

impl Holder {
    /// Returns the holder for callers from this address: see [`whom`].
    #[must_use]
    pub fn at(address: IpAddr) -> Self {
        Self::Address(whom(address))
    }
}

thread_local! {
    /// For whom this thread works at this moment.
    static CURRENT: RefCell<Holder> = const { RefCell::new(Holder::Everybody) };
}

/// Returns for whom this thread works at this moment. So what lies deep below a call, as the connections of a database,
/// can be shared by caller without each request naming its caller on the way.
#[must_use]
pub fn current() -> Holder {
    CURRENT.with_borrow(Clone::clone)
}

/// Does something for a caller.
pub fn acting<T>(holder: &Holder, work: impl FnOnce() -> T) -> T {
    /// Restores whom the thread worked for before, also if the work panics.
    struct Before(Option<Holder>);
    impl Drop for Before {
        fn drop(&mut self) {
            if let Some(before) = self.0.take() {
                CURRENT.set(before);
            }
        }
    }
    let _before = Before(Some(CURRENT.replace(holder.clone())));
    work()
}

/// Waits for work for a caller. What it spawns works for nobody, unless it is told to.
///
/// # Cancel safety
/// That of the work.
pub async fn act<T>(holder: &Holder, work: impl Future<Output = T>) -> T {
    let mut work = pin!(work);
    poll_fn(|context| acting(holder, || work.as_mut().poll(context))).await
}

impl fmt::Display for Holder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::User(name) => write!(f, "user {name:?}"),
            Self::Address(address) => write!(f, "address {address}"),
            Self::Everybody => f.write_str("everybody"),
        }
    }
}

/// Something that all callers use together.
#[derive(Debug)]
pub struct Shares {
    max: usize,
    leaves: Leaves,
    state: Mutex<State>,
}

/// What one caller must leave to others.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Leaves {
    /// As much as the caller holds.
    AsMuch,
    /// One place.
    One,
}

/// What one caller holds of it. Dropping the share gives it back.
#[derive(Debug)]
pub struct Share {
    of: Arc<Shares>,
    holder: Holder,
    held: usize,
    /// The share does not grow while all shares together would hold more than this.
    max: usize,
}

/// The reason why nothing was taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TooMuch {
    /// All callers together would hold more than the maximum.
    InSum,
    /// The caller would hold more than is left free.
    OfOne,
}

/// What is held now, and what happened so far.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Load {
    /// The maximum of the sum.
    pub max: usize,
    /// What all callers hold together.
    pub taken: usize,
    /// What the caller holds who holds most.
    pub largest: usize,
    /// Number of callers who hold something.
    pub holders: usize,
    /// Number of requests that wait for a turn.
    pub waiting: usize,
    /// How often somebody was refused because all callers together held too much.
    pub refused_in_sum: u64,
    /// How often somebody was refused, or had to wait, because they held too much themselves.
    pub refused_of_one: u64,
}

#[derive(Debug, Default)]
struct State {
    taken: usize,
    held: HashMap<Holder, usize>,
    /// Those who wait for a turn, by caller, and the callers in the order of their turns.
    waiting: HashMap<Holder, VecDeque<(usize, oneshot::Sender<Share>)>>,
    turns: VecDeque<Holder>,
    refused_in_sum: u64,
    refused_of_one: u64,
}

impl Shares {
    /// Makes shares of so much in sum; at least 1.
    #[must_use]
    pub fn new(max: usize) -> Arc<Self> {
        Self::leaving(max, Leaves::AsMuch)
    }

    /// Makes shares of a few places that are held for a moment only, as connections to a database: callers take turns,
    /// and a caller who already has a place leaves one free, so that whoever comes next need not wait for theirs.
    #[must_use]
    pub fn of_few(max: usize) -> Arc<Self> {
        Self::leaving(max, Leaves::One)
    }

    fn leaving(max: usize, leaves: Leaves) -> Arc<Self> {
        Arc::new(Self {
            max: max.max(1),
            leaves,
            state: Mutex::default(),
        })
    }

    /// Returns how much a caller may hold however little is left free, as long as there is room for it: a thousandth,
    /// and at least 1.
    #[must_use]
    pub fn least(&self) -> usize {
        (self.max / 1_024).max(1)
    }

    /// Returns the maximum of the sum.
    #[must_use]
    pub fn max(&self) -> usize {
        self.max
    }

    /// Takes so much for a caller, or nothing.
    ///
    /// # Errors
    /// [`TooMuch`], if nothing was taken.
    pub fn take(self: &Arc<Self>, holder: &Holder, amount: usize) -> Result<Share, TooMuch> {
        let mut share = self.empty(holder.clone(), self.max);
        share.grow(amount)?;
        Ok(share)
    }

    /// Makes a share that holds nothing yet. It grows as long as all shares together hold at most `max`.
    #[must_use]
    pub fn empty(self: &Arc<Self>, holder: Holder, max: usize) -> Share {
        Share {
            of: Arc::clone(self),
            holder,
            held: 0,
            max: max.min(self.max),
        }
    }

    /// Takes 1 for a caller, as [`Shares::turn_for`] does.
    ///
    /// # Cancel safety
    /// Dropping the future gives up the turn.
    pub async fn turn(self: &Arc<Self>, holder: &Holder) -> Share {
        self.turn_for(holder, 1).await
    }

    /// Takes so much for a caller, and waits for it if there is too little left for this caller. Callers take turns,
    /// and what one of them asks for comes in the order in which they asked. Of more than half of all, half is taken.
    ///
    /// # Cancel safety
    /// Dropping the future gives up the turn.
    pub async fn turn_for(self: &Arc<Self>, holder: &Holder, amount: usize) -> Share {
        let amount = amount.clamp(1, (self.max / 2).max(1));
        loop {
            match self.turn_or_line(holder, amount) {
                Ok(share) => return share,
                // The sender is dropped only after it has sent, or when nobody waits any more.
                Err(line) => {
                    if let Ok(share) = line.await {
                        return share;
                    }
                }
            }
        }
    }

    /// Takes so much for a caller, or lets the caller wait for it.
    fn turn_or_line(
        self: &Arc<Self>,
        holder: &Holder,
        amount: usize,
    ) -> Result<Share, oneshot::Receiver<Share>> {
        let mut state = self.lock();
        let may = state.may_add(self, holder, amount, self.max);
        // Whoever waits of the same caller came earlier.
        if may.is_ok() && !state.waiting.contains_key(holder) {
            state.add(holder, amount);
            drop(state);
            return Ok(self.given(holder.clone(), amount));
        }
        state.refused_of_one += u64::from(may == Err(TooMuch::OfOne));
        let (sender, receiver) = oneshot::channel();
        if !state.waiting.contains_key(holder) {
            state.turns.push_back(holder.clone());
        }
        state
            .waiting
            .entry(holder.clone())
            .or_default()
            .push_back((amount, sender));
        Err(receiver)
    }

    /// Returns what is held now, and what happened so far.
    #[must_use]
    pub fn load(&self) -> Load {
        let state = self.lock();
        Load {
            max: self.max,
            taken: state.taken,
            largest: state.held.values().copied().max().unwrap_or(0),
            holders: state.held.len(),
            waiting: state.waiting.values().map(VecDeque::len).sum(),
            refused_in_sum: state.refused_in_sum,
            refused_of_one: state.refused_of_one,
        }
    }

    /// Returns what all callers hold together.
    #[must_use]
    pub fn taken(&self) -> usize {
        self.lock().taken
    }

    /// Makes the share of so much that was counted already.
    fn given(self: &Arc<Self>, holder: Holder, amount: usize) -> Share {
        let mut share = self.empty(holder, self.max);
        share.held = amount;
        share
    }

    /// Gives turns to those who wait, as long as there is something left for them.
    fn give_turns(self: &Arc<Self>) {
        let mut given = Vec::new();
        let mut state = self.lock();
        let mut passed = 0;
        while passed < state.turns.len() && state.taken < self.max {
            let Some(holder) = state.turns.pop_front() else {
                break;
            };
            let mut line = state.waiting.remove(&holder).unwrap_or_default();
            while line.front().is_some_and(|(_, sender)| sender.is_canceled()) {
                line.pop_front();
            }
            let Some((amount, sender)) = line.pop_front() else {
                continue;
            };
            if state.may_add(self, &holder, amount, self.max).is_ok() {
                state.add(&holder, amount);
                given.push((sender, self.given(holder.clone(), amount)));
                passed = 0;
            } else {
                line.push_front((amount, sender));
                passed += 1;
            }
            if !line.is_empty() {
                state.waiting.insert(holder.clone(), line);
                state.turns.push_back(holder);
            }
        }
        drop(state);
        // Without the lock: who was given up meanwhile gives it back at once.
        for (sender, share) in given {
            let _ = sender.send(share);
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn may_add(
        &self,
        of: &Shares,
        holder: &Holder,
        amount: usize,
        max: usize,
    ) -> Result<(), TooMuch> {
        let taken = self.taken.saturating_add(amount);
        let left = max.checked_sub(taken).ok_or(TooMuch::InSum)?;
        let own = self.held.get(holder).map_or(amount, |held| held + amount);
        let leaves_enough = match (holder, of.leaves) {
            (Holder::Everybody, _) => true,
            (_, Leaves::AsMuch) => own <= left,
            (_, Leaves::One) => left >= 1,
        };
        match leaves_enough || own <= of.least() {
            true => Ok(()),
            false => Err(TooMuch::OfOne),
        }
    }

    fn add(&mut self, holder: &Holder, amount: usize) {
        self.taken += amount;
        match self.held.get_mut(holder) {
            Some(held) => *held += amount,
            None => {
                self.held.insert(holder.clone(), amount);
            }
        }
    }

    fn remove(&mut self, holder: &Holder, amount: usize) {
        self.taken -= amount;
        if let Some(held) = self.held.get_mut(holder) {
            *held -= amount;
            if *held == 0 {
                self.held.remove(holder);
            }
        }
    }
}

impl Share {
    /// Returns how much the share holds.
    #[must_use]
    pub fn held(&self) -> usize {
        self.held
    }

    /// Returns who holds it.
    #[must_use]
    pub fn holder(&self) -> &Holder {
        &self.holder
    }

    /// Returns how much all shares together may hold for this one to grow.
    #[must_use]
    pub fn max(&self) -> usize {
        self.max
    }

    /// Takes so much more, or nothing.
    ///
    /// # Errors
    /// [`TooMuch`]; the share then holds what it held.
    pub fn grow(&mut self, amount: usize) -> Result<(), TooMuch> {
        if amount == 0 {
            return Ok(());
        }
        let mut state = self.of.lock();
        match state.may_add(&self.of, &self.holder, amount, self.max) {
            Ok(()) => state.add(&self.holder, amount),
            Err(refused) => {
                match refused {
                    TooMuch::InSum => state.refused_in_sum += 1,
                    TooMuch::OfOne => state.refused_of_one += 1,
                }
                return Err(refused);
            }
        }
        self.held += amount;
        Ok(())
    }

    /// Gives back what the share holds above this amount.
    pub fn shrink_to(&mut self, amount: usize) {
        let less = self.held.saturating_sub(amount);
        if less == 0 {
            return;
        }
        self.held -= less;
        let mut state = self.of.lock();
        state.remove(&self.holder, less);
        let somebody_waits = !state.turns.is_empty();
        drop(state);
        if somebody_waits {
            self.of.give_turns();
        }
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        self.shrink_to(0);
    }
}

#[cfg(test)]
mod tests;
