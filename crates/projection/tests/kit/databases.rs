//! Databases for targets, one after the other.

use std::sync::{Arc, Mutex, PoisonError};

use crate::flavour::{Database, Target};

/// Makes targets, each in a database of its own, and knows the last one.
#[derive(Debug, Default)]
pub(crate) struct Databases {
    last: Mutex<Option<Arc<Database>>>,
}

impl Databases {
    pub(crate) async fn make(&self) -> Target {
        let database = Database::new().await;
        let target = database.target();
        *self.last.lock().unwrap_or_else(PoisonError::into_inner) = Some(Arc::new(database));
        target
    }

    /// Returns the database of the last target.
    pub(crate) fn last(&self) -> Arc<Database> {
        let last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        last.clone().expect("a target was made")
    }
}
