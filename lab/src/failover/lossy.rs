//! Rounds with asynchronous standbys that lag: what was acknowledged last is lost, and everybody must be told.
//!
//! Consumers of both servers, by subscription and by pages, must end with *invalid checkpoint*; a checkpoint of the lost
//! history is refused; entities, which live in this process, load again; and nothing is stored or given to anybody under
//! another name. Every event names its stream.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use gesta::entity::{Config, Entities};
use gesta_core::{
    AllFrom, Appended, Checkpoint, Error, ErrorKind, EventData, EventId, EventStore, EventStoreExt,
    EventType, ExpectedRevision, Filter, Incarnation, Position, ReadAll, RecordedEvent, Revision,
    StreamId, Subscribe, SubscribeFrom, SubscribeTo,
};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::FailoverArgs;
use super::fault::FailoverFault;
use super::world::World;
use crate::cells;
use crate::cluster::load::{Way, connect, read_on};
use crate::entities;
use crate::entities::tally::{Book, Command, Event, Tally, decoded};
use crate::failure::{Result, fail};
use crate::faults::CurrentStore;
use crate::faults::tails::{Manner, Sink, Tail};
use crate::histogram::median;
use crate::report::{Report, Table, Unit};
use crate::store::{self, Opened};
use crate::units::grouped;

/// A writer begins a new stream after so many events.
const EVENTS_PER_STREAM: usize = 3;
/// Streams to which all writers append.
const SHARED_STREAMS: usize = 5;
/// Entities, and their callers.
const ENTITIES: usize = 20;
const CALLERS: u32 = 4;
/// Pause between two appends of a writer, or two commands of a caller.
const PAUSE: Duration = Duration::from_millis(10);
/// Appends and commands that are answered between two steps of a round.
const APPENDS: usize = 200;
const COMMANDS: usize = 50;
/// Whatever is waited for comes within this time.
const PATIENCE: Duration = Duration::from_secs(60);
/// How often waits look.
const LOOK: Duration = Duration::from_millis(10);

/// An append that was answered.
struct Acknowledged {
    stream: String,
    id: EventId,
    revision: Revision,
    position: Position,
    checkpoint: Checkpoint,
    /// It was sent when all knew of the new history.
    settled: bool,
}

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

/// What a consumer was given, and how it ended.
#[derive(Default)]
struct Seen {
    events: Mutex<Vec<RecordedEvent>>,
    end: Mutex<Option<Error>>,
}

/// Writes down what a tail is given.
struct Consumer {
    seen: Arc<Seen>,
    last: Option<Error>,
}

impl Sink for Consumer {
    fn received(&mut self, event: &RecordedEvent) {
        self.seen.events.lock().unwrap().push(event.clone());
    }

    fn broken(&mut self, error: &Error) {
        self.last = Some(error.clone());
    }

    fn wrong(&mut self, _: String) {
        *self.seen.end.lock().unwrap() = self.last.take();
    }
}

/// What a round has shown.
#[derive(Debug)]
struct Round {
    fault: FailoverFault,
    acknowledged: u64,
    lost: u64,
    /// Consumers that ended with *invalid checkpoint*.
    told: u64,
    commands: u64,
    /// From the promotion until both servers and the process with the entities knew the new history.
    known_after: Duration,
}

/// All rounds.
pub(crate) struct Lossy<'a> {
    args: &'a FailoverArgs,
    rounds: Vec<Round>,
    problems: Vec<String>,
    /// The process with the entities: this one.
    own: Option<(Opened, Entities<Tally>)>,
}

impl<'a> Lossy<'a> {
    /// Nothing has happened.
    pub(crate) fn new(args: &'a FailoverArgs) -> Self {
        Self {
            args,
            rounds: Vec::new(),
            problems: Vec::new(),
            own: None,
        }
    }

    /// One fail-over.
    pub(crate) async fn round(
        &mut self,
        world: &mut World,
        number: u32,
        fault: FailoverFault,
    ) -> Result<()> {
        let primary = world.whole()?;
        if self.own.is_none() {
            let opened = store::open_url(&world.url(), Duration::ZERO, 1).await?;
            let entities = entities::start(&opened.owner()?, Config::default(), None)?;
            self.own = Some((opened, entities));
        }
        let Some((own, entities)) = &self.own else {
            return fail("the store was not opened");
        };
        let mut work = Work::start(world, entities, number, self.args.writers).await?;
        let all = [
            connect(&work.ways[0])?.info().await?.incarnation,
            connect(&work.ways[1])?.info().await?.incarnation,
            own.store.info().await?.incarnation,
        ];
        let old = all[0];
        if all.iter().any(|found| *found != old) {
            work.shared
                .complain(format!("the processes know several incarnations: {all:?}"));
        }
        work.appends(APPENDS, |_| true).await?;
        // No standby receives anything from here on; all processes get to know what will be lost.
        let held = tokio::task::block_in_place(|| world.patroni.hold_replication(primary));
        held.map_err(|error| crate::failure::Failure(error.to_string()))?;
        work.appends(APPENDS, |_| true).await?;
        work.commands(COMMANDS, &work.shared.commands).await?;
        work.consumers_follow().await?;
        let checkpoint = work.last_checkpoint()?;

        fault.inflict(world, primary)?;
        world.promoted(primary).await?;
        let promoted = Instant::now();
        let new = work.settled(own, old).await?;
        let known_after = promoted.elapsed();
        work.appends(APPENDS, |one| one.settled).await?;
        work.commands(COMMANDS, &work.shared.settled_commands)
            .await?;
        work.refused(&checkpoint).await?;
        let (told, lost, acknowledged) = work.end(own, old, new).await?;
        fault.heal(world, primary)?;

        let name = format!("round {number} ({})", fault.name());
        let round = Round {
            fault,
            acknowledged,
            lost,
            told,
            commands: work.shared.commands.load(Ordering::SeqCst) as u64,
            known_after,
        };
        eprintln!("{name}: {round:.1?}");
        let wrong = std::mem::take(&mut *work.shared.wrong.lock().unwrap());
        self.problems
            .extend(wrong.into_iter().map(|text| format!("{name}: {text}")));
        self.rounds.push(round);
        Ok(())
    }

    /// Tells what was found. Gives a few words, and what is wrong.
    pub(crate) fn tell(self, report: &mut Report) -> (String, Vec<String>) {
        let mut table = Table::new(
            "Fail-overs to a standby that lags",
            [
                ("fault", Unit::Words),
                ("rounds", Unit::Count),
                ("acknowledged", Unit::Count),
                ("lost", Unit::Count),
                ("consumers", Unit::Count),
                ("told of another history", Unit::Count),
                ("commands of entities", Unit::Count),
                ("known everywhere after (median)", Unit::Millis),
                ("at most", Unit::Millis),
            ],
        );
        for fault in FailoverFault::LOSSY {
            let of = || self.rounds.iter().filter(|round| round.fault == *fault);
            let sum = |value: fn(&Round) -> u64| of().map(value).sum::<u64>();
            let known: Vec<f64> = of()
                .map(|round| (round.known_after.as_secs_f64() * 1_000.0).round())
                .collect();
            if known.is_empty() {
                continue;
            }
            table.row(cells![
                fault.name(),
                known.len(),
                sum(|round| round.acknowledged),
                sum(|round| round.lost),
                known.len() * 4,
                sum(|round| round.told),
                sum(|round| round.commands),
                median(&known),
                known.iter().copied().fold(0.0, f64::max),
            ]);
        }
        report.table(table);
        let sum = |value: fn(&Round) -> u64| self.rounds.iter().map(value).sum::<u64>();
        let words = format!(
            "{} appends acknowledged, {} of them lost with the old primary",
            grouped(sum(|round| round.acknowledged) as f64),
            grouped(sum(|round| round.lost) as f64)
        );
        (words, self.problems)
    }
}

impl Shared {
    fn complain(&self, text: String) {
        self.wrong.lock().unwrap().push(text);
    }
}

/// Everything that runs in a round.
struct Work {
    ways: [Way; 2],
    shared: Arc<Shared>,
    book: Arc<Book>,
    consumers: BTreeMap<String, Arc<Seen>>,
    tasks: JoinSet<()>,
    tails: JoinSet<()>,
    _let_go: watch::Sender<u64>,
}

impl Work {
    async fn start(
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
        let seen: Arc<Seen> = Arc::default();
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

    /// Waits until so many more appends of a kind are answered.
    async fn appends(&self, more: usize, counts: fn(&Acknowledged) -> bool) -> Result<()> {
        let count = || {
            let acknowledged = self.shared.acknowledged.lock().unwrap();
            acknowledged.iter().filter(|one| counts(one)).count()
        };
        let wanted = count() + more;
        until("appends are acknowledged", async || count() >= wanted).await
    }

    /// Waits until so many more commands are answered.
    async fn commands(&self, more: usize, count: &AtomicUsize) -> Result<()> {
        let wanted = count.load(Ordering::SeqCst) + more;
        until("commands are answered", async || {
            count.load(Ordering::SeqCst) >= wanted
        })
        .await
    }

    /// Waits until every consumer has what is acknowledged now.
    async fn consumers_follow(&self) -> Result<()> {
        let wanted = self.shared.acknowledged.lock().unwrap().len();
        let all = async || {
            let mut seen = self.consumers.values();
            seen.all(|seen| seen.events.lock().unwrap().len() >= wanted)
        };
        until("consumers follow", all).await
    }

    /// A checkpoint of what will be lost.
    fn last_checkpoint(&self) -> Result<Checkpoint> {
        let acknowledged = self.shared.acknowledged.lock().unwrap();
        match acknowledged.last() {
            Some(last) => Ok(last.checkpoint.clone()),
            None => fail("nothing was acknowledged"),
        }
    }

    /// Waits until all processes know the same new history; gives it.
    async fn settled(&self, own: &Opened, old: Incarnation) -> Result<Incarnation> {
        let known = async || -> gesta_core::Result<[Incarnation; 3]> {
            let stores = [connect(&self.ways[0]), connect(&self.ways[1])];
            let mut all = [own.store.info().await?.incarnation; 3];
            for (store, known) in stores.into_iter().flatten().zip(&mut all) {
                *known = store.info().await?.incarnation;
            }
            Ok(all)
        };
        let is_new = async || {
            let known = known().await;
            known.is_ok_and(|all| all[0] != old && all.iter().all(|one| *one == all[0]))
        };
        until("all know that the history is another one", is_new).await?;
        self.shared.settled.store(true, Ordering::SeqCst);
        Ok(own.store.info().await?.incarnation)
    }

    /// Both servers refuse a checkpoint of the lost history.
    async fn refused(&self, checkpoint: &Checkpoint) -> Result<()> {
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

    /// Ends the writers and checks everything; gives how many consumers were told, and how many events were lost, of
    /// how many.
    async fn end(
        &mut self,
        own: &Opened,
        old: Incarnation,
        new: Incarnation,
    ) -> Result<(u64, u64, u64)> {
        let ended = async || {
            let mut seen = self.consumers.values();
            seen.all(|seen| seen.end.lock().unwrap().is_some())
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
        if stored != read_on(&self.ways[1], &mut None).await? {
            self.shared
                .complain("the servers read different events".into());
        }
        for wrong in wrong_in(&stored) {
            self.shared.complain(wrong);
        }
        let told = self.check_consumers(&stored);
        let lost = self.check_acknowledged(&stored, old, new);
        let (_, wrong) = self.book.check(own.store.as_ref()).await?;
        for wrong in wrong {
            self.shared.complain(wrong);
        }
        let acknowledged = self.shared.acknowledged.lock().unwrap().len() as u64;
        Ok((told, lost, acknowledged))
    }

    /// Each was told, and was given nothing under another name.
    fn check_consumers(&self, stored: &[RecordedEvent]) -> u64 {
        let ids: HashSet<EventId> = stored.iter().map(|event| event.id).collect();
        let mut told = 0;
        for (name, seen) in &self.consumers {
            let events = seen.events.lock().unwrap();
            for event in events.iter().filter(|event| !is_under_its_name(event)) {
                self.shared
                    .complain(format!("{name} was given another's name: {event:?}"));
            }
            match &*seen.end.lock().unwrap() {
                Some(error) if matches!(error.kind(), ErrorKind::InvalidCheckpoint(_)) => told += 1,
                end => {
                    let lost = events
                        .iter()
                        .filter(|event| !ids.contains(&event.id))
                        .count();
                    self.shared.complain(format!(
                        "{name} was given {lost} events that were lost, and was not told: {end:?}"
                    ));
                }
            }
        }
        told
    }

    /// Every event that was acknowledged in the new history is where its answer says. Gives how many others were lost.
    fn check_acknowledged(
        &self,
        stored: &[RecordedEvent],
        old: Incarnation,
        new: Incarnation,
    ) -> u64 {
        let by_id: HashMap<EventId, &RecordedEvent> =
            stored.iter().map(|event| (event.id, event)).collect();
        let mut lost = 0;
        for one in self.shared.acknowledged.lock().unwrap().iter() {
            let told = (one.stream.as_str(), one.revision, one.position);
            let incarnation = one.checkpoint.incarnation;
            let found = by_id.get(&one.id);
            let found = found.map(|event| (event.stream.as_str(), event.revision, event.position));
            match found {
                Some(found) if found == told => {}
                Some(found) => self
                    .shared
                    .complain(format!("{told:?} is stored at {found:?}")),
                None if one.settled || incarnation == new => {
                    let text = format!("acknowledged in the new history, and lost: {told:?}");
                    self.shared.complain(text);
                }
                None if incarnation != old => {
                    let text = format!("acknowledged in an unknown history: {incarnation:?}");
                    self.shared.complain(text);
                }
                None => lost += 1,
            }
        }
        if lost == 0 {
            self.shared
                .complain("nothing was lost: the round has tested nothing".into());
        }
        lost
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
    for n in 0_u64.. {
        if shared.over.is_cancelled() {
            return;
        }
        let entity = (n % ENTITIES as u64) as usize;
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

/// True if the event stands in the stream that its data name; those of entities name the entity.
fn is_under_its_name(event: &RecordedEvent) -> bool {
    let stream = event.stream.as_str();
    if let Some(entity) = stream.strip_prefix("tally-") {
        let Ok(Event::Counted { by, .. }) = decoded(&event.data) else {
            return false;
        };
        return entity == by.to_string();
    }
    let named = serde_json::from_slice::<serde_json::Value>(&event.data);
    named.is_ok_and(|data| data["stream"] == stream)
}

/// What is wrong in the whole store: names, holes, doubles. A log has no holes here, for nothing is scavenged.
fn wrong_in(stored: &[RecordedEvent]) -> Vec<String> {
    let mut next: HashMap<&StreamId, u64> = HashMap::new();
    let (mut ids, mut wrong) = (HashSet::new(), Vec::new());
    for (event, position) in stored.iter().zip(1..) {
        let next = next.entry(&event.stream).or_default();
        if !is_under_its_name(event)
            || event.position != Position(position)
            || event.revision != Revision(*next)
            || !ids.insert(event.id)
        {
            wrong.push(format!(
                "{position}: a wrong name or place, or a double: {event:?}"
            ));
        }
        *next += 1;
    }
    wrong.truncate(10);
    wrong
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
