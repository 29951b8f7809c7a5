//! Reads the map of the logs again, and asks all databases what they hold.
//!
//! Invariants: a map replaces an older one only, unless all databases were asked, which may have been set back; what
//! one database proves counts from the moment on at which all were asked and agreed. Not here: comparing what they hold
//! (`contents`), who must ask (`route`).

use std::sync::{Arc, PoisonError};

use futures::future::join_all;
use futures::stream::{FuturesUnordered, StreamExt};
use gesta_core::{Error, Result};

use super::Routes;
use super::database::{Database, Histories, Moment};
use crate::log_map::MapCopy;
use crate::several::check::contradiction;

impl Routes {
    /// Reads the copies of the map, unless a map newer than version `known` is there already. A database that does not
    /// answer is passed over, for its logs are away in any case.
    pub(crate) async fn read_again(self: &Arc<Self>, known: u64) {
        if self.map().version() > known {
            return;
        }
        let routes = Arc::clone(self);
        let read = self.reading.join(|| async move {
            routes.read_maps().await;
            Ok(())
        });
        // If the task has died, the map stays as it is.
        let _ = read.await;
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

    /// Reads the copy of the map of one database.
    ///
    /// # Errors
    /// `Unavailable` if the database does not answer.
    pub(super) async fn read_one(self: &Arc<Self>, at: usize) -> Result<()> {
        let routes = Arc::clone(self);
        let read = || async move { routes.databases[at].read().await.map(drop) };
        let read = self.databases[at].reading.join(read).await;
        read.map_err(|error| self.named(at, error))
    }

    /// Begins to ask all databases for their copies of the map and for what they hold, unless that is under way.
    /// Returns what waits for the end of it. All databases must answer: only another one may know that a log has left
    /// the database that was set back.
    ///
    /// # Errors
    /// `Unavailable` if a database does not answer, or if two of them keep different maps of one version.
    pub(super) fn ask_all(self: &Arc<Self>) -> impl Future<Output = Result<()>> + use<> {
        let routes = Arc::clone(self);
        self.reading_all
            .join(|| async move { routes.ask_all_now().await })
    }

    /// Tells whether all databases were asked for nothing in these histories, since one did not answer, or not soon.
    pub(super) fn is_unanswered(&self, histories: Histories) -> bool {
        let unanswered = self.unanswered.lock();
        *unanswered.unwrap_or_else(PoisonError::into_inner) == Some(histories.all)
    }

    async fn ask_all_now(&self) -> Result<()> {
        let histories = self.history();
        let answers = self.compare_all().await;
        self.note_unanswered(answers.is_err().then_some(histories));
        answers
    }

    pub(super) fn note_unanswered(&self, histories: Option<u64>) {
        let unanswered = self.unanswered.lock();
        *unanswered.unwrap_or_else(PoisonError::into_inner) = histories;
    }

    async fn compare_all(&self) -> Result<()> {
        loop {
            let read = join_all(self.databases.iter().map(Database::read)).await;
            let read = read.into_iter().enumerate();
            let read = read.map(|(at, copy)| copy.map_err(|error| self.named(at, error)));
            let read: Vec<Result<(Arc<MapCopy>, u64)>> = read.collect();
            let answered = read.iter().flatten().map(|(copy, _)| Arc::clone(copy));
            let copies: Vec<Arc<MapCopy>> = answered.collect();
            self.take_newest(&copies);
            let read: Vec<_> = read.into_iter().collect::<Result<_>>()?;
            if let Some(text) = contradiction(copies.iter().map(|copy| &**copy)) {
                self.databases.iter().for_each(Database::doubt);
                return Err(Error::unavailable(text));
            }
            let map = self.map();
            let found = self.compared(&map).await?;
            if !found.is_empty() {
                // A log may have moved while this looked.
                self.read_maps().await;
                if self.map().version() > map.version() {
                    continue;
                }
            }
            self.note_open(found.open);
            let unshown = Arc::new(found.unshown);
            let all = read.iter().map(|(_, history)| history).sum();
            for (database, (copy, own)) in self.databases.iter().zip(read) {
                let asked = Moment {
                    histories: Histories { own, all },
                    version: map.version(),
                };
                database.believe(copy, asked, &unshown);
            }
            return Ok(());
        }
    }

    /// Takes over the newest of these copies. If they are those of all databases, it is taken over even if it is older
    /// than the map of this process, which is then of a history that is gone.
    fn take_newest(&self, copies: &[Arc<MapCopy>]) {
        let newest = copies.iter().max_by_key(|copy| copy.map.version());
        let Some(newest) = newest else { return };
        if contradiction(copies.iter().map(|copy| &**copy)).is_some() {
            // A database was set back to a history that had been given up before. Nobody can say which map counts.
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
}
