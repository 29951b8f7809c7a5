//! The calls that clients make before all others: what the server can do, and which nodes there are.

use std::hash::{DefaultHasher, Hash as _, Hasher as _};

use gesta_core::{Clock, SystemClock};
use gesta_grpc::event::TICKS_PER_MICROSECOND;
use gesta_grpc::ids::{self, UuidForm};
use gesta_grpc::messages::gossip::member_info::VNodeState;
use gesta_grpc::messages::gossip::{ClusterInfo, EndPoint, MemberInfo};
use gesta_grpc::messages::shared::Empty;
use gesta_grpc::{Refusal, features};
use hyper::http::uri::Authority;

use uuid::Uuid;

use super::Result;
use super::call::GrpcCall;
use super::reply::Reply;
use crate::placement::{Cluster, ClusterPlacement, host_and_port};

/// Port of a name that has none.
const PORT: u16 = 2113;

/// Carries out `GetSupportedMethods`.
pub(crate) async fn features(call: &mut GrpcCall) -> Result<Reply> {
    call.message::<Empty>().await?;
    Ok(Reply::message(&features::supported()))
}

/// Carries out `Gossip/Read`. It answers with the nodes of the cluster that have told where clients reach them, or with
/// this server alone at the address that the client called. Every node serves every call. The node that is called
/// leader owns the first log, so what is written there is not forwarded if the store has one log.
pub(crate) async fn gossip(call: &mut GrpcCall) -> Result<Reply> {
    call.message::<Empty>().await?;
    let members = match call.state.cluster.as_deref().map(Cluster::placement) {
        Some(placement) => of_cluster(&placement),
        None => Vec::new(),
    };
    let members = match members.is_empty() {
        true => vec![alone(call)?],
        false => members,
    };
    Ok(Reply::message(&ClusterInfo { members }))
}

/// Makes the entry of this server, as if there were no other.
fn alone(call: &GrpcCall) -> Result<MemberInfo> {
    let authority: Authority = call
        .authority()
        .parse()
        .map_err(|_| Refusal::invalid("the address that was called must be given"))?;
    let host = authority.host();
    let host = host.trim_start_matches('[').trim_end_matches(']');
    let port = authority.port_u16().unwrap_or(PORT);
    Ok(member(
        call.state.instance,
        VNodeState::Leader,
        host.to_owned(),
        port,
    ))
}

/// Makes the entries of the nodes to which clients can be sent. One of them is the leader.
fn of_cluster(placement: &ClusterPlacement) -> Vec<MemberInfo> {
    let reached = placement.nodes.iter();
    let reached: Vec<_> = reached
        .filter_map(|node| Some((node.node, host_and_port(node.api.as_deref()?)?)))
        .collect();
    let owner = placement.logs.first().and_then(|log| log.node);
    let is_reached = |node: u32| reached.iter().any(|(other, _)| *other == node);
    let lowest = reached.iter().map(|(node, _)| *node).min();
    let leader = owner.filter(|node| is_reached(*node)).or(lowest);
    let members = reached.into_iter().map(|(node, (host, port))| {
        let state = match Some(node) == leader {
            true => VNodeState::Leader,
            false => VNodeState::Follower,
        };
        member(id_of(&host, port), state, host, port)
    });
    members.collect()
}

/// Returns the id by which clients tell nodes apart. All nodes tell the same id of a node.
fn id_of(host: &str, port: u16) -> Uuid {
    let mut hasher = DefaultHasher::new();
    (host, port).hash(&mut hasher);
    Uuid::from_u64_pair(hasher.finish(), port.into())
}

fn member(id: Uuid, state: VNodeState, address: String, port: u16) -> MemberInfo {
    MemberInfo {
        instance_id: Some(ids::uuid(id, UuidForm::Structured)),
        time_stamp: SystemClock
            .now()
            .as_micros()
            .saturating_mul(TICKS_PER_MICROSECOND),
        state: state.into(),
        is_alive: true,
        http_end_point: Some(EndPoint {
            address,
            port: port.into(),
        }),
    }
}
