//! A store on several databases, and one that moves: the map of its logs, copies of logs, a store that is closed.

pub(crate) mod blockers;
pub(crate) mod copies;
pub(crate) mod departure;
pub(crate) mod relocation;
