//! Rounds that lose commits, one every few seconds: the lab promotes a standby that lags, and looks at everybody who
//! consumes.
//!
//! Every event that is left must be delivered to each consumer, or the consumer was told aloud that the history is
//! another one: nothing is passed over in silence, nothing is lost that was begun after the promotion, and no entity
//! answers from what was lost. Subscribers and consumers go on through all rounds and remember what their protocols let
//! them remember; some are away until the new history is longer than the lost one, so that their old places exist
//! again.
//! Read `judge` for what is checked, `world` for what takes part.

mod groups;
mod judge;
mod plan;
mod subscribers;
mod work;
mod world;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use gesta::entity::{Config, Entities};
use gesta_core::{EventStore as _, Incarnation, LogId, StreamId};
use serde_json::json;
use tokio_util::sync::CancellationToken;
use gesta_report::failure::{Context, Failure, Result, fail};
use gesta_report::{Report, StoreFacts};
use gesta_report::units::grouped;
use gesta_load::machine::ask::until;
use gesta_load::random::Random;
use gesta_load::entities::{self, tally::Tally};

use self::groups::ConsumerGroups;
use self::judge::{FailedOver, Stored};
use self::plan::{Loss, Plan};
use self::subscribers::Subscribers;
use self::work::{Extent, Work};
use self::world::{Operator, World};
use super::{FailoverArgs, Found};
use crate::cluster::load::{Way, client, connect};
use crate::faults::load::read_on;
use crate::faults::per_fault::PerFault;
use crate::faults::promises;
use crate::faults::writers::work_stream;

/// Streams with work for consumers.
const WORK_STREAMS: usize = 4;
/// How often waits look.
const LOOK: Duration = Duration::from_millis(20);
/// Whatever is waited for comes within this time, on a busy machine too: nothing here is about seconds.
const PATIENCE: Duration = Duration::from_secs(300);

/// The command in the mode `losing`. True if no promise was broken.
pub(super) async fn run(args: &FailoverArgs, stop: &CancellationToken) -> Result<bool> {
    let title = "Fail-overs of PostgreSQL that lose commits";
    let mut report = Report::begin("failover", title, args.seed);
    let mut rounds = Rounds::start(args).await?;
    report.store = Some(StoreFacts {
        backend: "postgres".into(),
        logs: rounds.world.logs,
        ..StoreFacts::default()
    });
    report.workload = json!(args);
    let mut number = 0;
    while number < args.rounds && !stop.is_cancelled() {
        number += 1;
        let (found, wrong) = match rounds.round(number).await {
            Ok(found) => found,
            Err(failure) => (String::new(), vec![failure.to_string()]),
        };
        eprintln!("round {number}: {found}");
        for text in &wrong {
            eprintln!("  WRONG: {text}");
        }
        let is_over = found.is_empty() || !wrong.is_empty();
        let wrong = wrong
            .into_iter()
            .map(|text| format!("round {number}: {text}"));
        report.problems.extend(wrong);
        if is_over {
            eprintln!("{}", rounds.world.logs_of_servers());
            break;
        }
    }
    let found = rounds.tell(&mut report);
    if let Err(complaint) = rounds.verify().await {
        report.problem(complaint.to_string());
    }
    promises(&mut report, format!("{number} fail-overs, {found}"));
    report.finish(&args.report, number >= args.rounds)
}

/// All rounds. Fields are dropped in this order: who uses the servers, then the world.
struct Rounds<'a> {
    args: &'a FailoverArgs,
    program: PathBuf,
    random: Random,
    subscribers: Subscribers,
    groups: ConsumerGroups,
    entities: Entities<Tally>,
    /// The process with the entities: this one.
    own: Arc<gesta::DatabaseStore>,
    operator: Arc<Operator>,
    world: World,
    per_loss: PerFault<Loss>,
}

impl<'a> Rounds<'a> {
    async fn start(args: &'a FailoverArgs) -> Result<Self> {
        let program = args.program.find()?;
        let (databases, members) = (usize::from(args.databases), usize::from(args.members));
        let world = World::start(&program, databases, members, args.nodes).await?;
        let own = gesta::open_database(&world.url()).await?;
        let streams = (0..WORK_STREAMS).map(|number| StreamId::new(work_stream(number)));
        let streams: Vec<StreamId> = streams.collect::<gesta_core::Result<_>>()?;
        let (operator, ways) = (Arc::new(World::operator(&program)), world.ways());
        let groups = ConsumerGroups::start(&ways, world.logs, &streams, &operator, args.seed);
        Ok(Self {
            args,
            random: Random::fork(args.seed, 1),
            subscribers: Subscribers::start(&ways, world.logs, &streams[0]),
            groups: groups.await?,
            entities: entities::start(&own, Config::default(), None)?,
            own,
            operator,
            program,
            world,
            per_loss: PerFault::new(
                &[
                    "acknowledged",
                    "events lost",
                    "subscribers told",
                    "deliveries",
                    "answers of an operator",
                    "commands",
                ],
                &["known everywhere after"],
            ),
        })
    }

    /// One fail-over.
    async fn round(&mut self, number: u32) -> Result<Found> {
        let plan = Plan::draw(
            &mut self.random,
            number,
            self.args,
            self.world.servers.len(),
        );
        let work = Work::start(self, number)?;
        let old = self.own.info().await?.incarnation;
        self.settled(|known| known == old).await?;
        work.goes_on().await?;
        for database in &plan.databases {
            self.world.databases[*database].hold()?;
        }
        if plan.moves {
            self.move_a_log().await?;
        }
        // All get to know what will be lost.
        work.goes_on().await?;
        self.followed(&self.stored().await?).await?;
        let before = Extent::of(&self.way()?).await?;
        self.subscribers.sleep(true);
        if let Some(server) = plan.restarted {
            self.world.servers[server].kill();
        }

        let mut promoted =
            self.fail_over(&plan, matches!(plan.loss, Loss::Killed | Loss::Twice))?;
        let furthest = self.subscribers.furthest();
        self.recovered().await?;
        if plan.loses_twice() {
            let known = self.settled(|known| known != old).await?;
            let is_alone = self.world.alive().len() < self.world.servers.len();
            work.goes_on_without(is_alone).await?;
            promoted = self.fail_over(&plan, true)?;
            self.recovered().await?;
            work.commands.settled();
            self.start_again(&plan).await?;
            self.settled(|now| now != known && now != old).await?;
        } else {
            work.commands.settled();
            // The other node goes on alone for a while.
            if self.world.servers.len() == 1 || !plan.late {
                self.start_again(&plan).await?;
            }
            self.settled(|known| known != old).await?;
        }
        let known_after = promoted.elapsed();
        if !plan.late {
            self.subscribers.sleep(false);
        }
        let exceeds = async || {
            let now = match self.way() {
                Ok(way) => Extent::of(&way).await,
                Err(failure) => Err(failure),
            };
            now.is_ok_and(|now| now.exceeds(&before, furthest))
        };
        until(
            "the new history is longer than the old one",
            PATIENCE,
            exceeds,
        )
        .await?;
        self.subscribers.sleep(false);
        self.start_again(&plan).await?;
        work.goes_on().await?;

        let now = self.own.info().await?.incarnation;
        let (found, wrong) = self.end(work, &plan, now).await?;
        for database in &plan.databases {
            self.world.databases[*database].heal()?;
        }
        self.per_loss.add(plan.loss, &found, &[Some(known_after)]);
        let [acknowledged, lost, told, deliveries, answers, commands] = found;
        let words = format!(
            "{plan:?}: {acknowledged} appends acknowledged, {lost} events lost, {told} subscribers told, \
             {deliveries} deliveries, {answers} answers, {commands} commands, known after {known_after:.1?}"
        );
        Ok((words, wrong))
    }

    /// Fails over what the plan says. Gives when the new primaries took writes.
    fn fail_over(&mut self, plan: &Plan, is_killed: bool) -> Result<Instant> {
        for database in &plan.databases {
            self.world.databases[*database].fail_over(is_killed, &mut self.random)?;
        }
        Ok(Instant::now())
    }

    /// Moves a log to another database.
    async fn move_a_log(&mut self) -> Result<()> {
        let log = u16::try_from(self.random.below(usize::from(self.world.logs)))?;
        self.world.moved.insert(log);
        match self.operator.move_log(log, &self.world.urls()).await {
            true => Ok(()),
            false => fail(format!("log {log} cannot be moved")),
        }
    }

    /// Recovers logs that the store says are lost, which it may say of those that have moved.
    async fn recovered(&self) -> Result<()> {
        let deadline = Instant::now() + PATIENCE;
        while !self.world.moved.is_empty() {
            // A new process asks the databases; this one may not have heard of it yet.
            let opened = gesta::open_database(&self.world.url()).await;
            let error = match opened {
                Ok(store) => return Ok(store.shutdown().await?),
                Err(error) => Failure::from(error).0,
            };
            if let Some(log) = lost_log(&error) {
                self.operator.recover(log, &self.world.urls()).await?;
            } else if Instant::now() > deadline {
                return fail(format!("the store cannot be opened: {error}"));
            }
            tokio::time::sleep(LOOK).await;
        }
        Ok(())
    }

    /// Starts the server that was killed.
    async fn start_again(&mut self, plan: &Plan) -> Result<()> {
        if let Some(server) = plan.restarted
            && !self.world.servers[server].is_alive()
        {
            self.world.servers[server].launch().await?;
        }
        Ok(())
    }

    /// Waits until all processes that run know the same history, which is as it should be. Gives it.
    async fn settled(&self, is_right: impl Fn(Incarnation) -> bool) -> Result<Incarnation> {
        let (ways, mut last) = (self.world.alive(), String::new());
        let deadline = Instant::now() + PATIENCE;
        loop {
            let mut known = vec![self.own.info().await.map(|info| info.incarnation)];
            for way in &ways {
                known.push(connect(way)?.info().await.map(|info| info.incarnation));
            }
            if let Ok(first) = known[0]
                && is_right(first)
                && known
                    .iter()
                    .all(|one| one.as_ref().is_ok_and(|one| *one == first))
            {
                return Ok(first);
            }
            last.clear();
            last.push_str(&format!("{known:?}"));
            if Instant::now() > deadline {
                return fail(format!(
                    "not within {PATIENCE:?}: all know the same history: {last}"
                ));
            }
            tokio::time::sleep(LOOK).await;
        }
    }

    fn way(&self) -> Result<Way> {
        self.world
            .alive()
            .pop()
            .ok_or_else(|| Failure("no server lives".into()))
    }

    /// All that is stored, as one server reads it.
    async fn stored(&self) -> Result<Stored> {
        self.stored_by(&self.way()?).await
    }

    async fn stored_by(&self, way: &Way) -> Result<Stored> {
        Ok(Stored {
            events: read_on(&*client(way)?, &mut None)
                .await
                .context(&way.name)?,
            logs: self.world.logs,
        })
    }

    /// Waits until all subscribers have what is stored.
    async fn followed(&self, stored: &Stored) -> Result<()> {
        let all = async || self.subscribers.behind(stored).is_empty();
        let followed = until("subscribers follow", PATIENCE, all).await;
        followed.context(self.subscribers.behind(stored).join(", "))
    }

    /// Ends the work of a round, when everybody has what is left, and checks it.
    async fn end(
        &self,
        mut work: Work,
        plan: &Plan,
        now: Incarnation,
    ) -> Result<([u64; 6], Vec<String>)> {
        work.commands.end().await?;
        work.load.end_writers().await?;
        let (record, ways) = (Arc::clone(&work.load.record), self.world.ways());
        let stored = self.stored_by(&ways[0]).await?;
        let mut wrong = stored.whole();
        for way in &ways {
            let other = self.stored_by(way).await?;
            if !other.events.starts_with(&stored.events) && self.world.logs == 1 {
                wrong.push(format!("{} reads different events", way.name));
            }
        }
        // What is wrong is told below.
        if let Err(failure) = self.followed(&stored).await {
            wrong.push(failure.to_string());
        }
        let settled = async || {
            let open = self.groups.unsettled(&ways[0], &stored).await;
            open.is_ok_and(|open| open.is_empty())
        };
        if until("groups are done", PATIENCE, settled).await.is_err() {
            wrong.extend(self.groups.unsettled(&ways[0], &stored).await?);
        }
        wrong.extend(self.groups.wrong());
        let verdict = self.subscribers.judge(&stored);
        wrong.extend(verdict.wrong);
        let history = work.load.judge(&stored.events).await?;
        let all = record.acknowledged();
        let promoted = |log: LogId| self.world.promoted(&plan.databases, log.0);
        let failed_over = FailedOver {
            now,
            promoted: &promoted,
            logs: self.world.logs,
        };
        let (lost, found) = judge::acknowledged(&all, &history, &failed_over);
        wrong.extend(found);
        wrong.extend(record.violations().0);
        wrong.extend(work.commands.check(self.own.as_ref()).await?);
        let answers = self.operator.given().values().sum::<u64>();
        let found = [
            all.len() as u64,
            lost,
            verdict.told,
            self.groups.deliveries() - work.deliveries,
            answers - work.answers,
            work.commands.answered(),
        ];
        Ok((found, wrong))
    }

    /// Tells what was found, and gives it in a few words.
    fn tell(&self, report: &mut Report) -> String {
        report.table(
            self.per_loss
                .table("Fail-overs to a standby that lags, promoted by hand"),
        );
        let sum = |count| grouped(self.per_loss.sum(count) as f64);
        let given = self.operator.given().into_iter();
        let given: Vec<String> = given
            .map(|(what, count)| format!("{count} × {what}"))
            .collect();
        format!(
            "{} appends acknowledged, {} events lost with the old primaries, {} subscribers told, {} deliveries, \
             answers of an operator: {}",
            sum("acknowledged"),
            sum("events lost"),
            sum("subscribers told"),
            sum("deliveries"),
            match given.is_empty() {
                true => "none".to_owned(),
                false => given.join(", "),
            }
        )
    }

    /// Stops everything but the databases, and has the store verified.
    async fn verify(mut self) -> Result<()> {
        self.entities.shutdown().await;
        self.own.shutdown().await?;
        self.world.verify(&self.program).await
    }
}

/// The log that is lost, as the store says it.
fn lost_log(error: &str) -> Option<u16> {
    let (before, _) = error.split_once(" is lost")?;
    let (_, log) = before.rsplit_once("log ")?;
    log.parse().ok()
}
