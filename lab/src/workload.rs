//! What is asked of them, and what has become of it.

pub(crate) mod journals;
pub(crate) mod ladder;
pub(crate) mod read;
pub mod read_back;
pub(crate) mod run;
pub mod sizes;
pub mod target;
pub(crate) mod units;
