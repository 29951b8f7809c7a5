//! Nodes of one store with different secrets: which of them must give way, and when.
//!
//! Why: such nodes share a database and cannot call each other, so each takes logs that the other cannot reach, and
//! every change of these logs goes the slow way. That is a mistake of who started one of them, and whoever came last
//! should say so instead of disturbing the others.
//! Invariants: a node that has had a log never gives way. A node gives way only to one that answers its hello with
//! another secret, whose beats change meanwhile, and only if no node with the same secret as its own has a log. What
//! the databases of the store show of a node counts together, because each shows the owners of its own logs alone.
//! Not here: the hello (`gesta_link`). Two nodes that have both taken logs before they met stay; their links say why
//! there is none.

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Weak};
use std::time::Duration;

use futures::future::{join_all, try_join_all};
use gesta_cluster::{Config, Membership, Placement};
use gesta_core::registry::{Look, NodeId, Registry};
use gesta_core::{Error, Result};
use gesta_link::{Address, LinkConfig, Meeting, NodeReach, Reach, meet};

use crate::address;
use crate::node::Node;

/// So many looks, a quarter of a beat apart, must see a beat of a node that is to be taken for alive.
const LOOKS: usize = 8;
/// How often a node that has joined looks whether it must give way.
const LOOK_EVERY: Duration = Duration::from_millis(250);

/// What changes with each beat of a node: its generation and its beat, by the number of the database that shows them.
type Life = BTreeMap<usize, (i64, i64)>;

/// What is known of another node.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Other {
    /// Its number, for people.
    id: NodeId,
    address: Arc<str>,
    /// Whether it has a log, in whichever database.
    owns: bool,
    /// Whether it joined before this node.
    is_earlier: bool,
    /// Whether it has the same secret as this node.
    is_friend: bool,
}

/// Returns the node to which this one, which has no log, must give way, if there is one. `others` are the nodes that
/// live and have answered.
///
/// A node that has a log is right, and so are those with the same secret. While nobody has a log, a node that is alone
/// with its secret gives way to those that joined before it. A log whose owner has not answered (`is_owner_silent`)
/// is one that somebody has: that owner may be a friend.
fn stronger(others: &[Other], is_owner_silent: bool) -> Option<&Other> {
    let (friends, strangers): (Vec<&Other>, Vec<&Other>) =
        others.iter().partition(|other| other.is_friend);
    if friends.iter().any(|friend| friend.owns) {
        return None;
    }
    let owner = strangers.iter().find(|stranger| stranger.owns);
    let earlier = || strangers.iter().find(|stranger| stranger.is_earlier);
    let strongest = match friends.is_empty() && !is_owner_silent {
        true => owner.or_else(earlier),
        false => owner,
    };
    strongest.copied()
}

/// Says, for who has started the node at `here`, why it does not take part, and what to do.
fn rule(here: &str, stranger: &Other) -> String {
    format!(
        "must be the same in all nodes of a store: node {} at {}, which is alive, has another one than this node, {here}. \
         Start this node with the file that the others have (--cluster-secret-file). To change the secret, stop all nodes \
         first",
        stranger.id, stranger.address
    )
}

/// Refuses to join a cluster whose nodes have another secret. `registries` are those of all databases of the store.
/// Without such a node this takes as long as the others need to answer, at most the time to connect; else at most two
/// beats more.
///
/// # Errors
/// `InvalidArgument` if this node must give way; the errors of the registries.
pub(crate) async fn ensure_none(
    registries: &[Arc<dyn Registry>],
    link: &LinkConfig,
    leases: &Config,
) -> Result<()> {
    let here = link.address.as_str();
    let before = look_everywhere(registries).await?;
    let nodes = before.iter().flat_map(|look| &look.nodes);
    let others: BTreeSet<Arc<str>> = nodes
        .map(|node| Arc::clone(&node.info.address))
        .filter(|address| **address != *here)
        .collect();
    let met = others.into_iter().map(async |address| {
        let met = meet(link, &Address::new(Arc::clone(&address))).await;
        (address, met)
    });
    let met: BTreeMap<Arc<str>, Meeting> = join_all(met).await.into_iter().collect();
    if !met.values().any(|met| *met == Meeting::OtherSecret) {
        return Ok(());
    }
    let beats = before.iter().map(|look| leases.beat(look.nodes.len()));
    let beat = beats.max().unwrap_or_default();
    // Looks are counted, not seconds: while all processes stand still, seconds pass and no node beats.
    for _ in 0..LOOKS {
        tokio::time::sleep(beat / 4).await;
        let now = look_everywhere(registries).await?;
        let others: Vec<Other> = met
            .iter()
            .filter_map(|(address, met)| known(address, *met, &before, &now))
            .collect();
        let has_answered = |owner: &str| others.iter().any(|other| *other.address == *owner);
        let mut owners = now.iter().flat_map(owners_of);
        let is_owner_silent = owners.any(|owner| owner != here && !has_answered(owner));
        if let Some(stranger) = stronger(&others, is_owner_silent) {
            let rule = rule(here, stranger);
            return Err(Error::invalid("the secret of the cluster", rule));
        }
    }
    Ok(())
}

/// Looks at every database, in their order.
async fn look_everywhere(registries: &[Arc<dyn Registry>]) -> Result<Vec<Look>> {
    try_join_all(registries.iter().map(|registry| registry.look())).await
}

/// Returns what is known of the node at an address by what it has answered and by what the databases showed `before`
/// and show `now`; `None` if it says nothing: nobody has answered there, or the node has another secret and has not
/// beaten since.
fn known(address: &Arc<str>, met: Meeting, before: &[Look], now: &[Look]) -> Option<Other> {
    let is_friend = match met {
        Meeting::Welcome => true,
        Meeting::OtherSecret => false,
        Meeting::Unknown => return None,
    };
    let rows = now.iter().filter_map(|look| address::row(look, address));
    let id = rows.map(|row| row.id).next()?;
    let [was, is] = [before, now].map(|looks| life(looks.iter().enumerate(), address));
    (is_friend || has_beaten(&was, &is)).then(|| Other {
        id,
        address: Arc::clone(address),
        owns: now
            .iter()
            .flat_map(owners_of)
            .any(|owner| *owner == **address),
        is_earlier: true,
        is_friend,
    })
}

/// Returns the addresses of the nodes that have logs in this database.
fn owners_of(look: &Look) -> impl Iterator<Item = &str> {
    let holders = look.leases.iter().filter_map(|lease| look.holder(lease));
    holders.map(|holder| &*holder.info.address)
}

/// Returns the life of the node at an address. Each look comes with the number of its database.
fn life<'a>(looks: impl Iterator<Item = (usize, &'a Look)>, address: &str) -> Life {
    let lives = looks.filter_map(|(database, look)| {
        let row = address::row(look, address)?;
        Some((database, address::life(row)))
    });
    lives.collect()
}

/// Tells whether a node has beaten in a database that has shown it before and shows it now. A row that comes or goes is
/// no beat.
fn has_beaten(was: &Life, is: &Life) -> bool {
    was.iter()
        .any(|(database, was)| is.get(database).is_some_and(|is| is != was))
}

/// Tells whether the node at `other` joined before the one at `here`, by the first database that shows both: a node has
/// another number in each, and the joint placement numbers nodes by their addresses.
fn is_earlier<'a>(looks: impl Iterator<Item = &'a Look>, other: &str, here: &str) -> bool {
    let mut both = looks.filter_map(|look| {
        let [other, here] = [other, here].map(|address| address::row(look, address));
        Some((other?, here?))
    });
    let both = both.next();
    both.is_some_and(|(other, here)| (other.started, other.id) < (here.started, here.id))
}

/// Looks, until this node has had a log, whether it must give way to a node that joined at the same time, or that did
/// not answer when this node joined. Then this node leaves.
pub(crate) async fn watch(node: Weak<Node>, here: Address, parts: Vec<Membership>) {
    let mut first_seen: BTreeMap<Arc<str>, Life> = BTreeMap::new();
    loop {
        tokio::time::sleep(LOOK_EVERY).await;
        let Some(node) = node.upgrade() else { return };
        let placement = node.placement();
        // It may be joining again.
        let Some(me) = placement.me else { continue };
        if owns(&placement, me) {
            return;
        }
        let reach = node.forwarder.nodes();
        if !reach.iter().any(|other| other.has_other_secret) {
            continue;
        }
        let looks = parts.iter().map(|part| part.status().look);
        let looks: Vec<(usize, Arc<Look>)> = looks
            .enumerate()
            .filter_map(|(database, look)| Some((database, look?)))
            .collect();
        let others = placement.nodes.iter().filter(|other| other.id != me);
        let others = others.filter_map(|other| {
            let address = &other.address;
            let is_friend = is_friend(&reach, address)?;
            let looks = || looks.iter().map(|(database, look)| (*database, &**look));
            let life = life(looks(), address);
            let seen = first_seen.entry(Arc::clone(address)).or_default();
            for (database, life) in &life {
                seen.entry(*database).or_insert(*life);
            }
            (is_friend || has_beaten(seen, &life)).then(|| Other {
                id: other.id,
                address: Arc::clone(address),
                owns: owns(&placement, other.id),
                is_earlier: is_earlier(looks().map(|(_, look)| look), address, here.as_str()),
                is_friend,
            })
        });
        let others: Vec<Other> = others.collect();
        let mut owners = placement.logs.iter().filter_map(|log| log.owner.as_ref());
        let is_owner_silent =
            owners.any(|owner| !others.iter().any(|other| other.id == owner.node));
        if let Some(stranger) = stronger(&others, is_owner_silent) {
            let rule = rule(here.as_str(), stranger);
            node.give_way(format!("the secret of the cluster {rule}"))
                .await;
            return;
        }
    }
}

fn owns(placement: &Placement, node: NodeId) -> bool {
    let mut owners = placement.logs.iter().filter_map(|log| log.owner.as_ref());
    owners.any(|owner| owner.node == node)
}

/// Returns whether the node at this address has the same secret; `None` if its link does not tell.
fn is_friend(reach: &[NodeReach], address: &str) -> Option<bool> {
    let link = reach
        .iter()
        .find(|other| other.address.as_str() == address)?;
    match (link.has_other_secret, link.reach) {
        (true, _) => Some(false),
        (false, Reach::Reachable) => Some(true),
        (false, _) => None,
    }
}
