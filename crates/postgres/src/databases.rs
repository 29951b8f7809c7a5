//! A store on several databases, and one that moves: copies of logs, a store that is closed.

pub(crate) mod blockers;
pub(crate) mod copies;
pub(crate) mod departure;
pub(crate) mod relocation;
