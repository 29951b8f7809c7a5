//! The task of one projection: begins a session, reads, folds, writes, and begins again after a failure.
//!
//! Why: after any failure the stored checkpoint alone says where to go on. So a failure ends the run, and the next one
//! begins with what is stored; no other state has to be repaired.
//! Invariants: one batch is written at a time. A batch is folded while the one before it is written, and nothing else
//! is known of what it stands on but what was folded. A session that was lost, or whose commit is in doubt, is dropped.
//!
//! * `run`: a session, and the pipeline in it; `ahead`: its parts that read and fold; `sequential`: the same one after
//!   the other, to find an event that cannot be applied; `poison_search`: what is known of those that failed; `orders`:
//!   reset, replay and drop; `switching`: how a version takes the readers; `write`: one transaction.

mod ahead;
mod orders;
mod poison_search;
mod run;
mod sequential;
mod switching;
mod write;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use gesta_core::{BackOff, Checkpoint, EventStore, Filter};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use crate::batch::{distance, not_of, positions};
use crate::begin_at::BeginAt;
use crate::config::Config;
use crate::definition::ProjectionId;
use crate::error::{TargetError, TargetErrorKind, cut};
use crate::looks::{LastCommit, Look};
use crate::progress::{Phase, Progress};
use crate::registrar::{Registrar, away};
use crate::state::{Life, State};
use crate::target::{Begin, Session, Stored, Target};
use crate::work::Work;

use poison_search::PoisonSearch;
use run::{End, Run};

/// What the task of a projection needs.
#[derive(Clone)]
pub(crate) struct Context<T> {
    pub(crate) store: Arc<dyn EventStore>,
    pub(crate) target: T,
    pub(crate) node: Uuid,
    pub(crate) config: Arc<Config>,
    pub(crate) id: ProjectionId,
    pub(crate) filter: Filter,
    pub(crate) progress: watch::Sender<Progress>,
    pub(crate) looks: watch::Receiver<Look>,
    /// What this process has committed last of the version.
    pub(crate) committed: LastCommit,
    /// Registers the version again if the target does not know it any more.
    pub(crate) registrar: Arc<Registrar<T>>,
    pub(crate) stopping: CancellationToken,
    /// True if the floor is before the first event. A reset may move it there.
    pub(crate) begins_at_start: Arc<AtomicBool>,
    /// Where the program says that it begins.
    pub(crate) begin_at: Option<BeginAt>,
}

impl<T: Target> Context<T> {
    /// Notes where the version begins.
    pub(crate) fn begins(&self, floor: &Checkpoint) {
        let at_start = positions(floor).iter().all(|at| at.0 == 0);
        self.begins_at_start.store(at_start, Ordering::SeqCst);
    }

    pub(crate) fn tell(&self, phase: Phase, error: Option<String>) {
        self.progress.send_modify(|progress| {
            progress.phase = phase;
            if error.is_some() {
                progress.error = error;
            }
        });
    }

    /// Tells of a failure that is tried again.
    pub(crate) fn failed(&self, phase: Phase, why: String) {
        self.progress.send_modify(|progress| {
            progress.phase = phase;
            progress.failures += 1;
            progress.error = Some(why);
        });
    }

    /// Waits for the next look; returns false if the process stops.
    async fn next_look(&self, looks: &mut watch::Receiver<Look>) -> bool {
        tokio::select! {
            () = self.stopping.cancelled() => false,
            changed = looks.changed() => changed.is_ok(),
        }
    }

    /// Waits; returns false if the process stops.
    async fn pause(&self, back_off: &mut BackOff) -> bool {
        tokio::select! {
            () = self.stopping.cancelled() => false,
            () = tokio::time::sleep(back_off.pause()) => true,
        }
    }
}

/// What a look says about a projection that this process would run.
enum Seen {
    May,
    Wait(Phase, Option<String>),
    Gone,
}

fn seen(look: &Look, id: &ProjectionId, node: Uuid) -> Seen {
    let Some(row) = look.row(id) else {
        return match look.at {
            None => Seen::Wait(Phase::Starting, None),
            // It was registered before: it is registered again.
            Some(_) => Seen::May,
        };
    };
    match (row.life, row.state) {
        (Life::Retired, _) => Seen::Gone,
        (_, State::Paused) => Seen::Wait(Phase::Paused, None),
        (_, State::Stopped) => Seen::Wait(Phase::Stopped, row.error.clone()),
        (_, State::Running) if row.owned && row.owner != Some(node) => {
            Seen::Wait(Phase::StandingBy, None)
        }
        (_, State::Running) => Seen::May,
    }
}

/// Runs a projection until the process stops or its rows are gone.
pub(crate) async fn drive<T: Target, W: Work<T>>(
    context: &Context<T>,
    make: impl Fn() -> W + Sync,
) {
    let (min, max) = context.config.back_off;
    let mut back_off = BackOff::new(min, max);
    let mut search = PoisonSearch::new(&context.config);
    let mut looks = context.looks.clone();
    looks.mark_changed();
    while context.next_look(&mut looks).await {
        let now = seen(&looks.borrow_and_update(), &context.id, context.node);
        match now {
            Seen::Gone => {
                context.tell(Phase::Retired, None);
                return;
            }
            Seen::Wait(phase, why) => {
                context.tell(phase, why);
                search.forget();
                continue;
            }
            Seen::May => {}
        }
        // Sessions follow each other until one ends that has to wait for a look.
        loop {
            let batches = context.progress.borrow().batches;
            let end = Box::pin(session(context, &make, &mut search)).await;
            if context.progress.borrow().batches > batches {
                back_off.reset();
            }
            match end {
                End::Stopping => {
                    context.tell(Phase::Ended, None);
                    return;
                }
                End::Look(phase, why) => {
                    context.tell(phase, why);
                    break;
                }
                End::Again(phase, why) => {
                    tracing::warn!(projection = %context.id, error = %why, "a projection begins again");
                    context.failed(phase, why);
                    if !context.pause(&mut back_off).await {
                        context.tell(Phase::Ended, None);
                        return;
                    }
                }
            }
        }
    }
    context.tell(Phase::Ended, None);
}

/// Begins a session and runs in it. Each failure ends it.
async fn session<T: Target, W: Work<T>>(
    context: &Context<T>,
    make: &(impl Fn() -> W + Sync),
    search: &mut PoisonSearch,
) -> End {
    let begun = context.target.begin(&context.id, context.node).await;
    let (session, stored) = match begun {
        Ok(Begin::Begun(session, stored)) => (session, stored),
        Ok(Begin::Owned(_)) => return End::Look(Phase::StandingBy, None),
        Ok(Begin::NotFound) => {
            let why = "the target does not know the version any more".to_owned();
            return match context.registrar.register().await {
                Ok(_) => End::Again(Phase::Starting, why),
                Err(error) => match away(&error) {
                    Some(phase) => End::Again(phase, error.to_string()),
                    None => End::Look(Phase::Stopped, Some(error.to_string())),
                },
            };
        }
        // Its tables may be gone as well: a target that was put back to before that holds nothing.
        Err(error) if error.kind() == TargetErrorKind::Unusable => {
            let _ = context.registrar.register().await;
            return End::Again(Phase::TargetAway, error.to_string());
        }
        Err(error) => return End::Again(Phase::TargetAway, error.to_string()),
    };
    if stored.life == Life::Retired || stored.state != State::Running {
        return finish::<T>(session, None, End::Look(phase_of(&stored), stored.error)).await;
    }
    let info = match context.store.info().await {
        Ok(info) => info,
        Err(error) => {
            let end = End::Again(Phase::StoreAway, error.to_string());
            return finish::<T>(session, None, end).await;
        }
    };
    let stale = not_of(&info, &stored.checkpoint);
    let is_unclean = stored.owner.is_some_and(|owner| owner != context.node);
    if is_unclean && stale.is_none() {
        let head = Checkpoint::logs(info.incarnation, info.heads);
        let behind = distance(&stored.checkpoint, &head);
        search.after_death(&stored, &context.config, behind);
    }
    let run = Run::new(context, session, stored);
    run.go(make, search, stale).await
}

fn phase_of(stored: &Stored) -> Phase {
    match (stored.life, stored.state) {
        (Life::Retired, _) => Phase::Retired,
        (_, State::Paused) => Phase::Paused,
        (_, State::Stopped | State::Running) => Phase::Stopped,
    }
}

/// Ends a session in good order; if that fails, its lease ends it.
async fn finish<T: Target>(session: T::Session, stop: Option<&str>, end: End) -> End {
    let stop = stop.map(|why| cut(why.to_owned()));
    let is_stop = stop.is_some();
    let ended = ahead::on_thread(
        T::BLOCKING,
        async move { session.end(stop.as_deref()).await },
    );
    let ended = ended
        .await
        .unwrap_or_else(|panic| Err(TargetError::new(TargetErrorKind::Away, panic)));
    match ended {
        Ok(()) => end,
        Err(error) if is_stop && error.kind() != TargetErrorKind::Lost => {
            End::Again(Phase::TargetAway, error.to_string())
        }
        Err(error) => {
            tracing::debug!(%error, "a session was not ended in good order");
            end
        }
    }
}
