//! The events of account streams: how accounts are stored.
//!
//! Invariants: an event that cannot be read, or that does not fit the one before it, closes its account instead of
//! being passed over; unknown fields are an error, since a reader of an older form must not miss a restriction.

use std::fmt;

use gesta_core::{EventData, EventType};
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::token::Scope;

/// The data of an event of `$access`.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct AccessOn {
    /// Accounts must name this id to count. Accounts that do not name it were not made by whoever turned access on.
    pub(crate) realm: Uuid,
    /// How many events `$settings` had when access was turned on. They do not count, whoever wrote them.
    pub(crate) settings_before: u64,
}

/// The data of an event of `$user-…`.
#[derive(Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case", deny_unknown_fields)]
pub(crate) enum UserEvent {
    /// The account begins, or begins again without anything that it had before.
    Created {
        realm: Uuid,
        id: Uuid,
        password: String,
        groups: Vec<String>,
        #[serde(default, skip_serializing_if = "String::is_empty")]
        full_name: String,
    },
    Password {
        id: Uuid,
        password: String,
    },
    Groups {
        id: Uuid,
        groups: Vec<String>,
        /// `None`: it stays.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        full_name: Option<String>,
    },
    Disabled {
        id: Uuid,
    },
    Enabled {
        id: Uuid,
    },
    /// The account ends. Another one of the same name has nothing of it.
    Deleted {
        id: Uuid,
    },
}

/// The data of an event of `$token-…`.
#[derive(Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case", deny_unknown_fields)]
pub(crate) enum TokenEvent {
    Created {
        user: String,
        /// The id of the account. Another account of the same name does not get this token.
        user_id: Uuid,
        hash: String,
        label: String,
        scopes: Vec<Scope>,
        prefixes: Vec<String>,
        /// The moment at which the token ends, in microseconds since 1970.
        expires: Option<i64>,
    },
    Revoked {},
}

/// Shows no content, since that holds a hash.
impl fmt::Debug for UserEvent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("UserEvent")
    }
}

impl fmt::Debug for TokenEvent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("TokenEvent")
    }
}

/// Tells what an event of an account stream does, without any secret; for the audit log.
pub(crate) fn told(event: &EventData) -> String {
    let kind = &event.event_type;
    if let Ok(event) = read::<UserEvent>(USER_TYPE, kind, &event.data) {
        return match event {
            UserEvent::Created { groups, .. } => format!("user made, groups {groups:?}"),
            UserEvent::Password { .. } => "password set".to_owned(),
            UserEvent::Groups { groups, .. } => format!("groups set to {groups:?}"),
            UserEvent::Disabled { .. } => "user disabled".to_owned(),
            UserEvent::Enabled { .. } => "user enabled".to_owned(),
            UserEvent::Deleted { .. } => "user deleted".to_owned(),
        };
    }
    match read::<TokenEvent>(TOKEN_TYPE, kind, &event.data) {
        Ok(TokenEvent::Created {
            user,
            label,
            scopes,
            prefixes,
            ..
        }) => format!(
            "token of user {user:?} made, label {label:?}, scopes {scopes:?}, prefixes {prefixes:?}"
        ),
        Ok(TokenEvent::Revoked {}) => "token revoked".to_owned(),
        Err(_) => format!("event of type {:?}", kind.as_str()),
    }
}

/// The types of the events.
pub(crate) const ACCESS_TYPE: &str = "$access";
pub(crate) const USER_TYPE: &str = "$user";
/// The type of the events that list a user. It is that of EventStoreDB.
pub(crate) const LISTED_TYPE: &str = "$User";
pub(crate) const TOKEN_TYPE: &str = "$token";

/// Reads the data of an event, which must have the type `kind`.
pub(crate) fn read<'a, T: Deserialize<'a>>(
    kind: &str,
    event_type: &EventType,
    data: &'a [u8],
) -> Result<T, String> {
    if event_type.as_str() != kind {
        return Err(format!(
            "an event has the type {event_type:?} instead of {kind:?}"
        ));
    }
    // The text of a JSON error may hold a part of a hash.
    serde_json::from_slice(data).map_err(|error| {
        format!(
            "an event cannot be read: {:?} at byte {}",
            error.classify(),
            error.column()
        )
    })
}

/// Makes an event of the type `kind` with this data.
pub(crate) fn event<T: Serialize>(kind: &str, record: &T) -> gesta_core::Result<EventData> {
    let data = serde_json::to_vec(record).map_err(|error| {
        gesta_core::Error::corrupt("an account cannot be written").caused_by(error)
    })?;
    Ok(EventData::json(EventType::new(kind)?, data).with_id(gesta_core::EventId::random()))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The audit log told of a new token only that somebody had appended to a stream.
    #[test]
    fn what_an_event_does_is_told_without_secrets() {
        let token = TokenEvent::Created {
            user: "alice".into(),
            user_id: Uuid::nil(),
            hash: "a hash".into(),
            label: "ci".into(),
            scopes: vec![Scope::Read, Scope::Consume],
            prefixes: vec!["orders-".into()],
            expires: None,
        };
        let made = told(&event(TOKEN_TYPE, &token).expect("written"));
        for part in ["alice", "ci", "Consume", "orders-"] {
            assert!(made.contains(part), "{made}");
        }
        let user = UserEvent::Created {
            realm: Uuid::nil(),
            id: Uuid::nil(),
            password: "a hash".into(),
            groups: vec!["$admins".into()],
            full_name: String::new(),
        };
        let user = told(&event(USER_TYPE, &user).expect("written"));
        assert!(user.contains("$admins"), "{user}");
        assert!(![made, user].join(" ").contains("a hash"));
        let other = EventData::json(EventType::new(USER_TYPE).expect("valid"), "{\"kind\": 1}");
        assert!(told(&other).contains("$user"));
    }
}
