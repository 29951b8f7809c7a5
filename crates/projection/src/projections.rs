//! What an application writes to run its projections.

use std::collections::HashMap;
use std::sync::Arc;

use gesta_core::{Checkpoint, EventStore, Filter, StoreInfo};
use tokio::sync::{Notify, watch};
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use crate::api::METRICS;
use crate::batch::not_of;
use crate::begin_at::{BeginAt, floor_now};
use crate::config::{Config, OnPoison};
use crate::definition::{ProjectionId, Registration, Table, made_with};
use crate::error::Error;
use crate::index::{Index, IndexUnit};
use crate::looks::{Look, Looker};
use crate::projection::Projection;
use crate::running::{Running, Started};
use crate::state::Life;
use crate::target::{Stored, Target};
use crate::unit::{ProjectionUnit, Unit, ViewUnit};
use crate::view::View;

/// Name and version, table, names for readers, filter, and what is stored of an index.
type Definition = (
    ProjectionId,
    Option<Table>,
    Vec<String>,
    Filter,
    Option<String>,
);

/// The projections that a process runs, before they run.
pub struct Projections<T: Target> {
    store: Arc<dyn EventStore>,
    target: T,
    config: Config,
    units: Vec<Arc<dyn Unit<T>>>,
    begin_at: HashMap<String, BeginAt>,
}

impl<T: Target> std::fmt::Debug for Projections<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Projections({})", self.units.len())
    }
}

impl<T: Target> Projections<T> {
    /// Begins a list of projections of the events of a store, whose rows are in a target.
    #[must_use]
    pub fn on(store: &Arc<dyn EventStore>, target: T) -> Self {
        Self {
            store: Arc::clone(store),
            target,
            config: Config::default(),
            units: Vec::new(),
            begin_at: HashMap::new(),
        }
    }

    /// Adds a view.
    #[must_use]
    pub fn view<V: View>(self, view: V) -> Self {
        self.view_as(V::NAME, view)
    }

    /// Adds a view under another name than its own: the same code may keep several read models, for example one for
    /// each tag.
    #[must_use]
    pub fn view_as<V: View>(mut self, name: &str, view: V) -> Self {
        let (view, name) = (Arc::new(view), name.to_owned());
        self.units.push(Arc::new(ViewUnit { view, name }));
        self
    }

    /// Adds a projection with SQL of its own.
    #[must_use]
    pub fn projection<P: Projection<T>>(mut self, projection: P) -> Self {
        self.units
            .push(Arc::new(ProjectionUnit(Arc::new(projection))));
        self
    }

    /// Adds an index.
    #[must_use]
    pub fn index(mut self, index: Index) -> Self {
        self.units.push(Arc::new(IndexUnit(index)));
        self
    }

    /// Sets where a projection of this name begins when its present version is registered. A reset begins there again;
    /// if the store is another one by then, because it was restored, the reset works the place out anew.
    #[must_use]
    pub fn begin_at(mut self, name: &str, at: BeginAt) -> Self {
        self.begin_at.insert(name.to_owned(), at);
        self
    }

    /// Sets what becomes of events that cannot be applied.
    #[must_use]
    pub fn on_poison(mut self, on_poison: OnPoison) -> Self {
        self.config.on_poison = on_poison;
        self
    }

    /// Sets bounds and times.
    #[must_use]
    pub fn config(mut self, config: Config) -> Self {
        self.config = config;
        self
    }

    /// Registers the projections and begins to run them.
    ///
    /// # Errors
    /// `Invalid` if a name or a bound breaks a rule, or two projections are the same version of one name; `Changed` if
    /// a version is registered with another filter or other columns; `Store` and `Target` if they do not answer.
    pub async fn start(self) -> Result<Running<T>, Error> {
        self.config.validate()?;
        let mut definitions: Vec<Definition> = Vec::new();
        for unit in &self.units {
            let (id, table, read_as) = unit.definition()?;
            if id.name == METRICS {
                return Err(Error::Invalid(format!(
                    "a projection cannot be named {METRICS}: over HTTP, GET …/{METRICS} gives the metrics of all"
                )));
            }
            let filter = unit.filter();
            filter.validate()?;
            if definitions.iter().any(|(other, ..)| *other == id) {
                return Err(Error::Invalid(format!("{id} was added twice")));
            }
            definitions.push((id, table, read_as, filter, unit.stored_definition()));
        }
        if let Some(name) = self
            .begin_at
            .keys()
            .find(|name| !definitions.iter().any(|(id, ..)| id.name == **name))
        {
            return Err(Error::NotFound(name.clone()));
        }
        let info = self.store.info().await?;
        self.target.migrate().await?;
        let known = self.target.list().await?;
        let mut registered = Vec::new();
        for (id, table, read_as, filter, definition) in definitions {
            let made_with = made_with(&filter, table.as_ref());
            let start = match known.iter().find(|row| row.id == id) {
                Some(row) => row.floor.clone(),
                None => self.begin(&id, &info, &known).await?,
            };
            let registration = Registration {
                id: id.clone(),
                table,
                read_as,
                made_with,
                filter: filter.clone(),
                definition,
                start,
            };
            let stored = self.target.register(&registration).await?;
            if stored.made_with != made_with || stored.definition != registration.definition {
                return Err(Error::Changed {
                    name: id.name,
                    version: id.version,
                });
            }
            registered.push((id, filter, stored));
        }
        self.run(registered).await
    }

    /// Returns where a version begins: where it is told to, or where the active version before it began.
    async fn begin(
        &self,
        id: &ProjectionId,
        info: &StoreInfo,
        known: &[Stored],
    ) -> Result<Checkpoint, Error> {
        let checkpoint = match self.begin_at.get(&id.name) {
            Some(begin_at) => begin_at.place(&*self.store, info).await?,
            None => {
                let mut before = known.iter().filter(|row| row.id.name == id.name);
                match before.find(|row| row.life == Life::Active) {
                    Some(row) => match floor_now(&row.floor, None, &*self.store, info).await {
                        Err(Error::Invalid(why)) => {
                            let before = &row.id;
                            return Err(Error::Invalid(format!(
                                "{id} cannot begin where {before} began: {why}"
                            )));
                        }
                        floor => floor?,
                    },
                    None => BeginAt::Start.place(&*self.store, info).await?,
                }
            }
        };
        match not_of(info, &checkpoint) {
            None => Ok(checkpoint),
            Some(why) => Err(Error::Invalid(format!(
                "{id} cannot begin at {checkpoint}: {why}"
            ))),
        }
    }

    async fn run(
        self,
        registered: Vec<(ProjectionId, Filter, Stored)>,
    ) -> Result<Running<T>, Error> {
        let node = Uuid::new_v4();
        let (found, looks) = watch::channel(Look::default());
        let at_once = Arc::new(Notify::new());
        let stopping = CancellationToken::new();
        let looker = Looker {
            target: self.target.clone(),
            node,
            node_name: self.config.node_name.clone(),
            lease: self.config.lease,
            look_every: self.config.look_every,
            at_once: Arc::clone(&at_once),
            found,
        };
        let mut renewed = None;
        looker.look(&mut renewed).await?;
        let started = Started {
            store: self.store,
            target: self.target,
            node,
            config: Arc::new(self.config),
            begin_at: self.begin_at,
            looks,
            at_once,
            stopping,
        };
        let units = self.units.into_iter().zip(registered);
        Ok(Running::new(started, looker, renewed, units.collect()))
    }
}
