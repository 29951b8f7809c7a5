//! The tests of projections over any target. The crate of a target has them as a module, and says beside them in
//! `flavour` which target that is, where its rows are, and how a projection with SQL of its own writes them.
//!
//! * `fixtures`: a view, events, and what a clean fold of them gives; `databases`, `world`: databases, a store,
//!   processes;
//! * `target`: the conformance of the target; `histories`, `crashes`, `poison`, `poison_deaths`, `panics`, `restored`,
//!   `lives`, `versions`, `filters`, `waits`, `indexes`, `starts`: what becomes of projections; `operators`: what is
//!   told of them; `reading`: rows as readers get them.

mod crashes;
mod databases;
mod filters;
pub(crate) mod fixtures;
mod histories;
mod indexes;
mod lives;
mod operators;
mod panics;
mod poison;
mod poison_deaths;
mod reading;
mod restored;
mod starts;
mod target;
mod versions;
mod waits;
pub(crate) mod world;
