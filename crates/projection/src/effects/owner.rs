//! The task of one effect: stands by, claims, performs, and stores how far it has come.

use std::sync::Arc;
use std::time::Duration;

use gesta_core::{BackOff, Checkpoint, EventStore, RecordedEvent, Revision};
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;
use uuid::Uuid;

use crate::batch::Batch;
use crate::batch::not_of;
use crate::begin_at::BeginAt;
use crate::config::{Config, OnPoison};
use crate::effect::Effect;
use crate::effects::states::{EffectState, EffectStates, Kept, Last, again};
use crate::error::{Error, cut};
use crate::fault::panic_text;
use crate::progress::{Phase, Progress};
use crate::reader::Reader;

/// Most events after which the checkpoint is stored: as many are repeated after a crash.
const CHECKPOINT_EVENTS: u32 = 100;
/// Largest number of events that are read at once.
const PAGE_EVENTS: usize = 100;
/// Time between two questions whether the store was restored, at least: a store behind a server is asked for it.
const ASK_EVERY: Duration = Duration::from_secs(1);

/// What the task of an effect needs.
pub(super) struct Own {
    pub(super) store: Arc<dyn EventStore>,
    pub(super) config: Arc<Config>,
    pub(super) states: EffectStates,
    pub(super) version: u32,
    pub(super) node: Uuid,
    /// Where it begins if none of its versions has ever run.
    pub(super) first: Checkpoint,
    /// Where it goes on by itself when the store was restored; `None` if it stops then.
    pub(super) after_restore: Option<BeginAt>,
    pub(super) progress: watch::Sender<Progress>,
    pub(super) stopping: CancellationToken,
}

/// Why an owner has ended.
enum Ended {
    Stopping,
    Lost,
    Stopped,
}

impl Own {
    fn tell(&self, phase: Phase, error: Option<String>) {
        self.progress.send_modify(|progress| {
            progress.phase = phase;
            progress.error = error;
        });
    }

    /// Tells operators that the effect does not go on.
    fn tell_error(&self, why: &str) {
        tracing::error!(states = self.states.stream(), %why, "an effect has stopped");
    }

    async fn wait(&self, time: Duration) {
        tokio::select! {
            () = self.stopping.cancelled() => {}
            () = tokio::time::sleep(time) => {}
        }
    }

    /// Stands by until this process may perform. Returns its first state, and when it was begun to be appended; `None`
    /// if the process stops.
    async fn claim(&self) -> Result<Option<(Kept, Instant)>, Error> {
        // The revision that was seen last, and since when: an owner appends a state before its lease is over.
        let mut seen: Option<(Revision, Instant)> = None;
        let mut is_hidden = false;
        while !self.stopping.is_cancelled() {
            let claims = match self.states.last().await? {
                Last::None => Some((None, self.state(self.first.clone()))),
                Last::Kept(kept) if self.may_claim(&kept, &mut seen, Instant::now()) => {
                    Some((Some(kept.revision), self.state(kept.state.checkpoint)))
                }
                Last::Kept(_) => None,
                Last::Hidden(_) => {
                    let why = self.states.hidden();
                    if !is_hidden {
                        self.tell_error(&why);
                    }
                    is_hidden = true;
                    self.tell(Phase::Stopped, Some(why));
                    None
                }
            };
            if let Some((after, state)) = claims {
                let now = Instant::now();
                let claimed = self.states.append(after, state, Duration::ZERO);
                if let Some(kept) = claimed.await? {
                    self.states.keep_few().await;
                    return Ok(Some((kept, now)));
                }
            }
            self.wait(self.config.look_every).await;
        }
        Ok(None)
    }

    fn may_claim(&self, kept: &Kept, seen: &mut Option<(Revision, Instant)>, now: Instant) -> bool {
        let state = &kept.state;
        if state.version > self.version {
            let why = format!(
                "version {} has run, this is {}",
                state.version, self.version
            );
            self.tell(Phase::Stopped, Some(why));
            return false;
        }
        if state.is_stopped {
            self.tell(Phase::Stopped, state.error.clone());
            return false;
        }
        let since = match seen {
            Some((revision, since)) if *revision == kept.revision => *since,
            _ => {
                *seen = Some((kept.revision, now));
                now
            }
        };
        let is_free = state.owner.is_none() || state.owner == Some(self.node);
        if is_free || now.duration_since(since) > self.config.lease {
            return true;
        }
        self.tell(Phase::StandingBy, None);
        false
    }

    fn state(&self, checkpoint: Checkpoint) -> EffectState {
        EffectState {
            version: self.version,
            owner: Some(self.node),
            checkpoint,
            error: None,
            is_stopped: false,
        }
    }
}

/// Runs an effect until the process stops.
pub(super) async fn run<E: Effect>(effect: Arc<E>, own: Own) {
    let (min, max) = own.config.back_off;
    let mut back_off = BackOff::new(min, max);
    while !own.stopping.is_cancelled() {
        let ended = match own.claim().await {
            Ok(None) => break,
            Ok(Some(claimed)) => perform_all(&effect, &own, claimed).await,
            Err(error) => Err(error),
        };
        match ended {
            Ok(Ended::Stopping) => break,
            Ok(Ended::Lost | Ended::Stopped) => back_off.reset(),
            Err(error) => {
                own.tell(Phase::StoreAway, Some(error.to_string()));
                own.wait(back_off.pause()).await;
            }
        }
    }
    own.tell(Phase::Ended, None);
}

/// An owner at work.
struct Owner<'a> {
    own: &'a Own,
    kept: Kept,
    reached: Checkpoint,
    since_stored: u32,
    /// When it was begun to append the last state: the lease counts from then, for others may have seen the state
    /// since.
    stored_at: Instant,
    store_at: Instant,
    /// When it was last asked whether the store still has the incarnation of what was read.
    asked_at: Instant,
}

impl Owner<'_> {
    /// Stores a state; returns false if another process owns the effect now. While the store is away it is tried again,
    /// for half of the lease.
    async fn store(&mut self, state: EffectState) -> Result<bool, Error> {
        let (after, within) = (Some(self.kept.revision), self.own.config.lease / 2);
        let now = Instant::now();
        let stored = self.own.states.append(after, state, within).await?;
        let Some(kept) = stored else { return Ok(false) };
        self.kept = kept;
        self.since_stored = 0;
        self.stored_at = now;
        self.store_at = self.stored_at + self.own.store_every();
        Ok(true)
    }

    /// Stores the checkpoint, unless nothing has happened and the lease is still long.
    async fn store_checkpoint(&mut self) -> Result<bool, Error> {
        let now = Instant::now();
        if self.since_stored == 0 && now < self.stored_at + self.own.config.lease / 3 {
            self.store_at = self.stored_at + self.own.config.lease / 3;
            return Ok(true);
        }
        let state = self.own.state(self.reached.clone());
        self.store(state).await
    }

    /// Stores the checkpoint for the next owner, because the process stops.
    async fn leave(&mut self) -> Result<Ended, Error> {
        let state = EffectState {
            owner: None,
            ..self.own.state(self.reached.clone())
        };
        self.store(state).await?;
        Ok(Ended::Stopping)
    }

    /// Asks, now and then, whether the store still has the incarnation of what was read. Other events may be in the
    /// places of those that were lost.
    async fn is_of_present(&mut self) -> Result<bool, Error> {
        let now = Instant::now();
        if now.duration_since(self.asked_at) < ASK_EVERY {
            return Ok(true);
        }
        self.asked_at = now;
        Ok(self.own.store.incarnation().await? == self.reached.incarnation)
    }

    /// Waits, or until the process stops, and goes on saying that the owner lives; returns false if another process
    /// owns the effect now.
    async fn wait(&mut self, time: Duration) -> Result<bool, Error> {
        let until = Instant::now() + time;
        loop {
            tokio::select! {
                () = self.own.stopping.cancelled() => return Ok(true),
                () = sleep_until(until) => return Ok(true),
                () = sleep_until(self.store_at) => {
                    if !self.store_checkpoint().await? {
                        return Ok(false);
                    }
                }
            }
        }
    }

    async fn stop(&mut self, why: String) -> Result<Ended, Error> {
        let why = cut(why);
        self.own.tell_error(&why);
        let state = EffectState {
            owner: None,
            error: Some(why.clone()),
            is_stopped: true,
            ..self.own.state(self.reached.clone())
        };
        let is_stored = self.store(state).await?;
        self.own.tell(Phase::Stopped, Some(why));
        Ok(if is_stored {
            Ended::Stopped
        } else {
            Ended::Lost
        })
    }

    fn moved(&mut self, to: Checkpoint, events: u32) {
        self.reached = to;
        self.since_stored += events;
        let reached = &self.reached;
        self.own.progress.send_modify(|progress| {
            progress.checkpoint = Some(reached.clone());
            progress.events += u64::from(events);
        });
    }
}

impl Own {
    /// An owner says something at least three times within its lease.
    fn store_every(&self) -> Duration {
        self.config.store_position_every.min(self.config.lease / 3)
    }
}

/// Performs as the owner that has claimed the effect by a state, which it began to append at a time.
async fn perform_all<E: Effect>(
    effect: &Arc<E>,
    own: &Own,
    (kept, since): (Kept, Instant),
) -> Result<Ended, Error> {
    let mut at = kept.state.checkpoint.clone();
    let mut owner = Owner {
        own,
        kept,
        reached: at.clone(),
        since_stored: 0,
        stored_at: since,
        store_at: since + own.store_every(),
        asked_at: since,
    };
    let info = own.store.info().await?;
    if let Some(why) = not_of(&info, &at) {
        let Some(begin_at) = &own.after_restore else {
            return owner.stop(again(&why)).await;
        };
        at = begin_at.place(&*own.store, &info).await?;
        if not_of(&info, &at).is_some() {
            return owner.stop(again(&why)).await;
        }
        tracing::error!(states = own.states.stream(), %why, %at, "an effect begins again");
        owner.reached = at.clone();
        let state = EffectState {
            error: Some(cut(format!("begun again: {why}"))),
            ..own.state(at.clone())
        };
        if !owner.store(state).await? {
            return Ok(Ended::Lost);
        }
    }
    own.tell(Phase::CatchingUp, None);
    let page = own.config.batch_events_max.min(PAGE_EVENTS);
    let mut reader = Reader::new(Arc::clone(&own.store), effect.filter(), at, page);
    loop {
        let read = tokio::select! {
            biased;
            () = own.stopping.cancelled() => return owner.leave().await,
            // First, so that an owner goes on whose states take so long that one is always due. A batch stores one too.
            read = reader.next(page) => read,
            () = sleep_until(owner.store_at) => {
                if !owner.store_checkpoint().await? {
                    return Ok(Ended::Lost);
                }
                continue;
            }
        };
        if let Some(ended) = perform_batch(effect, &mut owner, read?).await? {
            return Ok(ended);
        }
    }
}

/// Performs the events of a batch one after the other. Returns why the owner has ended, if it has.
async fn perform_batch<E: Effect>(
    effect: &Arc<E>,
    owner: &mut Owner<'_>,
    batch: Batch,
) -> Result<Option<Ended>, Error> {
    let own = owner.own;
    let mut left = Some(batch);
    while let Some(mut batch) = left.take() {
        left = batch.cut(1);
        if let Some(event) = batch.events().next() {
            // Nothing may be read after this: what is left of the batch lies behind the checkpoint that is stored.
            if own.stopping.is_cancelled() {
                return owner.leave().await.map(Some);
            }
            // The states of effects are events too: an effect of all events would beget itself.
            let done = if own.states.keeps(event) {
                Performed::Done
            } else {
                perform(effect, owner, event).await?
            };
            match done {
                Performed::Done => {}
                Performed::Interrupted => return owner.leave().await.map(Some),
                Performed::Ended(ended) => return Ok(Some(ended)),
                Performed::Refused(why) => match own.config.on_poison {
                    OnPoison::Stop | OnPoison::Park => return owner.stop(why).await.map(Some),
                    OnPoison::Skip => {
                        owner.moved(batch.to.clone(), 0);
                        let state = EffectState {
                            error: Some(cut(format!("skipped: {why}"))),
                            ..own.state(owner.reached.clone())
                        };
                        if !owner.store(state).await? {
                            return Ok(Some(Ended::Lost));
                        }
                    }
                },
            }
            let events = u32::from(!own.states.keeps(event));
            owner.moved(batch.to.clone(), events);
        } else {
            owner.reached = batch.to.clone();
        }
        if batch.caught_up {
            own.tell(Phase::Live, None);
        }
        let is_due = owner.since_stored >= CHECKPOINT_EVENTS || Instant::now() >= owner.store_at;
        if is_due && !owner.store_checkpoint().await? {
            return Ok(Some(Ended::Lost));
        }
    }
    Ok(None)
}

enum Performed {
    Done,
    /// After all attempts.
    Refused(String),
    /// The process stops before the next attempt.
    Interrupted,
    Ended(Ended),
}

/// Performs one event, with attempts. Meanwhile, and in the pauses between them, the owner goes on saying that it
/// lives. When this returns, nothing goes on to perform the event in this process.
async fn perform<E: Effect>(
    effect: &Arc<E>,
    owner: &mut Owner<'_>,
    event: &RecordedEvent,
) -> Result<Performed, Error> {
    let own = owner.own;
    let (min, max) = own.config.back_off;
    let mut back_off = BackOff::new(min, max);
    let shared = Arc::new(event.clone());
    for attempt in 1..=own.config.attempts_max {
        // A process that stood still past its lease finds out before it performs.
        if Instant::now() >= owner.store_at && !owner.store_checkpoint().await? {
            return Ok(Performed::Ended(Ended::Lost));
        }
        if !owner.is_of_present().await? {
            return Ok(Performed::Ended(Ended::Lost));
        }
        let (effect, event) = (Arc::clone(effect), Arc::clone(&shared));
        let performing = tokio::spawn(async move { effect.perform(&event, attempt).await });
        let mut performing = AbortOnDropHandle::new(performing);
        let done = loop {
            tokio::select! {
                done = &mut performing => break done,
                () = sleep_until(owner.store_at) => {
                    let stored = owner.store_checkpoint().await;
                    if !matches!(stored, Ok(true)) {
                        performing.abort();
                        let _ = performing.await;
                        return stored.map(|_| Performed::Ended(Ended::Lost));
                    }
                }
            }
        };
        let why = match done {
            Ok(Ok(())) => return Ok(Performed::Done),
            Ok(Err(error)) => error.to_string(),
            Err(error) => match error.try_into_panic() {
                Ok(panic) => panic_text(&*panic),
                Err(error) => error.to_string(),
            },
        };
        tracing::warn!(
            states = own.states.stream(), log = %shared.log, position = %shared.position, attempt, error = %why,
            "an effect has failed"
        );
        own.tell(Phase::Retrying, Some(cut(why.clone())));
        if attempt == own.config.attempts_max {
            return Ok(Performed::Refused(format!(
                "the event at position {} of log {} failed in {attempt} attempts: {why}",
                shared.position, shared.log
            )));
        }
        if !owner.wait(back_off.pause()).await? {
            return Ok(Performed::Ended(Ended::Lost));
        }
        if own.stopping.is_cancelled() {
            return Ok(Performed::Interrupted);
        }
    }
    Ok(Performed::Interrupted)
}
