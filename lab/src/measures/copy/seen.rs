//! What readers see of a store: a sum over all events, which does not depend on the order of logs.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::time::Duration;

use gesta_core::{AllFrom, RecordedEvent};
use gesta_report::failure::{Context, Result};

use gesta_load::machine::store;
use gesta_load::machine::{CurrentStore, ask};

/// How long the store may be unavailable.
const PATIENCE: Duration = Duration::from_secs(60);

/// What was seen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Seen {
    pub(super) events: u64,
    pub(super) digest: u64,
}

/// Reads everything in a store that exists.
pub(super) async fn seen(url: &str) -> Result<Seen> {
    let opened = store::open_url(url, Duration::ZERO, 1).await?;
    let current = CurrentStore::new(std::sync::Arc::clone(&opened.store), None);
    let mut seen = Seen {
        events: 0,
        digest: 0,
    };
    let read = ask::read_all(&current, AllFrom::Start, PATIENCE, |event| {
        seen.events += 1;
        seen.digest = seen.digest.wrapping_add(digest(&event));
    });
    read.await.context("reading all")?;
    opened.store.shutdown().await.context("closing the store")?;
    Ok(seen)
}

/// A number for everything of an event but its log and position, which a copy may change.
fn digest(event: &RecordedEvent) -> u64 {
    let mut hasher = DefaultHasher::new();
    event.stream.as_str().hash(&mut hasher);
    event.revision.0.hash(&mut hasher);
    event.id.hash(&mut hasher);
    event.event_type.as_str().hash(&mut hasher);
    event.created.hash(&mut hasher);
    format!("{:?}", event.content_type).hash(&mut hasher);
    event.data.hash(&mut hasher);
    event.metadata.hash(&mut hasher);
    for tag in event.tags.as_slice() {
        tag.as_str().hash(&mut hasher);
    }
    hasher.finish()
}
