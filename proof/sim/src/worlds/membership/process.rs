//! A simulated process: a core, its clock, and a shell without tasks.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use gesta_cluster::core::{Change, Core, Input, Output, Setting};
use gesta_cluster::{Config, Note, Preparation, Readiness, Sign, Stop};
use gesta_core::LogId;
use gesta_core::registry::{Beat, NodeId, NodeInfo};

use super::database::failed;
use super::{Clock, Cluster, Event};
use crate::driver::convention::step;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Run {
    Running,
    Paused,
    Killed,
    Stopped(Stop),
}

/// A statement.
#[derive(Clone, Debug)]
pub(super) enum Request {
    Beat(Beat),
    Change(Change),
}

/// What an answer belongs to; one that is no longer awaited is dropped.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Wait {
    Beat(u64),
    Change(u64),
    Nothing,
}

#[derive(Debug)]
pub(super) struct Process {
    pub(super) number: usize,
    pub(super) clock: Clock,
    pub(super) build: String,
    pub(super) run: Run,
    /// Cut off from the database.
    pub(super) is_cut: bool,
    /// Logs whose pipeline hangs.
    pub(super) stuck: BTreeSet<LogId>,
    /// False: hand-overs hang.
    pub(super) hands_over: bool,
    pub(super) address: String,
    pub(super) id: Option<NodeId>,
    pub(super) life: u64,
    pub(super) core: Option<Core>,
    /// What happened to it while it was paused.
    pub(super) held: Vec<Event>,
    pub(super) token: u64,
    /// The log whose hand-over has been sent and not answered.
    pub(super) handing_over: Option<LogId>,
    beat: u64,
    change: u64,
    waits: u64,
}

impl Process {
    pub(super) fn new(number: usize, clock: Clock, build: &str) -> Self {
        Self {
            number,
            clock,
            build: build.to_owned(),
            run: Run::Killed,
            is_cut: false,
            stuck: BTreeSet::new(),
            hands_over: true,
            address: format!("node-{number}:4000"),
            id: None,
            life: 0,
            core: None,
            held: Vec::new(),
            token: 0,
            handing_over: None,
            beat: 0,
            change: 0,
            waits: 0,
        }
    }

    pub(super) fn begin(&mut self, seed: u64, config: Config, now: Duration) {
        self.life += 1;
        self.run = Run::Running;
        self.held.clear();
        self.stuck.clear();
        (self.beat, self.change, self.handing_over) = (0, 0, None);
        let info = NodeInfo {
            address: Arc::from(self.address.as_str()),
            weight: 100,
            build: Arc::from(self.build.as_str()),
            protocol_min: 1,
            protocol_max: 1,
        };
        let setting = Setting { info, config, seed };
        self.core = Some(Core::new(setting, self.clock.local(now)));
    }

    pub(super) fn kill(&mut self) {
        self.run = Run::Killed;
        self.core = None;
        self.held.clear();
    }

    pub(super) fn core_if_running(&mut self) -> Option<&mut Core> {
        self.core.as_mut().filter(|_| self.run == Run::Running)
    }

    pub(super) fn takes(&mut self, life: u64, wait: Wait) -> bool {
        let slot = match wait {
            Wait::Nothing => return life == self.life,
            Wait::Beat(number) => (&mut self.beat, number),
            Wait::Change(number) => (&mut self.change, number),
        };
        let is_awaited = life == self.life && *slot.0 == slot.1;
        if is_awaited {
            *slot.0 = 0;
            if matches!(wait, Wait::Change(_)) {
                self.handing_over = None;
            }
        }
        is_awaited
    }

    pub(super) fn is_mine(&self, log: LogId) -> bool {
        self.core
            .as_ref()
            .is_some_and(|core| core.placement().is_mine(log))
    }

    fn signs(&self, now: Duration) -> Vec<(LogId, Sign)> {
        let Some(core) = &self.core else {
            return Vec::new();
        };
        let sign = |log: LogId| {
            let moves = !self.stuck.contains(&log);
            let done = if moves {
                u64::try_from(now.as_millis()).expect("fits")
            } else {
                7
            };
            (
                log,
                Sign {
                    done,
                    is_busy: true,
                },
            )
        };
        core.placement().mine().map(sign).collect()
    }
}

impl Cluster<'_> {
    /// Lets a process do what it can do now.
    pub(super) fn step(&mut self, process: usize) {
        let now = self.now;
        let node = &mut self.processes[process];
        let local = node.clock.local(now);
        let Some(core) = node.core_if_running() else {
            return;
        };
        let (outputs, limit) = (step(core, local), core.beat() / 2);
        for output in outputs {
            self.perform(process, output, limit);
        }
        let node = &mut self.processes[process];
        node.token += 1;
        let (token, clock) = (node.token, node.clock);
        let wake = node.core_if_running().and_then(|core| core.wake_at());
        if let Some(wake) = wake {
            let at = clock.reaches(wake).max(now);
            self.schedule(at, Event::Wake { process, token });
        }
    }

    fn perform(&mut self, process: usize, output: Output, limit: Duration) {
        match output {
            Output::Beat(beat) => {
                let signs = self.processes[process].signs(self.now);
                let local = self.processes[process].clock.local(self.now);
                if let Some(core) = self.processes[process].core_if_running() {
                    core.on(Input::Signs(signs), local);
                }
                self.send(process, Request::Beat(beat), limit);
            }
            Output::Change(change) => self.send(process, Request::Change(change), limit),
            Output::Prepare(preparation) => self.prepare(process, &preparation),
            Output::Tell(note) => {
                if let Note::Moved { to: Some(to), .. } = note {
                    self.nudge(process, to);
                }
                let text = || format!("node {process}: {note}");
                self.trace.note(self.now, text);
                self.notes.push((self.now, process, note));
            }
            Output::Stopped(why) => self.processes[process].run = Run::Stopped(why),
        }
    }

    fn send(&mut self, process: usize, request: Request, limit: Duration) {
        let is_beat = matches!(request, Request::Beat(_));
        self.is_declaring |= matches!(request, Request::Change(Change::DeclareDead(_)));
        let node = &mut self.processes[process];
        if let Request::Change(Change::HandOver(hand_over)) = &request {
            node.handing_over = Some(hand_over.from.log);
        }
        node.waits += 1;
        let (wait, life, limit) = (node.waits, node.life, node.clock.takes(limit));
        let slot = if is_beat {
            &mut node.beat
        } else {
            &mut node.change
        };
        assert_eq!(*slot, 0, "one beat and one change at a time");
        *slot = wait;
        let there = self.latency();
        let reach = Event::Reach {
            process,
            life,
            request,
            wait,
        };
        self.schedule(self.now + there, reach);
        let wait = if is_beat {
            Wait::Beat(wait)
        } else {
            Wait::Change(wait)
        };
        self.arrive_after(limit, process, life, wait, failed(is_beat));
    }

    pub(super) fn arrive_after(
        &mut self,
        after: Duration,
        process: usize,
        life: u64,
        wait: Wait,
        input: Input,
    ) {
        let arrive = Event::Arrive {
            process,
            life,
            wait,
            input,
        };
        self.schedule(self.now + after, arrive);
    }

    /// A link tells the new owner of a log; such a message may be lost.
    fn nudge(&mut self, process: usize, to: NodeId) {
        let takers = self
            .processes
            .iter()
            .filter(|node| node.id == Some(to) && node.number != process);
        let takers: Vec<_> = takers.map(|node| (node.number, node.life)).collect();
        for (taker, life) in takers {
            let after = self.latency();
            if !self.loses_messages || self.choices.chance(1, 2) {
                self.arrive_after(after, taker, life, Wait::Nothing, Input::LookNow);
            }
        }
    }

    /// The one that takes over answers at once if it lives; if not, the giver stops waiting.
    fn prepare(&mut self, process: usize, preparation: &Preparation) {
        if !self.processes[process].hands_over {
            return;
        }
        let mut takers = self
            .processes
            .iter()
            .filter(|node| node.id == Some(preparation.to));
        let is_ready = takers.any(|node| node.run == Run::Running);
        let (after, readiness) = match is_ready {
            true => (Duration::from_millis(3), Readiness::Ready),
            false => (Duration::from_secs(2), Readiness::Refused),
        };
        let input = Input::Prepared(preparation.log, preparation.epoch, readiness);
        let life = self.processes[process].life;
        self.arrive_after(after, process, life, Wait::Nothing, input);
    }
}
