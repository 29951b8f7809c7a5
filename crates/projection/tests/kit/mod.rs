//! The tests of projections over any target. The crate of a target has them as a module, and says beside them in
//! `flavour` which target that is, where its rows are, and how a projection with SQL of its own writes them.
//!
//! * `fixtures`: a view, events, and what a clean fold of them gives; `databases`, `world`: databases, a store,
//!   processes;
//! * `target`: the conformance of the target; `histories`, `crashes`, `poison`, `poison_deaths`, `panics`, `restored`,
//!   `lives`, `versions`, `filters`, `waits`, `indexes`, `starts`: what becomes of projections; `operators`: what is
//!   told of them; `reading`: rows as readers get them.
//!
//! What befalls projections, and which tests play it. Those without a crate are here, for every target; random
//! histories (`histories`) mix 1 to 5, 8, 14, 17, 23 and 24. `postgres` is `faults` of `gesta-projection-postgres`, for
//! both drivers; `processes` is `read_models` of `gesta-cli`, with real processes and servers.
//!
//! * 1, 2, 3, 4, 5, it dies before the fence, after it, among the rows, or loses the answer to a commit that has landed
//!   or not: `schedules_1_to_5_…`; 4 also `schedule_04_…` of `postgres`.
//! * 6, the commit lands after the successor has begun: `schedule_06_…` of `postgres`.
//! * 7, 8, the owner stands still past its lease, within a batch or between two, and wakes: `schedules_7_and_8_…`, here
//!   and in `postgres`.
//! * 9, a clock is set by an hour, that of the target: `schedule_09_…`; that of one process: `schedule_09_…` of
//!   `processes`.
//! * 10, 11, the server of the target starts again, takes no rows for a while: `schedules_10_and_11_…`, here and in
//!   `postgres`.
//! * 12, a deadlock with an application: `schedule_12_…` of `postgres`.
//! * 13, a lock is not to be had in time: `schedule_13_…` of `postgres`.
//! * 14, the store does not answer in the middle of a page: `schedule_14_…`, here and in `reader.rs`.
//! * 15, a subscriber falls back to pages: `schedule_15_…` in `reader.rs`.
//! * 16, nothing matches for long, and it begins again: `schedule_16_…`.
//! * 17, an event that cannot be applied, the first, the last and amid a batch: `schedule_17_…`.
//! * 18, two of a key, and a replay while new ones come: `schedule_18_…`.
//! * 19, a replay dies half-way: `schedule_19_…`.
//! * 20, an event kills the process: `schedule_20_…`, here and in `read_model` of `gesta`, by a stack that overflows.
//! * 21, a build, or its switch, dies at each step: `schedule_21_…`.
//! * 22, a switch to a version that is behind, and back: `schedule_22_…`.
//! * 23, the store or the target is put back to an earlier moment: `schedule_23_…`; by a fail-over that loses commits:
//!   `schedule_23_…` of `processes`, and `losses` of `gesta-projection-postgres` for the target.
//! * 24, paused, reset and retired at any moment: `schedule_24_…`.
//! * 25, one of a hundred hangs: `schedule_25_…` of `postgres`.

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
