//! Connections that have not proved yet that they know the secret: how many there may be, and what is logged of them.
//!
//! Why the oldest gives way, and not the newest: a hello takes a few milliseconds, so the oldest is the one that does not
//! mean to end its own. Who holds connections open and renews them would else keep every node out.
//! Invariants: there are never more than [`STRANGERS_MAX`] places, nor more than [`PER_ADDRESS_MAX`] of one address; a
//! stranger that comes always gets one.

use std::collections::VecDeque;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

/// Most strangers at once.
const STRANGERS_MAX: usize = 64;
/// Most of one address. All nodes may be on one machine, or behind one.
const PER_ADDRESS_MAX: usize = 16;
/// Of refused strangers one line is logged in this time.
const LOG_EVERY: Duration = Duration::from_secs(10);

/// The strangers of a server.
#[derive(Debug, Default)]
pub(super) struct Strangers {
    places: Mutex<Places>,
    refusals: Mutex<Refusals>,
}

/// The place of one stranger, given back on drop.
#[derive(Debug)]
pub(super) struct Stranger {
    of: Arc<Strangers>,
    number: u64,
    /// Cancelled when the place went to another.
    pub(super) gives_way: CancellationToken,
}

/// The oldest first.
#[derive(Debug, Default)]
struct Places {
    last: u64,
    taken: VecDeque<Place>,
}

#[derive(Debug)]
struct Place {
    number: u64,
    address: IpAddr,
    gives_way: CancellationToken,
}

impl Places {
    fn take(&mut self, address: IpAddr) -> (u64, CancellationToken) {
        let is_same = |place: &Place| place.address == address;
        if self.taken.iter().filter(|place| is_same(place)).count() >= PER_ADDRESS_MAX {
            let oldest = self.taken.iter().position(is_same);
            self.give_way(oldest.unwrap_or(0));
        }
        if self.taken.len() >= STRANGERS_MAX {
            self.give_way(0);
        }
        self.last += 1;
        let gives_way = CancellationToken::new();
        self.taken.push_back(Place {
            number: self.last,
            address,
            gives_way: gives_way.clone(),
        });
        (self.last, gives_way)
    }

    fn give_way(&mut self, index: usize) {
        if let Some(place) = self.taken.remove(index) {
            place.gives_way.cancel();
        }
    }
}

/// Whom an address stands for: a customer of a network has at least 2⁶⁴ addresses of version 6.
fn whom(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(address) => {
            let prefix = address.to_bits() & !u128::from(u64::MAX);
            IpAddr::V6(prefix.into())
        }
        address => address,
    }
}

/// What was refused and not logged.
#[derive(Debug, Default)]
struct Refusals {
    logged_at: Option<Instant>,
    unlogged: u64,
}

impl Refusals {
    /// How many refusals a line about this one stands for beside it; `None` if it is not to be logged.
    fn count(&mut self, now: Instant) -> Option<u64> {
        let logs_at = self.logged_at.map(|at| at + LOG_EVERY);
        if logs_at.is_some_and(|at| now < at) {
            self.unlogged += 1;
            return None;
        }
        self.logged_at = Some(now);
        Some(std::mem::take(&mut self.unlogged))
    }
}

impl Strangers {
    /// A stranger has come. If there is no place left, the oldest stranger gives way: of the same address if that has
    /// too many, else of all.
    pub(super) fn admit(self: &Arc<Self>, from: SocketAddr) -> Stranger {
        let (number, gives_way) = self.places().take(whom(from.ip()));
        Stranger {
            of: Arc::clone(self),
            number,
            gives_way,
        }
    }

    /// Logs that a stranger was refused, unless that would be too many lines.
    pub(super) fn refused(&self, from: SocketAddr, why: &dyn std::fmt::Display) {
        let mut refusals = self.refusals.lock().unwrap_or_else(PoisonError::into_inner);
        let more = refusals.count(Instant::now());
        drop(refusals);
        match more {
            Some(0) => tracing::warn!(%from, %why, "a link was refused"),
            Some(more) => tracing::warn!(%from, %why, more, "links were refused"),
            None => tracing::debug!(%from, %why, "a link was refused"),
        }
    }

    fn places(&self) -> MutexGuard<'_, Places> {
        self.places.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Stranger {
    fn drop(&mut self) {
        let mut places = self.of.places();
        places.taken.retain(|place| place.number != self.number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn from(text: &str) -> SocketAddr {
        SocketAddr::new(text.parse().expect("an address"), 1)
    }

    fn numbers(strangers: &[Stranger], gone: bool) -> Vec<u64> {
        let are = strangers.iter();
        let are = are.filter(|stranger| stranger.gives_way.is_cancelled() == gone);
        are.map(|stranger| stranger.number).collect()
    }

    #[test]
    fn the_oldest_gives_way() {
        let strangers = Arc::new(Strangers::default());
        let mut many: Vec<_> = (0..STRANGERS_MAX)
            .map(|n| strangers.admit(from(&format!("10.0.0.{n}"))))
            .collect();
        assert_eq!(numbers(&many, true), [0; 0]);
        many.push(strangers.admit(from("10.0.1.1")));
        assert_eq!(numbers(&many, true), [1]);
        // One that has ended its hello leaves a place.
        drop(many.remove(40));
        many.push(strangers.admit(from("10.0.1.2")));
        assert_eq!(numbers(&many, true), [1]);
        drop(many);
        assert!(strangers.places().taken.is_empty());
    }

    #[test]
    fn one_address_crowds_out_itself() {
        let strangers = Arc::new(Strangers::default());
        let other = strangers.admit(from("10.0.0.1"));
        let mut many: Vec<_> = (0..PER_ADDRESS_MAX)
            .map(|n| strangers.admit(from(&format!("2001:db8::{n}"))))
            .collect();
        many.push(strangers.admit(from("2001:db8::ffff")));
        assert_eq!(numbers(&many, true), [2]);
        many.push(strangers.admit(from("::ffff:10.0.0.1")));
        assert_eq!(numbers(&many, true), [2], "another address");
        assert!(!other.gives_way.is_cancelled());
    }

    #[test]
    fn few_refusals_are_logged() {
        let mut refusals = Refusals::default();
        let (first, later) = (Instant::now(), Instant::now() + LOG_EVERY);
        let counts = [first, first, first, later, later].map(|now| refusals.count(now));
        assert_eq!(counts, [Some(0), None, None, Some(2), None]);
    }
}
