//! How effects are run: one process performs, others stand by, and the checkpoint lies in the event store.
//!
//! Why: a mail or a call over HTTP is in no transaction, so it happens at least once; what is left to do well is to
//! repeat little, to keep the order, and to let one process do it.
//! Invariants: the stream of an effect has one writer at a time. Each of its states is appended under the revision of
//! the one before, so of two processes that take each other for dead one finds out at its next state, and stops. A
//! checkpoint is stored after its events were handled.
//!
//! * `states`: the states in the stream; `owner`: the task of one effect.

mod owner;
mod states;

use std::sync::Arc;
use std::time::Duration;

use futures::future::BoxFuture;
use gesta_core::EventStore;
use gesta_core::system_streams::EFFECT_PREFIX;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use crate::batch::not_of;
use crate::begin_at::BeginAt;
use crate::config::Config;
use crate::definition::check_name;
use crate::effect::Effect;
use crate::error::Error;
use crate::progress::Progress;

use owner::{Own, run};
use states::EffectStates;

/// For how long a process that is not heard keeps its effects, unless said otherwise. It says that it lives by an
/// event, which should not come often.
const LEASE: Duration = Duration::from_secs(60);

type Start = Box<dyn FnOnce(Own) -> BoxFuture<'static, ()> + Send>;

struct Definition {
    name: &'static str,
    version: u32,
    begin_at: BeginAt,
    start: Start,
}

/// The effects that a process performs, before it does.
pub struct Effects {
    store: Arc<dyn EventStore>,
    config: Config,
    prefix: String,
    after_restore: Option<BeginAt>,
    all: Vec<Definition>,
}

impl std::fmt::Debug for Effects {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list()
            .entries(self.all.iter().map(|one| one.name))
            .finish()
    }
}

impl Effects {
    /// Begins a list of effects of the events of a store.
    #[must_use]
    pub fn on(store: &Arc<dyn EventStore>) -> Self {
        Self {
            store: Arc::clone(store),
            config: Config {
                lease: LEASE,
                ..Config::default()
            },
            prefix: EFFECT_PREFIX.to_owned(),
            after_restore: None,
            all: Vec::new(),
        }
    }

    /// Adds an effect, and says where it begins if none of its versions has ever run: at the end, unless all that ever
    /// happened is to have the effect now.
    #[must_use]
    pub fn effect<E: Effect>(self, effect: E, first: BeginAt) -> Self {
        self.effect_as(E::NAME, effect, first)
    }

    /// Adds an effect under another name than its own: the same code may have several effects, for example one for each
    /// tag.
    #[must_use]
    pub fn effect_as<E: Effect>(mut self, name: &'static str, effect: E, first: BeginAt) -> Self {
        self.all.push(Definition {
            name,
            version: E::VERSION,
            begin_at: first,
            start: Box::new(move |own| Box::pin(run(Arc::new(effect), own))),
        });
        self
    }

    /// Sets bounds and times. Of them effects use `batch_events_max` (of a page), `lease`, `look_every`,
    /// `attempts_max`,
    /// `on_poison`, `back_off`, and `store_position_every`: the longest time between two checkpoints.
    #[must_use]
    pub fn config(mut self, config: Config) -> Self {
        self.config = config;
        self
    }

    /// Sets what the streams begin with that keep the states: `$effect-` unless said otherwise. Streams that begin with
    /// `$` are for administrators on a server with users.
    #[must_use]
    pub fn keep_in(mut self, prefix: &str) -> Self {
        prefix.clone_into(&mut self.prefix);
        self
    }

    /// Says where effects go on by themselves if their checkpoint is not of the store as it is now, because that was
    /// restored or replaced; the log says so at level error. Unless this is said they stop, and wait for
    /// [`RunningEffects::begin_again`].
    #[must_use]
    pub fn after_restore(mut self, at: BeginAt) -> Self {
        self.after_restore = Some(at);
        self
    }

    /// Begins to perform.
    ///
    /// # Errors
    /// `Invalid` if a name or a bound breaks a rule, or two effects have one name; `Store` if it does not answer.
    pub async fn start(self) -> Result<RunningEffects, Error> {
        self.config.validate()?;
        for (at, one) in self.all.iter().enumerate() {
            check_name("the name of an effect", one.name)?;
            if self.all[..at].iter().any(|other| other.name == one.name) {
                return Err(Error::Invalid(format!(
                    "effect {} was added twice",
                    one.name
                )));
            }
        }
        let info = self.store.info().await?;
        let config = Arc::new(self.config);
        let (node, stopping) = (Uuid::new_v4(), CancellationToken::new());
        let mut all = Vec::new();
        for one in self.all {
            let states = EffectStates::new(
                Arc::clone(&self.store),
                &self.prefix,
                one.name,
                stopping.clone(),
            )?;
            let (tell, progress) = watch::channel(Progress::default());
            let own = Own {
                store: Arc::clone(&self.store),
                config: Arc::clone(&config),
                states: states.clone(),
                version: one.version,
                node,
                first: one.begin_at.place(&*self.store, &info).await?,
                after_restore: self.after_restore.clone(),
                progress: tell,
                stopping: stopping.clone(),
            };
            all.push(RunningEffect {
                name: one.name,
                version: one.version,
                progress,
                states,
                task: tokio::spawn((one.start)(own)),
            });
        }
        Ok(RunningEffects {
            store: self.store,
            all,
            stopping,
        })
    }
}

struct RunningEffect {
    name: &'static str,
    version: u32,
    progress: watch::Receiver<Progress>,
    states: EffectStates,
    task: JoinHandle<()>,
}

/// The effects that a process performs. Dropping it ends them.
pub struct RunningEffects {
    store: Arc<dyn EventStore>,
    all: Vec<RunningEffect>,
    stopping: CancellationToken,
}

impl std::fmt::Debug for RunningEffects {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list()
            .entries(self.all.iter().map(|one| one.name))
            .finish()
    }
}

impl Drop for RunningEffects {
    fn drop(&mut self) {
        self.stopping.cancel();
    }
}

impl RunningEffects {
    fn find(&self, name: &str) -> Result<&RunningEffect, Error> {
        let mut all = self.all.iter();
        all.find(|one| one.name == name)
            .ok_or_else(|| Error::NotFound(name.to_owned()))
    }

    /// Returns what this process knows of an effect, as a channel that tells each change.
    ///
    /// # Errors
    /// `NotFound` if this process does not perform it.
    pub fn progress(&self, name: &str) -> Result<watch::Receiver<Progress>, Error> {
        Ok(self.find(name)?.progress.clone())
    }

    /// Lets an effect that has stopped at an event try it again.
    ///
    /// # Errors
    /// `NotFound` if this process does not perform it; `Invalid` if it has stopped because the store was restored, or
    /// because its states are hidden: then [`begin_again`](Self::begin_again) leads on; `Store` if the store does not
    /// answer.
    pub async fn resume(&self, name: &str) -> Result<(), Error> {
        self.find(name)?.states.resume().await
    }

    /// Lets an effect go on at another place, whether it has stopped or not: after a restore of the store, whose events
    /// are others from some place on, nothing else leads on. A process at work notices it when it stores its
    /// checkpoint, and performs what it has read until then.
    ///
    /// # Errors
    /// `NotFound` if this process does not perform it; `Invalid` if the place is not one of the store as it is now;
    /// `Store` if the store does not answer.
    pub async fn begin_again(&self, name: &str, at: BeginAt) -> Result<(), Error> {
        let one = self.find(name)?;
        let info = self.store.info().await?;
        let place = at.place(&*self.store, &info).await?;
        if let Some(why) = not_of(&info, &place) {
            let text = format!("effect {name} cannot begin at {place}: {why}");
            return Err(Error::Invalid(text));
        }
        one.states.begin_again(one.version, &place).await
    }

    /// Stops all effects: each ends the event that it is about, stores its checkpoint and gives itself free.
    pub async fn shutdown(mut self) {
        self.stopping.cancel();
        for one in &mut self.all {
            if let Err(error) = (&mut one.task).await {
                tracing::warn!(%error, effect = one.name, "an effect did not stop in good order");
            }
        }
    }
}
