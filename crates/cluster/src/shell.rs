//! The thread that connects the core of membership with a registry, a clock, and the rest of the node.
//!
//! Why it is a thread with a runtime of its own: a node that is busy must not look dead. What the node's other tasks do
//! cannot delay a beat. Invariants: the placement is published before anything is done that rests on it; a call of the
//! registry takes at most half a beat.
//! Not here: decisions (`membership`), connections between nodes.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use futures::FutureExt;
use gesta_core::registry::{HandOver, Look, MoveReason, NodeId, NodeInfo, NodeState, Registry};
use gesta_core::{Error, LogId, Moment, Result};
use tokio::runtime::Handle;
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, sleep, timeout};

use crate::clock;
use crate::membership::{
    Change, Changed, Config, Core, Input, Note, Output, Preparation, Readiness, Setting, Sign, Stop,
};
use crate::placement::Placement;
use crate::timings::{Timed, Timings};

/// The longest time for which a taker may prepare. After it the taker gets the log as it is.
const PREPARE_MAX: Duration = Duration::from_secs(10);
/// The longest time for which a hand-over waits for what is in flight.
const FINISH_MAX: Duration = Duration::from_millis(100);

/// How far the pipelines of this node have come.
pub trait Progress: Send + Sync + 'static {
    /// Returns the progress of a log that this node owns. This call must not block.
    fn sign(&self, log: LogId) -> Sign;
}

/// What a hand-over needs of the rest of the node.
#[async_trait]
pub trait HandOvers: Send + Sync + 'static {
    /// Asks the taker to prepare. The log is still served here. `Refused` keeps the log from that taker for a while.
    /// After ten seconds the log is handed over in any case.
    async fn prepare(&self, preparation: Preparation) -> Readiness;

    /// Returns when nothing of the log is in flight. This is called when the placement no longer says that this node
    /// owns the log. Nobody waits longer than 100 ms for it: what is still in flight then misses, or is stored before
    /// the taker's first batch.
    async fn finish(&self, log: LogId);

    /// Tells the others that this node has moved logs: it has claimed them, handed them over or given them up. This
    /// call must not block. The tasks that it spawns run where [`Membership::start`] was called, and go on when the
    /// membership has ended.
    fn moved(&self);
}

/// Hand-overs of a node that has no connections to others: the taker sees them at its next beat.
#[derive(Clone, Copy, Debug, Default)]
pub struct WithoutLinks;

#[async_trait]
impl HandOvers for WithoutLinks {
    async fn prepare(&self, _: Preparation) -> Readiness {
        Readiness::Ready
    }

    async fn finish(&self, _: LogId) {}

    fn moved(&self) {}
}

/// What a membership needs to know.
#[derive(Clone, Debug)]
pub struct Options {
    /// What this node tells the others.
    pub info: NodeInfo,
    /// The times of the protocol.
    pub config: Config,
}

/// What people may want to know about a membership.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Status {
    /// The last look.
    pub look: Option<Arc<Look>>,
    /// How long ago the last look was.
    pub look_age: Option<Duration>,
    /// Why the registry does not answer at present.
    pub trouble: Option<String>,
    /// Why the membership has ended.
    pub stopped: Option<Stop>,
    /// The number of moves of leases that this node has made, in the order of [`MoveReason::ALL`].
    pub moves: [u64; MoveReason::ALL.len()],
    /// How long all this has taken.
    pub took: Timings,
}

/// What the thread tells the handles.
#[derive(Debug)]
struct Report {
    placement: watch::Sender<Arc<Placement>>,
    status: watch::Sender<(Option<Moment>, Status)>,
    timed: Timed,
}

impl Report {
    /// Tells that the thread has panicked: this node owns nothing any more.
    fn failed(&self) {
        tracing::error!(
            "the membership has failed: this node owns no log until it is started again"
        );
        self.placement.send_modify(|placement| {
            let version = placement.version + 1;
            *placement = Arc::new(Placement {
                version,
                ..Placement::default()
            });
        });
        self.status
            .send_modify(|(_, status)| status.stopped = Some(Stop::Failed));
    }
}

/// This node's membership in one database. The value is a handle, and clones share it. The membership ends when all
/// handles are dropped, without leaving, as if the process had died.
#[derive(Clone, Debug)]
pub struct Membership {
    inputs: mpsc::UnboundedSender<Input>,
    report: Arc<Report>,
}

impl Membership {
    /// Joins, and takes part from then on.
    ///
    /// # Errors
    /// `Unsupported` if no thread can be started.
    ///
    /// # Panics
    /// Panics if it is not called within a tokio runtime, in which `hand_overs` will run.
    pub fn start(
        registry: Arc<dyn Registry>,
        options: Options,
        progress: Arc<dyn Progress>,
        hand_overs: Arc<dyn HandOvers>,
    ) -> Result<Self> {
        let (inputs, received) = mpsc::unbounded_channel();
        let report = Arc::new(Report {
            placement: watch::Sender::default(),
            status: watch::Sender::default(),
            timed: Timed::default(),
        });
        let (seed, _) = uuid::Uuid::new_v4().as_u64_pair();
        let Options { info, config } = options;
        let setting = Setting { info, config, seed };
        let shell = Shell {
            core: Core::new(setting, clock::now()),
            registry,
            progress,
            hand_overs,
            others: Handle::current(),
            // The channel must not stay open for the shell's own sake.
            answers: mpsc::unbounded_channel(),
            report: Arc::clone(&report),
        };
        let failed_report = Arc::clone(&report);
        let run = move |runtime: tokio::runtime::Runtime| {
            let run = AssertUnwindSafe(shell.run(received)).catch_unwind();
            if runtime.block_on(run).is_err() {
                failed_report.failed();
            }
        };
        let failed = |error: std::io::Error| {
            let text = format!("no thread for the membership: {error}");
            Error::new(gesta_core::ErrorKind::Unsupported(text))
        };
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build();
        let runtime = runtime.map_err(failed)?;
        let thread = std::thread::Builder::new().name("gesta-beats".to_owned());
        thread.spawn(move || run(runtime)).map_err(failed)?;
        Ok(Self { inputs, report })
    }

    /// Returns who owns which log, as far as this node knows.
    #[must_use]
    pub fn placement(&self) -> Arc<Placement> {
        Arc::clone(&self.report.placement.borrow())
    }

    /// Returns the placement and each change of it.
    #[must_use]
    pub fn changes(&self) -> watch::Receiver<Arc<Placement>> {
        self.report.placement.subscribe()
    }

    /// Returns what people may want to know about the membership.
    #[must_use]
    pub fn status(&self) -> Status {
        let (looked, status) = self.report.status.borrow().clone();
        Status {
            look_age: looked.map(|at| clock::now().since(at)),
            took: self.report.timed.read(),
            ..status
        }
    }

    /// Hands over all logs and receives none from now on.
    pub fn drain(&self) {
        self.input(Input::Drain(NodeState::Draining));
    }

    /// Takes part again after [`drain`](Self::drain).
    pub fn undo_drain(&self) {
        self.input(Input::Drain(NodeState::Up));
    }

    /// Reports that a connection to the node's address was refused: nobody listens there. A time-out is not meant.
    pub fn refused(&self, node: NodeId) {
        self.input(Input::Refused(node));
    }

    /// Reports the nodes that this node cannot call at present. All of them must be named.
    pub fn unreachable(&self, nodes: Vec<NodeId>) {
        self.input(Input::Unreachable(nodes));
    }

    /// Looks at once, because another node says that something has changed.
    pub fn look_now(&self) {
        self.input(Input::LookNow);
    }

    /// Hands over all logs and leaves, at the latest after `within`. Returns when that is done.
    ///
    /// # Cancel safety
    /// If the future is dropped, the node goes on leaving.
    pub async fn leave(&self, within: Duration) -> Stop {
        self.input(Input::Leave(within));
        self.stopped().await
    }

    /// Waits until the membership has ended. The future is no handle: it does not keep the membership alive.
    pub fn stopped(&self) -> impl Future<Output = Stop> + Send + use<> {
        let mut status = self.report.status.subscribe();
        async move {
            let ended = status
                .wait_for(|(_, status)| status.stopped.is_some())
                .await;
            ended
                .ok()
                .and_then(|told| told.1.stopped)
                .unwrap_or(Stop::Left)
        }
    }

    fn input(&self, input: Input) {
        // Fails only if the membership has ended.
        let _ = self.inputs.send(input);
    }
}

struct Shell {
    core: Core,
    registry: Arc<dyn Registry>,
    progress: Arc<dyn Progress>,
    hand_overs: Arc<dyn HandOvers>,
    /// The runtime in which everything else of the node runs.
    others: Handle,
    answers: (mpsc::UnboundedSender<Input>, mpsc::UnboundedReceiver<Input>),
    report: Arc<Report>,
}

impl Shell {
    async fn run(mut self, mut inputs: mpsc::UnboundedReceiver<Input>) {
        loop {
            let now = clock::now();
            self.core.work(now);
            self.publish();
            let outputs = self.core.take_outputs();
            if outputs.iter().any(is_move) {
                // This thread's runtime ends with the membership, and would cut off the telling of its last moves.
                let _others = self.others.enter();
                self.hand_overs.moved();
            }
            for output in outputs {
                if let Output::Stopped(why) = output {
                    self.report
                        .status
                        .send_modify(|(_, status)| status.stopped = Some(why));
                    return;
                }
                self.perform(output);
            }
            let pause = self.core.wake_at().map(|at| at.since(clock::now()));
            let input = tokio::select! {
                biased;
                Some(answer) = self.answers.1.recv() => Some(answer),
                input = inputs.recv() => match input {
                    Some(input) => Some(input),
                    // Nobody is interested any more.
                    None => return,
                },
                () = sleep(pause.unwrap_or(Duration::MAX)) => None,
            };
            if let Some(input) = input {
                self.see(&input);
                self.core.on(input, clock::now());
            }
        }
    }

    fn publish(&self) {
        let placement = self.core.placement();
        self.report.placement.send_if_modified(|told| {
            let is_new = told.version != placement.version;
            if is_new {
                *told = placement;
            }
            is_new
        });
    }

    /// Keeps what people may want to know.
    fn see(&self, input: &Input) {
        let (look, error) = match input {
            Input::Looked(Ok(look)) => (Some(look), None),
            Input::Looked(Err(error)) | Input::Changed(Err(error)) => (None, Some(error)),
            _ => return,
        };
        let trouble = error.map(ToString::to_string);
        self.report.status.send_modify(|(looked, status)| {
            match (&status.trouble, &trouble) {
                (None, Some(cause)) => {
                    tracing::warn!(cause, "the registry of nodes does not answer")
                }
                (Some(_), None) => tracing::info!("the registry of nodes answers again"),
                _ => {}
            }
            status.trouble = trouble;
            if let Some(look) = look {
                *looked = Some(clock::now());
                status.look = Some(Arc::new(look.clone()));
            }
        });
    }

    fn perform(&mut self, output: Output) {
        let limit = self.core.beat() / 2;
        let registry = Arc::clone(&self.registry);
        let answers = self.answers.0.clone();
        let (report, begun) = (Arc::clone(&self.report), Instant::now());
        match output {
            Output::Beat(beat) => {
                self.take_signs();
                let beat = async move { registry.beat(&beat).await };
                tokio::spawn(async move {
                    let look = within(limit, beat).await;
                    if look.is_ok() {
                        report.timed.beats.add(begun.elapsed());
                    }
                    let _ = answers.send(Input::Looked(look));
                });
            }
            Output::Change(change) => self.change(change, limit),
            Output::Prepare(preparation) => {
                let hand_overs = Arc::clone(&self.hand_overs);
                let (log, epoch) = (preparation.log, preparation.epoch);
                let prepare = async move { hand_overs.prepare(preparation).await };
                let prepared = self.others.spawn(timeout(PREPARE_MAX, prepare));
                tokio::spawn(async move {
                    let readiness = match prepared.await {
                        Ok(Ok(readiness)) => readiness,
                        Ok(Err(_)) => Readiness::Ready,
                        // It has panicked, or the node is going down.
                        Err(_) => Readiness::Refused,
                    };
                    report.timed.preparing.add(begun.elapsed());
                    let _ = answers.send(Input::Prepared(log, epoch, readiness));
                });
            }
            Output::Tell(note) => self.tell(&note),
            Output::Stopped(_) => {}
        }
    }

    fn change(&self, change: Change, limit: Duration) {
        let (registry, hand_overs) = (Arc::clone(&self.registry), Arc::clone(&self.hand_overs));
        let (others, report) = (self.others.clone(), Arc::clone(&self.report));
        let answers = self.answers.0.clone();
        tokio::spawn(async move {
            let hand_over = match change {
                Change::HandOver(HandOver { from, .. }) => Some(from.log),
                _ => None,
            };
            let begun = Instant::now();
            if let Some(log) = hand_over {
                let finish = others.spawn(async move { hand_overs.finish(log).await });
                let _ = timeout(FINISH_MAX, finish).await;
                report.timed.finishing.add(begun.elapsed());
            }
            let sent = Instant::now();
            let made = async move { make(&change, &*registry).await };
            let made = within(limit, made).await;
            if hand_over.is_some() {
                report.timed.moving.add(sent.elapsed());
            }
            let _ = answers.send(Input::Changed(made));
        });
    }

    fn take_signs(&mut self) {
        let mine: Vec<LogId> = self.core.placement().mine().collect();
        let signs = mine.into_iter().map(|log| (log, self.progress.sign(log)));
        self.core.on(Input::Signs(signs.collect()), clock::now());
    }

    fn count(&self, reason: MoveReason) {
        let counts = |status: &mut Status| {
            let moves = status.moves.iter_mut().zip(MoveReason::ALL);
            for (count, _) in moves.filter(|(_, one)| *one == reason) {
                *count += 1;
            }
        };
        self.report.status.send_modify(|(_, status)| counts(status));
    }

    fn tell(&self, note: &Note) {
        tracing::info!("{note}");
        if let Note::Moved {
            reason,
            without_owner,
            ..
        } = note
        {
            self.count(*reason);
            if let Some(took) = without_owner {
                self.report.timed.takeovers.add(*took);
            }
        }
    }
}

/// Returns whether the output says that this node has moved a log.
fn is_move(output: &Output) -> bool {
    matches!(output, Output::Tell(Note::Moved { .. }))
}

/// Returns the answer of the registry. An answer comes in any case: a call that takes longer than `limit`, or panics,
/// is answered by an error.
async fn within<T>(limit: Duration, call: impl Future<Output = Result<T>>) -> Result<T> {
    let call = AssertUnwindSafe(call).catch_unwind();
    match timeout(limit, call).await {
        Ok(Ok(answer)) => answer,
        Ok(Err(_)) => Err(Error::unavailable("the registry has failed")),
        Err(_) => Err(Error::unavailable(
            "the registry does not answer within half a beat",
        )),
    }
}

async fn make(change: &Change, registry: &dyn Registry) -> Result<Changed> {
    let done = match change {
        Change::Join(join) => return registry.join(join).await.map(Changed::Joined),
        Change::Claim(claims) => return registry.claim(claims).await.map(Changed::Claimed),
        Change::SetState(node, generation, state) => {
            registry.set_state(*node, *generation, *state).await
        }
        Change::DeclareDead(suspect) => registry.declare_dead(*suspect).await,
        Change::SetNextOwner(log, epoch, to) => registry.set_next_owner(*log, *epoch, *to).await,
        Change::HandOver(hand_over) => registry.hand_over(*hand_over).await,
        Change::Release(tenure) => registry.release(*tenure).await,
    };
    done.map(Changed::Done)
}
