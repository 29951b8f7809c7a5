//! Migrations: numbered, forward-only steps from one schema version to the next.
//!
//! Invariants: versions are 1, 2, 3, … without a gap; a released step is never edited. A program works only on
//! the version that it knows: an older store waits for `gesta schema migrate`, a newer one is refused.
//! Not here: running them (backends, each in a transaction with its own kind of lock).

use gesta_core::{Error, ErrorKind, Result};

/// One step from a schema version to the next.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Migration {
    /// Schema version to which the step leads; the first is 1.
    pub version: u32,
    /// What the step does, in a few words.
    pub name: &'static str,
    /// Statements of the step, in the dialect of the backend.
    pub sql: &'static str,
}

/// What must be done with a store when it is opened.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Start {
    /// The store is empty: all steps must be run.
    Create,
    /// The store has the version that this program knows.
    Ready,
}

/// All steps of one backend.
#[derive(Clone, Copy, Debug)]
pub struct Migrations(&'static [Migration]);

impl Migrations {
    /// Takes the steps in their order.
    ///
    /// # Panics
    /// If the steps are not numbered 1, 2, 3, …. In a constant that is an error of compilation.
    #[must_use]
    pub const fn new(steps: &'static [Migration]) -> Self {
        let mut index = 0;
        let mut version = 1;
        while index < steps.len() {
            assert!(
                steps[index].version == version,
                "migrations are numbered 1, 2, 3, …"
            );
            index += 1;
            version += 1;
        }
        Self(steps)
    }

    /// Returns the version that this program knows: that of the last step, or 0 without steps.
    #[must_use]
    pub fn latest(&self) -> u32 {
        self.0.last().map_or(0, |step| step.version)
    }

    /// Decides about a store that is being opened. `found` is its version, or `None` if the store is empty.
    ///
    /// # Errors
    /// `Schema` if the store is older than this program (then it says to migrate) or newer (then it says to use a newer
    /// program). It names both versions.
    pub fn on_open(&self, found: Option<u32>) -> Result<Start> {
        let known = self.latest();
        match found {
            None => Ok(Start::Create),
            Some(found) if found == known => Ok(Start::Ready),
            Some(found) if found < known => Err(ErrorKind::Schema(format!(
                "the store has schema version {found}, this program needs {known}: back it up, then run `gesta schema migrate`"
            ))
            .into()),
            Some(found) => Err(newer(found, known)),
        }
    }

    /// Returns the steps that lead from `found` to the version of this program; none if the store has that version.
    /// `None` stands for an empty store.
    ///
    /// # Errors
    /// `Schema` if the store is newer than this program.
    pub fn pending(&self, found: Option<u32>) -> Result<&'static [Migration]> {
        let found = found.unwrap_or(0);
        let done = usize::try_from(found).unwrap_or(usize::MAX);
        self.0
            .get(done..)
            .ok_or_else(|| newer(found, self.latest()))
    }

    /// Returns the text of all steps, for people who run them by hand.
    #[must_use]
    pub fn print(&self) -> String {
        self.0
            .iter()
            .map(|step| {
                format!(
                    "-- schema version {}: {}\n{}\n",
                    step.version,
                    step.name,
                    step.sql.trim_end()
                )
            })
            .collect::<Vec<_>>()
            .join("\n")
    }
}

/// What is added to the schema version of a store to which another one is being copied (`gesta copy`), until it is
/// whole. No program serves such a version, whatever its age.
pub const UNFINISHED_COPY: u32 = 1_000_000;

/// The cause of the error for such a store, by which [`is_unfinished_copy`] recognises it.
#[derive(Debug)]
struct UnfinishedCopy;

impl std::fmt::Display for UnfinishedCopy {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("a copy is being made")
    }
}

impl std::error::Error for UnfinishedCopy {}

/// Returns true if a store was not opened because it is the target of a copy, or of a move, that is not whole yet.
/// Waiting may help.
#[must_use]
pub fn is_unfinished_copy(error: &Error) -> bool {
    let mut cause = std::error::Error::source(error);
    while let Some(error) = cause {
        if error.is::<UnfinishedCopy>() {
            return true;
        }
        cause = error.source();
    }
    false
}

/// What is added to the schema version of a store that has moved to another database (`gesta move`). No program serves
/// such a version, whatever its age.
pub const MOVED_AWAY: u32 = 2_000_000;

/// Makes the error for a store that has moved to another database. `place` is where it is now, if that is known.
#[must_use]
pub fn moved_away(place: Option<&str>) -> Error {
    let place = place.unwrap_or("another database");
    ErrorKind::Schema(format!(
        "the store has moved to {place}: use it there (`gesta move`, with the same arguments, says whether the move has \
         ended)"
    ))
    .into()
}

/// Makes the error for a store that is newer than this program.
fn newer(found: u32, known: u32) -> Error {
    if found > MOVED_AWAY {
        return moved_away(None);
    }
    if found > UNFINISHED_COPY {
        let text = "the store is the target of a copy, or of a move, that is not whole: repeat `gesta copy` or `gesta move`, \
                    which goes on where it was";
        return Error::new(ErrorKind::Schema(text.into())).caused_by(UnfinishedCopy);
    }
    ErrorKind::Schema(format!(
        "the store has schema version {found}, newer than {known}, the last that this program knows: use a newer gesta"
    ))
    .into()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: nobody serves, or migrates, a copy that is not whole.
    #[test]
    fn an_unfinished_copy_is_refused() {
        for found in [1, STEPS.latest()].map(|version| version + UNFINISHED_COPY) {
            for error in [
                STEPS.on_open(Some(found)).err(),
                STEPS.pending(Some(found)).err(),
            ] {
                let error = error.expect("refused").during("open the store");
                assert!(is_unfinished_copy(&error));
                let error = error.to_string();
                assert!(error.contains("gesta copy"), "{error}");
            }
        }
    }

    /// Goal: nobody serves, or migrates, a store that is elsewhere now.
    #[test]
    fn a_store_that_has_moved_is_refused() {
        let found = STEPS.latest() + MOVED_AWAY;
        for error in [
            STEPS.on_open(Some(found)).err(),
            STEPS.pending(Some(found)).err(),
        ] {
            let error = error.expect("refused");
            assert!(!is_unfinished_copy(&error));
            let error = error.to_string();
            assert!(error.contains("has moved to another database"), "{error}");
        }
        let named = moved_away(Some("db2:5432/gesta")).to_string();
        assert!(named.contains("moved to db2:5432/gesta"), "{named}");
    }

    const STEPS: Migrations = Migrations::new(&[
        Migration {
            version: 1,
            name: "create",
            sql: "CREATE TABLE a(x);",
        },
        Migration {
            version: 2,
            name: "index",
            sql: "CREATE INDEX b ON a(x);",
        },
    ]);

    #[test]
    fn an_empty_store_is_created_and_an_equal_one_used() {
        assert_eq!(STEPS.on_open(None).ok(), Some(Start::Create));
        assert_eq!(STEPS.on_open(Some(2)).ok(), Some(Start::Ready));
        assert_eq!(STEPS.pending(None).expect("ok").len(), 2);
        assert_eq!(STEPS.pending(Some(1)).expect("ok")[0].version, 2);
        assert!(STEPS.pending(Some(2)).expect("ok").is_empty());
        assert!(
            STEPS
                .print()
                .contains("-- schema version 2: index\nCREATE INDEX")
        );
    }

    #[test]
    fn older_and_newer_stores_are_refused_with_both_versions() {
        let older = STEPS.on_open(Some(1)).expect_err("older").to_string();
        assert!(
            older.contains("version 1")
                && older.contains("needs 2")
                && older.contains("gesta schema migrate"),
            "{older}"
        );
        let newer = STEPS.on_open(Some(7)).expect_err("newer").to_string();
        assert!(
            newer.contains("version 7") && newer.contains("than 2"),
            "{newer}"
        );
        assert!(STEPS.pending(Some(7)).is_err());
    }
}
