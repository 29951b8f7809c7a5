//! An event store in memory whose database can fail on purpose: the whole append pipeline, hub and reads of
//! `gesta-store` over the tables of [`database`](crate::database).
//!
//! A [`World`] is the database. Each [`Faulty`] is a process that uses it, with its own connections and its own faults;
//! several of them on one world stand for several servers. A [`FaultyStore`] is a process with a store; a test may
//! start a part of a store instead, such as the append pipeline alone. A test can ask for whatever a real database does
//! to a client: a commit that fails, is refused, is overtaken by another process, loses its request or its reply, or
//! commits long after its connection died; slow or failing reads; a database that is away for a while; lost messages.
//! Answers can be held back, so that a test decides what happens meanwhile.
//!
//! Why the whole pipeline and not a plain store with failing calls: the answers under faults are those of the real
//! code, and the same world serves the tests of the store, of the entity runtime, and of applications.
//!
//! Invariants: the world executes chained inserts as a database does, and never loses a stored row (unless told to);
//! with tokio's clock paused, on one thread and with a seed, a run can be repeated.
//! Not here: a database that breaks its promises (see [`broken`](crate::broken) for wrong stores).
//!
//! ```
//! use gesta_core::{EventData, EventStoreExt, EventType, ExpectedRevision};
//! use gesta_kit::faulty::{Fault, FaultyStore};
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> gesta_core::Result<()> {
//! let store = FaultyStore::new();
//! store.fail_next_commit(Fault::LostReply);
//! let event = EventData::json(EventType::new("paid")?, "{}");
//! // The connection dies after the commit; the pipeline finds out that the event is stored.
//! store.append_to("order-1", ExpectedRevision::NoStream, vec![event]).await?;
//! assert_eq!(store.world().stored().len(), 1);
//! # Ok(()) }
//! ```

mod backend;
mod clock;
mod factory;
mod gate;
mod plan;
mod process;
mod random;
mod read;
mod store;
mod world;
mod writer;

pub use crate::database::Moment;
pub use backend::FaultyBackend;
pub use clock::TokioClock;
pub use factory::WorldFactory;
pub use gate::Answers;
pub use plan::{Fault, ForeignEvents, LateCommit, RandomFaults, ReadFault};
pub use random::Random;
pub use read::{Calls, Read};
pub use store::{Faulty, FaultyStore};
pub use world::{StoredEvent, World};
