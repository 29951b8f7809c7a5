//! Stores with a planted fault. Each must fail a case of the suite: this tests the tests.
//!
//! A [`BrokenFactory`] wraps the reference store, which is right, in one [`Fault`] of the kind that
//! real stores have had. With [`Fault::None`] the wrapper passes the whole suite.
//! Not here: the number-only compare of the chained insert, which needs a database and two servers.

mod faults;
mod store;

use std::sync::Arc;

use async_trait::async_trait;
use gesta_core::{Clock, SystemClock};
use gesta_memory::MemoryStore;

use crate::factory::{StoreFactory, TestStore};
use crate::memory::{memory_store, revive};
use faults::BrokenStore;

/// What is wrong with a store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// Nothing is wrong: the wrapper itself must pass.
    None,
    /// Some events are not yet visible when later ones are. A reader that remembers the last position misses them.
    LateVisibility,
    /// A claim is refused by what this store remembers, although another store has appended since.
    StaleRefusal,
    /// Several streams are appended to one after the other. A check that fails leaves the first ones stored.
    PartialBatch,
    /// Events are stored one by one. A dropped append leaves its first events stored.
    OneByOne,
    /// An acknowledged append is gone after the store is opened again, as if it was never synced.
    LostAppend,
    /// A retry without a claim is stored again.
    DuplicateOnRetry,
    /// A retry is answered with the present end of the stream instead of the first answer.
    AnswerOfNow,
    /// A claim is checked first and the events are stored later, so that two writers win.
    CheckThenAct,
    /// A refusal does not tell the actual revision.
    NoActualRevision,
    /// A subscription loses an event now and then.
    SubscriptionDrops,
    /// A subscription sends an event twice now and then.
    SubscriptionDoubles,
    /// A subscription loses the first event between catching up and being live.
    GapBeforeLive,
    /// A subscription is never woken once it has caught up.
    NeverWoken,
    /// The checkpoints of a subscription are one position too far.
    CheckpointTooFar,
    /// Two events of a stream change places when they are read.
    ReorderedRevisions,
    /// A page that is full claims to be the last one.
    EndTooEarly,
    /// A filter by several tags lets an event with any one of them through.
    AnyTag,
    /// Checkpoints of another life of the store are accepted, and those above the end are cut to it.
    AnyCheckpoint,
    /// Names that differ only in their case count as the same.
    FoldedNames,
    /// White space around payloads is removed.
    TrimmedPayloads,
    /// Events show times that decrease, so that later events look older.
    CreatedDecreases,
    /// Deleted streams are still listed.
    ListsDeleted,
}

/// Makes stores with one fault, which act as if they were persistent and shared.
#[derive(Debug, Clone, Copy)]
pub struct BrokenFactory {
    fault: Fault,
    logs: u16,
}

impl BrokenFactory {
    /// Makes a factory of stores with this many logs and this fault.
    #[must_use]
    pub fn new(fault: Fault, logs: u16) -> Self {
        Self { fault, logs }
    }

    /// Wraps a store that is right. The right store is the home, so that a second wrapper can be made of it.
    fn wrap(&self, inner: MemoryStore) -> TestStore {
        let store = BrokenStore::new(inner.clone(), self.fault);
        TestStore::with_home(Arc::new(store), Arc::new(inner))
    }
}

#[async_trait]
impl StoreFactory for BrokenFactory {
    fn name(&self) -> String {
        format!("memory with {:?} ({} logs)", self.fault, self.logs)
    }

    fn logs(&self) -> u16 {
        self.logs
    }

    async fn create(&self) -> TestStore {
        self.wrap(memory_store(self.logs, Arc::new(SystemClock)))
    }

    async fn create_with_clock(&self, clock: Arc<dyn Clock>) -> Option<TestStore> {
        Some(self.wrap(memory_store(self.logs, clock)))
    }

    async fn create_with_virtual_streams(&self) -> Option<TestStore> {
        match self.logs {
            1 => Some(self.create().await),
            _ => None,
        }
    }

    async fn reopen(&self, store: &TestStore) -> Option<TestStore> {
        let lost = usize::from(self.fault == Fault::LostAppend);
        let inner = store.home::<MemoryStore>();
        Some(self.wrap(revive(inner.as_ref(), self.logs, lost).await))
    }

    async fn second(&self, store: &TestStore) -> Option<TestStore> {
        Some(self.wrap(store.home::<MemoryStore>().as_ref().clone()))
    }
}
