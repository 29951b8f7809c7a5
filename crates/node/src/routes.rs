//! Tells the forwarder of every change of the owners.

use std::sync::Arc;

use gesta_cluster::Placement;
use gesta_core::LogId;
use gesta_link::{Address, Forwarder, Owner, Route};
use tokio::sync::watch;

use crate::serve::epoch;

/// Sets the routes of all logs at each change, until there are no more changes.
pub(crate) async fn follow(mut placement: watch::Receiver<Arc<Placement>>, forwarder: Forwarder) {
    loop {
        let now = Arc::clone(&placement.borrow_and_update());
        set(&now, &forwarder);
        if placement.changed().await.is_err() {
            return;
        }
    }
}

pub(crate) fn set(placement: &Placement, forwarder: &Forwarder) {
    if placement.incarnation.is_none() {
        return;
    }
    let others = placement.nodes.iter();
    let others = others.filter(|node| Some(node.id) != placement.me);
    let others: Vec<Address> = others
        .map(|node| Address::new(Arc::clone(&node.address)))
        .collect();
    forwarder.set_nodes(&others);
    for log in (0..).map(LogId).take(placement.logs.len()) {
        // It is in force in the order of this call and the calls that are forwarded; nobody waits for it.
        drop(forwarder.set_route(log, route(placement, log)));
    }
}

fn route(placement: &Placement, log: LogId) -> Route {
    let owner = match placement.log(log) {
        Some(place) if place.is_mine => Owner::Local,
        Some(place) => match &place.owner {
            Some(owner) if Some(owner.node) != placement.me => {
                Owner::Node(Address::new(Arc::clone(&owner.address)))
            }
            // Nobody, or this node, which is giving the log away.
            _ => Owner::Nobody,
        },
        None => Owner::Nobody,
    };
    Route {
        owner,
        epoch: epoch(placement, log),
    }
}
