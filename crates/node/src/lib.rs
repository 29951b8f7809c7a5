//! A node: an [`EventStore`](gesta_core::EventStore) on a database that it shares with other nodes.
//!
//! Why: each log is fastest with one writer. A node appends to the logs that it owns, and forwards changes of other
//! logs to their owners. Reads and subscriptions come from the database, on every node.
//! Invariants: an owner is advice about routing, never evidence: the chained insert decides what is stored, so a node
//! may always append by itself. Every change that is forwarded carries the ids of its events, which are made once,
//! before the first attempt; so an attempt that is made again, by any node, stores nothing twice.
//! Not here: who owns which log (`gesta-cluster`), how calls are sent (`gesta-link`), deciding about appends
//! (`gesta-append`).
//!
//! * `calls`: what is forwarded, and the form in which it is sent; `answers`: what comes back; `ends`: ends of logs;
//! * `serve`: the side of the owner; `change`: the side of the node that a caller has come to; `edge`: what an answer,
//!   or its lack, means there; `deadline`: when the time of a change is over;
//! * `services`: the same for what lives beside the store;
//! * `join`: the membership of the node in the cluster; `address`: which address it may have there; `strangers`: which
//!   node must go if the secrets differ;
//! * `standing`: whether the node takes part, and what it has done;
//! * `placements`: the source from which a node knows who owns which log; `questions`: what nodes ask each other beside
//!   calls;
//! * `routes`: tells the forwarder of every change of the owners; `direct`: how fast a node appends to a log of another
//!   node.

mod address;
mod answers;
mod calls;
mod change;
mod clients;
mod deadline;
mod direct;
mod edge;
mod ends;
mod join;
mod memberships;
mod node;
mod placements;
mod questions;
mod routes;
mod serve;
mod services;
mod standing;
mod strangers;
mod taking_over;

/// The pure rules of a node, for simulations.
#[doc(hidden)]
pub mod core {
    pub use crate::answers::{Changed, encode};
    pub use crate::calls::{Change, Sent};
    pub use crate::edge::{Here, Next, next};
    pub use crate::routes::route;
    pub use crate::serve::hint;
}

pub use clients::ClientAddresses;
pub use gesta_cluster::{Stop, Timings};
pub use gesta_link::Protocols;
pub use join::{Build, NodeOptions};
pub use node::{Config, Node, NodeLink};
pub use placements::Placements;
pub use standing::NodeStats;
