//! Nodes that share a database: which nodes live, and which of them appends to which log.
//!
//! Why: each log is fastest with one writer, and somebody must notice when that writer is gone. There is no
//! coordinator: every node beats, sees all the others with the same statement, claims the logs that have no owner, and
//! gives away what exceeds its share.
//! Invariants: a lease is advice about routing, never evidence; the chained insert decides what is stored. No node is
//! declared dead on account of time that its observer has not covered by successful looks of its own.
//! Not here: connections between nodes, forwarding of calls, the tables (`gesta-postgres`).
//!
//! * `membership`: the pure core that decides; `shell`: the task that connects the core with a registry;
//! * `placement`: what the rest of a node sees of it; `timings`: how long all of it takes.

mod clock;
mod membership;
mod placement;
mod shell;
mod timings;

/// The core of a membership, for simulations.
#[doc(hidden)]
pub mod core {
    pub use crate::membership::{Change, Changed, Core, Input, Output, Setting};
}

pub use membership::{
    Config, Note, PlannedMove, Preparation, Readiness, Sign, Stop, is_about_to_claim, planned_moves,
};
pub use placement::{LogPlace, Member, Owner, Placement};
pub use shell::{HandOvers, Membership, Options, Progress, Status, WithoutLinks};
pub use timings::Timings;
