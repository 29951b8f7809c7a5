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
/// with its secret gives way to those that joined before it.
fn stronger(others: &[Other]) -> Option<&Other> {
    let (friends, strangers): (Vec<&Other>, Vec<&Other>) =
        others.iter().partition(|other| other.is_friend);
    if friends.iter().any(|friend| friend.owns) {
        return None;
    }
    let owner = strangers.iter().find(|stranger| stranger.owns);
    let earlier = || strangers.iter().find(|stranger| stranger.is_earlier);
    let strongest = match friends.is_empty() {
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
        if let Some(stranger) = stronger(&others) {
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
        owns: now.iter().any(|look| has_log(look, address)),
        is_earlier: true,
        is_friend,
    })
}

/// Tells whether the node at an address has a log in this database.
fn has_log(look: &Look, address: &str) -> bool {
    let mut holders = look.leases.iter().filter_map(|lease| look.holder(lease));
    holders.any(|holder| *holder.info.address == *address)
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
        if let Some(stranger) = stronger(&others) {
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

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};

    use bytes::Bytes;
    use futures::FutureExt;
    use futures::future::{BoxFuture, ready};
    use gesta_core::registry::{Beat, Claim, Generation, Join, NodeInfo, NodeState, Tenure};
    use gesta_core::{LogId, Timestamp};
    use gesta_kit::registry::{MemoryRegistry, look, node_row};
    use gesta_link::{
        Bounds, Call, LinkServer, Protocols, Question, Secret, Serve, Served, StoreIdentity, Times,
    };
    use tokio::net::TcpListener;
    use uuid::Uuid;

    use super::*;

    const OURS: &[u8] = b"the secret of this node";
    const THEIRS: &[u8] = b"the secret of the others";
    const GENERATION: Generation = Generation(7);
    /// With this, whoever waits for beats waits for the whole test.
    const SLOW: Duration = Duration::from_secs(1_000);
    const QUICK: Duration = Duration::from_millis(200);
    const LIMIT: Duration = Duration::from_secs(120);

    /// No call comes to the nodes of these tests.
    struct Nobody;

    impl Serve for Nobody {
        fn call(&self, _: LogId, _: Call) -> Served {
            Served::NotHere(gesta_link::Hint {
                owner: None,
                epoch: gesta_link::Epoch {
                    incarnation: gesta_core::Incarnation::random(),
                    number: 0,
                },
            })
        }

        fn ask(&self, question: Question) -> BoxFuture<'static, Bytes> {
            ready(question.body).boxed()
        }
    }

    fn link(address: Address, secret: &[u8]) -> LinkConfig {
        LinkConfig {
            store: StoreIdentity {
                id: Uuid::from_u128(1),
                logs: 2,
            },
            secret: Secret::new(secret).expect("long enough"),
            address,
            build: "test".to_owned(),
            protocols: Protocols::THIS,
            times: Times {
                connect_within: LIMIT,
                ..Times::default()
            },
            bounds: Bounds::default(),
        }
    }

    /// Listens as a node with this secret, and joins it. Returns its number and the server, which must be kept.
    async fn joined(registry: &MemoryRegistry, secret: &[u8]) -> (NodeId, LinkServer) {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("binds");
        let address = Address::from(listener.local_addr().expect("bound"));
        let node = joins(registry, address.as_str()).await;
        let server = LinkServer::start(listener, link(address, secret), Arc::new(Nobody));
        (node, server.expect("starts"))
    }

    /// Joins the node at this address, in one more database perhaps. Returns its number there.
    async fn joins(registry: &MemoryRegistry, address: &str) -> NodeId {
        let join = Join {
            info: NodeInfo {
                address: address.into(),
                weight: 100,
                build: "1".into(),
                protocol_min: 1,
                protocol_max: 1,
            },
            generation: GENERATION,
            beat: 1,
        };
        registry.join(&join).await.expect("joins")
    }

    async fn takes(registry: &MemoryRegistry, node: NodeId, log: u16) {
        let look = registry.tables().look();
        let lease = look.lease(LogId(log)).expect("a log");
        let tenure = Tenure {
            log: lease.log,
            owner: node,
            generation: GENERATION,
            epoch: lease.epoch.next(),
        };
        let seen = lease.epoch;
        let got = registry.claim(&[Claim { seen, tenure }]).await;
        assert_eq!(got.expect("answers"), [LogId(log)]);
    }

    /// Does work while these nodes beat.
    async fn while_they_beat<T>(
        registry: &Arc<MemoryRegistry>,
        nodes: Vec<NodeId>,
        work: impl Future<Output = T>,
    ) -> T {
        let is_over = Arc::new(AtomicBool::new(false));
        let (beating, ends) = (Arc::clone(registry), Arc::clone(&is_over));
        let live = tokio::spawn(async move {
            for beat in 2.. {
                for node in &nodes {
                    let beat = Beat {
                        node: *node,
                        generation: GENERATION,
                        beat,
                        unreachable: Vec::new(),
                    };
                    beating.beat(&beat).await.expect("answers");
                }
                if ends.load(Ordering::Relaxed) {
                    return;
                }
                tokio::time::sleep(QUICK / 10).await;
            }
        });
        let done = tokio::time::timeout(LIMIT, work).await.expect("in time");
        is_over.store(true, Ordering::Relaxed);
        live.await.expect("ends");
        done
    }

    async fn try_joining<const N: usize>(
        registries: [&Arc<MemoryRegistry>; N],
        beat_min: Duration,
    ) -> Result<()> {
        let registries = registries.map(|registry| Arc::clone(registry) as Arc<dyn Registry>);
        let leases = Config {
            beat_min,
            ..Config::default()
        };
        ensure_none(&registries, &link(Address::new("here:1"), OURS), &leases).await
    }

    fn other(id: u32, owns: bool, is_friend: bool) -> Other {
        Other {
            id: NodeId(id),
            address: format!("node-{id}:1").into(),
            owns,
            is_earlier: true,
            is_friend,
        }
    }

    /// Goal: an owner never has to give way, whoever is beside it; while nobody has a log, one of two goes.
    #[test]
    fn the_stranger_gives_way_and_never_the_owner() {
        let (owner, idle) = (true, false);
        let friend = |id, owns| other(id, owns, true);
        let stranger = |id, owns| other(id, owns, false);
        let later = |stranger| Other {
            is_earlier: false,
            ..stranger
        };
        for (others, to) in [
            (vec![], None),
            (vec![friend(1, owner), friend(2, idle)], None),
            (vec![stranger(1, owner)], Some(1)),
            (vec![stranger(1, idle)], Some(1)),
            (vec![stranger(1, idle), stranger(2, owner)], Some(2)),
            // The cluster of this node is there, and the strangers are those who must go.
            (vec![friend(1, owner), stranger(2, owner)], None),
            (vec![friend(1, owner), stranger(2, idle)], None),
            (vec![friend(1, idle), stranger(2, idle)], None),
            (vec![friend(1, idle), stranger(2, owner)], Some(2)),
            // Of two that have joined at the same moment the later one goes.
            (vec![later(stranger(2, idle))], None),
            (vec![later(stranger(2, owner))], Some(2)),
        ] {
            let found = stronger(&others).map(|other| other.id.0);
            assert_eq!(found, to, "{others:?}");
        }
    }

    /// What the database shows of nodes that joined in this order, all within one step of its clock.
    fn shown<const N: usize>(addresses: [&str; N]) -> Look {
        let mut shown = look(0..0, &[]);
        shown.nodes = (1..)
            .zip(addresses)
            .map(|(id, address)| {
                let mut row = node_row(id);
                row.info.address = address.into();
                row
            })
            .collect();
        shown
    }

    /// What happened: beside several databases nodes are numbered by their addresses, and of two without logs the one
    /// with the greater number left: a wrong newcomer made an earlier node leave whose address comes later in the
    /// alphabet. Goal: the earlier one stays, also if the newcomer has had its number in a life before.
    #[test]
    fn the_node_that_joined_first_stays() {
        let by = |looks: &[Look], other, here| is_earlier(looks.iter(), other, here);
        let b_first = [shown(["b:1", "a:1"]), shown(["a:1", "b:1"])];
        assert!(by(&b_first, "b:1", "a:1"));
        assert!(!by(&b_first, "a:1", "b:1"));
        let second_alone = [shown(["b:1"]), shown(["a:1", "b:1"])];
        assert!(by(&second_alone, "a:1", "b:1"));
        assert!(!by(&second_alone, "b:1", "a:1"));
        let neither = [shown(["b:1"]), shown(["a:1"])];
        assert!(!by(&neither, "b:1", "a:1") && !by(&neither, "a:1", "b:1"));
        let mut again = shown(["a:1", "b:1"]);
        again.nodes[0].started = Timestamp(1);
        assert!(by(&[again], "b:1", "a:1"), "it joined again later");
    }

    /// What happened: what all databases show of a node was compared together, so that a row which was gone from one of
    /// them counted as a beat of a node that was dead.
    #[test]
    fn a_row_that_comes_or_goes_is_no_beat() {
        let seen = |beats: [Option<i64>; 2]| {
            let looks = beats.map(|beat| {
                let mut shown = shown(["a:1"]);
                match beat {
                    Some(beat) => shown.nodes[0].beat = beat,
                    None => shown.nodes.clear(),
                }
                shown
            });
            life(looks.iter().enumerate(), "a:1")
        };
        let both = seen([Some(1), Some(1)]);
        for (is, beats) in [
            ([Some(1), Some(1)], false),
            ([Some(1), None], false),
            ([None, Some(1)], false),
            ([None, None], false),
            ([Some(1), Some(2)], true),
            ([None, Some(2)], true),
        ] {
            assert_eq!(has_beaten(&both, &seen(is)), beats, "{is:?}");
        }
        assert!(!has_beaten(&seen([None, Some(1)]), &both), "one came");
    }

    /// What happened: a node with another secret joined, took logs which nobody else could reach, and only warned.
    #[tokio::test]
    async fn a_node_with_another_secret_than_a_live_one_may_not_join() {
        let registry = Arc::new(MemoryRegistry::new(2));
        let (node, server) = joined(&registry, THEIRS).await;
        takes(&registry, node, 0).await;
        let trying = try_joining([&registry], QUICK);
        let error = while_they_beat(&registry, vec![node], trying).await;
        let error = error.expect_err("refused");
        assert!(matches!(
            error.kind(),
            gesta_core::ErrorKind::InvalidArgument { .. }
        ));
        let (error, there) = (error.to_string(), server.local_address().to_string());
        for part in ["here:1", &there, "node 1", "--cluster-secret-file"] {
            assert!(error.contains(part), "{part}: {error}");
        }
        assert!(!error.contains("of the others"), "no secret: {error}");
    }

    /// Goal: what listens at the address of a node that is dead keeps nobody out, and neither does a node that does not
    /// answer.
    #[tokio::test]
    async fn a_dead_row_and_a_silent_node_keep_nobody_out() {
        let registry = Arc::new(MemoryRegistry::new(2));
        let (dead, _server) = joined(&registry, THEIRS).await;
        takes(&registry, dead, 0).await;
        let (away, server) = joined(&registry, THEIRS).await;
        takes(&registry, away, 1).await;
        server.shutdown(QUICK).await;
        drop(server);
        let trying = try_joining([&registry], QUICK);
        let joined = while_they_beat(&registry, vec![away], trying).await;
        assert!(joined.is_ok(), "{joined:?}");
    }

    /// Goal: a node that meets others with its secret joins at once, also the first one of all.
    #[tokio::test]
    async fn a_node_with_the_secret_of_the_cluster_joins_at_once() {
        let registry = Arc::new(MemoryRegistry::new(2));
        let first = tokio::time::timeout(LIMIT, try_joining([&registry], SLOW)).await;
        assert!(first.expect("at once").is_ok());
        let (node, _server) = joined(&registry, OURS).await;
        takes(&registry, node, 0).await;
        let second = tokio::time::timeout(LIMIT, try_joining([&registry], SLOW)).await;
        assert!(second.expect("at once").is_ok());
        // A stranger beside them is no reason to keep out one who belongs to them.
        let (stranger, _strange) = joined(&registry, THEIRS).await;
        let trying = try_joining([&registry], QUICK);
        let third = while_they_beat(&registry, vec![node, stranger], trying).await;
        assert!(third.is_ok(), "{third:?}");
        // One who has left is nobody.
        let left = registry.set_state(node, GENERATION, NodeState::Left).await;
        assert!(left.expect("answers"));
        let trying = try_joining([&registry], QUICK);
        let fourth = while_they_beat(&registry, vec![stranger], trying).await;
        assert!(fourth.is_err(), "{fourth:?}");
    }

    /// What happened: each database was judged by itself, so a friend that has logs in the second one alone did not
    /// count in the first, where a stranger had one: that kept a node out of its own cluster.
    #[tokio::test]
    async fn a_friend_with_a_log_counts_in_whichever_database_it_lies() {
        let (first, second) = (
            Arc::new(MemoryRegistry::new(2)),
            Arc::new(MemoryRegistry::new(2)),
        );
        let (stranger, strange) = joined(&first, THEIRS).await;
        let (friend, friendly) = joined(&first, OURS).await;
        let friend_in_second = joins(&second, &friendly.local_address().to_string()).await;
        let stranger_in_second = joins(&second, &strange.local_address().to_string()).await;
        takes(&first, stranger, 0).await;
        takes(&second, friend_in_second, 1).await;
        let trying = try_joining([&first, &second], QUICK);
        let trying = while_they_beat(&second, vec![friend_in_second, stranger_in_second], trying);
        let joined = while_they_beat(&first, vec![stranger, friend], trying).await;
        assert!(joined.is_ok(), "{joined:?}");
        // Without that log the stranger is right, although it has none in the second database.
        let left = second.set_state(friend_in_second, GENERATION, NodeState::Left);
        assert!(left.await.expect("answers"));
        let trying = try_joining([&first, &second], QUICK);
        let refused = while_they_beat(&first, vec![stranger, friend], trying).await;
        assert!(refused.is_err(), "{refused:?}");
    }
}
