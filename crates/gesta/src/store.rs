//! [`Store`]: an open store as a program holds it, wherever it is.
//!
//! Why: a program that begins with a file and moves to a server changes a URL, not its code.
//! Not here: opening (`open`), the store in a database itself (`gesta_store`).

use std::fmt;
use std::ops::Deref;
use std::sync::{Arc, OnceLock};

use gesta_core::{
    Appended, Error, EventData, EventStore, EventStoreExt, ExpectedRevision, Follow, RecordedEvent,
    Result, Revision, StreamId, SubscribeTo,
};
use gesta_entity::{Decider, Entities, EntityType};
use gesta_groups::{Config as GroupsConfig, ConsumerGroups, Groups, Source};
use gesta_store::Store as DatabaseStore;

use crate::join::Join;

/// An open store: in a file, in a database, or on a server. Clones are cheap and are the same store.
///
/// Beside the methods of this type it has all of [`EventStore`], to which it dereferences: `info`, `append`,
/// `read_stream`, `read_all`, `list_streams`, `delete_stream`, `set_stream_metadata`, `subscribe` and the others.
///
/// # Examples
/// ```
/// use gesta::{EventData, ExpectedRevision::NoStream, Filter};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> gesta::Result<()> {
/// let store = gesta::open("sqlite::memory:").await?;
/// let added = EventData::new("item-added", "book")?;
/// store.append_to("cart-1", NoStream, [added]).await?;
///
/// let mut carts = store.follow(Filter::category("cart")).await?;
/// while let Some(next) = carts.next().await {
///     let (event, checkpoint) = next?;
///     println!("{} in {}; resume with {checkpoint}", event.json::<String>()?, event.stream);
/// #   break;
/// }
/// store.shutdown().await?;
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct Store {
    events: Arc<dyn EventStore>,
    place: Place,
}

#[derive(Clone)]
enum Place {
    /// The groups of this process are made when they are used first.
    Database(Arc<DatabaseStore>, Arc<OnceLock<Groups>>),
    #[cfg(feature = "client")]
    Server(Arc<dyn ConsumerGroups>),
}

impl Store {
    pub(crate) fn of_database(store: Arc<DatabaseStore>) -> Self {
        Self {
            events: Arc::clone(&store) as Arc<dyn EventStore>,
            place: Place::Database(store, Arc::default()),
        }
    }

    #[cfg(feature = "client")]
    pub(crate) fn of_server(store: gesta_client::HttpStore) -> Self {
        let groups = Arc::new(store.groups());
        Self {
            events: Arc::new(store),
            place: Place::Server(groups),
        }
    }

    /// Appends events to one stream. The same events appended again, for example after an error, are a retry: their ids
    /// were drawn when they were made.
    ///
    /// # Errors
    /// Those of [`EventStore::append`].
    ///
    /// # Cancel safety
    /// Dropping the future does not undo the append, as with [`EventStore::append`].
    pub async fn append_to(
        &self,
        stream: impl TryInto<StreamId, Error: Into<Error>>,
        expected: ExpectedRevision,
        events: impl IntoIterator<Item = EventData>,
    ) -> Result<Appended> {
        let appended = self.events.append_to(stream, expected, events);
        appended.await
    }

    /// Reads all readable events of a stream, page by page.
    ///
    /// # Errors
    /// Those of [`EventStore::read_stream`].
    ///
    /// # Cancel safety
    /// Dropping the future changes nothing.
    pub async fn read_whole_stream(
        &self,
        stream: impl TryInto<StreamId, Error: Into<Error>>,
    ) -> Result<Vec<RecordedEvent>> {
        let read = self.events.read_whole_stream(stream);
        read.await
    }

    /// Reads one event of a stream.
    ///
    /// # Errors
    /// Those of [`EventStore::read_stream`]; `EventNotFound` if the stream has no readable event of this revision.
    ///
    /// # Cancel safety
    /// Dropping the future changes nothing.
    pub async fn read_event(
        &self,
        stream: impl TryInto<StreamId, Error: Into<Error>>,
        revision: Revision,
    ) -> Result<RecordedEvent> {
        let read = self.events.read_event(stream, revision);
        read.await
    }

    /// Follows all events that pass a [`Filter`](crate::Filter), or the events of one stream, which may be given by its
    /// name: those that are stored, and then those that come. It begins when it is awaited.
    pub fn follow(&self, what: impl TryInto<SubscribeTo, Error: Into<Error>>) -> Follow {
        Follow::new(Arc::clone(&self.events), what)
    }

    /// Joins a consumer group, which shares the events of a stream, or of `$all`, out among its consumers. The group is
    /// created with the first event of its source, unless [`Join::existing`] says otherwise. It begins when it is
    /// awaited.
    pub fn join(&self, source: impl TryInto<Source, Error: Into<Error>>, group: &str) -> Join {
        Join::new(self.groups(), source, group)
    }

    /// Returns the consumer groups: those that this process runs, or those of the server.
    #[must_use]
    pub fn groups(&self) -> Arc<dyn ConsumerGroups> {
        match &self.place {
            Place::Database(store, groups) => {
                let start = || {
                    let store = Arc::clone(store) as Arc<dyn EventStore>;
                    Groups::start(store, GroupsConfig::default())
                };
                Arc::new(groups.get_or_init(start).clone())
            }
            #[cfg(feature = "client")]
            Place::Server(groups) => Arc::clone(groups),
        }
    }

    /// Starts the entities of a type on this store, with the default bounds.
    ///
    /// # Errors
    /// `Unsupported` if the store is on a server: entities own their streams, and so live where the events are decided.
    pub fn entities<D: Decider>(&self, entity_type: EntityType<D>) -> Result<Entities<D>> {
        Ok(Entities::start(self.database()?, entity_type))
    }

    /// Returns the store in a database, with what only such a store can do, for example scavenging.
    ///
    /// # Errors
    /// `Unsupported` if the store is on a server.
    pub fn database(&self) -> Result<Arc<DatabaseStore>> {
        match &self.place {
            Place::Database(store, _) => Ok(Arc::clone(store)),
            #[cfg(feature = "client")]
            Place::Server(_) => {
                let text = "the store is on a server: open the database itself for this";
                Err(gesta_core::ErrorKind::Unsupported(text.into()).into())
            }
        }
    }

    /// Returns the store as all code takes it that needs no more than events.
    #[must_use]
    pub fn event_store(&self) -> Arc<dyn EventStore> {
        Arc::clone(&self.events)
    }

    /// Ends the consumer groups of this process, lets queued appends finish, ends subscriptions and closes the
    /// database.
    /// Of a server it closes the connections. Later calls get `Unavailable`.
    ///
    /// # Errors
    /// `Unavailable` if the queue could not be drained.
    ///
    /// # Cancel safety
    /// Dropping the future does not stop a shutdown that has begun.
    pub async fn shutdown(&self) -> Result<()> {
        match &self.place {
            Place::Database(_, groups) => {
                if let Some(groups) = groups.get() {
                    groups.shutdown().await;
                }
            }
            #[cfg(feature = "client")]
            Place::Server(_) => {}
        }
        self.events.shutdown().await
    }
}

impl Deref for Store {
    type Target = dyn EventStore;

    fn deref(&self) -> &Self::Target {
        &*self.events
    }
}

impl From<Store> for Arc<dyn EventStore> {
    fn from(store: Store) -> Self {
        store.events
    }
}

impl fmt::Debug for Store {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let place = match &self.place {
            Place::Database(..) => "database",
            #[cfg(feature = "client")]
            Place::Server(_) => "server",
        };
        f.debug_struct("Store")
            .field("place", &place)
            .finish_non_exhaustive()
    }
}
