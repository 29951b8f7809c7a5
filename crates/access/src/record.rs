//! The events of account streams: how accounts are stored.
//!
//! Invariants: an event that cannot be read, or that does not fit the one before it, closes its account instead of being
//! passed over; fields that are not known are an error, for who reads an older form must not miss a restriction.

use std::fmt;

use gesta_core::{EventData, EventType};
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::token::Scope;

/// What an event of `$access` says.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct AccessOn {
    /// Accounts that do not name it were not made by who turned access on, and count nothing.
    pub(crate) realm: Uuid,
    /// How many events `$settings` had then: whoever wrote them, they count nothing.
    pub(crate) settings_before: u64,
}

/// What an event of `$user-…` says.
#[derive(Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case", deny_unknown_fields)]
pub(crate) enum UserEvent {
    /// The account begins, or begins again with nothing of what it was.
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

/// What an event of `$token-…` says.
#[derive(Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case", deny_unknown_fields)]
pub(crate) enum TokenEvent {
    Created {
        user: String,
        /// The id of the account: another account of the same name has nothing of this token.
        user_id: Uuid,
        hash: String,
        label: String,
        scopes: Vec<Scope>,
        prefixes: Vec<String>,
        /// In microseconds since 1970.
        expires: Option<i64>,
    },
    Revoked {},
}

/// Hashes are nobody's business.
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

/// Types of the events.
pub(crate) const ACCESS_TYPE: &str = "$access";
pub(crate) const USER_TYPE: &str = "$user";
pub(crate) const TOKEN_TYPE: &str = "$token";

/// Reads the data of an event.
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
    // The text of an error of JSON may hold a part of a hash.
    serde_json::from_slice(data).map_err(|error| {
        format!(
            "an event cannot be read: {:?} at byte {}",
            error.classify(),
            error.column()
        )
    })
}

/// An event with this data.
pub(crate) fn event<T: Serialize>(kind: &str, record: &T) -> gesta_core::Result<EventData> {
    let data = serde_json::to_vec(record).map_err(|error| {
        gesta_core::Error::corrupt("an account cannot be written").caused_by(error)
    })?;
    Ok(EventData::json(EventType::new(kind)?, data).with_id(gesta_core::EventId::random()))
}
