//! Checks whether databases are all the databases of one store and agree where its logs lie. Pure.
//!
//! Invariant: an error names the databases, the values found, and the rule.

use std::collections::BTreeMap;

use gesta_core::{Error, LogId, Position, Result};

use crate::log_map::{LogMap, MapCopy};

/// The logs whose home lacks a row that another database has, each with what people are told of it.
pub(crate) type Unshown = BTreeMap<LogId, String>;

/// A copy of a log that is open, in a database in which the log does not lie: a fail-over or a restore has lost the row
/// that closed it there. Nobody appends to it as long as every process knows where the log lies.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct OpenCopy {
    /// The log.
    pub log: LogId,
    /// The index of the database in [`LogMap::databases`].
    pub place: usize,
    /// The database, for people.
    pub database: String,
}

impl OpenCopy {
    /// Tells people what to do.
    #[must_use]
    pub fn advice(&self) -> String {
        let Self { log, database, .. } = self;
        format!(
            "a copy of log {log} is open in {database}, where the log does not lie: `gesta cluster move-log {log} --undo` \
             closes it"
        )
    }
}

/// Returns the newest map among these copies, and for each of its databases the place of its copy among them.
///
/// A copy may be of an older version: whoever changes the map changes one copy after the other, and may have died.
///
/// # Errors
/// `InvalidArgument` if a database of the map is missing or given twice, or belongs to another store; `Corrupt` if two
/// copies of one version differ.
pub(crate) fn arrange<'a>(copies: &[&'a MapCopy]) -> Result<(&'a LogMap, Vec<usize>)> {
    let newest = copies.iter().max_by_key(|copy| copy.map.version());
    let Some(newest) = newest else {
        return Err(invalid("must name at least one database, found none"));
    };
    let map = &newest.map;
    for (at, copy) in copies.iter().enumerate() {
        check_same_store(newest, copy)?;
        if copies[..at].iter().any(|other| other.here == copy.here) {
            let here = described(copy);
            return Err(invalid(format!(
                "must name each database once, found {here} twice, or a copy of it"
            )));
        }
        if let Some(text) = differs(newest, copy) {
            return Err(Error::corrupt(text));
        }
        if map.place_of(copy.here).is_none() {
            return Err(Error::corrupt(format!(
                "the map of the logs does not name database {}, which keeps a copy of it",
                copy.here
            )));
        }
    }
    let place_of = |id| copies.iter().position(|copy| copy.here == id);
    let found: Vec<Option<usize>> = map.databases().iter().map(|one| place_of(one.id)).collect();
    let missing = (0..found.len()).filter(|place| found[*place].is_none());
    let missing: Vec<String> = missing.map(|place| with_logs(map, place)).collect();
    if !missing.is_empty() {
        let (all, given) = (found.len(), copies.len());
        return Err(invalid(format!(
            "must name all {all} databases of the store, found {given}: {} is missing",
            missing.join(", ")
        )));
    }
    Ok((map, found.into_iter().flatten().collect()))
}

fn check_same_store(first: &MapCopy, copy: &MapCopy) -> Result<()> {
    let (expected, found) = (first.map.store(), copy.map.store());
    if expected == found {
        return Ok(());
    }
    Err(invalid(format!(
        "must name databases of one store, found {} of store {expected} and {} of store {found}",
        described(first),
        described(copy)
    )))
}

/// Tells for people that the newest of these copies of the map and another one have the same version and differ, so
/// that nobody can say which of them counts: a database was set back, or forward, to a history that had been given up.
pub(crate) fn contradiction<'a>(
    mut copies: impl Iterator<Item = &'a MapCopy> + Clone,
) -> Option<String> {
    let newest = copies.clone().max_by_key(|copy| copy.map.version())?;
    copies.find_map(|copy| differs(newest, copy))
}

fn differs(newest: &MapCopy, copy: &MapCopy) -> Option<String> {
    let (map, other) = (&newest.map, &copy.map);
    if map.version() != other.version() || map == other {
        return None;
    }
    let (here, there) = (described(newest), described(copy));
    let version = map.version();
    let mut logs = (0..map.logs()).map(LogId);
    let home = |map: &LogMap, log| (map.home(log), map.arrival(log));
    let differs = logs.find(|log| home(map, *log) != home(other, *log));
    let what = match differs {
        Some(log) => format!("log {log} lies elsewhere"),
        None => "the databases or the log that is being moved are others".to_owned(),
    };
    Some(format!(
        "the databases must agree where the logs lie, found two maps of version {version}: in {there} {what} than in {here}"
    ))
}

/// Tells that the home of a log has lost that the log came to it.
pub(crate) fn lost(map: &LogMap, log: LogId) -> String {
    let (home, arrival) = (map.home(log), map.arrival(log));
    let home = home.map_or_else(|| "no database".to_owned(), |home| map.describe(home));
    let last = arrival.map_or(Position::START, |arrival| arrival.last.position);
    format!(
        "log {log} is lost: it came to {home} with events up to position {last}, but that database was set back, by a \
         restore or a fail-over, to a moment before: {WAY_OUT} {log}`"
    )
}

/// Tells that the home of a log does not have what another database has of it.
pub(crate) fn unshown(map: &LogMap, log: LogId, other: usize, last: Position) -> String {
    let home = map
        .home(log)
        .map_or_else(String::new, |home| map.describe(home));
    let other = map.describe(other);
    format!(
        "log {log} is lost: it lies in {home}, but {other} holds an event of it at position {last} that {home} does not \
         have, because one of them was set back by a restore or a fail-over: {WAY_OUT} {log}`"
    )
}

/// What an operator does about a lost log.
const WAY_OUT: &str = "restore that database to a later moment, or run `gesta cluster recover-log";

/// Describes the database that keeps a copy, for people.
fn described(copy: &MapCopy) -> String {
    match copy.place() {
        Some(place) => copy.map.describe(place),
        None => format!("database {}", copy.here),
    }
}

/// Describes a database and its logs for people: `database 2 of 3 (h:5432/shop; logs 1, 4)`.
pub(crate) fn with_logs(map: &LogMap, place: usize) -> String {
    let logs: Vec<String> = map.logs_at(place).map(|log| log.to_string()).collect();
    let mut text = map.describe(place);
    text.pop();
    text.push_str(match logs.len() {
        0 => "; no logs",
        1 => "; log ",
        _ => "; logs ",
    });
    text.push_str(&logs.join(", "));
    text.push(')');
    text
}

fn invalid(rule: impl Into<String>) -> Error {
    Error::invalid("store", rule)
}

#[cfg(test)]
mod tests {
    use gesta_core::ErrorKind;

    use super::*;
    use crate::log_map::{DatabaseId, Home, NamedDatabase};

    fn map(logs: u16, count: usize) -> LogMap {
        let named = |n| NamedDatabase {
            id: DatabaseId::random(),
            name: format!("h{n}/shop"),
        };
        LogMap::new(logs, (1..=count).map(named).collect()).expect("valid")
    }

    fn copies(map: &LogMap) -> Vec<MapCopy> {
        let copy = |one: &NamedDatabase| MapCopy::new(one.id, map.clone());
        map.databases().iter().map(copy).collect()
    }

    fn refused(copies: &[&MapCopy]) -> (bool, String) {
        let error = arrange(copies).expect_err("refused");
        let is_invalid = matches!(error.kind(), ErrorKind::InvalidArgument { .. });
        (is_invalid, error.to_string())
    }

    #[test]
    fn all_databases_of_a_store_are_taken_in_any_order() {
        let all = copies(&map(5, 3));
        let places = |copies: &[&MapCopy]| arrange(copies).expect("whole").1;
        assert_eq!(places(&[&all[2], &all[0], &all[1]]), [1, 2, 0]);
        let alone = copies(&map(1, 1));
        assert_eq!(places(&[&alone[0]]), [0]);
    }

    #[test]
    fn a_missing_a_doubled_and_a_foreign_database_are_named() {
        let all = copies(&map(5, 3));
        let (invalid, text) = refused(&[&all[0], &all[2]]);
        assert!(invalid, "{text}");
        assert!(
            text.contains("all 3 databases of the store, found 2: database 2 of 3 (h2/shop; logs 1, 4) is missing"),
            "{text}"
        );
        let (invalid, text) = refused(&[&all[0], &all[1], &all[1]]);
        assert!(
            invalid && text.contains("database 2 of 3 (h2/shop) twice"),
            "{text}"
        );
        let other = copies(&map(5, 3));
        let (invalid, text) = refused(&[&all[0], &other[1], &all[2]]);
        assert!(invalid && text.contains("of one store"), "{text}");
        assert!(text.contains(&other[1].map.store().to_string()), "{text}");
        assert!(refused(&[]).1.contains("found none"));
    }

    #[test]
    fn maps_that_differ_are_refused_with_what_differs() {
        let first = map(4, 2);
        let all = copies(&first);
        let changed = |version, homes: Vec<usize>| {
            let map = LogMap::from_stored(
                first.store(),
                version,
                first.origin(),
                first.databases().to_vec(),
                homes.into_iter().map(Home::first).collect(),
                None,
            );
            MapCopy::new(all[1].here, map.expect("valid"))
        };
        let newer = changed(2, vec![0, 1, 0, 0]);
        let (found, places) = arrange(&[&all[0], &newer]).expect("one is older");
        assert_eq!((found, places), (&newer.map, vec![0, 1]));
        let moved = changed(1, vec![0, 1, 1, 1]);
        let (invalid, text) = refused(&[&all[0], &moved]);
        assert!(!invalid && text.contains("log 2 lies elsewhere"), "{text}");
        let mut stranger = all[1].clone();
        stranger.here = DatabaseId::random();
        assert!(
            refused(&[&all[0], &stranger])
                .1
                .contains("does not name database")
        );
    }
}
