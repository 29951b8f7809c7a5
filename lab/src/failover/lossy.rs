//! Rounds with asynchronous standbys that lag: what was acknowledged last is lost, and everybody must be told.
//!
//! Consumers of both servers, by subscription and by pages, must end with *invalid checkpoint*; a checkpoint of the lost
//! history is refused; entities, which live in this process, load again; and nothing is stored or given to anybody under
//! another name. Every event names its stream.

mod check;
mod work;

use std::time::{Duration, Instant};

use gesta::entity::{Config, Entities};

use self::work::{Found, Work};
use super::FailoverArgs;
use super::fault::FailoverFault;
use super::world::World;
use crate::cells;
use crate::entities;
use crate::entities::tally::Tally;
use crate::failure::{Failure, Result, fail};
use crate::histogram::median;
use crate::report::{Report, Table, Unit};
use crate::store::{self, Opened};
use crate::units::grouped;

/// Appends and commands that are answered between two steps of a round.
const APPENDS: usize = 200;
const COMMANDS: usize = 50;

/// What a round has shown.
struct Round {
    fault: FailoverFault,
    found: Found,
    /// From the promotion until both servers and the process with the entities knew the new history.
    known_after: Duration,
}

/// All rounds.
pub(super) struct Lossy<'a> {
    args: &'a FailoverArgs,
    rounds: Vec<Round>,
    problems: Vec<String>,
    /// The process with the entities: this one.
    own: Option<(Opened, Entities<Tally>)>,
}

impl<'a> Lossy<'a> {
    /// Nothing has happened.
    pub(super) fn new(args: &'a FailoverArgs) -> Self {
        Self {
            args,
            rounds: Vec::new(),
            problems: Vec::new(),
            own: None,
        }
    }

    /// One fail-over.
    pub(super) async fn round(
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
        let known = work.known(own).await?;
        if known.iter().any(|found| *found != known[0]) {
            return fail(format!("the processes know several histories: {known:?}"));
        }
        work.goes_on(APPENDS, COMMANDS).await?;
        // No standby receives anything from here on; all processes get to know what will be lost.
        let held = tokio::task::block_in_place(|| world.patroni.hold_replication(primary));
        held.map_err(|error| Failure(error.to_string()))?;
        work.goes_on(APPENDS, COMMANDS).await?;
        work.consumers_follow().await?;
        let checkpoint = work.last_checkpoint()?;

        fault.inflict(world, primary)?;
        world.promoted(primary).await?;
        let promoted = Instant::now();
        let histories = work.settled(own, known[0]).await?;
        let known_after = promoted.elapsed();
        work.goes_on(APPENDS, COMMANDS).await?;
        work.refused(&checkpoint).await?;
        let found = work.end(own, histories).await?;
        fault.heal(world, primary)?;

        let name = format!("round {number} ({})", fault.name());
        eprintln!(
            "{name}: {} appends acknowledged, {} lost, {} consumers told, {} commands, known after {known_after:.1?}",
            found.acknowledged, found.lost, found.told, found.commands
        );
        let wrong = found.wrong.iter().map(|text| format!("{name}: {text}"));
        self.problems.extend(wrong);
        self.rounds.push(Round {
            fault,
            found,
            known_after,
        });
        Ok(())
    }

    /// Tells what was found. Gives a few words, and what is wrong.
    pub(super) fn tell(self, report: &mut Report) -> (String, Vec<String>) {
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
                sum(|round| round.found.acknowledged),
                sum(|round| round.found.lost),
                known.len() * 4,
                sum(|round| round.found.told),
                sum(|round| round.found.commands),
                median(&known),
                known.iter().copied().fold(0.0, f64::max),
            ]);
        }
        report.table(table);
        let sum = |value: fn(&Round) -> u64| self.rounds.iter().map(value).sum::<u64>();
        let words = format!(
            "{} appends acknowledged, {} of them lost with the old primary",
            grouped(sum(|round| round.found.acknowledged) as f64),
            grouped(sum(|round| round.found.lost) as f64)
        );
        (words, self.problems)
    }
}
