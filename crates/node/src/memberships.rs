//! The memberships of a node, one in each database of its store, and the one placement that the rest of the node sees.
//!
//! Why there is one for each database: a database that does not answer then says nothing about the logs that lie in
//! others, neither that their owners live nor that they are dead.
//! Invariant: of two databases that say something about a log, the one with the greater epoch is believed. The version
//! of the map of the logs is the higher part of an epoch (`LeaseEpoch::by_map`), so this is the database in which the
//! log lies.
//! Not here: who decides about owners (`gesta-cluster`), which log lies where (`gesta-postgres`).

use std::collections::BTreeMap;
use std::sync::Arc;

use futures::FutureExt;
use futures::future::{BoxFuture, select_all};
use gesta_cluster::{LogPlace, Member, Membership, Owner, Placement, Status, Stop};
use gesta_core::Incarnation;
use gesta_core::registry::{NodeId, NodeState};
use tokio::sync::watch;
use tokio_util::task::AbortOnDropHandle;
use uuid::Uuid;

/// The memberships of one node.
pub(crate) struct Memberships {
    parts: Vec<Membership>,
    told: watch::Receiver<Arc<Placement>>,
    /// The task that puts the placements together. The task ends when this is dropped.
    _joining: Option<AbortOnDropHandle<()>>,
}

impl Memberships {
    /// Puts memberships together. There must be at least one, and their order is that of the databases.
    pub(crate) fn new(parts: Vec<Membership>) -> Self {
        if let [only] = parts.as_slice() {
            return Self {
                told: only.changes(),
                parts,
                _joining: None,
            };
        }
        let placements: Vec<_> = parts.iter().map(Membership::changes).collect();
        let (sender, told) = watch::channel(Arc::default());
        let joining = tokio::spawn(follow(placements, sender));
        Self {
            parts,
            told,
            _joining: Some(AbortOnDropHandle::new(joining)),
        }
    }

    pub(crate) fn parts(&self) -> &[Membership] {
        &self.parts
    }

    pub(crate) fn changes(&self) -> watch::Receiver<Arc<Placement>> {
        self.told.clone()
    }

    /// Returns the status of all memberships in one. Its look age is that of the oldest look.
    pub(crate) fn status(&self) -> Status {
        let statuses = self.parts.iter().map(Membership::status);
        statuses.reduce(both).unwrap_or_default()
    }

    /// Waits until one of the memberships has ended.
    pub(crate) fn stopped(&self) -> BoxFuture<'static, Stop> {
        let ends = self.parts.iter().map(|part| part.stopped().boxed());
        select_all(ends).map(|(stop, ..)| stop).boxed()
    }
}

fn both(one: Status, other: Status) -> Status {
    let troubles = [one.trouble, other.trouble].into_iter().flatten();
    let trouble = troubles.reduce(|all, next| format!("{all}; {next}"));
    let mut moves = one.moves;
    for (sum, more) in moves.iter_mut().zip(other.moves) {
        *sum += more;
    }
    let mut took = one.took;
    took += other.took;
    Status {
        took,
        look: one.look.or(other.look),
        look_age: match (one.look_age, other.look_age) {
            (Some(one), Some(other)) => Some(one.max(other)),
            (one, other) => one.or(other),
        },
        trouble,
        stopped: one.stopped.or(other.stopped),
        moves,
    }
}

/// Tells the joint placement after each change of a membership's placement, until all memberships have ended.
async fn follow(
    mut placements: Vec<watch::Receiver<Arc<Placement>>>,
    told: watch::Sender<Arc<Placement>>,
) {
    loop {
        let seen = placements.iter_mut();
        let seen: Vec<_> = seen
            .map(|one| Arc::clone(&one.borrow_and_update()))
            .collect();
        told.send_if_modified(|told| {
            let new = Placement {
                version: told.version,
                ..joint(&seen)
            };
            let is_new = **told != new;
            if is_new {
                let version = new.version + 1;
                *told = Arc::new(Placement { version, ..new });
            }
            is_new
        });
        let changes = placements.iter_mut().map(|one| one.changed().boxed());
        let (changed, at, _) = select_all(changes).await;
        if changed.is_err() {
            // A membership has ended, and with it the node does: nothing is said any more of the logs of its database.
            // That of a database which is away goes on, and what it said last stays said.
            drop(placements.remove(at));
        }
        if placements.is_empty() {
            return;
        }
    }
}

/// Makes one placement out of those of all databases. A node has another number in each database, so here the nodes are
/// numbered from 1 in the order of their addresses.
fn joint(parts: &[Arc<Placement>]) -> Placement {
    let mut nodes: BTreeMap<Arc<str>, Member> = BTreeMap::new();
    for member in parts.iter().flat_map(|part| &part.nodes) {
        let known = nodes.entry(Arc::clone(&member.address));
        let known = known.or_insert_with(|| member.clone());
        if member.state == NodeState::Draining {
            known.state = NodeState::Draining;
        }
    }
    let mut nodes: Vec<Member> = nodes.into_values().collect();
    for (id, node) in (1..).map(NodeId).zip(&mut nodes) {
        node.id = id;
    }
    let number = |address: &str| {
        let node = nodes.iter().find(|node| &*node.address == address);
        node.map(|node| node.id)
    };
    let me = parts.iter().find_map(|part| part.member(part.me?));
    let logs = parts.iter().map(|part| part.logs.len()).max().unwrap_or(0);
    let place = |log: usize| {
        let places = parts.iter().filter_map(|part| part.logs.get(log));
        let newest = places.max_by_key(|place| place.epoch).cloned();
        let newest = newest.unwrap_or(LogPlace::UNKNOWN);
        let numbered = |owner: Owner| {
            let node = number(&owner.address).unwrap_or(owner.node);
            Owner { node, ..owner }
        };
        LogPlace {
            owner: newest.owner.map(numbered),
            next_owner: newest.next_owner.map(numbered),
            ..newest
        }
    };
    let incarnations = parts.iter().filter_map(|part| part.incarnation);
    let incarnation = incarnations.reduce(|one, other| {
        let both = one.0.as_u128() ^ other.0.as_u128();
        Incarnation(Uuid::from_u128(both))
    });
    Placement {
        version: 0,
        incarnation,
        // What one database does not allow may not be used.
        cluster: parts.iter().filter_map(|part| part.cluster).min(),
        me: me.and_then(|me| number(&me.address)),
        logs: (0..logs).map(place).collect(),
        nodes,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use gesta_core::LogId;
    use gesta_core::registry::{ClusterVersion, LeaseEpoch};

    fn owner(node: u32, address: &str) -> Owner {
        Owner {
            node: NodeId(node),
            address: address.into(),
        }
    }

    fn part(me: u32, nodes: &[(u32, &str)], logs: Vec<LogPlace>) -> Arc<Placement> {
        let member = |(id, address): &(u32, &str)| Member {
            id: NodeId(*id),
            address: (*address).into(),
            state: NodeState::Up,
            build: "1".into(),
            protocol: (1, 1),
        };
        Arc::new(Placement {
            version: 7,
            incarnation: Some(Incarnation(Uuid::from_u128(me.into()))),
            cluster: Some(ClusterVersion(u16::try_from(me).expect("small"))),
            me: Some(NodeId(me)),
            logs,
            nodes: nodes.iter().map(member).collect(),
        })
    }

    fn place(owner: Owner, epoch: LeaseEpoch, is_mine: bool) -> LogPlace {
        LogPlace {
            owner: Some(owner),
            epoch,
            is_mine,
            ..LogPlace::UNKNOWN
        }
    }

    /// Goal: each log has the owner that its own database names, whatever the numbers of nodes are there; a database
    /// that has not noticed yet that a log was moved away is not believed.
    #[test]
    fn each_log_is_where_the_database_that_it_lies_in_says() {
        let epoch = |count, version| LeaseEpoch(count).by_map(version);
        let first = part(
            1,
            &[(1, "a:1"), (2, "b:1")],
            vec![
                place(owner(2, "b:1"), epoch(5, 1), false),
                place(owner(1, "a:1"), epoch(900, 1), true),
            ],
        );
        let second = part(
            9,
            &[(4, "b:1"), (9, "a:1")],
            vec![
                LogPlace::UNKNOWN,
                place(owner(4, "b:1"), epoch(1, 2), false),
                place(owner(9, "a:1"), epoch(3, 2), true),
            ],
        );
        let joint = joint(&[first, second]);
        let owners: Vec<_> = joint.logs.iter().flat_map(|log| &log.owner).collect();
        let addresses: Vec<&str> = owners.iter().map(|owner| &*owner.address).collect();
        assert_eq!(addresses, ["b:1", "b:1", "a:1"]);
        assert_eq!(joint.me, Some(NodeId(1)));
        assert_eq!(joint.cluster, Some(ClusterVersion(1)), "the lower one");
        assert_eq!(joint.nodes.len(), 2);
        assert!(owners.iter().all(|owner| {
            let member = joint
                .member(owner.node)
                .expect("numbered as the members are");
            member.address == owner.address
        }));
        assert_eq!(joint.mine().collect::<Vec<_>>(), [LogId(2)]);
        assert_eq!(joint.incarnation, Some(Incarnation(Uuid::from_u128(8))));
    }
}
