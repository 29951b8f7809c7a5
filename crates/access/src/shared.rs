//! What all handles of the accounts share, and how it is decided at this moment what a caller may do.
//!
//! Invariants: nothing is decided without [`Shared::state`], which refuses while the accounts are not known or the news
//! of them is too old; a caller is looked up anew for each decision. Not here: the rules of rights (`rights`).

use std::fmt;
use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, PoisonError, RwLock, RwLockReadGuard};
use std::time::Duration;

use gesta_core::{Error, ErrorKind, EventStore, RecordedEvent, Result};
use tokio::sync::{Notify, watch};
use uuid::Uuid;

use crate::acl::Right;
use crate::acls::{Acls, RightsRead};
use crate::audit::{Audit, By, DONE, Entry, Lines, Rank};
use crate::config::{Config, Mode};
use crate::directory::{CONTACT_MAX, Directory};
use crate::logins::Logins;
use crate::names::{self, Kind};
use crate::password::Password;
use crate::rights::{self, Operation, RightsVerdict, Standing};
use crate::token::{Scopes, Secret};
use crate::usage::{Limits, Usage, Usages};

/// Who calls. This says nothing about rights, which are looked up for each call.
#[derive(Debug, Clone)]
pub struct Caller {
    pub(crate) who: Who,
    pub(crate) from: Option<IpAddr>,
    /// Number of the call, the same in all its lines of the audit log.
    pub(crate) request: u64,
}

/// Callers are equal if they are the same, whatever their calls are.
impl PartialEq for Caller {
    fn eq(&self, other: &Self) -> bool {
        self.who == other.who && self.from == other.from
    }
}

impl Eq for Caller {}

/// Returns a number for a call, which no other call of this process has. Calls of other processes seldom have it.
pub(crate) fn next_request() -> u64 {
    static NEXT: OnceLock<AtomicU64> = OnceLock::new();
    // The high bits tell processes apart, and 16 of them are left for the calls of a process that runs for very long.
    let begin = || AtomicU64::new(u64::from(rand::random::<u16>()) << 40);
    NEXT.get_or_init(begin).fetch_add(1, Ordering::Relaxed)
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Who {
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
            request: next_request(),
        }
    }
}

/// What all calls share.
pub(crate) struct Shared {
    pub(crate) store: Arc<dyn EventStore>,
    pub(crate) config: Config,
    pub(crate) directory: RwLock<Directory>,
    pub(crate) acls: Acls,
    is_loaded: AtomicBool,
    /// The moment at which the news was last complete, in microseconds of uptime.
    contact_micros: AtomicU64,
    /// Is notified when running subscriptions must check their rights again.
    pub(crate) changed: Notify,
    pub(crate) changes: watch::Sender<u64>,
    /// Tells whether the accounts are loaded.
    pub(crate) loaded: watch::Sender<bool>,
    pub(crate) logins: Logins,
    pub(crate) audit: Audit,
    pub(crate) usages: Usages,
}

/// What the accounts say at this moment.
pub(crate) enum State<'a> {
    /// Nobody has to prove anything.
    Open,
    On(RwLockReadGuard<'a, Directory>),
}

pub(crate) fn unauthenticated(why: &str) -> Error {
    Error::new(ErrorKind::Unauthenticated(why.into()))
}

impl Shared {
    pub(crate) fn new(store: Arc<dyn EventStore>, config: Config) -> Self {
        Self {
            store,
            directory: RwLock::default(),
            acls: Acls::default(),
            is_loaded: AtomicBool::new(false),
            contact_micros: AtomicU64::new(0),
            changed: Notify::new(),
            changes: watch::Sender::new(0),
            loaded: watch::Sender::new(false),
            logins: Logins::new(config.comparisons_max),
            audit: Audit::default(),
            usages: Usages::new(Limits {
                calls_max: config.user_calls_max,
                bytes_per_second: config.user_bytes_per_second,
            }),
            config,
        }
    }

    pub(crate) fn directory(&self) -> RwLockReadGuard<'_, Directory> {
        self.directory
            .read()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the accounts, if they may be relied on.
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

    /// Notes that the news was complete at this moment of uptime.
    pub(crate) fn in_contact(&self, at: Duration) {
        let micros = u64::try_from(at.as_micros()).unwrap_or(u64::MAX);
        self.contact_micros.store(micros, Ordering::Release);
    }

    pub(crate) fn set_loaded(&self, is_loaded: bool) {
        self.is_loaded.store(is_loaded, Ordering::Release);
        self.loaded.send_replace(is_loaded);
    }

    pub(crate) fn token(&self, secret: &Secret) -> Result<Who> {
        // The secret is hashed first, so that an unknown id takes as long.
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

    pub(crate) async fn login(
        &self,
        name: String,
        password: Password,
        from: IpAddr,
    ) -> Result<Who> {
        let wrong = || unauthenticated("user or password are wrong");
        let (hash, id) = match self.state()? {
            State::Open => return Ok(Who::Anonymous),
            State::On(directory) => match directory.user(&name) {
                Some(user) => (
                    user.password.clone(),
                    (!user.is_disabled).then_some(user.id),
                ),
                None => (self.logins.nobody(), None),
            },
        };
        let is_right = self.logins.is_right(&name, password, hash, from).await?;
        let id = id.filter(|_| is_right).ok_or_else(wrong)?;
        Ok(Who::User {
            name: name.into(),
            id,
        })
    }

    /// Returns who calls, as the accounts know the caller now.
    pub(crate) fn standing<'a>(
        &self,
        directory: &'a Directory,
        caller: &'a Caller,
    ) -> Result<Standing<'a>> {
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

    /// Decides like [`Access::check`], but writes no line to the log.
    pub(crate) async fn allows(&self, caller: &Caller, operation: Operation<'_>) -> Result<()> {
        let mut read = RightsRead::default();
        loop {
            match self.decide(caller, operation, &read)? {
                RightsVerdict::Yes => return Ok(()),
                RightsVerdict::No => return Err(self.forbidden(caller, operation)),
                RightsVerdict::AsksRights(name) => {
                    read.load(&self.acls, &*self.store, name).await?
                }
            }
        }
    }

    /// Decides with what is in memory, and with what was read for this call.
    pub(crate) fn decide<'a>(
        &self,
        caller: &Caller,
        operation: Operation<'a>,
        read: &RightsRead,
    ) -> Result<RightsVerdict<'a>> {
        let directory = match self.state()? {
            State::Open => {
                let subject = operation.subject();
                let is_account = subject.is_some_and(|subject| subject.kind == Kind::Account);
                return Ok(if is_account {
                    RightsVerdict::No
                } else {
                    RightsVerdict::Yes
                });
            }
            State::On(directory) => directory,
        };
        let standing = self.standing(&directory, caller)?;
        Ok(rights::decide(
            standing,
            operation,
            directory.defaults(),
            |name| read.of(&self.acls, name),
        ))
    }

    /// Tells whether the caller may see an event among all events.
    ///
    /// # Errors
    /// Those of [`Access::check`], if the caller may not see anything any more.
    pub(crate) async fn shows(&self, caller: &Caller, event: &RecordedEvent) -> Result<bool> {
        let mut read = RightsRead::default();
        loop {
            match self.shows_with(caller, event, &read)? {
                RightsVerdict::Yes => return Ok(true),
                RightsVerdict::No => return Ok(false),
                RightsVerdict::AsksRights(name) => {
                    read.load(&self.acls, &*self.store, name).await?
                }
            }
        }
    }

    /// Tells whether the caller may see an event, with what is in memory; `None` if rights must be read first.
    pub(crate) fn shows_now(&self, caller: &Caller, event: &RecordedEvent) -> Result<Option<bool>> {
        let verdict = self.shows_with(caller, event, &RightsRead::default())?;
        Ok(match verdict {
            RightsVerdict::Yes => Some(true),
            RightsVerdict::No => Some(false),
            RightsVerdict::AsksRights(_) => None,
        })
    }

    fn shows_with<'a>(
        &self,
        caller: &Caller,
        event: &'a RecordedEvent,
        read: &RightsRead,
    ) -> Result<RightsVerdict<'a>> {
        let directory = match self.state()? {
            State::Open => return Ok((names::kind(event.stream.as_str()) != Kind::Account).into()),
            State::On(directory) => directory,
        };
        let standing = self.standing(&directory, caller)?;
        let operation = Operation::Read(&event.stream);
        let Some(subject) = operation.subject() else {
            return Ok(RightsVerdict::No);
        };
        let rights_of = |name: &str| read.of(&self.acls, name);
        let verdict = rights::decide(standing, operation, directory.defaults(), rights_of);
        if verdict != RightsVerdict::Yes || standing.is_admin() {
            return Ok(verdict);
        }
        Ok(match rights_of(subject.name) {
            Some(rights) => rights::shows(standing, event, &rights).into(),
            None => RightsVerdict::AsksRights(subject.name),
        })
    }

    /// Tells whether the caller may see every event there is. While nobody has to prove anything, everybody may:
    /// account streams, which nobody sees then, hold no accounts.
    ///
    /// # Errors
    /// Those of [`Access::check`], if the caller may not see anything any more.
    pub(crate) fn sees_all(&self, caller: &Caller) -> Result<bool> {
        match self.state()? {
            State::Open => Ok(true),
            State::On(directory) => Ok(self.standing(&directory, caller)?.sees_all()),
        }
    }

    /// Returns how the names of all streams begin that the caller may see. If the list is empty, no prefix tells this.
    pub(crate) fn prefixes(&self, caller: &Caller) -> Vec<Box<str>> {
        let Who::Token(id) = &caller.who else {
            return Vec::new();
        };
        let directory = self.directory();
        let token = directory.token(*id);
        token.map_or_else(Vec::new, |token| token.prefixes.to_vec())
    }

    pub(crate) fn forbidden(&self, caller: &Caller, operation: Operation<'_>) -> Error {
        let is_open = matches!(self.state(), Ok(State::Open));
        let what = match operation.stream() {
            Some(stream) => format!("stream {:?}", stream.as_str()),
            None => "the store".to_owned(),
        };
        let why = match (&caller.who, is_open) {
            (_, true) => {
                "there are no accounts yet, and the first one is made on the store itself, not through a server: \
                 `gesta user add NAME --admin --store sqlite:PATH` (while no server has it open) or `… --store \
                 postgres://…`"
                    .to_owned()
            }
            (Who::Token(_), _) => {
                let directory = self.directory();
                let standing = self.standing(&directory, caller);
                standing.map_or_else(
                    |over| over.to_string(),
                    |standing| rights::why_a_token_may_not(standing, operation),
                )
            }
            _ => "the rights of the user do not allow it".to_owned(),
        };
        Error::new(ErrorKind::Forbidden(format!(
            "the caller may not {} {what}: {why}",
            operation.verb()
        )))
    }

    /// Tells whether the audit log has a line for an operation that is done.
    pub(crate) fn tells(&self, operation: Operation<'_>) -> bool {
        let is_told = weight(operation) > Weight::Use || Audit::tells_uses();
        is_told && !matches!(self.state(), Ok(State::Open))
    }

    /// Writes what a caller has done, or was to do, to the audit log. `named` is what it was about, if that is no
    /// stream; `failed` says why it was not done.
    pub(crate) fn log_done(
        &self,
        caller: &Caller,
        operation: Operation<'_>,
        named: &str,
        detail: &str,
        failed: Option<&dyn fmt::Display>,
    ) {
        if !self.tells(operation) {
            return;
        }
        let failed = failed.map(|why| format!("failed: {why}"));
        let outcome = failed.as_deref().unwrap_or(DONE);
        let entry = Entry {
            verb: operation.verb(),
            what: operation.stream().map_or(named, |stream| stream.as_str()),
            detail,
            outcome,
        };
        let lines = match outcome {
            DONE => Lines::Done,
            _ => Lines::Any,
        };
        self.by(caller, |by, rank| match weight(operation) {
            Weight::Change if rank == Rank::Other => self.audit.changed(by, entry),
            Weight::Change => self.audit.administrative(by, rank, Lines::Any, entry),
            Weight::Administrative => self.audit.administrative(by, rank, lines, entry),
            Weight::Use => Audit::used(by, entry),
        });
    }

    pub(crate) fn log_refused(&self, caller: &Caller, operation: Operation<'_>, error: &Error) {
        if matches!(
            error.kind(),
            ErrorKind::Unauthenticated(_) | ErrorKind::Forbidden(_)
        ) {
            let what = operation.stream().map_or("", |stream| stream.as_str());
            let why = error.to_string();
            self.by(caller, |by, _| {
                self.audit.refused(by, operation.verb(), what, &why);
            });
        }
    }

    /// Writes to the audit log that a caller has proved who they are, unless this was told lately.
    pub(crate) fn log_login(&self, caller: &Caller, from: IpAddr) {
        let (login, with) = match &caller.who {
            Who::Anonymous => return,
            Who::User { name, .. } => (self.audit.new_login(&**name, from), "password"),
            Who::Token(id) => (self.audit.new_login(*id, from), "token"),
        };
        if let Some(login) = login {
            self.by(caller, |by, _| self.audit.login(by, login, with));
        }
    }

    /// Names the caller for the audit log, and tells what the caller is.
    fn by(&self, caller: &Caller, tell: impl FnOnce(By<'_>, Rank)) {
        let (who, user) = match &caller.who {
            Who::Anonymous => ("anonymous".to_owned(), None),
            Who::User { name, .. } => (name.to_string(), Some(Arc::clone(name))),
            Who::Token(id) => {
                let user = self.directory().token(*id).map(|it| Arc::clone(&it.user));
                let name = user.as_deref().unwrap_or_default();
                (format!("{name} (token {})", id.simple()), user)
            }
        };
        let rank = {
            let directory = self.directory();
            match self.standing(&directory, caller) {
                Ok(standing) if standing.sees_all() => Rank::FullAdministrator,
                Ok(standing) if standing.is_admin() => Rank::Administrator,
                _ => Rank::Other,
            }
        };
        let by = By {
            who: &who,
            user: user.as_deref(),
            from: caller.from,
            request: caller.request,
        };
        tell(by, rank);
    }

    /// Returns what the user of the caller does at present; `None` for a caller who has proved nothing.
    pub(crate) fn usage_of(&self, caller: &Caller) -> Option<Arc<Usage>> {
        let user = self.user_of(caller)?;
        Some(self.usages.of(&user, (self.config.uptime)()))
    }

    /// Returns the name of the caller's user; `None` for a caller who has proved nothing.
    pub(crate) fn user_of(&self, caller: &Caller) -> Option<Arc<str>> {
        match &caller.who {
            Who::Anonymous => None,
            Who::User { name, .. } => Some(Arc::clone(name)),
            Who::Token(id) => Some(Arc::clone(&self.directory().token(*id)?.user)),
        }
    }
}

/// How much an operation matters to who reads the audit log.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Weight {
    Use,
    Change,
    Administrative,
}

fn weight(operation: Operation<'_>) -> Weight {
    let Some(subject) = operation.subject() else {
        return match operation {
            Operation::Manage | Operation::ManageGroups | Operation::Operate => {
                Weight::Administrative
            }
            _ => Weight::Use,
        };
    };
    match (subject.kind, subject.right) {
        (_, Right::Read | Right::ReadMetadata) => Weight::Use,
        (Kind::Account, _) => Weight::Administrative,
        (_, Right::Delete | Right::WriteMetadata) => Weight::Change,
        (_, Right::Append) => Weight::Use,
    }
}
