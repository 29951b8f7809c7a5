//! What a backend gives the suite: a way to make stores, and to open them again.

use std::any::Any;
use std::ops::Deref;
use std::sync::Arc;

use async_trait::async_trait;
use gesta_core::{Clock, EventStore, OwnerStore};

/// A store under test, and what keeps its data alive.
pub struct TestStore {
    // Dropped before the home.
    store: Arc<dyn EventStore>,
    owner: Option<Arc<dyn OwnerStore>>,
    home: Arc<dyn Any + Send + Sync>,
}

impl TestStore {
    /// A store whose data need no care.
    #[must_use]
    pub fn new(store: Arc<dyn EventStore>) -> Self {
        Self::with_home(store, Arc::new(()))
    }

    /// A store and its home: whatever its factory needs to open the data again (a path, a URL, a
    /// schema), and what removes them when it is dropped.
    #[must_use]
    pub fn with_home(store: Arc<dyn EventStore>, home: Arc<dyn Any + Send + Sync>) -> Self {
        Self {
            store,
            owner: None,
            home,
        }
    }

    /// A store whose streams can be owned, and its home.
    #[must_use]
    pub fn owned(store: Arc<dyn OwnerStore>, home: Arc<dyn Any + Send + Sync>) -> Self {
        Self {
            owner: Some(Arc::clone(&store)),
            store,
            home,
        }
    }

    /// The home.
    ///
    /// # Panics
    /// If it is of another type: a factory is given only the stores that it made.
    #[must_use]
    pub fn home<T: Any + Send + Sync>(&self) -> Arc<T> {
        Arc::clone(&self.home)
            .downcast()
            .expect("a store of this factory")
    }

    /// The same store for owners of streams; `None` if it cannot have any.
    #[must_use]
    pub fn owner(&self) -> Option<Arc<dyn OwnerStore>> {
        self.owner.clone()
    }

    /// The store, to share with tasks.
    #[must_use]
    pub fn share(&self) -> Arc<dyn EventStore> {
        Arc::clone(&self.store)
    }
}

impl Deref for TestStore {
    type Target = Arc<dyn EventStore>;

    fn deref(&self) -> &Self::Target {
        &self.store
    }
}

impl std::fmt::Debug for TestStore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("TestStore")
    }
}

/// Makes stores of one backend. What a backend cannot do answers `None`, and the case says that it was skipped.
#[async_trait]
pub trait StoreFactory: Send + Sync {
    /// What stands in the skip lines: `sqlite`, `postgres (4 logs)`, ….
    fn name(&self) -> String;

    /// Number of logs of the stores it makes.
    fn logs(&self) -> u16 {
        1
    }

    /// A new empty store with the system's clock.
    async fn create(&self) -> TestStore;

    /// A new empty store that takes the time from `clock`.
    async fn create_with_clock(&self, _clock: Arc<dyn Clock>) -> Option<TestStore> {
        None
    }

    /// A new empty store whose virtual streams are switched on.
    async fn create_with_virtual_streams(&self) -> Option<TestStore> {
        None
    }

    /// Shuts `store` down and opens its data again, as a new process would.
    async fn reopen(&self, _store: &TestStore) -> Option<TestStore> {
        None
    }

    /// A second store over the data of `store`, as a second process would have it.
    async fn second(&self, _store: &TestStore) -> Option<TestStore> {
        None
    }
}
