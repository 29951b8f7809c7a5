//! Follows the accounts and the rights of streams.
//!
//! Each second a subscription begins where the last one ended, and is *caught up* once it has delivered whatever was
//! stored when it began: this proves that the news is complete up to then. Between two of these proofs the subscription
//! is live, so that changes arrive at once. Why not one subscription for ever: a subscription without news cannot be
//! told from one that delivers nothing any more. While nobody has to prove anything, only the marker is looked for, as
//! seldom as the news of accounts may be old, so that a server without users does not keep its database busy.
//! Invariants: the accounts count as loaded only when all their streams were read; the contact is never said to be
//! newer than the beginning of a subscription that has caught up.

use std::sync::{Arc, PoisonError};
use std::time::Duration;

use futures::stream::{self, StreamExt, TryStreamExt};
use gesta_core::{
    Checkpoint, Error, ErrorKind, EventStore, Filter, LastingFault, ListStreams, Query, ReadStream,
    RecordedEvent, Result, StreamFrom, StreamId, Subscribe, SubscribeFrom, SubscribeTo,
    Subscription, SubscriptionMessage, warn_once,
};

use crate::acls::Known;
use crate::config::Mode;
use crate::directory::Directory;
use crate::names::{self, Kind, MARKER, METADATA_PREFIX, SETTINGS, TOKEN_PREFIX, USER_PREFIX};
use crate::shared::Shared;

/// The time between two proofs that the news is complete.
const PROVE_EVERY: Duration = Duration::from_secs(1);
/// The time between two looks for the marker. There is no subscription to it, which would make this process read
/// whatever others append.
const MARKER_EVERY: Duration = Duration::from_secs(5);
/// One of so many looks asks too whether the marker was deleted or hidden, which takes a statement more.
const HIDDEN_OF: u32 = 12;
/// How long a subscription may take to catch up.
const CATCH_UP_MAX: Duration = Duration::from_secs(4);
/// The pause after a failure.
const AGAIN_AFTER: Duration = Duration::from_millis(200);
/// The least time between two moments at which running subscriptions check their rights again.
const TELL_EVERY: Duration = Duration::from_millis(200);
/// The most account streams that are read at once.
const READS_MAX: usize = 16;
const PAGE: usize = 1_000;
const NAMES_PAGE: usize = 10_000;

/// Follows the accounts until the future is dropped.
pub(crate) async fn run(shared: Arc<Shared>) {
    let telling = tell(&shared);
    let following = async {
        let mut told = LastingFault::default();
        loop {
            let failure = match load(&shared).await {
                Ok(Loaded::Open) => {
                    told.ends();
                    wait_for_marker(&shared).await;
                    None
                }
                Ok(Loaded::On(from)) => {
                    told.ends();
                    Some(follow(&shared, from).await)
                }
                Err(error) => Some(error),
            };
            if let Some(error) = failure {
                warn_once!(told, %error, "the accounts cannot be read; trying again");
                shared.changed.notify_one();
                tokio::time::sleep(AGAIN_AFTER).await;
            }
        }
    };
    tokio::select! {
        () = telling => {}
        () = following => {}
    }
}

/// Makes running subscriptions check their rights again after a change, once in [`TELL_EVERY`] at most.
async fn tell(shared: &Shared) {
    loop {
        shared.changed.notified().await;
        shared.changes.send_modify(|changes| *changes += 1);
        tokio::time::sleep(TELL_EVERY).await;
    }
}

fn everything() -> SubscribeTo {
    let prefixes = [METADATA_PREFIX, MARKER, SETTINGS, USER_PREFIX, TOKEN_PREFIX];
    SubscribeTo::All(Filter::query(Query {
        stream_prefixes: prefixes.map(String::from).to_vec(),
        ..Query::default()
    }))
}

async fn subscribe(store: &dyn EventStore, from: SubscribeFrom) -> Result<Subscription> {
    store
        .subscribe(Subscribe {
            to: everything(),
            from,
        })
        .await
}

async fn in_time<T>(what: impl Future<Output = Result<T>>) -> Result<T> {
    let late = || Error::unavailable(format!("the store did not answer within {CATCH_UP_MAX:?}"));
    tokio::time::timeout(CATCH_UP_MAX, what)
        .await
        .unwrap_or_else(|_| Err(late()))
}

fn ended() -> Error {
    Error::unavailable("the subscription to the accounts has ended")
}

/// What was loaded.
enum Loaded {
    /// Nobody has to prove anything.
    Open,
    /// The accounts, which are followed from this checkpoint on.
    On(Checkpoint),
}

/// Waits until access is turned on.
async fn wait_for_marker(shared: &Shared) {
    let mut looks = 0_u32;
    loop {
        tokio::time::sleep(MARKER_EVERY).await;
        looks = looks.wrapping_add(1);
        match is_marked(&*shared.store, looks.is_multiple_of(HIDDEN_OF)).await {
            Ok(true) => break,
            Ok(false) => {}
            Err(error) => tracing::debug!(%error, "it is not known whether access is on"),
        }
    }
    // Until now nothing but the marker was read.
    shared.set_loaded(false);
    shared.changed.notify_one();
}

/// True if access is on. `thoroughly`: also if the marker was deleted or is hidden.
async fn is_marked(store: &dyn EventStore, thoroughly: bool) -> Result<bool> {
    let mut directory = Directory::default();
    if thoroughly {
        read_account(store, &mut directory, MARKER).await?;
    } else {
        let marker = StreamId::new(MARKER)?;
        let read = events(store, &marker).await?;
        apply(&mut directory, &marker, read);
    }
    Ok(directory.is_on())
}

/// Reads all accounts, and returns from where on they are to be followed.
async fn load(shared: &Shared) -> Result<Loaded> {
    let store = &*shared.store;
    let mut directory = Directory::default();
    read_account(store, &mut directory, MARKER).await?;
    // Access stays on in this process even if a fail-over has lost the marker.
    let was_on = shared.directory().is_on();
    if !directory.is_on() && !was_on && shared.config.mode == Mode::Auto {
        begin(shared, directory);
        return Ok(Loaded::Open);
    }
    let begun = (shared.config.uptime)();
    let from = in_time(async {
        let mut end = subscribe(store, SubscribeFrom::End).await?;
        loop {
            match end.next().await.ok_or_else(ended)?? {
                SubscriptionMessage::CaughtUp(checkpoint) => return Ok(checkpoint),
                SubscriptionMessage::Event { .. }
                | SubscriptionMessage::Checkpoint(_)
                | SubscriptionMessage::FellBehind(_) => {}
            }
        }
    })
    .await?;
    directory = read(store).await?;
    if was_on {
        directory.keep_on();
    }
    shared.acls.begin(known(store).await?);
    shared.in_contact(begun);
    begin(shared, directory);
    Ok(Loaded::On(from))
}

fn begin(shared: &Shared, directory: Directory) {
    *shared
        .directory
        .write()
        .unwrap_or_else(PoisonError::into_inner) = directory;
    shared.set_loaded(true);
    shared.changed.notify_one();
}

/// Reads all accounts of a store.
pub(crate) async fn read(store: &dyn EventStore) -> Result<Directory> {
    let mut directory = Directory::default();
    read_account(store, &mut directory, MARKER).await?;
    read_others(store, &mut directory).await?;
    Ok(directory)
}

/// Reads the account in one stream, and nothing of the others.
pub(crate) async fn read_one(store: &dyn EventStore, account: &StreamId) -> Result<Directory> {
    let mut directory = Directory::default();
    read_account(store, &mut directory, MARKER).await?;
    let read = events(store, account).await?;
    apply(&mut directory, account, read);
    Ok(directory)
}

async fn read_others(store: &dyn EventStore, directory: &mut Directory) -> Result<()> {
    read_account(store, directory, SETTINGS).await?;
    read_accounts(store, directory, USER_PREFIX).await?;
    read_accounts(store, directory, TOKEN_PREFIX).await
}

/// Lists the streams that have metadata.
async fn known(store: &dyn EventStore) -> Result<Known> {
    let mut known = Known::default();
    let mut after = None;
    while !known.is_full() {
        let request = ListStreams {
            prefix: METADATA_PREFIX.into(),
            after,
            limit: NAMES_PAGE,
        };
        let page = store.list_streams(request).await?;
        for info in &page.streams {
            if let Some(name) = names::described(info.stream.as_str()) {
                known.add(name);
            }
        }
        after = page.next;
        if after.is_none() {
            break;
        }
    }
    Ok(known)
}

async fn read_accounts(
    store: &dyn EventStore,
    directory: &mut Directory,
    prefix: &str,
) -> Result<()> {
    let mut after = None;
    loop {
        let request = ListStreams {
            prefix: prefix.into(),
            after,
            limit: PAGE,
        };
        let page = store.list_streams(request).await?;
        let names = page.streams.into_iter().map(|info| info.stream);
        let mut reads = stream::iter(names)
            .map(|name| async move { events(store, &name).await.map(|read| (name, read)) })
            .buffer_unordered(READS_MAX);
        while let Some((name, read)) = reads.try_next().await? {
            apply(directory, &name, read);
        }
        after = page.next;
        if after.is_none() {
            return Ok(());
        }
    }
}

/// Reads an account stream that may not exist. If it existed and is gone, its account is closed.
async fn read_account(store: &dyn EventStore, directory: &mut Directory, name: &str) -> Result<()> {
    let stream = StreamId::new(name)?;
    let read = events(store, &stream).await?;
    let is_hidden = matches!(&read, Read::Nothing) && has_metadata(store, &stream).await?;
    let read = if is_hidden {
        Read::Unreadable("it was deleted, or its events are hidden".into())
    } else {
        read
    };
    apply(directory, &stream, read);
    Ok(())
}

async fn has_metadata(store: &dyn EventStore, stream: &StreamId) -> Result<bool> {
    match store.stream_metadata(stream.clone()).await {
        Ok(record) => Ok(record.revision.is_some()),
        Err(error) => match error.kind() {
            ErrorKind::StreamTombstoned(_) | ErrorKind::Corrupt(_) => Ok(true),
            _ => Err(error),
        },
    }
}

/// What an account stream holds.
enum Read {
    Nothing,
    Events(Vec<RecordedEvent>),
    Unreadable(String),
}

/// Reads all events of an account stream. They are few, since each is a change of the account.
async fn events(store: &dyn EventStore, stream: &StreamId) -> Result<Read> {
    let mut request = ReadStream::forwards(stream.clone());
    let mut events = Vec::new();
    loop {
        let page = match store.read_stream(request.clone()).await {
            Ok(page) => page,
            Err(error) => {
                return match error.kind() {
                    ErrorKind::StreamNotFound(_) => Ok(Read::Nothing),
                    ErrorKind::StreamTombstoned(_) | ErrorKind::Corrupt(_) => {
                        Ok(Read::Unreadable(error.to_string()))
                    }
                    _ => Err(error),
                };
            }
        };
        events.extend(page.events);
        match page.next {
            Some(next) if !page.end => request = request.from(StreamFrom::Revision(next)),
            _ if events.is_empty() => return Ok(Read::Nothing),
            _ => return Ok(Read::Events(events)),
        }
    }
}

fn apply(directory: &mut Directory, stream: &StreamId, read: Read) {
    match read {
        Read::Nothing => {}
        Read::Events(events) => events.iter().for_each(|event| {
            directory.apply(event);
        }),
        Read::Unreadable(why) => directory.close(stream, why),
    }
}

/// Follows the accounts from a checkpoint on, until all must be read again; returns why.
async fn follow(shared: &Shared, mut from: Checkpoint) -> Error {
    let mut told = LastingFault::default();
    let mut last = shared.config.clock.now();
    loop {
        match prove(shared, &mut from).await {
            Ok(()) => {
                if told.ends() {
                    tracing::info!("the accounts are followed again");
                    shared.changed.notify_one();
                }
            }
            Err(error) if matches!(error.kind(), ErrorKind::InvalidCheckpoint(_)) => return error,
            Err(error) => {
                warn_once!(told, %error, "changes of the accounts cannot be read; trying again");
                // Running subscriptions must end once the news is too old.
                shared.changed.notify_one();
                tokio::time::sleep(AGAIN_AFTER).await;
            }
        }
        let now = shared.config.clock.now();
        if shared.directory().ends_between(last, now) {
            shared.changed.notify_one();
        }
        last = now;
    }
}

/// Catches up, which proves that the news is complete, and stays live for [`PROVE_EVERY`].
async fn prove(shared: &Shared, from: &mut Checkpoint) -> Result<()> {
    let begun = (shared.config.uptime)();
    let mut subscription = in_time(async {
        let beginning = SubscribeFrom::Checkpoint(from.clone());
        subscribe(&*shared.store, beginning).await
    })
    .await?;
    in_time(async {
        loop {
            let message = subscription.next().await.ok_or_else(ended)??;
            let is_end = matches!(message, SubscriptionMessage::CaughtUp(_));
            take(shared, message, from);
            if is_end {
                return Ok(());
            }
        }
    })
    .await?;
    shared.in_contact(begun);
    let live = async {
        loop {
            let message = subscription.next().await.ok_or_else(ended)??;
            take(shared, message, from);
        }
    };
    tokio::time::timeout(PROVE_EVERY, live)
        .await
        .unwrap_or(Ok(()))
}

fn take(shared: &Shared, message: SubscriptionMessage, from: &mut Checkpoint) {
    match message {
        SubscriptionMessage::Checkpoint(checkpoint)
        | SubscriptionMessage::CaughtUp(checkpoint)
        | SubscriptionMessage::FellBehind(checkpoint) => {
            *from = checkpoint;
        }
        SubscriptionMessage::Event { event, checkpoint } => {
            *from = checkpoint;
            take_event(shared, &event);
        }
    }
}

fn take_event(shared: &Shared, event: &RecordedEvent) {
    let name = event.stream.as_str();
    let has_changed = shared
        .directory
        .write()
        .unwrap_or_else(PoisonError::into_inner)
        .apply(event);
    let described = names::described(name).filter(|_| names::kind(name) != Kind::Account);
    if let Some(described) = described {
        shared.acls.changed(described);
    }
    if has_changed || described.is_some() {
        shared.changed.notify_one();
    }
}
