//! Decides whether the accounts and the rights of a stream allow what a caller wants to do.
//!
//! Pure. The rules, in order: account streams, and streams that hold something of one, are for administrators with the
//! scope `admin` and no prefixes; a token may do what its scopes and prefixes allow and never more than its user;
//! administrators may do the rest; everybody else may do what the rights of the stream allow, and the defaults decide
//! what these do not say, within what they do say. A stream that holds something of another one (`names::made_of`)
//! needs the same right of that one too. The prefixes of a token are compared with its own name alone: whoever makes a
//! token for `$snapshot-` means the snapshots of whatever its user may read.

use std::sync::Arc;

use gesta_core::{Lifecycle, Revision, StreamId};

use crate::acl::{Acl, Defaults, Right};
use crate::names::{self, ADMINS, EVERYBODY, Kind, MadeOf, OPERATORS};
use crate::token::{Scope, Scopes};

/// What a caller wants to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Operation<'a> {
    /// Read or follow the events of a stream; of a metadata stream, read the metadata.
    Read(&'a StreamId),
    /// Get the events of a stream as a consumer of a group, and answer for them, so that others do not get them.
    Consume(&'a StreamId),
    /// Append to a stream; of a metadata stream, change the metadata.
    Append(&'a StreamId),
    /// Delete a stream or close it for ever.
    Delete(&'a StreamId),
    /// Read the metadata of a stream.
    ReadMetadata(&'a StreamId),
    /// Replace the metadata of a stream.
    WriteMetadata(&'a StreamId),
    /// Read or follow all events, or list streams. What the caller may not read is left out.
    ReadMany,
    /// Ask what the store is. Everybody who has proved who they are may do this.
    Info,
    /// Look at what the server measures, or at all consumer groups.
    Observe,
    /// Create, change, delete or restart consumer groups, or replay what they have parked.
    ManageGroups,
    /// Look after the server: have it tidy up, or another node take over.
    Operate,
    /// Copy the whole store, or do anything else that no right of a stream covers.
    Manage,
}

/// An operation that goes on, such as a subscription, or is told later; like [`Operation`], but it owns its names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum OwnedOperation {
    /// Follow the events of a stream.
    Read(StreamId),
    /// Get the events of a stream as a consumer of a group.
    Consume(StreamId),
    /// Create, change, delete or restart consumer groups, or replay what they have parked.
    ManageGroups,
    /// Look after the server.
    Operate,
    /// Do anything that no right of a stream covers.
    Manage,
}

impl OwnedOperation {
    /// Returns the operation with borrowed names.
    #[must_use]
    pub fn borrowed(&self) -> Operation<'_> {
        match self {
            OwnedOperation::Read(stream) => Operation::Read(stream),
            OwnedOperation::Consume(stream) => Operation::Consume(stream),
            OwnedOperation::ManageGroups => Operation::ManageGroups,
            OwnedOperation::Operate => Operation::Operate,
            OwnedOperation::Manage => Operation::Manage,
        }
    }
}

impl<'a> Operation<'a> {
    /// Returns which right of which stream the operation needs, if it is about a stream. An operation on a metadata
    /// stream needs a right of the stream that it describes.
    pub(crate) fn subject(self) -> Option<Subject<'a>> {
        let (stream, right) = match self {
            Operation::Read(stream) | Operation::Consume(stream) => (stream, Right::Read),
            Operation::Append(stream) => (stream, Right::Append),
            Operation::Delete(stream) => (stream, Right::Delete),
            Operation::ReadMetadata(stream) => (stream, Right::ReadMetadata),
            Operation::WriteMetadata(stream) => (stream, Right::WriteMetadata),
            _ => return None,
        };
        Some(Subject::of(stream.as_str(), right))
    }

    pub(crate) fn verb(self) -> &'static str {
        match self {
            Operation::Read(_) => "read",
            Operation::Consume(_) => "consume from a group on",
            Operation::Append(_) => "append to",
            Operation::Delete(_) => "delete",
            Operation::ReadMetadata(_) => "read the metadata of",
            Operation::WriteMetadata(_) => "change the metadata of",
            Operation::ReadMany => "read",
            Operation::Info => "ask about",
            Operation::Observe => "look at the metrics and consumer groups of",
            Operation::ManageGroups => "manage the consumer groups of",
            Operation::Operate => "look after",
            Operation::Manage => "manage",
        }
    }

    pub(crate) fn stream(self) -> Option<&'a StreamId> {
        match self {
            Operation::Read(stream)
            | Operation::Consume(stream)
            | Operation::Append(stream)
            | Operation::Delete(stream)
            | Operation::ReadMetadata(stream)
            | Operation::WriteMetadata(stream) => Some(stream),
            _ => None,
        }
    }

    /// Returns the scope that a token needs for the operation.
    fn scope(self) -> Scope {
        let account = self.subject().is_some_and(Subject::is_of_account);
        match self {
            _ if account => Scope::Admin,
            Operation::Manage | Operation::ManageGroups | Operation::Operate => Scope::Admin,
            Operation::Consume(_) => Scope::Consume,
            _ => match self.subject().map(|subject| subject.right) {
                None | Some(Right::Read | Right::ReadMetadata) => Scope::Read,
                Some(Right::Append) => Scope::Append,
                Some(Right::Delete | Right::WriteMetadata) => Scope::Admin,
            },
        }
    }
}

/// A right of a stream that is no metadata stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Subject<'a> {
    /// The name of the stream whose rights decide.
    pub(crate) name: &'a str,
    pub(crate) kind: Kind,
    pub(crate) right: Right,
}

impl<'a> Subject<'a> {
    /// Returns what it needs to use the stream of this name so.
    fn of(name: &'a str, right: Right) -> Self {
        let kind = names::kind(name);
        match names::described(name) {
            Some(described) if !described.is_empty() => Self {
                name: described,
                kind,
                right: match right {
                    Right::Read | Right::ReadMetadata => Right::ReadMetadata,
                    _ => Right::WriteMetadata,
                },
            },
            _ => Self { name, kind, right },
        }
    }

    /// Tells whether the stream holds an account, or something of a stream that does.
    fn is_of_account(self) -> bool {
        let is_account = |name| names::kind(name) == Kind::Account;
        self.kind == Kind::Account
            || matches!(self.made_of(), MadeOf::Stream(source) if is_account(source))
    }

    /// Returns of what the stream is made. Streams of users are made of nothing but themselves.
    fn made_of(self) -> MadeOf<'a> {
        match self.kind {
            Kind::System => names::made_of(self.name),
            Kind::User | Kind::Account => MadeOf::Itself,
        }
    }
}

/// Who calls, as the accounts know the caller at this moment.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Standing<'a> {
    pub(crate) user: &'a str,
    pub(crate) groups: &'a [Box<str>],
    pub(crate) scopes: Scopes,
    /// The names of the streams that the caller may use begin with one of these; if there are none, all streams are
    /// covered.
    pub(crate) prefixes: &'a [Box<str>],
}

impl Standing<'_> {
    fn is_in(&self, group: &str) -> bool {
        self.groups.iter().any(|own| &**own == group)
    }

    pub(crate) fn is_admin(&self) -> bool {
        self.is_in(ADMINS)
    }

    /// Tells whether the rights show every event, those of account streams included.
    pub(crate) fn sees_all(&self) -> bool {
        self.is_admin() && self.prefixes.is_empty() && self.scopes.has(Scope::Admin)
    }

    fn has_role(&self, role: &str) -> bool {
        role == EVERYBODY || role == self.user || self.is_in(role)
    }

    /// Tells whether the prefixes cover the stream of this name.
    fn covers(&self, name: &str) -> bool {
        self.prefixes.is_empty()
            || self
                .prefixes
                .iter()
                .any(|prefix| name.starts_with(&**prefix))
    }
}

/// What the metadata of a stream says about its rights.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct StreamRights {
    /// The rights that the newest metadata gives; `None` if it says nothing.
    pub(crate) acl: Option<Acl>,
    /// Events before this revision were deleted. They can still be found among all events.
    pub(crate) deleted_before: Revision,
    /// Whether the rights of the deleted events are unknown or were not those of everybody.
    pub(crate) was_restricted: bool,
}

impl StreamRights {
    /// The rights of a stream that only administrators may use.
    pub(crate) fn closed() -> Self {
        Self {
            acl: Some(Acl::nobody()),
            deleted_before: Revision(0),
            was_restricted: true,
        }
    }

    /// Reads the rights from the events of a metadata stream, newest first. `all` says that there are no older events.
    pub(crate) fn of(events: &[gesta_core::RecordedEvent], all: bool) -> Self {
        let Some((newest, older)) = events.split_first() else {
            return Self::default();
        };
        let Ok(state) = Lifecycle::from_event(&newest.data, &newest.metadata) else {
            return Self::closed();
        };
        let said = |event: &gesta_core::RecordedEvent| Acl::of_metadata(&event.data);
        let Ok(acl) = said(newest) else {
            return Self::closed();
        };
        let is_deleted = state.tombstoned || state.deleted_before > Revision(0);
        // What was said after the delete, the first of these, is not of the events that were deleted.
        let is_since = |event: &&gesta_core::RecordedEvent| {
            let then = Lifecycle::from_event(&event.data, &event.metadata);
            then.is_ok_and(|then| {
                (then.deleted_before, then.tombstoned) == (state.deleted_before, state.tombstoned)
            })
        };
        let since = older.iter().take_while(is_since).count();
        let restricted = |event| !matches!(said(event), Ok(None));
        let was_restricted = is_deleted && (!all || events[since..].iter().any(restricted));
        if state.tombstoned {
            return Self {
                acl,
                deleted_before: Revision::MAX,
                was_restricted,
            };
        }
        Self {
            acl,
            deleted_before: state.deleted_before,
            was_restricted,
        }
    }

    pub(crate) fn cost_bytes(&self) -> usize {
        64 + self.acl.as_ref().map_or(0, Acl::cost_bytes)
    }
}

/// Whether an operation is allowed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RightsVerdict<'a> {
    Yes,
    No,
    /// The rights of the stream of this name must be read before this can be decided.
    AsksRights(&'a str),
}

/// Says what stands in the way of a token that may not do something: its scopes, its prefixes, or the rights of its
/// user.
pub(crate) fn why_a_token_may_not(standing: Standing<'_>, operation: Operation<'_>) -> String {
    let scope = operation.scope();
    if !standing.scopes.has(scope) {
        let name = format!("{scope:?}").to_lowercase();
        return format!("the token does not have the scope {name}");
    }
    let is_covered = match operation.subject() {
        Some(subject) if !subject.is_of_account() => standing.covers(subject.name),
        _ => standing.prefixes.is_empty(),
    };
    match standing.prefixes {
        _ if is_covered => "the rights of the user of the token do not allow it".to_owned(),
        [prefix] => format!("the token is only for streams whose names begin with {prefix:?}"),
        _ => "the token is only for streams whose names begin with one of its prefixes".to_owned(),
    }
}

impl From<bool> for RightsVerdict<'_> {
    fn from(allowed: bool) -> Self {
        match allowed {
            true => RightsVerdict::Yes,
            false => RightsVerdict::No,
        }
    }
}

/// Decides whether an operation is allowed. `rights_of` returns the rights of a stream if they are known.
pub(crate) fn decide<'a>(
    standing: Standing<'_>,
    operation: Operation<'a>,
    defaults: &Defaults,
    rights_of: impl Fn(&str) -> Option<Arc<StreamRights>>,
) -> RightsVerdict<'a> {
    let yes = RightsVerdict::from;
    if operation == Operation::Info {
        return RightsVerdict::Yes;
    }
    if !standing.scopes.has(operation.scope()) {
        return RightsVerdict::No;
    }
    let Some(subject) = operation.subject() else {
        let whole = standing.prefixes.is_empty();
        return yes(match operation {
            Operation::Observe | Operation::ManageGroups | Operation::Operate => {
                whole && (standing.is_admin() || standing.is_in(OPERATORS))
            }
            Operation::Manage => whole && standing.is_admin(),
            _ => true,
        });
    };
    if subject.kind == Kind::Account {
        // Account streams can only be read and appended to. Deleting them or hiding their events would lose accounts.
        let changes = matches!(subject.right, Right::Delete | Right::WriteMetadata);
        return yes(standing.is_admin() && standing.prefixes.is_empty() && !changes);
    }
    if subject.is_of_account() {
        return yes(standing.is_admin() && standing.prefixes.is_empty());
    }
    if !standing.covers(subject.name) {
        return RightsVerdict::No;
    }
    if standing.is_admin() {
        return RightsVerdict::Yes;
    }
    let Some(rights) = rights_of(subject.name) else {
        return RightsVerdict::AsksRights(subject.name);
    };
    if !has_right(standing, subject, defaults, &rights) {
        return RightsVerdict::No;
    }
    match subject.made_of() {
        MadeOf::Itself | MadeOf::Many => RightsVerdict::Yes,
        MadeOf::Stream(source) => {
            let source = Subject::of(source, subject.right);
            let Some(rights) = rights_of(source.name) else {
                return RightsVerdict::AsksRights(source.name);
            };
            // What it holds of events that were deleted since is not told from what it holds of others.
            let is_hidden = subject.right == Right::Read && rights.was_restricted;
            yes(!is_hidden && has_right(standing, source, defaults, &rights))
        }
    }
}

/// Decides by what the stream says of the right, else by what `$settings` says of it, else by what is built in. Where
/// one of the first two says nothing of it, it counts what they say of other rights ([`with`]).
fn has_right(
    standing: Standing<'_>,
    subject: Subject<'_>,
    defaults: &Defaults,
    rights: &StreamRights,
) -> bool {
    let defaults = match (subject.kind, subject.made_of()) {
        (Kind::User, _) => &defaults.user,
        (_, MadeOf::Many) => &defaults.of_many,
        _ => &defaults.system,
    };
    let has = |roles: &[Box<str>]| roles.iter().any(|role| standing.has_role(role));
    for acl in rights.acl.iter().chain([&defaults.said]) {
        if let Some(roles) = acl.roles(subject.right) {
            return has(roles);
        }
        let said = with(subject.right).iter();
        if !said.filter_map(|right| acl.roles(*right)).all(has) {
            return false;
        }
    }
    has(defaults.built_in.roles(subject.right).unwrap_or_default())
}

/// Returns the rights that a caller must have too, as far as something is said of them, to have a right of which
/// nothing is said.
///
/// Who may change the metadata of a stream may give themselves every right, and who deletes it takes its rights away.
/// If `$r` alone was said, and everybody had the others by default, it would keep nobody from reading. And the metadata
/// tell that the stream is there, and who may do what.
fn with(right: Right) -> &'static [Right] {
    match right {
        Right::Read | Right::Append => &[],
        Right::ReadMetadata => &[Right::Read],
        Right::Delete => &[Right::Read, Right::Append, Right::WriteMetadata],
        Right::WriteMetadata => &[
            Right::Read,
            Right::Append,
            Right::Delete,
            Right::ReadMetadata,
        ],
    }
}

/// Tells whether a caller who may read a stream as it is now may see an event of it among all events. An event from
/// before the stream was deleted is not shown if the rights of that time were restricted or are unknown.
pub(crate) fn shows(
    standing: Standing<'_>,
    event: &gesta_core::RecordedEvent,
    rights: &StreamRights,
) -> bool {
    let is_metadata = names::described(event.stream.as_str()).is_some();
    standing.is_admin()
        || !rights.was_restricted
        || (!is_metadata && event.revision >= rights.deleted_before)
}

#[cfg(test)]
#[path = "rights/tests.rs"]
mod tests;
