//! Tells the forwarder of every change of the owners.

use std::sync::Arc;

use gesta_cluster::Placement;
use gesta_core::{Incarnation, LogId};
use gesta_link::{Address, Epoch, Forwarder, Route, RouteOwner};
use tokio::sync::watch;
use uuid::Uuid;

/// Sets the routes of all logs at each change, until there are no more changes.
pub(crate) async fn follow(
    mut placement: watch::Receiver<Arc<Placement>>,
    forwarder: Forwarder,
    here: Address,
) {
    loop {
        let now = Arc::clone(&placement.borrow_and_update());
        set(&now, &forwarder, &here);
        if placement.changed().await.is_err() {
            return;
        }
    }
}

/// Sets the routes of all logs. A placement knows nothing before the first look or after the membership has failed.
/// Then the routes lead to nobody, and nothing is believed that was known before.
pub(crate) fn set(placement: &Placement, forwarder: &Forwarder, here: &Address) {
    let others = placement.nodes.iter();
    let others = others.filter(|node| &*node.address != here.as_str());
    let others: Vec<Address> = others
        .map(|node| Address::new(Arc::clone(&node.address)))
        .collect();
    forwarder.set_nodes(&others);
    for log in (0..forwarder.logs()).map(LogId) {
        // It is in force in the order of this call and the calls that are forwarded; nobody waits for it.
        drop(forwarder.set_route(log, route(placement, log, here)));
    }
}

/// Returns who gets the calls for a log, by a placement.
pub fn route(placement: &Placement, log: LogId, here: &Address) -> Route {
    let owner = match placement.log(log) {
        Some(place) if place.is_mine => RouteOwner::Local,
        Some(place) => match &place.owner {
            Some(owner) if &*owner.address != here.as_str() => {
                RouteOwner::Node(Address::new(Arc::clone(&owner.address)))
            }
            // Nobody; this node, which is giving the log away; or another process with this node's address, which
            // cannot be called from here.
            _ => RouteOwner::Nobody,
        },
        None => RouteOwner::Nobody,
    };
    Route {
        owner,
        epoch: epoch(placement, log),
    }
}

/// Returns the epoch of the owner of a log.
pub(crate) fn epoch(placement: &Placement, log: LogId) -> Epoch {
    Epoch {
        incarnation: placement.incarnation.unwrap_or(Incarnation(Uuid::nil())),
        number: placement.log(log).map_or(0, |place| place.epoch.0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use gesta_cluster::LogPlace;
    use gesta_core::registry::{LeaseEpoch, NodeId};

    /// Goal: a process never calls itself. What happened: another process had joined with the same address, so the
    /// owner of its logs was no longer this node but had its address; the calls went in a circle for 30 s.
    #[test]
    fn a_process_with_the_same_address_is_not_called() {
        let here = Address::new("here:1");
        let owned_by = |address: &str| Placement {
            logs: vec![LogPlace {
                owner: Some(gesta_cluster::Owner {
                    node: NodeId(1),
                    address: address.into(),
                }),
                next_owner: None,
                epoch: LeaseEpoch(2),
                is_mine: false,
            }],
            ..Placement::default()
        };
        let owner = |address| route(&owned_by(address), LogId(0), &here).owner;
        assert_eq!(owner("here:1"), RouteOwner::Nobody);
        assert_eq!(owner("there:1"), RouteOwner::Node(Address::new("there:1")));
    }
}
