//! The handle by which protocols ask who calls and what a caller may do.

use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;

use gesta_core::shares::{self, Holder};
use gesta_core::{Error, ErrorKind, EventStore};
use tokio_util::sync::{CancellationToken, DropGuard};
use tokio_util::task::TaskTracker;

use crate::accounts::Accounts;
use crate::audit::{By, DONE, Entry, Lines, Rank};
use crate::config::Config;
use crate::credentials::{self, Shown};
use crate::follow;
use crate::names::ADMINS;
use crate::password::{PASSWORD_BYTES_MAX, Password};
use crate::rights::Operation;
use crate::shared::{Caller, Shared, State, Who, next_request, unauthenticated};

type Result<T, E = Error> = std::result::Result<T, E>;

/// The accounts and rights of a store. A clone is another handle of the same accounts. When the last handle is dropped,
/// the accounts are no longer followed.
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
    /// Begins to follow the accounts in this store. Must be called in a tokio runtime.
    #[must_use]
    pub fn start(store: Arc<dyn EventStore>, config: Config) -> Self {
        let ending = CancellationToken::new();
        let shared = Arc::new(Shared::new(store, config));
        // Whoever reads everything again and again must not keep the accounts from being followed.
        let following = shares::act_as(Holder::Server, follow::run(Arc::clone(&shared)));
        let ended = ending.clone();
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

    /// Stops following the accounts; to be called before their store is closed. Decisions are still made for
    /// [`CONTACT_MAX`](crate::CONTACT_MAX) after the last news of the accounts.
    ///
    /// # Cancel safety
    /// If the future is dropped, following stops nevertheless.
    pub async fn stop(&self) {
        self.ending.cancel();
        self.tasks.wait().await;
    }

    /// Waits until the accounts are known.
    ///
    /// # Cancel safety
    /// Dropping the future changes nothing.
    pub async fn loaded(&self) {
        // The sender lives as long as this handle, so waiting cannot fail.
        let _ = self
            .shared
            .loaded
            .subscribe()
            .wait_for(|loaded| *loaded)
            .await;
    }

    /// Tells whether callers must prove who they are. This is true as long as it is not known.
    #[must_use]
    pub fn is_on(&self) -> bool {
        !matches!(self.shared.state(), Ok(State::Open))
    }

    /// Tells whether the store has any users.
    #[must_use]
    pub fn has_users(&self) -> bool {
        self.shared.directory().users().next().is_some()
    }

    /// Checks that decisions can be made; meant for probes.
    ///
    /// # Errors
    /// `Unavailable` if the accounts are not known yet, or were not followed for longer than
    /// [`CONTACT_MAX`](crate::CONTACT_MAX).
    pub fn ready(&self) -> Result<()> {
        self.shared.state().map(drop)
    }

    /// Returns the account streams that cannot be read, each with the reason. Their accounts are closed.
    #[must_use]
    pub fn damaged(&self) -> Vec<(String, String)> {
        let directory = self.shared.directory();
        let damaged = directory.damaged().iter();
        damaged
            .map(|(stream, why)| (stream.to_string(), why.clone()))
            .collect()
    }

    /// Returns how many lines of the audit log were left out since the process began, because their callers had more
    /// than a caller may have.
    #[must_use]
    pub fn audit_lines_left_out(&self) -> u64 {
        self.shared.audit.left_out()
    }

    /// Finds out who calls by the values of the `Authorization` headers of a call. While access is off, the headers are
    /// not looked at and the caller is anonymous; without headers the caller is anonymous too.
    ///
    /// # Errors
    /// `Unauthenticated` if the headers prove nothing; `Overloaded` if too many passwords are waiting to be compared;
    /// `Unavailable` under the conditions of [`Access::ready`].
    ///
    /// # Cancel safety
    /// Dropping the future changes nothing for other callers.
    pub async fn caller<'a>(
        &self,
        authorization: impl IntoIterator<Item = &'a [u8]>,
        from: IpAddr,
    ) -> Result<Caller> {
        let request = next_request();
        let caller = |who| Caller {
            who,
            from: Some(from),
            request,
        };
        if let State::Open = self.shared.state()? {
            return Ok(caller(Who::Anonymous));
        }
        let mut claimed = String::new();
        let who = match credentials::read(authorization) {
            Ok(Shown::Nothing) => Ok(Who::Anonymous),
            Ok(Shown::Token(secret)) => self.shared.token(&secret),
            // The future is boxed so that calls with tokens need not carry it along.
            Ok(Shown::Login { user, password }) => {
                claimed.clone_from(&user);
                Box::pin(self.shared.login(user, password, from)).await
            }
            Err(why) => Err(unauthenticated(why)),
        };
        let caller = who.map(caller);
        match &caller {
            Ok(caller) => self.shared.log_login(caller, from),
            Err(error) => self.log_unproved(&claimed, from, request, "prove who they are", error),
        }
        caller
    }

    /// Writes to the audit log that somebody has not proved to be the user that they claim to be.
    fn log_unproved(&self, claimed: &str, from: IpAddr, request: u64, verb: &str, error: &Error) {
        let by = By {
            who: claimed,
            user: None,
            from: Some(from),
            request,
        };
        self.shared.audit.refused(by, verb, "", &error.to_string());
    }

    /// Changes the password of a user, if the caller shows the present password.
    ///
    /// # Errors
    /// `Unauthenticated` if the user or the present password is wrong; `InvalidArgument` if the new password breaks a
    /// rule; `Forbidden` while there are no users; `Overloaded` and `Unavailable` under the conditions of
    /// [`Access::caller`]; the errors of the store.
    ///
    /// # Cancel safety
    /// If the future is dropped, the password may have been changed or not.
    pub async fn change_password(
        &self,
        user: &str,
        present: String,
        new: String,
        from: IpAddr,
    ) -> Result<()> {
        const VERB: &str = "change the password";
        let request = next_request();
        if present.len() > PASSWORD_BYTES_MAX {
            return Err(unauthenticated("user or password are wrong"));
        }
        let login = self.shared.login(user.to_owned(), Password(present), from);
        let who = login
            .await
            .inspect_err(|error| self.log_unproved(user, from, request, VERB, error))?;
        let Who::User { .. } = who else {
            return Err(Error::new(ErrorKind::Forbidden(
                "there are no users: only `gesta user` on the store itself makes the first".into(),
            )));
        };
        let accounts = Accounts::with_clock(
            Arc::clone(&self.shared.store),
            Arc::clone(&self.shared.config.clock),
        );
        let outcome = accounts.set_password(user, new).await;
        let told = outcome.as_ref().err().map(ToString::to_string);
        let entry = Entry {
            verb: VERB,
            what: "",
            detail: "",
            outcome: told.as_deref().unwrap_or(DONE),
        };
        let by = By {
            who: user,
            user: Some(user),
            from: Some(from),
            request,
        };
        let is_admin = self
            .shared
            .directory()
            .user(user)
            .is_some_and(|user| user.groups.iter().any(|group| &**group == ADMINS));
        let rank = match is_admin {
            true => Rank::FullAdministrator,
            false => Rank::Other,
        };
        let lines = match told {
            None => Lines::Done,
            Some(_) => Lines::Any,
        };
        self.shared.audit.administrative(by, rank, lines, entry);
        outcome
    }

    /// Checks that this caller may do this now.
    ///
    /// # Errors
    /// `Unauthenticated` if it must first be known who calls, or the account has ended; `Forbidden` if the caller may
    /// not do this; `Unavailable` if the accounts or the rights of the stream are not known.
    ///
    /// # Cancel safety
    /// Dropping the future changes nothing.
    pub async fn check(&self, caller: &Caller, operation: Operation<'_>) -> Result<()> {
        let outcome = self.shared.allows(caller, operation).await;
        outcome.inspect_err(|error| self.shared.log_refused(caller, operation, error))
    }

    /// Tells whether this caller may do this now, where an answer shows more to those who may. Nothing is refused by
    /// that, and nothing stands in the audit log.
    ///
    /// # Errors
    /// `Unavailable` if the accounts or the rights of the stream are not known.
    ///
    /// # Cancel safety
    /// Dropping the future changes nothing.
    pub async fn allows(&self, caller: &Caller, operation: Operation<'_>) -> Result<bool> {
        match self.shared.allows(caller, operation).await {
            Ok(()) => Ok(true),
            Err(error) => match error.kind() {
                ErrorKind::Forbidden(_) | ErrorKind::Unauthenticated(_) => Ok(false),
                _ => Err(error),
            },
        }
    }

    /// Returns the name of the user as whom the caller came; it is empty if the caller has proved nothing.
    #[must_use]
    pub fn user_of(&self, caller: &Caller) -> String {
        let user = self.shared.user_of(caller);
        user.map_or_else(String::new, |user| user.to_string())
    }

    /// Writes to the audit log what this caller has done, or was to do, with its outcome: administrative operations and
    /// changes always, others if the log takes them. While access is off nothing is written. The line names the stream
    /// of the operation and `subject`, if that is not empty: the group, or what was asked for.
    pub fn done<T, E: fmt::Display>(
        &self,
        caller: &Caller,
        operation: Operation<'_>,
        subject: &str,
        outcome: &Result<T, E>,
    ) {
        let detail = operation.stream().map_or("", |_| subject);
        self.done_in_detail(caller, operation, subject, detail, outcome);
    }

    /// As [`Access::done`], with what the names alone do not tell.
    pub(crate) fn done_in_detail<T, E: fmt::Display>(
        &self,
        caller: &Caller,
        operation: Operation<'_>,
        subject: &str,
        detail: &str,
        outcome: &Result<T, E>,
    ) {
        let failed = outcome
            .as_ref()
            .err()
            .map(|error| error as &dyn fmt::Display);
        let shared = &self.shared;
        shared.log_done(caller, operation, subject, detail, failed);
    }
}
