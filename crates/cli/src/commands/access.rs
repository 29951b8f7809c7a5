//! Follows the accounts of a server, and makes its first administrator.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use gesta_access::{Access, Accounts, Mode};
use gesta_core::EventStore;

use super::client;
use crate::args::AccessMode;
use crate::config::Config;
use crate::exit::Outcome;

/// How long the start waits for the accounts. Until they are known, calls are refused.
const LOAD_MAX: Duration = Duration::from_secs(10);
/// The variables for the password of the first administrator, and for the file that holds it.
const ADMIN_PASSWORD: &str = "GESTA_ADMIN_PASSWORD";
const ADMIN_PASSWORD_FILE: &str = "GESTA_ADMIN_PASSWORD_FILE";

/// Tells whether callers must say who they are even while there are no users.
pub(super) fn is_required(config: &Config, listen: SocketAddr) -> bool {
    match config.access {
        AccessMode::On => true,
        AccessMode::Off => false,
        AccessMode::Auto => !listen.ip().is_loopback() && !config.insecure,
    }
}

/// Returns what is wrong with the password of the first administrator. With it no store is made: the next start would
/// open one without an administrator to everybody. A store that is there may have users, who need no first one.
pub(super) fn wrong_admin_password(config: &Config) -> Outcome<Option<String>> {
    if config.access == AccessMode::Off {
        return Ok(None);
    }
    let checked = admin_password()?.map(|password| gesta_access::check_password(&password));
    let wrong = checked.and_then(Result::err);
    Ok(wrong.map(|error| {
        format!("{ADMIN_PASSWORD} or {ADMIN_PASSWORD_FILE}: {error}: no store was made")
    }))
}

/// Makes the first administrator if the environment has a password, and begins to follow the accounts. Returns `None`
/// if access is off.
pub(super) async fn start(
    config: &Config,
    listen: SocketAddr,
    store: &Arc<dyn EventStore>,
) -> Outcome<Option<Access>> {
    if config.access == AccessMode::Off {
        tracing::warn!(%listen, "access is off: everybody who reaches this address can read, write and delete");
        return Ok(None);
    }
    if let Some(password) = admin_password()? {
        let made = Accounts::of(Arc::clone(store))
            .first_admin(password)
            .await?;
        if made {
            tracing::info!(user = "admin", "created the first administrator");
        }
    }
    let mode = match is_required(config, listen) {
        true => Mode::On,
        false => Mode::Auto,
    };
    let access = Access::start(Arc::clone(store), config.server.access(mode));
    if tokio::time::timeout(LOAD_MAX, access.loaded())
        .await
        .is_err()
    {
        tracing::warn!("the accounts are not known yet: calls are refused until they are");
        return Ok(Some(access));
    }
    let has_users = access.has_users();
    if !access.is_on() && config.insecure {
        tracing::warn!(
            %listen,
            "insecure: everybody who reaches this address can read, write and delete: there are no users, so there is no authentication"
        );
    } else if access.is_on() && !has_users {
        tracing::warn!(
            "there are no users, so nobody may do anything: start this server with GESTA_ADMIN_PASSWORD, or stop it and \
             run `gesta user add NAME --admin` (a store on PostgreSQL takes that while servers run)"
        );
    } else if access.is_on() {
        tracing::info!("callers must say who they are");
    }
    if has_users {
        list_users(Arc::clone(store));
    }
    Ok(Some(access))
}

/// Lists the users in `$users` that an older version has made, without keeping the start waiting.
fn list_users(store: Arc<dyn EventStore>) {
    tokio::spawn(async move {
        if let Err(error) = Accounts::of(store).list_users().await {
            tracing::debug!(%error, "users are not listed in $users");
        }
    });
}

fn admin_password() -> Outcome<Option<String>> {
    if let Ok(password) = std::env::var(ADMIN_PASSWORD) {
        return Ok(Some(password));
    }
    let path = std::env::var_os(ADMIN_PASSWORD_FILE);
    path.map(|path| client::secret(path.as_ref())).transpose()
}
