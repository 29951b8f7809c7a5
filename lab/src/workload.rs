//! What is asked of them, and what has become of it.

pub mod counters;
pub(crate) mod entities;
pub(crate) mod journals;
pub(crate) mod ladder;
pub(crate) mod read;
pub mod sizes;
pub mod target;
pub(crate) mod watch;
