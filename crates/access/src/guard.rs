//! The store as one caller may use it.
//!
//! Why a store again: a protocol that calls this one cannot forget to ask. Invariants: every call is checked before
//! anything is done, an append to several streams for each of them; what is left out of pages, lists and subscriptions
//! shows in nothing but positions, and a reader gets on nevertheless; a running subscription ends when its rights do.
//! Not here: which rights there are (`rights`), reads for a caller who may not see all (`limited`).

mod changes;
mod limited;
mod subscription;

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use futures::stream::{self, StreamExt, TryStreamExt};
use gesta_core::capacity::Permit;
use gesta_core::{
    AllPage, Append, Appended, Condition, DeleteStream, Deleted, Error, ErrorKind, EventStore,
    Incarnation, LifecycleChange, LinkTarget, ListStreams, MetadataSet, ReadAll, ReadStream,
    RecordedEvent, Resolved, Result, SetStreamMetadata, SharedEvent, StoreInfo, StreamId,
    StreamMetadata, StreamMetadataRecord, StreamPage, StreamsPage, Subscribe, SubscribeTo,
    Subscription,
};

use self::changes::Changes;
use crate::access::Access;
use crate::acl::Acl;
use crate::acls::RightsRead;
use crate::directory::check_account_event;
use crate::names::{self, Kind};
use crate::rights::{Operation, OwnedOperation, RightsVerdict};
use crate::shared::{Caller, State};
use crate::usage::Usage;

/// What a caller is told in place of why the store fails, if the caller does not look after the server.
pub const FOR_OPERATORS: &str = "the log of the server says why";
/// The most streams whose rights are read at once for a page.
const READS_MAX: usize = 8;

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
    /// Returns the name of the caller's user; `None` for a caller who has proved nothing.
    #[must_use]
    pub fn user(&self) -> Option<&Arc<str>> {
        self.usage.as_deref().map(Usage::user)
    }

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

    /// Returns an error as this caller may be told it. What a database says names hosts, roles and tables, and what is
    /// said of damage names streams. That is for who looks after the server; others are told [`FOR_OPERATORS`], and the
    /// error stands as the cause, for the log.
    #[must_use]
    pub fn told(&self, error: Error) -> Error {
        let why = || FOR_OPERATORS.to_owned();
        let kind = match error.kind() {
            ErrorKind::Unavailable(_) => ErrorKind::Unavailable(why()),
            ErrorKind::OutcomeUnknown(_) => ErrorKind::OutcomeUnknown(why()),
            ErrorKind::Schema(_) => ErrorKind::Schema(why()),
            ErrorKind::Corrupt(_) => ErrorKind::Corrupt(why()),
            ErrorKind::Unsupported(_) if error.is_for_administrator() => {
                ErrorKind::Unsupported(why())
            }
            _ => return error,
        };
        match self.is_told_all() {
            true => error,
            false => Error::new(kind).caused_by(error),
        }
    }

    /// Tells whether the caller looks after the server, and may know why something fails.
    #[must_use]
    pub fn is_told_all(&self) -> bool {
        let read = RightsRead::default();
        let shared = &self.access.shared;
        let verdict = shared.decide(&self.caller, Operation::Observe, &read);
        matches!(verdict, Ok(RightsVerdict::Yes))
    }

    /// Writes to the audit log how a call ended that changes nothing, if the log takes such lines.
    fn used<T>(&self, operation: Operation<'_>, subject: &str, outcome: &Result<T>) {
        self.access.done(&self.caller, operation, subject, outcome);
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

    /// Checks that what is appended to account streams and to metadata streams can be read. Returns the streams that it
    /// deletes.
    fn check_events(&self, request: &Append) -> Result<Vec<StreamId>> {
        let mut deleted = Vec::new();
        for append in &request.streams {
            let name = append.stream.as_str();
            let is_account = names::kind(name) == Kind::Account;
            for event in &append.events {
                if is_account {
                    check_account_event(&append.stream, event)?;
                } else if names::described(name).is_some() {
                    // Whatever else is wrong with the metadata, the store refuses.
                    if let Ok((change, metadata)) = StreamMetadata::parse_event(event.data.clone())
                    {
                        self.check_metadata(&metadata)?;
                        if change == LifecycleChange::Deleted {
                            deleted.extend(append.stream.described_stream());
                        }
                    }
                }
            }
        }
        Ok(deleted)
    }

    async fn stream_page(&self, request: ReadStream) -> Result<StreamPage> {
        if request.stream.is_virtual() && !self.access.shared.sees_all(&self.caller)? {
            return self.read_virtual(request).await;
        }
        let page = self.store.read_stream(request).await?;
        self.had(payload_bytes(&page.events));
        Ok(page)
    }

    async fn all_page(&self, request: ReadAll) -> Result<AllPage> {
        if !self.access.shared.sees_all(&self.caller)? {
            return self.read_some(request).await;
        }
        let mut page = self.store.read_all(request).await?;
        self.had(payload_bytes(&page.events));
        // The rights may have changed meanwhile, and of a store without users account streams are left out.
        let mut shown = self.shown(&page.events).await?.into_iter();
        page.events.retain(|_| shown.next().unwrap_or(false));
        Ok(page)
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

fn payload_bytes(events: &[RecordedEvent]) -> usize {
    events.iter().map(RecordedEvent::payload_bytes).sum()
}

#[async_trait]
impl EventStore for Guarded {
    async fn incarnation(&self) -> Result<Incarnation> {
        let found = self.store.incarnation().await;
        found.map_err(|error| self.told(error))
    }

    async fn info(&self) -> Result<StoreInfo> {
        self.check(Operation::Info).await?;
        self.store.info().await.map_err(|error| self.told(error))
    }

    async fn ready(&self) -> Result<()> {
        self.access.ready()?;
        self.store.ready().await
    }

    async fn append(&self, request: Append) -> Result<Appended> {
        for append in &request.streams {
            self.check(Operation::Append(&append.stream)).await?;
        }
        // Whether a condition holds tells something of its stream.
        for condition in &request.conditions {
            match condition {
                Condition::Stream { stream, .. } => self.check(Operation::Read(stream)).await?,
                // No event of a system stream counts, so this tells of none.
                Condition::NoMatch { filter, .. } if filter.asks_for_system_streams() => {}
                // Of all streams: also of those that are hidden from the caller.
                Condition::NoMatch { .. } => self.check(Operation::Manage).await?,
            }
        }
        let deleted = self.check_events(&request)?;
        for stream in &deleted {
            self.check(Operation::Delete(stream)).await?;
        }
        let _call = self.enter()?;
        let changes = Changes::of_append(self, &request, &deleted);
        self.had(request.payload_bytes());
        let mut metadata = request
            .streams
            .iter()
            .filter(|append| names::described(append.stream.as_str()).is_some());
        let Some(first) = metadata.next() else {
            let outcome = self.store.append(request).await;
            changes.ended(&outcome);
            return outcome.map_err(|error| self.told(error));
        };
        let streams: Vec<_> = std::iter::once(first)
            .chain(metadata)
            .map(|append| append.stream.clone())
            .collect();
        let outcome = self.store.append(request).await;
        streams.iter().for_each(|stream| self.changed(stream));
        changes.ended(&outcome);
        outcome.map_err(|error| self.told(error))
    }

    async fn read_stream(&self, request: ReadStream) -> Result<StreamPage> {
        self.check(Operation::Read(&request.stream)).await?;
        let _call = self.enter()?;
        let stream = request.stream.clone();
        let outcome = self.stream_page(request).await;
        self.used(Operation::Read(&stream), "", &outcome);
        outcome.map_err(|error| self.told(error))
    }

    async fn read_all(&self, request: ReadAll) -> Result<AllPage> {
        self.check(Operation::ReadMany).await?;
        let _call = self.enter()?;
        let outcome = self.all_page(request).await;
        self.used(Operation::ReadMany, "all events", &outcome);
        outcome.map_err(|error| self.told(error))
    }

    async fn list_streams(&self, request: ListStreams) -> Result<StreamsPage> {
        self.check(Operation::ReadMany).await?;
        let _call = self.enter()?;
        let outcome = self.list_some(request).await;
        self.used(Operation::ReadMany, "names of streams", &outcome);
        outcome.map_err(|error| self.told(error))
    }

    async fn delete_stream(&self, request: DeleteStream) -> Result<Deleted> {
        self.check(Operation::Delete(&request.stream)).await?;
        let _call = self.enter()?;
        let changes = Changes::of(self, |stream| Operation::Delete(stream), &request.stream);
        let stream = request.stream.clone();
        let outcome = self.store.delete_stream(request).await;
        self.changed(&stream);
        changes.ended(&outcome);
        outcome.map_err(|error| self.told(error))
    }

    async fn stream_metadata(&self, stream: StreamId) -> Result<StreamMetadataRecord> {
        self.check(Operation::ReadMetadata(&stream)).await?;
        let _call = self.enter()?;
        let outcome = self.store.stream_metadata(stream.clone()).await;
        self.used(Operation::ReadMetadata(&stream), "", &outcome);
        outcome.map_err(|error| self.told(error))
    }

    async fn set_stream_metadata(&self, request: SetStreamMetadata) -> Result<MetadataSet> {
        self.check(Operation::WriteMetadata(&request.stream))
            .await?;
        self.check_metadata(&request.metadata)?;
        let _call = self.enter()?;
        let changes = Changes::of(
            self,
            |stream| Operation::WriteMetadata(stream),
            &request.stream,
        );
        let stream = request.stream.clone();
        let outcome = self.store.set_stream_metadata(request).await;
        self.changed(&stream);
        changes.ended(&outcome);
        outcome.map_err(|error| self.told(error))
    }

    async fn subscribe(&self, request: Subscribe) -> Result<Subscription> {
        // This comes before the check, so that no change between the two is missed.
        let changes = self.access.shared.changes.subscribe();
        let stream = match &request.to {
            SubscribeTo::Stream(stream) => Some(stream.clone()),
            SubscribeTo::All(_) => None,
        };
        let operation = stream.as_ref().map_or(Operation::ReadMany, Operation::Read);
        self.check(operation).await?;
        let _call = self.enter()?;
        let outcome = subscription::begin(self.clone(), request, changes).await;
        let subject = stream.as_ref().map_or("all events", |_| "");
        self.used(operation, subject, &outcome);
        outcome.map_err(|error| self.told(error))
    }

    /// Follows links. A link to an event that the caller may not read stays a link, like one that names an event which
    /// cannot be read.
    async fn resolve(&self, events: Vec<SharedEvent>) -> Result<Vec<Resolved>> {
        let mut may_follow = Vec::with_capacity(events.len());
        for event in &events {
            may_follow.push(self.may_follow(event).await?);
        }
        let followed = events.iter().zip(&may_follow).filter(|(_, may)| **may);
        let followed: Vec<_> = followed.map(|(event, _)| Arc::clone(event)).collect();
        let mut resolved = Vec::new();
        if !followed.is_empty() {
            let _call = self.enter()?;
            let found = self.store.resolve(followed).await;
            resolved = found.map_err(|error| self.told(error))?;
        }
        let targets = resolved.iter().filter(|found| found.link.is_some());
        self.had(targets.map(|found| found.event.payload_bytes()).sum());
        // If fewer events are answered than were asked for, the caller asks again for the others.
        let mut resolved = resolved.into_iter();
        let answers = events.into_iter().zip(may_follow);
        Ok(answers
            .map_while(|(event, may_follow)| match may_follow {
                true => resolved.next(),
                false => Some(Resolved::itself(event)),
            })
            .collect())
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
