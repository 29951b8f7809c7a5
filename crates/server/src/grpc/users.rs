//! `Users`: creates and changes accounts, for administrators, and lets every user change their own password.
//!
//! The rules for accounts are those of `gesta user`: each call works on the store as its caller may use it.
//! Not here: tokens, which this protocol does not know.

use bytes::BytesMut;
use gesta_access::{Accounts, AddUser, FirstUser, ShownUser};
use gesta_grpc::event::TICKS_PER_MICROSECOND;
use gesta_grpc::messages::users::details_resp::{UserDetails, user_details::DateTime};
use gesta_grpc::messages::users::{
    ChangePasswordReq, ChangePasswordResp, CreateReq, CreateResp, DeleteReq, DeleteResp,
    DetailsReq, DetailsResp, DisableReq, DisableResp, EnableReq, EnableResp, ResetPasswordReq,
    ResetPasswordResp, UpdateReq, UpdateResp,
};
use gesta_grpc::{Code, Refusal, frame};

use super::Result;
use super::call::GrpcCall;
use super::reply::Reply;
use crate::shared::body::MessageSource;

/// Returns the accounts as the caller may use them.
fn accounts(call: &GrpcCall) -> Accounts {
    Accounts::of(call.store())
}

fn no_options() -> Refusal {
    Refusal::invalid("the options must be given")
}

fn of_user(code: Code, exception: &'static str, name: &str, text: String) -> Refusal {
    Refusal::new(code, text)
        .exception(exception)
        .trailer("login-name", name)
}

/// Finds the user of this name, and refuses the call if there is none.
async fn known(accounts: &Accounts, name: &str) -> Result<ShownUser> {
    accounts.user(name).await?.ok_or_else(|| {
        let text = format!("there is no user {name:?}");
        of_user(Code::NotFound, "user-not-found", name, text)
    })
}

/// Carries out `Create`.
pub(crate) async fn create(call: &mut GrpcCall) -> Result<Reply> {
    let request: CreateReq = call.message().await?;
    let options = request.options.ok_or_else(no_options)?;
    let (accounts, name) = (accounts(call), options.login_name);
    if accounts.user(&name).await?.is_some() {
        let text = format!("user {name:?} exists already");
        return Err(of_user(
            Code::FailedPrecondition,
            "user-conflict",
            &name,
            text,
        ));
    }
    let add = AddUser {
        name,
        password: options.password,
        groups: options.groups,
        full_name: options.full_name,
        first: FirstUser::RefuseRights,
    };
    accounts.add_user(add).await?;
    Ok(Reply::message(&CreateResp {}))
}

/// Carries out `Update`. The groups and the full name are replaced.
pub(crate) async fn update(call: &mut GrpcCall) -> Result<Reply> {
    let request: UpdateReq = call.message().await?;
    let options = request.options.ok_or_else(no_options)?;
    let accounts = accounts(call);
    known(&accounts, &options.login_name).await?;
    let set = accounts.describe(&options.login_name, options.groups, options.full_name);
    set.await?;
    Ok(Reply::message(&UpdateResp {}))
}

/// Carries out `Delete`.
pub(crate) async fn delete(call: &mut GrpcCall) -> Result<Reply> {
    let request: DeleteReq = call.message().await?;
    let options = request.options.ok_or_else(no_options)?;
    let accounts = accounts(call);
    known(&accounts, &options.login_name).await?;
    accounts.delete_user(&options.login_name).await?;
    Ok(Reply::message(&DeleteResp {}))
}

/// Carries out `Disable`.
pub(crate) async fn disable(call: &mut GrpcCall) -> Result<Reply> {
    let request: DisableReq = call.message().await?;
    let options = request.options.ok_or_else(no_options)?;
    let accounts = accounts(call);
    known(&accounts, &options.login_name).await?;
    accounts.disable(&options.login_name).await?;
    Ok(Reply::message(&DisableResp {}))
}

/// Carries out `Enable`.
pub(crate) async fn enable(call: &mut GrpcCall) -> Result<Reply> {
    let request: EnableReq = call.message().await?;
    let options = request.options.ok_or_else(no_options)?;
    let accounts = accounts(call);
    known(&accounts, &options.login_name).await?;
    accounts.enable(&options.login_name).await?;
    Ok(Reply::message(&EnableResp {}))
}

/// Carries out `Details`, for one user or for all.
pub(crate) async fn details(call: &mut GrpcCall) -> Result<Reply> {
    let request: DetailsReq = call.message().await?;
    let name = request.options.unwrap_or_default().login_name;
    let accounts = accounts(call);
    let users = match name.as_str() {
        "" => accounts.users().await?,
        name => vec![known(&accounts, name).await?],
    };
    let mut out = BytesMut::new();
    for user in users {
        let ticks = user.changed.as_micros();
        let user_details = Some(UserDetails {
            full_name: user.full_name,
            login_name: user.user,
            groups: user.groups,
            last_updated: Some(DateTime {
                ticks_since_epoch: ticks.saturating_mul(TICKS_PER_MICROSECOND),
            }),
            disabled: user.disabled,
        });
        frame::write(&mut out, &DetailsResp { user_details });
    }
    Ok(Reply::Finite(MessageSource::Framed(out.freeze())))
}

/// Carries out `ResetPassword`.
pub(crate) async fn reset_password(call: &mut GrpcCall) -> Result<Reply> {
    let request: ResetPasswordReq = call.message().await?;
    let options = request.options.ok_or_else(no_options)?;
    let accounts = accounts(call);
    known(&accounts, &options.login_name).await?;
    let set = accounts.set_password(&options.login_name, options.new_password);
    set.await?;
    Ok(Reply::message(&ResetPasswordResp {}))
}

/// Carries out `ChangePassword`, for every user who knows their present password.
pub(crate) async fn change_password(call: &mut GrpcCall) -> Result<Reply> {
    let request: ChangePasswordReq = call.message().await?;
    let options = request.options.ok_or_else(no_options)?;
    let Some(access) = call.state.access.clone() else {
        return Err(Refusal::access_denied());
    };
    let (user, present) = (options.login_name, options.current_password);
    let changed = access.change_password(&user, present, options.new_password, call.from());
    changed.await?;
    Ok(Reply::message(&ChangePasswordResp {}))
}
