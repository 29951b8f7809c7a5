//! The bound on commands and reads that wait: so many, no more; and who waits for all of them to be answered.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use tokio::sync::Notify;

/// Room for commands, or for reads.
#[derive(Debug)]
pub(crate) struct Room {
    max: usize,
    taken: AtomicUsize,
    closed: AtomicBool,
    emptied: Notify,
}

/// Room that one command or read takes; given back on drop.
#[derive(Debug)]
pub(crate) struct Permit(Arc<Room>);

/// Why there is no room.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum NoRoom {
    /// So many wait already.
    Full(usize),
    Closed,
}

impl Room {
    pub(crate) fn new(max: usize) -> Arc<Self> {
        Arc::new(Self {
            max,
            taken: AtomicUsize::new(0),
            closed: AtomicBool::new(false),
            emptied: Notify::new(),
        })
    }

    /// Takes room for one.
    pub(crate) fn enter(self: &Arc<Self>) -> Result<Permit, NoRoom> {
        let before = self.taken.fetch_add(1, Ordering::SeqCst);
        let permit = Permit(Arc::clone(self));
        // Looked at after room was taken, so that who closes and then finds it empty has seen everyone.
        if self.closed.load(Ordering::SeqCst) {
            return Err(NoRoom::Closed);
        }
        if before >= self.max {
            return Err(NoRoom::Full(before));
        }
        Ok(permit)
    }

    pub(crate) fn taken(&self) -> usize {
        self.taken.load(Ordering::Relaxed)
    }

    /// Lets nobody in any more.
    pub(crate) fn close(&self) {
        self.closed.store(true, Ordering::SeqCst);
    }

    /// Returns once everyone who was let in has left.
    pub(crate) async fn emptied(&self) {
        loop {
            let notified = self.emptied.notified();
            let mut notified = std::pin::pin!(notified);
            notified.as_mut().enable();
            if self.taken.load(Ordering::SeqCst) == 0 {
                return;
            }
            notified.await;
        }
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        if self.0.taken.fetch_sub(1, Ordering::SeqCst) == 1 && self.0.closed.load(Ordering::SeqCst)
        {
            self.0.emptied.notify_waiters();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refuses_beyond_the_bound_and_gives_room_back() {
        let room = Room::new(2);
        let first = room.enter().expect("room");
        let _second = room.enter().expect("room");
        assert_eq!(room.enter().expect_err("full"), NoRoom::Full(2));
        drop(first);
        let _third = room.enter().expect("room again");
        assert_eq!(room.taken(), 2);
    }

    #[tokio::test]
    async fn a_closed_room_empties() {
        let room = Room::new(2);
        let permit = room.enter().expect("room");
        room.close();
        assert_eq!(room.enter().expect_err("closed"), NoRoom::Closed);
        let mut emptied = std::pin::pin!(room.emptied());
        assert!(futures::poll!(emptied.as_mut()).is_pending());
        drop(permit);
        emptied.await;
    }
}
