//! What a backend implements for the suite: how stores are made and opened again.

use std::any::Any;
use std::ops::Deref;
use std::sync::Arc;

use async_trait::async_trait;
use gesta_core::{Clock, EventStore, OwnerStore};

/// A store under test, and what keeps its data alive.
pub struct TestStore {
    // The store is dropped before its home.
    store: Arc<dyn EventStore>,
    owner: Option<Arc<dyn OwnerStore>>,
    home: Arc<dyn Any + Send + Sync>,
}

impl TestStore {
    /// Makes a test store that needs no home.
    #[must_use]
    pub fn new(store: Arc<dyn EventStore>) -> Self {
        Self::with_home(store, Arc::new(()))
    }

    /// Makes a test store with a home. The home is whatever the factory needs to open the data again (a path, a URL, a
    /// schema), and removes the data when it is dropped.
    #[must_use]
    pub fn with_home(store: Arc<dyn EventStore>, home: Arc<dyn Any + Send + Sync>) -> Self {
        Self {
            store,
            owner: None,
            home,
        }
    }

    /// Makes a test store whose streams can be owned, with a home.
    #[must_use]
    pub fn owned(store: Arc<dyn OwnerStore>, home: Arc<dyn Any + Send + Sync>) -> Self {
        Self {
            owner: Some(Arc::clone(&store)),
            store,
            home,
        }
    }

    /// Returns the home.
    ///
    /// # Panics
    /// If the home is of another type; a factory is given only the stores that it made.
    #[must_use]
    pub fn home<T: Any + Send + Sync>(&self) -> Arc<T> {
        Arc::clone(&self.home)
            .downcast()
            .expect("a store of this factory")
    }

    /// Returns the store for owners of streams; `None` if its streams cannot be owned.
    #[must_use]
    pub fn owner(&self) -> Option<Arc<dyn OwnerStore>> {
        self.owner.clone()
    }

    /// Returns the store, to share it with tasks.
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

/// Makes stores of one backend. A method returns `None` for what the backend cannot do, and the case reports that it
/// was skipped.
#[async_trait]
pub trait StoreFactory: Send + Sync {
    /// Returns the name for the skip lines: `sqlite`, `postgres (4 logs)`, ….
    fn name(&self) -> String;

    /// Returns how many logs the stores have that it makes.
    fn logs(&self) -> u16 {
        1
    }

    /// Makes a new empty store with the clock of the system.
    async fn create(&self) -> TestStore;

    /// Makes a new empty store that takes the time from `clock`.
    async fn create_with_clock(&self, _clock: Arc<dyn Clock>) -> Option<TestStore> {
        None
    }

    /// Makes a new empty store whose virtual streams are switched on.
    async fn create_with_virtual_streams(&self) -> Option<TestStore> {
        None
    }

    /// Shuts `store` down and opens its data again, as a new process would.
    async fn reopen(&self, _store: &TestStore) -> Option<TestStore> {
        None
    }

    /// Opens a second store over the data of `store`, as a second process would.
    async fn second(&self, _store: &TestStore) -> Option<TestStore> {
        None
    }
}
