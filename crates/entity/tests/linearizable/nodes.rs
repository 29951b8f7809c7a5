//! The nodes of a history: who believes to own which entity, and lanes between them that lose answers, deliver late,
//! and deliver again.
//!
//! A lane keeps the calls of one node for one stream in order. It breaks at random: then all calls under way are in
//! doubt, some reach the node that they were written to all the same, later, and all are sent again or come back.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use futures::future::BoxFuture;
use futures::stream::FuturesUnordered;
use futures::{FutureExt, StreamExt};
use gesta_core::StreamId;
use gesta_core::peers::{PeerAnswer, PeerCall, PeerService, Peers, Unanswered, UnansweredReason};
use gesta_kit::faulty::Random;
use tokio::sync::{mpsc, oneshot};
use tokio::time::{Instant, sleep};

/// Pause before a call is offered to a node again that does not believe to own the stream.
const AGAIN_AFTER: Duration = Duration::from_millis(5);

/// A fault of the lanes. The checker must find it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fault {
    None,
    /// A call that is sent again has another key.
    FreshKeys,
    /// Nobody is told that a call may have been done before.
    DeniesDoubt,
}

/// What all nodes share.
pub(crate) struct Nodes {
    state: Mutex<State>,
    fault: Fault,
}

struct State {
    random: Random,
    /// Share of the answers whose lane breaks.
    faults: f64,
    slow_max: Duration,
    /// By node and stream: who it believes to own the stream.
    beliefs: Vec<BTreeMap<StreamId, Option<usize>>>,
    services: Vec<Option<Arc<dyn PeerService>>>,
    lanes: BTreeMap<(usize, StreamId), mpsc::UnboundedSender<Call>>,
    doubts: Doubts,
}

/// What was sent more than once. A first attempt may have been refused, and its answer lost: then the second one comes
/// after what was handed over later.
#[derive(Debug, Clone, Default)]
pub(crate) struct Doubts {
    /// By the number of their first event.
    pub(crate) commands: BTreeSet<u64>,
    /// By the stream of their entity, since nothing tells one read from another.
    pub(crate) reads: BTreeSet<StreamId>,
}

/// The nodes as one of them sees them.
pub(crate) struct Node {
    me: usize,
    nodes: Arc<Nodes>,
}

struct Call {
    body: Bytes,
    deadline: Instant,
    in_doubt: bool,
    reply: oneshot::Sender<Result<PeerAnswer, Unanswered>>,
}

impl Nodes {
    pub(crate) fn new(random: &mut Random, count: usize, fault: Fault) -> Arc<Self> {
        let state = State {
            faults: *random.pick(&[0.0, 0.05, 0.3]),
            slow_max: Duration::from_millis(*random.pick(&[0, 1, 20])),
            random: random.fork(),
            beliefs: vec![BTreeMap::new(); count],
            services: vec![None; count],
            lanes: BTreeMap::new(),
            doubts: Doubts::default(),
        };
        Arc::new(Self {
            state: Mutex::new(state),
            fault,
        })
    }

    pub(crate) fn node(self: &Arc<Self>, me: usize) -> Arc<Node> {
        let nodes = Arc::clone(self);
        Arc::new(Node { me, nodes })
    }

    /// All nodes believe the same, or each something of its own.
    pub(crate) fn change_owner(&self, random: &mut Random, stream: &StreamId) {
        self.with(|state| {
            let count = state.beliefs.len();
            let pick = |random: &mut Random| match random.chance(0.1) {
                true => None,
                false => Some(random.below(count)),
            };
            let same = random.chance(0.6).then(|| pick(random));
            for belief in &mut state.beliefs {
                let owner = same.unwrap_or_else(|| pick(random));
                belief.insert(stream.clone(), owner);
            }
        });
    }

    /// Nothing is lost or late any more, and the first node owns everything.
    pub(crate) fn heal(&self) {
        self.with(|state| {
            state.faults = 0.0;
            state.slow_max = Duration::ZERO;
            state.beliefs.iter_mut().for_each(BTreeMap::clear);
        });
    }

    /// What was sent more than once.
    pub(crate) fn doubts(&self) -> Doubts {
        self.with(|state| state.doubts.clone())
    }

    fn doubt(&self, stream: &StreamId, call: &mut Call) {
        call.in_doubt = true;
        let text = String::from_utf8_lossy(&call.body);
        let first = text.split("\"first\":").nth(1).and_then(|rest| {
            let digits = rest.split(|c: char| !c.is_ascii_digit()).next();
            digits?.parse().ok()
        });
        self.with(|state| match first {
            Some(first) => drop(state.doubts.commands.insert(first)),
            None if text.contains("\"read\"") => drop(state.doubts.reads.insert(stream.clone())),
            None => {}
        });
    }

    fn with<T>(&self, act: impl FnOnce(&mut State) -> T) -> T {
        act(&mut self.state.lock().expect("no panic under the lock"))
    }

    fn owner(&self, node: usize, stream: &StreamId) -> Option<usize> {
        self.with(|state| *state.beliefs[node].get(stream).unwrap_or(&Some(0)))
    }

    fn breaks(&self) -> bool {
        self.with(|state| state.faults > 0.0 && state.random.chance(state.faults))
    }

    fn delay(&self) -> Duration {
        self.with(|state| state.random.duration(state.slow_max))
    }

    fn service(&self, node: usize) -> Option<Arc<dyn PeerService>> {
        self.with(|state| state.services[node].clone())
    }
}

impl Peers for Node {
    fn is_here(&self, stream: &StreamId) -> bool {
        self.nodes.owner(self.me, stream) == Some(self.me)
    }

    fn forward(
        &self,
        service: &str,
        stream: &StreamId,
        body: Bytes,
        within: Duration,
    ) -> BoxFuture<'static, Result<PeerAnswer, Unanswered>> {
        assert_eq!(service, "entity:chain");
        let (reply, answer) = oneshot::channel();
        let call = Call {
            body,
            deadline: Instant::now() + within,
            in_doubt: false,
            reply,
        };
        let (me, nodes) = (self.me, Arc::clone(&self.nodes));
        self.nodes.with(|state| {
            let lane = state.lanes.entry((me, stream.clone()));
            let lane = lane.or_insert_with(|| {
                let (sender, calls) = mpsc::unbounded_channel();
                tokio::spawn(Lane::new(nodes, me, stream.clone()).run(calls));
                sender
            });
            assert!(lane.send(call).is_ok(), "the lane runs");
        });
        answer.map(|answer| answer.expect("answered")).boxed()
    }

    fn register(&self, service: &str, handler: Arc<dyn PeerService>) {
        assert_eq!(service, "entity:chain");
        self.nodes
            .with(|state| state.services[self.me] = Some(handler));
    }
}

/// The calls of one node for one stream.
struct Lane {
    nodes: Arc<Nodes>,
    me: usize,
    stream: StreamId,
    waiting: VecDeque<Call>,
    /// Handed over and not answered, by number.
    flying: VecDeque<(u64, Call)>,
    answers: FuturesUnordered<BoxFuture<'static, (u64, Bytes)>>,
    /// To whom those were handed over.
    to: Option<Arc<dyn PeerService>>,
    numbers: u64,
}

impl Lane {
    fn new(nodes: Arc<Nodes>, me: usize, stream: StreamId) -> Self {
        Self {
            nodes,
            me,
            stream,
            waiting: VecDeque::new(),
            flying: VecDeque::new(),
            answers: FuturesUnordered::new(),
            to: None,
            numbers: 0,
        }
    }

    async fn run(mut self, mut calls: mpsc::UnboundedReceiver<Call>) {
        let mut next = Box::pin(sleep(Duration::ZERO));
        loop {
            tokio::select! {
                biased;
                Some((number, body)) = self.answers.next() => self.answered(number, body),
                () = &mut next, if !self.waiting.is_empty() => {
                    let pause = self.deliver();
                    next = Box::pin(sleep(pause));
                }
                Some(call) = calls.recv() => {
                    if self.waiting.is_empty() {
                        next = Box::pin(sleep(self.nodes.delay()));
                    }
                    self.waiting.push_back(call);
                }
                // Calls whose time is over come back.
                () = sleep(AGAIN_AFTER), if !self.flying.is_empty() => self.give_up_late(),
            }
        }
    }

    /// Hands the oldest call over to the owner. Returns the time until the next one.
    fn deliver(&mut self) -> Duration {
        let Some(call) = self.waiting.pop_front() else {
            return Duration::ZERO;
        };
        let owner = self.nodes.owner(self.me, &self.stream);
        let remaining = call.deadline.saturating_duration_since(Instant::now());
        let reason = match owner {
            _ if remaining.is_zero() => Some(UnansweredReason::Late),
            Some(owner) if owner == self.me => Some(UnansweredReason::Here),
            // Some nodes see that there is none, others cannot reach it.
            None if self.me.is_multiple_of(2) => Some(UnansweredReason::Unreachable),
            None => Some(UnansweredReason::NoOwner),
            Some(_) => None,
        };
        if let Some(reason) = reason {
            self.waiting.push_front(call);
            match reason {
                UnansweredReason::Late => self.give_up_late(),
                _ => self.all_come_back(reason),
            }
            return Duration::ZERO;
        }
        let Some(service) = owner.and_then(|owner| self.offered(owner)) else {
            self.waiting.push_front(call);
            return AGAIN_AFTER;
        };
        let is_same = |to: &Arc<dyn PeerService>| Arc::ptr_eq(to, &service);
        if !self.flying.is_empty() && !self.to.as_ref().is_some_and(is_same) {
            // Another owner, or the same one has started again: what is under way is sent again, first.
            self.waiting.push_front(call);
            self.break_off();
            return Duration::ZERO;
        }
        self.to = Some(Arc::clone(&service));
        let number = self.numbers;
        self.numbers += 1;
        let answer = service.call(PeerCall {
            stream: self.stream.clone(),
            body: call.body.clone(),
            remaining,
            is_in_doubt: call.in_doubt && self.nodes.fault != Fault::DeniesDoubt,
        });
        let delay = self.nodes.delay();
        let answer = async move {
            let body = answer.await;
            sleep(delay).await;
            (number, body)
        };
        self.answers.push(answer.boxed());
        self.flying.push_back((number, call));
        self.nodes.delay()
    }

    /// The service of a node that believes to own the stream.
    fn offered(&self, node: usize) -> Option<Arc<dyn PeerService>> {
        let believes = self.nodes.owner(node, &self.stream) == Some(node);
        self.nodes.service(node).filter(|_| believes)
    }

    fn answered(&mut self, number: u64, body: Bytes) {
        if self.nodes.breaks() {
            return self.break_off();
        }
        let at = self.flying.iter().position(|(flying, _)| *flying == number);
        if let Some((_, call)) = at.and_then(|at| self.flying.remove(at)) {
            let is_in_doubt = call.in_doubt && self.nodes.fault != Fault::DeniesDoubt;
            let _ = call.reply.send(Ok(PeerAnswer { body, is_in_doubt }));
        }
    }

    /// All answers under way are lost; some calls that were written and not delivered are delivered later.
    fn break_off(&mut self) {
        self.answers.clear();
        let late = self.nodes.with(|state| match state.random.chance(0.5) {
            true => state.random.below(3),
            false => 0,
        });
        let owner = self.nodes.owner(self.me, &self.stream);
        if let Some(service) = owner.and_then(|owner| self.nodes.service(owner))
            && owner != Some(self.me)
        {
            let mut late_calls = Vec::new();
            for call in self.waiting.iter_mut().take(late) {
                late_calls.push((call.body.clone(), call.deadline, call.in_doubt));
                self.nodes.doubt(&self.stream, call);
            }
            let longest = Duration::from_millis(100);
            let delay = self.nodes.with(|state| state.random.duration(longest));
            let stream = self.stream.clone();
            tokio::spawn(async move {
                sleep(delay).await;
                for (body, deadline, is_in_doubt) in late_calls {
                    let remaining = deadline.saturating_duration_since(Instant::now());
                    if !remaining.is_zero() {
                        drop(service.call(PeerCall {
                            stream: stream.clone(),
                            body,
                            remaining,
                            is_in_doubt,
                        }));
                    }
                }
            });
        }
        while let Some((_, mut call)) = self.flying.pop_back() {
            self.nodes.doubt(&self.stream, &mut call);
            if self.nodes.fault == Fault::FreshKeys {
                call.body = with_another_key(&call.body, self.numbers);
            }
            self.waiting.push_front(call);
        }
        let comes_back = self.nodes.with(|state| state.random.chance(0.3));
        if comes_back {
            self.all_come_back(UnansweredReason::Unreachable);
        }
    }

    /// Everything comes back, in order; what is under way is in doubt.
    fn all_come_back(&mut self, reason: UnansweredReason) {
        self.answers.clear();
        let flying = self.flying.drain(..).map(|(_, mut call)| {
            self.nodes.doubt(&self.stream, &mut call);
            call
        });
        for call in flying.chain(self.waiting.drain(..)) {
            unanswered(&self.nodes, call, reason);
        }
    }

    fn give_up_late(&mut self) {
        let now = Instant::now();
        while let Some((_, mut call)) = self.flying.pop_front_if(|(_, call)| call.deadline <= now) {
            self.nodes.doubt(&self.stream, &mut call);
            unanswered(&self.nodes, call, UnansweredReason::Late);
        }
        while let Some(call) = self.waiting.pop_front_if(|call| call.deadline <= now) {
            unanswered(&self.nodes, call, UnansweredReason::Late);
        }
    }
}

fn unanswered(nodes: &Nodes, call: Call, reason: UnansweredReason) {
    let was_written = call.in_doubt && nodes.fault != Fault::DeniesDoubt;
    let _ = call.reply.send(Err(Unanswered {
        reason,
        was_written,
    }));
}

/// The same call with another key of the same length.
fn with_another_key(body: &Bytes, number: u64) -> Bytes {
    let mut bytes = body.to_vec();
    let made = b"$made-";
    if let Some(at) = bytes.windows(made.len()).position(|part| part == made) {
        let at = at + made.len();
        bytes[at..at + 8].copy_from_slice(format!("{number:08x}").as_bytes());
    }
    bytes.into()
}
