//! Stores that break their word now and then: what the judges must notice.

use std::sync::atomic::{AtomicU64, Ordering};

use async_trait::async_trait;
use gesta_core::{Append, Appended, Error, ErrorKind, EventId, EventStore, Result};
use gesta_kit::{Outer, Wrapper};
use gesta_memory::MemoryStore;

/// What happens to one append out of twenty.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Breach {
    /// It is stored, and the answer is lost; or it is not, and the store says that it is unavailable. Both are allowed.
    ErrorsOnly,
    /// It is acknowledged and not stored.
    Forget,
    /// A retry is stored again, as if it were new.
    Repeat,
    /// It is refused for no reason.
    Refuse,
}

/// A store that does so.
pub(crate) struct BreachingStore {
    pub(crate) inner: MemoryStore,
    breach: Breach,
    count: AtomicU64,
}

impl BreachingStore {
    /// An empty one.
    pub(crate) fn store(breach: Breach) -> Outer<Self> {
        Outer(Self {
            inner: MemoryStore::new(),
            breach,
            count: AtomicU64::new(0),
        })
    }

    /// Appends that it was asked for so far.
    pub(crate) fn appends(&self) -> u64 {
        self.count.load(Ordering::Relaxed)
    }
}

#[async_trait]
impl Wrapper for BreachingStore {
    fn inner(&self) -> &dyn EventStore {
        &self.inner
    }

    async fn append(&self, request: Append) -> Result<Appended> {
        let n = self.count.fetch_add(1, Ordering::Relaxed);
        match (self.breach, n % 20) {
            (Breach::ErrorsOnly | Breach::Repeat, 7) => Err(Error::unavailable("for the test")),
            (Breach::ErrorsOnly, 13) => {
                self.inner.append(request).await?;
                Err(ErrorKind::OutcomeUnknown("for the test".into()).into())
            }
            (Breach::Forget, 7) => MemoryStore::new().append(request).await,
            (Breach::Repeat, 13) => {
                // Stored once under the ids asked for, once as the store of a careless retry would: again, at the end.
                let answer = self.inner.append(request.clone()).await?;
                let mut again = request;
                for part in &mut again.streams {
                    part.expected = gesta_core::ExpectedRevision::Any;
                    part.events
                        .iter_mut()
                        .for_each(|event| event.id = Some(EventId::random()));
                }
                self.inner.append(again).await?;
                Ok(answer)
            }
            (Breach::Refuse, 7) => Err(ErrorKind::Refused("no reason".into()).into()),
            _ => self.inner.append(request).await,
        }
    }
}
