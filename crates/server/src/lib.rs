//! HTTP API of the Gesta event store: JSON documents, lines and server-sent events over any
//! [`EventStore`](gesta_core::EventStore); and the gRPC calls of the EventStoreDB and KurrentDB clients on the same
//! port.
//!
//! Why this is a library that takes a store: the binary chooses the backend, and tests choose the in-memory one.
//! Why it uses hyper without a framework: an append of one small event is most of the work, and what a framework adds
//! per request would be a good part of its cost; the addresses are few and fixed (`route`).
//! Invariants: handlers decode, call and encode, no rule of the store is in them; every error is an RFC 9457 problem
//! document, over gRPC a status with trailers; everything that waits or is held in memory has a maximum.
//!
//! The way of a call: `serve` accepts a connection, which `tls` encrypts and `edge` watches; `router` finds the call by
//! its address (`route`) and does what is the same for all (`call`); `http` or `grpc` reads the request, calls the
//! store and writes the answer. `state` holds what all requests share; what it consists of, and what both kinds of
//! calls use (bodies, bounds, errors, metrics), is in `shared`.
//!
//! Not here: the rules of appends and reads (`gesta_core` and the backends), the client (`gesta_client`), configuration
//! files (the binary).
//!
//! The calls are described in `docs/reference/http.md`, `docs/reference/grpc.md`, and by the server itself at
//! `/openapi.json`.
//!
//! ```no_run
//! # async fn example(store: std::sync::Arc<dyn gesta_core::EventStore>) -> Result<(), gesta_server::StartError> {
//! let server = gesta_server::start(gesta_server::Config::default(), store, Default::default()).await?;
//! println!("http://{}", server.local_addr());
//! server.shutdown().await;
//! # Ok(()) }
//! ```

mod call;
mod config;
#[doc(hidden)]
pub mod core;
mod edge;
mod grpc;
mod http;
mod route;
mod router;
mod serve;
mod shared;
mod state;
mod tls;

pub use config::Config;
pub use prometheus_client::registry::Registry;
pub use serve::{Bound, Handle, StartError, bind, start};
pub use shared::maintainer::{Maintenance, OnProgress, VirtualStreamsCall};
pub use shared::placement::{Cluster, ClusterNode, ClusterPlacement, LogOwner};
pub use state::BackupSource;
pub use tls::{TlsError, TlsFiles};
