//! The commands that measure.

pub(crate) mod append;
pub(crate) mod catch_up;
pub(crate) mod copy;
pub(crate) mod decisions;
pub(crate) mod latency;
pub(crate) mod locking;
pub(crate) mod projections;
pub(crate) mod quick;
pub(crate) mod recovery;
pub(crate) mod scenario;
pub(crate) mod schemas;
pub(crate) mod shares;
pub(crate) mod tags;
