//! The rows of a registry of nodes, for tests of what is made of them, and a registry in memory.

mod memory;

use gesta_core::registry::{
    ClusterVersion, Generation, LeaseEpoch, LeaseRow, Look, NodeId, NodeInfo, NodeRow, NodeState,
};
use gesta_core::{Incarnation, LogId, Timestamp};
use uuid::Uuid;

pub use self::memory::{MemoryRegistry, Tables};

/// Makes a node that is up and reaches all others, in its first life, at `host:` and its number.
#[must_use]
pub fn node_row(id: u32) -> NodeRow {
    NodeRow {
        id: NodeId(id),
        info: NodeInfo {
            address: format!("host:{id}").into(),
            weight: 100,
            build: "1".into(),
            protocol_min: 1,
            protocol_max: 1,
        },
        generation: Generation(i64::from(id)),
        beat: 1,
        state: NodeState::Up,
        held: false,
        unreachable: Vec::new(),
        started: Timestamp(0),
        beat_at: Timestamp(0),
    }
}

/// Makes the lease of a log that such a node owns, or nobody.
#[must_use]
pub fn lease_row(log: u16, owner: Option<u32>) -> LeaseRow {
    LeaseRow {
        log: LogId(log),
        owner: owner.map(NodeId),
        generation: owner.map_or(Generation::NONE, |id| Generation(i64::from(id))),
        epoch: LeaseEpoch(5),
        next_owner: None,
        pinned: None,
        frozen: false,
        since: Timestamp(0),
    }
}

/// Makes what an observer sees that is not registered: these nodes, and the logs from 0 on with these owners.
#[must_use]
pub fn look(nodes: impl IntoIterator<Item = u32>, owners: &[Option<u32>]) -> Look {
    Look {
        is_registered: false,
        incarnation: Incarnation(Uuid::nil()),
        version: ClusterVersion::FIRST,
        nodes: nodes.into_iter().map(node_row).collect(),
        leases: (0..)
            .zip(owners)
            .map(|(log, owner)| lease_row(log, *owner))
            .collect(),
    }
}
