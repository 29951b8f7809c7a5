//! Rounds with a synchronous standby: nothing acknowledged is lost, and appends go on soon after the database does.

use std::time::{Duration, Instant};

use gesta_core::{Checkpoint, Incarnation};
use gesta_kit::history;
use gesta_report::cells;
use gesta_report::failure::Result;
use gesta_report::{Report, Table, Unit};
use gesta_report::units::grouped;

use super::fault::FailoverFault;
use super::probe::Probe;
use super::times::Times;
use super::world::World;
use super::{FailoverArgs, Found};
use crate::cluster::load::{Way, client};
use crate::faults::load::Load;
use crate::faults::per_fault::{PerFault, lost_and_doubled};
use crate::faults::tails::Manner;
use crate::faults::writers::Claims;

/// Pause of a writer between two appends.
const PAUSE: Duration = Duration::from_millis(10);

/// All rounds.
pub(super) struct Kept<'a> {
    args: &'a FailoverArgs,
    per_fault: PerFault<FailoverFault>,
    each: Table,
    incarnation: Option<Incarnation>,
    /// What was stored before the present round ends here.
    at: Option<Checkpoint>,
}

impl<'a> Kept<'a> {
    /// Nothing has happened.
    pub(super) fn new(args: &'a FailoverArgs) -> Self {
        let columns = [
            ("round", Unit::Count),
            ("fault", Unit::Words),
            ("acknowledged", Unit::Count),
            ("database writable after", Unit::Millis),
            ("Gesta later", Unit::Millis),
            ("database not writable", Unit::Millis),
            ("Gesta not writable", Unit::Millis),
        ];
        Self {
            args,
            per_fault: PerFault::new(
                &["acknowledged", "lost", "doubled", "subscriptions resumed"],
                &["database not writable", "Gesta later"],
            ),
            each: Table::new("Each fail-over, counted from the fault", columns),
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
    ) -> Result<Found> {
        let primary = world.whole()?;
        world.standby_is_known().await?;
        let ways = world.ways();
        let mut load = self.load(number, &ways)?;
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
        let record = load.record.clone();
        let appends = record.acknowledged();
        let appends: Vec<Instant> = appends.iter().map(|append| append.answered).collect();
        let times = Times::of(hurt, &probe.end(), &appends)?;
        let (verdict, mut wrong) = load.verdict(&*client(&ways[0])?, &mut self.at).await?;
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
        self.note((number, fault), &times, &verdict, record.resumed());
        Ok((format!("{verdict}; {times:.1?}"), wrong))
    }

    /// Writers through the busy server, and a subscriber of each.
    fn load(&self, number: u32, ways: &[Way; 2]) -> Result<Load> {
        let mut load = Load::new(self.args.seed ^ (u64::from(number) << 32));
        for way in ways {
            let name = format!("subscriber of {}", way.name);
            load.follow(name, Manner::Subscribe, client(way)?, self.at.clone());
        }
        for _ in 0..self.args.writers {
            load.write(&ways[0].name, client(&ways[0])?, Claims::Mixed, PAUSE);
        }
        Ok(load)
    }

    /// Puts a fail-over into the tables.
    fn note(
        &mut self,
        (number, fault): (u32, FailoverFault),
        times: &Times,
        verdict: &history::HistoryReport,
        resumed: u64,
    ) {
        let acknowledged = verdict.acknowledged as u64;
        let [lost, doubled] = lost_and_doubled(verdict);
        self.per_fault.add(
            fault,
            &[acknowledged, lost, doubled, resumed],
            &[Some(times.database_away), Some(times.later)],
        );
        self.each.row(cells![
            number,
            fault.name(),
            acknowledged,
            millis(times.database_after),
            millis(times.later),
            millis(times.database_away),
            millis(times.gesta_away),
        ]);
    }

    /// Tells what was found, and gives it in a few words.
    pub(super) fn tell(self, report: &mut Report) -> String {
        let title = "Fail-overs with a synchronous standby";
        report.table(self.per_fault.table(title));
        report.table(self.each);
        let sum = |count| grouped(self.per_fault.sum(count) as f64);
        let (acknowledged, lost) = (sum("acknowledged"), sum("lost"));
        format!("{acknowledged} appends acknowledged, {lost} lost")
    }
}

fn millis(duration: Duration) -> f64 {
    (duration.as_secs_f64() * 1_000.0).round()
}
