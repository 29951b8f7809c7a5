//! HTTP API of the Gesta event store: JSON documents, lines and server-sent events over any
//! [`EventStore`](gesta_core::EventStore); and the gRPC calls of the EventStoreDB and KurrentDB clients on the same
//! port.
//!
//! Why this is a library that takes a store: the binary chooses the backend, and tests choose the in-memory one.
//! Why it uses hyper without a framework: an append of one small event is most of the work, and what a framework adds
//! per request would be a good part of its cost; the addresses are few and fixed (`route`).
//! Invariants: handlers decode, call and encode, no rule of the store is in them; every error is an RFC 9457 problem
//! document, over gRPC a status with trailers; everything that waits or is held in memory has a maximum.
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

mod activity;
mod api;
mod appends;
mod backup;
mod body;
mod certificate;
mod config;
mod cors;
mod decode;
mod deliveries;
mod document;
mod edge;
mod fanout;
mod gate;
mod gossip;
mod groups;
mod grpc;
mod host;
mod lasting;
mod lines;
mod maintainer;
mod maintenance;
mod metrics;
mod pace;
mod pages;
mod patterns;
mod placement;
mod problem;
mod queries;
mod read;
mod readiness;
mod request_log;
mod route;
mod router;
mod scavenges;
mod serve;
mod sse;
mod state;
mod subscribe;
mod system;
mod tls;
mod uri;
mod write;

pub use config::{Config, Network, NoNetwork, NoOrigin, Origin};
pub use maintainer::{Maintenance, OnProgress, VirtualStreamsCall};
pub use placement::{Cluster, ClusterNode, ClusterPlacement, LogOwner};
pub use prometheus_client::registry::Registry;
pub use serve::{Bound, Handle, StartError, bind, start};
pub use state::BackupSource;
pub use tls::{TlsError, TlsFiles};
