//! What an application writes to run its projections.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use gesta_core::EventStore;
use tokio::sync::{Notify, watch};
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use crate::api::METRICS;
use crate::begin_at::BeginAt;
use crate::config::{Config, OnPoison, OnRestore};
use crate::error::Error;
use crate::index::{Index, IndexUnit};
use crate::looks::{Look, Looker};
use crate::projection::Projection;
use crate::registrar::{Definition, Registrar, away};
use crate::running::{Running, Started};
use crate::target::Target;
use crate::unit::{ProjectionUnit, Unit, ViewUnit};
use crate::view::View;

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

    /// Sets what becomes of versions if the store was restored.
    #[must_use]
    pub fn on_restore(mut self, on_restore: OnRestore) -> Self {
        self.config.on_restore = on_restore;
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
    /// a version is registered with another filter or other columns; `Store` and `Target` if they do not answer, unless
    /// [`Config::start_waits`] says that the projections begin later then, or if they refuse.
    pub async fn start(self) -> Result<Running<T>, Error> {
        self.config.validate()?;
        let definitions = self.definitions()?;
        let node = Uuid::new_v4();
        let (found, looks) = watch::channel(Look::default());
        let at_once = Arc::new(Notify::new());
        let looker = Looker {
            target: self.target.clone(),
            node,
            node_name: self.config.node_name.clone(),
            lease: self.config.lease,
            look_every: self.config.look_every,
            at_once: Arc::clone(&at_once),
            found,
        };
        let start_waits = self.config.start_waits;
        let registrar = Registrar {
            store: Arc::clone(&self.store),
            target: self.target.clone(),
            begin_at: self.begin_at.clone(),
            definitions,
            floors: Mutex::default(),
        };
        let started = Started {
            store: self.store,
            target: self.target,
            node,
            config: Arc::new(self.config),
            begin_at: self.begin_at,
            looks,
            at_once,
            stopping: CancellationToken::new(),
        };
        let first = match registrar.register().await {
            Ok(registered) => {
                let mut renewed = None;
                let looked = looker.look(&mut renewed).await;
                looked.map(|()| (registered, renewed)).map_err(Error::from)
            }
            Err(error) => Err(error),
        };
        match first {
            Err(error) if !start_waits || away(&error).is_none() => Err(error),
            first => Ok(Running::new(started, looker, registrar, first, self.units)),
        }
    }

    /// Checks the definitions of all units.
    fn definitions(&self) -> Result<Vec<Definition>, Error> {
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
            if definitions.iter().any(|other| other.id == id) {
                return Err(Error::Invalid(format!("{id} was added twice")));
            }
            definitions.push(Definition {
                id,
                table,
                read_as,
                filter,
                stored: unit.stored_definition(),
            });
        }
        let mut names = self.begin_at.keys();
        match names.find(|name| !definitions.iter().any(|one| one.id.name == **name)) {
            Some(name) => Err(Error::NotFound(name.clone())),
            None => Ok(definitions),
        }
    }
}
