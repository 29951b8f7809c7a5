//! Client of the Gesta HTTP API: [`HttpStore`] is an [`EventStore`](gesta_core::EventStore) on a server.
//!
//! Why: programs, the command line and the conformance suite use a store on a server like any other.
//! Invariants: problem documents become the [`ErrorKind`](gesta_core::ErrorKind) that the server had;
//! an append whose answer did not come is `OutcomeUnknown`, never `Unavailable`; data comes back byte for byte.
//! Not here: retries (the caller has the event ids and decides).
//!
//! ```no_run
//! # async fn example() -> gesta_core::Result<()> {
//! use gesta_core::{EventData, EventStoreExt, ExpectedRevision};
//!
//! let store = gesta_client::HttpStore::connect("http://127.0.0.1:2113")?;
//! let event = EventData::new("item-added", "book")?;
//! store.append_to("cart-1", ExpectedRevision::NoStream, [event]).await?;
//! # Ok(()) }
//! ```
//!
//! Servers that are nodes of one cluster are given together ([`HttpStore::connect_to_cluster`]): if one cannot be
//! reached, another one is asked, and changes go straight to the owners of their logs.

mod address;
mod backup;
#[doc(hidden)]
pub mod core;
mod groups;
mod maintenance;
mod owners;
mod sse;
mod store;
mod tls;
mod transport;

pub use backup::BackupDownload;
pub use groups::HttpGroups;
pub use store::{HttpStore, Look};
pub use tls::{Credentials, Tls};
pub use transport::{Config, OwnerHints, PlainHttp};
