//! Journals of other systems' designs as targets: their tables, indexes and statements, without the systems.
//!
//! Why: what a schema and its way of writing cost the database shows best when nothing else differs. Tables and
//! statements are written by us from the published facts (`sql/journals`); each module says what is like the real one
//! and what is left out. Where the real driver needs more round trips or statements than the design does, the journal
//! here takes fewer: what is measured is at least as good as the original.
//! Invariants: each journal lives in a PostgreSQL schema of its own, `gesta_lab_<name>`;
//! workers connect through the delay, preparing and reading back do not; events carry no tags and no metadata.
//! Only the tables of Elixir EventStore take several events per append; the others are measured with one.
//! Read `journal` first (what all have in common), then one design.
//! Not here: snapshots and offsets of those systems, reading by tag (`tags`), and systems whose functions do the
//! writing, such as Message DB (`lab-compare/` measures it).

/// A statement of these journals, by the name of its file.
macro_rules! sql {
    ($name:literal) => {
        include_str!(concat!("../../../sql/journals/", $name, ".sql"))
    };
}

mod batching;
mod database;
mod eventstore;
mod inserts;
mod journal;
mod rows;
mod swissborg;

#[cfg(test)]
mod tests;

use std::sync::Arc;

use gesta_report::endpoint::Endpoint;
use gesta_report::failure::{Result, fail};

use gesta_load::machine::network::Network;
use gesta_load::target::Target;

pub(crate) use database::Database;
use journal::{Design, Journal};

/// All journals that can be ranked, by name.
pub(crate) const NAMES: &[&str] = &[
    "jdbc",
    "jdbc-batching",
    "plain",
    "partitioned",
    "nested",
    "r2dbc",
    "akka-net-tags",
    "akka-net-column",
    "eventstore",
];
/// In the same tables as `eventstore`, but by separate statements: for the experiment with distance, not for a ranking.
pub(crate) const SEPARATE: &str = "eventstore-separate";

/// The journal of this name on the database of this URL, by way of a delay, with this compression of the events' data
/// if one is named (`lz4`, `pglz`, `none`).
///
/// # Errors
/// There is no such journal, or it is not for such a database.
pub(crate) fn named(
    name: &str,
    url: &str,
    network: impl Into<Network>,
    compression: Option<&str>,
) -> Result<Arc<dyn Target>> {
    let design: Option<Box<dyn Design>> = match name {
        "jdbc-batching" => Some(Box::new(batching::Batching::default())),
        "eventstore" => Some(Box::new(eventstore::EventStore::Bundled)),
        SEPARATE => Some(Box::new(eventstore::EventStore::Separate)),
        _ => match inserts::ALL.iter().find(|all| all.tables.name == name) {
            Some(inserts) => Some(Box::new(inserts)),
            None => swissborg::Partitions::named(name).map(|design| Box::new(design) as _),
        },
    };
    let Some(design) = design else {
        return fail(format!("no journal {name:?}"));
    };
    if !Endpoint::parse(url).is_some_and(|endpoint| endpoint.is_postgres()) {
        return fail(format!("the journal {name:?} needs PostgreSQL"));
    }
    Ok(Arc::new(Journal::new(design, url, network, compression)))
}
