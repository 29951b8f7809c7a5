//! Loads, the targets that get them, and what is counted meanwhile.

pub mod counters;
pub(crate) mod entities;
pub(crate) mod journals;
pub(crate) mod ladder;
pub(crate) mod read;
pub mod sizes;
pub mod target;
pub(crate) mod watch;
