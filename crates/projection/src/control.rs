//! What can be asked of projections by anybody who reaches their target: a process that runs them, the command line.

use std::time::Duration;

use gesta_core::{Checkpoint, EventStore};

use crate::batch::not_of;
use crate::batch::{covers, distance, positions};
use crate::definition::ProjectionId;
use crate::error::{Error, other_store};
use crate::lag::{LAG_PAGES_MAX, Lag, Next, lag_at, next_match};
use crate::state::{Life, State};
use crate::target::{Order, Parked, REFUSED, Seen, Stored, SwitchFrom, Switched, Target};

/// Time between two looks for an answer, at first and at most.
const LOOK_FOR_ANSWER: (Duration, Duration) =
    (Duration::from_millis(10), Duration::from_millis(250));

/// How often at once readers are taken from a version that is fed on while the store is asked.
pub(crate) const SWITCH_TRIES: u32 = 4;

/// Finds the active version of a projection.
pub(crate) fn active_of<'a>(rows: &'a [Stored], name: &str) -> Result<&'a Stored, Error> {
    let mut of_name = rows.iter().filter(|row| row.id.name == name);
    of_name
        .find(|row| row.life == Life::Active)
        .ok_or_else(|| Error::NotFound(name.to_owned()))
}

/// Returns how many positions a version of another life of the store is behind a checkpoint: all of them, for what it
/// shows is of events of that life.
///
/// # Errors
/// `Invalid` if the checkpoint is not of the store as it is now.
pub(crate) async fn behind_all(
    store: &dyn EventStore,
    checkpoint: &Checkpoint,
) -> Result<u64, Error> {
    match not_of(&store.info().await?, checkpoint) {
        None => Ok(positions(checkpoint)
            .iter()
            .map(|at| at.0)
            .sum::<u64>()
            .max(1)),
        Some(_) => Err(other_store(checkpoint)),
    }
}

/// Makes the error of a version that cannot be steered: there is none such, or its rows are gone.
fn not_steered(rows: &[Stored], id: &ProjectionId) -> Error {
    let of_name = || rows.iter().filter(|row| row.id.name == id.name);
    match of_name().any(|row| row.id == *id) {
        true => {
            let last = of_name()
                .map(|row| row.id.version)
                .max()
                .unwrap_or_default();
            Error::Invalid(format!(
                "{id} was retired: its rows are gone, and its number is not used again; the next one is version {}",
                last.saturating_add(1)
            ))
        }
        false => Error::NotFound(id.to_string()),
    }
}

/// Says why an order waits.
fn why_it_waits(row: &Stored, timeout: Duration) -> String {
    match (row.state, row.owned) {
        (State::Running, true) => {
            format!(
                "the process that runs it has not done it within {timeout:?}, and does it later"
            )
        }
        (State::Running, false) => {
            "no process runs it; what was ordered is done by the next one that does".to_owned()
        }
        (state @ (State::Paused | State::Stopped), _) => {
            format!("it is {state}; what was ordered is done when it is resumed")
        }
    }
}

/// Tells of a switch that was not done why.
fn done(id: &ProjectionId, switched: Switched) -> Result<(), Error> {
    let why = match switched {
        Switched::Done => return Ok(()),
        Switched::NotFound => return Err(Error::NotFound(id.to_string())),
        Switched::Behind | Switched::Later => {
            format!("{id} is behind the active version: readers would lose what they have seen")
        }
        Switched::OtherStore => format!(
            "{id} or the active version was reset, or went on in another life of the store, meanwhile; try again"
        ),
        Switched::ActiveRuns => format!(
            "{id} cannot follow yet: a process runs the active version, and has not noticed that its place is none of \
             the store as it is now; pause that version, or wait until the process stops it"
        ),
        Switched::NotOwner => format!("{id} is owned by another session"),
        Switched::Busy => format!("readers held the view of {id} for a second; try again"),
    };
    Err(Error::Invalid(why))
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
    /// `NotFound` if there is no such version; `Invalid` if it was retired; `Target` if the target does not answer.
    pub async fn pause(&self, id: &ProjectionId) -> Result<(), Error> {
        self.set_state(id, State::Paused).await
    }

    /// Lets a version that was paused, or that has stopped, go on.
    ///
    /// # Errors
    /// `NotFound` if there is no such version; `Invalid` if it was retired; `Target` if the target does not answer.
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
    /// may be. A version that was made before the store was restored shows nothing of it.
    ///
    /// # Errors
    /// `Invalid` if the checkpoint is not of the store as it is now; `Store` if the store does not answer.
    pub async fn missing(
        &self,
        store: &dyn EventStore,
        version: &Stored,
        checkpoint: &Checkpoint,
    ) -> Result<u64, Error> {
        let place = &version.checkpoint;
        match covers(place, checkpoint) {
            Some(true) => return Ok(0),
            Some(false) => {}
            None => return behind_all(store, checkpoint).await,
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
        Err(not_steered(&self.target.list().await?, id))
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

    /// Asks the owner of a version to do something, and waits for its answer. A version that has stopped goes on when
    /// it is reset; one that is paused stays paused, and does what was asked for when it is resumed. While no process
    /// runs the version, the same order is stored once, however often it is given.
    ///
    /// # Errors
    /// `NotFound` if there is no such version; `Waits` if no process did it in the time given: the order stays, and is
    /// done by the process that runs the version later; `Invalid` if the owner has refused it, or the version was
    /// retired; `Target` if the target does not answer.
    pub async fn order(
        &self,
        id: &ProjectionId,
        order: &Order,
        timeout: Duration,
    ) -> Result<String, Error> {
        // The commands first: one without an answer that nobody runs after that was not begun before this call.
        let commands = self.target.commands().await?;
        let rows = self.target.list().await?;
        let row = rows
            .iter()
            .find(|row| row.id == *id && row.life != Life::Retired);
        let row = row.ok_or_else(|| not_steered(&rows, id))?;
        if let Order::Replay { key } | Order::Drop { key } = order
            && self.target.parked(id, key.as_deref(), 1).await?.is_empty()
        {
            return Ok("nothing is parked".to_owned());
        }
        let mut waiting = commands.into_iter().filter(|_| !row.owned);
        let number = match waiting.find(|command| command.id == *id && command.order == *order) {
            Some(command) => command.number,
            None => self.target.command(id, order).await?,
        };
        let until = tokio::time::Instant::now() + timeout;
        let (min, max) = LOOK_FOR_ANSWER;
        let mut back_off = gesta_core::BackOff::new(min, max);
        loop {
            if let Some(answer) = self.target.answer(number).await? {
                return match answer.strip_prefix(REFUSED) {
                    Some(why) => Err(Error::Invalid(format!("{id}: {why}"))),
                    None => Ok(answer),
                };
            }
            if *order == Order::Reset && self.version(id).await?.state == State::Stopped {
                self.resume(id).await?;
            }
            if tokio::time::Instant::now() >= until {
                let rows = self.target.list().await?;
                let row = rows
                    .iter()
                    .find(|row| row.id == *id && row.life != Life::Retired);
                let row = row.ok_or_else(|| not_steered(&rows, id))?;
                return Err(Error::Waits {
                    name: id.to_string(),
                    why: why_it_waits(row, timeout),
                });
            }
            tokio::time::sleep(back_off.pause()).await;
        }
    }

    /// Makes a version the active one, or an earlier one again. It tries for a second if readers are in the way.
    ///
    /// # Errors
    /// `NotFound` if there is no such version; `Invalid` if it was retired, is behind the active one, or if the store
    /// was restored since one of them came so far: then [`switch_in`](Self::switch_in) tells which one is of the store
    /// as it is now, and whether any event in between is wanted by the version; `Target` if the target does not answer.
    pub async fn switch(&self, id: &ProjectionId) -> Result<(), Error> {
        match self.try_switch(id, None).await? {
            Switched::OtherStore => Err(Error::Invalid(format!(
                "{id}: it and the active version are of different lives of the store, which alone can tell which of \
                 them is of the present one: name the store"
            ))),
            Switched::Behind => Err(Error::Invalid(format!(
                "{id} is behind the active version, and the store alone can tell whether an event in between is any of \
                 its own: name the store"
            ))),
            switched => done(id, switched),
        }
    }

    /// Makes a version the active one, as [`switch`](Self::switch) does, also if the active one is further, but no
    /// event in between passes the filter of the version; and also if the active one was made before the store was
    /// restored, or is further than the store, which was copied back: then the version must have come to the end of the
    /// store, and no process may run the active one.
    ///
    /// # Errors
    /// Those of `switch`; `Store` if the store does not answer.
    pub async fn switch_in(&self, store: &dyn EventStore, id: &ProjectionId) -> Result<(), Error> {
        match self.try_switch(id, None).await? {
            Switched::OtherStore | Switched::Behind => {}
            switched => return done(id, switched),
        }
        let mut tries = 0;
        loop {
            let seen = self.seen(store, id).await?;
            // What could not be compared before may be reset since.
            let switched = self.try_switch(id, seen.as_ref()).await?;
            tries += 1;
            // The active version is fed on.
            if switched != Switched::Behind || seen.is_none() || tries == SWITCH_TRIES {
                return done(id, switched);
            }
        }
    }

    /// Asks the store about the places of the active version and another one. `None` if the active one is of this
    /// store, and further than the other one by an event that this one wants.
    ///
    /// # Errors
    /// `Invalid` if the other one is not of this store, or behind its end where the active one is not of it.
    async fn seen(&self, store: &dyn EventStore, id: &ProjectionId) -> Result<Option<Seen>, Error> {
        // The rows first: a place that a version had reached before the ends were read is none beyond them.
        let active = self.active(&id.name).await?;
        let version = self.version(id).await?;
        let info = store.info().await?;
        if let Some(why) = not_of(&info, &version.checkpoint) {
            return Err(Error::Invalid(format!("{id} cannot be switched to: {why}")));
        }
        let is_of_this = not_of(&info, &active.checkpoint).is_none();
        let head = Checkpoint::logs(info.incarnation, info.heads);
        if is_of_this {
            let Some(filter) = &version.filter else {
                return Ok(None);
            };
            // The active version may come to the end of the store meanwhile.
            for up_to in [head, active.checkpoint] {
                let after = version.checkpoint.clone();
                let next = next_match(store, &after, filter, &up_to, LAG_PAGES_MAX).await?;
                if next == Next::Nothing {
                    return Ok(Some(Seen::NoMatch { after, up_to }));
                }
            }
            return Ok(None);
        }
        let missing = self.missing(store, &version, &head).await?;
        if missing > 0 {
            return Err(Error::Invalid(format!(
                "{id} is {missing} positions behind the end of the store: readers would see less than there is"
            )));
        }
        Ok(Some(Seen::Lost {
            end: version.checkpoint,
            lost: active.checkpoint,
        }))
    }

    /// Tries to switch, for a second if readers are in the way.
    async fn try_switch(&self, id: &ProjectionId, seen: Option<&Seen>) -> Result<Switched, Error> {
        let until = tokio::time::Instant::now() + Duration::from_secs(1);
        loop {
            let switched = self.target.switch(id, SwitchFrom::Any, seen).await?;
            if switched == Switched::NotFound {
                return Err(not_steered(&self.target.list().await?, id));
            }
            if switched != Switched::Busy || tokio::time::Instant::now() >= until {
                return Ok(switched);
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    /// Deletes the rows of a version that is not active.
    ///
    /// # Errors
    /// `NotFound` if there is no such version; `Invalid` if it is active; `Target` if the target does not answer.
    pub async fn retire(&self, id: &ProjectionId) -> Result<(), Error> {
        if self.target.retire(id).await? {
            return Ok(());
        }
        let rows = self.target.list().await?;
        match rows.iter().find(|row| row.id == *id) {
            Some(_) => Err(Error::Invalid(format!(
                "{id} cannot be retired: it is the active version, which readers see; switch to another one first"
            ))),
            None => Err(Error::NotFound(id.to_string())),
        }
    }
}
