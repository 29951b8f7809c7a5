//! The events of account streams: how accounts are stored.
//!
//! Invariants: an event that cannot be read, or that does not fit the one before it, closes its account instead of
//! being passed over. A reader of an older form passes over fields that it does not know, so that a new field does not
//! close accounts on older nodes while newer ones run beside them. It must not miss a restriction: a writer names each
//! field that restricts in `critical`, and a reader who does not know one of these cannot read the event. What callers
//! append themselves has no field that is passed over: a mistyped one may have been meant to restrict.

use std::fmt;

use gesta_core::{EventData, EventType};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use uuid::Uuid;

use crate::token::Scope;

/// The data of an event of `$access`.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct AccessOn {
    /// Accounts must name this id to count. Accounts that do not name it were not made by whoever turned access on.
    pub(crate) realm: Uuid,
    /// How many events `$settings` had when access was turned on. They do not count, whoever wrote them.
    pub(crate) settings_before: u64,
}

/// The data of an event of `$user-…`.
#[derive(Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
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
#[serde(tag = "kind", rename_all = "snake_case")]
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

/// The fields that restrict, which a reader must know to read an event that has them.
#[derive(Deserialize)]
struct Critical {
    #[serde(default)]
    critical: Vec<String>,
}

/// What an event holds.
pub(crate) trait Stored {
    /// Returns the critical fields that this version knows in an event of this kind. Those of the first version need
    /// not be named.
    fn critical_known(&self) -> &'static [&'static str] {
        &[]
    }
}

impl Stored for AccessOn {}
impl Stored for UserEvent {}
impl Stored for TokenEvent {}
/// A name in `$users`.
impl Stored for String {}

/// The types of the events.
pub(crate) const ACCESS_TYPE: &str = "$access";
pub(crate) const USER_TYPE: &str = "$user";
/// The type of the events that list a user. It is that of EventStoreDB.
pub(crate) const LISTED_TYPE: &str = "$User";
pub(crate) const TOKEN_TYPE: &str = "$token";

/// Reads the data of an event, which must have the type `kind`.
pub(crate) fn read<'a, T: Deserialize<'a> + Stored>(
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
    let unreadable = |error: serde_json::Error| {
        format!(
            "an event cannot be read: {:?} at byte {}",
            error.classify(),
            error.column()
        )
    };
    let read: T = serde_json::from_slice(data).map_err(unreadable)?;
    if !data.trim_ascii_start().starts_with(b"{") {
        // A name in `$users`.
        return Ok(read);
    }
    let Critical { critical } = serde_json::from_slice(data).map_err(unreadable)?;
    let is_unknown = |field: &&String| !read.critical_known().contains(&field.as_str());
    if let Some(unknown) = critical.iter().find(is_unknown) {
        return Err(format!(
            "an event of a newer version restricts by {unknown:?}, which this version does not know"
        ));
    }
    Ok(read)
}

/// Reads the data of an event that a caller wants to append: as [`read`], but fields are refused that would be passed
/// over, unless they say nothing.
pub(crate) fn read_strictly<'a, T: Deserialize<'a> + Serialize + Stored>(
    kind: &str,
    event_type: &EventType,
    data: &'a [u8],
) -> Result<T, String> {
    let event: T = read(kind, event_type, data)?;
    // What is not read is not written either.
    let (Ok(Value::Object(given)), Ok(Value::Object(known))) =
        (serde_json::from_slice(data), serde_json::to_value(&event))
    else {
        return Ok(event);
    };
    let says_nothing = |value: &Value| match value {
        Value::Null => true,
        Value::String(text) => text.is_empty(),
        Value::Array(values) => values.is_empty(),
        _ => false,
    };
    let unknown = given
        .iter()
        .find(|(field, value)| !known.contains_key(*field) && !says_nothing(value));
    match unknown {
        Some((field, _)) => Err(format!(
            "an event of this kind has no field {field:?}, so nothing would follow from it"
        )),
        None => Ok(event),
    }
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

    /// What happened: the full name of a user, which a newer version stored, closed the account on every older node
    /// that ran beside it. Goal: a field that an older version does not know is passed over, unless it restricts.
    #[test]
    fn fields_of_newer_versions_are_passed_over_unless_they_restrict() {
        let id = Uuid::nil();
        let user = |rest: &str| format!(r#"{{"kind":"disabled","id":"{id}"{rest}}}"#);
        let token = |rest: &str| format!(r#"{{"kind":"revoked"{rest}}}"#);
        let marker = |rest: &str| format!(r#"{{"realm":"{id}","settings_before":1{rest}}}"#);
        let kind = |name: &str| EventType::new(name).expect("valid");
        let read_all = |rest: &str| {
            [
                read::<UserEvent>(USER_TYPE, &kind(USER_TYPE), user(rest).as_bytes()).err(),
                read::<TokenEvent>(TOKEN_TYPE, &kind(TOKEN_TYPE), token(rest).as_bytes()).err(),
                read::<AccessOn>(ACCESS_TYPE, &kind(ACCESS_TYPE), marker(rest).as_bytes()).err(),
            ]
        };
        for known in ["", r#","colour":"red""#, r#","colour":"red","critical":[]"#] {
            assert_eq!(read_all(known), [None, None, None], "{known}");
        }
        for refused in read_all(r#","from":["10.0.0.1"],"critical":["from"]"#) {
            let why = refused.expect("it restricts");
            assert!(why.contains("restricts by \"from\""), "{why}");
        }
        for refused in read_all(r#","critical":"from""#) {
            assert!(refused.is_some());
        }
    }

    /// Goal: a restriction that this version knows in one kind of event is no restriction that it knows in another.
    #[test]
    fn each_kind_of_event_has_its_own_critical_fields() {
        #[derive(Deserialize)]
        struct Newer {}
        impl Stored for Newer {
            fn critical_known(&self) -> &'static [&'static str] {
                &["from"]
            }
        }
        let kind = EventType::new(TOKEN_TYPE).expect("valid");
        let data = br#"{"kind":"revoked","critical":["from"]}"#;
        assert!(read::<Newer>(TOKEN_TYPE, &kind, data).is_ok());
        assert!(read::<TokenEvent>(TOKEN_TYPE, &kind, data).is_err());
    }

    /// Goal: an event that no value of JSON holds, because a number is too large or something is nested too deep, is
    /// refused: it cannot be asked for fields that would be passed over.
    #[test]
    fn what_cannot_be_looked_through_is_not_appended() {
        let kind = EventType::new(TOKEN_TYPE).expect("valid");
        let deep = format!("{}1{}", "[".repeat(200), "]".repeat(200));
        for from in ["\"10.0.0.1\"", "1e999", &deep] {
            let data = format!(r#"{{"kind":"revoked","from":{from}}}"#);
            assert!(read_strictly::<TokenEvent>(TOKEN_TYPE, &kind, data.as_bytes()).is_err());
        }
        let data = br#"{"kind":"revoked","from":[]}"#;
        assert!(read_strictly::<TokenEvent>(TOKEN_TYPE, &kind, data).is_ok());
    }

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
