//! The handle that protocols ask: who calls, and what may they do.

use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;

use gesta_core::{Error, ErrorKind, EventStore, Result};
use tokio_util::sync::{CancellationToken, DropGuard};
use tokio_util::task::TaskTracker;

use crate::accounts::Accounts;
use crate::config::Config;
use crate::credentials::{self, Shown};
use crate::follow;
use crate::password::{PASSWORD_BYTES_MAX, Password};
use crate::rights::Operation;
use crate::shared::{Caller, Shared, State, Who, unauthenticated};

/// Accounts and rights of a store. A clone is another handle of the same; when the last one is dropped, they are no
/// longer followed.
#[derive(Clone)]
pub struct Access {
    pub(crate) shared: Arc<Shared>,
    ending: CancellationToken,
    tasks: TaskTracker,
    _ends: Arc<DropGuard>,
}

impl fmt::Debug for Access {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Access")
    }
}

impl Access {
    /// Follows the accounts in this store. Must be called in a tokio runtime.
    #[must_use]
    pub fn start(store: Arc<dyn EventStore>, config: Config) -> Self {
        let ending = CancellationToken::new();
        let shared = Arc::new(Shared::new(store, config));
        let (following, ended) = (follow::run(Arc::clone(&shared)), ending.clone());
        let tasks = TaskTracker::new();
        tasks.spawn(async move { ended.run_until_cancelled(following).await });
        tasks.close();
        Self {
            shared,
            tasks,
            ending: ending.clone(),
            _ends: Arc::new(ending.drop_guard()),
        }
    }

    /// Follows the accounts no longer, before their store is closed. Rights hold for [`CONTACT_MAX`] after that.
    ///
    /// # Cancel safety
    /// Dropping the future leaves it stopping.
    pub async fn stop(&self) {
        self.ending.cancel();
        self.tasks.wait().await;
    }

    /// Waits until the accounts are known.
    ///
    /// # Cancel safety
    /// Safe.
    pub async fn loaded(&self) {
        // The sender lives as long as this handle.
        let _ = self
            .shared
            .loaded
            .subscribe()
            .wait_for(|loaded| *loaded)
            .await;
    }

    /// Whether callers must prove who they are; true as long as that is not known.
    #[must_use]
    pub fn is_on(&self) -> bool {
        !matches!(self.shared.state(), Ok(State::Open))
    }

    /// Whether there is anybody who could say who they are.
    #[must_use]
    pub fn has_users(&self) -> bool {
        self.shared.directory().users().next().is_some()
    }

    /// Whether decisions can be made, for probes.
    ///
    /// # Errors
    /// `Unavailable` if the accounts are not known, or not followed for [`CONTACT_MAX`].
    pub fn ready(&self) -> Result<()> {
        self.shared.state().map(drop)
    }

    /// Streams of accounts that cannot be read, and why: their accounts are closed.
    #[must_use]
    pub fn damaged(&self) -> Vec<(String, String)> {
        let directory = self.shared.directory();
        let damaged = directory.damaged().iter();
        damaged
            .map(|(stream, why)| (stream.to_string(), why.clone()))
            .collect()
    }

    /// Who shows these `Authorization` headers. While nobody has to prove anything, they are not looked at.
    ///
    /// # Errors
    /// `Unauthenticated` if they prove nothing; `Overloaded` if too many passwords are being compared; `Unavailable` as
    /// [`Access::ready`].
    ///
    /// # Cancel safety
    /// Safe.
    pub async fn caller<'a>(
        &self,
        authorization: impl IntoIterator<Item = &'a [u8]>,
        from: IpAddr,
    ) -> Result<Caller> {
        let caller = |who| Caller {
            who,
            from: Some(from),
        };
        if let State::Open = self.shared.state()? {
            return Ok(caller(Who::Anonymous));
        }
        let mut claimed = String::new();
        let who = match credentials::read(authorization) {
            Ok(Shown::Nothing) => Ok(Who::Anonymous),
            Ok(Shown::Token(secret)) => self.shared.token(&secret),
            // Boxed: calls with tokens need not carry it along.
            Ok(Shown::Login { user, password }) => {
                claimed.clone_from(&user);
                Box::pin(self.shared.login(user, password, from)).await
            }
            Err(why) => Err(unauthenticated(why)),
        };
        who.map(caller).inspect_err(|error| {
            let (audit, why) = (&self.shared.audit, error.to_string());
            audit.refused(&claimed, Some(from), "prove who they are", "", &why);
        })
    }

    /// Changes the password of a user, for whoever shows the present one.
    ///
    /// # Errors
    /// `Unauthenticated` if user or password are wrong; `InvalidArgument` if the new one breaks a rule; `Forbidden` while
    /// there are no users; `Overloaded` and `Unavailable` as [`Access::caller`]; those of the store.
    ///
    /// # Cancel safety
    /// Dropping the future may leave the password changed or not.
    pub async fn change_password(
        &self,
        user: &str,
        present: String,
        new: String,
        from: IpAddr,
    ) -> Result<()> {
        if present.len() > PASSWORD_BYTES_MAX {
            return Err(unauthenticated("user or password are wrong"));
        }
        let login = self.shared.login(user.to_owned(), Password(present), from);
        let who = login.await.inspect_err(|error| {
            let (audit, why) = (&self.shared.audit, error.to_string());
            audit.refused(user, Some(from), "change the password", "", &why);
        })?;
        let Who::User { .. } = who else {
            return Err(Error::new(ErrorKind::Forbidden(
                "there are no users: only `gesta user` on the store itself makes the first".into(),
            )));
        };
        let accounts = Accounts::with_clock(
            Arc::clone(&self.shared.store),
            Arc::clone(&self.shared.config.clock),
        );
        accounts.set_password(user, new).await?;
        let audit = &self.shared.audit;
        audit.done(user, Some(from), "change the password", "");
        Ok(())
    }

    /// Whether this caller may do this now.
    ///
    /// # Errors
    /// `Unauthenticated` if it must first be known who calls, or the account has ended; `Forbidden`; `Unavailable`.
    ///
    /// # Cancel safety
    /// Safe.
    pub async fn check(&self, caller: &Caller, operation: Operation<'_>) -> Result<()> {
        let outcome = self.shared.allows(caller, operation).await;
        outcome.inspect_err(|error| self.shared.log_refused(caller, operation, error))
    }

    /// Tells the log that this caller does this, if only administrators would.
    pub fn done(&self, caller: &Caller, operation: Operation<'_>) {
        self.shared.log_done(caller, operation);
    }
}
