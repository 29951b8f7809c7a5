//! Rounds with a synchronous standby: nothing acknowledged is lost, and appends go on soon after the database does.

use std::time::Duration;

use gesta_core::{Checkpoint, Incarnation};
use gesta_testkit::history::Violation;

use super::FailoverArgs;
use super::fault::FailoverFault;
use super::probe::Probe;
use super::times::Times;
use super::world::World;
use crate::cells;
use crate::cluster::load::{Load, read_on};
use crate::failure::Result;
use crate::histogram::median;
use crate::report::{Report, Table, Unit};
use crate::units::grouped;

/// What a round has shown.
#[derive(Debug)]
struct Round {
    fault: FailoverFault,
    acknowledged: u64,
    lost: u64,
    doubled: u64,
    /// How often a subscription broke, and was resumed by its checkpoint.
    resumed: u64,
    times: Times,
}

/// All rounds.
pub(super) struct Kept<'a> {
    args: &'a FailoverArgs,
    rounds: Vec<Round>,
    problems: Vec<String>,
    incarnation: Option<Incarnation>,
    /// What was stored before the present round ends here.
    at: Option<Checkpoint>,
}

impl<'a> Kept<'a> {
    /// Nothing has happened.
    pub(super) fn new(args: &'a FailoverArgs) -> Self {
        Self {
            args,
            rounds: Vec::new(),
            problems: Vec::new(),
            incarnation: None,
            at: None,
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
        let ways = world.ways();
        let seed = self.args.seed ^ (u64::from(number) << 32);
        let writers = usize::from(self.args.writers);
        let mut load = Load::start(&ways[..1], &ways, writers, seed, self.at.as_ref())?;
        let probe = Probe::start(world.member_urls());
        load.goes_on().await?;
        probe.goes_on().await?;

        let hurt = fault.inflict(world, primary)?;
        if fault.promotes() {
            world.promoted(primary).await?;
        }
        probe.goes_on().await?;
        load.goes_on().await?;
        fault.heal(world, primary)?;
        load.goes_on().await?;

        load.end_writers().await?;
        let answered = load.answered().into_iter();
        let answered: Vec<_> = answered.map(|answered| answered.at).collect();
        let times = Times::of(hurt, &probe.end(), &answered)?;
        let stored = read_on(&ways[0], &mut self.at).await?;
        let (record, resumed) = (load.record.clone(), load.resumed());
        let report = load.judge(&stored).await?;
        let mut wrong = record.violations().0;
        wrong.extend(report.violations.iter().map(ToString::to_string));
        if report.events_foreign > 0 {
            let foreign = report.events_foreign;
            wrong.push(format!("{foreign} events that nobody appended"));
        }
        for way in &ways {
            let (found, name) = (World::incarnation(way).await?, &way.name);
            if *self.incarnation.get_or_insert(found) != found {
                wrong.push(format!(
                    "{name}: a new incarnation, though nothing was lost"
                ));
            }
        }
        if times.later > self.args.within {
            let later = times.later;
            wrong.push(format!(
                "appends went on {later:.1?} after the database did"
            ));
        }
        let count = |counts: fn(&Violation) -> bool| {
            report.violations.iter().filter(|one| counts(one)).count() as u64
        };
        let round = Round {
            fault,
            acknowledged: report.acknowledged as u64,
            lost: count(|one| matches!(one, Violation::AcknowledgedLost { .. })),
            doubled: count(|one| matches!(one, Violation::StoredTwice { .. })),
            resumed,
            times,
        };
        let name = format!("round {number} ({})", fault.name());
        eprintln!("{name}: {report}; {:.1?}", round.times);
        let wrong = wrong.into_iter().map(|text| format!("{name}: {text}"));
        self.problems.extend(wrong);
        self.rounds.push(round);
        Ok(())
    }

    /// Tells what was found. Gives a few words, and what is wrong.
    pub(super) fn tell(self, report: &mut Report) -> (String, Vec<String>) {
        let mut table = Table::new(
            "Fail-overs with a synchronous standby",
            [
                ("fault", Unit::Words),
                ("rounds", Unit::Count),
                ("acknowledged", Unit::Count),
                ("lost", Unit::Count),
                ("doubled", Unit::Count),
                ("subscriptions resumed", Unit::Count),
                ("database not writable (median)", Unit::Millis),
                ("at most", Unit::Millis),
                ("Gesta later (median)", Unit::Millis),
                ("later at most", Unit::Millis),
            ],
        );
        for fault in FailoverFault::ALL {
            let of = || self.rounds.iter().filter(|round| round.fault == *fault);
            if of().count() == 0 {
                continue;
            }
            let sum = |value: fn(&Round) -> u64| of().map(value).sum::<u64>();
            let away: Vec<f64> = of()
                .map(|round| millis(round.times.database_away))
                .collect();
            let later: Vec<f64> = of().map(|round| millis(round.times.later)).collect();
            table.row(cells![
                fault.name(),
                away.len(),
                sum(|round| round.acknowledged),
                sum(|round| round.lost),
                sum(|round| round.doubled),
                sum(|round| round.resumed),
                median(&away),
                most(&away),
                median(&later),
                most(&later),
            ]);
        }
        report.table(table);
        let mut table = Table::new(
            "Each fail-over, counted from the fault",
            [
                ("round", Unit::Count),
                ("fault", Unit::Words),
                ("acknowledged", Unit::Count),
                ("database writable after", Unit::Millis),
                ("Gesta later", Unit::Millis),
                ("database not writable", Unit::Millis),
                ("Gesta not writable", Unit::Millis),
            ],
        );
        for (number, round) in (1_u32..).zip(&self.rounds) {
            table.row(cells![
                number,
                round.fault.name(),
                round.acknowledged,
                millis(round.times.database_after),
                millis(round.times.later),
                millis(round.times.database_away),
                millis(round.times.gesta_away),
            ]);
        }
        report.table(table);
        let sum = |value: fn(&Round) -> u64| self.rounds.iter().map(value).sum::<u64>();
        let acknowledged = grouped(sum(|round| round.acknowledged) as f64);
        let lost = sum(|round| round.lost);
        let words = format!("{acknowledged} appends acknowledged, {lost} lost");
        (words, self.problems)
    }
}

fn millis(duration: Duration) -> f64 {
    (duration.as_secs_f64() * 1_000.0).round()
}

fn most(values: &[f64]) -> f64 {
    values.iter().copied().fold(0.0, f64::max)
}
