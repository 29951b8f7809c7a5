//! Gesta: an event store on the SQL database you already run.
//!
//! ```
//! use gesta::{EventData, EventStore, EventStoreExt, EventType, ExpectedRevision};
//! use gesta::{StreamId, Subscribe, SubscribeFrom, SubscribeTo};
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> gesta::Result<()> {
//! // An embedded store: "sqlite:gesta.db" for a file, "postgres://user@host/db" for PostgreSQL,
//! // "http://host:port" for a server (feature `client`).
//! let store = gesta::open("sqlite::memory:").await?;
//!
//! let added = EventData::json(EventType::new("item-added")?, r#"{"item":"book"}"#);
//! store.append_to("cart-1", ExpectedRevision::NoStream, vec![added]).await?;
//! for event in store.read_whole_stream("cart-1").await? {
//!     println!("{} {} {:?}", event.revision, event.event_type, event.data);
//! }
//!
//! let cart = SubscribeTo::Stream(StreamId::new("cart-1")?);
//! let mut events = store.subscribe(Subscribe { to: cart, from: SubscribeFrom::Start }).await?;
//! assert_eq!(events.next_event().await?.event_type.as_str(), "item-added");
//!
//! store.shutdown().await?;
//! # Ok(()) }
//! ```
//!
//! What is promised is written in `docs/reference/contract.md`. This crate only chooses the backend by URL:
//! the vocabulary is that of `gesta-core`, the store that of `gesta-store`.
//! Administration of a store that no server has open: [`schema`], and [`Database`] for `verify` and `backup`.

#[cfg(not(any(feature = "sqlite", feature = "postgres")))]
compile_error!("choose a backend: feature `sqlite`, `postgres`, or both");

/// Compiles the example of the README.
#[cfg(doctest)]
#[doc = include_str!("../../../README.md")]
struct Readme;

#[cfg(doctest)]
#[doc = include_str!("../../../docs/guides/entities.md")]
struct EntitiesGuide;

#[cfg(doctest)]
#[doc = include_str!("../../../docs/guides/consumers.md")]
struct ConsumersGuide;

#[cfg(doctest)]
#[doc = include_str!("../../../docs/guides/consumer-groups.md")]
struct ConsumerGroupsGuide;

#[cfg(all(doctest, feature = "projection-sqlite"))]
#[doc = include_str!("../../../docs/guides/read-models.md")]
struct ReadModelsGuide;

#[cfg(doctest)]
#[doc = include_str!("../../../docs/tutorials/rust.md")]
struct RustTutorial;

#[cfg(doctest)]
#[doc = include_str!("../../../docs/tutorials/akka.md")]
struct AkkaTutorial;

#[cfg(feature = "sqlite")]
mod blocking;
mod database;
#[cfg(feature = "postgres")]
pub mod databases;
mod left_virtual_streams;
#[cfg(feature = "metrics")]
pub mod metrics;
mod restore;
pub mod schema;
#[cfg(feature = "postgres")]
mod several;
mod url;

pub use database::{Database, Missing, Options};
pub use gesta_core::backend::{Removed, RunMode};
pub use gesta_core::*;
pub use gesta_entity as entity;
pub use gesta_groups as groups;
#[cfg(feature = "cluster")]
pub use gesta_node::{Build as NodeBuild, Node, NodeOptions, Protocols, Stop as NodeStop};
#[cfg(feature = "projection")]
pub use gesta_projection as projection;
#[cfg(feature = "projection-sqlite")]
pub use gesta_projection_sqlite as projection_sqlite;
pub use gesta_sql::verify;
pub use gesta_store::{
    Config, ScavengeProgress, ScavengeReport, Store, VirtualStreamsConfig, VirtualStreamsStatus,
};
pub use left_virtual_streams::LeftVirtualStreams;
pub use restore::{MadeBy, Restored, restore};
pub use url::SCHEMES;

pub use gesta_append::ClockPolicy;

/// The bounds and times of the append pipeline.
pub type AppendConfig = gesta_append::Config;
/// The bounds and times of the tail hub.
pub type TailConfig = gesta_tail::Config;

use std::sync::Arc;

/// Opens the store at `url`.
///
/// * `sqlite:PATH`: a file, for one process (options:
///   `?synchronous=full|normal|off&readers=1..64&wal_mib=1..4096&create=false`);
/// * `sqlite::memory:`: gone when it is closed;
/// * `postgres://user:password@host:port/database`: PostgreSQL, for any number of processes (options
///   `?schema=`, `sslmode=`, `readers=`, …);
/// * several of these, separated by spaces: a store whose logs lie in several PostgreSQL databases. All of them must be
///   named, in any order ([`schema::create`] makes such a store);
/// * `http://host:port`: a server, with the feature `client`. It is asked for the first time by the first call.
///
/// A store that does not exist is made only by [`Options::creating`], unless it is in memory. [`open_database`] returns
/// the store of a database with what only such a store can do, for example owning entities and scavenging.
///
/// # Errors
/// `InvalidArgument` for another scheme or a wrong option; `Unavailable` if the database does not answer; `Schema` if
/// there is no store, or it must be migrated or is newer than this program; `Unsupported` if the database cannot keep
/// the contract, or this program was built without the feature.
///
/// # Cancel safety
/// Dropping the future changes no stored data.
pub async fn open(url: &str) -> Result<Arc<dyn EventStore>> {
    Options::default().open(url).await
}

/// Opens the store in the database at `url`, as [`open`] does, but never a server.
///
/// # Errors
/// The errors of [`open`]; `InvalidArgument` for the URL of a server.
///
/// # Cancel safety
/// Dropping the future changes no stored data.
pub async fn open_database(url: &str) -> Result<Arc<Store>> {
    Options::default().open_database(url).await
}

#[cfg(feature = "client")]
fn connect(url: &str) -> Result<Arc<dyn EventStore>> {
    Ok(Arc::new(gesta_client::HttpStore::connect(url)?))
}

#[cfg(not(feature = "client"))]
fn connect(_url: &str) -> Result<Arc<dyn EventStore>> {
    Err(url::left_out("client"))
}
