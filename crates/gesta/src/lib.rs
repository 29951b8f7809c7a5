//! Gesta: an event store on the SQL database you already run.
//!
//! ```
//! use gesta::{EventData, ExpectedRevision::NoStream, Filter};
//! use serde::{Deserialize, Serialize};
//!
//! #[derive(Serialize, Deserialize)]
//! struct ItemAdded {
//!     item: String,
//! }
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> gesta::Result<()> {
//! // "sqlite:shop.db" for a file, "postgres://user@host/db" for PostgreSQL, "https://host:port" for a server.
//! let store = gesta::open("sqlite::memory:").create().await?;
//!
//! // The id is drawn here: the same value appended again is a retry.
//! let added = EventData::new("item-added", &ItemAdded { item: "book".into() })?;
//! store.append_to("cart-1", NoStream, [added]).await?;
//!
//! let mut carts = store.follow(Filter::category("cart")).from_start().await?;
//! while let Some(next) = carts.next().await {
//!     let (event, checkpoint) = next?;
//!     let added: ItemAdded = event.json()?;
//!     println!("{} was added to {}; go on after {checkpoint}", added.item, event.stream);
//! #   break;
//! }
//!
//! let mut mails = store.join("cart-1", "mail").await?;
//! while let Some(delivery) = mails.next().await {
//!     let delivery = delivery?;
//!     println!("a mail about {}", delivery.event.json::<ItemAdded>()?.item);
//!     mails.ack(&delivery).await?;
//! #   break;
//! }
//! store.shutdown().await?;
//! # Ok(()) }
//! ```
//!
//! [`open`] gives a [`Store`], the same for a file, a database and a server. [`entity`] has the runtime for entities,
//! [`decision`] decisions over several streams, [`groups`] consumer groups. What is promised is written in
//! `docs/reference/contract.md`. Administration of a store that no server has open: [`schema`], and [`Database`] for
//! `verify` and `backup`.
//!
//! This crate only chooses the backend by URL, and names what programs use: the vocabulary is that of `gesta-core`,
//! which holds the interface of backends too, the store in a database that of `gesta-store`.

#[cfg(not(any(feature = "sqlite", feature = "postgres")))]
compile_error!("choose a backend: feature `sqlite`, `postgres`, or both");

/// Compiles the programs of the tutorials. Those of the README and of the guides are the files of `examples`.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/tutorials/rust.md")]
struct RustTutorial;

#[cfg(doctest)]
#[doc = include_str!("../../../docs/tutorials/akka.md")]
struct AkkaTutorial;

#[cfg(all(doctest, feature = "projection-sqlite"))]
#[doc = include_str!("../../../docs/guides/read-models.md")]
struct ReadModelsGuide;

#[cfg(all(doctest, feature = "timers"))]
#[doc = include_str!("../../../docs/guides/timers.md")]
struct TimersGuide;

#[cfg(feature = "sqlite")]
mod blocking;
mod database;
pub mod groups;
mod join;
mod left_virtual_streams;
#[cfg(feature = "metrics")]
pub mod metrics;
mod open;
mod restore;
pub mod schema;
#[cfg(feature = "client")]
mod servers;
mod store;
mod url;

#[doc(hidden)]
pub use database::Snapshot;
pub use database::{Database, Missing, Options};
pub use gesta_append::ClockPolicy;
#[cfg(feature = "client")]
pub use gesta_client::{Config as ClientConfig, Credentials, OwnerHints, PlainHttp, Tls};
pub use gesta_core::backend::{Removed, RunMode};
pub use gesta_core::{
    ALL_EVENTS, AllFrom, AllPage, Append, Appended, AppendedStream, BackOff, Capabilities,
    Checkpoint, Clock, Condition, ContentType, DeleteKind, DeleteStream, Deleted, Direction,
    Durability, Error, ErrorKind, EventData, EventId, EventStore, EventStoreExt, EventType,
    ExpectedRevision, Filter, Follow, Following, IdempotencyWindow, Incarnation, LinkTarget,
    ListStreams, LogId, MetadataSet, Place, Position, Query, ReadAll, ReadStream, RecordedEvent,
    Resolved, ResolvedMessage, ResolvedPage, Result, Revision, SetStreamMetadata, SharedEvent,
    StoreInfo, StreamAppend, StreamFrom, StreamId, StreamInfo, StreamMetadata,
    StreamMetadataRecord, StreamPage, StreamsPage, Subscribe, SubscribeFrom, SubscribeTo,
    Subscription, SubscriptionMessage, SystemClock, Tag, Tags, Timestamp, limits, log_of, units,
};
pub use gesta_decision as decision;
pub use gesta_entity as entity;
#[cfg(feature = "cluster")]
pub use gesta_node::{Build as NodeBuild, Node, NodeOptions, Protocols, Stop as NodeStop};
#[cfg(feature = "projection")]
pub use gesta_projection as projection;
#[cfg(feature = "projection-postgres")]
pub use gesta_projection_postgres as projection_postgres;
#[cfg(feature = "projection-sqlite")]
pub use gesta_projection_sqlite as projection_sqlite;
pub use gesta_sql::verify;
pub use gesta_store::{
    Config, ScavengeProgress, ScavengeReport, Store as DatabaseStore, VirtualStreamsConfig,
    VirtualStreamsStatus,
};
#[cfg(feature = "timers")]
pub use gesta_timers as timers;
pub use join::Join;
pub use left_virtual_streams::LeftVirtualStreams;
pub use open::Open;
pub use restore::{MadeBy, Restored, restore};
pub use store::Store;
pub use url::SCHEMES;

/// The bounds and times of the append pipeline.
pub type AppendConfig = gesta_append::Config;
/// The bounds and times of the tail hub.
pub type TailConfig = gesta_tail::Config;

use std::sync::Arc;

/// The databases of a store: adds one, moves a log from one to another while the store is in use, and recovers a log
/// that its database has lost.
///
/// How a move goes, and why it may be stopped at any point: `docs/internals/moving-logs.md`.
#[cfg(feature = "postgres")]
pub mod databases {
    #[doc(hidden)]
    pub use gesta_postgres::several::OpenCopy;
    pub use gesta_postgres::several::{Loss, MoveTo, Moved, Mover, Step, add, move_log};
}

/// What the command line alone needs; no part of the public interface.
#[doc(hidden)]
pub mod command_line {
    pub use crate::restore::{CheckedBackup, check_backup, unfinished_of};
}

/// Opens the store at `url`, once it is awaited.
///
/// * `sqlite:PATH`: a file, for one process (options:
///   `?synchronous=full|normal|off&readers=1..64&wal_mib=1..4096&create=false`);
/// * `sqlite::memory:`: gone when it is closed;
/// * `postgres://user:password@host:port/database`: PostgreSQL, for any number of processes (options
///   `?schema=`, `sslmode=`, `readers=`, …), with the feature `postgres`;
/// * several of these, separated by spaces: a store whose logs lie in several PostgreSQL databases. All of them must be
///   named, in any order ([`schema::create`] makes such a store);
/// * `http://host:port` or `https://host:port`: a server, with the feature `client`. It is asked for the first time by
///   the first call. [`Open::token`], [`Open::credentials`] and [`Open::ca_file`] are for servers with users and TLS;
/// * several of these, separated by spaces: the servers of one cluster. If one cannot be reached, another one is asked,
///   and changes go to the owner of their log.
///
/// A store that does not exist is created only by [`Open::create`], unless it is in memory.
///
/// # Examples
#[cfg_attr(feature = "client", doc = "```no_run")]
#[cfg_attr(not(feature = "client"), doc = "```ignore")]
/// # async fn example() -> gesta::Result<()> {
/// let store = gesta::open("https://gesta-1.internal:2113 https://gesta-2.internal:2113")
///     .token("gst_…")
///     .ca_file("authority.pem")
///     .await?;
/// # Ok(()) }
/// ```
pub fn open(url: &str) -> Open {
    Open::new(url)
}

/// Opens the store in the database at `url`, which must exist, and never a server; with what only such a store can do,
/// for example owning entities and scavenging. [`Options`] says more.
///
/// # Errors
/// Those of [`Open`]; `InvalidArgument` for the URL of a server.
///
/// # Cancel safety
/// Dropping the future changes no stored data.
pub async fn open_database(url: &str) -> Result<Arc<DatabaseStore>> {
    Options::default().open_database(url).await
}
