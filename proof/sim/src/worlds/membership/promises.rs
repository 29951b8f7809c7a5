//! What must hold after every event, and what tests count.

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use gesta_cluster::core::{Change, Changed};
use gesta_core::registry::{LeaseEpoch, Look, NodeId};
use gesta_core::{Incarnation, LogId};

use super::process::Process;
use super::{B, D, Database};

/// A node that was declared dead.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Death {
    pub(super) at: Duration,
    pub(super) node: NodeId,
    pub(super) by: usize,
}

#[derive(Debug, Default)]
pub(super) struct Promises {
    epochs: BTreeMap<LogId, LeaseEpoch>,
    /// The beats that the database holds.
    beaten: BTreeMap<NodeId, Vec<Duration>>,
    /// Who had which tenure, according to any node. What is said about a tenure never changes.
    tenures: HashMap<(Incarnation, LogId, LeaseEpoch), NodeId>,
    versions: HashMap<usize, u64>,
    pub(super) deaths: Vec<Death>,
    /// Changes of the owner of a log, from one node to another.
    pub(super) moves: usize,
    /// When each move was, with its log.
    pub(super) moved: Vec<(Duration, LogId)>,
    /// Nodes may be declared dead although they beat, since links are cut.
    pub(super) links_are_cut: bool,
    /// Connections are refused, so nodes may be declared dead early.
    pub(super) refuses: bool,
}

impl Promises {
    /// What was written after this moment is lost, and epochs may be lower now.
    pub(super) fn failed_over(&mut self, to: Duration) {
        self.epochs.clear();
        for beats in self.beaten.values_mut() {
            beats.retain(|beat| *beat < to);
        }
    }

    pub(super) fn beaten(&mut self, node: NodeId, now: Duration) {
        self.beaten.entry(node).or_default().push(now);
    }

    pub(super) fn changed(
        &mut self,
        now: Duration,
        by: usize,
        change: &Change,
        changed: &Changed,
        before: &Look,
    ) {
        match (change, changed) {
            (Change::DeclareDead(suspect), Changed::Done(true)) => {
                self.deaths.push(Death {
                    at: now,
                    node: suspect.node,
                    by,
                });
                let last = self
                    .beaten
                    .get(&suspect.node)
                    .and_then(|beats| beats.last().copied());
                let silent = now - last.unwrap_or_default();
                // An observer's clock may be a tenth fast.
                let least = if self.refuses { B * 2 } else { D } * 10 / 11;
                assert!(
                    silent >= least || self.links_are_cut,
                    "{} was declared dead by {by} at {now:?}, and had beaten {silent:?} before",
                    suspect.node
                );
            }
            (Change::Claim(claims), Changed::Claimed(got)) => {
                for claim in claims
                    .iter()
                    .filter(|claim| got.contains(&claim.tenure.log))
                {
                    let lease = &before.leases[usize::from(claim.tenure.log.0)];
                    self.moved(now, lease.log, lease.owner, claim.tenure.owner);
                }
            }
            (Change::HandOver(hand_over), Changed::Done(true)) => {
                self.moved(
                    now,
                    hand_over.from.log,
                    Some(hand_over.from.owner),
                    hand_over.to,
                );
            }
            _ => {}
        }
    }

    fn moved(&mut self, now: Duration, log: LogId, from: Option<NodeId>, to: NodeId) {
        if from != Some(to) {
            self.moves += 1;
            self.moved.push((now, log));
        }
    }

    /// Checks what a node tells others.
    fn check_hints(&mut self, now: Duration, process: &Process) {
        let Some(placement) = process
            .core
            .as_ref()
            .map(gesta_cluster::core::Core::placement)
        else {
            return;
        };
        if self.versions.insert(process.number, placement.version) == Some(placement.version) {
            return;
        }
        for (log, place) in (0..).zip(&placement.logs) {
            let (Some(incarnation), Some(owner)) = (placement.incarnation, &place.owner) else {
                continue;
            };
            let tenure = (incarnation, LogId(log), place.epoch);
            let said = *self.tenures.entry(tenure).or_insert(owner.node);
            assert_eq!(said, owner.node, "two owners of {tenure:?} at {now:?}");
        }
    }

    pub(super) fn check(&mut self, now: Duration, database: &Database, processes: &[Process]) {
        for process in processes {
            self.check_hints(now, process);
            let served = process.handing_over.filter(|log| process.is_mine(*log));
            assert_eq!(
                served, None,
                "{} serves it while it hands it over, at {now:?}",
                process.number
            );
        }
        let look = database.tables.look();
        for lease in &look.leases {
            let known = self.epochs.entry(lease.log).or_insert(lease.epoch);
            assert!(
                lease.epoch >= *known,
                "the epoch of {} shrank at {now:?}",
                lease.log
            );
            *known = lease.epoch;
            let believers = processes.iter().filter(|process| {
                let placement = process.core.as_ref().map(|core| core.placement());
                let is_current = |placement: &gesta_cluster::Placement| {
                    let place = placement.log(lease.log);
                    let is_mine = place.is_some_and(|at| at.is_mine && at.epoch == lease.epoch);
                    is_mine && placement.incarnation == Some(look.incarnation)
                };
                placement.is_some_and(|placement| is_current(&placement))
            });
            let believers: Vec<_> = believers.map(|process| process.id).collect();
            assert!(
                believers.len() <= 1,
                "{believers:?} own {} at {now:?}",
                lease.log
            );
            let holder = look.holder(lease).map(|node| node.id);
            if let (Some(believer), Some(holder)) = (believers.first(), holder) {
                assert_eq!(*believer, Some(holder), "{} at {now:?}", lease.log);
            }
        }
    }
}
