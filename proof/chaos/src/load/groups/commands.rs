//! Commands to entities of this process while the database fails over.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use gesta::entity::Entities;
use gesta_core::EventStore;
use gesta_report::failure::Result;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use gesta_load::entities::tally::{AnswersGiven, Command, Tally};

/// How many entities there are.
const ENTITIES: usize = 20;
/// How many call them at the same time.
pub(super) const CALLERS: u32 = 4;
/// Pause between two commands of a caller.
const PAUSE: Duration = Duration::from_millis(10);

/// Callers that go on until the end.
pub(super) struct Commands {
    shared: Arc<Shared>,
    callers: JoinSet<()>,
}

struct Shared {
    given: Arc<AnswersGiven>,
    answered: AtomicU64,
    /// What is sent from now on must rest on what is stored.
    settled: AtomicBool,
    over: CancellationToken,
}

impl Commands {
    /// Starts the callers of a round.
    pub(super) fn start(entities: &Entities<Tally>, round: u32) -> Self {
        let shared = Arc::new(Shared {
            given: AnswersGiven::new(ENTITIES),
            answered: AtomicU64::new(0),
            settled: AtomicBool::new(false),
            over: CancellationToken::new(),
        });
        let mut callers = JoinSet::new();
        for caller in 0..CALLERS {
            callers.spawn(Arc::clone(&shared).send(entities.clone(), round, caller));
        }
        Self { shared, callers }
    }

    /// How many commands were answered.
    pub(super) fn answered(&self) -> u64 {
        self.shared.answered.load(Ordering::SeqCst)
    }

    /// From now on every answer must rest on what is stored in the end.
    pub(super) fn settled(&self) {
        self.shared.settled.store(true, Ordering::SeqCst);
    }

    /// Ends the callers, each after the answer to its last command.
    pub(super) async fn end(&mut self) -> Result<()> {
        self.shared.over.cancel();
        while let Some(ended) = self.callers.join_next().await {
            ended?;
        }
        Ok(())
    }

    /// Compares the answers with what is stored. Gives what is wrong.
    pub(super) async fn check(&self, store: &dyn EventStore) -> Result<Vec<String>> {
        Ok(self.shared.given.check(store).await?.1)
    }
}

impl Shared {
    /// Sends one command after the other, each to the next entity.
    async fn send(self: Arc<Self>, entities: Entities<Tally>, round: u32, caller: u32) {
        for (n, entity) in (0_u64..).zip((0..ENTITIES).cycle()) {
            if self.over.is_cancelled() {
                return;
            }
            let settled = self.settled.load(Ordering::SeqCst);
            let before = self.given.before(entity);
            let command = Command::Count {
                by: u32::try_from(entity).unwrap_or(u32::MAX),
                n: (u64::from(round) << 40) | (u64::from(caller) << 32) | n,
            };
            if let Ok(reply) = entities.execute(&entity.to_string(), command).await {
                if settled {
                    self.given.after(entity, before, command, reply);
                }
                self.answered.fetch_add(1, Ordering::SeqCst);
            }
            tokio::time::sleep(PAUSE).await;
        }
    }
}
