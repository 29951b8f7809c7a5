//! The two pure cores of a lane: one forwarder, two nodes that own the log in turn, a network that delays and loses.
//!
//! A node may believe that it is the owner though it is not any more; what it does then has no effect, and it finds out
//! (in the store, the chained insert misses). A call is known by its id, so doing it a second time has no effect
//! either. Frames that were written before a connection was cut may arrive long after. In some schedules an owner loses
//! calls that it has taken, and its lane goes on.
//!
//! Checked: replied calls took effect in the order of their invocation; each call has exactly one outcome; a reply
//! means that the call took effect, `was_written: false` that it never did; only impatient calls come back from a
//! silent owner; no call takes effect after its deadline plus the time that its frame was under way; calls that come
//! back, do so in order; nobody breaks the rules of a lane; and after some time of peace every call has its outcome and
//! a new one succeeds, at once unless the owner has lost calls.
//!
//! * `edge`: the forwarder; `owners`: the nodes that own the log, and the lanes to them.

mod edge;
mod owners;

use std::collections::BTreeMap;
use std::time::Duration;

use gesta_core::{Incarnation, Moment};
use gesta_link::core::{Credit, LinkState, Sender};
use gesta_link::{Address, Epoch, ReturnReason, Route, RouteOwner};
use uuid::Uuid;

use self::edge::{CallState, Outcome};
use self::owners::{LaneState, Node};
use crate::choices::Choices;
use crate::driver::{Form, Schedule, Trace, World};

/// The world.
pub static WORLD: World = World {
    name: "link",
    forms: &[Form {
        name: "lanes",
        turns: 1,
        run,
    }],
};

const CREDIT: Credit = Credit {
    calls: 6,
    bytes: 1_000,
};
/// The time without an owner after which calls come back.
const RETURN_AFTER: Duration = Duration::from_secs(1);
/// The moment at the start.
const START: Moment = Moment(Duration::from_secs(3_600));
/// The most steps before peace.
const STEPS_MAX: u32 = 250;
/// The longest time of a call.
const WITHIN: Duration = Duration::from_secs(20);

/// One forwarder, and the nodes that own the log.
struct Lanes<'a> {
    choices: &'a mut Choices,
    trace: Trace,
    now: Moment,
    sender: Sender<usize, ()>,
    calls: Vec<CallState>,
    lanes: BTreeMap<u64, LaneState>,
    nodes: [Node; 2],
    owner: RouteOwner,
    epoch: Epoch,
    /// Hints promise the other node an ownership that does not come about.
    promises_too_much: bool,
    /// Whether owners lose calls that they have taken.
    loses_calls: bool,
    effects: Vec<usize>,
    /// The calls that came back, those that do not wait for a silent owner apart: they overtake the others.
    returned: [Vec<usize>; 2],
    links: [LinkState; 2],
}

fn address(node: usize) -> Address {
    Address::new(["a:1", "b:1"][node])
}

fn node_of(address: &Address) -> usize {
    usize::from(address.as_str() == "b:1")
}

fn run(schedule: &mut Schedule) -> Result<(), String> {
    let mut world = Lanes::new(&mut schedule.choices, schedule.trace);
    for _ in 0..world.choices.pick(STEPS_MAX) {
        world.step();
    }
    world.peace();
    world.check()?;
    let outcomes = world.calls.iter().filter_map(|call| call.outcome);
    let names: Vec<&'static str> = outcomes.map(Outcome::name).collect();
    let lanes = world.lanes.len();
    names.into_iter().for_each(|name| schedule.reach(name));
    (0..lanes).for_each(|_| schedule.reach("lane"));
    Ok(())
}

impl<'a> Lanes<'a> {
    fn new(choices: &'a mut Choices, trace: Trace) -> Self {
        let epoch = Epoch {
            incarnation: Incarnation(Uuid::nil()),
            number: 1,
        };
        let owner = RouteOwner::Node(address(0));
        let route = Route {
            owner: owner.clone(),
            epoch,
        };
        let loses_calls = choices.chance(1, 4);
        let mut world = Self {
            choices,
            trace,
            now: START,
            sender: Sender::new(Address::new("own:1"), RETURN_AFTER, route, START),
            calls: Vec::new(),
            lanes: BTreeMap::new(),
            nodes: Default::default(),
            owner,
            epoch,
            promises_too_much: false,
            loses_calls,
            effects: Vec::new(),
            returned: Default::default(),
            links: [LinkState::Up(CREDIT); 2],
        };
        world.nodes[0].believes = true;
        world
    }

    fn note(&self, what: impl FnOnce() -> String) {
        self.trace.note(self.now.since(START), what);
    }

    fn step(&mut self) {
        let kind = self.choices.pick(37);
        match kind {
            0..=5 => self.submit_any(),
            6..=11 => self.with_lane(Self::deliver_forth),
            12..=16 => self.with_lane(Self::deliver_back),
            17..=21 => {
                let node = self.choices.index(2);
                self.finish(node);
            }
            22..=23 => self.now += Duration::from_millis(u64::from(1 + self.choices.pick(40))),
            24 => self.now += Duration::from_millis(300 * u64::from(self.choices.pick(5))),
            25 => self.move_log(),
            26 => self.with_lane(Self::cut),
            27 => {
                let states = [
                    LinkState::Up(CREDIT),
                    LinkState::Down,
                    LinkState::Unreachable,
                ];
                let state = states[self.choices.index(states.len())];
                self.set_link(state);
            }
            28 => self.links = [LinkState::Up(CREDIT); 2],
            29 => self.look(),
            30 => {
                let (node, keep) = (self.choices.index(2), self.choices.index(4));
                self.stop_serving(node, keep);
            }
            31 => self.promises_too_much = !self.promises_too_much,
            32 => {
                let node = self.choices.index(2);
                self.nodes[node].believes = self.owner == RouteOwner::Node(address(node));
            }
            33 | 34 => self.set_link(LinkState::Silent),
            35 => self.with_lane(Self::end_lane),
            _ => {
                let node = self.choices.index(2);
                self.lose_call(node);
            }
        }
        self.pump();
    }

    fn submit_any(&mut self) {
        let within = match self.choices.chance(1, 4) {
            true => Duration::from_millis(u64::from(3 + self.choices.pick(60))),
            false => WITHIN,
        };
        let bytes = self.choices.index(400);
        self.submit(within, bytes);
    }

    fn set_link(&mut self, state: LinkState) {
        let node = self.choices.index(2);
        self.note(|| format!("the link to node {node} is {state:?}"));
        self.links[node] = state;
    }

    /// Does something to a lane, mostly to one of the newest.
    fn with_lane(&mut self, act: impl FnOnce(&mut Self, u64)) {
        let among = self.lanes.len().clamp(1, 3);
        let back = self.choices.index(among);
        if let Some(lane) = self.lanes.keys().nth_back(back).copied() {
            act(self, lane);
        }
    }

    fn move_log(&mut self) {
        let owner = match self.choices.pick(4) {
            0 => RouteOwner::Node(address(0)),
            1 => RouteOwner::Node(address(1)),
            2 => RouteOwner::Local,
            _ => RouteOwner::Nobody,
        };
        self.move_to(owner);
    }

    fn move_to(&mut self, owner: RouteOwner) {
        self.note(|| format!("the log moves to {owner:?}"));
        self.epoch.number += 1;
        self.owner = owner;
        if let RouteOwner::Node(address) = &self.owner {
            self.nodes[node_of(address)].believes = true;
        }
    }

    // ---- peace ----

    /// No more faults: everything must be answered.
    fn peace(&mut self) {
        self.note(|| "peace".to_owned());
        let owner = match &self.owner {
            RouteOwner::Node(address) => node_of(address),
            RouteOwner::Nobody | RouteOwner::Local => 0,
        };
        let other = 1 - owner;
        let goes_on = self.owner == RouteOwner::Node(address(owner));
        let owner = match self.nodes[owner].has_lost && self.choices.chance(1, 2) {
            true => other,
            false => owner,
        };
        if !goes_on || owner == other {
            self.move_to(RouteOwner::Node(address(owner)));
        }
        self.promises_too_much = false;
        self.links = [LinkState::Up(CREDIT); 2];
        for node in 0..2 {
            self.nodes[node].believes = self.owner == RouteOwner::Node(address(node));
        }
        self.look();
        let loses = self.nodes[owner].has_lost;
        if loses {
            // Nothing comes on the lane on which a call was lost. It is given up some time after that call.
            self.go_on_in_peace(400, Duration::from_millis(100));
        }
        self.submit(WITHIN, 1);
        self.go_on_in_peace(2_000, Duration::from_millis(1));
        let last = self.calls.last().and_then(|call| call.outcome);
        assert_eq!(last, Some(Outcome::Replied), "the call made in peace");
        // What the other node has lost is given up, too.
        if !loses && self.loses_calls {
            self.go_on_in_peace(400, Duration::from_millis(100));
        }
    }

    fn go_on_in_peace(&mut self, rounds: u32, pause: Duration) {
        for round in 0..rounds {
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
            self.now += pause;
        }
        self.pump();
    }

    fn check(&self) -> Result<(), String> {
        for (number, call) in self.calls.iter().enumerate() {
            match call.outcome {
                None => return Err(format!("call {number} has no outcome")),
                Some(Outcome::Replied) if !call.took_effect => {
                    return Err(format!("call {number} was replied without an effect"));
                }
                Some(Outcome::Returned(reason, false)) if call.took_effect => {
                    return Err(format!("call {number} took effect: {reason}"));
                }
                Some(_) => {}
            }
        }
        let replied = |call: &&usize| {
            let call = &self.calls[**call];
            call.outcome == Some(Outcome::Replied) && !call.is_free && !call.was_lost
        };
        let effects: Vec<_> = self.effects.iter().filter(replied).collect();
        if !effects.is_sorted() {
            return Err(format!("effects out of order: {effects:?}"));
        }
        if !self.returned.iter().all(|calls| calls.is_sorted()) {
            return Err(format!("returned out of order: {:?}", self.returned));
        }
        Ok(())
    }
}

/// Returns the name of the way in which a call comes back.
fn name_of(reason: ReturnReason, was_written: bool) -> &'static str {
    match (reason, was_written) {
        (ReturnReason::Local, false) => "local",
        (ReturnReason::Local, true) => "local in doubt",
        (ReturnReason::Unreachable, false) => "unreachable",
        (ReturnReason::Unreachable, true) => "unreachable in doubt",
        (ReturnReason::Silent, false) => "silent",
        (ReturnReason::Silent, true) => "silent in doubt",
        (ReturnReason::NoOwner, false) => "no owner",
        (ReturnReason::NoOwner, true) => "no owner in doubt",
        (ReturnReason::DeadlineOver, false) => "late",
        (ReturnReason::DeadlineOver, true) => "late in doubt",
        _ => "closed",
    }
}
