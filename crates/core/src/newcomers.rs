//! A bounded set of newcomers: callers that have connected and have not yet shown what they want.
//!
//! Why the oldest gives way, and not the newest: a newcomer needs a few milliseconds to introduce itself, so the oldest
//! is the one that does not mean to. If the newest gave way, a caller that holds connections open and renews them would
//! keep everybody else out. Why there is a maximum per address beside the one of all: a host displaces its own
//! newcomers first.
//! Invariants: there are never more places than the maximum, nor more of one address than its maximum; a newcomer
//! always gets a place; a newcomer that has given way keeps no place.
//! Not here: connections, and what ends when a newcomer loses its place.

use std::collections::VecDeque;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use futures::channel::oneshot;

/// A bounded set of newcomers.
#[derive(Debug)]
pub struct Newcomers {
    max: usize,
    of_one_address_max: usize,
    places: Mutex<Places>,
}

/// The place of one newcomer. Dropping it gives the place back.
#[derive(Debug)]
pub struct Newcomer {
    of: Arc<Newcomers>,
    number: u64,
    displaced: oneshot::Receiver<()>,
}

/// The places that are taken, the oldest first.
#[derive(Debug, Default)]
struct Places {
    last: u64,
    taken: VecDeque<TakenPlace>,
}

#[derive(Debug)]
struct TakenPlace {
    number: u64,
    address: IpAddr,
    /// Dropped when the place is given to another newcomer, which ends the wait of [`Newcomer::displaced`].
    _holder: oneshot::Sender<()>,
}

/// Returns the address under which a caller is counted. An address of version 4 is counted by itself, also where it is
/// written as one of version 6. Of an address of version 6 the first half counts, because a customer of a network has
/// at least 2⁶⁴ of them.
#[must_use]
pub fn whom(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(address) => {
            let prefix = address.to_bits() & !u128::from(u64::MAX);
            IpAddr::V6(prefix.into())
        }
        address => address,
    }
}

impl Newcomers {
    /// Makes a set of at most `max` newcomers at once, and `of_one_address_max` of one address. Both are at least 1.
    #[must_use]
    pub fn new(max: usize, of_one_address_max: usize) -> Arc<Self> {
        Arc::new(Self {
            max: max.max(1),
            of_one_address_max: of_one_address_max.max(1),
            places: Mutex::default(),
        })
    }

    /// Gives a newcomer a place. If none is left, the oldest newcomer loses its place: the oldest of the same address
    /// if that address has too many, else the oldest of all.
    #[must_use]
    pub fn admit(self: &Arc<Self>, from: IpAddr) -> Newcomer {
        let address = whom(from);
        let (holder, displaced) = oneshot::channel();
        let mut places = self.places();
        let is_same = |place: &TakenPlace| place.address == address;
        if places.taken.iter().filter(|place| is_same(place)).count() >= self.of_one_address_max {
            let oldest = places.taken.iter().position(is_same);
            places.taken.remove(oldest.unwrap_or(0));
        }
        if places.taken.len() >= self.max {
            places.taken.pop_front();
        }
        places.last += 1;
        let number = places.last;
        places.taken.push_back(TakenPlace {
            number,
            address,
            _holder: holder,
        });
        Newcomer {
            of: Arc::clone(self),
            number,
            displaced,
        }
    }

    fn places(&self) -> MutexGuard<'_, Places> {
        self.places.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Newcomer {
    /// Waits until the place was given to another newcomer.
    ///
    /// # Cancel safety
    /// Dropping the future changes nothing; the call may be made again.
    pub async fn displaced(&mut self) {
        // Whether the other end spoke or was dropped: the place is gone.
        let _ = (&mut self.displaced).await;
    }
}

impl Drop for Newcomer {
    fn drop(&mut self) {
        let mut places = self.of.places();
        places.taken.retain(|place| place.number != self.number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures::FutureExt;

    fn from(text: &str) -> IpAddr {
        text.parse().expect("an address")
    }

    /// The numbers of those that have given way.
    fn gone(newcomers: &mut [Newcomer]) -> Vec<u64> {
        let them = newcomers.iter_mut();
        them.filter_map(|it| it.displaced().now_or_never().map(|()| it.number))
            .collect()
    }

    #[test]
    fn the_oldest_gives_way() {
        let newcomers = Newcomers::new(64, 16);
        let mut many: Vec<_> = (0..64)
            .map(|n| newcomers.admit(from(&format!("10.0.0.{n}"))))
            .collect();
        assert_eq!(gone(&mut many), [0; 0]);
        many.push(newcomers.admit(from("10.0.1.1")));
        assert_eq!(gone(&mut many[..1]), [1]);
        assert_eq!(gone(&mut many[1..]), [0; 0]);
        // One that has ended leaves a place.
        drop(many.remove(40));
        many.push(newcomers.admit(from("10.0.1.2")));
        assert_eq!(gone(&mut many[1..]), [0; 0]);
        drop(many);
        assert!(newcomers.places().taken.is_empty());
    }

    #[test]
    fn one_address_crowds_out_itself() {
        let newcomers = Newcomers::new(64, 16);
        let mut other = newcomers.admit(from("10.0.0.1"));
        let mut many: Vec<_> = (0..16)
            .map(|n| newcomers.admit(from(&format!("2001:db8::{n}"))))
            .collect();
        many.push(newcomers.admit(from("2001:db8::ffff")));
        assert_eq!(gone(&mut many[..1]), [2]);
        many.push(newcomers.admit(from("::ffff:10.0.0.1")));
        assert_eq!(gone(&mut many[1..]), [0; 0], "another address");
        assert!(other.displaced().now_or_never().is_none());
    }

    #[test]
    fn at_least_one_is_let_in() {
        let newcomers = Newcomers::new(0, 0);
        let mut first = newcomers.admit(from("10.0.0.1"));
        assert!(first.displaced().now_or_never().is_none());
        let _second = newcomers.admit(from("10.0.0.2"));
        assert!(first.displaced().now_or_never().is_some());
    }
}
