//! Tells which database has a log, by the newest map that this process knows, and reads the map again when it is
//! outdated.
//!
//! Invariants: a call about a log that meets it closed reads the map again before anything else; a call goes to a
//! database only if that database proves, in its present history, that the log has come to it and that it has what
//! every other database has of the log, and an answer counts only if the histories of all databases are still those in
//! which that was proven. If a database was set back, or forward, all databases are asked, since only another one may
//! know that a log has left the one that was set back, or have rows of it. Nothing is proven by a database that was set
//! back before they have answered. One that was not goes on while another one does not answer, as it would if none had
//! changed, and they are asked again. Not here: the calls themselves (`backend`).

mod database;
mod reading;
mod task;

use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::Duration;

use futures::future::join_all;
use gesta_core::backend::Backend;
use gesta_core::{Error, ErrorKind, LogId, Result};
use tokio::time::timeout;

use self::database::{Database, Histories, Standing};
use self::task::SharedTask;
use crate::log_map::{KeepsMap, LogMap, MapCopy};
use crate::several::check::{OpenCopy, arrange, with_logs};

/// How often one call is sent at most, if the log moves meanwhile.
const TRIES_MAX: usize = 3;
/// How long the logs of a database that was not set back wait for the answers of the others when the history of one has
/// changed. Asking goes on after that.
const ANSWERS_WITHIN: Duration = Duration::from_secs(1);

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

/// The databases of this process, and the newest map that it knows. The map may name databases that this process was
/// not given, if they have joined the store since.
pub struct Routes {
    databases: Vec<Database>,
    map: RwLock<Arc<LogMap>>,
    /// Reads copies of the map until one is newer.
    reading: SharedTask,
    /// Asks all databases.
    reading_all: SharedTask,
    /// The sum of the histories at which all databases were asked last, if one of them did not answer, or not soon.
    unanswered: Mutex<Option<u64>>,
    /// The copies that were open when all databases were asked last.
    open: Mutex<Vec<OpenCopy>>,
}

/// A database that proves to have a log.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Proven {
    /// The index of the database.
    pub(crate) home: usize,
    /// The histories in which that is proven.
    histories: Histories,
}

impl std::fmt::Debug for Routes {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Routes")
            .field("databases", &self.databases.len())
            .finish_non_exhaustive()
    }
}

impl Routes {
    /// # Errors
    /// The errors of [`arrange`].
    pub fn new(parts: &[DatabasePart]) -> Result<Self> {
        let copies: Vec<&MapCopy> = parts.iter().map(|part| &*part.copy).collect();
        let (map, places) = arrange(&copies)?;
        Ok(Self {
            databases: places
                .into_iter()
                .map(|at| Database::new(&parts[at]))
                .collect(),
            map: RwLock::new(Arc::new(map.clone())),
            reading: SharedTask::default(),
            reading_all: SharedTask::default(),
            unanswered: Mutex::default(),
            open: Mutex::default(),
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

    /// Returns which of the databases of this process has a log, once that database proves it. If the history of
    /// another one has changed, all are asked first; if one of them does not answer within [`ANSWERS_WITHIN`], the
    /// proof of before counts, and they are asked again by later calls, which do not wait for that.
    ///
    /// # Errors
    /// `Unavailable` if that database does not answer or was not given to this process, or has lost the log, or was set
    /// back and another one does not answer, or if two databases keep different maps of one version; `Corrupt` if there
    /// is no such log.
    pub(crate) async fn proven(self: &Arc<Self>, log: LogId) -> Result<Proven> {
        let mut tries = 0;
        loop {
            let (proven, standing) = self.noted_standing(log).await?;
            let is_before = matches!(standing, Standing::ProvenBefore);
            match standing {
                Standing::Proven => return Ok(proven),
                Standing::ProvenBefore if self.is_unanswered(proven.histories) => {
                    if tries == 0 {
                        drop(self.ask_all());
                    }
                    return Ok(proven);
                }
                // It is known from before that the log is lost, but it may have been recovered.
                Standing::Lost(text) if tries > 0 => return Err(Error::unavailable(text)),
                _ if tries == TRIES_MAX => {
                    let text = "the databases change again and again while they are asked";
                    return Err(self.named(proven.home, Error::unavailable(text)));
                }
                _ => {}
            }
            tries += 1;
            let asked = self.ask_all();
            if !is_before {
                asked.await?;
            } else if timeout(ANSWERS_WITHIN, asked).await.is_err() {
                self.note_unanswered(Some(proven.histories.all));
            }
        }
    }

    /// Tells what is known of a log in its home, after reading the copy of the map of the home if the map is newer than
    /// what was read there.
    async fn noted_standing(self: &Arc<Self>, log: LogId) -> Result<(Proven, Standing)> {
        match self.standing(log)? {
            (proven, Standing::Unnoted) => {
                self.read_one(proven.home).await?;
                self.standing(log)
            }
            known => Ok(known),
        }
    }

    fn standing(&self, log: LogId) -> Result<(Proven, Standing)> {
        let map = self.map();
        let home = self.home_in(&map, log)?;
        let histories = self.histories_at(home);
        let standing = self.databases[home].standing(log, &map, histories);
        Ok((Proven { home, histories }, standing))
    }

    /// Checks that a log which was proven to be in its home still passes for it, without waiting for anything: it may
    /// have been proven by the proof of before, and be known to be lost since. If a database has not answered yet, all
    /// are asked again: by one task at a time, however many batches ask for it, and by pools that pause for up to a
    /// second after an attempt to connect that has failed.
    ///
    /// # Errors
    /// Those of [`home`](Self::home); `Unavailable` if the log is lost, or must be proven again.
    pub(crate) fn check_still_proven(self: &Arc<Self>, log: LogId) -> Result<()> {
        match self.standing(log)? {
            (_, Standing::Proven) => Ok(()),
            (_, Standing::ProvenBefore) => {
                drop(self.ask_all());
                Ok(())
            }
            (_, Standing::Lost(text)) => Err(Error::unavailable(text)),
            (_, Standing::Unnoted | Standing::Unknown) => {
                let text = format!("all databases must be asked again where log {log} lies");
                Err(Error::unavailable(text))
            }
        }
    }

    /// Tells for people how the home of a log has lost the log, if it is known to have.
    pub(crate) fn why_lost(&self, log: LogId) -> Option<String> {
        match self.standing(log) {
            Ok((_, Standing::Lost(text))) => Some(text),
            _ => None,
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
            for log in (0..map.logs()).map(LogId) {
                self.proven(log).await?;
            }
            if self.histories() == histories && Arc::ptr_eq(&self.map(), &map) {
                return Ok((map, histories));
            }
        }
    }

    /// Tells whether an answer that was asked for by this proof counts: the histories of all databases are still those
    /// in which it was given.
    pub(crate) fn still_counts(&self, proven: Proven) -> bool {
        self.histories_at(proven.home) == proven.histories
    }

    /// Returns the numbers of the present histories of all databases.
    pub(crate) fn histories(&self) -> Vec<u64> {
        self.databases.iter().map(Database::history).collect()
    }

    /// Returns the sum of the numbers of the present histories. It changes whenever one of them does, since each only
    /// grows.
    pub(crate) fn history(&self) -> u64 {
        self.databases.iter().map(Database::history).sum()
    }

    fn histories_at(&self, home: usize) -> Histories {
        Histories {
            own: self.databases[home].history(),
            all: self.history(),
        }
    }

    /// Notes which copies of logs are open, and warns of those that were not before.
    fn note_open(&self, found: Vec<OpenCopy>) {
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        for copy in found.iter().filter(|copy| !open.contains(copy)) {
            tracing::warn!(log = %copy.log, database = copy.database, "{}", copy.advice());
        }
        *open = found;
    }

    /// Returns the copies of logs that were open when all databases were asked last.
    pub(crate) fn open_copies(&self) -> Vec<OpenCopy> {
        let open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        open.clone()
    }

    /// Calls the database that has a log. If the log has moved meanwhile, calls the new database; if a database was set
    /// back meanwhile, calls the home again once it proves that it still has the log. [`TRIES_MAX`] calls in all.
    pub async fn at<'a, T, F: Future<Output = Result<T>>>(
        self: &'a Arc<Self>,
        log: LogId,
        call: impl Fn(&'a Arc<dyn Backend>) -> F,
    ) -> Result<T> {
        let mut tries = 0;
        loop {
            tries += 1;
            let map = self.map();
            let Proven { home, histories } = self.proven(log).await?;
            match call(self.backend(home)).await {
                Ok(answer) if self.histories_at(home) == histories => return Ok(answer),
                Ok(_) if tries == TRIES_MAX => {
                    let text = "the history of a database changes again and again";
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
