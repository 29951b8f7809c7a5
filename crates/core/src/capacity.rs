//! Capacity: a bound on what may be held at once. Holders take amounts of it and give them back.
//!
//! Why a lock and not a counter for each amount: a request that is refused must not hold anything, not even for a
//! moment, or requests that fit are refused because of it. Only arithmetic is done under the lock.

use std::future::poll_fn;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Poll, Waker};

/// A bound on `N` amounts that may be held at once, such as events and bytes.
#[derive(Debug)]
pub struct Capacity<const N: usize = 1> {
    max: [usize; N],
    state: Mutex<State<N>>,
}

#[derive(Debug)]
struct State<const N: usize> {
    taken: [usize; N],
    is_closed: bool,
    /// Tasks that wait until nothing is taken.
    waiting: Vec<Waker>,
}

/// The amounts that one holder has taken. Dropping the permit gives them back.
#[derive(Debug)]
pub struct Permit<const N: usize = 1> {
    capacity: Arc<Capacity<N>>,
    held: [usize; N],
    /// The permit does not grow while all permits together would hold more than this.
    max: [usize; N],
}

/// Reason why nothing was taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Refusal {
    /// The sum would be more than the maximum.
    Full {
        /// Index of the amount that does not fit, from 0.
        of: usize,
        /// Sum of this amount that was taken already.
        taken: usize,
    },
    /// The capacity is closed: it gives nothing any more.
    Closed,
}

impl<const N: usize> Capacity<N> {
    /// Makes a capacity with these maxima.
    #[must_use]
    pub fn new(max: [usize; N]) -> Arc<Self> {
        let state = State {
            taken: [0; N],
            is_closed: false,
            waiting: Vec::new(),
        };
        Arc::new(Self {
            max,
            state: Mutex::new(state),
        })
    }

    /// Takes these amounts, all or none.
    ///
    /// # Errors
    /// The [`Refusal`], if nothing was taken.
    pub fn take(self: &Arc<Self>, amounts: [usize; N]) -> Result<Permit<N>, Refusal> {
        self.take_within(|_| self.max, amounts)
    }

    /// Takes these amounts, or any amounts while nothing is taken. So amounts above the maximum can be held, but only
    /// alone.
    ///
    /// # Errors
    /// The [`Refusal`], if nothing was taken.
    pub fn take_alone(self: &Arc<Self>, amounts: [usize; N]) -> Result<Permit<N>, Refusal> {
        let max = |taken: [usize; N]| match taken {
            taken if taken == [0; N] => [usize::MAX; N],
            _ => self.max,
        };
        self.take_within(max, amounts)
    }

    fn take_within(
        self: &Arc<Self>,
        max: impl FnOnce([usize; N]) -> [usize; N],
        amounts: [usize; N],
    ) -> Result<Permit<N>, Refusal> {
        let mut state = self.lock();
        if state.is_closed {
            return Err(Refusal::Closed);
        }
        let max = max(state.taken);
        state.add(amounts, max)?;
        drop(state);
        let mut permit = self.empty_permit(self.max);
        permit.held = amounts;
        Ok(permit)
    }

    /// Makes a permit that holds nothing yet. It grows as long as all permits together hold at most `max`.
    #[must_use]
    pub fn empty_permit(self: &Arc<Self>, max: [usize; N]) -> Permit<N> {
        Permit {
            capacity: Arc::clone(self),
            held: [0; N],
            max,
        }
    }

    /// Returns the sums that are taken now.
    #[must_use]
    pub fn taken(&self) -> [usize; N] {
        self.lock().taken
    }

    /// Closes the capacity: nothing can be taken any more with [`take`](Self::take) and
    /// [`take_alone`](Self::take_alone).
    pub fn close(&self) {
        self.lock().is_closed = true;
    }

    /// Waits until nothing is taken.
    ///
    /// # Cancel safety
    /// Dropping the future changes nothing.
    pub async fn emptied(&self) {
        poll_fn(|context| {
            let mut state = self.lock();
            if state.taken == [0; N] {
                return Poll::Ready(());
            }
            if !state
                .waiting
                .iter()
                .any(|waker| waker.will_wake(context.waker()))
            {
                state.waiting.push(context.waker().clone());
            }
            Poll::Pending
        })
        .await;
    }

    fn lock(&self) -> MutexGuard<'_, State<N>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<const N: usize> State<N> {
    /// Adds all of the amounts or none.
    fn add(&mut self, amounts: [usize; N], max: [usize; N]) -> Result<(), Refusal> {
        let mut sums = self.taken;
        for (of, sum) in sums.iter_mut().enumerate() {
            let taken = *sum;
            *sum = taken.saturating_add(amounts[of]);
            if *sum > max[of] {
                return Err(Refusal::Full { of, taken });
            }
        }
        self.taken = sums;
        Ok(())
    }
}

impl<const N: usize> Permit<N> {
    /// Returns the amounts that the permit holds.
    #[must_use]
    pub fn held(&self) -> [usize; N] {
        self.held
    }

    /// Takes further amounts, all or none.
    ///
    /// # Errors
    /// [`Refusal::Full`]; the permit then holds what it held.
    pub fn grow(&mut self, amounts: [usize; N]) -> Result<(), Refusal> {
        self.capacity.lock().add(amounts, self.max)?;
        for (held, amount) in self.held.iter_mut().zip(amounts) {
            *held += amount;
        }
        Ok(())
    }

    /// Gives back what the permit holds above these amounts.
    pub fn shrink_to(&mut self, amounts: [usize; N]) {
        let mut state = self.capacity.lock();
        for (of, held) in self.held.iter_mut().enumerate() {
            let less = held.saturating_sub(amounts[of]);
            state.taken[of] -= less;
            *held -= less;
        }
        if state.taken == [0; N] && !state.waiting.is_empty() {
            let waiting = std::mem::take(&mut state.waiting);
            drop(state);
            waiting.into_iter().for_each(Waker::wake);
        }
    }
}

impl<const N: usize> Drop for Permit<N> {
    fn drop(&mut self) {
        self.shrink_to([0; N]);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::*;

    #[test]
    fn refuses_beyond_the_maximum_and_takes_back() {
        let capacity = Capacity::new([10, 100]);
        let first = capacity.take([6, 10]).expect("fits");
        let full = |of, taken| Refusal::Full { of, taken };
        assert_eq!(capacity.take([5, 10]).expect_err("too many"), full(0, 6));
        assert_eq!(capacity.take([1, 95]).expect_err("too many"), full(1, 10));
        assert_eq!(capacity.taken(), [6, 10]);
        capacity.take([4, 90]).expect("exactly the rest");
        assert!(capacity.take_alone([1_000, 1]).is_err(), "not alone");
        drop(first);
        let huge = capacity.take_alone([1_000, 1_000]).expect("alone");
        assert!(capacity.take([1, 1]).is_err());
        drop(huge);
        assert_eq!(capacity.taken(), [0, 0]);
    }

    #[test]
    fn a_permit_grows_up_to_its_own_maximum() {
        let capacity = Capacity::new([10]);
        let mut small = capacity.empty_permit([5]);
        small.grow([5]).expect("fits");
        small.grow([1]).expect_err("half is for others");
        let mut other = capacity.empty_permit([10]);
        other.grow([6]).expect_err("too many");
        other.grow([5]).expect("what was refused holds nothing");
        small.shrink_to([2]);
        assert_eq!((small.held(), capacity.taken()), ([2], [7]));
    }

    /// What happened: four counters added first and looked then, so that a large append that was refused made appends
    /// be refused that had enough left. What holds now: whoever is refused takes nothing, not even for a moment.
    #[test]
    fn those_that_fit_are_taken_while_others_are_refused() {
        let capacity = Capacity::new([10, 100]);
        let _held = capacity.take([1, 1]).expect("fits");
        let ended = AtomicBool::new(false);
        std::thread::scope(|scope| {
            for too_large in [[10, 1], [1, 100]] {
                let (capacity, ended) = (&capacity, &ended);
                scope.spawn(move || {
                    while !ended.load(Ordering::Relaxed) {
                        assert!(capacity.take(too_large).is_err());
                        assert!(capacity.empty_permit([10, 100]).grow(too_large).is_err());
                    }
                });
            }
            let refused = (0..100_000).find_map(|_| capacity.take([9, 99]).err());
            ended.store(true, Ordering::Relaxed);
            assert_eq!(refused, None);
        });
    }

    #[tokio::test]
    async fn what_is_closed_empties() {
        let capacity = Capacity::new([2]);
        let permit = capacity.take([1]).expect("fits");
        capacity.close();
        assert_eq!(capacity.take([1]).expect_err("closed"), Refusal::Closed);
        let mut emptied = std::pin::pin!(capacity.emptied());
        assert!(futures::poll!(emptied.as_mut()).is_pending());
        drop(permit);
        emptied.await;
    }
}
