//! Admission: how many requests, subscriptions, connections and reads may be in flight at once, in sum and of one
//! caller. How much one caller may hold: see [`gesta_core::shares`].

use std::sync::Arc;

use futures::FutureExt;
use futures::future::{self, BoxFuture};
use gesta_core::shares::{Holder, Load, Share, Shares, TooMuch};

use crate::shared::problem::{Problem, Result};

/// Places that callers hold.
#[derive(Debug)]
pub(crate) struct Gate {
    shares: Arc<Shares>,
    what: &'static str,
}

/// A place that a gate has given. It is given back when the ticket is dropped.
#[derive(Debug)]
pub(crate) struct Ticket {
    share: Share,
    what: &'static str,
}

/// Waits until a place was given up for a caller who has fewer: then whoever has it is to end, with this problem.
pub(crate) type GaveWay = BoxFuture<'static, Problem>;

/// Waits until one of two places was given up.
pub(crate) fn either(one: GaveWay, other: GaveWay) -> GaveWay {
    let first = future::select(one, other);
    first.map(|first| first.factor_first().0).boxed()
}

impl Ticket {
    pub(crate) fn gave_way(&self) -> GaveWay {
        let (what, max, holder) = (self.what, self.share.max(), self.share.holder().clone());
        let problem = move |()| {
            Problem::overloaded(format!(
                "all {max} {what} were taken when a caller with fewer of them asked for one, and {holder}, who had most, gave up the newest of theirs: have fewer at once, or try again later"
            ))
        };
        self.share.gave_way().map(problem).boxed()
    }

    /// Notes that a caller, of whom only the address was known, has proved who they are.
    pub(crate) fn prove(&mut self) {
        self.share.prove();
    }
}

impl Gate {
    pub(crate) fn new(what: &'static str, max: usize) -> Self {
        let shares = Shares::new(max);
        Self { shares, what }
    }

    /// Takes a place for a caller. If all are taken, the caller with most of them may have to give one up.
    ///
    /// # Errors
    /// Overloaded if all places are taken, and nobody has more than this caller would have; or if this caller has most,
    /// and as many as are left.
    pub(crate) fn enter(&self, holder: &Holder) -> Result<Ticket> {
        let taken = self.shares.take(holder, 1);
        taken.map(|share| self.ticket(share)).map_err(|refused| {
            let (max, what) = (self.shares.max(), self.what);
            Problem::overloaded(match refused {
                TooMuch::InSum => format!("at most {max} {what} are taken at once, try again later"),
                TooMuch::OfOne | TooMuch::GaveWay => format!(
                    "{holder} has as many {what} at once as one caller may have of {max}: end some, or try again later"
                ),
            })
        })
    }

    /// Waits for a place. Callers take turns.
    pub(crate) async fn turn(&self, holder: &Holder) -> Ticket {
        self.ticket(self.shares.turn(holder).await)
    }

    /// Waits for so many places. Callers take turns, and a caller who has none stops others until `stops` ends.
    pub(crate) async fn turn_for(
        &self,
        holder: &Holder,
        places: usize,
        stops: impl Future<Output = ()>,
    ) -> Ticket {
        self.ticket(self.shares.turn_for(holder, places, stops).await)
    }

    fn ticket(&self, share: Share) -> Ticket {
        Ticket {
            share,
            what: self.what,
        }
    }

    pub(crate) fn inside(&self) -> usize {
        self.shares.taken()
    }

    pub(crate) fn load(&self) -> Load {
        self.shares.load()
    }
}
