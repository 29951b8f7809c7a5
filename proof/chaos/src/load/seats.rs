//! Users of cinemas who reserve seats and give them back, and read shows, through all members. In the end every answer
//! must fit one order of all requests for each seat, and the store must hold what was acknowledged.
//!
//! The events of a store of one process (SQLite) can be read only when the members have ended: they are compared then,
//! those of all stretches.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use gesta_core::AllFrom;
use gesta_kit::verdict::{Kind, Verdict};
use gesta_load::cinema::{
    CinemaChecks, Drive, Generator, Ledger, Phase, Scenario, Script, Shows, alone, windows,
};
use gesta_load::event_ids::Run;
use gesta_load::machine::store::{self, Opened};
use gesta_report::failure::{Context, Result, fail};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use super::{FaultEffects, Load, StretchReport};
use crate::history_file::HistoryFile;
use crate::world::{Member, World};

/// Shows of a stretch, and their seats: so few that users meet.
const SHOWS: u32 = 40;
const SEATS: u16 = 20;
/// Share of reads among requests.
const READS: f64 = 0.3;
/// Longer than any stretch.
const STRETCH_MAX: Duration = Duration::from_secs(3_600);
/// Commands of each user that must be acknowledged before the load counts as going on.
const COMMANDS_MIN: u64 = 4;
/// How often waits look.
const LOOK: Duration = Duration::from_millis(5);

/// What counts as doubled.
pub(super) const DOUBLED: [Kind; 6] = [
    Kind::HeldTwice,
    Kind::CancelledTwice,
    Kind::StoredTwice,
    Kind::Uninvited,
    Kind::GivenBackTwice,
    Kind::GivenBackWrongly,
];

/// How often these were found.
pub(super) fn count(verdict: &Verdict, kinds: &[Kind]) -> u64 {
    kinds.iter().map(|kind| verdict.count(*kind)).sum()
}

/// The load.
pub(crate) struct Seats {
    users: u16,
    seed: u64,
    history: HistoryFile,
    riding: Option<Riding>,
    /// Of stretches whose events have not been compared.
    ledgers: Vec<Ledger>,
}

/// The users of a stretch.
struct Riding {
    users: u64,
    acknowledged: Arc<AtomicU64>,
    over: CancellationToken,
    task: JoinHandle<Result<(CinemaChecks, Ledger)>>,
    /// The store, and where it ended before; none if only one process can have it open.
    stored: Option<(Opened, AllFrom)>,
}

impl Seats {
    /// So many users, shared equally among the members.
    pub(crate) fn new(users: u16, seed: u64, history: HistoryFile) -> Self {
        Self {
            users,
            seed,
            history,
            riding: None,
            ledgers: Vec::new(),
        }
    }
}

#[async_trait(?Send)]
impl Load for Seats {
    async fn begin(&mut self, world: &World, stretch: u32) -> Result<()> {
        let stored = match world.is_of_one_process() {
            true => None,
            false => {
                let opened = store::open_url(&world.url(), Duration::ZERO, 1).await?;
                let end = store::end_of(opened.store.as_ref()).await?;
                Some((opened, AllFrom::Checkpoint(end)))
            }
        };
        let users = Users {
            targets: world.members.iter().map(Member::target).collect(),
            count: self.users,
            seed: self.seed ^ (u64::from(stretch) << 32),
            // On servers by turns: users who meet on the same shows, and users who create shows of their own, of which
            // a long stretch of nodes would have too many.
            scenario: match stretch % 2 {
                0 if !world.are_nodes => Scenario::Serial,
                _ => Scenario::Concurrent,
            },
            acknowledged: Arc::new(AtomicU64::new(0)),
            over: CancellationToken::new(),
        };
        self.riding = Some(Riding {
            users: self.users.into(),
            acknowledged: Arc::clone(&users.acknowledged),
            over: users.over.clone(),
            task: tokio::spawn(alone(move || users.run())),
            stored,
        });
        Ok(())
    }

    /// Waits until some more commands of every user were acknowledged, on average.
    async fn goes_on(&mut self, within: Duration) -> Result<Duration> {
        let Some(riding) = &self.riding else {
            return fail("nobody asks for seats");
        };
        let begun = Instant::now();
        let acknowledged = || riding.acknowledged.load(Ordering::Acquire);
        let wanted = acknowledged() + COMMANDS_MIN * riding.users;
        while acknowledged() < wanted {
            if begun.elapsed() > within || riding.task.is_finished() {
                return fail(format!(
                    "reservations stand still after {:?}",
                    begun.elapsed()
                ));
            }
            tokio::time::sleep(LOOK).await;
        }
        Ok(begun.elapsed())
    }

    /// Ends the users, reads every show through every member, and judges everything.
    async fn end(&mut self, _: &World, _: &FaultEffects) -> Result<StretchReport> {
        let Some(riding) = self.riding.take() else {
            return fail("nobody asks for seats");
        };
        riding.over.cancel();
        let (mut checks, ledger) = riding.task.await.context("the users")??;
        self.history.add(|| ledger.operations())?;
        match riding.stored {
            Some((opened, from)) => {
                checks.add_events(&opened.store, from, &ledger).await?;
                opened.store.shutdown().await?;
            }
            None => self.ledgers.push(ledger),
        }
        Ok(shown(&checks))
    }

    async fn finish(&mut self, world: &World, is_stopped: bool) -> Result<StretchReport> {
        if !is_stopped || self.ledgers.is_empty() {
            return Ok(StretchReport::default());
        }
        let opened = store::open_url(&world.url(), Duration::ZERO, 1).await?;
        let mut all = StretchReport::default();
        for ledger in self.ledgers.drain(..) {
            let mut checks = CinemaChecks::default();
            checks
                .add_events(&opened.store, AllFrom::Start, &ledger)
                .await?;
            all.events += checks.events.unwrap_or_default();
            all.lost += count(&checks.verdict, &[Kind::Lost, Kind::NotStored]);
            all.doubled += count(&checks.verdict, &DOUBLED);
            all.problems.extend(checks.verdict.findings());
        }
        opened.store.shutdown().await?;
        all.told = format!("{} events in the store were compared.", all.events);
        Ok(all)
    }
}

fn shown(checks: &CinemaChecks) -> StretchReport {
    let verdict = &checks.verdict;
    StretchReport {
        acknowledged: checks.acknowledged,
        lost: count(verdict, &[Kind::Lost, Kind::NotStored]),
        doubled: count(verdict, &DOUBLED),
        stale: count(verdict, &[Kind::Stale]),
        unknown: checks.unknown,
        events: checks.events.unwrap_or_default(),
        problems: verdict.findings(),
        told: checks.sentence(),
        ..StretchReport::default()
    }
}

/// Those who ask, on a thread of their own.
struct Users {
    targets: Vec<SocketAddr>,
    count: u16,
    seed: u64,
    scenario: Scenario,
    acknowledged: Arc<AtomicU64>,
    over: CancellationToken,
}

impl Users {
    /// All requests of a stretch, and what their answers tell.
    async fn run(self) -> Result<(CinemaChecks, Ledger)> {
        let shows = Shows {
            run: Run::random().number(),
            seats: SEATS,
        };
        let script = Script::new(self.scenario, shows, SHOWS, self.seed);
        let generator =
            Generator::begin(&self.targets, self.count.into(), self.seed, script).await?;
        let phase = Phase {
            drive: Drive::Closed(self.count.into()),
            reads: READS,
            warm_up: Duration::ZERO,
            duration: STRETCH_MAX,
            slow: STRETCH_MAX,
        };
        let windows = windows(&[phase], tokio::time::Instant::now());
        let count = async {
            loop {
                let so_far = generator.with_ledger(|ledger| ledger.acknowledged);
                self.acknowledged.store(so_far, Ordering::Release);
                tokio::time::sleep(LOOK).await;
            }
        };
        tokio::select! {
            _ = generator.run(&windows, &self.over) => {}
            () = count => {}
        }
        let checks = CinemaChecks::of_answers(&generator).await;
        Ok((checks, generator.into_ledger()))
    }
}
