//! Admission: how many requests, subscriptions and connections may be in flight at once.

use std::sync::Arc;

use gesta_core::capacity::{Capacity, Permit};

use crate::problem::{Problem, Result};

/// A counter with a maximum.
#[derive(Debug)]
pub(crate) struct Gate {
    capacity: Arc<Capacity>,
    max: usize,
    what: &'static str,
}

/// A place that a gate has given. It is given back when the ticket is dropped.
pub(crate) type Ticket = Permit;

impl Gate {
    pub(crate) fn new(what: &'static str, max: usize) -> Self {
        let capacity = Capacity::new([max]);
        Self {
            capacity,
            max,
            what,
        }
    }

    /// Takes a place.
    ///
    /// # Errors
    /// Overloaded if all places are taken.
    pub(crate) fn enter(&self) -> Result<Ticket> {
        self.capacity.take([1]).map_err(|_| {
            Problem::overloaded(format!(
                "{} {} are in flight, no more are taken",
                self.max, self.what
            ))
        })
    }

    pub(crate) fn inside(&self) -> usize {
        self.capacity.taken()[0]
    }
}
