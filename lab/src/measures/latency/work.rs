//! Fixed work: how long do so many batches take?
//!
//! As it was published: some workers, each with a connection, store batches until all are stored; a worker takes the
//! next batch as soon as its last is stored, and each batch goes to a stream of its own. A first run does not count,
//! and of those after it the middle does. Rates, which the rest of the command measures, do not have its ends: workers
//! that have nothing left to do, while the others finish.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use gesta_report::failure::{Context, Result, fail};
use gesta_report::read_back::ReadBack;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use gesta_load::target::{self, Append, AppendError, Claims, Events, Session, Target};

/// Times that the work is done on the clock.
const ROUNDS: u32 = 3;
/// Pause before a batch is tried again.
const RETRY_PAUSE: Duration = Duration::from_millis(1);

/// What is to be done.
#[derive(Debug, Clone, Copy)]
pub(super) struct Work {
    pub(super) workers: u32,
    /// Of all workers together.
    pub(super) batches: u64,
    /// Events of a batch.
    pub(super) events: u64,
}

/// How long it took, in each round, and whether everything is stored.
#[derive(Debug)]
pub(super) struct Done {
    pub(super) seconds: Vec<f64>,
    pub(super) read_back: ReadBack,
}

/// Does the work on a target, which is made anew; none if it was stopped.
///
/// # Errors
/// A batch was not stored.
pub(super) async fn measure(
    target: &Arc<dyn Target>,
    events: &Arc<Events>,
    work: Work,
    stop: &CancellationToken,
) -> Result<Option<Done>> {
    target.prepare().await.context(target.name())?;
    let (mut seconds, mut claims) = (Vec::new(), Claims::default());
    for round in 0..=ROUNDS {
        let (took, claimed) = once(target, events, work, round * work.workers, stop).await?;
        claims.add(claimed);
        // The first round finds everything cold.
        seconds.extend((round > 0).then_some(took.as_secs_f64()));
    }
    let read_back = target::check(target.as_ref(), events, &claims).await?;
    target.remove().await?;
    Ok((!stop.is_cancelled()).then_some(Done { seconds, read_back }))
}

/// Does the work once; from when all connections stand until the last batch is stored.
async fn once(
    target: &Arc<dyn Target>,
    events: &Arc<Events>,
    work: Work,
    first_worker: u32,
    stop: &CancellationToken,
) -> Result<(Duration, Claims)> {
    let sessions = target::connect(std::slice::from_ref(target), work.workers).await?;
    let taken = Arc::new(AtomicU64::new(0));
    let (begin, mut workers) = (Instant::now(), JoinSet::new());
    for ((_, session), number) in sessions.into_iter().zip(first_worker..) {
        let worker = Worker {
            session,
            events: Arc::clone(events),
            work,
            number,
            taken: Arc::clone(&taken),
        };
        workers.spawn(worker.run(stop.clone()));
    }
    let (mut last, mut claims) = (begin, Claims::default());
    while let Some(done) = workers.join_next().await {
        let (at, claimed) = done?.context(target.name())?;
        last = last.max(at.unwrap_or(begin));
        claims.add(claimed);
    }
    Ok((last - begin, claims))
}

struct Worker {
    session: Box<dyn Session>,
    events: Arc<Events>,
    work: Work,
    number: u32,
    /// Batches that some worker has taken.
    taken: Arc<AtomicU64>,
}

impl Worker {
    /// Stores batches until none is left; when it had stored its last, and what it claims.
    async fn run(mut self, stop: CancellationToken) -> Result<(Option<Instant>, Claims)> {
        let (mut last, mut claims) = (None, Claims::default());
        for stream in 0.. {
            let is_left = self.taken.fetch_add(1, Ordering::Relaxed) < self.work.batches;
            if !is_left || stop.is_cancelled() {
                break;
            }
            self.store(stream, &mut claims).await?;
            last = Some(Instant::now());
        }
        Ok((last, claims))
    }

    /// Stores one batch.
    async fn store(&mut self, stream: u32, claims: &mut Claims) -> Result<()> {
        let stream = self.events.stream(self.number, stream);
        let (events, number) = (self.work.events, stream.number);
        let batch = stream.events(0..events);
        let append = Append {
            stream: &stream.name,
            revision: 0,
            events: &batch,
        };
        claims.sent(number, events);
        loop {
            match self.session.append(&append).await {
                Ok(()) => break,
                Err(AppendError::Retry(_)) => tokio::time::sleep(RETRY_PAUSE).await,
                Err(AppendError::Failed(cause) | AppendError::Unknown(cause)) => {
                    return fail(format!("a batch was not stored: {cause}"));
                }
            }
        }
        claims.acknowledged(number, events);
        if let Some(place) = self.session.place() {
            claims.placed(number, 0, events, place);
        }
        Ok(())
    }
}
