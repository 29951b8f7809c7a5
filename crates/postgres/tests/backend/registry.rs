//! The registry: the same answers as the simple one in memory, and what only a real database can do.

mod same_as_memory;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt;
use gesta_cluster::{Membership, Options, Progress, Sign, WithoutLinks};
use gesta_core::backend::Backend;
use gesta_core::registry::{
    Beat, Claim, ClusterVersion, Generation, HandOver, Join, LeaseEpoch, Look, MOVES_MAX,
    MoveReason, NodeId, NodeInfo, NodeState, Registry, Suspect, Tenure, UNREACHABLE_MAX,
};
use gesta_core::{ErrorKind, LogId};
use gesta_kit::depth;
use gesta_kit::registry::MemoryRegistry;
use gesta_postgres::schema;
use gesta_rig::{FaultProxy, Server, ServerConfig, shared};
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};

use crate::common::{LOG, PATIENCE, config, direct, open, schema_of, store_url, until_row};

const LOGS: u16 = 5;

fn info(number: usize) -> NodeInfo {
    NodeInfo {
        address: format!("node-{number}:4000").into(),
        weight: 100,
        build: "1.2.3".into(),
        protocol_min: 1,
        protocol_max: 2,
    }
}

fn join(number: usize, generation: i64) -> Join {
    Join {
        info: info(number),
        generation: Generation(generation),
        beat: generation,
    }
}

fn beat(node: NodeId, generation: i64, beat: i64) -> Beat {
    Beat {
        node,
        generation: Generation(generation),
        beat,
        unreachable: vec![NodeId(7), NodeId(9)],
    }
}

fn claim(log: u16, owner: NodeId, generation: i64, seen: u64) -> Claim {
    let seen = LeaseEpoch(seen);
    Claim {
        seen,
        tenure: Tenure {
            log: LogId(log),
            owner,
            generation: Generation(generation),
            epoch: seen.next(),
        },
    }
}

async fn registry(server: &Server) -> (Arc<dyn Registry>, String) {
    let url = store_url(server);
    schema::create(&config(&url), LOGS).await.expect("made");
    (open(&url).await.registry().expect("shared"), url)
}

/// Goal: a beat that is not committed yet wins over whoever declares the node dead.
#[tokio::test]
async fn a_beat_under_way_saves_its_node() {
    let Some(server) = shared() else { return };
    let (registry, url) = registry(server).await;
    let node = registry.join(&join(0, 5)).await.expect("joins");
    let client = direct(&url).await;
    let text = format!("BEGIN; UPDATE nodes SET beat = 77 WHERE id = {node} AND generation = 5");
    client.batch_execute(&text).await.expect("beats");
    let suspect = Suspect {
        node,
        generation: Generation(5),
        beat: 5,
    };
    let mut declaring = registry.declare_dead(suspect).boxed();
    assert!(
        tokio::time::timeout(Duration::from_millis(200), &mut declaring)
            .await
            .is_err(),
        "it waits"
    );
    client.batch_execute("COMMIT").await.expect("committed");
    assert!(!declaring.await.expect("answers"));
    let look = registry.beat(&beat(node, 5, 78)).await.expect("answers");
    assert!(look.is_registered);
}

/// Schedule 22: of several that claim at once, each log gets one, and nobody waits for ever.
#[tokio::test]
async fn of_racing_claims_each_log_gets_one() {
    let Some(server) = shared() else { return };
    let (first, url) = registry(server).await;
    let mut registries = vec![first];
    for _ in 0..4 {
        registries.push(open(&url).await.registry().expect("shared"));
    }
    for round in 0..10 {
        let claims = registries
            .iter()
            .enumerate()
            .map(|(n, registry)| async move {
                let node = NodeId(u32::try_from(n).expect("fits") + 1);
                let mut claims: Vec<_> = (0..LOGS).map(|log| claim(log, node, 1, round)).collect();
                claims.rotate_left(n);
                registry.claim(&claims).await.expect("answers")
            });
        let got: Vec<_> = futures::future::join_all(claims).await.concat();
        assert_eq!(got.len(), usize::from(LOGS), "each once: {got:?}");
    }
}

/// Goal: a call that is dropped leaves nothing behind that disturbs the next one.
#[tokio::test]
async fn a_dropped_call_costs_a_connection_and_nothing_else() {
    let Some(server) = shared() else { return };
    let (registry, url) = registry(server).await;
    let node = registry.join(&join(0, 5)).await.expect("joins");
    let client = direct(&url).await;
    client
        .batch_execute("BEGIN; LOCK TABLE nodes")
        .await
        .expect("locked");
    let next = beat(node, 5, 6);
    let hanging = tokio::time::timeout(Duration::from_millis(200), registry.beat(&next));
    assert!(hanging.await.is_err(), "it hangs");
    client.batch_execute("COMMIT").await.expect("unlocked");
    assert!(
        registry
            .beat(&beat(node, 5, 7))
            .await
            .expect("answers")
            .is_registered
    );
}

/// Goal: opening a connection goes on when the caller gives up. It takes many round trips, a statement takes one.
#[tokio::test]
async fn a_connection_that_opens_slowly_is_used_in_the_end() {
    let Some(server) = shared() else { return };
    let url = store_url(server);
    schema::create(&config(&url), LOGS).await.expect("made");
    let proxy = FaultProxy::start(server.addr()).expect("starts");
    let backend = open(&proxy.url(&url)).await;
    let registry = backend.registry().expect("shared");
    let before = proxy.connections();
    let callers = 5;
    // Opening takes many round trips, so no caller that gives up this soon ever sees its end.
    proxy.set_round_trip(Duration::from_millis(500));
    for _ in 1..callers {
        let look = tokio::time::timeout(Duration::from_millis(200), registry.look());
        assert!(look.await.is_err(), "opened at once");
    }
    let look = tokio::time::timeout(PATIENCE, registry.look()).await;
    look.expect("it opens in the end").expect("looks");
    // One of them, and what the backend opens meanwhile for other purposes.
    let opened = proxy.connections() - before;
    assert!(opened < callers, "each caller began anew: {opened}");
}

/// Schedule 27: a synchronous standby that hangs holds up claims, but no beats.
#[tokio::test]
async fn beats_do_not_wait_for_standbys() {
    let Some(server) = Server::start_with(ServerConfig::default()).expect("starts") else {
        return;
    };
    let (registry, url) = registry(&server).await;
    let node = registry.join(&join(0, 5)).await.expect("joins");
    lose_standby(&url, &*registry, node).await;
    for number in 0..5 {
        let next = beat(node, 5, number);
        let beaten = tokio::time::timeout(PATIENCE, registry.beat(&next)).await;
        let look = beaten.expect("not held up").expect("answers");
        assert!(look.is_registered);
    }
}

/// Goal: what people ask of a node, and a death, do not wait for standbys either, for they change the row of its beats.
/// What happened: a drain hung with the standby and held the row, so the beats of a living node failed, and it was
/// declared dead when the standby was back.
#[tokio::test]
async fn drains_and_deaths_do_not_make_beats_wait_for_standbys() {
    let Some(server) = Server::start_with(ServerConfig::default()).expect("starts") else {
        return;
    };
    let (registry, url) = registry(&server).await;
    let node = registry.join(&join(0, 5)).await.expect("joins");
    let dead = registry.join(&join(1, 9)).await.expect("joins");
    lose_standby(&url, &*registry, node).await;
    for (number, state) in (0..).zip([NodeState::Draining, NodeState::Up]) {
        let drain = registry.set_state(node, Generation(5), state);
        let drained = tokio::time::timeout(PATIENCE, drain).await;
        assert!(matches!(drained, Ok(Ok(true))), "{drained:?}");
        let next = beat(node, 5, number);
        let beaten = tokio::time::timeout(PATIENCE, registry.beat(&next)).await;
        let look = beaten.expect("not held up").expect("answers");
        assert!(look.is_registered);
    }
    let suspect = Suspect {
        node: dead,
        generation: Generation(9),
        beat: 9,
    };
    let declared = tokio::time::timeout(PATIENCE, registry.declare_dead(suspect)).await;
    assert!(matches!(declared, Ok(Ok(true))), "{declared:?}");
    let look = registry.look().await.expect("answers");
    assert!(look.node(dead).is_none());
}

/// From now on commits wait for a synchronous standby that is not there.
async fn lose_standby(url: &str, registry: &dyn Registry, node: NodeId) {
    let client = direct(url).await;
    let lose = "ALTER SYSTEM SET synchronous_standby_names = 'missing'";
    client.batch_execute(lose).await.expect("set");
    let tell = "SELECT pg_reload_conf()";
    client.batch_execute(tell).await.expect("told");
    // The server takes the setting over a moment later; until then commits do not wait.
    let claims = async {
        for epoch in 0.. {
            let got = registry.claim(&[claim(0, node, 5, epoch)]).await;
            assert_eq!(got.expect("answers"), [LOG]);
        }
    };
    let hangs = "SELECT pid FROM pg_stat_activity WHERE wait_event = 'SyncRep'";
    tokio::select! {
        () = claims => panic!("claims end"),
        _ = until_row(&client, hangs) => {}
    }
}

/// Goal: the moves that are kept for people are bounded.
#[tokio::test]
async fn only_the_last_moves_are_kept() {
    let Some(server) = shared() else { return };
    let (registry, url) = registry(server).await;
    let client = direct(&url).await;
    let text = "INSERT INTO moves (log, to_node, epoch, reason, at) \
                SELECT 0, 1, n, 'claim', now() FROM generate_series(1, 3000) AS n";
    client.batch_execute(text).await.expect("planted");
    for epoch in 0..3 {
        registry
            .claim(&[claim(1, NodeId(2), 9, epoch)])
            .await
            .expect("answers");
    }
    let moves = registry.moves().await.expect("answers");
    assert_eq!(moves.len(), MOVES_MAX);
    assert_eq!(
        (moves[0].epoch, moves[0].from),
        (LeaseEpoch(3), Some(NodeId(2)))
    );
    let row = client
        .query_one("SELECT count(*) FROM moves", &[])
        .await
        .expect("counted");
    assert!(row.get::<_, i64>(0) <= i64::try_from(MOVES_MAX).expect("fits") + 1);
}

/// Goal: nodes that left long ago are forgotten, and the others are not.
#[tokio::test]
async fn nodes_that_left_long_ago_are_forgotten() {
    let Some(server) = shared() else { return };
    let (registry, url) = registry(server).await;
    let stays = registry.join(&join(0, 5)).await.expect("joins");
    let text = "INSERT INTO nodes (address, weight, build, protocol_min, protocol_max, generation, beat, state, \
                unreachable, started, beat_at) SELECT 'old-' || n, 1, '', 1, 1, 0, 0, 'left', '{}', now(), now() \
                FROM generate_series(1, 1500) AS n";
    let client = direct(&url).await;
    client.batch_execute(text).await.expect("planted");
    registry.join(&join(1, 6)).await.expect("joins");
    let row = client
        .query_one("SELECT count(*) FROM nodes", &[])
        .await
        .expect("counted");
    let count = row.get::<_, i64>(0);
    assert!((1_000..1_005).contains(&count), "{count}");
    let look = registry.look().await.expect("answers");
    assert_eq!(look.nodes.len(), 2);
    assert!(look.node(stays).is_some());
}

/// Goal: a store of version 1 gets its leases by the migration.
#[tokio::test]
async fn a_store_of_version_1_gets_its_leases() {
    let Some(server) = shared() else { return };
    let (_, url) = registry(server).await;
    let client = direct(&url).await;
    let text = "DROP TABLE nodes, leases, moves, clusters, map, homes, databases; \
                DROP TABLE virtual_index, virtual_streams, virtual_entries; \
                DROP FUNCTION limit_logs, refuse_loss_of_end CASCADE; \
                ALTER TABLE events DROP CONSTRAINT events_log_check; \
                ALTER TABLE store DROP COLUMN cluster, DROP COLUMN timeline, DROP COLUMN synchronous; \
                UPDATE store SET schema_version = 1";
    client.batch_execute(text).await.expect("taken back");
    let error = gesta_postgres::PostgresBackend::open(config(&url))
        .await
        .expect_err("too old");
    assert!(
        error.to_string().contains("gesta schema migrate"),
        "{error}"
    );
    assert_eq!(
        schema::migrate(&config(&url)).await.expect("migrated"),
        (1, 7)
    );
    let registry = open(&url).await.registry().expect("shared");
    assert_eq!(
        registry.look().await.expect("answers").leases.len(),
        usize::from(LOGS)
    );
}

/// Goal: freezing locks the leases in order of the logs, as claims do, so that the two do not deadlock.
#[tokio::test]
async fn freezing_takes_the_leases_in_order() {
    let Some(server) = shared() else { return };
    let (_, url) = registry(server).await;
    // Sessions with a name of their own: other tests freeze leases, too.
    let name = format!("freezing_{}", schema_of(&url));
    let backend = open(&format!("{url}&application_name={name}")).await;
    let registry = backend.registry().expect("shared");
    let (first, other) = (direct(&url).await, direct(&url).await);
    // The row of log 0 is the last one in the table now.
    let last = "UPDATE leases SET frozen = false WHERE log = 0";
    first.batch_execute(last).await.expect("moved");
    let lock = "BEGIN; SELECT FROM leases WHERE log = 0 FOR UPDATE";
    first.batch_execute(lock).await.expect("locked");
    let mut freezing = registry.freeze(true);
    let waiting = format!(
        "SELECT pid FROM pg_stat_activity WHERE application_name = '{name}' AND wait_event_type = 'Lock' \
         AND query LIKE '-- Freezes%'"
    );
    let waits = async {
        until_row(&other, &waiting).await;
        let free = "SELECT log FROM leases WHERE log > 0 FOR UPDATE SKIP LOCKED";
        other.query(free, &[]).await.expect("answers").len()
    };
    let free = tokio::select! {
        free = waits => free,
        _ = &mut freezing => panic!("it does not wait"),
    };
    assert_eq!(
        free,
        usize::from(LOGS) - 1,
        "it holds nothing while it waits"
    );
    first.batch_execute("COMMIT").await.expect("committed");
    freezing.await.expect("frozen");
    let look = registry.look().await.expect("answers");
    assert!(look.leases.iter().all(|lease| lease.frozen));
}

/// Goal: what others read at each beat is bounded.
#[tokio::test]
async fn a_beat_names_a_bounded_number_of_nodes() {
    let Some(server) = shared() else { return };
    let (registry, _) = registry(server).await;
    let node = registry.join(&join(0, 5)).await.expect("joins");
    let nodes = |count: usize| Beat {
        unreachable: (0..).map(NodeId).take(count).collect(),
        ..beat(node, 5, 6)
    };
    let look = registry.beat(&nodes(UNREACHABLE_MAX)).await;
    assert!(look.expect("answers").is_registered);
    let error = registry.beat(&nodes(UNREACHABLE_MAX + 1)).await;
    let error = error.expect_err("too many");
    assert!(
        matches!(error.kind(), ErrorKind::InvalidArgument { .. }),
        "{error}"
    );
}

/// Goal: closing a store closes all of its connections, and a statement that hangs does not hold that up.
#[tokio::test]
async fn closing_closes_the_connections_of_the_registry() {
    let Some(server) = Server::start_with(ServerConfig::default()).expect("starts") else {
        return;
    };
    let (_, url) = registry(&server).await;
    let client = direct(&url).await;
    let backend = open(&url).await;
    let registry = backend.registry().expect("shared");
    let node = registry.join(&join(0, 5)).await.expect("joins");
    let lock = "BEGIN; SELECT FROM nodes FOR UPDATE";
    client.batch_execute(lock).await.expect("locked");
    let next = beat(node, 5, 6);
    let mut beating = registry.beat(&next);
    let hangs = tokio::time::timeout(Duration::from_millis(200), &mut beating).await;
    assert!(hangs.is_err(), "it waits for the row");
    let (outcome, ()) = tokio::join!(beating, backend.close());
    assert!(outcome.is_err());
    client.batch_execute("COMMIT").await.expect("unlocked");
    let none_is_open = "SELECT WHERE NOT EXISTS (SELECT FROM pg_stat_activity \
                        WHERE datname = current_database() AND application_name = 'gesta')";
    // All connections are closed while the registry is still held.
    until_row(&client, none_is_open).await;
    drop(registry);
}

/// Goal: after the store is closed nothing is asked any more.
#[tokio::test]
async fn a_closed_store_has_no_registry_any_more() {
    let Some(server) = shared() else { return };
    let (_, url) = registry(server).await;
    let backend = open(&url).await;
    let registry = backend.registry().expect("shared");
    registry.look().await.expect("answers");
    backend.close().await;
    assert!(registry.look().await.is_err());
}

/// Pipelines that have nothing to do.
#[derive(Debug)]
struct Idle;

impl Progress for Idle {
    fn sign(&self, _: LogId) -> Sign {
        Sign {
            done: 0,
            is_busy: false,
        }
    }
}

async fn member(url: &str, number: usize) -> Membership {
    let options = Options {
        info: info(number),
        // The time between beats is the usual one: a node must not look dead because the machine is busy.
        config: gesta_cluster::Config {
            settle: Duration::from_millis(500),
            ..gesta_cluster::Config::default()
        },
    };
    let registry = open(url).await.registry().expect("shared");
    let hand_overs = Arc::new(WithoutLinks);
    Membership::start(registry, options, Arc::new(Idle), hand_overs).expect("starts")
}

async fn owns(member: &Membership, count: usize) {
    let mut changes = member.changes();
    let holds = changes.wait_for(|placement| placement.mine().count() == count);
    let waited = tokio::time::timeout(PATIENCE, holds).await;
    let has = waited.is_ok_and(|held| held.is_ok());
    assert!(has, "{count}: {:?}", member.placement());
}

/// Waits until one of two nodes has three logs, the other one two, and no log is on its way: nothing is left that would
/// move for the sake of balance.
async fn shared_evenly(registry: &dyn Registry) -> Look {
    let is_so = async {
        loop {
            let look = registry.look().await.expect("answers");
            let of = |node| look.holder(node).map(|node| node.id);
            let mut counts = HashMap::new();
            for owner in look.leases.iter().filter_map(of) {
                *counts.entry(owner).or_insert(0) += 1;
            }
            let mut counts: Vec<u16> = counts.into_values().collect();
            counts.sort_unstable();
            if counts == [2, 3] && look.leases.iter().all(|lease| lease.next_owner.is_none()) {
                return look;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    let waited = tokio::time::timeout(PATIENCE, is_so).await;
    waited.expect("shared evenly")
}

/// Goal: nodes share the logs of a real database, a restart of it moves nothing, and a node that dies is replaced.
#[tokio::test]
async fn nodes_share_the_logs_of_a_database_that_restarts() {
    let Some(mut server) = Server::start_with(ServerConfig::default()).expect("starts") else {
        return;
    };
    let (registry, url) = registry(&server).await;
    let (one, two) = (member(&url, 1).await, member(&url, 2).await);
    let before = shared_evenly(&*registry).await;
    let mine = before
        .leases
        .iter()
        .filter(|lease| lease.owner == one.placement().me)
        .count();
    owns(&one, mine).await;
    server.kill_9().expect("killed");
    server.restart().expect("restarts");
    let answers = async {
        while one.status().trouble.is_some()
            || two.status().trouble.is_some()
            || registry.look().await.is_err()
        {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(PATIENCE, answers)
        .await
        .expect("it is back");
    assert_eq!(
        registry.look().await.expect("answers").leases,
        before.leases,
        "nothing has moved"
    );
    drop(two);
    owns(&one, usize::from(LOGS)).await;
    one.leave(PATIENCE).await;
    assert!(
        registry
            .look()
            .await
            .expect("answers")
            .nodes
            .iter()
            .all(|node| node.info != info(1))
    );
}
