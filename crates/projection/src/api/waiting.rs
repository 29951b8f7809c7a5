//! The requests that wait: their places, and what they find together.
//!
//! Invariants: however many wait, one look at the versions, and one search of the store for each version, are under
//! way; a caller who has no place gets one, if need be of the caller who has most.

use std::collections::HashMap;
use std::sync::{Arc, PoisonError};

use gesta_core::Checkpoint;
use gesta_core::shares::{Holder, Share, Shares};
use tokio::sync::Mutex;
use tokio::time::Instant;

use crate::batch::{covers, distance};
use crate::definition::ProjectionId;
use crate::error::Error;
use crate::target::Stored;

use super::{API_CALLER_WAITERS_MAX, API_WAITERS_MAX};

/// The last look at the versions, and when it was begun.
type Look = Option<(Instant, Arc<Vec<Stored>>)>;

/// The requests that wait, of all copies of an [`Api`](super::Api).
pub(super) struct Waiting {
    /// How many wait of each caller.
    callers: std::sync::Mutex<HashMap<String, usize>>,
    places: Arc<Shares>,
    pub(super) look: Mutex<Look>,
    /// What was found of each version. Whoever searches for one holds what was found of it alone: a search may take
    /// long.
    searched: std::sync::Mutex<HashMap<ProjectionId, Arc<Mutex<Option<Searched>>>>>,
}

impl Default for Waiting {
    fn default() -> Self {
        Self {
            callers: std::sync::Mutex::default(),
            places: Shares::new(API_WAITERS_MAX),
            look: Mutex::default(),
            searched: std::sync::Mutex::default(),
        }
    }
}

impl Waiting {
    /// Takes a place to wait; `None` if all are taken, or all that one caller may have. If all are taken, and the
    /// caller has fewer than another one, that one's newest place gives way.
    pub(super) fn place(&self, caller: &str) -> Option<WaitingPlace<'_>> {
        let mut callers = self.callers.lock().unwrap_or_else(PoisonError::into_inner);
        let own = callers.get(caller).copied().unwrap_or(0);
        if own >= API_CALLER_WAITERS_MAX {
            return None;
        }
        let share = self.places.take(&Holder::User(caller.into()), 1).ok()?;
        callers.insert(caller.to_owned(), own + 1);
        Some(WaitingPlace {
            waiting: self,
            caller: caller.to_owned(),
            share,
        })
    }

    /// Returns how many positions are missing of a version, as `search` finds it, or as another request has found it. A
    /// search that is given up is begun again by the next request.
    pub(super) async fn missing(
        &self,
        version: &Stored,
        checkpoint: &Checkpoint,
        search: impl Future<Output = Result<u64, Error>>,
    ) -> Result<u64, Error> {
        if covers(&version.checkpoint, checkpoint) != Some(false) {
            // Nothing is searched then.
            return search.await;
        }
        let searched = self.searched(&version.id);
        let mut searched = searched.lock().await;
        let found = searched
            .take_if(|found| found.place == version.checkpoint)
            .unwrap_or_else(|| Searched::after(&version.checkpoint));
        let found = searched.insert(found);
        if let Some(missing) = found.missing(checkpoint) {
            return Ok(missing);
        }
        let missing = search.await?;
        found.note(checkpoint, missing);
        Ok(missing)
    }

    fn searched(&self, id: &ProjectionId) -> Arc<Mutex<Option<Searched>>> {
        let searched = self.searched.lock();
        let mut searched = searched.unwrap_or_else(PoisonError::into_inner);
        Arc::clone(searched.entry(id.clone()).or_default())
    }
}

/// A place to wait, which is given back when this is dropped.
pub(super) struct WaitingPlace<'a> {
    waiting: &'a Waiting,
    caller: String,
    pub(super) share: Share,
}

impl Drop for WaitingPlace<'_> {
    fn drop(&mut self) {
        let callers = self.waiting.callers.lock();
        let mut callers = callers.unwrap_or_else(PoisonError::into_inner);
        if let Some(own) = callers.get_mut(&self.caller) {
            *own -= 1;
            if *own == 0 {
                callers.remove(&self.caller);
            }
        }
    }
}

/// What is known of the events that match after a place.
struct Searched {
    place: Checkpoint,
    /// Up to here there is none.
    nothing: Option<Checkpoint>,
    /// Up to here there is one, or none was found in as many pages as are read.
    something: Option<Checkpoint>,
}

impl Searched {
    fn after(place: &Checkpoint) -> Self {
        Self {
            place: place.clone(),
            nothing: None,
            something: None,
        }
    }

    fn missing(&self, wanted: &Checkpoint) -> Option<u64> {
        let is = |covered: Option<bool>| covered == Some(true);
        if self
            .nothing
            .as_ref()
            .is_some_and(|at| is(covers(at, wanted)))
        {
            return Some(0);
        }
        let is_before = |at: &Checkpoint| is(covers(wanted, at));
        let is_missing = self.something.as_ref().is_some_and(is_before);
        is_missing.then(|| distance(&self.place, wanted))
    }

    fn note(&mut self, wanted: &Checkpoint, missing: u64) {
        let place = match missing {
            0 => &mut self.nothing,
            _ => &mut self.something,
        };
        *place = Some(wanted.clone());
    }
}
