//! Everybody who consumes: consumer groups whose consumers come over gRPC and answer in every way that there is,
//! subscribers over HTTP and gRPC and readers of pages, and entities of this process; and writers that give them work.
//!
//! All but the writers go on through all stretches and remember what their protocols let them remember. Every event
//! that is stored must be delivered to each of them, once and in order where that is promised; or, where commits were
//! lost, they must have been told aloud that the history is another one. Some are away while that happens, until the
//! new history is longer than the lost one, so that their old places exist again. Where there are several servers, each
//! has a subscriber that never leaves it, even if nobody appends there.
//! Read `judge` for what is checked. A store of one process (SQLite) has no entities here.

mod commands;
mod consumers;
pub(crate) mod judge;
mod subscribers;
mod work;

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use async_trait::async_trait;
use gesta::entity::{Config, Entities};
use gesta_core::{
    AllFrom, Checkpoint, ErrorKind, EventStore as _, EventStoreExt as _, Filter, Incarnation,
    LogId, ReadAll, RecordedEvent, StreamId, Subscribe, SubscribeFrom, SubscribeTo,
};
use gesta_kit::judge::losses::Excused;
use gesta_load::entities::{self, tally::Tally};
use gesta_load::machine::ask::until;
use gesta_report::failure::{Context, Failure, Result, fail};

use self::consumers::Consumers;
use self::judge::{FailedOver, Stored};
use self::subscribers::Subscribers;
use self::work::Work;
use super::appends::writers::work_stream;
use super::appends::{Through, read_on};
use super::{FaultEffects, Load, StretchReport};
use crate::world::{Operator, Way, World};

pub(crate) use self::work::Extent;

/// Streams with work for consumers.
pub(super) const WORK_STREAMS: usize = 4;
/// Streams that are read by themselves through each server in the end.
const STREAMS_READ: usize = 100;
/// How often waits look.
const LOOK: Duration = Duration::from_millis(20);
/// Whatever is waited for comes within this time, on a busy machine too: nothing here is about seconds.
pub(crate) const PATIENCE: Duration = Duration::from_secs(300);

/// What was lost with the primaries that failed over.
#[derive(Debug, Clone)]
pub(crate) struct Loss {
    /// The history that there is in the end.
    pub(crate) now: Incarnation,
    /// The databases that failed over.
    pub(crate) databases: Vec<usize>,
    /// When everybody knew of it, if a database does not tell when it was promoted.
    pub(crate) known: Instant,
    /// What it excuses.
    pub(crate) excused: Excused,
}

/// The load.
pub struct Groups {
    through: Through,
    writers: u16,
    pause: Duration,
    seed: u64,
    operator: Arc<Operator>,
    standing: Option<Standing>,
    work: Option<Work>,
    /// What the rounds have come to: events lost rightly, subscribers told of it, deliveries.
    lost: u64,
    told: u64,
    deliveries: u64,
    /// Events that were stored when the last stretch was over.
    stored: u64,
}

/// Who goes on through all stretches. Fields are dropped in this order.
struct Standing {
    subscribers: Subscribers,
    consumers: Consumers,
    own: Option<Own>,
    operator: Arc<Operator>,
}

/// The store as this process has it open, and entities on it.
struct Own {
    entities: Entities<Tally>,
    store: Arc<gesta::DatabaseStore>,
}

impl Groups {
    /// So many writers, with this pause between two appends of each; the operator uses this program. If they append
    /// through the first server, the others are idle until [`wake_idle`](Self::wake_idle).
    pub(crate) fn new(
        through: Through,
        (writers, pause): (u16, Duration),
        seed: u64,
        program: &Path,
    ) -> Self {
        Self {
            through,
            writers,
            pause,
            seed,
            operator: Arc::new(Operator::new(program)),
            standing: None,
            work: None,
            lost: 0,
            told: 0,
            deliveries: 0,
            stored: 0,
        }
    }

    /// What a person had to do, and how often.
    pub(crate) fn operator(&self) -> &Operator {
        &self.operator
    }

    async fn stand(&self, world: &World) -> Result<Standing> {
        let streams = (0..WORK_STREAMS).map(|number| StreamId::new(work_stream(number)));
        let streams: Vec<StreamId> = streams.collect::<gesta_core::Result<_>>()?;
        let (ways, operator) = (world.ways(), Arc::clone(&self.operator));
        let consumers = Consumers::start(&ways, world.logs, &streams, &operator, self.seed);
        let consumers = consumers.await?;
        let own = match world.is_of_one_process() {
            true => None,
            false => {
                let store = gesta::open_database(&world.url()).await?;
                let entities = entities::start(&store, Config::default(), None)?;
                Some(Own { entities, store })
            }
        };
        Ok(Standing {
            subscribers: Subscribers::start(&ways, world.logs, &streams[0]),
            consumers,
            own,
            operator,
        })
    }

    fn standing(&self) -> Result<&Standing> {
        let standing = self.standing.as_ref();
        standing.ok_or_else(|| Failure("nobody consumes".into()))
    }

    fn work(&self) -> Result<&Work> {
        let work = self.work.as_ref();
        work.ok_or_else(|| Failure("nobody works".into()))
    }

    /// From now on every answer of entities must rest on what is stored in the end.
    pub(crate) fn settled(&self) {
        if let Some(commands) = self.work.as_ref().and_then(|work| work.commands.as_ref()) {
            commands.settled();
        }
    }

    /// Waits until more appends and commands are answered; perhaps no server lives.
    pub(crate) async fn goes_on_without(&self, is_alone: bool) -> Result<()> {
        self.work()?.goes_on(is_alone, PATIENCE).await
    }

    /// Lets those who nap go away, or come back.
    pub(crate) fn sleep(&self, asleep: bool) -> Result<()> {
        self.standing()?.subscribers.sleep(asleep);
        Ok(())
    }

    /// As many writers begin as there are, through the servers that were idle so far, if some were.
    pub(crate) fn wake_idle(&mut self, world: &World) -> Result<()> {
        match &mut self.work {
            Some(work) if self.through == Through::TheFirst => {
                work.write(&world.ways()[1..], (self.writers, self.pause))
            }
            _ => Ok(()),
        }
    }

    /// The greatest revision of a stream that a subscriber was given in this stretch.
    pub(crate) fn furthest(&self) -> Result<u64> {
        Ok(self.standing()?.subscribers.furthest())
    }

    /// The checkpoint of the append that was acknowledged last.
    pub(crate) fn last_checkpoint(&self) -> Result<Option<Checkpoint>> {
        let acknowledged = self.work()?.crew.record.acknowledged();
        Ok(acknowledged.last().map(|last| last.checkpoint.clone()))
    }

    /// The history that this process knows.
    pub(crate) async fn incarnation(&self) -> Result<Incarnation> {
        match &self.standing()?.own {
            Some(own) => Ok(own.store.info().await?.incarnation),
            None => fail("this process does not have the store open"),
        }
    }

    /// Waits until all processes that run know the same history, which is as it should be. Gives it.
    pub(crate) async fn agreed(
        &self,
        world: &World,
        is_right: impl Fn(Incarnation) -> bool,
    ) -> Result<Incarnation> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let mut known = vec![self.incarnation().await];
            for way in world.alive() {
                let info = way.connect()?.info().await;
                known.push(info.map(|info| info.incarnation).map_err(Failure::from));
            }
            if let Ok(first) = known[0]
                && is_right(first)
                && known
                    .iter()
                    .all(|one| one.as_ref().is_ok_and(|one| *one == first))
            {
                return Ok(first);
            }
            if Instant::now() > deadline {
                return fail(format!(
                    "not within {PATIENCE:?}: all know the same history: {known:?}"
                ));
            }
            tokio::time::sleep(LOOK).await;
        }
    }

    /// All that is stored, as one server reads it.
    pub(crate) async fn stored(&self, world: &World) -> Result<Stored> {
        let mut alive = world.alive();
        match alive.pop() {
            Some(way) => stored_by(&way, world.logs).await,
            None => fail("no server lives"),
        }
    }

    /// Waits until all subscribers have what is stored.
    pub(crate) async fn followed(&self, stored: &Stored) -> Result<()> {
        let subscribers = &self.standing()?.subscribers;
        let all = async || subscribers.behind(stored).is_empty();
        let followed = until("subscribers follow", PATIENCE, all).await;
        followed.context(subscribers.behind(stored).join(", "))
    }

    /// What is wrong with the answers of all servers to a checkpoint of a history that is lost: they must refuse it. A
    /// server that has just lost a connection is asked again.
    pub(crate) async fn accepted(&self, world: &World, lost: &Checkpoint) -> Result<Vec<String>> {
        let (mut wrong, deadline) = (Vec::new(), Instant::now() + PATIENCE);
        for way in world.alive() {
            let (store, mut is_away, before) = (way.connect()?, true, wrong.len());
            while is_away && wrong.len() == before {
                let to = SubscribeTo::All(Filter::ALL);
                let from = SubscribeFrom::Checkpoint(lost.clone());
                let subscribed = store.subscribe(Subscribe { to, from }).await.map(drop);
                let read = ReadAll::forwards().from(AllFrom::Checkpoint(lost.clone()));
                let read = store.read_all(read).await.map(drop);
                is_away = false;
                for outcome in [subscribed, read] {
                    match &outcome {
                        Err(error) if matches!(error.kind(), ErrorKind::InvalidCheckpoint(_)) => {}
                        Err(error) if error.is_retryable() && Instant::now() < deadline => {
                            is_away = true;
                        }
                        _ => wrong.push(format!(
                            "{}: a checkpoint of the lost history was answered by {outcome:?}",
                            way.name
                        )),
                    }
                }
                if is_away {
                    tokio::time::sleep(LOOK).await;
                }
            }
        }
        Ok(wrong)
    }

    /// Ends the stretch, when everybody has what is left, and judges it; with what was lost, if anything was.
    pub(crate) async fn judge(
        &mut self,
        world: &World,
        hurt: &FaultEffects,
        loss: Option<&Loss>,
    ) -> Result<StretchReport> {
        let Some(mut work) = self.work.take() else {
            return fail("nobody works");
        };
        if let Some(commands) = &mut work.commands {
            commands.end().await?;
        }
        work.crew.end_writers().await?;
        let (record, ways) = (Arc::clone(&work.crew.record), world.ways());
        let standing = self.standing()?;
        let stored = stored_by(&ways[0], world.logs).await?;
        let mut wrong = stored.whole();
        for way in &ways {
            let other = stored_by(way, world.logs).await?;
            for log in stored.read_differently(&other) {
                wrong.push(format!("{} reads different events of log {log}", way.name));
            }
            wrong.extend(streams_read_differently(way, &stored).await?);
        }
        // What is wrong is told below.
        if let Err(failure) = self.followed(&stored).await {
            wrong.push(failure.to_string());
        }
        let settled = async || {
            let open = standing.consumers.unsettled(&ways[0], &stored).await;
            open.is_ok_and(|open| open.is_empty())
        };
        if until("groups are done", PATIENCE, settled).await.is_err() {
            wrong.extend(standing.consumers.unsettled(&ways[0], &stored).await?);
        }
        wrong.extend(standing.consumers.wrong());
        let seen = standing.subscribers.judge(&stored);
        wrong.extend(seen.wrong);
        let history = work.crew.judge(&stored.events).await?;
        let acknowledged = record.acknowledged();
        let mut lost = 0;
        match loss {
            Some(loss) => {
                let promoted = |log: LogId| match world.may_lie_in(&loss.databases, log.0) {
                    true => world.promoted(&loss.databases, log.0).or(Some(loss.known)),
                    false => None,
                };
                let failed_over = FailedOver {
                    now: loss.now,
                    promoted: &promoted,
                    logs: world.logs,
                    excused: loss.excused,
                };
                let (count, found) = judge::acknowledged(&acknowledged, &history, &failed_over);
                lost = count;
                wrong.extend(found);
                wrong.extend(record.violations().0);
            }
            None => {
                if seen.told > 0 {
                    let told = seen.told;
                    wrong.push(format!(
                        "{told} subscribers were told of another history, and nothing was lost"
                    ));
                }
                let names: Vec<String> = ways.iter().map(|way| way.name.clone()).collect();
                record.settle_unknown(&hurt.excused, &names);
                wrong.extend(record.problems_but_foreign(&history));
            }
        }
        let mut commanded = 0;
        if let (Some(commands), Some(own)) = (&work.commands, &standing.own) {
            wrong.extend(commands.check(own.store.as_ref()).await?);
            commanded = commands.answered();
        }
        let deliveries = standing.consumers.deliveries() - work.deliveries;
        let answers = self.operator.given().values().sum::<u64>() - work.answers;
        self.lost += lost;
        self.told += seen.told;
        self.deliveries += deliveries;
        // What is stored is read from the beginning each time, and may have become less.
        let before = std::mem::replace(&mut self.stored, stored.events.len() as u64);
        let events = self.stored.saturating_sub(before);
        let count = acknowledged.len();
        Ok(StretchReport {
            acknowledged: count as u64,
            events,
            problems: wrong,
            told: format!(
                "{count} appends acknowledged, {lost} events lost, {} subscribers told, {deliveries} deliveries, \
                 {answers} answers of an operator, {commanded} commands",
                seen.told
            ),
            ..StretchReport::default()
        })
    }
}

#[async_trait(?Send)]
impl Load for Groups {
    async fn begin(&mut self, world: &World, stretch: u32) -> Result<()> {
        if self.standing.is_none() {
            self.standing = Some(self.stand(world).await?);
        }
        let (mut ways, pace) = (world.ways(), (self.writers, self.pause));
        if self.through == Through::TheFirst {
            ways.truncate(1);
        }
        let work = Work::start(self.standing()?, &ways, pace, self.seed, stretch)?;
        self.work = Some(work);
        Ok(())
    }

    async fn goes_on(&mut self, within: Duration) -> Result<Duration> {
        let begun = Instant::now();
        self.work()?.goes_on(false, within).await?;
        Ok(begun.elapsed())
    }

    async fn end(&mut self, world: &World, hurt: &FaultEffects) -> Result<StretchReport> {
        self.judge(world, hurt, None).await
    }

    async fn finish(&mut self, _: &World, is_stopped: bool) -> Result<StretchReport> {
        if is_stopped {
            return Ok(StretchReport::default());
        }
        if let Some(standing) = self.standing.take()
            && let Some(own) = standing.own
        {
            own.entities.shutdown().await;
            own.store.shutdown().await?;
        }
        let given = self.operator.given().into_iter();
        let given: Vec<String> = given
            .map(|(what, count)| format!("{count} × {what}"))
            .collect();
        let given = match given.is_empty() {
            true => "none".to_owned(),
            false => given.join(", "),
        };
        Ok(StretchReport {
            told: format!(
                "{} events were lost with old primaries, subscribers were told of it {} times; {} deliveries; answers \
                 of an operator: {given}.",
                self.lost, self.told, self.deliveries
            ),
            ..StretchReport::default()
        })
    }

    fn groups(&mut self) -> Option<&mut Groups> {
        Some(self)
    }
}

/// What is wrong with the newest streams, each as a server reads it by itself.
async fn streams_read_differently(way: &Way, stored: &Stored) -> Result<Vec<String>> {
    let (store, mut wrong) = (way.connect()?, Vec::new());
    for stream in stored.newest_streams(STREAMS_READ) {
        let mut read = Ok(Vec::new());
        let is_answered = async || {
            read = store.read_whole_stream(stream.clone()).await;
            !read.as_ref().is_err_and(gesta_core::Error::is_retryable)
        };
        let answered = until("a stream is read", PATIENCE, is_answered).await;
        let events = answered.and_then(|()| Ok(read?)).context(&way.name)?;
        let of_stream = stored.events.iter().filter(|event| event.stream == *stream);
        let of_stream: Vec<&RecordedEvent> = of_stream.collect();
        // An append whose answer was given up may be stored later.
        if !events.iter().take(of_stream.len()).eq(of_stream) {
            wrong.push(format!("{} reads {stream} differently", way.name));
        }
    }
    Ok(wrong)
}

async fn stored_by(way: &Way, logs: u16) -> Result<Stored> {
    let events = read_on(&*way.client()?, &mut None).await;
    Ok(Stored {
        events: events.context(&way.name)?,
        logs,
    })
}
