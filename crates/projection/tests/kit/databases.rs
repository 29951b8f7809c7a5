//! Databases for targets, one after the other.

use std::sync::{Arc, Mutex, PoisonError};

use crate::flavour::{Place, Target};

/// Makes targets, each in a database of its own, and knows the last one.
#[derive(Debug, Default)]
pub(crate) struct Places {
    last: Mutex<Option<Arc<Place>>>,
}

impl Places {
    pub(crate) async fn make(&self) -> Target {
        let place = Place::new().await;
        let target = place.target();
        *self.last.lock().unwrap_or_else(PoisonError::into_inner) = Some(Arc::new(place));
        target
    }

    /// Returns the database of the last target.
    pub(crate) fn last(&self) -> Arc<Place> {
        let last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        last.clone().expect("a target was made")
    }
}
