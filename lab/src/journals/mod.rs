//! Journals of other systems' designs as targets: their tables, indexes and statements, without the systems.
//!
//! Why: what a schema and its way of writing cost the database shows best when nothing else differs. Tables and
//! statements are written by us from the published facts (`sql/journals`); each module says what is like the real one
//! and what is left out. Where the real driver needs more round trips or statements than the design does, the journal
//! here takes fewer: what is measured is at least as good as the original.
//! Invariants: each journal lives in a PostgreSQL schema of its own, `gesta_lab_<name>`;
//! workers connect through the delay, preparing and reading back do not; events carry no tags and no metadata.
//! Read `journal` first (what all have in common), then one design.
//! Not here: snapshots and offsets of those systems, and reading by tag (`tags`).

mod batching;
mod database;
mod eventstore;
mod inserts;
mod journal;
mod message_db;
mod r2dbc;
mod rows;
mod swissborg;

#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::time::Duration;

use crate::endpoint::Endpoint;
use crate::failure::{Result, fail};
use crate::target::Target;

use journal::{Design, Journal};

/// All journals, by name.
pub const NAMES: &[&str] = &[
    "jdbc",
    "jdbc-batching",
    "plain",
    "partitioned",
    "nested",
    "r2dbc",
    "akka-net-tags",
    "akka-net-csv",
    "eventstore",
    "eventstore-separate",
    "message-db",
];

/// In the same tables as `eventstore`, but by separate statements: for the experiment with latencies, not for a ranking.
const SEPARATE: &str = "eventstore-separate";

/// The journals that can be ranked on the database of this URL, by way of a delay, with this compression of the events'
/// data if one is named (`lz4`, `pglz`, `none`).
///
/// # Errors
/// The URL is not of PostgreSQL.
pub fn all(
    url: &str,
    round_trip: Duration,
    compression: Option<&str>,
) -> Result<Vec<Arc<dyn Target>>> {
    let ranked = NAMES.iter().filter(|name| **name != SEPARATE);
    ranked
        .map(|name| named(name, url, round_trip, compression))
        .collect()
}

/// The journal of this name; the rest as in [`all`].
///
/// # Errors
/// There is no such journal, or it is not for such a database.
pub fn named(
    name: &str,
    url: &str,
    round_trip: Duration,
    compression: Option<&str>,
) -> Result<Arc<dyn Target>> {
    let design: Box<dyn Design> = match name {
        "jdbc-batching" => Box::new(batching::Batching::default()),
        "r2dbc" => Box::new(r2dbc::R2dbc),
        "eventstore" => Box::new(eventstore::EventStore::Bundled),
        SEPARATE => Box::new(eventstore::EventStore::Separate),
        "message-db" => Box::new(message_db::MessageDb),
        _ => match inserts::ALL.iter().find(|all| all.tables.name == name) {
            Some(inserts) => Box::new(inserts),
            None => match swissborg::Partitions::named(name) {
                Some(design) => Box::new(design),
                None => {
                    let names = NAMES.join(", ");
                    return fail(format!("no journal {name:?}; there are {names}"));
                }
            },
        },
    };
    if !Endpoint::parse(url).is_some_and(|endpoint| endpoint.is_postgres()) {
        let name = design.tables().name;
        return fail(format!("the journal {name:?} needs PostgreSQL"));
    }
    Ok(Arc::new(Journal::new(design, url, round_trip, compression)))
}
