//! The load of one round on cinemas: users who reserve seats and give them back, and read shows, through all nodes. In
//! the end every answer must fit one order of all requests for each seat, and the store must hold what was
//! acknowledged.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use gesta_core::AllFrom;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use gesta_report::failure::{Context, Result, fail};
use gesta_load::event_ids::Run;
use gesta_load::machine::store::{self, Opened};
use gesta_load::cinema::{
    self, Drive, Generator, Ledger, Phase, Scenario, Script, Shows, Verdict, windows,
};

use crate::history_file::HistoryFile;

/// Shows of a round, and their seats: so few that users meet.
const SHOWS: u32 = 40;
const SEATS: u16 = 20;
/// Share of reads among requests.
const READS: f64 = 0.3;
/// Longer than any round.
const ROUND_MAX: Duration = Duration::from_secs(3_600);
/// Commands of each user that must be acknowledged before the load counts as going on.
const COMMANDS_MIN: u64 = 4;
/// How often waits look.
const LOOK: Duration = Duration::from_millis(5);

/// The users of one round.
pub(super) struct Seats {
    users: u64,
    acknowledged: Arc<AtomicU64>,
    over: CancellationToken,
    riding: JoinHandle<Result<(Verdict, Ledger)>>,
    opened: Opened,
    /// Where the store ended before.
    from: AllFrom,
}

impl Seats {
    /// Starts users, shared equally among the cinemas at these addresses, whose events are in the store.
    pub(super) async fn start(
        targets: Vec<SocketAddr>,
        users: u16,
        seed: u64,
        url: &str,
    ) -> Result<Self> {
        let opened = store::open_url(url, Duration::ZERO, 1).await?;
        let end = store::end_of(opened.store.as_ref()).await?;
        let (over, acknowledged) = (CancellationToken::new(), Arc::new(AtomicU64::new(0)));
        let (own_over, own_acknowledged) = (over.clone(), Arc::clone(&acknowledged));
        let work = move || run_users(targets, users, seed, own_acknowledged, own_over);
        Ok(Self {
            users: users.into(),
            acknowledged,
            over,
            riding: tokio::spawn(cinema::alone(work)),
            opened,
            from: AllFrom::Checkpoint(end),
        })
    }

    /// Waits until some more commands of every user were acknowledged, on average, but no longer than so; gives the
    /// time that it took.
    pub(super) async fn goes_on(&self, within: Duration) -> Result<Duration> {
        let begun = Instant::now();
        let acknowledged = || self.acknowledged.load(Ordering::Acquire);
        let wanted = acknowledged() + COMMANDS_MIN * self.users;
        while acknowledged() < wanted {
            if begun.elapsed() > within || self.riding.is_finished() {
                return fail(format!(
                    "reservations stand still after {:?}",
                    begun.elapsed()
                ));
            }
            tokio::time::sleep(LOOK).await;
        }
        Ok(begun.elapsed())
    }

    /// Ends the users, reads every show through every node, and judges everything.
    pub(super) async fn judge(self, history: &HistoryFile) -> Result<Verdict> {
        self.over.cancel();
        let (mut verdict, ledger) = self.riding.await.context("the users")??;
        history.add(|| ledger.operations())?;
        let store = &self.opened.store;
        verdict.add_events(store, self.from, &ledger).await?;
        store.shutdown().await?;
        Ok(verdict)
    }
}

/// All requests of a round, and what their answers tell.
async fn run_users(
    targets: Vec<SocketAddr>,
    users: u16,
    seed: u64,
    acknowledged: Arc<AtomicU64>,
    over: CancellationToken,
) -> Result<(Verdict, Ledger)> {
    let shows = Shows {
        run: Run::random().number(),
        seats: SEATS,
    };
    let script = Script::new(Scenario::Concurrent, shows, SHOWS, seed);
    let generator = Generator::begin(&targets, users.into(), seed, script).await?;
    let phase = Phase {
        drive: Drive::Closed(users.into()),
        reads: READS,
        warm_up: Duration::ZERO,
        duration: ROUND_MAX,
        slow: ROUND_MAX,
    };
    let windows = windows(&[phase], tokio::time::Instant::now());
    let count = async {
        loop {
            let so_far = generator.with_ledger(|ledger| ledger.acknowledged);
            acknowledged.store(so_far, Ordering::Release);
            tokio::time::sleep(LOOK).await;
        }
    };
    tokio::select! {
        _ = generator.run(&windows, &over) => {}
        () = count => {}
    }
    let verdict = Verdict::of_answers(&generator).await;
    Ok((verdict, generator.into_ledger()))
}
