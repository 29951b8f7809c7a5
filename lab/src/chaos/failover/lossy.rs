//! Rounds with asynchronous standbys that lag: what was acknowledged last is lost, and everybody must be told.
//!
//! Consumers of both servers, by subscription and by pages, must end with *invalid checkpoint*; a checkpoint of the
//! lost history is refused; entities, which live in this process, load again; and nothing is stored or given to anybody
//! under another name. Every event names its stream.

pub(super) mod check;
mod work;

use std::time::{Duration, Instant};

use gesta::entity::{Config, Entities};
use gesta_report::failure::{Result, blocking, fail};
use gesta_report::Report;
use gesta_report::units::grouped;
use gesta_load::machine::store::{self, Opened};
use gesta_load::entities;
use gesta_load::entities::tally::Tally;

use self::work::Work;
use super::fault::FailoverFault;
use super::world::World;
use super::{FailoverArgs, Found};
use crate::faults::per_fault::PerFault;

/// All rounds.
pub(super) struct Lossy<'a> {
    args: &'a FailoverArgs,
    per_fault: PerFault<FailoverFault>,
    /// The process with the entities: this one.
    own: Option<(Opened, Entities<Tally>)>,
}

impl<'a> Lossy<'a> {
    /// Nothing has happened.
    pub(super) fn new(args: &'a FailoverArgs) -> Self {
        Self {
            args,
            per_fault: PerFault::new(
                &[
                    "acknowledged",
                    "lost",
                    "consumers",
                    "told of another history",
                    "commands of entities",
                ],
                &["known everywhere after"],
            ),
            own: None,
        }
    }

    /// One fail-over.
    pub(super) async fn round(
        &mut self,
        world: &mut World,
        number: u32,
        fault: FailoverFault,
    ) -> Result<Found> {
        let primary = world.whole()?;
        if self.own.is_none() {
            let opened = store::open_url(&world.url(), Duration::ZERO, 1).await?;
            let entities = entities::start(&opened.owner()?, Config::default(), None)?;
            self.own = Some((opened, entities));
        }
        let Some((own, entities)) = &self.own else {
            return fail("the store was not opened");
        };
        let mut work = Work::start(world, entities, number, self.args).await?;
        let known = work.known(own).await?;
        if known.iter().any(|found| *found != known[0]) {
            return fail(format!("the processes know several histories: {known:?}"));
        }
        work.goes_on().await?;
        // No standby receives anything from here on; all processes get to know what will be lost.
        blocking(|| world.patroni.hold_replication(primary))?;
        work.goes_on().await?;
        let checkpoint = work.consumers_follow().await?;

        fault.inflict(world, primary)?;
        world.promoted(primary).await?;
        let promoted = Instant::now();
        let histories = work.settled(own, known[0]).await?;
        let known_after = promoted.elapsed();
        work.goes_on().await?;
        work.refused(&checkpoint).await?;
        let found = work.end(own, histories).await?;
        fault.heal(world, primary)?;

        self.per_fault.add(
            fault,
            &[
                found.acknowledged,
                found.lost,
                found.consumers,
                found.told,
                found.commands,
            ],
            &[Some(known_after)],
        );
        let words = format!(
            "{} appends acknowledged, {} lost, {} consumers told, {} commands, known after {known_after:.1?}",
            found.acknowledged, found.lost, found.told, found.commands
        );
        Ok((words, found.wrong))
    }

    /// Tells what was found, and gives it in a few words.
    pub(super) fn tell(self, report: &mut Report) -> String {
        let title = "Fail-overs to a standby that lags";
        report.table(self.per_fault.table(title));
        let sum = |count| grouped(self.per_fault.sum(count) as f64);
        format!(
            "{} appends acknowledged, {} of them lost with the old primary",
            sum("acknowledged"),
            sum("lost")
        )
    }
}
