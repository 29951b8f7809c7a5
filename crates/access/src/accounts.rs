//! Makes and changes accounts: what `gesta user` and `gesta token` do.
//!
//! It works on any store: on the database itself, or through a server as an administrator.
//! Invariants: the first user turns access on before the account is there, so that a failure between the two leaves the
//! store closed and never half open; of what lay in the store before, no account counts; each change expects the stream
//! as it was read, so that two administrators do not overwrite each other.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, LazyLock};

use gesta_core::shares::{self, Shares};
use gesta_core::{
    AllFrom, Append, Clock, Error, ErrorKind, EventData, EventStore, EventType, ExpectedRevision,
    Filter, Query, ReadAll, ReadStream, Result, SetStreamMetadata, StreamFrom, StreamId,
    StreamMetadata, SystemClock, Timestamp, limits,
};
use serde::Serialize;
use uuid::Uuid;

use crate::acl::Acl;
use crate::directory::{Directory, GROUPS_MAX, User};
use crate::follow;
use crate::names::{self, ADMINS, MARKER, SETTINGS, TOKEN_PREFIX, USERS};
use crate::password::Hashed;
use crate::record::{
    self, ACCESS_TYPE, AccessOn, LISTED_TYPE, TOKEN_TYPE, TokenEvent, USER_TYPE, UserEvent,
};
use crate::token::{NewToken, Scope, Secret};

/// Passwords are hashed one at a time, since each hash takes memory and a processor by design. Callers take turns, so
/// that nobody waits behind the many passwords of one of them.
static HASHING: LazyLock<Arc<Shares>> = LazyLock::new(|| Shares::new(1));
/// How often a change is tried that counts whatever others change at the same time.
const CHANGE_TRIES: usize = 5;
/// The most streams that an error names.
const NAMED_MAX: usize = 10;
/// How often the list of users is read again because another node has written to it.
const LIST_TRIES: usize = 10;
const PAGE: usize = 10_000;

/// What the first user does to the rights of streams (`$acl`) that were set while nobody had to prove who they are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum FirstUser {
    /// There must be no such rights, since anybody may have set them.
    #[default]
    RefuseRights,
    /// Such rights begin to count.
    KeepRights,
}

/// The request to make a user.
#[derive(Clone, PartialEq, Eq)]
pub struct AddUser {
    /// The name of the user.
    pub name: String,
    /// The password of the user.
    pub password: String,
    /// The names of the groups of the user.
    pub groups: Vec<String>,
    /// What the user is called besides; may be empty.
    pub full_name: String,
    /// What happens to rights that are there already, if this is the first user.
    pub first: FirstUser,
}

impl std::fmt::Debug for AddUser {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("AddUser")
            .field("name", &self.name)
            .field("groups", &self.groups)
            .finish_non_exhaustive()
    }
}

/// A user as it is shown, without secrets.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ShownUser {
    /// The name of the user.
    pub user: String,
    /// The names of the groups of the user.
    pub groups: Vec<String>,
    /// What the user is called besides.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub full_name: String,
    /// Whether the user may do nothing at present.
    pub disabled: bool,
    /// When the account was made or changed last.
    #[serde(skip)]
    pub changed: Timestamp,
}

/// A token as it is shown, without secrets.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ShownToken {
    /// The id of the token, in 32 hexadecimal digits.
    pub id: String,
    /// The user whose rights limit those of the token.
    pub user: String,
    /// What the token is for, in the words of whoever made it.
    pub label: String,
    /// What the token may be used for.
    pub scopes: Vec<Scope>,
    /// The token is limited to streams whose names begin with one of these. If the list is empty, it is good for all
    /// streams.
    pub prefixes: Vec<String>,
    /// The moment at which the token ends, if it ends.
    pub expires: Option<String>,
    /// Whether the token is valid at present.
    pub active: bool,
}

/// The accounts of a store, which can be listed and changed.
#[derive(Clone)]
pub struct Accounts {
    store: Arc<dyn EventStore>,
    clock: Arc<dyn Clock>,
}

impl std::fmt::Debug for Accounts {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Accounts")
    }
}

impl Accounts {
    /// Returns the accounts of this store.
    #[must_use]
    pub fn of(store: Arc<dyn EventStore>) -> Self {
        Self::with_clock(store, Arc::new(SystemClock))
    }

    /// Returns the accounts of this store. The clock tells when tokens expire.
    #[must_use]
    pub fn with_clock(store: Arc<dyn EventStore>, clock: Arc<dyn Clock>) -> Self {
        Self { store, clock }
    }

    /// Lists all users, sorted by name.
    ///
    /// # Errors
    /// The errors of the store.
    ///
    /// # Cancel safety
    /// Dropping the future changes nothing.
    pub async fn users(&self) -> Result<Vec<ShownUser>> {
        let directory = self.read().await?;
        let users = directory
            .users()
            .map(|(name, user)| (name.to_owned(), shown(name, user)));
        Ok(users.collect::<BTreeMap<_, _>>().into_values().collect())
    }

    /// Returns one user; `None` if there is none of this name. Only the account of this user is read.
    ///
    /// # Errors
    /// The errors of the store.
    ///
    /// # Cancel safety
    /// Dropping the future changes nothing.
    pub async fn user(&self, name: &str) -> Result<Option<ShownUser>> {
        let Ok(stream) = names::user_stream(name) else {
            return Ok(None);
        };
        let directory = follow::read_one(&*self.store, &stream).await?;
        Ok(directory.user(name).map(|user| shown(name, user)))
    }

    /// Lists all tokens, sorted by user and id.
    ///
    /// # Errors
    /// The errors of the store.
    ///
    /// # Cancel safety
    /// Dropping the future changes nothing.
    pub async fn tokens(&self) -> Result<Vec<ShownToken>> {
        let directory = self.read().await?;
        let now = self.clock.now();
        let tokens = directory.tokens().map(|(id, token)| {
            let user = directory
                .user(&token.user)
                .filter(|user| user.id == token.user_id);
            let shown = ShownToken {
                id: id.simple().to_string(),
                user: token.user.to_string(),
                label: token.label.to_string(),
                scopes: token.scopes.list(),
                prefixes: token.prefixes.iter().map(ToString::to_string).collect(),
                expires: token.expires.map(|at| at.to_string()),
                active: !token.is_over(now) && user.is_some_and(|user| !user.is_disabled),
            };
            ((shown.user.clone(), shown.id.clone()), shown)
        });
        Ok(tokens.collect::<BTreeMap<_, _>>().into_values().collect())
    }

    /// Makes a user. The first user turns access on, and must be an administrator.
    ///
    /// # Errors
    /// `InvalidArgument` if a name, the password or a group breaks a rule, if the user exists already, or if the first
    /// user meets rights of streams with [`FirstUser::RefuseRights`]; the errors of the store.
    ///
    /// # Cancel safety
    /// If the future is dropped, access may be on without the user; the call can be repeated.
    pub async fn add_user(&self, add: AddUser) -> Result<()> {
        let stream = names::user_stream(&add.name)?;
        check_groups(&add.groups)?;
        names::check_full_name(&add.full_name)?;
        let hash = self.hash(add.password).await?;
        let mut directory = self.read().await?;
        if directory.users().next().is_none() && !add.groups.iter().any(|group| group == ADMINS) {
            let rule = format!(
                "must have {ADMINS} for the first user (--admin): nobody could make another one"
            );
            return Err(Error::invalid("group", rule));
        }
        if !directory.is_on() || directory.realm().is_none() {
            self.turn_on(add.first).await?;
            directory = self.read().await?;
        }
        let realm = directory.realm().ok_or_else(unreadable_marker)?;
        if directory.user(&add.name).is_some() {
            return Err(Error::invalid(
                "user",
                format!("{:?} exists already", add.name),
            ));
        }
        check_collisions(&directory, &add.name, &add.groups)?;
        self.show(&stream).await?;
        let created = UserEvent::Created {
            realm,
            id: Uuid::new_v4(),
            password: hash.text().into(),
            groups: add.groups,
            full_name: add.full_name,
        };
        self.append(stream, None, record::event(USER_TYPE, &created)?)
            .await?;
        let others = directory.users().map(|(name, _)| name.to_owned());
        let names = others.chain([add.name]).collect();
        if let Err(error) = self.list(names).await {
            // The account is there. The next start of a server lists it.
            tracing::warn!(%error, "a user is not listed in $users yet");
        }
        Ok(())
    }

    /// Lists the users in the stream `$users` that are not listed there yet, with an event of type `$User` each, whose
    /// data are the name. Programs that were written for EventStoreDB wait there for the first user. No rights rest on
    /// it, and a name stays when its account ends.
    ///
    /// # Errors
    /// The errors of the store.
    ///
    /// # Cancel safety
    /// If the future is dropped, the users may be listed or not; the call can be repeated.
    pub async fn list_users(&self) -> Result<()> {
        let directory = self.read().await?;
        let names = directory.users().map(|(name, _)| name.to_owned());
        self.list(names.collect()).await
    }

    async fn list(&self, mut names: BTreeSet<String>) -> Result<()> {
        let stream = StreamId::new(USERS)?;
        for _ in 0..LIST_TRIES {
            let expected = self.leave_out_listed(&stream, &mut names).await?;
            match self.append_listed(&stream, expected, &names).await {
                // Another node has listed some of them meanwhile.
                Err(error) if matches!(error.kind(), ErrorKind::WrongExpectedRevision { .. }) => {}
                outcome => return outcome,
            }
        }
        Err(Error::unavailable("others list users all the time"))
    }

    /// Lists all these names, in as many appends as they need.
    async fn append_listed(
        &self,
        stream: &StreamId,
        mut expected: ExpectedRevision,
        names: &BTreeSet<String>,
    ) -> Result<()> {
        let names: Vec<&String> = names.iter().collect();
        for names in names.chunks(limits::APPEND_EVENTS_MAX) {
            let events = names.iter().map(|name| record::event(LISTED_TYPE, name));
            let append = Append::to(stream.clone(), expected, events.collect::<Result<_>>()?);
            let appended = self.store.append(append).await?;
            if let Some(part) = appended.streams.first() {
                expected = ExpectedRevision::Exact(part.last_revision);
            }
        }
        Ok(())
    }

    /// Takes the names that are listed from `names`. Returns what an append expects that lists others.
    async fn leave_out_listed(
        &self,
        stream: &StreamId,
        names: &mut BTreeSet<String>,
    ) -> Result<ExpectedRevision> {
        let mut request = ReadStream::forwards(stream.clone());
        loop {
            let page = match self.store.read_stream(request.clone()).await {
                Ok(page) => page,
                Err(error) if matches!(error.kind(), ErrorKind::StreamNotFound(_)) => {
                    return Ok(ExpectedRevision::NoStream);
                }
                Err(error) => return Err(error),
            };
            for event in &page.events {
                if let Ok(name) = serde_json::from_slice::<String>(&event.data) {
                    names.remove(&name);
                }
            }
            match page.next {
                Some(next) if !page.end => request.from = StreamFrom::Revision(next),
                _ => return Ok(ExpectedRevision::Exact(page.last_revision)),
            }
        }
    }

    /// Makes the user `admin`, if the store has no user yet; meant for the first start of a server. Returns whether the
    /// user was made.
    ///
    /// # Errors
    /// The errors of [`Accounts::add_user`].
    ///
    /// # Cancel safety
    /// That of [`Accounts::add_user`].
    pub async fn first_admin(&self, password: String) -> Result<bool> {
        let directory = self.read().await?;
        if directory.users().next().is_some() {
            return Ok(false);
        }
        let add = AddUser {
            name: "admin".into(),
            password,
            groups: vec![ADMINS.into()],
            full_name: String::new(),
            first: FirstUser::RefuseRights,
        };
        match self.add_user(add).await {
            Ok(()) => Ok(true),
            // Another node made the user first.
            Err(error) if matches!(error.kind(), ErrorKind::WrongExpectedRevision { .. }) => {
                Ok(false)
            }
            Err(error) => Err(error),
        }
    }

    /// Changes the password of a user.
    ///
    /// # Errors
    /// `InvalidArgument` if there is no such user or the password breaks a rule; the errors of the store.
    ///
    /// # Cancel safety
    /// If the future is dropped, the password may have been changed or not.
    pub async fn set_password(&self, name: &str, password: String) -> Result<()> {
        let hash = self.hash(password).await?;
        self.change(name, |id| UserEvent::Password {
            id,
            password: hash.text().into(),
        })
        .await
    }

    /// Replaces the groups of a user.
    ///
    /// # Errors
    /// `InvalidArgument` if there is no such user or a group breaks a rule; the errors of the store.
    ///
    /// # Cancel safety
    /// If the future is dropped, the groups may have been replaced or not.
    pub async fn set_groups(&self, name: &str, groups: Vec<String>) -> Result<()> {
        self.replace(name, groups, None).await
    }

    /// Replaces the groups and the full name of a user.
    ///
    /// # Errors
    /// As [`Accounts::set_password`].
    pub async fn describe(&self, name: &str, groups: Vec<String>, full_name: String) -> Result<()> {
        names::check_full_name(&full_name)?;
        self.replace(name, groups, Some(full_name)).await
    }

    async fn replace(
        &self,
        name: &str,
        groups: Vec<String>,
        full_name: Option<String>,
    ) -> Result<()> {
        check_groups(&groups)?;
        self.check_no_users(&groups).await?;
        // Two administrators must not overwrite each other.
        self.change_once(name, |id| UserEvent::Groups {
            id,
            groups: groups.clone(),
            full_name: full_name.clone(),
        })
        .await
    }

    /// Ends an account, and with it its tokens. What the user has done stays. Rights of streams that name the user are
    /// those of whoever gets the name next.
    ///
    /// # Errors
    /// As [`Accounts::set_password`].
    pub async fn delete_user(&self, name: &str) -> Result<()> {
        self.change(name, |id| UserEvent::Deleted { id }).await
    }

    /// Disables a user: from now on neither the user nor a token of the user may do anything.
    ///
    /// # Errors
    /// `InvalidArgument` if there is no such user; the errors of the store.
    ///
    /// # Cancel safety
    /// If the future is dropped, the user may have been disabled or not.
    pub async fn disable(&self, name: &str) -> Result<()> {
        self.change(name, |id| UserEvent::Disabled { id }).await
    }

    /// Enables a disabled user and the user's tokens again.
    ///
    /// # Errors
    /// `InvalidArgument` if there is no such user; the errors of the store.
    ///
    /// # Cancel safety
    /// If the future is dropped, the user may have been enabled or not.
    pub async fn enable(&self, name: &str) -> Result<()> {
        self.change(name, |id| UserEvent::Enabled { id }).await
    }

    /// Makes a token and returns its text, which cannot be shown again.
    ///
    /// # Errors
    /// `InvalidArgument` if the token breaks a rule or there is no such user; the errors of the store.
    ///
    /// # Cancel safety
    /// If the future is dropped, the token may exist although nobody has its text; then it can be revoked.
    pub async fn create_token(&self, token: NewToken) -> Result<String> {
        token.validate(self.clock.now())?;
        let directory = self.read().await?;
        let user = directory
            .user(&token.user)
            .ok_or_else(|| no_user(&token.user))?;
        let secret = Secret::random();
        let created = TokenEvent::Created {
            user: token.user,
            user_id: user.id,
            hash: secret.hash().text(),
            label: token.label,
            scopes: token.scopes,
            prefixes: token.prefixes,
            expires: token.expires.map(Timestamp::as_micros),
        };
        let event = record::event(TOKEN_TYPE, &created)?;
        self.append(token_stream(secret.id)?, None, event).await?;
        Ok(secret.reveal())
    }

    /// Revokes a token: it is never valid again.
    ///
    /// # Errors
    /// `InvalidArgument` if there is no such token; the errors of the store.
    ///
    /// # Cancel safety
    /// If the future is dropped, the token may have been revoked or not.
    pub async fn revoke_token(&self, id: &str) -> Result<()> {
        let known = Uuid::try_parse(id).ok();
        let directory = self.read().await?;
        let known = known.filter(|id| directory.token(*id).is_some());
        let known = known.ok_or_else(|| {
            let rule = format!(
                "must be the id of a token, all of it, as `gesta token list` shows it, found {id:?}"
            );
            Error::invalid("token", rule)
        })?;
        let event = record::event(TOKEN_TYPE, &TokenEvent::Revoked {})?;
        let stream = token_stream(known)?;
        let last = directory.revision(&stream);
        self.append(stream, last, event).await
    }

    /// Checks that no group has the name of a user. Only the accounts of these names are read, however many users there
    /// are.
    async fn check_no_users(&self, groups: &[String]) -> Result<()> {
        for group in groups {
            // A name that no user may have is that of no user.
            if let Ok(stream) = names::user_stream(group)
                && follow::read_one(&*self.store, &stream)
                    .await?
                    .user(group)
                    .is_some()
            {
                return Err(is_user(group));
            }
        }
        Ok(())
    }

    async fn read(&self) -> Result<Directory> {
        follow::read(&*self.store).await
    }

    async fn hash(&self, password: String) -> Result<Hashed> {
        let turn = HASHING.turn(&shares::current()).await;
        let hashed = tokio::task::spawn_blocking(move || {
            let _turn = turn;
            Hashed::new(&password)
        })
        .await;
        hashed.unwrap_or_else(|error| {
            Err(Error::unavailable("the password was not hashed").caused_by(error))
        })
    }

    /// Changes one user by an event that counts whatever others change at the same time. Only the streams of the marker
    /// and of this user are read, however many users there are.
    async fn change(&self, name: &str, event: impl Fn(Uuid) -> UserEvent) -> Result<()> {
        let mut tries = CHANGE_TRIES;
        loop {
            tries -= 1;
            match self.change_once(name, &event).await {
                Err(error)
                    if tries > 0
                        && matches!(error.kind(), ErrorKind::WrongExpectedRevision { .. }) => {}
                // What is wrong is not what the caller expected.
                Err(error) if matches!(error.kind(), ErrorKind::WrongExpectedRevision { .. }) => {
                    let why = format!("user {name:?} is being changed by others all the time");
                    return Err(Error::new(ErrorKind::Overloaded(why)).caused_by(error));
                }
                outcome => return outcome,
            }
        }
    }

    async fn change_once(&self, name: &str, event: impl Fn(Uuid) -> UserEvent) -> Result<()> {
        let stream = names::user_stream(name).map_err(|_| no_user(name))?;
        let directory = follow::read_one(&*self.store, &stream).await?;
        let user = directory.user(name).ok_or_else(|| no_user(name))?;
        let last = directory.revision(&stream);
        let event = record::event(USER_TYPE, &event(user.id))?;
        self.append(stream, last, event).await
    }

    /// Appends an event after the event of revision `last`. If that is `None`, appends at the end of the stream,
    /// whatever the stream holds.
    async fn append(
        &self,
        stream: StreamId,
        last: Option<gesta_core::Revision>,
        event: EventData,
    ) -> Result<()> {
        let expected = match last {
            Some(last) => ExpectedRevision::Exact(last),
            None => self.end(&stream).await?,
        };
        self.store
            .append(Append::to(stream, expected, vec![event]))
            .await
            .map(drop)
    }

    async fn end(&self, stream: &StreamId) -> Result<ExpectedRevision> {
        let request = ReadStream::backwards(stream.clone()).limit(1);
        match self.store.read_stream(request).await {
            Ok(page) => Ok(ExpectedRevision::Exact(page.last_revision)),
            Err(error) if matches!(error.kind(), ErrorKind::StreamNotFound(_)) => {
                Ok(ExpectedRevision::NoStream)
            }
            Err(error) => Err(error),
        }
    }

    /// Removes metadata that hides the events of an account stream, since nobody is meant to hide them.
    async fn show(&self, stream: &StreamId) -> Result<()> {
        let record = self.store.stream_metadata(stream.clone()).await?;
        if record.metadata == StreamMetadata::default() {
            return Ok(());
        }
        let request = SetStreamMetadata {
            stream: stream.clone(),
            expected: record
                .revision
                .map_or(ExpectedRevision::NoStream, ExpectedRevision::Exact),
            metadata: StreamMetadata::default(),
        };
        self.store.set_stream_metadata(request).await.map(drop)
    }

    async fn turn_on(&self, first: FirstUser) -> Result<()> {
        self.check_rights(first).await?;
        let marker = StreamId::new(MARKER)?;
        self.show(&marker).await?;
        if follow::read(&*self.store).await?.realm().is_none() {
            let settings_before = match self.end(&StreamId::new(SETTINGS)?).await? {
                ExpectedRevision::Exact(last) => last.0 + 1,
                _ => 0,
            };
            let on = AccessOn {
                realm: Uuid::new_v4(),
                settings_before,
            };
            let event = record::event(ACCESS_TYPE, &on)?;
            let expected = self.end(&marker).await?;
            match self
                .store
                .append(Append::to(marker, expected, vec![event]))
                .await
            {
                Ok(_) => {}
                // Somebody else turned it on meanwhile.
                Err(error) if matches!(error.kind(), ErrorKind::WrongExpectedRevision { .. }) => {}
                Err(error) => return Err(error),
            }
        }
        // A marker that another process wrote first is found here. A server that has not seen the marker yet lets
        // anybody set rights until it looks for the marker again.
        self.check_rights(first).await
    }

    /// Checks that no rights of streams were set while anybody could set them, unless they are to be kept.
    async fn check_rights(&self, first: FirstUser) -> Result<()> {
        if first == FirstUser::KeepRights {
            return Ok(());
        }
        let metadata = Query {
            types: vec![EventType::new("$metadata")?],
            ..Query::default()
        };
        let mut request = ReadAll {
            limit: PAGE,
            filter: Filter::query(metadata),
            ..ReadAll::forwards()
        };
        let mut found: BTreeMap<StreamId, ()> = BTreeMap::new();
        loop {
            let page = self.store.read_all(request.clone()).await?;
            for event in page.events {
                let has_rights = !matches!(Acl::of_metadata(&event.data), Ok(None));
                match event.stream.described_stream() {
                    Some(stream) if has_rights && found.len() < PAGE => {
                        found.insert(stream, ());
                    }
                    Some(stream) if !has_rights => {
                        found.remove(&stream);
                    }
                    _ => {}
                }
            }
            if page.end {
                break;
            }
            request.from = AllFrom::Checkpoint(page.next);
        }
        if found.is_empty() {
            return Ok(());
        }
        let named: Vec<String> = found
            .keys()
            .take(NAMED_MAX)
            .map(|stream| format!("{:?}", stream.as_str()))
            .collect();
        let more = found.len().saturating_sub(NAMED_MAX);
        let more = if more == 0 {
            String::new()
        } else {
            format!(" and {more} more")
        };
        let named = named.join(", ");
        Err(Error::invalid(
            "streams",
            format!(
                "have rights ($acl) that were set while anybody could set them: {named}{more}; look at them, and say --keep-rights"
            ),
        ))
    }
}

fn shown(name: &str, user: &User) -> ShownUser {
    ShownUser {
        user: name.into(),
        groups: user.groups.iter().map(ToString::to_string).collect(),
        full_name: user.full_name.to_string(),
        disabled: user.is_disabled,
        changed: user.changed,
    }
}

fn unreadable_marker() -> Error {
    Error::corrupt(format!(
        "stream {MARKER:?} says that access is on, but not for which accounts"
    ))
}

fn no_user(name: &str) -> Error {
    Error::invalid(
        "user",
        format!("must be a user that exists (`gesta user list` shows them), found {name:?}"),
    )
}

fn token_stream(id: Uuid) -> Result<StreamId> {
    StreamId::new(format!("{TOKEN_PREFIX}{}", id.simple()))
}

fn check_groups(groups: &[String]) -> Result<()> {
    if groups.len() > GROUPS_MAX {
        return Err(Error::invalid(
            "group",
            format!("must be at most {GROUPS_MAX}, found {}", groups.len()),
        ));
    }
    groups
        .iter()
        .try_for_each(|group| names::check_group(group))
}

/// Checks that no name is that of a user and of a group, since rights name users and groups alike.
fn check_collisions(directory: &Directory, user: &str, groups: &[String]) -> Result<()> {
    let is_group = |name: &str| {
        directory
            .users()
            .any(|(_, other)| other.groups.iter().any(|group| &**group == name))
    };
    if is_group(user) || groups.iter().any(|group| group == user) {
        return Err(Error::invalid(
            "user",
            format!("{user:?} is the name of a group"),
        ));
    }
    match groups.iter().find(|group| directory.user(group).is_some()) {
        Some(group) => Err(is_user(group)),
        None => Ok(()),
    }
}

fn is_user(group: &str) -> Error {
    Error::invalid("group", format!("{group:?} is the name of a user"))
}

#[cfg(test)]
mod tests;
