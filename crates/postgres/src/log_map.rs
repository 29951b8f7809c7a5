//! The map of a store: it says in which database of the store each log lies.
//!
//! Why: the logs of a store may lie in several databases, and nothing else tells a process where a log is. Each
//! database keeps a copy of the whole map. Most stores have one database, and their map names it for every log.
//! Databases are restored, and fail over, one by one. So the map gives a random number to each stay of a log in a
//! database, and the database notes for itself the number of the log that has come to it: one that was set back to a
//! moment before does not have that note, whatever is written to its copy of the map later.
//! Invariants: a map that exists names exactly one database for each log, and no database twice. A database is known by
//! its id, never by its address, which may change. Every change has the next version. One log at a time is being moved.
//! What a database notes for itself is written only when a log comes to it, never with a copy of the map.
//! Not here: comparing copies, the steps of a move (`several`).

use std::fmt;
use std::sync::Arc;

use async_trait::async_trait;
use gesta_core::backend::{RowId, WriterEpoch};
use gesta_core::limits::{DATABASES_MAX, LOGS_MAX};
use gesta_core::{Error, Incarnation, LogId, Position, Result, Revision};
use uuid::Uuid;

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

/// Identity of a row of a log: its position and who wrote it. Positions alone are used again after commits were lost.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RowMark {
    /// Position of the row.
    pub position: Position,
    /// Writer of the row.
    pub writer: WriterEpoch,
}

impl RowMark {
    /// Stands for the last row of an empty log.
    pub const NONE: Self = Self {
        position: Position::START,
        writer: WriterEpoch(0),
    };
}

/// How a log came to the database in which it lies.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Arrival {
    /// Random number of this stay of the log in the database; 0 if it has lain there since the store was made. It is no
    /// counter, since a database that is set back would count again what it has counted before.
    pub stay: i64,
    /// Last row of the log at that time.
    pub last: RowMark,
}

impl Arrival {
    /// The log has lain there since the store was made.
    pub const NEVER: Self = Self {
        stay: 0,
        last: RowMark::NONE,
    };
}

/// Where a log lies.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Home {
    /// Index in [`LogMap::databases`] of the database.
    pub place: usize,
    /// How the log came there.
    pub arrival: Arrival,
}

impl Home {
    /// Returns the home of a log that has never moved.
    #[must_use]
    pub fn first(place: usize) -> Self {
        let arrival = Arrival::NEVER;
        Self { place, arrival }
    }
}

/// Map that says in which database each log of a store lies.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LogMap {
    store: Uuid,
    version: u64,
    origin: Incarnation,
    databases: Vec<NamedDatabase>,
    homes: Vec<Home>,
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
        let homes = (0..usize::from(logs)).map(|log| Home::first(log % count.max(1)));
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

    /// Makes a map as a database has kept it. `homes` tells for each log where it lies.
    ///
    /// # Errors
    /// `Corrupt` if a log has no database, if a database occurs twice, or if the map breaks another rule.
    pub fn from_stored(
        store: Uuid,
        version: u64,
        origin: Incarnation,
        databases: Vec<NamedDatabase>,
        homes: Vec<Home>,
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
        if let Some(log) = self.homes.iter().position(|home| home.place >= count) {
            let home = self.homes[log].place + 1;
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

    /// Makes the next version of the map, in which the log that is being moved lies in its new database. `last` is the
    /// last row of the log, which has come along.
    #[must_use]
    pub fn switched(&self, last: RowMark) -> Self {
        match self.moving {
            Some(Moving { log, to }) => self.recovered(log, to, last),
            None => self.next(None),
        }
    }

    /// Makes the next version of the map, in which a log lies in the database `to`, whatever was said before. `last` is
    /// the last row of the log there.
    #[must_use]
    pub fn recovered(&self, log: LogId, to: usize, last: RowMark) -> Self {
        let mut next = self.next(None);
        let (stay, _) = Uuid::new_v4().as_u64_pair();
        let stay = stay.cast_signed();
        if let Some(home) = next.homes.get_mut(usize::from(log.0)) {
            *home = Home {
                place: to,
                arrival: Arrival { stay, last },
            };
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
        self.homes.get(usize::from(log.0)).map(|home| home.place)
    }

    /// Returns how a log came to the database in which it lies; `None` if there is no such log.
    #[must_use]
    pub fn arrival(&self, log: LogId) -> Option<Arrival> {
        self.homes.get(usize::from(log.0)).map(|home| home.arrival)
    }

    /// Returns the logs that lie in the database with this index, in order.
    pub fn logs_at(&self, place: usize) -> impl Iterator<Item = LogId> {
        let of_place = move |(log, home): (u16, &Home)| (home.place == place).then_some(LogId(log));
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
    /// What this database has noted for itself: for each log, the number of its last stay here; 0 if it never came.
    pub arrived: Vec<i64>,
}

impl MapCopy {
    /// Makes the copy of a database to which no log has come yet.
    #[must_use]
    pub fn new(here: DatabaseId, map: LogMap) -> Self {
        let arrived = vec![0; usize::from(map.logs())];
        Self { here, map, arrived }
    }

    /// Returns the number of the last stay of a log in this database; 0 if it never came.
    #[must_use]
    pub fn arrived(&self, log: LogId) -> i64 {
        let noted = self.arrived.get(usize::from(log.0));
        noted.copied().unwrap_or(0)
    }

    /// Tells whether this database has a log as `map` says, which may be newer than the copy here. If not, the database
    /// has lost the log, or has never had it.
    #[must_use]
    pub fn has(&self, log: LogId, map: &LogMap) -> bool {
        let arrival = map.arrival(log).map(|arrival| arrival.stay);
        map.home(log) == map.place_of(self.here) && arrival == Some(self.arrived(log))
    }

    /// Returns the index of this database in the map; `None` if the map does not name it.
    #[must_use]
    pub fn place(&self) -> Option<usize> {
        self.map.place_of(self.here)
    }
}

/// A row of a log, with what is needed to recognise that it was scavenged elsewhere.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct HeldRow {
    /// Identity of the row.
    pub mark: RowMark,
    /// Row of the stream of the event.
    pub stream: RowId,
    /// Revision of the event.
    pub revision: Revision,
}

/// What a database holds of one log.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Held {
    /// Whether the log is closed in the database.
    pub closed: bool,
    /// Last row of the log; the row that closes it does not count. `None` if there is no row.
    pub last: Option<HeldRow>,
}

/// A database that keeps a copy of the map, and perhaps copies of logs that lie elsewhere.
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

    /// Reads what the database holds of each log of the store, in the order of the logs.
    ///
    /// # Errors
    /// `Unavailable` if the database does not answer.
    ///
    /// # Cancel safety
    /// Dropping the future changes nothing.
    async fn read_held(&self) -> Result<Vec<Held>>;

    /// Tells for each of these rows whether the database has it, or has scavenged it.
    ///
    /// # Errors
    /// `Unavailable` if the database does not answer.
    ///
    /// # Cancel safety
    /// Dropping the future changes nothing.
    async fn shows(&self, rows: &[(LogId, HeldRow)]) -> Result<Vec<bool>>;
}

#[cfg(test)]
mod tests {
    use gesta_core::Timestamp;
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
            homes.into_iter().map(Home::first).collect(),
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
        let last = RowMark {
            position: Position(7),
            writer: WriterEpoch(-3),
        };
        let switched = announced.switched(last);
        assert_eq!((switched.version(), switched.home(log)), (4, Some(2)));
        let arrival = switched.arrival(log).expect("a log");
        assert_eq!(arrival.last, last);
        assert_ne!(
            arrival.stay,
            announced.switched(last).arrival(log).expect("a log").stay
        );
        assert_eq!(switched.arrival(LogId(0)), Some(Arrival::NEVER));
        assert_eq!(switched.moving(), None);
        let withdrawn = announced.withdrawn();
        assert_eq!((withdrawn.home(log), withdrawn.moving()), (Some(1), None));
        for (log, to) in [(LogId(1), 1), (LogId(1), 3), (LogId(4), 0)] {
            assert!(wider.announced(Moving { log, to }).is_err(), "{log} {to}");
        }
    }

    /// Goal: a database that was set back to a moment before a log came to it does not pass for the home of the log,
    /// even when the newest map is written to it.
    #[test]
    fn a_database_has_a_log_only_if_it_has_noted_that_the_log_came() {
        let map = LogMap::new(2, databases(2)).expect("valid");
        let copy =
            |place: usize, map: &LogMap| MapCopy::new(map.databases()[place].id, map.clone());
        let (log, to) = (LogId(0), 1);
        let moved = map.recovered(log, to, RowMark::NONE);
        assert!(copy(0, &map).has(log, &map) && !copy(1, &map).has(log, &map));
        let mut new_home = copy(1, &moved);
        assert!(!new_home.has(log, &moved), "nothing was noted");
        new_home.arrived[0] = moved.arrival(log).expect("a log").stay;
        assert!(new_home.has(log, &moved) && new_home.has(LogId(1), &moved));
        assert!(!copy(0, &map).has(log, &moved));
        let back = moved.recovered(log, 0, RowMark::NONE);
        assert!(!copy(0, &back).has(log, &back), "it is another stay");
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
                let now = Timestamp(1_800_000_000_000_000 + n * 1_000);
                all[at] = all[at].after(Position(3), now);
                let next = map.incarnation(all.clone());
                prop_assert!(next.positions_from() > from);
                from = next.positions_from();
            }
            prop_assert_eq!(map.incarnation([all[0]]), all[0]);
        }
    }
}
