//! The calls that clients make before all others: what the server can do, and which nodes there are.

use gesta_core::{Clock, SystemClock};
use gesta_grpc::event::TICKS_PER_MICROSECOND;
use gesta_grpc::ids::{self, UuidForm};
use gesta_grpc::messages::gossip::member_info::VNodeState;
use gesta_grpc::messages::gossip::{ClusterInfo, EndPoint, MemberInfo};
use gesta_grpc::messages::shared::Empty;
use gesta_grpc::{Refusal, features};

use super::Result;
use super::call::GrpcCall;
use super::reply::Reply;
use crate::call::gossip::{Member, members};

/// Carries out `GetSupportedMethods`.
pub(crate) async fn features(call: &mut GrpcCall) -> Result<Reply> {
    call.message::<Empty>().await?;
    Ok(Reply::message(&features::supported()))
}

/// Carries out `Gossip/Read`.
pub(crate) async fn gossip(call: &mut GrpcCall) -> Result<Reply> {
    call.message::<Empty>().await?;
    let members = members(&call.state, call.authority())
        .ok_or_else(|| Refusal::invalid("the address that was called must be given"))?;
    let members = members.into_iter().map(shown).collect();
    Ok(Reply::message(&ClusterInfo { members }))
}

fn shown(member: Member) -> MemberInfo {
    MemberInfo {
        instance_id: Some(ids::uuid(member.id, UuidForm::Structured)),
        time_stamp: SystemClock
            .now()
            .as_micros()
            .saturating_mul(TICKS_PER_MICROSECOND),
        state: match member.is_leader {
            true => VNodeState::Leader,
            false => VNodeState::Follower,
        }
        .into(),
        is_alive: true,
        http_end_point: Some(EndPoint {
            address: member.host,
            port: member.port.into(),
        }),
    }
}
