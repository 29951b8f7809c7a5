//! The handle that protocols ask: who calls, and what may they do.

use std::fmt;
use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard};
use std::time::Duration;

use gesta_core::{Clock, Error, ErrorKind, EventStore, RecordedEvent, Result, SystemClock};
use quick_cache::sync::Cache;
use sha2::{Digest, Sha256};
use tokio::sync::{Notify, watch};
use tokio_util::sync::{CancellationToken, DropGuard};
use tokio_util::task::TaskTracker;
use uuid::Uuid;

use crate::acl::Right;
use crate::acls::Acls;
use crate::audit::Audit;
use crate::credentials::{self, Shown};
use crate::directory::{CONTACT_MAX, Directory};
use crate::follow;
use crate::guard::Guarded;
use crate::lane::{Full, Key, Lane};
use crate::names::{self, Kind};
use crate::password::{Hashed, Password};
use crate::rights::{self, Operation, Standing, Verdict};
use crate::token::{Scopes, Secret};

/// Passwords that were found right and need not be compared again.
const VERIFIED_MAX: usize = 10_000;

/// When callers must prove who they are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Mode {
    /// As soon as there has ever been a user in the store.
    #[default]
    Auto,
    /// Always: without users nobody may do anything.
    On,
}

/// How an [`Access`] works.
#[derive(Clone)]
pub struct Config {
    /// When callers must prove who they are.
    pub mode: Mode,
    /// By which tokens expire.
    pub clock: Arc<dyn Clock>,
    /// The time since some moment, which counts suspension; for how old the news are.
    pub uptime: fn() -> Duration,
    /// Passwords that are compared at once; each takes 19 MiB and a processor for some 20 ms.
    pub comparisons_max: usize,
}

impl Default for Config {
    fn default() -> Self {
        let processors = std::thread::available_parallelism().map_or(1, usize::from);
        Self {
            mode: Mode::Auto,
            clock: Arc::new(SystemClock),
            uptime: gesta_core::uptime,
            comparisons_max: (processors / 2).clamp(1, 4),
        }
    }
}

impl fmt::Debug for Config {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Config")
            .field("mode", &self.mode)
            .finish_non_exhaustive()
    }
}

/// Who calls. Says nothing of rights: these are looked up for each call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Caller {
    who: Who,
    from: Option<IpAddr>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Who {
    Anonymous,
    User { name: Arc<str>, id: Uuid },
    Token(Uuid),
}

impl Caller {
    /// A caller who has shown nothing.
    #[must_use]
    pub fn anonymous(from: Option<IpAddr>) -> Self {
        Self {
            who: Who::Anonymous,
            from,
        }
    }
}

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

pub(crate) struct Shared {
    pub(crate) store: Arc<dyn EventStore>,
    pub(crate) config: Config,
    pub(crate) directory: RwLock<Directory>,
    pub(crate) acls: Acls,
    is_loaded: AtomicBool,
    /// When the news were last complete, in microseconds of uptime.
    contact_micros: AtomicU64,
    /// Told when running subscriptions have to look at their rights again.
    pub(crate) changed: Notify,
    pub(crate) changes: watch::Sender<u64>,
    /// Tells whether the accounts are loaded.
    loaded: watch::Sender<bool>,
    lane: Arc<Lane>,
    verified: Cache<Key, ()>,
    key: [u8; 32],
    nobody: Hashed,
    audit: Audit,
}

/// What the accounts say at this moment.
pub(crate) enum State<'a> {
    /// Nobody has to prove anything.
    Open,
    On(RwLockReadGuard<'a, Directory>),
}

impl Access {
    /// Follows the accounts in this store. Must be called in a tokio runtime.
    #[must_use]
    pub fn start(store: Arc<dyn EventStore>, config: Config) -> Self {
        let ending = CancellationToken::new();
        let shared = Arc::new(Shared {
            store,
            directory: RwLock::default(),
            acls: Acls::default(),
            is_loaded: AtomicBool::new(false),
            contact_micros: AtomicU64::new(0),
            changed: Notify::new(),
            changes: watch::Sender::new(0),
            loaded: watch::Sender::new(false),
            lane: Lane::new(config.comparisons_max),
            verified: Cache::new(VERIFIED_MAX),
            key: rand::random(),
            nobody: Hashed::of_nobody(),
            audit: Audit::default(),
            config,
        });
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
        let who = match credentials::read(authorization) {
            Ok(Shown::Nothing) => Ok(Who::Anonymous),
            Ok(Shown::Token(secret)) => self.shared.token(&secret),
            // Boxed: calls with tokens need not carry it along.
            Ok(Shown::Login { user, password }) => {
                Box::pin(self.shared.login(user, password, from)).await
            }
            Err(why) => Err(unauthenticated(why)),
        };
        who.map(caller).inspect_err(|error| {
            self.shared
                .audit
                .refused("", Some(from), "prove who they are", "", &error.to_string());
        })
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

    /// The store as this caller may use it.
    #[must_use]
    pub fn guard(&self, store: Arc<dyn EventStore>, caller: Caller) -> Guarded {
        Guarded::new(self.clone(), store, caller)
    }
}

fn unauthenticated(why: &str) -> Error {
    Error::new(ErrorKind::Unauthenticated(why.into()))
}

impl Shared {
    pub(crate) fn directory(&self) -> RwLockReadGuard<'_, Directory> {
        self.directory
            .read()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// The accounts, if they may be relied on.
    pub(crate) fn state(&self) -> Result<State<'_>> {
        if !self.is_loaded.load(Ordering::Acquire) {
            return Err(Error::unavailable("the accounts are not loaded yet"));
        }
        let directory = self.directory();
        if self.config.mode == Mode::Auto && !directory.is_on() {
            return Ok(State::Open);
        }
        let contact = Duration::from_micros(self.contact_micros.load(Ordering::Acquire));
        let silent = (self.config.uptime)().saturating_sub(contact);
        if silent > CONTACT_MAX {
            let seconds = silent.as_secs();
            return Err(Error::unavailable(format!(
                "changes of the accounts could not be read for {seconds} s: rights may have been taken away"
            )));
        }
        Ok(State::On(directory))
    }

    /// The news were complete at this moment.
    pub(crate) fn in_contact(&self, at: Duration) {
        let micros = u64::try_from(at.as_micros()).unwrap_or(u64::MAX);
        self.contact_micros.store(micros, Ordering::Release);
    }

    pub(crate) fn set_loaded(&self, is_loaded: bool) {
        self.is_loaded.store(is_loaded, Ordering::Release);
        self.loaded.send_replace(is_loaded);
    }

    fn token(&self, secret: &Secret) -> Result<Who> {
        // Hashed first, so that an unknown id takes as long.
        let hash = secret.hash();
        let wrong = || unauthenticated("the token is not known, has expired or was revoked");
        let State::On(directory) = self.state()? else {
            return Ok(Who::Anonymous);
        };
        let token = directory.token(secret.id).ok_or_else(wrong)?;
        if !token.hash.is(&hash) || token.is_over(self.config.clock.now()) {
            return Err(wrong());
        }
        Ok(Who::Token(secret.id))
    }

    async fn login(&self, name: String, password: Password, from: IpAddr) -> Result<Who> {
        let wrong = || unauthenticated("user or password are wrong");
        let (hash, id) = match self.state()? {
            State::Open => return Ok(Who::Anonymous),
            State::On(directory) => match directory.user(&name) {
                Some(user) => (
                    user.password.clone(),
                    (!user.is_disabled).then_some(user.id),
                ),
                None => (self.nobody.clone(), None),
            },
        };
        let key = self.key_of(&name, &password, &hash);
        let is_right = match self.verified.get(&key) {
            Some(()) => true,
            None => {
                let compared = self.lane.compare(from, key, password, hash).await;
                compared.map_err(|Full| {
                    Error::new(ErrorKind::Overloaded(
                        "too many passwords are being compared: try again, or use a token".into(),
                    ))
                })?
            }
        };
        match id.filter(|_| is_right) {
            Some(id) => {
                self.verified.insert(key, ());
                Ok(Who::User {
                    name: name.into(),
                    id,
                })
            }
            None => Err(wrong()),
        }
    }

    /// Stands for a user, a password and the hash that it was compared with; tells nobody outside this process which.
    fn key_of(&self, name: &str, password: &Password, hash: &Hashed) -> Key {
        let mut key = Sha256::new_with_prefix(self.key);
        for part in [name, &password.0, hash.text()] {
            key.update(u64::try_from(part.len()).unwrap_or(u64::MAX).to_be_bytes());
            key.update(part);
        }
        key.finalize().into()
    }

    /// Who calls, as the accounts know them now.
    fn standing<'a>(&self, directory: &'a Directory, caller: &'a Caller) -> Result<Standing<'a>> {
        let over = || unauthenticated("the account of the caller has ended");
        let (name, id, scopes, prefixes) = match &caller.who {
            Who::Anonymous => {
                return Err(unauthenticated(
                    "a user and a password, or a token, must be given",
                ));
            }
            Who::User { name, id } => (&**name, *id, Scopes::ALL, &[][..]),
            Who::Token(id) => {
                let token = directory.token(*id).ok_or_else(over)?;
                if token.is_over(self.config.clock.now()) {
                    return Err(over());
                }
                (&*token.user, token.user_id, token.scopes, &*token.prefixes)
            }
        };
        let user = directory
            .user(name)
            .filter(|user| user.id == id && !user.is_disabled);
        let user = user.ok_or_else(over)?;
        Ok(Standing {
            user: name,
            groups: &user.groups,
            scopes,
            prefixes,
        })
    }

    /// As [`Access::check`], without a line in the log.
    pub(crate) async fn allows(&self, caller: &Caller, operation: Operation<'_>) -> Result<()> {
        let verdict = match self.decide(caller, operation, None)? {
            Verdict::AsksRights => self.check_rights(caller, operation).await?,
            verdict => verdict,
        };
        match verdict {
            Verdict::Yes => Ok(()),
            _ => Err(self.forbidden(caller, operation)),
        }
    }

    /// Decides with what is in memory; `rights` are those of the stream if they were read for this call.
    fn decide(
        &self,
        caller: &Caller,
        operation: Operation<'_>,
        rights: Option<&Arc<rights::StreamRights>>,
    ) -> Result<Verdict> {
        let directory = match self.state()? {
            State::Open => {
                let subject = operation.subject();
                let is_account = subject.is_some_and(|subject| subject.kind == Kind::Account);
                return Ok(if is_account {
                    Verdict::No
                } else {
                    Verdict::Yes
                });
            }
            State::On(directory) => directory,
        };
        let standing = self.standing(&directory, caller)?;
        let verdict = rights::decide(standing, operation, directory.defaults(), rights);
        match (verdict, operation.subject(), rights) {
            (Verdict::AsksRights, Some(subject), None) => match self.acls.get(subject.name) {
                Some(rights) => Ok(rights::decide(
                    standing,
                    operation,
                    directory.defaults(),
                    Some(&rights),
                )),
                None => Ok(Verdict::AsksRights),
            },
            _ => Ok(verdict),
        }
    }

    async fn check_rights(&self, caller: &Caller, operation: Operation<'_>) -> Result<Verdict> {
        let Some(subject) = operation.subject() else {
            return Ok(Verdict::No);
        };
        let rights = self.acls.load(&*self.store, subject.name).await?;
        self.decide(caller, operation, Some(&rights))
    }

    /// Whether the caller may see an event among all events.
    ///
    /// # Errors
    /// As [`Access::check`], if the caller may see nothing any more.
    pub(crate) async fn shows(&self, caller: &Caller, event: &RecordedEvent) -> Result<bool> {
        if let Some(shows) = self.shows_now(caller, event, None)? {
            return Ok(shows);
        }
        let Some(subject) = Operation::Read(&event.stream).subject() else {
            return Ok(false);
        };
        let rights = self.acls.load(&*self.store, subject.name).await?;
        Ok(self
            .shows_now(caller, event, Some(&rights))?
            .unwrap_or(false))
    }

    /// The same with what is in memory; `None` if the rights of the stream have to be read.
    pub(crate) fn shows_now(
        &self,
        caller: &Caller,
        event: &RecordedEvent,
        rights: Option<&Arc<rights::StreamRights>>,
    ) -> Result<Option<bool>> {
        let directory = match self.state()? {
            State::Open => return Ok(Some(names::kind(event.stream.as_str()) != Kind::Account)),
            State::On(directory) => directory,
        };
        let standing = self.standing(&directory, caller)?;
        let operation = Operation::Read(&event.stream);
        let Some(subject) = operation.subject() else {
            return Ok(Some(false));
        };
        let verdict = rights::decide(standing, operation, directory.defaults(), rights);
        if verdict != Verdict::AsksRights && rights.is_none() {
            return Ok(Some(verdict == Verdict::Yes));
        }
        let found = match rights {
            Some(rights) => Arc::clone(rights),
            None => match self.acls.get(subject.name) {
                Some(rights) => rights,
                None => return Ok(None),
            },
        };
        let verdict = rights::decide(standing, operation, directory.defaults(), Some(&found));
        Ok(Some(
            verdict == Verdict::Yes && rights::shows(standing, event, &found),
        ))
    }

    fn forbidden(&self, caller: &Caller, operation: Operation<'_>) -> Error {
        let is_open = matches!(self.state(), Ok(State::Open));
        let what = match operation.stream() {
            Some(stream) => format!("stream {:?}", stream.as_str()),
            None => "the store".to_owned(),
        };
        let why = match (&caller.who, is_open) {
            (_, true) => {
                "it holds accounts, which only `gesta user` on the store itself makes while there are none"
            }
            (Who::Token(_), _) => {
                "neither the scopes and prefixes of the token nor the rights of its user allow it, or one of them does not"
            }
            _ => "the rights of the user do not allow it",
        };
        Error::new(ErrorKind::Forbidden(format!(
            "the caller may not {} {what}: {why}",
            operation.verb()
        )))
    }

    fn log_done(&self, caller: &Caller, operation: Operation<'_>) {
        let subject = operation.subject();
        let is_account = subject.is_some_and(|subject| subject.kind == Kind::Account);
        let is_change = !matches!(operation, Operation::Read(_) | Operation::ReadMetadata(_));
        let is_administrative = (is_account && is_change)
            || matches!(
                operation,
                Operation::Delete(_) | Operation::WriteMetadata(_) | Operation::Manage
            )
            || subject.is_some_and(|subject| subject.right == Right::WriteMetadata);
        if is_administrative && !matches!(self.state(), Ok(State::Open)) {
            let what = operation.stream().map_or("", |stream| stream.as_str());
            let who = self.name_of(caller);
            self.audit.done(&who, caller.from, operation.verb(), what);
        }
    }

    fn log_refused(&self, caller: &Caller, operation: Operation<'_>, error: &Error) {
        if matches!(
            error.kind(),
            ErrorKind::Unauthenticated(_) | ErrorKind::Forbidden(_)
        ) {
            let what = operation.stream().map_or("", |stream| stream.as_str());
            let (who, why) = (self.name_of(caller), error.to_string());
            self.audit
                .refused(&who, caller.from, operation.verb(), what, &why);
        }
    }

    /// Who calls, for the log.
    fn name_of(&self, caller: &Caller) -> String {
        match &caller.who {
            Who::Anonymous => "anonymous".into(),
            Who::User { name, .. } => name.to_string(),
            Who::Token(id) => {
                let directory = self.directory();
                let user = directory
                    .token(*id)
                    .map(|token| token.user.clone())
                    .unwrap_or_default();
                format!("{user} (token {})", id.simple())
            }
        }
    }
}
