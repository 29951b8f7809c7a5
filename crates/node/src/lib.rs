//! A node: an [`EventStore`](gesta_core::EventStore) on a database that it shares with other nodes.
//!
//! Why: each log is fastest with one writer. A node appends to the logs that it owns, and forwards the changes of the
//! others to their owners; reads and subscriptions come from the database, on every node.
//! Invariants: an owner is advice about routing, never evidence: what is stored is decided by the chained insert, so a
//! node may always append by itself. Every change that is forwarded carries the ids of its events, made once, before
//! the first attempt; whoever tries it again, anywhere, stores nothing twice.
//! Not here: who owns which log (`gesta-cluster`), how calls travel (`gesta-link`), deciding about appends
//! (`gesta-append`).
//!
//! * `calls`: what is forwarded, and its form on the way; `answers`: what comes back;
//! * `serve`: the owner's side; `change`: the side of the node that a caller has come to; `edge`: what an answer, or
//!   its lack, means there; `deadline`: when a change is over;
//! * `services`: the same for what lives beside the store;
//! * `join`: the node's membership in the cluster; `address`: what may be its address there;
//! * `standing`: whether the node takes part, and what it has done;
//! * `placements`: where a node has it from who owns which log; `questions`: what nodes ask each other beside calls;
//! * `routes`: tells the forwarder of every change of the owners; `direct`: how fast a node appends to a log of
//!   another.

mod address;
mod answers;
mod calls;
mod change;
mod clients;
mod deadline;
mod direct;
mod edge;
mod join;
mod memberships;
mod node;
mod placements;
mod questions;
mod routes;
mod serve;
mod services;
mod standing;

/// The pure rules of a node, for simulations.
#[doc(hidden)]
pub mod cores {
    pub use crate::answers::{Changed, encode};
    pub use crate::calls::Change;
    pub use crate::edge::{Here, Next, next};
    pub use crate::routes::route;
    pub use crate::serve::hint;
}

pub use clients::ClientAddresses;
pub use gesta_cluster::Took;
pub use gesta_cluster::membership::Stop;
pub use gesta_link::Protocols;
pub use join::{Build, NodeOptions};
pub use node::{Config, Node, NodeLink};
pub use placements::Placements;
pub use standing::NodeStats;
