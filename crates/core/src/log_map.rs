//! The map of a store: it says in which database of the store each log lies.
//!
//! Why: the logs of a store may lie in several databases, and nothing else tells a process where a log is. Each
//! database keeps a copy of the whole map. Most stores have one database, and their map names it for every log.
//! Invariants: a map that exists names exactly one database for each log, and no database twice. A database is known by
//! its id, never by its address, which may change. Every change has the next version. One log at a time is being moved.
//! Not here: comparing copies, the steps of a move (`gesta-several`).

use std::fmt;
use std::sync::Arc;

use async_trait::async_trait;
use uuid::Uuid;

use crate::error::{Error, Result};
use crate::ids::{Incarnation, LogId};
use crate::limits::{DATABASES_MAX, LOGS_MAX};

/// Identity of one database of a store, drawn when the database becomes one of the store. A copy of the database has
/// the same identity.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct DatabaseId(pub Uuid);

impl DatabaseId {
    /// Makes a new random id.
    #[must_use]
    pub fn random() -> Self {
        Self(Uuid::new_v4())
    }
}

impl fmt::Display for DatabaseId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// A database of a store, as its map names it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct NamedDatabase {
    /// Identity of the database.
    pub id: DatabaseId,
    /// Address at which the database was when it became one of the store, without a password. Only people use it.
    pub name: String,
}

/// Map that says in which database each log of a store lies.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LogMap {
    store: Uuid,
    version: u64,
    origin: Incarnation,
    databases: Vec<NamedDatabase>,
    homes: Vec<usize>,
    moving: Option<Moving>,
}

/// A log that is being moved to another database.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Moving {
    /// Log that is being moved.
    pub log: LogId,
    /// Index in [`LogMap::databases`] of the database that will have the log.
    pub to: usize,
}

impl LogMap {
    /// Makes the map of a new store, whose logs lie in these databases in turn.
    ///
    /// # Errors
    /// `InvalidArgument` if there are more databases than logs, more than [`DATABASES_MAX`], or one of them twice.
    pub fn new(logs: u16, databases: Vec<NamedDatabase>) -> Result<Self> {
        let count = databases.len();
        if usize::from(logs) < count {
            let rule = format!("must be at least {count}, one for each database, found {logs}");
            return Err(Error::invalid("logs", rule));
        }
        let homes = (0..usize::from(logs)).map(|log| log % count.max(1));
        Self {
            store: Uuid::new_v4(),
            version: 1,
            origin: Incarnation::random(),
            databases,
            homes: homes.collect(),
            moving: None,
        }
        .checked()
        .map_err(|rule| Error::invalid("databases", rule))
    }

    /// Makes a map as a database has kept it. For each log, `homes` is the index of its database in `databases`.
    ///
    /// # Errors
    /// `Corrupt` if a log has no database, if a database occurs twice, or if the map breaks another rule.
    pub fn from_stored(
        store: Uuid,
        version: u64,
        origin: Incarnation,
        databases: Vec<NamedDatabase>,
        homes: Vec<usize>,
        moving: Option<Moving>,
    ) -> Result<Self> {
        let map = Self {
            store,
            version,
            origin,
            databases,
            homes,
            moving,
        };
        map.checked()
            .map_err(|rule| Error::corrupt(format!("the map of the logs: databases {rule}")))
    }

    fn checked(self) -> std::result::Result<Self, String> {
        let count = self.databases.len();
        if !(1..=DATABASES_MAX).contains(&count) {
            return Err(format!("must be 1 to {DATABASES_MAX}, found {count}"));
        }
        if !(1..=usize::from(LOGS_MAX)).contains(&self.homes.len()) {
            let logs = self.homes.len();
            return Err(format!("must hold 1 to {LOGS_MAX} logs, found {logs}"));
        }
        let mut ids: Vec<DatabaseId> = self.databases.iter().map(|one| one.id).collect();
        ids.sort_unstable();
        if let Some(twice) = ids.windows(2).find(|pair| pair[0] == pair[1]) {
            return Err(format!("must be different, found {} twice", twice[0]));
        }
        if let Some(log) = self.homes.iter().position(|home| *home >= count) {
            let home = self.homes[log] + 1;
            return Err(format!(
                "are {count}, and log {log} lies in number {home}, which is none of them"
            ));
        }
        if let Some(Moving { log, to }) = self.moving
            && (to >= count || self.home(log).is_none_or(|home| home == to))
        {
            let to = to + 1;
            return Err(format!(
                "are {count}, and log {log} is being moved to number {to}, where it cannot go"
            ));
        }
        Ok(self)
    }

    /// Returns the log that is being moved; `None` if none is.
    #[must_use]
    pub fn moving(&self) -> Option<Moving> {
        self.moving
    }

    /// Makes the next version of the map, with another database that holds no log yet.
    ///
    /// # Errors
    /// `InvalidArgument` if there are too many databases, or if the database is in the map already.
    pub fn extended(&self, database: NamedDatabase) -> Result<Self> {
        let mut databases = self.databases.clone();
        databases.push(database);
        let next = Self {
            databases,
            ..self.next(self.moving)
        };
        next.checked()
            .map_err(|rule| Error::invalid("databases", rule))
    }

    /// Makes the next version of the map, in which this log is being moved.
    ///
    /// # Errors
    /// `InvalidArgument` if the log cannot go there: there is no such log or database, or the log lies in it already.
    pub fn announced(&self, moving: Moving) -> Result<Self> {
        self.next(Some(moving))
            .checked()
            .map_err(|rule| Error::invalid("databases", rule))
    }

    /// Makes the next version of the map, in which no log is being moved and each is where it was.
    #[must_use]
    pub fn withdrawn(&self) -> Self {
        self.next(None)
    }

    /// Makes the next version of the map, in which the log that is being moved lies in its new database.
    #[must_use]
    pub fn switched(&self) -> Self {
        let mut next = self.next(None);
        if let Some(Moving { log, to }) = self.moving
            && let Some(home) = next.homes.get_mut(usize::from(log.0))
        {
            *home = to;
        }
        next
    }

    fn next(&self, moving: Option<Moving>) -> Self {
        Self {
            version: self.version + 1,
            moving,
            ..self.clone()
        }
    }

    /// Returns the id that all databases of the store share. It outlasts incarnations.
    #[must_use]
    pub fn store(&self) -> Uuid {
        self.store
    }

    /// Returns the version of the map. It grows with each change.
    #[must_use]
    pub fn version(&self) -> u64 {
        self.version
    }

    /// Returns the incarnation that the databases had when they became the databases of the store.
    #[must_use]
    pub fn origin(&self) -> Incarnation {
        self.origin
    }

    /// Returns the databases. People count them from 1, in this order.
    #[must_use]
    pub fn databases(&self) -> &[NamedDatabase] {
        &self.databases
    }

    /// Returns the number of logs.
    #[must_use]
    pub fn logs(&self) -> u16 {
        // `checked` has refused more than LOGS_MAX.
        u16::try_from(self.homes.len()).unwrap_or(LOGS_MAX)
    }

    /// Returns the index of a database in [`databases`](Self::databases); `None` if the map does not name it.
    #[must_use]
    pub fn place_of(&self, database: DatabaseId) -> Option<usize> {
        self.databases.iter().position(|one| one.id == database)
    }

    /// Returns the index of the database in which a log lies; `None` if there is no such log.
    #[must_use]
    pub fn home(&self, log: LogId) -> Option<usize> {
        self.homes.get(usize::from(log.0)).copied()
    }

    /// Returns the logs that lie in the database with this index, in order.
    pub fn logs_at(&self, place: usize) -> impl Iterator<Item = LogId> {
        let of_place = move |(log, home): (u16, &usize)| (*home == place).then_some(LogId(log));
        (0..).zip(&self.homes).filter_map(of_place)
    }

    /// Computes the incarnation of the whole store from those of its databases, in any order.
    ///
    /// Replacing a database changes the result; moving logs between the databases does not. Adding a database with the
    /// [`origin`](Self::origin) does not change the result either: each database adds how its incarnation differs from
    /// the origin.
    ///
    /// If some of them carry a time, the result carries the latest: so positions are counted from beyond all that were
    /// handed out before ([`Incarnation::positions_from`]).
    #[must_use]
    pub fn incarnation(&self, of_databases: impl IntoIterator<Item = Incarnation>) -> Incarnation {
        /// Where a UUID holds its time and its version.
        const TIME: u128 = !0 << 76;
        let origin = self.origin.0.as_u128();
        let (mut all, mut latest) = (origin, None);
        for incarnation in of_databases {
            all ^= incarnation.0.as_u128() ^ origin;
            latest = latest.max(incarnation.begun().map(|begun| (begun, incarnation.0)));
        }
        if let Some((_, latest)) = latest {
            all = (all & !TIME) | (latest.as_u128() & TIME);
        }
        Incarnation(Uuid::from_u128(all))
    }

    /// Describes a database for people: `database 2 of 3 (db2.example:5432/shop)`.
    #[must_use]
    pub fn describe(&self, place: usize) -> String {
        let name = self.databases.get(place).map_or("?", |one| &one.name);
        let count = self.databases.len();
        format!("database {} of {count} ({name})", place + 1)
    }
}

/// The copy of the map that one database keeps.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct MapCopy {
    /// Identity of the database that keeps the copy.
    pub here: DatabaseId,
    /// The map, as this database keeps it.
    pub map: LogMap,
}

impl MapCopy {
    /// Returns the index of this database in the map; `None` if the map does not name it.
    #[must_use]
    pub fn place(&self) -> Option<usize> {
        self.map.place_of(self.here)
    }
}

/// A database that keeps a copy of the map.
#[async_trait]
pub trait KeepsMap: Send + Sync + 'static {
    /// Reads the copy of the map again.
    ///
    /// # Errors
    /// `Unavailable` if the database does not answer; `Corrupt` if what it keeps is no map.
    ///
    /// # Cancel safety
    /// Dropping the future changes nothing.
    async fn read_map(&self) -> Result<Arc<MapCopy>>;
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn databases(count: u128) -> Vec<NamedDatabase> {
        let named = |n| NamedDatabase {
            id: DatabaseId(Uuid::from_u128(n)),
            name: format!("h{n}"),
        };
        (1..=count).map(named).collect()
    }

    fn stored(databases: Vec<NamedDatabase>, homes: Vec<usize>) -> Result<LogMap> {
        LogMap::from_stored(
            Uuid::nil(),
            1,
            Incarnation::random(),
            databases,
            homes,
            None,
        )
    }

    #[test]
    fn a_new_store_gives_its_logs_to_its_databases_in_turn() {
        let map = LogMap::new(5, databases(2)).expect("valid");
        assert_eq!(map.logs(), 5);
        let of = |place| map.logs_at(place).map(|log| log.0).collect::<Vec<_>>();
        assert_eq!((of(0), of(1)), (vec![0, 2, 4], vec![1, 3]));
        assert_eq!(map.home(LogId(5)), None);
        assert_eq!(map.describe(1), "database 2 of 2 (h2)");
    }

    #[test]
    fn what_no_store_can_have_is_refused_with_the_value() {
        let said = |map: Result<LogMap>| map.expect_err("refused").to_string();
        let few = said(LogMap::new(2, databases(3)));
        assert!(
            few.contains("at least 3") && few.contains("found 2"),
            "{few}"
        );
        assert!(said(LogMap::new(2, Vec::new())).contains("found 0"));
        let mut twice = databases(2);
        twice[1].id = twice[0].id;
        assert!(said(LogMap::new(2, twice)).contains("twice"));
        let nowhere = said(stored(databases(2), vec![0, 1, 2]));
        assert!(nowhere.contains("log 2 lies in number 3"), "{nowhere}");
        assert!(said(stored(databases(1), Vec::new())).contains("found 0"));
    }

    #[test]
    fn a_log_moves_in_versions_of_the_map() {
        let map = LogMap::new(4, databases(2)).expect("valid");
        let [_, _, third] = <[_; 3]>::try_from(databases(3)).expect("three");
        let wider = map.extended(third.clone()).expect("one more");
        assert!(wider.extended(third).is_err(), "twice");
        let (log, to) = (LogId(1), 2);
        let announced = wider.announced(Moving { log, to }).expect("may go");
        assert_eq!((announced.version(), announced.home(log)), (3, Some(1)));
        let switched = announced.switched();
        assert_eq!((switched.version(), switched.home(log)), (4, Some(2)));
        assert_eq!(switched.moving(), None);
        let withdrawn = announced.withdrawn();
        assert_eq!((withdrawn.home(log), withdrawn.moving()), (Some(1), None));
        for (log, to) in [(LogId(1), 1), (LogId(1), 3), (LogId(4), 0)] {
            assert!(wider.announced(Moving { log, to }).is_err(), "{log} {to}");
        }
    }

    proptest! {
        /// Goal: checkpoints survive moves of logs and new databases, and no replaced incarnation.
        #[test]
        fn the_incarnation_of_the_store_is_that_of_all_databases(of: Vec<u128>, added in 0_usize..3, at: usize) {
            let map = LogMap::new(8, databases(2)).expect("valid");
            let mut all: Vec<_> = of.into_iter().map(|n| Incarnation(Uuid::from_u128(n))).collect();
            let before = map.incarnation(all.clone());
            all.extend(std::iter::repeat_n(map.origin(), added));
            all.reverse();
            prop_assert_eq!(map.incarnation(all.clone()), before);
            if !all.is_empty() {
                let at = at % all.len();
                all[at] = Incarnation::random();
                prop_assert_ne!(map.incarnation(all), before);
            }
            let alone = Incarnation::random();
            prop_assert_eq!(map.incarnation([alone]), alone);
        }

        /// Goal: positions are counted from beyond what was handed out before, whichever database is replaced.
        #[test]
        fn the_incarnation_of_the_store_counts_positions_from_the_latest_one(replaced in prop::collection::vec(0_usize..3, 1..9)) {
            let map = LogMap::new(8, databases(3)).expect("valid");
            let mut all = vec![map.origin(); 3];
            let mut from = map.incarnation(all.clone()).positions_from();
            for (n, at) in (0..).zip(replaced) {
                let now = crate::Timestamp(1_800_000_000_000_000 + n * 1_000);
                all[at] = all[at].after(crate::Position(3), now);
                let next = map.incarnation(all.clone());
                prop_assert!(next.positions_from() > from);
                from = next.positions_from();
            }
            prop_assert_eq!(map.incarnation([all[0]]), all[0]);
        }
    }
}
