//! Which nodes there are, as clients of EventStoreDB ask: `GET /gossip`, and `Gossip/Read` of gRPC.
//!
//! The answer has the nodes of the cluster that have told where clients reach them, or this server alone: at the
//! address that it was told to advertise, or at the one that the client called. Every node serves every call. The node
//! that is called leader owns the first log, so what is written there is not forwarded if the store has one log.
//! Anybody may ask, because clients ask before they say who they are.

use std::hash::{DefaultHasher, Hash as _, Hasher as _};

use gesta_core::{Clock, SystemClock, Timestamp};
use gesta_wire::answer;
use hyper::StatusCode;
use hyper::header::HOST;
use hyper::http::uri::Authority;
use serde::Serialize;
use uuid::Uuid;

use crate::call::{Answer, Call, json};
use crate::shared::placement::{Cluster, ClusterPlacement, host_and_port};
use crate::shared::problem::{Problem, Result};
use crate::state::State;

/// Port of a name that has none.
const PORT: u16 = 2113;

/// A node to which clients may be sent.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Member {
    pub(crate) id: Uuid,
    pub(crate) is_leader: bool,
    /// Host at which clients reach the node; an IPv6 address has no brackets.
    pub(crate) host: String,
    pub(crate) port: u16,
}

/// Returns the nodes to which clients can be sent. `called` is the address that the client called, with its port if it
/// named one. Returns `None` if the server is alone and knows no address of itself.
pub(crate) fn members(state: &State, called: &str) -> Option<Vec<Member>> {
    let members = match state.cluster.as_deref().map(Cluster::placement) {
        Some(placement) => of_cluster(&placement),
        None => Vec::new(),
    };
    if !members.is_empty() {
        return Some(members);
    }
    let (host, port) = match &state.config.advertise {
        Some(own) => (own.host().to_owned(), own.port()),
        None => {
            let authority: Authority = called.parse().ok()?;
            let host = authority.host();
            let host = host.trim_start_matches('[').trim_end_matches(']');
            let port = authority.port_u16().unwrap_or(PORT);
            (host.to_owned(), port)
        }
    };
    Some(vec![Member {
        id: state.instance,
        is_leader: true,
        host,
        port,
    }])
}

/// Returns the nodes of a cluster to which clients can be sent. One of them is the leader.
fn of_cluster(placement: &ClusterPlacement) -> Vec<Member> {
    let reached = placement.nodes.iter();
    let reached: Vec<_> = reached
        .filter_map(|node| Some((node.node, host_and_port(node.api.as_deref()?)?)))
        .collect();
    let owner = placement.logs.first().and_then(|log| log.node);
    let is_reached = |node: u32| reached.iter().any(|(other, _)| *other == node);
    let lowest = reached.iter().map(|(node, _)| *node).min();
    let leader = owner.filter(|node| is_reached(*node)).or(lowest);
    let members = reached.into_iter().map(|(node, (host, port))| Member {
        id: id_of(&host, port),
        is_leader: Some(node) == leader,
        host,
        port,
    });
    members.collect()
}

/// Returns the id by which clients tell nodes apart. All nodes tell the same id of a node.
fn id_of(host: &str, port: u16) -> Uuid {
    let mut hasher = DefaultHasher::new();
    (host, port).hash(&mut hasher);
    Uuid::from_u64_pair(hasher.finish(), port.into())
}

#[derive(Serialize)]
struct Gossip {
    members: Vec<Shown>,
}

/// A node as these clients read it. What they read and Gesta has not, such as an address for another protocol, is zero
/// or empty: clients refuse a document without it.
#[derive(Default, Serialize)]
#[serde(rename_all = "camelCase")]
struct Shown {
    instance_id: Uuid,
    time_stamp: String,
    state: &'static str,
    is_alive: bool,
    internal_tcp_ip: &'static str,
    internal_tcp_port: u16,
    internal_secure_tcp_port: u16,
    external_tcp_ip: &'static str,
    external_tcp_port: u16,
    external_secure_tcp_port: u16,
    http_end_point_ip: String,
    http_end_point_port: u16,
    last_commit_position: i64,
    writer_checkpoint: i64,
    chaser_checkpoint: i64,
    epoch_position: i64,
    epoch_number: i64,
    epoch_id: Uuid,
    node_priority: i64,
}

impl Shown {
    fn of(member: Member, now: Timestamp) -> Self {
        Self {
            instance_id: member.id,
            time_stamp: now.to_string(),
            state: match member.is_leader {
                true => "Leader",
                false => "Follower",
            },
            is_alive: true,
            http_end_point_ip: member.host,
            http_end_point_port: member.port,
            ..Self::default()
        }
    }
}

/// Carries out `GET /gossip`.
pub(crate) fn gossip(call: &Call<'_>) -> Result<Answer> {
    call.parameters(&[])?;
    let in_header = call.headers().get(HOST);
    let in_header = in_header.and_then(|value| value.to_str().ok());
    let authority = call.parts().uri.authority().map(Authority::as_str);
    let called = authority.or(in_header).unwrap_or_default();
    let members = members(call.state, called)
        .ok_or_else(|| Problem::invalid("Host", "must be given, for it is the answer"))?;
    let now = SystemClock.now();
    let members = members.into_iter().map(|member| Shown::of(member, now));
    let document = Gossip {
        members: members.collect(),
    };
    Ok(json(StatusCode::OK, answer::write(&document)))
}
