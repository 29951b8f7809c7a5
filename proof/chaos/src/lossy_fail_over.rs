//! The course of a round that loses commits: standbys stop to receive, everybody gets to know what will be lost, the
//! primary goes, and a standby takes its place. Servers that were idle so far get appends from then on.
//!
//! Every event that is left must be delivered to each consumer, or the consumer was told aloud that the history is
//! another one: nothing is passed over in silence, nothing is lost that was begun after the promotion, no entity
//! answers from what was lost, and a checkpoint of the lost history is refused.

mod plan;

use std::time::{Duration, Instant};

use gesta_core::{Checkpoint, EventStore as _};
use gesta_kit::judge::losses::Excused;
use gesta_load::machine::ask::until;
use gesta_load::random::Random;
use gesta_report::failure::{Failure, Result, blocking, fail};

use self::plan::Plan;
use crate::fault::Fault;
use crate::inflict::patroni;
use crate::load::groups::{Extent, Groups, Loss, PATIENCE};
use crate::load::{FaultEffects, StretchReport};
use crate::world::{Database, World};

/// How often waits look.
const LOOK: Duration = Duration::from_millis(20);

/// What a round has shown, and how long after the promotion everybody knew of it.
pub(crate) struct LossyReport {
    pub(crate) shown: StretchReport,
    pub(crate) known_after: Duration,
}

/// A round, from the moment at which the load works.
pub(crate) struct LossyRound<'a> {
    pub(crate) world: &'a mut World,
    pub(crate) groups: &'a mut Groups,
    pub(crate) random: &'a mut Random,
    pub(crate) fault: Fault,
    /// The number of the round.
    pub(crate) number: u32,
    /// A server may be killed before the fault, and started afterwards.
    pub(crate) kills_servers: bool,
}

impl LossyRound<'_> {
    /// The whole round.
    pub(crate) async fn run(mut self) -> Result<LossyReport> {
        let mut plan = Plan::draw(self.random, self.number, self.world);
        plan.restarted = plan.restarted.filter(|_| self.kills_servers);
        let old = self.groups.incarnation().await?;
        self.groups.agreed(self.world, |known| known == old).await?;
        self.groups.goes_on_without(false).await?;
        let primary = self.hold(&plan)?;
        if plan.moves {
            self.move_a_log().await?;
        }
        // All get to know what will be lost.
        self.groups.goes_on_without(false).await?;
        self.groups
            .followed(&self.groups.stored(self.world).await?)
            .await?;
        let lost = self.groups.last_checkpoint()?;
        let before = self.extent().await?;
        self.groups.sleep(true)?;
        if let Some(server) = plan.restarted {
            self.world.members[server].server.kill();
        }

        let is_twice = self.fault == Fault::PrimaryLostTwice;
        let is_killed = self.fault != Fault::PrimaryCutOff;
        let mut promoted = self.fail_over(&plan, primary, is_killed).await?;
        self.groups.wake_idle(self.world)?;
        let furthest = self.groups.furthest()?;
        self.recovered().await?;
        if is_twice {
            let known = self.groups.agreed(self.world, |known| known != old).await?;
            let is_alone = self.world.alive().len() < self.world.members.len();
            self.groups.goes_on_without(is_alone).await?;
            promoted = self.fail_over(&plan, primary, true).await?;
            self.recovered().await?;
            self.groups.settled();
            self.start_again(&plan).await?;
            let is_new = |now| now != known && now != old;
            self.groups.agreed(self.world, is_new).await?;
        } else {
            self.groups.settled();
            // The other node goes on alone for a while.
            if self.world.members.len() == 1 || !plan.late {
                self.start_again(&plan).await?;
            }
            self.groups.agreed(self.world, |known| known != old).await?;
        }
        let (known_after, known) = (promoted.elapsed(), Instant::now());
        // At once, and once more when the places of the lost history exist again.
        let mut wrong = self.accepted(lost.as_ref()).await?;
        if !plan.late {
            self.groups.sleep(false)?;
        }
        let exceeds = async || {
            self.extent()
                .await
                .is_ok_and(|now| now.exceeds(&before, furthest))
        };
        let what = "the new history is longer than the old one";
        until(what, PATIENCE, exceeds).await?;
        self.groups.sleep(false)?;
        self.start_again(&plan).await?;
        self.groups.goes_on_without(false).await?;

        wrong.extend(self.accepted(lost.as_ref()).await?);
        let loss = Loss {
            now: self.groups.incarnation().await?,
            databases: plan.databases.clone(),
            known,
            excused: self.excused(),
        };
        let mut shown = self
            .groups
            .judge(self.world, &FaultEffects::default(), Some(&loss))
            .await?;
        shown.problems.extend(wrong);
        shown.told = format!("{plan:?}: {}", shown.told);
        self.heal(&plan, primary)?;
        Ok(LossyReport { shown, known_after })
    }

    /// What is wrong with the answers to a checkpoint of the lost history, if there is one.
    async fn accepted(&self, lost: Option<&Checkpoint>) -> Result<Vec<String>> {
        match lost {
            Some(lost) => self.groups.accepted(self.world, lost).await,
            None => Ok(Vec::new()),
        }
    }

    /// What the loss excuses. An event that is there can be elsewhere only if an earlier history came back: with the
    /// second standby, with the place that a log had before it moved, or perhaps with a primary that Patroni keeps.
    fn excused(&self) -> Excused {
        match self.fault {
            Fault::PrimaryLost | Fault::PrimaryCutOff if self.world.moved.is_empty() => {
                Excused::Absence
            }
            _ => Excused::AbsenceAndPlace,
        }
    }

    /// No standby receives anything from here on. Gives the primary in the care of Patroni.
    fn hold(&mut self, plan: &Plan) -> Result<usize> {
        let mut primary = 0;
        for at in &plan.databases {
            match &mut self.world.databases[*at] {
                Database::Replicated(replicated) => replicated.hold()?,
                Database::Patroni(patroni) => {
                    primary = blocking(|| patroni.wait_until_whole())?;
                    blocking(|| patroni.hold_replication(primary))?;
                }
                _ => return fail("this database has no standbys"),
            }
        }
        Ok(primary)
    }

    /// Fails over what the plan says. Gives when the new primaries took writes.
    async fn fail_over(&mut self, plan: &Plan, primary: usize, is_killed: bool) -> Result<Instant> {
        for at in &plan.databases {
            match &mut self.world.databases[*at] {
                Database::Replicated(replicated) => replicated.fail_over(is_killed, self.random)?,
                Database::Patroni(keeper) => {
                    patroni::inflict(self.fault, keeper, primary)?;
                    patroni::promoted(keeper, primary).await?;
                }
                _ => return fail("this database has no standbys"),
            }
        }
        Ok(Instant::now())
    }

    /// All members are standbys of the new primary again.
    fn heal(&mut self, plan: &Plan, primary: usize) -> Result<()> {
        for at in &plan.databases {
            match &mut self.world.databases[*at] {
                Database::Replicated(replicated) => replicated.heal()?,
                Database::Patroni(keeper) => patroni::heal(self.fault, keeper, primary)?,
                _ => {}
            }
        }
        Ok(())
    }

    /// How long logs and streams are, as one server that lives sees it.
    async fn extent(&self) -> Result<Extent> {
        match self.world.alive().last() {
            Some(way) => Extent::of(way).await,
            None => fail("no server lives"),
        }
    }

    /// Moves a log to another database.
    async fn move_a_log(&mut self) -> Result<()> {
        let log = u16::try_from(self.random.below(usize::from(self.world.logs)))?;
        self.world.moved.insert(log);
        match self
            .groups
            .operator()
            .move_log(log, &self.world.urls())
            .await
        {
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
                self.groups
                    .operator()
                    .recover(log, &self.world.urls())
                    .await?;
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
            && !self.world.members[server].server.is_alive()
        {
            self.world.members[server].server.launch().await?;
        }
        Ok(())
    }
}

/// The log that is lost, as the store says it.
fn lost_log(error: &str) -> Option<u16> {
    let (before, _) = error.split_once(" is lost")?;
    let (_, log) = before.rsplit_once("log ")?;
    log.parse().ok()
}
