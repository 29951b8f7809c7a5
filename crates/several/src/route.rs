//! Tells which database has a log, by the newest map that this process knows, and reads the map again when it is
//! outdated.
//!
//! Invariants: a call about a log that meets it closed reads the map again before anything else; a map replaces an
//! older one only. Not here: the calls themselves (`backend`).

use std::sync::{Arc, Mutex, PoisonError, RwLock};

use futures::FutureExt;
use futures::future::{BoxFuture, Shared, join_all};
use futures::stream::{FuturesUnordered, StreamExt};
use gesta_core::backend::Backend;
use gesta_core::{DatabaseId, Error, ErrorKind, KeepsMap, LogId, LogMap, MapCopy, Result};

use crate::check::{arrange, with_logs};

/// How often one call is sent at most, if the log moves meanwhile.
const TRIES_MAX: usize = 3;

/// One open database of a store.
#[derive(Clone)]
pub struct DatabasePart {
    /// The copy of the map of the logs that the database keeps.
    pub copy: Arc<MapCopy>,
    /// The backend of the database. It knows all logs of the store by their numbers, and holds events of some of them.
    pub backend: Arc<dyn Backend>,
    /// Reads the copy of the map of this database again.
    pub keeper: Arc<dyn KeepsMap>,
}

impl std::fmt::Debug for DatabasePart {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("DatabasePart")
            .field(&self.copy.here)
            .finish()
    }
}

/// What does not change about an open database.
struct Database {
    id: DatabaseId,
    backend: Arc<dyn Backend>,
    keeper: Arc<dyn KeepsMap>,
}

/// The databases of this process, and the newest map that it knows. The map may name databases that this process was
/// not given, if they have joined the store since.
pub(crate) struct Routes {
    databases: Vec<Database>,
    map: RwLock<Arc<LogMap>>,
    /// The task that reads the copies of the map, or that read them last.
    reading: Mutex<Option<Shared<BoxFuture<'static, ()>>>>,
}

impl Routes {
    /// # Errors
    /// The errors of [`arrange`].
    pub(crate) fn new(parts: &[DatabasePart]) -> Result<Self> {
        let copies: Vec<&MapCopy> = parts.iter().map(|part| &*part.copy).collect();
        let (map, places) = arrange(&copies)?;
        let database = |at: usize| Database {
            id: parts[at].copy.here,
            backend: Arc::clone(&parts[at].backend),
            keeper: Arc::clone(&parts[at].keeper),
        };
        Ok(Self {
            databases: places.into_iter().map(database).collect(),
            map: RwLock::new(Arc::new(map.clone())),
            reading: Mutex::default(),
        })
    }

    pub(crate) fn map(&self) -> Arc<LogMap> {
        Arc::clone(&self.map.read().unwrap_or_else(PoisonError::into_inner))
    }

    pub(crate) fn backends(&self) -> impl Iterator<Item = &Arc<dyn Backend>> {
        self.databases.iter().map(|database| &database.backend)
    }

    pub(crate) fn backend(&self, at: usize) -> &Arc<dyn Backend> {
        &self.databases[at].backend
    }

    /// Returns which of the databases of this process has a log.
    ///
    /// # Errors
    /// `Unavailable` if this process was not given that database; `Corrupt` if there is no such log.
    pub(crate) fn home(&self, log: LogId) -> Result<usize> {
        self.home_in(&self.map(), log)
    }

    /// Returns which of the databases of this process has a log by the given map. What several databases are asked must
    /// be read by the map as it was before they were asked, for a database that has no log yet cannot say that it will
    /// have it.
    ///
    /// # Errors
    /// The errors of [`home`](Self::home).
    pub(crate) fn home_in(&self, map: &LogMap, log: LogId) -> Result<usize> {
        let place = map.home(log);
        let place = place.ok_or_else(|| Error::corrupt(format!("the store has no log {log}")))?;
        let id = map.databases()[place].id;
        let at = self.databases.iter().position(|database| database.id == id);
        at.ok_or_else(|| {
            let home = map.describe(place);
            Error::unavailable(format!(
                "log {log} has moved to {home}, which this process was not given: start it again with all URLs"
            ))
        })
    }

    /// Calls the database that has a log. If the log has moved meanwhile, calls the new database, [`TRIES_MAX`] calls
    /// in all.
    pub(crate) async fn at<'a, T, F: Future<Output = Result<T>>>(
        self: &'a Arc<Self>,
        log: LogId,
        call: impl Fn(&'a Arc<dyn Backend>) -> F,
    ) -> Result<T> {
        let mut tries = 0;
        loop {
            tries += 1;
            let map = self.map();
            let home = self.home(log)?;
            match call(self.backend(home)).await {
                Ok(answer) => return Ok(answer),
                Err(error) if !error.is_log_closed() => return Err(self.named(home, error)),
                Err(error) => {
                    self.read_again(map.version()).await;
                    if tries == TRIES_MAX || self.home(log)? == home {
                        return Err(self.named(home, error));
                    }
                }
            }
        }
    }

    /// Calls all databases at once. If several fail, the error names all of them that are unavailable.
    pub(crate) async fn all<'a, T, F: Future<Output = Result<T>>>(
        &'a self,
        call: impl Fn(&'a Arc<dyn Backend>) -> F,
    ) -> Result<Vec<T>> {
        let answers = join_all(self.backends().map(call)).await;
        let answers = answers.into_iter().enumerate();
        let answers = answers.map(|(at, answer)| answer.map_err(|error| self.named(at, error)));
        let (done, failed): (Vec<_>, Vec<_>) = answers.partition(Result::is_ok);
        let mut failed = failed.into_iter().filter_map(Result::err);
        match failed.next() {
            None => Ok(done.into_iter().flatten().collect()),
            Some(first) => Err(failed.fold(first, and)),
        }
    }

    /// Reads the copies of the map, unless a map newer than version `known` is there already. A database that does not
    /// answer is passed over, for its logs are away in any case.
    ///
    /// One task reads for all who wait, since a caller may be dropped, or not be polled for a while.
    pub(crate) async fn read_again(self: &Arc<Self>, known: u64) {
        let reading = {
            let mut reading = self.reading.lock().unwrap_or_else(PoisonError::into_inner);
            if self.map().version() > known {
                return;
            }
            match &*reading {
                Some(reading) if reading.peek().is_none() => reading.clone(),
                _ => {
                    let routes = Arc::clone(self);
                    let task = tokio::spawn(async move { routes.read_maps().await });
                    let new = task.map(drop).boxed().shared();
                    reading.insert(new).clone()
                }
            }
        };
        reading.await;
    }

    /// Reads the copies until one is newer than the map of this process, or all are read.
    async fn read_maps(&self) {
        let read = self.databases.iter();
        let mut read: FuturesUnordered<_> =
            read.map(|database| database.keeper.read_map()).collect();
        while let Some(copy) = read.next().await {
            // The map need not be the newest: a call that is sent to the wrong database reads the maps again.
            if copy.is_ok_and(|copy| self.take(&copy)) {
                return;
            }
        }
    }

    /// Takes over a map if it is newer and of this store. Returns whether it was taken.
    fn take(&self, copy: &MapCopy) -> bool {
        let mut map = self.map.write().unwrap_or_else(PoisonError::into_inner);
        let newer = copy.map.version() > map.version() && copy.map.store() == map.store();
        if newer {
            *map = Arc::new(copy.map.clone());
        }
        newer
    }

    /// Adds to an error which database does not answer.
    pub(crate) fn named(&self, at: usize, error: Error) -> Error {
        let map = self.map();
        match (error.kind(), map.place_of(self.databases[at].id)) {
            (ErrorKind::Unavailable(why), Some(place)) => {
                let which = with_logs(&map, place);
                Error::unavailable(format!("{which}: {why}")).caused_by(error)
            }
            _ => error,
        }
    }
}

/// Joins the errors of two databases, so that the error names both if both are unavailable.
fn and(one: Error, other: Error) -> Error {
    match (one.kind(), other.kind()) {
        (ErrorKind::Unavailable(first), ErrorKind::Unavailable(second)) => {
            Error::unavailable(format!("{first}; {second}"))
        }
        (ErrorKind::Unavailable(_), _) => other,
        _ => one,
    }
}
