//! The vocabulary of Gesta: ids, events, errors, requests and the [`EventStore`] trait.
//!
//! Why: every other crate uses these types, so a backend, a server and an application agree on names, limits and
//! answers.
//! Invariants: a value that exists is valid (names, tags and types are checked when they are made).
//! Not here: I/O, SQL, an async runtime.

mod attempt;
mod back_off;
pub mod backend;
mod builders;
pub mod capacity;
mod checkpoint;
mod clock;
pub mod durations;
mod error;
mod event;
mod filter;
mod follow;
mod host_port;
mod ids;
mod info;
mod lasting_fault;
mod lifecycle;
pub mod limits;
mod links;
mod moment;
pub mod newcomers;
mod owner;
pub mod pace;
pub mod peers;
mod printable;
pub mod registry;
mod request;
mod resolved;
pub mod shares;
mod slice;
mod store;
mod store_ext;
pub mod system_streams;
pub mod turns;
pub mod units;
mod uptime;
mod virtual_stream;
mod way_point;

pub use attempt::{Attempt, KnownEnd};
pub use back_off::BackOff;
pub use checkpoint::{
    CHECKPOINT_POSITIONS_CATCHING_UP, CHECKPOINT_POSITIONS_LIVE, Checkpoint, Place, next_multiple,
    reading_order,
};
pub use clock::{Clock, SystemClock, Timestamp};
pub use error::{Error, ErrorKind, Result};
pub use event::{ContentType, EVENT_OVERHEAD_BYTES, EventData, RecordedEvent, Tags};
pub use filter::{Filter, Query};
pub use follow::{Follow, Following};
pub use host_port::HostPort;
pub use ids::{EventId, EventType, Incarnation, LogId, Position, Revision, StreamId, Tag};
pub use info::{Capabilities, Durability, IdempotencyWindow, StoreInfo};
pub use lasting_fault::LastingFault;
pub use lifecycle::{
    Lifecycle, LifecycleChange, StreamMetadata, TRUNCATED_UNTIL_WRITTEN, Visibility,
};
pub use links::{ResolvedMessage, ResolvedPage, resolve_one_by_one, resolve_subscription};
pub use moment::{Moment, Now};
pub use owner::{After, LoadFrom, LoadStream, LoadedPage, OnOutcome, OwnerStore, Submission};
pub use printable::printable;
pub use request::{
    AllFrom, AllPage, Append, Appended, AppendedStream, Condition, DeleteKind, DeleteStream,
    Deleted, Direction, ExpectedRevision, ListStreams, MetadataSet, ReadAll, ReadStream,
    SetStreamMetadata, SharedEvent, StreamAppend, StreamFrom, StreamInfo, StreamMetadataRecord,
    StreamPage, StreamsPage, Subscribe, SubscribeFrom, SubscribeTo,
};
pub use resolved::Resolved;
pub use slice::{SLICES, log_of, routing_key, slice_of};
pub use store::{EventStore, Subscription, SubscriptionMessage};
pub use store_ext::EventStoreExt;
pub use uptime::{suspended, uptime};
pub use virtual_stream::{
    ALL_EVENTS, CATEGORY_PREFIX, LINK_TYPE, LinkTarget, LinkTo, ONLY_VIRTUAL, STREAMS, TYPE_PREFIX,
    VirtualKind, begins_virtual_streams, virtual_link, virtual_number, virtual_streams_of,
};
pub use way_point::WAY_POINTS;
