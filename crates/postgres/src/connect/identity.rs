//! Which store a database holds, and whether it is the one that this process has opened. Pure.
//!
//! Why: a database can be replaced under a running process by another store: a wrong dump is restored, a schema is made
//! anew, a list of hosts leads elsewhere. Names, positions and logs of one store mean nothing in another, so every new
//! connection is compared. Invariant: another store is never taken for another history of this one. Not here: asking
//! the database (`history`).

use gesta_sql::{MOVED_AWAY, UNFINISHED_COPY};
use uuid::Uuid;

/// What a store and its databases keep for life.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Identity {
    /// The id of the store, which all its databases share.
    pub(crate) store: Uuid,
    /// The id of this database of the store.
    pub(crate) database: Uuid,
    /// The number of logs of the store.
    pub(crate) logs: u16,
    /// The version of the schema. It grows while processes run, and never shrinks, but for the mark of a copy that is
    /// not whole.
    pub(crate) version: u32,
}

impl Identity {
    /// Returns why a database with identity `found` must not be used by a process that has opened this one; `None` if
    /// it may.
    pub(crate) fn refuses(&self, found: &Self) -> Option<String> {
        let advice =
            "lead this process back to its store, or start it again to serve the other one";
        if found.store != self.store {
            return Some(format!(
                "the database holds another store than the one that this process has opened: {} with {} logs instead of {} \
                 with {} logs; {advice}",
                found.store, found.logs, self.store, self.logs
            ));
        }
        if found.database != self.database {
            return Some(format!(
                "this is another database of the store than the one that this process has opened: {} instead of {}; lead \
                 this process back to it",
                found.database, self.database
            ));
        }
        if found.logs != self.logs {
            return Some(format!(
                "the store has {} logs, and had {} when this process opened it; {advice}",
                found.logs, self.logs
            ));
        }
        if found.version > MOVED_AWAY {
            return Some(
                "the store has moved to another database: start this process again with its new URL".into(),
            );
        }
        if found.version > UNFINISHED_COPY {
            return Some(
                "the store has become the target of a copy that is not whole: stop this process until the copy has ended"
                    .into(),
            );
        }
        (found.version < self.version).then(|| {
            format!(
                "the store has schema version {}, and had {} when this process opened it: run `gesta schema migrate`",
                found.version, self.version
            )
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_store_that_was_opened_may_be_used() {
        let opened = Identity {
            store: Uuid::from_u128(1),
            database: Uuid::from_u128(2),
            logs: 4,
            version: 6,
        };
        let newer = Identity {
            version: 7,
            ..opened
        };
        assert_eq!(opened.refuses(&opened), None);
        assert_eq!(opened.refuses(&newer), None, "migrated meanwhile");
        for (foreign, says) in [
            (
                Identity {
                    store: Uuid::from_u128(9),
                    ..opened
                },
                "another store",
            ),
            (
                Identity {
                    database: Uuid::from_u128(9),
                    ..opened
                },
                "another database",
            ),
            (Identity { logs: 2, ..opened }, "has 2 logs, and had 4"),
            (
                Identity {
                    version: 5,
                    ..opened
                },
                "schema migrate",
            ),
            (
                Identity {
                    version: 6 + UNFINISHED_COPY,
                    ..opened
                },
                "target of a copy",
            ),
            (
                Identity {
                    version: 6 + MOVED_AWAY,
                    ..opened
                },
                "has moved",
            ),
        ] {
            let why = opened.refuses(&foreign).expect("refused");
            assert!(why.contains(says), "{why}");
        }
    }
}
