//! What is registered before projections run, and again as long as a database is away.
//!
//! Why: an application that starts while the database of its read models is away should answer what it can, and not
//! end. And a target may be put back to before a version was registered, under a process that runs it.
//! Invariant: to register again changes nothing that is registered.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use gesta_core::{BackOff, Checkpoint, ErrorKind, EventStore, Filter, StoreInfo};
use tokio_util::sync::CancellationToken;

use crate::batch::not_of;
use crate::begin_at::{BeginAt, floor_now};
use crate::definition::{ProjectionId, Registration, Table, made_with};
use crate::error::{Error, TargetErrorKind};
use crate::progress::Phase;
use crate::state::Life;
use crate::target::{Stored, Target};

/// A version as the program defines it.
pub(crate) struct Definition {
    pub(crate) id: ProjectionId,
    pub(crate) table: Option<Table>,
    /// The names that readers use.
    pub(crate) read_as: Vec<String>,
    pub(crate) filter: Filter,
    /// What is stored of an index.
    pub(crate) stored: Option<String>,
}

/// Registers the versions that a process runs.
pub(crate) struct Registrar<T> {
    pub(crate) store: Arc<dyn EventStore>,
    pub(crate) target: T,
    pub(crate) begin_at: HashMap<String, BeginAt>,
    pub(crate) definitions: Vec<Definition>,
    /// Where each version began when this process has registered it.
    pub(crate) floors: Mutex<HashMap<ProjectionId, Checkpoint>>,
}

/// Returns what is away, if the same may succeed later; `None` if it is refused.
pub(crate) fn away(error: &Error) -> Option<Phase> {
    match error {
        Error::Store(error) => match error.kind() {
            ErrorKind::Unavailable(_) | ErrorKind::Overloaded(_) | ErrorKind::OutcomeUnknown(_) => {
                Some(Phase::StoreAway)
            }
            _ => None,
        },
        Error::Target(error) => match error.kind() {
            TargetErrorKind::Away | TargetErrorKind::InDoubt => Some(Phase::TargetAway),
            _ => None,
        },
        _ => None,
    }
}

impl<T: Target> Registrar<T> {
    /// Registers all versions. Returns what is stored of each, in their order.
    pub(crate) async fn register(&self) -> Result<Vec<Stored>, Error> {
        let info = self.store.info().await?;
        self.target.migrate().await?;
        let known = self.target.list().await?;
        let mut registered = Vec::new();
        for definition in &self.definitions {
            let id = &definition.id;
            let made_with = made_with(&definition.filter, definition.table.as_ref());
            let floor = self.floors().get(id).cloned();
            let start = match (known.iter().find(|row| row.id == *id), floor) {
                (Some(row), _) => row.floor.clone(),
                // The target was put back to before it was registered: the end, or a time, may be elsewhere now.
                (None, Some(floor)) if not_of(&info, &floor).is_none() => floor,
                (None, _) => self.begin(id, &info, &known).await?,
            };
            let registration = Registration {
                id: id.clone(),
                table: definition.table.clone(),
                read_as: definition.read_as.clone(),
                made_with,
                filter: definition.filter.clone(),
                definition: definition.stored.clone(),
                start,
            };
            let stored = self.target.register(&registration).await?;
            if stored.made_with != made_with || stored.definition != registration.definition {
                return Err(Error::Changed {
                    name: id.name.clone(),
                    version: id.version,
                });
            }
            self.floors().insert(id.clone(), stored.floor.clone());
            registered.push(stored);
        }
        Ok(registered)
    }

    fn floors(&self) -> MutexGuard<'_, HashMap<ProjectionId, Checkpoint>> {
        self.floors.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Registers all versions once store and target answer. `tell` is told of each failure, with what is away; with
    /// nothing that is away if the versions are refused. Returns nothing then, or if the process stops.
    pub(crate) async fn register_later(
        &self,
        mut error: Error,
        mut back_off: BackOff,
        stopping: &CancellationToken,
        tell: impl Fn(Option<Phase>, &Error),
    ) -> Option<Vec<Stored>> {
        loop {
            let away = away(&error);
            tell(away, &error);
            away?;
            let again = async {
                tokio::time::sleep(back_off.pause()).await;
                self.register().await
            };
            match stopping.run_until_cancelled(again).await? {
                Ok(registered) => return Some(registered),
                Err(failure) => error = failure,
            }
        }
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
}
