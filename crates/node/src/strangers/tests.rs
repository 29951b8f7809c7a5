//! Who gives way, who is refused, and who joins beside strangers.

use std::pin::pin;
use std::sync::atomic::{AtomicBool, Ordering};

use bytes::Bytes;
use futures::FutureExt;
use futures::future::{BoxFuture, ready};
use gesta_cluster::{LogPlace, Owner};
use gesta_core::registry::{Beat, Claim, Generation, Join, NodeInfo, NodeState, Tenure};
use gesta_core::{LogId, Timestamp};
use gesta_kit::faulty::World;
use gesta_kit::registry::{MemoryRegistry, look, node_row};
use gesta_link::{
    Bounds, Call, LinkServer, Protocols, Question, Secret, Serve, Served, StoreIdentity, Times,
};
use tokio::net::TcpListener;
use uuid::Uuid;

use super::*;
use crate::placements::Placements;

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
        let found = stronger(&others, false).map(|other| other.id.0);
        assert_eq!(found, to, "{others:?}");
    }
    // Somebody has logs who may be a friend, and does not answer just now.
    assert_eq!(stronger(&[stranger(1, idle)], true), None);
    let both = [stranger(1, idle), stranger(2, owner)];
    assert_eq!(stronger(&both, true), Some(&both[1]));
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

/// Who owns which log, as the test says.
struct Arrangement(tokio::sync::watch::Sender<Arc<Placement>>);

impl Placements for Arrangement {
    fn changes(&self) -> tokio::sync::watch::Receiver<Arc<Placement>> {
        self.0.subscribe()
    }

    fn leave(&self) -> BoxFuture<'static, ()> {
        ready(()).boxed()
    }
}

/// Goal: a node that has had a log never gives way, whoever comes later and whatever becomes of the log: it looks no
/// more whether it must.
#[tokio::test(start_paused = true)]
async fn a_node_that_has_a_log_looks_no_more() {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("binds");
    let here = Address::from(listener.local_addr().expect("bound"));
    let me = NodeId(1);
    let owned_by = |owner: Option<Owner>| {
        let place = LogPlace {
            is_mine: owner.is_some(),
            owner,
            ..LogPlace::UNKNOWN
        };
        Arc::new(Placement {
            me: Some(me),
            logs: vec![LogPlace::UNKNOWN, place],
            ..Placement::default()
        })
    };
    let nobody = tokio::sync::watch::Sender::new(owned_by(None));
    let arrangement = Arc::new(Arrangement(nobody));
    let config = crate::node::Config {
        link: link(here.clone(), OURS),
        give_up_after: LIMIT,
    };
    let placements = Arc::clone(&arrangement) as Arc<dyn Placements>;
    let store = World::new(2).store().share();
    let node = Node::start(store, listener, config, placements).expect("starts");
    let mut watching = pin!(watch(Arc::downgrade(&node), here.clone(), Vec::new()));
    let looks = LOOK_EVERY * 20;
    let ended = tokio::time::timeout(looks, watching.as_mut()).await;
    assert!(ended.is_err(), "it may have to give way");
    let address = here.as_str().into();
    let owner = Owner { node: me, address };
    arrangement.0.send_replace(owned_by(Some(owner)));
    let ended = tokio::time::timeout(looks, watching).await;
    assert!(ended.is_ok(), "it has a log, and looks all the same");
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

/// What happened: while the owner of all logs stood still for some seconds, a node with its secret was refused
/// because of a wrong newcomer without logs, and told to take the secret of that one.
#[tokio::test]
async fn the_logs_of_a_silent_node_are_logs() {
    let registry = Arc::new(MemoryRegistry::new(2));
    let (stranger, _strange) = joined(&registry, THEIRS).await;
    let (away, server) = joined(&registry, OURS).await;
    takes(&registry, away, 0).await;
    server.shutdown(QUICK).await;
    drop(server);
    let trying = try_joining([&registry], QUICK);
    let joined = while_they_beat(&registry, vec![stranger, away], trying).await;
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
