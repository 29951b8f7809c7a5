//! The faults of a soak: few, of kinds that a year in production has, one at a time, on a schedule.
//!
//! Not here: rare and nasty ones, and whether an unknown outcome was excused; that is `torture`.

use std::sync::Arc;
use std::time::Duration;

use gesta_pgtest::FaultProxy;
use tokio_util::sync::CancellationToken;

use super::board::Board;
use super::door::Door;
use crate::failure::{Result, fail};
use crate::random::{Bag, Random};
use crate::torture::{Ending, restart};

/// How often it is looked whether the load has recovered.
const LOOK: Duration = Duration::from_millis(5);
/// A load that has no append acknowledged for this long after a fault is stuck.
const RECOVERY_WITHIN: Duration = Duration::from_secs(120);
/// How long a database that was ended stays away.
const AWAY: Duration = Duration::from_secs(1);

/// One kind of fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, clap::ValueEnum)]
pub(crate) enum Kind {
    /// All connections to the database or server are cut.
    Cut,
    /// Nothing passes to or from the database or server for a while; nothing is lost.
    Freeze,
    /// Every round trip to the database or server takes longer for a while.
    Delay,
    /// The store is closed and opened again, as when its process is restarted in order.
    Reopen,
    /// `kill -9` of the database, which is started again a second later (`postgres:new` only).
    DatabaseKill,
    /// An orderly restart of the database (`postgres:new` only).
    DatabaseRestart,
}

impl Kind {
    /// All of them.
    pub(super) const ALL: &[Kind] = &[
        Kind::Cut,
        Kind::Freeze,
        Kind::Delay,
        Kind::Reopen,
        Kind::DatabaseKill,
        Kind::DatabaseRestart,
    ];

    /// Its name in results.
    pub(super) fn name(self) -> &'static str {
        match self {
            Kind::Cut => "cut",
            Kind::Freeze => "freeze",
            Kind::Delay => "delay",
            Kind::Reopen => "reopen",
            Kind::DatabaseKill => "database_kill",
            Kind::DatabaseRestart => "database_restart",
        }
    }
}

/// How hard faults are.
#[derive(Debug, Clone, Copy, clap::Args, serde::Serialize)]
pub(crate) struct Severity {
    /// How long the database is frozen.
    #[arg(long, default_value = "5s", value_parser = crate::units::duration)]
    #[serde(serialize_with = "seconds", rename = "freeze_seconds")]
    pub(crate) freeze: Duration,
    /// Extra round trip of a delay.
    #[arg(long, default_value = "50ms", value_parser = crate::units::duration)]
    #[serde(serialize_with = "seconds", rename = "delay_seconds")]
    pub(crate) delay: Duration,
    /// How long a delay lasts.
    #[arg(long, default_value = "10s", value_parser = crate::units::duration)]
    #[serde(serialize_with = "seconds", rename = "delay_for_seconds")]
    pub(crate) delay_for: Duration,
}

pub(super) fn seconds<S: serde::Serializer>(
    duration: &Duration,
    serializer: S,
) -> std::result::Result<S::Ok, S::Error> {
    serializer.serialize_f64(duration.as_secs_f64())
}

impl Severity {
    fn lasts(&self, kind: Kind) -> Duration {
        match kind {
            Kind::Cut | Kind::Reopen => Duration::ZERO,
            Kind::Freeze => self.freeze,
            Kind::Delay => self.delay_for,
            Kind::DatabaseKill | Kind::DatabaseRestart => AWAY,
        }
    }
}

/// When which fault comes: at multiples of a period, each kind once before any comes again.
#[derive(Debug)]
pub(super) struct Schedule {
    every: Duration,
    /// The end of the run, if it is known: a fault comes only if half a period is left after it.
    end: Option<Duration>,
    severity: Severity,
    bag: Bag<Kind>,
}

impl Schedule {
    pub(super) fn new(
        every: Duration,
        end: Option<Duration>,
        severity: Severity,
        kinds: Vec<Kind>,
        seed: u64,
    ) -> Self {
        Self {
            every,
            end,
            severity,
            bag: Bag::new(kinds, Random::fork(seed, 77)),
        }
    }

    /// The first fault after a moment; none if there will be none.
    pub(super) fn next(&mut self, now: Duration) -> Option<(Duration, Kind)> {
        if self.every.is_zero() {
            return None;
        }
        let passed = now.as_nanos() / self.every.as_nanos();
        let at = self.every.checked_mul(u32::try_from(passed + 1).ok()?)?;
        let kind = self.bag.draw()?;
        let over = at + self.severity.lasts(kind) + self.every / 2;
        (self.end.is_none_or(|end| over <= end)).then_some((at, kind))
    }
}

/// What can be hurt.
pub(super) struct World {
    pub(super) door: Arc<Door>,
    /// Between the store and its database or server.
    pub(super) proxy: Option<FaultProxy>,
    /// The usual extra round trip.
    pub(super) round_trip: Duration,
    /// The database, if it was started for this run.
    pub(super) server: Option<gesta_pgtest::Server>,
}

impl World {
    /// True if it can suffer this.
    pub(super) fn fits(&self, kind: Kind) -> bool {
        match kind {
            Kind::Cut | Kind::Freeze | Kind::Delay => self.proxy.is_some(),
            Kind::Reopen => self.door.can_reopen(),
            Kind::DatabaseKill | Kind::DatabaseRestart => self.server.is_some(),
        }
    }

    /// Lets it happen, and heals it; sooner if the run is over.
    async fn inflict(
        &mut self,
        kind: Kind,
        severity: &Severity,
        over: &CancellationToken,
    ) -> Result<()> {
        let lasts = async |time: Duration| {
            tokio::select! {
                () = tokio::time::sleep(time) => {}
                () = over.cancelled() => {}
            }
        };
        match (kind, &self.proxy) {
            (Kind::Cut, Some(proxy)) => {
                proxy.cut_all();
            }
            (Kind::Freeze, Some(proxy)) => {
                proxy.freeze(true);
                lasts(severity.freeze).await;
                proxy.freeze(false);
            }
            (Kind::Delay, Some(proxy)) => {
                proxy.set_round_trip(self.round_trip + severity.delay);
                lasts(severity.delay_for).await;
                proxy.set_round_trip(self.round_trip);
            }
            (Kind::Reopen, _) => self.door.reopen().await?,
            (Kind::DatabaseKill, _) => self.restart_database(Ending::Kill).await?,
            (Kind::DatabaseRestart, _) => self.restart_database(Ending::Stop).await?,
            _ => return fail(format!("{}: there is nothing of the kind", kind.name())),
        }
        Ok(())
    }

    /// On a thread of its own, since it blocks. The task that asks for it measures the slices too, and a connection of
    /// theirs that was opened and has said nothing yet keeps a database from ending, for a minute.
    async fn restart_database(&mut self, ending: Ending) -> Result<()> {
        let Some(mut server) = self.server.take() else {
            return fail("there is no database to restart");
        };
        let runtime = tokio::runtime::Handle::current();
        let restarted = tokio::task::spawn_blocking(move || {
            let outcome = runtime.block_on(restart(&mut server, ending, AWAY));
            (server, outcome)
        });
        let (server, outcome) = restarted.await?;
        self.server = Some(server);
        outcome
    }

    /// Inflicts one fault after the other until the run is over. Every fault is healed when this returns; if one cannot be,
    /// the run is over.
    pub(super) async fn run(
        &mut self,
        schedule: &mut Schedule,
        board: &Board,
        over: &CancellationToken,
    ) {
        while let Some((at, kind)) = schedule.next(board.begin().elapsed()) {
            tokio::select! {
                () = tokio::time::sleep_until((board.begin() + at).into()) => {}
                () = over.cancelled() => return,
            }
            let began = board.fault_began(kind.name());
            eprintln!("  {}", kind.name());
            let inflicted = self.inflict(kind, &schedule.severity, over).await;
            let healed = board.begin().elapsed();
            if let Err(failure) = inflicted {
                board.finding(format!("{}: {failure}", kind.name()));
                return over.cancel();
            }
            while board.newest_begun() <= healed {
                if over.is_cancelled() {
                    return;
                }
                if board.begin().elapsed() > healed + RECOVERY_WITHIN {
                    board.finding(format!(
                        "no append was acknowledged within {RECOVERY_WITHIN:?} after {}",
                        kind.name()
                    ));
                    return over.cancel();
                }
                tokio::time::sleep(LOOK).await;
            }
            board.fault_healed(began);
        }
        over.cancelled().await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SEVERITY: Severity = Severity {
        freeze: Duration::from_secs(5),
        delay: Duration::from_millis(50),
        delay_for: Duration::from_secs(10),
    };

    #[tokio::test(flavor = "multi_thread")]
    async fn a_restart_of_the_database_leaves_the_rest_of_its_task_running() {
        let Some(server) = gesta_pgtest::Server::start().unwrap() else {
            return;
        };
        let pid = nix::unistd::Pid::from_raw(server.pid().unwrap());
        let store = Arc::new(gesta_memory::MemoryStore::new());
        let mut world = World {
            door: Door::new(store, None),
            proxy: None,
            round_trip: Duration::ZERO,
            server: Some(server),
        };
        // A database that is suspended does not end. What lets it go on is in the same task as what ends it.
        let signal = |signal| nix::sys::signal::kill(pid, signal).unwrap();
        signal(nix::sys::signal::SIGSTOP);
        let (restarted, ()) = tokio::join!(world.restart_database(Ending::Stop), async {
            tokio::task::yield_now().await;
            signal(nix::sys::signal::SIGCONT);
        });
        restarted.unwrap();
        assert_ne!(world.server.unwrap().pid(), Some(pid.as_raw()));
    }

    fn seconds(n: u64) -> Duration {
        Duration::from_secs(n)
    }

    #[test]
    fn faults_come_at_multiples_of_the_period_each_once_before_any_again() {
        let kinds = vec![Kind::Cut, Kind::Freeze, Kind::Delay];
        let mut schedule = Schedule::new(seconds(60), None, SEVERITY, kinds, 1);
        let (mut now, mut seen) = (Duration::ZERO, Vec::new());
        for n in 1..=30_u64 {
            let (at, kind) = schedule.next(now).unwrap();
            assert_eq!(at, seconds(60 * n));
            seen.push(kind);
            now = at + seconds(10);
        }
        for round in seen.chunks(3) {
            assert!(
                [Kind::Cut, Kind::Freeze, Kind::Delay]
                    .iter()
                    .all(|kind| round.contains(kind))
            );
        }
        // What takes longer than a period leaves the next out.
        assert_eq!(schedule.next(seconds(1_900)).unwrap().0, seconds(1_920));
        assert_eq!(schedule.next(seconds(1_920)).unwrap().0, seconds(1_980));
    }

    #[test]
    fn no_fault_comes_too_late_to_see_the_recovery() {
        let schedule = |kind, end| {
            Schedule::new(seconds(60), Some(seconds(end)), SEVERITY, vec![kind], 1)
                .next(Duration::ZERO)
        };
        assert!(schedule(Kind::Cut, 90).is_some());
        assert!(schedule(Kind::Cut, 89).is_none());
        assert!(schedule(Kind::Delay, 100).is_some());
        assert!(schedule(Kind::Delay, 99).is_none());
    }

    #[test]
    fn without_a_period_or_kinds_there_are_no_faults() {
        let none =
            Schedule::new(Duration::ZERO, None, SEVERITY, vec![Kind::Cut], 1).next(seconds(1));
        assert!(none.is_none());
        let none = Schedule::new(seconds(1), None, SEVERITY, Vec::new(), 1).next(seconds(1));
        assert!(none.is_none());
    }
}
