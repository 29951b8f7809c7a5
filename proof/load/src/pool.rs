//! Places for connections, never more than a given number, that the tasks of one thread share.

use std::cell::{Cell, RefCell};

use tokio::sync::{Semaphore, SemaphorePermit};

/// Places for connections of a kind.
#[derive(Debug)]
pub struct Pool<C> {
    /// Those not in use, the last used last; none where a connection must be made (again).
    idle: RefCell<Vec<Option<C>>>,
    free: Semaphore,
    size: Cell<usize>,
}

/// A place, with a connection if there is one. It goes back when it is dropped, with what is in it.
#[derive(Debug)]
pub struct Taken<'a, C> {
    pool: &'a Pool<C>,
    /// The connection.
    pub connection: Option<C>,
    _permit: SemaphorePermit<'a>,
}

impl<C> Drop for Taken<'_, C> {
    fn drop(&mut self) {
        self.pool.idle.borrow_mut().push(self.connection.take());
    }
}

impl<C> Default for Pool<C> {
    fn default() -> Self {
        Self {
            idle: RefCell::default(),
            free: Semaphore::new(0),
            size: Cell::new(0),
        }
    }
}

impl<C> Pool<C> {
    /// A pool without a place.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds places.
    pub fn add(&self, places: Vec<Option<C>>) {
        let count = places.len();
        // Those without a connection are taken last.
        self.idle.borrow_mut().splice(0..0, places);
        self.size.set(self.size.get() + count);
        self.free.add_permits(count);
    }

    /// All places, in use or not.
    pub fn size(&self) -> usize {
        self.size.get()
    }

    /// The next free place, in the order of asking.
    #[expect(clippy::expect_used, reason = "the semaphore is never closed")]
    pub async fn take(&self) -> Taken<'_, C> {
        let permit = self.free.acquire().await.expect("never closed");
        Taken {
            pool: self,
            connection: self.idle.borrow_mut().pop().flatten(),
            _permit: permit,
        }
    }
}
