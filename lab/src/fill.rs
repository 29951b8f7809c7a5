//! Puts a number of events into a store, fast, and makes sure that they are there.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use gesta_core::{Append, EventStore, ExpectedRevision, Tags};
use tokio_util::sync::CancellationToken;

use crate::failure::{Result, fail};
use crate::workload::Workload;

/// Times that an append is tried before the fill gives up.
const ATTEMPTS: usize = 100;

/// How to fill.
#[derive(Clone)]
pub(crate) struct Fill {
    /// Events wanted.
    pub(crate) events: u64,
    /// Appends under way at once.
    pub(crate) waiters: usize,
    /// Events per append.
    pub(crate) per_append: u64,
    /// The tags of the event of a number.
    pub(crate) tags: Option<fn(u64, usize) -> Tags>,
    /// Handed to `tags`.
    pub(crate) tag_count: usize,
}

impl Fill {
    /// Large appends, for speed.
    pub(crate) fn of(events: u64) -> Self {
        Self {
            events,
            waiters: 16,
            per_append: 100,
            tags: None,
            tag_count: 0,
        }
    }
}

/// Appends the events numbered from 0 on to random streams; returns when all are acknowledged, or `stop` is.
pub(crate) async fn fill(
    store: &Arc<dyn EventStore>,
    workload: &Arc<Workload>,
    fill: &Fill,
    stop: &CancellationToken,
) -> Result<()> {
    let next = Arc::new(AtomicU64::new(0));
    let mut tasks = tokio::task::JoinSet::<Result<()>>::new();
    for task in 0..fill.waiters {
        let (store, workload) = (Arc::clone(store), Arc::clone(workload));
        let (next, fill, stop) = (Arc::clone(&next), fill.clone(), stop.clone());
        tasks.spawn(async move {
            let mut choices = workload.choices(task);
            while !stop.is_cancelled() {
                let first = next.fetch_add(fill.per_append, Ordering::Relaxed);
                if first >= fill.events {
                    break;
                }
                let end = (first + fill.per_append).min(fill.events);
                let events = (first..end)
                    .map(|number| {
                        let event = workload.event(number);
                        match fill.tags {
                            Some(tags) => event.with_tags(tags(number, fill.tag_count)),
                            None => event,
                        }
                    })
                    .collect();
                let stream = workload.streams()[choices.below(workload.streams().len())].clone();
                let append = Append::to(stream, ExpectedRevision::Any, events);
                store_it(store.as_ref(), append).await?;
            }
            Ok(())
        });
    }
    while let Some(done) = tasks.join_next().await {
        done??;
    }
    Ok(())
}

async fn store_it(store: &dyn EventStore, append: Append) -> Result<()> {
    for _ in 0..ATTEMPTS {
        match store.append(append.clone()).await {
            Ok(_) => return Ok(()),
            Err(error) if error.is_retryable() => {
                tokio::time::sleep(std::time::Duration::from_millis(50)).await;
            }
            Err(error) => return Err(error.into()),
        }
    }
    fail(format!("the store took no append in {ATTEMPTS} attempts"))
}
