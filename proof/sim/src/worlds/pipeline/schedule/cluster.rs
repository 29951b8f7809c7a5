//! What happens to nodes and between them.
//!
//! An adversary decides who owns the log, not a membership. It tells each node anything at any time. So two nodes own
//! the log at once, or none does, news is late or contradicts itself, and the log moves while calls are in flight. This
//! is stronger than any run of the real membership (`gesta-cluster` has a simulation of its own), and right: a lease is
//! advice, never evidence, so no promise to a caller may rest on it.

use gesta_link::core::{Input as LinkInput, LinkState};

use super::*;
use crate::worlds::pipeline::nodes::{Believed, CREDIT, placement};

/// The faults in the table of [`World::step_of_nodes`].
pub(super) const FAULTS: Faults = Faults {
    all: &[
        69, 72, 74, 76, 78, 79, 80, 82, 83, 84, 85, 89, 92, 94, 95, 97, 98, 100, 103, 105, 106, 107,
    ],
    scavenging: 82,
    failing_read: 79,
    long_wait: 106,
    restart: 83,
    loss: 84,
};
/// Most steps before peace. There are more than for processes, because there are more nodes, and links between them.
pub(super) const STEPS_MAX: u32 = 300;
/// Number of newest lanes among which the next lane is chosen.
const LANES_MAX: usize = 5;

impl World<'_> {
    pub(super) fn step_of_nodes(&mut self, kind: u32) {
        match kind {
            0..=32 => self.go_on(),
            33..=46 => self.submit(),
            47..=57 => {
                if let Some(lane) = self.pick_lane() {
                    self.deliver_forth(lane);
                }
            }
            58..=66 => {
                if let Some(lane) = self.pick_lane() {
                    self.deliver_back(lane);
                }
            }
            67..=68 => self.do_one_returned(),
            69..=71 => self.pass_time(),
            72..=73 => self.deliver_message(),
            74..=75 => self.execute_lost(),
            76..=77 => self.cut(),
            78 => self.give_up(),
            79 => self.fail_read(),
            80 => self.fail_batch(),
            81 => self.refuse_connection(),
            82 => self.scavenge(),
            83 => self.restart(),
            84 => self.lose_commits(),
            85..=88 => self.tell_one(),
            89 => self.tell_all(),
            90 => self.prepare(),
            91 => self.follow(),
            92..=93 => self.break_lane(),
            94 => self.silence_lane(),
            95..=96 => self.change_link(),
            97 => self.leave(),
            98 => self.disown(),
            _ => self.heal(),
        }
    }

    fn pick_lane(&mut self) -> Option<usize> {
        let count = self.lanes.len();
        let back = self.choices.index(count.min(LANES_MAX));
        count.checked_sub(1 + back)
    }

    fn do_one_returned(&mut self) {
        let number = self.pick_process();
        let count = self.nodes[number].returned.len();
        if count > 0 {
            let which = self.choices.index(count);
            self.do_returned(number, which);
        }
    }

    // ---- who owns the log ----

    fn believed(&mut self) -> Believed {
        let owner = self.choices.index(NODES + 1);
        self.epoch += 1;
        Believed {
            owner: (owner < NODES).then_some(owner),
            is_leaving: self.choices.chance(1, 6),
            // News may be old.
            epoch: match self.choices.chance(1, 6) {
                true => self.epoch.saturating_sub(3),
                false => self.epoch,
            },
        }
    }

    /// Tells all nodes that the first one owns the log.
    pub(super) fn begin_with_an_owner(&mut self) {
        self.epoch = 1;
        for number in 0..self.nodes.len() {
            let believed = Believed {
                owner: Some(0),
                is_leaving: false,
                epoch: self.epoch,
            };
            self.believe(number, believed, false);
        }
    }

    /// Tells a node something about the owner. Its forwarder may learn of it later.
    fn tell_one(&mut self) {
        let number = self.pick_process();
        let believed = self.believed();
        let is_late = self.choices.chance(1, 4);
        self.believe(number, believed, is_late);
    }

    /// Tells all nodes the same about the owner.
    fn tell_all(&mut self) {
        let believed = self.believed();
        for number in 0..NODES {
            let is_late = self.choices.chance(1, 4);
            self.believe(number, believed, is_late);
        }
    }

    fn believe(&mut self, number: usize, believed: Believed, is_late: bool) {
        if self.nodes[number].is_leaving || self.is_asleep(number) {
            return;
        }
        self.note(|| format!("node {number} is told {believed:?}"));
        let was_mine = self.nodes[number].is_mine();
        self.nodes[number].placement = placement(number, believed);
        if !is_late {
            self.set_route(number);
        }
        if !was_mine && self.nodes[number].is_mine() {
            self.prepare_process(number);
        }
    }

    /// Lets a node prepare for the log, because another one says that it will hand the log over.
    fn prepare(&mut self) {
        let number = self.pick_process();
        self.prepare_process(number);
    }

    fn prepare_process(&mut self, number: usize) {
        self.note(|| format!("node {number} prepares"));
        let now = self.now_of(number);
        self.processes[number].input(Input::Prepare, now);
    }

    /// Tells the forwarder of a node what its node believes.
    fn follow(&mut self) {
        let number = self.pick_process();
        self.set_route(number);
    }

    fn set_route(&mut self, number: usize) {
        let now = self.now_of(number).moment;
        let node = &mut self.nodes[number];
        let route = node.route();
        node.sender.on(LinkInput::Route(route), now);
    }

    // ---- links ----

    /// Breaks the link under a lane, which the edge notices. Frames that were written may arrive for a while.
    fn break_lane(&mut self) {
        if let Some((number, stream)) = self.stored_call()
            && self.choices.chance(1, 4)
        {
            return self.lose_traces(number, &stream);
        }
        if let Some(place) = self.pick_lane()
            && !self.is_asleep(self.lanes[place].edge.node)
        {
            self.note(|| format!("lane {place} breaks"));
            self.lose_lane(place);
        }
    }

    pub(super) fn lose_lane(&mut self, place: usize) {
        let now = self.now_of(self.lanes[place].edge.node).moment;
        self.lose_frames(place);
        let lane = &mut self.lanes[place];
        lane.back.clear();
        lane.is_mute_forth = false;
        let (number, edge) = (lane.number, lane.edge);
        let node = &mut self.nodes[edge.node];
        if node.own == edge && !lane.is_ended {
            lane.is_ended = true;
            node.lane.take_if(|open| *open == place);
            node.sender.on(LinkInput::LaneLost(number), now);
        }
    }

    /// Lets bytes get lost in one direction. No node notices that until the link breaks.
    fn silence_lane(&mut self) {
        if let Some(place) = self.pick_lane() {
            let is_forth = self.choices.chance(1, 2);
            self.note(|| format!("lane {place} falls silent, forth: {is_forth}"));
            let lane = &mut self.lanes[place];
            match is_forth {
                true => lane.is_mute_forth = true,
                false => lane.is_mute_back = true,
            }
        }
    }

    fn change_link(&mut self) {
        let (from, to) = (self.pick_process(), self.pick_process());
        let links = [
            LinkState::Up(CREDIT),
            LinkState::Down,
            LinkState::Silent,
            LinkState::Unreachable,
        ];
        let link = links[self.choices.index(links.len())];
        self.note(|| format!("the link of {from} to {to} is {link:?}"));
        self.nodes[from].links[to] = link;
    }

    fn heal(&mut self) {
        self.note(|| "all links are up".to_owned());
        for node in &mut self.nodes {
            node.links = [LinkState::Up(CREDIT); NODES];
        }
    }

    // ---- the life of a node ----

    /// Shuts a node down in order: it owns nothing more, its forwarder closes, and it answers the calls that it has.
    fn leave(&mut self) {
        let number = self.pick_process();
        if self.nodes[number].is_leaving {
            return self.replace_if_stopped(number);
        }
        let believed = Believed {
            is_leaving: true,
            ..self.believed()
        };
        self.believe(number, believed, false);
        self.note(|| format!("node {number} shuts down"));
        let now = self.now_of(number);
        self.nodes[number].sender.on(LinkInput::Close, now.moment);
        self.take_outputs(number);
        self.nodes[number].is_leaving = true;
        self.processes[number].input(Input::Close, now);
    }

    fn replace_if_stopped(&mut self, number: usize) {
        if self.processes[number].is_stopped() && self.nodes[number].returned.is_empty() {
            self.start_again(number);
        }
    }

    pub(super) fn restart_node(&mut self, number: usize) {
        if self.nodes.is_empty() {
            return;
        }
        let Living { node, life } = self.nodes[number].own;
        let life = life + 1;
        self.nodes[number] = Node::start(Living { node, life }, self.now_of(number).moment);
        for place in 0..self.lanes.len() {
            if self.lanes[place].edge
                == (Living {
                    node,
                    life: life - 1,
                })
            {
                self.lanes[place].back.clear();
                self.lose_frames(place);
            }
        }
    }

    // ---- peace ----

    /// Makes all links work, and lets all nodes believe the same.
    pub(super) fn make_peace_between_nodes(&mut self) {
        if self.nodes.is_empty() {
            return;
        }
        self.heal();
        self.epoch += 1;
        let believed = Believed {
            owner: Some(self.choices.index(NODES)),
            is_leaving: false,
            epoch: self.epoch,
        };
        for number in 0..NODES {
            self.believe(number, believed, false);
        }
        for place in 0..self.lanes.len() {
            let lane = &self.lanes[place];
            let is_dead = self.nodes[lane.owner.node].own != lane.owner || lane.is_reset;
            if is_dead || lane.is_mute_forth || lane.is_mute_back {
                self.lose_lane(place);
            }
        }
    }

    /// Starts new processes in place of those that have left.
    pub(super) fn replace_nodes_that_have_left(&mut self) {
        for number in 0..self.nodes.len() {
            if self.nodes[number].is_leaving {
                self.start_again(number);
            }
        }
        self.make_peace_between_nodes();
    }

    /// Lets everything between nodes go on. Returns true if something was under way.
    pub(super) fn carry_calls_in_peace(&mut self) -> bool {
        self.pump();
        let mut went_on = false;
        for place in 0..self.lanes.len() {
            went_on |= self.deliver_forth(place);
            went_on |= self.deliver_back(place);
        }
        for number in 0..self.nodes.len() {
            while !self.nodes[number].returned.is_empty() {
                self.do_returned(number, 0);
                went_on = true;
            }
        }
        went_on
    }
}
