//! Admission: how many requests, subscriptions, connections and reads may be in flight at once, in sum and of one
//! caller. How much one caller may hold: see [`gesta_core::shares`].

use std::sync::Arc;

use gesta_core::shares::{Holder, Load, Share, Shares, TooMuch};

use crate::problem::{Problem, Result};

/// Places that callers hold.
#[derive(Debug)]
pub(crate) struct Gate {
    shares: Arc<Shares>,
    what: &'static str,
}

/// A place that a gate has given. It is given back when the ticket is dropped.
pub(crate) type Ticket = Share;

impl Gate {
    pub(crate) fn new(what: &'static str, max: usize) -> Self {
        let shares = Shares::new(max);
        Self { shares, what }
    }

    /// Takes a place for a caller.
    ///
    /// # Errors
    /// Overloaded if all places are taken, or if this caller has as many as are left.
    pub(crate) fn enter(&self, holder: &Holder) -> Result<Ticket> {
        self.shares.take(holder, 1).map_err(|refused| {
            let (max, what) = (self.shares.max(), self.what);
            Problem::overloaded(match refused {
                TooMuch::InSum => format!("at most {max} {what} are taken at once, try again later"),
                TooMuch::OfOne => format!(
                    "{holder} has as many {what} at once as one caller may have of {max}: end some, or try again later"
                ),
            })
        })
    }

    /// Waits for a place. Callers take turns.
    pub(crate) async fn turn(&self, holder: &Holder) -> Ticket {
        self.shares.turn(holder).await
    }

    /// Waits for so many places. Callers take turns.
    pub(crate) async fn turn_for(&self, holder: &Holder, places: usize) -> Ticket {
        self.shares.turn_for(holder, places).await
    }

    pub(crate) fn inside(&self) -> usize {
        self.shares.taken()
    }

    pub(crate) fn load(&self) -> Load {
        self.shares.load()
    }
}
