//! The store that is open now: one that is closed and opened again is another.

use std::sync::{Arc, RwLock};
use std::time::Duration;

use gesta_core::EventStore;
use gesta_report::failure::{Result, fail};

use crate::machine::store;

/// A store that can be closed and opened again while others use it.
pub struct CurrentStore {
    store: RwLock<Arc<dyn EventStore>>,
    /// Where to open it again; none if what is in it would be lost or is not ours to close.
    url: Option<String>,
}

impl CurrentStore {
    /// An open store.
    pub fn new(store: Arc<dyn EventStore>, url: Option<String>) -> Arc<Self> {
        Arc::new(Self {
            store: RwLock::new(store),
            url,
        })
    }

    /// The store that is open now; one that was just closed says that it is unavailable.
    pub fn get(&self) -> Arc<dyn EventStore> {
        let store = self.store.read().expect("no panic under the lock");
        Arc::clone(&store)
    }

    /// True if it can be closed and opened again.
    pub fn can_reopen(&self) -> bool {
        self.url.is_some()
    }

    /// Closes the store and opens it again.
    pub async fn reopen(&self) -> Result<()> {
        let Some(url) = &self.url else {
            return fail("this store cannot be opened again");
        };
        self.get().shutdown().await?;
        let opened = store::open_url(url, Duration::ZERO, 1).await?;
        *self.store.write().expect("no panic under the lock") = opened.store;
        Ok(())
    }
}
