//! The simulated database: its tables, its clock, whether it is there, and what a fail-over would lose.

use std::collections::VecDeque;
use std::time::Duration;

use gesta_cluster::core::{Change, Changed, Input};
use gesta_core::{Error, Incarnation, Timestamp};
use gesta_kit::registry::Tables;
use uuid::Uuid;

use super::process::{Request, Run, Wait};
use super::{Cluster, Event};

#[derive(Debug)]
pub(super) struct Database {
    pub(super) tables: Tables,
    pub(super) is_down: bool,
    /// Changes are not answered, and have no effect.
    pub(super) hangs_changes: bool,
    /// Steps of its clock.
    pub(super) clock_error: i64,
    /// States of before, for fail-overs: one each 200 ms of the last two seconds.
    past: VecDeque<(Duration, Tables)>,
    lives: u128,
}

impl Database {
    pub(super) fn new(logs: u16) -> Self {
        Self {
            tables: Tables::new(logs, Incarnation(Uuid::from_u128(1))),
            is_down: false,
            hangs_changes: false,
            clock_error: 0,
            past: VecDeque::new(),
            lives: 1,
        }
    }

    pub(super) fn advance(&mut self, now: Duration) {
        let micros = i64::try_from(now.as_micros()).expect("fits") + self.clock_error;
        self.tables.now = Timestamp(micros + 1_000_000_000_000);
    }

    fn remember(&mut self, now: Duration) {
        let step = Duration::from_millis(200);
        if self.past.back().is_none_or(|(at, _)| now >= *at + step) {
            self.past.push_back((now, self.tables.clone()));
        }
        while self.past.len() > 11 {
            self.past.pop_front();
        }
    }

    /// What was written in the last one or two seconds is lost.
    fn fail_over(&mut self) -> Option<Duration> {
        self.lives += 1;
        let (at, before) = self.past.pop_front()?;
        self.tables
            .fail_over(&before, Incarnation(Uuid::from_u128(self.lives)));
        self.past.clear();
        Some(at)
    }
}

impl Cluster<'_> {
    /// A fail-over that loses up to two seconds.
    pub(super) fn fail_over(&mut self) {
        if let Some(at) = self.database.fail_over() {
            self.promises.failed_over(at);
        }
    }

    pub(super) fn execute(&mut self, process: usize, request: &Request) -> Input {
        self.database.remember(self.now);
        match request {
            Request::Beat(beat) => {
                let look = self.database.tables.beat(beat);
                if look.is_registered {
                    self.promises.beaten(beat.node, self.now);
                }
                Input::Looked(Ok(look))
            }
            Request::Change(change) => {
                let before = self.database.tables.look();
                let changed = change_of(&mut self.database.tables, change);
                if let Changed::Joined(node) = changed {
                    self.processes[process].id = Some(node);
                    self.promises.beaten(node, self.now);
                }
                self.promises
                    .changed(self.now, process, change, &changed, &before);
                Input::Changed(Ok(changed))
            }
        }
    }

    pub(super) fn arrive(&mut self, process: usize, life: u64, request: Request, wait: u64) {
        let is_beat = matches!(request, Request::Beat(_));
        let wait = if is_beat {
            Wait::Beat(wait)
        } else {
            Wait::Change(wait)
        };
        let node = &self.processes[process];
        if self.database.hangs_changes && matches!(request, Request::Change(_)) {
            return;
        }
        if self.database.is_down || node.is_cut {
            // The connection is refused, or nothing comes back: then the time-out tells.
            if self.choices.chance(1, 2) {
                let input = failed(is_beat);
                self.arrive_after(Duration::from_millis(1), process, life, wait, input);
            }
            return;
        }
        if self.choices.chance(self.roughness.lost, 1_000) {
            return self.lose(process, request);
        }
        if node.run == Run::Killed && node.life == life && self.choices.chance(1, 2) {
            // It was sent by a process that is gone: it takes effect, or not.
            return;
        }
        let input = self.execute(process, &request);
        let back = self.latency();
        self.arrive_after(back, process, life, wait, input);
    }

    /// A statement that gets no answer: it takes effect at once, or late, or never.
    fn lose(&mut self, process: usize, request: Request) {
        let late = match self.choices.pick(3) {
            0 => return,
            1 => Duration::ZERO,
            _ => Duration::from_millis(u64::from(1 + self.choices.pick(20_000))),
        };
        self.schedule(self.now + late, Event::Late { process, request });
    }

    pub(super) fn latency(&mut self) -> Duration {
        Duration::from_micros(u64::from(100 + self.choices.pick(4_900)))
    }
}

/// Makes any of the changes.
fn change_of(tables: &mut Tables, change: &Change) -> Changed {
    Changed::Done(match change {
        Change::Join(join) => return Changed::Joined(tables.join(join)),
        Change::Claim(claims) => return Changed::Claimed(tables.claim(claims)),
        Change::SetState(node, generation, state) => tables.set_state(*node, *generation, *state),
        Change::DeclareDead(suspect) => tables.declare_dead(*suspect),
        Change::SetNextOwner(log, epoch, to) => tables.set_next_owner(*log, *epoch, *to),
        Change::HandOver(hand_over) => tables.hand_over(*hand_over),
        Change::Release(tenure) => tables.release(*tenure),
    })
}

pub(super) fn failed(is_beat: bool) -> Input {
    let error = Error::unavailable("no answer");
    if is_beat {
        Input::Looked(Err(error))
    } else {
        Input::Changed(Err(error))
    }
}
