//! What follows from the answers of the registry.
//!
//! Invariants: a look tells about the leases only if no change of ours was under way while it was; so what we have done
//! is never undone by an older look. What failed is not repeated: nothing is changed before a look that was sent later.

use gesta_core::registry::{LeaseRow, Look, MoveReason, NodeId, NodeState, Suspect, Tenure};
use gesta_core::{LogId, Result};

use super::giving::Stage;
use super::note::Note;
use super::observe::LookTimes;
use super::times::Moment;
use super::{Change, Changed, Core, LogState, Output, Standing, Stop, draw_generation};

impl Core {
    // ---- looks ----

    pub(super) fn on_looked(&mut self, look: Result<Look>, now: Moment) {
        let (Some((sent, changes)), Ok(mut look)) = (self.beat_sent.take(), look) else {
            return;
        };
        if self.is_stopped {
            return;
        }
        let gap = self.looked.map(|times| now.since(times.arrived));
        if gap.is_none_or(|gap| gap > self.beat() * 2) {
            self.resume(now);
        }
        let arrived = now;
        self.looked = Some(LookTimes { sent, arrived });
        self.logs.resize_with(look.leases.len(), LogState::default);
        self.keep_what_we_changed(&mut look, changes);
        let draining = self.was_draining();
        self.look = Some(look);
        self.see_standing(draining, now);
        self.observe(now);
    }

    /// We have seen nothing for a while: what we saw before proves nothing any more.
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

    /// Takes the leases of the look before, if this one may be older than a change of ours.
    fn keep_what_we_changed(&mut self, look: &mut Look, changes: u64) {
        if self.change.is_some() || self.changes != changes {
            let known = self.look.as_ref();
            if let Some(known) = known.filter(|known| known.leases.len() == look.leases.len()) {
                look.leases.clone_from(&known.leases);
            }
            return;
        }
        self.is_look_needed = false;
        for (lease, log) in look.leases.iter().zip(&mut self.logs) {
            log.known = log.known.max(lease.epoch);
            log.refused_by = None;
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

    /// Is this node still registered?
    fn see_standing(&mut self, was_draining: bool, now: Moment) {
        let Some(look) = &self.look else {
            return;
        };
        let row = |node: NodeId| look.node(node).map(|row| (row.generation, row.beat));
        match self.standing {
            Standing::Inside(node, generation) if !look.is_registered => {
                if was_draining {
                    self.wanted_state.get_or_insert(NodeState::Draining);
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
        let Some(look) = &self.look else {
            return;
        };
        self.observations.see(look, me, now);
        self.settle.see(look, &self.setting.config, now);
        self.is_unjudged = true;
        self.see_free(now);
    }

    /// Notes since when which logs have no valid owner.
    fn see_free(&mut self, now: Moment) {
        let Some(look) = &self.look else {
            return;
        };
        for (lease, log) in look.leases.iter().zip(&mut self.logs) {
            let is_free = look.holder(lease).is_none();
            log.free_since = is_free.then(|| log.free_since.unwrap_or(now));
        }
    }

    // ---- changes ----

    pub(super) fn on_changed(&mut self, changed: Result<Changed>, now: Moment) {
        let Some(change) = self.change.take() else {
            return;
        };
        self.changes += 1;
        match (change, changed) {
            (Change::Join(join), Ok(Changed::Joined(node))) => {
                self.standing = Standing::Inside(node, join.generation);
                self.beat_due = now;
                self.outputs.push(Output::Tell(Note::Joined(node)));
            }
            (Change::Join(_), _) => self.join_due = now.plus(self.jittered(self.beat())),
            (Change::Claim(claims), Ok(Changed::Claimed(got))) => {
                self.on_claimed(&claims, &got, now);
                self.is_look_needed |= got.len() != claims.len();
            }
            (change, Ok(Changed::Done(true))) => self.on_done(change, now),
            (change, _) => self.on_not_done(change, now),
        }
    }

    fn on_done(&mut self, change: Change, now: Moment) {
        match change {
            Change::SetState(_, _, NodeState::Left) => self.stop(Stop::Left),
            Change::SetState(node, _, state) => self.on_state(node, state),
            Change::DeclareDead(suspect) => self.on_dead(suspect, now),
            Change::SetNextOwner(log, _, to) => {
                if let Some(lease) = self.lease_mut(log) {
                    lease.next_owner = to;
                }
            }
            Change::HandOver(hand_over) => self.on_handed_over(&hand_over),
            Change::Release(tenure) => self.on_released(tenure, now),
            Change::Join(_) | Change::Claim(_) => {}
        }
    }

    fn on_not_done(&mut self, change: Change, now: Moment) {
        match change {
            Change::SetState(_, _, NodeState::Left) if self.is_late(now) => self.stop(Stop::Left),
            Change::SetState(_, _, state) if state != NodeState::Left => {
                self.wanted_state.get_or_insert(state);
            }
            // Another one has declared it dead, or it lives.
            Change::DeclareDead(_) => self.beat_due = now,
            _ => {}
        }
        self.is_look_needed = true;
    }

    fn is_late(&self, now: Moment) -> bool {
        self.leave_by.is_some_and(|by| now >= by)
    }

    fn on_state(&mut self, id: NodeId, state: NodeState) {
        let nodes = self.look.iter_mut().flat_map(|look| &mut look.nodes);
        for node in nodes.filter(|node| node.id == id) {
            node.state = state;
        }
    }

    fn on_dead(&mut self, suspect: Suspect, now: Moment) {
        let Some(look) = &mut self.look else {
            return;
        };
        let dead = look
            .node(suspect.node)
            .map(|node| node.info.address.clone());
        look.nodes.retain(|node| node.id != suspect.node);
        let note = Note::NodeDead(suspect.node, dead.unwrap_or_default());
        self.outputs.push(Output::Tell(note));
        self.settle.see(look, &self.setting.config, now);
        self.see_free(now);
    }

    fn on_released(&mut self, tenure: Tenure, now: Moment) {
        let epoch = tenure.epoch.next();
        let leave_until = now.plus(self.beat() * 8);
        if let Some(lease) = self.lease_mut(tenure.log) {
            (lease.owner, lease.epoch, lease.next_owner) = (None, epoch, None);
        }
        let log = self.log_mut(tenure.log);
        (log.known, log.leave_until) = (log.known.max(epoch), Some(leave_until));
        (log.passing, log.intended) = (None, None);
        log.free_since = Some(now);
        self.outputs.push(Output::Tell(Note::Moved {
            log: tenure.log,
            from: Some(tenure.owner),
            to: None,
            epoch,
            reason: MoveReason::Stuck,
        }));
    }

    // ---- access ----

    pub(super) fn lease_mut(&mut self, log: LogId) -> Option<&mut LeaseRow> {
        self.look.as_mut()?.leases.get_mut(usize::from(log.0))
    }
}
