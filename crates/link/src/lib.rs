//! Links: how the nodes of a cluster call each other.
//!
//! A store has several logs, and each log has one owner. A node that does not own a log forwards calls for it to the
//! owner. The forwarding node dials the owner and keeps one connection to it ([`Forwarder`]); the owner listens
//! ([`LinkServer`]) and hands the calls to whoever serves them ([`Serve`]).
//!
//! Why not one request for each call: the calls of a log must reach its owner in the order in which they were made, also
//! when the owner changes or a connection breaks in between. So all calls from one node for one log travel on one
//! *lane*, a stream of the connection, and a pure state machine at each end of the lane keeps the order (`sending`,
//! `receiving`).
//!
//! Invariants: calls of one log are handed to an owner in the order of their invocation; after a call was refused as
//! *not here*, no later call of the lane is served; every call has exactly one outcome; bodies are opaque and never
//! decoded; every queue has a bound.
//!
//! Not here: what the calls mean, who owns a log (leases), encryption, the client's API.

mod config;
mod error;
mod forwarder;
mod frame;
mod hello;
mod peer;
mod pipe;
mod pushes;
mod reach;
mod receiving;
mod route;
mod sending;
mod serve;
mod server;
#[cfg(test)]
mod simulation;

pub use config::{Bounds, LinkConfig, Secret, StoreIdentity, Times};
pub use error::{AskError, ForwardError, Result, ReturnReason, StartError};
pub use forwarder::{Forwarder, NodeReach, OnHint, OnReply, Outgoing};
pub use pushes::{Pushed, Pushes};
pub use reach::Reach;
pub use route::{Address, Epoch, Hint, Owner, Route};
pub use serve::{Answer, Call, Question, Serve, Served};
pub use server::LinkServer;
