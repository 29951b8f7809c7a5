//! Admission: how many requests and subscriptions may be in flight at once.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::problem::{Problem, Result};

/// A counter with a maximum.
#[derive(Debug)]
pub(crate) struct Gate {
    inside: AtomicUsize,
    max: usize,
    what: &'static str,
}

impl Gate {
    pub(crate) fn new(what: &'static str, max: usize) -> Arc<Self> {
        let inside = AtomicUsize::new(0);
        Arc::new(Self { inside, max, what })
    }

    /// Lets one more in, or says that the place is full.
    pub(crate) fn enter(self: &Arc<Self>) -> Result<Ticket> {
        let before = self.inside.fetch_add(1, Ordering::Relaxed);
        // Leaves again on drop, also if there was no room.
        let ticket = Ticket(self.clone());
        if before >= self.max {
            return Err(Problem::overloaded(format!(
                "{} {} are in flight, no more are taken",
                self.max, self.what
            )));
        }
        Ok(ticket)
    }

    pub(crate) fn inside(&self) -> usize {
        self.inside.load(Ordering::Relaxed)
    }
}

/// One inside; leaves on drop.
#[derive(Debug)]
pub(crate) struct Ticket(Arc<Gate>);

impl Drop for Ticket {
    fn drop(&mut self) {
        self.0.inside.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_gate_refuses_until_one_leaves() {
        let gate = Gate::new("requests", 1);
        let first = gate.enter().expect("room");
        assert_eq!(
            gate.enter().expect_err("full").kind,
            crate::problem::OVERLOADED
        );
        drop(first);
        assert_eq!(gate.inside(), 0);
        assert!(gate.enter().is_ok());
    }
}
