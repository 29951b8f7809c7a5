//! Tests what a server that is a node tells about its cluster.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use gesta_core::{HostPort, LogId};
use gesta_memory::MemoryStore;
use gesta_server::{Cluster, ClusterNode, ClusterPlacement, Config, LogOwner};
use serde_json::{Value, json};

use crate::client::{Server, config};

/// A cluster of two nodes, of which the second one answers. Its log is its own, or that of the first node.
#[derive(Default)]
struct Two {
    address: &'static str,
    is_mine: AtomicBool,
    /// How many times the owner of the log must be asked for until the first node owns it.
    given_away_after: AtomicUsize,
}

impl Two {
    fn owner(&self) -> LogOwner {
        LogOwner {
            log: 0,
            node: Some(1),
            address: Some(self.address.to_owned()),
            epoch: 7,
        }
    }
}

impl Cluster for Two {
    fn placement(&self) -> ClusterPlacement {
        let node = |node, address: &str| ClusterNode {
            node,
            address: address.to_owned(),
            api: (node == 1).then(|| "a:2113".to_owned()),
            state: "up",
            build: "0.1.0".to_owned(),
        };
        let free = LogOwner {
            log: 1,
            node: None,
            address: None,
            epoch: 0,
        };
        ClusterPlacement {
            node: Some(2),
            nodes: vec![node(1, self.address), node(2, "b:2")],
            logs: vec![self.owner(), free],
        }
    }

    fn owner_elsewhere(&self, _: LogId) -> Option<LogOwner> {
        let is_kept = |left: usize| left.checked_sub(1);
        let left = &self.given_away_after;
        let given_away = left.fetch_update(Ordering::SeqCst, Ordering::SeqCst, is_kept);
        let is_mine = self.is_mine.load(Ordering::SeqCst) || given_away.is_ok();
        (!is_mine).then(|| self.owner())
    }
}

async fn server(cluster: &Arc<Two>) -> Server {
    let bound = gesta_server::bind(config()).await.expect("a free port");
    let bound = bound.with_cluster(cluster.clone());
    Server::of(bound.serve(Arc::new(MemoryStore::new()), Default::default()))
}

/// Goal: `/info` has the placement in the form that the document says, and only if the server is a node.
#[tokio::test]
async fn info_shows_the_placement_of_a_node() {
    let cluster = Arc::new(Two {
        address: "a:1",
        ..Two::default()
    });
    let server = server(&cluster).await;
    let info = server.get("/info").await.json();
    let expected = json!({
        "node": 2,
        "nodes": [
            {"node": 1, "address": "a:1", "api": "a:2113", "state": "up", "build": "0.1.0"},
            {"node": 2, "address": "b:2", "api": null, "state": "up", "build": "0.1.0"},
        ],
        "logs": [
            {"log": 0, "node": 1, "address": "a:1", "epoch": 7},
            {"log": 1, "node": null, "address": null, "epoch": 0},
        ],
    });
    assert_eq!(info["cluster"], expected);
    let document = server.get("/openapi.json").await.json();
    let schema = &document["components"]["schemas"]["Cluster"];
    has_exactly(schema, &info["cluster"]);
    for part in ["nodes", "logs"] {
        has_exactly(
            &schema["properties"][part]["items"],
            &info["cluster"][part][0],
        );
    }
    let alone = Server::start().await.get("/info").await.json();
    assert_eq!(alone.get("cluster"), None);
}

/// Checks that an object has exactly the members that its schema requires and describes.
fn has_exactly(schema: &Value, object: &Value) {
    let mut required: Vec<&str> = schema["required"]
        .as_array()
        .unwrap()
        .iter()
        .map(|name| name.as_str().unwrap())
        .collect();
    required.sort_unstable();
    let names = |value: &Value| -> Vec<String> {
        let mut names: Vec<String> = value.as_object().unwrap().keys().cloned().collect();
        names.sort_unstable();
        names
    };
    assert_eq!(names(object), required);
    assert_eq!(names(&schema["properties"]), required);
}

/// Goal: both kinds of appends name the owner, if it is another node and its address can stand in a header.
#[tokio::test]
async fn appends_name_the_owner_that_is_another_node() {
    let cluster = Arc::new(Two {
        address: "a:1",
        ..Two::default()
    });
    let server = server(&cluster).await;
    let several = r#"{"appends":[{"stream":"a","events":[{"type":"T","data":1}]}]}"#;
    for answer in [
        server.append("a", &["1"]).await,
        server.json("POST", "/append", several).await,
        server.json("PUT", "/streams/a/metadata", "{}").await,
        server.json("DELETE", "/streams/a", "").await,
    ] {
        assert_eq!(answer.header("gesta-log-owner"), "a:1; log=0; epoch=7");
    }
    let document = server.get("/openapi.json").await.json();
    for (path, method, status) in [
        ("/streams/{stream}", "post", "201"),
        ("/append", "post", "201"),
        ("/streams/{stream}", "delete", "200"),
        ("/streams/{stream}/metadata", "put", "200"),
    ] {
        let answer = &document["paths"][path][method]["responses"][status];
        let hint = answer["headers"].get("Gesta-Log-Owner");
        assert!(hint.is_some(), "{method} {path}");
    }
    cluster.is_mine.store(true, Ordering::SeqCst);
    assert_eq!(
        server.append("a", &["1"]).await.header("gesta-log-owner"),
        ""
    );
    let split = Arc::new(Two {
        address: "a\r\nset-cookie: b",
        ..Two::default()
    });
    let server = self::server(&split).await;
    assert_eq!(
        server.append("a", &["1"]).await.header("gesta-log-owner"),
        ""
    );
}

/// Goal: a consumer group is run by the owner of its log, others name that node, and who loses the log tells its
/// consumers where to go.
#[tokio::test]
async fn a_group_is_run_by_the_owner_of_its_log() {
    let cluster = Arc::new(Two {
        address: "a:1",
        ..Two::default()
    });
    let server = server(&cluster).await;
    let group = "/all/groups/mail";
    let elsewhere = server.json("PUT", group, "{}").await;
    assert_eq!(
        (elsewhere.status, elsewhere.problem().0.as_str()),
        (421, "group_elsewhere")
    );
    let owner = json!({"log": 0, "node": 1, "address": "a:1"});
    assert_eq!(elsewhere.json()["owner"], owner);
    cluster.is_mine.store(true, Ordering::SeqCst);
    // The log of a store in memory is one, but this cluster has two: the group's is either.
    let created = server.json("PUT", group, "{}").await;
    assert_eq!(created.status, 201, "{}", created.body);
    let request = format!("GET {group}/consume HTTP/1.1\r\nHost: localhost\r\n\r\n");
    let mut consumer = server.raw(&request).await;
    consumer.until("event: joined").await;
    cluster.is_mine.store(false, Ordering::SeqCst);
    let owner = r#""owner":{"log":0,"node":1,"address":"a:1"}"#;
    consumer.until(owner).await;
}

/// Goal: a group that was created is answered as created, though another node has come to own its log meanwhile.
#[tokio::test]
async fn what_was_done_stays_done_when_the_log_moves() {
    let cluster = Arc::new(Two {
        address: "a:1",
        given_away_after: AtomicUsize::new(1),
        ..Two::default()
    });
    let server = server(&cluster).await;
    let group = "/streams/cart-1/groups/mail";
    let created = server.json("PUT", group, "{}").await;
    assert_eq!(created.status, 201, "{}", created.body);
    assert_eq!(server.get(group).await.status, 421);
    cluster.given_away_after.store(1, Ordering::SeqCst);
    let changed = r#"{"settings": {"max_retry_count": 3}}"#;
    let updated = server.json("POST", group, changed).await;
    assert_eq!(updated.status, 200, "{}", updated.body);
    assert_eq!(updated.json()["settings"]["max_retry_count"], 3);
}

/// What happened: a server could not be told at which host and port clients reach it, and `GET /gossip`, which clients
/// of EventStoreDB make, was not found. Goal: it tells the address that it was told, or that was called, to anybody;
/// and the name that it was told is its own.
#[tokio::test]
async fn a_server_tells_where_clients_reach_it() {
    let server = Server::start().await;
    let address = server.handle.local_addr();
    let members = |answer: &crate::client::Answer| answer.json()["members"].clone();
    let told = |members: &Value| {
        let one = &members[0];
        assert_eq!(members.as_array().map(Vec::len), Some(1));
        assert_eq!(
            (&one["state"], &one["isAlive"]),
            (&json!("Leader"), &json!(true))
        );
        let host = one["httpEndPointIp"].as_str().expect("a host");
        format!("{host}:{}", one["httpEndPointPort"])
    };
    let answer = server.get("/gossip").await;
    assert_eq!(told(&members(&answer)), address.to_string());
    assert!(server.get("/info").await.json()["api"].is_null());

    let own = "db.example.org:7000";
    let config = Config {
        advertise: Some(HostPort::parse(own).expect("good")),
        ..config()
    };
    let server = Server::with(config, Arc::new(MemoryStore::new())).await;
    assert_eq!(told(&members(&server.get("/gossip").await)), own);
    assert_eq!(server.get("/info").await.json()["api"], own);
    for (host, status) in [
        ("db.example.org", 200),
        ("DB.example.org:1", 200),
        ("other.example.org", 421),
    ] {
        let answer = server.send("GET", "/info", &[("host", host)], "").await;
        assert_eq!(answer.status, status, "{host}");
    }
    // What happened: a server in a container, which must be `insecure`, was called by the names of other sites.
    for (advertise, status) in [(Some(own), 421), (None, 200)] {
        let config = Config {
            advertise: advertise.map(|own| HostPort::parse(own).expect("good")),
            insecure: true,
            ..crate::client::config()
        };
        let server = Server::with(config, Arc::new(MemoryStore::new())).await;
        for (host, status) in [
            ("db.example.org", 200),
            ("127.0.0.1", 200),
            ("localhost:1", 200),
            ("other.example.org", status),
        ] {
            let answer = server.send("GET", "/info", &[("host", host)], "").await;
            assert_eq!(answer.status, status, "{host} {advertise:?}");
        }
    }
    let two = Two::default();
    let server = crate::client::Server::of(
        gesta_server::bind(crate::client::config())
            .await
            .expect("a free port")
            .with_cluster(Arc::new(two))
            .serve(
                Arc::new(MemoryStore::new()),
                gesta_server::Registry::default(),
            ),
    );
    assert_eq!(told(&members(&server.get("/gossip").await)), "a:2113");
}
