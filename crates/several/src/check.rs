//! Whether databases are all those of one store, and agree where its logs lie. Pure.
//!
//! Invariant: an error names the databases, the values found, and the rule.

use gesta_core::{Error, LogMap, MapCopy, Result};

/// For each database of the map its place among these copies.
///
/// # Errors
/// `InvalidArgument` if a database of the map is missing or there twice, or belongs to another store; `Corrupt` if the
/// copies differ.
pub fn arrange(copies: &[&MapCopy]) -> Result<Vec<usize>> {
    let Some(first) = copies.first() else {
        return Err(invalid("must name at least one database, found none"));
    };
    for (at, copy) in copies.iter().enumerate().skip(1) {
        check_same_store(first, copy)?;
        if copies[..at].iter().any(|other| other.here == copy.here) {
            let here = described(copy);
            return Err(invalid(format!(
                "must name each database once, found {here} twice, or a copy of it"
            )));
        }
        check_same_map(first, copy)?;
    }
    let map = &first.map;
    let place_of = |id| copies.iter().position(|copy| copy.here == id);
    let found: Vec<Option<usize>> = map.databases().iter().map(|one| place_of(one.id)).collect();
    if let Some(stranger) = copies.iter().find(|copy| copy.place().is_none()) {
        let id = stranger.here;
        return Err(Error::corrupt(format!(
            "the map of the logs does not name the database that keeps it, {id}"
        )));
    }
    let missing = (0..found.len()).filter(|place| found[*place].is_none());
    let missing: Vec<String> = missing.map(|place| with_logs(map, place)).collect();
    if !missing.is_empty() {
        let (all, given) = (found.len(), copies.len());
        return Err(invalid(format!(
            "must name all {all} databases of the store, found {given}: {} is missing",
            missing.join(", ")
        )));
    }
    Ok(found.into_iter().flatten().collect())
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

fn check_same_map(first: &MapCopy, copy: &MapCopy) -> Result<()> {
    let (map, other) = (&first.map, &copy.map);
    if map == other {
        return Ok(());
    }
    let (here, there) = (described(first), described(copy));
    let (one, two) = (map.version(), other.version());
    if one != two {
        return Err(Error::corrupt(format!(
            "the databases must agree where the logs lie, found version {one} of the map in {here} and version {two} in \
             {there}"
        )));
    }
    let mut logs = (0..map.logs()).map(gesta_core::LogId);
    let differs = logs.find(|log| map.home(*log) != other.home(*log));
    let what = match differs {
        Some(log) => format!("log {log} lies elsewhere"),
        None => "the databases are others".to_owned(),
    };
    Err(Error::corrupt(format!(
        "the databases must agree where the logs lie, found two maps of version {one}: in {there} {what} than in {here}"
    )))
}

/// The database that keeps a copy, for people.
fn described(copy: &MapCopy) -> String {
    match copy.place() {
        Some(place) => copy.map.describe(place),
        None => format!("database {}", copy.here),
    }
}

/// A database and its logs, for people: `database 2 of 3 (h:5432/shop; logs 1, 4)`.
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
    use gesta_core::{DatabaseId, ErrorKind, Incarnation, NamedDatabase};

    use super::*;

    fn map(logs: u16, count: usize) -> LogMap {
        let named = |n| NamedDatabase {
            id: DatabaseId::random(),
            name: format!("h{n}/shop"),
        };
        LogMap::new(logs, (1..=count).map(named).collect()).expect("valid")
    }

    fn copies(map: &LogMap) -> Vec<MapCopy> {
        let copy = |one: &NamedDatabase| MapCopy {
            here: one.id,
            map: map.clone(),
        };
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
        assert_eq!(
            arrange(&[&all[2], &all[0], &all[1]]).expect("whole"),
            [1, 2, 0]
        );
        let alone = copies(&map(1, 1));
        assert_eq!(arrange(&[&alone[0]]).expect("whole"), [0]);
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
        let changed = |version, homes| MapCopy {
            here: all[1].here,
            map: LogMap::from_stored(
                first.store(),
                version,
                first.origin(),
                first.databases().to_vec(),
                homes,
            )
            .expect("valid"),
        };
        let newer = changed(2, vec![0, 1, 0, 1]);
        let (invalid, text) = refused(&[&all[0], &newer]);
        assert!(
            !invalid && text.contains("version 1 of the map in database 1 of 2"),
            "{text}"
        );
        assert!(text.contains("version 2 in database 2 of 2"), "{text}");
        let moved = changed(1, vec![0, 1, 1, 1]);
        let (_, text) = refused(&[&all[0], &moved]);
        assert!(text.contains("log 2 lies elsewhere"), "{text}");
        let mut stranger = all[1].clone();
        stranger.here = DatabaseId::random();
        assert!(refused(&[&all[0], &stranger]).1.contains("does not name"));
        assert_ne!(first.origin(), Incarnation::random());
    }
}
