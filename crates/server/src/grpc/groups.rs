//! `PersistentSubscriptions`: consumer groups as these clients know them.
//!
//! Not here: what groups do (`gesta_groups`), reading of requests (`asked`), writing of answers (`answers`), consumers
//! (`consume`).

mod answers;
mod consume;
mod requests;

use gesta_access::{Operation, OwnedOperation};
use gesta_core::Filter;
use gesta_groups::{Create, Error, GroupId, Source};
use gesta_grpc::messages::groups::list_req::options::ListOption;
use gesta_grpc::messages::groups::replay_parked_req::options::StopAtOption;
use gesta_grpc::messages::groups::{
    CreateReq, CreateResp, DeleteReq, DeleteResp, GetInfoReq, GetInfoResp, ListReq, ListResp,
    ReplayParkedReq, ReplayParkedResp, UpdateReq, UpdateResp, delete_req, get_info_req, list_req,
    replay_parked_req,
};
use gesta_grpc::messages::shared::Empty;
use gesta_grpc::{Code, Positions, Refusal};

use super::Result;
use super::call::GrpcCall;
use super::reply::Reply;
use crate::call::AuditLine;
use crate::state::State;
use answers::Identities;
pub(crate) use consume::consume;
use requests::{Wanted, asks, wanted};

/// Number of groups that are listed at once.
const PAGE: usize = 1_000;
/// Most groups that one list has.
const LIST_MAX: usize = 10_000;

/// Makes the refusal of a call that was to create or change a group.
fn not_so(state: &State, group: &GroupId, error: Error) -> Refusal {
    answers::of_settings(group, refused(state, error))
}

/// Makes the refusal of a call about a group. A caller who came to the wrong node is told the right one, if that node
/// has told where clients reach it.
fn refused(state: &State, error: Error) -> Refusal {
    if let Error::NotHere { elsewhere, .. } = &error
        && let Some((host, port)) = state.client_address(elsewhere.node)
    {
        return Refusal::not_leader(&host, port);
    }
    answers::refusal(&error)
}

fn no_options() -> Refusal {
    Refusal::invalid("the options must be given")
}

/// Refuses a caller who may not change groups. A caller who may must also be allowed to read what the group would show.
async fn may_manage(call: &GrpcCall, source: &Source) -> Result<()> {
    let on = call.backing();
    on.check(Operation::ManageGroups).await?;
    may_read(call, source).await
}

/// Returns the positions of the present history, as clients see them.
async fn positions(call: &GrpcCall) -> Result<Positions> {
    Ok(call.admitted.store.incarnation().await?.into())
}

/// Makes the line of the audit log that the caller changes a group, or what its consumers get.
fn changing(call: &GrpcCall, what: impl Into<String>) -> AuditLine {
    call.audit(OwnedOperation::ManageGroups, what)
}

/// Refuses a caller who may not see what a group shows.
async fn may_read(call: &GrpcCall, source: &Source) -> Result<()> {
    let operation = crate::http::groups::reading(source);
    Ok(call.admitted.check(&call.state, operation).await?)
}

/// Tells whether the caller is told who consumes: only those who may manage groups are.
async fn identities(call: &GrpcCall) -> Result<Identities> {
    let may_manage = call.admitted.may(&call.state, Operation::ManageGroups);
    Ok(match may_manage.await? {
        true => Identities::Shown,
        false => Identities::Hidden,
    })
}

/// Carries out `Create`.
pub(crate) async fn create(call: &mut GrpcCall) -> Result<Reply> {
    let request: CreateReq = call.message().await?;
    let Wanted {
        group,
        settings,
        pattern,
    } = wanted(request.options, positions(call).await?)?;
    may_manage(call, group.source()).await?;
    let create = Create {
        group: group.clone(),
        settings,
        filter: Filter::ALL,
    };
    if let Some(pattern) = &pattern {
        // What a group keeps is compiled whenever the group begins, so it must be good.
        let (state, holder) = (&call.state, call.admitted.holder());
        let compiled = state
            .bounds
            .patterns
            .compile(pattern.clone(), &state.bounds.budget, holder);
        let compiled = compiled.await.map_err(Refusal::from);
        let held = compiled.map_err(|refusal| answers::of_settings(&group, refusal))?;
        if held.pattern.is_of_virtual_streams() {
            crate::http::read::refuse_virtual_alone(&*call.store()).await?;
        }
    }
    let line = changing(call, group.to_string());
    let groups = &call.state.groups;
    let outcome = match pattern {
        None => groups.create(create).await,
        Some(pattern) => groups.create_matching(create, pattern).await,
    }
    .map_err(|error| not_so(&call.state, &group, error));
    line.ended(&outcome.as_ref().map_err(|refusal| &refusal.message));
    outcome?;
    Ok(Reply::message(&CreateResp {}))
}

/// Carries out `Update`.
pub(crate) async fn update(call: &mut GrpcCall) -> Result<Reply> {
    let request: UpdateReq = call.message().await?;
    let Wanted {
        group, settings, ..
    } = wanted(request.options, positions(call).await?)?;
    may_manage(call, group.source()).await?;
    let line = changing(call, group.to_string());
    let updated = call.state.groups.update(&group, settings);
    let outcome = updated
        .await
        .map_err(|error| not_so(&call.state, &group, error));
    line.ended(&outcome.as_ref().map_err(|refusal| &refusal.message));
    outcome?;
    Ok(Reply::message(&UpdateResp {}))
}

/// Carries out `Delete`.
pub(crate) async fn delete(call: &mut GrpcCall) -> Result<Reply> {
    let request: DeleteReq = call.message().await?;
    let options = request.options.ok_or_else(no_options)?;
    let asks = asks!(
        options.stream_option,
        delete_req::options::StreamOption,
        StreamIdentifier
    )?;
    let group = asks.group(&options.group_name)?;
    may_manage(call, group.source()).await?;
    let line = changing(call, group.to_string());
    let outcome = call
        .state
        .groups
        .delete(&group)
        .await
        .map_err(|error| refused(&call.state, error));
    line.ended(&outcome.as_ref().map_err(|refusal| &refusal.message));
    outcome?;
    Ok(Reply::message(&DeleteResp {}))
}

/// Carries out `GetInfo`.
pub(crate) async fn get_info(call: &mut GrpcCall) -> Result<Reply> {
    let request: GetInfoReq = call.message().await?;
    let options = request.options.ok_or_else(no_options)?;
    let asks = asks!(
        options.stream_option,
        get_info_req::options::StreamOption,
        StreamIdentifier
    )?;
    let group = asks.group(&options.group_name)?;
    may_read(call, group.source()).await?;
    let info = call
        .state
        .groups
        .info(&group)
        .await
        .map_err(|error| refused(&call.state, error))?;
    let identities = identities(call).await?;
    Ok(Reply::message(&GetInfoResp {
        subscription_info: Some(answers::info(&info, positions(call).await?, identities)),
    }))
}

/// Carries out `List`.
pub(crate) async fn list(call: &mut GrpcCall) -> Result<Reply> {
    let request: ListReq = call.message().await?;
    let source = match request.options.and_then(|options| options.list_option) {
        Some(ListOption::ListAllSubscriptions(_)) => None,
        Some(ListOption::ListForStream(of)) => {
            let asks = asks!(
                of.stream_option,
                list_req::stream_option::StreamOption,
                Stream
            )?;
            Some(asks.source()?)
        }
        None => return Err(Refusal::invalid("which groups to list must be given")),
    };
    match &source {
        Some(source) => may_read(call, source).await?,
        None => call.backing().check(Operation::Observe).await?,
    }
    let names = names(call, source.as_ref()).await?;
    if let (Some(source), true) = (&source, names.is_empty()) {
        let text = format!("there is no group on {source}");
        let refusal = Refusal::new(Code::NotFound, text)
            .exception("persistent-subscription-does-not-exist")
            .trailer("stream-name", source.as_str())
            .trailer("group-name", "");
        return Err(refusal);
    }
    let (positions, identities) = (positions(call).await?, identities(call).await?);
    let mut subscriptions = Vec::with_capacity(names.len());
    for group in names {
        let groups = &call.state.groups;
        let info = match groups.info(&group).await {
            // Another node runs it: what is stored is told.
            Err(Error::NotHere { .. }) => groups.stored(&group).await,
            info => info,
        };
        match info {
            Ok(info) => subscriptions.push(answers::info(&info, positions, identities)),
            // It was deleted meanwhile.
            Err(Error::NotFound(_)) => {}
            Err(error) => return Err(refused(&call.state, error)),
        }
    }
    Ok(Reply::message(&ListResp { subscriptions }))
}

async fn names(call: &GrpcCall, source: Option<&Source>) -> Result<Vec<GroupId>> {
    let mut names: Vec<GroupId> = Vec::new();
    loop {
        let page = call.state.groups.list(source, names.last(), PAGE).await;
        let page = page.map_err(|error| refused(&call.state, error))?;
        let is_last = page.len() < PAGE;
        names.extend(page);
        if names.len() > LIST_MAX {
            return Err(Refusal::new(
                Code::ResourceExhausted,
                format!("there are more than {LIST_MAX} groups: list those of one stream"),
            ));
        }
        if is_last {
            return Ok(names);
        }
    }
}

/// Carries out `ReplayParked`.
pub(crate) async fn replay_parked(call: &mut GrpcCall) -> Result<Reply> {
    let request: ReplayParkedReq = call.message().await?;
    let options = request.options.ok_or_else(no_options)?;
    let asks = asks!(
        options.stream_option,
        replay_parked_req::options::StreamOption,
        StreamIdentifier
    )?;
    let group = asks.group(&options.group_name)?;
    let stop_at = match options.stop_at_option {
        Some(StopAtOption::StopAt(at)) => Some(u64::try_from(at).map_err(|_| {
            let rule = format!("stop_at must not be negative, found {at}");
            answers::of_settings(&group, Refusal::invalid(rule))
        })?),
        Some(StopAtOption::NoLimit(_)) | None => None,
    };
    may_manage(call, group.source()).await?;
    let line = changing(call, group.to_string());
    let replayed = call.state.groups.replay_parked(&group, stop_at);
    let outcome = replayed.await.map_err(|error| refused(&call.state, error));
    line.ended(&outcome.as_ref().map_err(|refusal| &refusal.message));
    outcome?;
    Ok(Reply::message(&ReplayParkedResp {}))
}

/// Carries out `RestartSubsystem`.
pub(crate) async fn restart(call: &mut GrpcCall) -> Result<Reply> {
    call.message::<Empty>().await?;
    call.backing().check(Operation::ManageGroups).await?;
    let line = changing(call, "restart");
    let outcome = call
        .state
        .groups
        .restart_all()
        .await
        .map_err(|error| refused(&call.state, error));
    line.ended(&outcome.as_ref().map_err(|refusal| &refusal.message));
    outcome?;
    Ok(Reply::message(&Empty {}))
}
