//! What an application writes to run its projections.

use std::collections::HashMap;
use std::sync::Arc;

use gesta_core::{
    AllFrom, Checkpoint, EventStore, Filter, LogId, Position, ReadAll, StoreInfo, Timestamp,
};
use tokio::sync::{Notify, watch};
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use crate::batch::positions;
use crate::config::{Config, OnPoison};
use crate::definition::{ProjectionId, Registration, Table, made_with};
use crate::drive::not_of;
use crate::error::Error;
use crate::looks::{Look, Looker};
use crate::projection::Projection;
use crate::running::{Running, Started};
use crate::state::Life;
use crate::target::{Stored, Target};
use crate::unit::{ProjectionUnit, Unit, ViewUnit};
use crate::view::View;

/// Where a version begins that was never registered before. It is kept with the version: a reset begins there again,
/// and a later version that says nothing else begins there too.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum BeginAt {
    /// Before the first event.
    Start,
    /// After a place.
    Checkpoint(Checkpoint),
    /// Before the first event, of each log, that was stored at this time or later.
    Time(Timestamp),
}

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
    pub fn view<V: View>(mut self, view: V) -> Self {
        self.units.push(Arc::new(ViewUnit(Arc::new(view))));
        self
    }

    /// Adds a projection with SQL of its own.
    #[must_use]
    pub fn projection<P: Projection<T>>(mut self, projection: P) -> Self {
        self.units
            .push(Arc::new(ProjectionUnit(Arc::new(projection))));
        self
    }

    /// Sets where a projection of this name begins when its present version is registered.
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
        let mut definitions: Vec<(ProjectionId, Option<Table>, Vec<String>, Filter)> = Vec::new();
        for unit in &self.units {
            let (id, table, read_as) = unit.definition()?;
            let filter = unit.filter();
            filter.validate()?;
            if definitions.iter().any(|(other, ..)| *other == id) {
                return Err(Error::Invalid(format!("{id} was added twice")));
            }
            definitions.push((id, table, read_as, filter));
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
        for (id, table, read_as, filter) in definitions {
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
                start,
            };
            let stored = self.target.register(&registration).await?;
            if stored.made_with != made_with {
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
        let start = Checkpoint::logs(info.incarnation, vec![Position::START; info.heads.len()]);
        let checkpoint = match self.begin_at.get(&id.name) {
            Some(BeginAt::Start) => start,
            Some(BeginAt::Checkpoint(checkpoint)) => checkpoint.clone(),
            Some(BeginAt::Time(time)) => place_at(&*self.store, info, *time).await?,
            None => {
                let mut before = known.iter().filter(|row| row.id.name == id.name);
                before
                    .find(|row| row.life == Life::Active)
                    .map_or(start, |row| row.floor.clone())
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
            stopping: stopping.clone(),
        };
        let mut renewed = None;
        looker.look(&mut renewed).await?;
        let started = Started {
            store: self.store,
            target: self.target,
            node,
            config: Arc::new(self.config),
            looks,
            at_once,
            stopping,
        };
        let units = self.units.into_iter().zip(registered);
        Ok(Running::new(started, looker, renewed, units.collect()))
    }
}

/// Returns the place before the first event of each log that was stored at this time or later. The times of a log never
/// decrease, so each is found by some twenty or forty reads of one event.
async fn place_at(
    store: &dyn EventStore,
    info: &StoreInfo,
    time: Timestamp,
) -> Result<Checkpoint, Error> {
    let mut places = Vec::with_capacity(info.heads.len());
    for (log, head) in (0..).map(LogId).zip(&info.heads) {
        let (mut before, mut end) = (0, head.0);
        // Every event up to `before` is older; the events after `end` are not.
        while before < end {
            let middle = before + (end - before) / 2;
            let mut at = vec![Position::START; info.heads.len()];
            at[usize::from(log.0)] = Position(middle);
            let from = AllFrom::Checkpoint(Checkpoint::logs(info.incarnation, at));
            let request = ReadAll::forwards().only(log).from(from).limit(1);
            let page = store.read_all(request).await?;
            match page.events.first() {
                Some(event) if event.created < time => before = event.position.0,
                // Between `middle` and this event is none.
                _ => end = middle,
            }
        }
        places.push(Position(before));
    }
    let place = Checkpoint::logs(info.incarnation, places);
    debug_assert_eq!(positions(&place).len(), info.heads.len());
    Ok(place)
}
