//! Reads one log of a store by places in it, also of a server, which reads all logs together.

use gesta_core::{
    AllFrom, Checkpoint, ErrorKind, EventStore, LogId, Position, ReadAll, RecordedEvent, Result,
};

/// Largest number of events that are read at once to get past the news of other logs.
const PASSED_EVENTS: usize = 1_000;

/// Returns the first event of a log after a position; `None` if there is none.
///
/// A server reads no log alone. There the read begins at the ends of all other logs, and what was appended to them
/// since is passed, by ever larger pages: a page begins with another log than the one before, so each log has its turn
/// however busy the others are.
///
/// # Errors
/// The errors of the store.
pub(crate) async fn next_in_log(
    store: &dyn EventStore,
    log: LogId,
    after: Position,
) -> Result<Option<RecordedEvent>> {
    let info = store.info().await?;
    let mut from = info.heads;
    let place = from.get_mut(usize::from(log.0));
    // A store that was restored is behind what is asked for.
    let Some(place) = place.filter(|head| after < **head) else {
        return Ok(None);
    };
    *place = after;
    let from = Checkpoint::logs(info.incarnation, from);
    let mut request = ReadAll::forwards()
        .from(AllFrom::Checkpoint(from))
        .only(log)
        .limit(1);
    loop {
        let page = match store.read_all(request.clone()).await {
            Err(error)
                if matches!(error.kind(), ErrorKind::Unsupported(_)) && request.only.is_some() =>
            {
                request.only = None;
                continue;
            }
            page => page?,
        };
        if let Some(event) = page.events.into_iter().find(|event| event.log == log) {
            return Ok(Some(event));
        }
        if page.end {
            return Ok(None);
        }
        request.from = AllFrom::Checkpoint(page.next);
        if request.only.is_none() {
            request.limit = (request.limit * 2).min(PASSED_EVENTS);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use async_trait::async_trait;
    use gesta_core::{AllPage, EventData, EventStoreExt, EventType, ExpectedRevision};
    use gesta_kit::{Outer, Wrapper};
    use gesta_memory::{Config, MemoryStore};
    use std::sync::atomic::{AtomicUsize, Ordering};

    /// Logs of the store.
    const LOGS: u16 = 64;

    /// A store to whose streams others append before each read, as through a server or not, and how often it is read.
    struct Busy {
        store: MemoryStore,
        is_server: bool,
        reads: AtomicUsize,
    }

    async fn append(store: &MemoryStore, stream: &str) -> (LogId, Position) {
        let event = EventData::json(EventType::new("noted").expect("valid"), "{}").without_id();
        let appended = store.append_to(stream, ExpectedRevision::Any, vec![event]);
        let appended = appended.await.expect("appended");
        (appended.log, appended.position)
    }

    #[async_trait]
    impl Wrapper for Busy {
        fn inner(&self) -> &dyn EventStore {
            &self.store
        }

        async fn read_all(&self, request: ReadAll) -> Result<AllPage> {
            if self.is_server && request.only.is_some() {
                let why = "a server reads all logs, not one of them alone".to_owned();
                return Err(ErrorKind::Unsupported(why).into());
            }
            let read = self.reads.fetch_add(1, Ordering::SeqCst);
            assert!(read < 100, "it reads without end");
            for n in 0..100 {
                append(&self.store, &format!("busy-{n}")).await;
            }
            self.store.read_all(request).await
        }
    }

    /// What happened: while the other of 64 logs were appended to all the time, one read in five failed after it had
    /// been begun a hundred times, for any event of another log made it begin again. Now a store reads the log alone,
    /// and of a server it reads on.
    #[tokio::test]
    async fn an_event_is_found_while_other_logs_are_busy() {
        for is_server in [false, true] {
            let config = Config {
                logs: LOGS,
                ..Config::default()
            };
            let busy = Outer(Busy {
                store: MemoryStore::with_config(config),
                is_server,
                reads: AtomicUsize::new(0),
            });
            for n in 0..8 {
                let stream = format!("quiet-{n}");
                let (log, first) = append(&busy.store, &stream).await;
                append(&busy.store, &stream).await;
                let before = Position(first.0 - 1);
                let found = next_in_log(&busy, log, before).await.expect("read");
                let found = found.map(|event| (event.log, event.position));
                assert_eq!(found, Some((log, first)), "server: {is_server}");
                let reads = busy.reads.swap(0, Ordering::SeqCst);
                assert!(is_server || reads == 1, "{reads} reads");
            }
            let info = busy.info().await.expect("known");
            let end = info.heads[0];
            let none = next_in_log(&busy, LogId(0), end).await.expect("read");
            assert_eq!(none, None);
        }
    }
}
