//! What clients ask before their first call: what the server can do, and which nodes there are.

use gesta_core::{Clock, SystemClock};
use gesta_grpc::event::TICKS_PER_MICROSECOND;
use gesta_grpc::ids::{self, UuidForm};
use gesta_grpc::messages::gossip::member_info::VNodeState;
use gesta_grpc::messages::gossip::{ClusterInfo, EndPoint, MemberInfo};
use gesta_grpc::messages::shared::Empty;
use gesta_grpc::{Refusal, features};
use hyper::http::uri::Authority;

use super::Result;
use super::call::Call;
use super::reply::Reply;

/// The port of a name without one.
const PORT: u16 = 2113;

/// Carries out `GetSupportedMethods`.
pub(crate) async fn features(call: &mut Call) -> Result<Reply> {
    call.message::<Empty>().await?;
    Ok(Reply::message(&features::supported()))
}

/// Carries out `Gossip/Read`: this node alone, at the address that the client called. Every node serves every call, so a
/// client that was given several addresses finds the next one by itself.
pub(crate) async fn gossip(call: &mut Call) -> Result<Reply> {
    call.message::<Empty>().await?;
    let authority: Authority = call
        .authority()
        .parse()
        .map_err(|_| Refusal::invalid("the address that was called must be given"))?;
    let host = authority.host();
    let host = host.trim_start_matches('[').trim_end_matches(']');
    let member = MemberInfo {
        instance_id: Some(ids::uuid(call.state.instance, UuidForm::Structured)),
        time_stamp: SystemClock
            .now()
            .as_micros()
            .saturating_mul(TICKS_PER_MICROSECOND),
        state: VNodeState::Leader.into(),
        is_alive: true,
        http_end_point: Some(EndPoint {
            address: host.to_owned(),
            port: authority.port_u16().unwrap_or(PORT).into(),
        }),
    };
    Ok(Reply::message(&ClusterInfo {
        members: vec![member],
    }))
}
