//! When membership has settled, so that logs may be moved for the sake of balance.
//!
//! Why: a node that restarts comes back within seconds, and a rolling restart changes the membership repeatedly. A node
//! that balanced at once would move logs two or three times.

use gesta_core::Moment;
use gesta_core::registry::{Generation, Look, NodeId, NodeState};

use super::times::Config;

#[derive(Debug)]
pub(crate) struct Settle {
    members: Vec<(NodeId, Generation, NodeState)>,
    /// The moment at which the members last changed.
    changed: Moment,
    /// The moment at which the members began to change, after they had settled.
    began: Moment,
}

impl Settle {
    pub(crate) fn begin(now: Moment) -> Self {
        Self {
            members: Vec::new(),
            changed: now,
            began: now,
        }
    }

    pub(crate) fn see(&mut self, look: &Look, config: &Config, now: Moment) {
        let mut members: Vec<_> = look
            .nodes
            .iter()
            .map(|node| (node.id, node.generation, node.state))
            .collect();
        members.sort_by_key(|(node, ..)| *node);
        if members != self.members {
            self.members = members;
            self.disturb(config, now);
        }
    }

    /// Begins settling anew, because what happened meanwhile was not seen.
    pub(crate) fn disturb(&mut self, config: &Config, now: Moment) {
        if now.since(self.changed) >= config.settle {
            self.began = now;
        }
        self.changed = now;
    }

    pub(crate) fn is_over(&self, config: &Config, now: Moment) -> bool {
        now.since(self.changed) >= config.settle || now.since(self.began) >= config.settle_max()
    }
}
