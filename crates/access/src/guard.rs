//! The store as one caller may use it.
//!
//! Why a store again: a protocol that calls this one cannot forget to ask. Invariants: every call is checked before
//! anything is done, an append to several streams for each of them; what is left out of pages and subscriptions leaves
//! their checkpoints whole, so that a reader gets on; a running subscription ends when its rights do.
//! Not here: which rights there are (`rights`).

mod subscription;

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use futures::stream::{self, StreamExt, TryStreamExt};
use gesta_core::capacity::Permit;
use gesta_core::{
    AllPage, Append, Appended, DeleteStream, Deleted, Error, ErrorKind, EventStore, Incarnation,
    LinkTarget, ListStreams, MetadataSet, ReadAll, ReadStream, RecordedEvent, Resolved, Result,
    SetStreamMetadata, SharedEvent, StoreInfo, StreamId, StreamMetadata, StreamMetadataRecord,
    StreamPage, StreamsPage, Subscribe, SubscribeTo, Subscription, limits,
};

use crate::access::Access;
use crate::acl::Acl;
use crate::directory::check_event;
use crate::names::{self, Kind};
use crate::rights::{Operation, OwnedOperation};
use crate::shared::{Caller, State};
use crate::usage::Usage;

/// The most streams whose rights are read at once for a page.
const READS_MAX: usize = 8;
/// The most pages of names that are read for one page of names that the caller may see.
const NAME_PAGES_MAX: usize = 200;

/// A store as one caller may use it. Clones are cheap.
#[derive(Clone)]
pub struct Guarded {
    access: Access,
    store: Arc<dyn EventStore>,
    caller: Caller,
    /// What the caller's user does at present; `None` if the caller has not proved who they are.
    usage: Option<Arc<Usage>>,
}

impl std::fmt::Debug for Guarded {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Guarded")
            .field("caller", &self.caller)
            .finish_non_exhaustive()
    }
}

impl Access {
    /// Returns the store as this caller may use it.
    #[must_use]
    pub fn guard(&self, store: Arc<dyn EventStore>, caller: Caller) -> Guarded {
        Guarded {
            access: self.clone(),
            usage: self.shared.usage_of(&caller),
            store,
            caller,
        }
    }
}

impl Guarded {
    fn now(&self) -> Duration {
        (self.access.shared.config.uptime)()
    }

    /// Begins a call within the limits of the user. The call ends when the permit is dropped.
    fn enter(&self) -> Result<Option<Permit>> {
        let usage = self.usage.as_ref();
        usage.map(|usage| usage.enter(self.now())).transpose()
    }

    /// Counts this much payload for the user, in bytes.
    pub fn had(&self, bytes: usize) {
        if let Some(usage) = &self.usage {
            usage.had(bytes, self.now());
        }
    }

    /// Returns how long the user has to wait for more events; `None` if not at all.
    #[must_use]
    pub fn wait(&self) -> Option<Duration> {
        self.usage.as_ref()?.wait(self.now())
    }

    /// Checks that the caller may do this now.
    ///
    /// # Errors
    /// The errors of [`Access::check`].
    ///
    /// # Cancel safety
    /// Dropping the future changes nothing.
    pub async fn check(&self, operation: Operation<'_>) -> Result<()> {
        self.access.check(&self.caller, operation).await
    }

    /// Checks that the caller may do this now, and writes an administrative operation to the log.
    async fn check_change(&self, operation: Operation<'_>) -> Result<()> {
        self.check(operation).await?;
        self.access.done(&self.caller, operation, "");
        Ok(())
    }

    /// Checks that rights in the metadata can be read. Rights in another form would be taken for *administrators only*;
    /// whoever sets them is told instead.
    fn check_metadata(&self, metadata: &StreamMetadata) -> Result<()> {
        if let State::Open = self.access.shared.state()? {
            return Ok(());
        }
        match Acl::of_metadata(metadata.json()) {
            Ok(_) => Ok(()),
            Err(odd) => Err(Error::invalid(odd.field, odd.rule)),
        }
    }

    /// Checks that what is appended to account streams and to metadata streams can be read.
    fn check_events(&self, request: &Append) -> Result<()> {
        for append in &request.streams {
            let name = append.stream.as_str();
            let is_account = names::kind(name) == Kind::Account;
            for event in &append.events {
                if is_account {
                    check_event(name, event).map_err(|why| {
                        Error::invalid(
                            "events",
                            format!("cannot be stored in stream {name:?}: {why}"),
                        )
                    })?;
                } else if names::described(name).is_some() {
                    // Whatever else is wrong with the metadata, the store refuses.
                    if let Ok(metadata) = StreamMetadata::parse(event.data.clone()) {
                        self.check_metadata(&metadata)?;
                    }
                }
            }
        }
        Ok(())
    }

    /// Forgets the rights of a stream that a call of this process may have changed, without waiting for the news of it.
    fn changed(&self, stream: &StreamId) {
        let name = stream.as_str();
        let name = names::described(name).unwrap_or(name);
        self.access.shared.acls.changed(name);
        self.access.shared.changed.notify_one();
    }

    /// Leaves out links of a virtual stream that name streams of which the caller may not know.
    async fn leave_out_hidden(&self, links: Vec<RecordedEvent>) -> Result<Vec<RecordedEvent>> {
        let asked = links.into_iter().map(|link| async move {
            let may_follow = self.may_follow(&link).await?;
            Ok::<_, Error>(may_follow.then_some(link))
        });
        let shown = stream::iter(asked).buffered(READS_MAX);
        let shown = shown.try_filter_map(|link: Option<_>| async move { Ok(link) });
        shown.try_collect().await
    }

    /// Tells whether the caller may read the event that a link names. An event that is no link may always be read.
    async fn may_follow(&self, event: &RecordedEvent) -> Result<bool> {
        match LinkTarget::of(event) {
            Some(target) => self.lists(&target.stream).await,
            None => Ok(true),
        }
    }

    /// Checks that the caller may do this now, and returns a future that ends once they may not do it any more. The
    /// future gives the error for the caller.
    ///
    /// # Errors
    /// The errors of [`Access::check`].
    ///
    /// # Cancel safety
    /// Dropping either future changes nothing.
    pub async fn until_forbidden(
        self,
        operation: OwnedOperation,
    ) -> Result<impl Future<Output = Error> + Send + 'static> {
        // This comes before the check, so that no change between the two is missed.
        let mut changes = self.access.shared.changes.subscribe();
        self.check(operation.borrowed()).await?;
        Ok(async move {
            loop {
                if changes.changed().await.is_err() {
                    return Error::unavailable("the accounts are no longer followed");
                }
                if let Err(error) = self.check(operation.borrowed()).await {
                    return error;
                }
            }
        })
    }

    /// Tells whether the caller may see the name of a stream.
    async fn lists(&self, stream: &StreamId) -> Result<bool> {
        let shared = &self.access.shared;
        match shared.allows(&self.caller, Operation::Read(stream)).await {
            Ok(()) => Ok(true),
            Err(error) if matches!(error.kind(), ErrorKind::Forbidden(_)) => Ok(false),
            Err(error) => Err(error),
        }
    }
}

/// Tells whether the names that begin with `only` are some of those that begin with `asked`, and of the same kind:
/// names that begin with `$` are listed only when they are asked for.
fn narrows(asked: &str, only: &str) -> bool {
    only.starts_with(asked) && only.starts_with('$') == asked.starts_with('$')
}

fn payload_bytes(events: &[RecordedEvent]) -> usize {
    events.iter().map(RecordedEvent::payload_bytes).sum()
}

#[async_trait]
impl EventStore for Guarded {
    async fn incarnation(&self) -> Result<Incarnation> {
        self.store.incarnation().await
    }

    async fn info(&self) -> Result<StoreInfo> {
        self.check(Operation::Info).await?;
        self.store.info().await
    }

    async fn ready(&self) -> Result<()> {
        self.access.ready()?;
        self.store.ready().await
    }

    async fn append(&self, request: Append) -> Result<Appended> {
        for append in &request.streams {
            self.check_change(Operation::Append(&append.stream)).await?;
        }
        // Whether a condition holds tells something of its stream.
        for condition in &request.conditions {
            self.check(Operation::Read(condition.stream())).await?;
        }
        self.check_events(&request)?;
        let _call = self.enter()?;
        self.had(request.payload_bytes());
        let mut metadata = request
            .streams
            .iter()
            .filter(|append| names::described(append.stream.as_str()).is_some());
        let Some(first) = metadata.next() else {
            return self.store.append(request).await;
        };
        let streams: Vec<_> = std::iter::once(first)
            .chain(metadata)
            .map(|append| append.stream.clone())
            .collect();
        let outcome = self.store.append(request).await;
        streams.iter().for_each(|stream| self.changed(stream));
        outcome
    }

    async fn read_stream(&self, request: ReadStream) -> Result<StreamPage> {
        self.check(Operation::Read(&request.stream)).await?;
        let _call = self.enter()?;
        let is_virtual = request.stream.is_virtual();
        let mut page = self.store.read_stream(request).await?;
        self.had(payload_bytes(&page.events));
        if is_virtual {
            page.events = self.leave_out_hidden(page.events).await?;
        }
        Ok(page)
    }

    async fn read_all(&self, request: ReadAll) -> Result<AllPage> {
        self.check(Operation::ReadMany).await?;
        let _call = self.enter()?;
        let mut page = self.store.read_all(request).await?;
        // Events that are left out count too, since they were read.
        self.had(payload_bytes(&page.events));
        let shared = &self.access.shared;
        let known = page
            .events
            .iter()
            .map(|event| shared.shows_now(&self.caller, event, None));
        let known: Vec<Option<bool>> = known.collect::<Result<_>>()?;
        let shown: Vec<bool> = if known.iter().all(Option::is_some) {
            known.into_iter().flatten().collect()
        } else {
            let asked = page
                .events
                .iter()
                .map(|event| shared.shows(&self.caller, event));
            let asked: Vec<_> = asked.collect();
            stream::iter(asked)
                .buffered(READS_MAX)
                .try_collect()
                .await?
        };
        let mut shown = shown.into_iter();
        page.events.retain(|_| shown.next().unwrap_or(false));
        Ok(page)
    }

    /// Lists the names that the caller may see. The next page continues after the last name that is shown, since it
    /// must not name a stream that the caller may not see.
    async fn list_streams(&self, mut request: ListStreams) -> Result<StreamsPage> {
        self.check(Operation::ReadMany).await?;
        request.validate()?;
        let _call = self.enter()?;
        let limit = request.limit;
        let only = self.access.shared.only_prefix(&self.caller);
        if let Some(only) = only.filter(|only| narrows(&request.prefix, only)) {
            request.prefix = only;
        }
        let mut found = Vec::new();
        for _ in 0..NAME_PAGES_MAX {
            let page = self.store.list_streams(request.clone()).await?;
            for info in page.streams {
                if found.len() < limit {
                    if self.lists(&info.stream).await? {
                        found.push(info);
                    }
                    continue;
                }
                // This name does not fit the page any more, so there may be more.
                let next = found
                    .last()
                    .map(|info: &gesta_core::StreamInfo| info.stream.clone());
                return Ok(StreamsPage {
                    streams: found,
                    next,
                });
            }
            match page.next {
                None => {
                    return Ok(StreamsPage {
                        streams: found,
                        next: None,
                    });
                }
                Some(_) if found.len() >= limit => {
                    let next = found.last().map(|info| info.stream.clone());
                    return Ok(StreamsPage {
                        streams: found,
                        next,
                    });
                }
                Some(next) => request.after = Some(next),
            }
            request.limit = limits::PAGE_EVENTS_MAX;
        }
        if found.is_empty() {
            let why = format!(
                "more than {NAME_PAGES_MAX} pages of names that the caller may not see follow one another: name a longer prefix"
            );
            return Err(Error::new(ErrorKind::Unsupported(why)));
        }
        let next = found.last().map(|info| info.stream.clone());
        Ok(StreamsPage {
            streams: found,
            next,
        })
    }

    async fn delete_stream(&self, request: DeleteStream) -> Result<Deleted> {
        self.check_change(Operation::Delete(&request.stream))
            .await?;
        let _call = self.enter()?;
        let stream = request.stream.clone();
        let outcome = self.store.delete_stream(request).await;
        self.changed(&stream);
        outcome
    }

    async fn stream_metadata(&self, stream: StreamId) -> Result<StreamMetadataRecord> {
        self.check(Operation::ReadMetadata(&stream)).await?;
        let _call = self.enter()?;
        self.store.stream_metadata(stream).await
    }

    async fn set_stream_metadata(&self, request: SetStreamMetadata) -> Result<MetadataSet> {
        self.check_change(Operation::WriteMetadata(&request.stream))
            .await?;
        self.check_metadata(&request.metadata)?;
        let _call = self.enter()?;
        let stream = request.stream.clone();
        let outcome = self.store.set_stream_metadata(request).await;
        self.changed(&stream);
        outcome
    }

    async fn subscribe(&self, request: Subscribe) -> Result<Subscription> {
        let stream = match &request.to {
            SubscribeTo::Stream(stream) => Some(stream.clone()),
            SubscribeTo::All(_) => None,
        };
        // This comes before the check, so that no change between the two is missed.
        let changes = self.access.shared.changes.subscribe();
        let operation = stream.as_ref().map_or(Operation::ReadMany, Operation::Read);
        self.check(operation).await?;
        let _call = self.enter()?;
        let inner = self.store.subscribe(request).await?;
        Ok(subscription::guarded(self.clone(), inner, stream, changes))
    }

    /// Follows links. A link to an event that the caller may not read stays a link, like one that names an event which
    /// cannot be read.
    async fn resolve(&self, mut events: Vec<SharedEvent>) -> Result<Vec<Resolved>> {
        let Some(first) = events.first() else {
            return Ok(Vec::new());
        };
        let may_follow = self.may_follow(first).await?;
        let mut alike = 1;
        while let Some(event) = events.get(alike)
            && self.may_follow(event).await? == may_follow
        {
            alike += 1;
        }
        // If fewer events are answered than were asked for, the caller asks again for the others.
        events.truncate(alike);
        if !may_follow {
            return Ok(events.into_iter().map(Resolved::itself).collect());
        }
        let _call = self.enter()?;
        let resolved = self.store.resolve(events).await?;
        let targets = resolved.iter().filter(|found| found.link.is_some());
        self.had(targets.map(|found| found.event.payload_bytes()).sum());
        Ok(resolved)
    }

    /// Refuses to close the store, which does not belong to the caller.
    async fn shutdown(&self) -> Result<()> {
        Err(Error::new(ErrorKind::Unsupported(
            "a caller cannot close the store".into(),
        )))
    }
}

#[cfg(test)]
mod tests;
