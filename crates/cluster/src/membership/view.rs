//! What the rest of the node sees: a view that is derived from the last look, anew after each step.

use std::sync::Arc;

use gesta_core::LogId;
use gesta_core::registry::{LeaseRow, Look, NodeId, NodeRow};

use super::hand_over::Stage;
use super::{Core, LogState, Standing};
use crate::placement::{LogPlace, Member, Owner, Placement};

impl Core {
    pub(super) fn placement_me(&self) -> Option<NodeId> {
        match self.standing {
            Standing::Inside(node, _) => Some(node),
            Standing::Outside(_) | Standing::Displaced { .. } => None,
        }
    }

    pub(super) fn publish(&mut self) {
        let Some(look) = &self.look else {
            return;
        };
        let me = self.placement_me().filter(|_| look.is_registered);
        let mut nodes: Vec<Member> = look.nodes.iter().map(member).collect();
        nodes.sort_by_key(|node| node.id);
        let placement = Placement {
            version: self.placement.version,
            incarnation: Some(look.incarnation),
            cluster: Some(look.version),
            me,
            logs: self.places(look, me),
            nodes,
        };
        if placement != *self.placement {
            let version = placement.version + 1;
            self.placement = Arc::new(Placement {
                version,
                ..placement
            });
        }
    }

    /// Returns the places of the logs, in order, up to the last log of the look.
    fn places(&self, look: &Look, me: Option<NodeId>) -> Vec<LogPlace> {
        let last = look.leases.iter().map(|lease| lease.log).max();
        let mut places = vec![LogPlace::UNKNOWN; last.map_or(0, |last| usize::from(last.0) + 1)];
        for lease in &look.leases {
            places[usize::from(lease.log.0)] = self.place(look, lease, me);
        }
        places
    }

    fn place(&self, look: &Look, lease: &LeaseRow, me: Option<NodeId>) -> LogPlace {
        let holder = look.holder(lease);
        let passing = self.log(lease.log).passing;
        let is_passed_on = passing.is_some_and(|passing| passing.stage == Stage::Sent);
        LogPlace {
            owner: holder.map(owner),
            next_owner: lease.next_owner.and_then(|next| look.node(next)).map(owner),
            epoch: lease.epoch,
            is_mine: me.is_some() && holder.map(|node| node.id) == me && !is_passed_on,
        }
    }

    pub(super) fn log(&self, log: LogId) -> &LogState {
        static NOTHING: LogState = LogState::new();
        self.logs.get(usize::from(log.0)).unwrap_or(&NOTHING)
    }

    pub(super) fn log_mut(&mut self, log: LogId) -> &mut LogState {
        let place = usize::from(log.0);
        if self.logs.len() <= place {
            self.logs.resize_with(place + 1, LogState::default);
        }
        &mut self.logs[place]
    }
}

fn owner(node: &NodeRow) -> Owner {
    Owner {
        node: node.id,
        address: node.info.address.clone(),
    }
}

fn member(node: &NodeRow) -> Member {
    Member {
        id: node.id,
        address: node.info.address.clone(),
        state: node.state,
        build: node.info.build.clone(),
        protocol: (node.info.protocol_min, node.info.protocol_max),
    }
}
