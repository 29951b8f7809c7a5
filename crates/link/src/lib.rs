//! Links: how the nodes of a cluster call each other.
//!
//! A store has several logs, and each log has one owner. A node that does not own a log forwards calls for it to the
//! owner. The forwarding node dials the owner and keeps one connection to it ([`Forwarder`]); the owner listens
//! ([`LinkServer`]) and hands the calls to whoever serves them ([`Serve`]). Beside calls there are questions from node
//! to node, which have no order ([`Forwarder::ask`]).
//!
//! Why not one request for each call: the calls of a log must reach its owner in the order in which they were made,
//! also when the owner changes or a connection breaks in between. So all calls from one node for one log travel on one
//! *lane*, a stream of the connection, and a pure state machine at each end of the lane keeps the order (`sending`,
//! `receiving`).
//!
//! Invariants: calls of one log are handed to an owner in the order of their invocation; after a call was refused as
//! *not here*, no later call of the lane is served; every call has exactly one outcome; bodies are opaque and never
//! decoded; every queue has a bound.
//!
//! Not here: what the calls mean, who owns a log (leases), encryption, the client's API.
//!
//! ```
//! use std::sync::Arc;
//! use std::time::Duration;
//!
//! use bytes::Bytes;
//! use futures::FutureExt;
//! use futures::future::BoxFuture;
//! use gesta_core::{Incarnation, LogId};
//! use gesta_link::*;
//! use tokio::net::TcpListener;
//! use tokio::time::Instant;
//! use uuid::Uuid;
//!
//! /// Answers each call with its own body.
//! struct Echo;
//!
//! impl Serve for Echo {
//!     fn call(&self, _log: LogId, call: Call) -> Served {
//!         Served::Taken(async { Answer::Reply(call.body) }.boxed())
//!     }
//!
//!     fn ask(&self, question: Question) -> BoxFuture<'static, Bytes> {
//!         async { question.body }.boxed()
//!     }
//! }
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> std::result::Result<(), Box<dyn std::error::Error>> {
//! let listener = TcpListener::bind("127.0.0.1:0").await?;
//! let config = LinkConfig {
//!     store: StoreIdentity { id: Uuid::new_v4(), logs: 4 },
//!     secret: Secret::new(b"32 random bytes of the cluster..")?,
//!     address: listener.local_addr()?.into(),
//!     build: "1.0.0".to_owned(),
//!     protocols: Protocols::THIS,
//!     times: Times::default(),
//!     bounds: Bounds::default(),
//! };
//! let owner = LinkServer::start(listener, config.clone(), Arc::new(Echo))?;
//!
//! let config = LinkConfig { address: Address::new("node-b:7071"), ..config };
//! let forwarder = Forwarder::start(config, Arc::new(|_log, _hint| {}))?;
//! let epoch = Epoch { incarnation: Incarnation::random(), number: 1 };
//! let route = Route { owner: RouteOwner::Node(owner.local_address().into()), epoch };
//! forwarder.set_route(LogId(0), route).await;
//!
//! let deadline = Instant::now() + Duration::from_secs(10);
//! let reply = forwarder.call(LogId(0), 1, Bytes::from("body"), deadline).await?;
//! assert_eq!(reply.body, "body");
//! # Ok(()) }
//! ```

mod clock;
mod config;
mod demand;
mod error;
mod forwarder;
mod frame;
mod hello;
mod meeting;
mod peer;
mod pipe;
mod reach;
mod receiving;
mod route;
mod sending;
mod serve;
mod server;
mod stats;

/// The pure cores of a lane, for simulations; and what reads the bytes of other nodes, for fuzzing.
#[doc(hidden)]
pub mod core {
    pub use crate::frame::{Frame, Frames, Outbox};
    pub use crate::hello::{HelloError, Introduction, dial, listen};
    pub use crate::receiving::{CallVerdict, Newest, Receiver, Refusal};
    pub use crate::sending::{Credit, Input, LinkState, Output, Sender, Violation, Write};
}

pub use config::{Bounds, LinkConfig, Protocols, Secret, StoreIdentity, Times};
pub use error::{AskError, ForwardError, LinkStartError, Result, ReturnReason};
pub use forwarder::{Forwarder, NodeReach, OnHint, OnReply, Outgoing, Reply};
pub use meeting::{Meeting, meet};
pub use reach::Reach;
pub use route::{Address, Epoch, Hint, Route, RouteOwner};
pub use sending::Patience;
pub use serve::{Answer, Call, Question, Serve, Served};
pub use server::LinkServer;
pub use stats::ForwarderStats;
