//! The nodes that own the log in turn, and the lanes to them.

use std::collections::VecDeque;
use std::time::Duration;

use gesta_core::Moment;
use gesta_link::core::{CallVerdict, Input, Newest, Receiver, Refusal};
use gesta_link::{Address, Epoch, Hint, RouteOwner};

use super::{Lanes, address};

/// A call on its way to the owner.
#[derive(Debug, Clone, Copy)]
pub(super) struct Forth {
    pub(super) seq: u64,
    pub(super) call: usize,
    pub(super) remaining: Duration,
    pub(super) written_at: Moment,
}

/// A frame on its way back.
#[derive(Debug)]
pub(super) enum Back {
    Reply(u64),
    DeadlineOver(u64),
    NotHere(u64, u64, Hint),
}

/// A lane with what is on its way, at the owner's side.
#[derive(Debug)]
pub(super) struct LaneState {
    pub(super) node: usize,
    pub(super) receiver: Receiver,
    pub(super) forth: VecDeque<Forth>,
    pub(super) back: VecDeque<Back>,
    /// The first frame has arrived, which opens the lane.
    pub(super) is_open: bool,
    /// The epoch that the forwarder means.
    pub(super) epoch: Epoch,
    /// The node has stopped. It reads nothing more, and the lane ends once its last frames have arrived.
    pub(super) has_ended: bool,
}

/// A call that a node has taken.
#[derive(Debug, Clone, Copy)]
pub(super) struct TakenCall {
    lane: u64,
    seq: u64,
    call: usize,
    /// It is dropped after this.
    until: Moment,
    /// It must not take effect after this.
    latest: Moment,
}

#[derive(Debug, Default)]
pub(super) struct Node {
    pub(super) believes: bool,
    /// It has lost a call, so nothing comes on a lane to it until that is given up.
    pub(super) has_lost: bool,
    newest: Newest,
    /// The lane of the last call taken.
    served: u64,
    pipeline: VecDeque<TakenCall>,
}

impl Lanes<'_> {
    fn lane(&mut self, lane: u64) -> &mut LaneState {
        self.lanes.get_mut(&lane).expect("it was opened")
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

    pub(super) fn deliver_forth(&mut self, lane: u64) {
        let (now, hint) = (self.now, self.hint());
        let state = self.lanes.get_mut(&lane).expect("it was opened");
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
        let call = &self.calls[frame.call];
        let verdict = state
            .receiver
            .call(now, frame.seq, call.bytes, now, frame.remaining)
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
                let under_way = now.since(frame.written_at);
                node.pipeline.push_back(TakenCall {
                    lane,
                    seq: frame.seq,
                    call: frame.call,
                    until: now + remaining,
                    latest: call.deadline + under_way,
                });
            }
            CallVerdict::HandOver(_) => {
                let refusal = state.receiver.not_here(frame.seq, call.bytes);
                if let Refusal::From { from, untaken } = refusal {
                    state.back.push_back(Back::NotHere(from, untaken, hint));
                }
            }
        }
    }

    pub(super) fn deliver_back(&mut self, lane: u64) {
        let state = self.lane(lane);
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
        self.answered(input);
    }

    /// A node finishes the first call of its pipeline.
    pub(super) fn finish(&mut self, node: usize) {
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

    /// A node loses a call that it has taken, and goes on.
    pub(super) fn lose_call(&mut self, node: usize) {
        if self.loses_calls
            && let Some(taken) = self.nodes[node].pipeline.pop_front()
        {
            self.note(|| format!("node {node} loses call {}", taken.call));
            self.calls[taken.call].was_lost = true;
            self.nodes[node].has_lost = true;
        }
    }

    /// The owner stops serving: the calls from some place on that have an order go back, the others are done later.
    pub(super) fn stop_serving(&mut self, node: usize, keep: usize) {
        let hint = self.hint();
        self.nodes[node].believes = false;
        let pipeline = std::mem::take(&mut self.nodes[node].pipeline);
        for (place, taken) in pipeline.into_iter().enumerate() {
            if place < keep || self.calls[taken.call].is_free {
                self.nodes[node].pipeline.push_back(taken);
            } else {
                self.send_back(taken, hint.clone());
            }
        }
    }

    fn send_back(&mut self, taken: TakenCall, hint: Hint) {
        let bytes = self.calls[taken.call].bytes;
        let lane = self.lane(taken.lane);
        let refusal = lane.receiver.not_here(taken.seq, bytes);
        if let Refusal::From { from, untaken } = refusal
            && !lane.has_ended
        {
            lane.back.push_back(Back::NotHere(from, untaken, hint));
        }
    }

    /// The node of a lane stops, as after its hand-overs: it refuses what it has not read. What it has taken may still
    /// take effect, but is not answered any more.
    pub(super) fn end_lane(&mut self, lane: u64) {
        let state = self.lanes.get_mut(&lane).expect("it was opened");
        let is_served = self.nodes[state.node].newest.serves(lane);
        if !is_served || !state.is_open || std::mem::replace(&mut state.has_ended, true) {
            return;
        }
        if let Refusal::From { from, untaken } = state.receiver.end() {
            let hint = Hint {
                owner: None,
                epoch: Epoch {
                    number: 0,
                    ..state.epoch
                },
            };
            state.back.push_back(Back::NotHere(from, untaken, hint));
        }
        self.note(|| format!("the node of lane {lane} stops"));
    }

    fn do_call(&mut self, taken: TakenCall) {
        let is_over = self.now > taken.until;
        let call = &mut self.calls[taken.call];
        call.done += u32::from(!is_over);
        if !is_over && !call.took_effect {
            assert!(self.now <= taken.latest, "took effect after its deadline");
            call.took_effect = true;
            self.effects.push(taken.call);
        }
        let bytes = call.bytes;
        let lane = self.lane(taken.lane);
        if lane.receiver.answered(taken.seq, bytes) && !lane.has_ended {
            lane.back.push_back(match is_over {
                true => Back::DeadlineOver(taken.seq),
                false => Back::Reply(taken.seq),
            });
        }
    }

    /// Breaks a lane. Only the first frames that were written may arrive.
    pub(super) fn cut(&mut self, lane: u64) {
        let keep = self.choices.index(5);
        self.note(|| format!("lane {lane} breaks, and {keep} frames may arrive"));
        let state = self.lane(lane);
        state.forth.truncate(keep);
        state.back.clear();
        self.answered(Input::LaneLost(lane));
    }
}
