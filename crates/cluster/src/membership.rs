//! The core of membership: one node's decisions about which nodes live and which node has which log.
//!
//! The core is pure: it does no I/O, and has no tasks and no clock. Inputs are given to [`Core::on`], each with the
//! time. After some of them [`Core::work`] decides what can be decided now. What is to be done comes out as
//! [`Output`]s, in order. The shell (`shell`) connects the core with a registry; a simulation connects it with a
//! simulated registry.
//!
//! The core keeps the last look and derives the rest from it. In each step it compares what holds with what should
//! hold, and makes *one* change of the registry, which is conditional on what was seen. Then it looks again. So a
//! change that did not work, or whose outcome is not known, needs no treatment of its own: the look tells what holds.
//!
//! * `observe`: which nodes are dead; `shares`: which node should have how many logs; `claims`: taking logs that nobody
//!   has;
//! * `giving`: handing logs over; `progress`: giving up a log whose pipeline is stuck;
//! * `plan`: which logs would move, for people;
//! * `looks`: how often other nodes may make this node look;
//! * `answers`: what follows from an answer; `view`: what the rest of the node sees; `times`: how long all of it takes.

mod answers;
mod claims;
mod hand_over;
mod looks;
mod note;
mod observe;
mod plan;
mod progress;
mod random;
mod settle;
mod shares;
mod times;
mod view;

use std::sync::Arc;
use std::time::Duration;

use gesta_core::registry::{
    Beat, Claim, ClusterVersion, Generation, HandOver, Join, LeaseEpoch, Look, MoveReason, NodeId,
    NodeInfo, NodeRow, NodeState, Suspect, Tenure, UNREACHABLE_MAX,
};
use gesta_core::{LogId, Moment, Result};

use self::hand_over::Passing;
use self::looks::Looks;
pub use self::note::Note;
use self::observe::{LookTimes, Observations};
pub use self::plan::{PlannedMove, planned_moves};
use self::progress::Progress;
pub use self::progress::Sign;
use self::random::Random;
use self::settle::Settle;
pub use self::shares::is_about_to_claim;
pub use self::times::Config;
use crate::placement::Placement;

/// An input of the core.
#[derive(Debug)]
pub enum Input {
    /// The answer to [`Output::Beat`] has come.
    Looked(Result<Look>),
    /// The answer to [`Output::Change`] has come.
    Changed(Result<Changed>),
    /// The pipelines of this node's logs have come so far. This input comes with each beat.
    Signs(Vec<(LogId, Sign)>),
    /// The node that takes a log over is ready ([`Output::Prepare`]), or is not.
    Prepared(LogId, LeaseEpoch, Readiness),
    /// A connection to the node's address was refused: nobody listens there. A time-out is not meant.
    Refused(NodeId),
    /// These are all nodes that this node cannot call at present. A beat names the first [`UNREACHABLE_MAX`].
    Unreachable(Vec<NodeId>),
    /// Another node says that something has changed, for example that it has handed a log over to this one. The core
    /// must look at once.
    LookNow,
    /// The node must hand over all logs, and receive none ([`NodeState::Draining`]); or it must take part again
    /// ([`NodeState::Up`]).
    Drain(NodeState),
    /// The node must hand over all logs, then leave, at the latest after this time.
    Leave(Duration),
}

/// Whether another node is ready to take a log.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Readiness {
    /// The node is ready.
    Ready,
    /// The node refuses, or does not answer.
    Refused,
}

/// A change of the registry. Each is one call of [`Registry`](gesta_core::registry::Registry).
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Change {
    /// The change is `join`.
    Join(Join),
    /// The change is `set_state`, of this node.
    SetState(NodeId, Generation, NodeState),
    /// The change is `claim`.
    Claim(Vec<Claim>),
    /// The change is `declare_dead`.
    DeclareDead(Suspect),
    /// The change is `set_next_owner`.
    SetNextOwner(LogId, LeaseEpoch, Option<NodeId>),
    /// The change is `hand_over`.
    HandOver(HandOver),
    /// The change is `release`.
    Release(Tenure),
}

/// The answer to a [`Change`].
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Changed {
    /// This node is registered with this id.
    Joined(NodeId),
    /// The claim has got these of the logs.
    Claimed(Vec<LogId>),
    /// The change was made (true), or the row was not as believed (false).
    Done(bool),
}

/// An output of the core: something that is to be done, in the order of the outputs.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Output {
    /// The node must beat. The beat is given up after half of [`Core::beat`]. At most one beat is under way.
    Beat(Beat),
    /// The registry must be changed. The change is given up after half of [`Core::beat`]. At most one change is under
    /// way; beats do not wait for it.
    Change(Change),
    /// Another node must be asked to prepare for a log. [`Input::Prepared`] says how that went. The log is still served
    /// here.
    Prepare(Preparation),
    /// This note must be told to people.
    Tell(Note),
    /// The core has stopped. This is the last output.
    Stopped(Stop),
}

/// What [`Output::Prepare`] asks for.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Preparation {
    /// The log.
    pub log: LogId,
    /// The epoch of the tenure that is to end.
    pub epoch: LeaseEpoch,
    /// The node that is to get the log.
    pub to: NodeId,
    /// The address at which that node is reached.
    pub address: Arc<str>,
    /// The reason for the move.
    pub reason: MoveReason,
}

/// The reason why the core has stopped.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Stop {
    /// The node has left.
    Left,
    /// Another process has joined with the address of this one, and lives. If this process joined again, the two would
    /// replace each other for ever.
    Replaced,
    /// The cluster has a version that this build cannot read. The node owns nothing, and the others declare it dead.
    Unreadable(ClusterVersion),
    /// The core has failed, by a fault of this program. The node owns nothing, and the others declare it dead.
    Failed,
}

/// What a core needs to know at the start.
#[derive(Clone, Debug)]
pub struct Setting {
    /// What this node tells the others.
    pub info: NodeInfo,
    /// The times of the protocol.
    pub config: Config,
    /// The seed of its random numbers. The seed must differ between processes.
    pub seed: u64,
}

/// Whether this node is registered.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Standing {
    /// The node is not registered, and joins with this generation.
    Outside(Generation),
    /// The node is registered, with this id and generation.
    Inside(NodeId, Generation),
    /// Another process has joined with the address of this node. It is not known yet whether that process lives.
    Displaced {
        node: NodeId,
        generation: Generation,
        by: (Generation, i64),
        since: Moment,
    },
}

/// What is kept about a log beyond its lease.
#[derive(Debug, Default)]
pub(crate) struct LogState {
    /// The greatest epoch that was ever seen. The epoch of the lease is smaller after a fail-over that lost rows.
    known: LeaseEpoch,
    /// The moment at which the log was first seen without a valid owner.
    free_since: Option<Moment>,
    /// The moment until which this node leaves the log to others, because it gave the log up as stuck.
    leave_until: Option<Moment>,
    /// The moment until which this node does not give the log up as stuck, because it took the log when it was stuck
    /// elsewhere.
    keep_until: Option<Moment>,
    /// The node to which this node has decided to give the log, and the reason.
    intended: Option<(NodeId, MoveReason)>,
    /// The node that did not want the log, and the moment at which it refused.
    refused: Option<(NodeId, Moment)>,
    /// The hand-over that is going on.
    passing: Option<Passing>,
}

impl LogState {
    const fn new() -> Self {
        Self {
            known: LeaseEpoch(0),
            free_since: None,
            leave_until: None,
            keep_until: None,
            intended: None,
            refused: None,
            passing: None,
        }
    }
}

/// The pure core of one node's membership in one database.
///
/// The core has more fields than most structs, because almost every decision weighs what was seen, when, and what was
/// answered since. What belongs to one question alone (`looks`, `observations`, `settle`, `progress`, `logs`) is a type
/// of its own.
#[derive(Debug)]
pub struct Core {
    setting: Setting,
    random: Random,
    standing: Standing,
    look: Option<Look>,
    looked: Option<LookTimes>,
    /// Whether the nodes of the last look have not been judged yet.
    is_unjudged: bool,
    /// The moment at which this node last declared another one dead.
    declared: Option<Moment>,
    beat_due: Moment,
    /// The beat under way: the moment at which it was sent, and how many changes had been answered then.
    beat_sent: Option<(Moment, u64)>,
    /// The moment at which the last beat was sent.
    beaten: Moment,
    /// The looks that others may ask for.
    looks: Looks,
    change: Option<Change>,
    /// The number of changes that were answered.
    changes: u64,
    /// Whether nothing more is changed before a look that was sent after the answer to the last change.
    is_look_needed: bool,
    join_due: Moment,
    observations: Observations,
    unreachable: Vec<NodeId>,
    settle: Settle,
    progress: Progress,
    logs: Vec<LogState>,
    /// The state that was asked of this process, until a look shows it.
    asked_for: Option<NodeState>,
    leave_by: Option<Moment>,
    /// The moment at which a lease was last seen to move.
    moved: Moment,
    /// Whether no log has been moved for the sake of balance since the last look.
    may_improve: bool,
    is_stopped: bool,
    placement: Arc<Placement>,
    /// The moment of the last work.
    worked: Moment,
    outputs: Vec<Output>,
}

impl Core {
    /// Makes a core that knows nothing. Its first output asks to join.
    #[must_use]
    pub fn new(setting: Setting, now: Moment) -> Self {
        let mut random = Random::new(setting.seed);
        Self {
            standing: Standing::Outside(draw_generation(&mut random)),
            random,
            look: None,
            looked: None,
            is_unjudged: false,
            declared: None,
            beat_due: now,
            beat_sent: None,
            beaten: now,
            looks: Looks::begin(now),
            change: None,
            changes: 0,
            is_look_needed: false,
            join_due: now,
            observations: Observations::default(),
            unreachable: Vec::new(),
            settle: Settle::begin(now),
            progress: Progress::default(),
            logs: Vec::new(),
            asked_for: None,
            leave_by: None,
            moved: now,
            may_improve: false,
            is_stopped: false,
            placement: Arc::default(),
            worked: now,
            outputs: Vec::new(),
            setting,
        }
    }

    /// Takes an input. The next [`work`](Self::work) decides what follows from it.
    pub fn on(&mut self, input: Input, now: Moment) {
        match input {
            Input::Looked(look) => self.on_looked(look, now),
            Input::Changed(changed) => self.on_changed(changed, now),
            Input::Signs(signs) => {
                let apart = self.beat() * 3 / 4;
                self.progress.take(&signs, apart, now);
            }
            Input::Prepared(log, epoch, readiness) => self.on_prepared(log, epoch, readiness, now),
            Input::Refused(node) => self.observations.refused(node),
            Input::Unreachable(mut nodes) => {
                nodes.truncate(UNREACHABLE_MAX);
                self.unreachable = nodes;
            }
            // Others may say so as often as they like.
            Input::LookNow if self.looks.take(self.beat(), now) => self.beat_due = now,
            Input::LookNow => self.look_soon(now),
            Input::Drain(state) => self.asked_for = Some(state),
            Input::Leave(within) => {
                self.asked_for = Some(NodeState::Draining);
                self.leave_by = Some(now + within);
            }
        }
    }

    /// Decides everything that can be decided now.
    pub fn work(&mut self, now: Moment) {
        self.worked = now;
        if self.is_stopped {
            return;
        }
        if self.change.is_none()
            && let Some(change) = self.next_change(now)
        {
            self.make(change);
        }
        self.prepare_hand_overs(now);
        self.beat_if_due(now);
        self.leave_if_late(now);
        self.publish();
    }

    /// Takes the outputs, in order. What they say is to be done.
    pub fn take_outputs(&mut self) -> Vec<Output> {
        std::mem::take(&mut self.outputs)
    }

    /// Returns the moment at which [`work`](Self::work) must be called again if nothing happens before.
    #[must_use]
    pub fn wake_at(&self) -> Option<Moment> {
        let now = self.worked;
        if self.is_stopped {
            return None;
        }
        let beat = (self.beat_sent.is_none() && self.beats()).then(|| self.next_beat());
        let is_idle = self.change.is_none();
        let join = match self.standing {
            Standing::Outside(_) if is_idle => Some(self.join_due),
            _ => None,
        };
        let claim = self.claim_at(now).filter(|_| is_idle);
        let leave = self.leave_by.filter(|by| *by > now);
        [beat, join, claim, leave].into_iter().flatten().min()
    }

    /// Returns the time from one beat to the next, at present.
    #[must_use]
    pub fn beat(&self) -> Duration {
        let nodes = self.look.as_ref().map_or(1, |look| look.nodes.len());
        self.setting.config.beat(nodes)
    }

    /// Returns who owns which log.
    #[must_use]
    pub fn placement(&self) -> Arc<Placement> {
        Arc::clone(&self.placement)
    }

    /// Returns the moment at which the answer to the last successful look came.
    #[must_use]
    pub fn looked_at(&self) -> Option<Moment> {
        self.looked.map(|times| times.arrived)
    }

    // ---- beats ----

    fn beats(&self) -> bool {
        !matches!(self.standing, Standing::Outside(_))
    }

    /// Returns the moment of the next beat. That moment is earlier than the next regular beat if a node may be found
    /// dead then.
    fn next_beat(&self) -> Moment {
        let early = self.observations.look_at(self.beat(), self.beaten);
        // Another one may have its turn then.
        let rested = self.declared.map(|at| at + self.beat());
        let rested = rested.filter(|rested| *rested > self.beaten);
        let looks = [early, rested].into_iter().flatten();
        looks.fold(self.beat_due, Moment::min)
    }

    fn beat_if_due(&mut self, now: Moment) {
        let (Standing::Inside(node, generation)
        | Standing::Displaced {
            node, generation, ..
        }) = self.standing
        else {
            return;
        };
        if self.beat_sent.is_some() || now < self.next_beat() {
            return;
        }
        self.beat_sent = Some((now, self.changes));
        self.beaten = now;
        self.beat_due = now + self.jittered(self.beat());
        self.outputs.push(Output::Beat(Beat {
            node,
            generation,
            beat: self.random.next().cast_signed(),
            unreachable: self.unreachable.clone(),
        }));
    }

    /// Makes the next beat come soon, but at most eight times in the time of one beat.
    fn look_soon(&mut self, now: Moment) {
        let soon = now.max(self.beaten + self.beat() / 8);
        self.beat_due = self.beat_due.min(soon);
    }

    /// Returns 90 to 110 per cent of a time, so that nodes which were started together do not stay together.
    fn jittered(&mut self, time: Duration) -> Duration {
        let percent = 90 + self.random.below(21);
        time * u32::try_from(percent).unwrap_or(100) / 100
    }

    // ---- changes ----

    /// Returns the one change to make now, the most urgent first.
    fn next_change(&mut self, now: Moment) -> Option<Change> {
        let node = match self.standing {
            Standing::Outside(generation) if now >= self.join_due && self.leave_by.is_none() => {
                let info = self.setting.info.clone();
                let beat = self.random.next().cast_signed();
                return Some(Change::Join(Join {
                    info,
                    generation,
                    beat,
                }));
            }
            Standing::Inside(node, _) => node,
            Standing::Outside(_) | Standing::Displaced { .. } => return None,
        };
        if !self.may_change(now) {
            return None;
        }
        let look = self.look.take()?;
        let change = look.node(node).and_then(|me| {
            self.change_of_state(&look, me, now)
                .or_else(|| self.ready_hand_over(&look, me))
                .or_else(|| self.claim(&look, me, now))
                .or_else(|| self.declare(&look, me, now))
                .or_else(|| self.release_stuck(&look, me, now))
                .or_else(|| self.give(&look, me, now))
        });
        self.look = Some(look);
        change
    }

    /// Returns whether this node may make a change. A node acts only upon a recent look by which it is registered.
    fn may_change(&self, now: Moment) -> bool {
        let is_registered = self.look.as_ref().is_some_and(|look| look.is_registered);
        let is_recent = self
            .looked_at()
            .is_some_and(|at| now.since(at) <= self.beat() * 2);
        is_registered && is_recent && !self.is_look_needed
    }

    fn change_of_state(&mut self, look: &Look, me: &NodeRow, now: Moment) -> Option<Change> {
        // A look that shows the drain is younger than the request, so it shows who has joined shortly before, too.
        let has_seen = me.state == NodeState::Draining || shares::logs_of(look, me.id) == 0;
        if self.leave_by.is_some() && has_seen && !self.can_give(look, me, now) {
            return Some(Change::SetState(me.id, me.generation, NodeState::Left));
        }
        let asked_for = self.asked_for?;
        if asked_for == me.state {
            self.asked_for = None;
            return None;
        }
        Some(Change::SetState(me.id, me.generation, asked_for))
    }

    /// Returns the declaration of a dead node, if there is one. A node is declared dead right after a look, at most one
    /// upon each look, and mostly at most one in a beat. If many nodes seem dead, a mistake is more likely.
    fn declare(&mut self, look: &Look, me: &NodeRow, now: Moment) -> Option<Change> {
        if !std::mem::take(&mut self.is_unjudged) {
            return None;
        }
        let (times, beat) = (self.looked?, self.beat());
        let rests = self.declared.is_some_and(|at| now.since(at) < beat);
        let dead = self.observations.dead(times, beat, rests);
        let cut_off = || self.observations.cut_off(look, me, times, beat);
        let suspect = dead.or_else(|| if rests { None } else { cut_off() })?;
        self.declared = Some(now);
        Some(Change::DeclareDead(suspect))
    }

    /// Leaves with the logs that the node still has, when the time for handing them over has passed.
    fn leave_if_late(&mut self, now: Moment) {
        let Some(by) = self.leave_by.filter(|_| self.change.is_none()) else {
            return;
        };
        match self.standing {
            Standing::Inside(..) if now < by => {}
            Standing::Inside(node, generation) if now.since(by) < self.beat() => {
                self.make(Change::SetState(node, generation, NodeState::Left));
            }
            _ => self.stop(Stop::Left),
        }
    }

    fn make(&mut self, change: Change) {
        self.change = Some(change.clone());
        self.outputs.push(Output::Change(change));
    }

    fn stop(&mut self, why: Stop) {
        self.is_stopped = true;
        self.standing = Standing::Outside(Generation::NONE);
        self.publish();
        self.outputs.push(Output::Stopped(why));
    }
}

/// Returns a number that no other joining has had, but for a chance of 1 in 2⁶⁴.
fn draw_generation(random: &mut Random) -> Generation {
    loop {
        let generation = Generation(random.next().cast_signed());
        if generation != Generation::NONE {
            return generation;
        }
    }
}
