//! What runs in a round that loses commits: writers, consumers, and commands of entities; and how it ends.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use gesta_report::failure::{Result, fail};
use gesta_core::{
    AllFrom, Checkpoint, Error, EventStore as _, Filter, Incarnation, ReadAll, RecordedEvent,
    Subscribe, SubscribeFrom, SubscribeTo,
};
use gesta_load::machine::ask::until;
use gesta_load::machine::store::Opened;
use gesta_load::entities::tally::Tally;

use super::check::{self, Histories, Seen};
use crate::chaos::failover::FailoverArgs;
use crate::chaos::failover::commands::{CALLERS, Commands};
use crate::chaos::failover::world::World;
use crate::cluster::load::{Way, client, connect};
use crate::faults::load::{Load, read_on};
use crate::faults::tails::{Manner, Sink};
use crate::faults::writers::Claims;
use gesta::entity::Entities;

/// Appends and commands that are answered between two steps of a round.
const APPENDS: u64 = 200;
const COMMANDS: u64 = 50;
/// Pause between two appends of a writer, or two commands of a caller.
const PAUSE: Duration = Duration::from_millis(10);
/// Whatever is waited for comes within this time.
const PATIENCE: Duration = Duration::from_secs(60);

/// What a round has found.
pub(super) struct Found {
    pub(super) acknowledged: u64,
    pub(super) lost: u64,
    pub(super) consumers: u64,
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

/// Everything that runs in a round.
pub(super) struct Work {
    ways: [Way; 2],
    load: Load,
    consumers: BTreeMap<String, Arc<Mutex<Seen>>>,
    commands: Commands,
    /// Appends that are answered between two steps, some of which were begun in between.
    appends: u64,
    /// Since when all processes know of the new history.
    settled: Option<Instant>,
}

impl Work {
    pub(super) async fn start(
        world: &World,
        entities: &Entities<Tally>,
        round: u32,
        args: &FailoverArgs,
    ) -> Result<Self> {
        let (ways, mut begin) = (world.ways(), None);
        let mut load = Load::new(args.seed ^ (u64::from(round) << 32));
        let mut consumers = BTreeMap::new();
        read_on(&*client(&ways[0])?, &mut begin).await?;
        for way in &ways {
            for manner in [Manner::Subscribe, Manner::Poll] {
                let name = format!("{manner:?} of {}", way.name);
                let seen: Arc<Mutex<Seen>> = Arc::default();
                consumers.insert(name.clone(), Arc::clone(&seen));
                let consumer = Consumer { seen, last: None };
                load.follow_into(name, manner, client(way)?, begin.clone(), consumer);
            }
        }
        for _ in 0..args.writers {
            load.write(&ways[0].name, client(&ways[0])?, Claims::Nothing, PAUSE);
        }
        let commands = Commands::start(entities, round);
        Ok(Self {
            ways,
            load,
            consumers,
            commands,
            appends: APPENDS + u64::from(args.writers),
            settled: None,
        })
    }

    /// Waits until so many more appends and commands are answered.
    pub(super) async fn goes_on(&self) -> Result<()> {
        let answered = || {
            let appends = self.load.record.counted(&self.ways[0].name, "acknowledged");
            (appends, self.commands.answered())
        };
        let before = answered();
        let enough = async || {
            let now = answered();
            now.0 >= before.0 + self.appends && now.1 >= before.1 + COMMANDS + u64::from(CALLERS)
        };
        until("appends and commands are answered", PATIENCE, enough).await
    }

    /// Waits until every consumer has what was acknowledged last, which will be lost. Gives its checkpoint.
    pub(super) async fn consumers_follow(&self) -> Result<Checkpoint> {
        let acknowledged = self.load.record.acknowledged();
        let Some(last) = acknowledged.last() else {
            return fail("nothing was acknowledged");
        };
        let has_it = |seen: &Mutex<Seen>| {
            let seen = seen.lock().unwrap();
            let mut newest = seen.events.iter().rev();
            newest.any(|event| event.id == last.ids[0])
        };
        let all = async || self.consumers.values().all(|seen| has_it(seen));
        until("consumers follow", PATIENCE, all).await?;
        Ok(last.checkpoint.clone())
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
    pub(super) async fn settled(&mut self, own: &Opened, old: Incarnation) -> Result<Histories> {
        let is_new = async || {
            let known = self.known(own).await;
            known.is_ok_and(|all| all[0] != old && all.iter().all(|one| *one == all[0]))
        };
        until("all know that the history is another one", PATIENCE, is_new).await?;
        self.settled = Some(Instant::now());
        self.commands.settled();
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
                if !outcome.as_ref().is_err_and(check::is_other_history) {
                    self.load.record.violation(format!(
                        "{}: a checkpoint of the lost history was answered by {outcome:?}",
                        way.name
                    ));
                }
            }
        }
        Ok(())
    }

    /// Ends everything, when consumers have been told, and checks it.
    pub(super) async fn end(mut self, own: &Opened, histories: Histories) -> Result<Found> {
        let record = Arc::clone(&self.load.record);
        let ended = async || {
            let mut seen = self.consumers.values();
            seen.all(|seen| seen.lock().unwrap().end.is_some())
        };
        if let Err(failure) = until("consumers are told", PATIENCE, ended).await {
            record.violation(failure.to_string());
        }
        self.commands.end().await?;
        self.load.end_writers().await?;
        let stored = read_on(&*client(&self.ways[0])?, &mut None).await?;
        if stored != read_on(&*client(&self.ways[1])?, &mut None).await? {
            record.violation("the servers read different events".into());
        }
        let verdict = self.load.judge(&stored).await?;
        let all = record.acknowledged();
        let (lost, found) = check::acknowledged(&all, &verdict, histories, self.settled);
        let mut wrong = record.violations().0;
        wrong.extend(found);
        wrong.extend(check::whole(&stored));
        let mut told = 0;
        for (name, seen) in &self.consumers {
            let seen = seen.lock().unwrap();
            told += u64::from(seen.end.as_ref().is_some_and(check::is_other_history));
            let found = check::consumer(&seen, &stored);
            wrong.extend(found.into_iter().map(|text| format!("{name} {text}")));
        }
        wrong.extend(self.commands.check(own.store.as_ref()).await?);
        Ok(Found {
            acknowledged: all.len() as u64,
            lost,
            consumers: self.consumers.len() as u64,
            told,
            commands: self.commands.answered(),
            wrong,
        })
    }
}
