//! A client of several servers: whom it asks, and what it does when one of them is gone.

#![allow(clippy::expect_used, reason = "test code: a panic is how a test fails")]

use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use gesta_client::{Config, HttpStore, OwnerHints};
use gesta_core::{
    ErrorKind, EventData, EventStore, EventStoreExt, EventType, ExpectedRevision, LogId, ReadAll,
    Result,
};
use gesta_memory::MemoryStore;
use gesta_server::{Cluster, ClusterNode, ClusterPlacement, Handle, LogOwner, Registry};
use tokio::io::AsyncReadExt;
use tokio::net::TcpListener;

/// The longest time that a test waits for anything.
const PATIENCE: Duration = Duration::from_secs(120);
/// The time for which a client leaves an owner that did not answer.
const LEFT_FOR: Duration = Duration::from_secs(10);

/// The name of the owner among the nodes.
const OWNER: &str = "owner:1";

/// Another node owns the only log.
struct OwnedBy {
    /// Where clients reach the owner, as `/info` says.
    api: String,
    /// As answers say.
    named: &'static str,
    asked_for_info: AtomicUsize,
}

impl Cluster for OwnedBy {
    fn placement(&self) -> ClusterPlacement {
        self.asked_for_info.fetch_add(1, Ordering::SeqCst);
        let node = ClusterNode {
            node: 1,
            address: OWNER.to_owned(),
            api: Some(self.api.clone()),
            state: "up",
            build: "1".to_owned(),
        };
        ClusterPlacement {
            node: Some(2),
            nodes: vec![node],
            logs: Vec::new(),
        }
    }

    fn owner_elsewhere(&self, log: LogId) -> Option<LogOwner> {
        Some(LogOwner {
            log: log.0,
            node: Some(1),
            address: Some(self.named.to_owned()),
            epoch: 7,
        })
    }
}

struct Node {
    server: Handle,
    store: Arc<MemoryStore>,
}

impl Node {
    async fn start(cluster: Option<Arc<OwnedBy>>) -> Self {
        let config = gesta_server::Config {
            listen: ([127, 0, 0, 1], 0).into(),
            ..gesta_server::Config::default()
        };
        let bound = gesta_server::bind(config).await.expect("a free port");
        let bound = match cluster {
            Some(cluster) => bound.with_cluster(cluster),
            None => bound,
        };
        let store = Arc::new(MemoryStore::new());
        let server = bound.serve(Arc::clone(&store) as _, Registry::default());
        Self { server, store }
    }

    fn url(&self) -> String {
        format!("http://{}", self.server.local_addr())
    }

    async fn events(&self) -> usize {
        let page = self.store.read_all(ReadAll::forwards()).await;
        page.expect("read").events.len()
    }
}

/// A node that says that another one owns the log, and what it was asked.
async fn node_beside(owner: SocketAddr, named: &'static str) -> (Node, Arc<OwnedBy>) {
    let cluster = Arc::new(OwnedBy {
        api: owner.to_string(),
        named,
        asked_for_info: AtomicUsize::new(0),
    });
    (Node::start(Some(Arc::clone(&cluster))).await, cluster)
}

fn client(urls: &[&str], owner_hints: OwnerHints) -> HttpStore {
    client_that_waits(urls, owner_hints, Config::default().answer_max)
}

fn client_that_waits(urls: &[&str], owner_hints: OwnerHints, answer_max: Duration) -> HttpStore {
    let config = Config {
        owner_hints,
        answer_max,
        ..Config::default()
    };
    HttpStore::connect_to_cluster(urls, config).expect("valid")
}

async fn append(client: &HttpStore) -> Result<()> {
    let event = EventData::json(EventType::new("T").expect("valid"), "1");
    let appended = client.append_to("a", ExpectedRevision::Any, vec![event]);
    appended.await.map(drop)
}

/// Appends until the client has been told who the owner is, and where.
async fn learned(client: &HttpStore, cluster: &OwnedBy) {
    let told = async {
        while cluster.asked_for_info.load(Ordering::SeqCst) == 0 {
            append(client).await.expect("stored");
            tokio::task::yield_now().await;
        }
    };
    let within = tokio::time::timeout(PATIENCE, told);
    within.await.expect("the client asks for the placement");
}

/// Waits until a server has so many events; appends meanwhile.
async fn goes_to(client: &HttpStore, node: &Node) {
    let gone = async {
        while node.events().await == 0 {
            append(client).await.expect("stored");
        }
    };
    let within = tokio::time::timeout(PATIENCE, gone);
    within.await.expect("changes go to the owner");
}

/// Goal: once a server has named the owner, and its `/info` the address, changes go there; reads go where they went.
#[tokio::test]
async fn changes_go_to_the_owner() {
    let owner = Node::start(None).await;
    let (first, cluster) = node_beside(owner.server.local_addr(), OWNER).await;
    let client = client(&[&first.url()], OwnerHints::Follow);
    learned(&client, &cluster).await;
    goes_to(&client, &owner).await;
    let (at_first, at_owner) = (first.events().await, owner.events().await);
    for _ in 0..5 {
        append(&client).await.expect("stored");
    }
    assert_eq!(first.events().await, at_first);
    assert_eq!(owner.events().await, at_owner + 5);
    let read = client.read_all(ReadAll::forwards()).await.expect("read");
    assert_eq!(read.events.len(), at_first, "of the first server");
}

/// Goal: hints that are switched off, and owners of whom `/info` knows nothing, are not followed.
#[tokio::test]
async fn nobody_is_followed_whom_info_does_not_name() {
    let stranger = Node::start(None).await;
    let (first, cluster) = node_beside(stranger.server.local_addr(), "stranger:1").await;
    let named = client(&[&first.url()], OwnerHints::Follow);
    learned(&named, &cluster).await;
    let (second, _) = node_beside(stranger.server.local_addr(), OWNER).await;
    let off = client(&[&second.url()], OwnerHints::Ignore);
    let alone = HttpStore::connect(&second.url()).expect("valid");
    for client in [&named, &off, &alone] {
        for _ in 0..20 {
            append(client).await.expect("stored");
        }
    }
    assert_eq!(stranger.events().await, 0);
    assert_eq!(second.events().await, 40);
}

/// Goal: an owner that nobody reaches any more costs no error and doubles nothing: the change goes to a server that the
/// client was given.
#[tokio::test]
async fn an_owner_that_refuses_connections_is_left() {
    let owner = Node::start(None).await;
    let (first, cluster) = node_beside(owner.server.local_addr(), OWNER).await;
    let client = client(&[&first.url()], OwnerHints::Follow);
    learned(&client, &cluster).await;
    goes_to(&client, &owner).await;
    owner.server.shutdown().await;
    let before = first.events().await;
    // The first one may meet the end of a connection that was kept.
    let doubtful = append(&client).await;
    if let Err(error) = &doubtful {
        assert!(
            matches!(error.kind(), ErrorKind::OutcomeUnknown(_)),
            "{error}"
        );
    }
    for _ in 0..5 {
        append(&client).await.expect("stored");
    }
    let stored = 5 + usize::from(doubtful.is_ok());
    assert_eq!(first.events().await, before + stored);
}

/// Goal: an owner that takes a change and does not answer leaves the outcome unknown, and is left.
#[tokio::test]
async fn an_owner_that_does_not_answer_is_left() {
    let mute = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = mute.local_addr().expect("bound");
    // The moments at which it was asked.
    let requests = Arc::new(Mutex::new(Vec::new()));
    let noted = Arc::clone(&requests);
    tokio::spawn(async move {
        while let Ok((mut socket, _)) = mute.accept().await {
            noted.lock().expect("no panics").push(Instant::now());
            tokio::spawn(async move {
                let mut bytes = [0; 1_024];
                while socket.read(&mut bytes).await.is_ok_and(|read| read > 0) {}
            });
        }
    });
    let (first, cluster) = node_beside(address, OWNER).await;
    // The first server answers in time, also if this machine stands still for a while.
    let answer_max = Duration::from_secs(15);
    let client = client_that_waits(&[&first.url()], OwnerHints::Follow, answer_max);
    learned(&client, &cluster).await;
    let asks = async {
        loop {
            let begun = Instant::now();
            if let Err(error) = append(&client).await {
                break (begun, error);
            }
        }
    };
    let asked = tokio::time::timeout(PATIENCE, asks).await;
    let (begun, error) = asked.expect("the owner is asked");
    assert!(
        matches!(error.kind(), ErrorKind::OutcomeUnknown(_)),
        "{error}"
    );
    let asked = requests.lock().expect("no panics").len();
    for _ in 0..20 {
        let stored = append(&client).await;
        let again = requests.lock().expect("no panics").get(asked).copied();
        let Some(again) = again else {
            stored.expect("stored by the first");
            continue;
        };
        // Then this machine has stood still until the owner could be asked again.
        assert!(again >= begun + answer_max + LEFT_FOR, "asked too early");
        break;
    }
}

/// Goal: a server that is gone is passed over, for reads and changes alike.
#[tokio::test]
async fn a_server_that_is_gone_is_passed_over() {
    // Bound, so that nobody else gets the port, but it takes no connections.
    let gone = tokio::net::TcpSocket::new_v4().expect("a socket");
    gone.bind("127.0.0.1:0".parse().expect("an address"))
        .expect("a port");
    let dead = format!("http://{}", gone.local_addr().expect("bound"));
    let live = Node::start(None).await;
    let client = client(&[&dead, &live.url()], OwnerHints::Follow);
    append(&client).await.expect("stored");
    client.read_all(ReadAll::forwards()).await.expect("read");
    assert_eq!(live.events().await, 1);
    live.server.shutdown().await;
    let error = append(&client).await.expect_err("nobody is there");
    assert!(
        matches!(
            error.kind(),
            ErrorKind::Unavailable(_) | ErrorKind::OutcomeUnknown(_)
        ),
        "{error}"
    );
    assert!(HttpStore::connect_to_cluster(&[], Config::default()).is_err());
}
