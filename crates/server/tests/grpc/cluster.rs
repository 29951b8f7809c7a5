//! Tests a server that is one of several nodes: what it tells about the others, and where it sends the consumers of
//! groups.

use std::sync::Arc;

use gesta_core::{EventStore, Filter, LogId, StreamId};
use gesta_groups::{Create, GroupId, Groups, Settings, Source};
use gesta_grpc::messages::gossip::ClusterInfo;
use gesta_grpc::messages::gossip::member_info::VNodeState;
use gesta_grpc::messages::groups::list_req::options::ListOption;
use gesta_grpc::messages::groups::{ListReq, ListResp, list_req};
use gesta_grpc::messages::shared::Empty;
use gesta_memory::MemoryStore;
use gesta_server::{Cluster, ClusterNode, ClusterPlacement, Config, LogOwner, Registry};

use crate::client::Client;
use crate::requests::{GROUPS, consuming, identifier};

const GOSSIP: &str = "/event_store.client.gossip.Gossip/Read";

/// A cluster in which this server is node 2. Node 3 owns the only log, and node 1 has not told where clients reach it.
struct Three {
    apis: [Option<&'static str>; 3],
    owner: Option<u32>,
}

impl Three {
    fn owner(&self) -> LogOwner {
        LogOwner {
            log: 0,
            node: self.owner,
            address: self.owner.map(|owner| format!("node-{owner}:2114")),
            epoch: 7,
        }
    }
}

impl Cluster for Three {
    fn placement(&self) -> ClusterPlacement {
        let node = |(api, node): (&Option<&str>, u32)| ClusterNode {
            node,
            address: format!("node-{node}:2114"),
            api: api.map(str::to_owned),
            state: "up",
            build: "0.1.0".to_owned(),
        };
        ClusterPlacement {
            node: Some(2),
            nodes: self.apis.iter().zip(1..).map(node).collect(),
            logs: vec![self.owner()],
        }
    }

    fn owner_elsewhere(&self, _: LogId) -> Option<LogOwner> {
        self.owner.filter(|owner| *owner != 2).map(|_| self.owner())
    }
}

async fn client(cluster: Three) -> Client {
    client_of(cluster, Arc::new(MemoryStore::new())).await
}

async fn client_of(cluster: Three, store: Arc<dyn EventStore>) -> Client {
    let config = Config {
        listen: ([127, 0, 0, 1], 0).into(),
        ..Config::default()
    };
    let bound = gesta_server::bind(config).await.expect("a free port");
    let bound = bound.with_cluster(Arc::new(cluster));
    Client::to(bound.serve(store, Registry::default())).await
}

/// Returns the members of which a client is told: host, port, and whether the member is the leader.
async fn told(client: &Client) -> Vec<(String, u32, bool)> {
    let told = client.call(GOSSIP, &[Empty {}]).await.read::<ClusterInfo>();
    let members = told.into_iter().flat_map(|told| told.members);
    let member = |member: gesta_grpc::messages::gossip::MemberInfo| {
        assert!(member.is_alive && member.instance_id.is_some());
        let is_leader = member.state == i32::from(VNodeState::Leader);
        assert!(is_leader || member.state == i32::from(VNodeState::Follower));
        let end = member.http_end_point.expect("an address");
        (end.address, end.port, is_leader)
    };
    members.map(member).collect()
}

/// Goal: clients are told of the nodes that have an address for them, and of one leader, which owns the first log.
#[tokio::test]
async fn clients_are_told_of_the_nodes_and_of_one_leader() {
    let apis = [None, Some("b:2113"), Some("[::1]:2213")];
    let (two, three) = ("b".to_owned(), "::1".to_owned());
    for (owner, leader) in [(Some(3), 3), (Some(2), 2), (Some(1), 2), (None, 2)] {
        let client = client(Three { apis, owner }).await;
        let expected = [
            (two.clone(), 2113, leader == 2),
            (three.clone(), 2213, leader == 3),
        ];
        assert_eq!(told(&client).await, expected, "owner {owner:?}");
    }
}

/// Goal: as long as no node has told its address, a server tells of itself, at the address that the client called.
#[tokio::test]
async fn a_node_without_addresses_tells_of_itself() {
    let client = client(Three {
        apis: [None; 3],
        owner: Some(3),
    })
    .await;
    let port = u32::from(client.server.local_addr().port());
    assert_eq!(told(&client).await, [("127.0.0.1".to_owned(), port, true)]);
}

/// Goal: a consumer that comes to a node that does not run its group is sent to the one that does, as clients
/// understand it; if nobody knows where that is, it is told to try again.
#[tokio::test]
async fn consumers_are_sent_to_the_node_that_runs_their_group() {
    for (api, code) in [(Some("c:2113"), 5), (None, 14)] {
        let client = client(Three {
            apis: [None, Some("b:2113"), api],
            owner: Some(3),
        })
        .await;
        let path = format!("{GROUPS}/Read");
        let ended = client.call_bytes(&path, &[], consuming("team")).await;
        assert_eq!(ended.code, code, "{}", ended.message());
        if code == 5 {
            assert_eq!(ended.message(), "Leader info available");
            assert_eq!(ended.trailers["exception"], "not-leader");
            assert_eq!(ended.trailers["leader-endpoint-host"], "c");
            assert_eq!(ended.trailers["leader-endpoint-port"], "2113");
        }
    }
}

/// A list left out the groups that other nodes run: most of them, on a cluster, and without a word. Goal: every node
/// lists all groups; of those that it does not run, it tells what is stored.
#[tokio::test]
async fn every_node_lists_all_groups() {
    let store: Arc<dyn EventStore> = Arc::new(MemoryStore::new());
    let elsewhere = Groups::start(Arc::clone(&store), gesta_groups::Config::default());
    let source = Source::Stream(StreamId::new("team").expect("valid"));
    let group = GroupId::new(source, "g").expect("valid");
    let settings = Settings {
        max_retry_count: 7,
        ..Settings::default()
    };
    let filter = Filter::ALL;
    let create = Create {
        group,
        settings,
        filter,
    };
    elsewhere.create(create).await.expect("created");
    let apis = [None, Some("b:2113"), Some("c:2113")];
    let owner = Some(3);
    let client = client_of(Three { apis, owner }, store).await;
    let of_team = list_req::StreamOption {
        stream_option: Some(list_req::stream_option::StreamOption::Stream(identifier(
            "team",
        ))),
    };
    for option in [
        ListOption::ListAllSubscriptions(Empty {}),
        ListOption::ListForStream(of_team),
    ] {
        let request = ListReq {
            options: Some(list_req::Options {
                list_option: Some(option),
            }),
        };
        let ended = client.call(&format!("{GROUPS}/List"), &[request]).await;
        let listed = ended.read::<ListResp>().remove(0).subscriptions;
        let [info] = listed.as_slice() else {
            panic!("{listed:?}");
        };
        assert_eq!(
            (info.event_source.as_str(), info.group_name.as_str()),
            ("team", "g")
        );
        assert_eq!(
            (info.max_retry_count, info.status.as_str()),
            (7, "NotReady")
        );
    }
    elsewhere.shutdown().await;
}
