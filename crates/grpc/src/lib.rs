//! The gRPC protocol of the EventStoreDB and KurrentDB clients: its messages, its frames, its errors, and what they
//! mean in Gesta's words.
//!
//! Why there is no framework for gRPC: a message is counted against the server's memory as it arrives, and a framework
//! counts it when it is whole. What is left of gRPC beside that is a frame of five bytes and a trailer.
//! Invariants: everything here is pure; no input panics; every refusal has the status and the trailers of which the
//! clients make their own exceptions.
//! Not here: the calls themselves, which need a store (`gesta_server`).
//!
//! The protocol is described call by call in `docs/reference/grpc.md`.

pub mod batch;
mod claims;
pub mod event;
pub mod expected;
pub mod features;
pub mod filter;
pub mod frame;
pub mod ids;
mod instead;
pub mod positions;
pub mod proposed;
pub mod refusal;
pub mod request;
pub mod stored;
pub mod timeout;
pub mod v2;

#[allow(missing_docs, unreachable_pub, clippy::all, clippy::pedantic)]
mod generated;

pub use expected::Expected;
pub use positions::Positions;
pub use refusal::{Code, Refusal};
pub use request::Request;

/// Result with a refusal.
pub type Result<T> = std::result::Result<T, Refusal>;

/// The messages of the protocol, generated from the schema in `proto/`.
pub mod messages {
    pub use crate::generated::event_store::client as shared;
    pub use crate::generated::event_store::client::persistent_subscriptions as groups;
    pub use crate::generated::event_store::client::{
        gossip, monitoring, operations, projections, server_features, streams, users,
    };
    pub use crate::generated::google::rpc;
    pub use crate::generated::grpc::health::v1 as health;
    pub use crate::generated::kurrent::rpc as server_errors;
    pub use crate::generated::kurrentdb::protocol::v2::streams as v2;
}
