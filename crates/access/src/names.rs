//! The names of streams that hold accounts, and the names of users and groups.
//!
//! Invariant: names are compared as bytes. A name that differs from a reserved one in a single byte is another stream,
//! and since it begins with `$` it is one of the system's.

use gesta_core::system_streams::{
    EFFECT_PREFIX, GROUP_CONFIGURATION_PREFIX, GROUP_SEPARATOR, GROUP_STATE_PREFIX, IMPORT_PREFIX,
    SNAPSHOT_PREFIX, TIMERS_PREFIX,
};
use gesta_core::{ALL_EVENTS, Error, Result, STREAMS, StreamId, begins_virtual_streams};

/// The stream of the marker, which says that access is on and which accounts count.
pub(crate) const MARKER: &str = "$access";
/// The stream of the rights of streams that have no rights of their own, as clients of EventStoreDB write them.
pub(crate) const SETTINGS: &str = "$settings";
/// The stream that lists the names of all users, for programs that were written for EventStoreDB. No account rests on
/// it.
pub(crate) const USERS: &str = "$users";
pub(crate) const USER_PREFIX: &str = "$user-";
pub(crate) const TOKEN_PREFIX: &str = "$token-";
/// The beginning of the names of metadata streams.
pub(crate) const METADATA_PREFIX: &str = "$$";

/// The group whose users may do everything.
pub(crate) const ADMINS: &str = "$admins";
/// The group whose users may look after a server.
pub(crate) const OPERATORS: &str = "$ops";
/// The role of everybody who has proved who they are.
pub(crate) const EVERYBODY: &str = "$all";

/// The longest name of a user or a group, in bytes.
const NAME_BYTES_MAX: usize = 128;

/// To whom a stream belongs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// The stream belongs to the users.
    User,
    /// The stream belongs to the system: its name begins with `$`.
    System,
    /// The stream holds accounts.
    Account,
}

/// Tells to whom the stream of this name belongs. A metadata stream belongs to whom its stream belongs.
pub(crate) fn kind(name: &str) -> Kind {
    let mut rest = name;
    while let Some(described) = rest.strip_prefix(METADATA_PREFIX) {
        rest = described;
    }
    if is_account(rest) || is_account(name) {
        return Kind::Account;
    }
    match described(name).unwrap_or(name) {
        system if system.starts_with('$') => Kind::System,
        // The stream `$$` describes no stream.
        "" => Kind::System,
        _ => Kind::User,
    }
}

fn is_account(name: &str) -> bool {
    name == MARKER
        || name == SETTINGS
        || name == USERS
        || name.starts_with(USER_PREFIX)
        || name.starts_with(TOKEN_PREFIX)
}

/// Returns the name of the stream that a metadata stream describes.
pub(crate) fn described(name: &str) -> Option<&str> {
    name.strip_prefix(METADATA_PREFIX)
}

/// Of what a stream is made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum MadeOf<'a> {
    /// It holds what was appended to it.
    Itself,
    /// It holds something of the stream of this name: the state of its entity, or what a group on it keeps.
    Stream(&'a str),
    /// It holds something of many streams, or of one that its name does not tell.
    Many,
}

/// Tells of what the stream of this name is made, which must be no metadata stream.
///
/// A group on all events, or on a virtual stream, keeps links to events of any stream. Timers, effects and imports are
/// about whatever their program is about.
pub(crate) fn made_of(name: &str) -> MadeOf<'_> {
    let group = name
        .strip_prefix(GROUP_CONFIGURATION_PREFIX)
        .or_else(|| name.strip_prefix(GROUP_STATE_PREFIX));
    let source = match (name.strip_prefix(SNAPSHOT_PREFIX), group) {
        (Some(source), _) => source,
        (None, Some(group)) => match (
            group.split_once(GROUP_SEPARATOR),
            group.rsplit_once(GROUP_SEPARATOR),
        ) {
            (Some((source, _)), Some((same, _))) if source == same => source,
            // No name of a group of Gesta has two colons in a row, but one that was imported may.
            _ => return MadeOf::Many,
        },
        (None, None) => {
            let is_of_many = [TIMERS_PREFIX, EFFECT_PREFIX, IMPORT_PREFIX]
                .iter()
                .any(|prefix| name.starts_with(prefix));
            return match is_of_many {
                true => MadeOf::Many,
                false => MadeOf::Itself,
            };
        }
    };
    let mut innermost = source;
    while let Some(described) = innermost.strip_prefix(METADATA_PREFIX) {
        innermost = described;
    }
    let is_one = !matches!(innermost, "" | ALL_EVENTS | STREAMS)
        && !begins_virtual_streams(innermost)
        && made_of(innermost) == MadeOf::Itself;
    match is_one {
        true => MadeOf::Stream(source),
        false => MadeOf::Many,
    }
}

/// Returns the account stream of a user.
pub(crate) fn user_stream(name: &str) -> Result<StreamId> {
    check_user("user", name)?;
    StreamId::new(format!("{USER_PREFIX}{name}"))
}

/// Checks the name of a user.
///
/// A colon would end the name in HTTP's Basic scheme, and names that begin with `$` belong to the system.
pub(crate) fn check_user(field: &str, name: &str) -> Result<()> {
    let rule = if name.is_empty() {
        "must not be empty".to_owned()
    } else if name.len() > NAME_BYTES_MAX {
        format!(
            "must be at most {NAME_BYTES_MAX} bytes, found {}",
            name.len()
        )
    } else if name.starts_with('$') {
        format!("must not begin with $, found {name:?}")
    } else if let Some(c) = name
        .chars()
        .find(|c| c.is_control() || c.is_whitespace() || *c == ':')
    {
        format!("must not contain spaces, colons and control characters, found {c:?}")
    } else {
        return Ok(());
    };
    Err(Error::invalid(field, rule))
}

/// Checks the name of a group, which is that of the administrators, that of the operators, or a name that a user may
/// have.
pub(crate) fn check_group(name: &str) -> Result<()> {
    match name {
        ADMINS | OPERATORS => Ok(()),
        _ => check_user("group", name),
    }
}

/// Most bytes of a full name.
const FULL_NAME_BYTES_MAX: usize = 512;

/// Checks what a user is called besides; it may be empty.
pub(crate) fn check_full_name(name: &str) -> Result<()> {
    if name.len() <= FULL_NAME_BYTES_MAX && !name.chars().any(char::is_control) {
        return Ok(());
    }
    let shown: String = name.chars().take(60).collect();
    let rule = format!(
        "must be at most {FULL_NAME_BYTES_MAX} bytes without control characters, found {} bytes, {shown:?}",
        name.len()
    );
    Err(Error::invalid("full name", rule))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn account_streams_are_known_in_every_form() {
        for name in [
            "$access",
            "$settings",
            "$users",
            "$user-",
            "$user-a",
            "$token-1",
            "$$$user-a",
            "$$$settings",
            "$$$$$user-a",
            "$$$$$$$access",
        ] {
            assert_eq!(kind(name), Kind::Account, "{name}");
        }
        for name in [
            "$User-a",
            "$SETTINGS",
            "$stats-cart",
            "$$$stats-cart",
            "$",
            "$$",
            "$$$",
            "$settings2",
            "$$$$a",
        ] {
            assert_eq!(kind(name), Kind::System, "{name}");
        }
        for name in ["a", "user-a", "$$a", "$$user-a", "$$settings", "ſettings"] {
            assert_eq!(kind(name), Kind::User, "{name}");
        }
    }

    #[test]
    fn streams_that_are_made_of_others_are_known() {
        for (name, source) in [
            ("$snapshot-pay-1", "pay-1"),
            ("$snapshot-$$pay-1", "$$pay-1"),
            ("$persistentsubscription-pay-1::g-parked", "pay-1"),
            ("$persistentsubscription-pay-1::g-parked-7", "pay-1"),
            ("$persistentsubscription-pay-1::g-checkpoint", "pay-1"),
            ("$persistentsubscriptionconfig-pay-1::g", "pay-1"),
            ("$persistentsubscription-$user-a::g-parked", "$user-a"),
        ] {
            assert_eq!(made_of(name), MadeOf::Stream(source), "{name}");
        }
        for name in [
            "$snapshot-",
            "$snapshot-$ce-pay",
            "$snapshot-$snapshot-pay-1",
            "$snapshot-$$$snapshot-pay-1",
            "$persistentsubscription-",
            "$persistentsubscription-pay-1",
            "$persistentsubscription-pay-1::a::g-parked",
            "$persistentsubscription-$all::g-parked",
            "$persistentsubscription-$et-Paid::g-parked",
            "$persistentsubscription-$streams::g-checkpoint",
            "$persistentsubscriptionconfig-$all::g",
            "$timers-pay",
            "$timers-{pay}-state",
            "$effect-mail",
            "$import-akka",
        ] {
            assert_eq!(made_of(name), MadeOf::Many, "{name}");
        }
        for name in [
            "pay-1",
            "$ce-pay",
            "$streams",
            "$stats-a",
            "$mine",
            "$",
            "snapshot-a",
        ] {
            assert_eq!(made_of(name), MadeOf::Itself, "{name}");
        }
    }

    #[test]
    fn names_of_users_and_groups_are_checked() {
        for good in ["a", "größe", "x.y@z", &"x".repeat(128)] {
            assert!(check_user("user", good).is_ok(), "{good}");
        }
        for bad in [
            "",
            "$a",
            "$all",
            "a:b",
            "a b",
            "a\n",
            "\u{85}",
            &"x".repeat(129),
        ] {
            assert!(check_user("user", bad).is_err(), "{bad:?}");
        }
        assert!(check_group("$admins").is_ok() && check_group("$ops").is_ok());
        assert!(check_group("$all").is_err());
    }
}
