//! `Operations`: what operators tell a server to do, as far as Gesta does it.
//!
//! A scavenge begins and finds nothing to do: the log keeps no space of its own that a server could take back. It has
//! ended when its answer leaves, and the ids of the last ones are kept for those who stop them all the same. Events
//! that deletes hide are removed by `gesta scavenge` and `POST /admin/scavenge`; on PostgreSQL that needs a role that
//! no
//! server has.

use gesta_access::{Operation, OwnedOperation};
use gesta_grpc::Refusal;
use gesta_grpc::messages::operations::scavenge_resp::ScavengeResult;
use gesta_grpc::messages::operations::{
    ScavengeResp, SetNodePriorityReq, StartScavengeReq, StopScavengeReq,
};
use gesta_grpc::messages::shared::Empty;

use super::Result;
use super::call::GrpcCall;
use super::reply::Reply;

/// Carries out `StartScavenge`.
pub(crate) async fn start_scavenge(call: &mut GrpcCall) -> Result<Reply> {
    let request: StartScavengeReq = call.message().await?;
    call.backing().check(Operation::Operate).await?;
    let options = request.options.unwrap_or_default();
    for (field, number) in [
        ("thread_count", options.thread_count),
        ("start_from_chunk", options.start_from_chunk),
    ] {
        if number < 0 {
            let rule = format!("{field} must not be negative, found {number}");
            return Err(Refusal::invalid(rule));
        }
    }
    done(call, "StartScavenge");
    Ok(Reply::message(&ScavengeResp {
        scavenge_id: call.state.scavenges.begin(),
        scavenge_result: ScavengeResult::Started.into(),
    }))
}

/// Carries out `StopScavenge`. It knows the ids of the last scavenges, which have all ended.
pub(crate) async fn stop_scavenge(call: &mut GrpcCall) -> Result<Reply> {
    let request: StopScavengeReq = call.message().await?;
    call.backing().check(Operation::Operate).await?;
    let scavenge_id = request.options.unwrap_or_default().scavenge_id;
    if !call.state.scavenges.has(&scavenge_id) {
        return Err(Refusal::no_scavenge(&scavenge_id));
    }
    done(call, "StopScavenge");
    Ok(Reply::message(&ScavengeResp {
        scavenge_id,
        scavenge_result: ScavengeResult::Stopped.into(),
    }))
}

/// Carries out `MergeIndexes`. It does nothing, because the database manages its indexes.
pub(crate) async fn merge_indexes(call: &mut GrpcCall) -> Result<Reply> {
    call.message::<Empty>().await?;
    call.backing().check(Operation::Operate).await?;
    done(call, "MergeIndexes");
    Ok(Reply::message(&Empty {}))
}

/// Carries out `ResignNode`. On a server that is no node of a cluster it does nothing; on a node it is refused.
pub(crate) async fn resign(call: &mut GrpcCall, path: &str) -> Result<Reply> {
    call.message::<Empty>().await?;
    alone(call, path).await
}

/// Carries out `SetNodePriority`, by which nodes choose a leader. On a server that is no node of a cluster it does
/// nothing; on a node it is refused.
pub(crate) async fn set_priority(call: &mut GrpcCall, path: &str) -> Result<Reply> {
    call.message::<SetNodePriorityReq>().await?;
    alone(call, path).await
}

async fn alone(call: &GrpcCall, path: &str) -> Result<Reply> {
    call.backing().check(Operation::Operate).await?;
    match call.state.cluster {
        None => {
            done(call, path.rsplit('/').next().unwrap_or(path));
            Ok(Reply::message(&Empty {}))
        }
        Some(_) => Err(Refusal::unimplemented(path)),
    }
}

/// Writes to the audit log what an operator has asked for.
fn done(call: &GrpcCall, what: &str) {
    let done: std::result::Result<(), &str> = Ok(());
    call.audit(OwnedOperation::Operate, what).ended(&done);
}
