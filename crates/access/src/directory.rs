//! The accounts, as the events of account streams make them.
//!
//! Pure: events go in, accounts come out; the same events give the same accounts in whatever order the streams come,
//! since several logs have no common order.
//! Invariants: an account counts only if it names the realm of the marker, so nothing that was planted before access
//! was on is an account; a token counts only with the account whose id it names; a stream that cannot be read closes
//! its own account and no other; once there was a marker, access stays on whatever happens to the streams; there are
//! never more than [`ACCOUNTS_MAX`] users and as many tokens.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use gesta_core::{RecordedEvent, Revision, StreamId, Timestamp};
use uuid::Uuid;

use crate::acl::Defaults;
use crate::names::{self, MARKER, SETTINGS, TOKEN_PREFIX, USER_PREFIX, USERS};
use crate::password::Hashed;
use crate::record::{
    self, ACCESS_TYPE, AccessOn, LISTED_TYPE, TOKEN_TYPE, TokenEvent, USER_TYPE, UserEvent,
};
use crate::token::{Hash, PREFIXES_MAX, Scopes};

/// How long decisions may be made without news of the accounts.
pub const CONTACT_MAX: Duration = Duration::from_secs(5);
/// The most users, and the most tokens.
const ACCOUNTS_MAX: usize = 100_000;
/// The most groups of a user.
pub(crate) const GROUPS_MAX: usize = 64;
/// The most damaged streams that are remembered by name.
const DAMAGED_MAX: usize = 1_000;

/// A user.
#[derive(Debug, Clone)]
pub(crate) struct User {
    pub(crate) id: Uuid,
    realm: Uuid,
    pub(crate) password: Hashed,
    pub(crate) groups: Vec<Box<str>>,
    pub(crate) full_name: Box<str>,
    pub(crate) is_disabled: bool,
    /// When the account was made or changed last.
    pub(crate) changed: Timestamp,
}

/// A token.
#[derive(Debug, Clone)]
pub(crate) struct Token {
    pub(crate) user: Arc<str>,
    pub(crate) user_id: Uuid,
    pub(crate) hash: Hash,
    pub(crate) label: Box<str>,
    pub(crate) scopes: Scopes,
    pub(crate) prefixes: Box<[Box<str>]>,
    pub(crate) expires: Option<Timestamp>,
    pub(crate) is_revoked: bool,
}

impl Token {
    pub(crate) fn is_over(&self, now: Timestamp) -> bool {
        self.is_revoked || self.expires.is_some_and(|expires| expires <= now)
    }
}

#[derive(Debug)]
struct Settings {
    revision: Revision,
    /// `None` if the settings cannot be read.
    defaults: Option<Defaults>,
}

/// All accounts of a store.
#[derive(Debug, Default)]
pub(crate) struct Directory {
    marker: Option<AccessOn>,
    /// Whether the marker stream holds something that cannot be read as a marker.
    is_marker_damaged: bool,
    users: HashMap<Box<str>, User>,
    tokens: HashMap<Uuid, Token>,
    settings: Option<Settings>,
    defaults: Defaults,
    /// The revision up to which each account stream was read.
    seen: HashMap<StreamId, Revision>,
    damaged: BTreeMap<StreamId, String>,
}

impl Directory {
    /// Tells whether callers must prove who they are.
    pub(crate) fn is_on(&self) -> bool {
        self.marker.is_some() || self.is_marker_damaged
    }

    /// Keeps access on, whatever was read, because it was on in this process before.
    pub(crate) fn keep_on(&mut self) {
        self.is_marker_damaged |= self.marker.is_none();
    }

    /// Returns the realm that accounts must name to count.
    pub(crate) fn realm(&self) -> Option<Uuid> {
        self.marker.as_ref().map(|marker| marker.realm)
    }

    /// Returns a user whose account counts.
    pub(crate) fn user(&self, name: &str) -> Option<&User> {
        let user = self.users.get(name)?;
        (Some(user.realm) == self.realm()).then_some(user)
    }

    pub(crate) fn users(&self) -> impl Iterator<Item = (&str, &User)> {
        let counting = self
            .users
            .iter()
            .filter(|(_, user)| Some(user.realm) == self.realm());
        counting.map(|(name, user)| (&**name, user))
    }

    pub(crate) fn token(&self, id: Uuid) -> Option<&Token> {
        self.tokens.get(&id)
    }

    pub(crate) fn tokens(&self) -> impl Iterator<Item = (Uuid, &Token)> {
        self.tokens.iter().map(|(id, token)| (*id, token))
    }

    /// Returns the rights of streams that have no rights of their own.
    pub(crate) fn defaults(&self) -> &Defaults {
        &self.defaults
    }

    /// Returns the damaged streams, whose accounts are closed, each with the reason.
    pub(crate) fn damaged(&self) -> &BTreeMap<StreamId, String> {
        &self.damaged
    }

    /// Returns the revision up to which an account stream was read.
    pub(crate) fn revision(&self, stream: &StreamId) -> Option<Revision> {
        self.seen.get(stream).copied()
    }

    /// Tells whether a token expires after `from` and not after `to`.
    pub(crate) fn ends_between(&self, from: Timestamp, to: Timestamp) -> bool {
        let ends = self.tokens.values().filter_map(|token| token.expires);
        ends.into_iter().any(|end| from < end && end <= to)
    }

    /// Applies an event of an account stream, or of the metadata stream of one. Returns whether an account may have
    /// changed.
    pub(crate) fn apply(&mut self, event: &RecordedEvent) -> bool {
        let name = event.stream.as_str();
        if let Some(described) = names::described(name) {
            return self.lifecycle(described, event);
        }
        if names::kind(name) != names::Kind::Account
            || name == USERS
            || self
                .seen
                .get(&event.stream)
                .is_some_and(|seen| *seen >= event.revision)
        {
            return false;
        }
        if !self.seen.contains_key(&event.stream) && self.seen.len() >= 2 * ACCOUNTS_MAX + 2 {
            self.damage(
                &event.stream,
                format!("there are more than {ACCOUNTS_MAX} accounts"),
            );
            return false;
        }
        self.seen.insert(event.stream.clone(), event.revision);
        let outcome = match name {
            MARKER => self.marker(event),
            SETTINGS => self.settings(event),
            _ => match (
                name.strip_prefix(USER_PREFIX),
                name.strip_prefix(TOKEN_PREFIX),
            ) {
                (Some(user), _) => self.user_event(user, event),
                (_, Some(token)) => self.token_event(token, event),
                _ => Ok(()),
            },
        };
        match outcome {
            Ok(()) => {
                self.damaged.remove(&event.stream);
            }
            Err(why) => self.close(&event.stream, why),
        }
        true
    }

    /// Notes that a stream cannot be read, which closes its account.
    pub(crate) fn close(&mut self, stream: &StreamId, why: String) {
        let name = stream.as_str();
        if name == MARKER {
            self.is_marker_damaged = true;
        } else if name == SETTINGS {
            self.settings = Some(Settings {
                revision: Revision::MAX,
                defaults: None,
            });
            self.settle();
        } else if let Some(user) = name.strip_prefix(USER_PREFIX) {
            self.users.remove(user);
        } else if let Some(id) = token_id(name) {
            self.tokens.remove(&id);
        }
        self.damage(stream, why);
    }

    fn damage(&mut self, stream: &StreamId, why: String) {
        tracing::warn!(stream = ?stream.as_str(), why, "an account is closed");
        if self.damaged.len() < DAMAGED_MAX {
            self.damaged.insert(stream.clone(), why);
        }
    }

    /// Applies an event of the metadata stream of an account stream: a delete closes the account. No call of the server
    /// deletes an account stream, so it was done in the database.
    fn lifecycle(&mut self, described: &str, event: &RecordedEvent) -> bool {
        let is_gone = matches!(event.event_type.as_str(), "$deleted" | "$tombstone");
        if names::kind(described) != names::Kind::Account || described == USERS || !is_gone {
            return false;
        }
        match StreamId::new(described) {
            Ok(stream) => self.close(&stream, "its stream was deleted".into()),
            Err(_) => return false,
        }
        true
    }

    fn marker(&mut self, event: &RecordedEvent) -> Result<(), String> {
        let said: AccessOn = record::read(ACCESS_TYPE, &event.event_type, &event.data)?;
        // The first marker counts. Whoever could write another one may do all that it could change.
        if self.marker.is_none() {
            self.marker = Some(said);
            self.settle();
        }
        Ok(())
    }

    fn settings(&mut self, event: &RecordedEvent) -> Result<(), String> {
        let read = Defaults::read(&event.data);
        let odd = read.as_ref().err().map(ToString::to_string);
        self.settings = Some(Settings {
            revision: event.revision,
            defaults: read.ok(),
        });
        self.settle();
        match odd {
            // Settings from before access was on do not count, and so their errors do not matter.
            Some(odd) if self.are_settings_of_realm() => Err(odd),
            _ => Ok(()),
        }
    }

    fn are_settings_of_realm(&self) -> bool {
        match (&self.settings, &self.marker) {
            (Some(settings), Some(marker)) => settings.revision.0 >= marker.settings_before,
            _ => false,
        }
    }

    fn settle(&mut self) {
        self.defaults = match &self.settings {
            Some(settings) if self.are_settings_of_realm() => {
                settings.defaults.clone().unwrap_or_else(Defaults::closed)
            }
            _ => Defaults::default(),
        };
    }

    fn user_event(&mut self, name: &str, event: &RecordedEvent) -> Result<(), String> {
        names::check_user("user", name).map_err(|error| error.to_string())?;
        let said: UserEvent = record::read(USER_TYPE, &event.event_type, &event.data)?;
        let (id, change) = match said {
            UserEvent::Created {
                realm,
                id,
                password,
                groups,
                full_name,
            } => {
                if self.users.len() >= ACCOUNTS_MAX && !self.users.contains_key(name) {
                    return Err(format!("there are more than {ACCOUNTS_MAX} users"));
                }
                let user = User {
                    id,
                    realm,
                    password: Hashed::parse(&password)?,
                    groups: groups_of(groups)?,
                    full_name: full_name_of(full_name)?,
                    is_disabled: false,
                    changed: event.created,
                };
                self.users.insert(name.into(), user);
                return Ok(());
            }
            UserEvent::Password { id, password } => {
                (id, Change::Password(Hashed::parse(&password)?))
            }
            UserEvent::Groups {
                id,
                groups,
                full_name,
            } => {
                let full_name = full_name.map(full_name_of).transpose()?;
                (id, Change::Groups(groups_of(groups)?, full_name))
            }
            UserEvent::Disabled { id } => (id, Change::Disabled(true)),
            UserEvent::Enabled { id } => (id, Change::Disabled(false)),
            UserEvent::Deleted { id } => (id, Change::Deleted),
        };
        let user = self.users.get_mut(name).filter(|user| user.id == id);
        let user = user.ok_or("an event changes an account that does not begin")?;
        user.changed = event.created;
        match change {
            Change::Password(password) => user.password = password,
            Change::Groups(groups, full_name) => {
                user.groups = groups;
                user.full_name = full_name.unwrap_or(std::mem::take(&mut user.full_name));
            }
            Change::Disabled(is_disabled) => user.is_disabled = is_disabled,
            Change::Deleted => drop(self.users.remove(name)),
        }
        Ok(())
    }

    fn token_event(&mut self, id: &str, event: &RecordedEvent) -> Result<(), String> {
        let id = Uuid::try_parse(id).map_err(|_| "its name has no id".to_owned())?;
        match record::read(TOKEN_TYPE, &event.event_type, &event.data)? {
            TokenEvent::Revoked {} => match self.tokens.get_mut(&id) {
                Some(token) => token.is_revoked = true,
                None => return Err("an event revokes a token that does not begin".into()),
            },
            // A token never begins twice, so that a revoked secret stays revoked.
            TokenEvent::Created { .. } if event.revision != Revision(0) => {
                return Err("an event creates a token that exists already".into());
            }
            TokenEvent::Created {
                user,
                user_id,
                hash,
                label,
                scopes,
                prefixes,
                expires,
            } => {
                if self.tokens.len() >= ACCOUNTS_MAX {
                    return Err(format!("there are more than {ACCOUNTS_MAX} tokens"));
                }
                if prefixes.len() > PREFIXES_MAX {
                    return Err(format!("it has more than {PREFIXES_MAX} prefixes"));
                }
                let token = Token {
                    user: user.into(),
                    user_id,
                    hash: Hash::parse(&hash).ok_or("its hash cannot be read")?,
                    label: label.into(),
                    scopes: scopes.into_iter().collect(),
                    prefixes: prefixes.into_iter().map(Into::into).collect(),
                    expires: expires.map(Timestamp),
                    is_revoked: false,
                };
                self.tokens.insert(id, token);
            }
        }
        Ok(())
    }
}

enum Change {
    Password(Hashed),
    Groups(Vec<Box<str>>, Option<Box<str>>),
    Disabled(bool),
    Deleted,
}

fn full_name_of(name: String) -> Result<Box<str>, String> {
    names::check_full_name(&name).map_err(|error| error.to_string())?;
    Ok(name.into())
}

fn groups_of(groups: Vec<String>) -> Result<Vec<Box<str>>, String> {
    if groups.len() > GROUPS_MAX {
        return Err(format!("it has more than {GROUPS_MAX} groups"));
    }
    for group in &groups {
        names::check_group(group).map_err(|error| error.to_string())?;
    }
    Ok(groups.into_iter().map(Into::into).collect())
}

fn token_id(stream: &str) -> Option<Uuid> {
    Uuid::try_parse(stream.strip_prefix(TOKEN_PREFIX)?).ok()
}

/// Returns true for streams that hold users, tokens or the rights of all streams, and for their metadata streams.
#[must_use]
pub fn holds_accounts(stream: &gesta_core::StreamId) -> bool {
    names::kind(stream.as_str()) == names::Kind::Account
}

/// Checks an event that is to be appended to a stream of accounts, or of the metadata of one.
///
/// # Errors
/// `InvalidArgument` if the event would close its account, or a part of it would be passed over; for a metadata stream
/// always, because streams of accounts are never deleted, and nothing hides their events.
pub fn check_account_event(
    stream: &gesta_core::StreamId,
    event: &gesta_core::EventData,
) -> gesta_core::Result<()> {
    let name = stream.as_str();
    let checked = match names::described(name) {
        Some(_) => Err("streams of accounts have no metadata".to_owned()),
        None => check_event(name, event),
    };
    checked.map_err(|why| {
        let rule = format!("cannot be stored in stream {name:?}: {why}");
        gesta_core::Error::invalid("events", rule)
    })
}

/// Checks an event that a caller wants to append to an account stream: one that would close its account is refused, and
/// one of which a part would be passed over.
pub(crate) fn check_event(stream: &str, event: &gesta_core::EventData) -> Result<(), String> {
    let read = |name: &str| -> Result<(), String> {
        if let Some(user) = name.strip_prefix(USER_PREFIX) {
            names::check_user("user", user).map_err(|error| error.to_string())?;
            return match record::read_strictly(USER_TYPE, &event.event_type, &event.data)? {
                UserEvent::Created {
                    password,
                    groups,
                    full_name,
                    ..
                } => {
                    Hashed::parse(&password)?;
                    full_name_of(full_name)?;
                    groups_of(groups).map(drop)
                }
                UserEvent::Password { password, .. } => Hashed::parse(&password).map(drop),
                UserEvent::Groups {
                    groups, full_name, ..
                } => {
                    full_name.map(full_name_of).transpose()?;
                    groups_of(groups).map(drop)
                }
                UserEvent::Disabled { .. }
                | UserEvent::Enabled { .. }
                | UserEvent::Deleted { .. } => Ok(()),
            };
        }
        if name.starts_with(TOKEN_PREFIX) {
            token_id(name).ok_or("its name has no id")?;
            let said: TokenEvent =
                record::read_strictly(TOKEN_TYPE, &event.event_type, &event.data)?;
            return match said {
                TokenEvent::Created { hash, .. } => Hash::parse(&hash)
                    .map(drop)
                    .ok_or("its hash cannot be read".into()),
                TokenEvent::Revoked {} => Ok(()),
            };
        }
        match name {
            USERS => {
                let name: String = record::read(LISTED_TYPE, &event.event_type, &event.data)?;
                names::check_user("user", &name).map_err(|error| error.to_string())
            }
            SETTINGS => Defaults::read(&event.data)
                .map(drop)
                .map_err(|odd| odd.to_string()),
            _ => Err("only `gesta user add` on the store itself writes it".into()),
        }
    };
    read(stream)
}

#[cfg(test)]
#[path = "directory/tests.rs"]
mod tests;
