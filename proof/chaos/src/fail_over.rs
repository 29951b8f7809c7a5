//! The course of a round in which a synchronous standby takes over: nothing acknowledged is lost, no new history
//! begins, and appends go on soon after the database does.

mod times;

use std::time::{Duration, Instant};

use gesta_core::{EventStore as _, Incarnation};
use gesta_load::machine::ask::until;
use gesta_report::cells;
use gesta_report::failure::{Failure, Result, blocking, fail};
use gesta_report::{Table, Unit};
use gesta_rig::Patroni;

use crate::fault::Fault;
use crate::inflict::patroni;
use crate::load::Load;
use crate::world::probe::Probe;
use crate::world::{Database, World};

pub(crate) use self::times::Times;

/// Servers know of a standby this soon: they look every ten seconds.
const KNOWN_WITHIN: Duration = Duration::from_secs(60);
/// The load goes on this soon after all is healed.
const PROGRESS_WITHIN: Duration = Duration::from_secs(60);

/// Every fail-over of a run.
pub(crate) struct FailOvers {
    /// Appends go on this soon after the database takes writes again.
    within: Duration,
    incarnation: Option<Incarnation>,
    each: Table,
}

impl FailOvers {
    /// Nothing has happened.
    pub(crate) fn new(within: Duration) -> Self {
        let columns = [
            ("round", Unit::Count),
            ("fault", Unit::Words),
            ("database writable after", Unit::Millis),
            ("Gesta later", Unit::Millis),
            ("database not writable", Unit::Millis),
            ("Gesta not writable", Unit::Millis),
        ];
        Self {
            within,
            incarnation: None,
            each: Table::new("Each fail-over, counted from the fault", columns),
        }
    }

    /// Waits until every member follows the primary, and all servers know of a synchronous standby. A promotion before
    /// that is one of an asynchronous standby for them, and begins a new incarnation.
    pub(crate) async fn prepare(&self, world: &World) -> Result<()> {
        blocking(|| keeper(world)?.wait_until_whole())?;
        for way in world.ways() {
            let is_known = async || {
                let Ok(client) = way.connect() else {
                    return false;
                };
                let info = client.info().await;
                info.is_ok_and(|info| info.durability.detail().contains("synchronous standbys"))
            };
            let what = format!("{} knows of a synchronous standby", way.name);
            until(&what, KNOWN_WITHIN, is_known).await?;
        }
        Ok(())
    }

    /// One fail-over, while the load works; gives what it took, and what is wrong.
    pub(crate) async fn run(
        &mut self,
        world: &mut World,
        load: &mut dyn Load,
        (number, fault): (u32, Fault),
    ) -> Result<(Times, Vec<String>)> {
        let probe = Probe::start(of(keeper(world))?.member_urls());
        load.goes_on(PROGRESS_WITHIN).await?;
        probe.goes_on().await?;
        let primary = blocking(|| keeper(world)?.wait_until_whole())?;
        let hurt = patroni::inflict(fault, keeper_mut(world)?, primary)?;
        if patroni::promotes(fault) {
            patroni::promoted(of(keeper(world))?, primary).await?;
        }
        probe.goes_on().await?;
        load.goes_on(PROGRESS_WITHIN).await?;
        patroni::heal(fault, keeper_mut(world)?, primary)?;
        load.goes_on(PROGRESS_WITHIN).await?;
        let appends: Vec<Instant> = load.answered();
        let times = Times::of(hurt, &probe.end(), &appends)?;
        let mut wrong = Vec::new();
        for way in world.ways() {
            let (found, name) = (way.connect()?.info().await?.incarnation, &way.name);
            if *self.incarnation.get_or_insert(found) != found {
                wrong.push(format!(
                    "{name}: a new incarnation, though nothing was lost"
                ));
            }
        }
        if times.later > self.within {
            let later = times.later;
            wrong.push(format!(
                "appends went on {later:.1?} after the database did"
            ));
        }
        self.each.row(cells![
            number,
            fault.name(),
            millis(times.database_after),
            millis(times.later),
            millis(times.database_away),
            millis(times.gesta_away),
        ]);
        Ok((times, wrong))
    }

    /// What each has taken.
    pub(crate) fn table(self) -> Table {
        self.each
    }
}

fn millis(duration: Duration) -> f64 {
    (duration.as_secs_f64() * 1_000.0).round()
}

/// Who keeps the database.
fn keeper(world: &World) -> gesta_rig::Result<&Patroni> {
    match world.databases.first() {
        Some(Database::Patroni(patroni)) => Ok(patroni),
        _ => Err("nobody keeps this database".into()),
    }
}

fn of<T>(outcome: gesta_rig::Result<T>) -> Result<T> {
    outcome.map_err(|error| Failure(error.to_string()))
}

/// See [`keeper`].
fn keeper_mut(world: &mut World) -> Result<&mut Patroni> {
    match world.databases.first_mut() {
        Some(Database::Patroni(patroni)) => Ok(patroni),
        _ => fail("nobody keeps this database"),
    }
}
