//! What can be asked of projections by anybody who reaches their target: a process that runs them, the command line.

use std::time::Duration;

use gesta_core::{Checkpoint, EventStore};

use crate::batch::{covers, distance};
use crate::definition::ProjectionId;
use crate::error::{Error, other_store};
use crate::lag::{LAG_PAGES_MAX, Lag, Next, lag_at, next_match};
use crate::state::{Life, State};
use crate::target::{Order, Parked, Stored, SwitchFrom, Switched, Target};

/// Time between two looks for an answer, at first and at most.
const LOOK_FOR_ANSWER: (Duration, Duration) =
    (Duration::from_millis(10), Duration::from_millis(250));

/// Finds the active version of a projection.
pub(crate) fn active_of<'a>(rows: &'a [Stored], name: &str) -> Result<&'a Stored, Error> {
    let mut of_name = rows.iter().filter(|row| row.id.name == name);
    of_name
        .find(|row| row.life == Life::Active)
        .ok_or_else(|| Error::NotFound(name.to_owned()))
}

/// Shows and steers the projections of a target, whoever runs them.
#[derive(Clone, Debug)]
pub struct Control<T> {
    target: T,
}

impl<T: Target> Control<T> {
    /// Makes one for a target.
    #[must_use]
    pub fn of(target: T) -> Self {
        Self { target }
    }

    pub(crate) fn target(&self) -> &T {
        &self.target
    }

    /// Returns all versions of all projections.
    ///
    /// # Errors
    /// `Target` if the target does not answer.
    pub async fn list(&self) -> Result<Vec<Stored>, Error> {
        Ok(self.target.list().await?)
    }

    /// Returns the active version of a projection.
    ///
    /// # Errors
    /// `NotFound` if there is none; `Target` if the target does not answer.
    pub async fn active(&self, name: &str) -> Result<Stored, Error> {
        active_of(&self.target.list().await?, name).cloned()
    }

    /// Pauses a version. The next batch is not applied any more; one whose fence was passed is finished.
    ///
    /// # Errors
    /// `NotFound` if there is no such version; `Target` if the target does not answer.
    pub async fn pause(&self, id: &ProjectionId) -> Result<(), Error> {
        self.set_state(id, State::Paused).await
    }

    /// Lets a version that was paused, or that has stopped, go on.
    ///
    /// # Errors
    /// `NotFound` if there is no such version; `Target` if the target does not answer.
    pub async fn resume(&self, id: &ProjectionId) -> Result<(), Error> {
        self.set_state(id, State::Running).await
    }

    /// Returns how far a version of [`list`](Self::list) is behind the end of the store; `None` if its filter is not
    /// known, for it was last registered by an older program.
    ///
    /// # Errors
    /// `Store` if the store does not answer, or the version is of another one.
    pub async fn lag(
        &self,
        store: &dyn EventStore,
        version: &Stored,
    ) -> Result<Option<Lag>, Error> {
        match &version.filter {
            Some(filter) => lag_at(store, &version.checkpoint, filter).await.map(Some),
            None => Ok(None),
        }
    }

    /// Returns a version.
    ///
    /// # Errors
    /// `NotFound` if there is none such; `Target` if the target does not answer.
    pub async fn version(&self, id: &ProjectionId) -> Result<Stored, Error> {
        let mut rows = self.target.list().await?.into_iter();
        rows.find(|row| row.id == *id)
            .ok_or_else(|| Error::NotFound(id.to_string()))
    }

    /// Returns how many positions are missing until a version shows everything up to a checkpoint; zero if it does. Of
    /// the positions in between a million are looked at: if none of their events matches, more are missing than there
    /// may be.
    ///
    /// # Errors
    /// `Invalid` if version and checkpoint are not of the same store; `Store` if the store does not answer.
    pub async fn missing(
        &self,
        store: &dyn EventStore,
        version: &Stored,
        checkpoint: &Checkpoint,
    ) -> Result<u64, Error> {
        let place = &version.checkpoint;
        if covers(place, checkpoint).ok_or_else(|| other_store(checkpoint))? {
            return Ok(0);
        }
        if let Some(filter) = &version.filter {
            let next = next_match(store, place, filter, checkpoint, LAG_PAGES_MAX).await?;
            if next == Next::Nothing {
                return Ok(0);
            }
        }
        Ok(distance(place, checkpoint))
    }

    async fn set_state(&self, id: &ProjectionId, state: State) -> Result<(), Error> {
        if self.target.set_state(id, state, None).await? {
            return Ok(());
        }
        Err(Error::NotFound(id.to_string()))
    }

    /// Returns parked events of a version, in the order in which they were parked: of one key or all, at most `limit`.
    ///
    /// # Errors
    /// `Target` if the target does not answer.
    pub async fn parked(
        &self,
        id: &ProjectionId,
        key: Option<&str>,
        limit: usize,
    ) -> Result<Vec<Parked>, Error> {
        Ok(self.target.parked(id, key, limit).await?)
    }

    /// Asks the owner of a version to do something, and waits for its answer.
    ///
    /// # Errors
    /// `NotFound` if there is no such version; `NotRunning` if no process did it in the time given: the command stays,
    /// and is done by whoever owns the version later; `Target` if the target does not answer.
    pub async fn order(
        &self,
        id: &ProjectionId,
        order: &Order,
        timeout: Duration,
    ) -> Result<String, Error> {
        if !self.target.list().await?.iter().any(|row| row.id == *id) {
            return Err(Error::NotFound(id.to_string()));
        }
        let number = self.target.command(id, order).await?;
        let until = tokio::time::Instant::now() + timeout;
        let (min, max) = LOOK_FOR_ANSWER;
        let mut back_off = gesta_core::BackOff::new(min, max);
        loop {
            if let Some(answer) = self.target.answer(number).await? {
                return Ok(answer);
            }
            if tokio::time::Instant::now() >= until {
                let rows = self.target.list().await?;
                let row = rows.into_iter().find(|row| row.id == *id);
                return Err(Error::NotRunning {
                    name: id.to_string(),
                    state: row.as_ref().map_or(State::Stopped, |row| row.state),
                    why: Some(format!(
                        "nobody has done it within {timeout:?}; the command stays"
                    )),
                });
            }
            tokio::time::sleep(back_off.pause()).await;
        }
    }

    /// Makes a version the active one, or an earlier one again. It tries for a second if readers are in the way.
    ///
    /// # Errors
    /// `NotFound` if there is no such version, or its rows are gone; `Invalid` if it is behind the active one;
    /// `Target` if the target does not answer.
    pub async fn switch(&self, id: &ProjectionId) -> Result<(), Error> {
        let until = tokio::time::Instant::now() + Duration::from_secs(1);
        loop {
            match self.target.switch(id, SwitchFrom::Any).await? {
                Switched::Done => return Ok(()),
                Switched::NotFound => return Err(Error::NotFound(id.to_string())),
                // From a later version they are taken, for somebody has asked for it.
                Switched::Behind | Switched::Later => {
                    return Err(Error::Invalid(format!(
                        "{id} is behind the active version: readers would lose what they have seen"
                    )));
                }
                Switched::Busy if tokio::time::Instant::now() >= until => {
                    return Err(Error::Invalid(format!(
                        "readers held the view of {id} for a second; try again"
                    )));
                }
                Switched::Busy => tokio::time::sleep(Duration::from_millis(50)).await,
            }
        }
    }

    /// Deletes the rows of a version that is not active.
    ///
    /// # Errors
    /// `Invalid` if there is no such version, or it is active; `Target` if the target does not answer.
    pub async fn retire(&self, id: &ProjectionId) -> Result<(), Error> {
        if self.target.retire(id).await? {
            return Ok(());
        }
        Err(Error::Invalid(format!(
            "{id} cannot be retired: it is the active version, or there is none such"
        )))
    }
}
