//! Tells which database has a log, by the newest map that this process knows, and reads the map again when it is
//! outdated.
//!
//! Invariants: a call about a log that meets it closed reads the map again before anything else; a call goes to a
//! database only if that database proves, in its present history, that the log has come to it and that it has what
//! every other database has of the log, and an answer counts only if that history is still the present one; a database
//! that was set back proves nothing before all databases were asked, since only another one may know that a log has
//! left it, or have rows of it; a map replaces an older one only, unless all databases
//! were asked, which may have been set back. Not here: the calls themselves (`backend`).

use std::sync::{Arc, Mutex, PoisonError, RwLock};

use futures::FutureExt;
use futures::future::{BoxFuture, Shared, join_all};
use futures::stream::{FuturesUnordered, StreamExt};
use gesta_core::backend::Backend;
use gesta_core::shares::{self, Holder};
use gesta_core::{DatabaseId, Error, ErrorKind, KeepsMap, LogId, LogMap, MapCopy, Result};

use crate::check::Unshown;
use crate::check::{arrange, lost, with_logs};

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

/// An open database.
struct Database {
    id: DatabaseId,
    backend: Arc<dyn Backend>,
    keeper: Arc<dyn KeepsMap>,
    seen: RwLock<SeenCopy>,
    /// Is held by whoever reads the copy of this database alone.
    reading: tokio::sync::Mutex<()>,
}

/// The copy of the map of one database, as it was read last.
#[derive(Clone)]
struct SeenCopy {
    copy: Arc<MapCopy>,
    /// The number of the history of the database in which all databases were asked last; `None` if they never were.
    history: Option<u64>,
    /// What was found then of logs whose home lacks rows that another database has.
    unshown: Arc<Unshown>,
}

impl SeenCopy {
    fn has(&self, log: LogId, map: &LogMap) -> bool {
        self.copy.has(log, map) && !self.unshown.contains_key(&log)
    }
}

impl Database {
    fn history(&self) -> u64 {
        self.backend.history().number
    }

    fn seen(&self) -> SeenCopy {
        let seen = self.seen.read().unwrap_or_else(PoisonError::into_inner);
        seen.clone()
    }

    /// Reads the copy of the map again. Returns it with the number of the history before.
    async fn read(&self) -> Result<(Arc<MapCopy>, u64)> {
        let history = self.history();
        let copy = self.keeper.read_map().await?;
        let mut seen = self.seen.write().unwrap_or_else(PoisonError::into_inner);
        seen.copy = Arc::clone(&copy);
        if seen.history != Some(history) {
            // It was set back, or is set back right now: this copy alone proves nothing.
            seen.history = None;
        }
        Ok((copy, history))
    }

    /// All databases were asked since this one has this history.
    fn believe(&self, copy: Arc<MapCopy>, history: u64, unshown: &Arc<Unshown>) {
        let mut seen = self.seen.write().unwrap_or_else(PoisonError::into_inner);
        *seen = SeenCopy {
            copy,
            history: Some(history),
            unshown: Arc::clone(unshown),
        };
    }

    /// Returns the present history of the database, if it proves that it has a log as `map` says.
    fn proves(&self, log: LogId, map: &LogMap) -> Option<u64> {
        let history = self.history();
        let seen = self.seen.read().unwrap_or_else(PoisonError::into_inner);
        (seen.history == Some(history) && seen.has(log, map)).then_some(history)
    }
}

/// The databases of this process, and the newest map that it knows. The map may name databases that this process was
/// not given, if they have joined the store since.
pub(crate) struct Routes {
    databases: Vec<Database>,
    map: RwLock<Arc<LogMap>>,
    /// The task that reads copies of the map until one is newer, or that did so last.
    reading: Mutex<Option<Task<()>>>,
    /// The task that reads all copies of the map, or that read them last.
    reading_all: Mutex<Option<Task<Result<()>>>>,
}

type Task<T> = Shared<BoxFuture<'static, T>>;

/// A call goes to this database: the index, and the number of the history in which it proves to have the log.
pub(crate) type Proven = (usize, u64);

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
            seen: RwLock::new(SeenCopy {
                copy: Arc::clone(&parts[at].copy),
                history: None,
                unshown: Arc::default(),
            }),
            reading: tokio::sync::Mutex::default(),
        };
        Ok(Self {
            databases: places.into_iter().map(database).collect(),
            map: RwLock::new(Arc::new(map.clone())),
            reading: Mutex::default(),
            reading_all: Mutex::default(),
        })
    }

    pub(crate) fn map(&self) -> Arc<LogMap> {
        Arc::clone(&self.map.read().unwrap_or_else(PoisonError::into_inner))
    }

    pub(crate) fn backends(&self) -> impl Iterator<Item = &Arc<dyn Backend>> {
        self.databases.iter().map(|database| &database.backend)
    }

    pub(crate) fn keeper(&self, at: usize) -> &Arc<dyn KeepsMap> {
        &self.databases[at].keeper
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

    /// Returns which of the databases of this process has a log, once that database proves it.
    ///
    /// # Errors
    /// `Unavailable` if that database does not answer or was not given to this process, or has lost the log, or was set
    /// back and another one does not answer; `Corrupt` if there is no such log.
    pub(crate) async fn proven(self: &Arc<Self>, log: LogId) -> Result<Proven> {
        for _ in 0..TRIES_MAX {
            let map = self.map();
            let home = self.home_in(&map, log)?;
            let database = &self.databases[home];
            if let Some(history) = database.proves(log, &map) {
                return Ok((home, history));
            }
            let is_same = database.seen().history == Some(database.history());
            if is_same {
                // The map is newer than what was read of this database.
                let _reading = database.reading.lock().await;
                if database.proves(log, &map).is_none() {
                    let read = database.read().await;
                    read.map_err(|error| self.named(home, error))?;
                }
                if let Some(history) = database.proves(log, &map) {
                    return Ok((home, history));
                }
            }
            // The database was set back, or others were: the map of this process may be of a history that is gone.
            self.read_all().await?;
        }
        let map = self.map();
        let home = self.home_in(&map, log)?;
        match self.databases[home].proves(log, &map) {
            Some(history) => Ok((home, history)),
            None => Err(Error::unavailable(match self.why_lost(log) {
                Some(text) => text,
                None => lost(&map, log),
            })),
        }
    }

    /// Tells for people how the home of a log has lost the log, if it is known to have.
    pub(crate) fn why_lost(&self, log: LogId) -> Option<String> {
        let map = self.map();
        let home = self.home_in(&map, log).ok()?;
        let (database, seen) = (&self.databases[home], self.databases[home].seen());
        if seen.history != Some(database.history()) {
            return None;
        }
        match seen.unshown.get(&log) {
            Some(text) => Some(text.clone()),
            None => (!seen.copy.has(log, &map)).then(|| lost(&map, log)),
        }
    }

    /// Checks that each log lies, by one map, in a database that proves it. Returns the map and the histories of all
    /// databases.
    ///
    /// # Errors
    /// The errors of [`proven`](Self::proven).
    pub(crate) async fn all_proven(self: &Arc<Self>) -> Result<(Arc<LogMap>, Vec<u64>)> {
        loop {
            let (map, histories) = (self.map(), self.histories());
            let proves = |log: &LogId| {
                let home = self.home_in(&map, *log);
                home.is_ok_and(|home| self.databases[home].proves(*log, &map).is_some())
            };
            let mut logs = (0..map.logs()).map(LogId);
            let unproven = logs.find(|log| !proves(log));
            match unproven {
                Some(log) => self.proven(log).await.map(drop)?,
                None if self.histories() == histories => return Ok((map, histories)),
                None => {}
            }
        }
    }

    /// Returns the numbers of the present histories of all databases.
    pub(crate) fn histories(&self) -> Vec<u64> {
        self.databases.iter().map(Database::history).collect()
    }

    /// Calls the database that has a log. If the log has moved meanwhile, calls the new database; if the database was
    /// set back meanwhile, calls it again once it proves that it still has the log. [`TRIES_MAX`] calls in all.
    pub(crate) async fn at<'a, T, F: Future<Output = Result<T>>>(
        self: &'a Arc<Self>,
        log: LogId,
        call: impl Fn(&'a Arc<dyn Backend>) -> F,
    ) -> Result<T> {
        let mut tries = 0;
        loop {
            tries += 1;
            let map = self.map();
            let (home, history) = self.proven(log).await?;
            match call(self.backend(home)).await {
                Ok(answer) if self.databases[home].history() == history => return Ok(answer),
                Ok(_) if tries == TRIES_MAX => {
                    let text = "the history of the database changes again and again";
                    return Err(self.named(home, Error::unavailable(text)));
                }
                Ok(_) => {}
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
                    let read = async move { routes.read_maps().await };
                    let task = tokio::spawn(shares::act_as(Holder::Server, read));
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
        let mut read: FuturesUnordered<_> = read.map(Database::read).collect();
        let mut copies = Vec::new();
        while let Some(copy) = read.next().await {
            let Ok((copy, _)) = copy else { continue };
            // The map need not be the newest: a call that is sent to the wrong database reads the maps again.
            if self.take(&copy) {
                return;
            }
            copies.push(copy);
        }
        self.take_newest(&copies);
    }

    /// Reads all copies of the map, because a database was set back. Waits for all databases: only another one may know
    /// that a log has left the database that was set back.
    ///
    /// # Errors
    /// `Unavailable` if a database does not answer.
    async fn read_all(self: &Arc<Self>) -> Result<()> {
        let reading = {
            let mut reading = self
                .reading_all
                .lock()
                .unwrap_or_else(PoisonError::into_inner);
            match &*reading {
                Some(reading) if reading.peek().is_none() => reading.clone(),
                _ => {
                    let routes = Arc::clone(self);
                    let read = async move { routes.read_all_now().await };
                    let task = tokio::spawn(shares::act_as(Holder::Server, read));
                    let read = async { task.await.unwrap_or_else(|_| Err(interrupted())) };
                    reading.insert(read.boxed().shared()).clone()
                }
            }
        };
        reading.await
    }

    async fn read_all_now(&self) -> Result<()> {
        loop {
            let read = join_all(self.databases.iter().map(Database::read)).await;
            let read = read.into_iter().enumerate();
            let read = read.map(|(at, copy)| copy.map_err(|error| self.named(at, error)));
            let read: Vec<Result<(Arc<MapCopy>, u64)>> = read.collect();
            let answered = read.iter().flatten().map(|(copy, _)| Arc::clone(copy));
            self.take_newest(&answered.collect::<Vec<_>>());
            let read: Vec<_> = read.into_iter().collect::<Result<_>>()?;
            let map = self.map();
            let unshown = Arc::new(self.unshown(&map).await?);
            if !unshown.is_empty() {
                // A log may have moved while this looked.
                self.read_maps().await;
                if self.map().version() > map.version() {
                    continue;
                }
            }
            for (database, (copy, history)) in self.databases.iter().zip(read) {
                database.believe(copy, history, &unshown);
            }
            return Ok(());
        }
    }

    /// Takes over the newest of these copies. If they are those of all databases, it is taken over even if it is older
    /// than the map of this process, which is then of a history that is gone.
    fn take_newest(&self, copies: &[Arc<MapCopy>]) {
        let newest = copies.iter().max_by_key(|copy| copy.map.version());
        let Some(newest) = newest else { return };
        let contradicts = |copy: &Arc<MapCopy>| {
            copy.map.version() == newest.map.version() && copy.map != newest.map
        };
        if copies.iter().any(contradicts) {
            // A database was set back to a history that had been given up before. What is known goes on.
            return;
        }
        if copies.len() < self.databases.len() {
            self.take(newest);
            return;
        }
        let mut map = self.map.write().unwrap_or_else(PoisonError::into_inner);
        if newest.map.store() == map.store() && newest.map != **map {
            *map = Arc::new(newest.map.clone());
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

/// A task that was to read has died with its runtime.
fn interrupted() -> Error {
    Error::unavailable("reading where the logs lie was interrupted: try again")
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
