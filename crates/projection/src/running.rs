//! The projections that a process runs.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use gesta_core::{BackOff, Checkpoint, EventStore, Filter};
use tokio::sync::{Notify, watch};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use crate::api::Api;
use crate::batch::{covers, distance};
use crate::begin_at::BeginAt;
use crate::config::Config;
use crate::control::{Control, behind_all};
use crate::definition::ProjectionId;
use crate::drive::Context;
use crate::error::Error;
use crate::fault::panic_text;
use crate::lag::{Lag, Next, lag_at, next_match};
use crate::looks::{LastCommit, Look, Looker};
use crate::progress::{Phase, Progress};
use crate::registrar::Registrar;
use crate::state::{Life, State};
use crate::target::{Stored, Target};
use crate::unit::Unit;
use crate::work::is_applying;

/// Time between two looks while a checkpoint is waited for that another process reaches, at first and at most.
const WAIT_LOOKS: (Duration, Duration) = (Duration::from_millis(10), Duration::from_millis(100));
/// Time after which a task that has panicked begins again.
const BEGIN_AGAIN_AFTER: Duration = Duration::from_secs(1);

/// What all projections of a process share.
pub(crate) struct Started<T> {
    pub(crate) store: Arc<dyn EventStore>,
    pub(crate) target: T,
    pub(crate) node: Uuid,
    pub(crate) config: Arc<Config>,
    pub(crate) begin_at: HashMap<String, BeginAt>,
    pub(crate) looks: watch::Receiver<Look>,
    pub(crate) at_once: Arc<Notify>,
    pub(crate) stopping: CancellationToken,
}

struct One {
    id: ProjectionId,
    filter: Filter,
    progress: watch::Receiver<Progress>,
    committed: LastCommit,
    task: JoinHandle<()>,
}

/// The projections that a process runs. Dropping it tells them to stop; [`shutdown`](Self::shutdown) also waits until
/// they have.
pub struct Running<T: Target> {
    /// One for all requests, so that those that wait are counted together.
    api: Api<T>,
    started: Started<T>,
    all: Vec<One>,
    looker: JoinHandle<()>,
}

impl<T: Target> std::fmt::Debug for Running<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let ids = self.all.iter().map(|one| one.id.to_string());
        f.debug_list().entries(ids).finish()
    }
}

impl<T: Target> Drop for Running<T> {
    fn drop(&mut self) {
        self.started.stopping.cancel();
        self.looker.abort();
    }
}

/// What was registered, and when the lease was renewed.
type Registered = (Vec<Stored>, Option<Instant>);

impl<T: Target> Running<T> {
    /// Runs what was registered, or registers it once store and target answer.
    pub(crate) fn new(
        started: Started<T>,
        looker: Looker<T>,
        registrar: Registrar<T>,
        first: Result<Registered, Error>,
        units: Vec<Arc<dyn Unit<T>>>,
    ) -> Self {
        let (first, renewed) = match first {
            Ok((stored, renewed)) => (Ok(stored), renewed),
            Err(error) => (Err(error), None),
        };
        let (tell_registered, registered) = watch::channel(None);
        let (mut all, mut contexts) = (Vec::new(), Vec::new());
        let registrar = Arc::new(registrar);
        for (at, (unit, definition)) in units.into_iter().zip(&registrar.definitions).enumerate() {
            let (tell, progress) = watch::channel(Progress::default());
            let (id, filter) = (definition.id.clone(), definition.filter.clone());
            let committed = LastCommit::default();
            let context = Context {
                store: Arc::clone(&started.store),
                target: started.target.clone(),
                node: started.node,
                config: Arc::clone(&started.config),
                id: id.clone(),
                filter: filter.clone(),
                progress: tell,
                looks: started.looks.clone(),
                committed: committed.clone(),
                registrar: Arc::clone(&registrar),
                stopping: started.stopping.clone(),
                begins_at_start: Arc::default(),
                begin_at: started.begin_at.get(&id.name).cloned(),
            };
            contexts.push(context.clone());
            all.push(One {
                id,
                filter,
                progress,
                committed,
                task: tokio::spawn(begin(unit, context, registered.clone(), at)),
            });
        }
        let (back_off, stopping) = (started.config.back_off, started.stopping.clone());
        let looker = tokio::spawn(async move {
            let registered = match first {
                Ok(registered) => Some(registered),
                Err(error) => {
                    let back_off = BackOff::new(back_off.0, back_off.1);
                    let tell = |away, error: &Error| tell_all(&contexts, away, error);
                    let later = registrar.register_later(error, back_off, &stopping, tell);
                    let later = later.await;
                    looker.at_once.notify_one();
                    later
                }
            };
            // Who waits for it ends if there is nothing.
            let Some(registered) = registered else { return };
            drop((contexts, registrar));
            tell_registered.send_replace(Some(registered));
            looker.run(renewed).await;
        });
        Self {
            api: Api::of(&started.store, started.target.clone()),
            started,
            all,
            looker,
        }
    }

    /// Shows and steers the projections of the target, also those of other processes.
    #[must_use]
    pub fn control(&self) -> Control<T> {
        Control::of(self.started.target.clone())
    }

    /// Answers requests over HTTP about the projections of the target, also those of other processes.
    #[must_use]
    pub fn api(&self) -> Api<T> {
        self.api.clone()
    }

    /// Looks at states and commands now, instead of within [`Config::look_every`].
    pub fn look_now(&self) {
        self.started.at_once.notify_one();
    }

    /// Returns the versions that this process runs, or stands by for.
    #[must_use]
    pub fn ids(&self) -> Vec<ProjectionId> {
        self.all.iter().map(|one| one.id.clone()).collect()
    }

    /// Returns what this process knows of a version, as a channel that tells each change.
    ///
    /// # Errors
    /// `NotFound` if this process does not run it.
    pub fn progress(&self, id: &ProjectionId) -> Result<watch::Receiver<Progress>, Error> {
        let mut all = self.all.iter();
        all.find(|one| one.id == *id)
            .map(|one| one.progress.clone())
            .ok_or_else(|| Error::NotFound(id.to_string()))
    }

    /// Returns how far the active version of a projection is behind, right now.
    ///
    /// # Errors
    /// `NotFound` if this process does not know the projection; `Store` and `Target` if they do not answer.
    pub async fn lag(&self, name: &str) -> Result<Lag, Error> {
        let (place, filter, _) = self.place(name).await?;
        lag_at(&*self.started.store, &place, filter).await
    }

    /// Waits until the active version of a projection shows everything up to a checkpoint, as that of an append.
    ///
    /// # Errors
    /// `TimedOut` with how far it is behind; `NotRunning` if it is paused or has stopped; `Reset` if it was reset
    /// meanwhile; `NotFound` if this process does not know the projection; `Invalid` if the checkpoint is of another
    /// store; `WaitsInApply` within [`Projection::apply`](crate::Projection::apply).
    pub async fn wait_for(
        &self,
        name: &str,
        checkpoint: &Checkpoint,
        timeout: Duration,
    ) -> Result<(), Error> {
        if is_applying() {
            return Err(Error::WaitsInApply);
        }
        let until = tokio::time::Instant::now() + timeout;
        // Whoever does not wait at all is answered too, by one look; but nobody waits for a database that hangs.
        let answers_until = until + self.started.config.lease;
        let mut events = 0;
        let waiting = self.wait_until(name, checkpoint, until, &mut events);
        let waited = tokio::time::timeout_at(answers_until, waiting).await;
        match waited {
            Ok(Ok(true)) => Ok(()),
            Ok(Err(error)) => Err(error),
            Ok(Ok(false)) | Err(_) => Err(Error::TimedOut {
                name: name.to_owned(),
                events,
                waited: timeout,
            }),
        }
    }

    /// Waits as [`wait_for`](Self::wait_for) does; false once the time is over, with the events that are missing.
    async fn wait_until(
        &self,
        name: &str,
        checkpoint: &Checkpoint,
        until: tokio::time::Instant,
        events: &mut u64,
    ) -> Result<bool, Error> {
        let (min, max) = WAIT_LOOKS;
        let mut back_off = BackOff::new(min, max);
        let mut resets = None;
        if let Some(own) = self.only_version(name) {
            // As a rule the events are applied in a moment, by this process: no question to the target, nor to the
            // store.
            let before = resets_of(&own.progress.borrow());
            resets = before.map(|resets| (own.id.clone(), resets));
            let session = own.committed.get().map(|committed| committed.epoch);
            let pause = tokio::time::Instant::now() + back_off.pause();
            self.reached_here(&own.id, checkpoint, pause.min(until))
                .await;
            let session_now = own.committed.get().map(|committed| committed.epoch);
            let progress = own.progress.borrow();
            let place = progress.checkpoint.as_ref();
            if before.is_some()
                && before == resets_of(&progress)
                && session_now.is_some()
                && session_now == session
                && place.is_some_and(|place| covers(place, checkpoint) == Some(true))
            {
                return Ok(true);
            }
        }
        loop {
            let (place, filter, row) = self.place(name).await?;
            match resets.replace((row.id.clone(), row.resets)) {
                // Another version has the readers since: it was not reset.
                Some((id, before)) if id == row.id && before != row.resets => {
                    return Err(Error::Reset(name.to_owned()));
                }
                _ => {}
            }
            let store = &*self.started.store;
            match covers(&place, checkpoint) {
                Some(true) => return Ok(true),
                Some(false) => {
                    *events = distance(&place, checkpoint);
                    let next = next_match(store, &place, filter, checkpoint, usize::MAX).await?;
                    if next == Next::Nothing {
                        return Ok(true);
                    }
                }
                None => *events = behind_all(store, checkpoint).await?,
            }
            if row.state != State::Running {
                return Err(Error::NotRunning {
                    name: name.to_owned(),
                    state: row.state,
                    why: row.error,
                });
            }
            if tokio::time::Instant::now() >= until {
                return Ok(false);
            }
            let pause = tokio::time::Instant::now() + back_off.pause();
            self.reached_here(&row.id, checkpoint, pause.min(until))
                .await;
        }
    }

    /// Returns the active version of a projection if this process owns it, and there was no other one at the last look,
    /// which was a moment ago: a process that has stood still does not answer by what was so before. Nor does one whose
    /// target shows less at that look than was committed.
    fn only_version(&self, name: &str) -> Option<&One> {
        let look = self.started.looks.borrow();
        let config = &self.started.config;
        let fresh = (config.look_every * 2).min(config.lease / 3);
        let at = look.at.filter(|at| at.elapsed() <= fresh)?;
        let mut rows = look.rows.iter();
        let row = rows.find(|row| row.id.name == name && row.life != Life::Retired)?;
        let is_only = rows.all(|row| row.id.name != name || row.life == Life::Retired);
        let owns = row.owner == Some(self.started.node) && row.state == State::Running;
        let is_own = is_only && owns && row.life == Life::Active;
        let one = self.all.iter().find(|one| is_own && one.id == row.id)?;
        let committed = one.committed.get()?;
        (!committed.is_lost(at, Some(row))).then_some(one)
    }

    /// Waits until this process has come so far, or for the time given.
    async fn reached_here(
        &self,
        id: &ProjectionId,
        checkpoint: &Checkpoint,
        until: tokio::time::Instant,
    ) {
        let Ok(mut progress) = self.progress(id) else {
            return tokio::time::sleep_until(until).await;
        };
        let reached = progress.wait_for(|progress| {
            let place = progress.checkpoint.as_ref();
            place.is_some_and(|place| covers(place, checkpoint) == Some(true))
        });
        let has_ended = matches!(tokio::time::timeout_at(until, reached).await, Ok(Err(_)));
        if has_ended {
            tokio::time::sleep_until(until).await;
        }
    }

    /// Returns how far the active version has come, with its filter. In the process of its owner this is known at once,
    /// unless the target has lost what was committed.
    async fn place(&self, name: &str) -> Result<(Checkpoint, &Filter, Stored), Error> {
        let begun = tokio::time::Instant::now();
        let mut rows = self.started.target.list().await?;
        let at = rows
            .iter()
            .position(|row| row.id.name == name && row.life == Life::Active)
            .ok_or_else(|| Error::NotFound(name.to_owned()))?;
        let row = rows.swap_remove(at);
        let here = self.all.iter().find(|one| one.id == row.id);
        // Another version of the same name in this process may have another filter, which says nothing here.
        let here = here.ok_or_else(|| Error::NotFound(row.id.to_string()))?;
        let progress = here.progress.borrow();
        let own = progress.checkpoint.clone().filter(|own| {
            // A commit whose answer came after the read was begun may not be in it; nor may it be lost then.
            let committed = here.committed.get();
            row.owner == Some(self.started.node)
                && committed.is_some_and(|committed| {
                    committed.epoch == row.epoch && !committed.is_lost(begun, Some(&row))
                })
                && progress.resets == row.resets
                && covers(own, &row.checkpoint) == Some(true)
        });
        drop(progress);
        Ok((
            own.unwrap_or_else(|| row.checkpoint.clone()),
            &here.filter,
            row,
        ))
    }

    /// Stops all projections: each ends the batch that it is writing, stores its position and gives itself free.
    pub async fn shutdown(mut self) {
        self.started.stopping.cancel();
        for one in &mut self.all {
            if let Err(error) = (&mut one.task).await {
                tracing::warn!(%error, projection = %one.id, "a projection did not stop in good order");
            }
        }
        // Only now, so that the lease is kept while they end, and not renewed once it is given up.
        self.looker.abort();
        let _ = (&mut self.looker).await;
        let (node, name) = (self.started.node, &self.started.config.node_name);
        let ended = self.started.target.renew(node, name, Duration::ZERO);
        if let Err(error) = ended.await {
            tracing::debug!(%error, "the lease was not given up; it ends by itself");
        }
    }
}

/// Returns how often a projection was reset, as far as this process knows it.
fn resets_of(progress: &Progress) -> Option<i64> {
    progress.checkpoint.as_ref().map(|_| progress.resets)
}

/// Tells all projections why they are not registered, and what is away.
fn tell_all<T: Target>(contexts: &[Context<T>], away: Option<Phase>, error: &Error) {
    match away {
        Some(_) => tracing::warn!(%error, "projections cannot be registered, trying again"),
        None => tracing::error!(%error, "projections cannot be registered, and do not run"),
    }
    for context in contexts {
        match away {
            Some(phase) => context.failed(phase, error.to_string()),
            None => context.tell(Phase::Stopped, Some(error.to_string())),
        }
    }
}

/// Runs a projection once it is registered.
async fn begin<T: Target>(
    unit: Arc<dyn Unit<T>>,
    context: Context<T>,
    mut registered: watch::Receiver<Option<Vec<Stored>>>,
    at: usize,
) {
    let floor = match registered.wait_for(Option::is_some).await {
        Ok(found) => found.as_ref().map(|rows| rows[at].floor.clone()),
        // Nothing more is told: the process stops, or it was refused, which was told.
        Err(_) => {
            if context.stopping.is_cancelled() {
                context.tell(Phase::Ended, None);
            }
            return;
        }
    };
    drop(registered);
    if let Some(floor) = floor {
        context.begins(&floor);
    }
    supervise(unit, context).await;
}

/// Runs a projection, and begins it again if its task panics, which would be a mistake of this crate.
async fn supervise<T: Target>(unit: Arc<dyn Unit<T>>, context: Context<T>) {
    loop {
        let run = tokio::spawn(Arc::clone(&unit).run(context.clone()));
        let guard = tokio_util::task::AbortOnDropHandle::new(run);
        let Err(error) = guard.await else { return };
        let text = match error.try_into_panic() {
            Ok(panic) => panic_text(&*panic),
            Err(error) => error.to_string(),
        };
        tracing::error!(projection = %context.id, error = %text, "the task of a projection has ended");
        context.tell(Phase::Retrying, Some(text));
        tokio::select! {
            () = context.stopping.cancelled() => return,
            () = tokio::time::sleep(BEGIN_AGAIN_AFTER) => {}
        }
    }
}
