//! The task of one log: it hands calls, routes, answers and the time to the sending core, and does what the core puts
//! out.

use std::future::poll_fn;
use std::sync::Arc;

use bytes::Bytes;
use gesta_core::capacity::Permit;
use gesta_core::{LogId, Moment};
use tokio::sync::{mpsc, oneshot, watch};

use super::{OnHint, OnReply, Outgoing, Reply};
use crate::clock::Clock;
use crate::config::LinkConfig;
use crate::demand::Demanded;
use crate::error::{ForwardError, ReturnReason};
use crate::frame::Frame;
use crate::peer::{Peer, PeerState, Peers};
use crate::pipe::{Pipe, PipeEvent};
use crate::reach::Reach;
use crate::route::Route;
use crate::sending::{self, LinkState, Output, Patience, Sender, Violation};
use crate::stats::Counts;

/// The greatest number of inputs that are taken at once.
const INTAKE_MAX: usize = 256;

/// What callers send to the task.
#[derive(Debug)]
pub(super) enum Input {
    Call(Ticket, Moment, Patience),
    Route(Route, oneshot::Sender<()>),
}

/// A call with the receiver of its outcome. If it is dropped without an outcome, the receiver is told that nobody
/// knows.
pub(super) struct Ticket {
    kind: u8,
    body: Bytes,
    on_reply: Option<OnReply>,
    /// The permits of the call among the calls that wait: one of all logs and one of its own log.
    _permits: [Permit<2>; 2],
}

impl std::fmt::Debug for Ticket {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Ticket")
            .field("kind", &self.kind)
            .finish_non_exhaustive()
    }
}

impl Ticket {
    pub(super) fn new(call: Outgoing, permits: [Permit<2>; 2]) -> Self {
        Self {
            kind: call.kind,
            body: call.body,
            on_reply: Some(call.on_reply),
            _permits: permits,
        }
    }

    pub(super) fn end(mut self, result: Result<Reply, ForwardError>) {
        self.tell(result);
    }

    fn tell(&mut self, result: Result<Reply, ForwardError>) {
        if let Some(on_reply) = self.on_reply.take() {
            guarded(|| on_reply(result));
        }
    }
}

/// Calls a function that does not belong to the link. A panic of one caller must not end the calls of all others.
fn guarded(call: impl FnOnce()) {
    if std::panic::catch_unwind(std::panic::AssertUnwindSafe(call)).is_err() {
        tracing::error!("the code that receives the outcome of a call, or a hint, panicked");
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        self.tell(Err(ForwardError::Returned {
            reason: ReturnReason::Closed,
            was_written: true,
        }));
    }
}

/// The stream of a lane. It holds the node, which is dialled as long as the lane is open.
struct LaneStream {
    number: u64,
    pipe: Pipe,
    _peer: Arc<Peer>,
}

/// The node of the route.
struct Target {
    peer: Arc<Peer>,
    state: watch::Receiver<PeerState>,
    /// The mark that calls wait for the node's answers; `None` while none waits.
    demanded: Option<Demanded>,
}

/// What the task of a log needs.
pub(super) struct Parts {
    pub(super) log: LogId,
    pub(super) inputs: mpsc::UnboundedReceiver<Input>,
    pub(super) peers: Arc<Peers>,
    pub(super) on_hint: OnHint,
    pub(super) clock: Clock,
    pub(super) counts: Arc<Counts>,
}

/// The task of one log.
pub(super) struct LaneTask {
    log: LogId,
    core: Sender<Ticket, Bytes>,
    inputs: mpsc::UnboundedReceiver<Input>,
    peers: Arc<Peers>,
    on_hint: OnHint,
    clock: Clock,
    counts: Arc<Counts>,
    /// The moment since which calls have waited for the owner's credit.
    waits_since: Option<Moment>,
    target: Option<Target>,
    stream: Option<LaneStream>,
    /// The senders that are told once the routes that were set are in force.
    routed: Vec<oneshot::Sender<()>>,
}

/// Something that the task waits for.
enum Woken {
    Inputs(usize),
    Target,
    Stream(PipeEvent),
    Time,
    Close,
}

impl LaneTask {
    pub(super) fn new(parts: Parts, route: Route, config: &LinkConfig) -> Self {
        let core = Sender::new(
            config.address.clone(),
            config.times.return_after,
            route,
            parts.clock.now(),
        );
        Self {
            log: parts.log,
            core,
            inputs: parts.inputs,
            peers: parts.peers,
            on_hint: parts.on_hint,
            clock: parts.clock,
            counts: parts.counts,
            waits_since: None,
            target: None,
            stream: None,
            routed: Vec::new(),
        }
    }

    /// Runs until the forwarder closes or nobody holds it any more.
    pub(super) async fn run(mut self) {
        let closed = self.peers.closed.clone();
        let mut inputs = Vec::new();
        let mut timer = std::pin::pin!(tokio::time::sleep(std::time::Duration::ZERO));
        let mut timer_is_for = None;
        loop {
            let wake_at = self.core.wake_at();
            if let Some(at) = wake_at.filter(|_| timer_is_for != wake_at) {
                timer.as_mut().reset(self.clock.timer(at));
            }
            timer_is_for = wake_at;
            let (target, stream) = (&mut self.target, &mut self.stream);
            let event = tokio::select! {
                count = self.inputs.recv_many(&mut inputs, INTAKE_MAX) => Woken::Inputs(count),
                event = poll_fn(|context| match stream {
                    Some(stream) => stream.pipe.poll(context),
                    None => std::task::Poll::Pending,
                }) => Woken::Stream(event),
                () = changed(target) => Woken::Target,
                () = &mut timer, if timer_is_for.is_some() => Woken::Time,
                () = closed.cancelled() => Woken::Close,
            };
            match event {
                Woken::Inputs(0) | Woken::Close => break,
                Woken::Inputs(_) => self.gather(&mut inputs).await,
                Woken::Stream(PipeEvent::Data) => self.read(),
                Woken::Stream(PipeEvent::Ended) => self.lose_stream(),
                Woken::Time => timer_is_for = None,
                Woken::Target | Woken::Stream(PipeEvent::Room) => {}
            }
            self.work();
        }
        self.close().await;
    }

    /// Takes these inputs, and those of the callers whose turn to run has come anyway.
    ///
    /// Why: the runtime runs a task that is woken by a call before the other callers that are ready. Without the pause
    /// there was a system call for every second call, where one can write many.
    async fn gather(&mut self, inputs: &mut Vec<Input>) {
        tokio::task::yield_now().await;
        while inputs.len() < INTAKE_MAX
            && let Ok(input) = self.inputs.try_recv()
        {
            inputs.push(input);
        }
        let now = self.clock.now();
        inputs.drain(..).for_each(|input| self.input(input, now));
    }

    fn input(&mut self, input: Input, now: Moment) {
        match input {
            Input::Call(ticket, deadline, patience) => self.call(ticket, deadline, patience, now),
            Input::Route(route, done) => {
                self.core.on(sending::Input::Route(route), self.clock.now());
                self.routed.push(done);
                // What was called before comes back, if it does, before what is called after.
                self.work();
            }
        }
    }

    fn call(&mut self, ticket: Ticket, deadline: Moment, patience: Patience, now: Moment) {
        let call = sending::Input::Call {
            bytes: ticket.body.len(),
            ticket,
            deadline,
            patience,
        };
        self.core.on(call, now);
    }

    /// Does everything that can be done now.
    fn work(&mut self) {
        let now = self.clock.now();
        self.watch_target(now);
        self.core.work(now);
        self.perform();
        while self
            .stream
            .as_ref()
            .is_some_and(|stream| !stream.pipe.is_full())
        {
            let Some(write) = self.core.next_write(now) else {
                break;
            };
            let frame = Frame::Call {
                seq: write.seq,
                kind: write.ticket.kind,
                is_in_doubt: write.is_in_doubt,
                remaining: write.remaining,
                body: write.ticket.body.clone(),
            };
            if let Some(stream) = &mut self.stream {
                stream.pipe.push(frame);
            }
        }
        self.perform();
        self.demand();
        if let Some(since) = self.waits_since.take() {
            let waited = now.since(since);
            self.counts.waited_for_credit(waited);
        }
        self.waits_since = self.core.waits_for_credit().then_some(now);
        if !self.core.is_leaving() {
            // Whoever set a route may have stopped waiting.
            for done in self.routed.drain(..) {
                let _ = done.send(());
            }
        }
    }

    /// Lets the node be pinged more often while calls wait.
    fn demand(&mut self) {
        let has_calls = self.core.has_calls();
        if let Some(target) = &mut self.target
            && target.demanded.is_some() != has_calls
        {
            target.demanded = has_calls.then(|| target.peer.demand.hold());
        }
    }

    /// Tells the core the state of the link to the node of the route.
    fn watch_target(&mut self, now: Moment) {
        let Some(node) = self.core.node().cloned() else {
            self.target = None;
            return;
        };
        if self
            .target
            .as_ref()
            .is_none_or(|target| target.peer.address != node)
        {
            let peer = self.peers.get(&node);
            let state = peer.watch();
            self.target = Some(Target {
                peer,
                state,
                demanded: None,
            });
        }
        let Some(target) = &mut self.target else {
            return;
        };
        let state = target.state.borrow_and_update();
        let link = match (state.reach, &state.link) {
            (Reach::Unreachable, _) => LinkState::Unreachable,
            _ if state.is_silent => LinkState::Silent,
            (Reach::Reachable, Some(link)) => LinkState::Up(link.credit),
            _ => LinkState::Down,
        };
        drop(state);
        self.core.on(sending::Input::Link(node, link), now);
    }

    fn perform(&mut self) {
        loop {
            let outputs = self.core.take_outputs();
            if outputs.is_empty() {
                return;
            }
            outputs.into_iter().for_each(|output| self.do_one(output));
        }
    }

    fn do_one(&mut self, output: Output<Ticket, Bytes>) {
        match output {
            Output::OpenLane { lane, route } => self.open(lane, &route),
            Output::CloseLane { lane } => {
                self.stream.take_if(|stream| stream.number == lane);
            }
            Output::Broken { rule, .. } => self.warn(rule),
            Output::Reply {
                ticket,
                reply: body,
                is_in_doubt,
            } => ticket.end(Ok(Reply { body, is_in_doubt })),
            Output::Return {
                ticket,
                reason,
                was_written,
            } => ticket.end(Err(ForwardError::Returned {
                reason,
                was_written,
            })),
            Output::Hint(hint) => {
                guarded(|| (self.on_hint)(self.log, &hint));
                self.watch_target(self.clock.now());
            }
        }
    }

    fn warn(&self, what: &str) {
        tracing::warn!(log = self.log.0, what, "an owner broke the rules of a lane");
    }

    fn open(&mut self, lane: u64, route: &Route) {
        let link = self.target.as_ref().and_then(|target| {
            let link = target.state.borrow().link.clone();
            Some((Arc::clone(&target.peer), link?.open().ok()?))
        });
        let Some((peer, mut pipe)) = link else {
            return self.lose_lane(lane);
        };
        pipe.push(Frame::Open {
            log: self.log,
            lane,
            epoch: route.epoch,
        });
        self.stream = Some(LaneStream {
            number: lane,
            pipe,
            _peer: peer,
        });
    }

    fn lose_stream(&mut self) {
        if let Some(stream) = self.stream.take() {
            self.lose_lane(stream.number);
        }
    }

    fn lose_lane(&mut self, lane: u64) {
        let lost = sending::Input::LaneLost(lane);
        self.core.on(lost, self.clock.now());
    }

    /// Takes the answers that have come.
    fn read(&mut self) {
        let now = self.clock.now();
        while let Some(stream) = &mut self.stream {
            let lane = stream.number;
            let input = match stream.pipe.next_frame(now) {
                Ok(None) => break,
                Ok(Some((frame, _))) => self.input_of(lane, frame),
                Err(violation) => Err(violation),
            };
            match input {
                Ok(input) => self.core.on(input, now),
                Err(Violation(what)) => {
                    self.warn(what);
                    self.lose_stream();
                }
            }
        }
        self.perform();
    }

    fn input_of(
        &self,
        lane: u64,
        frame: Frame,
    ) -> Result<sending::Input<Ticket, Bytes>, Violation> {
        match frame {
            Frame::Reply { seq, body } => Ok(sending::Input::Replied {
                lane,
                seq,
                reply: body,
            }),
            Frame::DeadlineOver { seq } => Ok(sending::Input::Dropped { lane, seq }),
            Frame::NotHere {
                from,
                untaken,
                hint,
            } => {
                self.counts.not_here(&hint, self.core.is_news(&hint));
                Ok(sending::Input::NotHere {
                    lane,
                    from,
                    untaken,
                    hint,
                })
            }
            _ => Err(Violation("a frame that owners do not send")),
        }
    }

    async fn close(mut self) {
        let now = self.clock.now();
        self.inputs.close();
        while let Some(input) = self.inputs.recv().await {
            if let Input::Call(ticket, deadline, patience) = input {
                self.call(ticket, deadline, patience, now);
            }
        }
        self.core.on(sending::Input::Close, now);
        self.perform();
    }
}

/// Returns when the state of the target's link has changed.
async fn changed(target: &mut Option<Target>) {
    let changed = match target {
        Some(target) => target.state.changed().await,
        None => std::future::pending().await,
    };
    if changed.is_err() {
        // The dialler has ended: the forwarder closes.
        std::future::pending().await
    }
}
