//! What runs in a round that loses commits: writers, consumers, and commands of entities; and how it ends.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use gesta::entity::Entities;
use gesta_core::{
    AllFrom, Appended, Checkpoint, Error, ErrorKind, EventData, EventId, EventStore, EventStoreExt,
    EventType, ExpectedRevision, Filter, Incarnation, ReadAll, RecordedEvent, Subscribe,
    SubscribeFrom, SubscribeTo,
};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::check::{self, Acknowledged, Histories, Seen};
use crate::cluster::load::{Way, connect, read_on};
use crate::entities::tally::{Book, Command, Tally};
use crate::failover::world::World;
use crate::failure::{Result, fail};
use crate::faults::CurrentStore;
use crate::faults::tails::{Manner, Sink, Tail};
use crate::store::Opened;

/// A writer begins a new stream after so many events.
const EVENTS_PER_STREAM: usize = 3;
/// Streams to which all writers append.
const SHARED_STREAMS: usize = 5;
/// Entities, and their callers.
const ENTITIES: usize = 20;
const CALLERS: u32 = 4;
/// Pause between two appends of a writer, or two commands of a caller.
const PAUSE: Duration = Duration::from_millis(10);
/// Whatever is waited for comes within this time.
const PATIENCE: Duration = Duration::from_secs(60);
/// How often waits look.
const LOOK: Duration = Duration::from_millis(10);

/// What the tasks of a round share.
#[derive(Default)]
struct Shared {
    acknowledged: Mutex<Vec<Acknowledged>>,
    /// Commands that were answered, and those among them that were sent when all knew of the new history.
    commands: AtomicUsize,
    settled_commands: AtomicUsize,
    settled: AtomicBool,
    over: CancellationToken,
    wrong: Mutex<Vec<String>>,
}

/// What a round has found.
pub(super) struct Found {
    pub(super) acknowledged: u64,
    pub(super) lost: u64,
    /// Consumers that ended with *invalid checkpoint*.
    pub(super) told: u64,
    /// Commands of entities that were answered.
    pub(super) commands: u64,
    pub(super) wrong: Vec<String>,
}

/// Writes down what a tail is given.
struct Consumer {
    seen: Arc<Mutex<Seen>>,
    last: Option<Error>,
}

impl Sink for Consumer {
    fn received(&mut self, event: &RecordedEvent) {
        self.seen.lock().unwrap().events.push(event.clone());
    }

    fn broken(&mut self, error: &Error) {
        self.last = Some(error.clone());
    }

    fn wrong(&mut self, _: String) {
        self.seen.lock().unwrap().end = self.last.take();
    }
}

impl Shared {
    fn complain(&self, text: String) {
        self.wrong.lock().unwrap().push(text);
    }
}

/// Everything that runs in a round.
pub(super) struct Work {
    pub(super) ways: [Way; 2],
    shared: Arc<Shared>,
    book: Arc<Book>,
    consumers: BTreeMap<String, Arc<Mutex<Seen>>>,
    tasks: JoinSet<()>,
    tails: JoinSet<()>,
    _let_go: watch::Sender<u64>,
}

impl Work {
    pub(super) async fn start(
        world: &World,
        entities: &Entities<Tally>,
        round: u32,
        writers: u16,
    ) -> Result<Self> {
        let mut work = Self {
            ways: world.ways(),
            shared: Arc::default(),
            book: Book::new(ENTITIES),
            consumers: BTreeMap::new(),
            tasks: JoinSet::new(),
            tails: JoinSet::new(),
            _let_go: watch::Sender::new(0),
        };
        let mut begin = None;
        read_on(&work.ways[0], &mut begin).await?;
        for way in work.ways.clone() {
            for manner in [Manner::Subscribe, Manner::Poll] {
                work.follow(&way, manner, begin.clone())?;
            }
        }
        for writer in 0..writers {
            let (store, shared) = (connect(&work.ways[0])?, Arc::clone(&work.shared));
            work.tasks.spawn(write(store, round, writer, shared));
        }
        for caller in 0..CALLERS {
            let (entities, book) = (entities.clone(), Arc::clone(&work.book));
            let shared = Arc::clone(&work.shared);
            work.tasks
                .spawn(command(entities, round, caller, book, shared));
        }
        Ok(work)
    }

    fn follow(&mut self, way: &Way, manner: Manner, from: Option<Checkpoint>) -> Result<()> {
        let name = format!("{manner:?} of {}", way.name);
        let seen: Arc<Mutex<Seen>> = Arc::default();
        self.consumers.insert(name.clone(), Arc::clone(&seen));
        let tail = Tail {
            name,
            manner,
            store: CurrentStore::new(Arc::new(connect(way)?), None),
            let_go: self._let_go.subscribe(),
            over: self.shared.over.clone(),
            sink: Consumer { seen, last: None },
        };
        self.tails.spawn(tail.run(from));
        Ok(())
    }

    /// Waits until so many more appends and commands are answered; those count that were sent when all knew of the new
    /// history, if there is one.
    pub(super) async fn goes_on(&self, appends: usize, commands: usize) -> Result<()> {
        let settled = self.shared.settled.load(Ordering::SeqCst);
        let counted = match settled {
            true => &self.shared.settled_commands,
            false => &self.shared.commands,
        };
        let now = || {
            let acknowledged = self.shared.acknowledged.lock().unwrap();
            let counts = |one: &&Acknowledged| one.settled || !settled;
            let appends = acknowledged.iter().filter(counts).count();
            (appends, counted.load(Ordering::SeqCst))
        };
        let before = now();
        let enough = async || {
            let now = now();
            now.0 >= before.0 + appends && now.1 >= before.1 + commands
        };
        until("appends and commands are answered", enough).await
    }

    /// Waits until every consumer has what is acknowledged now.
    pub(super) async fn consumers_follow(&self) -> Result<()> {
        let wanted = self.shared.acknowledged.lock().unwrap().len();
        let all = async || {
            let mut seen = self.consumers.values();
            seen.all(|seen| seen.lock().unwrap().events.len() >= wanted)
        };
        until("consumers follow", all).await
    }

    /// A checkpoint of what will be lost.
    pub(super) fn last_checkpoint(&self) -> Result<Checkpoint> {
        let acknowledged = self.shared.acknowledged.lock().unwrap();
        match acknowledged.last() {
            Some(last) => Ok(last.checkpoint.clone()),
            None => fail("nothing was acknowledged"),
        }
    }

    /// The history that each process knows: both servers, and this one.
    pub(super) async fn known(&self, own: &Opened) -> Result<[Incarnation; 3]> {
        Ok([
            connect(&self.ways[0])?.info().await?.incarnation,
            connect(&self.ways[1])?.info().await?.incarnation,
            own.store.info().await?.incarnation,
        ])
    }

    /// Waits until all processes know the same new history.
    pub(super) async fn settled(&self, own: &Opened, old: Incarnation) -> Result<Histories> {
        let is_new = async || {
            let known = self.known(own).await;
            known.is_ok_and(|all| all[0] != old && all.iter().all(|one| *one == all[0]))
        };
        until("all know that the history is another one", is_new).await?;
        self.shared.settled.store(true, Ordering::SeqCst);
        let new = own.store.info().await?.incarnation;
        Ok(Histories { old, new })
    }

    /// Both servers refuse a checkpoint of the lost history.
    pub(super) async fn refused(&self, checkpoint: &Checkpoint) -> Result<()> {
        for way in &self.ways {
            let store = connect(way)?;
            let to = SubscribeTo::All(Filter::ALL);
            let from = SubscribeFrom::Checkpoint(checkpoint.clone());
            let subscribed = store.subscribe(Subscribe { to, from }).await.map(drop);
            let read = ReadAll::forwards().from(AllFrom::Checkpoint(checkpoint.clone()));
            let read = store.read_all(read).await.map(drop);
            for outcome in [subscribed, read] {
                let refused =
                    |error: &Error| matches!(error.kind(), ErrorKind::InvalidCheckpoint(_));
                if !outcome.as_ref().is_err_and(refused) {
                    self.shared.complain(format!(
                        "{}: a checkpoint of the lost history was answered by {outcome:?}",
                        way.name
                    ));
                }
            }
        }
        Ok(())
    }

    /// Ends everything, when consumers have been told, and checks it.
    pub(super) async fn end(&mut self, own: &Opened, histories: Histories) -> Result<Found> {
        let ended = async || {
            let mut seen = self.consumers.values();
            seen.all(|seen| seen.lock().unwrap().end.is_some())
        };
        if let Err(failure) = until("consumers are told", ended).await {
            self.shared.complain(failure.to_string());
        }
        self.shared.over.cancel();
        while let Some(ended) = self.tasks.join_next().await {
            ended?;
        }
        while let Some(ended) = self.tails.join_next().await {
            ended?;
        }
        let stored = read_on(&self.ways[0], &mut None).await?;
        let mut wrong = std::mem::take(&mut *self.shared.wrong.lock().unwrap());
        if stored != read_on(&self.ways[1], &mut None).await? {
            wrong.push("the servers read different events".into());
        }
        wrong.extend(check::whole(&stored));
        let mut told = 0;
        for (name, seen) in &self.consumers {
            let seen = seen.lock().unwrap();
            told += u64::from(check::is_told(&seen));
            let found = check::consumer(&seen, &stored);
            wrong.extend(found.into_iter().map(|text| format!("{name} {text}")));
        }
        let all = std::mem::take(&mut *self.shared.acknowledged.lock().unwrap());
        let (lost, found) = check::acknowledged(&all, &stored, histories);
        wrong.extend(found);
        wrong.extend(self.book.check(own.store.as_ref()).await?.1);
        Ok(Found {
            acknowledged: all.len() as u64,
            lost,
            told,
            commands: self.shared.commands.load(Ordering::SeqCst) as u64,
            wrong,
        })
    }
}

/// Appends one event after the other, each until it is answered.
async fn write(store: impl EventStore, round: u32, writer: u16, shared: Arc<Shared>) {
    for number in 0.. {
        let own = format!("own-{round}-{writer}-{}", number / EVENTS_PER_STREAM);
        let common = format!("shared-{}", number % SHARED_STREAMS);
        let stream = if number % 2 == 0 { own } else { common };
        let id = EventId::random();
        loop {
            if shared.over.is_cancelled() {
                return;
            }
            let settled = shared.settled.load(Ordering::SeqCst);
            let events = vec![event(&stream, id)];
            match store
                .append_to(&stream, ExpectedRevision::Any, events)
                .await
            {
                Ok(appended) => {
                    let one = acknowledged(stream, id, appended, settled);
                    shared.acknowledged.lock().unwrap().push(one);
                    break;
                }
                Err(error) if error.is_retryable() => {}
                Err(error) => shared.complain(format!("{stream}: refused wrongly: {error}")),
            }
            tokio::time::sleep(PAUSE).await;
        }
        tokio::time::sleep(PAUSE).await;
    }
}

fn acknowledged(stream: String, id: EventId, appended: Appended, settled: bool) -> Acknowledged {
    Acknowledged {
        stream,
        id,
        revision: appended.streams[0].first_revision,
        position: appended.position,
        checkpoint: appended.checkpoint,
        settled,
    }
}

/// Sends one command after the other, each to the next entity. What is sent when all know of the new history goes into
/// the book: its answers must rest on what is stored.
async fn command(
    entities: Entities<Tally>,
    round: u32,
    caller: u32,
    book: Arc<Book>,
    shared: Arc<Shared>,
) {
    for (n, entity) in (0_u64..).zip((0..ENTITIES).cycle()) {
        if shared.over.is_cancelled() {
            return;
        }
        let (settled, before) = (shared.settled.load(Ordering::SeqCst), book.before(entity));
        let command = Command::Count {
            by: u32::try_from(entity).unwrap_or(u32::MAX),
            n: (u64::from(round) << 40) | (u64::from(caller) << 32) | n,
        };
        if let Ok(reply) = entities.execute(&entity.to_string(), command).await {
            shared.commands.fetch_add(1, Ordering::SeqCst);
            if settled {
                book.after(entity, before, command, reply);
                shared.settled_commands.fetch_add(1, Ordering::SeqCst);
            }
        }
        tokio::time::sleep(PAUSE).await;
    }
}

/// An event whose data name its stream.
fn event(stream: &str, id: EventId) -> EventData {
    let event_type = EventType::new("tested").expect("a valid type");
    EventData::json(event_type, format!("{{\"stream\":\"{stream}\"}}")).with_id(id)
}

/// Waits until something is so.
async fn until(what: &str, mut is_so: impl AsyncFnMut() -> bool) -> Result<()> {
    let begun = Instant::now();
    while !is_so().await {
        if begun.elapsed() > PATIENCE {
            return fail(format!("not within {PATIENCE:?}: {what}"));
        }
        tokio::time::sleep(LOOK).await;
    }
    Ok(())
}
