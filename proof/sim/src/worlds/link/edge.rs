//! The forwarder, and what becomes of its calls.

use std::collections::VecDeque;
use std::time::Duration;

use gesta_core::Moment;
use gesta_link::core::{Input, Output, Receiver};
use gesta_link::{Patience, ReturnReason, Route, RouteOwner};

use super::owners::{Forth, LaneState};
use super::{CREDIT, Lanes, name_of, node_of};
use crate::driver::convention::step;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Outcome {
    Replied,
    Returned(ReturnReason, bool),
}

impl Outcome {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Replied => "replied",
            Self::Returned(reason, was_written) => name_of(reason, was_written),
        }
    }
}

/// A call that was made.
#[derive(Debug)]
pub(super) struct CallState {
    pub(super) deadline: Moment,
    pub(super) bytes: usize,
    pub(super) outcome: Option<Outcome>,
    pub(super) took_effect: bool,
    /// How often an owner has done it, or tried.
    pub(super) done: u32,
    /// It may be done before calls that were made before it: a read, for example.
    pub(super) is_free: bool,
    /// An owner has lost it. Calls after it may take effect before it does.
    pub(super) was_lost: bool,
}

/// A third of the calls do not wait for a silent owner.
fn patience(bytes: usize) -> Patience {
    match bytes % 3 {
        0 => Patience::UntilSilent,
        _ => Patience::UntilUnreachable,
    }
}

impl Lanes<'_> {
    pub(super) fn submit(&mut self, within: Duration, bytes: usize) {
        let ticket = self.calls.len();
        self.note(|| format!("call {ticket} is made, {bytes} bytes, within {within:?}"));
        let deadline = self.now + within;
        let call = Input::Call {
            ticket,
            bytes,
            deadline,
            patience: patience(bytes),
        };
        self.sender.on(call, self.now);
        self.calls.push(CallState {
            deadline,
            bytes,
            outcome: None,
            took_effect: false,
            done: 0,
            is_free: bytes.is_multiple_of(4),
            was_lost: false,
        });
    }

    fn end(&mut self, call: usize, outcome: Outcome) {
        self.note(|| format!("call {call}: {outcome:?}"));
        let before = self.calls[call].outcome.replace(outcome);
        assert_eq!(before, None, "call {call} has a second outcome {outcome:?}");
    }

    /// What the shell does after each input.
    pub(super) fn pump(&mut self) {
        if let Some(node) = self.sender.node().cloned() {
            let link = self.links[node_of(&node)];
            self.sender.on(Input::Link(node, link), self.now);
        }
        let outputs = step(&mut self.sender, self.now);
        self.perform(outputs);
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
    }

    fn take_outputs(&mut self) {
        let outputs = self.sender.take_outputs();
        self.perform(outputs);
    }

    fn perform(&mut self, outputs: Vec<Output<usize, ()>>) {
        for output in outputs {
            match output {
                Output::OpenLane { lane, route } => {
                    let RouteOwner::Node(address) = route.owner else {
                        panic!("a lane to no node");
                    };
                    let node = node_of(&address);
                    self.note(|| format!("lane {lane} is opened to node {node}"));
                    let state = LaneState {
                        node,
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
                Output::Broken { lane, rule } => {
                    panic!("the owner has broken a rule of lane {lane}: {rule}");
                }
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
                    let is_impatient = patience(self.calls[ticket].bytes) == Patience::UntilSilent;
                    if reason != ReturnReason::DeadlineOver {
                        self.returned[usize::from(is_impatient)].push(ticket);
                    }
                    assert!(reason != ReturnReason::Silent || is_impatient);
                    self.end(ticket, Outcome::Returned(reason, was_written));
                }
            }
        }
    }

    /// The forwarder takes what the next frame of a lane says, or hears that the lane has ended.
    pub(super) fn answered(&mut self, input: Input<usize, ()>) {
        self.sender.on(input, self.now);
        self.take_outputs();
    }

    /// The forwarder is told what the database says about the owner.
    pub(super) fn look(&mut self) {
        let route = Route {
            owner: self.owner.clone(),
            epoch: self.epoch,
        };
        self.sender.on(Input::Route(route), self.now);
    }
}
