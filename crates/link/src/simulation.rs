//! Random schedules for the two pure cores of a lane: one forwarder, two nodes that own the log in turn, a network that
//! delays and loses.
//!
//! A node may believe that it is the owner though it is not any more; what it does then has no effect, and it finds out
//! (in the store, the chained insert misses). A call is known by its id, so doing it a second time has no effect
//! either. Frames that were written before a connection was cut may arrive long after.
//!
//! Checked: replied calls took effect in the order of their invocation; each call has exactly one outcome; a reply
//! means that the call took effect, `was_written: false` that it never did; only impatient calls come back from a
//! silent owner; no call takes effect after its deadline plus the time that its frame was under way; calls that come
//! back, do so in order; and after some time of peace every call has its outcome and a new one succeeds.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use gesta_core::{Incarnation, Moment};
use proptest::prelude::*;
use uuid::Uuid;

use crate::error::ReturnReason;
use crate::receiving::{CallVerdict, Newest, Receiver, Refusal};
use crate::route::{Address, Epoch, Hint, Route, RouteOwner};
use crate::sending::{Credit, Input, LinkState, Output, Patience, Sender};

const CREDIT: Credit = Credit {
    calls: 6,
    bytes: 1_000,
};
const RETURN_AFTER: Duration = Duration::from_secs(1);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Outcome {
    Replied,
    Returned(ReturnReason, bool),
}

#[derive(Debug)]
struct CallState {
    deadline: Moment,
    bytes: usize,
    outcome: Option<Outcome>,
    took_effect: bool,
    /// How often an owner has done it, or tried.
    done: u32,
    /// It may be done before calls that were made before it: a read, for example.
    is_free: bool,
}

/// A call on its way to the owner.
#[derive(Debug, Clone, Copy)]
struct Forth {
    seq: u64,
    call: usize,
    remaining: Duration,
    written_at: Moment,
}

#[derive(Debug)]
enum Back {
    Reply(u64),
    DeadlineOver(u64),
    NotHere(u64, u64, Hint),
}

/// A lane with what is on its way, at the owner's side.
#[derive(Debug)]
struct LaneState {
    node: usize,
    receiver: Receiver,
    forth: VecDeque<Forth>,
    back: VecDeque<Back>,
    /// The first frame has arrived, which opens the lane.
    is_open: bool,
    /// The epoch that the forwarder means.
    epoch: Epoch,
    /// The node has stopped. It reads nothing more, and the lane ends once its last frames have arrived.
    has_ended: bool,
}

/// A call that a node has taken.
#[derive(Debug, Clone, Copy)]
struct TakenCall {
    lane: u64,
    seq: u64,
    call: usize,
    /// It is dropped after this.
    until: Moment,
    /// It must not take effect after this.
    latest: Moment,
}

#[derive(Debug, Default)]
struct Node {
    believes: bool,
    newest: Newest,
    /// The lane of the last call taken.
    served: u64,
    pipeline: VecDeque<TakenCall>,
}

struct World {
    now: Moment,
    sender: Sender<usize, ()>,
    calls: Vec<CallState>,
    lanes: BTreeMap<u64, LaneState>,
    nodes: [Node; 2],
    owner: RouteOwner,
    epoch: Epoch,
    /// Hints promise the other node an ownership that does not come about.
    promises_too_much: bool,
    effects: Vec<usize>,
    /// The calls that came back, those that do not wait for a silent owner apart: they overtake the others.
    returned: [Vec<usize>; 2],
    links: [LinkState; 2],
}

/// A third of the calls do not wait for a silent owner.
fn patience(bytes: usize) -> Patience {
    match bytes % 3 {
        0 => Patience::UntilSilent,
        _ => Patience::UntilUnreachable,
    }
}

fn address(node: usize) -> Address {
    Address::new(["a:1", "b:1"][node])
}

fn node_of(address: &Address) -> usize {
    usize::from(address.as_str() == "b:1")
}

impl World {
    fn new() -> Self {
        let epoch = Epoch {
            incarnation: Incarnation(Uuid::nil()),
            number: 1,
        };
        let now = Moment::START;
        let owner = RouteOwner::Node(address(0));
        let route = Route {
            owner: owner.clone(),
            epoch,
        };
        let mut world = Self {
            now,
            sender: Sender::new(Address::new("own:1"), RETURN_AFTER, route, now),
            calls: Vec::new(),
            lanes: BTreeMap::new(),
            nodes: Default::default(),
            owner,
            epoch,
            promises_too_much: false,
            effects: Vec::new(),
            returned: Default::default(),
            links: [LinkState::Up(CREDIT); 2],
        };
        world.nodes[0].believes = true;
        world
    }

    fn submit(&mut self, within: Duration, bytes: usize) {
        let deadline = self.now + within;
        let patience = patience(bytes);
        let call = Input::Call {
            ticket: self.calls.len(),
            bytes,
            deadline,
            patience,
        };
        self.sender.on(call, self.now);
        self.calls.push(CallState {
            deadline,
            bytes,
            outcome: None,
            took_effect: false,
            done: 0,
            is_free: bytes.is_multiple_of(4),
        });
    }

    fn end(&mut self, call: usize, outcome: Outcome) {
        let before = self.calls[call].outcome.replace(outcome);
        assert_eq!(before, None, "call {call} has a second outcome {outcome:?}");
    }

    /// What the shell does after each input.
    fn pump(&mut self) {
        if let Some(node) = self.sender.node().cloned() {
            let link = self.links[node_of(&node)];
            self.sender.on(Input::Link(node, link), self.now);
        }
        self.sender.work(self.now);
        loop {
            self.take_outputs();
            let Some(write) = self.sender.next_write(self.now) else {
                break;
            };
            let call = *write.ticket;
            assert!(self.calls[call].deadline > self.now, "written too late");
            assert!(
                write.is_in_doubt || !self.calls[call].took_effect,
                "the owner is not told that the call was written before"
            );
            let frame = Forth {
                seq: write.seq,
                call,
                remaining: write.remaining,
                written_at: self.now,
            };
            let newest = self.lanes.values_mut().next_back().expect("a lane is open");
            newest.forth.push_back(frame);
        }
        self.take_outputs();
        assert!(
            self.sender.wake_at().is_none_or(|at| at > self.now) || self.sender.node().is_none()
        );
    }

    fn take_outputs(&mut self) {
        for output in self.sender.take_outputs() {
            match output {
                Output::OpenLane { lane, route } => {
                    let RouteOwner::Node(address) = route.owner else {
                        panic!("a lane to no node");
                    };
                    let state = LaneState {
                        node: node_of(&address),
                        receiver: Receiver::new(CREDIT),
                        forth: VecDeque::new(),
                        back: VecDeque::new(),
                        is_open: false,
                        epoch: route.epoch,
                        has_ended: false,
                    };
                    self.lanes.insert(lane, state);
                }
                Output::CloseLane { .. } | Output::Hint(_) => {}
                Output::Broken { rule, .. } => panic!("the owner keeps the rules: {rule}"),
                Output::Reply {
                    ticket: call,
                    is_in_doubt,
                    ..
                } => {
                    assert!(self.calls[call].took_effect, "replied without an effect");
                    let done = self.calls[call].done;
                    assert!(done == 1 || is_in_doubt, "done {done} times beyond doubt");
                    self.end(call, Outcome::Replied);
                }
                Output::Return {
                    ticket,
                    reason,
                    was_written,
                } => {
                    let patience = patience(self.calls[ticket].bytes);
                    let is_impatient = patience == Patience::UntilSilent;
                    if reason != ReturnReason::DeadlineOver {
                        self.returned[usize::from(is_impatient)].push(ticket);
                    }
                    assert!(reason != ReturnReason::Silent || is_impatient);
                    self.end(ticket, Outcome::Returned(reason, was_written));
                }
            }
        }
    }

    fn hint(&self) -> Hint {
        if self.promises_too_much {
            let is_first = self.owner == RouteOwner::Node(address(0));
            let mut epoch = self.epoch;
            epoch.number += 1;
            return Hint {
                owner: Some(address(usize::from(is_first))),
                epoch,
            };
        }
        let owner = match &self.owner {
            RouteOwner::Nobody => None,
            RouteOwner::Local => Some(Address::new("own:1")),
            RouteOwner::Node(address) => Some(address.clone()),
        };
        Hint {
            owner,
            epoch: self.epoch,
        }
    }

    fn nth_lane(&self, choice: usize) -> Option<u64> {
        let count = self.lanes.len();
        // Mostly the newest lanes.
        let back = choice % count.clamp(1, 3);
        self.lanes.keys().nth_back(back).copied()
    }

    fn deliver_forth(&mut self, lane: u64) {
        let hint = self.hint();
        let state = self.lanes.get_mut(&lane).expect("exists");
        let Some(frame) = state.forth.pop_front().filter(|_| !state.has_ended) else {
            return;
        };
        let node = &mut self.nodes[state.node];
        if !state.is_open {
            state.is_open = true;
            node.newest.open(lane);
        }
        if !node.newest.serves(lane) {
            // The owner resets a lane that is not the newest.
            state.forth.clear();
            return;
        }
        let bytes = self.calls[frame.call].bytes;
        let verdict = state
            .receiver
            .call(self.now, frame.seq, bytes, self.now, frame.remaining)
            .expect("the forwarder keeps the rules");
        match verdict {
            CallVerdict::Refused => {}
            CallVerdict::DeadlineOver => panic!("it has arrived just now"),
            CallVerdict::HandOver(remaining) if node.believes => {
                state.receiver.taken(frame.seq);
                assert!(
                    node.served <= lane,
                    "an older lane is served after a newer one"
                );
                node.served = lane;
                let under_way = self.now.since(frame.written_at);
                node.pipeline.push_back(TakenCall {
                    lane,
                    seq: frame.seq,
                    call: frame.call,
                    until: self.now + remaining,
                    latest: self.calls[frame.call].deadline + under_way,
                });
            }
            CallVerdict::HandOver(_) => {
                if let Refusal::From { from, untaken } = state.receiver.not_here(frame.seq, bytes) {
                    state.back.push_back(Back::NotHere(from, untaken, hint));
                }
            }
        }
    }

    fn deliver_back(&mut self, lane: u64) {
        let state = self.lanes.get_mut(&lane).expect("exists");
        let input = match state.back.pop_front() {
            None if state.has_ended => Input::LaneLost(lane),
            None => return,
            Some(Back::Reply(seq)) => Input::Replied {
                lane,
                seq,
                reply: (),
            },
            Some(Back::DeadlineOver(seq)) => Input::Dropped { lane, seq },
            Some(Back::NotHere(from, untaken, hint)) => Input::NotHere {
                lane,
                from,
                untaken,
                hint,
            },
        };
        self.sender.on(input, self.now);
        self.take_outputs();
    }

    /// A node finishes the first call of its pipeline.
    fn finish(&mut self, node: usize) {
        let hint = self.hint();
        let is_owner = self.owner == RouteOwner::Node(address(node));
        let Some(taken) = self.nodes[node].pipeline.pop_front() else {
            return;
        };
        if !is_owner {
            self.nodes[node].believes = false;
            self.send_back(taken, hint);
            // The rest of the pipeline goes the same way.
            return self.finish(node);
        }
        self.do_call(taken);
    }

    /// The owner stops serving: the calls from some place on that have an order go back, the others are done later.
    fn stop_serving(&mut self, node: usize, keep: usize) {
        let hint = self.hint();
        self.nodes[node].believes = false;
        for (place, taken) in std::mem::take(&mut self.nodes[node].pipeline)
            .into_iter()
            .enumerate()
        {
            if place < keep || self.calls[taken.call].is_free {
                self.nodes[node].pipeline.push_back(taken);
            } else {
                self.send_back(taken, hint.clone());
            }
        }
    }

    fn send_back(&mut self, taken: TakenCall, hint: Hint) {
        let lane = self.lanes.get_mut(&taken.lane).expect("exists");
        let bytes = self.calls[taken.call].bytes;
        let refusal = lane.receiver.not_here(taken.seq, bytes);
        if let Refusal::From { from, untaken } = refusal
            && !lane.has_ended
        {
            lane.back.push_back(Back::NotHere(from, untaken, hint));
        }
    }

    /// The node of a lane stops, as after its hand-overs: it refuses what it has not read. What it has taken may still
    /// take effect, but is not answered any more.
    fn end_lane(&mut self, lane: u64) {
        let state = self.lanes.get_mut(&lane).expect("exists");
        let is_served = self.nodes[state.node].newest.serves(lane);
        if !is_served || !state.is_open || std::mem::replace(&mut state.has_ended, true) {
            return;
        }
        if let Refusal::From { from, untaken } = state.receiver.end() {
            let hint = Hint::nothing(state.epoch.incarnation);
            state.back.push_back(Back::NotHere(from, untaken, hint));
        }
    }

    fn do_call(&mut self, taken: TakenCall) {
        let call = &mut self.calls[taken.call];
        let lane = self.lanes.get_mut(&taken.lane).expect("exists");
        let is_over = self.now > taken.until;
        call.done += u32::from(!is_over);
        if !is_over && !call.took_effect {
            assert!(self.now <= taken.latest, "took effect after its deadline");
            call.took_effect = true;
            self.effects.push(taken.call);
        }
        if lane.receiver.answered(taken.seq, call.bytes) && !lane.has_ended {
            lane.back.push_back(match is_over {
                true => Back::DeadlineOver(taken.seq),
                false => Back::Reply(taken.seq),
            });
        }
    }

    fn cut(&mut self, lane: u64, keep: usize) {
        let state = self.lanes.get_mut(&lane).expect("exists");
        state.forth.truncate(keep);
        state.back.clear();
        self.sender.on(Input::LaneLost(lane), self.now);
    }

    fn move_log(&mut self, choice: usize) {
        self.epoch.number += 1;
        self.owner = match choice % 4 {
            0 => RouteOwner::Node(address(0)),
            1 => RouteOwner::Node(address(1)),
            2 => RouteOwner::Local,
            _ => RouteOwner::Nobody,
        };
        if let RouteOwner::Node(address) = &self.owner {
            self.nodes[node_of(address)].believes = true;
        }
    }

    fn look(&mut self) {
        let route = Route {
            owner: self.owner.clone(),
            epoch: self.epoch,
        };
        self.sender.on(Input::Route(route), self.now);
    }

    fn step(&mut self, kind: u8, choice: usize) {
        match kind {
            0..=5 => {
                let within = match choice % 4 {
                    0 => Duration::from_millis(3 + choice as u64 % 60),
                    _ => Duration::from_secs(20),
                };
                self.submit(within, choice % 400);
            }
            6..=16 | 26 | 35 => {
                if let Some(lane) = self.nth_lane(choice) {
                    match kind {
                        6..=11 => self.deliver_forth(lane),
                        12..=16 => self.deliver_back(lane),
                        26 => self.cut(lane, choice % 5),
                        _ => self.end_lane(lane),
                    }
                }
            }
            17..=21 => self.finish(choice % 2),
            22..=23 => self.now += Duration::from_millis(1 + choice as u64 % 40),
            24 => self.now += Duration::from_millis(300 * (choice as u64 % 5)),
            25 => self.move_log(choice),
            27 => {
                let link = [
                    LinkState::Up(CREDIT),
                    LinkState::Down,
                    LinkState::Unreachable,
                ];
                self.links[choice % 2] = link[choice / 2 % 3];
            }
            33 | 34 => self.links[choice % 2] = LinkState::Silent,
            28 => self.links = [LinkState::Up(CREDIT); 2],
            29 => self.look(),
            31 => self.promises_too_much = !self.promises_too_much,
            30 => self.stop_serving(choice % 2, choice / 2 % 4),
            _ => {
                self.nodes[choice % 2].believes =
                    self.owner == RouteOwner::Node(address(choice % 2))
            }
        }
        self.pump();
    }

    /// No more faults: everything must be answered.
    fn peace(&mut self) {
        if !matches!(self.owner, RouteOwner::Node(_)) {
            self.move_log(0);
        }
        self.promises_too_much = false;
        self.links = [LinkState::Up(CREDIT); 2];
        for node in 0..2 {
            self.nodes[node].believes = self.owner == RouteOwner::Node(address(node));
        }
        self.look();
        self.submit(Duration::from_secs(20), 1);
        for round in 0..2_000 {
            if round % 500 == 0 {
                self.look();
            }
            self.pump();
            for lane in self.lanes.keys().copied().collect::<Vec<_>>() {
                self.deliver_forth(lane);
                self.deliver_back(lane);
            }
            self.finish(0);
            self.finish(1);
            self.now += Duration::from_millis(1);
        }
        self.pump();
    }

    fn check(&self) {
        for (number, call) in self.calls.iter().enumerate() {
            match call.outcome {
                None => panic!("call {number} has no outcome"),
                Some(Outcome::Replied) => assert!(call.took_effect),
                Some(Outcome::Returned(reason, false)) => {
                    assert!(!call.took_effect, "call {number} took effect: {reason}");
                }
                Some(Outcome::Returned(_, true)) => {}
            }
        }
        let replied = |call: &&usize| {
            let call = &self.calls[**call];
            call.outcome == Some(Outcome::Replied) && !call.is_free
        };
        let effects: Vec<_> = self.effects.iter().filter(replied).collect();
        assert!(effects.is_sorted(), "effects out of order: {effects:?}");
        assert!(
            self.returned.iter().all(|calls| calls.is_sorted()),
            "returned out of order: {:?}",
            self.returned
        );
        let last = self.calls.last().and_then(|call| call.outcome);
        assert_eq!(last, Some(Outcome::Replied), "the call made in peace");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2_000, max_shrink_iters: 20_000, ..ProptestConfig::default() })]

    #[test]
    fn lanes_keep_their_promises(steps in prop::collection::vec((0_u8..36, 0_usize..1_000), 1..250)) {
        let mut world = World::new();
        for (kind, choice) in steps {
            world.step(kind, choice);
        }
        world.peace();
        world.check();
    }
}

/// Goal: the schedules above do reach what they are about.
#[test]
fn schedules_reach_every_outcome() {
    use proptest::{strategy::ValueTree, test_runner::TestRunner};

    let steps = prop::collection::vec((0_u8..36, 0_usize..1_000), 200..250);
    let mut runner = TestRunner::deterministic();
    let (mut outcomes, mut in_order) = (BTreeMap::new(), 0);
    for _ in 0..300 {
        let steps = steps.new_tree(&mut runner).expect("a value").current();
        let mut world = World::new();
        for (kind, choice) in steps {
            world.step(kind, choice);
        }
        world.peace();
        for call in &world.calls {
            let name = format!("{:?}", call.outcome.expect("an outcome"));
            *outcomes.entry(name).or_insert(0) += 1;
        }
        in_order += world.lanes.len();
    }
    assert!(in_order > 1_000, "few lanes: {in_order}");
    for reason in ["Local", "Unreachable", "Silent", "NoOwner", "DeadlineOver"] {
        for was_written in [true, false] {
            let name = format!("Returned({reason}, {was_written})");
            assert!(
                outcomes.get(&name).is_some_and(|count| *count > 5),
                "{name}: {outcomes:?}"
            );
        }
    }
}
