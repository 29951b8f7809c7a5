//! What follows from the answers of the registry.
//!
//! Invariant: what this node believes about nodes and leases is one look, as the registry gave it, so all of it belongs
//! to one history. The look that follows a change shows what the change has done; before that look nothing else is
//! changed.

use gesta_core::registry::{Look, MoveReason, NodeId, NodeState, Tenure};
use gesta_core::{LogId, Moment, Result};

use super::hand_over::Stage;
use super::note::Note;
use super::observe::LookTimes;
use super::shares;
use super::{Change, Changed, Core, LogState, Output, Standing, Stop, draw_generation};

impl Core {
    // ---- looks ----

    pub(super) fn on_looked(&mut self, look: Result<Look>, now: Moment) {
        if look.is_err() {
            self.progress.forget();
        }
        let (Some((sent, changes)), Ok(look)) = (self.beat_sent.take(), look) else {
            return;
        };
        if self.is_stopped {
            return;
        }
        if !self.setting.info.reads(look.version) {
            return self.stop(Stop::Unreadable(look.version));
        }
        let gap = self.looked.map(|times| now.since(times.arrived));
        if gap.is_none_or(|gap| gap > self.beat() * 2) {
            self.resume(now);
        }
        let arrived = now;
        self.looked = Some(LookTimes { sent, arrived });
        self.keep_states(&look);
        self.compare(&look, changes, now);
        let draining = self.was_draining();
        self.look = Some(look);
        self.see_standing(draining, now);
        self.observe(now);
    }

    /// Makes space for the states of the logs of a look, and forgets what was going on with logs that lie elsewhere
    /// now.
    fn keep_states(&mut self, look: &Look) {
        let last = look.leases.iter().map(|lease| lease.log).max();
        if let Some(last) = last {
            self.log_mut(last);
        }
        for (log, state) in (0..).map(LogId).zip(&mut self.logs) {
            if look.lease(log).is_none() {
                let known = state.known;
                *state = LogState::new();
                state.known = known;
            }
        }
    }

    /// Forgets what was seen before, because this node has seen nothing for a while: older looks no longer prove
    /// anything.
    fn resume(&mut self, now: Moment) {
        self.observations.forget();
        self.settle.disturb(&self.setting.config, now);
        for log in &mut self.logs {
            log.free_since = None;
        }
        if let Standing::Displaced { since, .. } = &mut self.standing {
            *since = now;
        }
    }

    /// Compares the look with the one before.
    fn compare(&mut self, look: &Look, changes: u64, now: Moment) {
        let epochs = |look: &Look| {
            look.leases
                .iter()
                .map(|lease| (lease.log, lease.epoch))
                .collect::<Vec<_>>()
        };
        if self
            .look
            .as_ref()
            .is_none_or(|known| epochs(known) != epochs(look))
        {
            self.moved = now;
        }
        if self.change.is_some() || self.changes != changes {
            // It may not show what the change has done.
            return;
        }
        self.is_look_needed = false;
        for lease in &look.leases {
            let log = self.log_mut(lease.log);
            log.passing = log.passing.filter(|passing| {
                let holds = passing.epoch == lease.epoch && lease.next_owner == Some(passing.to);
                holds && passing.stage != Stage::Sent
            });
        }
    }

    fn was_draining(&self) -> bool {
        let Standing::Inside(node, generation) = self.standing else {
            return false;
        };
        let row = self.look.as_ref().and_then(|look| look.node(node));
        row.is_some_and(|row| row.generation == generation && row.state == NodeState::Draining)
    }

    /// Finds out whether this node is still registered.
    fn see_standing(&mut self, was_draining: bool, now: Moment) {
        let Some(look) = &self.look else {
            return;
        };
        // A fail-over that lost our row may have given our number to another address.
        let address = &self.setting.info.address;
        let row = |node: NodeId| {
            let row = look.node(node).filter(|row| row.info.address == *address);
            row.map(|row| (row.generation, row.beat))
        };
        match self.standing {
            Standing::Inside(node, generation) if !look.is_registered => {
                if was_draining {
                    self.asked_for.get_or_insert(NodeState::Draining);
                }
                match row(node) {
                    None => self.join_again(Note::DeclaredDead, now),
                    // The row changed while the statement waited for it.
                    Some((found, _)) if found == generation => self.beat_due = now,
                    Some(by) => {
                        self.standing = Standing::Displaced {
                            node,
                            generation,
                            by,
                            since: now,
                        };
                        self.outputs.push(Output::Tell(Note::Displaced));
                    }
                }
            }
            Standing::Displaced {
                node, generation, ..
            } if look.is_registered => {
                self.standing = Standing::Inside(node, generation);
            }
            Standing::Displaced {
                node, by, since, ..
            } => match row(node) {
                None => self.join_again(Note::DeclaredDead, now),
                Some(found) if found != by => self.stop(Stop::Replaced),
                Some(_) if now.since(since) >= self.beat() * 2 => {
                    self.join_again(Note::Displaced, now);
                }
                Some(_) => {}
            },
            Standing::Inside(..) | Standing::Outside(_) => {}
        }
    }

    fn join_again(&mut self, note: Note, now: Moment) {
        self.standing = Standing::Outside(draw_generation(&mut self.random));
        self.join_due = now;
        self.outputs.push(Output::Tell(note));
    }

    fn observe(&mut self, now: Moment) {
        let me = self.placement_me();
        let (Some(look), Some(times)) = (&self.look, self.looked) else {
            return;
        };
        self.observations
            .see(look, me, times, self.setting.config.beat(look.nodes.len()));
        self.settle.see(look, &self.setting.config, now);
        (self.is_unjudged, self.may_improve) = (true, true);
        self.see_leases(now);
    }

    /// Notes the epochs, and which logs have no valid owner since when.
    fn see_leases(&mut self, now: Moment) {
        let Some(look) = self.look.take() else {
            return;
        };
        for lease in &look.leases {
            let is_free = look.holder(lease).is_none();
            let log = self.log_mut(lease.log);
            log.known = log.known.max(lease.epoch);
            log.free_since = is_free.then(|| log.free_since.unwrap_or(now));
        }
        self.look = Some(look);
    }

    // ---- changes ----

    pub(super) fn on_changed(&mut self, changed: Result<Changed>, now: Moment) {
        let Some(change) = self.change.take() else {
            return;
        };
        self.changes += 1;
        if let (Change::Join(join), Ok(Changed::Joined(node))) = (&change, &changed) {
            self.standing = Standing::Inside(*node, join.generation);
            self.outputs.push(Output::Tell(Note::Joined(*node)));
        }
        self.is_look_needed = true;
        match (change, changed) {
            (Change::Join(_), Err(_)) => self.join_due = now + self.jittered(self.beat()),
            (Change::Claim(claims), Ok(Changed::Claimed(got))) => {
                self.on_claimed(&claims, &got, now);
                self.look_after(!got.is_empty(), now);
            }
            (change, Ok(Changed::Done(true))) => {
                self.look_after(true, now);
                self.on_done(change, now);
            }
            (change, changed) => self.on_not_done(change, changed, now),
        }
    }

    /// Makes a look follow a change. The look comes at once if something was done. Otherwise the look comes soon,
    /// because two nodes that hinder each other must not ask the registry without a pause.
    fn look_after(&mut self, something_was_done: bool, now: Moment) {
        if something_was_done {
            self.beat_due = now;
        } else {
            self.look_soon(now);
        }
    }

    fn on_done(&mut self, change: Change, now: Moment) {
        match change {
            Change::SetState(_, _, NodeState::Left) => self.stop(Stop::Left),
            Change::DeclareDead(suspect) => {
                let look = self.look.as_ref();
                let row = look.and_then(|look| Some((look, look.node(suspect.node)?)));
                let address = row.map(|(_, node)| node.info.address.clone());
                self.outputs.push(Output::Tell(Note::NodeDead {
                    node: suspect.node,
                    address: address.unwrap_or_default(),
                    is_cut_off: row.is_some_and(|(look, node)| shares::is_cut_off(look, node)),
                }));
            }
            Change::HandOver(hand_over) => self.on_handed_over(&hand_over),
            Change::Release(tenure) => self.on_released(tenure, now),
            Change::SetState(..)
            | Change::SetNextOwner(..)
            | Change::Join(_)
            | Change::Claim(_) => {}
        }
    }

    fn on_not_done(&mut self, change: Change, changed: Result<Changed>, now: Moment) {
        match change {
            Change::SetState(_, _, NodeState::Left) if self.is_late(now) => self.stop(Stop::Left),
            // We are registered; or another one has declared it dead, or it lives.
            Change::Join(_) | Change::DeclareDead(_) if changed.is_ok() => {
                self.look_after(true, now);
            }
            _ if changed.is_ok() => self.look_after(false, now),
            _ => {}
        }
    }

    fn is_late(&self, now: Moment) -> bool {
        self.leave_by.is_some_and(|by| now >= by)
    }

    fn on_released(&mut self, tenure: Tenure, now: Moment) {
        let leave_until = now + self.beat() * 8;
        let log = self.log_mut(tenure.log);
        log.leave_until = Some(leave_until);
        self.on_moved(Note::Moved {
            log: tenure.log,
            from: Some(tenure.owner),
            to: None,
            epoch: tenure.epoch.next(),
            reason: MoveReason::Stuck,
            without_owner: None,
        });
    }

    /// Notes that a change of this node has moved a log.
    pub(super) fn on_moved(&mut self, moved: Note) {
        if let Note::Moved { log, epoch, .. } = &moved {
            let known = &mut self.log_mut(*log).known;
            *known = (*epoch).max(*known);
        }
        self.outputs.push(Output::Tell(moved));
    }
}
