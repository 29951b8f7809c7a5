//! What the processes that share a store have in common: nodes, leases, messages.

pub(crate) mod registry;
pub(crate) mod signals;
